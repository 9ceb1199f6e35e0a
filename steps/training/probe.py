"""Writes the probe of a trained adapter: what this trainer's model makes of a fixed text (steps/policy/probe.py)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.params_update import Update
from steps.core.records import Row
from steps.policy import probe
from steps.policy.loading import load_tokenizer
from steps.policy.machine import deterministic
from steps.training import packing

if TYPE_CHECKING:
    from steps.core.params import Policy


def write(folder: Path, model: Any, policy: Policy, layers: int, dtype: Any, device: Any) -> None:
    """Compute the most probable tokens at the places of the probe's text with the model's adapter; write them beside it."""
    import torch

    ids = probe.token_ids(load_tokenizer(policy))
    row = Row([*ids, ids[0]], [0] + [1] * len(ids), [0.0] * (len(ids) + 1))  # each place has a token after it
    with torch.no_grad(), deterministic(policy.deterministic):
        packed = packing.pack([row], dtype, device)
        causal = model.get_base_model()
        hidden = causal.get_decoder()(
            input_ids=packed.ids, position_ids=packed.positions, packed=packed, use_cache=False
        ).last_hidden_state.squeeze(0)  # [U, W]
        chosen = packed.before[torch.tensor([place - 1 for place in probe.places(ids)], device=hidden.device)]
        logits = causal.get_output_embeddings()(hidden[chosen]).float()  # [places, V]
        logprobs, tokens = torch.log_softmax(logits, -1).topk(probe.TOP)
    limit = Update().of_dtype(policy.dtype).sampler_limit(layers)
    probe.write(folder, probe.Probe(ids, tuple(tokens.tolist()), tuple(logprobs.tolist()), limit))
