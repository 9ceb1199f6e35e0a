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
        self._resolve_loss()
        is_summed = at(self, "multi_objective_aggregation") != "normalize_then_sum"
        settle(self, "scale_rewards", "group", is_summed, "multi_objective_aggregation: sum_then_normalize")
        penalised = "truncated_completions: penalise or soft_overlong"
        settle(self, "truncation_penalty", 1.0 if is_soft else 0.5, is_penalised, penalised)
        if is_soft and not ports.names("punishment"):
            raise ValueError(ports.lacking("punishment", "soft_overlong", "update.truncated_completions"))
        return self

    def of_dtype(self, dtype: str) -> Update:
        """The section with the defaults that depend on policy.dtype. ValueError for a field that nothing would read then."""
        update = self.corrected(dtype)
        if update.max_sampler_kl is None and dtype == "float32":
            update = update.model_copy(update={"max_sampler_kl": 1e-3})
        return update

    def corrected(self, dtype: str) -> Update:
        """The same, of what the add-on terms corrects the loss by."""
        return self

    def lagging(self) -> Update:
        """The section for a batch that an older adapter sampled, which the add-on terms corrects."""
        return self

    def sampler_limit(self, layers: int) -> float:
        """The limit of the KL divergence for a model of so many layers, in nats per token."""
        return max(1e-3, 2e-4 * layers) if self.max_sampler_kl is None else self.max_sampler_kl
