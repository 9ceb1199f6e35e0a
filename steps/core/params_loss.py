"""The part of the section `update` that is the loss: fields of TRL's GRPOConfig that `GRPOTrainer._compute_loss` reads."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from steps.core.section import Section

CLIPPED = ("grpo", "dr_grpo", "dapo", "bnpo", "gspo", "luspo")  # losses whose ratio is clipped on both sides
# epsilon and epsilon_high: of single tokens, of whole trajectories (as GSPO's paper), and of losses that have their own
CLIPPING_TOKENS, CLIPPING_SEQUENCES = (0.2, 0.28), (3e-4, 4e-4)
CLIPPING: dict[str, tuple[float | None, float | None]] = {
    "cispo": (None, 5.0),
    "luspo": (2e-3, 2.5e-3),  # section 5.1 of the paper, as TRL's documentation has it
    "sapo": (None, None),
    "vespo": (None, None),
}
SAPO = {"sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.05}  # defaults of TRL, as those below
VESPO = {"vespo_k_pos": 2.0, "vespo_lambda_pos": 3.0, "vespo_k_neg": 3.0, "vespo_lambda_neg": 2.0}
ADAPTIVE = {"entropy_target": 0.2}
SYNCED = {"ref_model_mixup_alpha": 0.6, "ref_model_sync_steps": 512}


class Loss(Section):
    """The loss of a GRPO update, with the names and meanings of TRL's GRPOConfig."""

    loss_type: Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "gspo", "sapo", "luspo", "vespo"] = "dapo"
    """How token losses are clipped and averaged. gspo is grpo with importance_sampling_level: sequence."""
    importance_sampling_level: Literal["token", "sequence"] | None = None
    """Whether each token has a ratio of its own, or all of a trajectory their geometric mean. Default: token, with gspo and
    luspo sequence. vespo reads it in the KL term alone."""
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
    beta: float = Field(0.01, ge=0)
    """Weight of the KL divergence from `reference`."""
    reference: Literal["base", "start"] | None = None
    """The policy that this divergence is from. base: the base model without an adapter. start: what iteration 001 continues,
    by policy.start_from or the stage sft. Default: start where there is one, else base. Read with beta above 0."""
    sync_ref_model: bool = False
    """Whether this reference follows the policy (TR-DPO, arXiv:2404.09656): every ref_model_sync_steps optimiser steps it
    becomes ref_model_mixup_alpha · policy + (1 - ref_model_mixup_alpha) · reference, for the batches after that. Read with
    beta above 0."""
    ref_model_mixup_alpha: float | None = Field(None, gt=0, le=1)
    """The policy's share in it. Default: 0.6; read with sync_ref_model, as is the one below."""
    ref_model_sync_steps: int | None = Field(None, ge=1)
    """Optimiser steps of the whole run between two. Default: 512, which is more than a short run makes."""
    use_bias_correction_kl: bool | None = None
    """Weight the KL's gradient by the policies' ratio, which removes its bias. Default: true; read with beta above 0."""
    epsilon: float | None = Field(None, gt=0, lt=1)
    """How far below 1 the ratio counts. Default: 0.2, of whole trajectories 3e-4, with luspo 2e-3; cispo, sapo and vespo do
    not read it."""
    epsilon_high: float | None = Field(None, gt=0)
    """How far above 1 the ratio counts; with cispo, the largest weight. Default: 0.28, of whole trajectories 4e-4, with
    luspo 2.5e-3, cispo 5; sapo and vespo do not read it."""
    delta: float | None = Field(None, gt=1)
    """The largest ratio where the advantage is negative, too (two-sided clipping, INTELLECT-2, arXiv:2505.07291); above
    1 + epsilon_high. Default: none. Read by the losses that read epsilon."""
    off_policy_mask_threshold: float | None = Field(None, gt=0)
    """A trajectory with a negative advantage is left out of the policy's loss, and stays in its averages, where its tokens'
    mean logprob has fallen by more nats than this since it was sampled (DeepSeek-V3.2, arXiv:2512.02556, which has 0.5 as
    an example in TRL). Default: none is left out."""
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

    @property
    def has_entropy_bonus(self) -> bool:
        """Whether the loss has a term for entropy, which may have a weight of 0 for a while."""
        return self.entropy_coef != 0 or self.use_adaptive_entropy

    @property
    def learns_everywhere(self) -> bool:
        """Whether trajectories without a signal have a gradient: of the KL term, the bonus for entropy, or the router."""
        return self.beta > 0 or self.has_entropy_bonus or self.router_aux_loss_coef > 0

    def _resolve_loss(self) -> None:
        """Put in the defaults that depend on the loss. ValueError for a field that it does not read."""
        loss = self.loss_type
        self._resolve("use_bias_correction_kl", True, self.beta != 0, "a beta above 0")
        for name in ("reference", "sync_ref_model"):
            if getattr(self, name) and not self.beta:
                raise ValueError(
                    f"update.{name} would have no effect: it is read with a beta above 0 alone; take it out"
                )
        if loss == "gspo" and self.importance_sampling_level == "token":
            raise ValueError(
                "update.importance_sampling_level: token does not go with update.loss_type: gspo, which is grpo with one "
                "ratio for a whole trajectory: set loss_type: grpo, or take it out"
            )
        level = "sequence" if loss in ("gspo", "luspo") else "token"
        has_ratio = loss != "vespo" or bool(self.use_bias_correction_kl)
        reader = "a loss_type other than vespo, or with the KL term's ratio (use_bias_correction_kl)"
        self._resolve("importance_sampling_level", level, has_ratio, reader)
        is_clipped, clipped = loss in CLIPPED, f"loss_type: {', '.join(CLIPPED[:-1])} or {CLIPPED[-1]}"
        usual = CLIPPING_SEQUENCES if self.importance_sampling_level == "sequence" else CLIPPING_TOKENS
        low, high = CLIPPING.get(loss, usual)
        self._resolve("epsilon", low, is_clipped, clipped)
        self._resolve("epsilon_high", high, high is not None, f"{clipped}, or cispo,")
        self._resolve("delta", None, is_clipped, clipped)
        if self.delta is not None and self.delta <= 1 + (self.epsilon_high or 0.0):
            raise ValueError(
                f"update.delta ({self.delta:g}) must be above 1 + update.epsilon_high ({1 + (self.epsilon_high or 0.0):g}), "
                "or it would cut what epsilon_high lets pass"
            )
        for fields, is_read, reader in (
            (SAPO, loss == "sapo", "loss_type: sapo"),
            (VESPO, loss == "vespo", "loss_type: vespo"),
            (ADAPTIVE, self.use_adaptive_entropy, "use_adaptive_entropy: true"),
            (SYNCED, self.sync_ref_model, "sync_ref_model: true"),
        ):
            for name, default in fields.items():
                self._resolve(name, default, is_read, reader)

    def _resolve(self, name: str, default: Any, is_read: bool = True, reader: str = "") -> None:
        """Give a field that is None its default. ValueError where it is set and not read; `reader` says when it would be."""
        if getattr(self, name) is None:
            if is_read:
                object.__setattr__(self, name, default)  # the section is frozen for everybody else
        elif not is_read:
            raise ValueError(f"update.{name} would have no effect: it is read with {reader} alone; take it out")
