"""Entropy in an update's loss: which tokens have a high one, and the weight of the bonus for it.

Both are of a whole optimiser step, of all its processes, so that they do not depend on micro-batches; TRL's tokens of high
entropy are those of a micro-batch. Shapes: B trajectories of a micro-batch, S sampled tokens of the longest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from steps.core.stats import added
from steps.training.processes import gathered

if TYPE_CHECKING:
    from steps.core.params import Update

LEAST, MOST, STEP = 0.0, 1.0, 0.005  # of a weight that adapts, and its change after an optimiser step: TRL's defaults


def mark_high(batches: Sequence[dict[str, Any]], entropies: Sequence[Any], share: float) -> None:
    """Give each of this process's micro-batches `high_entropy` [B, S]: of the sampled tokens of an optimiser step, in all
    processes, the `share` with the highest entropy (Wang et al. 2025, arXiv:2506.01939). `entropies`: [B, S] of each."""
    import torch

    masks = [batch["completion_mask"].bool() for batch in batches]
    own = [values[mask].float() for values, mask in zip(entropies, masks, strict=True)]
    everywhere = torch.cat([part.cpu() for parts in gathered(own) for part in [*parts, torch.zeros(0)]])
    least = torch.quantile(everywhere, 1 - share).item() if len(everywhere) else math.inf
    for batch, values, mask in zip(batches, entropies, masks, strict=True):
        batch["high_entropy"] = (values >= least) & mask


def acting(batch: dict[str, Any]) -> Any:
    """Which tokens [B, S] the bonus is of: sampled ones, of high entropy where that is asked for."""
    mask = batch["completion_mask"]
    return mask * batch["high_entropy"] if "high_entropy" in batch else mask


class EntropyBonus:
    """The weight of the bonus for entropy, and how it adapts (He et al. 2025, Skywork-OR1, arXiv:2505.22312), as in TRL."""

    def __init__(self, settings: Update, state: tuple[float, float] | None) -> None:
        """`state`: (weight, entropy of the last optimiser step) of the update before this one, where it adapted, too."""
        self.settings = settings
        self.tokens = 0.0  # of the optimiser step, that the bonus is of
        self.weight, self.last = (settings.entropy_coef, math.inf)
        if settings.use_adaptive_entropy and state is not None:
            self.weight, self.last = state

    @property
    def state(self) -> tuple[float, float] | None:
        """What the next update goes on from; None where the weight does not adapt."""
        return (self.weight, self.last) if self.settings.use_adaptive_entropy else None

    def begin(self, batches: Sequence[dict[str, Any]]) -> None:
        """Count the tokens of an optimiser step, of which these are this process's micro-batches."""
        self.tokens = added(gathered(added(float(acting(batch).sum()) for batch in batches)))

    def weight_of(self, batch: dict[str, Any], share: float) -> float:
        """The weight with which the mean entropy of a micro-batch, times its share of the loss, adds up to the step's."""
        if self.settings.use_adaptive_entropy and self.last > (self.settings.entropy_target or 0.0):
            return 0.0
        tokens = float(acting(batch).sum())
        return self.weight * tokens / self.tokens / share if tokens else 0.0

    def end(self, nats: float, tokens: float) -> None:
        """Adapt to the entropy of this process's part of an optimiser step: nats of so many tokens."""
        nats, tokens = (added(parts) for parts in zip(*gathered((nats, tokens)), strict=True))
        settings = self.settings
        if not settings.use_adaptive_entropy:
            return
        self.last = nats / max(tokens, 1.0)
        is_low = self.last <= (settings.entropy_target or 0.0)
        self.weight = min(self.weight + STEP, MOST) if is_low else max(self.weight - STEP, LEAST)
