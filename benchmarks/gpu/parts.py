"""The steps of gpu-check that say where an update's time and memory go: rates of its products, kinds of kernels, phases."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

from benchmarks import _update
from benchmarks.gpu import models
from benchmarks.gpu.models import Rows, Shape
from benchmarks.gpu.sizes import Size

CALLS = 20  # of a product that are timed together
LAUNCHES = 2000
KINDS = {  # of kernels, by the first in whose words a kernel's name has a part
    "attention": ("flex_attention", "triton_tem", "flash", "fmha", "sdpa", "attn", "attention"),
    "products": ("gemm", "nvjet", "cutlass", "xmma", "cublas", "splitk", "::mm", "addmm"),
    "copies": ("memcpy", "memset", "copy"),
    "compiled": ("triton_",),  # element-wise functions of addons/kernels/fused.py
    "reductions": ("reduce", "softmax", "norm", "::sum"),
    "element-wise": ("elementwise", "vectorized", "foreach", "multi_tensor", "::mul", "::add"),
    "places": ("index", "scatter", "gather", "sort", "cat"),
}
Row = dict[str, Any]


def kinds_of(size: Size) -> dict[str, tuple[Shape, Rows, int]]:
    """Both models with their rows and the tokens of a micro-batch, by name."""
    return {
        "0.5B": (size.middle, size.ragged, 2 * size.tokens[0]),
        "7B": (size.large, size.long, size.tokens[0]),
    }


def peaks(size: Size) -> Iterator[Row]:
    """The rate of a product at each shape that an update has, beside the best rate; the time of one launch."""
    import torch

    place: dict[str, Any] = {"device": models.device(), "dtype": getattr(torch, size.dtype)}
    rate = models.matmul_rate(size.dtype, size.matrix)
    yield {"name": f"best product {size.dtype}", "tflops": round(rate / 1e12, 3)}
    for name, (shape, _, _) in kinds_of(size).items():
        sides = {
            "queries": (shape.heads * shape.head, shape.width),
            "keys": (shape.groups * shape.head, shape.width),
            "gate": (shape.inner, shape.width),
            "down": (shape.width, shape.inner),
            "adapter": (16, shape.width),
        }
        for product, (out, inner) in sides.items():
            weight = torch.randn(out, inner, **place)
            for tokens in size.products:
                x = torch.randn(tokens, inner, **place)
                torch.mm(x, weight.T)
                spent = min(models.timed(partial(several, x, weight)) for _ in range(5)) / CALLS
                done = 2 * tokens * out * inner / spent
                row = {"name": f"{name}, {product}, {tokens} tokens", "out": out, "inner": inner}
                yield row | {"tflops": round(done / 1e12, 3), "of_peak": round(done / rate, 3)}
    nothing = torch.zeros(16, device=models.device())

    def launches() -> None:
        for _ in range(LAUNCHES):
            nothing.mul_(1.0)

    launches()
    yield {"name": "launch", "microseconds": round(min(models.timed(launches) for _ in range(3)) / LAUNCHES * 1e6, 2)}


def several(x: Any, weight: Any) -> None:
    """CALLS products, so that waiting for the GPU does not count."""
    import torch

    for _ in range(CALLS):
        torch.mm(x, weight.T)


def profile(size: Size) -> Iterator[Row]:
    """Seconds of an optimiser step by kind of kernel. `busy` is the kernels' share of the seconds without the profiler."""
    for name, (shape, kind, budget) in kinds_of(size).items():
        rows = kind.make(models.WORDS)[: size.profiled]
        trainer = models.own_trainer(models.make_base(shape, size.dtype), size.dtype)
        update = _update.recipe(max_sampler_kl=1e9, tokens_per_micro_batch=budget, gradient_checkpointing=False)
        steps = models.own_steps(trainer, rows, update)
        next(steps)  # compiles
        seconds = min(next(steps) for _ in range(2))
        kernels: dict[str, tuple[float, int]] = {}
        trainer.train = partial(profiled, trainer.train, kernels)
        next(steps)
        by_kind: dict[str, float] = defaultdict(float)
        for kernel, (spent, _) in kernels.items():
            by_kind[kind_of(kernel)] += spent
        longest = sorted(kernels.items(), key=lambda item: -item[1][0])[:10]
        yield {
            "name": name,
            "seconds": round(seconds, 4),
            "busy": round(sum(by_kind.values()) / seconds, 3),
            "kernels": sum(count for _, count in kernels.values()),
            "seconds_by_kind": {
                kind: round(spent, 4) for kind, spent in sorted(by_kind.items(), key=lambda item: -item[1])
            },
            "longest": [[kernel[:60], round(spent, 4), count] for kernel, (spent, count) in longest],
        }
        del trainer, steps
        models.free()


def kind_of(kernel: str) -> str:
    """The kind of a kernel of this name."""
    name = kernel.lower()
    return next((kind for kind, words in KINDS.items() if any(word in name for word in words)), "others")


def profiled(function: Callable[..., Any], kernels: dict[str, tuple[float, int]], *arguments: Any, **more: Any) -> Any:
    """The function's result. Sets the seconds and calls of each kernel in it, by name; on a CPU of torch's operations."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as recorded

    on_gpu = models.device().type == "cuda"
    with recorded(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as record:
        result = function(*arguments, **more)
        _update.finish_gpu()
    for event in record.key_averages():
        if on_gpu and (event.device_type != DeviceType.CUDA or getattr(event, "is_user_annotation", False)):
            continue
        spent = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        kernels[event.key] = (spent / 1e6, event.count)
    return result


class Phases:
    """The most memory that torch held on the GPU in each phase of an update, in 10⁹ bytes, and what a forward pass left;
    None on a CPU."""

    def __init__(self) -> None:
        self.gb: dict[str, float | None] = {}
        self.tokens = 0  # of the largest micro-batch
        self.kept: int | None = None  # bytes that it kept for each of them
        self.end("before")
        self.gb.clear()

    def end(self, phase: str) -> None:
        """What was held since the last phase ended was held in this one."""
        import torch

        self.gb.setdefault(phase, None)
        if models.device().type == "cuda":
            _update.finish_gpu()
            self.gb[phase] = max(self.gb[phase] or 0.0, round(torch.cuda.max_memory_allocated() / 1e9, 2))
            torch.cuda.reset_peak_memory_stats()

    def forward(self, token_logps: Callable[..., Any], model: Any, packed: Any, temperature: float, **more: Any) -> Any:
        """The update's forward pass, as a phase where it has a gradient."""
        import torch

        if not torch.is_grad_enabled():
            return token_logps(model, packed, temperature, **more)
        self.end("between")
        before = held()
        result = token_logps(model, packed, temperature, **more)
        after, tokens = held(), packed.ids.shape[1]
        if tokens > self.tokens:
            self.tokens = tokens
            self.kept = None if before is None or after is None else round((after - before) / tokens)
        self.end("forward")
        return result

    def backward(self, accumulate: Callable[..., None], *arguments: Any) -> None:
        """The loss of a micro-batch after its forward pass, and the backward pass."""
        accumulate(*arguments)
        self.end("backward")


def held() -> int | None:
    """Bytes that torch holds on the GPU; None on a CPU."""
    import torch

    return torch.cuda.memory_allocated() if models.device().type == "cuda" else None


def memory(size: Size) -> Iterator[Row]:
    """GB of an update by phase, in the micro-batches that it chooses for the free memory; bytes that a token keeps for the
    backward pass beside those that this choice counts on."""
    from addons.gpu.memory import costs
    from steps.training import batches, grpo, packing

    for name, (shape, kind, _) in kinds_of(size).items():
        phases, rows = Phases(), kind.make(models.WORDS)
        trainer = models.own_trainer(models.make_base(shape, size.dtype), size.dtype)
        phases.end("weights")
        update = _update.recipe(max_sampler_kl=1e9)
        examples = [batches.Example([row], 0.0) for row in _update.training_rows(rows)]
        chosen = trainer.with_micro_batches(examples, update)
        forward = partial(phases.forward, packing.token_logps)
        backward = staticmethod(partial(phases.backward, grpo.Trainer._accumulate))
        with models.fits() as row, patch.object(packing, "token_logps", forward):
            with patch.object(grpo.Trainer, "_accumulate", backward):
                *_, seconds = itertools.islice(models.own_steps(trainer, rows, update), 2)
            phases.end("optimiser")
            row["seconds"] = round(seconds, 4)
        cost = costs(trainer.model.config, 16, trainer.place[0].itemsize)
        counted = cost.checkpointed if chosen.gradient_checkpointing else cost.whole
        yield {
            "name": name,
            "tokens_per_micro_batch": chosen.tokens_per_micro_batch,
            "checkpointed": chosen.gradient_checkpointing,
            "gb": phases.gb,
            "tokens": phases.tokens,
            "bytes_kept_by_token": phases.kept,
            "bytes_counted": counted,
        } | row
        del trainer
        models.free()
