"""The model that an update trains: the policy's base model, frozen, with a LoRA adapter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.core.imports import import_lean
from steps.core.ports import every
from steps.policy import loading

if TYPE_CHECKING:
    import torch

    from steps.core.params import Policy

WEIGHTS = "adapter_model.safetensors"  # of an adapter, as PEFT names it


class Base:
    """A model whose frozen weights stay where they are. On a GPU an add-on's takes its place, whose weights can leave while
    the engine samples (port `gpu`)."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.frozen = [value for value in model.parameters() if not value.requires_grad]
        self.device = self.frozen[0].device

    def leave(self) -> None:
        """Let go of the weights' memory on the device."""

    def come_back(self) -> None:
        """Have the weights on the device again."""

    def share(self, tensors: list[torch.Tensor]) -> None:
        """Have the frozen weights be these tensors of the engine's, in the model's order. They are no longer this object's:
        they neither leave nor come back."""
        for value, tensor in zip(self.frozen, tensors, strict=True):
            value.data = tensor
        self.frozen = []


def load_model(policy: Policy, device: str | None = None) -> Any:
    """The policy's base model with a fresh adapter, drawn with torch's seed, on `device` or on the GPU where there is one.
    UserError for unsupported layers."""
    return wrap(loading.load_model(policy, device), policy)


def wrap(base: Any, policy: Policy) -> Any:
    """A base model with a fresh adapter, prepared for updates: packed attention, no dropout, faster layers."""
    import_lean("peft")
    import torch
    from peft import LoraConfig, get_peft_model

    from steps.training import attention

    attention.prepare(base)
    for layer in base.modules():
        if isinstance(layer, torch.nn.Dropout):  # the sampler has no dropout, so the ratios would measure it
            layer.p = 0.0
    lora = LoraConfig(
        r=policy.lora.rank,
        lora_alpha=policy.lora.alpha,
        lora_dropout=0.0,
        target_modules=loading.adapted_layers(base.config) or "all-linear",
        exclude_modules=r".*\bvisual\b.*" if hasattr(base.config, "vision_config") else None,  # it stays as it is
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, lora)
    for replace_forwards in every("forwards"):
        replace_forwards(model)
    return model


@contextlib.contextmanager
def adapter_of(model: Any, folder: Path) -> Iterator[None]:
    """Inside, a PEFT model computes with the adapter in a folder; afterwards with its own again, bit for bit. UserError
    where the two do not have the same layers and rank."""
    from peft import get_peft_model_state_dict

    own = {name: value.clone() for name, value in get_peft_model_state_dict(model).items()}
    take_adapter(model, folder)
    try:
        yield
    finally:
        _take(model, own)


def take_adapter(model: Any, folder: Path) -> None:
    """Give a PEFT model the adapter in a folder, adapter_model.safetensors. UserError where the two do not have the same
    layers and rank."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import load_file

    tensors, weights = load_file(folder / WEIGHTS), get_peft_model_state_dict(model)
    shapes = [{name: tuple(value.shape) for name, value in each.items()} for each in (weights, tensors)]
    if shapes[0] != shapes[1]:
        name = min(name for name in weights.keys() | tensors.keys() if shapes[0].get(name) != shapes[1].get(name))
        mine, given = (str(list(each[name])) if name in each else "nothing" for each in shapes)
        raise UserError(
            f"{folder} holds an adapter of other layers or another rank than the one that is being trained, which has "
            f"{mine} at {name} where that has {given}: it is of another policy.base_model or policy.lora; run the stages "
            "again (`.venv/bin/dvc repro`), or start from an adapter of this policy"
        )
    _take(model, tensors)


def _take(model: Any, values: dict[str, Any]) -> None:
    import torch
    from peft import get_peft_model_state_dict

    with torch.no_grad():
        for name, value in get_peft_model_state_dict(model).items():  # these share the memory of the parameters
            value.copy_(values[name])
