"""The model that an update trains: the policy's base model, frozen, with a LoRA adapter."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
