"""The template of SmolLM2: every task is rendered and read back by it, and without tools it is the model's own.

The tokenizer is a toy, because the real one comes with the weights (tests/stages/test_pretrained.py has it): template and
parser work on text.
"""

from __future__ import annotations

from typing import Any

import pytest

import environments
from addons.models import players
from addons.templates.chat_templates import SMOLLM2, SMOLLM2_OWN
from steps.core.params import Policy
from steps.policy.chat import Chat
from tests.conftest import ROOT
from tests.support.templates import Family, tokenizer

TURNS = 3  # of an episode that are looked at


@pytest.fixture(scope="module")
def toy() -> Any:
    return tokenizer(Family("", "hermes", None, "<|im_end|>"), SMOLLM2)


@pytest.mark.parametrize("task", [*environments.tasks(agents=False), "_template"])
def test_every_task_is_rendered_and_read_back(task: str, toy: Any) -> None:
    env = environments.load(task)
    data = env.load(ROOT / "tasks_data" / task)
    [scenario] = env.scenarios(data, "train", 1, 1)
    chat = Chat(toy, [tool.schema for tool in env.tools().values()])
    kind = "scripted" if env.has_player("scripted") else "random"
    [game] = players.play(Policy(kind=kind), env, data, [(scenario, 0)], prefix="smollm2", max_turns=TURNS)
    ids = chat.prompt_ids(scenario.messages)
    for turn in game.trajectory.turns:
        sampled = chat.completion_ids(turn.message)
        read, problems = chat.parse(sampled)
        assert (problems, functions(read)) == ([], functions(turn.message))
        ids += sampled
        if turn.observations:
            ids += chat.suffix_ids(turn.observations, turn.message)
    prompt = toy.decode(ids)
    assert all(f'"name": "{name}"' in prompt for name in env.tools())
    assert ("You are a helpful AI assistant named SmolLM" in prompt) == (
        not env.tools() and scenario.messages[0]["role"] != "system"
    )


def functions(message: Any) -> list[Any]:
    return [call["function"] for call in message.get("tool_calls") or ()]


def test_without_tools_it_is_the_models_own(toy: Any) -> None:
    told = [{"role": "user", "content": "What is 3 * 4?"}, {"role": "assistant", "content": "12"}]
    for messages in (told[:1], told, [{"role": "system", "content": "Count."}, *told]):
        for generate in (False, True):
            words: Any = {"tokenize": False, "add_generation_prompt": generate}
            own = toy.apply_chat_template(messages, chat_template=SMOLLM2_OWN, **words)
            assert toy.apply_chat_template(messages, **words) == own
    assert toy.apply_chat_template(told[:1], tokenize=False, add_generation_prompt=True) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nWhat is 3 * 4?<|im_end|>\n<|im_start|>assistant\n"
    )
