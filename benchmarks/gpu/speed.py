"""The steps of gpu-check that measure time and memory: of the device, of attention, and of updates beside TRL's.

Each yields rows, one for each thing that it has measured. Out of memory is a row where a step asks what fits; elsewhere it
ends the step, as every other error does.
"""

from __future__ import annotations

import contextlib
import platform
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks import _update
from benchmarks.gpu import models
from benchmarks.gpu.models import Rows, Shape, first_line
from benchmarks.gpu.sizes import Size
from benchmarks.update import difference
from steps.core.params import Update

Row = dict[str, Any]


def environment(size: Size) -> Iterator[Row]:
    """The device, the packages, and its rates: products of matrices in operations, copies in bytes (read and written)."""
    import torch

    packages = {}
    for name in ("torch", "triton", "transformers", "accelerate", "peft", "trl", "vllm"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            packages[name] = metadata.version(name)
    row: Row = {"date": time.strftime("%Y-%m-%d"), "python": platform.python_version()}
    row |= {"packages": packages, "cuda": torch.version.cuda}
    if models.device().type == "cuda":
        facts = torch.cuda.get_device_properties(0)
        row |= {"device": facts.name, "memory_gb": round(facts.total_memory / 1e9, 1)}
        row |= {"capability": f"{facts.major}.{facts.minor}", "processors": facts.multi_processor_count}
    else:
        row["device"] = f"CPU, {torch.get_num_threads()} threads"
    yield row | {"attentions": list(models.attentions())}
    for dtype in ("bfloat16", "float32"):
        yield {"name": f"matmul {dtype}", "tflops": round(models.matmul_rate(dtype, size.matrix) / 1e12, 3)}
    source = torch.zeros(size.copied, dtype=torch.uint8, device=models.device())
    target = torch.empty_like(source)
    best = min(models.timed(lambda: target.copy_(source)) for _ in range(5))
    yield {"name": "copy", "gb_per_second": round(2 * size.copied / best / 1e9, 1)}


def attention(size: Size) -> Iterator[Row]:
    """Two rows with the large model's heads, forward and backward: torch's kernels on plain rows, ours on packed ones."""
    from torch.nn.attention import SDPBackend

    rate = models.matmul_rate("bfloat16", size.matrix)
    plain = {"efficient": SDPBackend.EFFICIENT_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}
    plain["flash"] = SDPBackend.FLASH_ATTENTION
    for length in size.lengths:
        calls: dict[str, Callable[[int], Callable[[], None]]] = {
            f"plain, {name}": partial(plain_attention, size.large, backend) for name, backend in plain.items()
        }
        for way, chosen in models.attentions().items():
            calls[f"packed, {way}"] = partial(packed_attention, size.large, chosen)
        work = 2 * models.attention_operations(size.large, length)
        for name, call in calls.items():
            row: Row = {"name": name, "tokens": length} | kernel(call, length)
            yield row | ({"of_peak": round(work / row["ms"] * 1e3 / rate, 3)} if "ms" in row else {})
        for way in {"flex"} - models.attentions().keys():
            yield {
                "name": f"packed, {way}",
                "tokens": length,
                "missing": "needs Triton, a C compiler and a GPU from Ampere on",
            }


def kernel(prepare: Callable[[int], Callable[[], None]], length: int) -> Row:
    """Milliseconds of a call, seconds that the first call and a first call of another length take longer, GB at most."""
    try:
        with models.Peak() as peak:
            call = prepare(length)
            first = models.timed(call)
            steady = min(models.timed(call) for _ in range(4))
        another = prepare(length - 13)
        new = models.timed(another)
    except Exception as problem:  # no memory, no kernel for such inputs, or one that could not be compiled
        return {"out_of_memory" if models.is_out_of_memory(problem) else "unavailable": first_line(problem)}
    finally:
        models.free()
    return {
        "ms": round(1e3 * steady, 3),
        "seconds_first": round(max(0.0, first - steady), 3),
        "seconds_new_length": round(max(0.0, new - steady), 3),
        "peak_gb": peak.gb,
    }


def heads(shape: Shape, rows: int, tokens: int) -> list[Any]:
    """Random queries, keys and values [rows, heads, tokens, head size] in bfloat16, with gradients."""
    import torch

    kinds = (shape.heads, shape.groups, shape.groups)
    place = {"device": models.device(), "dtype": torch.bfloat16, "requires_grad": True}
    return [torch.randn(rows, count, tokens, shape.head, **place) for count in kinds]


def plain_attention(shape: Shape, backend: Any, tokens: int) -> Callable[[], None]:
    """A call of torch's causal attention on two rows; heads of keys are repeated, as not all kernels take groups."""
    from torch.nn.attention import sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    query, key, value = heads(shape, 2, tokens)

    def call() -> None:
        keys, values = (side.repeat_interleave(shape.heads // shape.groups, dim=1) for side in (key, value))
        with sdpa_kernel([backend]):
            out = scaled_dot_product_attention(query, keys, values, is_causal=True)
            out.backward(query.detach())

    return call


def packed_attention(shape: Shape, chosen: Callable[[], Any], tokens: int) -> Callable[[], None]:
    """A call of the trainer's attention on two packed rows, which share nothing."""
    import torch

    from steps.training import attention, packing

    rows = Rows(2, 1, (tokens // 2, tokens // 2), (tokens - tokens // 2,) * 2).make(models.WORDS)
    with chosen():
        packed = packing.pack(_update.training_rows(rows), torch.bfloat16, models.device())
    query, key, value = heads(shape, 1, packed.ids.shape[1])

    def call() -> None:
        with chosen():
            out, _ = attention.attention(None, query, key, value, None, packed=packed)
            out.backward(query.detach().transpose(1, 2))

    return call


def middle(size: Size) -> Iterator[Row]:
    """The model of 0.5B: a step on 128 rows of different lengths, by both sides, and how far apart their adapters are."""
    rows = size.ragged.make(models.WORDS)
    tokens = sum(len(row["ids"]) for row in rows)
    rate = models.matmul_rate(size.dtype, size.matrix)
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        folder = Path(name)
        trainer = models.own_trainer(models.make_base(size.middle, size.dtype), size.dtype)
        trainer.save_checkpoint(folder / "start", "")
        update = _update.recipe(max_sampler_kl=1e9, tokens_per_micro_batch=8192)
        own = models.ours(trainer, rows, update, 2, size.timed, folder)
        work = models.operations(trainer, rows, 1)
        shared = {"tokens": tokens, "operations_unshared": round(work / own.operations, 3)}
        yield {"name": "ours", **shared, **own.row(tokens, rate)}
        del trainer
        models.free()
        base = models.make_base(size.middle, size.dtype)
        theirs = models.trls(
            base, rows, 2, size.timed, size.ragged.attempts, folder, work, bf16=size.dtype == "bfloat16"
        )
        yield {"name": "TRL", **theirs.row(tokens, rate)}
        whole, _ = difference(folder)
    yield {"name": "ratio", "ratio": round(theirs.seconds / own.seconds, 3), "adapters_apart": whole}


def large(size: Size) -> Iterator[Row]:
    """The model of 7B: a step on 32 rows of 2k by both sides, with and without checkpointing; ratio of the fastest."""
    rows = size.long.make(models.WORDS)
    tokens = sum(len(row["ids"]) for row in rows)
    rate = models.matmul_rate(size.dtype, size.matrix)
    best: dict[str, float] = {}
    work = 0.0
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        folder = Path(name)
        for again, budget in zip((False, True), size.tokens, strict=True):
            with models.fits() as row:
                trainer = models.own_trainer(models.make_base(size.large, size.dtype), size.dtype)
                if not again:
                    trainer.save_checkpoint(folder / "start", "")
                more = {"tokens_per_micro_batch": budget, "gradient_checkpointing": again}
                own = models.ours(trainer, rows, _update.recipe(max_sampler_kl=1e9, **more), 1, 1)
                work = models.operations(trainer, rows, 1)
                row |= own.row(tokens, rate)
                best["ours"] = min(own.seconds, best.get("ours", own.seconds))
            yield {"name": f"ours{', checkpointed' if again else ''}", **row}
            trainer = None
            models.free()
        for again, batch in zip((False, True), size.batches, strict=True):
            with models.fits() as row:
                base = models.make_base(size.large, size.dtype)
                settings = {"bf16": size.dtype == "bfloat16", "gradient_checkpointing": again}
                theirs = models.trls(base, rows, 1, 1, batch, folder, work, **settings)
                row |= theirs.row(tokens, rate)
                best["TRL"] = min(theirs.seconds, best.get("TRL", theirs.seconds))
            yield {"name": f"TRL{', checkpointed' if again else ''}", **row}
            base = None
            models.free()
    if len(best) == 2:
        yield {"name": "ratio", "ratio": round(best["TRL"] / best["ours"], 3)}


def recipe(size: Size) -> Iterator[Row]:
    """The update as params.yaml has it in bfloat16 (KL term, correction of the sampler, bound on the divergence), at one and
    at eight optimiser steps, beside a step without them; both models, on the rows and micro-batches of the steps above."""
    rate = models.matmul_rate(size.dtype, size.matrix)
    sizes = {"0.5B": (size.middle, size.ragged, 2 * size.tokens[0]), "7B": (size.large, size.long, size.tokens[0])}
    for name, (shape, kind, budget) in sizes.items():
        rows = kind.make(models.WORDS)
        trainer = models.own_trainer(models.make_base(shape, size.dtype), size.dtype)
        metrics = models.watched(trainer)
        settings = {"max_sampler_kl": 1e9, "tokens_per_micro_batch": budget, "gradient_checkpointing": False}
        usual = None
        for count in (0, 1, 8):
            update = _update.recipe(**settings)
            if count:
                given: dict[str, Any] = {
                    "learning_rate": _update.LEARNING_RATE,
                    "beta": 0.01,
                    "steps_per_generation": count,
                }
                corrected = {"correction": True, "mode": "token_truncate"}
                given |= {f"vllm_importance_sampling_{name}": value for name, value in corrected.items()}
                update = Update(loss_type="dapo", **given, **settings)
            with models.fits() as row:
                own = models.ours(trainer, rows, update, 1, size.timed)
                usual = usual if count else own.seconds
                row |= own.row(sum(len(each["ids"]) for each in rows), rate)
                row |= {"times": round(own.seconds / usual, 3)} if usual else {}
                row["kept"] = metrics[-1].get("update/kept", 1.0)
            yield {"name": f"{name}, {f'recipe, steps: {count}' if count else 'without'}", **row}
        del trainer, metrics
        models.free()


def host(size: Size) -> Iterator[Row]:
    """The trainer's 7B to host memory and back, as between an update and the next rollout."""
    from addons.gpu.memory import Base

    base = Base(models.own_trainer(models.make_base(size.large, size.dtype), size.dtype).model)
    held = sum(value.numel() * value.element_size() for value in base.frozen) / 1e9
    for name in ("first", "second"):  # the copy on the host is made once
        away = models.timed(base.leave)
        back = models.timed(base.come_back)
        speed = round(held / back, 1)
        yield {"name": name, "gb": round(held, 2), "seconds_away": round(away, 3), "seconds_back": round(back, 3)} | {
            "gb_per_second_back": speed
        }
