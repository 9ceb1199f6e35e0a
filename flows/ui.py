"""UI: everything that a team opens, on this machine alone: MLflow, Prefect with a worker and the deployments, trajectories.

    python -m flows.ui                     # `make ui`; Ctrl-C stops all of it
    python -m flows.ui --prefect-port 4300 --mlflow-port 5300 --view-port 8700
    python -m flows.ui --runs 2            # two at a time: on a machine with two GPUs, or for small policies

Prefect's API asks for a key, which is made once and kept in .flywheel/prefect.key, for its owner alone; its pages ask for
it too. All state lies in .flywheel/. `. .flywheel/ui.env` gives another shell what it needs to use them.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from base64 import b64encode
from pathlib import Path

from flows.command import stop_once
from steps import dotenv
from steps.stage import UserError, exit_code, say

KEY = Path(".flywheel/prefect.key")
POOL = "local"  # the work pool
PATIENCE = 180.0  # seconds for a server to answer


class Services:
    """Processes in groups of their own, which end together."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Services:
        return self

    def __exit__(self, *_: object) -> None:
        for wait, number in ((15, signal.SIGINT), (5, signal.SIGKILL)):
            for process in reversed(self.running.values()):
                if process.poll() is None:
                    os.killpg(process.pid, number)
            until = time.monotonic() + wait
            while time.monotonic() < until and any(one.poll() is None for one in self.running.values()):
                time.sleep(0.1)

    def start(self, name: str, *words: str) -> None:
        log = (self.folder / f"{name}.log").open("ab")
        command = [sys.executable, "-m", *words]
        self.running[name] = subprocess.Popen(
            command, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def call(self, *words: str) -> None:
        """A command to its end. UserError with what it said."""
        done = subprocess.run(
            [sys.executable, "-m", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise UserError(f"`{' '.join(words)}` failed: {' '.join((done.stderr or done.stdout).split())[-600:]}")

    def wait(self, name: str, address: str) -> None:
        """Until it answers. UserError where it ends before."""
        until = time.monotonic() + PATIENCE
        request = urllib.request.Request(address, headers=headers(self.environment))
        while True:
            try:
                urllib.request.urlopen(request, timeout=5).close()
                return
            except (OSError, urllib.error.URLError) as problem:
                if self.running[name].poll() is not None or time.monotonic() > until:
                    raise UserError(f"{name} did not start ({problem}): see {self.folder / name}.log") from None
                time.sleep(0.3)

    def watch(self) -> None:
        """Until one of them ends by itself: that is an error."""
        while True:
            for name, process in self.running.items():
                if (code := process.poll()) is not None:
                    raise UserError(f"{name} ended (exit code {code}): see {self.folder / name}.log")
            time.sleep(0.5)


def headers(environment: dict[str, str]) -> dict[str, str]:
    key = environment.get("PREFECT_API_AUTH_STRING", "")
    return {"Authorization": f"Basic {b64encode(key.encode()).decode()}"} if key else {}


def key(path: Path = KEY, user: str = "flywheel:") -> str:
    """An API's key, made on the first call: Prefect's is a user and a password."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(f"{user}{secrets.token_urlsafe(24)}\n")
    return path.read_text().strip()


def environment(root: Path, prefect_port: int, mlflow_port: int) -> dict[str, str]:
    """Of all services, and of whatever the worker runs."""
    state = root / ".flywheel"
    home = state / "prefect"
    auth, page = key(root / KEY), f"http://127.0.0.1:{prefect_port}"
    return (
        os.environ
        | dotenv.values(root)
        | {
            "PATH": os.pathsep.join((os.fspath(Path(sys.executable).parent), os.environ.get("PATH", ""))),
            "PREFECT_HOME": str(home),
            "PREFECT_LOCAL_STORAGE_PATH": str(home / "storage"),
            "PREFECT_MEMO_STORE_PATH": str(home / "memo_store.toml"),
            "PREFECT_API_URL": f"{page}/api",
            "PREFECT_SERVER_API_AUTH_STRING": auth,
            "PREFECT_API_AUTH_STRING": auth,
            "PREFECT_SERVER_API_CORS_ALLOWED_ORIGINS": f"{page},http://localhost:{prefect_port}",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_CLI_PROMPT": "false",
            "FLYWHEEL_ROOT": str(root),  # where prefect.yaml's pull steps find the project
            "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{mlflow_port}",
            "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
            "DO_NOT_TRACK": "1",
        }
    )


def keep(path: Path, known: dict[str, str]) -> None:
    """What a shell needs to use these services; for its owner alone, because the key stands in it."""
    names = ("PREFECT_HOME", "PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_URI", "DO_NOT_TRACK")
    lines = [f"export {name}={shlex.quote(known[name])}\n" for name in names]
    lines.append(f"export PATH={shlex.quote(os.fspath(Path(sys.executable).parent))}:$PATH\n")
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.writelines(lines)


def serve(root: Path, prefect_port: int, mlflow_port: int, view_port: int, runs: int = 1) -> None:
    """Start everything, print where it is, and stay until Ctrl-C."""
    for name, port in (("--prefect-port", prefect_port), ("--mlflow-port", mlflow_port), ("--view-port", view_port)):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            raise UserError(f"port {port} on 127.0.0.1 is in use: choose another with {name}") from None
    from steps import register

    state = root / ".flywheel"
    (state / "mlartifacts").mkdir(parents=True, exist_ok=True)
    (state / "prefect").mkdir(exist_ok=True)
    register.connect(root)  # makes the store where there is none
    known = environment(root, prefect_port, mlflow_port)
    with Services(state, known) as services:
        say("starting MLflow and Prefect …")
        stores = ["--backend-store-uri", f"sqlite:///{state}/mlflow.db"]
        stores += ["--default-artifact-root", (state / "mlartifacts").as_uri()]
        address = ("--host", "127.0.0.1", "--port")
        services.start("mlflow", "mlflow", "server", *address, str(mlflow_port), "--workers", "1", *stores)
        services.start("prefect", "prefect", "server", "start", *address, str(prefect_port))
        services.start("view", "flows.view", "--port", str(view_port))
        services.wait("prefect", f"{known['PREFECT_API_URL']}/health")
        say("setting up the work pool, the limit and the deployments …")
        services.call("prefect", "work-pool", "create", POOL, "--type", "process", "--overwrite")
        services.call("flows.deploy", "--runs", str(runs))
        services.start("worker", "prefect", "worker", "start", "--pool", POOL)
        services.wait("mlflow", f"http://127.0.0.1:{mlflow_port}/health")
        services.wait("view", f"http://127.0.0.1:{view_port}/")
        say(f"Prefect: http://127.0.0.1:{prefect_port}   (its pages ask for the key in {root / KEY})")
        say(f"MLflow:  http://127.0.0.1:{mlflow_port}")
        say(f"Trajectories: http://127.0.0.1:{view_port}")
        keep(state / "ui.env", known)
        say("in another terminal, for the commands `prefect`, `python -m flows.…` and `make train`: . .flywheel/ui.env")
        say("Ctrl-C stops all of it.")
        services.watch()


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.ui", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--prefect-port", type=int, default=4200)
    parser.add_argument("--mlflow-port", type=int, default=5000)
    parser.add_argument("--view-port", type=int, default=8600)
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="at a time (default: 1)")
    options = parser.parse_args(words)
    if options.runs < 1:
        parser.error(f"--runs {options.runs}: at least one run must be able to train")

    stop_once()
    return exit_code(
        lambda: serve(Path.cwd(), options.prefect_port, options.mlflow_port, options.view_port, options.runs)
    )


if __name__ == "__main__":
    sys.exit(main())
