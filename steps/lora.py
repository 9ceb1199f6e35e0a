"""A base model with a LoRA adapter, as an update wants it: packed attention, no dropout, a shorter forward of its layers."""

from __future__ import annotations

from types import MethodType
from typing import TYPE_CHECKING, Any

from steps import engine, packing

if TYPE_CHECKING:
    import torch

    from steps.params import Policy


def load_model(policy: Policy) -> Any:
    """The policy's base model with a fresh adapter, drawn from torch's seed. UserError where it does not fit."""
    import torch
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora import Linear

    base = engine.load_model(policy)
    packing.prepare(base)
    for layer in base.modules():
        if isinstance(layer, torch.nn.Dropout):  # the sampler has none, and ratios would measure it
            layer.p = 0.0
    lora = LoraConfig(
        r=policy.lora.rank,
        lora_alpha=policy.lora.alpha,
        lora_dropout=0.0,
        target_modules=engine.adapted_layers(base.config) or "all-linear",
        task_type="CAUSAL_LM",
    )
    model = get_peft_model(base, lora)
    for layer in model.modules():
        if type(layer) is Linear:
            layer.forward = MethodType(_adapted, layer)
    return model


def _adapted(layer: Any, x: torch.Tensor) -> torch.Tensor:
    """PEFT's forward of a linear layer with one adapter and no dropout, without its passes over [tokens, out]."""
    from torch.nn.functional import linear

    if layer.disable_adapters:
        return layer.base_layer(x)
    [name] = layer.active_adapters
    a, b = (one[name].weight.to(x.dtype) for one in (layer.lora_A, layer.lora_B))  # as vLLM has them
    flat = x.flatten(0, -2)
    out = layer.base_layer(flat)  # not a view: what is added in place to one copies it on the way back
    out = out.addmm_(linear(flat, a).mul(layer.scaling[name]), b.T)
    return out.view(*x.shape[:-1], -1)
