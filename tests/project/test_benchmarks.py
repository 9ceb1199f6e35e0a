"""The benchmarks' own checks can fail, and their counts are right; the measurements themselves are run by hand."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _update, update
from steps.core.records import Row
from steps.runner.stage import parse
from steps.training import grpo
from tests.support import tiny


def test_operations_by_hand(tmp_path: Path) -> None:
    """Two rows of 5 tokens that share 3: 7 pass through the layers, 4 of them through the head."""
    trainer = grpo.Trainer(tiny.make_policy(tmp_path))
    width, inner, heads, groups, head = 16, 24, 2, 1, 8
    layer = width * head * (2 * heads + 2 * groups) + 3 * width * inner
    rows = [Row([1, 2, 3, 4, end], [0, 0, 0, 1, 1], [0.0] * 5) for end in (5, 6)]
    rows[1].ids[3] = 9
    expected = 7 * (4 * 2 * layer + 6 * trainer.trained_parameters) + 4 * 4 * width * tiny.VOCABULARY
    assert _update.operations(trainer, rows, 4096) == expected


def test_adapters_that_differ_are_seen(tmp_path: Path) -> None:
    trainer = grpo.Trainer(tiny.make_policy(tmp_path / "base"), seed=1)
    trainer.save_checkpoint(tmp_path / "start", "")
    trainer.save_adapter(tmp_path / "ours")
    trainer.save_adapter(tmp_path / "trl")
    with pytest.raises(SystemExit, match="trained different weights"):  # neither has moved
        update.difference(tmp_path)
    for side, size in (("trl", 0.1), ("ours", 0.1001)):
        for weight, first in zip(trainer.weights.values(), _first(tmp_path, trainer), strict=True):
            weight.data.copy_(first + size)
        trainer.save_adapter(tmp_path / side)
    whole, worst = update.difference(tmp_path)
    assert whole == pytest.approx(1e-3, rel=1e-3)
    assert worst == pytest.approx(1e-3, rel=1e-3)


def test_adapters_are_compared_once_every_matrix_has_moved(tmp_path: Path) -> None:
    """Matrix B is zero at first, so that A has no gradient in the first step: after one, `difference` would refuse."""
    trainer = grpo.Trainer(tiny.make_policy(tmp_path), seed=1)
    starts_at_zero = [bool((weight == 0).all()) for weight in trainer.weights.values()]
    assert any(starts_at_zero)
    assert not all(starts_at_zero)
    assert min(update.FULL.steps, update.QUICK.steps) >= 2


def _first(folder: Path, trainer: grpo.Trainer) -> list[Any]:
    from safetensors.torch import load_file

    first = load_file(folder / "start" / "state.safetensors")
    return [first[f"weight.{name}"] for name in trainer.weights]


def test_the_stages_take_the_words_they_are_called_with(tmp_path: Path) -> None:
    for name, (_, module, *words) in _update.commands(tmp_path).items():
        assert parse(getattr(import_module(module), name), module, words)["params"] == "params.yaml"


def test_random_rows_share_their_prompt_within_a_group() -> None:
    rows = _update.random_rows(6, 4, 100)
    assert len(rows) == _update.GROUPS * _update.ATTEMPTS
    prompts = {row["group"]: row["ids"][:6] for row in rows}
    assert all(row["ids"][:6] == prompts[row["group"]] and sum(row["mask"]) == 4 for row in rows)
    assert len({tuple(row["ids"]) for row in rows}) == len(rows)
