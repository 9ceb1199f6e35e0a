"""A fleet of 1 to 1,000 engines on paper: what an iteration is spent on, and what gives out first. A model, no measurement.

    python -m benchmarks.scale                          # the table of docs/scale.md
    python -m benchmarks.scale --plot benchmarks/scale.png
    python -m benchmarks.scale --batch run/001          # measures anew what one machine can measure of a batch
    python -m benchmarks.scale --quick                  # the same table: it takes no time

Each engine plays `EPISODES` episodes an iteration, so the batch grows with the fleet, and the update has as many workers
as keep up with the engines (`workers`). Every constant has a value, a unit and a source, which says where
one was not measured. `ratio` is the episodes per second of the fleet over those of as many engines that never wait.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _common

EPISODES = 128  # of an engine in an iteration
STEPS = 8  # optimiser steps of an update
TOKENS = 453  # of an episode of email_search, on average
ENGINES = (1, 2, 4, 8, 16, 32, 64, 125, 250, 500, 1000)


class Constant(NamedTuple):
    """A number of the model, and where it comes from."""

    value: float
    unit: str
    source: str


class Workload(NamedTuple):
    """Episodes and a model: what an engine and a worker of the update take for them."""

    sample: float  # seconds an episode, of one engine
    update: float  # seconds an episode, of one worker
    tokens: int  # an episode
    adapter: float  # bytes
    source: str


WORKLOADS = {
    "embedded": Workload(
        0.0227,
        0.0086,
        TOKENS,
        6.3e5,
        "measured on 2 cores: docs/benchmarks.md, (4.01 - 1.10) s and 1.10 s for 128 episodes",
    ),
    "7B": Workload(
        0.121,
        0.316,
        2000,
        1.6e8,
        "not measured: addons.planning.__main__ for Qwen2.5-7B on an H100, 15.5 s and 40.5 s for 128, ±40 %",
    ),
}
BATCH = "--batch, a default batch of email_search, 2 cores beside other work, 2026-11-23"
CONSTANTS = {
    "fixed": Constant(0.6, "s an iteration", "docs/benchmarks.md, speed of an iteration: DVC, MLflow and Prefect"),
    "bytes": Constant(443 / TOKENS, "bytes a token", BATCH),
    "prepare": Constant(2.8e-4 / TOKENS, "s a token in every worker", BATCH),
    "collect": Constant(2.2e-4 / TOKENS, "s a token", BATCH),
    "score": Constant(4.4e-4, "s an episode", "the stage score of the same run, by the task's rule: 0.056 s for 128"),
    "hash": Constant(1.9e-9, "s a byte", BATCH),
    "ledger": Constant(
        7.8e-4, "s an episode", "the same run into SQLite, 0.10 s for 128; PostgreSQL's figure belongs here"
    ),
    "start": Constant(
        20.0, "s an update", "tests/support/ray_update.py, 2 cores beside other work: imports of Ray's workers"
    ),
    "shard": Constant(0.0, "s a shard", "not measured yet: benchmarks/fleet.py, row two_nodes"),
    "network": Constant(1.25e9, "bytes a second", "assumed: 10 Gbit/s at each machine"),
    "engines_per_node": Constant(8, "engines", "assumed: a card each, eight cards a machine"),
}


def parts(load: Workload, engines: int, workers: int) -> dict[str, float]:
    """Seconds of an iteration by what they are spent on."""
    value = {name: constant.value for name, constant in CONSTANTS.items()}
    batch, nodes = engines * EPISODES, math.ceil(engines / value["engines_per_node"])
    tokens, wire = batch * load.tokens, value["network"]
    content, start = tokens * value["bytes"], value["start"] if workers > 1 else 0.0
    return {
        "sample": EPISODES * load.sample + value["shard"],
        "ship adapter": nodes * load.adapter / wire,  # to each node once, all from one
        "collect": content / wire + tokens * value["collect"],
        "score": batch * value["score"],
        "update, divided": batch * load.update / workers,
        "update, in every worker": tokens * value["prepare"] + workers * content / wire,
        "update, start of workers": start,
        "sum gradients": STEPS * 2 * load.adapter * (workers - 1) / workers / wire,  # a ring
        "hash": 2 * content * value["hash"],  # what rollout and score write, once each
        "ledger": batch * value["ledger"],
        "DVC, MLflow, Prefect": value["fixed"],
    }


UPDATE = ("update, divided", "update, in every worker", "update, start of workers", "sum gradients")
BESIDE = ("ledger",)  # done by a thread beside the next iteration


def seconds(load: Workload, engines: int, workers: int, overlap: bool) -> float:
    """Seconds of an iteration. With overlap the next batch is sampled while the update runs. The ledger is written beside
    the next iteration, and counts only where that takes longer."""
    spent = parts(load, engines, workers)
    update = sum(spent[name] for name in UPDATE)
    rest = sum(value for name, value in spent.items() if name not in (*UPDATE, *BESIDE))
    whole = max(update, spent["sample"]) + rest - spent["sample"] if overlap else update + rest
    return max(whole, spent["ledger"])


def workers_for(load: Workload, engines: int) -> int:
    """Workers of the update that take no longer for their share than the engines take to sample it."""
    return max(1, math.ceil(engines * load.update / load.sample))


def row(name: str, engines: int) -> dict[str, Any]:
    """What the model says of a workload on so many engines, with overlap; `longest` is what most seconds go to beside
    sampling and the divided update, which more machines shorten."""
    load = WORKLOADS[name]
    workers = workers_for(load, engines)
    whole, spent = seconds(load, engines, workers, overlap=True), parts(load, engines, workers)
    longest = max((part for part in spent if part not in ("sample", "update, divided")), key=lambda part: spent[part])
    return {
        "name": f"{name}, {engines} engines",
        "on_paper": True,
        "ratio": round(EPISODES * load.sample / whole, 3),
        "workers": workers,
        "episodes_per_second": round(engines * EPISODES / whole, 1),
        "seconds": round(whole, 2),
        "without_overlap": round(seconds(load, engines, workers, overlap=False), 2),
        "sampling": round(spent["sample"], 2),
        "longest": longest,
        "its_seconds": round(spent[longest], 2),
    }


def measured(folder: Path) -> dict[str, float]:
    """What one machine can measure with the batch of an iteration in `folder` (run/NNN), in the units of `CONSTANTS`."""
    from steps.core.records import Trajectory, read_records, write_records
    from steps.training.contract import end_of_turn
    from steps.update import checked

    path = folder / "trajectories.parquet"
    trajectories = read_records(Trajectory, path)
    size = path.stat().st_size
    count = sum(
        len(played.turns[-1].prompt_ids) + len(played.turns[-1].completion_ids)
        for played in trajectories
        if played.turns
    )
    with tempfile.TemporaryDirectory() as place:
        written = _fastest(lambda: write_records(trajectories, Path(place) / "t.parquet"))
    read = _fastest(lambda: read_records(Trajectory, path))
    end_of_turn(trajectories)
    check = _fastest(lambda: checked(trajectories, 10**9))
    content = bytes(64 << 20)
    hashed = _fastest(lambda: hashlib.md5(content, usedforsecurity=False).digest())
    return {
        "bytes": size / count,
        "prepare": (read + check) / count,
        "collect": written / count,
        "hash": hashed / len(content),
    }


def _fastest(work: Callable[[], object]) -> float:
    """Seconds of the fastest of five."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times)


def plot(path: Path) -> None:
    """Draw seconds of an iteration by what they are spent on, against the number of engines."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, plots = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for axes, (name, load) in zip(plots, WORKLOADS.items(), strict=True):
        for part in parts(load, 1, 1):
            axes.plot(ENGINES, [parts(load, count, workers_for(load, count))[part] for count in ENGINES], label=part)
        whole = [seconds(load, count, workers_for(load, count), overlap=True) for count in ENGINES]
        axes.plot(ENGINES, whole, "k--", label="an iteration, overlapped")
        axes.set(
            xscale="log", yscale="log", xlabel="engines", ylabel="seconds an iteration", ylim=(1e-3, None), title=name
        )
    axes.legend(fontsize=7, ncols=2)
    figure.suptitle("On paper: where the seconds of an iteration go")
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = _common.parser("scale", __doc__, "the same: nothing is measured")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the parts of an iteration")
    parser.add_argument("--batch", type=Path, metavar="FOLDER", help="an iteration, such as run/001, to measure with")
    options = parser.parse_args()
    if options.batch:
        for name, value in measured(options.batch).items():
            print(f"{name}: {value:.3g} {CONSTANTS[name].unit}")
        return
    rows = _common.begin("scale", options)
    for name in WORKLOADS:
        for engines in ENGINES:
            rows.add(row(name, engines))
    if options.plot:
        plot(options.plot)


if __name__ == "__main__":
    _common.command(main)
