"""A reference policy that follows the trained one: TR-DPO's soft update (Gorbatovski et al. 2024, arXiv:2404.09656), with
adapters.

TRL mixes all weights of two models, a · policy + (1 - a) · reference with a = ref_model_mixup_alpha, and refuses adapters,
beside which it has no second model. The weights of a model with a LoRA adapter are the base's plus the product B · A, so the
mixture is the base's plus a weighted sum of such products: those of the policies at each synchronisation, with weights that
fall by 1 - a each time. One adapter of their ranks together computes it exactly. A product whose weight has fallen below
ROUNDING is left out: with a = 0.6 there are at most 19.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from addons.terms.section import Terms
from steps.training.model import WEIGHTS
from steps.training.terms import Term

if TYPE_CHECKING:
    import torch

    from steps.training.trained import Trained

ROUNDING = 2.0**-25  # half a unit in the last place of float32
TENSORS, SHARES = "synced.safetensors", "synced.json"


class Part(NamedTuple):
    """A policy's part in the reference."""

    share: float
    weights: Mapping[str, torch.Tensor]  # of its adapter, by the names that the trained weights have


class Reference(NamedTuple):
    """What the reference is beside the base model."""

    parts: tuple[Part, ...] = ()

    def mixed(self, weights: Mapping[str, torch.Tensor], alpha: float) -> Reference:
        """With the trained weights as they are now."""
        older = [Part(part.share * (1 - alpha), part.weights) for part in self.parts]
        now = Part(alpha, {name: value.detach().clone() for name, value in weights.items()})
        return Reference((*(part for part in older if part.share > ROUNDING), now))

    @contextlib.contextmanager
    def inside(self, weights: Mapping[str, torch.Tensor]) -> Iterator[None]:
        """Inside, the model whose trained weights these are computes with the reference's; afterwards again with its own."""
        import torch

        own = {name: value.data for name, value in weights.items()}
        try:
            for name, value in weights.items():
                if ".lora_A." in name:
                    value.data = torch.cat([part.weights[name].to(value.device) for part in self.parts])
                else:
                    parts = [part.share * part.weights[name].to(value.device) for part in self.parts]
                    value.data = torch.cat(parts, 1)
            yield
        finally:
            for name, value in weights.items():
                value.data = own[name]

    def save(self, folder: Path) -> None:
        from safetensors.torch import save_file

        folder.mkdir(exist_ok=True)
        tensors = {
            f"{place}.{name}": value for place, part in enumerate(self.parts) for name, value in part.weights.items()
        }
        save_file({name: value.cpu().contiguous() for name, value in tensors.items()}, folder / TENSORS)
        (folder / SHARES).write_text(json.dumps([part.share for part in self.parts]) + "\n")

    @staticmethod
    def load(folder: Path) -> Reference | None:
        """That of a checkpoint's folder; None where it has none."""
        from safetensors.torch import load_file

        if not (folder / SHARES).exists():
            return None
        tensors, parts = load_file(folder / TENSORS), []
        for place, share in enumerate(json.loads((folder / SHARES).read_text())):
            own = {name.partition(".")[2]: value for name, value in tensors.items() if name.startswith(f"{place}.")}
            parts.append(Part(share, own))
        return Reference(tuple(parts))

    @staticmethod
    def of_adapter(file: Path, names: Mapping[str, torch.Tensor]) -> Reference:
        """A whole adapter, as PEFT saved it, by the names that the trained weights have."""
        from safetensors.torch import load_file

        tensors = load_file(file)
        return Reference((Part(1.0, {name: tensors[name.replace(".default.", ".")] for name in names}),))


class Following(Term):
    """The reference that follows the policy. For a whole update it is as it was when that began: TRL takes its logprobs when
    a batch is sampled."""

    moved = now = Reference()  # as the optimiser steps so far have moved it, and as it is for this update

    def begin(self, trainer: Trained, before: Term | None) -> None:
        kept = before.moved if isinstance(before, Following) else None
        if kept is None and trainer.checkpoint is not None:
            kept = Reference.load(trainer.checkpoint / "reference")
        if kept is None and self.settings.reference == "start" and trainer.start is not None:
            kept = Reference.of_adapter(trainer.start / WEIGHTS, trainer.weights)
        self.moved = self.now = kept or Reference()

    def reference(self, weights: dict[str, Any]) -> contextlib.AbstractContextManager[Any] | None:
        return self.now.inside(weights) if self.now.parts else None

    def stepped(self, trainer: Trained) -> None:
        terms = Terms.of(self.settings)
        if trainer.steps % (terms.ref_model_sync_steps or 1) == 0:
            self.moved = self.moved.mixed(trainer.weights, terms.ref_model_mixup_alpha or 0.0)

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        self.moved.save(folder / "reference")
