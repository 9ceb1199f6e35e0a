"""Environments in processes of their own: with stand-ins for the packages, and with the real ones where there are any."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import environments
from environments.base import Env, Message, TaskProblem, use
from environments.bridges import apart, packages
from flows.repro.parameters import check_task
from steps.core.errors import UserError
from tests.support.apart import write_environments, write_stand_ins

TASKS = (
    "verifiers:texts_env",
    "verifiers:sums_env",
    "verifiers:tools_env",
    "verifiers:guesses_env",
    "openenv:corridor",
    "openenv:note",
)
REAL = {name: os.environ.get(name) for name in ("VERIFIERS_PYTHON", "OPENENV_PYTHON")}


def forget() -> None:
    apart.end_all()
    packages.load.cache_clear()


@pytest.fixture(params=["stand-ins", "real"])
def installed(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    write_environments(tmp_path)
    for variable, interpreter in REAL.items():
        if request.param == "real" and not interpreter:
            pytest.skip(f"{variable} is not set, which names an interpreter with the real package")
        monkeypatch.setenv(variable, interpreter if request.param == "real" and interpreter else sys.executable)
    if request.param == "stand-ins":
        write_stand_ins(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    forget()
    yield
    forget()


def episode(task: str) -> Env:
    env = environments.load(task)
    return env(env.scenarios(None, "train", 1, 1)[0], None)


@pytest.mark.usefixtures("installed")
def test_gold_wins_and_episodes_in_threads_are_those_of_one_thread() -> None:
    for task in TASKS:
        env = environments.load(task)
        scenarios = env.scenarios(None, "train", 3, 1)
        for scenario in scenarios:
            assert env.success(scenario, env(scenario, None).play("gold")), task
            assert not env.success(scenario, env(scenario, None).play("bad")), task
        alone = [env(scenario, None).play("random", 3) for scenario in scenarios]
        with ThreadPoolExecutor(4) as threads:
            together = list(threads.map(lambda each, env=env: env(each, None).play("random", 3), scenarios * 3))
        assert together == alone * 3, task


@pytest.mark.usefixtures("installed")
def test_what_hangs_ends_or_raises_is_an_error_and_the_episode_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("environments.bridges.apart_env.SECONDS", 5.0)
    env = episode("openenv:note")
    texts = [env.call("act", {"text": text}) for text in ("first", "hang", "exit", "raise", "last")]
    assert texts[0] == "first"
    assert "did not answer within 5 seconds" in texts[1]
    assert "exit code 7" in texts[2]
    assert "the last words" in texts[2]
    assert "ValueError: it broke" in texts[3]
    assert texts[4] == "first last"


@pytest.mark.usefixtures("installed")
def test_turns_of_errors_cost_and_are_not_played_again() -> None:
    env = episode("openenv:note")
    messages: list[Message] = [*env.scenario.messages]
    for turn in (use("act", text="raise"), use("act", count=99, text="word"), use("act", text="end")):
        messages += [turn, *env.step(turn)]
    assert env.done
    parts = {part.name: part.value for part in env.components(env.scenario, messages)}
    assert parts["score"] == 0.5


@pytest.mark.usefixtures("installed")
def test_a_name_that_is_none_says_what_was_looked_for() -> None:
    for task, looked_for in (("verifiers:no_such", "no module no_such"), ("openenv:no_such", "no_such.server.app")):
        with pytest.raises(UserError, match=looked_for) as raised:
            check_task(task)
        assert "PYTHONPATH" in str(raised.value)


def test_without_an_interpreter_the_error_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERIFIERS_PYTHON", raising=False)
    forget()
    with pytest.raises(TaskProblem, match=r"pip install verifiers==0\.3\.1.* set VERIFIERS_PYTHON="):
        environments.load("verifiers:sums_env")
