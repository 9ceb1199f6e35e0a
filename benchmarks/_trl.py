"""TRL's side of the benchmarks: stock GRPOTrainer with this project's LoRA, optimiser and first adapter.

python -m benchmarks._common _trl.run_trl '{"folder": "F", "steps": 3, "count": 3, "batch": 16}'
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks._update import LEARNING_RATE, finish_gpu, memory

STOCK: dict[str, Any] = {  # settings of GRPOConfig: this project's recipe, and nothing beside training
    "loss_type": "dapo",
    "epsilon_high": 0.28,
    "beta": 0.0,
    "learning_rate": LEARNING_RATE,
    "lr_scheduler_type": "constant",
    "adam_beta2": 0.95,
    "max_grad_norm": 1.0,
    "shuffle_dataset": False,
    "gradient_checkpointing": False,
    "save_strategy": "no",
    "logging_steps": 10_000,
    "report_to": "none",
    "disable_tqdm": True,
    "seed": 0,
}


def run_trl(folder: str, steps: int, count: int, batch: int) -> dict[str, Any]:
    """The same steps by GRPOTrainer in batches of this size; the adapter in trl/."""
    shape = json.loads(Path(folder, "shape.json").read_text())
    seconds = train_rows_with_trl(
        shape["rows"],
        shape["policy"]["base_model"],
        Path(folder),
        steps,
        count,
        batch,
        bf16=shape["policy"].get("dtype") == "bfloat16",
    )
    return {"seconds": seconds, "memory": memory()}


def train_rows_with_trl(
    rows: list[dict[str, Any]], base_model: str, folder: Path, steps: int, count: int, batch: int, **settings: Any
) -> list[float]:
    """Train with TRL on stored rows from the checkpoint folder/start: seconds of each of `count` optimiser steps, after
    `steps` of which the adapter is in folder/trl. `settings` as those of `train_with_trl`."""

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

    groups = list(dict.fromkeys(row["group"] for row in rows))
    seconds = train_with_trl(
        base_model,
        folder / "start",
        groups,
        reward,
        steps + count,
        batch,
        folder,
        stored,
        attempts=len(rows) // len(groups),
        compare_after=steps,
        **dict[str, Any](max_completion_length=2048) | settings,
    )
    return seconds[steps:]


def with_first_adapter(model: Any, start: Path) -> Any:
    """The model with this project's LoRA, as PEFT makes it, and the weights of the checkpoint `start`."""
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file

    lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, lora)
    first = load_file(start / "state.safetensors")
    set_weights(model, {name.removeprefix("weight."): value for name, value in first.items()})
    return model


def set_weights(model: Any, weights: Mapping[str, Any]) -> None:
    """Set the trained parameters of the model."""
    import torch

    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.requires_grad:
                value.copy_(weights[name])


def train_with_trl(
    base_model: str,
    start: Path,  # checkpoint of the first adapter
    prompts: list[Any],
    reward: Callable[..., Sequence[float | None]],
    steps: int,
    batch: int,
    out: Path,
    rollout: Callable[[list[Any], Any], dict[str, Any]] | None = None,
    attempts: int = 8,
    compare_after: int = 0,
    base: Any = None,  # the base model, where it is at hand; `base_model` then has its tokenizer
    accumulate: int | None = None,  # batches of an optimiser step; None: as many as hold all attempts at all prompts
    after_step: Callable[[Any, Any, int], None]
    | None = None,  # model, tokenizer, number of the step; its time is left out
    at_end: Callable[[Any, Any], None] | None = None,
    **settings: Any,
) -> list[float]:
    """Train with TRL's GRPOTrainer: stock, in float32 unless `bf16`, with this project's LoRA, optimiser and first adapter.

    Returns the seconds of each optimiser step, by default on all attempts at all prompts. The adapter after `compare_after`
    steps is in out/trl.
    """
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    kind = torch.bfloat16 if settings.get("bf16") else torch.float32  # faster than float32 that autocast casts
    base = AutoModelForCausalLM.from_pretrained(base_model, dtype=kind) if base is None else base
    model, tokenizer = with_first_adapter(base, start), AutoTokenizer.from_pretrained(base_model)
    seconds: list[float] = []

    class Clock(TrainerCallback):
        began = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            Clock.began = Clock.began or time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            finish_gpu()
            now = time.perf_counter()
            seconds.append(now - self.began)
            if state.global_step == compare_after:
                model.save_pretrained(out / "trl")
                now = time.perf_counter()
            if after_step is not None:
                after_step(model, tokenizer, state.global_step)
                now = time.perf_counter()
            Clock.began = now

    arguments = GRPOConfig(
        output_dir=os.fspath(out / "out"),
        max_steps=steps,
        per_device_train_batch_size=batch,
        num_generations=attempts,
        use_cpu=not torch.cuda.is_available(),
        **STOCK | {"bf16": False, "gradient_accumulation_steps": len(prompts) * attempts // batch} | settings,
    )
    GRPOTrainer(
        model=model,
        args=arguments,
        reward_funcs=reward,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=tokenizer,
        rollout_func=rollout,
        callbacks=[Clock()],
    ).train()
    return seconds
