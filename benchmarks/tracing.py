"""What a Langfuse that is away costs a run: the main job once for each kind of host, and once without any.

    python -m benchmarks.tracing                # some 10 minutes on 2 cores
    python -m benchmarks.tracing --quick        # one run without a host; each host on logging that run again
    python -m benchmarks.tracing --full         # with the sizes of params.yaml, in place of small ones

Each run is `flows.train` in a fresh clone of the committed tree, on stores of its own, with every scenario traced; a first
one warms the machine up and is not counted. The hosts are stand-ins in this process: one that refuses (nobody listens), one
that hangs (accepts, and answers only when the run is over), one that is slow (a second an answer), one that fails (500).

With --quick the main job runs once, without a host and for one iteration. The hosts are then measured on copies of that run
with `python -m steps.tracking`, which writes down and sends the same traces and waits for them in the same way; what it
takes longer than without a host is `extra_seconds_per_iteration`, and `seconds` are the run's with that added.

A run may take 2 % longer for it, or 2 s an iteration where that is more. `ratio` is `seconds` over those of the run without
a host. `warnings` counts those that the person sees, `same_outputs` whether dvc.lock has the hashes of the run without a
host; `delivered` are the traces that the host took, `lost` those that the run says did not arrive, or did not in time.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _common, _runs

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
ITERATIONS = 3
WARNING = "does not take traces"  # of addons/trackers/tracing/deliveries.py, as is the next
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
    taken: set[str] = set()
    over = threading.Event()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(taken, kind, seconds, over))
    stand = Stand(f"http://127.0.0.1:{server.server_port}", taken)
    if kind == "refusing":
        server.server_close()  # nobody else is given a port so soon
        yield stand
        return
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield stand
    finally:
        over.set()
        server.shutdown()
        server.server_close()


def handler(taken: set[str], kind: str, seconds: float, over: threading.Event) -> type[BaseHTTPRequestHandler]:
    """Answers after some seconds (slow), with 500 (failing), or only once it is over (hanging)."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if kind == "hanging":
                over.wait()
            if kind == "slow":
                time.sleep(seconds)
                if self.path.endswith("/v1/traces"):
                    taken.update(trace_ids(gzip.decompress(body)))
            with contextlib.suppress(OSError):  # the run is over, and gone
                self.send_response(200 if kind == "slow" else 500)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

        def log_message(self, format: str, *_: Any) -> None:
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


def run(kind: str, root: Path, words: list[str], done: Path | None = None) -> Run:
    """Run Python on the words in a clone of the committed tree at `root`, beside a host of this kind; with `done`, in a copy
    of that run without what was logged."""
    if done is None:
        _runs.clone(root)
    else:
        shutil.copytree(done, root, ignore=shutil.ignore_patterns(".flywheel", "cache"))
    with host(kind) as stand:
        seconds, shown = _runs.show(root, words, environment(root, stand.address))
    log = root / ".flywheel" / "train.log"
    logged = log.read_text(errors="replace") if log.exists() else shown
    return Run(seconds, shown, logged, outputs(root / "dvc.lock"), len(stand.traces))


def environment(root: Path, address: str | None) -> dict[str, str]:
    """The variables of a command in a clone, with every scenario traced, and keys for the host where there is one."""
    variables = _runs.environment(root) | {"FLYWHEEL_TRACE_RATE": "1"}
    if address is not None:
        variables |= {
            "LANGFUSE_HOST": address,
            "LANGFUSE_PUBLIC_KEY": "pk-lf-stand-in",
            "LANGFUSE_SECRET_KEY": "sk-lf-stand-in",
        }
    return variables


def outputs(lock: Path) -> dict[str, str]:
    """Path -> md5 of whatever the stages wrote."""
    import yaml

    stages = yaml.safe_load(lock.read_text())["stages"]
    return {out["path"]: out["md5"] for stage in stages.values() for out in stage.get("outs", [])}


def warnings(text: str) -> int:
    """How often the text says that the host does not take traces."""
    return sum(WARNING in line for line in text.splitlines())


def lost(text: str) -> int:
    """The number of traces that did not arrive, by the text."""
    lines = " ".join(LOST.findall(text))
    return sum(int(number) for number in re.findall(r"(\d+) traces", lines))


def row(kind: str, measured: Run, plain: Run, iterations: int) -> dict[str, Any]:
    """A line of the result; `plain` is the run without a host."""
    extra = (measured.seconds - plain.seconds) / iterations
    allowed = max(SHARE * plain.seconds / iterations, PER_ITERATION)
    return {
        "name": "tracing",
        "host": kind,
        "ratio": round(measured.seconds / plain.seconds, 3),
        "seconds": round(measured.seconds, 2),
        "extra_seconds_per_iteration": round(extra, 3),
        "allowed_seconds_per_iteration": round(allowed, 3),
        "warnings": warnings(measured.shown),
        "warnings_in_log": warnings(measured.log),
        "same_outputs": measured.outputs == plain.outputs,
        "delivered": measured.delivered,
        "lost": lost(measured.shown),
    }


def full_rows(folder: Path, words: list[str], hosts: Sequence[str], iterations: int) -> Iterator[dict[str, Any]]:
    """A run for each host, after one that warms up and one without a host."""
    run("none", folder / "first", words)
    plain = run("none", folder / "none", words)
    yield row("none", plain, plain, iterations)
    for kind in hosts:
        yield row(kind, run(kind, folder / kind, words), plain, iterations)


def quick_rows(folder: Path, words: list[str], hosts: Sequence[str], iterations: int) -> Iterator[dict[str, Any]]:
    """One run without a host, and each host on logging it again, after one that warms up."""
    done = folder / "none"
    plain = run("none", done, words)
    yield row("none", plain, plain, iterations)
    again = ["-m", "steps.tracking"]
    run("none", folder / "first", again, done)
    alone = run("none", folder / "again", again, done)
    for kind in hosts:
        logged = run(kind, folder / kind, again, done)
        yield row(kind, logged._replace(seconds=plain.seconds + logged.seconds - alone.seconds), plain, iterations)


def main() -> None:
    quick = "one run of one iteration without a host, and each host on logging that run again with steps.tracking"
    parser = _common.parser("tracing", __doc__, quick)
    parser.add_argument("--iterations", type=int, help=f"of a run (default: {ITERATIONS}; quick: 1)")
    parser.add_argument("--full", action="store_true", help="with the sizes of params.yaml")
    parser.add_argument("--hosts", nargs="+", choices=KINDS[1:], default=KINDS[1:], metavar="KIND", help="default: all")
    options = parser.parse_args()
    iterations = options.iterations or (1 if options.quick else ITERATIONS)
    chosen = {"train.iterations": iterations, "train.patience": iterations} | ({} if options.full else SMALL)
    rows = _common.begin("tracing", options, None if options.full or options.iterations else 1.0)
    with tempfile.TemporaryDirectory(prefix="tracing-") as name:
        measure = quick_rows if options.quick else full_rows
        for measured in measure(Path(name), _runs.training(chosen), options.hosts, iterations):
            rows.add(measured)


if __name__ == "__main__":
    _common.command(main)
