"""`make check-task`: what is wrong with the task that was asked for, as a sentence in place of a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import environments
from tests.support import task_advice


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Function, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome: Any = yield
    report, chosen = outcome.get_result(), item.config.getoption("--task")
    if not chosen or report.outcome != "failed" or call.excinfo is None or item.config.option.tbstyle != "auto":
        return
    task: Any = getattr(item, "funcargs", {}).get("task")
    owner = task.env.__name__ if task is not None else chosen[0]
    report.longrepr = task_advice.sentence(item.originalname, call.excinfo.value, owner)
    if call.when == "setup":
        item.session.shouldfail = "the task cannot be loaded: the other checks wait for that"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, exitstatus: int, config: pytest.Config) -> None:
    """What the task would gain by parts that it does not have."""
    chosen = config.getoption("--task") if exitstatus == pytest.ExitCode.OK else []
    for sentence in [each for task in chosen for each in task_advice.gains(task, environments.load(task))]:
        terminalreporter.write_line(sentence)
