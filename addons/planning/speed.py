"""Seconds of an iteration by stage, from operations and bytes, and from what machines reach of their peaks.

Operations are counted as for any decoder: 2 for each parameter of a matrix and token, forward; as many again for the
gradient by the inputs, and none by frozen weights (Kaplan et al. 2020, arXiv:2001.08361, appendix). Decoding is bounded by
products or by reading weights and cache, whichever takes longer (Pope et al. 2022, arXiv:2211.05102). What a CPU reaches was
fitted (benchmarks/plan.py, `FITTED`); what a card reaches is stated, ±40 %, because none has been measured.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from addons.planning.cards import Machine
from addons.planning.memory import engine_step, size
from addons.planning.shapes import Shape
from addons.planning.workload import Batch, Episodes
from steps.core.section import at

if TYPE_CHECKING:
    from steps.core.params import Params


class Reached(NamedTuple):
    """What the code reaches of a machine's peaks, and what it costs that no peak bounds."""

    engine: float  # share of the rate of products; on a CPU of numpy's (addons/planning/rates.py), which is no bound
    engine_half: float  # the same in bfloat16
    trainer: float
    attention: float
    bandwidth: float  # share of the peak of reading memory
    width: float  # of a matrix, at which half of the share is reached
    tokens: float  # of an engine step, at which half of the share is reached
    step: float  # seconds of an engine step
    layer: float  # seconds that each layer adds to it
    sequence: float  # seconds that each episode in it adds
    micro_batch: float  # seconds of a layer's forward and backward pass beyond its work
    passes: float  # over the kept activations, in which everything but products is computed
    block: int  # tokens whose keys and values the prefix cache keeps together


CPU = Reached(1.15, 0.75, 0.79, 0.25, 0.5, 18, 6, 2.1e-3, 0.26e-3, 0.1e-3, 3e-3, 6.6, 128)
CARD = Reached(0.5, 0.5, 0.3, 0.2, 0.7, 0, 0, 4e-3, 0.05e-3, 0.02e-3, 0.5e-3, 6, 16)


class Seconds(NamedTuple):
    """Seconds of a stage by what they are spent on."""

    products: float = 0.0  # of matrices
    attention: float = 0.0
    traffic: float = 0.0  # reading and writing memory
    fixed: float = 0.0  # what does not depend on the model's width

    @property
    def total(self) -> float:
        return sum(self)

    def times(self, factor: float) -> Seconds:
        return Seconds(*(value * factor for value in self))


def reached(machine: Machine) -> Reached:
    return CARD if machine.is_card else CPU


def peak(machine: Machine, params: Params) -> float:
    """Operations a second in policy.dtype."""
    return machine.float32 if params.policy.dtype == "float32" else machine.bfloat16


def products(shape: Shape, params: Params, machine: Machine, share: float) -> float:
    """Seconds in which one token passes through all linear layers but the output layer, forward, with the adapter."""
    half = reached(machine).width
    rank = params.policy.lora.rank
    seconds = 0.0
    for matrix in shape.matrices:
        narrow = min(matrix.inputs, matrix.outputs)
        seconds += 2 * matrix.active * (1 + half / narrow)
        if matrix.adapted:
            seconds += 2 * rank * (matrix.inputs + matrix.outputs) * matrix.used * (1 + half / rank)
    return seconds / share / peak(machine, params)


def engine(
    shape: Shape, params: Params, episodes: Episodes, groups: float, attempts: float, machine: Machine
) -> Seconds:
    """`groups` × `attempts` episodes by the engine (steps/sampling/engine.py): prompts in steps of many tokens, then
    one token of many episodes in each step. What is known of a prompt is computed once, in whole blocks."""
    reach, count = reached(machine), groups * attempts
    block = reach.block
    batched, sequences = engine_step(machine)
    shared = (episodes.prompt - 1) // block * block  # the last token is always computed
    again = min(block / 2, episodes.prompt) + episodes.observed + 1  # of a later turn
    prompts = groups * shared + count * (episodes.prompt - shared) + count * (episodes.turns - 1) * again
    tokens = count * episodes.turns * episodes.sampled
    width = min(float(sequences), count)
    steps = max(episodes.turns * episodes.sampled, tokens / width) + prompts / batched
    number = size(params)
    share = reach.engine if params.policy.dtype == "float32" else reach.engine_half
    a_token = products(shape, params, machine, share)
    head = 2 * shape.embedding / share / peak(machine, params)
    product = prompts * a_token + tokens * (1 + reach.tokens / width) * (a_token + head)
    touched = 1.0
    if shape.experts:  # of all experts, those that a step's tokens choose
        touched = 1 - (1 - min(1.0, shape.active / shape.linear)) ** width
    weights = number * (shape.linear * touched + shape.embedding)
    cache = number * shape.cached() * (episodes.prompt + episodes.own / 2) * width
    logits = 10 * 4 * shape.vocabulary * width
    memory = steps * (weights + cache + logits) / (reach.bandwidth * machine.bandwidth)
    pairs = tokens * (episodes.prompt + episodes.own / 2) + groups * episodes.prompt**2 / 2
    attention = pairs * _attention(shape) / reach.attention / peak(machine, params)
    fixed = steps * (reach.step + shape.layers * reach.layer + width * reach.sequence)
    return Seconds(max(0.0, product - memory) if machine.is_card else product, attention, memory, fixed)


def _attention(shape: Shape) -> float:
    """Operations of one query with one key in all layers, forward."""
    return 2.0 * shape.layers * shape.heads * (shape.head + shape.value)


def update(shape: Shape, params: Params, batch: Batch, machine: Machine) -> Seconds:
    """An update's passes (steps/training/grpo.py): forward and backward; forward for the reference where beta is above 0;
    forward for the check of the sampler, its correction, or both; forward again with gradient checkpointing."""
    settings, reach = params.update, reached(machine)
    passes = settings.num_iterations
    reference = 1.0 if settings.beta else 0.0
    steps = min(settings.steps_per_generation, batch.episodes)
    checked = max(0.0, 1 - 1 / steps)  # of what is not in the first step, a trajectory of each group or all
    if not (at(settings, "vllm_importance_sampling_correction") or at(params, "train.overlap")):
        checked /= params.rollout.attempts
    if at(params, "train.overlap"):  # a trajectory of each group with the adapter that sampled it
        checked += 1 / params.rollout.attempts
    forward = passes * (1.0 + bool(settings.gradient_checkpointing)) + reference + checked
    rate = peak(machine, params)
    per_token = products(shape, params, machine, reach.trainer)
    adapter = 2 * shape.lora(params.policy.lora.rank) / reach.trainer / rate
    product = batch.tokens * (per_token * (forward + passes) + passes * adapter)
    head = 2.0 * shape.embedding / reach.trainer / rate
    product += batch.sampled * head * (2 * passes + reference + checked)
    attention = batch.pairs * _attention(shape) * (forward + 2.5 * passes) / reach.attention / rate
    number = size(params)
    kept = shape.layers * number * (9 * shape.width + 2 * shape.heads * shape.head + 5 * shape.inner)
    bandwidth = reach.bandwidth * machine.bandwidth
    traffic = batch.tokens * kept * reach.passes * (forward + 2 * passes) / 3 / bandwidth
    traffic += batch.sampled * shape.vocabulary * 4 * 6 * (passes + reference + checked) / bandwidth
    traffic += steps * passes * shape.lora(params.policy.lora.rank) * 4 * 12 / bandwidth
    fixed = batch.micro_batches * shape.layers * reach.micro_batch * (forward + 2 * passes) / 3
    return Seconds(product, attention, traffic, fixed)


def evaluation(shape: Shape, params: Params, episodes: Episodes, machine: Machine) -> Seconds:
    """One greedy and `evaluate.sampled_attempts` sampled attempts at each scenario of the validation split."""
    count = params.scenarios.val
    attempts = filter(None, (1, params.evaluate.sampled_attempts))
    parts = [engine(shape, params, episodes, count, number, machine) for number in attempts]
    return Seconds(*(math.fsum(values) for values in zip(*parts, strict=True)))
