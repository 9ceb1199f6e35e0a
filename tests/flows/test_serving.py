"""The adapter elsewhere: stock PEFT and vLLM's stock OpenAI server answer with the tokens of the evaluation."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

import pytest

from steps.core.records import Trajectory, Turn, read_records
from tests.conftest import Project, end, free_port, python, start, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BEST = "run/002"


@pytest.fixture(scope="module")
def turns(project: Project) -> list[Turn]:
    """Every turn of the first three test scenarios."""
    played = read_records(Trajectory, project.folder / BEST / "evaluation" / "trajectories.parquet")
    return [turn for trajectory in played[:3] for turn in trajectory.turns]


def test_stock_peft_answers_alike(project: Project, turns: list[Turn]) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(project.folder / "tasks_data/embedded_policy", dtype=torch.float32)
    model = PeftModel.from_pretrained(base, project.folder / BEST / "adapter").eval()
    for turn in turns:
        prompt = torch.tensor([turn.prompt_ids])
        length = len(turn.completion_ids)
        seen = torch.ones_like(prompt)
        answer = model.generate(input_ids=prompt, attention_mask=seen, max_new_tokens=length, do_sample=False)
        assert tuple(answer[0, prompt.shape[1] :].tolist()) == turn.completion_ids


def test_vllms_stock_server_answers_alike(project: Project, turns: list[Turn], tmp_path: Path) -> None:
    port = free_port()
    words = python("vllm.entrypoints.openai.api_server", "--model", "tasks_data/embedded_policy", "--dtype", "float32")
    words += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", "2048", "--enforce-eager"]
    words += ["--enable-lora", "--max-lora-rank", "16", "--lora-modules", f"trained={BEST}/adapter"]
    process = start(
        words, project.folder, log=tmp_path / "server.log", VLLM_CPU_KVCACHE_SPACE="1", VLLM_DO_NOT_TRACK="1"
    )
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process, seconds=240)
        for turn in turns:
            asked = {
                "model": "trained",
                "prompt": list(turn.prompt_ids),
                "temperature": 0,
                "max_tokens": len(turn.completion_ids),
                "return_token_ids": True,
            }
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/v1/completions",
                data=json.dumps(asked).encode(),
                headers={"content-type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=240) as answer:
                [choice] = json.loads(answer.read())["choices"]
            assert tuple(choice["token_ids"]) == turn.completion_ids
    finally:
        end(process)
