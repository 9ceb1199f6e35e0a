"""What the section `update` of params.yaml holds for terms of the loss beside GRPO's own, for what some losses read alone,
and for schedules of the learning rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, cast

from pydantic import Field, model_validator

from steps.core.params_loss import CLIPPED, SAPO, VESPO, settle
from steps.core.section import MoreFields, Section

if TYPE_CHECKING:
    from steps.core.params import Params, Update

ADAPTIVE = {"entropy_target": 0.2}  # defaults of TRL, as those below
SYNCED = {"ref_model_mixup_alpha": 0.6, "ref_model_sync_steps": 512}


class Minimum(Section):
    """What transformers' schedule cosine_with_min_lr falls to."""

    min_lr: float = Field(ge=0)
    """The least learning rate."""


class Correction(MoreFields):
    """Importance sampling between the policy that sampled a batch and the trainer's (addons/terms/correction.py)."""

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

    @model_validator(mode="after")
    def resolve_correction(self) -> Correction:
        """Put in the defaults that depend on other fields. ValueError for a field that nothing would read."""
        is_corrected, name = self.vllm_importance_sampling_correction, "vllm_importance_sampling_correction: true"
        unbounded = "vllm_importance_sampling_clip_max" in self.model_fields_set  # written as null
        if is_corrected is None:  # what is trained decides: `corrected`
            return self
        is_vespo = cast("Update", self).loss_type == "vespo"
        mode = "token_truncate" if is_vespo else "sequence_mask"
        settle(self, "vllm_importance_sampling_mode", mode, is_corrected, name)
        settle(self, "vllm_importance_sampling_clip_max", None if unbounded else 3.0, is_corrected, name)
        settle(self, "vllm_importance_sampling_clip_min", None, is_corrected, name)
        if is_vespo and str(self.vllm_importance_sampling_mode).startswith("sequence"):
            raise ValueError(
                f"update.vllm_importance_sampling_mode: {self.vllm_importance_sampling_mode} does not go with "
                "update.loss_type: vespo, which multiplies the tokens' weights itself: set token_truncate or token_mask"
            )
        return self

    def corrected(self, dtype: str) -> Update:
        """The section for a model of this dtype: with the correction in bfloat16, where it is on by default."""
        update = cast("Update", self)
        if self.vllm_importance_sampling_correction is not None:
            return update
        settled = self._by_default(dtype == "bfloat16")  # which checks what depends on it, too
        return update if dtype == "float32" else settled  # still open: `lagging` decides for each batch

    def lagging(self) -> Update:
        """The section for a batch that an older adapter sampled: with the correction, which is on by default then."""
        return cast("Update", self) if self.vllm_importance_sampling_correction else self._by_default(True)

    def _by_default(self, is_corrected: bool) -> Update:
        fields = {name: getattr(self, name) for name in self.model_fields_set}
        fields["vllm_importance_sampling_correction"] = is_corrected
        if is_corrected and self.vllm_importance_sampling_mode is None:
            fields["vllm_importance_sampling_mode"] = "token_truncate"
        return cast("Update", type(self)(**fields))


class Terms(Correction):
    """Of the section `update`."""

    sapo_temperature_pos: float | None = Field(None, gt=0)
    """How steeply sapo's gate closes away from a ratio of 1 where the advantage is positive. Default: 1."""
    sapo_temperature_neg: float | None = Field(None, gt=0)
    """The same where it is not. Default: 1.05."""
    vespo_k_pos: float | None = Field(None, ge=0)
    """vespo weights a trajectory by w^k · e^(λ(1 - w)) of the product w of its tokens' ratios: k where the advantage is not
    negative. Default: 2."""
    vespo_lambda_pos: float | None = Field(None, ge=0)
    """λ there. Default: 3."""
    vespo_k_neg: float | None = Field(None, ge=0)
    """k where the advantage is negative. Default: 3."""
    vespo_lambda_neg: float | None = Field(None, ge=0)
    """λ there. Default: 2."""
    delta: float | None = Field(None, gt=1)
    """The largest ratio where the advantage is negative, too (two-sided clipping, INTELLECT-2, arXiv:2505.07291); above
    1 + epsilon_high. Default: none. Read by the losses that read epsilon."""
    off_policy_mask_threshold: float | None = Field(None, gt=0)
    """A trajectory with a negative advantage is left out of the policy's loss, and stays in its averages, where its tokens'
    mean logprob has fallen by more nats than this since it was sampled (DeepSeek-V3.2, arXiv:2512.02556, which has 0.5 as
    an example in TRL). Default: none is left out."""
    sync_ref_model: bool = False
    """Whether the reference follows the policy (TR-DPO, arXiv:2404.09656): every ref_model_sync_steps optimiser steps it
    becomes ref_model_mixup_alpha · policy + (1 - ref_model_mixup_alpha) · reference, for the batches after that. Read with
    beta above 0."""
    ref_model_mixup_alpha: float | None = Field(None, gt=0, le=1)
    """The policy's share in it. Default: 0.6; read with sync_ref_model, as is the one below."""
    ref_model_sync_steps: int | None = Field(None, ge=1)
    """Optimiser steps of the whole run between two. Default: 512, which is more than a short run makes."""
    top_entropy_quantile: float = Field(1.0, ge=0, le=1)
    """Of the tokens of an optimiser step, the share with the highest entropy that the policy's loss learns from
    (arXiv:2506.01939, which recommends 0.2); the KL term is of all. Below 1 it costs another forward pass."""
    entropy_coef: float = 0.0
    """Weight of a bonus for the mean entropy of an optimiser step's tokens, in nats a token: of those of
    top_entropy_quantile. With use_adaptive_entropy the weight to begin with."""
    use_adaptive_entropy: bool = False
    """After each optimiser step the weight rises by 0.005, up to 1, where that entropy was at most entropy_target, and
    else falls, down to 0 (TRL's defaults); it counts only where the entropy of the step before was at most that
    (Skywork-OR1, arXiv:2505.22312)."""
    entropy_target: float | None = Field(None, ge=0)
    """Nats a token. Default: 0.2; take it from `entropy` of the first iterations. Read with use_adaptive_entropy."""
    router_aux_loss_coef: float = Field(0.0, ge=0)
    """Weight of the load balance of a mixture of experts; refused for other models. TRL's default is the model's own."""
    cast_lm_head_to_fp32: bool = False
    """Compute logits in float32 (ScaleRL, arXiv:2510.13786). Read with policy.dtype bfloat16; the engine goes on sampling
    with its own."""

    weight_decay: float = Field(0.0, ge=0)
    """AdamW's weight decay."""
    lr_scheduler_type: Literal["constant", "linear", "cosine", "cosine_with_min_lr"] = "constant"
    """How the learning rate falls until `max_steps`: to 0, or to the least one of lr_scheduler_kwargs."""
    lr_scheduler_kwargs: Minimum | None = None
    """min_lr. Needed, and read, with cosine_with_min_lr."""
    warmup_steps: int = Field(0, ge=0)
    """Optimiser steps over which the learning rate rises from 0."""
    max_steps: int | None = Field(None, ge=1)
    """Optimiser steps of all iterations together. Needed, and read, with all schedules but constant."""

    @model_validator(mode="after")
    def resolve_terms(self) -> Terms:
        """Put in the defaults that depend on other fields. ValueError for a field that nothing would read."""
        update = cast("Update", self)
        if self.sync_ref_model and not update.beta:
            raise ValueError(
                "update.sync_ref_model would have no effect: it is read with a beta above 0 alone; take it out"
            )
        settle(
            self, "delta", None, update.loss_type in CLIPPED, f"loss_type: {', '.join(CLIPPED[:-1])} or {CLIPPED[-1]}"
        )
        if self.delta is not None and self.delta <= 1 + (update.epsilon_high or 0.0):
            raise ValueError(
                f"update.delta ({self.delta:g}) must be above 1 + update.epsilon_high "
                f"({1 + (update.epsilon_high or 0.0):g}), or it would cut what epsilon_high lets pass"
            )
        for fields, is_read, reader in (
            (SAPO, update.loss_type == "sapo", "loss_type: sapo"),
            (VESPO, update.loss_type == "vespo", "loss_type: vespo"),
            (ADAPTIVE, self.use_adaptive_entropy, "use_adaptive_entropy: true"),
            (SYNCED, self.sync_ref_model, "sync_ref_model: true"),
        ):
            for name, default in fields.items():
                settle(self, name, default, is_read, reader)
        is_scheduled, kind = self.lr_scheduler_type != "constant", self.lr_scheduler_type
        settle(self, "max_steps", None, is_scheduled, "lr_scheduler_type: linear or cosine")
        has_least = kind == "cosine_with_min_lr"
        settle(self, "lr_scheduler_kwargs", None, has_least, "lr_scheduler_type: cosine_with_min_lr")
        self._check_schedule(update.learning_rate)
        return self

    def check_with(self, params: Params) -> None:
        if self.cast_lm_head_to_fp32 and params.policy.dtype == "float32":
            raise ValueError(
                "update.cast_lm_head_to_fp32 would have no effect: it is read with policy.dtype: bfloat16 alone; take it out"
            )
        update = params.update
        steps = params.train.iterations * update.steps_per_generation * update.num_iterations
        if self.warmup_steps and self.warmup_steps >= steps:
            raise ValueError(
                f"update.warmup_steps ({self.warmup_steps}) must be below the run's {steps} optimiser steps "
                "(train.iterations × update.steps_per_generation × update.num_iterations): update.learning_rate would never "
                "be reached; lower it, or train longer"
            )

    def _check_schedule(self, rate: float) -> None:
        if self.lr_scheduler_type != "constant" and self.max_steps is None:
            raise ValueError(
                f"update.max_steps is needed with lr_scheduler_type: {self.lr_scheduler_type} "
                "(iterations × steps_per_generation × num_iterations)"
            )
        if self.lr_scheduler_type == "cosine_with_min_lr" and self.lr_scheduler_kwargs is None:
            raise ValueError("update.lr_scheduler_kwargs is needed with lr_scheduler_type: cosine_with_min_lr (min_lr)")
        if self.lr_scheduler_kwargs is not None and self.lr_scheduler_kwargs.min_lr >= rate:
            raise ValueError(
                f"update.lr_scheduler_kwargs.min_lr ({self.lr_scheduler_kwargs.min_lr:g}) must be below "
                f"update.learning_rate ({rate:g}), from which it falls"
            )
        if self.max_steps is not None and self.warmup_steps >= self.max_steps:
            raise ValueError(
                f"update.warmup_steps ({self.warmup_steps}) must be below update.max_steps ({self.max_steps}): the learning "
                "rate would never be reached"
            )
