"""The update: advantages by hand, the loss from its formulas, micro-batches that change nothing, and resuming bit for bit.

On a random Qwen3 of a few thousand parameters; the trainer, TRL's loss and PEFT are the real ones.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from steps.grpo import (
    Example,
    Trainer,
    TrlLoss,
    advantages,
    check_sampler,
    micro_batches,
    sampler_kl,
    split_evenly,
    token_logps,
)
from steps.params import Lora, Policy, Update
from steps.stage import UserError
from steps.types import Row

VOCABULARY = 48
LOOSE = {"max_sampler_kl": 1e6, "max_grad_norm": 1e6}  # where the logprobs are random on purpose

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
    return [Example(Row([1] * length, [0] + [1] * (length - 1), [-0.5] * length), 1.0) for length in lengths]


@pytest.mark.parametrize("budget", [1, 64, 100, 1000, 100_000])
def test_micro_batches_lose_nothing_and_keep_to_the_budget(budget: int) -> None:
    rng = random.Random(budget)
    examples = examples_of([rng.randrange(2, 120) for _ in range(60)])
    chosen = rng.sample(range(60), 40)
    batches = list(micro_batches(chosen, examples, budget))
    assert sorted(index for batch in batches for index in batch) == sorted(chosen)
    for batch in batches:
        longest = max(len(examples[index].row.ids) for index in batch)
        assert len(batch) == 1 or len(batch) * longest <= budget
    assert batches == list(micro_batches(chosen[::-1], examples, budget))


def test_micro_batches_by_hand() -> None:
    examples = examples_of([5, 2, 9, 2, 5])
    assert list(micro_batches([0, 1, 2, 3, 4], examples, 10)) == [[1, 3], [0, 4], [2]]
    assert list(micro_batches([2, 1], examples, 18)) == [[1, 2]]
    assert list(micro_batches([2, 1], examples, 17)) == [[1], [2]]
    assert list(micro_batches([], examples, 10)) == []


@pytest.mark.parametrize(
    ("count", "parts", "lengths"), [(8, 4, [2, 2, 2, 2]), (7, 3, [3, 2, 2]), (3, 3, [1, 1, 1]), (5, 1, [5])]
)
def test_split_evenly(count: int, parts: int, lengths: list[int]) -> None:
    split = split_evenly(list(range(count)), parts)
    assert [len(part) for part in split] == lengths
    assert sorted(index for part in split for index in part) == list(range(count))


def test_fewer_rows_than_steps_is_one_sentence() -> None:
    with pytest.raises(
        UserError, match=r"update\.steps_per_generation is 4, but only 3 trajectories carry a signal: lower"
    ):
        split_evenly([1, 2, 3], 4)


# --- The model


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """A random tiny Qwen3 on disk."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    folder = tmp_path_factory.mktemp("base")
    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        max_position_embeddings=64,
        initializer_range=0.4,  # far from uniform, so that mistakes show
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return Policy(base_model=str(folder), context=64, lora=Lora(rank=2, alpha=4))


def moved(trainer: Trainer, size: float = 0.1, seed: int = 0) -> Trainer:
    """The trainer with an adapter that changes something: LoRA's B is zero at first."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in trainer.weights.values():
            value.add_(torch.randn(value.shape, generator=generator) * size)
    return trainer


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The trainer takes all cores, which costs more than it gains on a tiny model beside other work on the machine."""
    import torch

    before = torch.get_num_threads()
    monkeypatch.setattr("steps.engine.cores", lambda: [0])
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_rows(count: int, seed: int, longest: int = 14) -> list[Row]:
    """Prompt, sampled, observation, sampled; without logprobs."""
    rng = random.Random(seed)
    rows = []
    for _ in range(count):
        length = rng.randrange(5, longest + 1)
        mask = [0, 1, *(int(rng.random() < 0.6) for _ in range(length - 2))]
        rows.append(Row([rng.randrange(VOCABULARY) for _ in range(length)], mask, [0.0] * length))
    return rows


def padded(rows: list[Row]) -> tuple[Any, Any]:
    """Ids and mask of sampled tokens, padded on the right with a token that means something: two [B, T]."""
    import torch

    longest = max(len(row.ids) for row in rows)
    ids = torch.tensor([[*row.ids, *[5] * (longest - len(row.ids))] for row in rows])
    return ids, torch.tensor([[*row.mask, *[0] * (longest - len(row.mask))] for row in rows])


def plain_logps(model: Any, row: Row, temperature: float) -> Any:
    """Logprobs of a row's tokens from the second on, from all logits, one row at a time: [T-1], float64."""
    import torch

    logits = model(input_ids=torch.tensor([row.ids])).logits[0, :-1].double() / temperature
    return torch.log_softmax(logits, -1)[torch.arange(len(row.ids) - 1), torch.tensor(row.ids[1:])]


def sampled_by(model: Any, rows: list[Row], temperature: float, noise: float = 0.0, seed: int = 0) -> list[Row]:
    """The rows with the model's own logprobs, as a sampler would have written them, and noise on them."""
    import torch

    rng = random.Random(seed)
    made = []
    with torch.no_grad():
        for row in rows:
            found = [0.0, *plain_logps(model, row, temperature).tolist()]
            made.append(
                Row(
                    row.ids,
                    row.mask,
                    [mask * (value + rng.gauss(0, noise)) for mask, value in zip(row.mask, found, strict=True)],
                )
            )
    return made


def with_advantages(rows: list[Row], seed: int = 0) -> list[Example]:
    rng = random.Random(seed)
    return [Example(row, rng.gauss(0, 1)) for row in rows]


def test_a_batch_is_padded_on_the_right(policy: Policy) -> None:
    short = Example(Row([7, 8, 9], [0, 1, 1], [0, -1, -2]), 2.0)
    long = Example(Row([1, 2, 3, 4, 5], [0, 1, 0, 0, 1], [0, -3, 0, 0, -4]), -1.0)
    expected = {
        "prompt_ids": [[7], [1]],
        "prompt_mask": [[1], [1]],
        "completion_ids": [[8, 9, 0, 0], [2, 3, 4, 5]],
        "completion_mask": [[1, 1, 0, 0], [1, 1, 1, 1]],
        "tool_mask": [[1, 1, 0, 0], [1, 0, 0, 1]],
        "advantages": [2, -1],
        "old_per_token_logps": [[-1, -2, 0, 0], [-3, 0, 0, -4]],
        "num_items_in_batch": 4,
    }
    batch = Trainer(policy)._batch([short, long], 4.0)
    assert {name: batch[name].tolist() for name in expected} == expected


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_token_logps_equal_those_from_all_logits(policy: Policy, temperature: float) -> None:
    import torch

    trainer = moved(Trainer(policy, seed=1))
    rows = random_rows(6, seed=2)
    ids, sampled = padded(rows)
    logps, entropies = token_logps(trainer.model, ids, sampled, temperature)
    assert logps.shape == entropies.shape == (6, ids.shape[1] - 1)
    for row, found, entropy in zip(rows, logps, entropies, strict=True):
        mask = torch.tensor(row.mask[1:]).double()
        length = len(row.ids) - 1
        torch.testing.assert_close(
            found[:length].double(), plain_logps(trainer.model, row, temperature) * mask, atol=1e-5, rtol=0
        )
        assert not found[length:].any()
        logits = trainer.model(input_ids=torch.tensor([row.ids])).logits[0, :-1].double() / temperature
        expected = torch.distributions.Categorical(logits=logits).entropy() * mask
        torch.testing.assert_close(entropy[:length].double(), expected, atol=1e-5, rtol=0)


# --- The loss


def expected_loss(
    update: Update, trainer: Trainer, examples: list[Example], temperature: float, context: int, tokens: int
) -> Any:
    """The loss of one optimiser step, from the formulas alone, in float64.

    Clipped surrogate and k3 estimate of the KL for each sampled token; then averaged within each row and over rows (grpo),
    over all tokens (bnpo), over rows times a constant (dr_grpo), over the tokens of an average step (dapo).
    """
    import torch

    sums, counts = [], []
    for row, advantage in examples:
        new = plain_logps(trainer.model, row, temperature)
        with torch.no_grad(), trainer.model.disable_adapter():
            reference = plain_logps(trainer.model, row, temperature)
        ratio = torch.exp(new - torch.tensor(row.logprobs[1:], dtype=torch.float64))
        clipped = ratio.clamp(1 - update.epsilon, 1 + update.epsilon_high)
        surrogate = torch.minimum(ratio * advantage, clipped * advantage)
        kl = torch.exp(reference - new) - (reference - new) - 1
        mask = torch.tensor(row.mask[1:]).double()
        sums.append(((update.beta * kl - surrogate) * mask).sum())
        counts.append(mask.sum())
    total = torch.stack(sums)
    return {
        "grpo": (total / torch.stack(counts)).mean(),
        "bnpo": total.sum() / sum(counts),
        "dr_grpo": total.sum() / (len(examples) * context),
        "dapo": total.sum() / (tokens / update.steps_per_generation),
    }[update.loss_type]


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The gradient at each optimiser step, before it is clipped."""
    import torch

    seen: list[dict[str, Any]] = []
    clip = torch.nn.utils.clip_grad_norm_

    def record(weights: Any, limit: float) -> Any:
        weights = list(weights)
        seen.append({str(number): value.grad.clone().double() for number, value in enumerate(weights)})
        return clip(weights, limit)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", record)
    return seen


@pytest.mark.parametrize("budget", [64, 100_000], ids=["micro-batches", "one batch"])
@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("loss_type", ["grpo", "dr_grpo", "dapo", "bnpo"])
def test_gradient_equals_that_of_the_formulas(
    policy: Policy, gradients: list[dict[str, Any]], loss_type: str, steps: int, budget: int
) -> None:
    import torch

    temperature = 0.8
    update = Update.model_validate(
        {"loss_type": loss_type, "beta": 0.3, "num_iterations": 1, "steps_per_generation": steps}
        | {
            "learning_rate": 1e-12,
            "tokens_per_micro_batch": budget,
        }  # so small that the second step starts where the first did
        | LOOSE
    )
    trainer = moved(Trainer(policy, seed=1))
    # Noise moves ratios well out of the clipping range, on both sides and for either sign of the advantage.
    rows = sampled_by(trainer.model, random_rows(11, seed=5), temperature, noise=0.4)
    examples = with_advantages(rows, seed=6)
    measured = trainer.update(examples, update, temperature, seed=9)
    assert len(gradients) == steps
    assert 0.05 < measured["clip_ratio/region_mean"] < 0.95
    if budget == 64:  # the test would not see a wrong weight of a micro-batch if there were one alone
        order = random.Random("update 9 0").sample(range(11), 11)
        assert all(len(list(micro_batches(part, examples, budget))) > 1 for part in split_evenly(order, steps))

    order = random.Random("update 9 0").sample(range(11), 11)
    tokens = sum(sum(row.mask) for row in rows)
    losses = []
    for found, part in zip(gradients, split_evenly(order, steps), strict=True):
        loss = expected_loss(update, trainer, [examples[index] for index in part], temperature, policy.context, tokens)
        expected = torch.autograd.grad(loss, list(trainer.weights.values()))
        losses.append(loss.item())
        for mine, theirs in zip(found.values(), expected, strict=True):
            torch.testing.assert_close(mine, theirs.double(), atol=1e-5, rtol=1e-4)
        largest = max(float(value.abs().max()) for value in expected)
        assert largest > 1e-3, "a gradient this small would equal anything"
    assert measured["loss"] == pytest.approx(sum(losses) / steps, abs=1e-5)


def test_metrics_are_those_of_the_formulas(policy: Policy) -> None:
    import torch

    trainer = moved(Trainer(policy, seed=1))
    rows = sampled_by(trainer.model, random_rows(8, seed=5), 1.0, noise=0.4)
    examples = with_advantages(rows)
    kl = entropy = clipped = difference = 0.0
    tokens = sum(sum(row.mask) for row in rows)
    with torch.no_grad():
        for row, advantage in examples:
            mask = torch.tensor(row.mask[1:]).double()
            new, old = plain_logps(trainer.model, row, 1.0), torch.tensor(row.logprobs[1:], dtype=torch.float64)
            with trainer.model.disable_adapter():
                gap = plain_logps(trainer.model, row, 1.0) - new
            kl += float(((gap.exp() - gap - 1) * mask).sum())
            ratio = (new - old).exp()
            outside = ratio < 0.8 if advantage < 0 else ratio > 1.28
            clipped += float((outside * mask).sum())
            difference += float((((new - old).exp() - 1 - (new - old)) * mask).sum())
            logits = trainer.model(input_ids=torch.tensor([row.ids])).logits[0, :-1].double()
            entropy += float((torch.distributions.Categorical(logits=logits).entropy() * mask).sum())
    update = Update(num_iterations=1, steps_per_generation=1, tokens_per_micro_batch=64, **LOOSE)
    measured = trainer.update(examples, update, 1.0, seed=9)
    assert measured["kl"] == pytest.approx(kl / tokens, rel=1e-4)
    assert measured["entropy"] == pytest.approx(entropy / tokens, rel=1e-4)
    assert measured["clip_ratio/region_mean"] == pytest.approx(clipped / tokens, rel=1e-4)
    assert measured["sampler_kl"] == pytest.approx(difference / tokens, rel=1e-4)
    assert all(math.isfinite(value) for value in measured.values())


def test_trl_reads_nothing_that_the_stand_in_lacks(policy: Policy) -> None:
    """A knob that TRL adds to its loss must fail loudly: the stand-in has no attribute that answers for it."""
    loss = TrlLoss(Update(), None, 1.0, 64)
    with pytest.raises(AttributeError):
        loss.a_knob_of_the_future  # type: ignore[attr-defined] # noqa: B018


def test_a_gradient_step_raises_what_was_good_and_lowers_what_was_bad(policy: Policy) -> None:
    import torch

    trainer = moved(Trainer(policy, seed=1))
    rows = sampled_by(trainer.model, random_rows(2, seed=7), 1.0)
    before = [sum(row.logprobs) for row in rows]
    update = Update(beta=0, num_iterations=1, steps_per_generation=1, learning_rate=1e-2)
    trainer.update([Example(rows[0], 1.0), Example(rows[1], -1.0)], update, 1.0, seed=1)
    with torch.no_grad():
        after = [sum(row.logprobs) for row in sampled_by(trainer.model, rows, 1.0)]
    assert after[0] > before[0]
    assert after[1] < before[1]


# --- Trajectories of another policy


def test_sampler_kl_by_hand() -> None:
    """Two sampled tokens, ratios 2 and 1/2: (2 - 1 - ln 2) + (1/2 - 1 + ln 2) = 0.5; the others do not count."""
    import torch

    old = torch.tensor([[-1.0, -2.0, -9.0]])
    logps = old + torch.tensor([[math.log(2), -math.log(2), 5.0]])
    batch = {"old_per_token_logps": old, "sampled": torch.tensor([[0.0, 1.0, 1.0, 0.0]])}
    assert sampler_kl(logps, batch) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("kl", [0.0011, 1.0, math.inf, math.nan])
def test_check_sampler_refuses(kl: float) -> None:
    with pytest.raises(
        UserError, match=r"not sampled by the policy that is being trained.*update\.max_sampler_kl is 1e-03"
    ):
        check_sampler(kl, 1e-3)


def test_check_sampler_accepts() -> None:
    assert check_sampler(0.0, 1e-3) == 0.0
    assert check_sampler(1e-3, 1e-3) == 1e-3


@pytest.mark.parametrize("fault", ["none", "stale adapter", "other temperature", "wrong mask"])
def test_trajectories_must_come_from_the_policy_that_is_trained(policy: Policy, fault: str) -> None:
    trainer = moved(Trainer(policy, seed=1))
    before = {name: value.detach().clone() for name, value in trainer.weights.items()}
    rows = sampled_by(trainer.model, random_rows(8, seed=2), 1.0)
    if fault == "wrong mask":
        rows = [Row(row.ids, [0] + [1] * (len(row.ids) - 1), row.logprobs) for row in rows]
    if fault == "stale adapter":
        before = {name: value.detach().clone() for name, value in moved(trainer, 0.05, seed=1).weights.items()}
    temperature = 0.8 if fault == "other temperature" else 1.0
    update = Update(num_iterations=1, steps_per_generation=2)
    if fault == "none":
        measured = trainer.update(with_advantages(rows), update, temperature, seed=1)
        assert measured["sampler_kl"] < 1e-6
        return
    with pytest.raises(UserError, match="not sampled by the policy that is being trained"):
        trainer.update(with_advantages(rows), update, temperature, seed=1)
    assert trainer.steps == 0
    assert all((value == before[name]).all() for name, value in trainer.weights.items())


# --- Checkpoints and adapters


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_going_on_from_a_checkpoint_is_going_on(policy: Policy, tmp_path: Path) -> None:
    """Two updates in one go, and with a checkpoint between them: the same bits, and the same metrics."""
    update = Update(num_iterations=2, steps_per_generation=2, learning_rate=1e-2, **LOOSE)
    first, second = (with_advantages(random_rows(6, seed), seed) for seed in (1, 2))

    def begin() -> tuple[Trainer, dict[str, float]]:
        trainer = moved(Trainer(policy, seed=4))
        return trainer, trainer.update(first, update, 1.0, seed=5)

    whole, _ = begin()
    expected = whole.update(second, update, 1.0, seed=5)
    whole.save_checkpoint(tmp_path / "whole")
    whole.save_adapter(tmp_path / "whole-adapter")

    half, _ = begin()
    half.save_checkpoint(tmp_path / "half")
    moved(half, 1.0)  # what the process still holds must not matter
    resumed = Trainer(policy, checkpoint=tmp_path / "half")
    assert resumed.steps == 4
    assert resumed.update(second, update, 1.0, seed=5) == expected
    resumed.save_checkpoint(tmp_path / "resumed")
    resumed.save_adapter(tmp_path / "resumed-adapter")
    assert files(tmp_path / "resumed") == files(tmp_path / "whole")
    assert files(tmp_path / "resumed-adapter") == files(tmp_path / "whole-adapter")
    assert files(tmp_path / "half") != files(tmp_path / "whole")

    # Without Adam's state it would be another update: the test above can fail.
    forgetful = Trainer(policy, checkpoint=tmp_path / "half")
    forgetful.moments.clear()
    forgetful.update(second, update, 1.0, seed=5)
    forgetful.save_checkpoint(tmp_path / "forgetful")
    assert files(tmp_path / "forgetful") != files(tmp_path / "whole")


def test_a_checkpoint_of_no_steps_goes_on_too(policy: Policy, tmp_path: Path) -> None:
    update = Update(num_iterations=1, steps_per_generation=2, **LOOSE)
    examples = with_advantages(random_rows(6, 1))
    fresh = Trainer(policy, seed=4)
    fresh.save_checkpoint(tmp_path / "000")
    assert json.loads((tmp_path / "000" / "state.json").read_text()) == {"steps": 0}
    fresh.update(examples, update, 1.0, seed=5)
    fresh.save_checkpoint(tmp_path / "fresh")
    resumed = Trainer(policy, checkpoint=tmp_path / "000")
    resumed.update(examples, update, 1.0, seed=5)
    resumed.save_checkpoint(tmp_path / "resumed")
    assert files(tmp_path / "resumed") == files(tmp_path / "fresh")


def test_another_seed_is_another_adapter_and_neither_changes_the_base(policy: Policy, tmp_path: Path) -> None:
    import torch

    for name, seed in (("one", 1), ("again", 1), ("two", 2)):
        Trainer(policy, seed=seed).save_checkpoint(tmp_path / name)
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
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    trainer = moved(Trainer(policy, seed=1))
    trainer.save_adapter(tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
    stock = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(policy.base_model), tmp_path)
    ids, sampled = padded(random_rows(4, seed=3))
    with torch.no_grad():
        mine, _ = token_logps(trainer.model, ids, sampled, 1.0)
        theirs, _ = token_logps(stock, ids, sampled, 1.0)
        with trainer.model.disable_adapter():
            base, _ = token_logps(trainer.model, ids, sampled, 1.0)
    torch.testing.assert_close(mine, theirs, atol=1e-6, rtol=0)
    assert (mine - base).abs().max() > 0.05


def test_all_linear_layers_are_adapted_and_the_head_is_not(policy: Policy, tmp_path: Path) -> None:
    trainer = Trainer(policy, seed=1)
    trainer.save_adapter(tmp_path)
    layers = {name.rpartition(".lora_")[0].rpartition(".")[2] for name in trainer.weights}
    assert layers == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert trainer.trained_parameters == sum(value.numel() for value in trainer.weights.values())
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (2, 4, policy.base_model)


def test_an_adapters_configuration_is_the_same_bytes_in_every_process(policy: Policy, tmp_path: Path) -> None:
    """PEFT itself writes a set in the order of Python's string hashes, which each process draws anew."""
    Trainer(policy, seed=1).save_adapter(tmp_path)
    targets = json.loads((tmp_path / "adapter_config.json").read_text())["target_modules"]
    assert isinstance(targets, str) or targets == sorted(targets)
