"""The update stage against TRL's GRPOTrainer: the same trajectories, loss, LoRA and learning rate, side by side.

    python -m benchmarks.update                     # four shapes, about 20 minutes on 2 cores
    python -m benchmarks.update --json --shapes default
    python -m benchmarks.update --growth            # ten times the trajectories: time and memory; a cold stage

default is a batch of the embedded policy at default size, sampled by the rollout stage; shared_prompt the same policy with
random tokens, 512 shared by a group and 64 of each attempt's own; medium a random Qwen3 of 26 M parameters, 36 and 64, and
medium_bfloat16 the same in that type (of TRL's, the weights are too, and autocast is on). 128 trajectories in groups of 8,
one optimiser step each time, loss dapo without KL term, float32 but for the last, random rewards.
GRPOTrainer is stock, fed by `rollout_func`, without dynamo, at the fastest of several batch sizes.

Each runs in a process of its own. Both make the same steps from the same adapter, and their adapters must agree: that is
the check that both did the same work. `max_adapter_difference` is the distance between them after `STEPS` steps, relative
to the way that TRL's has come; `worst_matrix` the same of the one matrix B that is furthest off. Floating-point operations
are counted as 4·N for each token that passes through linear layers of N parameters (forward, and backward of the
activations) and 6·n for their adapters; of attention none are.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import _trl
from benchmarks._trl import LEARNING_RATE, ROOT, child, tell

SHAPES = ("default", "shared_prompt", "medium", "medium_bfloat16")
BATCHES = (8, 16, 32)  # for TRL; 128 is slower
STEPS = 3  # after which the adapters are compared; timed ones follow
GROUPS, ATTEMPTS = 16, 8


def make_policy(folder: Path) -> dict[str, Any]:
    """A random Qwen3 of 26 M parameters with the embedded policy's tokenizer; policy parameters."""
    import shutil

    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    embedded = ROOT / "tasks_data" / "embedded_policy"
    config = Qwen3Config.from_pretrained(embedded)
    config.update(
        {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 8}
        | {"num_key_value_heads": 4, "head_dim": 64, "layer_types": ["full_attention"] * 8}
    )
    torch.manual_seed(0)
    Qwen3ForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        if (embedded / name).exists():
            shutil.copy2(embedded / name, folder)
    return {"base_model": os.fspath(folder)}


def commands(folder: Path) -> dict[str, list[str]]:
    """The words of each stage of a first iteration that writes to `folder`."""
    data = "tasks_data/email_search"
    adapter, batch, rewards = (
        "--adapter RUN/adapter",
        "--trajectories RUN/trajectories.parquet",
        "--rewards RUN/rewards.parquet",
    )
    words = {
        "scenarios": f"--task-data {data} --scenarios RUN/scenarios",
        "initialise": f"{adapter} --checkpoint RUN/checkpoint",
        "rollout": f"--task-data {data} --scenarios RUN/scenarios {adapter} {batch} --iteration 001",
        "score": f"--rubric {data}/rubric.md --scenarios RUN/scenarios {batch} {rewards}",
        "update": f"{batch} {rewards} --previous RUN/checkpoint --adapter RUN/new --checkpoint RUN/next "
        "--metrics RUN/metrics.json",
    }
    named = {stage: [word.replace("RUN", os.fspath(folder)) for word in line.split()] for stage, line in words.items()}
    return {stage: ["-m", f"steps.{stage}", *line] for stage, line in named.items()}


def sampled_rows(folder: Path) -> list[dict[str, Any]]:
    """The first batch of a run at default size: the real stages, in the project itself."""
    from steps.core.records import Trajectory, read_records

    for stage in ("scenarios", "initialise", "rollout"):
        child(commands(folder)[stage])
    batch = read_records(Trajectory, folder / "trajectories.parquet")
    return [
        {"ids": row.ids, "mask": row.mask, "group": one.scenario_id, "prompt": len(one.turns[0].prompt_ids)}
        for one in batch
        for row in one.flatten()
    ]


def random_rows(shared: int, own: int, vocabulary: int) -> list[dict[str, Any]]:
    """GROUPS × ATTEMPTS rows: `shared` tokens of the group, then `own` sampled ones."""
    rng = random.Random(0)
    rows = []
    for group in range(GROUPS):
        prompt = [rng.randrange(10, vocabulary) for _ in range(shared)]
        for _ in range(ATTEMPTS):
            ids = prompt + [rng.randrange(10, vocabulary) for _ in range(own)]
            rows.append({"ids": ids, "mask": [0] * shared + [1] * own, "group": f"g{group}", "prompt": shared})
    return rows


def prepare(shape: str, folder: Path) -> None:
    """Write what both sides read: policy, rows with rewards, and the adapter that they start from."""
    from steps.core.params import Policy
    from steps.training import grpo

    policy = {"base_model": os.fspath(ROOT / "tasks_data" / "embedded_policy")}
    if shape.startswith("medium"):
        policy = make_policy(folder / "policy") | {"dtype": shape.partition("_")[2] or "float32"}
    vocabulary = json.loads((Path(policy["base_model"]) / "config.json").read_text())["vocab_size"]
    if shape == "default":
        rows = sampled_rows(folder)
    else:
        rows = random_rows(512 if shape == "shared_prompt" else 36, 64, vocabulary)
    rng = random.Random(1)
    for row in rows:
        row["reward"] = rng.gauss(0, 1)  # no group without signal: both train on every row
    grpo.Trainer(Policy(**policy), seed=1).save_checkpoint(folder / "start", "")
    (folder / "shape.json").write_text(json.dumps({"policy": policy, "rows": rows}))


def run_ours(folder: Path, count: int, _: int) -> dict[str, Any]:
    """Optimiser steps of the update stage's trainer, each on all rows."""
    import torch

    from steps.core.params import Policy, Update
    from steps.core.records import Row
    from steps.training import batches, grpo, packing

    shape = json.loads((folder / "shape.json").read_text())
    update = Update(
        loss_type="dapo",
        beta=0.0,
        num_iterations=1,
        steps_per_generation=1,
        learning_rate=LEARNING_RATE,
        max_sampler_kl=1e-6 if shape["policy"].get("dtype") != "bfloat16" else 1e-3,
    )
    trainer = grpo.Trainer(Policy(**shape["policy"]), checkpoint=folder / "start")
    groups = [row["group"] for row in shape["rows"]]
    gains, _ = batches.advantages([row["reward"] for row in shape["rows"]], groups)
    seconds = []
    for number in range(STEPS + count):
        rows = [Row(row["ids"], row["mask"], [0.0] * len(row["ids"])) for row in shape["rows"]]
        for start in range(0, len(rows), 16):  # as if this step's policy had sampled them: TRL's ratio is 1, too
            part = rows[start : start + 16]
            with torch.no_grad():
                found, _ = packing.token_logps(trainer.model, packing.pack(part, *trainer._place), 1.0)
            for row, logps in zip(part, found.tolist(), strict=True):
                places = [place for place, sampled in enumerate(row.mask) if sampled]
                for place, logp in zip(places, logps, strict=False):
                    row.logprobs[place] = logp
        examples = [
            batches.Example(row, gain or 0.0, group) for row, gain, group in zip(rows, gains, groups, strict=True)
        ]
        began = time.perf_counter()
        trainer.train(examples, update, 1.0, seed=number)
        seconds.append(time.perf_counter() - began)
        if number == STEPS - 1:
            trainer.save_adapter(folder / "ours")
    return {"seconds": seconds[STEPS:], "flops": operations(trainer, rows, update.tokens_per_micro_batch)}


def operations(trainer: Any, rows: list[Any], budget: int) -> float:
    """Floating-point operations of a step: see the top of this file."""
    from steps.training import batches, packing

    linear = {name: one.weight.numel() for name, one in trainer.model.named_modules() if name.endswith("base_layer")}
    head = trainer.model.get_output_embeddings().weight.numel()
    ordered = sorted((batches.Example(row, 0.0) for row in rows), key=lambda example: example.row.ids)
    packs = [packing.pack([one.row for one in batch]) for batch in batches.micro_batches(ordered, budget)]
    tokens, sampled = sum(one.ids.shape[1] for one in packs), sum(len(one.targets) for one in packs)
    return tokens * (4 * sum(linear.values()) + 6 * trainer.trained_parameters) + sampled * 4 * head


def run_trl(folder: Path, count: int, batch: int) -> dict[str, Any]:
    """The same steps by GRPOTrainer."""
    shape = json.loads((folder / "shape.json").read_text())
    rows = shape["rows"]

    def stored(prompts: list[str], trainer: Any) -> dict[str, Any]:
        chosen = []
        for group in dict.fromkeys(prompts):
            chosen += [row for row in rows if row["group"] == group]
        return {
            "prompt_ids": [row["ids"][: row["prompt"]] for row in chosen],
            "completion_ids": [row["ids"][row["prompt"] :] for row in chosen],
            "env_mask": [row["mask"][row["prompt"] :] for row in chosen],
            "logprobs": [[0.0] * (len(row["ids"]) - row["prompt"]) for row in chosen],
            "stored_reward": [row["reward"] for row in chosen],
        }

    def reward(completions: list[str], stored_reward: list[float], **_: Any) -> list[float]:
        return stored_reward

    seconds = _trl.train(
        shape["policy"]["base_model"],
        folder / "start",
        list(dict.fromkeys(row["group"] for row in rows)),
        reward,
        STEPS + count,
        batch,
        folder,
        stored,
        compare_after=STEPS,
        max_completion_length=2048,
        bf16=shape["policy"].get("dtype") == "bfloat16",
    )
    return {"seconds": seconds[STEPS:]}


def run_growth(folder: Path, count: int, times: int) -> dict[str, Any]:
    """An update as params.yaml has it, on `times` as many trajectories, none of which shares a prompt with another batch."""
    from steps.core.params import Params, load
    from steps.core.records import Row
    from steps.training import batches, grpo

    params = load(ROOT / "params.yaml", Params)
    update = params.update.model_copy(update={"max_sampler_kl": 1e9})  # the logprobs are made up
    rows = json.loads((folder / "shape.json").read_text())["rows"]
    gains, _ = batches.advantages([row["reward"] for row in rows], [row["group"] for row in rows])
    examples = []
    for batch in range(times):
        for row, gain in zip(rows, gains, strict=True):
            own = Row([10 + batch, *row["ids"][1:]], row["mask"], [-0.1 * one for one in row["mask"]])
            examples.append(batches.Example(own, gain or 0.0, f"{batch} {row['group']}"))
    seconds = []
    for _ in range(count):
        trainer = grpo.Trainer(params.policy, checkpoint=folder / "start")
        began = time.perf_counter()
        trainer.train(examples, update, 1.0, seed=1)
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds[1:] or seconds}


def growth(folder: Path) -> list[dict[str, Any]]:
    """Time and memory of 128 and of 1,280 trajectories, and what a cold update stage takes beyond its imports."""
    child(["-m", "benchmarks.update", "--side", "prepare", "--folder", os.fspath(folder), "--shape", "default"])
    once, tenfold = (measure("growth", folder, 4, times) for times in (1, 10))
    small, large = median(once["seconds"]), median(tenfold["seconds"])
    child(commands(folder)["score"])
    imports = "import torch, pyarrow.parquet; from trl import GRPOTrainer; from peft import get_peft_model; "
    imports += "from transformers import AutoModelForCausalLM, Qwen3ForCausalLM"
    spent = []
    for command in (["-c", imports], commands(folder)["update"]) * 3:
        began = time.perf_counter()
        child(command)
        spent.append(time.perf_counter() - began)
    alone, cold = median(spent[::2]), median(spent[1::2])
    return [
        {
            "name": "growth",
            "ratio": round(large / small, 2),
            "seconds": round(small, 3),
            "seconds_tenfold": round(large, 3),
        }
        | {"peak_memory_mb": once["memory"], "peak_memory_mb_tenfold": tenfold["memory"]},
        {"name": "cold", "ratio": round(cold / alone, 2), "seconds": round(cold, 2), "seconds_imports": round(alone, 2)}
        | {"above_imports": round(cold - alone, 2), "of_that_a_warm_update": round(small, 2)},
    ]


def matmul_peak() -> float:
    """The best rate of a large float32 matrix product here, in operations per second."""
    import torch

    from steps.policy.machine import use_all_cores

    use_all_cores()
    size = 2048
    left, right, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    best = 0.0
    for _ in range(12):
        began = time.perf_counter()
        torch.mm(left, right, out=out)
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best


def measure(side: str, folder: Path, count: int, batch: int = 0) -> dict[str, Any]:
    words = ["--side", side, "--folder", os.fspath(folder), "--count", str(count), "--batch", str(batch)]
    return _trl.last_line(child(["-m", "benchmarks.update", *words]))


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


def compare(shape: str, folder: Path, count: int) -> dict[str, Any]:
    """Both sides of one shape, alternately where it is cheap: the row that is printed."""
    tell(f"{shape}: preparing")
    child(["-m", "benchmarks.update", "--side", "prepare", "--folder", os.fspath(folder), "--shape", shape])
    rows = json.loads((folder / "shape.json").read_text())["rows"]
    trials = {}
    for batch in BATCHES:
        trials[batch] = measure("trl", folder, 1, batch)
        tell(f"{shape}: TRL with batches of {batch}: {median(trials[batch]['seconds']):.2f} s a step")
    best = min(trials, key=lambda batch: float(median(trials[batch]["seconds"])))
    ours = measure("ours", folder, count)
    trl = measure("trl", folder, count, best)
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.update", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a shape instead of the table")
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--growth", action="store_true", help="ten times the trajectories, and a cold stage, instead")
    parser.add_argument("--count", type=int, default=3, help="timed steps of each side")
    parser.add_argument("--side", choices=["prepare", "ours", "trl", "growth"], help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--shape", help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side == "prepare":
        prepare(options.shape, options.folder)
        return
    if options.side:
        run = {"ours": run_ours, "trl": run_trl, "growth": run_growth}[options.side]
        found = run(options.folder, options.count, options.batch)
        found["memory"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        if options.side == "ours":
            found["peak"] = matmul_peak()
        print(json.dumps(found))
        return
    if options.growth:
        with tempfile.TemporaryDirectory(prefix="update-") as folder:
            for row in growth(Path(folder)):
                print(json.dumps(row), flush=True)
        return
    if not options.json:
        print(
            "| shape | TRL / ours | ours, s | TRL, s | trained tokens/s | of matmul peak | MB | TRL, MB | adapters apart |"
        )
        print("|---|---|---|---|---|---|---|---|---|")
    for shape in options.shapes:
        with tempfile.TemporaryDirectory(prefix="update-") as folder:
            row = compare(shape, Path(folder), options.count)
        if options.json:
            print(json.dumps(row), flush=True)
        else:
            named = "name ratio seconds_ours seconds_trl tokens_per_second peak_share peak_memory_mb peak_memory_mb_trl"
            columns = [*named.split(), "max_adapter_difference"]
            print(f"| {' | '.join(str(row[key]) for key in columns)} |", flush=True)


if __name__ == "__main__":
    main()
