"""The learning rate's schedule, as a function of the count of optimiser steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError

if TYPE_CHECKING:
    from steps.core.params import Update


def set_rate(optimizer: Any, settings: Update, steps: int, share: float = 1.0) -> None:
    """Set the learning rate after `steps` optimiser steps, or a share of it: transformers' schedules, as a function of the
    count alone."""
    rate = settings.learning_rate
    if settings.lr_scheduler_type != "constant" or settings.warmup_steps:
        import torch
        from torch.optim import SGD
        from transformers import get_scheduler

        name = "constant_with_warmup" if settings.lr_scheduler_type == "constant" else settings.lr_scheduler_type
        least = settings.lr_scheduler_kwargs
        schedule = get_scheduler(
            name,
            SGD([torch.zeros(1)], lr=rate),
            settings.warmup_steps,
            settings.max_steps,
            {} if least is None else least.model_dump(exclude_none=True),
        )
        rate *= schedule.lr_lambdas[0](steps)
    for group in optimizer.param_groups:
        group["lr"] = rate * share


def check_schedule(settings: Update, steps: int) -> None:
    """UserError where the schedule ends before the update does: the rest would have a learning rate of 0."""
    if settings.max_steps is not None and steps > settings.max_steps:
        raise UserError(
            f"update.max_steps is {settings.max_steps}, and this update ends at optimiser step {steps}: the "
            f"{settings.lr_scheduler_type} schedule ends before; raise it (iterations × steps_per_generation × "
            "num_iterations)"
        )
