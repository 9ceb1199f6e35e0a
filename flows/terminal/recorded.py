"""Runs work as a Prefect flow whose result outlives Prefect: its server may have ended, or hang, when the work is done."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun, State
from prefect.states import Cancelled

from flows.terminal import prefect_server
from flows.terminal.command import TakesTooLong, limit
from steps.core.errors import UserError
from steps.core.masking import masked

T = TypeVar("T")
START = 180.0  # seconds for Prefect to begin the run, a server of its own included
END = 30.0  # seconds for it to record that the work is done
AWAY = threading.Event()  # set where it has not


def result_of(
    name: str,
    work: Callable[[], T],
    say: Callable[[str], None],
    run_name: str,
    start: float = START,
    end: float = END,
) -> T:
    """What `work` returns, which runs as the flow `name`, in a flow run named `run_name`.

    An error of Prefect's after that is said, and changes nothing."""
    results: list[T] = []
    with contextlib.ExitStack() as limits:
        # a text would be a template
        @flow(name=name, flow_run_name=lambda: run_name, log_prints=False, on_crashed=[stopped])
        def run() -> None:
            limits.close()
            results.append(work())
            limits.enter_context(limit(end))

        limits.enter_context(limit(start))
        try:
            run()
        except BaseException as problem:
            limits.close()
            if results:
                AWAY.set()
                reason = " ".join(masked(str(problem)).split())[:300] or type(problem).__name__
                say(f"Prefect has not recorded the end of this run ({reason}). The run itself is complete:")
            elif isinstance(problem, TakesTooLong):
                raise UserError(
                    f"Prefect has not begun the run ({problem}): see to its server, or unset PREFECT_API_URL"
                ) from None
            elif isinstance(problem, RuntimeError) and "ephemeral Prefect API server" in str(problem):
                raise UserError(
                    "Prefect's server has not started in time, as on a machine that is busy. Run the same command again, or "
                    "give it longer: PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS=170 in the environment"
                ) from None
            else:
                raise
    return results[0]


def stopped(_: object, flow_run: FlowRun, state: State) -> None:
    """A hook of flows that people start: what Ctrl-C ended was cancelled, though Prefect calls it a crash."""
    if "interrupt signal" in (state.message or ""):  # Prefect's words for a KeyboardInterrupt
        with get_client(sync_client=True) as client:
            message = "Stopped by Ctrl-C. The same command goes on from here."
            client.set_flow_run_state(flow_run.id, Cancelled(message=message), force=True)


def leave(code: int) -> int:
    """The exit code. Where Prefect was away, the process ends here: at an ordinary end Prefect's threads would try again for
    each event that it has not delivered, 7 s each."""
    if AWAY.is_set() or prefect_server.has_ended():
        from prefect.server.api.server import SubprocessASGIServer

        with contextlib.suppress(Exception):
            for server in list(SubprocessASGIServer._instances.values()):
                server.stop()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def origin() -> dict[str, str]:
    """Tags that lead from MLflow to Prefect's flow run, and to its page where a server keeps it. Empty outside a flow."""
    from prefect.runtime import flow_run

    if not flow_run.id:
        return {}
    page = {"prefect_flow_run_url": str(flow_run.ui_url)} if os.environ.get("PREFECT_API_URL") else {}
    return {"prefect_flow_run_id": str(flow_run.id), **page}
