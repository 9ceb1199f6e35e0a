"""GRPO on stored trajectories (Shao et al. 2024, arXiv:2402.03300): a plain loop over packed micro-batches.

The loss is TRL's own (steps/training/loss.py), and so is each optimiser step's gradient, on whole groups: trajectories
without a signal count in its averages, and in its KL term and its bonus for entropy. Those whose gradient is zero pass
forward alone, for the metrics. Left out of TRL's trainer: data loading, generation, padding and compilation, which would
take longer than the update itself here.

With update.processes each process takes a share of every optimiser step's trajectories, and gradients are summed. The steps
are then the same as in one process, within rounding.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.ports import names
from steps.core.progress import measure, progress, say
from steps.core.section import at
from steps.core.stats import added
from steps.policy.machine import deterministic
from steps.training import packing
from steps.training.batches import TOKENS, Example, OptimizerStep, by_group, share_of, split_steps
from steps.training.loss import SamplerCheck, TrlLoss, clip_gradient
from steps.training.meter import Meter, metrics
from steps.training.model import adapter_of
from steps.training.processes import gathered, process
from steps.training.terms import Seen, terms_of
from steps.training.trained import Trained
from steps.training.trust import TrustRegion

if TYPE_CHECKING:
    from steps.core.params import Update


class Trainer(Trained):
    """Makes GRPO updates."""

    def train(
        self,
        examples: Sequence[Example],
        settings: Update,
        temperature: float,
        seed: int,
        behaviour: Path | None = None,
    ) -> dict[str, float]:
        """Make `num_iterations` × `steps_per_generation` optimiser steps; returns metrics, which
        steps/training/meter.py defines. `behaviour`: the folder of the adapter that sampled the trajectories, where it is an
        older one: the loss is then corrected by importance sampling.

        UserError where another policy sampled the trajectories, the schedule ends too early, or a gradient is not finite.
        """
        settings = (settings.lagging() if behaviour else settings).of_dtype(self.policy.dtype)
        if self.policy.dtype == "bfloat16" and not names("term"):
            say("What sampler and trainer round differently in bfloat16 is not corrected: the add-on terms does that")
        with deterministic(at(self.policy, "deterministic")):
            return self._train(examples, self.with_micro_batches(examples, settings), temperature, seed, behaviour)

    def _train(
        self, examples: Sequence[Example], settings: Update, temperature: float, seed: int, behaviour: Path | None
    ) -> dict[str, float]:
        self._begin_terms(settings)
        self.wide_head = bool(at(settings, "cast_lm_head_to_fp32"))
        steps = self._steps(examples, settings, seed)
        planned = settings.num_iterations * len(steps)
        for term in self.terms:
            term.plan(self.steps + planned)
        self.set_checkpointing(bool(settings.gradient_checkpointing))
        optimizer = self._optimizer(settings)
        sampler_check = SamplerCheck()
        loss = TrlLoss(settings, self.model, temperature, self.policy.context, self.terms)
        common: dict[str, float] = {}  # metrics that are the same in every process
        if behaviour:  # that it sampled the batch is checked on a trajectory of each group
            with adapter_of(self.model, behaviour):
                self._spot_check(examples, frozenset(), settings, temperature, seed, sampler_check)
        checks = [] if behaviour else [sampler_check.add]  # those of what is computed before a weight changes
        if any(term.looks_ahead for term in self.terms):
            self._look_ahead(steps[1:], temperature, checks)
        else:
            self._spot_check(examples, steps[0].groups, settings, temperature, seed, sampler_check)
        measured, norms = Meter(), 0.0
        trust, divergence = TrustRegion(self.weights, settings.max_kl), None
        for number in range(planned):
            step = steps[number % len(steps)]
            observers = [trust.add] if number else [trust.add, *checks]
            gradient = partial(self._gradient, loss, step, len(steps), settings, observers)
            gradient()
            if not number:  # no weight has changed yet
                whole = [added(values) for values in zip(*gathered(sampler_check.sums), strict=True)]
                common |= sampler_check.check(whole, settings.sampler_limit(self.layers), temperature)
            divergence = trust.take() if trust.limit else None
            if number:
                divergence = trust.hold(divergence, gradient, number / planned)
            for term in self.terms:
                term.end(loss.meter)
            measured.take(loss.meter)
            self._sum_gradients()
            norms += clip_gradient(self.weights.values(), settings.max_grad_norm, number + 1, step.groups)
            rate = math.prod([settings.learning_rate, *(term.rate(self.steps) for term in self.terms)])
            for group in optimizer.param_groups:
                group["lr"] = rate * trust.kept
            optimizer.step()
            optimizer.zero_grad()
            self.steps += 1
            for term in self.terms if number + 1 < planned else ():
                term.stepped(self)
            progress(number + 1, planned, "optimiser steps")
        look = partial(self._look, steps[0], temperature, trust)
        divergence = trust.finish(divergence if planned > 1 else None, look)
        for term in self.terms:  # the last step may have been shortened
            term.stepped(self)
        common |= {} if divergence is None else {"update/kl": divergence, "update/kept": trust.kept}
        for term in self.terms:
            common |= term.metrics()
        measure(learning_rate=optimizer.param_groups[0]["lr"])  # of the last step; kept beside the stage's seconds
        self.moments = {
            name: {kind: optimizer.state[weight][kind] for kind in ("exp_avg", "exp_avg_sq")}
            for name, weight in self.weights.items()
        }
        common["grad_norm"] = norms / planned
        return common | metrics(gathered(measured.sums), planned)

    def _gradient(
        self,
        loss: TrlLoss,
        step: OptimizerStep,
        steps: int,
        settings: Update,
        observers: Sequence[Callable[..., None]],
    ) -> None:
        """The gradient of this process's share of an optimiser step, and its metrics in `loss.meter`. Each of `observers` is
        given the logprobs and the entropies [B, S] of a micro-batch that has a gradient, and the micro-batch."""
        import torch

        self.model.zero_grad()  # of a way that was too long, or of an update that was refused
        loss.meter = Meter()
        self._survey(loss, step)
        for batch, packed in self._packed(step.batches):
            batch["packed"] = packed
            if settings.beta and "ref_per_token_logps" not in batch:
                batch["ref_per_token_logps"] = self._reference(packed, settings, loss.temperature)
            self._accumulate(loss, batch, step, steps)
            for term in self.terms:
                term.add(loss, batch)
            for observer in observers:
                observer(loss.logps, loss.entropies, batch)
            del batch["packed"]  # large, and quick to make again for the next pass
        with torch.no_grad():
            for batch, packed in self._packed(step.others):
                batch["packed"] = packed
                loss(batch)
                del batch["packed"]

    def _begin_terms(self, settings: Update) -> None:
        before = {type(term): term for term in self.terms}
        self.terms = terms_of(settings)
        for term in self.terms:
            term.begin(self, before.get(type(term)))
        self.checkpoint = None

    def _survey(self, loss: TrlLoss, step: OptimizerStep) -> None:
        """Show terms the whole optimiser step before any gradient, where they ask for that in a pass of its own."""
        import torch

        seen = []
        if any(term.surveys for term in self.terms):
            is_routed = any(term.is_routed for term in self.terms)
            with torch.no_grad():
                for batch, packed in self._packed(step.everything):
                    routed = list[Any]()
                    entropies = self._pass(batch, packed, loss.temperature, routed if is_routed else None)[1]
                    if batch.get("is_idle"):
                        routed.clear()
                    seen.append(Seen(batch, entropies, packed if routed else None, routed))
        for term in self.terms:
            term.survey(loss, step, seen)

    def _pass(
        self, batch: dict[str, Any], packed: packing.Packed | None, temperature: float, routed: list[Any] | None = None
    ) -> tuple[Any, Any]:
        """Logprobs and entropies [B, S] of a micro-batch; zeros where no token counts."""
        if packed is None:
            return batch["completion_mask"], batch["completion_mask"]
        more: dict[str, Any] = {} if routed is None else {"routed": routed}
        return packing.token_logps(self.model, packed, temperature, **more)

    def _spot_check(
        self,
        examples: Sequence[Example],
        first: frozenset[str],
        settings: Update,
        temperature: float,
        seed: int,
        sampler_check: SamplerCheck,
    ) -> None:
        """Add to `sampler_check` one trajectory of each group with a gradient that is not in the first step (`first`): the
        logprobs of those cost nothing extra."""
        import torch

        groups = by_group([example for example in examples if self._learns(example, settings)])
        draw = random.Random(f"sampler {seed} {self.steps}")
        chosen = [draw.choice(groups[group]) for group in sorted(groups.keys() - first)]
        with torch.no_grad():
            batches = self._share(sorted(chosen, key=lambda example: example.ids), settings, 0)
            for batch, packed in self._packed(batches):
                sampler_check.add(*packing.token_logps(self.model, packed, temperature), batch)

    def _look(self, step: OptimizerStep, temperature: float, trust: TrustRegion) -> None:
        """Add to `trust` the trajectories of an optimiser step, at the present weights."""
        import torch

        with torch.no_grad():
            for batch, packed in self._packed(step.batches):
                logps, _ = packing.token_logps(self.model, packed, temperature, with_entropies=False)
                trust.add(logps, None, batch)

    def _share(self, examples: list[Example], settings: Update, total: int) -> list[dict[str, Any]]:
        """This process's micro-batches of sorted trajectories. All processes pass through a sharded model together: one with
        fewer micro-batches than another passes the shortest trajectory through it, in which no token counts."""
        own, idle = share_of(examples, process(), settings.tokens_per_micro_batch or TOKENS)
        batches = [self._batch(part, total) for part in own]
        for _ in range(idle if self.is_sharded else 0):
            batch = self._batch([min(examples, key=lambda example: sum(map(len, example.ids)))], total)
            batches.append(batch | {"completion_mask": batch["completion_mask"] * 0, "tokens": 0.0, "is_idle": True})
        return batches

    def _steps(self, examples: Sequence[Example], settings: Update, seed: int) -> list[OptimizerStep]:
        """The optimiser steps of a pass, on trajectories in a seeded order."""
        count = min(settings.steps_per_generation, len(examples))
        if count < settings.steps_per_generation:
            say(
                f"{count} optimiser steps per pass, not {settings.steps_per_generation}: there are no more trajectories"
            )
        total = sum(example.tokens for example in examples)
        steps = []
        for part in split_steps(examples, count, random.Random(f"update {seed} {self.steps}")):
            computed, still = (
                sorted(
                    (example for example in part if example.bears_loss and self._learns(example, settings) == learns),
                    key=lambda example: example.ids,
                )
                for learns in (True, False)
            )
            others = self._share(still, settings, total)
            if (masked := len(part) - len(computed) - len(still)) and not process()[0]:
                others.append(self._without_tokens(masked))
            step = OptimizerStep(
                self._share(computed, settings, total),
                others,
                trajectories=len(part),
                tokens=sum(example.tokens for example in part),
                computed=sum(example.tokens for example in computed),
                groups=frozenset(example.group for example in computed),
            )
            steps.append(step)
        return steps

    def _learns(self, example: Example, settings: Update) -> bool:
        return example.has_gradient(settings.beta > 0 or any(term.learns_everywhere for term in self.terms))

    def _reference(self, packed: packing.Packed, settings: Update, temperature: float) -> Any:
        """Logprobs [B, S] of `update.reference`: the same model with its adapter disabled, with the first one, or with what
        a term has in its place."""
        import torch

        start = self.start if settings.reference == "start" else None  # which the stage update has made sure of
        inside = next((context for term in self.terms if (context := term.reference(self.weights))), None)
        if inside is None:
            inside = self.model.disable_adapter() if start is None else adapter_of(self.model, start)
        with torch.no_grad(), inside:
            return packing.token_logps(self.model, packed, temperature, with_entropies=False)[0]

    def _look_ahead(
        self, steps: Sequence[OptimizerStep], temperature: float, observers: Sequence[Callable[..., None]]
    ) -> None:
        """Show terms the optimiser steps that are made with other weights than the present ones: all but the first, whose
        own forward pass has the old policy's logprobs. Observers see those that have a gradient."""
        import torch

        with torch.no_grad():
            learning = {id(batch) for step in steps for batch in step.batches}
            for batch, packed in self._packed([batch for step in steps for batch in step.everything]):
                old, entropies = self._pass(batch, packed, temperature)
                for observer in observers if id(batch) in learning else ():
                    observer(old, entropies, batch)
                for term in self.terms:
                    term.forward(batch, old)

    @staticmethod  # which benchmarks/gpu measures by itself
    def _accumulate(loss: TrlLoss, batch: dict[str, Any], step: OptimizerStep, steps: int) -> None:
        """Backward pass of a micro-batch's share of its step's loss. Any split of a step gives the same gradient.

        TRL divides by the number of micro-batches, as if they were equal; here each is weighted by its trajectories, for
        bnpo by its tokens. dapo, cispo and vespo divide by the tokens of an average step, which TRL takes from the pass.
        What the step counts without computing it has a share, too, and adds nothing.
        """
        share = len(batch["examples"]) / step.trajectories
        if loss.loss_type == "bnpo" and batch["tokens"]:
            share = batch["tokens"] / step.tokens
        loss.weigh(share, steps)
        for term in loss.terms:
            term.weigh(loss, batch, share)
        loss(batch).backward()

    def _sum_gradients(self) -> None:
        """Sum over processes: each has the gradient of its own trajectories' share of the step's loss.

        It is zero, and not None, where nothing was computed: AdamW's moments move the weights then too, as in TRL.
        """
        import torch

        for weight in self.weights.values():
            if weight.grad is None:
                weight.grad = torch.zeros_like(weight)
            if process()[1] > 1:
                torch.distributed.all_reduce(weight.grad)
