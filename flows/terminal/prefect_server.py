"""The temporary Prefect server of a run, which ends with the run's process, even where that was killed.

    python -m flows.terminal.prefect_server 5       # as `use` starts it, on the socket that has the number 5

Prefect's own ends with SIGTERM from the process that started it; after a SIGKILL it would stay, with 230 MB. And it looks
for a free port that it takes seconds later: of two runs that began together one could find the other's server there.
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
from steps.kit import sockets
from steps.kit.process import start

HOST = "127.0.0.1"
LOOK = 1.0  # seconds
STARTUP_FAILURE = 3  # the exit code after which Prefect starts the server again, on another port


def serve(number: int) -> int:
    """Serve Prefect's application on the socket of this number, in a process that looks for its parent. The exit code."""
    threading.Thread(target=follow, args=(os.getppid(),), daemon=True).start()
    with uncollected():
        import uvicorn
        from prefect.server.api.server import create_app

        server = uvicorn.Server(uvicorn.Config(create_app(), log_level="error", lifespan="on"))
    server.run(sockets=[sockets.handed(number)])
    return 0 if server.started else STARTUP_FAILURE


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
        def find_available_port(self) -> int:
            self.socket = sockets.hold(HOST)
            return int(self.socket.getsockname()[1])

        def _run_uvicorn_command(self) -> Any:
            variables = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1", "PREFECT__SERVER_FINAL": "1"}
            variables |= get_current_settings().to_environment_variables(exclude_unset=True)
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # the new process inherits it
            try:
                command = [sys.executable, "-m", __name__, str(self.socket.fileno())]
                return start(command, env=os.environ | variables, pass_fds=[self.socket.fileno()])
            finally:
                self.socket.close()
                signal.pthread_sigmask(signal.SIG_SETMASK, before)

    Server()  # Prefect keeps one server per port and process: from now on it uses this one


def has_ended() -> bool:
    """Whether the server that this process started is no longer there."""
    module = sys.modules.get("prefect.server.api.server")
    servers = list(module.SubprocessASGIServer._instances.values()) if module else []
    return any(server.server_process is not None and server.server_process.poll() is not None for server in servers)


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1])))
