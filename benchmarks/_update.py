"""What benchmarks.update runs in processes of their own: preparing a shape, and our side's optimiser steps on it. TRL's side
is in benchmarks/_trl.py.

    python -m benchmarks._common _update.prepare '{"folder": "F", "shape": "medium"}'
    python -m benchmarks._common _update.run_ours '{"folder": "F", "steps": 3, "count": 3}'

A side returns `seconds` of each timed step, `memory` (MB at most), and what is its own. `steps` are made before the adapter
is saved, and `count` timed ones after those. Folders come as text.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._common import ROOT
from steps.core.params import Params, Policy, Update, load
from steps.core.records import Row, Trajectory, read_records

GROUPS, ATTEMPTS = 16, 8
LEARNING_RATE = 1e-4


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
    """The words of the stages score and update of a first iteration whose files are in `folder`."""
    batch, rewards = "--trajectories RUN/trajectories.parquet", "--rewards RUN/rewards.parquet"
    words = {
        "score": f"-m steps.score --rubric tasks_data/email_search/rubric.md --scenarios RUN/scenarios {batch} {rewards}",
        "update": f"-m steps.update {batch} {rewards} --previous RUN/checkpoint --adapter RUN/new --checkpoint RUN/next "
        "--metrics RUN/metrics.json",
    }
    return {stage: [word.replace("RUN", os.fspath(folder)) for word in line.split()] for stage, line in words.items()}


def sampled_rows(folder: Path, params: Any) -> list[dict[str, Any]]:
    """The first batch of a run with these parameters: the real stages."""
    from steps.initialise import initialise
    from steps.rollout import rollout
    from steps.scenarios import scenarios

    data = ROOT / "tasks_data" / params.task
    scenarios(data, folder / "scenarios", params)
    initialise(folder / "adapter", folder / "checkpoint", params)
    rollout(data, folder / "scenarios", folder / "adapter", folder / "trajectories.parquet", "001", params)
    batch = read_records(Trajectory, folder / "trajectories.parquet")
    return [
        {
            "ids": row.ids,
            "mask": row.mask,
            "group": trajectory.scenario_id,
            "prompt": len(trajectory.turns[0].prompt_ids),
        }
        for trajectory in batch
        for row in trajectory.flatten()
    ]


def pretrained() -> Params:
    """The parameters of `make train PRESET=smollm2 TASK=json_records`."""
    from flows.repro.parameters import set_params

    return set_params([], task="json_records", dry_run=True, preset="smollm2")


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


def prepare(shape: str, folder: str, groups: int = GROUPS) -> None:
    """Write what both sides read: policy, the first rows with rewards, and the adapter that they start from."""
    from steps.policy import loading
    from steps.training import grpo

    out, rows = Path(folder), list[dict[str, Any]]()
    policy: dict[str, Any] = {"base_model": os.fspath(ROOT / "tasks_data" / "embedded_policy")}
    if shape.startswith("medium"):
        policy = make_policy(out / "policy") | {"dtype": shape.partition("_")[2] or "float32"}
    if shape == "pretrained":
        params = pretrained()
        rows = sampled_rows(out, params)
        policy = loading.local(params.policy).model_dump()
    vocabulary = json.loads((Path(policy["base_model"]) / "config.json").read_text())["vocab_size"]
    if shape == "default":
        rows = sampled_rows(out, load(ROOT / "params.yaml", Params))
    elif shape != "pretrained":
        rows = random_rows(512 if shape == "shared_prompt" else 36, 64, vocabulary)
    rows = rows[: groups * ATTEMPTS]
    rng = random.Random(1)
    for row in rows:
        row["reward"] = rng.gauss(0, 1)  # no group without signal: both train on every row
    grpo.Trainer(Policy(**policy), seed=1).save_checkpoint(out / "start", "")
    (out / "shape.json").write_text(json.dumps({"policy": policy, "rows": rows}))


def memory() -> int:
    """The most that this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def recipe(**settings: Any) -> Update:
    """One optimiser step on all rows, with the loss of TRL's side. Their logprobs are the trainer's own."""
    one_step: dict[str, Any] = {
        "num_iterations": 1,
        "steps_per_generation": 1,
        "max_kl": None,
        "vllm_importance_sampling_correction": False,
    }
    return Update(loss_type="dapo", beta=0.0, learning_rate=LEARNING_RATE, **one_step, **settings)


def training_rows(rows: list[dict[str, Any]]) -> list[Row]:
    """The rows of a shape as the trainer takes them, with logprobs of 0."""
    return [Row(row["ids"], row["mask"], [0.0] * len(row["ids"])) for row in rows]


def own_steps(trainer: Any, rows: list[dict[str, Any]], gains: list[float], update: Update) -> Iterator[float]:
    """Seconds of optimiser steps of the update stage's trainer, each on all rows with these advantages, without end."""
    import torch

    from steps.training import batches, packing

    for number in itertools.count():
        sampled = training_rows(rows)
        for start in range(0, len(sampled), 16):  # as if this step's policy had sampled them: TRL's ratio is 1, too
            part = sampled[start : start + 16]
            with torch.no_grad():
                logps_BT, _ = packing.token_logps(trainer.model, packing.pack(part, *trainer.place), 1.0)
            for row, logps in zip(part, logps_BT.tolist(), strict=True):
                places = [place for place, is_sampled in enumerate(row.mask) if is_sampled]
                for place, logp in zip(places, logps, strict=False):
                    row.logprobs[place] = logp
        examples = [
            batches.Example([own], gain, row["group"]) for own, gain, row in zip(sampled, gains, rows, strict=True)
        ]
        finish_gpu()
        began = time.perf_counter()
        trainer.train(examples, update, 1.0, seed=number)
        finish_gpu()
        yield time.perf_counter() - began


def finish_gpu() -> None:
    """Wait for what a GPU has still to do."""
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def run_ours(folder: str, steps: int, count: int) -> dict[str, Any]:
    """Optimiser steps of the update stage's trainer, each on all rows; the adapter after `steps` of them in ours/."""
    from steps.policy.machine import cores, prepare_training
    from steps.training import batches, grpo
    from steps.training.batches import TOKENS

    prepare_training(len(cores()))
    shape = json.loads(Path(folder, "shape.json").read_text())
    update = recipe(max_sampler_kl=1e-6 if shape["policy"].get("dtype") != "bfloat16" else 1e-3)
    trainer = grpo.Trainer(Policy(**shape["policy"]), checkpoint=Path(folder, "start"))
    rows = shape["rows"]
    gains, _ = batches.advantages([row["reward"] for row in rows], [row["group"] for row in rows])
    seconds = []
    for number, spent in enumerate(own_steps(trainer, rows, [gain or 0.0 for gain in gains], update), 1):
        seconds.append(spent)
        if number == steps:
            trainer.save_adapter(Path(folder, "ours"))
        if number == steps + count:
            break
    flops = operations(trainer, training_rows(rows), update.tokens_per_micro_batch or TOKENS)
    return {"seconds": seconds[steps:], "flops": flops, "memory": memory(), "peak": matmul_peak()}


def run_corrected(folder: str, steps: int, count: int) -> dict[str, Any]:
    """Seconds of updates as the preset has them, with KL term and correction, of `steps` optimiser steps: as they
    are, and with a forward pass for the correction of the first step, too; in turns."""
    from steps.policy.machine import cores, prepare_training
    from steps.training import batches, grpo

    class WithAnotherPass(grpo.Trainer):
        def _steps(self, *words: Any, **more: Any) -> Any:
            self.all_steps = super()._steps(*words, **more)
            return self.all_steps

        def _look_ahead(self, _: Any, *more: Any) -> None:  # pyrefly: ignore[bad-override]
            super()._look_ahead(self.all_steps, *more)

    prepare_training(len(cores()))
    shape = json.loads(Path(folder, "shape.json").read_text())
    update = pretrained().update.model_copy(
        update={"steps_per_generation": steps, "max_sampler_kl": 1e9, "max_kl": None}
    )
    rows = shape["rows"]
    gains, _ = batches.advantages([row["reward"] for row in rows], [row["group"] for row in rows])
    examples = [
        batches.Example([own], gain or 0.0, row["group"])
        for own, gain, row in zip(training_rows(rows), gains, rows, strict=True)
    ]
    seconds: dict[str, list[float]] = {"Trainer": [], "WithAnotherPass": []}
    for number in range(1 + count):  # the first is a warm-up
        for kind in (grpo.Trainer, WithAnotherPass):
            trainer = kind(Policy(**shape["policy"]), checkpoint=Path(folder, "start"))
            began = time.perf_counter()
            trainer.train(examples, update, 1.0, seed=number)
            seconds[kind.__name__].append(time.perf_counter() - began)
    return {"seconds": seconds["Trainer"][1:], "seconds_with_another_pass": seconds["WithAnotherPass"][1:]}


def operations(trainer: Any, rows: list[Row], budget: int) -> float:
    """Floating-point operations of a step: see the top of benchmarks/update.py. With a budget of 1 no row shares tokens."""
    from steps.training import batches, packing

    layers = (layer for name, layer in trainer.model.named_modules() if name.endswith("base_layer"))
    linear = sum(layer.weight.numel() for layer in layers)
    head = trainer.model.get_output_embeddings().weight.numel()
    ordered = sorted((batches.Example([row], 0.0) for row in rows), key=lambda example: example.ids)
    packs = [
        packing.pack([row for example in batch for row in example.rows])
        for batch in batches.micro_batches(ordered, budget)
    ]
    tokens, sampled = sum(pack.ids.shape[1] for pack in packs), sum(len(pack.targets) for pack in packs)
    return tokens * (4 * linear + 6 * trainer.trained_parameters) + sampled * 4 * head


def run_growth(folder: str, count: int, times: int) -> dict[str, Any]:
    """An update as params.yaml has it, on `times` as many trajectories, none of which shares a prompt with another batch."""
    from steps.policy.machine import cores, prepare_training
    from steps.training import batches, grpo

    prepare_training(len(cores()))
    params = load(ROOT / "params.yaml", Params)
    update = params.update.model_copy(update={"max_sampler_kl": 1e9, "max_kl": None})  # the logprobs are made up
    rows = json.loads(Path(folder, "shape.json").read_text())["rows"]
    gains, _ = batches.advantages([row["reward"] for row in rows], [row["group"] for row in rows])
    examples = []
    for batch in range(times):
        for row, gain in zip(rows, gains, strict=True):
            own = Row([10 + batch, *row["ids"][1:]], row["mask"], [-0.1 * sampled for sampled in row["mask"]])
            examples.append(batches.Example([own], gain or 0.0, f"{batch} {row['group']}"))
    seconds = []
    for _ in range(count):
        trainer = grpo.Trainer(params.policy, checkpoint=Path(folder, "start"))
        began = time.perf_counter()
        trainer.train(examples, update, 1.0, seed=1)
        seconds.append(time.perf_counter() - began)
    return {"seconds": seconds[1:] or seconds, "memory": memory()}


def matmul_peak() -> float:
    """The best rate of a large float32 matrix product here, in operations per second."""
    import torch

    from steps.policy.machine import cores, use_threads

    use_threads(len(cores()))
    size = 2048
    left, right, out = torch.randn(size, size), torch.randn(size, size), torch.empty(size, size)
    best = 0.0
    for _ in range(12):
        began = time.perf_counter()
        torch.mm(left, right, out=out)
        best = max(best, 2 * size**3 / (time.perf_counter() - began))
    return best
