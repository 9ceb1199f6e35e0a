"""Options of the update that are off by default: against TRL's own step, in other micro-batches, over a checkpoint, and
refused where nothing would read them. On a random Qwen3 of a few thousand parameters.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from addons.advantages.gdpo import aggregated, objectives
from steps.core.params import Params, Policy, Update
from steps.core.params_sections import Judges
from steps.core.records import Reward
from steps.core.section import at
from steps.training import packing
from steps.training.batches import Example
from steps.training.grpo import Trainer
from tests.support import tiny
from tests.support.tiny import LOOSE, moved, random_rows, relative, sampled_by, weights, with_advantages
from tests.training import against_trl

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = list(against_trl.OPTIONS)
BY_NIGHT = [name for name in NAMES if name.endswith(" of sequences") and not name.startswith(("grpo", "sapo"))]
BY_NIGHT += [f"entropy bonus with {loss}" for loss in against_trl.LOSSES if loss not in ("dapo", "gspo")]


@pytest.fixture(scope="module")
def against(policy: Policy, tmp_path_factory: pytest.TempPathFactory) -> against_trl.Side:
    return against_trl.Side(policy, tmp_path_factory.mktemp("sides"))


@pytest.fixture(scope="module")
def batches(against: against_trl.Side) -> list[against_trl.Batch]:
    return [against.batch(seed) for seed in range(2)]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in BY_NIGHT else ()) for name in NAMES]
)
def test_an_option_is_trls(against: against_trl.Side, batches: list[against_trl.Batch], name: str) -> None:
    """The gradient of each optimiser step, and where there is one alone all metrics that TRL has of it."""
    seed = NAMES.index(name) % 2
    update = dict(against_trl.options_of(seed))[name]
    both = against.compare(batches[seed], update)
    assert both.gap < against_trl.LIMIT
    assert both.metrics["loss"] == pytest.approx(sum(both.losses) / len(both.losses), rel=2e-5, abs=2e-5)
    if not at(update, "use_adaptive_entropy"):
        both = against.compare(batches[seed], update.model_copy(update={"steps_per_generation": 1}))
        assert both.size > 1e-6 or at(update, "top_entropy_quantile") == 0, "a gradient this small would equal anything"
        assert against_trl.metric_gap(both) < 1e-4


@pytest.mark.nightly  # an hour
@pytest.mark.timeout(9000)
def test_options_are_trls_on_a_hundred_batches(against: against_trl.Side, tmp_path: Path) -> None:
    """In float32, and where that rounds by more than the limit, in float64."""
    beyond = list[tuple[int, str]]()
    for seed in range(100):
        batch = against.batch(seed)
        for name, update in against_trl.options_of(seed):
            if against.compare(batch, update).gap >= against_trl.LIMIT:
                beyond.append((seed, name))
    assert len(beyond) <= 42  # of 4,200
    with against_trl.wide():
        exact = against_trl.Side(tiny.make_policy(tmp_path / "base"), tmp_path, double=True)
        for seed, name in beyond:
            update = dict(against_trl.options_of(seed))[name]
            assert exact.compare(exact.batch(seed), update).gap < against_trl.LIMIT, (seed, name)


@pytest.mark.parametrize("name", ["delta", "off-policy mask", "entropy quantile", "entropy bonus with dapo", "parts"])
def test_an_option_makes_a_difference(against: against_trl.Side, batches: list[against_trl.Batch], name: str) -> None:
    """The comparisons above can fail."""
    update = dict(against_trl.options_of(0))[name].model_copy(update={"steps_per_generation": 1})
    plain: dict[str, Any] = {
        "delta": None,
        "off_policy_mask_threshold": None,
        "top_entropy_quantile": 1.0,
        "entropy_coef": 0.0,
    }
    plain |= {"multi_objective_aggregation": "sum_then_normalize", "scale_rewards": "group"}
    ours, parts, _ = against.ours(batches[0], update)
    without, _ = against.trl.gradients(batches[0], update.model_copy(update=plain), parts)
    assert relative(ours[0], without[0]) > 1e-3


# --- Metrics do not depend on how a step is split


def split_examples(trainer: Trainer) -> list[Example]:
    """Two groups with a signal, one that is flat, and masked trajectories in each; ratios on both sides of 1."""
    rows = sampled_by(trainer.model, random_rows(24, seed=3, longest=20, alike=0.5), 1.0, noise=0.3)
    examples = with_advantages(rows, 3, sizes=[8, 8, 8])
    examples = [example._replace(advantage=0.0) if example.group == "group 1" else example for example in examples]
    return [example._replace(is_masked=number % 7 == 0) for number, example in enumerate(examples)]


SPLIT: dict[str, dict[str, Any]] = {
    "gspo": {"loss_type": "gspo"},
    "gspo, corrected": {"loss_type": "gspo", "vllm_importance_sampling_correction": True},
    "dapo": {"loss_type": "dapo"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.1},
    "vespo": {"loss_type": "vespo", "vllm_importance_sampling_correction": True},
    "luspo": {"loss_type": "luspo", "top_entropy_quantile": 0.4},
    "bnpo": {"loss_type": "bnpo", "entropy_coef": 0.2, "off_policy_mask_threshold": 0.1},
    "adaptive": {"loss_type": "sapo", "use_adaptive_entropy": True, "entropy_coef": 0.1, "entropy_target": 2.0},
}


@pytest.mark.parametrize("beta", [pytest.param(0.0, marks=pytest.mark.nightly), 0.02])
@pytest.mark.parametrize("name", SPLIT)
def test_metrics_are_the_same_in_other_micro_batches(policy: Policy, name: str, beta: float) -> None:
    measured = []
    for tokens in (64, 1_000_000):
        trainer = moved(Trainer(policy, seed=1))
        given = {"beta": beta, "steps_per_generation": 2, "tokens_per_micro_batch": tokens, "learning_rate": 1e-3}
        update = Update.model_validate(given | LOOSE | SPLIT[name])
        examples = split_examples(trainer)
        assert (len(trainer._steps(examples, update, 3)[0].batches) > 1) == (tokens == 64)
        measured.append(trainer.train(examples, update, 1.0, seed=3))
    assert measured[0].keys() == measured[1].keys()
    assert len(measured[0]) >= 5
    for metric, value in measured[0].items():
        assert value == pytest.approx(measured[1][metric], rel=2e-5, abs=1e-6), metric


def test_entropy_and_clip_ratios_are_of_all_trajectories(policy: Policy) -> None:
    """Without a KL term those of flat groups have no gradient, and TRL counts them."""
    trainer = moved(Trainer(policy, seed=1))
    examples = split_examples(trainer)
    found = {}
    for beta in (0.0, 1e-9):
        again = moved(Trainer(policy, seed=1))
        update = Update.model_validate({"loss_type": "gspo", "beta": beta, "learning_rate": 1e-12, **LOOSE})
        found[beta] = again.train(examples, update, 1.0, seed=3)
    for name in ("entropy", "clip_ratio/low_mean", "clip_ratio/high_mean"):
        assert found[0.0][name] == pytest.approx(found[1e-9][name], rel=1e-5)
        assert found[0.0][name] > 0


# --- Entropy


def test_the_gradient_of_an_entropy_is_that_of_autograd(policy: Policy, tmp_path: Path) -> None:
    import torch

    trainer = moved(Trainer(policy, seed=1))
    model = tiny.twin(trainer, tmp_path)
    rows = random_rows(6, seed=4)
    packed = packing.pack(rows, *trainer.place)
    _, entropies = packing.token_logps(trainer.model, packed, 0.7, learn_entropies=True)
    found = torch.autograd.grad((entropies**2).sum(), list(trainer.weights.values()))
    total = torch.zeros((), dtype=torch.float64)
    for row in rows:
        spread = torch.distributions.Categorical(logits=tiny.plain_logits(model, row, 0.7))
        total = total + (spread.entropy() ** 2 * torch.tensor(row.mask[1:])).sum()
    assert relative(found, torch.autograd.grad(total, weights(model))) < 1e-5


# --- The head in float32


def test_logits_in_float32_are_those_of_the_widened_head(policy: Policy) -> None:
    import torch

    trainer = moved(Trainer(policy.model_copy(update={"dtype": "bfloat16"}), seed=1))
    packed = packing.pack(random_rows(6, seed=5), *trainer.place)
    logps = {}
    for is_wide in (False, True):
        found, entropies = packing.token_logps(
            trainer.model, packed._replace(wide_head=is_wide), 0.7, learn_entropies=True
        )
        (found.sum() + entropies.sum()).backward()
        logps[is_wide] = found.detach()
    base = trainer.model.get_base_model()
    with torch.no_grad():
        hidden = base.get_decoder()(input_ids=packed.ids, position_ids=packed.positions, packed=packed, use_cache=False)
        wide = hidden.last_hidden_state[0, packed.before].float() @ base.get_output_embeddings().weight.float().T
        expected = torch.log_softmax(wide / 0.7, -1).gather(-1, packed.targets[:, None])[:, 0]
    torch.testing.assert_close(logps[True], expected[packed.rows] * packed.mask, rtol=1e-5, atol=1e-5)
    assert float((logps[True] - logps[False]).abs().max()) > 1e-3


# --- Parts of rewards


def test_parts_of_a_reward_by_hand() -> None:
    """Two groups of two. Part a differs in both, part b in the first alone, on a scale a hundred times as large."""
    parts = [{"a": 1.0, "b": 300.0}, {"a": 0.0}, {"a": 0.0, "b": 5.0}, {"a": 1.0, "b": 5.0}]
    gains, flat = aggregated(parts, ["s", "s", "t", "t"], {"a": 1.0, "b": 2.0})
    half, large = 0.5 / (math.sqrt(0.5) + 1e-4), 150 / (300 * math.sqrt(0.5) + 1e-4)
    sums = [half + 2 * large, -half - 2 * large, -half, half]
    std = math.sqrt(sum(value**2 for value in sums) / 3) + 1e-4
    assert gains == pytest.approx([value / std for value in sums])
    assert flat == 0
    assert aggregated([None, {"a": 1.0}, {"a": 2.0}, {"a": 2.0}], ["s", "s", "t", "t"], {"a": 1.0}) == ([None] * 4, 2)


@pytest.mark.parametrize(
    ("name", "score", "components", "expected"),
    [
        ("rule", 1.5, {"found": 2.0, "turns": -0.5}, {"found": (2.0, 1.0), "turns": (-0.5, 1.0)}),
        ("rule", 0.75, {}, {"rest": (0.75, 1.0)}),
        ("rule+ruler", 2.5, {"rule/a/b": 1.0, "ruler/ruler": 1.5}, {"rule/a/b": (1.0, 1.0), "ruler/ruler": (0.5, 3.0)}),
        ("rule+ruler", 2.0, {"ruler/ruler": 1.5}, {"ruler/ruler": (0.5, 3.0), "rest": (0.5, 1.0)}),
    ],
)
def test_objectives_are_the_judges_parts(
    name: str, score: float, components: dict[str, float], expected: dict[str, tuple[float, float]]
) -> None:
    judges = Judges.model_validate({"rule": 1.0, "ruler": 3.0 if "ruler" in name else 0.0})
    reward = Reward(trajectory_id="s/0", scenario_id="s", name=name, score=score, success=None, components=components)
    assert objectives(reward, -0.25, judges) == expected | {"truncation": (-0.25, 1.0)}


# --- What would have no effect


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"loss_type": "sapo", "epsilon_high": 0.3}, "update.epsilon_high would have no effect"),
        ({"loss_type": "gspo", "importance_sampling_level": "token"}, "does not go with update.loss_type: gspo"),
        (
            {"loss_type": "vespo", "beta": 0, "importance_sampling_level": "token"},
            "importance_sampling_level would have no",
        ),
        (
            {"loss_type": "vespo", "vllm_importance_sampling_correction": True}
            | {"vllm_importance_sampling_mode": "sequence_mask"},
            "does not go with update.loss_type: vespo",
        ),
        ({**against_trl.PARTS, "scale_rewards": "batch"}, "scale_rewards would have no effect"),
        ({"truncated_completions": "soft_overlong", "max_completion_len": 9}, "needs update.max_completion_len"),
        ({"soft_punish_cache": 2}, "soft_punish_cache would have no effect"),
        ({"lr_scheduler_type": "cosine_with_min_lr", "max_steps": 9}, "update.lr_scheduler_kwargs is needed"),
        ({"lr_scheduler_kwargs": {"min_lr": 1e-5}}, "update.lr_scheduler_kwargs would have no effect"),
        (
            {"lr_scheduler_type": "cosine_with_min_lr", "max_steps": 9, "lr_scheduler_kwargs": {}},
            "min_lr",
        ),
        (
            {"lr_scheduler_type": "cosine_with_min_lr", "max_steps": 9, "lr_scheduler_kwargs": {"min_lr": 1.0}},
            r"min_lr \(1\) must be below update.learning_rate \(0.0003\)",
        ),
    ],
    ids=str,
)
def test_what_would_have_no_effect_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Update.model_validate(settings)


def test_a_head_in_float32_is_refused_where_everything_is() -> None:
    given = {"update": {"cast_lm_head_to_fp32": True}}
    with pytest.raises(ValueError, match="cast_lm_head_to_fp32 would have no effect"):
        Params.model_validate(given)
    assert at(Params.model_validate(given | {"policy": {"dtype": "bfloat16"}}), "update.cast_lm_head_to_fp32")


@pytest.mark.parametrize("fixed", against_trl.OPTIONS.values(), ids=str)
def test_an_option_written_out_in_full_is_the_same(fixed: dict[str, Any]) -> None:
    update = Update.model_validate(fixed)
    assert Update.model_validate_json(update.model_dump_json()) == update
