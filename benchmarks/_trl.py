"""TRL's GRPOTrainer as the benchmarks run it: stock, in float32, with this project's LoRA, optimiser and first adapter."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

LEARNING_RATE = 1e-4


def train(
    base_model: str,
    start: Path,  # checkpoint of the first adapter
    prompts: list[Any],
    reward: Callable[..., list[float]],
    steps: int,
    batch: int,
    out: Path,
    rollout: Callable[[list[Any], Any], dict[str, Any]] | None = None,
    attempts: int = 8,
    compare_after: int = 0,
    **settings: Any,
) -> list[float]:
    """Seconds of each optimiser step on all attempts at all prompts; the adapter after `compare_after` steps in out/trl."""
    import torch
    from datasets import Dataset
    from peft import LoraConfig, get_peft_model
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    kind = torch.bfloat16 if settings.get("bf16") else torch.float32  # faster than float32 that autocast casts
    model = AutoModelForCausalLM.from_pretrained(base_model, dtype=kind)
    lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, lora)
    first = load_file(start / "state.safetensors")
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.requires_grad:
                value.copy_(first[f"weight.{name}"])
    seconds: list[float] = []

    class Clock(TrainerCallback):
        began = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            Clock.began = Clock.began or time.perf_counter()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            now = time.perf_counter()
            seconds.append(now - self.began)
            if state.global_step == compare_after:
                model.save_pretrained(out / "trl")
                now = time.perf_counter()
            Clock.began = now

    arguments = GRPOConfig(
        output_dir=os.fspath(out / "out"),
        max_steps=steps,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=len(prompts) * attempts // batch,
        num_generations=attempts,
        loss_type="dapo",
        epsilon_high=0.28,
        beta=0.0,
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        max_grad_norm=1.0,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        use_cpu=not torch.cuda.is_available(),
        save_strategy="no",
        logging_steps=10_000,
        report_to="none",
        disable_tqdm=True,
        seed=0,
        **{"bf16": False, **settings},
    )
    GRPOTrainer(
        model=model,
        args=arguments,
        reward_funcs=reward,
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in prompts]),
        processing_class=AutoTokenizer.from_pretrained(base_model),
        rollout_func=rollout,
        callbacks=[Clock()],
    ).train()
    return seconds
