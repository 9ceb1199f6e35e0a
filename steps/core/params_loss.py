"""The part of the section `update` that is the loss: fields of TRL's GRPOConfig that `GRPOTrainer._compute_loss` reads."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

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


class Loss(Section):
    """The loss of a GRPO update, with the names and meanings of TRL's GRPOConfig."""

    loss_type: Literal["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "gspo", "sapo", "luspo", "vespo"] = "dapo"
    """How token losses are clipped and averaged. gspo is grpo with importance_sampling_level: sequence."""
    importance_sampling_level: Literal["token", "sequence"] | None = None
    """Whether each token has a ratio of its own, or all of a trajectory their geometric mean. Default: token, with gspo and
    luspo sequence. vespo reads it in the KL term alone."""
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

    def _resolve_loss(self) -> None:
        """Put in the defaults that depend on the loss. ValueError for a field that it does not read."""
        loss = self.loss_type
        settle(self, "use_bias_correction_kl", True, self.beta != 0, "a beta above 0")
        settle(self, "reference", None, self.beta != 0, "a beta above 0")
        if loss == "gspo" and self.importance_sampling_level == "token":
            raise ValueError(
                "update.importance_sampling_level: token does not go with update.loss_type: gspo, which is grpo with one "
                "ratio for a whole trajectory: set loss_type: grpo, or take it out"
            )
        level = "sequence" if loss in ("gspo", "luspo") else "token"
        has_ratio = loss != "vespo" or bool(self.use_bias_correction_kl)
        reader = "a loss_type other than vespo, or with the KL term's ratio (use_bias_correction_kl)"
        settle(self, "importance_sampling_level", level, has_ratio, reader)
        is_clipped, clipped = loss in CLIPPED, f"loss_type: {', '.join(CLIPPED[:-1])} or {CLIPPED[-1]}"
        usual = CLIPPING_SEQUENCES if self.importance_sampling_level == "sequence" else CLIPPING_TOKENS
        low, high = CLIPPING.get(loss, usual)
        settle(self, "epsilon", low, is_clipped, clipped)
        settle(self, "epsilon_high", high, high is not None, f"{clipped}, or cispo,")


def settle(update: BaseModel, name: str, default: Any, is_read: bool = True, reader: str = "") -> None:
    """Give a field of `update` that is None its default. ValueError where it is set and not read; `reader` says when it
    would be."""
    if getattr(update, name) is None:
        if is_read:
            object.__setattr__(update, name, default)  # the section is frozen for everybody else
    elif not is_read:
        raise ValueError(f"update.{name} would have no effect: it is read with {reader} alone; take it out")
