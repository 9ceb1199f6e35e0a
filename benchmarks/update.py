"""The update stage against TRL's GRPOTrainer: the same trajectories, loss, LoRA and learning rate, side by side.

    python -m benchmarks.update                     # four shapes, about 20 minutes on 2 cores
    python -m benchmarks.update --quick             # 32 trajectories of each shape, fewer steps, one batch size for TRL
    python -m benchmarks.update --growth            # ten times the trajectories: time and memory; a cold stage

default is a batch of the embedded policy at default size, sampled by the rollout stage; shared_prompt the same policy with
random tokens, 512 shared by a group and 64 of each attempt's own; medium a random Qwen3 of 26 M parameters, 36 and 64, and
medium_bfloat16 the same in that type (of TRL's, the weights are too, and autocast is on). 128 trajectories in groups of 8,
one optimiser step each time, loss dapo without KL term, float32 but for the last, random rewards.
GRPOTrainer is stock, fed by `rollout_func`, without dynamo, at the fastest of several batch sizes.

Each runs in a process of its own (benchmarks/_update.py, benchmarks/_trl.py). Both make the same steps from the same
adapter, and their adapters must agree: that is the check that both did the same work. `max_adapter_difference` is the
distance between them after three steps (with --quick, two), relative to the way that TRL's has come; `worst_matrix` the
same of the one matrix B that is furthest off. Floating-point operations are counted as 4·N for each token that passes
through linear layers of N parameters (forward, and backward of the activations) and 6·n for their adapters; of attention
none are.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import _common
from benchmarks._common import call, child, tell
from benchmarks._update import ATTEMPTS, GROUPS, commands

SHAPES = ("default", "shared_prompt", "medium", "medium_bfloat16")


class Size(NamedTuple):
    """How much of both sides is done."""

    groups: int  # of 8 trajectories
    steps: int  # after which the adapters are compared: two at least, for A does not move while B is zero
    timed: int  # timed steps, after those
    batches: tuple[int, ...]  # that TRL is tried with; 128 is slower


FULL, QUICK = Size(GROUPS, 3, 3, (8, 16, 32)), Size(4, 2, 1, (16,))


def growth(folder: Path, repeats: int) -> Iterator[dict[str, Any]]:
    """Time and memory of 128 and of 1,280 trajectories, and what a cold update stage takes beyond its imports."""
    tell("growth: preparing")
    call("_update.prepare", shape="default", folder=folder)
    single, tenfold = (call("_update.run_growth", folder=folder, count=1 + repeats, times=times) for times in (1, 10))
    small, large = median(single["seconds"]), median(tenfold["seconds"])
    yield {
        "name": "growth",
        "ratio": round(large / small, 2),
        "seconds": round(small, 3),
        "seconds_tenfold": round(large, 3),
        "peak_memory_mb": single["memory"],
        "peak_memory_mb_tenfold": tenfold["memory"],
    }
    child(commands(folder)["score"])
    imports = "import torch, pyarrow.parquet; from trl import GRPOTrainer; from peft import get_peft_model; "
    imports += "from transformers import AutoModelForCausalLM, Qwen3ForCausalLM"
    spent = []
    for command in (["-c", imports], commands(folder)["update"]) * repeats:
        began = time.perf_counter()
        child(command)
        spent.append(time.perf_counter() - began)
    alone, cold = median(spent[::2]), median(spent[1::2])
    yield {
        "name": "cold",
        "ratio": round(cold / alone, 2),
        "seconds": round(cold, 2),
        "seconds_imports": round(alone, 2),
        "above_imports": round(cold - alone, 2),
        "of_that_a_warm_update": round(small, 2),
    }


def difference(folder: Path) -> tuple[float, float]:
    """How far apart the adapters are, relative to how far TRL's has moved: all weights; the worst matrix B (zero at first).

    SystemExit where a matrix has not moved.
    """
    from safetensors.torch import load_file

    ours, theirs = (load_file(folder / side / "adapter_model.safetensors") for side in ("ours", "trl"))
    first = load_file(folder / "start" / "state.safetensors")
    start = {name: first[f"weight.{name.removesuffix('.weight')}.default.weight"] for name in theirs}
    moved = {name: float((value - start[name]).norm()) for name, value in theirs.items()}
    if ours.keys() != theirs.keys() or not all(moved.values()):
        raise SystemExit("the two sides trained different weights")
    apart = {name: float((ours[name] - value).norm()) for name, value in theirs.items()}
    whole = sum(value**2 for value in apart.values()) ** 0.5 / sum(value**2 for value in moved.values()) ** 0.5
    return whole, max(apart[name] / moved[name] for name in apart if "lora_B" in name)


def compare(shape: str, folder: Path, size: Size) -> dict[str, Any]:
    """Both sides of one shape: the row that is printed. TRL's batch size is chosen first, by one timed step of each."""
    tell(f"{shape}: preparing")
    call("_update.prepare", shape=shape, folder=folder, groups=size.groups)
    rows = json.loads((folder / "shape.json").read_text())["rows"]
    trials = {}
    for batch in size.batches if len(size.batches) > 1 else ():
        [trials[batch]] = call("_trl.run_trl", folder=folder, steps=size.steps, count=1, batch=batch)["seconds"]
        tell(f"{shape}: TRL with batches of {batch}: {trials[batch]:.2f} s a step")
    best = min(size.batches, key=lambda batch: float(trials.get(batch, 0)))
    ours = call("_update.run_ours", folder=folder, steps=size.steps, count=size.timed)
    tell(f"{shape}: ours: {median(ours['seconds']):.2f} s a step")
    trl = call("_trl.run_trl", folder=folder, steps=size.steps, count=size.timed, batch=best)
    apart, worst = difference(folder)
    own, theirs = median(ours["seconds"]), median(trl["seconds"])
    trained = sum(sum(row["mask"]) for row in rows)
    return {
        "name": shape,
        "ratio": round(theirs / own, 2),
        "seconds_ours": round(own, 3),
        "seconds_trl": round(theirs, 3),
        "tokens_per_second": round(trained / own),
        "peak_share": round(ours["flops"] / own / ours["peak"], 3),
        "peak_memory_mb": ours["memory"],
        "peak_memory_mb_trl": trl["memory"],
        "max_adapter_difference": float(f"{apart:.2g}"),
        "worst_matrix": float(f"{worst:.2g}"),
        "batch_trl": best,
    }


def main() -> None:
    quick = (
        f"{ATTEMPTS * QUICK.groups} trajectories in place of {ATTEMPTS * FULL.groups}, {QUICK.steps} + {QUICK.timed} "
        f"steps in place of {FULL.steps} + {FULL.timed}, TRL at batches of {QUICK.batches[0]} alone, which need not "
        "be its fastest; with --growth one repeat in place of three"
    )
    parser = _common.parser("update", __doc__, quick)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--growth", action="store_true", help="ten times the trajectories, and a cold stage, instead")
    parser.add_argument(
        "--count", type=int, help=f"timed steps of each side (default: {FULL.timed}; quick: {QUICK.timed})"
    )
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    size = size._replace(timed=options.count or size.timed)
    if options.growth:
        rows = _common.begin("update", options, None, " --growth")
        with tempfile.TemporaryDirectory(prefix="update-") as folder:
            for row in growth(Path(folder), 1 if options.quick else 3):
                rows.add(row)
        return
    rows = _common.begin("update", options, len(options.shapes) / len(SHAPES))
    for shape in options.shapes:
        with tempfile.TemporaryDirectory(prefix="update-") as folder:
            rows.add(compare(shape, Path(folder), size))


if __name__ == "__main__":
    _common.command(main)
