"""Parts of a decoder layer with backward passes of their own, which go over memory less often than autograd's would.

On a CPU, a third of an update in float32, and two thirds in bfloat16, are not matrix products (26 M parameters). Here
adapted layers with the same input sum its gradient in one tensor, and norms and rotary embeddings are computed block by
block, so that each pass reads from the cache what the last one wrote. On a GPU whole MLPs have a backward pass of their own,
too, and what is element-wise is compiled (addons/kernels/fused.py).

Without this add-on the forwards of PEFT and transformers compute the same, within rounding.

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

from addons.kernels import fused

BLOCK = 2**17  # numbers per block: 512 KiB, several of which fit into a core's cache
# transformers' classes that compute the same as the functions below; other classes keep their own forward
NORMS = {"LlamaRMSNorm", "MistralRMSNorm", "Qwen2RMSNorm", "Qwen3RMSNorm"}
ATTENTION = {"LlamaAttention", "MistralAttention", "Qwen2Attention", "Qwen3Attention"}
GATED = {"LlamaMLP", "MistralMLP", "Qwen2MLP", "Qwen3MLP"}


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
        elif name in GATED and all(type(layer) is Linear for layer in module.children() if layer is not module.act_fn):
            module.forward = MethodType(_mlp_forward, module)


def _projections(attention: Any) -> tuple[Any, Any, Any]:
    return attention.q_proj, attention.k_proj, attention.v_proj


def _mlp_forward(module: Any, x: Tensor) -> Tensor:
    if not fused.is_used(x) or module.config.hidden_act != "silu":
        return type(module).forward(module, x)
    layers = module.gate_proj, module.up_proj, module.down_proj
    if layers[0].disable_adapters:
        return module.down_proj(fused.gated(*project(x, layers[:2])))
    out = _Mlp.apply(x.flatten(0, -2), layers[0].scaling[_adapter(layers[0])], *_tensors(layers))
    return out.view(x.shape)


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
    outs = _Projections.apply(x.flatten(0, -2), layers[0].scaling[_adapter(layers[0])], *_tensors(layers))
    return [out.view(*x.shape[:-1], -1) for out in outs]


def _adapter(layer: Any) -> str:
    [name] = layer.active_adapters
    return str(name)


def _tensors(layers: Sequence[Any]) -> list[Any]:
    """Weight, bias, A and B of each layer, one after another."""
    name = _adapter(layers[0])
    return [
        tensor
        for layer in layers
        for tensor in (
            layer.base_layer.weight, layer.base_layer.bias, layer.lora_A[name].weight, layer.lora_B[name].weight
        )
    ]  # fmt: skip


class _Projections(Function):
    """x Wᵀ + bias + scale · (x Aᵀ) Bᵀ of x [T, in], for the weight W, bias, A and B of each layer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, *tensors: Any) -> tuple[Tensor, ...]:
        outs, kept = _project(x, scale, tensors)
        ctx.scale, ctx.ranks = scale, [len(down) for down in tensors[2::4]]
        ctx.save_for_backward(x, *kept)
        return outs

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Any, ...]:
        x, *kept = ctx.saved_tensors
        total, grads = _project_back(slopes, x, ctx.scale, ctx.ranks, kept, ctx.needs_input_grad[0])
        return total, None, *grads


class _Mlp(Function):
    """down(silu(gate(x)) · up(x)) of x [T, width], with tensors as in _Projections. What gate and up give is kept, and
    their product computed again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float, *tensors: Any) -> Tensor:
        (gate, up), first = _project(x, scale, tensors[:8])
        [out], second = _project(fused.gated(gate, up), scale, tensors[8:])
        ctx.scale, ctx.ranks = scale, [len(down) for down in tensors[2::4]]
        ctx.count = len(first)
        ctx.save_for_backward(x, gate, up, *first, *second)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Any, ...]:
        x, gate, up, *kept = ctx.saved_tensors
        first, second = kept[: ctx.count], kept[ctx.count :]
        by_inner, last = _project_back([slope], fused.gated(gate, up), ctx.scale, ctx.ranks[2:], second, True)
        slopes = fused.gated_back(gate, up, by_inner)
        total, grads = _project_back(slopes, x, ctx.scale, ctx.ranks[:2], first, ctx.needs_input_grad[0])
        return total, None, *grads, *last


def _project(x: Tensor, scale: float, tensors: Sequence[Any]) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """The results of _Projections, and what `_project_back` needs besides x."""
    weights, biases, downs, ups = (tensors[kind::4] for kind in range(4))
    down = torch.cat(downs).to(x.dtype)  # as in vLLM
    ups = tuple(up.to(x.dtype) for up in ups)
    inner = (x @ down.T).mul_(scale)  # [T, r of all]
    outs = tuple(
        linear(x, weight, bias).addmm_(part, up.T)
        for weight, bias, part, up in zip(
            weights, biases, inner.split([len(part) for part in downs], 1), ups, strict=True
        )
    )
    return outs, [inner, down, *weights, *ups]


def _project_back(
    slopes: Sequence[Tensor], x: Tensor, scale: float, ranks: list[int], kept: Sequence[Tensor], by_x: bool
) -> tuple[Tensor | None, list[Any]]:
    """The gradients by x, where it is asked for, and by the tensors of _Projections."""
    inner, down, *matrices = kept
    weights, ups = matrices[: len(slopes)], matrices[len(slopes) :]
    back = torch.empty_like(inner)
    grads: list[Any] = []
    total = None
    parts = zip(slopes, weights, ups, inner.split(ranks, 1), back.split(ranks, 1), strict=True)
    for slope, weight, up, part, to in parts:
        torch.mm(slope, up, out=to)
        by_up = (part.T @ slope).T  # slope.T @ part takes twice as long in float32
        grads += [None, None, None, by_up.float()]
        if by_x:
            total = slope @ weight if total is None else total.addmm_(slope, weight)
    back.mul_(scale)
    if total is not None:
        total.addmm_(back, down)
    grads[2::4] = (back.T @ x).float().split(ranks)
    return total, grads


class _Norm(Function):
    """x / rms(x) · weight over the last dimension (Zhang & Sennrich 2019, arXiv:1910.07467) of x [N, width]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        if fused.is_used(x):
            out, inverse = fused.norm(x, weight, epsilon)
        else:
            out, inverse = torch.empty_like(x), torch.empty(len(x), 1, device=x.device)
            for part in _blocks(x):
                block, inverse[part] = _inverse(x[part], epsilon)
                torch.mul((block * inverse[part]).to(x.dtype), weight, out=out[part])
        ctx.save_for_backward(x, weight, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        x, weight, inverse = ctx.saved_tensors
        if fused.is_used(x):
            return fused.norm_back(x, weight, inverse, slope), None, None
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
        if fused.is_used(x):
            out, inverse = fused.turn(x, weight, epsilon, cos, sin)
        else:
            out = torch.empty(x.shape, dtype=kind, device=x.device)
            inverse = torch.empty(*x.shape[:2], 1, device=x.device)
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
        if fused.is_used(slope):
            return fused.turn_back(slope, cos, sin, x, weight, inverse), None, None, None, None, None
        out = torch.empty(slope.shape, dtype=ctx.dtype, device=slope.device)
        for part in _blocks(slope):
            back = _turn(slope[part].float(), cos[part], sin[part].neg().roll(sin.shape[-1] // 2, -1))
            out[part] = back if weight is None else _norm_back(x[part], back.mul_(weight), inverse[part])
        return out, None, None, None, None, None


def _blocks(x: Tensor) -> Iterator[slice]:
    """Slices of x's first dimension."""
    rows = max(1, BLOCK // x.shape[1:].numel())
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
