"""Parts of a decoder layer with backward passes of their own, which go over memory less often than autograd's would.

On a CPU, a third of an update in float32, and two thirds in bfloat16, are not matrix products (26 M parameters). Here
adapted layers with the same input sum its gradient in one tensor, and norms and rotary embeddings are computed block by
block, so that each pass reads from the cache what the last one wrote. (The same idea on GPUs: Hsu et al. 2024, "Liger
Kernel", arXiv:2410.10989.)

Inner sums are float32, results have the input's type. The base model is frozen: only adapters and inputs have gradients.
Importing this imports torch. Shapes: T tokens, H heads, D head size, N rows of some width, V vocabulary, r rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import MethodType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import linear
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

BLOCK = 2**17  # numbers per block: 512 KiB, several of which fit into a core's cache
LOGITS = 2**24  # numbers per block of logits: 64 MiB
LOGITS_ON_GPU = 2**27  # 512 MiB: at 152,000 words 883 tokens, which are enough for a fast matrix product
# transformers' classes that compute the same as the functions below; other classes keep their own forward
NORMS = {"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"}
ATTENTION = {"LlamaAttention", "MistralAttention", "Qwen2Attention", "Qwen3Attention"}


def replace_forwards(model: Any) -> None:
    """Replace the forwards of a PEFT model with packed attention (steps/training/packing.py), in layers of known classes."""
    from peft.tuners.lora import Linear

    for module in model.modules():
        name = type(module).__name__
        if type(module) is Linear:
            module.forward = MethodType(_linear_forward, module)
        elif name in NORMS:
            module.forward = MethodType(_norm_forward, module)
        elif name in ATTENTION and all(type(layer) is Linear for layer in _projections(module)):
            module.forward = MethodType(_attention_forward, module)


def _projections(attention: Any) -> tuple[Any, Any, Any]:
    return attention.q_proj, attention.k_proj, attention.v_proj


def _linear_forward(layer: Any, x: Tensor) -> Tensor:
    return project(x, [layer])[0]


def _norm_forward(module: Any, x: Tensor) -> Tensor:
    return _Norm.apply(x.reshape(-1, x.shape[-1]), module.weight, module.variance_epsilon).view(x.shape)


def _attention_forward(module: Any, hidden_states: Tensor, packed: Any = None, **options: Any) -> tuple[Tensor, Any]:
    if packed is None:  # plain rows
        return type(module).forward(module, hidden_states, **options)
    cos, sin = (part.squeeze(0) for part in options["position_embeddings"])
    kind = hidden_states.dtype if hidden_states.is_cuda else torch.float32  # dtype of the attention
    q, k, v = (out.view(out.shape[1], -1, module.head_dim) for out in project(hidden_states, _projections(module)))
    turned = []
    for heads, norm in ((q, getattr(module, "q_norm", None)), (k, getattr(module, "k_norm", None))):
        scale, epsilon = (norm.weight, norm.variance_epsilon) if norm else (None, 0.0)
        turned.append(_NormRope.apply(heads, scale, epsilon, cos, sin, kind).transpose(0, 1)[None])
    window = getattr(module, "sliding_window", getattr(module.config, "sliding_window", None))
    attend = ALL_ATTENTION_FUNCTIONS[module.config._attn_implementation]
    more = {"scaling": module.scaling, "packed": packed, "sliding_window": window}
    out, _ = attend(module, *turned, v.transpose(0, 1)[None], None, **more)
    return module.o_proj(out.flatten(2).to(hidden_states.dtype)), None


def project(x: Tensor, layers: Sequence[Any]) -> list[Tensor]:
    """PEFT's linear layers of the same input [..., in], each with one LoRA adapter and no dropout: [..., out] of each."""
    if layers[0].disable_adapters:
        return [layer.base_layer(x) for layer in layers]
    [name] = layers[0].active_adapters
    tensors: list[Any] = []
    for layer in layers:
        base = layer.base_layer
        tensors += [base.weight, base.bias, layer.lora_A[name].weight, layer.lora_B[name].weight]
    outs = _Projections.apply(x.flatten(0, -2), layers[0].scaling[name], *tensors)
    return [out.view(*x.shape[:-1], -1) for out in outs]


class _Projections(Function):
    """x Wᵀ + bias + scale · (x Aᵀ) Bᵀ of x [T, in], for the weight W, bias, A and B of each layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, *tensors: Any) -> tuple[Tensor, ...]:
        weights, biases, downs, ups = (tensors[kind::4] for kind in range(4))
        down = torch.cat(downs).to(x.dtype)  # as in vLLM
        ups = tuple(up.to(x.dtype) for up in ups)
        inner = (x @ down.T).mul_(scale)  # [T, r of all]
        ctx.scale, ctx.ranks = scale, [len(down) for down in downs]
        ctx.save_for_backward(x, inner, down, *weights, *ups)
        return tuple(
            linear(x, weight, bias).addmm_(part, up.T)
            for weight, bias, part, up in zip(weights, biases, inner.split(ctx.ranks, 1), ups, strict=True)
        )

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Any, ...]:
        x, inner, down, *matrices = ctx.saved_tensors
        weights, ups = matrices[: len(slopes)], matrices[len(slopes) :]
        back = torch.empty_like(inner)
        grads: list[Any] = []
        total = None
        parts = zip(slopes, weights, ups, inner.split(ctx.ranks, 1), back.split(ctx.ranks, 1), strict=True)
        for slope, weight, up, part, to in parts:
            to.copy_(slope @ up)
            by_up = (part.T @ slope).T  # slope.T @ part takes twice as long in float32
            grads += [None, None, None, by_up.float()]
            if ctx.needs_input_grad[0]:
                total = slope @ weight if total is None else total.addmm_(slope, weight)
        back.mul_(ctx.scale)
        if total is not None:
            total.addmm_(back, down)
        grads[2::4] = (back.T @ x).float().split(ctx.ranks)
        return total, None, *grads


class _Norm(Function):
    """x / rms(x) · weight over the last dimension (Zhang & Sennrich 2019, arXiv:1910.07467) of x [N, width]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        out = torch.empty_like(x)
        inverse = torch.empty(len(x), 1, dtype=torch.float32, device=x.device)
        for part in _blocks(x):
            block, inverse[part] = _inverse(x[part], epsilon)
            torch.mul((block * inverse[part]).to(x.dtype), weight, out=out[part])
        ctx.save_for_backward(x, weight, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        x, weight, inverse = ctx.saved_tensors
        out = torch.empty_like(x)
        for part in _blocks(x):
            out[part] = _norm_back(x[part], slope[part].float() * weight, inverse[part])
        return out, None, None


class _NormRope(Function):
    """Rotary embedding (Su et al. 2021, arXiv:2104.09864) of heads [T, H, D], after their norm where there is a weight."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, epsilon: float, cos: Tensor, sin: Tensor, kind: torch.dtype
    ) -> Tensor:
        out = torch.empty(x.shape, dtype=kind, device=x.device)
        inverse = torch.empty(*x.shape[:2], 1, dtype=torch.float32, device=x.device)
        for part in _blocks(x):
            block = x[part].float()
            if weight is not None:
                block, inverse[part] = _inverse(block, epsilon)
                block = (block * inverse[part]).mul_(weight)
            out[part] = _turn(block, cos[part], sin[part])
        ctx.dtype = x.dtype
        ctx.save_for_backward(None if weight is None else x, weight, inverse, cos, sin)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None, None, None, None]:
        x, weight, inverse, cos, sin = ctx.saved_tensors
        out = torch.empty(slope.shape, dtype=ctx.dtype, device=slope.device)
        for part in _blocks(slope):
            back = _turn(slope[part].float(), cos[part], sin[part].neg().roll(sin.shape[-1] // 2, -1))
            out[part] = back if weight is None else _norm_back(x[part], back.mul_(weight), inverse[part])
        return out, None, None, None, None, None


def _blocks(x: Tensor) -> Iterator[slice]:
    """Slices of x's first dimension; on a GPU one slice, because its caches are smaller than a block."""
    rows = max(1, len(x) if x.is_cuda else BLOCK // x.shape[1:].numel())
    return (slice(start, start + rows) for start in range(0, len(x), rows))


def _inverse(x: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """x in float32, and one over the root of its mean square [..., 1]."""
    x = x.float()
    return x, torch.rsqrt(torch.linalg.vecdot(x, x)[..., None] / x.shape[-1] + epsilon)


def _norm_back(x: Tensor, slope: Tensor, inverse: Tensor) -> Tensor:
    """The gradient by x of a norm without weight. Overwrites `slope`."""
    normed = x.float() * inverse
    along = torch.linalg.vecdot(slope, normed)[..., None] / x.shape[-1]
    return slope.sub_(normed.mul_(along)).mul_(inverse)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x · cos + (-second half, first half) · sin, of x [T, H, D] with cos and sin [T, D]."""
    half = x.shape[-1] // 2
    cos, sin = cos[:, None].float(), sin[:, None].float()
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    out[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return out


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


class _LogSoftmax(Function):
    """Logprobs [N] of targets and entropies [N] from hidden states [N, width] and a frozen head [V, width].

    What comes after this function only scales the gradient of a token's logprob by its hidden state. The gradient is
    therefore computed in the forward pass, and no logits are kept.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        if weight.requires_grad:
            raise ValueError("the output layer must be frozen")
        logps = torch.empty(len(hidden), dtype=torch.float32, device=hidden.device)
        entropies = torch.empty_like(logps)
        slope = torch.empty_like(hidden) if ctx.needs_input_grad[0] else None  # of the logprob, by the hidden state
        block = max(1, (LOGITS_ON_GPU if hidden.is_cuda else LOGITS) // len(weight))
        for start in range(0, len(hidden), block):
            part = slice(start, start + block)
            logits = linear(hidden[part], weight, bias).float().div_(temperature)
            target = targets[part, None]
            total = logits.logsumexp(-1, keepdim=True)
            logps[part] = (logits.gather(-1, target) - total)[:, 0]
            shares = (logits - total).exp_()
            entropies[part] = total[:, 0] - torch.linalg.vecdot(shares, logits)
            if slope is not None:
                shares.scatter_add_(-1, target, torch.full_like(total, -1.0))
                slope[part] = (shares.to(weight.dtype) @ weight).div_(-temperature)
        ctx.mark_non_differentiable(entropies)
        ctx.save_for_backward(slope)
        return logps, entropies

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Any, None, None, None, None]:
        [slope] = ctx.saved_tensors
        return slope * grad[:, None].to(slope.dtype), None, None, None, None


log_softmax = _LogSoftmax.apply
