"""The model that an update trains: the policy's base model, frozen, with a LoRA adapter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.policy import loading
from steps.training import packing

if TYPE_CHECKING:
    from steps.core.params import Policy


def load_model(policy: Policy, device: str | None = None) -> Any:
    """The policy's base model with a fresh adapter, drawn with torch's seed, on `device` or on the GPU where there is one.
    UserError for unsupported layers."""
    return wrap(loading.load_model(policy, device), policy)


def wrap(base: Any, policy: Policy) -> Any:
    """A base model with a fresh adapter, prepared for updates: packed attention, no dropout, faster layers."""
    import torch
    from peft import LoraConfig, get_peft_model

    from steps.training import layers

    packing.prepare(base)
    for layer in base.modules():
        if isinstance(layer, torch.nn.Dropout):  # the sampler has no dropout, so the ratios would measure it
            layer.p = 0.0
    lora = LoraConfig(
        r=policy.lora.rank,
        lora_alpha=policy.lora.alpha,
        lora_dropout=0.0,
        target_modules=loading.adapted_layers(base.config) or "all-linear",
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, lora)
    layers.replace_forwards(model)
    return model


@contextlib.contextmanager
def adapter_of(model: Any, folder: Path) -> Iterator[None]:
    """Inside, a PEFT model computes with the adapter in a folder; afterwards with its own again, bit for bit. UserError
    where the two do not have the same layers and rank."""
    import torch
    from peft import get_peft_model_state_dict
    from safetensors.torch import load_file

    weights, tensors = get_peft_model_state_dict(model), load_file(folder / "adapter_model.safetensors")
    shapes = [{name: tuple(value.shape) for name, value in each.items()} for each in (weights, tensors)]
    if shapes[0] != shapes[1]:
        raise UserError(
            f"{folder} holds an adapter of other layers or another rank than the one that is being trained: it is of "
            "another policy.base_model or policy.lora; run the stages again (`dvc repro`)"
        )
    own = {name: value.clone() for name, value in weights.items()}

    def take(values: dict[str, Any]) -> None:
        with torch.no_grad():
            for name, value in weights.items():  # these share the memory of the model's parameters
                value.copy_(values[name])

    take(tensors)
    try:
        yield
    finally:
        take(own)
