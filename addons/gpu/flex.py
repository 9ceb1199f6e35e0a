"""Attention along the paths of a trie by FlexAttention (Dong et al. 2024, arXiv:2412.05496), for updates on a GPU.

The unique tokens of a trie are in depth-first order, so the tokens below token j are those from j to `ends[j]`, and token i
attends to j where `j <= i < ends[j]`. The kernel takes that rule as it is, and which blocks of 128 × 128 tokens it can skip:
no keys are gathered, heads of keys are not repeated, and what is kept for the backward pass grows with the tokens alone.
Its backward pass has no atomic additions.

torch's kernel for CPUs has no backward pass. There steps/training/packing.py gathers the keys of each path, as it does on a
GPU without Triton. Shapes: U unique tokens, n blocks of them, H heads, D head size.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.compiler.config
from torch import Tensor
from torch.nn.attention import flex_attention as kernel

BLOCK = 128  # tokens; the kernels' own blocks must divide it
HEAD = 16  # smallest head size of the kernel
LISTS = tuple[Tensor, Tensor]  # how many blocks of keys each block of queries has [1, 1, n], and which [1, 1, n, n]


def runs_on(device: Any) -> bool:
    """Whether FlexAttention can be compiled for this device: a GPU with Triton and a C compiler, from Ampere on."""
    from torch.utils._triton import has_triton

    if torch.device(device or "cpu").type != "cuda" or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    return has_triton() and any(map(shutil.which, (os.environ.get("CC") or "cc", "gcc", "clang")))


class Trie:
    """Where each token's descendants end, and from that the kernel's masks, one for each sliding window."""

    def __init__(self, ends: Tensor, positions: Tensor, longest: int) -> None:
        self.ends = ends  # [U] the first token after j that is not below it
        self.positions = positions  # [U] in the row
        self.longest = longest  # tokens of the longest row
        self.masks: dict[int | None, Any] = {}

    def mask(self, window: int | None) -> Any:
        """torch's BlockMask for layers that attend to the last `window` tokens of a path; None: to all of it."""
        if window is not None and window >= self.longest:
            window = None
        if window not in self.masks:
            self.masks[window] = block_mask(self.ends, self.positions, window)
        return self.masks[window]


def block_mask(ends: Tensor, positions: Tensor, window: int | None) -> Any:
    """The BlockMask of a trie, from the extremes of each block: n × n numbers, and never U × U."""
    count = len(ends)
    lists = _block_lists(ends, positions, window)
    ends, positions = ends.int(), positions.int()
    first = None if window is None else positions - window + 1  # [U] first position that a token attends to

    def attends(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    def attends_within(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key]) & (positions[key] >= first[query])  # pyrefly: ignore[unsupported-operation]

    return kernel.BlockMask.from_kv_blocks(
        *lists[0],
        *lists[1],
        BLOCK_SIZE=BLOCK,
        mask_mod=attends if first is None else attends_within,
        seq_lengths=(count, count),
    )


def _block_lists(ends: Tensor, positions: Tensor, window: int | None) -> tuple[LISTS, LISTS]:
    """The blocks of keys that some queries of a block attend to, and those that all of them do."""
    count = len(ends)
    blocks = -(-count // BLOCK)
    padding = (0, blocks * BLOCK - count)

    def extreme(values: Tensor, largest: bool) -> Tensor:  # of each block [n]
        filler = values.min() if largest else values.max()
        padded = torch.cat([values, filler.expand(padding[1])]).view(blocks, BLOCK)
        return padded.amax(1) if largest else padded.amin(1)

    number = torch.arange(blocks, device=ends.device)
    start, stop = (number * BLOCK)[:, None], ((number + 1) * BLOCK).clamp(max=count)[:, None]  # of the queries
    before = number[None] < number[:, None]
    some = before & (extreme(ends, True)[None] > start)
    whole = before & (extreme(ends, False)[None] >= stop)
    if window is not None:
        low, high = extreme(positions, False), extreme(positions, True)
        some &= low[:, None] - high[None] < window
        whole &= high[:, None] - low[None] < window
    some |= torch.eye(len(number), dtype=torch.bool, device=ends.device)
    return _listed(some & ~whole), _listed(whole)


def _listed(chosen: Tensor) -> LISTS:
    """The chosen blocks of each row of [n, n], in order, before the others."""
    places = chosen.int().argsort(dim=1, descending=True, stable=True)
    return chosen.sum(1, dtype=torch.int32)[None, None], places.int()[None, None]


def attend(query: Tensor, key: Tensor, value: Tensor, trie: Trie, window: int | None, scaling: float | None) -> Tensor:
    """Attention of query [1, H, U, D] to key and value, with as many heads or a divisor of it: [1, H, U, D]."""
    size = query.shape[-1]
    if size < HEAD:  # zeros change neither scores nor results
        query, key, value = (torch.nn.functional.pad(heads, (0, HEAD - size)) for heads in (query, key, value))
    out = _compiled(query.device.type)(
        query,
        key,
        value,
        block_mask=trie.mask(window),
        scale=size**-0.5 if scaling is None else scaling,
        enable_gqa=query.shape[1] != key.shape[1],
        kernel_options={"BACKEND": "TRITON"} if query.is_cuda else None,  # the same kernel for short rows
    )
    return out[..., :size] if size < HEAD else out


@functools.cache
def _compiled(device: str) -> Any:
    """The kernel for GPUs, compiled once for all lengths. On a CPU the unfused function: tests alone come here."""
    return compiled(kernel.flex_attention) if device == "cuda" else kernel.flex_attention


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled for all lengths, as one operation that `kept_contexts` sees. For that torch keeps its graph
    with what it compiled, on disk and in a form that another Python cannot read: so each has files of its own."""
    torch.compiler.config.cache_key_tag = f"Python {sys.version_info[0]}.{sys.version_info[1]}"
    return torch.compile(function, dynamic=True, options={"wrap_inductor_compiled_regions": True})


def kept_contexts() -> Any:
    """What torch's checkpointing does with a layer's operations: what attention gives is kept, and not computed again.

    It is the one costly operation whose result is small: 7 KiB of a token in a layer of Qwen2.5 7B. (Selective activation
    checkpointing, as torchtitan has it; the two operations are in its list of those that are kept.)
    """
    from torch._higher_order_ops import flex_attention, inductor_compiled_code
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(context: Any, operation: Any, *inputs: Any, **options: Any) -> CheckpointPolicy:
        is_attention = operation in (flex_attention, inductor_compiled_code)  # uncompiled, and by `compiled`
        return CheckpointPolicy.MUST_SAVE if is_attention else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)
