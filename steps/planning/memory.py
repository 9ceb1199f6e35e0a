"""Memory by part, in bytes: what the engine and the trainer hold, by formulas that mirror their code.

On a CPU the warm worker holds both, and keeps what it has freed (steps/policy/machine.py), so that the parts add up. On a
card the engine sleeps while the trainer works: what counts is the larger of the two phases. Constants that no formula gives
were fitted to runs of random models on one machine (benchmarks/plan.py, `FITTED`), and are marked so.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from steps.planning.cards import GIB, Machine
from steps.planning.shapes import Shape
from steps.planning.workload import Batch

if TYPE_CHECKING:
    from steps.core.params import Params

MB = 2**20
LOGITS = 2**24  # numbers of a block of logits: as in steps/training/layers.py; a test holds the two together
LOGITS_ON_GPU = 2**27  # the same on a card
BATCHED = 2048  # tokens of an engine step, and
SEQUENCES = 128  # episodes beside each other: vLLM's defaults for an engine in this process
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # as in steps/sampling/engine.py
LIBRARIES = 700 * MB  # fitted: torch, transformers and vLLM, imported
TRAINING = 60 * MB  # fitted: TRL, PEFT
SAMPLING = 90 * MB  # fitted: what the first batch of an engine leaves behind
CARD_CONTEXT = 1.5 * GIB  # stated: CUDA's context, libraries and workspaces, for each of the two


class Memory(NamedTuple):
    """Parts in bytes, and what of them is needed at the same time."""

    parts: dict[str, float]
    sampling: float  # while the engine samples
    training: float  # while the trainer works

    @property
    def peak(self) -> float:
        return max(self.sampling, self.training)


def size(params: Params) -> int:
    """Bytes of a number in policy.dtype."""
    return 4 if params.policy.dtype == "float32" else 2


def cache_on_cpu() -> float:
    """Bytes of the engine's cache of keys and values on a CPU, of which steps/sampling/engine.py makes 1 GiB."""
    return float(os.environ.get("VLLM_CPU_KVCACHE_SPACE") or 1) * GIB


def weights(shape: Shape, params: Params) -> float:
    """The base model's weights in policy.dtype."""
    return shape.parameters * size(params)


def adapter(shape: Shape, params: Params) -> float:
    """The trained adapter with its gradient and Adam's two moments, all float32 (steps/training/grpo.py)."""
    return shape.lora(params.policy.lora.rank) * 4 * 4


def saved(shape: Shape, params: Params, on_card: bool) -> tuple[float, float]:
    """Bytes that a layer keeps for the backward pass: (of each token, of each key that attention gathers).

    In steps/training/layers.py each projection keeps its input (W, W, H·D of values, I) and each norm its own (2 W); queries
    and keys are kept before they are turned, and gathered after it; the gated layer keeps four products of I. On a CPU,
    attention computes in float32; on a card, FlexAttention gathers nothing (steps/training/flex.py).
    """
    number, attended = size(params), size(params) if on_card else 4
    queries, keys = shape.heads * shape.head, shape.key_heads * shape.head
    out = shape.heads * shape.value
    token = number * (4 * shape.width + queries + keys + out + 4 * shape.inner)
    token += number * 7 * params.policy.lora.rank + attended * (queries + 2 * out)
    gathered = 0.0 if on_card else float(attended * shape.key_heads * (shape.head + shape.value))
    return token, gathered


def activations(shape: Shape, params: Params, batch: Batch, on_card: bool) -> float:
    """What the largest micro-batch keeps for its backward pass; with gradient checkpointing (Chen et al. 2016,
    arXiv:1604.06174) each layer's input, and one layer whole. Both need the gradients of one layer beside it."""
    token, gathered = saved(shape, params, on_card)
    layer = token * batch.largest + gathered * batch.largest_keys
    gradients = size(params) * batch.largest * (3 * shape.inner + 4 * shape.width)
    if params.update.gradient_checkpointing:
        return shape.layers * size(params) * shape.width * batch.largest + layer + gradients
    return shape.layers * layer + gradients


def logits(shape: Shape, params: Params, batch: Batch, largest: int = LOGITS) -> float:
    """A block of the update's logits: in policy.dtype, in float32 and as shares of 1, then the hidden states' gradient."""
    block = min(float(largest), batch.largest_sampled * shape.vocabulary)
    copies = 8 if params.policy.dtype == "float32" else 12
    return block * copies + 3 * size(params) * batch.largest_sampled * shape.width


def engine_buffers(shape: Shape, params: Params, episodes: int) -> float:
    """The engine's own activations of a full step of prompts, its sampler's logits in float32 (6 copies: scaled, shares,
    their logarithms, noise, sorted), and its slots for one adapter of the next larger rank."""
    rank = next((allowed for allowed in RANKS if allowed >= params.policy.lora.rank), params.policy.lora.rank)
    step = BATCHED * size(params) * (3 * shape.inner + 6 * shape.width)
    return step + 6 * 4.0 * min(SEQUENCES, episodes) * shape.vocabulary + shape.lora(rank) * size(params)


def of(shape: Shape, params: Params, batch: Batch, machine: Machine) -> Memory:
    """The memory of one worker process on this machine, by part."""
    return on_card(shape, params, batch, machine) if machine.is_card else on_cpu(shape, params, batch)


def on_cpu(shape: Shape, params: Params, batch: Batch) -> Memory:
    number = size(params)
    parts = {
        "libraries": float(LIBRARIES + TRAINING + SAMPLING),
        "weights of the engine": weights(shape, params) + packed(shape, number),
        "KV cache": cache_on_cpu(),
        "engine's buffers": engine_buffers(shape, params, batch.episodes),
        "weights of the trainer": weights(shape, params),
        "adapter, gradient, Adam": adapter(shape, params),
        "activations": activations(shape, params, batch, on_card=False),
        "logits": logits(shape, params, batch),
    }
    whole = sum(parts.values())
    return Memory(parts, sum(list(parts.values())[:4]), whole)


def packed(shape: Shape, number: int) -> float:
    """What vLLM's CPU kernels add to the weights: the output layer packed beside a tied embedding, and a share of the rest
    that its packing leaves in the heap (fitted)."""
    return number * ((shape.embedding if shape.tied else 0) + 0.27 * shape.linear)


def on_card(shape: Shape, params: Params, batch: Batch, machine: Machine) -> Memory:
    share = params.policy.gpu_memory * machine.memory
    cache = share - weights(shape, params) - engine_buffers(shape, params, batch.episodes) - CARD_CONTEXT
    parts = {
        "CUDA, twice": 2 * CARD_CONTEXT,
        "weights of the engine": weights(shape, params),
        "KV cache": cache,
        "engine's buffers": engine_buffers(shape, params, batch.episodes),
        "weights of the trainer": weights(shape, params),
        "adapter, gradient, Adam": adapter(shape, params),
        "activations": activations(shape, params, batch, on_card=True),
        "logits": logits(shape, params, batch, LOGITS_ON_GPU),
    }
    held = (
        parts["adapter, gradient, Adam"] + CARD_CONTEXT
    )  # the trainer's weights leave the card while the engine samples
    training = held + parts["weights of the trainer"] + parts["activations"] + parts["logits"] + CARD_CONTEXT
    return Memory(parts, share + held, training)
