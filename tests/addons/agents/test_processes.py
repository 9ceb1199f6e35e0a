"""What becomes of rollout functions in their processes: results, errors, time limits, deaths, and loops that are blocked."""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

from addons.agents.processes import Processes, interpreter
from environments.base import Scenario
from steps.core.errors import UserError

ROLLOUTS, PLAIN = "tests.support.rollouts", "tests.support.plain_rollout"
QUICK = "import sys, addons.agents.worker as w; w.STOP_SECONDS = w.BLOCKED_SECONDS = 0.5; sys.exit(w.main())"


class Told:
    """What the client is told, and whether it is whole."""

    def __init__(self) -> None:
        self.outcomes: dict[str, dict[str, Any]] = {}
        self.lines: list[str] = []
        self.changed = asyncio.Event()

    def ended(self, key: str, outcome: dict[str, Any]) -> None:
        assert key not in self.outcomes, key
        self.outcomes[key] = outcome
        self.changed.set()

    async def wait(self, *keys: str) -> None:
        while not set(keys) <= self.outcomes.keys():
            self.changed.clear()
            await asyncio.wait_for(self.changed.wait(), 30)


def entry(seconds: float = 30.0, **data: Any) -> dict[str, Any]:
    scenario = Scenario.make(ROLLOUTS, "train", [{"role": "user", "content": "What now?"}], data)
    fields = {"scenario": scenario.model_dump(mode="json"), "attempt": 0, "seed": 1, "seconds": seconds}
    return {"id": f"the-{data['do']}", "base_url": "http://127.0.0.1:1/v1", "api_key": "secret-of-it", **fields}


def processes(task: str, told: Told, count: int = 1) -> Processes:
    made = Processes(task, count, dict(os.environ), told.ended, told.lines.append)
    made.command = [sys.executable, "-c", QUICK]  # with a shorter patience
    return made


def test_results_errors_limits_and_deaths(capfd: pytest.CaptureFixture[str]) -> None:
    limits = {"slow": 0.5, "deaf": 0.5}
    plain = [
        "number",
        "result",
        "nothing",
        "text",
        "infinite",
        "error",
        "half a letter",
        "exit",
        "print",
        "slow",
        "deaf",
    ]

    async def play() -> tuple[dict[str, Any], list[bool]]:
        told = Told()
        made = processes(ROLLOUTS, told)
        for do in plain:
            await made.play(do, entry(limits.get(do, 30.0), do=do))
        await told.wait(*plain)
        retired = [process.is_retired for process in made.all]
        await made.play("again", entry(do="number"))
        await made.play("die", entry(do="die"))
        await told.wait("again", "die")
        await made.play("slow again", entry(do="slow"))
        await made.play("die again", entry(do="die"), is_suspect=True)
        await told.wait("die again")
        assert "slow again" not in told.outcomes, "the suspect has ended no process but its own"
        await made.stop()
        return told.outcomes, retired

    outcomes, retired = asyncio.run(play())
    nothing: dict[str, Any] = {"reward": None, "success": None, "components": {}, "output": ""}
    assert outcomes["number"] == outcomes["again"] == {"result": nothing | {"reward": 1.0}, "error": None}
    whole = {"reward": 0.25, "success": True, "components": {"a": 0.25}, "output": "What now?"}
    assert outcomes["result"] == {"result": whole, "error": None}
    assert outcomes["nothing"] == {"result": nothing, "error": None}
    errors = {do: outcomes[do]["error"] for do in ("text", "error", "half a letter", "exit", "slow", "deaf")}
    assert errors == {
        "text": "TypeError: rollout returned str; it must return a number, a Result or None",
        "error": "RuntimeError: no luck with [masked]",
        "half a letter": "ValueError: unknown country \\ud83d",
        "exit": "SystemExit: 3",
        "slow": "TimeoutError: it took longer than the 0.5 seconds of agents.episode_seconds",
        "deaf": "TimeoutError: it took longer than the 0.5 seconds of agents.episode_seconds",
    }
    assert outcomes["infinite"]["error"] == "UnusableNumber: reward is nan"
    assert outcomes["die"] == {"lost": "the process that ran it ended (exit code 7)"}
    assert True in retired, "a function that cannot be stopped is left behind with its process"
    log = capfd.readouterr().err
    printed = [line for line in log.splitlines() if line.startswith("the-print: ")]
    assert printed == ["the-print: a line", "the-print: another, with [masked]", "the-print: and the last"]
    assert "the-error: RuntimeError: no luck with [masked]" in log
    assert "secret-of-it" not in log


def test_plain_functions_run_side_by_side_and_are_left_behind_in_time() -> None:
    async def play() -> dict[str, Any]:
        told = Told()
        made = processes(PLAIN, told)
        await made.play("slow", entry(0.5, do="slow"))
        for key in ("x", "y"):
            await made.play(key, entry(do="meet"))
        await told.wait("slow", "x", "y")
        for key in ("v", "w"):
            await made.play(key, entry(do="meet"))
        await told.wait("v", "w")
        async with asyncio.timeout(20):
            while len(made.all) > 1:  # the process with the slow function ends
                await asyncio.sleep(0.01)
        await made.stop()
        return told.outcomes

    outcomes = asyncio.run(play())
    assert [outcomes[key]["result"]["reward"] for key in "xyvw"] == [0.5] * 4
    assert outcomes["slow"]["error"] == "TimeoutError: it took longer than the 0.5 seconds of agents.episode_seconds"


def test_functions_that_block_their_event_loop_get_loops_of_their_own(tmp_path: Path) -> None:
    """The first waits, without `await`, for what the second does: in one loop that would never end."""

    async def play() -> tuple[Told, Processes]:
        told = Told()
        made = processes(ROLLOUTS, told)
        file = str(tmp_path / "file")
        await made.play("block", entry(do="block", file=file))
        await made.play("touch", entry(do="touch", file=file))
        await told.wait("block", "touch")
        assert told.outcomes == {"block": {"lost": None}, "touch": {"lost": None}}
        await made.play("block again", entry(do="block", file=file))
        await made.play("touch again", entry(do="touch", file=file))
        await told.wait("block again", "touch again")
        await made.stop()
        return told, made

    told, made = asyncio.run(play())
    assert made.own_loops
    assert told.outcomes["block again"]["result"]["reward"] == 1.0
    [line] = told.lines
    assert "a rollout function keeps the others from running, at " in line
    assert "rollouts.py, line " in line
    assert "time.sleep(0.02)" in line


@pytest.mark.parametrize(
    ("task", "reason"),
    [
        ("no.such.agent", "no.such.agent cannot be loaded: ModuleNotFoundError: No module named 'no'"),
        ("multiplication", "it is an environment, which needs no client"),
    ],
)
def test_a_task_that_cannot_be_loaded_is_said_at_once(task: str, reason: str) -> None:
    async def play() -> None:
        made = processes(task, Told())
        try:
            await made.play("x", entry(do="number"))
        finally:
            await made.stop()

    with pytest.raises(UserError, match=reason):
        asyncio.run(play())


def environment(folder: Path, has_packages: bool = True) -> str:
    """The interpreter of a virtual environment that has a module of its own, and by choice the packages of this one."""
    venv.create(folder, symlinks=True)
    [site] = folder.glob("lib/python*/site-packages")
    (site / "only_there.py").write_text("ANSWER = 0.25\n")
    if has_packages:
        (site / "more.pth").write_text(sysconfig.get_path("purelib"))
    return os.fspath(folder / "bin/python")


def test_an_agent_runs_in_the_interpreter_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its packages may conflict with this project's, or be missing here."""
    text = "def rollout(episode):\n    import only_there\n    return only_there.ANSWER\n"
    (tmp_path / "agents_of_theirs").mkdir()
    (tmp_path / "agents_of_theirs/agent.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", os.fspath(tmp_path))

    async def play(python: str | None) -> dict[str, Any]:
        told = Told()
        made = Processes("agents_of_theirs.agent", 1, dict(os.environ), told.ended, told.lines.append, python)
        await made.play("a", entry(do="a"))
        await told.wait("a")
        await made.stop()
        return told.outcomes["a"]

    assert asyncio.run(play(environment(tmp_path / "env")))["result"]["reward"] == 0.25
    assert "No module named 'only_there'" in asyncio.run(play(None))["error"]


def test_an_interpreter_that_cannot_run_agents_is_refused_with_what_it_lacks(tmp_path: Path) -> None:
    other = tmp_path / "other"  # a program whose output is no UTF-8
    other.write_text("#!/bin/sh\nprintf '\\377'\n")
    other.chmod(0o755)
    for python, reason in (
        (environment(tmp_path / "bare", has_packages=False), "has no pydantic; install pydantic 2 there"),
        (os.fspath(tmp_path / "none"), "there is no program"),
        ("true", "is no Python interpreter"),
        (os.fspath(other), "is no Python interpreter"),
    ):
        with pytest.raises(UserError, match=f"agents.python: .*{reason}"):
            interpreter(python)
