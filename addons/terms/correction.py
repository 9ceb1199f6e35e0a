"""Importance sampling between the policy that sampled a batch and the trainer's, which round differently, or are some
iterations apart (truncated: Yao et al. 2025), in TRL's four modes.

Shapes: B trajectories of a micro-batch, S sampled tokens of the longest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from addons.terms.section import Correction as Settings
from steps.core.stats import added
from steps.training.processes import gathered
from steps.training.terms import Term

if TYPE_CHECKING:
    from steps.core.params import Update
    from steps.training.loss import TrlLoss


def sampler_ratio(old: Any, sampling: Any, mask: Any, settings: Settings) -> Any:
    """The weight of each token [B, S], or of each trajectory [B, 1].

    `truncate` clamps the ratio to the bounds, `mask` sets a ratio outside them to zero; both for single tokens, or for the
    product over a trajectory.
    """
    ratio = unbounded_ratio(old, sampling, mask, settings)  # 1 where padded
    low, high = settings.vllm_importance_sampling_clip_min, settings.vllm_importance_sampling_clip_max
    outside = (ratio < (low if low is not None else -1)) | (ratio > (high if high is not None else float("inf")))
    bounded = ratio.masked_fill(outside, 0.0)
    if str(settings.vllm_importance_sampling_mode).endswith("truncate"):
        bounded = ratio if low is high is None else ratio.clamp(low, high)
    # padding is no token, or vespo's product would have more of it in a micro-batch with a longer trajectory
    return bounded if ratio.shape != mask.shape else bounded.masked_fill(mask == 0, 1.0)


def unbounded_ratio(old: Any, sampling: Any, mask: Any, settings: Settings) -> Any:
    """Trainer / sampler of each token [B, S], or of each trajectory [B, 1], by the mode."""
    difference = (old - sampling) * mask
    if str(settings.vllm_importance_sampling_mode).startswith("sequence"):
        difference = difference.sum(-1, keepdim=True)
    return difference.exp()


class Correction(Term):
    """The weights, micro-batch by micro-batch, and TRL's metrics of them: over sampled tokens, or over trajectories where
    each has one ratio (those that are masked have 1)."""

    looks_ahead = True

    def __init__(self, settings: Update) -> None:
        super().__init__(settings)
        self.bounds = Settings.of(settings)
        # Tokens, nats between trainer and sampler, ratios, sum of those, how many left the bounds.
        self.sums = [0.0] * 5
        self.extremes = [math.inf, 0.0, 0.0]  # smallest ratio, largest ratio, most nats

    def join(self, loss: TrlLoss) -> None:
        loss.use_vllm = loss.vllm_importance_sampling_correction = True

    def forward(self, batch: dict[str, Any], logps: Any) -> None:
        """Give a micro-batch that has none yet the old policy's logprobs [B, S], which are the trainer's before the update,
        and the ratio."""
        if "importance_sampling_ratio" in batch:
            return
        sampling, mask = batch["sampling_per_token_logps"], batch["completion_mask"]
        ratio = sampler_ratio(logps, sampling, mask, self.bounds)
        batch |= {"old_per_token_logps": logps, "importance_sampling_ratio": ratio}
        if batch.get("is_idle"):
            return
        counted = mask if ratio.shape == mask.shape else mask.new_ones(ratio.shape)
        outside = ratio != unbounded_ratio(logps, sampling, mask, self.bounds)
        nats = ((logps - sampling) * mask).abs()
        sums = (mask, nats, counted, ratio * counted, outside * counted)
        self.sums = [total + float(new.double().sum()) for total, new in zip(self.sums, sums, strict=True)]
        used = ratio[counted.bool()]
        if used.numel():
            low, high, most = self.extremes
            self.extremes = [min(low, float(used.min())), max(high, float(used.max())), max(most, float(nats.max()))]

    def metrics(self) -> dict[str, float]:
        return metrics(gathered((self.sums, self.extremes)))


def metrics(corrections: Sequence[tuple[list[float], list[float]]]) -> dict[str, float]:
    """TRL's metrics, and the share of ratios that left the bounds, from the (sums, extremes) of all processes; none
    without tokens."""
    tokens, nats, ratios, ratio, outside = (
        added(values) for values in zip(*(sums for sums, _ in corrections), strict=True)
    )
    lows, highs, mosts = zip(*(extremes for _, extremes in corrections), strict=True)
    if not tokens:
        return {}
    return {
        "sampling/sampling_logp_difference/mean": nats / tokens,
        "sampling/sampling_logp_difference/max": max(mosts),
        "sampling/importance_sampling_ratio/min": min(lows),
        "sampling/importance_sampling_ratio/mean": ratio / ratios,
        "sampling/importance_sampling_ratio/max": max(highs),
        "sampling/importance_sampling_ratio/out_of_bounds": outside / ratios,
    }
