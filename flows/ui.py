"""UI: starts MLflow, Prefect with a worker and the deployments, and the viewer of trajectories, all on this machine alone.

    python -m flows.ui                     # `make ui`; Ctrl-C stops all of it
    python -m flows.ui --prefect-port 4300 --mlflow-port 5300 --view-port 8700
    python -m flows.ui --runs 2            # two at a time: on a machine with two GPUs, one for each, or on CPUs
    python -m flows.ui --only mlflow       # `make mlflow`; `--only prefect` is `make prefect`
    python -m flows.ui --only mlflow --host 10.0.0.5      # for a team's machines, in a network that you trust (docs/team.md)

All three ask for keys, which are made once and kept in .flywheel/prefect.key, .flywheel/mlflow.key and .flywheel/viewer.key.
All state is in .flywheel/, which its owner alone can open. `. .flywheel/ui.env` sets the variables that another shell needs
to use the services; after `--only mlflow` it is .flywheel/mlflow.env.
"""

from __future__ import annotations

import errno
import os
import shlex
import sys
import tempfile
from pathlib import Path

from flows.deployment import cards, databases, mlflow_server
from flows.deployment.services import MASK, Services, plain
from flows.deployment.workspace import POOL
from flows.terminal.command import stop_once, without_proxy
from steps.core import dotenv
from steps.core.errors import UserError
from steps.core.files import private_folder
from steps.core.keys import key, write_private
from steps.core.progress import say
from steps.core.terminal import command_parser, served
from steps.kit import sockets
from steps.runner import handover

LOOPBACK = mlflow_server.LOOPBACK
KEY = Path(".flywheel/prefect.key")
PORTS = {"prefect": 4200, "mlflow": 5000, "view": 8600}
# What a shell needs to use a service: the variables of .flywheel/ui.env.
SHELL = {
    "prefect": ("PREFECT_HOME", "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"),
    "mlflow": ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),
}


def environment(root: Path, prefect_port: int, mlflow_port: int, host: str = LOOPBACK) -> dict[str, str]:
    """The variables of the worker and of everything that it runs. The servers get a part of them."""
    home = root / ".flywheel" / "prefect"
    auth, page = key(root / KEY), f"http://{host}:{prefect_port}"
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
            "PREFECT_WORKER_QUERY_SECONDS": "2",  # how often it asks for runs; 10 unless set
            "PREFECT_SERVER_LOGS_STREAM_OUT_ENABLED": "true",  # `prefect deployment run --watch` shows what a run says
            "PREFECT_SERVER_LOGS_STREAM_PUBLISHING_ENABLED": "true",
            "PREFECT_CLI_PROMPT": "false",
            "FLYWHEEL_ROOT": str(root),  # where prefect.yaml's pull steps find the project
            "MLFLOW_TRACKING_URI": f"http://{host}:{mlflow_port}",
            "MLFLOW_TRACKING_USERNAME": mlflow_server.USER,
            "MLFLOW_TRACKING_PASSWORD": key(root / mlflow_server.KEY, user=""),
            "DO_NOT_TRACK": "1",
        }
    )


def write_variables(path: Path, variables: dict[str, str], names: list[str]) -> None:
    """Write a file that sets what a shell needs to use these services. It holds keys: only its owner can read it."""
    names = [*names, "DO_NOT_TRACK", "NO_PROXY", "no_proxy"]
    lines = [f"export {name}={shlex.quote(variables[name])}\n" for name in names if name in variables]
    lines.append(f"export PATH={shlex.quote(os.fspath(Path(sys.executable).parent))}:$PATH\n")
    write_private(path, "".join(lines))


def check_ports(ports: dict[str, int], host: str = LOOPBACK) -> None:
    """UserError where one of them is in use."""
    for name, port in ports.items():
        try:
            sockets.listen(host, port, sockets.IPV4).close()
        except OSError as problem:
            if problem.errno in (errno.EADDRNOTAVAIL, None) or isinstance(problem, sockets.gaierror):
                raise UserError(f"--host {host} is no address of this machine") from None
            other = f"--{name}-port {port + 1} (with make: {name.upper()}_PORT={port + 1})"
            raise UserError(
                f"port {port} on {host} is in use: stop what listens there, or choose another, as {other}"
            ) from None


def start_prefect(services: Services, port: int, host: str = LOOPBACK) -> None:
    """Prefect's server, on SQLite or PostgreSQL. Its notifications may need a proxy."""
    variables = plain(services.environment, "PREFECT_", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
    if database := databases.address("Prefect", services.environment):
        variables[databases.SERVICES["Prefect"].variable] = database
    words = ("prefect", "server", "start", "--host", host, "--port", str(port))
    services.start("prefect", *words, environment=variables)


def start_mlflow(services: Services, port: int, host: str = LOOPBACK) -> None:
    """MLflow's server, which reads its key from the file, and needs none of what logs a client in. It has the object store's
    key only where artifacts are there, to show them."""
    is_s3 = services.environment.get("MLFLOW_DEFAULT_ARTIFACT_ROOT", "").startswith("s3:")
    settings = plain(services.environment, "MLFLOW_", *["AWS_"] * is_s3).items()
    variables = {name: value for name, value in settings if not name.startswith("MLFLOW_TRACKING_")}
    words = ("flows.deployment.mlflow_server", "--port", str(port), "--host", host)
    services.start("mlflow", *words, environment=variables)


def start_worker(services: Services, runs: int) -> None:
    """The deployments, and the worker that runs them. It has the user's own variables, because runs need them."""
    say("setting up the work pool, the limit and the deployments …")
    services.call("flows.deploy", "--runs", str(runs))
    variables = {**services.environment, **own_temporary_folder()}
    services.start("worker", "prefect", "worker", "start", "--pool", POOL, environment=variables)


def own_temporary_folder() -> dict[str, str]:
    """TMPDIR for the worker, where another user's worker has made the folder `runner_storage`; else nothing.

    Prefect's workers keep their files in it, in the temporary folder that all users share, under that name for all of them.
    """
    storage = Path(tempfile.gettempdir()) / "runner_storage"
    if not storage.exists() or storage.stat().st_uid == os.getuid():
        return {}
    return {"TMPDIR": os.fspath(handover.socket_folder())}


def serve(root: Path, ports: dict[str, int], only: str | None = None, runs: int = 1, host: str = LOOPBACK) -> None:
    """Start all services (or `only` one), print their addresses, and stay until Ctrl-C or until one of them ends."""
    os.umask(MASK)
    dotenv.load(root)
    without_proxy()
    chosen = {name: port for name, port in ports.items() if only in (None, name)}
    check_ports(chosen, host)
    if only is None:
        cards.check(root, runs)
    state = private_folder(root / ".flywheel")
    private_folder(state / "prefect")
    variables = environment(root, ports["prefect"], ports["mlflow"], host)
    pages = {name: f"http://{host}:{port}" for name, port in chosen.items()}
    with Services(state, variables) as services:
        say(f"starting {' and '.join(title for title in ('MLflow', 'Prefect') if title.lower() in chosen)} …")
        if "mlflow" in chosen:
            start_mlflow(services, ports["mlflow"], host)
        if "prefect" in chosen:
            start_prefect(services, ports["prefect"], host)
        if "view" in chosen:
            services.start("view", "viewer", "--port", str(ports["view"]), environment=plain(variables))
        if "prefect" in chosen:
            services.wait("prefect", f"{pages['prefect']}/api/health")
            if only is None:
                start_worker(services, runs)
            say(f"Prefect: {pages['prefect']}/login   (paste the whole line of {KEY})")
        if "mlflow" in chosen:
            services.wait("mlflow", f"{pages['mlflow']}/health")
            sign_in = f"user name: {mlflow_server.USER}, password: the text in {mlflow_server.KEY}"
            password = variables["MLFLOW_TRACKING_PASSWORD"]
            opened = mlflow_server.address_of_runs(root, pages["mlflow"], mlflow_server.USER, password)
            say(f"MLflow:  {opened}   ({sign_in})")
        if "view" in chosen:
            services.wait("view", f"{pages['view']}/health")
            say(f"Trajectories: {pages['view']}   (key: the text in .flywheel/viewer.key)")
        file = state / f"{only or 'ui'}.env"
        write_variables(file, variables, [variable for name in chosen for variable in SHELL.get(name, ())])
        shown = file.relative_to(root)
        say(
            f"in another terminal, for the commands `prefect`, `.venv/bin/python -m flows.…` and `make train`: . {shown}"
        )
        say(f"Logs are in {state.relative_to(root)}/. Ctrl-C stops all of it.")
        services.watch()


def main(words: list[str] | None = None) -> int:
    parser = command_parser("flows.ui", __doc__)
    for service, port in PORTS.items():
        parser.add_argument(f"--{service}-port", type=int, default=port, help=f"(default: {port})")
    parser.add_argument("--only", choices=[*SHELL], help="start this server alone")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="runs at a time (default: 1)")
    parser.add_argument("--host", default=LOOPBACK, help="with --only: the address of this machine to listen at")
    options = parser.parse_args(words)
    if options.host != LOOPBACK and options.only is None:
        parser.error(
            "--host needs --only mlflow or --only prefect: the worker and the viewer are for this machine alone"
        )
    if options.runs < 1:
        parser.error(f"--runs {options.runs}: at least one run must be able to train")

    stop_once()
    ports = {name: getattr(options, f"{name}_port") for name in PORTS}
    return served(lambda: serve(Path.cwd(), ports, options.only, options.runs, options.host))


if __name__ == "__main__":
    sys.exit(main())
