"""What a decoder layer of an update does on a GPU, counted without one: kernels, bytes of memory traffic, bytes kept.

    python -m benchmarks.gpu.counted                # layers of 0.5 B and of 7 B
    python -m benchmarks.gpu.counted --tokens 8192

The forward and backward pass of a packed batch runs on fake tensors with the branches that a GPU takes. Each operation that
torch dispatches is a kernel that reads its inputs and writes its outputs, whole; each function of addons/kernels/fused.py
one kernel; views are none. FlexAttention is left out. A layer is what two layers have more than one. `kept` are the bytes
that autograd holds for the backward pass, without checkpointing. No time follows from any of this.
"""

from __future__ import annotations

import contextlib
import inspect
from collections import Counter
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import patch

from benchmarks import _common, _update
from benchmarks.gpu import models
from benchmarks.gpu.models import Rows, Shape
from benchmarks.gpu.sizes import FULL

SHAPES = {"0.5B": FULL.middle, "7B": FULL.large}
PRODUCTS = {"mm", "addmm", "addmm_", "bmm", "baddbmm"}
VIEWS = {
    "_unsafe_view", "alias", "as_strided", "detach", "empty", "empty_like", "expand", "new_empty", "new_empty_strided",
    "permute", "prim_device", "device", "reshape", "select", "slice", "split", "split_with_sizes", "squeeze", "t",
    "transpose", "unsqueeze", "view",
}  # fmt: skip


class Layer(NamedTuple):
    """One layer's forward and backward pass."""

    kernels: int
    products: int  # of those, products of matrices
    traffic: float  # bytes a token, products aside
    kept: float  # bytes a token


class Tally:
    """Kernels and their bytes, by name."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()
        self.is_within_one = False

    def add(self, name: str, *tensors: Any) -> None:
        from torch import Tensor
        from torch.utils._pytree import tree_leaves

        self.calls[name] += 1
        self.bytes[name] += sum(
            min(leaf.numel() * leaf.element_size(), leaf.untyped_storage().nbytes())
            for leaf in tree_leaves(tensors)
            if isinstance(leaf, Tensor)
        )

    def single(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function as one kernel."""

        def call(*arguments: Any) -> Any:
            self.is_within_one = True
            result = function(*arguments)
            self.is_within_one = False
            self.add(function.__name__, arguments, result)
            return result

        return call


@contextlib.contextmanager
def dispatched(tally: Tally) -> Iterator[None]:
    """Within it, what torch dispatches is counted."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            out = func(*args, **(kwargs or {}))
            name = func.overloadpacket.__name__
            if name not in VIEWS and not tally.is_within_one:
                tally.add(name, args, kwargs, out)
            return out

    with Mode():
        yield


def attention_left_out(query: Any, key: Any, value: Any, *_: Any) -> Any:
    """In place of FlexAttention, with its gradients' shapes and what it keeps: inputs, results, and their scales."""
    import torch
    from torch.autograd import Function

    class LeftOut(Function):
        @staticmethod
        def forward(ctx: Any, *heads: Any) -> Any:
            out = torch.empty_like(heads[0])
            ctx.save_for_backward(*heads, out, torch.empty(heads[0].shape[:-1], dtype=torch.float32))
            return out

        @staticmethod
        def backward(ctx: Any, slope: Any) -> Any:
            return tuple(torch.empty_like(heads) for heads in ctx.saved_tensors[:3])

    return LeftOut.apply(query, key, value)


class Kept:
    """Bytes that autograd keeps for the backward pass, inside `saved_tensors_hooks(kept.keep, …)`; each storage once."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.held: list[Any] = []  # so that no other storage gets an address that was counted

    def keep(self, value: Any) -> Any:
        storage = value.untyped_storage()
        self.sizes[storage._cdata] = storage.nbytes()
        self.held.append(value)
        return value

    def besides(self, own: set[int]) -> int:
        """The bytes of all but these storages."""
        return sum(size for storage, size in self.sizes.items() if storage not in own)


def put_fakes(model: Any) -> set[int]:
    """Give a model on the device `meta` fake tensors of the CPU, inside FakeTensorMode: their storages."""
    import torch

    own = set()
    for module in model.modules():
        for values in (module._parameters, module._buffers):
            for name, value in values.items():
                if value is not None:
                    made: Any = torch.empty(value.shape, dtype=value.dtype)
                    is_weight = values is module._parameters
                    values[name] = torch.nn.Parameter(made, value.requires_grad) if is_weight else made
                    own.add(values[name].untyped_storage()._cdata)
    return own


def run(shape: Shape, tokens: int) -> tuple[Tally, int]:
    """A forward and backward pass with the branches of a GPU: what was counted, and the bytes that autograd kept."""
    import torch
    import transformers
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.autograd.graph import saved_tensors_hooks

    from addons.gpu import flex
    from addons.kernels import fused
    from steps.core.params import Lora, Policy
    from steps.training import packing
    from steps.training.model import wrap

    tally, kept = Tally(), Kept()
    rows = Rows(1, 2, (tokens // 8,) * 2, (tokens * 7 // 16,) * 2).make(min(models.WORDS, shape.vocabulary))
    with patch.object(packing, "flex_on", lambda _: flex):
        real = packing.pack(_update.training_rows(rows), torch.bfloat16)
    config = models.config_of(shape)
    with torch.device("meta"):
        base = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        model = wrap(base, Policy(lora=Lora(rank=16), dtype="bfloat16")).train()
    kernels = [
        name for name, value in vars(fused).items() if inspect.isfunction(value) and hasattr(value, "__wrapped__")
    ]
    with contextlib.ExitStack() as stack:
        for name in set(kernels) - {"_compiles"}:
            stack.enter_context(patch.object(fused, name, tally.single(getattr(fused, name).__wrapped__)))
        stack.enter_context(patch.object(fused, "is_used", lambda _: True))
        stack.enter_context(patch.object(flex, "attend", attention_left_out))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        own = put_fakes(model)
        packed = real._replace(
            **{
                name: torch.empty(value.shape, dtype=value.dtype)
                for name, value in real._asdict().items()
                if isinstance(value, torch.Tensor)
            },
            trie=SimpleNamespace(),
        )
        stack.enter_context(dispatched(tally))
        with saved_tensors_hooks(kept.keep, lambda value: value):
            logps, _ = packing.token_logps(model, packed, 1.0)
        logps.sum().backward()
    return tally, kept.besides(own)


def layer(shape: Shape, tokens: int = 4096) -> Layer:
    """A layer of this shape, in bfloat16 with an adapter of rank 16."""
    (single, kept), (double, kept_by_two) = (run(shape._replace(layers=count), tokens) for count in (1, 2))
    calls = {name: double.calls[name] - single.calls[name] for name in double.calls}
    others = sum(double.bytes[name] - single.bytes[name] for name in double.bytes if name not in PRODUCTS)
    products = sum(count for name, count in calls.items() if name in PRODUCTS)
    return Layer(sum(calls.values()), products, others / tokens, (kept_by_two - kept) / tokens)


def main() -> None:
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.counted", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--tokens", type=int, default=4096, help="of the packed batch (default: 4096)")
    options = parser.parse_args()
    print("| layer | kernels | of them products | KiB of traffic a token, products aside | KiB kept a token |")
    print("|---|---|---|---|---|")
    for name, shape in SHAPES.items():
        each = layer(shape, options.tokens)
        print(f"| {name} | {each.kernels} | {each.products} | {each.traffic / 1024:.0f} | {each.kept / 1024:.0f} |")


if __name__ == "__main__":
    _common.command(main)
