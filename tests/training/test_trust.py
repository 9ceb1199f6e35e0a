"""The bound on an update's KL: what it leaves within the bound, what it costs nothing to leave alone, and optimiser steps
that follow the groups with a signal."""

from __future__ import annotations

from pathlib import Path

import pytest

from steps.core.errors import UserError
from steps.core.params import Policy, Update
from steps.core.records import Row
from steps.training.batches import steps_of
from steps.training.grpo import Trainer
from steps.training.loss import sampler_kl
from steps.training.trust import TrustRegion
from tests.support.tiny import files, moved, plain_logps, random_rows, sampled_by, stock, with_advantages

pytestmark = pytest.mark.usefixtures("one_thread")


def divergence(policy: Policy, folder: Path, rows: list[Row]) -> float:
    """KL(sampler ‖ policy) of a saved adapter over the sampled tokens, by stock PEFT, in nats a token."""
    import torch

    model = stock(policy, folder)
    nats, tokens = 0.0, 0
    with torch.no_grad():
        for row in rows:
            mask = torch.tensor(row.mask[1:], dtype=torch.float64)
            nats += sampler_kl(plain_logps(model, row, 1.0), torch.tensor(row.logprobs[1:]), mask)
            tokens += sum(row.mask)
    return nats / tokens


@pytest.mark.parametrize("beta", [0.0, 0.05])
@pytest.mark.parametrize("steps", [1, 6])
def test_no_update_leaves_its_bound_however_large_its_steps_are(
    policy: Policy, tmp_path: Path, steps: int, beta: float
) -> None:
    trainer = moved(Trainer(policy, seed=1))
    trainer.save_adapter(tmp_path / "before")
    rows = sampled_by(stock(policy, tmp_path / "before"), random_rows(24, 2), 1.0)
    trainer.save_checkpoint(tmp_path / "checkpoint", "a")
    reached = {}
    for limit in (None, 0.01):
        update = Update(steps_per_generation=steps, learning_rate=0.3, beta=beta, max_kl=limit)
        again = Trainer(policy, checkpoint=tmp_path / "checkpoint")
        measured = again.train(with_advantages(rows), update, 1.0, seed=3)
        folder = tmp_path / f"{limit} {steps} {beta}"
        again.save_adapter(folder)
        reached[limit] = divergence(policy, folder, rows)
        assert again.steps == steps, "the steps are shortened, and none is left out"
        assert ("update/kl" in measured) == (limit is not None)
    assert reached[None] > 0.1
    assert 0 < reached[0.01] < 0.03  # measured on a part of the rows
    assert measured["update/kl"] <= 0.01
    assert 0 < measured["update/kept"] < 1
    if steps == 1:  # later steps may lead back
        assert measured["update/kl"] > 0.0005, "what is kept is as much as the bound allows, not nearly nothing"


def test_an_update_within_its_bound_is_the_same_without_it(policy: Policy, tmp_path: Path) -> None:
    trainer = moved(Trainer(policy, seed=1))
    trainer.save_adapter(tmp_path / "before")
    rows = sampled_by(stock(policy, tmp_path / "before"), random_rows(24, 2), 1.0)
    trainer.save_checkpoint(tmp_path / "checkpoint", "a")
    for limit in (None, 10.0):
        again = Trainer(policy, checkpoint=tmp_path / "checkpoint")
        again.train(with_advantages(rows), Update(steps_per_generation=3, max_kl=limit), 1.0, seed=3)
        again.save_adapter(tmp_path / str(limit))
    assert files(tmp_path / "None") == files(tmp_path / "10.0")


@pytest.mark.parametrize("power", [1, 2, 8, 40])
@pytest.mark.parametrize("far", [1.1, 30.0])
def test_a_step_is_shortened_to_the_bound_however_its_divergence_grows(power: int, far: float) -> None:
    """With the square of the way, as of small steps, or far faster, as of large ones."""
    import torch

    weights = {"a": torch.zeros(1, dtype=torch.float64)}
    trust = TrustRegion(weights, 0.01)
    weights["a"].fill_(far)

    def nats() -> float:
        return float(0.01 * weights["a"].abs() ** power)

    def measure() -> None:
        trust.sums = [nats(), 1.0]

    reached = trust.hold(nats(), measure)
    assert reached == nats() <= 0.01
    assert weights["a"] > 0.49, "half of what the bound allows, at least"
    assert float(weights["a"]) == pytest.approx(far * trust.kept)


def test_a_step_that_cannot_be_shortened_enough_is_refused() -> None:
    import torch

    weights = {"a": torch.zeros(3)}
    trust = TrustRegion(weights, 0.01)
    weights["a"].add_(float("nan"))

    def measure() -> None:
        trust.sums = [float(weights["a"].sum()), 1.0]

    with pytest.raises(
        UserError, match=r"cannot be shortened to update\.max_kl \(0\.01.*nothing of this update is kept"
    ):
        trust.finish(None, measure)


@pytest.mark.parametrize(
    ("with_signal", "groups", "steps"),
    [(16, 16, 8), (15, 16, 8), (8, 16, 6), (4, 16, 4), (1, 16, 2), (1, 64, 1), (1, 999, 1), (0, 16, 0), (3, 3, 8)],
)
def test_optimiser_steps_follow_the_groups_with_a_signal(with_signal: int, groups: int, steps: int) -> None:
    assert steps_of(with_signal, groups, Update(steps_per_generation=8)) == steps
    fixed = Update(steps_per_generation=8, optimizer_steps="fixed")
    assert steps_of(with_signal, groups, fixed) == 8
