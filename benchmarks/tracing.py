"""What a Langfuse that is away costs a run: the main job once for each kind of host, and once without any.

    python -m benchmarks.tracing                # some 10 minutes on 2 cores
    python -m benchmarks.tracing --json --iterations 3
    python -m benchmarks.tracing --full         # with the sizes of params.yaml, in place of small ones

Each run is `flows.train` in a fresh clone of the committed tree, on stores of its own, with every scenario traced; a first
one warms the machine up and is not counted. The hosts are stand-ins in this process: one that refuses (nobody listens), one
that hangs (accepts, and never answers), one that is slow (a second an answer), one that fails (500).

A run may take 2 % longer for it, or 2 s an iteration where that is more. `warnings` counts those that the person sees,
`same_outputs` whether dvc.lock has the hashes of the run without a host; `delivered` are the traces that the host took,
`lost` those that the run says did not arrive, or did not in time.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._trl import ROOT, tell

KINDS = ("none", "refusing", "hanging", "slow", "failing")
SECONDS = 1.0  # until a slow host answers
SHARE, PER_ITERATION = 0.02, 2.0  # of the run without, or seconds: what is allowed, the larger
SMALL = {
    "scenarios.train": 48,
    "scenarios.val": 24,
    "scenarios.test": 30,
    "rollout.scenarios": 6,
    "rollout.attempts": 4,
}
OURS = (
    "FLYWHEEL_",
    "LANGFUSE_",
    "MLFLOW_",
    "PREFECT_",
    "WANDB_",
)  # variables of the tools, that would reach other stores
WARNING = "does not take traces"  # of steps/tracing/deliveries.py, as is the next
LOST = re.compile(r"^.*did not reach Langfuse.*$", re.MULTILINE)


class Stand(NamedTuple):
    """A stand-in: its address (None: no host), and the ids of the traces that it took."""

    address: str | None
    traces: set[str]


@contextlib.contextmanager
def host(kind: str, seconds: float = SECONDS) -> Iterator[Stand]:
    """A host of this kind, as long as the block lasts."""
    if kind == "none":
        yield Stand(None, set())
        return
    if kind in ("refusing", "hanging"):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            if kind == "hanging":
                held: list[socket.socket] = []
                threading.Thread(target=hold, args=(listener, held), daemon=True).start()
                try:
                    yield Stand(address, set())
                finally:
                    for one in held:
                        one.close()
                return
        yield Stand(address, set())  # closed: nobody else is given a port so soon
        return
    taken: set[str] = set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(taken, kind, seconds))
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield Stand(f"http://127.0.0.1:{server.server_port}", taken)
    finally:
        server.shutdown()
        server.server_close()


def hold(listener: socket.socket, held: list[socket.socket]) -> None:
    """Accept whoever comes and say nothing."""
    with contextlib.suppress(OSError):  # the listener is closed
        while True:
            held.append(listener.accept()[0])


def handler(taken: set[str], kind: str, seconds: float) -> type[BaseHTTPRequestHandler]:
    """Answers after some seconds (slow), or with 500 (failing)."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if kind == "slow":
                time.sleep(seconds)
                if self.path.endswith("/v1/traces"):
                    taken.update(trace_ids(gzip.decompress(body)))
            with contextlib.suppress(OSError):  # the run is over, and gone
                self.send_response(200 if kind == "slow" else 500)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


def trace_ids(body: bytes) -> set[str]:
    """Those of a body in OpenTelemetry's form."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    sent = ExportTraceServiceRequest.FromString(body)
    return {span.trace_id.hex() for group in sent.resource_spans for scope in group.scope_spans for span in scope.spans}


class Run(NamedTuple):
    """What a run came to."""

    seconds: float
    shown: str  # to the person
    log: str
    outputs: dict[str, str]
    delivered: int


def run(kind: str, folder: Path, words: list[str]) -> Run:
    """`flows.train` in a clone of the committed tree, beside a host of this kind."""
    root = folder / kind
    subprocess.run(["git", "clone", "--quiet", os.fspath(ROOT), os.fspath(root)], check=True)
    command = [sys.executable, "-m", "flows.train", *words]
    with host(kind) as stand:
        tell(f"{kind}: {' '.join(command[1:])}")
        began = time.perf_counter()
        done = subprocess.run(
            command,
            cwd=root,
            env=environment(root, stand.address),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        seconds = time.perf_counter() - began
    tell(done.stdout)
    if done.returncode:
        raise SystemExit(
            f"the run with the host {kind} failed (exit code {done.returncode}): see {root}/.flywheel/train.log"
        )
    log = (root / ".flywheel" / "train.log").read_text(errors="replace")
    return Run(seconds, done.stdout, log, outputs(root / "dvc.lock"), len(stand.traces))


def environment(root: Path, address: str | None) -> dict[str, str]:
    """This process's, with all state of the tools inside the clone, and keys for the host where there is one."""
    state = root / ".flywheel" / "prefect"
    found = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    found |= {
        "FLYWHEEL_TRACE_RATE": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_HOME": os.fspath(state),
        "PREFECT_LOCAL_STORAGE_PATH": os.fspath(state / "storage"),
        "PREFECT_MEMO_STORE_PATH": os.fspath(state / "memo_store.toml"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    }
    if address is not None:
        found |= {
            "LANGFUSE_HOST": address,
            "LANGFUSE_PUBLIC_KEY": "pk-lf-stand-in",
            "LANGFUSE_SECRET_KEY": "sk-lf-stand-in",
        }
    return found


def outputs(lock: Path) -> dict[str, str]:
    """Path -> md5 of whatever the stages wrote."""
    import yaml

    stages = yaml.safe_load(lock.read_text())["stages"]
    return {out["path"]: out["md5"] for stage in stages.values() for out in stage.get("outs", [])}


def warnings(text: str) -> int:
    """How often it was said that the host does not take traces."""
    return sum(WARNING in line for line in text.splitlines())


def lost(text: str) -> int:
    """The traces that are said not to have arrived."""
    said = " ".join(LOST.findall(text))
    return sum(int(number) for number in re.findall(r"(\d+) traces", said))


def row(kind: str, found: Run, plain: Run, iterations: int) -> dict[str, Any]:
    """A line of the result; `plain` is the run without a host."""
    extra = (found.seconds - plain.seconds) / iterations
    allowed = max(SHARE * plain.seconds / iterations, PER_ITERATION)
    return {
        "name": "tracing",
        "host": kind,
        "seconds": round(found.seconds, 2),
        "extra_seconds_per_iteration": round(extra, 3),
        "allowed_seconds_per_iteration": round(allowed, 3),
        "warnings": warnings(found.shown),
        "warnings_in_log": warnings(found.log),
        "same_outputs": found.outputs == plain.outputs,
        "delivered": found.delivered,
        "lost": lost(found.shown),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tracing", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a host instead of the table")
    parser.add_argument("--iterations", type=int, default=3)
    parser.add_argument("--full", action="store_true", help="with the sizes of params.yaml")
    parser.add_argument("--hosts", nargs="+", choices=KINDS[1:], default=KINDS[1:], metavar="KIND", help="default: all")
    options = parser.parse_args()
    chosen = {"train.iterations": options.iterations, "train.patience": options.iterations} | (
        {} if options.full else SMALL
    )
    words = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
    with tempfile.TemporaryDirectory(prefix="tracing-") as name:
        folder = Path(name)
        (folder / "first").mkdir()
        run("none", folder / "first", words)
        plain = run("none", folder, words)
        rows = [row("none", plain, plain, options.iterations)]
        rows += [row(kind, run(kind, folder, words), plain, options.iterations) for kind in options.hosts]
    if options.json:
        for one in rows:
            print(json.dumps(one))
        return 0
    print("| host | seconds | extra, an iteration | allowed | warnings | same outputs | delivered | lost |")
    print("|---|---:|---:|---:|---:|---|---:|---:|")
    for one in rows:
        extra, allowed = one["extra_seconds_per_iteration"], one["allowed_seconds_per_iteration"]
        same = "yes" if one["same_outputs"] else "NO"
        print(
            f"| {one['host']} | {one['seconds']:.1f} | {extra:+.2f} | {allowed:.2f} | {one['warnings']} | {same} | "
            f"{one['delivered']} | {one['lost']} |"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
