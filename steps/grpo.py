"""GRPO on stored trajectories: TRL's own loss, fed by a plain loop over length-sorted micro-batches.

The loss is `GRPOTrainer._compute_loss` (Shao et al. 2024, arXiv:2402.03300; variants as TRL documents them), called with
a stand-in that holds the attributes which it reads, so that a knob TRL adds fails loudly instead of being ignored. What is
left out of TRL's trainer: its data loading, generation and compilation, which cost more than the update itself here.

Shapes: B rows of a micro-batch, T their padded length, N sampled tokens among them.
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from steps.stage import UserError, progress
from steps.types import Row

if TYPE_CHECKING:
    import torch

    from steps.params import Policy, Update

STD_FLOOR = 1e-4  # added to a standard deviation of rewards, as TRL does

_bases: dict[str, Any] = {}  # the base model with its adapter's layers, once a process


class Example(NamedTuple):
    """A training row and its trajectory's advantage."""

    row: Row
    advantage: float


def advantages(
    rewards: Sequence[float | None], groups: Sequence[str], scale: str = "group"
) -> tuple[list[float | None], int]:
    """Group-normalised advantages, and how many groups had no signal.

    A group's baseline is the mean of its scored attempts, however many those are. None marks what is not trained on: an
    unscored attempt, or one of a group whose scores are all equal. `scale` divides by the group's standard deviation, the
    batch's, or not at all (GRPO; Hu et al. 2025, REINFORCE++; Dr. GRPO), each plus 1e-4 as in TRL.
    """
    from statistics import fmean, stdev

    scored: dict[str, list[float]] = defaultdict(list)
    for reward, group in zip(rewards, groups, strict=True):
        if reward is not None:
            scored[group].append(reward)
    flat = {group for group, values in scored.items() if max(values) - min(values) < 1e-9}
    all_scores = [reward for reward in rewards if reward is not None]
    batch_std = stdev(all_scores) if len(all_scores) > 1 else 0.0
    result: list[float | None] = []
    for reward, group in zip(rewards, groups, strict=True):
        if reward is None or group in flat:
            result.append(None)
            continue
        centred = reward - fmean(scored[group])
        std = {"group": stdev(scored[group]), "batch": batch_std, "none": None}[scale]
        result.append(centred if std is None else centred / (std + STD_FLOOR))
    return result, len(flat) + len(set(groups) - set(scored))


class TrlLoss:
    """The part of a GRPOTrainer that `_compute_loss` reads: one process, no vLLM, no extras."""

    top_entropy_quantile = 1.0
    off_policy_mask_threshold = None
    importance_sampling_level = "token"
    use_vllm = False
    vllm_importance_sampling_correction = False
    aux_loss_enabled = False
    _entropy_bonus_enabled = False

    def __init__(self, update: Update, model: Any, temperature: float, max_completion_length: int) -> None:
        self.model = model
        self.temperature = temperature
        self.loss_type = update.loss_type
        self.beta = update.beta
        self.epsilon_low = update.epsilon
        self.epsilon_high = update.epsilon_high
        self.max_completion_length = max_completion_length
        self.args = SimpleNamespace(delta=None, use_bias_correction_kl=False, steps_per_generation=1)
        self.current_gradient_accumulation_steps = 1.0
        self.accelerator = SimpleNamespace(
            num_processes=1, gather=lambda value: value, reduce=lambda value, reduction: value, sync_gradients=True
        )
        self._metrics: dict[str, Any] = {"train": defaultdict(list), "eval": defaultdict(list)}
        self.logps: torch.Tensor | None = None  # (B, T-1) of the last call, detached

    def __call__(self, batch: dict[str, Any]) -> Any:
        from trl import GRPOTrainer

        return GRPOTrainer._compute_loss(self, self.model, batch)

    def take_metrics(self) -> dict[str, float]:
        """TRL's metrics of the calls since the last time, averaged over them."""
        taken = {name: sum(values) / len(values) for name, values in self._metrics["train"].items()}
        self._metrics["train"].clear()
        return taken

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Any, attention_mask: Any, logits_to_keep: int, **_: Any
    ) -> tuple[Any, Any, None]:
        logps, entropies = token_logps(model, input_ids, self.sampled, self.temperature)
        self.logps = logps.detach()
        return logps, entropies, None

    sampled: torch.Tensor  # (B, T) 1 = sampled token; set for each call


def token_logps(model: Any, ids: torch.Tensor, sampled: torch.Tensor, temperature: float) -> tuple[Any, Any]:
    """Logprobs and entropies (nats) of the sampled tokens among ids[:, 1:], zero elsewhere: two (B, T-1).

    Logits are made for sampled tokens alone. Rows are padded on the right, which a causal model does not see.
    """
    import torch

    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = causal.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state  # (B, T, width)
    chosen = sampled[:, 1:].bool()
    logits = causal.get_output_embeddings()(hidden[:, :-1][chosen]).float() / temperature  # (N, vocabulary)
    all_logps = torch.log_softmax(logits, dim=-1)
    picked = all_logps.gather(-1, ids[:, 1:][chosen].unsqueeze(-1)).squeeze(-1)  # (N,)
    with torch.no_grad():
        entropy = -(all_logps.exp() * all_logps).sum(-1)  # (N,)
    nothing = torch.zeros(chosen.shape, dtype=picked.dtype, device=picked.device)
    return nothing.masked_scatter(chosen, picked), nothing.masked_scatter(chosen, entropy)


class Trainer:
    """A base model with a LoRA adapter, Adam, and the count of optimiser steps so far."""

    def __init__(self, policy: Policy, seed: int = 0, checkpoint: Path | None = None) -> None:
        """A fresh adapter drawn from `seed`, or the one of a checkpoint with its optimiser."""
        import torch

        from steps.engine import sleep_all, use_all_cores

        use_all_cores()
        sleep_all()
        self.policy = policy
        key = policy.model_dump_json()
        if key not in _bases or checkpoint is None:
            _bases.clear()
            torch.manual_seed(seed)
            _bases[key] = _with_adapter(policy)
        self.model = _bases[key]
        self.model.train()
        self.weights = {name: value for name, value in self.model.named_parameters() if value.requires_grad}
        self.trained_parameters = sum(value.numel() for value in self.weights.values())
        self.steps = 0
        self.moments: dict[str, dict[str, torch.Tensor]] = {}
        if checkpoint is not None:
            self._load(checkpoint)

    def save_adapter(self, folder: Path) -> None:
        """A PEFT folder: what is served."""
        self.model.save_pretrained(folder)
        path = folder / "adapter_config.json"
        config = json.loads(path.read_text())
        config["target_modules"] = sorted(config["target_modules"])  # PEFT writes a set, in another order each time
        path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        (folder / "README.md").unlink(missing_ok=True)  # PEFT's template of a model card, empty

    def save_checkpoint(self, folder: Path) -> None:
        """What is resumed: adapter weights, Adam's moments (no pickle), steps so far."""
        from safetensors.torch import save_file

        folder.mkdir()
        tensors = {f"weight.{name}": value.detach().cpu().contiguous() for name, value in self.weights.items()}
        for name, moments in self.moments.items():
            tensors |= {f"{kind}.{name}": value.cpu().contiguous() for kind, value in moments.items()}
        save_file(tensors, folder / "state.safetensors")
        (folder / "state.json").write_text(json.dumps({"steps": self.steps}) + "\n")

    def _load(self, folder: Path) -> None:
        import torch
        from safetensors.torch import load_file

        tensors = load_file(folder / "state.safetensors")
        self.steps = json.loads((folder / "state.json").read_text())["steps"]
        with torch.no_grad():
            for name, value in self.weights.items():
                value.copy_(tensors[f"weight.{name}"])
                value.grad = None
        for name in self.weights if self.steps else ():
            self.moments[name] = {kind: tensors[f"{kind}.{name}"] for kind in ("exp_avg", "exp_avg_sq")}

    def _optimizer(self, update: Update) -> Any:
        import torch

        optimizer = torch.optim.AdamW(
            self.weights.values(), lr=update.learning_rate, weight_decay=update.weight_decay, betas=(0.9, 0.95)
        )
        for name, moments in self.moments.items():
            weight = self.weights[name]
            state = {kind: value.to(weight.device) for kind, value in moments.items()}
            optimizer.state[weight] = {"step": torch.tensor(float(self.steps)), **state}
        return optimizer

    def update(self, examples: Sequence[Example], update: Update, temperature: float, seed: int) -> dict[str, float]:
        """`num_iterations` × `steps_per_generation` optimiser steps on the examples; metrics, means over tokens or steps."""
        import torch

        optimizer = self._optimizer(update)
        loss = TrlLoss(update, self.model, temperature, self.policy.context)
        steps = self._batches(examples, update, seed)
        if update.beta:
            self._add_reference(steps, temperature)
        sums: dict[str, float] = defaultdict(float)
        tokens = 0.0
        planned = update.num_iterations * update.steps_per_generation
        for done in range(planned):
            batches = steps[done % update.steps_per_generation]
            drift = 0.0
            for batch in batches:
                sums["loss"] += self._accumulate(loss, batch, batches) / planned
                drift += sampler_kl(loss.logps, batch)
                for name, metric in loss.take_metrics().items():
                    sums[name] += metric * batch["tokens"]
            tokens += (step_tokens := sum(batch["tokens"] for batch in batches))
            if done == 0:  # nothing has been changed yet
                sums["sampler_kl"] = check_sampler(drift / step_tokens, update.max_sampler_kl)
            norm = torch.nn.utils.clip_grad_norm_(self.weights.values(), update.max_grad_norm)
            sums["grad_norm"] += norm.item() / planned
            optimizer.step()
            optimizer.zero_grad()
            self.steps += 1
            progress(done + 1, planned, "optimiser steps")
        self.moments = {
            name: {kind: optimizer.state[weight][kind] for kind in ("exp_avg", "exp_avg_sq")}
            for name, weight in self.weights.items()
        }
        whole = ("sampler_kl", "grad_norm", "loss")
        return {name: value if name in whole else value / tokens for name, value in sums.items()}

    def _batches(self, examples: Sequence[Example], update: Update, seed: int) -> list[list[dict[str, Any]]]:
        """The micro-batches of each optimiser step of a pass: seeded shuffle, even shares, rows of like length together."""
        total = sum(sum(example.row.mask) for example in examples)
        order = random.Random(f"update {seed} {self.steps}").sample(range(len(examples)), len(examples))
        window = total / update.steps_per_generation  # tokens by which dapo divides, as TRL does
        return [
            [
                self._batch([examples[index] for index in part], window)
                for part in micro_batches(chosen, examples, update.tokens_per_micro_batch)
            ]
            for chosen in split_evenly(order, update.steps_per_generation)
        ]

    def _add_reference(self, steps: list[list[dict[str, Any]]], temperature: float) -> None:
        """Logprobs of the base policy: the same model with its adapter off."""
        import torch

        with torch.no_grad(), self.model.disable_adapter():
            for batch in (batch for batches in steps for batch in batches):
                batch["ref_per_token_logps"], _ = token_logps(self.model, batch["ids"], batch["sampled"], temperature)

    @staticmethod
    def _accumulate(loss: TrlLoss, batch: dict[str, Any], step: list[dict[str, Any]]) -> float:
        """Backward of one micro-batch's part of its step's loss. Any split of a step gives the same gradient.

        TRL divides by the number of micro-batches, as if they were equal; here each counts by its rows, for bnpo by its
        tokens. dapo divides by the tokens of the step's window itself.
        """
        share = len(batch["ids"]) / sum(len(other["ids"]) for other in step)
        if loss.loss_type == "bnpo":
            share = batch["tokens"] / sum(other["tokens"] for other in step)
        elif loss.loss_type == "dapo":
            share = 1.0
        loss.current_gradient_accumulation_steps = loss.args.steps_per_generation = 1 / share
        loss.sampled = batch["sampled"]
        value = loss(batch)
        value.backward()
        return float(value.detach())

    def _batch(self, examples: Sequence[Example], window: float) -> dict[str, Any]:
        """A micro-batch in TRL's names: the first token is the prompt, `tool_mask` says what was sampled."""
        import torch

        device = next(iter(self.weights.values())).device
        length = max(len(example.row.ids) for example in examples)

        def padded(values: Sequence[Sequence[float]], kind: Any) -> Any:
            return torch.tensor([[*value, *[0] * (length - len(value))] for value in values], dtype=kind, device=device)

        ids = padded([example.row.ids for example in examples], torch.long)
        sampled = padded([example.row.mask for example in examples], torch.float32)
        there = padded([[1] * len(example.row.ids) for example in examples], torch.float32)
        return {
            "ids": ids,
            "sampled": sampled,
            "prompt_ids": ids[:, :1],
            "prompt_mask": there[:, :1],
            "completion_ids": ids[:, 1:],
            "completion_mask": there[:, 1:],
            "tool_mask": sampled[:, 1:],
            "advantages": torch.tensor([example.advantage for example in examples], device=device),
            "old_per_token_logps": padded([example.row.logprobs for example in examples], torch.float32)[:, 1:],
            "num_items_in_batch": torch.tensor(window, device=device),
            "tokens": float(sampled.sum()),
        }


def _with_adapter(policy: Policy) -> Any:
    from peft import LoraConfig, get_peft_model

    from steps.engine import load_model

    lora = LoraConfig(
        r=policy.lora.rank,
        lora_alpha=policy.lora.alpha,
        lora_dropout=0.0,
        target_modules="all-linear",
        task_type="CAUSAL_LM",
    )
    return get_peft_model(load_model(policy), lora)


def split_evenly(order: list[int], parts: int) -> list[list[int]]:
    """`parts` lists whose lengths differ by at most one. UserError where there are fewer rows than parts."""
    if len(order) < parts:
        raise UserError(
            f"update.steps_per_generation is {parts}, but only {len(order)} trajectories carry a signal: lower it, or raise "
            "rollout.scenarios or rollout.attempts"
        )
    return [order[part::parts] for part in range(parts)]


def micro_batches(chosen: list[int], examples: Sequence[Example], budget: int) -> Iterator[list[int]]:
    """Rows of like length together, at most `budget` padded tokens each (one row may be longer by itself)."""
    batch: list[int] = []
    for index in sorted(chosen, key=lambda index: (len(examples[index].row.ids), index)):
        length = len(examples[index].row.ids)  # ascending: the longest of the batch so far
        if batch and (len(batch) + 1) * length > budget:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch


def sampler_kl(logps: Any, batch: dict[str, Any]) -> float:
    """Sum over sampled tokens of the k3 estimate of KL(sampler ‖ trainer) (Schulman 2020), in nats."""
    difference = (logps - batch["old_per_token_logps"]) * batch["sampled"][:, 1:]
    return float((difference.exp() - 1 - difference).sum())


def check_sampler(kl: float, limit: float) -> float:
    """The trajectories must come from the policy that is trained: UserError where they do not."""
    if not kl <= limit:
        raise UserError(
            f"the trajectories were not sampled by the policy that is being trained: KL(sampler ‖ trainer) is {kl:.2e} nats "
            f"a token, update.max_sampler_kl is {limit:.0e}; a stale adapter, another temperature or a wrong mask does this"
        )
    return kl
