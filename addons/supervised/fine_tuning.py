"""Supervised fine-tuning of an adapter: TRL's SFTTrainer over rows that share their beginnings.

TRL's trainer makes the steps: AdamW, the schedule, clipping, and the mean of the negative log-likelihood over the tokens of
an optimiser step. What a step computes is this project's: rows are packed without padding, a beginning that they share
passes through the model once (steps/training/packing.py), and logits are computed for the assistant's tokens alone. Left out
of TRL's trainer: its preparation and packing of data, and its evaluation.

Where `sft.epochs` leaves their number open, few demonstrations are passed over until STEPS optimiser steps are made. A tenth
of them is held out then, and the weights are kept that write those best: first by the share of them in which every token is
more probable than all others together, then by their loss.
"""

from __future__ import annotations

import math
import random
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from steps.core.errors import UserError
from steps.core.params_update import Update
from steps.core.progress import progress, say
from steps.core.records import Row
from steps.core.section import at
from steps.policy.machine import deterministic
from steps.training import packing
from steps.training.batches import TOKENS, Example, micro_batches

if TYPE_CHECKING:
    import torch

    from addons.supervised.section import Sft
    from steps.training.grpo import Trainer


Item = TypeVar("Item")
WARMUP = 10  # optimiser steps over which the learning rate rises from 0; half of all steps at most
STEPS = 300  # optimiser steps at least, where sft.epochs is open
CHECKS = 12  # times that the held-out demonstrations are looked at in these steps
PATIENCE = 4  # looks without a better result, after which training ends; or half as many at which all is right
HELD_OUT, FEWEST = 10, 10  # one in so many demonstrations is held out, of so many at least


def fine_tune(
    trainer: Trainer, rows: Sequence[Row], settings: Sft, tokenizer: Any, seed: int, held_out: Sequence[Row] = ()
) -> list[float]:
    """Train the trainer's adapter on the sampled tokens of these rows, in an order drawn from `seed` anew for each pass.
    With `held_out` the weights that write those rows best are kept.

    Returns the loss of each optimiser step, in nats per token. Afterwards the trainer has no optimiser state: the moments of
    another loss would be wrong for an update. ValueError where there are no rows.
    """
    if not rows:
        raise ValueError("there are no rows to train on")
    base = trainer.model.get_base_model()
    own_forward = base.__dict__.get("forward")
    try:
        with deterministic(at(trainer.policy, "deterministic")), tempfile.TemporaryDirectory(prefix="sft-") as folder:
            return _fit(trainer, rows, settings, tokenizer, seed, held_out, folder)
    finally:  # TRL replaces the model's forward, and another stage may use the same model
        if own_forward is None:
            base.__dict__.pop("forward", None)
        else:
            base.forward = own_forward
        trainer.moments, trainer.steps = {}, 0


def _fit(
    trainer: Trainer,
    rows: Sequence[Row],
    settings: Sft,
    tokenizer: Any,
    seed: int,
    held_out: Sequence[Row],
    folder: str,
) -> list[float]:
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from transformers.trainer_callback import PrinterCallback
    from trl import SFTConfig, SFTTrainer

    losses: list[float] = []
    epochs = settings.epochs or -(-STEPS * settings.batch // len(rows))  # 1, of many demonstrations
    order = list(passes(len(rows), epochs, seed))
    limits = trainer.with_micro_batches([Example([row], 1.0) for row in rows], Update())
    budget = limits.tokens_per_micro_batch or TOKENS
    trainer.set_checkpointing(bool(limits.gradient_checkpointing))

    class PackedTrainer(SFTTrainer):
        """Computes a step's loss and gradient over packed micro-batches."""

        def training_step(self, model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> torch.Tensor:
            batch, total = [rows[place] for place in inputs["rows"]], 0.0
            tokens = sum(sum(row.mask) for row in batch)
            for logps_BS in logps_of(model, batch, budget, trainer.place):
                loss = -logps_BS.sum() / tokens
                loss.backward()
                total += float(loss.detach())
            if not math.isfinite(total):
                raise UserError(
                    f"the loss of step {len(losses) + 1} is {total}: nothing of this training is kept. Lower "
                    "sft.learning_rate or set policy.dtype: float32, then run the same command again"
                )
            losses.append(total)
            return torch.tensor(total)

    best = Best(trainer.weights)

    class Shown(TrainerCallback):
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            progress(0, state.max_steps, "optimiser steps")

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            progress(state.global_step, state.max_steps, f"optimiser steps, loss {losses[-1]:.3f}")
            if held_out and state.global_step % max(1, state.max_steps // CHECKS) == 0:
                seen = look(trainer, held_out, budget)
                say(
                    f"step {state.global_step}: {seen.right:.0%} of {len(held_out)} held out are right, loss {seen.loss:.3f}"
                )
                control.should_training_stop = best.add(seen)

    arguments = SFTConfig(
        **configuration(settings, len(order), seed),
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
    best.restore()
    return losses


def logps_of(model: Any, rows: Sequence[Row], budget: int, place: tuple[Any, Any]) -> Iterator[torch.Tensor]:
    """The logprobs [B, S] of the learnt tokens of these rows, 0 where padded, in micro-batches of `budget` tokens. `place`:
    the model's dtype and device."""
    examples = sorted((Example([row], 1.0) for row in rows), key=lambda example: example.ids)
    for part in micro_batches(examples, budget):
        packed = packing.pack([row for example in part for row in example.rows], *place)
        yield packing.token_logps(model, packed, 1.0, with_entropies=False)[0]


class Look(NamedTuple):
    right: float  # share of the held-out demonstrations whose every token is more probable than all others together
    loss: float  # nats per token


def look(trainer: Trainer, rows: Sequence[Row], budget: int) -> Look:
    """What the trainer's present weights make of held-out rows."""
    import torch

    right, nats = 0, 0.0
    with torch.no_grad():
        for logps_BS in logps_of(trainer.model, rows, budget, trainer.place):
            right += int((logps_BS > math.log(0.5)).all(-1).sum())
            nats -= float(logps_BS.sum())
    return Look(right / len(rows), nats / sum(sum(row.mask) for row in rows))


class Best:
    """The weights that write the held-out demonstrations best."""

    def __init__(self, weights: Mapping[str, Any]) -> None:
        self.weights, self.looks = weights, list[Look]()
        self.kept: dict[str, Any] = {}

    def add(self, seen: Look) -> bool:
        """Keep the present weights if they are the best so far; whether training should end."""
        self.looks.append(seen)
        place = max(range(len(self.looks)), key=lambda number: (self.looks[number].right, -self.looks[number].loss))
        if place == len(self.looks) - 1:
            self.kept = {name: value.detach().clone() for name, value in self.weights.items()}
        all_right = [look.right == 1.0 for look in self.looks[-PATIENCE // 2 :]]
        return len(self.looks) - 1 - place >= PATIENCE or (len(all_right) == PATIENCE // 2 and all(all_right))

    def restore(self) -> None:
        """Put the best weights back; nothing where none were looked at."""
        import torch

        with torch.no_grad():
            for name, value in self.kept.items():
                self.weights[name].copy_(value)


def divided(items: Sequence[Item], settings: Sft, seed: int) -> tuple[list[Item], list[Item]]:
    """(demonstrations to learn, those that are held out): none where sft.epochs is set, or where one pass makes steps
    enough."""
    if settings.epochs is not None or len(items) < FEWEST or len(items) >= STEPS * settings.batch:
        return list(items), []
    held_out = set(random.Random(f"held out {seed}").sample(range(len(items)), len(items) // HELD_OUT))
    kept = [item for place, item in enumerate(items) if place not in held_out]
    return kept, [items[place] for place in sorted(held_out)]


def configuration(settings: Sft, rows: int, seed: int) -> dict[str, Any]:
    """The fields of TRL's SFTConfig that say what is computed, for so many rows in the order of training."""
    import torch

    steps = -(-rows // settings.batch)
    return {
        "max_steps": steps,
        "learning_rate": settings.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": min(WARMUP, steps // 2),
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
