"""What the commands of flows share: preparing the process before Prefect starts, and how a command ends.

Ctrl-C on a terminal reaches all of a command's processes. It ends the command with one sentence, whatever it is doing, and
so do SIGTERM and a terminal that is closed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from flows.repro import folder_lock
from flows.repro.pipeline import StageFailed
from flows.terminal import prefect_server
from steps.core import dotenv
from steps.core.errors import UserError, explain
from steps.project import dvc
from steps.runner import handover

LOG = Path(".flywheel/train.log")
HEALTH = 10.0  # seconds for Prefect's server to say that it works


STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
signals_received: list[int] = []  # by the command that runs in this process


class Stopped(KeyboardInterrupt):
    """Ctrl-C, or another signal to stop. After a plain KeyboardInterrupt in `exec`, which imports use, CPython 3.11 ends the
    process by the signal instead of with its exit code, even where the exception was caught.
    """


class TakesTooLong(BaseException):
    """Raised in the middle of whatever the main thread waits for. No library takes it for an error that it should retry."""


class WithoutFailures(logging.Filter):
    """Leaves out what Prefect says of a run that failed, with its traceback: the command itself says why, once."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not record.name.startswith(("prefect.flow_runs", "prefect.task_runs")):
            return True
        return not record.exc_info and not record.getMessage().startswith("Finished in state Failed")


def run_command(work: Callable[[], int | None], writes: bool = True) -> int:
    """The exit code that `work` returns (None: 0), or that of its error, which is printed. 130: Ctrl-C; 143: SIGTERM.

    With `writes`, no other such command runs in this folder meanwhile. The workers that ran this command's stages end with
    it. Signals to stop are ignored from then on, because the process has nothing left to do but end.
    """
    signals_received.clear()

    def stop(number: int, _: object) -> None:
        signals_received.append(number)
        if number != signal.SIGINT:
            signal.signal(number, signal.SIG_IGN)  # make passes on a SIGTERM that this process has already had
        raise Stopped

    for number in STOPPING:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # `nohup` ignores that one
            signal.signal(number, stop)
    with contextlib.ExitStack() as stack:
        try:
            try:
                if writes and Path("dvc.yaml").exists():  # elsewhere `prepare` says what is wrong
                    stack.enter_context(folder_lock.held(Path.cwd(), folder_lock.command_line()))
                return work() or 0
            finally:
                for number in STOPPING:
                    signal.signal(number, signal.SIG_IGN)
        except BaseException as problem:
            return print_problem(problem, signals_received)
        finally:
            logging.getLogger("prefect").setLevel(logging.WARNING)  # hides that Prefect's own server ends as well
            handover.end_own_workers()


def stop_if_signalled() -> None:
    """Raise Stopped where a signal to stop has arrived.

    The handler's own Stopped is lost where it is raised in a destructor or a callback, whose exceptions Python drops.
    """
    if signals_received:
        raise Stopped


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Inside, signals to stop are ignored, because what is ending already needs a moment for it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.signal(number, signal.SIG_IGN) for number in STOPPING}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def stop_once() -> None:
    """From here on the first SIGINT or SIGTERM raises Stopped, and all later ones are ignored.

    Stopping takes some seconds, and make passes on a SIGTERM that this process has already had. SIGINT gets a handler of
    its own because a shell's background job ignores it.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)

    def stop(*_: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise Stopped

    for number in numbers:
        signal.signal(number, stop)


@contextlib.contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Inside, the main thread gets TakesTooLong after so many seconds, and then every second; other threads have no limit.
    For libraries that have none of their own for a whole answer."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: object) -> None:
        raise TakesTooLong(f"no answer within {seconds:g} s")

    handler = signal.signal(signal.SIGALRM, interrupt)
    timer = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, *timer)
        signal.signal(signal.SIGALRM, handler)


def without_proxy() -> None:
    """Have this process and those that it starts reach servers on this machine directly. A proxy would see their keys."""
    listed = [host for name in ("no_proxy", "NO_PROXY") for host in os.environ.get(name, "").split(",") if host]
    hosts = ["*"] if "*" in listed else [*listed, "127.0.0.1", "localhost"]  # a * counts only where it stands alone
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = ",".join(dict.fromkeys(hosts))


def prepare(by_hand: bool = False) -> None:
    """Prepare the process for Prefect: variables of .env, this Python first on PATH, Prefect's folder and its server.

    A command that was called by hand reports its failure itself, so the terminal leaves out Prefect's own report.
    """
    if not Path("dvc.yaml").exists():
        raise UserError(f"{Path.cwd()} holds no dvc.yaml: run this from the project's root")
    dotenv.load(Path.cwd())
    without_proxy()
    binaries = os.fspath(Path(sys.executable).parent)
    os.environ["PATH"] = os.pathsep.join((binaries, os.environ.get("PATH", "")))
    os.environ["DVC_NO_ANALYTICS"] = "1"
    dvc.own_cache(Path.cwd())
    if home := os.environ.get("PREFECT_HOME"):
        Path(home).mkdir(parents=True, exist_ok=True)  # Prefect does not make it
    if api := os.environ.get("PREFECT_API_URL"):
        if problem := unanswered(api):
            raise UserError(
                f"PREFECT_API_URL is {api}, where no Prefect server answers ({problem}): start it with `make prefect`, or "
                "unset the variable and the flow runs by itself"
            )
    else:
        prefect_server.use()
    if module := sys.modules.get("prefect.context"):
        module.refresh_global_settings_context()  # flows import Prefect first, which reads its variables only once
        for handler in logging.getLogger().handlers if by_hand else ():  # Prefect's server still gets all
            handler.addFilter(WithoutFailures())


def unanswered(api: str) -> str:
    """Why Prefect's client gets no answer from the server at this address; empty where it does."""
    from prefect.client.orchestration import SyncPrefectClient

    problem: BaseException | None
    try:
        with limit(HEALTH):
            problem = SyncPrefectClient(api).api_healthcheck()
    except (TakesTooLong, ValueError) as refusal:
        problem = refusal
    reason = str(problem).partition(" - For more information")[0] or type(problem).__name__
    return "" if problem is None else reason


def explained(problem: BaseException, log: Path | None = None) -> tuple[str, int]:
    """(what went wrong, exit code). Where a stage failed: its own sentence, and `log`, which has the rest."""
    if isinstance(problem, StageFailed):
        return problem.sentence(log), max(problem.code, 1)
    return explain(problem)


def print_problem(problem: BaseException, received: Sequence[int] = ()) -> int:
    """Print one sentence where the user can do something about it, else the traceback; the exit code. `received` are the
    signals to stop that have come."""
    if received or isinstance(problem, KeyboardInterrupt):  # DVC and Prefect wrap it in errors of their own
        print("Stopped. The same command goes on from here.", file=sys.stderr)
        return 128 + (received[0] if received else signal.SIGINT)
    text, code = explained(problem, LOG)
    print(f"error: {text}", file=sys.stderr)
    return code
