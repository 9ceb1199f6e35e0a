"""Runs of the pipeline that benchmarks make: in clones of the committed tree, so what is not committed is not measured.

With --jobs 2, where a benchmark has it, two runs go on side by side, each on a core of its own with policy.threads=1. Both
end in about 1.4 times the time of one on both cores; their bytes differ from its, because rounding depends on the threads.

Processes that benchmarks start stay in the benchmark's process group, so that one signal to it ends all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from statistics import fmean, stdev
from typing import Any, TypeVar

from benchmarks._common import ROOT, tell

# Variables of the tools, by the start of their names: they would reach other stores.
TOOLS = ("FLYWHEEL_", "LANGFUSE_", "MLFLOW_", "PREFECT_", "WANDB_")
Case = TypeVar("Case")
Result = TypeVar("Result")


class Failed(SystemExit):
    """A command that ended with an error; the message says which."""

    def __init__(self, message: str, lines: Sequence[str], seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds
        self.last_line = next((line.strip() for line in reversed(lines) if line.strip()), "it printed nothing")


def clone(root: Path) -> Path:
    """The committed tree, cloned to `root`."""
    subprocess.run(["git", "clone", "--quiet", os.fspath(ROOT), os.fspath(root)], check=True)
    return root


def environment(root: Path) -> dict[str, str]:
    """This process's variables for a command in a clone, with all state of the tools in the clone or in the folder that
    it lies in (Prefect's database: clones there share it, for making it takes long, but not those of another core)."""
    core = own_core()
    state = root.parent / ("prefect" if core is None else f"prefect{core}")
    return {name: value for name, value in os.environ.items() if not name.startswith(TOOLS)} | {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_HOME": os.fspath(state),
        "PREFECT_LOCAL_STORAGE_PATH": os.fspath(state / "storage"),
        "PREFECT_MEMO_STORE_PATH": os.fspath(state / "memo_store.toml"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    }


def training(chosen: Mapping[str, object]) -> list[str]:
    """The words of the main job, `flows.train`, with these parameters, and `policy.threads` for a single core."""
    chosen = dict(chosen) | ({} if own_core() is None else {"policy.threads": 1})
    return ["-m", "flows.train", *(word for name, value in chosen.items() for word in ("--set", f"{name}={value}"))]


def gain(name: str, summary: Mapping[str, Any], goal: float) -> dict[str, Any]:
    """The row of a run by its summary.json: test success of the base and of the trained policy, and what lies between."""
    base, trained = summary["base"], summary["trained"]
    return {
        "name": name,
        "ratio": round(trained["success"] / base["success"], 3) if base["success"] else None,
        "base": round(base["success"], 3),
        "trained": round(trained["success"], 3),
        "difference": round(trained["success"] - base["success"], 3),
        "goal": goal,
        "base_ci95": base["ci95"],
        "trained_ci95": trained["ci95"],
        "clusters": trained.get("clusters"),
        "curve": [round(row["success"], 3) for row in summary["iterations"]],
        "iteration": trained["iteration"],
        "seconds": round(summary["wall_seconds"]),
    }


def mean_interval(values: Sequence[float], error: float = 0.05) -> tuple[float, float, float]:
    """(mean, low, high) by Student's t, which errs with this probability; of a single value the ends are infinite."""
    from scipy.special import stdtrit

    if len(values) < 2:
        return fmean(values), -math.inf, math.inf
    spread = float(stdtrit(len(values) - 1, 1 - error / 2)) * stdev(values) / len(values) ** 0.5
    return fmean(values), fmean(values) - spread, fmean(values) + spread


def jobs(parser: argparse.ArgumentParser) -> None:
    """Add the option --jobs, for `side_by_side`."""
    cores = len(os.sched_getaffinity(0))
    text = f"runs side by side, each on one core with policy.threads=1 (default: 1, on both; here at most {cores})"
    parser.add_argument("--jobs", type=int, choices=range(1, cores + 1), default=1, metavar="N", help=text)


def own_core() -> int | None:
    """The core that this thread is bound to, and the processes that it starts; None if they may use several."""
    cores = os.sched_getaffinity(0)
    return next(iter(cores)) if len(cores) == 1 else None


def side_by_side(jobs: int, function: Callable[[Case], Result], cases: Iterable[Case]) -> Iterator[Result]:
    """What the function returns for each case, in their order; `jobs` cases at a time, each in a thread with a core."""
    if jobs == 1:
        yield from map(function, cases)
        return
    cores: SimpleQueue[int] = SimpleQueue()
    for core in sorted(os.sched_getaffinity(0)):
        cores.put(core)
    executor = ThreadPoolExecutor(min(jobs, cores.qsize()), initializer=lambda: os.sched_setaffinity(0, {cores.get()}))
    try:
        yield from executor.map(function, cases)
    finally:
        executor.shutdown(cancel_futures=True)


def show(root: Path, words: Sequence[str], variables: Mapping[str, str] | None = None) -> tuple[float, str]:
    """Run this Python on the words in a clone, and repeat on standard error what it prints, as it comes.

    Returns its seconds, and what it printed. Failed, which ends a benchmark, where it fails.
    """
    tell(f"{root.name}: {' '.join(words)}")
    began, lines = time.perf_counter(), []
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=root,
        env=environment(root) if variables is None else dict(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                tell(line.rstrip("\n"))
        except KeyboardInterrupt:  # the command has had the same signal, and stops its own processes
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            raise
    if process.returncode:
        log = root / ".flywheel" / "train.log"
        message = f"{' '.join(words)} in {root} failed with exit code {process.returncode}; see above, and {log}"
        raise Failed(message, lines, time.perf_counter() - began)
    return time.perf_counter() - began, "".join(lines)
