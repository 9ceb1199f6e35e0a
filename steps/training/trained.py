"""What is trained: the policy's base model with a LoRA adapter and Adam's moments, what a checkpoint keeps of it, and how
its rows are packed. steps/training/grpo.py trains it by trajectories, addons/supervised/fine_tuning.py by demonstrations."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.ports import bring
from steps.core.section import at
from steps.policy.adapter import adapter_hash
from steps.policy.loading import load_tokenizer, load_vision
from steps.policy.machine import GPU, before_sampling
from steps.training import packing
from steps.training.batches import TOKENS, Example
from steps.training.model import WEIGHTS, Base, load_model
from steps.training.processes import process
from steps.training.terms import Term

if TYPE_CHECKING:
    import torch

    from steps.core.params import Policy, Update
    from steps.core.pictures import Vision
    from steps.core.records import Row

# The base model with its adapter's layers, by policy; at most one. Global, because stages are plain functions, and a warm
# process runs many updates in a row: each replaces the adapter's weights instead of loading the base model again.
_bases: dict[str, Base] = {}


def leave_gpu() -> None:
    """Take the base model's weights off the GPU, if this process trains on one."""
    for base in _bases.values():
        base.leave()


class Trained:
    """A base model with a LoRA adapter, Adam's moments, and the count of optimiser steps so far."""

    def __init__(self, policy: Policy, seed: int = 0, checkpoint: Path | None = None, is_sharded: bool = False) -> None:
        """With a fresh adapter drawn from `seed`, or with a checkpoint's adapter and optimiser. `is_sharded`: each process
        holds a part of the base model."""
        import torch

        if process()[1] > 1:
            bring("processes", "shared", "update.launcher").join()
        self.policy, self.is_sharded = policy, is_sharded
        # A base model that the engine divides may not fit on one GPU, and a fresh adapter needs none.
        place = "cpu" if is_sharded or (checkpoint is None and (at(policy, "tensor_parallel") or 1) > 1) else None
        key = f"{policy.model_dump_json()} {is_sharded} {place}"
        if key not in _bases or checkpoint is None:
            _bases.clear()
            torch.manual_seed(seed)
            model = load_model(policy, place)
            if is_sharded:
                bring("processes", "shared", "update.launcher").shard(model)
            base = Base(model)
            _bases[key] = bring("gpu", "memory", GPU).Base(model) if base.device.type == "cuda" else base
        before_sampling(leave_gpu)
        _bases[key].come_back()
        if at(policy, "share_weights"):
            bring("sharing", "weights", "policy.share_weights").of_trainer(policy, _bases[key])
        self.model = _bases[key].model
        self.model.train()
        self.weights = {name: value for name, value in self.model.named_parameters() if value.requires_grad}
        self.vocabulary = int(self.model.get_output_embeddings().weight.shape[0])
        self.layers = int(self.model.config.get_text_config().num_hidden_layers)
        self.trained_parameters = sum(value.numel() for value in self.weights.values())
        self.steps, self.adapter_hash = 0, ""
        self.moments: dict[str, dict[str, torch.Tensor]] = {}
        self.terms = list[Term]()  # of the last update's loss, beside GRPO's own
        self.checkpoint = checkpoint  # until an update has gone on from what its terms kept there
        self.keeps_attention = False
        self.grammars: Any = None  # made where a row was sampled under one
        self.vision: Vision | None = None  # made where a row shows a picture
        self.wide_head = False  # logits are computed in float32
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
            write_probe = bring("probe", self.policy.kind, "policy.kind")
            write_probe(folder, self.model, self.policy, self.layers, *self.place)
        return adapter_hash(folder)

    def save_checkpoint(self, folder: Path, adapter: str) -> None:
        """Write what a later update resumes from: adapter weights and hash, Adam's moments (no pickle), steps, `start`, and
        what terms of the loss keep."""
        from safetensors.torch import save_file

        folder.mkdir()
        tensors = {f"weight.{name}": value.detach().cpu().contiguous() for name, value in self.weights.items()}
        for name, moments in self.moments.items():
            tensors |= {f"{kind}.{name}": value.cpu().contiguous() for kind, value in moments.items()}
        save_file(tensors, folder / "state.safetensors")
        state: dict[str, Any] = {"adapter": adapter, "steps": self.steps}
        for term in self.terms:
            term.save(folder, state)
        (folder / "state.json").write_text(json.dumps(state) + "\n")
        if self.start is not None:
            (folder / "reference").mkdir(exist_ok=True)
            shutil.copyfile(self.start / WEIGHTS, folder / "reference" / WEIGHTS)

    def _load(self, folder: Path) -> None:
        import torch
        from safetensors.torch import load_file

        tensors = load_file(folder / "state.safetensors")
        state = json.loads((folder / "state.json").read_text())
        self.steps, self.adapter_hash = state["steps"], state["adapter"]
        self.start = folder / "reference" if (folder / "reference" / WEIGHTS).exists() else None
        with torch.no_grad():
            for name, value in self.weights.items():
                value.copy_(tensors[f"weight.{name}"])
                value.grad = None
        for name in self.weights if self.steps else ():
            self.moments[name] = {kind: tensors[f"{kind}.{name}"] for kind in ("exp_avg", "exp_avg_sq")}

    def _optimizer(self, settings: Update) -> Any:
        import torch

        optimizer = torch.optim.AdamW(
            self.weights.values(),
            lr=settings.learning_rate,
            weight_decay=at(settings, "weight_decay") or 0.0,
            betas=(settings.adam_beta1, settings.adam_beta2),
        )
        for name, moments in self.moments.items():
            weight = self.weights[name]
            state = {kind: value.to(weight.device) for kind, value in moments.items()}
            optimizer.state[weight] = {"step": torch.tensor(float(self.steps)), **state}
        return optimizer

    def with_micro_batches(self, examples: Sequence[Example], settings: Update) -> Update:
        """The settings with the tokens of a micro-batch, and whether layers are checkpointed, where they leave that open: by
        the memory of a GPU. On a CPU micro-batches have a constant size, because bytes depend on it."""
        if self.place[1].type == "cuda":
            return bring("gpu", "memory", GPU).with_micro_batches(self, examples, settings)
        tokens, checkpointing = settings.tokens_per_micro_batch or TOKENS, bool(settings.gradient_checkpointing)
        return settings.model_copy(update={"tokens_per_micro_batch": tokens, "gradient_checkpointing": checkpointing})

    def set_checkpointing(self, on: bool) -> None:
        """Keep only each layer's input, and FlexAttention's results where there is room; compute the rest again in the
        backward pass."""
        base = self.model.get_base_model()
        if on:
            flex = packing.flex_on(self.place[1]) if self.keeps_attention else None
            kept = {"context_fn": flex.kept_contexts} if flex else {}
            base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False, **kept})
        elif base.is_gradient_checkpointing:
            base.gradient_checkpointing_disable()

    @property
    def place(self) -> tuple[Any, Any]:
        """The base model's dtype, and its device."""
        head = self.model.get_output_embeddings().weight
        return head.dtype, head.device

    def _packed(self, batches: Sequence[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], Any]]:
        """Micro-batches with their packed rows; None for one of trajectories without tokens."""
        on_gpu = self.place[1].type == "cuda"
        return packing.ahead(
            batches, lambda batch: self._pack(batch["examples"]) if batch["examples"] else None, in_thread=on_gpu
        )

    def _grammars(self, rows: Sequence[Row]) -> Any:
        """What replays the grammars of these rows; None where they have none."""
        if self.grammars is None and any(row.stretches for row in rows):
            base, tokenizer = self.model.get_base_model(), load_tokenizer(self.policy)
            ends = base.generation_config.eos_token_id
            ends = {*(ends if isinstance(ends, list) else [ends]), tokenizer.eos_token_id} - {None}
            self.grammars = bring("grammar", "xgrammar", "rollout.grammar")(tokenizer, self.vocabulary, ends)
        return self.grammars if any(row.stretches for row in rows) else None

    def _pack(self, examples: Sequence[Example]) -> packing.Packed:
        rows = [row for example in examples for row in example.rows]
        counts = [len(example.rows) for example in examples]
        if self.vision is None and any(row.pictures for row in rows):
            self.vision = load_vision(self.policy)
        packed = packing.pack(rows, *self.place, counts=counts, grammars=self._grammars(rows), vision=self.vision)
        return packed._replace(wide_head=self.wide_head)

    def _without_tokens(self, trajectories: int) -> dict[str, Any]:
        """A micro-batch of trajectories that are masked: no token counts, and means over trajectories have them, too. Of one
        column TRL would take the numbers for means of whole trajectories."""
        import torch

        nothing = torch.zeros((trajectories, 2), device=self.place[1])
        names = ("completion_ids", "completion_mask", "old_per_token_logps", "sampling_per_token_logps")
        batch: dict[str, Any] = dict.fromkeys((*names, "ref_per_token_logps"), nothing)
        batch |= {"prompt_ids": nothing[:, :0], "prompt_mask": nothing[:, :0], "advantages": nothing[:, 0]}
        return batch | {"examples": [], "num_items_in_batch": nothing.sum(), "tokens": 0.0}

    def _batch(self, examples: Sequence[Example], total: int) -> dict[str, Any]:
        """A micro-batch under TRL's names, with sampled tokens only; `total`: sampled tokens of the whole pass.

        The ids have a shape alone, since the forward pass has its own. `old_per_token_logps` are the sampler's until a
        Correction brings the trainer's."""
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
