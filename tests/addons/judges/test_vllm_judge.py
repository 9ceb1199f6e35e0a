"""RULER against a real server: vLLM's own, with the embedded policy as the judge and structured output, over HTTP.

A policy that only knows mails has no judgement; what is shown is that its answers, held to the schema, are taken whole.
"""

from __future__ import annotations

import json
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from steps.core.records import Judgement, Reward, read_records
from tests.conftest import ROOT, end, free_port, python, start
from tests.support.judged import Stage, group

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
GROUPS = 200


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    port = free_port()
    longer = json.dumps({"max_position_embeddings": 8192})  # its prompts are longer than any episode of its own
    plain = json.dumps(
        {"backend": "xgrammar", "disable_any_whitespace": True}
    )  # a policy that knows no JSON could write blanks for ever
    words = ["--model", str(ROOT / "tasks_data" / "embedded_policy"), "--served-model-name", "embedded"]
    words += ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32", "--max-model-len", "8192"]
    words += ["--hf-overrides", longer, "--structured-outputs-config", plain, "--enforce-eager"]
    words += ["--max-num-seqs", "16", "--api-key", "test"]
    process = start(python("vllm.entrypoints.openai.api_server", *words), ROOT, VLLM_CPU_KVCACHE_SPACE="1")
    try:
        until = time.monotonic() + 300
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > until:
                    end(process, signal.SIGKILL)
                    raise AssertionError(f"no server: {process.communicate()[1][-2000:]}") from None
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        end(process, signal.SIGTERM)


def test_vllms_own_server_judges(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("JUDGE_KEY", "test")
    endpoint = {"model": "embedded", "base_url": address, "api_key_env": "JUDGE_KEY", "max_tokens": 512}
    ruler = {"endpoint": endpoint, "orders": 1, "probes": 0.0, "reasons": False}
    groups = [group(number, 4) for number in range(GROUPS)]
    stage = Stage(tmp_path / "stage", groups, {"judges": {"ruler": 1}, "ruler": ruler})
    stage.run()
    lines = stage.outputs["judgements"].read_text().splitlines()
    judgements = [Judgement.model_validate_json(line) for line in lines]
    assert [one.scenario_id for one in judgements] == [one.scenario.id for one in groups]
    assert all(None not in one.scores.values() for one in judgements), [
        one.problem for one in judgements if one.problem
    ]
    rewards = read_records(Reward, stage.outputs["rewards"])
    assert len(rewards) == 4 * GROUPS
    assert all(0 <= (one.score if one.score is not None else -1) <= 1 for one in rewards)
