"""What it costs to write down one default iteration: MLflow's run, traces, the ledger's rows, Prefect's artifacts.

    python -m benchmarks.tracking               # some 40 s on one core
    python -m benchmarks.tracking --json

Of a finished run (this project's own run/ by default) a copy is made; its last iteration is logged, after the others, into
new SQLite databases each time, so that nothing is there before. 128 rollouts and 120 evaluated scenarios are the defaults;
the row says how many there were. Medians of 5 after a first one that warms up.

The artifacts go to a Prefect server that is started for it. The flow does the first three in a thread beside the next
iteration. Left out: a server's answers (Langfuse's and MLflow's servers are posted to from threads that nobody waits for).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks._trl import ROOT

GOAL = 0.5  # seconds, together
PARTS = ("mlflow", "traces", "ledger", "artifacts")


def copied(source: Path, folder: Path) -> str:
    """What tracking reads of a project, with a dvc.lock and a chain.yaml of what is there. The last iteration."""
    import yaml

    shutil.copy(source / "params.yaml", folder / "params.yaml")
    shutil.copytree(source / "run", folder / "run")
    numbers = sorted(path.parent.name for path in (folder / "run").glob("[0-9]*/adapter"))
    if numbers[:2] != ["000", "001"]:
        raise SystemExit(
            f"{source}/run holds no finished iteration: make a run with `make train`, or name one with --project"
        )
    params = yaml.safe_load((folder / "params.yaml").read_text())
    stages: dict[str, Any] = {}

    def stage(name: str, reads: list[str], writes: list[str]) -> None:
        files = [[{"path": path, "md5": md5_of(folder / path)} for path in paths] for paths in (reads, writes)]
        given = {"params.yaml": params}
        stages[name] = {"cmd": f"python -m {name}", "deps": files[0], "params": given, "outs": files[1]}

    stage("scenarios", [], ["run/scenarios"])
    stage("initialise", [], ["run/000/adapter", "run/000/checkpoint"])
    for number in numbers:
        here, before = f"run/{number}", f"run/{int(number) - 1:03d}"
        if number != "000":
            batch, rewards = f"{here}/trajectories.parquet", f"{here}/rewards.parquet"
            stage(f"rollout@{number}", ["run/scenarios", f"{before}/adapter"], [batch])
            stage(f"score@{number}", ["run/scenarios", batch], [rewards])
            made = [f"{here}/adapter", f"{here}/checkpoint", f"{here}/metrics.json"]
            stage(f"update@{number}", [batch, rewards, f"{before}/checkpoint"], made)
        stage(f"evaluate@{number}", [f"{here}/adapter", "run/scenarios"], [f"{here}/evaluation"])
    (folder / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}, sort_keys=False))
    chain = {"iterations": {now: {"prev": before} for before, now in pairwise(numbers)}, "evaluated": numbers}
    (folder / "chain.yaml").write_text(yaml.safe_dump(chain))
    return numbers[-1]


def md5_of(path: Path) -> str:
    """As DVC has it."""
    from steps.project import hashes

    return hashes.folder_md5(path) if path.is_dir() else hashes.file_md5(path)


def once(project: Path, folder: Path, store: Path, number: str) -> tuple[dict[str, float], int]:
    """Seconds of each part for iteration `number`, and how many trajectories were traced."""
    from flows.deployment import pages
    from flows.terminal import report
    from steps.lineage import index
    from steps.project.chain import read_chain
    from steps.project.ledger import Ledger
    from steps.tracking.tracker import start

    (folder / ".flywheel").mkdir(parents=True)  # a folder each time: MLflow keeps a database open, by its path
    for path in project.iterdir():
        (folder / path.name).symlink_to(path)
    os.chdir(folder)
    shutil.copy(store, folder / ".flywheel/mlflow.db")
    told: list[str] = []
    tracker = start(folder, told.append)
    send, spent = tracker.tracing.iteration, 0.0

    def timed(*words: Any) -> None:
        nonlocal spent
        began = time.perf_counter()
        send(*words)
        spent = time.perf_counter() - began

    tracker.tracing.iteration = timed  # type: ignore[method-assign, assignment]
    for earlier in list(read_chain(folder)["iterations"])[:-1]:
        tracker.iteration(earlier, 0.1)
    before = tracker.tracing.traced
    began = time.perf_counter()
    if tracker.iteration(number, 0.1) is None:
        raise SystemExit(f"iteration {number} was not logged: {told}")
    seconds = {"mlflow": time.perf_counter() - began - spent, "traces": spent}
    if left := [text for text in told if "traces" in text]:
        raise SystemExit(left[0])
    with Ledger(f"sqlite:///{folder}/.flywheel/ledger.db") as ledger:
        index.index(folder, ledger, ["000"])
        began = time.perf_counter()
        index.index(folder, ledger, [number])
        seconds["ledger"] = time.perf_counter() - began
    curve = [report.point(of) for of in range(int(number) + 1)]
    row = report.iteration_row(int(number))
    began = time.perf_counter()
    pages.iteration(curve, row, int(number))
    seconds["artifacts"] = time.perf_counter() - began
    return seconds, tracker.tracing.traced - before


@contextlib.contextmanager
def prefect(folder: Path) -> Iterator[None]:
    """A Prefect server, which PREFECT_API_URL names inside."""
    from flows import ui
    from flows.deployment.services import Services

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / ".flywheel/prefect").mkdir(parents=True)
    known = ui.environment(folder, port, port)
    with Services(folder, known) as services:
        services.start("prefect", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port))
        services.wait("prefect", f"{known['PREFECT_API_URL']}/health")
        for name in ("PREFECT_API_URL", "PREFECT_API_AUTH_STRING", "PREFECT_HOME"):
            os.environ[name] = known[name]
        yield


def measure(source: Path, runs: int) -> dict[str, Any]:
    """The row."""
    from steps.core.records import OUTPUTS
    from steps.project.store import make_store

    os.environ.pop("MLFLOW_TRACKING_URI", None)
    for name in ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"):
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

        played = [
            folder / "run" / number / place for place in ("trajectories.parquet", "evaluation/trajectories.parquet")
        ]
        collected = sum(pq.read_metadata(path).num_rows for path in played)
    parts = {part: round(median(seconds[part] for seconds, _ in timed), 4) for part in PARTS}
    found: dict[str, Any] = {"name": "tracking", "seconds": round(median(sum(of.values()) for of, _ in timed), 4)}
    found |= {**parts, "trajectories": collected, "traced": timed[-1][1], "stages": len(OUTPUTS), "runs": runs}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tracking", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument(
        "--project", type=Path, default=ROOT, help="a folder with a finished run (default: this project)"
    )
    parser.add_argument("--runs", type=int, default=5, help="that count, after one that warms up")
    words = parser.parse_args()
    row = measure(words.project.resolve(), words.runs)
    if words.json:
        print(json.dumps(row))
        return 0
    each = ", ".join(f"{part} {row[part]:.3f}" for part in PARTS)
    print(
        f"{row['seconds']:.3f} s an iteration (goal: {GOAL}): {each}; {row['traced']} of {row['trajectories']} traced"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
