"""The loss of an update: its gradient against the formulas in float64, whole updates against TRL's own trainer, the
sampler's share in it by hand, and trajectories of another policy refused.

On a random Qwen3 of a few thousand parameters; the trainer, TRL's loss and PEFT are the real ones.
"""

from __future__ import annotations

import math
import random
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest

from addons.terms.section import Terms
from steps.core.errors import UserError
from steps.core.params import Policy, Update
from steps.core.records import Row
from steps.training.batches import Example
from steps.training.grpo import Trainer
from steps.training.loss import SamplerCheck, TrlLoss, check_sampler, sampler_kl
from tests.support.tiny import (
    LOOSE,
    moved,
    plain_logits,
    plain_logps,
    random_rows,
    relative,
    sampled_by,
    twin,
    weights,
    with_advantages,
)
from tests.training import against_trl

pytestmark = pytest.mark.usefixtures("one_thread")
LOSSES = ["grpo", "dr_grpo", "dapo", "bnpo", "cispo", "gspo"]
TEMPERATURE = 0.8
LOSS_OF = {"token_truncate": "dapo", "token_mask": "grpo", "sequence_truncate": "gspo", "sequence_mask": "cispo"}
CORRECTED = {"vllm_importance_sampling_correction": True}


def update_of(loss_type: str, **knobs: Any) -> Update:
    """Clips often, and keeps so still that every step starts where the first did."""
    given = {"loss_type": loss_type, "beta": 0.02, "steps_per_generation": 1, "learning_rate": 1e-12, **LOOSE}
    return Update.model_validate(given | ({"epsilon_high": 1.2} if loss_type == "cispo" else {}) | knobs)


def noisy_examples(model: Any, seed: int) -> list[Example]:
    """Rows that share prompts, in uneven groups; their noise moves ratios out of the clipping range on both sides.

    Two trajectories have several rows; of one, only the KL term learns.
    """
    rows = random_rows(24, seed, longest=20, alike=0.5)
    examples = with_advantages(sampled_by(model, rows, TEMPERATURE, noise=0.4), seed, sizes=[5, 1, 7, 2, 6])
    for number, count in ((0, 2), (6, 3)):
        rows = [row for example in examples[number : number + count] for row in example.rows]
        examples[number : number + count] = [examples[number]._replace(rows=rows)]
    examples[2] = examples[2]._replace(advantage=0.0)
    rng = random.Random(seed)
    for number in (4, 8):  # turns with advantages of their own
        by_token = [rng.gauss(0, 1) for _ in range(examples[number].tokens)]
        examples[number] = examples[number]._replace(by_token=by_token, advantage=max(by_token, key=abs))
    return examples


def parts_of(trainer: Trainer, examples: list[Example], update: Update) -> list[list[Example]]:
    """The examples of each optimiser step of an update with seed 9."""
    return [
        [example for batch in step.batches for example in batch["examples"]]
        for step in trainer._steps(examples, update, 9)
    ]


def expected_loss(
    update: Update, model: Any, examples: list[Example], context: int, tokens: int, before: Any = None
) -> Any:
    """The loss of one optimiser step, from the formulas alone.

    Clipped surrogate (cispo: a clipped weight of the logprob; gspo: the ratio of the trajectory's mean) and k3 estimate of
    the KL for each sampled token; then averaged within each trajectory and over trajectories (grpo, gspo), over all tokens
    (bnpo), over trajectories times a constant (dr_grpo), over the tokens of an average step (dapo, cispo). Ratios are to the
    sampler's logprobs, or to those of the policy `before`, weighted by how far the sampler was from it.
    """
    import torch

    sums, counts = [], []
    for example in examples:
        advantage = advantages_of(example)
        new = sampled_logps(model, example)
        old = sampling = torch.tensor(
            [value for row in example.rows for value, mask in zip(row.logprobs, row.mask, strict=True) if mask],
            dtype=torch.float64,
        )
        with torch.no_grad(), model.disable_adapter():
            reference = sampled_logps(model, example)
        weight: Any = 1.0
        if before is not None:
            with torch.no_grad():
                old = sampled_logps(before, example)
            weight = importance(update, old - sampling)
        ratio = (new - old).mean().exp() if update.loss_type == "gspo" else (new - old).exp()
        if update.loss_type == "cispo":
            gain = ratio.detach().clamp(max=update.epsilon_high) * advantage * new
        else:
            assert update.epsilon is not None
            assert update.epsilon_high is not None
            clipped = ratio.clamp(1 - update.epsilon, 1 + update.epsilon_high)
            gain = torch.minimum(ratio * advantage, clipped * advantage)
        kl = torch.exp(reference - new) - (reference - new) - 1
        if update.use_bias_correction_kl:
            kl = kl * ratio
        sums.append((update.beta * kl - weight * gain).sum())
        counts.append(len(new))
    total = torch.stack(sums)
    by_rows = (total / torch.tensor(counts)).mean()
    by_window = total.sum() / (tokens / update.steps_per_generation)
    return {
        "grpo": by_rows,
        "gspo": by_rows,
        "bnpo": total.sum() / sum(counts),
        "dr_grpo": total.sum() / (len(examples) * context),
        "dapo": by_window,
        "cispo": by_window,
    }[update.loss_type]


def advantages_of(example: Example) -> Any:
    """The advantage of a trajectory, or those of its sampled tokens; of several rows it is the same for all tokens."""
    import torch

    return torch.tensor(example.by_token if example.by_token is not None else example.advantage, dtype=torch.float64)


def sampled_logps(model: Any, example: Example) -> Any:
    """Logprobs of a trajectory's sampled tokens, row after row, float64."""
    import torch

    return torch.cat(
        [plain_logps(model, row, TEMPERATURE)[torch.tensor(row.mask[1:]).nonzero()[:, 0]] for row in example.rows]
    )


def importance(update: Update, difference: Any) -> Any:
    """Weights of a trajectory's sampled tokens: ratios of trainer to sampler within bounds."""
    import torch

    terms = Terms.of(update)
    level, _, what = str(terms.vllm_importance_sampling_mode).partition("_")
    ratio = (difference.sum(0, keepdim=True) if level == "sequence" else difference).exp()
    low, high = terms.vllm_importance_sampling_clip_min or 0.0, terms.vllm_importance_sampling_clip_max or math.inf
    inside = (ratio >= low) & (ratio <= high)
    return torch.where(inside, ratio, 0.0) if what == "mask" else ratio.clamp(low, high)


def clipped_share(measured: dict[str, float]) -> float:
    return measured.get("clip_ratio/region_mean", measured.get("cispo_clip_ratio", 0.0))


# --- The gradient


@pytest.mark.parametrize(
    ("loss_type", "steps", "budget"),
    [
        pytest.param(loss_type, steps, budget, marks=() if steps == 2 and budget == 64 else pytest.mark.nightly)
        for loss_type, steps, budget in product(LOSSES, (1, 2), (64, 100_000))  # micro-batches, one batch
    ],
)
def test_gradient_equals_that_of_the_formulas(
    policy: Policy, gradients: list[list[Any]], tmp_path: Path, loss_type: str, steps: int, budget: int
) -> None:
    import torch

    trainer = moved(Trainer(policy, seed=1))
    model = twin(trainer, tmp_path)
    examples = noisy_examples(model, seed=5)
    update = update_of(loss_type, steps_per_generation=steps, tokens_per_micro_batch=budget)
    parts = parts_of(trainer, examples, update)
    # the test would not see a wrong weight of a micro-batch if there were one alone
    assert all((len(step.batches) > 1) == (budget == 64) for step in trainer._steps(examples, update, 9))
    measured = trainer.train(examples, update, TEMPERATURE, seed=9)
    assert len(gradients) == len(parts) == steps
    assert 0.05 < clipped_share(measured) < 0.95

    tokens = sum(example.tokens for example in examples)
    losses = []
    for found, part in zip(gradients, parts, strict=True):
        loss = expected_loss(update, model, part, policy.context, tokens)
        expected = torch.autograd.grad(loss, weights(model))
        assert relative(found, expected) < 1e-5
        assert max(float(value.abs().max()) for value in expected) > 1e-3, "a gradient this small would equal anything"
        losses.append(loss.item())
    assert measured["loss"] == pytest.approx(sum(losses) / steps, rel=1e-5, abs=3e-6)  # a small rest of terms near 1


def split_rows(row: Row) -> list[Row]:
    """A row for each run of sampled tokens, with all before it as context: as an agent that forks at every turn has them."""
    ends = [place + 1 for place, pair in enumerate(zip(row.mask, [*row.mask[1:], 0], strict=True)) if pair == (1, 0)]
    split = []
    for begin, end in pairwise([0, *ends]):
        mask = [0] * begin + row.mask[begin:end]
        split.append(Row(row.ids[:end], mask, [value * kept for value, kept in zip(row.logprobs, mask, strict=False)]))
    return split


@pytest.mark.parametrize("loss_type", ["grpo", pytest.param("bnpo", marks=pytest.mark.nightly), "gspo"])
def test_an_episode_in_many_rows_has_the_gradient_of_the_same_tokens_in_one(
    policy: Policy, gradients: list[list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loss_type: str
) -> None:
    """By the formulas in float64. The trainer's float32 rounds: by 5 to 8e-7, and by 4 to 6e-7 for other micro-batches."""
    import torch
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    trainer = moved(Trainer(policy, seed=1))
    model = twin(trainer, tmp_path)
    model.get_base_model().set_attn_implementation("sdpa")  # eager attention and the norm go by float32

    def norm(self: Any, states: Any) -> Any:
        scale = torch.rsqrt(states.square().mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * states * scale

    whole = noisy_examples(model, seed=5)
    split = [example._replace(rows=[part for row in example.rows for part in split_rows(row)]) for example in whole]
    assert sum(len(example.rows) for example in split) > 2 * sum(len(example.rows) for example in whole)
    assert [example.tokens for example in split] == [example.tokens for example in whole]
    update = update_of(loss_type, tokens_per_micro_batch=100_000)
    exact = []
    for examples in (whole, split):
        [part] = parts_of(trainer, examples, update)
        with monkeypatch.context() as patch:
            patch.setattr(Qwen3RMSNorm, "forward", norm)
            loss = expected_loss(update, model, part, policy.context, sum(example.tokens for example in examples))
            exact.append(torch.autograd.grad(loss, weights(model)))
    assert relative(*exact) < 1e-9
    for examples in (whole, split):
        moved(Trainer(policy, seed=1)).train(examples, update, TEMPERATURE, seed=9)
    assert relative(*gradients) < 2e-6


@pytest.fixture
def against(policy: Policy, tmp_path: Path) -> against_trl.Side:
    return against_trl.Side(policy, tmp_path)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_whole_updates_are_those_of_trl(against: against_trl.Side, loss_type: str) -> None:
    """With flat groups, and with unscored, cut-off and divided trajectories: each reward scaling, with and without KL."""
    seed = LOSSES.index(loss_type)
    batch = against.batch(seed)
    assert any(score is None for score in batch.scores)
    assert any(trajectory.stop_reason == "length" for trajectory in batch.trajectories)
    assert any(len(trajectory.flatten()) > 1 for trajectory in batch.trajectories)
    for update in against_trl.settings_of(seed, (loss_type,)):
        both = against.compare(batch, update)
        assert both.metrics["zero_variance_groups"] >= 3
        assert both.gap < against_trl.LIMIT, update
        assert both.size > 1e-3, "a gradient this small would equal anything"
        assert both.metrics["loss"] == pytest.approx(sum(both.losses) / len(both.losses), rel=1e-5, abs=1e-5)
        if update.beta and update.steps_per_generation == 1:  # all trajectories are computed, and so in the means
            assert both.metrics["kl"] == pytest.approx(both.theirs["kl"][0], rel=1e-4)
            assert both.metrics["entropy"] == pytest.approx(both.theirs["entropy"][0], rel=1e-5)


@pytest.mark.parametrize(
    ("knobs", "least"), [({"without_signal": "drop"}, 0.3), ({"truncated_completions": "mask"}, 0.1)], ids=str
)
def test_other_updates_than_trls_are_seen(against: against_trl.Side, knobs: dict[str, Any], least: float) -> None:
    """What the user asks for beside TRL is not TRL's: the comparison above can fail."""
    update = update_of("grpo", without_signal="count")
    batch = against.batch(2)
    ours, parts, _ = against.ours(batch, update.model_copy(update=knobs))
    whole = [list(range(len(batch.trajectories)))]
    theirs, _ = against.trl.gradients(batch, update, whole)
    assert against.compare(batch, update).gap < against_trl.LIMIT
    assert len(parts) == 1
    assert relative(ours[0], theirs[0]) > least


def test_metrics_are_those_of_the_formulas(policy: Policy, tmp_path: Path) -> None:
    import torch

    trainer = moved(Trainer(policy, seed=1))
    model = twin(trainer, tmp_path)
    examples = noisy_examples(model, seed=5)
    kl = entropy = clipped = difference = 0.0
    tokens = sum(example.tokens for example in examples)
    with torch.no_grad():
        for row, advantage in [(row, advantages_of(example)) for example in examples for row in example.rows]:
            places = torch.tensor(row.mask[1:]).nonzero()[:, 0]
            new = plain_logps(model, row, TEMPERATURE)[places]
            gap = new - torch.tensor(row.logprobs[1:], dtype=torch.float64)[places]
            difference += float((gap.exp() - 1 - gap).sum())
            clipped += float((((gap.exp() < 0.8) & (advantage < 0)) | ((gap.exp() > 1.28) & (advantage > 0))).sum())
            with model.disable_adapter():
                gap = plain_logps(model, row, TEMPERATURE)[places] - new
            kl += float((gap.exp() - 1 - gap).sum())
            spread = torch.distributions.Categorical(logits=plain_logits(model, row, TEMPERATURE))
            entropy += float(spread.entropy()[places].sum())
    examples = [example._replace(group=str(number)) for number, example in enumerate(examples)]  # each is in the sample
    knobs = {"use_bias_correction_kl": False, "steps_per_generation": 2, "tokens_per_micro_batch": 64}
    update = Update.model_validate({**knobs, "learning_rate": 1e-12, **LOOSE})
    measured = trainer.train(examples, update, TEMPERATURE, seed=9)
    assert measured["kl"] == pytest.approx(kl / tokens, rel=1e-4)
    assert measured["entropy"] == pytest.approx(entropy / tokens, rel=1e-4)
    assert measured["clip_ratio/region_mean"] == pytest.approx(clipped / tokens, rel=1e-4)
    assert all(math.isfinite(value) for value in measured.values())
    assert measured["sampler_kl"] == pytest.approx(difference / tokens, rel=1e-4)


@pytest.mark.parametrize("knobs", [{}, CORRECTED], ids=["plain", "corrected"])
def test_a_second_pass_compares_with_the_policy_before_the_first(
    policy: Policy, gradients: list[list[Any]], tmp_path: Path, knobs: dict[str, Any]
) -> None:
    """What an update keeps from its first pass (the base policy's logprobs, those before the update) must not move."""
    import torch

    update = update_of("dapo", learning_rate=1e-3, tokens_per_micro_batch=64, **knobs)
    trainer = moved(Trainer(policy, seed=1))
    before = twin(trainer, tmp_path / "before")
    examples = noisy_examples(before, seed=5)
    trainer.train(examples, update, TEMPERATURE, seed=9)
    after = twin(trainer, tmp_path / "after")
    gradients.clear()
    again = moved(Trainer(policy, seed=1))
    again.train(examples, update.model_copy(update={"num_iterations": 2}), TEMPERATURE, seed=9)
    tokens = sum(example.tokens for example in examples)
    first, second = (
        torch.autograd.grad(
            expected_loss(update, model, examples, policy.context, tokens, before if knobs else None), weights(model)
        )
        for model in (before, after)
    )
    assert relative(gradients[0], first) < 1e-5
    assert relative(gradients[1], second) < 1e-5
    assert relative(first, second) > 0.01


def test_trl_reads_nothing_that_the_stand_in_lacks() -> None:
    """A knob that TRL adds to its loss must fail loudly: the stand-in has no attribute that answers for it."""
    loss = TrlLoss(Update(), None, 1.0, 64)
    with pytest.raises(AttributeError):
        loss.a_knob_of_the_future  # pyrefly: ignore[missing-attribute] # noqa: B018


def test_a_gradient_step_raises_what_was_good_and_lowers_what_was_bad(policy: Policy) -> None:
    import torch

    trainer = moved(Trainer(policy, seed=1))
    rows = sampled_by(trainer.model, random_rows(2, seed=7), 1.0)
    before = [sum(row.logprobs) for row in rows]
    update = Update(beta=0, steps_per_generation=1, learning_rate=1e-2)
    trainer.train([Example([rows[0]], 1.0), Example([rows[1]], -1.0)], update, 1.0, seed=1)
    with torch.no_grad():
        after = [sum(row.logprobs) for row in sampled_by(trainer.model, rows, 1.0)]
    assert after[0] > before[0]
    assert after[1] < before[1]


# --- The sampler's share


@pytest.mark.parametrize(
    ("loss_type", "mode"),
    [
        pytest.param(loss_type, mode, marks=() if LOSS_OF[mode] == loss_type else pytest.mark.nightly)
        for loss_type, mode in product(LOSS_OF.values(), LOSS_OF)
    ],
)
def test_corrected_gradient_equals_that_of_the_formulas(
    policy: Policy, gradients: list[list[Any]], tmp_path: Path, loss_type: str, mode: str
) -> None:
    import torch

    knobs = {"vllm_importance_sampling_mode": mode, "vllm_importance_sampling_clip_max": 1.3} | CORRECTED
    update = update_of(loss_type, tokens_per_micro_batch=64, vllm_importance_sampling_clip_min=0.8, **knobs)
    trainer = moved(Trainer(policy, seed=1))
    model = twin(trainer, tmp_path)
    examples = noisy_examples(model, seed=5)
    trainer.train(examples, update, TEMPERATURE, seed=9)
    tokens = sum(example.tokens for example in examples)

    def gradient(update: Update) -> Any:
        loss = expected_loss(update, model, examples, policy.context, tokens, before=model)
        return torch.autograd.grad(loss, weights(model))

    assert relative(gradients[0], gradient(update)) < 1e-5
    for name in ("vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max"):
        assert relative(gradients[0], gradient(update.model_copy(update={name: None}))) > 0.01, "no ratio was outside"


# --- Trajectories of another policy


def test_sampler_kl_by_hand() -> None:
    """Two sampled tokens, ratios 2 and 1/2: (2 - 1 - ln 2) + (1/2 - 1 + ln 2) = 0.5; the others do not count."""
    import torch

    sampling = torch.tensor([[-1.0, -2.0, -9.0]])
    logps = sampling + torch.tensor([[math.log(2), -math.log(2), 5.0]])
    assert sampler_kl(logps, sampling, torch.tensor([[1.0, 1.0, 0.0]])) == pytest.approx(0.5, abs=1e-6)


def test_sampler_kl_sees_small_differences() -> None:
    """About d² / 2 each: in float32 that of 1e-4 would be lost in rounding."""
    import torch

    sampling = torch.zeros(1, 4)
    assert sampler_kl(sampling + 1e-4, sampling, torch.ones(1, 4)) == pytest.approx(2e-8, rel=1e-3)


@pytest.mark.parametrize("kl", [0.0011, 1.0, math.inf, math.nan])
def test_check_sampler_refuses(kl: float) -> None:
    with pytest.raises(
        UserError, match=r"not sampled by the policy that is being trained.*update\.max_sampler_kl is 1e-03"
    ):
        check_sampler(kl, 1e-3)


def test_check_sampler_accepts() -> None:
    assert check_sampler(0.0, 1e-3) == 0.0
    assert check_sampler(1e-3, 1e-3) == 1e-3


def drawn(temperature: float, noise: float, tokens: int = 4000) -> tuple[Any, Any, dict[str, Any]]:
    """Logprobs and entropies [1, S] of a trainer at temperature 1, and a batch sampled at another, with rounding of `noise`
    nats in both."""
    import torch

    draw = torch.Generator().manual_seed(0)
    logits = torch.randn(tokens, 30, generator=draw) * 2
    chosen = torch.multinomial((logits / temperature).softmax(-1), 1, generator=draw)
    rough = [torch.randn(tokens, generator=draw) * noise for _ in range(2)]
    sampling = (logits / temperature).log_softmax(-1).gather(-1, chosen)[:, 0] + rough[0]
    logps = logits.log_softmax(-1)
    entropies = -(logps.exp() * logps).sum(-1)
    batch = {"completion_mask": torch.ones(1, tokens), "sampling_per_token_logps": sampling[None]}
    return (logps.gather(-1, chosen)[:, 0] + rough[1])[None], entropies[None], batch


@pytest.mark.parametrize(("temperature", "noise"), [(1.0, 0.0), (1.0, 0.05), (1.01, 0.05)])
def test_rounding_is_no_other_temperature(temperature: float, noise: float) -> None:
    check = SamplerCheck()
    check.add(*drawn(temperature, noise))
    measured = check.check(check.sums, 6e-3, 1.0)
    assert measured["sampler_temperature"] == pytest.approx(temperature, abs=3e-3)
    assert measured["sampler_kl"] == pytest.approx(noise**2, abs=5e-4)  # the variances of two roundings, halved


@pytest.mark.parametrize("temperature", [0.95, 1.04, 1.06])
def test_another_temperature_is_named_where_the_kl_is_within_the_limit(temperature: float) -> None:
    check = SamplerCheck()
    for part in (drawn(temperature, 0.05), drawn(temperature, 0.04)):
        check.add(*part)
    with pytest.raises(UserError, match=r"fit temperature (0\.9[45]\d?|1\.0[3-6]\d?), and rollout\.temperature is 1:"):
        check.check(check.sums, 1e-2, 1.0)
    with pytest.raises(UserError, match=r"KL.*update\.max_sampler_kl is 1e-05.*"):
        check.check(check.sums, 1e-5, 1.0)


def test_a_few_tokens_prove_no_temperature() -> None:
    check = SamplerCheck()
    check.add(*drawn(1.04, 0.3, tokens=40))
    assert check.check(check.sums, 1.0, 1.0)["sampler_kl"] > 0
    assert SamplerCheck().check([0.0] * 5, 1e-3, 1.0) == {}


@pytest.mark.parametrize("knobs", [{}, CORRECTED], ids=["plain", "corrected"])
@pytest.mark.parametrize("fault", ["none", "stale adapter", "other temperature", "wrong mask"])
def test_trajectories_must_come_from_the_policy_that_is_trained(
    policy: Policy, fault: str, knobs: dict[str, Any]
) -> None:
    trainer = moved(Trainer(policy, seed=1))
    rows = sampled_by(trainer.model, random_rows(8, seed=2), 1.0)
    if fault == "wrong mask":
        rows = [Row(row.ids, [0] + [1] * (len(row.ids) - 1), row.logprobs) for row in rows]
    if fault == "stale adapter":
        moved(trainer, 0.05, seed=1)
    before = {name: value.detach().clone() for name, value in trainer.weights.items()}
    temperature = 0.8 if fault == "other temperature" else 1.0
    update = Update.model_validate({"steps_per_generation": 2} | knobs)
    if fault == "none":
        measured = trainer.train(with_advantages(rows), update, temperature, seed=1)
        assert measured["sampler_kl"] < 1e-6
        return
    with pytest.raises(UserError, match="not sampled by the policy that is being trained"):
        trainer.train(with_advantages(rows), update, temperature, seed=1)
    assert trainer.steps == 0
    assert all((value == before[name]).all() for name, value in trainer.weights.items())
