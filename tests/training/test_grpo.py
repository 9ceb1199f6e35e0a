"""The update: advantages by hand, which rows make a step, as many steps as planned, rates, and resuming bit for bit.

On a random Qwen3 of a few thousand parameters; the trainer, TRL's loss and PEFT are the real ones. The loss: test_loss.py.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from addons.fleet import probe
from addons.fleet.section import Servers
from steps.core.errors import UserError
from steps.core.params import Policy, Update
from steps.core.records import Row
from steps.policy.adapter import adapter_hash
from steps.training import grpo, packing
from steps.training.batches import Example, advantages, micro_batches, split_evenly, split_steps
from steps.training.grpo import Trainer
from tests.support import tiny
from tests.support.tiny import (
    LOOSE,
    files,
    moved,
    plain_logps,
    random_rows,
    relative,
    sampled_by,
    stock,
    with_advantages,
)

pytestmark = pytest.mark.usefixtures("one_thread")
CORRECTION = "vllm_importance_sampling_correction"


# --- Advantages


@pytest.mark.parametrize(
    ("scale", "rewards", "groups", "expected", "flat"),
    [
        # mean 0.5, deviations ±0.5, std √(1/3) = 0.577350, + 0.0001
        ("group", [1, 0, 1, 0], "aaaa", [0.865875, -0.865875, 0.865875, -0.865875], 0),
        # a: mean 2, std √2 = 1.414214; b: mean 3, deviations -2 -1 3, std √7 = 2.645751
        ("group", [3, 1, 1, 2, 6], "aabbb", [0.707057, -0.707057, -0.755900, -0.377950, 1.133851], 0),
        # the order of the groups does not matter
        ("group", [1, 3, 2, 1, 6], "babab", [-0.755900, 0.707057, -0.377950, -0.707057, 1.133851], 0),
        ("none", [3, 1, 1, 2, 6], "aabbb", [1, -1, -2, -1, 3], 0),
        # all of 1 0 2 2: std √(2.75 / 3) = 0.957427; b has no signal, and counts in the batch's std
        ("batch", [1, 0, 2, 2], "aabb", [0.522179, -0.522179, None, None], 1),
        # unscored attempts are no part of the mean, and are not trained on
        ("none", [1, None, 0, 5], "aaab", [0.5, None, -0.5, None], 1),
        ("group", [1, None, 0, None], "aaaa", [0.707007, None, -0.707007, None], 0),  # std √0.5 = 0.707107
        # one attempt, none scored, all equal: no signal
        ("group", [1], "a", [None], 1),
        ("none", [1], "a", [None], 1),
        ("group", [None, None], "aa", [None, None], 1),
        ("batch", [2, 2, 2, None], "aaab", [None, None, None, None], 2),
        ("group", [0.1 + 0.2, 0.3, 0.3], "aaa", [None, None, None], 1),  # equal but for rounding
        ("group", [], "", [], 0),
    ],
)
def test_advantages(
    scale: str, rewards: list[float | None], groups: str, expected: list[float | None], flat: int
) -> None:
    found, without_signal = advantages(rewards, list(groups), scale)
    assert without_signal == flat
    assert [value is None for value in found] == [value is None for value in expected]
    assert [value for value in found if value is not None] == pytest.approx(
        [value for value in expected if value is not None], abs=1e-6
    )


def test_advantages_of_each_group_add_up_to_nothing() -> None:
    rng = random.Random(1)
    groups = [rng.choice("abcde") for _ in range(100)]
    rewards = [None if rng.random() < 0.1 else rng.gauss(0, 1) for _ in groups]
    for scale in ("group", "batch", "none"):
        found, _ = advantages(rewards, groups, scale)
        for group in "abcde":
            of_group = [value for value, name in zip(found, groups, strict=True) if name == group and value is not None]
            assert sum(of_group) == pytest.approx(0, abs=1e-9)


def test_unknown_scales_and_lengths_that_disagree_are_errors() -> None:
    with pytest.raises(KeyError, match="median"):
        advantages([1, 0], ["a", "a"], "median")
    with pytest.raises(ValueError, match="zip"):
        advantages([1, 0], ["a"])


# --- Batches


def examples_of(lengths: list[int]) -> list[Example]:
    return [Example([Row([1] * length, [0] + [1] * (length - 1), [-0.5] * length)], 1.0) for length in lengths]


def ordered(rows: list[Row]) -> list[Example]:
    return sorted(with_advantages(rows), key=lambda example: example.ids)


@pytest.mark.parametrize("alike", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("budget", [1, 10, 64, 300, 100_000])
def test_micro_batches_lose_nothing_and_keep_to_the_budget(budget: int, alike: float) -> None:
    examples = ordered(random_rows(60, budget, longest=40, alike=alike))
    batches = list(micro_batches(examples, budget))
    assert [example for batch in batches for example in batch] == examples

    def fits(batch: list[Example]) -> bool:
        rows = [row for example in batch for row in example.rows]
        return packing.pack(rows).ids.shape[1] <= budget and sum(len(row.ids) for row in rows) <= 8 * budget

    assert all(len(batch) == 1 or fits(batch) for batch in batches)
    for batch, following in pairwise(batches):
        assert not fits([*batch, following[0]]), "a batch ends early"


def test_micro_batches_by_hand() -> None:
    def batched(words: str, budget: int) -> list[list[str]]:
        rows = [[Row([ord(letter) for letter in row], [], []) for row in word.split("+")] for word in words.split()]
        examples = [Example(trajectory, 1.0) for trajectory in rows]
        return [
            ["+".join("".join(map(chr, ids)) for ids in example.ids) for example in batch]
            for batch in micro_batches(examples, budget)
        ]

    assert batched("abcde abcxy abz q", 8) == [["abcde", "abcxy", "abz"], ["q"]]  # 5 + 2 + 1, then 1
    assert batched("abcde abcxy abz q", 7) == [["abcde", "abcxy"], ["abz", "q"]]  # 5 + 2; 3 + 1
    assert batched("abcde abcxy abz q", 9) == [["abcde", "abcxy", "abz", "q"]]
    assert batched("abcdef x y", 2) == [["abcdef"], ["x", "y"]]  # longer by itself
    assert batched(" ".join(["abcd"] * 9), 4) == [["abcd"] * 8, ["abcd"]]  # 32 tokens in all
    # trajectories of several rows stay whole, and share with the last row before them
    assert batched("abcd+abx+y abcd yz", 6) == [["abcd+abx+y"], ["abcd", "yz"]]  # 4 + 1 + 1, 4; 4 + 2
    assert batched("abcd+abx abxyz q", 8) == [["abcd+abx", "abxyz", "q"]]  # 4 + 1, 2, 1
    assert batched("abcd+abx abxyz q", 7) == [["abcd+abx", "abxyz"], ["q"]]
    assert list(micro_batches([], 10)) == []


@pytest.mark.parametrize(
    ("count", "parts", "lengths"), [(8, 4, [2, 2, 2, 2]), (7, 3, [2, 2, 3]), (3, 3, [1, 1, 1]), (5, 1, [5])]
)
def test_split_evenly(count: int, parts: int, lengths: list[int]) -> None:
    examples = examples_of(list(range(2, 2 + count)))
    split = split_evenly(examples, parts)
    assert [len(part) for part in split] == lengths
    assert [example for part in split for example in part] == examples


@pytest.mark.parametrize(("flat", "steps"), [(0, 4), (3, 4), (7, 8), (8, 5), (9, 8), (10, 8)])
def test_each_step_has_as_many_trajectories_and_as_many_with_a_signal(flat: int, steps: int) -> None:
    """Of 10 groups of 8, some flat. Groups are in one piece within a step, and in another order with another seed."""
    examples = [
        Example(
            [Row([1, 2], [0, 1], [0.0, -0.5])],
            0.0 if group < flat else float(attempt) - 3,
            f"group {group}",
            is_masked=attempt == 5,
        )
        for group in range(10)
        for attempt in range(8)
    ]
    parts = split_steps(examples, steps, random.Random(1))
    assert sorted(example for step in parts for example in step) == sorted(examples)
    for kind in (lambda _: True, lambda example: int(example.group[6:]) < flat):
        counts = [sum(map(kind, step)) for step in parts]
        assert max(counts) - min(counts) <= 2 - (sum(counts) == 80), counts
    for step in parts:
        kept = [[example.group for example in step if (int(example.group[6:]) < flat) == is_flat] for is_flat in (0, 1)]
        for names in kept:
            assert sum(name != other for name, other in pairwise(names)) == max(0, len(set(names)) - 1)
    assert split_steps(examples, steps, random.Random(2)) != parts


FLAT = "flat group"


@pytest.fixture
def with_flat_groups(policy: Policy) -> tuple[Trainer, list[Example]]:
    """18 trajectories with a signal, one of them masked, and a flat group of 6."""
    trainer = moved(Trainer(policy, seed=1))
    examples = with_advantages(sampled_by(trainer.model, random_rows(24, 1, alike=0.5), 1.0), sizes=[6, 6, 6])
    examples[0] = examples[0]._replace(is_masked=True)
    return trainer, [*examples[:18], *(example._replace(advantage=0.0, group=FLAT) for example in examples[18:])]


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize(("beta", "computed"), [(0.0, 17), (0.02, 23)])
def test_what_has_no_gradient_is_counted_and_passes_forward_alone(
    with_flat_groups: tuple[Trainer, list[Example]],
    monkeypatch: pytest.MonkeyPatch,
    beta: float,
    computed: int,
    corrected: bool,
) -> None:
    trainer, examples = with_flat_groups
    update = Update.model_validate({"beta": beta, "steps_per_generation": 3, CORRECTION: corrected})
    steps = trainer._steps(examples, update, seed=3)
    assert [step.trajectories for step in steps] == [8, 8, 8]
    assert (
        sum(step.tokens for step in steps)
        == sum(example.tokens for example in examples)
        == steps[0].batches[0]["num_items_in_batch"]
    )
    assert sum(step.computed for step in steps) == sum(
        example.tokens for example in examples if beta or example.advantage
    )
    assert any(FLAT in step.groups for step in steps) == bool(beta)
    passed: list[int] = []  # tokens of each pass that has a gradient
    real = packing.token_logps

    def record(model: Any, rows: packing.Packed, *others: Any, **more: Any) -> Any:
        logps, entropies = real(model, rows, *others, **more)
        if logps.requires_grad:
            passed.append(int(rows.mask.sum()))
        return logps, entropies

    monkeypatch.setattr(packing, "token_logps", record)
    measured = trainer.train(examples, update, 1.0, seed=3)
    learning = [example for example in examples if not example.is_masked and (beta or example.group != FLAT)]
    assert len(learning) == computed
    assert sum(passed) == sum(example.tokens for example in learning)
    assert measured["sampler_kl"] < 1e-9


def test_a_gradient_that_is_no_number_stops_before_any_weight_changes(policy: Policy) -> None:
    trainer = moved(Trainer(policy, seed=4))
    before = {name: value.detach().clone() for name, value in trainer.weights.items()}
    first, *others = with_advantages(random_rows(6, 1))
    broken = [first._replace(advantage=float("nan")), *others]
    with pytest.raises(UserError, match=r"optimiser step 1 has a norm of nan.* Lower update\.learning_rate"):
        trainer.train(broken, Update(steps_per_generation=1, **LOOSE), 1.0, seed=5)
    assert all((value == before[name]).all() for name, value in trainer.weights.items())
    assert trainer.steps == 0


def test_a_step_without_a_gradient_is_a_step_of_adamw(policy: Policy) -> None:
    """Its moments go on moving the weights, as they do in TRL, where such a gradient is zero."""
    import torch

    given = {"beta": 0, "steps_per_generation": 1, "learning_rate": 1e-2, "weight_decay": 0.1}
    update = Update.model_validate(given | LOOSE)
    trainer = moved(Trainer(policy, seed=4))
    examples = with_advantages(random_rows(6, 1))
    trainer.train(examples, update, 1.0, seed=5)
    moments = deepcopy(trainer.moments)
    optimizer = trainer._optimizer(update)
    before = [value.detach().clone() for value in trainer.weights.values()]
    for value in trainer.weights.values():
        value.grad = torch.zeros_like(value)
    optimizer.step()
    expected = [value.detach().clone() for value in trainer.weights.values()]
    assert all((value != other).any() for value, other in zip(before, expected, strict=True))
    with torch.no_grad():
        for value, old in zip(trainer.weights.values(), before, strict=True):
            value.copy_(old)
    trainer.moments = moments
    measured = trainer.train([example._replace(advantage=0.0) for example in examples], update, 1.0, seed=5)
    assert (measured["loss"], measured["grad_norm"]) == (0.0, 0.0)
    assert measured["entropy"] > 0, "of all tokens, as in TRL"
    assert trainer.steps == 2
    for value, other in zip(trainer.weights.values(), expected, strict=True):
        torch.testing.assert_close(value.detach(), other, rtol=1e-6, atol=1e-9)


def test_fewer_trajectories_than_steps_make_fewer_steps(policy: Policy) -> None:
    trainer = moved(Trainer(policy, seed=1))
    rows = sampled_by(trainer.model, random_rows(3, seed=2), 1.0)
    trainer.train(with_advantages(rows), Update(steps_per_generation=4, num_iterations=2), 1.0, seed=1)
    assert trainer.steps == 6


def test_a_batch_is_its_sampled_tokens(policy: Policy) -> None:
    first = Example([Row([1, 2, 3, 4, 5], [0, 1, 0, 0, 1], [0, -3, 0, 0, -4])], -1.0)
    second = Example([Row([7, 8, 9], [0, 0, 1], [0, 0, -2]), Row([6, 7, 8], [0, 1, 1], [0, -5, -6])], 2.0)
    expected = {
        "prompt_ids": [[], []],
        "prompt_mask": [[], []],
        "completion_ids": [[0, 0, 0], [0, 0, 0]],
        "completion_mask": [[1, 1, 0], [1, 1, 1]],
        "advantages": [-1, 2],
        "old_per_token_logps": [[-3, -4, 0], [-2, -5, -6]],
        "sampling_per_token_logps": [[-3, -4, 0], [-2, -5, -6]],
        "num_items_in_batch": 9,
    }
    batch = Trainer(policy)._batch([first, second], 9)
    assert {name: batch[name].tolist() for name in expected} == expected
    assert (batch["tokens"], batch["examples"]) == (5.0, [first, second])


# --- Steps


def rows_of_steps(trainer: Trainer, examples: list[Example], update: Update, seed: int) -> list[list[Example]]:
    return [
        [example for batch in step.batches for example in batch["examples"]]
        for step in trainer._steps(examples, update, seed)
    ]


SIZES = [5, 1, 7, 2, 4, 6]


def test_a_step_takes_whole_groups_in_a_seeded_order(policy: Policy) -> None:
    trainer = Trainer(policy)
    trainer.steps = 16
    update = Update(steps_per_generation=4, tokens_per_micro_batch=64)
    examples = with_advantages(random_rows(25, 1, alike=0.5), sizes=SIZES)
    order = random.Random("update 3 16").sample([f"group {number}" for number in range(6)], 6)
    rows = [example for group in order for example in examples if example.group == group]
    expected = [
        sorted(part, key=lambda example: example.ids) for part in (rows[:6], rows[6:12], rows[12:18], rows[18:])
    ]
    assert rows_of_steps(trainer, examples, update, 3) == expected
    steps = trainer._steps(examples, update, 3)
    assert [(step.trajectories, step.tokens, step.computed) for step in steps] == [
        (len(part), *[sum(example.tokens for example in part)] * 2) for part in expected
    ]
    totals = {float(batch["num_items_in_batch"]) for step in steps for batch in step.batches}
    assert totals == {sum(example.tokens for example in examples)}
    assert rows_of_steps(trainer, examples, update, 4) != expected
    trainer.steps = 20
    assert rows_of_steps(trainer, examples, update, 3) != expected


@pytest.mark.parametrize("processes", [2, 3, 9])
def test_processes_share_each_step(policy: Policy, monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    trainer = Trainer(policy)
    update = Update(steps_per_generation=4, tokens_per_micro_batch=64)
    examples = with_advantages(random_rows(25, 1, alike=0.5), sizes=SIZES)
    whole, steps = rows_of_steps(trainer, examples, update, 3), trainer._steps(examples, update, 3)
    shares = []
    for rank in range(processes):
        monkeypatch.setattr(grpo, "process", lambda rank=rank: (rank, processes))
        shares.append(rows_of_steps(trainer, examples, update, 3))
        assert [step[2:] for step in trainer._steps(examples, update, 3)] == [step[2:] for step in steps]
    for number, part in enumerate(whole):
        assert [example for share in shares for example in share[number]] == part
        lengths = [len(share[number]) for share in shares]
        assert max(lengths) - min(lengths) <= 1


@pytest.mark.parametrize(("passes", "steps"), [(1, 1), (1, 5), (3, 2)])
def test_exactly_as_many_optimiser_steps_as_planned(
    policy: Policy, tmp_path: Path, rates: list[float], passes: int, steps: int
) -> None:
    trainer = Trainer(policy, seed=1)
    update = Update(num_iterations=passes, steps_per_generation=steps, tokens_per_micro_batch=64, **LOOSE)
    for number in (1, 2):
        trainer.train(with_advantages(random_rows(7, 1)), update, 1.0, seed=1)
        assert rates == [update.learning_rate] * trainer.steps
        assert trainer.steps == number * passes * steps
    trainer.save_checkpoint(tmp_path / "checkpoint", "a")
    assert Trainer(policy, checkpoint=tmp_path / "checkpoint").steps == trainer.steps


def test_steps_at_once_are_steps_one_by_one_with_a_checkpoint_between(policy: Policy, tmp_path: Path) -> None:
    """Bit for bit: the loss grpo counts a step's rows alone, and groups of one size end where steps do."""
    shared = {"loss_type": "grpo", "learning_rate": 1e-2, "tokens_per_micro_batch": 64, **LOOSE}
    together = Update.model_validate({"steps_per_generation": 4} | shared)
    alone = Update.model_validate({"steps_per_generation": 1} | shared)
    examples = with_advantages(random_rows(24, 1, longest=20, alike=0.6), sizes=[6] * 4)
    whole = moved(Trainer(policy, seed=4))
    whole.save_checkpoint(tmp_path / "0", "a")
    parts = rows_of_steps(whole, examples, together, 5)
    assert sorted(Counter(example.group for example in part).most_common(1)[0][1] for part in parts) == [6] * 4
    measured = whole.train(examples, together, 1.0, seed=5)
    whole.save_checkpoint(tmp_path / "whole", "a")

    losses = []
    for number, part in enumerate(parts):
        trainer = Trainer(policy, checkpoint=tmp_path / str(number))
        assert trainer.steps == number
        losses.append(trainer.train(part, alone, 1.0, seed=7)["loss"])
        trainer.save_checkpoint(tmp_path / str(number + 1), "a")
    assert files(tmp_path / "4") == files(tmp_path / "whole")
    assert files(tmp_path / "3") != files(tmp_path / "whole")
    assert measured["loss"] == pytest.approx(sum(losses) / 4, rel=1e-6)


def test_checkpointing_is_on_where_it_is_asked_for(policy: Policy) -> None:
    """Its gradients are those without it: tests/test_packing.py."""
    trainer = moved(Trainer(policy, seed=1))
    examples = with_advantages(sampled_by(trainer.model, random_rows(8, seed=2), 1.0))
    for on in (True, False):
        trainer.train(examples, Update(gradient_checkpointing=on, **LOOSE), 1.0, seed=1)
        assert trainer.model.get_base_model().is_gradient_checkpointing is on


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("steps", [1, 3, 8])
def test_each_group_is_checked_against_the_sampler(policy: Policy, steps: int, corrected: bool) -> None:
    trainer = moved(Trainer(policy, seed=1))
    rows = sampled_by(trainer.model, random_rows(16, seed=2), 1.0)
    update = Update.model_validate({"steps_per_generation": steps, CORRECTION: corrected})
    for wrong in range(4):  # all attempts of one group, whichever step it is in
        logprobs = [[value - 0.5 * (number // 4 == wrong) for value in row.logprobs] for number, row in enumerate(rows)]
        shifted = [Row(row.ids, row.mask, new) for row, new in zip(rows, logprobs, strict=True)]
        with pytest.raises(UserError, match="not sampled by the policy"):
            trainer.train(with_advantages(shifted, sizes=(4, 4, 4, 4)), update, 1.0, seed=1)
    assert trainer.steps == 0


def test_without_the_terms_bfloat16_says_that_it_is_not_corrected(
    policy: Policy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = moved(Trainer(policy, seed=1))
    rows = with_advantages(sampled_by(trainer.model, random_rows(16, seed=2), 1.0))
    trainer.policy = policy.model_copy(update={"dtype": "bfloat16"})
    for there in (["delta"], []):
        monkeypatch.setattr(grpo, "names", lambda port, there=there: there)
        trainer.train(rows, Update(steps_per_generation=1, **LOOSE), 1.0, seed=1)
        assert ("is not corrected" in capsys.readouterr().out) == (not there)


@pytest.mark.parametrize("steps", [1, 4])
def test_the_first_step_is_corrected_by_its_own_forward_pass(
    policy: Policy, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No other pass is made for it, and the weights are the same bits as with one."""
    calls: list[Any] = []
    forward, split, look_ahead = packing.token_logps, Trainer._steps, Trainer._look_ahead

    def counted(*words: Any, **more: Any) -> Any:
        calls.append(words)
        return forward(*words, **more)

    monkeypatch.setattr(packing, "token_logps", counted)

    def updated(all_steps_first: bool) -> tuple[int, list[Any]]:
        trainer = moved(Trainer(policy, seed=1))
        rows = sampled_by(trainer.model, random_rows(16, seed=2), 1.0, noise=0.01)
        made = split(trainer, with_advantages(rows), update, 1)
        monkeypatch.setattr(trainer, "_steps", lambda *_: made)
        if all_steps_first:
            monkeypatch.setattr(trainer, "_look_ahead", lambda _, *more: look_ahead(trainer, made, *more))
        calls.clear()
        trainer.train(with_advantages(rows), update, 1.0, seed=1)
        return len(calls), list(trainer.weights.values())

    update = Update.model_validate({"beta": 0.0, "steps_per_generation": steps, CORRECTION: True, **LOOSE})
    passes, weights = updated(all_steps_first=False)
    assert passes == 2 * steps - 1, "one for the gradient of each step, and one before it for all but the first"
    passes, others = updated(all_steps_first=True)
    assert passes == 2 * steps
    assert all(value.equal(other) for value, other in zip(weights, others, strict=True))


# --- Checkpoints and adapters


def test_going_on_from_a_checkpoint_is_going_on(policy: Policy, tmp_path: Path) -> None:
    """Two updates in one go, and with a checkpoint between them: the same bits, and the same metrics."""
    update = Update(num_iterations=2, steps_per_generation=2, learning_rate=1e-2, **LOOSE)
    first, second = (with_advantages(random_rows(6, seed), seed) for seed in (1, 2))

    def begin() -> tuple[Trainer, dict[str, float]]:
        trainer = moved(Trainer(policy, seed=4))
        return trainer, trainer.train(first, update, 1.0, seed=5)

    whole, _ = begin()
    expected = whole.train(second, update, 1.0, seed=5)
    whole.save_checkpoint(tmp_path / "whole", whole.save_adapter(tmp_path / "whole-adapter"))

    half, _ = begin()
    half.save_checkpoint(tmp_path / "half", "of half")
    moved(half, 1.0)  # what the process still holds must not matter
    resumed = Trainer(policy, checkpoint=tmp_path / "half")
    assert (resumed.steps, resumed.adapter_hash) == (4, "of half")
    assert resumed.train(second, update, 1.0, seed=5) == expected
    resumed.save_checkpoint(tmp_path / "resumed", resumed.save_adapter(tmp_path / "resumed-adapter"))
    assert files(tmp_path / "resumed") == files(tmp_path / "whole")
    assert files(tmp_path / "resumed-adapter") == files(tmp_path / "whole-adapter")
    assert files(tmp_path / "half") != files(tmp_path / "whole")

    # Without Adam's state it would be another update: the test above can fail.
    forgetful = Trainer(policy, checkpoint=tmp_path / "half")
    forgetful.moments.clear()
    forgetful.train(second, update, 1.0, seed=5)
    forgetful.save_checkpoint(tmp_path / "forgetful", "a")
    assert (tmp_path / "forgetful/state.safetensors").read_bytes() != (
        tmp_path / "whole/state.safetensors"
    ).read_bytes()


def test_a_checkpoint_of_no_steps_goes_on_too(policy: Policy, tmp_path: Path) -> None:
    update = Update(num_iterations=1, steps_per_generation=2, **LOOSE)
    examples = with_advantages(random_rows(6, 1))
    fresh = Trainer(policy, seed=4)
    fresh.save_checkpoint(tmp_path / "000", "a1")
    assert json.loads((tmp_path / "000" / "state.json").read_text()) == {"adapter": "a1", "steps": 0}
    fresh.train(examples, update, 1.0, seed=5)
    fresh.save_checkpoint(tmp_path / "fresh", "a2")
    resumed = Trainer(policy, checkpoint=tmp_path / "000")
    resumed.train(examples, update, 1.0, seed=5)
    resumed.save_checkpoint(tmp_path / "resumed", "a2")
    assert files(tmp_path / "resumed") == files(tmp_path / "fresh")


def test_a_checkpoint_names_the_adapter_that_was_saved_with_it(policy: Policy, tmp_path: Path) -> None:
    trainer = moved(Trainer(policy, seed=1))
    name = trainer.save_adapter(tmp_path / "adapter")
    trainer.save_checkpoint(tmp_path / "checkpoint", name)
    assert name == adapter_hash(tmp_path / "adapter")
    assert Trainer(policy, checkpoint=tmp_path / "checkpoint").adapter_hash == name
    assert moved(trainer).save_adapter(tmp_path / "other") != name


def test_another_seed_is_another_adapter_and_neither_changes_the_base(policy: Policy, tmp_path: Path) -> None:
    import torch

    for name, seed in (("one", 1), ("again", 1), ("two", 2)):
        Trainer(policy, seed=seed).save_checkpoint(tmp_path / name, "a")
    assert files(tmp_path / "one") == files(tmp_path / "again")
    assert files(tmp_path / "one") != files(tmp_path / "two")
    trainer = Trainer(policy, seed=1)
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad(), trainer.model.disable_adapter():
        base = trainer.model(input_ids=ids).logits
    with torch.no_grad():
        assert torch.equal(trainer.model(input_ids=ids).logits, base)


def test_stock_peft_gives_the_trainers_logprobs(policy: Policy, tmp_path: Path) -> None:
    import torch

    trainer = moved(Trainer(policy, seed=1))
    trainer.save_adapter(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    model = stock(policy, tmp_path)
    rows = [Row(row.ids, [0] + [1] * (len(row.ids) - 1), row.logprobs) for row in random_rows(4, seed=3)]
    with torch.no_grad():
        packed = packing.pack(rows, torch.float32)
        mine, _ = packing.token_logps(trainer.model, packed, 1.0)
        with trainer.model.disable_adapter():
            base, _ = packing.token_logps(trainer.model, packed, 1.0)
        theirs = torch.cat([plain_logps(model, row, 1.0) for row in rows])
    assert relative([mine[packed.mask > 0]], [theirs]) < 1e-6
    assert (mine - base).abs().max() > 0.05


def test_the_probe_beside_an_adapter_is_what_stock_peft_expects_next(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    ids = random_rows(1, seed=5, longest=40)[0].ids + list(range(20, 40))
    monkeypatch.setattr("addons.fleet.probe.load_tokenizer", lambda _: lambda text, **_more: {"input_ids": ids})
    served = policy.model_copy(update={"kind": "server", "servers": Servers()})
    trainer = moved(Trainer(served, seed=1))
    trainer.save_adapter(tmp_path)
    written, model = probe.read(tmp_path), stock(policy, tmp_path)
    assert written is not None
    with torch.no_grad():
        expected = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0].float(), -1)
    rows = expected[torch.tensor(probe.places(ids)) - 1]
    assert probe.distance([dict(enumerate(row.tolist())) for row in rows], written) < 1e-10
    assert [list(tokens) for tokens in written.tokens] == rows.topk(probe.TOP).indices.tolist()
    assert (written.ids, written.limit) == (tuple(ids), 1e-3)
    assert probe.distance([dict(enumerate(row.tolist())) for row in expected[: len(rows)]], written) > 1e-3


def test_all_linear_layers_are_adapted_and_the_head_is_not(policy: Policy, tmp_path: Path) -> None:
    trainer = Trainer(policy, seed=1)
    trainer.save_adapter(tmp_path)
    layers = {name.rpartition(".lora_")[0].rpartition(".")[2] for name in trainer.weights}
    assert layers == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert trainer.trained_parameters == sum(value.numel() for value in trainer.weights.values())
    assert trainer.vocabulary == tiny.VOCABULARY
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (2, 4, policy.base_model)


def test_an_adapters_configuration_is_the_same_bytes_in_every_process(policy: Policy, tmp_path: Path) -> None:
    """PEFT itself writes a set in the order of Python's string hashes, which each process draws anew."""
    Trainer(policy, seed=1).save_adapter(tmp_path)
    targets = json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]
    assert isinstance(targets, str) or targets == sorted(targets)


# --- Types


def test_an_update_in_bfloat16_goes_the_way_of_one_in_float32(policy: Policy) -> None:
    """Weights of the adapter and Adam's moments stay in float32; what passes through the model does not."""
    import torch

    rows = random_rows(24, seed=5, longest=20, alike=0.5)
    ways, kls = [], []
    for kind in ("float32", "bfloat16"):
        trainer = moved(Trainer(policy.model_copy(update={"dtype": kind}), seed=1), size=0.05)
        before = torch.cat([value.detach().flatten().clone() for value in trainer.weights.values()])
        assert trainer.model.get_output_embeddings().weight.dtype == getattr(torch, kind)
        assert {value.dtype for value in trainer.weights.values()} == {torch.float32}
        examples = with_advantages(rows, seed=1)
        same = {
            "beta": 0.0,
            "steps_per_generation": 1,
            "learning_rate": 1e-3,
            CORRECTION: False,
        }
        update = Update.model_validate(same | LOOSE)
        kls.append(trainer.train(examples, update, 1.0, seed=2)["sampler_kl"])
        ways.append(torch.cat([trainer.moments[name]["exp_avg"].flatten() for name in trainer.weights]))
        moved_by = torch.cat([value.detach().flatten() for value in trainer.weights.values()]) - before
        assert 0 < moved_by.abs().max() < 1.1e-3
    assert kls[1] == pytest.approx(kls[0], rel=0.05)
    assert torch.nn.functional.cosine_similarity(ways[0], ways[1], dim=0) > 0.99
