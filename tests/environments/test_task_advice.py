"""A task with a beginner's mistake ends in a sentence that names class and method and says what to do, in no traceback."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import environments
from environments import _new
from environments._template import Template
from environments.multiplication import Multiplication
from tests.conftest import ROOT, run
from tests.environments import test_environments as checks
from tests.support.task_advice import gains, sentence

# The same task with players, and a reward of parts.
PLAYED = (
    (ROOT / "tests/support/capitals.py").read_text().replace("CapitalsTask", "Shop").replace('"capitals"', '"shop"')
)
MISTAKES: dict[str, tuple[str, str, Callable[..., None] | None, str]] = {
    "too few scenarios": (
        "train=0.6",
        "train=0.97",
        None,
        "Shop.scenarios raised ValueError: 4 scenarios were asked for, and {split} has {n}: ask for fewer "
        "({file}, line {line}): the checks draw 4 to 12 scenarios of each split (train, val, test): let each",
    ),
    "a file of another name": (
        '"capitals.json"',
        '"prices.json"',
        None,
        "Shop.load raised FileNotFoundError: {folder}/prices.json is missing: restore it with {git} ({file}, line {line}): "
        "put what it reads into tasks_data/<task>/",
    ),
    "a tool that raises": (
        'self.data.get(country) or error("there is no country of this name; look up another")',
        "self.data[country]",
        checks.test_any_value_can_be_called_with,
        "Shop.look_up raised KeyError: {key} ({file}, line {line}): a tool never raises: where a call cannot be answered",
    ),
    "a tool that shows the answer": (
        'shown: ClassVar[tuple[str, ...]] = ("look_up",)',
        "",
        checks.test_tools_do_not_leak,
        "Shop.tools must not show what is hidden, which `secret` names (fields of a scenario's data; default: "
        '("answer",)). '
        'The class attribute `shown` names the tools that are there to show it, as in shown = ("look_up",). What was seen: ',
    ),
    "a success of the last turn": (
        'given = accepted(messages, "answer")',
        'given = accepted(messages, "answer") if messages[1]["role"] == "assistant" else None',
        checks.test_rewards_are_bounded_named_and_say_why,
        "Shop.success raised IndexError: {text} ({file}, line {line}): it gets every transcript, also one that was cut off",
    ),
    "scenarios without a seed": (
        "draw(data, split, count, seed, train=0.6)",
        "draw(data, split, count, 1, train=0.6)",
        checks.test_the_same_seed_gives_the_same_scenarios,
        "Shop.scenarios must give as many different scenarios of the split as are asked for, the same for the same seed; ",
    ),
    "an argument without a type": (
        "def look_up(self, country: str)",
        "def look_up(self, country)",
        checks.test_tools_do_not_leak,
        "Shop.look_up: the argument country has no type hint: write it as in `country: str`",
    ),
    "a reward that is none": (
        "return base.weighed(",
        "base.weighed(",
        checks.test_gold_succeeds_and_beats_bad,
        "Shop.reward must return a number or a list of Component(name, value, why), not null",
    ),
    "a reward that is not a number": (
        "return base.weighed(",
        "return float('nan') if right else base.weighed(",
        checks.test_gold_succeeds_and_beats_bad,
        "Shop: reward is nan. What `reward` gives must be finite numbers, and `success` True or False, for every transcript",
    ),
    "a success that is none": (
        'return _answer(messages) == str(scenario.data["answer"]).casefold()',
        'return _answer(messages) == str(scenario.data["answer"]).casefold() if _answer(messages) else None',
        checks.test_rewards_are_bounded_named_and_say_why,
        "Shop: success is None, and neither True nor False. What `reward` gives must be finite numbers",
    ),
    "no Python": (
        "def load(cls, folder: Path) -> dict[str, str]:",
        "def load(cls, folder: Path) -> dict[str, str]",
        None,
        "no valid Python",
    ),
}


def module_of(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("environments.shop", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def checked(path: Path, check: Callable[..., None] | None) -> None:
    """Load the task, and hold it to the check."""
    task = checks.Task("shop", module_of(path).Shop, _new.TEMPLATE)
    if check is not None:
        check(task)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_beginners_mistake_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mistake: str) -> None:
    before, after, check, expected = MISTAKES[mistake]
    source = next(text for text in (_new.source("shop"), PLAYED) if text.count(before) == 1)
    (tmp_path / "shop.py").write_text(source.replace(before, after))
    monkeypatch.setitem(sys.modules, "environments.shop", sys.modules[__name__])  # as importing it would leave it
    with pytest.raises(Exception) as raised:  # noqa: PT011  (its text is compared below)
        checked(tmp_path / "shop.py", check)
    said = sentence(check.__name__ if check else "setup", raised.value, "Shop" if check else "shop")
    for part in expected.replace("{file}", str(tmp_path / "shop.py")).split("{"):
        assert part.partition("}")[2] in said if "}" in part else part in said, said
    assert "Traceback (most recent" not in said
    assert "\n" not in said


def test_what_a_task_could_have_besides_is_a_sentence_each() -> None:
    """A task that has it all is told nothing; an agent of your own, and a package's environment, can have none of it."""
    sentences = gains("shop", type("Shop", (Template,), {"__module__": "environments.shop"}))
    parts = ("gold player", "bad player", "scripted player", "`sources`", "`cluster`", "`decisions`")
    for text, part in zip(sentences, parts, strict=True):
        assert text.startswith(f"shop has no {part}, ")
        assert "which would bring " in text
        assert ". " not in text
    assert "each scenario counts as independent, and the gate says so" in sentences[4]
    assert gains("email_search", environments.load("email_search")) == []
    starts = [text.partition(",")[0] for text in gains("multiplication", Multiplication)]
    assert starts == ["multiplication has no `sources`", "multiplication has no `decisions`"]
    assert gains("_agent_template", environments.load("_agent_template")) == []
    assert gains("gymnasium:Taxi-v4", Template) == []


def test_check_task_shows_it_in_place_of_a_traceback(tmp_path: Path) -> None:
    """The name is the template's, whose data it then takes."""
    text = (
        (ROOT / "environments/_template.py").read_text().replace(".format(country)", ".format(country) + data[country]")
    )
    (tmp_path / "own").mkdir()
    (tmp_path / "own/_template.py").write_text(text)
    words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", "question"]
    words += ["tests/environments/test_environments.py", "--task"]
    done = run([*words, "own._template"], ROOT, seconds=200, PYTHONPATH=str(tmp_path))
    assert (
        "Template.scenarios must not tell the answer in a scenario's messages. `secret` names the fields" in done.stdout
    )
    assert "Traceback" not in done.stdout.replace("Python's traceback", "")
    assert "1 failed" in done.stdout
    done = run([*words, "email-search"], ROOT, seconds=200)
    assert "there is no task email-search; did you mean email_search?" in done.stdout
    assert "1 error" in done.stdout, "the other checks wait for that"
