"""The loss of an update: TRL's own, and how far the sampler may be from the policy that is trained.

`GRPOTrainer._compute_loss` (variants as TRL documents them) is called with a stand-in that holds the attributes which it
reads, so that a knob TRL adds fails loudly instead of being ignored.

Shapes: B rows of a micro-batch, S sampled tokens of the longest.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.training import packing

if TYPE_CHECKING:
    from steps.core.params import Update


class TrlLoss:
    """The part of a GRPOTrainer that `_compute_loss` reads: one process, no extras.

    A row is its sampled tokens alone: [B, S], the rest of it has been through the model already.
    """

    top_entropy_quantile = 1.0
    off_policy_mask_threshold = None
    aux_loss_enabled = False
    _entropy_bonus_enabled = False

    def __init__(self, update: Update, model: Any, temperature: float, max_completion_length: int) -> None:
        self.model = model
        self.temperature = temperature
        # TRL knows GSPO (Zheng et al. 2025, arXiv:2507.18071) as GRPO with the ratio of whole rows
        self.loss_type = "grpo" if update.loss_type == "gspo" else update.loss_type
        self.importance_sampling_level = "sequence" if update.loss_type == "gspo" else "token"
        self.beta = update.beta
        self.epsilon_low = update.epsilon
        self.epsilon_high = update.epsilon_high
        self.use_vllm = self.vllm_importance_sampling_correction = update.vllm_importance_sampling_correction
        self.max_completion_length = max_completion_length
        self.args = SimpleNamespace(
            delta=None, use_bias_correction_kl=bool(update.use_bias_correction_kl), steps_per_generation=1
        )
        self.current_gradient_accumulation_steps = 1.0
        self.accelerator = SimpleNamespace(
            num_processes=1, gather=lambda value: value, reduce=lambda value, reduction: value, sync_gradients=True
        )
        self._metrics: dict[str, Any] = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.logps: Any = None  # [B, S] of the latest micro-batch, without gradient

    def __call__(self, batch: dict[str, Any]) -> Any:
        from trl import GRPOTrainer

        self._packed = batch["packed"]
        return GRPOTrainer._compute_loss(self, self.model, batch)

    def take_metrics(self) -> dict[str, float]:
        """TRL's metrics of the calls since the last time, averaged over them."""
        taken = {name: sum(values) / len(values) for name, values in self._metrics["train"].items()}
        self._metrics["train"].clear()
        return taken

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> tuple[Any, Any, None]:
        logps, entropies = packing.token_logps(self.model, self._packed, self.temperature)
        self.logps = logps.detach()
        return logps, entropies, None


def sampler_ratio(old: Any, sampling: Any, mask: Any, update: Update) -> Any:
    """Truncated importance sampling between sampler and trainer (Yao et al. 2025), in TRL's four modes: [B, S] or [B, 1].

    `truncate` clamps the ratio to the bounds, `mask` sets what is outside to zero; of tokens, or of a row's product.
    """
    difference = (old - sampling) * mask
    level, _, what = str(update.vllm_importance_sampling_mode).partition("_")
    if level == "sequence":
        difference = difference.sum(-1, keepdim=True)
    low, high = update.vllm_importance_sampling_clip_min, update.vllm_importance_sampling_clip_max
    ratio = difference.exp()
    if what == "truncate":
        return ratio if low is high is None else ratio.clamp(low, high)
    outside = (ratio < (low if low is not None else -1)) | (ratio > (high if high is not None else float("inf")))
    return ratio.masked_fill(outside, 0.0)


class SamplerKl:
    """KL(sampler ‖ trainer) in nats a token, of all rows that are added: the k3 estimate (Schulman 2020)."""

    def __init__(self) -> None:
        self.nats = self.tokens = 0.0

    def add(self, logps: Any, batch: dict[str, Any]) -> None:
        """The trainer's logprobs [B, S] of a micro-batch."""
        mask = batch["completion_mask"]
        self.nats += sampler_kl(logps, batch["sampling_per_token_logps"], mask)
        self.tokens += float(mask.sum())


def sampler_kl(logps: Any, sampling: Any, mask: Any) -> float:
    """Sum over sampled tokens of the k3 estimate of KL(sampler ‖ trainer), in nats."""
    difference = ((logps - sampling) * mask).double()  # in float32, exp(d) - 1 - d is zero below 1e-4
    return float((difference.exp() - 1 - difference).sum())


def check_sampler(kl: float, limit: float) -> float:
    """The trajectories must come from the policy that is trained: UserError where they do not."""
    if not kl <= limit:
        raise UserError(
            f"the trajectories were not sampled by the policy that is being trained: KL(sampler ‖ trainer) is {kl:.2e} nats "
            f"a token, update.max_sampler_kl is {limit:.0e}; a stale adapter, another temperature or a wrong mask does this"
        )
    return kl
