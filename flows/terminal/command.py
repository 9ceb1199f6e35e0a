"""What the commands of flows share: what their process needs before Prefect starts, and how they end.

Ctrl-C on a terminal reaches all of a command's processes. It stops the command with one sentence, whatever runs just then.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.repro import pipeline
from flows.terminal.display import last_error
from steps.core import dotenv
from steps.core.errors import UserError, explain

LOG = Path(".flywheel/train.log")


class Stopped(KeyboardInterrupt):
    """Ctrl-C. A KeyboardInterrupt itself in the midst of `exec`, as imports run it, makes CPython 3.11 end the process by
    the signal in place of its exit code, however it was dealt with."""


def run_command(work: Callable[[], int]) -> int:
    """The exit code of `work`, or that of what went wrong in it, which is said. No worker of this project is left. Ctrl-C
    no longer reaches this process afterwards: all that is left to it is its end."""
    interrupts: list[int] = []

    def interrupt(number: int, _: object) -> None:
        interrupts.append(number)
        raise Stopped

    signal.signal(signal.SIGINT, interrupt)
    try:
        try:
            return work()
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    except BaseException as problem:
        return say_why(problem, interrupted=bool(interrupts))
    finally:
        logging.getLogger("prefect").setLevel(logging.WARNING)  # not that its own server ends, too
        end_worker()


def stop_once() -> None:
    """From here on SIGINT and SIGTERM raise Stopped, the first of them alone: what then stops takes some seconds,
    and make passes on a SIGTERM that the process has had already. A shell's background job would ignore SIGINT."""
    numbers = (signal.SIGINT, signal.SIGTERM)

    def stop(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    for number in numbers:
        signal.signal(number, stop)


def prepare() -> None:
    """What the process needs before Prefect's server starts: its state in the project, this Python first on the path."""
    if not Path("dvc.yaml").exists():
        raise UserError(f"{Path.cwd()} holds no dvc.yaml: run this from the project's root")
    dotenv.load(Path.cwd())
    binaries = os.fspath(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join((binaries, os.environ.get("PATH", "")))
    os.environ["DVC_NO_ANALYTICS"] = "1"
    if home := os.environ.get("PREFECT_HOME"):
        Path(home).mkdir(parents=True, exist_ok=True)  # Prefect does not
    if api := os.environ.get("PREFECT_API_URL"):
        try:
            urllib.request.urlopen(f"{api.rstrip('/')}/health", timeout=10).close()
        except (OSError, ValueError) as problem:
            raise UserError(
                f"PREFECT_API_URL is {api}, where no Prefect server answers ({problem}): start it with `make prefect`, or "
                "unset the variable and the flow runs by itself"
            ) from None
    else:
        own_server()


def own_server() -> None:
    """Prefect's temporary server, which Ctrl-C does not stop: gone first, it leaves Prefect's client trying for minutes to
    tell it that the run was stopped, and the run RUNNING for ever. It ends with this process, by SIGTERM."""
    from prefect.server.api.server import SubprocessASGIServer

    class Server(SubprocessASGIServer):
        def _run_uvicorn_command(self) -> Any:
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the new process inherits it
            try:
                return super()._run_uvicorn_command()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    Server()  # from now on the one of this process: Prefect makes one of each port


def sentence(problem: BaseException) -> str:
    """What went wrong, for a person; of a stage, what it said itself."""
    if isinstance(problem, pipeline.StageFailed):
        return f"{last_error(LOG) or problem} (stage {problem.stage})"
    return explain(problem)[0]


def say_why(problem: BaseException, interrupted: bool) -> int:
    """One sentence where the user can do something; the exit code."""
    if interrupted or isinstance(problem, KeyboardInterrupt):  # DVC and Prefect wrap an interrupt in errors of theirs
        print("Stopped. The same command goes on from here.", file=sys.stderr)
        return 130
    if isinstance(problem, pipeline.StageFailed):
        print(f"error: {last_error(LOG) or problem} (stage {problem.stage}; log: {LOG})", file=sys.stderr)
        return problem.code if problem.code > 0 else 1
    text, code = explain(problem)
    print(f"error: {text}", file=sys.stderr)
    return code


def end_worker() -> None:
    from steps.runner import handover

    handover.stop_workers(Path.cwd())
