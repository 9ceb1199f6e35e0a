"""Supervised fine-tuning against TRL's own SFTTrainer: the same rows, steps and settings give the same adapter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from addons.supervised import fine_tuning as sft
from addons.supervised.section import Sft
from steps.core.progress import report_to
from steps.training import trained
from steps.training.grpo import Trainer
from tests.conftest import ROOT
from tests.support import tiny

SETTINGS = Sft(demonstrations=("x",), batch=4, epochs=2, learning_rate=0.01)


def by_trl(model: Any, rows: list[Any], tokenizer: Any, folder: Path) -> list[Any]:
    """Stock SFTTrainer over the same rows in the same order; the trained weights."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    order = list(sft.passes(len(rows), SETTINGS.epochs or 1, 5))
    labels = [[token if learnt else -100 for token, learnt in zip(row.ids, row.mask, strict=True)] for row in rows]
    SFTTrainer(
        model=model,
        args=SFTConfig(
            **sft.configuration(SETTINGS, len(order), 5), output_dir=str(folder), per_device_train_batch_size=SETTINGS.batch
        ),
        train_dataset=Dataset.from_list([{"input_ids": rows[place].ids, "labels": labels[place]} for place in order]),
        processing_class=tokenizer,
    ).train()  # fmt: skip
    return tiny.weights(model)


def test_it_is_trls_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    monkeypatch.setenv("TORCHDYNAMO_DISABLE", "1")
    tokenizer = AutoTokenizer.from_pretrained(ROOT / "tasks_data/multiplication/policy")
    policy = tiny.make_policy(tmp_path / "base")
    rows = tiny.random_rows(18, 1, alike=0.5)  # 36 in two passes: the last step has all of its 4
    trainer = tiny.moved(Trainer(policy, seed=1))
    stock = tiny.twin(trainer, tmp_path / "first", double=False)
    before = [value.detach().clone() for value in trainer.weights.values()]
    reported: list[dict[str, Any]] = []
    report_to(reported.append)
    try:
        losses = sft.fine_tune(trainer, rows, SETTINGS, tokenizer, 5)
    finally:
        report_to(None)
    shown = [message["progress"] for message in reported if "progress" in message]
    assert (shown[0], shown[-1]) == ([0, 9, "optimiser steps"], [9, 9, f"optimiser steps, loss {losses[-1]:.3f}"])
    assert (len(losses), losses[-1] < losses[0]) == (9, True)
    assert (trainer.steps, trainer.moments) == (0, {})
    assert "forward" not in trainer.model.get_base_model().__dict__  # TRL's replacement is gone
    theirs = by_trl(stock, rows, tokenizer, tmp_path / "out")
    ways = [
        [after - first for after, first in zip(side, before, strict=True)]
        for side in (trainer.weights.values(), theirs)
    ]
    assert tiny.relative(*ways) < 1e-3


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 11, 40])
def test_the_learning_rate_is_reached_however_few_the_steps(steps: int) -> None:
    """The warm-up is 10 steps by default, and a few demonstrations are fewer steps than that."""
    import torch
    from transformers import get_scheduler

    settings = Sft(demonstrations=("x",), batch=4)
    fields = sft.configuration(settings, 4 * steps, 1)
    optimizer = torch.optim.SGD([torch.zeros(1)], settings.learning_rate)
    schedule = get_scheduler(
        fields["lr_scheduler_type"], optimizer, fields["warmup_steps"], num_training_steps=fields["max_steps"]
    )
    rates = [settings.learning_rate * schedule.lr_lambdas[0](step) for step in range(fields["max_steps"])]
    assert max(rates) == pytest.approx(settings.learning_rate)


def test_small_micro_batches_give_the_same_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "tasks_data/multiplication/policy")
    policy, rows = tiny.make_policy(tmp_path / "base"), tiny.random_rows(40, 2)
    results = []
    for tokens in (64, 4096):
        monkeypatch.setattr(trained, "TOKENS", tokens)
        trainer = Trainer(policy, seed=1)
        sft.fine_tune(trainer, rows, SETTINGS.model_copy(update={"batch": 20}), tokenizer, 5)
        results.append([value.detach().clone() for value in trainer.weights.values()])
    assert 0 < tiny.relative(*results) < 1e-4  # rounding alone


def test_few_demonstrations_are_passed_over_until_the_held_out_ones_are_written_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows that say the same are learnt, and training ends before its 300 steps; the weights kept are the best seen."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "tasks_data/multiplication/policy")
    policy = tiny.make_policy(tmp_path / "base")
    rows = [
        row._replace(ids=[*row.ids[:1], 7, 9], mask=[0, 1, 1], logprobs=[0.0] * 3) for row in tiny.random_rows(30, 3)
    ]
    settings = Sft(demonstrations=("x",), learning_rate=0.05)
    learnt, held_out = sft.divided(rows, settings, 5)
    assert (len(learnt), len(held_out)) == (27, 3)
    trainer = tiny.moved(Trainer(policy, seed=1))
    losses = sft.fine_tune(trainer, learnt, settings, tokenizer, 5, held_out)
    assert 10 < len(losses) < 300
    assert "100% of 3 held out are right" in capsys.readouterr().out
    assert min(losses) < 0.3 < losses[0]


def test_the_best_weights_are_put_back() -> None:
    import torch

    weights = {"a": torch.zeros(1)}
    best = sft.Best(weights)
    looks = [(0.5, 2.0), (0.7, 1.0), (0.7, 1.5), (0.2, 0.1), (0.7, 1.1), (0.0, 9.0)]
    ended = []
    for step, look in enumerate(looks):
        weights["a"].fill_(step)
        ended.append(best.add(sft.Look(*look)))
    best.restore()
    assert (weights["a"].item(), ended) == (1.0, [False, False, False, False, False, True])


def test_nothing_is_held_out_where_passes_are_set_or_demonstrations_many() -> None:
    rows = tiny.random_rows(40, 1)
    assert sft.divided(rows, SETTINGS, 5) == (rows, [])
    many = Sft(demonstrations=("x",), batch=1)
    assert sft.divided(rows[:9], many, 5) == (rows[:9], [])
    assert sft.divided(rows * 8, many, 5) == (rows * 8, [])


def test_each_pass_has_each_row_once_in_an_order_of_its_own() -> None:
    order = list(sft.passes(10, 3, seed=1))
    parts = [order[10 * place : 10 * place + 10] for place in range(3)]
    assert all(sorted(part) == list(range(10)) for part in parts)
    assert parts[0] != parts[1] != parts[2]
    assert order == list(sft.passes(10, 3, seed=1)) != list(sft.passes(10, 3, seed=2))


def test_nothing_to_learn_from_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no rows"):
        sft.fine_tune(Trainer(tiny.make_policy(tmp_path / "base"), seed=1), [], SETTINGS, None, 5)
