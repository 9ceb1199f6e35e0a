"""The benchmarks' own checks can fail, and their counts are right; the measurements themselves are run by hand."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks import _common, _update, credit, learning, update
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


def test_episodes_until_a_success_are_found_between_iterations() -> None:
    """Of three neighbours the means are 0.3, 0.5 and 2/3, of the last two 0.75; 0.6 lies between the second and third."""
    curve = [0.2, 0.2, 0.5, 0.8, 0.7]
    assert credit.smoothed(curve) == pytest.approx([0.2, 0.3, 0.5, 2 / 3, 0.75])
    assert credit.goal(curve) == pytest.approx(2 / 3)
    assert credit.reached(curve, 0.6) == pytest.approx(2.6)
    assert (credit.reached(curve, 0.1), credit.reached(curve, 0.9)) == (0.0, None)


def test_the_row_of_credit_compares_runs_of_one_seed() -> None:
    def run(way: str, seed: int, curve: list[float], test: float) -> dict[str, Any]:
        shares = {"turns_in_groups": 0.5, "later_turns_in_groups": 0.25} if way == "gigpo" else {}
        return {"way": way, "seed": seed, "curve": curve, "test": test, "episodes": 100} | shares

    slow, fast = [0.0, 0.2, 0.4, 0.6, 0.8], [0.0, 0.4, 0.8, 0.8, 0.8]
    runs = [run("grpo", seed, slow, 0.7) for seed in (1, 2)]
    runs += [run("gigpo", 1, fast, 0.8), run("gigpo", 2, slow, 0.7)]
    made = credit.row("toy", runs)
    assert credit.reached(slow, 0.6) == pytest.approx(3.0)
    first = credit.reached(fast, 0.6)
    assert first is not None
    assert made["ratio"] == pytest.approx((first / 3) ** 0.5, abs=1e-3)
    assert (made["grpo_episodes"], made["unreached"], made["seeds"]) == (300, 0, 2)
    assert made["gain"] == 0.05
    assert made["ratio_low"] < made["ratio"] < made["ratio_high"]
    runs[2]["curve"] = [0.0] * 5
    assert credit.row("toy", runs)["unreached"] == 1


def test_the_published_credit_is_what_its_runs_come_to() -> None:
    runs = [json.loads(line) for line in credit.FILE.read_text().splitlines()]
    text = (_common.ROOT / "docs/update.md").read_text()
    for task in credit.TASKS:
        chosen = [run for run in runs if run["task"] == task]
        assert {(run["seed"], run["way"]) for run in chosen} == {
            (seed, way) for seed in credit.SEEDS for way in credit.WAYS
        }
        row = credit.row(task, chosen)
        gain = f"{row['gain']:+.3f} [{row['gain_low']:+.3f}, {row['gain_high']:+.3f}]"
        ratio = f"{row['ratio']:.2f} [{row['ratio_low']:.2f}, {row['ratio_high']:.2f}]"
        cells = f"{row['grpo_episodes']:,} | {row['gigpo_episodes']:,} | {ratio} | {row['unreached']} of 5 | {gain}"
        assert f"| {task} | {cells} |" in text


@pytest.mark.parametrize("path", sorted(HERE.glob("learning_*.json")), ids=lambda path: path.stem)
def test_the_published_gains_are_those_of_their_runs(path: Path) -> None:
    """The tables of docs/tasks.md: a row for each seed of a pretrained model, one for all seeds of a small policy."""
    runs = [json.loads(line) for line in path.read_text().splitlines()]
    task, text = path.stem.removeprefix("learning_"), (_common.ROOT / "docs/tasks.md").read_text()
    if (_common.ROOT / "tasks_data" / task / "policy").is_dir():
        assert f"| {' | '.join(learning.published(task, runs))} |" in text
        return
    for run in runs:
        base, trained = (learning.interval(run["summary"][side]) for side in ("base", "trained"))
        assert f"| {task}, seed {run['seed']} | {run['summary']['base']['n']} | {base} | {trained} |" in text
