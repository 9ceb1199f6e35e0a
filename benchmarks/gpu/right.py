"""The steps of gpu-check that ask whether an update is right: exact, the same bytes again, and near in bfloat16.

Each yields rows, one for each thing that it has measured; an error ends it.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import _trl, _update
from benchmarks.gpu import models
from benchmarks.gpu.models import first_line
from benchmarks.gpu.sizes import Size
from benchmarks.update import difference

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
            trainer.model.zero_grad()
            row: Row = {"name": f"{family}, {way}"}
            try:
                with chosen():
                    packed = list(models.packed_logps(trainer, rows))
                    sums = [logps.sum() * row["reward"] for logps, row in zip(packed, rows, strict=True)]
                    torch.stack(sums).sum().backward()
            except Exception as problem:  # the other attention may be exact
                yield row | {"exact": False, "error": first_line(problem)}
                continue
            gap = max(float((a - b).detach().abs().max()) for a, b in zip(packed, expected, strict=True))
            apart = models.distance([w.grad for w in trainer.weights.values()], [w.grad for w in weights])
            exact = gap < 1e-3 and apart < LIMIT
            yield row | {"logps_apart": gap, "gradients_apart": apart, "exact": exact}
        models.free()
    yield from against_trl(size)


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
        trainer = models.moved(models.own_trainer(models.make_base(size.middle, "bfloat16", spread), "bfloat16"), 0.01)
        limit = Update().of_dtype("bfloat16").sampler_limit(trainer.model.config.num_hidden_layers)
        with tempfile.TemporaryDirectory(prefix="gpu-") as name:
            trainer.save_checkpoint(Path(name, "start"), "")
            plain = _trl.with_first_adapter(models.make_base(size.middle, "bfloat16", spread), Path(name, "start"))
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
