"""Schedules of the learning rate: transformers' own, over a checkpoint, and refused where they end before an update does."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from addons.terms.section import Terms
from steps.core.errors import UserError
from steps.core.params import Policy, Update
from steps.core.progress import take_measurements
from steps.training.grpo import Trainer
from steps.training.terms import terms_of
from tests.support.tiny import LOOSE, files, moved, random_rows, sampled_by, with_advantages

pytestmark = pytest.mark.usefixtures("one_thread")

SCHEDULES: list[dict[str, Any]] = [
    {},
    {"warmup_steps": 3},
    {"lr_scheduler_type": "linear", "max_steps": 12},
    {"lr_scheduler_type": "linear", "max_steps": 12, "warmup_steps": 5},
    {"lr_scheduler_type": "cosine", "max_steps": 12},
    {"lr_scheduler_type": "cosine", "max_steps": 12, "warmup_steps": 5},
    {"lr_scheduler_type": "cosine_with_min_lr", "max_steps": 12, "lr_scheduler_kwargs": {"min_lr": 1e-4}},
    {
        "lr_scheduler_type": "cosine_with_min_lr",
        "max_steps": 12,
        "lr_scheduler_kwargs": {"min_lr": 1e-3},
        "warmup_steps": 2,
    },
]
schedules = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda schedule: " ".join(map(str, schedule.values())))


def transformers_rates(settings: Update, count: int) -> list[float]:
    """What transformers' own scheduler sets for each step."""
    import torch
    from transformers import get_scheduler

    update = Terms.of(settings)
    is_warmed = update.lr_scheduler_type == "constant" and update.warmup_steps
    name = "constant_with_warmup" if is_warmed else update.lr_scheduler_type
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=settings.learning_rate)
    least = update.lr_scheduler_kwargs
    specific = {} if least is None else {"scheduler_specific_kwargs": least.model_dump(exclude_none=True)}
    scheduler = get_scheduler(name, optimizer, update.warmup_steps, update.max_steps, **specific)
    rates = []
    for _ in range(count):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates


@schedules
def test_rates_are_those_of_transformers(schedule: dict[str, Any]) -> None:
    update = Update.model_validate({"learning_rate": 0.013} | schedule)
    found = [0.013 * math.prod(term.rate(done) for term in terms_of(update)) for done in range(12)]
    assert found == transformers_rates(update, 12)
    terms = Terms.of(update)
    assert len(set(found)) == {"constant": 1 + terms.warmup_steps}.get(terms.lr_scheduler_type, len(set(found)))


@schedules
def test_schedules_go_on_from_a_checkpoint(
    policy: Policy, tmp_path: Path, rates: list[float], schedule: dict[str, Any]
) -> None:
    given = {"num_iterations": 2, "steps_per_generation": 3, "learning_rate": 0.01, **LOOSE} | schedule
    update = Update.model_validate(given)
    examples = with_advantages(random_rows(6, 1))
    whole = moved(Trainer(policy, seed=4))
    take_measurements()  # of other tests
    whole.train(examples, update, 1.0, seed=5)
    whole.save_checkpoint(tmp_path / "half", "a")
    whole.train(examples, update, 1.0, seed=5)
    whole.save_checkpoint(tmp_path / "whole", "a")
    assert rates == transformers_rates(update, 12)
    assert take_measurements().numbers == {"learning_rate": rates[-1]}, "what trackers log"
    resumed = Trainer(policy, checkpoint=tmp_path / "half")
    resumed.train(examples, update, 1.0, seed=5)
    resumed.save_checkpoint(tmp_path / "resumed", "a")
    assert rates[12:] == rates[6:12]
    assert files(tmp_path / "resumed") == files(tmp_path / "whole")


@pytest.mark.parametrize("kind", ["linear", "cosine"])
def test_a_schedule_that_ends_before_the_update_is_one_sentence(policy: Policy, kind: str) -> None:
    trainer = moved(Trainer(policy, seed=1))
    examples = with_advantages(sampled_by(trainer.model, random_rows(8, seed=2), 1.0))
    update = Update.model_validate({"lr_scheduler_type": kind, "max_steps": 7, "steps_per_generation": 4})
    trainer.train(examples, update, 1.0, seed=1)
    with pytest.raises(
        UserError, match=rf"^update\.max_steps is 7, and this update ends at optimiser step 8: the {kind}"
    ):
        trainer.train(examples, update, 1.0, seed=1)
    assert trainer.steps == 4
