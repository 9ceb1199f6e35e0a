"""UI: starts MLflow, Prefect with a worker and the deployments, and the viewer of trajectories, all on this machine alone.

    python -m flows.ui                     # `make ui`; Ctrl-C stops all of it
    python -m flows.ui --prefect-port 4300 --mlflow-port 5300 --view-port 8700
    python -m flows.ui --runs 2            # two at a time: on a machine with two GPUs, or for small policies

Prefect's API and pages ask for a key, which is made once and kept in .flywheel/prefect.key, readable by its owner alone. All
state is in .flywheel/. `. .flywheel/ui.env` sets the variables that another shell needs to use the services.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import sys
from pathlib import Path

from flows.deployment.keys import key, write_private
from flows.deployment.services import Services
from flows.terminal.command import stop_once
from steps.core import dotenv
from steps.core.errors import UserError
from steps.core.progress import say
from steps.core.terminal import exit_code
from steps.project import store

KEY = Path(".flywheel/prefect.key")
POOL = "local"  # the work pool


def environment(root: Path, prefect_port: int, mlflow_port: int) -> dict[str, str]:
    """The variables of all services, and of everything that the worker runs."""
    state = root / ".flywheel"
    home = state / "prefect"
    auth, page = key(root / KEY), f"http://127.0.0.1:{prefect_port}"
    inherited = os.environ | dotenv.values(root)
    return inherited | {
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


def write_variables(path: Path, variables: dict[str, str]) -> None:
    """Write a file that sets what a shell needs to use these services. It holds the key: only its owner can read it."""
    names = ("PREFECT_HOME", "PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "MLFLOW_TRACKING_URI", "DO_NOT_TRACK")
    lines = [f"export {name}={shlex.quote(variables[name])}\n" for name in names]
    lines.append(f"export PATH={shlex.quote(os.fspath(Path(sys.executable).parent))}:$PATH\n")
    write_private(path, "".join(lines))


def serve(root: Path, prefect_port: int, mlflow_port: int, view_port: int, runs: int = 1) -> None:
    """Start all services, print their addresses, and stay until Ctrl-C or until one of them ends."""
    for name, port in (("--prefect-port", prefect_port), ("--mlflow-port", mlflow_port), ("--view-port", view_port)):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            raise UserError(f"port {port} on 127.0.0.1 is in use: choose another with {name}") from None
    state = root / ".flywheel"
    (state / "mlartifacts").mkdir(parents=True, exist_ok=True)
    (state / "prefect").mkdir(exist_ok=True)
    store.connect(root)  # makes the store if there is none
    variables = environment(root, prefect_port, mlflow_port)
    with Services(state, variables) as services:
        say("starting MLflow and Prefect …")
        stores = ["--backend-store-uri", f"sqlite:///{state}/mlflow.db"]
        stores += ["--default-artifact-root", (state / "mlartifacts").as_uri()]
        address = ("--host", "127.0.0.1", "--port")
        services.start("mlflow", "mlflow", "server", *address, str(mlflow_port), "--workers", "1", *stores)
        services.start("prefect", "prefect", "server", "start", *address, str(prefect_port))
        services.start("view", "viewer", "--port", str(view_port))
        services.wait("prefect", f"{variables['PREFECT_API_URL']}/health")
        say("setting up the work pool, the limit and the deployments …")
        services.call("prefect", "work-pool", "create", POOL, "--type", "process", "--overwrite")
        services.call("flows.deploy", "--runs", str(runs))
        services.start("worker", "prefect", "worker", "start", "--pool", POOL)
        services.wait("mlflow", f"http://127.0.0.1:{mlflow_port}/health")
        services.wait("view", f"http://127.0.0.1:{view_port}/")
        say(f"Prefect: http://127.0.0.1:{prefect_port}   (its pages ask for the key in {root / KEY})")
        say(f"MLflow:  http://127.0.0.1:{mlflow_port}")
        say(f"Trajectories: http://127.0.0.1:{view_port}")
        write_variables(state / "ui.env", variables)
        say("in another terminal, for the commands `prefect`, `python -m flows.…` and `make train`: . .flywheel/ui.env")
        say("Ctrl-C stops all of it.")
        services.watch()


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.ui", description=(__doc__ or "").split("\n\n")[0])
    for service, port in (("prefect", 4200), ("mlflow", 5000), ("view", 8600)):
        parser.add_argument(f"--{service}-port", type=int, default=port)
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="runs at a time (default: 1)")
    options = parser.parse_args(words)
    if options.runs < 1:
        parser.error(f"--runs {options.runs}: at least one run must be able to train")

    stop_once()
    return exit_code(lambda: serve(Path.cwd(), **vars(options)))


if __name__ == "__main__":
    sys.exit(main())
