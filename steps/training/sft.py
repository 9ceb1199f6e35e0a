"""Supervised fine-tuning of an adapter: TRL's SFTTrainer over rows that share their beginnings.

TRL's trainer makes the steps: AdamW, the schedule, clipping, and the mean of the negative log-likelihood over the tokens of
an optimiser step. What a step computes is this project's: rows are packed without padding, a beginning that they share
passes through the model once (steps/training/packing.py), and logits are computed for the assistant's tokens alone. Left out
of TRL's trainer: its preparation and packing of data, and its evaluation.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.core.params_update import Update
from steps.core.progress import progress, say
from steps.core.records import Row
from steps.policy.machine import deterministic
from steps.training import memory, packing
from steps.training.batches import Example, micro_batches

if TYPE_CHECKING:
    from steps.core.params import Sft
    from steps.training.grpo import Trainer


def fine_tune(trainer: Trainer, rows: Sequence[Row], settings: Sft, tokenizer: Any, seed: int) -> list[float]:
    """Train the trainer's adapter on the sampled tokens of these rows, in an order drawn from `seed` anew for each pass.

    Returns the loss of each optimiser step, in nats per token. Afterwards the trainer has no optimiser state: the moments of
    another loss would be wrong for an update. ValueError where there are no rows.
    """
    if not rows:
        raise ValueError("there are no rows to train on")
    base = trainer.model.get_base_model()
    own_forward = base.__dict__.get("forward")
    try:
        with deterministic(trainer.policy.deterministic), tempfile.TemporaryDirectory(prefix="sft-") as folder:
            return _fit(trainer, rows, settings, tokenizer, seed, folder)
    finally:  # TRL replaces the model's forward, and another stage may use the same model
        if own_forward is None:
            base.__dict__.pop("forward", None)
        else:
            base.forward = own_forward
        trainer.moments, trainer.steps = {}, 0


def _fit(trainer: Trainer, rows: Sequence[Row], settings: Sft, tokenizer: Any, seed: int, folder: str) -> list[float]:
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from transformers.trainer_callback import PrinterCallback
    from trl import SFTConfig, SFTTrainer

    dtype, device = trainer.place
    losses: list[float] = []
    order = list(passes(len(rows), settings.epochs, seed))
    limits = Update(tokens_per_micro_batch=settings.tokens_per_micro_batch)
    limits = trainer.with_micro_batches([Example([row], 1.0) for row in rows], limits)
    budget = limits.tokens_per_micro_batch or memory.TOKENS
    trainer.set_checkpointing(bool(limits.gradient_checkpointing))

    class PackedTrainer(SFTTrainer):
        """Computes a step's loss and gradient over packed micro-batches."""

        def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
            examples = sorted(
                (Example([rows[place]], 1.0) for place in inputs["rows"]), key=lambda example: example.ids
            )
            tokens, total = sum(example.tokens for example in examples), 0.0
            for part in micro_batches(examples, budget):
                packed = packing.pack([row for example in part for row in example.rows], dtype, device)
                logps, _ = packing.token_logps(model, packed, 1.0)
                loss = -logps.sum() / tokens
                loss.backward()
                total += float(loss.detach())
            if not math.isfinite(total):
                raise UserError(
                    f"the loss of step {len(losses) + 1} is {total}: nothing of this training is kept. Lower "
                    "sft.learning_rate or set policy.dtype: float32, then run the same command again"
                )
            losses.append(total)
            return torch.tensor(total)

    class Shown(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            progress(state.global_step, state.max_steps, f"loss {losses[-1]:.3f}")

    computed = configuration(settings, len(order), seed)
    if (warmup := computed["warmup_steps"]) < settings.warmup_steps:
        say(
            f"sft.warmup_steps is {settings.warmup_steps}, and there are {computed['max_steps']} optimiser steps: the "
            f"learning rate rises over {warmup} of them"
        )
    arguments = SFTConfig(
        **computed,
        output_dir=folder,
        per_device_train_batch_size=settings.batch,
        logging_strategy="no",
        remove_unused_columns=False,
        dataloader_pin_memory=False,
    )
    made = PackedTrainer(
        model=trainer.model,
        args=arguments,
        train_dataset=Dataset.from_dict({"row": order, "input_ids": [[0]] * len(order)}),
        data_collator=lambda batch: {
            "rows": [item["row"] for item in batch],
            "labels": torch.zeros(1, dtype=torch.long),
        },
        processing_class=tokenizer,
        callbacks=[Shown()],
    )
    made.remove_callback(PrinterCallback)
    made.train()
    return losses


def configuration(settings: Sft, rows: int, seed: int) -> dict[str, Any]:
    """The fields of TRL's SFTConfig that say what is computed, for so many rows in the order of training."""
    import torch

    steps = -(-rows // settings.batch)
    return {
        "max_steps": steps,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": min(settings.warmup_steps, steps // 2),
        "adam_beta2": 0.95,
        "weight_decay": 0.0,
        "max_grad_norm": 1.0,
        "seed": seed,
        "bf16": False,  # the weights have policy.dtype already, and autocast would change the arithmetic
        "use_cpu": not torch.cuda.is_available(),
        "gradient_checkpointing": False,  # as fine_tune has set it already
        "train_sampling_strategy": "sequential",
        "dataset_kwargs": {"skip_prepare_dataset": True},
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
    }


def passes(count: int, epochs: int, seed: int) -> Iterator[int]:
    """The places of `count` rows in the order of training: each once in every pass."""
    draw = random.Random(f"sft {seed}")
    for _ in range(epochs):
        yield from draw.sample(range(count), count)
