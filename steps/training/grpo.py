"""GRPO on stored trajectories (Shao et al. 2024, arXiv:2402.03300): a plain loop over packed micro-batches.

The loss is TRL's own (steps/training/loss.py), and so is each optimiser step's gradient, on whole groups: trajectories
without a signal count in its averages and in its KL term. Those whose gradient is zero are counted and not computed. Left
out of TRL's trainer: data loading, generation, padding and compilation, which would take longer than the update itself here.

With update.processes each process takes a share of every optimiser step's trajectories, and gradients are summed. The steps
are then the same as in one process, within rounding.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.progress import measure, progress, say
from steps.core.stats import added
from steps.policy import sharing
from steps.policy.adapter import adapter_hash
from steps.policy.loading import load_tokenizer, load_vision
from steps.policy.machine import before_sampling, deterministic
from steps.training import memory, packing, probe
from steps.training.batches import Example, OptimizerStep, by_group, share_of, split_steps
from steps.training.grammar import Grammars
from steps.training.loss import Correction, SamplerCheck, TrlLoss, clip_gradient
from steps.training.model import WEIGHTS, adapter_of, load_model
from steps.training.processes import gathered, join, process, shard
from steps.training.schedule import check_schedule, set_rate
from steps.training.trust import TrustRegion

if TYPE_CHECKING:
    import torch

    from steps.core.params import Policy, Update
    from steps.core.records import Row
    from steps.policy.pictures import Vision

# The base model with its adapter's layers, by policy; at most one. Global, because stages are plain functions, and a warm
# process runs many updates in a row: each replaces the adapter's weights instead of loading the base model again.
_bases: dict[str, memory.Base] = {}


def leave_gpu() -> None:
    """Take the base model's weights off the GPU, if this process trains on one."""
    for base in _bases.values():
        if base.device.type == "cuda":
            base.leave()


class Trainer:
    """A base model with a LoRA adapter, Adam, and the count of optimiser steps so far."""

    def __init__(self, policy: Policy, seed: int = 0, checkpoint: Path | None = None, is_sharded: bool = False) -> None:
        """With a fresh adapter drawn from `seed`, or with a checkpoint's adapter and optimiser. `is_sharded`: each process
        holds a part of the base model."""
        import torch

        join()
        self.policy, self.is_sharded = policy, is_sharded
        # A base model that the engine divides may not fit on one GPU, and a fresh adapter needs none.
        place = "cpu" if is_sharded or (checkpoint is None and policy.tensor_parallel > 1) else None
        key = f"{policy.model_dump_json()} {is_sharded} {place}"
        if key not in _bases or checkpoint is None:
            _bases.clear()
            torch.manual_seed(seed)
            model = load_model(policy, place)
            if is_sharded:
                shard(model)
            _bases[key] = memory.Base(model)
        before_sampling(leave_gpu)
        _bases[key].come_back()
        sharing.of_trainer(policy, _bases[key])
        self.model = _bases[key].model
        self.model.train()
        self.weights = {name: value for name, value in self.model.named_parameters() if value.requires_grad}
        self.vocabulary = int(self.model.get_output_embeddings().weight.shape[0])
        self.layers = int(self.model.config.get_text_config().num_hidden_layers)
        self.trained_parameters = sum(value.numel() for value in self.weights.values())
        self.steps, self.adapter_hash = 0, ""
        self.moments: dict[str, dict[str, torch.Tensor]] = {}
        self.keeps_attention = False
        self.grammars: Grammars | None = None  # made where a row was sampled under one
        self.vision: Vision | None = None  # made where a row shows a picture
        self.start: Path | None = None  # folder of the adapter that training began with, for update.reference
        if checkpoint is not None:
            self._load(checkpoint)

    def save_adapter(self, folder: Path) -> str:
        """Write the adapter as PEFT does, for serving; returns its hash."""
        self.model.save_pretrained(folder)
        path = folder / "adapter_config.json"
        config = json.loads(path.read_text())
        config["target_modules"] = sorted(config["target_modules"])  # PEFT writes a set, whose order changes
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        (folder / "README.md").unlink(missing_ok=True)  # an empty template of a model card
        if self.policy.kind == "server" and not self.is_sharded:
            probe.write(folder, self.model, self.policy, self.layers, *self.place)
        return adapter_hash(folder)

    def save_checkpoint(self, folder: Path, adapter: str) -> None:
        """Write what a later update resumes from: adapter weights and hash, Adam's moments (no pickle), steps, `start`."""
        from safetensors.torch import save_file

        folder.mkdir()
        tensors = {f"weight.{name}": value.detach().cpu().contiguous() for name, value in self.weights.items()}
        for name, moments in self.moments.items():
            tensors |= {f"{kind}.{name}": value.cpu().contiguous() for kind, value in moments.items()}
        save_file(tensors, folder / "state.safetensors")
        (folder / "state.json").write_text(json.dumps({"adapter": adapter, "steps": self.steps}) + "\n")
        if self.start is not None:
            (folder / "reference").mkdir()
            shutil.copyfile(self.start / WEIGHTS, folder / "reference" / WEIGHTS)

    def _load(self, folder: Path) -> None:
        import torch
        from safetensors.torch import load_file

        tensors = load_file(folder / "state.safetensors")
        state = json.loads((folder / "state.json").read_text())
        self.steps, self.adapter_hash = state["steps"], state["adapter"]
        self.start = folder / "reference" if (folder / "reference").is_dir() else None
        with torch.no_grad():
            for name, value in self.weights.items():
                value.copy_(tensors[f"weight.{name}"])
                value.grad = None
        for name in self.weights if self.steps else ():
            self.moments[name] = {kind: tensors[f"{kind}.{name}"] for kind in ("exp_avg", "exp_avg_sq")}

    def _optimizer(self, settings: Update) -> Any:
        import torch

        optimizer = torch.optim.AdamW(
            self.weights.values(), lr=settings.learning_rate, weight_decay=settings.weight_decay, betas=(0.9, 0.95)
        )
        for name, moments in self.moments.items():
            weight = self.weights[name]
            state = {kind: value.to(weight.device) for kind, value in moments.items()}
            optimizer.state[weight] = {"step": torch.tensor(float(self.steps)), **state}
        return optimizer

    def train(
        self,
        examples: Sequence[Example],
        settings: Update,
        temperature: float,
        seed: int,
        behaviour: Path | None = None,
    ) -> dict[str, float]:
        """Make `num_iterations` × `steps_per_generation` optimiser steps; returns metrics, means over steps or over the
        tokens of trajectories that have a gradient. `behaviour`: the folder of the adapter that sampled the trajectories,
        where it is an older one: the loss is then corrected by importance sampling.

        UserError where another policy sampled the trajectories, the schedule ends too early, or a gradient is not finite.
        """
        settings = (settings.lagging() if behaviour else settings).of_dtype(self.policy.dtype)
        with deterministic(self.policy.deterministic):
            return self._train(examples, self.with_micro_batches(examples, settings), temperature, seed, behaviour)

    def _train(
        self, examples: Sequence[Example], settings: Update, temperature: float, seed: int, behaviour: Path | None
    ) -> dict[str, float]:
        steps = self._steps(examples, settings, seed)
        planned = settings.num_iterations * len(steps)
        check_schedule(settings, self.steps + planned)
        self.set_checkpointing(bool(settings.gradient_checkpointing))
        optimizer = self._optimizer(settings)
        sampler = SamplerCheck()
        correction = Correction(settings) if settings.vllm_importance_sampling_correction else None
        loss = TrlLoss(settings, self.model, temperature, self.policy.context, correction)
        common: dict[str, float] = {}  # metrics that are the same in every process
        if behaviour:  # that it sampled the batch is checked on a trajectory of each group
            with adapter_of(self.model, behaviour):
                self._sample(examples, frozenset(), settings, temperature, seed, sampler)
        checks = [] if behaviour else [sampler.add]  # those of what is computed before a weight changes
        if correction:
            self._correct(correction, steps[1:], temperature, checks)
        else:
            self._sample(examples, steps[0].groups, settings, temperature, seed, sampler)
        sums: dict[str, float] = defaultdict(float, loss=0.0)
        extremes: dict[str, list[float]] = defaultdict(list)
        trust, divergence = TrustRegion(self.weights, settings.max_kl), None
        for number in range(planned):
            step = steps[number % len(steps)]
            metrics: list[tuple[str, float, float]] = []
            meters = [trust.add] if number else [trust.add, *checks]
            gradient = partial(self._gradient, loss, step, len(steps), settings, temperature, meters, metrics)
            gradient()
            if not number:  # no weight has changed yet
                whole = [added(values) for values in zip(*gathered(sampler.sums), strict=True)]
                common |= sampler.check(whole, settings.sampler_limit(self.layers), temperature)
            divergence = trust.take() if trust.limit else None
            if number:
                divergence = trust.hold(divergence, gradient, number / planned)
            for name, metric, tokens in metrics:
                if name.endswith(("_min", "_max")):
                    extremes[name].append(metric)
                else:
                    sums[name] += metric * tokens
            self._sum_gradients()
            norm = clip_gradient(self.weights.values(), settings.max_grad_norm, number + 1, step.groups)
            sums["grad_norm"] += norm
            set_rate(optimizer, settings, self.steps, trust.kept)
            optimizer.step()
            optimizer.zero_grad()
            self.steps += 1
            progress(number + 1, planned, "optimiser steps")
        look = partial(self._look, steps[0], temperature, trust)
        divergence = trust.finish(divergence if planned > 1 else None, look)
        common |= {} if divergence is None else {"update/kl": divergence, "update/kept": trust.kept}
        common |= Correction.metrics(gathered((correction.sums, correction.extremes))) if correction else {}
        measure(learning_rate=optimizer.param_groups[0]["lr"])  # of the last step; kept beside the stage's seconds
        self.moments = {
            name: {kind: optimizer.state[weight][kind] for kind in ("exp_avg", "exp_avg_sq")}
            for name, weight in self.weights.items()
        }
        common["grad_norm"] = sums.pop("grad_norm") / planned
        sums["loss"] /= planned
        tokens = settings.num_iterations * sum(step.computed for step in steps)
        return common | self._metrics(gathered((dict(sums), dict(extremes))), tokens)

    @staticmethod
    def _metrics(summed: list[tuple[dict[str, float], dict[str, list[float]]]], tokens: float) -> dict[str, float]:
        """Means over tokens, extremes, and the loss, from the (sums, extremes) of each process."""
        metrics = {}
        for name in sorted({name for sums, _ in summed for name in sums}):
            value = added(sums.get(name, 0.0) for sums, _ in summed)
            metrics[name] = value if name == "loss" else value / tokens
        for name in sorted({name for _, extremes in summed for name in extremes}):
            choose = min if name.endswith("_min") else max
            metrics[name] = choose(value for _, extremes in summed for value in extremes.get(name, ()))
        return metrics

    def _gradient(
        self,
        loss: TrlLoss,
        step: OptimizerStep,
        steps: int,
        settings: Update,
        temperature: float,
        meters: Sequence[Callable[..., None]],
        metrics: list[tuple[str, float, float]],
    ) -> None:
        """The gradient of this process's share of an optimiser step. Sets `metrics` to (name, value, tokens), of
        micro-batches; each meter is given the logprobs and the entropies [B, S] of one, and the micro-batch."""
        self.model.zero_grad()  # of a way that was too long, or of an update that was refused
        metrics.clear()
        for batch, packed in self._packed(step.batches):
            batch["packed"] = packed
            if settings.beta and "ref_per_token_logps" not in batch:
                batch["ref_per_token_logps"] = self._reference(batch["packed"], settings, temperature)
            metrics.append(("loss", self._accumulate(loss, batch, step, steps), 1.0))
            for meter in meters:
                meter(loss.logps, loss.entropies, batch)
            taken = loss.take_metrics()
            metrics += [(name, metric, batch["tokens"]) for name, metric in taken.items() if batch["tokens"]]
            del batch["packed"]  # large, and quick to make again for the next pass

    def _sample(
        self,
        examples: Sequence[Example],
        first: frozenset[str],
        settings: Update,
        temperature: float,
        seed: int,
        sampler: SamplerCheck,
    ) -> None:
        """Add to `sampler` one trajectory of each group with a gradient that is not in the first step (`first`): the
        logprobs of those cost nothing extra."""
        import torch

        groups = by_group([example for example in examples if example.has_gradient(settings.beta)])
        draw = random.Random(f"sampler {seed} {self.steps}")
        chosen = [draw.choice(groups[group]) for group in sorted(groups.keys() - first)]
        with torch.no_grad():
            batches = self._share(sorted(chosen, key=lambda example: example.ids), settings, 0)
            for batch, packed in self._packed(batches):
                sampler.add(*packing.token_logps(self.model, packed, temperature), batch)

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
        own, idle = share_of(examples, process(), settings.tokens_per_micro_batch or memory.TOKENS)
        batches = [self._batch(part, total) for part in own]
        for _ in range(idle if self.is_sharded else 0):
            batch = self._batch([min(examples, key=lambda example: sum(map(len, example.ids)))], total)
            batches.append(batch | {"completion_mask": batch["completion_mask"] * 0, "tokens": 0.0})
        return batches

    def with_micro_batches(self, examples: Sequence[Example], settings: Update) -> Update:
        """The settings with the tokens of a micro-batch, and whether layers are checkpointed, where they leave that open.
        Whether those keep FlexAttention's results is kept here."""
        longest = max(sum(map(len, example.ids)) for example in examples)
        policy = self.policy
        chosen = memory.micro_batches_on(
            self.place[1], self.model, settings, policy.lora.rank, longest, policy.deterministic
        )
        everywhere = gathered(chosen)  # processes that divide a model pass through it together
        tokens, checkpointing = min(each.tokens for each in everywhere), any(each.checkpointing for each in everywhere)
        self.keeps_attention = all(each.keeps_attention for each in everywhere)
        return settings.model_copy(update={"tokens_per_micro_batch": tokens, "gradient_checkpointing": checkpointing})

    def set_checkpointing(self, on: bool) -> None:
        """Keep only each layer's input, and FlexAttention's results where there is room; compute the rest again in the
        backward pass."""
        from steps.training import flex

        base = self.model.get_base_model()
        if on:
            is_kept = self.keeps_attention and flex.runs_on(self.place[1])
            kept = {"context_fn": flex.kept_contexts} if is_kept else {}
            base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False, **kept})
        elif base.is_gradient_checkpointing:
            base.gradient_checkpointing_disable()

    @property
    def place(self) -> tuple[Any, Any]:
        """The base model's dtype, and its device."""
        head = self.model.get_output_embeddings().weight
        return head.dtype, head.device

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
            computed = sorted(
                (example for example in part if example.has_gradient(settings.beta)), key=lambda example: example.ids
            )
            step = OptimizerStep(
                self._share(computed, settings, total),
                trajectories=len(part),
                tokens=sum(example.tokens for example in part),
                computed=sum(example.tokens for example in computed),
                groups=frozenset(example.group for example in computed),
            )
            steps.append(step)
        return steps

    def _packed(self, batches: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], packing.Packed]]:
        """Micro-batches with their packed rows."""
        on_gpu = self.place[1].type == "cuda"
        return packing.ahead(batches, lambda batch: self._pack(batch["examples"]), in_thread=on_gpu)

    def _grammars(self, rows: Sequence[Row]) -> Grammars | None:
        """What replays the grammars of these rows; None where they have none."""
        if self.grammars is None and any(row.stretches for row in rows):
            base, tokenizer = self.model.get_base_model(), load_tokenizer(self.policy)
            ends = base.generation_config.eos_token_id
            ends = {*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None}
            self.grammars = Grammars(tokenizer, self.vocabulary, ends)
        return self.grammars if any(row.stretches for row in rows) else None

    def _pack(self, examples: Sequence[Example]) -> packing.Packed:
        rows = [row for example in examples for row in example.rows]
        counts = [len(example.rows) for example in examples]
        if self.vision is None and any(row.pictures for row in rows):
            self.vision = load_vision(self.policy)
        return packing.pack(rows, *self.place, counts=counts, grammars=self._grammars(rows), vision=self.vision)

    def _batch(self, examples: Sequence[Example], total: int) -> dict[str, Any]:
        """A micro-batch under TRL's names, with sampled tokens only; `total`: sampled tokens of the whole pass."""
        import torch

        _, device = self.place
        sampled = [
            [
                logprob
                for row in example.rows
                for logprob, is_sampled in zip(row.logprobs, row.mask, strict=True)
                if is_sampled
            ]
            for example in examples
        ]
        logps = torch.tensor(packing.padded(sampled), dtype=torch.float32, device=device)
        mask = torch.tensor(packing.padded([[1.0] * len(row) for row in sampled]), dtype=torch.float32, device=device)
        advantages: Any = [example.advantage for example in examples]  # [B], or of tokens [B, S]
        if any(example.by_token for example in examples):
            advantages = packing.padded(
                [
                    example.by_token or [example.advantage] * len(row)
                    for example, row in zip(examples, sampled, strict=True)
                ]
            )
        return {
            "examples": examples,
            "prompt_ids": torch.zeros((len(examples), 0), dtype=torch.long, device=device),
            "prompt_mask": torch.zeros((len(examples), 0), device=device),
            "completion_ids": torch.zeros(mask.shape, dtype=torch.long, device=device),
            "completion_mask": mask,
            "advantages": torch.tensor(advantages, dtype=torch.float32, device=device),
            "old_per_token_logps": logps,
            "sampling_per_token_logps": logps,
            "num_items_in_batch": torch.tensor(float(total), device=device),
            "tokens": float(mask.sum()),
        }

    def _reference(self, packed: packing.Packed, settings: Update, temperature: float) -> Any:
        """Logprobs [B, S] of `update.reference`: the same model with its adapter disabled, or with the first one."""
        import torch

        start = self.start if settings.reference == "start" else None  # which the stage update has made sure of
        with torch.no_grad(), self.model.disable_adapter() if start is None else adapter_of(self.model, start):
            return packing.token_logps(self.model, packed, temperature, with_entropies=False)[0]

    def _correct(
        self,
        correction: Correction,
        steps: Sequence[OptimizerStep],
        temperature: float,
        meters: Sequence[Callable[..., None]],
    ) -> None:
        """Correct the optimiser steps that are made with other weights than the present ones: all but the first, whose own
        forward pass has the old policy's logprobs."""
        import torch

        with torch.no_grad():
            for batch, packed in self._packed([batch for step in steps for batch in step.batches]):
                old, entropies = packing.token_logps(self.model, packed, temperature)
                for meter in meters:
                    meter(old, entropies, batch)
                correction.correct(batch, old)

    @staticmethod
    def _accumulate(loss: TrlLoss, batch: dict[str, Any], step: OptimizerStep, steps: int) -> float:
        """Backward pass of a micro-batch's share of its step's loss. Any split of a step gives the same gradient.

        TRL divides by the number of micro-batches, as if they were equal; here each is weighted by its trajectories, for
        bnpo by its tokens. dapo and cispo divide by the tokens of an average step, which TRL takes from the whole pass.
        What the step counts without computing it has a share, too, and adds nothing.
        """
        share = len(batch["examples"]) / step.trajectories
        if loss.loss_type == "bnpo" and batch["tokens"]:
            share = batch["tokens"] / step.tokens
        loss.weigh(share, steps)
        value = loss(batch)
        value.backward()
        return float(value.detach())

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
