"""Entropy in an update's loss: which tokens have a high one, and the weight of the bonus for it.

Both are of a whole optimiser step, of all its processes, so that they do not depend on micro-batches; TRL's tokens of high
entropy are those of a micro-batch. Shapes: B trajectories of a micro-batch, S sampled tokens of the longest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from addons.terms.section import Terms
from steps.core.stats import added
from steps.training.processes import gathered
from steps.training.terms import Seen, Term

if TYPE_CHECKING:
    from steps.core.params import Update
    from steps.training.batches import OptimizerStep
    from steps.training.loss import TrlLoss
    from steps.training.meter import Meter
    from steps.training.trained import Trained

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


class Entropy(Term):
    """The tokens of high entropy, and the bonus, whose weight adapts (He et al. 2025, Skywork-OR1, arXiv:2505.22312) as in
    TRL."""

    def __init__(self, settings: Update) -> None:
        super().__init__(settings)
        self.terms = Terms.of(settings)
        self.adapts = self.terms.use_adaptive_entropy
        self.learns_entropies = self.learns_everywhere = self.terms.entropy_coef != 0 or self.adapts
        self.surveys = self.terms.top_entropy_quantile < 1
        self.tokens = 0.0  # of the optimiser step, that the bonus is of
        self.weight, self.last = self.terms.entropy_coef, math.inf  # and the entropy of the last optimiser step

    def begin(self, trainer: Trained, before: Term | None) -> None:
        if not self.adapts:
            return
        if isinstance(before, Entropy):
            if before.adapts:
                self.weight, self.last = before.weight, before.last
        elif trainer.checkpoint is not None:
            state = json.loads((trainer.checkpoint / "state.json").read_text())
            if "entropy" in state:
                self.weight, last = state["entropy"]
                self.last = math.inf if last is None else last

    def join(self, loss: TrlLoss) -> None:
        loss.top_entropy_quantile = self.terms.top_entropy_quantile
        loss._entropy_bonus_enabled = self.learns_entropies

    def survey(self, loss: TrlLoss, step: OptimizerStep, seen: Sequence[Seen]) -> None:
        if self.surveys:
            mark_high(step.everything, [each.entropies for each in seen], self.terms.top_entropy_quantile)
        if self.learns_entropies:
            self.tokens = added(gathered(added(float(acting(batch).sum()) for batch in step.batches)))

    def weigh(self, loss: TrlLoss, batch: dict[str, Any], share: float) -> None:
        loss.entropy_coef = self.weight_of(batch, share) if self.learns_entropies else 0.0

    def weight_of(self, batch: dict[str, Any], share: float) -> float:
        """The weight with which the mean entropy of a micro-batch, times its share of the loss, adds up to the step's."""
        if self.adapts and self.last > (self.terms.entropy_target or 0.0):
            return 0.0
        tokens = float(acting(batch).sum())
        return self.weight * tokens / self.tokens / share if tokens else 0.0

    def add(self, loss: TrlLoss, batch: dict[str, Any]) -> None:
        if self.learns_entropies:
            mask = acting(batch)
            loss.meter.add("entropy_of_bonus", float((loss.entropies * mask).sum()), float(mask.sum()))

    def end(self, meter: Meter) -> None:
        if not self.learns_entropies:
            return
        nats, tokens = (added(parts) for parts in zip(*gathered(meter.means["entropy_of_bonus"]), strict=True))
        if self.adapts:
            self.last = nats / max(tokens, 1.0)
            is_low = self.last <= (self.terms.entropy_target or 0.0)
            self.weight = min(self.weight + STEP, MOST) if is_low else max(self.weight - STEP, LEAST)

    def metrics(self) -> dict[str, float]:
        return {"entropy_coef": self.weight} if self.learns_entropies else {}

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        if self.adapts:
            state["entropy"] = [self.weight, self.last if math.isfinite(self.last) else None]  # infinite before a step
