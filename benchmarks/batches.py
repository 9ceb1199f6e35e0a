"""The same episodes in batches of several sizes: how many have other tokens, and how far their log probabilities are apart.

    python -m benchmarks.batches             # 128 episodes at once, 16 at a time, and one by one, each in a fresh process
    python -m benchmarks.batches --quick     # 32 episodes at once, 4 at a time, and one by one

Each request has a seed of its own, so the random draws are the same in every batch. Logits are not: how a sum is rounded
depends on the shape of the batch. A token differs where that tips over which one has the largest sum of logit and noise.
`ratio` is the share of episodes with the same tokens as in a first process that played all at once,
`ratio_then_all_at_once` that of a second round, warm. The adapter is moved at random, so that it takes part.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _common
from benchmarks._common import ROOT

TASK, SIZES, QUICK = "email_search", (128, 16, 1), (32, 4, 1)
Episodes = list[list[tuple[list[int], list[float]]]]  # of each turn the tokens, and their logprobs in nats


def prepare(folder: str, count: int) -> None:
    """Scenarios, an adapter whose weights have noise, and all episodes at once, in a fresh process: played.json."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    from steps import initialise, scenarios
    from steps.core.params import Params, load

    params: Any = load(ROOT / "params.yaml", Params).model_copy(update={"task": TASK})
    place = Path(folder)
    scenarios.scenarios(ROOT / "tasks_data" / TASK, place / "scenarios", params)
    initialise.initialise(place / "adapter", place / "checkpoint", params)
    path, rng = place / "adapter" / "adapter_model.safetensors", np.random.default_rng(0)
    moved = {
        name: value + rng.normal(0, 0.02, value.shape).astype(value.dtype) for name, value in load_file(path).items()
    }
    save_file(moved, path, metadata={"format": "pt"})
    (place / "played.json").write_text(json.dumps(*play(folder, count, [count])))


def play(folder: str, count: int, sizes: Sequence[int]) -> list[Episodes]:
    """The first `count` episodes of the first iteration, once in batches of each size, in this process."""
    import environments
    from environments.base import Scenario
    from steps.core.params import Params, load
    from steps.core.records import read_records
    from steps.rollout import choose
    from steps.sampling import engine
    from steps.sampling.job import Job

    params: Any = load(ROOT / "params.yaml", Params).model_copy(update={"task": TASK})
    adapter = Path(folder, "adapter")
    pool = read_records(Scenario, Path(folder, "scenarios", "train.parquet"))
    attempts = [(scenario, attempt) for scenario in choose(pool, [count // 8], params.seed) for attempt in range(8)]
    env = environments.load(TASK)
    data = env.load(ROOT / "tasks_data" / TASK)
    played = []
    for size in sizes:
        trajectories = [
            trajectory
            for start in range(0, count, size)
            for trajectory in engine.play(
                Job(params.policy, params.rollout, adapter, env, attempts[start : start + size], "001", 1001, data)
            )
        ]
        played.append(
            [[(list(turn.completion_ids), list(turn.logprobs)) for turn in item.turns] for item in trajectories]
        )
    return played


def compare(first: Episodes, second: Episodes) -> dict[str, Any]:
    """How many episodes have the same tokens, and of those how many logprobs differ, and by how much at most."""
    pairs = list(zip(first, second, strict=True))
    same = [pair for pair in pairs if [ids for ids, _ in pair[0]] == [ids for ids, _ in pair[1]]]
    gaps = [
        abs(x - y)
        for episode, other in same
        for (_, before), (_, after) in zip(episode, other, strict=True)
        for x, y in zip(before, after, strict=True)
    ]
    differing = {"tokens": len(gaps), "logprobs_that_differ": sum(gap > 0 for gap in gaps), "largest_nats": max(gaps)}
    return {"ratio": len(same) / len(pairs), "episodes": len(pairs), **differing}


def measure(folder: Path, count: int, size: int) -> dict[str, Any]:
    """A fresh process plays batches of this size, and then all at once, warm."""
    first = json.loads((folder / "played.json").read_text())
    cold, warm = _common.call("batches.play", folder=folder, count=count, sizes=[size, count])
    ratio = compare(first, warm)["ratio"]
    return {"name": f"{size} at a time", **compare(first, cold), "ratio_then_all_at_once": ratio}


def main() -> None:
    parser = _common.parser("batches", __doc__, f"{QUICK[0]} episodes in place of {SIZES[0]}")
    options = parser.parse_args()
    os.chdir(ROOT)
    count, *_ = sizes = QUICK if options.quick else SIZES
    rows = _common.begin("batches", options)
    with tempfile.TemporaryDirectory(prefix="batches-") as folder:
        _common.call("batches.prepare", folder=folder, count=count)
        for size in sizes:
            rows.add(measure(Path(folder), count, size))


if __name__ == "__main__":
    _common.command(main)
