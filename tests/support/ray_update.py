"""An update by workers of Ray Train against the same update by one process: how far gradients and adapters are apart.

    python -m tests.support.ray_update                       # 2 workers on two Ray nodes of this machine
    python -m tests.support.ray_update --kill 10             # 10 updates, in each of which a worker is killed

A random Qwen3 of a few thousand parameters in float32, 24 trajectories of 4 groups. Gradients are read from Adam's first
moments after one optimiser step, (1 - 0.9) times the clipped gradient, and compared relative to the largest element;
adapters after 16 steps are compared element by element. Ray's nodes are real (ray.cluster_utils), their machine is one.

The second has no KL term: with it, one element's gradient in this batch is 9e-8, which Adam scales up to a whole step, so
that one process with other micro-batches gives adapters that are 5e-5 apart, too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from addons.fleet import raycluster
from steps.core.progress import report_to

LIMIT = 1e-5
KNOBS: dict[str, dict[str, Any]] = {
    "gradient": {"steps_per_generation": 1},
    "adapter": {"steps_per_generation": 16, "beta": 0, "tokens_per_micro_batch": 64},
}


def distance(one: dict[str, Any], other: dict[str, Any], prefix: str) -> tuple[float, float]:
    """(the largest difference, the largest element) of the tensors whose names begin with `prefix`."""
    names = [name for name in one if name.startswith(prefix)]
    assert names
    assert one.keys() == other.keys()
    gap = max(float((one[name] - other[name]).abs().max()) for name in names)
    return gap, max(float(one[name].abs().max()) for name in names)


def compare(batch: Any, workers: int, kinds: Sequence[str], delay: float | None = None) -> dict[str, float | int]:
    """Update a batch of tests/stages/test_update.py in this process and in so many workers, with the settings of each kind.
    `delay`: seconds until a worker is killed."""
    from safetensors.torch import load_file

    measured: dict[str, float | int] = {"workers": workers}
    for kind in kinds:
        knobs, lines = KNOBS[kind], list[str]()
        batch.update(f"{kind}-one", **knobs)
        report_to(lambda message, lines=lines: lines.append(message.get("say", "")))
        began = time.perf_counter()
        with killing(delay):
            batch.update(f"{kind}-ray", launcher="ray", processes=workers, **knobs)
        measured[f"{kind}_seconds"] = round(time.perf_counter() - began, 1)
        report_to(None)
        measured[f"{kind}_restarts"] = sum("begins again" in line for line in lines)
        one, ray = (load_file(batch.folder / f"{kind}-{side}/checkpoint/state.safetensors") for side in ("one", "ray"))
        gap, largest = distance(one, ray, "exp_avg.")
        measured |= {f"{kind}_gap": distance(one, ray, "weight.")[0], f"{kind}_moments_gap": gap / largest}
    return measured


class killing:
    """Inside, one of Ray Train's workers on this machine is killed, so many seconds after it was first seen."""

    def __init__(self, delay: float | None) -> None:
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._kill, args=(delay,)) if delay is not None else None

    def __enter__(self) -> None:
        if self.thread:
            self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        if self.thread:
            self.thread.join()

    def _kill(self, delay: float) -> None:
        import psutil

        while not self.ended.wait(0.1):
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    if "RayTrainWorker" in " ".join(process.cmdline()):
                        self.ended.wait(delay)
                        process.kill()
                        return


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.ray_update", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kill", type=int, default=0, metavar="N", help="updates in which a worker is killed")
    options = parser.parse_args()
    draw = random.Random(1)
    os.environ |= {"RAY_DEDUP_LOGS": "0", "OMP_NUM_THREADS": "1"}
    from ray.cluster_utils import Cluster

    from tests.stages.test_update import Batch
    from tests.support import tiny

    with tempfile.TemporaryDirectory(prefix="flywheel-") as folder:
        (Path(folder) / "base").mkdir()
        policy = tiny.make_policy(Path(folder) / "base")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": options.workers // 2})
        cluster.add_node(num_cpus=options.workers - options.workers // 2)
        policy = policy.model_copy(update={"threads": 1, "cluster": cluster.address})
        worst = 0.0
        try:
            for number in range(max(1, options.kill)):
                place = Path(folder) / str(number)
                place.mkdir()
                delay = draw.uniform(0, 20) if options.kill else None
                row = compare(Batch(place, policy), options.workers, [*KNOBS][options.kill > 0 :], delay)
                print(json.dumps(row), flush=True)
                worst = max(worst, *(value for name, value in row.items() if name.endswith("_gap")))
        finally:
            raycluster.disconnect()
            cluster.shutdown()
    return int(worst >= LIMIT)


if __name__ == "__main__":
    raise SystemExit(main())
