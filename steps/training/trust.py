"""A bound on how far one update moves the policy: the KL divergence from the policy that sampled the batch.

Whatever makes an update too large (few trajectories with a signal, a high learning rate, many passes), the policy that it
leaves is within `update.max_kl` nats a token of the one that sampled. Each optimiser step's own forward pass tells how far
the steps before it went, at no cost. Once they exceed the bound, the way that the adapter went is shortened, as TRPO does
along its line (Schulman et al. 2015, arXiv:1502.05477, appendix C), and so are all further steps: each trajectory has its
part in an update, however far the first ones led. After the last step, which may have gone too far, the trajectories of the
first one are measured.

The divergence is KL(sampler ‖ policy), by the k3 estimate (Schulman 2020) over the sampled tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.core.stats import added
from steps.training.loss import sampler_kl
from steps.training.processes import gathered

if TYPE_CHECKING:
    import torch

GROWTH = 4.0  # by how much the divergence may grow with the last optimiser step, which is not measured within that
SHORTER = 0.7  # the most that is kept of a step that is too long, each time
ROUNDS = 12  # 0.7 ** 12 is 1 %, and the divergence falls with the square of that
ROUNDS_BACK = 4  # towards the bound, where a step was shortened too much


class TrustRegion:
    """Where an update began, and how far from there its policy is."""

    def __init__(self, weights: Mapping[str, torch.Tensor], limit: float | None) -> None:
        """`weights` are those that are trained, by name. `limit` in nats a token; None: nothing is bounded."""
        self.weights, self.limit = weights, limit
        self.begun = {name: value.detach().clone() for name, value in weights.items()} if limit else {}
        self.sums = [0.0, 0.0]  # nats, tokens
        self.kept = 1.0  # share of the learning rate, and of the way, that was kept

    def add(self, logps: Any, _: Any, batch: dict[str, Any]) -> None:
        """Add a micro-batch by the policy's present logprobs [B, S]."""
        if self.limit:
            mask = batch["completion_mask"]
            nats = sampler_kl(logps, batch["old_per_token_logps"], mask)
            self.sums = [self.sums[0] + nats, self.sums[1] + float(mask.sum())]

    def take(self) -> float | None:
        """The divergence over what was added since it was last taken, in all processes; None where there was no token."""
        nats, tokens = (added(values) for values in zip(*gathered(self.sums), strict=True))
        self.sums = [0.0, 0.0]
        return nats / tokens if tokens else None

    def hold(self, measured: float | None, measure: Callable[[], None], share: float = 1.0) -> float | None:
        """Shorten the way so far until its divergence is within the limit; returns the divergence.

        `measured` is that of the way so far, `share` the part of the update that it is. `measure` adds trajectories, by
        their logprobs at the present weights. UserError where no part of the way is within the limit, such as where its
        weights are no numbers; within an update that is left to the check of the gradient, which names the optimiser step.
        """
        if self.limit is None or measured is None or measured <= self.limit:
            return measured
        if share < 1.0 and not math.isfinite(measured):
            return measured
        ended = {name: value.detach().clone() for name, value in self.weights.items()}

        def at(part: float) -> float | None:
            self._go(ended, part)
            measure()
            return self.take()

        kept, beyond = 1.0, 1.0  # the share of the way that is tried, and the least that is too long
        for _ in range(ROUNDS):
            ratio = math.sqrt(self.limit * share / measured) if math.isfinite(measured) else 0.0
            kept, beyond = kept * min(SHORTER, max(ratio, 0.1)), kept
            measured = at(kept)
            if measured is None or measured <= self.limit:
                break
        else:
            raise UserError(
                f"the optimiser steps cannot be shortened to update.max_kl ({self.limit:g} nats a token; it is at "
                f"{measured}): nothing of this update is kept. Lower update.learning_rate or set policy.dtype: float32, "
                "then run the same command again"
            )
        # A divergence that grows faster than the square of the way was cut too far: back, between the two.
        for _ in range(ROUNDS_BACK):
            if measured is None or measured * GROWTH >= self.limit * share or kept >= SHORTER * beyond:
                break
            longer = math.sqrt(kept * beyond)
            nats = at(longer)
            if nats is not None and nats > self.limit * share:
                beyond, measured = longer, at(kept)
            else:
                kept, measured = longer, nats
        self.kept *= kept
        return measured

    def finish(self, measured: float | None, measure: Callable[[], None]) -> float | None:
        """As `hold` after the last step; `measured` is the divergence before it, or None."""
        if self.limit is None or (measured is not None and measured * GROWTH <= self.limit):
            return measured
        measure()
        return self.hold(self.take(), measure)

    def _go(self, ended: Mapping[str, torch.Tensor], kept: float) -> None:
        """Set the weights to where this part of the way leads."""
        import torch

        with torch.no_grad():
            for name, value in self.weights.items():
                value.copy_(torch.lerp(self.begun[name], ended[name], kept))
