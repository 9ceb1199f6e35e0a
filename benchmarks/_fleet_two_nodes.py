"""The rows `two_nodes` and `cost` of benchmarks.fleet: engines on two Ray nodes of this machine.

Each engine has a node with one CPU, and one thread. The task is email_search. For `two_nodes` its tools answer 50 ms late
beside the engine (a simulation of slow ones). `cost` plays batches of 128 to 10,000 episodes by both engines, without the
wait, and writes fleet_cost.json and its plot: seconds for each episode, and the largest memory of the process that asks and
of its engines.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from benchmarks._common import ROOT, tell
from environments.email_search import EmailSearch

if TYPE_CHECKING:
    from tests.support.fleet_kills import Nodes

TOOL_SECONDS = 0.05
ATTEMPTS, EPISODES_A_SHARD = 8, 16
SIZES = (128, 512, 2048, 10_000)
GOAL = 1.8


class SlowEmailSearch(EmailSearch):
    """email_search with tools that answer late."""

    overlap: ClassVar[int] = 8

    def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        time.sleep(TOOL_SECONDS)
        return super().call(name, arguments)


def seconds(engines: int, episodes: int, env: type[EmailSearch], adapter: Path, runs: int) -> float:
    """The fewest seconds of a batch on so many engines, after one that is not timed."""
    from steps.core.params import Policy, Rollout
    from steps.sampling.job import Job
    from steps.sampling.play import play

    folder = ROOT / "tasks_data" / "email_search"
    data = env.load(folder)
    scenarios = env.scenarios(data, "train", min(128, episodes // ATTEMPTS), 1)
    attempts = [(scenario, attempt) for scenario in scenarios for attempt in range(-(-episodes // len(scenarios)))]
    shards = min(len(scenarios), max(2, episodes // EPISODES_A_SHARD))
    policy = Policy.model_validate({"kind": "ray", "cluster": "auto", "threads": 1, "engines": engines})
    limits = Rollout.model_validate({"scenarios": len(scenarios), "shards": shards})
    times = []
    for number in range(runs + 1):
        began = time.perf_counter()
        batch = attempts[: shards * 2] if not number else attempts
        play(Job(policy, limits, adapter, env, batch, f"{number}", number, data, folder))
        times.append(time.perf_counter() - began)
    return min(times[1:]) / len(attempts) * episodes


@contextlib.contextmanager
def cluster() -> Iterator[tuple[Nodes, Path]]:
    """Two nodes with a CPU each, this process connected to them, and an adapter."""
    os.environ["RAY_AUTH_MODE"] = "token"
    from addons.fleet import raycluster
    from tests.support.fleet_kills import Nodes, fresh_adapter

    raycluster.make_token()
    nodes = Nodes(2)
    try:
        with tempfile.TemporaryDirectory() as place:
            adapter = fresh_adapter(Path(place) / "adapter")
            raycluster.connect("auto", ["benchmarks"])
            yield nodes, adapter
    finally:
        raycluster.disconnect()
        nodes.cluster.shutdown()


def measure(quick: bool) -> dict[str, Any]:
    """The row `two_nodes`. `ratio`: episodes per second of two engines / of one."""
    episodes, runs = (128, 1) if quick else (256, 3)
    with cluster() as (_, adapter):
        times = {engines: seconds(engines, episodes, SlowEmailSearch, adapter, runs) for engines in (1, 2)}
    rates = {f"episodes_per_second_{engines}": round(episodes / spent, 2) for engines, spent in times.items()}
    return {"name": "two_nodes", "ratio": round(times[1] / times[2], 2), "goal": GOAL, "episodes": episodes} | rates


def costs(quick: bool) -> list[dict[str, Any]]:
    """The rows `cost`. `ratio`: milliseconds per episode / those of the smallest batch. Without `quick`, also writes
    fleet_cost.json and its plot."""
    rows: list[dict[str, Any]] = []
    with cluster() as (nodes, adapter):
        for episodes in SIZES[:2] if quick else SIZES:
            spent = seconds(2, episodes, EmailSearch, adapter, 1)
            engines = max((process.memory_info().rss for process in nodes.engines()), default=0)
            own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
            cost = round(1000 * spent / episodes, 2)
            rows.append({
                "name": "cost",
                "ratio": round(cost / rows[0]["milliseconds_per_episode"], 3) if rows else 1.0,
                "episodes": episodes,
                "seconds": round(spent, 2),
                "milliseconds_per_episode": cost,
                "stage_gib": round(own / 2**30, 3),
                "engine_gib": round(engines / 2**30, 3),
            })  # fmt: skip
            tell(json.dumps(rows[-1]))
    if not quick:
        path = ROOT / "benchmarks" / "fleet_cost.json"
        path.write_text(json.dumps(rows, indent=1) + "\n")
        plot(rows, path.with_suffix(".png"))
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    sizes = [row["episodes"] for row in rows]
    figure, (time_axes, memory_axes) = pyplot.subplots(1, 2, figsize=(9, 3.5), layout="constrained")
    time_axes.plot(sizes, [row["milliseconds_per_episode"] for row in rows], marker="o")
    time_axes.set(xscale="log", ylim=(0, None), xlabel="episodes of a batch", ylabel="ms per episode (2 engines)")
    for name, label in (("stage_gib", "the stage"), ("engine_gib", "an engine")):
        memory_axes.plot(sizes, [row[name] for row in rows], marker="o", label=label)
    memory_axes.set(xscale="log", ylim=(0, None), xlabel="episodes of a batch", ylabel="GiB")
    memory_axes.legend()
    figure.savefig(path, dpi=110, metadata={"Software": None})
