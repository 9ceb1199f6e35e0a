"""The section `update` of params.yaml. See steps/core/params_sections.py."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from steps.core import ports
from steps.core.params_loss import Loss, settle
from steps.core.section import at, opened


@opened("update")
class Update(Loss):
    """The GRPO update, with the names and meanings of TRL's GRPOConfig.

    Some fields are read only with certain values of others, and their defaults depend on those. They are None until all
    fields are checked; then `resolve` puts in the default, and refuses what would have no effect.
    """

    scale_rewards: Literal["group", "batch", "none"] | None = None
    """The rewards whose standard deviation the advantages are divided by. Default: group; read with sum_then_normalize."""
    num_iterations: int = Field(1, ge=1)
    """Passes over the batch."""
    steps_per_generation: int = Field(8, ge=1)
    """Optimiser steps of each pass; at most, with optimizer_steps: by_signal."""
    optimizer_steps: Literal["by_signal", "fixed"] = "by_signal"
    """by_signal: of these steps the root of the share of groups that have a signal, rounded, and at least one where any has:
    Adam makes a full step of each, however little it is learnt from. fixed: always all, as in TRL."""
    max_kl: float | None = Field(0.05, gt=0)
    """KL divergence between the policy that sampled the batch and the updated one, in nats per token, which no update
    exceeds: where the steps so far do, they are shortened, and so are the further ones (steps/training/trust.py). null: no
    bound, as in TRL."""
    learning_rate: float = Field(3e-4, gt=0)
    """Step size of AdamW."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's weight decay."""
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    """How much AdamW keeps of the mean gradient at each optimiser step."""
    adam_beta2: float = Field(0.95, ge=0, lt=1)
    """How much it keeps of the mean squared gradient. TRL's default is 0.999, whose memory is longer than most runs here."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Norm to which larger gradients are scaled down."""
    truncated_completions: Literal["keep", "mask", "penalise", "soft_overlong"] = "keep"
    """What becomes of episodes that max_tokens or the context cut off: learnt from, left out, or given a lower reward.
    soft_overlong: the longer ones, cut off or not, have a lower reward (DAPO, arXiv:2503.14476, equation 13; TRL's
    get_soft_overlong_punishment), by the tokens that the policy wrote in the whole episode."""
    truncation_penalty: float | None = Field(None, gt=0)
    """Taken from the reward of such an episode. Default: 0.5, with soft_overlong 1, which is the most that it takes. Read
    with truncated_completions: penalise or soft_overlong."""
    without_signal: Literal["count", "drop"] = "count"
    """What becomes of trajectories that are unscored, masked, or of a group whose scores are all equal. count: they are in
    the loss's averages and, unless masked, in its KL term, as in TRL. drop: in neither, so that the others weigh more."""
    vllm_importance_sampling_correction: bool | None = None
    """Take ratios to the trainer's own logprobs, and weight the loss by trainer / sampler. Default: true with policy.dtype
    bfloat16, in which the two round differently, and for batches that an older adapter sampled (train.overlap); else false.
    """
    vllm_importance_sampling_mode: (
        Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] | None
    ) = None
    """Whether those weights are of tokens or of whole sequences, and whether too large ones are cut or left out.
    Default: sequence_mask, and token_truncate where the correction is on by default: over a long sequence rounding alone, or
    a small step of the policy, would leave the bounds. Read with the correction, as are the two below."""
    vllm_importance_sampling_clip_max: float | None = Field(None, gt=0)
    """The largest weight. Default: 3. null: no upper bound."""
    vllm_importance_sampling_clip_min: float | None = Field(None, gt=0)
    """The smallest weight. Default: no lower bound."""
    max_sampler_kl: float | None = Field(None, gt=0)
    """KL divergence between sampler and trainer, in nats per token before the update, above which the stage fails.
    Default: 1e-3; with policy.dtype bfloat16 2e-4 for each layer of the model, and 1e-3 at least (docs/update.md)."""
    tokens_per_micro_batch: int | None = Field(None, ge=64)
    """Tokens in one forward pass; a prefix that rows share counts once, and a trajectory is never divided. null: 4096 on a
    CPU and with policy.deterministic; on a GPU as many as its free memory holds."""
    gradient_checkpointing: bool | None = None
    """Keep each layer's input alone, and compute the layer again for its gradient: less memory, more time. null: not on a
    CPU; on a GPU where 4096 tokens, or the longest trajectory, would not fit otherwise; with policy.deterministic always."""

    @model_validator(mode="after")
    def resolve(self) -> Update:
        """Put in the defaults that depend on other fields. ValueError for a field that nothing would read."""
        is_soft = self.truncated_completions == "soft_overlong"
        is_penalised = is_soft or self.truncated_completions == "penalise"
        is_corrected, correction = self.vllm_importance_sampling_correction, "vllm_importance_sampling_correction: true"
        unbounded = "vllm_importance_sampling_clip_max" in self.model_fields_set  # written as null
        self._resolve_loss()
        is_summed = at(self, "multi_objective_aggregation") != "normalize_then_sum"
        settle(self, "scale_rewards", "group", is_summed, "multi_objective_aggregation: sum_then_normalize")
        penalised = "truncated_completions: penalise or soft_overlong"
        settle(self, "truncation_penalty", 1.0 if is_soft else 0.5, is_penalised, penalised)
        if is_soft and not ports.names("punishment"):
            raise ValueError(ports.lacking("punishment", "soft_overlong", "update.truncated_completions"))
        if is_corrected is None:  # the dtype decides: `of_dtype`
            return self
        mode = "token_truncate" if self.loss_type == "vespo" else "sequence_mask"
        settle(self, "vllm_importance_sampling_mode", mode, is_corrected, correction)
        settle(self, "vllm_importance_sampling_clip_max", None if unbounded else 3.0, is_corrected, correction)
        settle(self, "vllm_importance_sampling_clip_min", None, is_corrected, correction)
        if self.loss_type == "vespo" and str(self.vllm_importance_sampling_mode).startswith("sequence"):
            raise ValueError(
                f"update.vllm_importance_sampling_mode: {self.vllm_importance_sampling_mode} does not go with "
                "update.loss_type: vespo, which multiplies the tokens' weights itself: set token_truncate or token_mask"
            )
        return self

    def of_dtype(self, dtype: str) -> Update:
        """The section with the defaults that depend on policy.dtype. ValueError for a field that nothing would read then."""
        update = self
        if update.vllm_importance_sampling_correction is None:
            update = self._corrected_by_default(dtype == "bfloat16")  # which checks what depends on it, too
            if dtype == "float32":
                update = self  # still open: `lagging` decides for each batch
        if update.max_sampler_kl is None and dtype == "float32":
            update = update.model_copy(update={"max_sampler_kl": 1e-3})
        return update

    def lagging(self) -> Update:
        """The section for a batch that an older adapter sampled: with the correction, which is on by default then."""
        return self if self.vllm_importance_sampling_correction else self._corrected_by_default(True)

    def _corrected_by_default(self, is_corrected: bool) -> Update:
        fields = {name: getattr(self, name) for name in self.model_fields_set}
        fields["vllm_importance_sampling_correction"] = is_corrected
        if is_corrected and self.vllm_importance_sampling_mode is None:
            fields["vllm_importance_sampling_mode"] = "token_truncate"
        return Update(**fields)

    def sampler_limit(self, layers: int) -> float:
        """The limit of the KL divergence for a model of so many layers, in nats per token."""
        return max(1e-3, 2e-4 * layers) if self.max_sampler_kl is None else self.max_sampler_kl
