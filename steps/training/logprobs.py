"""Logprobs and entropies of tokens from hidden states and a frozen output layer, block by block, without keeping logits; and
rows of a tensor by their places, whose gradient is summed in float32.

Inner sums are float32, results have the input's type. Importing this imports torch. Shapes: N tokens, V vocabulary.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear

from steps.core.ports import every

LOGITS = 2**24  # numbers per block of logits: 64 MiB
LEFT_OUT = -1e30  # the logit of a token that a grammar does not allow: finite, so that 0 times it is 0


def _token_logps(
    logits: Tensor, targets: Tensor, temperature: float, with_entropy: bool, with_slope: bool, learn_entropy: bool
) -> tuple[Tensor, Tensor | float, Tensor | None, Tensor | None]:
    """Logprobs [N] of targets [N, 1] and entropies [N] from logits [N, V], before they are divided by the temperature. With
    the slope: minus the gradient [N, V] of a logprob by the divided logits, and where the entropy is learnt, its gradient.
    Overwrites `logits` in float32."""
    logits = logits.float().div_(temperature)
    total = logits.logsumexp(-1, keepdim=True)
    logp = (logits.gather(-1, targets) - total)[:, 0]
    if not (with_entropy or with_slope):
        return logp, 0.0, None, None
    shares = (logits - total).exp_()
    entropy = total[:, 0] - torch.linalg.vecdot(shares, logits) if with_entropy else 0.0
    if not with_slope:
        return logp, entropy, None, None
    turn = (total - logits - entropy[:, None]).mul_(shares) if learn_entropy else None  # pyrefly: ignore[bad-index]
    return logp, entropy, shares.scatter_add_(-1, targets, torch.full_like(total, -1.0)), turn


def _leave_out(logits: Tensor, numbers: Tensor, sets: Tensor) -> None:
    """Take out of logits [n, V] what is not in each row's set: its number [n], or -1 for all tokens, of bits [M, V / 32]."""
    rows = (numbers >= 0).nonzero()[:, 0]
    if not len(rows):
        return
    places = torch.arange(8, dtype=torch.uint8, device=logits.device)
    octets = sets[numbers[rows]].view(torch.uint8)
    bits = (octets[..., None] >> places & 1).flatten(1)[:, : logits.shape[1]]
    logits[rows] = logits[rows].masked_fill(bits == 0, LEFT_OUT)


class Wanted(NamedTuple):
    """What is computed beside the logprobs, and of which distributions."""

    temperature: float
    with_entropies: bool = True
    # The number [N] of the set of tokens that each distribution is over, and the sets as bits.
    allowed: tuple[Tensor, Tensor] | None = None
    learn_entropies: bool = False


class _LogSoftmax(Function):
    """Logprobs [N] of targets and entropies [N] from hidden states [N, width] and a frozen head [V, width].

    What comes after this function only scales the gradient of a token's logprob by its hidden state, and that of its
    entropy where that is learnt. They are therefore computed in the forward pass, and no logits are kept.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, wanted: Wanted
    ) -> tuple[Tensor, Tensor]:
        temperature, with_entropies, allowed, learn_entropies = wanted
        if weight.requires_grad:
            raise ValueError("the output layer must be frozen")
        logps = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        entropies = torch.empty_like(logps)
        slope = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None  # of the logprob, by the hidden state
        turn = torch.empty_like(hidden) if slope is not None and learn_entropies else None  # of the entropy
        compute, numbers = _token_logps, LOGITS
        for kernels in every("kernels"):
            if kernels.is_used(hidden):
                compute, numbers = kernels.token_logps, kernels.logits_of_block(hidden)
        block = max(1, numbers // len(weight))
        for start in range(0, len(hidden), block):
            part = slice(start, start + block)
            logits, target = linear(hidden[part], weight, bias), targets[part, None]
            if allowed is not None:
                _leave_out(logits, allowed[0][part], allowed[1])
            logps[part], entropies[part], shares, shifts = compute(
                logits, target, temperature, with_entropies, slope is not None, turn is not None
            )
            if slope is not None and shares is not None:
                slope[part] = (shares.to(weight.dtype) @ weight).div_(-temperature)
            if turn is not None and shifts is not None:
                turn[part] = (shifts.to(weight.dtype) @ weight).div_(temperature)
        if turn is None:
            ctx.mark_non_differentiable(entropies)
        ctx.save_for_backward(slope, turn)
        return logps, entropies

    @staticmethod
    def backward(ctx: Any, grad: Tensor, by_entropy: Any) -> tuple[Any, ...]:
        slope, turn = ctx.saved_tensors
        total = slope * grad[:, None].to(slope.dtype)
        if turn is not None:
            total.addcmul_(turn, by_entropy[:, None].to(turn.dtype))
        return total, None, None, None, None


log_softmax = _LogSoftmax.apply


class _Gather(Function):
    """x.index_select(0, places) of x [N, …]. Gradients of a place that comes often are summed in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.count = len(x)
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        [places] = ctx.saved_tensors
        total = torch.zeros(ctx.count, *slope.shape[1:], dtype=torch.float32, device=slope.device)
        return total.index_add_(0, places, slope.float()).to(slope.dtype), None


gather = _Gather.apply
