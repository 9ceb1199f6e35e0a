"""Memory by part, in bytes: what the engine and the trainer hold, by formulas that mirror their code.

On a CPU the warm worker holds both, and keeps what it has freed (steps/policy/machine.py), so that the parts add up. On a
card each leaves it to the other: what counts is the larger of the two phases, and addons/gpu/memory.py says what a token
needs and how many are computed together. Constants that no formula gives
were fitted to runs of random models on one machine (benchmarks/plan.py, `FITTED`), and are marked so.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from addons.planning.cards import GIB, Machine
from addons.planning.shapes import Shape
from addons.planning.workload import Batch
from steps.core.ports import need
from steps.core.progress import report_to
from steps.core.section import at
from steps.policy.served import RANKS
from steps.training.batches import TOKENS

if TYPE_CHECKING:
    from addons.gpu.memory import Costs
    from steps.core.params import Params

MB = 2**20
LOGITS = 2**24  # numbers of a block of logits on a CPU: as in steps/training/logprobs.py; a test holds the two together
LOGITS_ON_CARD = 2**28  # the same on a card: as in addons/kernels/fused.py
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


def training() -> Any:
    """The module that says what an update needs on a card. UserError where its add-on is not there."""
    need("gpu", "a plan for a GPU")
    from addons.gpu import memory

    return memory


def costs(shape: Shape, params: Params) -> Costs:
    """What one token of an update needs on a card."""
    config = SimpleNamespace(
        model_type=shape.kind,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_heads,
        head_dim=shape.head,
        intermediate_size=shape.inner,
    )
    config.get_text_config = lambda: config
    return training().costs(config, params.policy.lora.rank, size(params))


def settled(shape: Shape, params: Params, machine: Machine, longest: float) -> Params:
    """The parameters with the micro-batches that the trainer chooses where they are left open, for episodes of `longest`
    tokens."""
    update = params.update
    tokens, checkpointing = update.tokens_per_micro_batch or TOKENS, bool(update.gradient_checkpointing)
    if machine.is_card and at(params, "policy.deterministic"):
        checkpointing = update.gradient_checkpointing is not False
    elif machine.is_card:
        free = machine.memory - 2 * CARD_CONTEXT - weights(shape, params) - adapter(shape, params)
        free -= training().LOGITS * LOGITS_ON_CARD
        report_to(lambda _: None)  # what does not fit is said by the plan
        tokens, checkpointing, _ = training().choose(update, costs(shape, params), round(longest), free)
        report_to(None)
    settings = {"tokens_per_micro_batch": tokens, "gradient_checkpointing": checkpointing}
    return params.model_copy(update={"update": update.model_copy(update=settings)})


def saved(shape: Shape, params: Params) -> tuple[float, float]:
    """Bytes that a layer keeps on a CPU for the backward pass: (of each token, of each key that attention gathers).

    In addons/kernels/layers.py each projection keeps its input (W, W, H·D of values, I) and each norm its own (2 W, with
    norms of heads those, too); queries and keys are gathered in float32 after they are turned; the gated layer keeps four
    products of I.
    """
    number, attended = size(params), 4
    queries, keys = shape.heads * shape.head, shape.key_heads * shape.head
    out = shape.heads * shape.value
    normed = queries + keys if shape.kind.startswith("qwen3") else 0
    token = number * (4 * shape.width + normed + out + 4 * shape.inner)
    token += number * 7 * params.policy.lora.rank + attended * (queries + 2 * out)
    return token, attended * shape.key_heads * (shape.head + shape.value)


def activations(shape: Shape, params: Params, batch: Batch) -> float:
    """What the largest micro-batch keeps on a CPU for its backward pass; with gradient checkpointing (Chen et al. 2016,
    arXiv:1604.06174) each layer's input, and one layer whole. Both need the gradients of one layer beside it."""
    token, gathered = saved(shape, params)
    layer = token * batch.largest + gathered * batch.largest_keys
    gradients = size(params) * batch.largest * (3 * shape.inner + 4 * shape.width)
    if params.update.gradient_checkpointing:
        return shape.layers * size(params) * shape.width * batch.largest + layer + gradients
    return shape.layers * layer + gradients


def logits(shape: Shape, params: Params, batch: Batch) -> float:
    """A block of the update's logits: in policy.dtype, in float32 and as shares of 1, then the hidden states' gradient."""
    block = min(float(LOGITS), batch.largest_sampled * shape.vocabulary)
    copies = 8 if params.policy.dtype == "float32" else 12
    return block * copies + 3 * size(params) * batch.largest_sampled * shape.width


def engine_step(machine: Machine) -> tuple[int, int]:
    """(tokens, episodes) of an engine step at most: vLLM's defaults, of its class for batches on a card, of an engine inside
    a process on a CPU (steps/sampling/engine.py)."""
    if not machine.is_card:
        return 2048, 128
    is_large = machine.memory >= 70 * GIB and "a100" not in machine.name.lower()
    return (16384, 1024) if is_large else (8192, 256)


def engine_buffers(shape: Shape, params: Params, episodes: int, machine: Machine) -> float:
    """The engine's own activations of a full step of prompts, its sampler's logits in float32 (6 copies: scaled, shares,
    their logarithms, noise, sorted), and its slots for one adapter of the next larger rank."""
    rank = next((allowed for allowed in RANKS if allowed >= params.policy.lora.rank), params.policy.lora.rank)
    tokens, sequences = engine_step(machine)
    step = tokens * size(params) * (3 * shape.inner + 6 * shape.width)
    return step + 6 * 4.0 * min(sequences, episodes) * shape.vocabulary + shape.lora(rank) * size(params)


def of(shape: Shape, params: Params, batch: Batch, machine: Machine) -> Memory:
    """The memory of one worker process on this machine, by part."""
    return on_card(shape, params, batch, machine) if machine.is_card else on_cpu(shape, params, batch, machine)


def on_cpu(shape: Shape, params: Params, batch: Batch, machine: Machine) -> Memory:
    number = size(params)
    parts = {
        "libraries": float(LIBRARIES + TRAINING + SAMPLING),
        "weights of the engine": weights(shape, params) + (0 if is_shared(params) else packed(shape, number)),
        "KV cache": cache_on_cpu(),
        "engine's buffers": engine_buffers(shape, params, batch.episodes, machine),
        "weights of the trainer": own_weights(shape, params),
        "adapter, gradient, Adam": adapter(shape, params),
        "activations": activations(shape, params, batch),
        "logits": logits(shape, params, batch),
    }
    sampling = sum(list(parts.values())[:4])
    if at(params, "train.overlap"):
        parts["worker that samples ahead"] = sampling
        sampling *= 2
    return Memory(parts, sampling, sum(parts.values()))


def own_weights(shape: Shape, params: Params) -> float:
    """Weights that the trainer does not have from the engine."""
    return 0.0 if is_shared(params) else weights(shape, params)


def is_shared(params: Params) -> bool:
    """Whether trainer and engine have one copy of the base weights."""
    return bool(at(params, "policy.share_weights"))


def packed(shape: Shape, number: int) -> float:
    """What vLLM's CPU kernels add to the weights: the output layer packed beside a tied embedding, and a share of the rest
    that its packing leaves in the heap (fitted)."""
    return number * ((shape.embedding if shape.tied else 0) + 0.27 * shape.linear)


def on_card(shape: Shape, params: Params, batch: Batch, machine: Machine) -> Memory:
    share = params.policy.engine_memory * machine.memory
    cost = costs(shape, params)
    a_token = cost.checkpointed if params.update.gradient_checkpointing else cost.whole
    cache = share - weights(shape, params) - engine_buffers(shape, params, batch.episodes, machine) - CARD_CONTEXT
    parts = {
        "CUDA, twice": 2 * CARD_CONTEXT,
        "weights of the engine": weights(shape, params),
        "KV cache": cache,
        "engine's buffers": engine_buffers(shape, params, batch.episodes, machine),
        "weights of the trainer": own_weights(shape, params),
        "adapter, gradient, Adam": adapter(shape, params),
        "activations": batch.largest * (a_token + 2 * cost.layer),
        "logits": training().LOGITS * min(float(LOGITS_ON_CARD), batch.largest_sampled * shape.vocabulary),
    }
    held = parts["adapter, gradient, Adam"] + parts["CUDA, twice"]
    needed = held + weights(shape, params) + parts["activations"] + parts["logits"]
    return Memory(parts, share + held - CARD_CONTEXT, needed)  # the engine's own CUDA is in its share
