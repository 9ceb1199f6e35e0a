"""The Ray cluster that samples and trains: the connection to it, and a sentence where there is none.

    ray = raycluster.connect(policy.cluster, ["environments"])
    raycluster.places({"GPU": 1})

    python -m addons.fleet.raycluster       # as `make ray`: a cluster's head in the foreground, until Ctrl-C

null is a cluster of this process, on this machine, with as many CPUs as the process may use cores; it listens on the
loopback interface alone and ends with the process. `auto` is the cluster that this machine is part of, ray://host:port any
other. The project's code is shipped to the nodes, which need the same Python and the same packages, Ray's version included.

A Ray cluster is a trusted zone: whoever reaches its ports can run any code there, and Ray pickles what its processes send
each other. With RAY_AUTH_MODE=token it asks for the token of ~/.ray/auth_token or RAY_AUTH_TOKEN; so do the clusters that
this module starts. Ray sends the token to an address that is named only where RAY_AUTH_MODE says so here, too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import socket
import sys
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from steps.core.errors import FreshProcessNeeded, UserError
from steps.core.files import write_text
from steps.core.progress import say
from steps.policy.machine import cores

CODE = ("steps", "environments", "addons")  # packages that every node gets
LOOPBACK = "127.0.0.1"
LATEST = Path("/tmp/ray/ray_current_cluster")  # where `ray start` writes the address
TOKEN = Path.home() / ".ray" / "auth_token"  # Ray's own place for it
PATIENCE = 5.0  # seconds in which a cluster's port must answer
INSTALL = "the package ray is needed for it: install this project's extra `ray` (pip install 'agent-flywheel[ray]')"


class Connection(NamedTuple):
    """The cluster that this process is connected to, and the packages that were shipped to it."""

    cluster: str | None
    shipped: frozenset[str]


# A process has one connection to Ray at most; global, because Ray's own is.
_connections: list[Connection] = []
_making_room: list[Callable[[], None]] = []


def connect(cluster: str | None, modules: Iterable[str] = ()) -> Any:
    """Connect this process to policy.cluster, if it is not connected yet, and return the package ray.

    `modules` are dotted names of further code that the nodes need; their packages are shipped where they lie in the current
    folder. UserError where ray is not installed, where no cluster answers, and where its Python or Ray is another.
    FreshProcessNeeded where this process is connected to another cluster.
    """
    wanted = frozenset(CODE) | {name for name in map(package, modules) if is_own(name)}
    if _connections:
        [connection] = _connections
        if connection.cluster != cluster:
            raise FreshProcessNeeded("this process is connected to another Ray cluster already")
        import ray

        if ray.is_initialized() and wanted <= connection.shipped:
            return ray
        wanted |= connection.shipped
        disconnect()
    ray = imported(cluster)
    say("starting a Ray cluster on this machine" if cluster is None else f"connecting to the Ray cluster {cluster}")
    folders = [str(folder(name)) for name in sorted(wanted)]
    options: dict[str, Any] = {"runtime_env": {"py_modules": folders}, "log_to_driver": False, "logging_level": "error"}
    if cluster is None:
        options |= {"address": "local", "num_cpus": len(cores()), "include_dashboard": False}
    else:
        check_port(cluster)
        options["address"] = cluster
    try:
        ray.init(**options)
    except Exception as problem:  # Ray's own kinds, grpc's, and the standard library's
        with contextlib.suppress(Exception):
            ray.shutdown()
        raise explained(cluster, problem) from problem
    _connections.append(Connection(cluster, wanted))
    return ray


def disconnect() -> None:
    """Leave the cluster; a cluster of this process ends. What this process had running there ends, too."""
    import ray

    _connections.clear()
    ray.shutdown()


def imported(cluster: str | None) -> Any:
    """The package ray. UserError where it is not installed."""
    if find_spec("ray") is None:
        raise UserError(f"policy.cluster: {INSTALL}, here and on the cluster's machines")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if cluster is None or address_of(cluster).startswith(LOOPBACK):
        # Read once, at the import: nodes then have the loopback address, and nothing else is listened at.
        os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    import ray

    return ray


def address_of(cluster: str) -> str:
    """host:port of a cluster; of `auto` what RAY_ADDRESS says, or what `ray start` wrote last on this machine."""
    address = cluster
    if cluster == "auto":
        address = os.environ.get("RAY_ADDRESS", "")
        if not address and LATEST.exists():
            address = LATEST.read_text()
    return address.removeprefix("ray://").strip()


def check_port(cluster: str) -> None:
    """UserError where nothing listens at a cluster's address: Ray itself would try for more than a minute."""
    host, _, port = address_of(cluster).rpartition(":")
    if not port.isdigit():  # `auto`, and no address is written down: Ray looks for its processes
        return
    where = cluster if cluster != "auto" else f"auto, which is {address_of(cluster)}"
    try:
        socket.create_connection((host.strip("[]"), int(port)), PATIENCE).close()
    except OSError as problem:
        raise UserError(
            f"policy.cluster: nothing answers at {where} ({problem.strerror or problem}). `make ray` starts a cluster on "
            "this machine; ray:// wants the head's client port, which is 10001 usually"
        ) from None


def explained(cluster: str | None, problem: Exception) -> UserError:
    """What the user can do about an error of `ray.init`."""
    reason = " ".join(str(problem).split())[:300]
    where = f"policy.cluster: {cluster or 'null'}"
    lowered = reason.lower()
    if "version" in lowered and ("mismatch" in lowered or "match" in lowered or "differ" in lowered):
        python = ".".join(map(str, sys.version_info[:3]))
        import ray

        return UserError(
            f"{where}: the cluster has another Python or another Ray than this process, which has Python {python} and Ray "
            f"{ray.__version__} ({reason}); install the same on its machines"
        )
    if "auth" in lowered or "token" in lowered:
        return UserError(
            f"{where}: the cluster refuses this process's token ({reason}); set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN, or "
            "put the cluster's token into ~/.ray/auth_token"
        )
    if isinstance(problem, ConnectionError):
        advice = "start one with `make ray`, or take policy.cluster out: null starts one for the run"
        if "timeout" in lowered:
            advice = (
                "look at the head's log; where the cluster wants a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN"
            )
        return UserError(f"{where}: no Ray cluster is there ({reason}); {advice}")
    return UserError(f"{where}: Ray does not start ({type(problem).__name__}: {reason})")


def places(needs: Mapping[str, float]) -> int:
    """How many times these resources fit into the nodes that are there, whoever uses them at the moment."""
    return sum(
        min(int(node["Resources"].get(name, 0) // amount) for name, amount in needs.items()) for node in alive_nodes()
    )


def alive_nodes() -> list[dict[str, Any]]:
    """The cluster's nodes, as Ray describes them."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def largest(resource: str) -> float:
    """The most of a resource, such as CPU or GPU, that one node has; 0 where none has it."""
    return max((node["Resources"].get(resource, 0.0) for node in alive_nodes()), default=0.0)


def check_fit(needs: Mapping[str, float], setting: str) -> None:
    """UserError where no node has these resources; `setting` names what asks for them, as "policy.threads: 4"."""
    if places(needs):
        return
    wanted = " and ".join(f"{amount:g} {name}" for name, amount in needs.items())
    has = ", ".join(f"{largest(name):g} {name}" for name in needs)
    raise UserError(
        f"{setting} needs a node with {wanted}, and no node of the Ray cluster has them (the largest has {has}); ask for "
        "less, or add a node"
    )


def before_leaving(free: Callable[[], None]) -> None:
    """Call `free` whenever something else of this process needs the cluster's resources: it ends idle engines."""
    if free not in _making_room:
        _making_room.append(free)


def make_room() -> None:
    """Give back the resources that this process's idle actors hold, for example before it trains on the same nodes."""
    for free in _making_room:
        free()


def package(name: str) -> str:
    """The top-level package or module of a dotted name."""
    return name.partition(".")[0]


def is_own(name: str) -> bool:
    """Whether a package lies in the current folder, and is not installed."""
    spec = find_spec(name)
    places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
    return any(place and Path(place).resolve().is_relative_to(Path.cwd().resolve()) for place in places) and not any(
        "site-packages" in str(place) for place in places
    )


def folder(name: str) -> Path:
    """Where a package's code lies: its folder, or the file of a module."""
    spec = find_spec(name)
    assert spec is not None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin or "")


def main() -> NoReturn:
    """Run the head of a cluster until it is interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m addons.fleet.raycluster", description="Run the head of a Ray cluster."
    )
    parser.add_argument("--host", default=LOOPBACK, help="this machine's address for other machines; default: none")
    parser.add_argument("--port", type=int, default=6379, help="where nodes join (default: 6379)")
    parser.add_argument("--client-port", type=int, default=10001, help="of ray://host:port (default: 10001)")
    parser.add_argument("--cpus", type=int, default=len(cores()), help="default: the cores of this process")
    options = parser.parse_args()
    try:
        imported(None if options.host == LOOPBACK else "auto")
    except UserError as problem:
        print(problem, file=sys.stderr)
        sys.exit(problem.code)
    if options.host != LOOPBACK:
        print("Whoever has the cluster's token and reaches its ports can run any code on its machines.")
        print(f"Join from another machine: ray start --address {options.host}:{options.port}")
    print("policy.cluster: auto      # on this machine; where it has several clusters, with the variables")
    print(f"    RAY_ADDRESS={options.host}:{options.port} RAY_AUTH_MODE=token")
    print(f"policy.cluster: ray://{options.host}:{options.client_port}      # from anywhere, with RAY_AUTH_MODE=token")
    print("Ctrl-C stops it.", flush=True)
    words = ["ray", "start", "--head", "--block", "--disable-usage-stats", "--include-dashboard=false"]
    words += [f"--node-ip-address={options.host}", f"--port={options.port}", f"--num-cpus={options.cpus}"]
    words += [f"--ray-client-server-port={options.client_port}", "--log-color=false"]
    words += ["--min-worker-port=0", "--max-worker-port=0"]  # any free ones: the usual range may hold another's port
    os.environ.setdefault("RAY_AUTH_MODE", "token")
    make_token()
    os.execv(sys.executable, [sys.executable, "-c", "from ray.scripts.scripts import main; main()", *words[1:]])


def has_token() -> bool:
    """Whether Ray has a token where it looks for one."""
    return "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ or TOKEN.exists()


def make_token() -> None:
    """A token for those who connect, where the user has none."""
    if not has_token():
        TOKEN.parent.mkdir(mode=0o700, exist_ok=True)
        write_text(TOKEN, secrets.token_hex(32), private=True)


if __name__ == "__main__":
    main()
