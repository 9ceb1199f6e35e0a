"""What it costs to write down one default iteration: MLflow's run, traces, the ledger's rows, Prefect's artifacts.

    python -m benchmarks.tracking               # some 40 s on one core, and a minute more without a run/
    python -m benchmarks.tracking --quick       # once

Of a finished run a copy is made, with its dvc.lock and chain.yaml: of this project's own run/, or, where it holds none, of
a run of one iteration that is made for it in a clone. Its last iteration is logged, after the others, into new SQLite
databases each time, so that nothing is there before. 128 rollouts and 120 evaluated scenarios are the defaults; the row says
how many there were. Medians of 5 after one that warms up. `ratio` is the seconds of all parts over the goal of 0.5 s.

The artifacts go to a Prefect server that is started for it. The flow does the first three in a thread beside the next
iteration. Left out: a server's answers (Langfuse's and MLflow's servers are posted to from threads that nobody waits for).
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import _common, _runs
from benchmarks._common import ROOT

GOAL = 0.5  # seconds, together
PARTS = ("mlflow", "traces", "ledger", "artifacts")
RUNS, QUICK = 5, 1  # that count


def finished(project: Path) -> list[str]:
    """The iterations of the run that lies in a project, as 001, 002, …; empty where there is none that dvc.lock has."""
    import yaml

    lock = project / "dvc.lock"
    stages = yaml.safe_load(lock.read_text())["stages"] if lock.exists() else {}
    numbers = sorted(path.parent.name for path in (project / "run").glob("[0-9]*/adapter"))
    return [number for number in numbers if f"update@{number}" in stages]


def made(folder: Path) -> Path:
    """A clone with a run of one iteration."""
    root = _runs.clone(folder / "made")
    _runs.show(root, _runs.training({"train.iterations": 1, "train.patience": 1, "scenarios.test": 16}))
    return root


def copied(source: Path, folder: Path) -> str:
    """What tracking reads of a project. The last iteration. SystemExit where there is none."""
    numbers = finished(source)
    if not numbers:
        raise SystemExit(
            f"{source}/run holds no finished iteration: make a run with `make train`, or name one with --project"
        )
    for name in ("params.yaml", "dvc.lock", "chain.yaml"):
        shutil.copy(source / name, folder / name)
    shutil.copytree(source / "run", folder / "run")
    return numbers[-1]


def once(project: Path, folder: Path, store: Path, number: str) -> tuple[dict[str, float], int]:
    """Seconds of each part for iteration `number`, and how many trajectories were traced."""
    from addons.lineage.index import index
    from addons.report import pages
    from addons.trackers.tracing.tracker import begin
    from flows.terminal import report
    from steps.project.chain import read_chain
    from steps.project.ledger import Ledger
    from steps.tracking.tracker import MlflowTracker

    (folder / ".flywheel").mkdir(parents=True)  # a folder each time: MLflow keeps a database open, by its path
    for path in project.iterdir():
        (folder / path.name).symlink_to(path)
    os.chdir(folder)
    shutil.copy(store, folder / ".flywheel/mlflow.db")
    messages: list[str] = []
    tracker = MlflowTracker(folder, messages.append)
    traces = begin(tracker, is_live=False)
    for earlier in read_chain(folder)["iterations"]:
        if earlier < number:
            tracker.iteration(earlier, 0.1)
            traces.iteration(earlier)
    before = traces.tracing.traced
    began = time.perf_counter()
    if tracker.iteration(number, 0.1) is None:
        raise SystemExit(f"iteration {number} was not logged: {messages}")
    seconds = {"mlflow": time.perf_counter() - began}
    began = time.perf_counter()
    traces.iteration(number)
    seconds["traces"] = time.perf_counter() - began
    if left := [text for text in messages if "traces" in text]:
        raise SystemExit(left[0])
    with Ledger(f"sqlite:///{folder}/.flywheel/ledger.db") as ledger:
        index(folder, ledger, ["000"])
        began = time.perf_counter()
        index(folder, ledger, [number])
        seconds["ledger"] = time.perf_counter() - began
    curve = [report.point(of) for of in range(int(number) + 1)]
    row = report.iteration_row(int(number))
    began = time.perf_counter()
    pages.iteration(curve, row, int(number))
    seconds["artifacts"] = time.perf_counter() - began
    return seconds, traces.tracing.traced - before


@contextlib.contextmanager
def prefect(folder: Path) -> Iterator[None]:
    """A Prefect server, which PREFECT_API_URL names inside."""
    from flows import ui
    from flows.deployment.services import Services

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / ".flywheel/prefect").mkdir(parents=True)
    environment = ui.environment(folder, port, port)
    with Services(folder, environment) as services:
        services.start("prefect", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port))
        services.wait("prefect", f"{environment['PREFECT_API_URL']}/health")
        for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_HOME"):
            os.environ[name] = environment[name]
        yield


def measure(source: Path, runs: int) -> dict[str, Any]:
    """The row."""
    from steps.core.records import ITERATION_STAGES
    from steps.project.store import make_store

    for name in ("MLFLOW_TRACKING_URI", "LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"):
        os.environ.pop(name, None)
    here = Path.cwd()
    with tempfile.TemporaryDirectory(prefix="tracking-") as name:
        folder, store = Path(name) / "project", Path(name) / "empty.db"
        folder.mkdir()
        number = copied(source, folder)
        make_store(store)
        try:
            with prefect(Path(name)), contextlib.redirect_stdout(io.StringIO()):
                timed = [once(folder, Path(name) / str(run), store, number) for run in range(runs + 1)][1:]
        finally:
            os.chdir(here)
        import pyarrow.parquet as pq

        played = [folder / "run" / number, folder / "run" / number / "evaluation"]
        collected = sum(pq.read_metadata(path / "trajectories.parquet").num_rows for path in played)
    parts = {part: round(median(seconds[part] for seconds, _ in timed), 4) for part in PARTS}
    seconds = median(sum(of.values()) for of, _ in timed)
    row: dict[str, Any] = {"name": "tracking", "ratio": round(seconds / GOAL, 3), "seconds": round(seconds, 4)}
    return row | {
        **parts,
        "trajectories": collected,
        "traced": timed[-1][1],
        "stages": len(ITERATION_STAGES),
        "runs": runs,
    }


def main() -> None:
    parser = _common.parser("tracking", __doc__, f"{QUICK} time in place of {RUNS}")
    parser.add_argument("--project", type=Path, help="a folder with a finished run (default: this project)")
    parser.add_argument(
        "--runs", type=int, help=f"that count, after one that warms up (default: {RUNS}; quick: {QUICK})"
    )
    options = parser.parse_args()
    rows = _common.begin("tracking", options)
    with tempfile.TemporaryDirectory(prefix="tracking-run-") as name:
        project = options.project or (ROOT if finished(ROOT) else made(Path(name)))
        rows.add(measure(project.resolve(), options.runs or (QUICK if options.quick else RUNS)))


if __name__ == "__main__":
    _common.command(main)
