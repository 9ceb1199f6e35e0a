"""Two iterations of a task on a GPU with vLLM: do engine and trainer share the card, and does a new adapter arrive?

    make gpu-train                                    # a random Qwen3 of 0.6 B parameters, in bfloat16
    make gpu-train ARGS=--deterministic               # with policy.deterministic: the bytes must then be the same
    python -m benchmarks.gpu.train --task json_records --eager --once   # 15 M parameters, one turn, nothing compiled: first
    python -m benchmarks.gpu.train --toy              # a toy model on the CPU

The model has random weights, the embedded policy's tokenizer and template, and more words than those. It hardly ever ends a
turn or calls a tool, so the judge is left out and rewards are drawn at random: what is learnt means nothing. All else is the
stages' own code, in one process as a warm worker runs it. Prints a JSON object after each phase; docs/gpu.md says what they
mean.

A canary follows the second iteration: the first one's trajectories under the name of the adapter that was made from them, as
if the engine had gone on with a stale one. The update must refuse them. Everything runs twice, in two processes; --once
leaves out the second. The exit code is 1 where the canary passes, or where bytes differ that must be the same (on a CPU, and
with --deterministic).
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks import _common
from benchmarks.gpu import models
from benchmarks.gpu.models import Shape, first_line

if TYPE_CHECKING:
    from steps.core.params import Params
    from steps.core.records import Trajectory

FULL = Shape("Qwen3", 1024, 3072, 28, 16, 8, 128, 151_936, True)  # Qwen3-0.6B
SMALL = Shape("Qwen3", 384, 1024, 9, 6, 2, 64, 2_432, True)  # 30 MB in bfloat16
TASKS = {"email_search": ("params.yaml", FULL), "json_records": ("tasks_data/json_records.yaml", SMALL)}
TOY = Shape("Qwen3", 64, 96, 2, 2, 1, 32, 2_432, True)
BYTES = ("first/trajectories.parquet", "first/adapter", "second/trajectories.parquet", "second/adapter")


def parameters(folder: Path, task: str, toy: bool, deterministic: bool) -> Params:
    """The task's parameters with the random model, which is written to folder/policy."""
    import torch
    import yaml

    from steps.core.params import Params, parse

    dtype = "float32" if toy else "bfloat16"
    preset, shape = TASKS[task]
    base = models.make_base(TOY if toy else shape, dtype)
    base.config.eos_token_id, base.config.pad_token_id, base.config.bos_token_id = 2, 0, None
    base.save_pretrained(folder / "policy")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy2(models.TOKENIZER / name, folder / "policy")
    del base
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    path = _common.ROOT / preset
    params = yaml.safe_load(path.read_text())
    params["policy"] |= {"base_model": os.fspath(folder / "policy"), "dtype": dtype, "deterministic": deterministic}
    # a random model's adapter has to move far enough for the canary
    params["update"] |= {"learning_rate": 0.002, "max_sampler_kl": 0.001 if toy else 0.005}
    if toy:
        params["rollout"] |= {"scenarios": 3, "attempts": 4, "max_tokens": 16}
        params["update"] |= {"steps_per_generation": 3}
    return parse(yaml.safe_dump(params), path, Params)


def iterate(folder: Path, task: str, toy: bool, deterministic: bool) -> Iterator[dict[str, Any]]:
    """All phases in this process: a row of each, and at the end the hashes of what was written."""
    from steps.core.errors import UserError
    from steps.core.records import Trajectory, read_records, write_records
    from steps.initialise import initialise
    from steps.policy.machine import prepare_sampling
    from steps.rollout import rollout
    from steps.sampling import engine
    from steps.scenarios import scenarios
    from steps.update import update

    params: Any = parameters(folder, task, toy, deterministic)
    data = _common.ROOT / "tasks_data" / task
    scenarios(data, folder / "scenarios", params)

    def play(out: Path, number: int, adapter: Path) -> None:
        rollout(data, folder / "scenarios", adapter, out, f"{number:03d}", params)

    def learn(batch: Path, out: Path, previous: Path) -> None:
        out.mkdir(exist_ok=True)
        rewards = out / "rewards.parquet"
        write_records(random_rewards(read_records(Trajectory, batch)), rewards)
        written = (out / "adapter", out / "checkpoint", out / "metrics.json")
        update(batch, rewards, previous / "checkpoint", *written, params)

    start = folder / "start"
    start.mkdir()
    yield phase("initialise", initialise, start / "adapter", start / "checkpoint", params)
    previous = start
    for number, name in enumerate(("first", "second"), 1):
        out = folder / name
        out.mkdir()
        batch = out / "trajectories.parquet"
        yield phase(f"{name} rollout", play, batch, number, previous / "adapter")
        yield phase(f"{name} sleep of the engine", engine.get(params.policy).sleep)
        row = phase(f"{name} update", learn, batch, out, previous)
        yield row | {"sampler_kl": json.loads((out / "metrics.json").read_text())["sampler_kl"]}
        yield phase(f"{name} leave of the trainer", prepare_sampling)
        yield phase(f"{name} wake of the engine", engine.get(params.policy).wake)
        previous = out
    again = folder / "again.parquet"
    yield phase("first rollout again, warm", play, again, 1, start / "adapter")
    first = folder / "first"
    same = digest(again) == digest(first / "trajectories.parquet")
    stale = folder / "stale.parquet"
    name = json.loads((first / "checkpoint" / "state.json").read_text())["adapter"]
    batch_of_first = read_records(Trajectory, first / "trajectories.parquet")
    write_records([played.model_copy(update={"adapter_hash": name}) for played in batch_of_first], stale)
    refusal = ""
    try:
        learn(stale, folder / "canary", first)
    except UserError as problem:
        refusal = first_line(problem)
    yield {"phase": "canary", "caught": "were not sampled by the policy" in refusal, "refusal": refusal}
    yield {"phase": "bytes", "same_when_warm": same, "hashes": {path: digest(folder / path) for path in BYTES}}


@contextlib.contextmanager
def eager() -> Iterator[None]:
    """vLLM's engine without compilation and CUDA graphs."""
    from vllm import EngineArgs

    with patch("vllm.EngineArgs", lambda **fields: EngineArgs(**fields | {"enforce_eager": True})):
        yield


def phase(name: str, call: Callable[..., object], *arguments: object) -> dict[str, Any]:
    """Seconds of a call; memory in 10⁹ bytes: what is taken of the card after it by all, and the most that torch held. On a
    CPU: the most that this process has held so far."""
    import torch

    from benchmarks import _update

    with models.Peak() as peak:
        seconds = models.timed(lambda: call(*arguments))
    row: dict[str, Any] = {"phase": name, "seconds": round(seconds, 3)}
    if peak.gb is None:
        return row | {"host_gb": round(_update.memory() / 1e3, 2)}
    left, whole = torch.cuda.mem_get_info()
    return row | {"used_gb": round((whole - left) / 1e9, 2), "peak_gb": peak.gb}


def random_rewards(batch: list[Trajectory]) -> list[Any]:
    """A reward of each trajectory, drawn from its id."""
    from steps.core.records import Reward

    return [
        Reward(
            trajectory_id=played.id,
            scenario_id=played.scenario_id,
            name="random",
            score=random.Random(played.id).random(),
            success=False,
        )
        for played in batch
    ]


def digest(path: Path) -> str:
    """Hash of a file, or of a folder's files in the order of their names."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:16]


def faults(rows: list[dict[str, Any]], exact: bool) -> list[str]:
    """Why the exit code is 1: sentences. `exact`: bytes must be the same."""
    reasons = []
    canaries = [row for row in rows if row.get("phase") == "canary"]
    reasons += [
        f"a stale adapter was not noticed: {row['refusal'] or 'no error'}" for row in canaries if not row["caught"]
    ]
    ends = [row for row in rows if row.get("phase") == "bytes"]
    if not ends:
        reasons.append("the phases did not come to their end")
    if exact:
        reasons += ["a warm engine gives other trajectories" for row in ends if not row["same_when_warm"]]
        names = {name for row in ends for name in row["hashes"] if row["hashes"][name] != ends[0]["hashes"][name]}
        reasons += [f"another process wrote other bytes: {name}" for name in sorted(names)]
    return reasons


def refuse(toy: bool) -> None:
    """SystemExit with a sentence where there is no vLLM, or no GPU."""
    import torch

    if not find_spec("vllm"):
        raise SystemExit("gpu-train needs vLLM, which this Python lacks: 'make install GPU=1' installs it")
    if not toy and not torch.cuda.is_available():
        raise SystemExit(
            "torch finds no GPU, and gpu-train measures one: 'make install GPU=1' on a machine that has one, or "
            "'make gpu-train TOY=1' for the same code on the CPU"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.train", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--task", choices=TASKS, default="email_search")
    parser.add_argument("--eager", action="store_true", help="nothing is compiled for the engine")
    parser.add_argument("--toy", action="store_true", help="a toy model on the CPU: shows that the code runs")
    parser.add_argument("--once", action="store_true", help="one process in place of two, whose bytes are compared")
    parser.add_argument("--deterministic", action="store_true", help="with policy.deterministic")
    parser.add_argument("--out", type=Path, help="a folder that also gets the lines, in gpu-train.jsonl")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.toy:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    refuse(options.toy)
    if options.worker:
        answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # what libraries print is not among the rows
        os.chdir(options.worker)  # for copies of adapters
        with eager() if options.eager else contextlib.nullcontext():
            for row in iterate(options.worker, options.task, options.toy, options.deterministic):
                print(json.dumps(row), file=answers, flush=True)
        return
    rows: list[dict[str, Any]] = []
    with contextlib.ExitStack() as stack:
        files = [sys.stdout]
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            files.append(stack.enter_context((options.out / "gpu-train.jsonl").open("w")))

        def show(row: dict[str, Any]) -> None:
            for file in files:
                print(json.dumps(row), file=file, flush=True)

        more = ["--task", options.task]
        more += [word for word in ("--toy", "--deterministic", "--eager") if getattr(options, word[2:])]
        for process in range(1 if options.once else 2):
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gpu-train-"))
            command = [sys.executable, "-m", "benchmarks.gpu.train", "--worker", folder, *more]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as worker:
                assert worker.stdout is not None
                for line in worker.stdout:
                    rows.append({"process": process + 1, **json.loads(line)})
                    show(rows[-1])
            if worker.returncode:
                show({"process": process + 1, "error": f"it ended with exit code {worker.returncode}; see above"})
        reasons = faults(rows, options.toy or options.deterministic)
        if len({row["process"] for row in rows if row["phase"] == "bytes"}) < (1 if options.once else 2):
            reasons.append("not every process came to its end")
        show({"phase": "verdict", "passed": not reasons, "reasons": reasons, "toy": options.toy})
    raise SystemExit(1 if reasons else 0)


def environment() -> dict[str, str]:
    """This process's variables for a worker, which runs in a folder of its own."""
    path = os.pathsep.join(filter(None, (os.fspath(_common.ROOT), os.environ.get("PYTHONPATH"))))
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "FLYWHEEL_WORKER": "off"}


if __name__ == "__main__":
    _common.command(main)
