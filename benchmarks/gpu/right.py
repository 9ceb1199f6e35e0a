"""The steps of gpu-check that ask whether an update is right: exact, the same bytes again, and near in bfloat16.

Each yields rows, one for each thing that it has measured; an error ends it.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks import _trl, _update
from benchmarks.gpu import models
from benchmarks.gpu.models import first_line
from benchmarks.gpu.sizes import Size
from benchmarks.update import difference

MEND_LIMIT = 2e-5  # largest difference of gradients by what only a GPU does, relative to the largest gradient
LIMIT = 1e-4  # relative difference of gradients, and of adapters after a few steps, in float32
LAST = "three steps against TRL"  # the last row of exactness
Row = dict[str, Any]


def exactness(size: Size) -> Iterator[Row]:
    """In float32: our forward and backward pass on packed rows against PEFT's on single rows; three steps against TRL's."""
    import torch

    torch.set_float32_matmul_precision("highest")
    rows = size.few.make(models.WORDS)
    for family in ("Qwen2", "Qwen3", "Llama"):
        shape = size.tiny._replace(family=family)
        # far from uniform, so that mistakes show
        trainer = models.moved(models.own_trainer(models.make_base(shape, "float32", 0.2), "float32"), 0.05)
        with tempfile.TemporaryDirectory(prefix="gpu-") as name:
            trainer.save_checkpoint(Path(name, "start"), "")
            plain = _trl.with_first_adapter(models.make_base(shape, "float32", 0.2), Path(name, "start"))
        weights = [value for value in plain.parameters() if value.requires_grad]
        expected = [models.plain_logps(plain, row) for row in rows]
        torch.stack([logps.sum() * row["reward"] for logps, row in zip(expected, rows, strict=True)]).sum().backward()
        for way, chosen in models.attentions().items():
            row: Row = {"name": f"{family}, {way}"}
            try:
                with chosen():
                    packed = gradients(trainer, rows)
            except Exception as problem:  # the other attention may be exact
                yield row | {"exact": False, "error": first_line(problem)}
                continue
            gap = max(float((a - b).detach().abs().max()) for a, b in zip(packed, expected, strict=True))
            apart = models.distance([w.grad for w in trainer.weights.values()], [w.grad for w in weights])
            exact = gap < 1e-3 and apart < LIMIT
            yield row | {"logps_apart": gap, "gradients_apart": apart, "exact": exact}
        yield {"name": f"{family}, functions of a GPU", **compared(trainer, rows, functions(True), functions(False))}
        for way, chosen in models.attentions().items():
            with chosen():
                row = compared(trainer, rows, checkpointed(trainer), nullcontext())
            yield {"name": f"{family}, {way}, checkpointed", **row}
        models.free()
    yield from against_trl(size)


def gradients(trainer: Any, rows: list[dict[str, Any]]) -> list[Any]:
    """Logprobs of each row by the trainer's forward pass. Leaves the gradient of sums times rewards in its weights."""
    import torch

    trainer.model.zero_grad()
    packed = list(models.packed_logps(trainer, rows))
    torch.stack([logps.sum() * row["reward"] for logps, row in zip(packed, rows, strict=True)]).sum().backward()
    return packed


def compared(trainer: Any, rows: list[dict[str, Any]], *ways: AbstractContextManager[Any]) -> Row:
    """Gradients in the first of two contexts against those in the second."""
    sides = []
    try:
        for way in ways:
            with way:
                gradients(trainer, rows)
            sides.append([weight.grad.clone() for weight in trainer.weights.values()])
    except Exception as problem:  # the rest may be exact
        return {"exact": False, "error": first_line(problem)}
    gap = max(float((a - b).abs().max()) for a, b in zip(*sides, strict=True))
    apart = gap / max(float(value.abs().max()) for value in sides[1])
    return {"gradients_apart": apart, "exact": apart < MEND_LIMIT}


def functions(of_gpu: bool) -> AbstractContextManager[Any]:
    """Within it, the functions of addons/kernels/fused.py compute, which a GPU compiles, or those for a CPU."""
    from addons.kernels import fused

    return patch.object(fused, "is_used", lambda _: of_gpu)


@contextmanager
def checkpointed(trainer: Any) -> Iterator[None]:
    """Within it, layers are computed again in the backward pass, except for FlexAttention's results."""
    trainer.keeps_attention = True
    trainer.set_checkpointing(True)
    try:
        yield
    finally:
        trainer.set_checkpointing(False)


def against_trl(size: Size) -> Iterator[Row]:
    """Three optimiser steps of a tiny model by both sides."""
    rows = size.few.make(models.WORDS)
    shape = size.tiny._replace(family="Qwen3")
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        folder = Path(name)
        trainer = models.own_trainer(models.make_base(shape, "float32"), "float32")
        trainer.save_checkpoint(folder / "start", "")
        models.ours(trainer, rows, _update.recipe(), 3, 1, folder)
        models.free()
        base = models.make_base(shape, "float32")
        models.trls(base, rows, 3, 1, size.few.attempts, folder, 0.0)
        whole, worst = difference(folder)
    yield {
        "name": LAST,
        "adapters_apart": whole,
        "worst_matrix": worst,
        "exact": whole < LIMIT,
    }


def determinism(size: Size) -> Iterator[Row]:
    """The same update of a few layers several times, by each attention, as it is and with policy.deterministic."""
    rows = size.few.make(models.WORDS)
    shape = size.middle._replace(layers=min(4, size.middle.layers))
    # policy.deterministic would set both; the slow-down is that of the fixed orders alone
    update = _update.recipe(max_sampler_kl=1e9, tokens_per_micro_batch=4096, gradient_checkpointing=True)
    for way, chosen in models.attentions().items():
        usual = 0.0
        for fixed in (False, True):
            row: Row = {"name": f"{way}, {'deterministic' if fixed else 'as it is'}"}
            hashes, seconds = [], []
            try:
                for _ in range(size.repeats):
                    trainer = models.own_trainer(models.make_base(shape, size.dtype), size.dtype, fixed)
                    with chosen():
                        seconds.append(models.ours(models.moved(trainer, 0.01), rows, update, 0, 1).seconds)
                    hashes.append(hash_of(trainer))
                    trainer = None
                    models.free()
            except RuntimeError as problem:  # torch refuses an operation without a deterministic kernel
                yield row | {"error": first_line(problem)}
                continue
            usual = usual or min(seconds)
            row |= {"same_bytes": len(set(hashes)) == 1, "seconds": round(min(seconds), 4)}
            yield row | ({"slow_down": round(min(seconds) / usual, 3)} if fixed else {})


def hash_of(trainer: Any) -> str:
    """Hash of the adapter's bytes."""
    digest = hashlib.sha256()
    for value in trainer.weights.values():
        digest.update(value.detach().cpu().numpy().tobytes())
    return digest.hexdigest()


def drift(size: Size) -> Iterator[Row]:
    """bfloat16: logprobs of packed rows against single rows of stock PEFT, which stands in for the sampler (it is none)."""
    import torch

    from steps.core.params import Update
    from steps.training.loss import sampler_kl

    rows = size.few.make(models.WORDS)
    for spread in (0.02, 0.1):  # of the weights: logits near uniform, and as far from it as a trained model's
        trainer, plain = twins(size, spread)
        limit = Update().of_dtype("bfloat16").sampler_limit(trainer.model.config.num_hidden_layers)
        with torch.no_grad():
            expected = [models.plain_logps(plain, row) for row in rows]
            for way, chosen in models.attentions().items():
                with chosen():
                    packed = list(models.packed_logps(trainer, rows))
                pairs = list(zip(packed, expected, strict=True))
                kl = sum(sampler_kl(a, b, torch.ones_like(a)) for a, b in pairs) / sum(len(a) for a, _ in pairs)
                worst = max(float((a - b).abs().max()) for a, b in pairs)
                yield {
                    "name": f"weights of {spread}, {way}",
                    "kl": kl,
                    "max_sampler_kl": limit,
                    "worst_logp_apart": worst,
                }
        del trainer, plain
        models.free()


def decode(size: Size) -> Iterator[Row]:
    """bfloat16: logprobs of stock PEFT that samples one token at a time, with a cache, against those of packed rows. As in a
    sampler each token is computed alone, and so rounded differently; no sampler runs here."""
    import torch

    from steps.core.params import Update
    from steps.training.loss import sampler_kl

    for spread in (0.02, 0.1):  # as in drift
        trainer, stock = twins(size, spread)
        limit = Update().of_dtype("bfloat16").sampler_limit(trainer.model.config.num_hidden_layers)
        began = time.perf_counter()
        rows, expected = sample(stock, *size.decoded)
        spent = time.perf_counter() - began
        with torch.no_grad():
            parts = [rows[start : start + 16] for start in range(0, len(rows), 16)]
            packed = torch.stack([logps for part in parts for logps in models.packed_logps(trainer, part)])
        yield {
            "name": f"weights of {spread}",
            "kl": sampler_kl(packed, expected, torch.ones_like(packed)) / packed.numel(),
            "max_sampler_kl": limit,
            "worst_logp_apart": float((packed - expected).abs().max()),
            "tokens": packed.numel(),
            "seconds": round(spent, 2),
        }
        del trainer, stock
        models.free()


def sample(model: Any, count: int, prompt: int, length: int) -> tuple[list[dict[str, Any]], Any]:
    """Rows with random prompts, whose other tokens the model samples one at a time, and the logprobs of those [B, S]."""
    import torch

    torch.manual_seed(3)
    ids = torch.randint(10, min(models.WORDS, model.config.vocab_size), (count, prompt), device=models.device())
    tokens, logps, cache = [ids], [], None
    with torch.no_grad():
        for _ in range(length):
            out = model(input_ids=tokens[-1], past_key_values=cache, use_cache=True)
            cache = out.past_key_values
            shares = torch.log_softmax(out.logits[:, -1].float(), -1)
            tokens.append(torch.multinomial(shares.exp(), 1))
            logps.append(shares.gather(-1, tokens[-1]))
    mask = [0] * prompt + [1] * length
    rows = [{"ids": row, "mask": mask, "group": "any", "prompt": prompt} for row in torch.cat(tokens, 1).tolist()]
    return rows, torch.cat(logps, 1)


def twins(size: Size, spread: float) -> tuple[Any, Any]:
    """Our trainer of the middle model in bfloat16, and stock PEFT with the same weights."""
    trainer = models.moved(models.own_trainer(models.make_base(size.middle, "bfloat16", spread), "bfloat16"), 0.01)
    with tempfile.TemporaryDirectory(prefix="gpu-") as name:
        trainer.save_checkpoint(Path(name, "start"), "")
        stock = _trl.with_first_adapter(models.make_base(size.middle, "bfloat16", spread), Path(name, "start"))
    return trainer, stock.eval()
