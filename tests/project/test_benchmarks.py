"""The benchmarks' own checks can fail, and their counts are right; the measurements themselves are run by hand."""

from __future__ import annotations

import json
import re
from collections import Counter
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _common, _update, learning, recipes, update
from steps.core.records import Row
from steps.runner.stage import parse
from steps.training import grpo
from tests.support import tiny

HERE = _common.ROOT / "benchmarks"


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


def test_the_row_of_a_recipe_compares_runs_of_one_seed() -> None:
    def run(recipe: str, seed: int, curve: list[float], test: float) -> dict[str, Any]:
        return {"task": "toy", "recipe": recipe, "seed": seed, "curve": curve, "test": test, "seconds": 10}

    runs = [run("defaults", seed, [0.0, 0.2, 0.4], 0.1 * seed) for seed in (1, 2, 3)]
    runs += [run("gspo", seed, [0.9, 0.3, 0.5], 0.1 * seed + gain) for seed, gain in ((1, 0.1), (2, 0.2), (3, 0.3))]
    made = recipes.row("toy", "gspo", [*runs, run("sapo", 1, [1.0, 1.0, 1.0], 1.0)], compared=10)
    assert (made["gain"], made["faster"], made["seeds"], made["ratio"]) == (0.2, 0.1, 3, 2.0)
    half = 4.302653 * 0.1 / 3**0.5  # Student's t with two degrees of freedom
    assert (made["gain_low"], made["gain_high"]) == pytest.approx((0.2 - half, 0.2 + half), abs=1e-3)
    assert made["gain_corrected_low"] < made["gain_low"]
    assert made["gain_corrected_high"] > made["gain_high"]


def test_the_published_recipes_are_what_their_runs_come_to() -> None:
    runs = [json.loads(line) for line in recipes.FILE.read_text().splitlines()]
    text = (_common.ROOT / "docs/recipes.md").read_text()
    seeds = Counter((run["task"], run["recipe"]) for run in runs)
    assert seeds["email_search", recipes.DEFAULTS] == len(recipes.SEEDS)
    for (task, recipe), count in seeds.items():
        if recipe == recipes.DEFAULTS:
            tests = [f"{run['test']:.3f}" for run in runs if (run["task"], run["recipe"]) == (task, recipe)]
            assert all(test in text for test in tests)
        assert count == len(recipes.SEEDS)

    def cells(task: str, recipe: str) -> tuple[str, str]:
        if not seeds[task, recipe]:
            return "–", "–"
        made = recipes.row(task, recipe, runs, len(recipes.RECIPES) - 1)
        gain, sooner = (
            f"{made[name]:+.3f} [{made[f'{name}_low']:+.3f}, {made[f'{name}_high']:+.3f}]"
            for name in ("gain", "faster")
        )
        return gain, sooner

    for recipe in recipes.RECIPES.keys() - {recipes.DEFAULTS}:
        of_mail, of_game = cells("email_search", recipe), cells("tic_tac_toe", recipe)
        assert "| " + " | ".join((recipe, *of_mail, *of_game)) + " |" in text, recipe
        gain, sooner = cells("email_search_plus", recipe)
        assert gain == "–" or f"In email_search_plus {recipe} gained {gain}, sooner {sooner}." in text


def listed(text: str) -> list[str]:
    """The benchmarks in the table of all of them."""
    rows = text.partition("## All benchmarks\n")[2].partition("\n- ")[0].splitlines()
    return [name for row in rows if row.startswith("| ") for name in re.findall(r"\w+", row.split(" | ")[1])][1:]


def test_the_page_lists_every_benchmark_once() -> None:
    assert sorted(listed((_common.ROOT / "docs/benchmarks.md").read_text())) == sorted(_common.BENCHMARKS)
    table = "## All benchmarks\n\n| figures | benchmarks |\n|---|---|\n| [a](b.md) | gate, sft |\n\n- **gate**: 1 | x\n"
    assert listed(table) == ["gate", "sft"]


@pytest.mark.parametrize("path", sorted(HERE.glob("learning_*.json")), ids=lambda path: path.stem)
def test_the_published_gains_are_those_of_their_runs(path: Path) -> None:
    """The tables of docs/results.md: a row for each seed of a pretrained model, one for all seeds of a small policy."""
    runs = [json.loads(line) for line in path.read_text().splitlines()]
    task, text = path.stem.removeprefix("learning_"), (_common.ROOT / "docs/results.md").read_text()
    if (_common.ROOT / "tasks_data" / task / "policy").is_dir():
        assert f"| {' | '.join(learning.published(task, runs))} |" in text
        return
    for run in runs:
        base, trained = (learning.interval(run["summary"][side]) for side in ("base", "trained"))
        assert f"| {task}, seed {run['seed']} | {run['summary']['base']['n']} | {base} | {trained} |" in text
