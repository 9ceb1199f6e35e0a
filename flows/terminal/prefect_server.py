"""The temporary Prefect server of a run, which ends with the run's process, even where that was killed.

Prefect's own ends with SIGTERM from the process that started it; after a SIGKILL it would stay, with 230 MB.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import threading
import time
from typing import Any

from steps.core.imports import uncollected
from steps.kit.process import start

LOOK = 1.0  # seconds


def create_app() -> Any:
    """Prefect's application, in a process that looks for its parent; what uvicorn calls."""
    threading.Thread(target=follow, args=(os.getppid(),), daemon=True).start()
    with uncollected():
        from prefect.server.api.server import create_app

        return create_app()


def follow(parent: int) -> None:
    """End this process once its parent has ended."""
    while os.getppid() == parent:
        time.sleep(LOOK)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(10 * LOOK)
    os._exit(1)


def use() -> None:
    """Have Prefect start this server when it needs one. Ctrl-C does not stop it; it ends with this process, by SIGTERM.

    If Ctrl-C stopped it first, Prefect's client would try for minutes to report the stopped run, which would stay RUNNING.
    It has a key that nobody else gets, and answers pages of no site: Prefect's own default is no key, and all sites.
    """
    key = f"flywheel:{secrets.token_urlsafe(24)}"
    os.environ["PREFECT_SERVER_API_AUTH_STRING"] = os.environ["PREFECT_API_AUTH_STRING"] = key
    os.environ["PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS"] = "http://prefect.invalid"
    from prefect.server.api.server import SubprocessASGIServer
    from prefect.settings import get_current_settings

    class Server(SubprocessASGIServer):
        def _run_uvicorn_command(self) -> Any:
            words = [
                "-m",
                "uvicorn",
                "--factory",
                f"{__name__}:create_app",
                "--host",
                "127.0.0.1",
                "--port",
                str(self.port),
            ]
            words += ["--log-level", "error", "--lifespan", "on"]
            variables = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
            variables |= get_current_settings().to_environment_variables(exclude_unset=True)
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the new process inherits it
            try:
                return start([sys.executable, *words], env=os.environ | variables)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    Server()  # Prefect keeps one server per port and process: from now on it uses this one


def has_ended() -> bool:
    """Whether the server that this process started is no longer there."""
    module = sys.modules.get("prefect.server.api.server")
    servers = list(module.SubprocessASGIServer._instances.values()) if module else []
    return any(server.server_process is not None and server.server_process.poll() is not None for server in servers)
