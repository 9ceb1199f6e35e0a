"""The loss of an update, which is TRL's own, and the check that the sampler was the policy that is trained.

`GRPOTrainer._compute_loss` (variants as TRL documents them) is called with a stand-in that has only the attributes which
it reads. A setting that a new version of TRL reads is then an error, and not ignored.

Shapes: B trajectories of a micro-batch, S sampled tokens of the longest.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.core.imports import import_lean
from steps.core.params_loss import SAPO, VESPO
from steps.core.section import at
from steps.training import packing
from steps.training.meter import Meter
from steps.training.terms import Term

if TYPE_CHECKING:
    from steps.core.params import Update

SLOPE = 0.02  # relative difference of temperatures that is none; rounding gave 0.001 in bfloat16 over 30 layers
STANDARD_ERRORS = 5.0
MADE_UP = 0.1  # nats a token that pass only a limit raised for logprobs that nobody sampled: they fit no temperature


class TrlLoss:
    """The part of a GRPOTrainer that `_compute_loss` reads: one process, no extras.

    What is a row to TRL is a trajectory here, with its sampled tokens only, [B, S]: those of all its training rows, where it
    has several. The whole training rows go through the model in packed form. What TRL takes from a micro-batch is taken from
    the whole optimiser step here: which tokens have a high entropy, and the mean that the bonus for entropy is of (by its
    weight). What add-ons bring to the loss they set (steps/training/terms.py).
    """

    use_adaptive_entropy = False

    def __init__(
        self,
        settings: Update,
        model: Any,
        temperature: float,
        max_completion_length: int,
        terms: Sequence[Term] = (),
    ) -> None:
        import_lean("peft", "trl.trainer.grpo_trainer")
        from trl import GRPOTrainer

        self._compute_loss = GRPOTrainer._compute_loss
        self.get_gamma_weights = GRPOTrainer.get_gamma_weights
        self.get_off_policy_mask = GRPOTrainer.get_off_policy_mask
        self.model = model
        self.temperature = temperature
        # in TRL, GSPO (Zheng et al. 2025, arXiv:2507.18071) is GRPO with the ratio of whole rows
        self.loss_type = "grpo" if settings.loss_type == "gspo" else settings.loss_type
        self.importance_sampling_level = settings.importance_sampling_level or "token"
        self.router_aux_loss_coef, self.aux_loss_enabled = 0.0, False
        # makes a micro-batch's part of a loss of the router's logits [U, experts] of each layer, where that is in the loss
        self.balance: Callable[[packing.Packed, Sequence[Any]], Any] | None = None
        self.beta = settings.beta
        self.epsilon_low = settings.epsilon
        self.epsilon_high = settings.epsilon_high
        self.off_policy_mask_threshold = at(settings, "off_policy_mask_threshold")
        self.top_entropy_quantile, self.entropy_coef, self._entropy_bonus_enabled = 1.0, 0.0, False
        self.use_vllm = self.vllm_importance_sampling_correction = False
        self.max_completion_length = max_completion_length
        usual = SAPO | VESPO
        self.args = SimpleNamespace(
            **{name: default if at(settings, name) is None else at(settings, name) for name, default in usual.items()},
            delta=at(settings, "delta"),
            use_bias_correction_kl=bool(settings.use_bias_correction_kl),
            steps_per_generation=1,
        )
        self.current_gradient_accumulation_steps = 1.0
        self.accelerator = SimpleNamespace(
            num_processes=1, gather=lambda value: value, reduce=self._reduce, sync_gradients=False
        )
        self.accelerator.gather_for_metrics = self.accelerator.gather
        self._metrics: dict[str, Any] = {"train": defaultdict(list), "eval": defaultdict(list)}
        self._totals: list[Any] = []  # (sum, count) of each mean that TRL makes
        self.meter = Meter()
        self.logps: Any = None  # [B, S] of the latest micro-batch, without gradient
        self.entropies: Any = None  # [B, S] of the same
        self.terms = terms
        for term in terms:
            term.join(self)

    def __call__(self, batch: dict[str, Any]) -> Any:
        """The loss of a micro-batch, a tensor. Its metrics are added to `meter`, but for those of a micro-batch that is
        there for other processes alone."""
        self._batch = batch
        self._totals.clear()
        self._metrics["train"].clear()
        loss = self._compute_loss(self, self.model, batch)
        if not batch.get("is_idle"):
            self._measure(loss)
        return loss

    def _measure(self, loss: Any) -> None:
        import torch

        self.meter.by_step["loss"] += float(loss.detach())
        measured = dict(self._metrics["train"])
        by_tokens = self.loss_type in ("dapo", "cispo", "vespo")  # whose loss TRL has divided by the step's tokens
        for name in [name for name in measured if name in ("policy_loss", "aux_loss")]:
            is_part = name == "policy_loss" and by_tokens
            [value] = measured.pop(name)
            self.meter.by_step[name] += value / (1.0 if is_part else self.current_gradient_accumulation_steps)
        for name in [name for name in measured if name.endswith(("_min", "_max"))]:
            self.meter.reach(name, measured.pop(name)[0])
        for name, (total, count) in zip(measured, torch.stack(self._totals).tolist(), strict=True):
            self.meter.add(name, total, count)

    def _reduce(self, totals: Any, reduction: str) -> Any:
        self._totals.append(totals)
        return totals

    def weigh(self, share: float, steps: int) -> None:
        """Make the next micro-batch this share of its optimiser step, in a pass of so many steps."""
        self.current_gradient_accumulation_steps = 1 / share
        self.args.steps_per_generation = steps / share

    def get_high_entropy_mask(self, *_: Any) -> Any:
        return self._batch["high_entropy"]

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> tuple[Any, Any, Any]:
        packed, routed = self._batch["packed"], list[Any]()
        if packed is None:
            logps = entropies = self._batch["completion_mask"]
        else:
            more: dict[str, Any] = {"learn_entropies": True} if self._entropy_bonus_enabled else {}
            more |= {"routed": routed} if self.balance is not None else {}
            logps, entropies = packing.token_logps(self.model, packed, self.temperature, **more)
        self.logps, self.entropies = logps.detach(), entropies.detach()
        for term in self.terms:
            term.forward(self._batch, self.logps)
        if self.balance is None or not routed or self._batch.get("is_idle"):
            return logps, entropies, logps.detach().sum() * 0
        return logps, entropies, self.balance(packed, routed) * self.current_gradient_accumulation_steps


class SamplerCheck:
    """Sums over the sampled tokens that are added, from which `check` tells whether the trainer's policy sampled them.

    The KL(sampler ‖ trainer) in nats per token is the k3 estimate (Schulman 2020). Another temperature shows before the KL
    does: at temperature T' in place of T, trainer - sampler is (1 - T/T') · (logprob + entropy) to first order, so the
    regression of the one on the other gives T', and the residuals its standard error.
    """

    def __init__(self) -> None:
        self.sums = [0.0] * 5  # nats, tokens, and of difference d and deviation x: d · x, x², d²

    def add(self, logps: Any, entropies: Any, batch: dict[str, Any]) -> None:
        """Add a micro-batch with the trainer's logprobs and entropies [B, S]."""
        mask = batch["completion_mask"].double()
        difference = (logps - batch["sampling_per_token_logps"]).double() * mask
        deviation = (logps + entropies).double() * mask
        nats = sampler_kl(logps, batch["sampling_per_token_logps"], batch["completion_mask"])
        values = (mask, difference * deviation, deviation**2, difference**2)
        self.sums = [
            total + new for total, new in zip(self.sums, (nats, *(float(v.sum()) for v in values)), strict=True)
        ]

    def check(self, sums: Sequence[float], limit: float, temperature: float) -> dict[str, float]:
        """Metrics from the sums of all processes; none without tokens. UserError where the KL is above the limit in nats per
        token, or the logprobs fit clearly another temperature: by 2 % and by 5 standard errors."""
        nats, tokens, product, square, squares = sums
        if not tokens:
            return {}
        slope = product / square if square else 0.0
        explained = slope * product
        error = math.sqrt(max(squares - explained, 0.0) / tokens / square) if square else 0.0
        other = temperature / (1 - slope) if slope < 1 else math.inf
        hint = f"; the logprobs fit temperature {other:.3g}" if explained > squares / 2 else ""
        kl = check_sampler(nats / tokens, limit, hint)
        if abs(slope) > max(SLOPE, STANDARD_ERRORS * error) and kl < MADE_UP:
            raise UserError(
                f"the logprobs of the trajectories fit temperature {other:.3g}, and rollout.temperature is {temperature:g}: "
                "they were sampled at another temperature, or by a stale adapter; run rollout again"
            )
        return {"sampler_kl": kl, "sampler_temperature": other}


def sampler_kl(logps: Any, sampling: Any, mask: Any) -> float:
    """Sum over sampled tokens of the k3 estimate of KL(sampler ‖ trainer), in nats."""
    difference = ((logps - sampling) * mask).double()  # in float32, exp(d) - 1 - d is zero below 1e-4
    return float((difference.exp() - 1 - difference).sum())


def check_sampler(kl: float, limit: float, hint: str = "") -> float:
    """Returns the KL (nats per token). UserError where another policy than the trained one made the trajectories."""
    if not kl <= limit:
        raise UserError(
            f"the trajectories were not sampled by the policy that is being trained: KL(sampler ‖ trainer) is {kl:.2e} nats "
            f"a token, update.max_sampler_kl is {limit:.0e}; a stale adapter, another temperature or a wrong mask does "
            f"this{hint}"
        )
    return kl


def clip_gradient(weights: Iterable[Any], most: float, step: int, groups: Collection[str]) -> float:
    """Scale the weights' gradient to a norm of `most` at most; the norm that it had. UserError where that is infinite or no
    number: such a step would make every weight useless, without a word. `groups`: scenarios that the step learns from."""
    import torch

    norm = float(torch.nn.utils.clip_grad_norm_(weights, most))
    if not math.isfinite(norm):
        some = ", ".join(sorted(groups)[:5]) + (", …" if len(groups) > 5 else "")
        raise UserError(
            f"the gradient of optimiser step {step} has a norm of {norm}: no weight was changed by it, nothing of this "
            "update is kept, and its batch stays in the iteration's folder for study (the step's scenarios: "
            f"{some or 'none'}). Lower update.learning_rate or set policy.dtype: float32, then run the same command again"
        )
    return norm
