"""The learning rate's schedule, as a function of the count of optimiser steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from addons.terms.section import Terms
from steps.core.errors import UserError
from steps.training.terms import Term

if TYPE_CHECKING:
    from steps.core.params import Update


class Schedule(Term):
    """One of transformers' schedules."""

    def __init__(self, settings: Update) -> None:
        import torch
        from torch.optim import SGD
        from transformers import get_scheduler

        super().__init__(settings)
        self.terms = terms = Terms.of(settings)
        self.kind, least = terms.lr_scheduler_type, terms.lr_scheduler_kwargs
        schedule = get_scheduler(
            "constant_with_warmup" if self.kind == "constant" else self.kind,
            SGD([torch.zeros(1)], lr=settings.learning_rate),
            terms.warmup_steps,
            terms.max_steps,
            {} if least is None else least.model_dump(exclude_none=True),
        )
        self.rate = schedule.lr_lambdas[0]

    def plan(self, last: int) -> None:
        """UserError where the schedule ends before the update does: the rest would have a learning rate of 0."""
        most = self.terms.max_steps
        if most is not None and last > most:
            raise UserError(
                f"update.max_steps is {most}, and this update ends at optimiser step {last}: the {self.kind} schedule ends "
                "before; raise it (iterations × steps_per_generation × num_iterations)"
            )
