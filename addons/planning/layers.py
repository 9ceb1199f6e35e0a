"""Whether an adapter that a run starts from is of the policy's layers: by the number of its weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from addons.planning import models
from flows.training.start import read_origin
from steps.core.errors import UserError
from steps.policy.adapter import FILES, shapes

if TYPE_CHECKING:
    from steps.core.params import Params

ADAPTERS = {"policy": ("policy", "policy.start_from"), "opponent": ("champion", "rollout.opponent")}


def check(root: Path, params: Params, folder: Path) -> None:
    """UserError where an adapter in `folder` has other weights than one of the policy, whose shape can be read here."""
    policy, origin = params.policy, read_origin(folder) or {}
    try:
        shape = models.at_hand(policy)
    except UserError:
        return
    for name, (place, key) in ADAPTERS.items():
        if shape is None or name not in origin:
            continue
        sizes = shapes(folder / place / FILES[1])
        weights = sum(size[0] * size[1] for size in sizes.values() if len(size) == 2)
        if weights != shape.lora(policy.lora.rank):
            layers = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in sizes})
            raise UserError(
                f"{key}: {origin[name]['resolved']} has {weights:,} weights, in {', '.join(layers)}, and an adapter of "
                f"{policy.base_model} has {shape.lora(policy.lora.rank):,}, in all linear layers: it is of other layers or "
                "of another model"
            )
