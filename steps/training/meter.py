"""Metrics of an update, as sums that do not depend on how its optimiser steps are split into micro-batches and processes.

What TRL's loss measures of a micro-batch is a sum over tokens, or over trajectories where it is of whole ones, and a count.
An update's metric is the sum over all its optimiser steps, micro-batches and processes, divided by the count:

- over sampled tokens: `entropy` in nats, `entropy_of_bonus` the same of the tokens that the bonus is of, and `kl` in nats
  from update.reference, times the ratio with use_bias_correction_kl;
- over sampled tokens, or trajectories with importance_sampling_level: sequence: `cispo_clip_ratio`, `clip_ratio/low_mean`,
  `high_mean` and `region_mean` (either): how many have a ratio beyond epsilon, on the side where the sign of the advantage
  then leaves no gradient. `low_min` and `high_max` are the extremes of the same share within each trajectory;
- over trajectories: `vespo/phi_seq_mean`, the weight that vespo gives them;
- over optimiser steps: `loss`, `policy_loss` (without the bonus for entropy), `aux_loss` (of the router of a mixture of
  experts), and `grad_norm` before it is clipped. `entropy_coef` is the bonus's weight after the last step.

All trajectories of a step count, as in TRL: those without a signal, too, and where whole trajectories count also those that
are masked. Metrics of the sampler (`sampling/…`) are in steps/training/loss.py.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Sequence

from steps.core.stats import added

Sums = tuple[dict[str, list[float]], dict[str, float], dict[str, float]]


class Meter:
    """Sums of the metrics of an optimiser step, or of all steps of an update, in one process."""

    def __init__(self) -> None:
        self.means: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])  # (sum, count)
        self.by_step: dict[str, float] = defaultdict(float)  # sums whose count is the optimiser steps
        self.extremes: dict[str, float] = {}

    def add(self, name: str, total: float, count: float) -> None:
        self.means[name][0] += total
        self.means[name][1] += count

    def reach(self, name: str, value: float) -> None:
        """Note a value of `…_min` or `…_max`. NaN is TRL's where there is none."""
        if not math.isnan(value):
            self.extremes[name] = _choose(name)(value, self.extremes.get(name, value))

    def take(self, other: Meter) -> None:
        """Add what another meter holds."""
        for name, (total, count) in other.means.items():
            self.add(name, total, count)
        for name, value in other.by_step.items():
            self.by_step[name] += value
        for name, value in other.extremes.items():
            self.reach(name, value)

    @property
    def sums(self) -> Sums:
        """What can be sent to another process."""
        return dict(self.means), dict(self.by_step), self.extremes


def metrics(processes: Sequence[Sums], steps: int) -> dict[str, float]:
    """The metrics of an update of so many optimiser steps, from the sums of each process."""
    measured = {}
    for name in sorted({name for means, _, _ in processes for name in means}):
        total, count = (added(means.get(name, (0.0, 0.0))[part] for means, _, _ in processes) for part in (0, 1))
        if count:
            measured[name] = total / count
    for name in sorted({name for _, by_step, _ in processes for name in by_step}):
        measured[name] = added(by_step.get(name, 0.0) for _, by_step, _ in processes) / steps
    for name in sorted({name for _, _, extremes in processes for name in extremes}):
        measured[name] = _choose(name)(extremes[name] for _, _, extremes in processes if name in extremes)
    return measured


def _choose(name: str) -> Callable[..., float]:
    return min if name.endswith("_min") else max
