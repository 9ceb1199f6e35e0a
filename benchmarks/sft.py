"""Supervised warm start against TRL's SFTTrainer: 2,000 demonstrations of email_search, and what they teach.

    python -m benchmarks.sft                 # about 10 minutes on 2 cores
    python -m benchmarks.sft --quick         # 96 demonstrations, one batch size for TRL

Both sides train the embedded policy's LoRA adapter from the same weights, on the same tokens in the same order, 16
demonstrations a step: ours as the stage sft does, TRL's with stock SFTTrainer at the fastest of several micro-batches, in
float32 and without dynamo. Their adapters must agree: `adapter_difference` is the distance between them relative to the way
that TRL's has come. Seconds are those of training alone; `seconds_preparing` are ours for chat template and tokens beside.
Demonstrations are scripted and careful, over inboxes that no split has (benchmarks/_sft.py). `before` and `after` are
greedy success on the test split.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _common
from benchmarks._common import call, tell
from benchmarks.update import difference

FULL, QUICK = (2000, (4, 8, 16)), (96, (8,))


def measure(folder: Path, count: int, batches: tuple[int, ...]) -> dict[str, Any]:
    """Both sides, and success before and after."""
    tell(f"{count} demonstrations: preparing")
    call("_sft.prepare", folder=folder, count=count)
    ours = call("_sft.run_ours", folder=folder)
    tell(f"ours: {ours['seconds']:.1f} s")
    theirs = {}
    for batch in batches:
        theirs[batch] = call("_sft.run_trl", folder=folder, batch=batch)
        tell(f"TRL with micro-batches of {batch}: {theirs[batch]['seconds']:.1f} s")
    best = min(theirs, key=lambda batch: float(theirs[batch]["seconds"]))
    apart, worst = difference(folder)
    before, after = (call("_sft.success", folder=folder, adapter=side) for side in ("first", "ours"))
    return {
        "name": f"{count} demonstrations",
        "ratio": round(theirs[best]["seconds"] / ours["seconds"], 2),
        "seconds_ours": round(ours["seconds"], 1),
        "seconds_trl": round(theirs[best]["seconds"], 1),
        "seconds_preparing": round(ours["preparing"], 1),
        "tokens": ours["tokens"],
        "tokens_per_second": round(ours["tokens"] / ours["seconds"]),
        "loss_first": round(ours["losses"][0], 3),
        "loss_last": round(ours["losses"][-1], 3),
        "adapter_difference": float(f"{apart:.2g}"),
        "worst_matrix": float(f"{worst:.2g}"),
        "batch_trl": best,
        "peak_memory_mb": ours["memory"],
        "peak_memory_mb_trl": theirs[best]["memory"],
        "before": round(before["success"], 3),
        "before_ci95": before["ci95"],
        "after": round(after["success"], 3),
        "after_ci95": after["ci95"],
        "clusters": after.get("clusters"),
    }


def main() -> None:
    quick = f"{QUICK[0]} demonstrations in place of {FULL[0]}, TRL at micro-batches of {QUICK[1][0]} alone"
    parser = _common.parser("sft", __doc__, quick)
    options = parser.parse_args()
    rows = _common.begin("sft", options)
    with tempfile.TemporaryDirectory(prefix="sft-") as folder:
        rows.add(measure(Path(folder), *(QUICK if options.quick else FULL)))


if __name__ == "__main__":
    _common.command(main)
