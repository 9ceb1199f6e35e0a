"""A base model with a LoRA adapter, as an update wants it: packed attention, no dropout, a shorter forward of its layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from steps.policy import loading
from steps.training import packing

if TYPE_CHECKING:
    from steps.core.params import Policy


def load_model(policy: Policy) -> Any:
    """The policy's base model with a fresh adapter, drawn from torch's seed. UserError where it does not fit."""
    import torch
    from peft import LoraConfig, get_peft_model

    from steps.training import layers

    base = loading.load_model(policy)
    packing.prepare(base)
    for layer in base.modules():
        if isinstance(layer, torch.nn.Dropout):  # the sampler has none, and ratios would measure it
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
