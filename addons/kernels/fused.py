"""Element-wise parts of a decoder layer for a GPU, each compiled by torch, so that it goes over memory less often.

On a GPU such work costs what it reads and writes: one by one, these operations take a quarter of the memory traffic of an
update of 7 B parameters, and two thirds of one of 0.5 B (the same idea: Hsu et al. 2024, "Liger Kernel", arXiv:2410.10989).
They are the sums of addons/kernels/layers.py, in float32; results have the input's type. Where torch cannot compile for the
device, they run as they stand here.

Shapes: N rows of some width, T tokens, H heads, D head size, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LOGITS = 2**28  # numbers per block: of 152,000 words 1,766 tokens, for which the output layer's weights are read once


def is_used(x: Tensor) -> bool:
    """Whether these functions compute for this tensor, and not those for a CPU."""
    return x.is_cuda


@functools.cache
def _compiles(device: torch.device) -> bool:
    from addons.gpu import flex

    return flex.runs_on(device)


def logits_of_block(x: Tensor) -> int:
    """How many logits are computed together: fewer where `token_logps` is not compiled, and keeps more of each."""
    return LOGITS if _compiles(x.device) else LOGITS // 4


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled at its first call on a device that it can be compiled for, once for all lengths."""

    @functools.cache
    def compiled() -> Callable[..., Any]:
        return torch.compile(function, dynamic=True)

    @functools.wraps(function)
    def call(x: Tensor, *others: Any) -> Any:
        return (compiled() if _compiles(x.device) else function)(x, *others)

    return call


@kernel
def norm(x: Tensor, weight: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """x / rms(x) · weight of x [N, width], and 1 / rms(x) [N, 1] in float32."""
    wide = x.float()
    inverse = _inverse(wide, epsilon)
    return (wide * inverse).to(x.dtype) * weight, inverse


@kernel
def norm_back(x: Tensor, weight: Tensor, inverse: Tensor, slope: Tensor) -> Tensor:
    """The gradient by x of `norm`."""
    return _norm_back(x.float(), slope.float() * weight, inverse).to(x.dtype)


@kernel
def turn(x: Tensor, weight: Tensor | None, epsilon: float, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor | None]:
    """The rotary embedding of heads [T, H, D], with cos and sin [T, D]. Where there is a weight, it comes after their norm,
    whose 1 / rms(x) [T, H, 1] in float32 is returned, too."""
    wide, inverse = x.float(), None
    if weight is not None:
        inverse = _inverse(wide, epsilon)
        wide = wide * inverse * weight
    half = x.shape[-1] // 2
    other = torch.cat([-wide[..., half:], wide[..., :half]], -1)
    return (wide * cos[:, None].float() + other * sin[:, None].float()).to(x.dtype), inverse


@kernel
def turn_back(
    slope: Tensor, cos: Tensor, sin: Tensor, x: Tensor | None, weight: Tensor | None, inverse: Tensor | None
) -> Tensor:
    """The gradient by x of `turn`; the last three are those of the norm, where there is one."""
    half, wide = slope.shape[-1] // 2, slope.float()
    other = wide * sin[:, None].float()
    back = wide * cos[:, None].float() + torch.cat([other[..., half:], -other[..., :half]], -1)
    if x is not None and inverse is not None:
        back = _norm_back(x.float(), back * weight, inverse)
    return back.to(slope.dtype)


@kernel
def gated(gate: Tensor, up: Tensor) -> Tensor:
    """silu(gate) · up (Shazeer 2020, arXiv:2002.05202)."""
    return (torch.nn.functional.silu(gate.float()) * up.float()).to(gate.dtype)


@kernel
def gated_back(gate: Tensor, up: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients by gate and by up of `gated`."""
    wide, slope = gate.float(), slope.float()
    share = torch.sigmoid(wide)
    active = wide * share
    by_gate = slope * up.float() * (share + active * (1 - share))
    return by_gate.to(gate.dtype), (slope * active).to(up.dtype)


@kernel
def token_logps(
    logits: Tensor, targets: Tensor, temperature: float, with_entropy: bool, with_slope: bool, learn_entropy: bool
) -> tuple[Tensor, Tensor | float, Tensor | None, Tensor | None]:
    """Logprobs [N] of targets [N, 1] and entropies [N] from logits [N, V], before they are divided by the temperature. With
    the slope: minus the gradient [N, V] of a logprob by the divided logits, in their type; and where the entropy is learnt,
    its gradient."""
    wide = logits.float() / temperature
    total = wide.logsumexp(-1, keepdim=True)
    logp = (wide.gather(-1, targets) - total)[:, 0]
    entropy = total[:, 0] - ((wide - total).exp() * wide).sum(-1) if with_entropy else 0.0
    if not with_slope:
        return logp, entropy, None, None
    words = torch.arange(logits.shape[-1], device=logits.device)
    slope = ((wide - total).exp() - (words == targets).float()).to(logits.dtype)
    if not learn_entropy:
        return logp, entropy, slope, None
    turn = (wide - total).exp() * (total - wide - (total - ((wide - total).exp() * wide).sum(-1, keepdim=True)))
    return logp, entropy, slope, turn.to(logits.dtype)


def _inverse(x: Tensor, epsilon: float) -> Tensor:
    return torch.rsqrt(x.square().mean(-1, keepdim=True) + epsilon)


def _norm_back(x: Tensor, slope: Tensor, inverse: Tensor) -> Tensor:
    normed = x * inverse
    return (slope - normed * (slope * normed).mean(-1, keepdim=True)) * inverse
