"""Terms of an update beside GRPO's own, which add-ons bring: the port `term`, by the setting of `update` that asks
for one where it differs from its default."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from steps.core.ports import bring, names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steps.core.params import Update
    from steps.training.batches import OptimizerStep
    from steps.training.loss import TrlLoss
    from steps.training.meter import Meter
    from steps.training.packing import Packed
    from steps.training.trained import Trained


class Seen(NamedTuple):
    """What a pass before the gradient saw of a micro-batch of B trajectories, S sampled tokens of the longest."""

    batch: dict[str, Any]
    entropies: Any  # [B, S]
    packed: Packed | None  # where the router's logits are asked for, as those
    routed: Sequence[Any]  # [U, experts] of each layer


class Term:
    """A term, whose methods are called in this order; each does nothing where it is not overridden."""

    learns_everywhere = False  # whether trajectories without a signal have a gradient of it
    learns_entropies = False  # whether it needs the gradient of entropies
    surveys = False  # whether it asks for a pass over each whole optimiser step before its gradient
    looks_ahead = False  # whether it asks for `forward` of each micro-batch before a weight changes
    is_routed = False  # whether it asks for the logits of a mixture of experts' routers

    def __init__(self, settings: Update) -> None:
        self.settings = settings

    def begin(self, trainer: Trained, before: Term | None) -> None:
        """Begin an update, going on from the trainer's last one, whose term of this kind is `before`, or else from its
        checkpoint. UserError where the model cannot have this term."""

    def plan(self, last: int) -> None:
        """Before the first of the update's optimiser steps, of which the last has this number in the whole run."""

    def join(self, loss: TrlLoss) -> None:
        """Set what TRL's loss reads of this term."""

    def survey(self, loss: TrlLoss, step: OptimizerStep, seen: Sequence[Seen]) -> None:
        """Before an optimiser step's gradient; `seen`: its micro-batches, where a term asked for that pass."""

    def reference(self, weights: dict[str, Any]) -> AbstractContextManager[Any] | None:
        """Inside, the model computes with the reference's weights; None where those are not this term's."""

    def forward(self, batch: dict[str, Any], logps: Any) -> None:
        """After a forward pass of a micro-batch, before TRL's loss reads it; `logps`: [B, S], without gradient."""

    def weigh(self, loss: TrlLoss, batch: dict[str, Any], share: float) -> None:
        """Before the loss of a micro-batch that is this share of its optimiser step."""

    def add(self, loss: TrlLoss, batch: dict[str, Any]) -> None:
        """After the backward pass of a micro-batch."""

    def end(self, meter: Meter) -> None:
        """After an optimiser step's gradient, of which this process's part is in `meter`."""

    def rate(self, steps: int) -> float:
        """The share of update.learning_rate after so many optimiser steps of the whole run."""
        return 1.0

    def stepped(self, trainer: Trained) -> None:
        """After an optimiser step has changed the weights."""

    def metrics(self) -> dict[str, float]:
        """Of the whole update."""
        return {}

    def save(self, folder: Path, state: dict[str, Any]) -> None:
        """Keep in a checkpoint, in the JSON `state` or beside it, what the next update goes on from."""


def terms_of(settings: Update) -> list[Term]:
    """The terms that these settings ask for, each once."""
    kinds: dict[type[Term], None] = dict.fromkeys(bring("term", name, f"update.{name}") for name in asking(settings))
    return [kind(settings) for kind in kinds]


def asking(settings: Update) -> list[str]:
    """The settings that ask for a term."""
    values = {name: (getattr(settings, name), type(settings).model_fields[name].default) for name in names("term")}
    return [name for name, (value, default) in values.items() if value != default and value is not False]
