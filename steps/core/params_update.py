"""The section `update` of params.yaml. See steps/core/params_sections.py."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from steps.core.params_policy import Section

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
ADAPTIVE = {"entropy_coef_min": 0.0, "entropy_coef_max": 1.0, "entropy_coef_delta": 0.005, "entropy_target": 0.2}


class Update(Section):
    """The GRPO update, with the names and meanings of TRL's GRPOConfig.

    Some fields are read only with certain values of others, and their defaults depend on those. They are None until all
    fields are checked; then `resolve` puts in the default, and refuses what would have no effect.
    """

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
    scale_rewards: Literal["group", "batch", "none"] = "group"
    """The rewards whose standard deviation the advantages are divided by."""
    advantages: Literal["grpo", "gigpo"] = "grpo"
    """grpo: all turns of an episode have its advantage. gigpo: each turn's is added, from turns of the scenario's other
    attempts that start from the same state (arXiv:2505.10978, steps/training/credit.py; scale_rewards: group is the paper's
    division by the standard deviation, none its normaliser of 1). Not with ratios of whole episodes (gspo, luspo, vespo, and
    importance_sampling_level: sequence)."""
    gigpo_weight: float | None = Field(None, ge=0)
    """What a turn's own advantage counts beside its episode's. Default: 1; 0 is grpo. Read with advantages: gigpo, as is the
    one below."""
    gigpo_discount: float | None = Field(None, gt=0, le=1)
    """By how much the episode's score counts less for each turn between a turn and the last one. Default: 0.95."""
    beta: float = Field(0.01, ge=0)
    """Weight of the KL divergence from `reference`."""
    reference: Literal["base", "start"] | None = None
    """The policy that this divergence is from. base: the base model without an adapter. start: what iteration 001 continues,
    by policy.start_from or the stage sft. Default: start where there is one, else base. Read with beta above 0."""
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
    """After each optimiser step the weight rises by entropy_coef_delta where that entropy was at most entropy_target, and
    else falls; it counts only where the entropy of the step before was at most that (Skywork-OR1, arXiv:2505.22312)."""
    entropy_coef_min: float | None = None
    """The least weight. Default: 0. Read with use_adaptive_entropy, as are the three below."""
    entropy_coef_max: float | None = None
    """The largest weight. Default: 1."""
    entropy_coef_delta: float | None = Field(None, gt=0)
    """By how much it changes after an optimiser step. Default: 0.005."""
    entropy_target: float | None = Field(None, ge=0)
    """Nats a token. Default: 0.2; take it from `entropy` of the first iterations."""
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
    """Step size of AdamW, after the warm-up."""
    lr_scheduler_type: Literal["constant", "linear", "cosine"] = "constant"
    """How the learning rate falls to 0 until `max_steps`."""
    warmup_steps: int = Field(0, ge=0)
    """Optimiser steps over which the learning rate rises from 0."""
    max_steps: int | None = Field(None, ge=1)
    """Optimiser steps of all iterations together. Needed, and read, with linear and cosine."""
    weight_decay: float = Field(0.0, ge=0)
    """AdamW's weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Norm to which larger gradients are scaled down."""
    truncated_completions: Literal["keep", "mask", "penalise"] = "keep"
    """What becomes of episodes that max_tokens or the context cut off: learnt from, left out, or given a lower reward."""
    truncation_penalty: float | None = Field(None, gt=0)
    """Taken from the reward of such an episode. Default: 0.5; read with truncated_completions: penalise."""
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
    launcher: Literal["none", "accelerate", "ray"] = "none"
    """none: one process updates. accelerate: `processes` of them on this machine share each optimiser step, with a GPU each
    where there are GPUs. ray: workers of the Ray cluster `policy.cluster` do, on as many machines as it takes; one alone
    is allowed, too."""
    processes: int = Field(1, ge=1, le=64)
    """How many. Sums are rounded otherwise than in one process, so the run gives other bytes."""
    shard: bool = False
    """Each process holds a part of the base model's layers, and gets the rest from the others when it computes (FSDP2), for
    a base model that does not fit on one card. Read with processes above 1."""

    @model_validator(mode="after")
    def resolve(self) -> Update:
        """Put in the defaults that depend on other fields. ValueError for a field that nothing would read."""
        is_scheduled = self.lr_scheduler_type != "constant"
        is_penalised = self.truncated_completions == "penalise"
        is_corrected, correction = self.vllm_importance_sampling_correction, "vllm_importance_sampling_correction: true"
        unbounded = "vllm_importance_sampling_clip_max" in self.model_fields_set  # written as null
        self._resolve("use_bias_correction_kl", True, self.beta != 0, "a beta above 0")
        self._resolve_loss()
        is_gigpo = self.advantages == "gigpo"
        if is_gigpo and (self.importance_sampling_level == "sequence" or self.loss_type == "vespo"):
            raise ValueError(
                f"update.advantages: gigpo does not go with update.loss_type: {self.loss_type} and "
                f"update.importance_sampling_level: {self.importance_sampling_level}, whose ratio of a whole episode "
                "spreads each turn's advantage over all turns; take one of the two out"
            )
        self._resolve("gigpo_weight", 1.0, is_gigpo, "advantages: gigpo")
        self._resolve("gigpo_discount", 0.95, is_gigpo, "advantages: gigpo")
        self._resolve("max_steps", None, is_scheduled, "lr_scheduler_type: linear or cosine")
        self._resolve("truncation_penalty", 0.5, is_penalised, "truncated_completions: penalise")
        self._check_schedule()
        if is_corrected is None:  # the dtype decides: `of_dtype`
            return self
        mode = "token_truncate" if self.loss_type == "vespo" else "sequence_mask"
        self._resolve("vllm_importance_sampling_mode", mode, is_corrected, correction)
        self._resolve("vllm_importance_sampling_clip_max", None if unbounded else 3.0, is_corrected, correction)
        self._resolve("vllm_importance_sampling_clip_min", None, is_corrected, correction)
        if self.loss_type == "vespo" and str(self.vllm_importance_sampling_mode).startswith("sequence"):
            raise ValueError(
                f"update.vllm_importance_sampling_mode: {self.vllm_importance_sampling_mode} does not go with "
                "update.loss_type: vespo, which multiplies the tokens' weights itself: set token_truncate or token_mask"
            )
        if self.reference == "start" and not self.beta:
            raise ValueError("update.reference would have no effect: it is read with a beta above 0 alone; take it out")
        if self.launcher == "none" and self.processes > 1:
            raise ValueError(
                f"update.processes: {self.processes} needs update.launcher: accelerate or ray, which starts them"
            )
        if self.shard and self.processes == 1:
            raise ValueError("update.shard would have no effect: it is read with update.processes above 1; take it out")
        return self

    def _resolve_loss(self) -> None:
        """Put in the defaults that depend on the loss. ValueError for a field that it does not read."""
        loss = self.loss_type
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
        ):
            for name, default in fields.items():
                self._resolve(name, default, is_read, reader)
        least, most = self.entropy_coef_min, self.entropy_coef_max
        if least is not None and most is not None and least >= most:
            raise ValueError(
                f"update.entropy_coef_min ({least:g}) must be below update.entropy_coef_max ({most:g}), or the weight would "
                "never change: take use_adaptive_entropy out and set entropy_coef"
            )

    @property
    def has_entropy_bonus(self) -> bool:
        """Whether the loss has a term for entropy, which may have a weight of 0 for a while."""
        return self.entropy_coef != 0 or self.use_adaptive_entropy

    @property
    def learns_everywhere(self) -> bool:
        """Whether trajectories without a signal have a gradient: of the KL term, or of the bonus for entropy."""
        return self.beta > 0 or self.has_entropy_bonus

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

    def _check_schedule(self) -> None:
        if self.lr_scheduler_type != "constant" and self.max_steps is None:
            raise ValueError(
                f"update.max_steps is needed with lr_scheduler_type: {self.lr_scheduler_type} "
                "(iterations × steps_per_generation × num_iterations)"
            )
        if self.max_steps is not None and self.warmup_steps >= self.max_steps:
            raise ValueError(
                f"update.warmup_steps ({self.warmup_steps}) must be below update.max_steps ({self.max_steps}): the learning "
                "rate would never be reached"
            )

    def _resolve(self, name: str, default: Any, is_read: bool = True, reader: str = "") -> None:
        """Give a field that is None its default. ValueError where it is set and not read; `reader` says when it would be."""
        if getattr(self, name) is None:
            if is_read:
                object.__setattr__(self, name, default)  # the section is frozen for everybody else
        elif not is_read:
            raise ValueError(f"update.{name} would have no effect: it is read with {reader} alone; take it out")
