"""The attention of packed rows: along each token's path, in place of a model's own.

Shapes: U unique tokens, H heads, D head size, Q queries and K keys of a call.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.core.ports import bring
from steps.policy.machine import GPU

if TYPE_CHECKING:
    import torch

    from steps.training.packing import Packed

NAME = "shared_prefix"  # of the attention, as transformers knows it


def attention(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    packed: Packed | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of unique tokens along their paths; without `packed`, transformers' own attention of plain rows.

    query [1, H, U, D], key and value with as many heads or a divisor of it; returns [1, U, H, D of value].
    """
    import torch

    from steps.training.logprobs import gather

    if packed is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    if unknown := [name for name in ("softcap", "s_aux", "position_bias") if options.get(name) is not None]:
        raise UserError(
            f"policy.base_model: the model's attention has {unknown[0]}, which the update does not know yet"
        )
    window = options.get("sliding_window")
    if packed.trie is not None:
        attend = bring("gpu", "flex", GPU).attend
        return attend(query, key, value, packed.trie, window, scaling).transpose(1, 2), None
    q, k, v = (heads.squeeze(0).transpose(0, 1) for heads in (query, key, value))  # [U, H, D]
    if not query.is_cuda:
        q, k, v = q.float(), k.float(), v.float()
    # gathered for all calls at once: otherwise the gradient of each call would be as large as that of all tokens
    own, paths = (torch.cat([call[side].view(-1) for call in packed.calls]) for side in (0, 1))
    queries = gather(q, own).split([call.own.numel() for call in packed.calls])
    sizes = [call.path.numel() for call in packed.calls]
    keys, values = (gather(heads, paths).split(sizes) for heads in (k, v))
    results = []
    for call, call_q, call_k, call_v in zip(packed.calls, queries, keys, values, strict=True):
        mask = call.mask.to(q.dtype)
        if window is not None and window < call.path.shape[1]:
            place = torch.arange(call.path.shape[1], device=mask.device)
            distance = packed.positions[0, call.own][:, None, :, None] - place  # [n, 1, Q, K]
            mask = mask.masked_fill(distance >= window, -torch.inf)
        out = _call(
            call_q.view(*call.own.shape, *q.shape[1:]).transpose(1, 2),
            call_k.view(*call.path.shape, *k.shape[1:]).transpose(1, 2),
            call_v.view(*call.path.shape, *v.shape[1:]).transpose(1, 2),
            mask,
            scaling,
            fold=query.is_cuda,
        )
        results.append(out.transpose(1, 2).flatten(0, 1))
    return torch.cat(results).index_select(0, packed.back).to(query.dtype)[None], None


def _call(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float | None, fold: bool
) -> torch.Tensor:
    """Attention of query [n, H, Q, D] to key and value [n, h, K, D], with a mask [n, 1, Q, K]: [n, H, Q, D].

    `fold`: as on a GPU, where no kernel takes both groups of heads and a mask: the H / h query heads of a head of keys are
    queries of one head. The kernel is always the same there, because cuDNN's plans anew for each shape, and importing vLLM
    switches it off.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    if not fold:
        grouped = query.shape[1] != key.shape[1]
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=grouped)
    count, heads, queries, _ = query.shape
    groups = heads // key.shape[1]
    folded = query.reshape(count, key.shape[1], groups * queries, -1)
    masks = mask.expand(count, groups, queries, -1).reshape(count, 1, groups * queries, -1)
    with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]) if query.is_cuda else nullcontext():
        out = scaled_dot_product_attention(folded, key, value, attn_mask=masks, scale=scaling)
    return out.reshape(count, heads, queries, -1)


def prepare(model: Any) -> None:
    """Give a causal model this attention. UserError where its layers need something else."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"]) - {"full_attention", "sliding_attention"}
    if kinds or not model._supports_attention_backend:
        raise UserError(
            f"policy.base_model: {config.model_type} models cannot be updated yet: their layers "
            f"({', '.join(sorted(kinds)) or 'attention of their own'}) are not plain attention"
        )
    for name in ("logit_scale", "logits_scaling", "final_logit_softcapping"):
        if getattr(config, name, None) not in (None, 1, 1.0):
            raise UserError(f"policy.base_model: {config.model_type} has {name}, which the update does not know yet")
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, _mask)
    has_tower = hasattr(model.config, "vision_config")  # whose attention is not causal
    names = {"": NAME, "text_config": NAME, "vision_config": "sdpa"}
    model.set_attn_implementation(names if has_tower else NAME)


def _mask(*arguments: Any, **more: Any) -> Any:
    """transformers' mask for a padded batch; None for packed rows, whose calls have masks."""
    from transformers.masking_utils import sdpa_mask

    return None if more.get("attention_mask") is None else sdpa_mask(*arguments, **more)
