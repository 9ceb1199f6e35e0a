"""Whole updates against TRL's GRPOTrainer: the gradient of every optimiser step, on random batches of trajectories.

    python -m tests.training.against_trl --batches 100
    python -m tests.training.against_trl --only options --float64 --names "vespo corrected" # no rounding

In each batch some groups are flat, and some trajectories are unscored, cut off, or of several training rows. The stage
update reads it from files, once for each loss, each scaling of the rewards, and with and without the KL term; the other
settings are drawn. TRL's trainer gets the same tokens and rewards and makes of them what it always does: advantages, masks,
importance ratios and the loss. A trajectory of several rows is to it one completion, whose prompts are masked.

Three things of TRL's trainer are replaced: sampling; the forward pass, by that of a stock PEFT model in float32, in which
each training row is by itself; and without importance sampling the old policy's logprobs, which are the sampler's here. The
policy is a random Qwen3 of a few thousand parameters. Left out: clipping of gradients and the optimiser.

With --float64 the models of both sides have weights in float64, and the trainer's own layers, which widen to float32, keep
what is wider already. Rewards, masks and the sampler's logprobs stay as they are stored.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import logging
import random
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from trl.rewards import get_soft_overlong_punishment

from addons.terms.section import ADAPTIVE as ENTROPY
from addons.terms.section import Terms
from steps.core.params import Policy, Rollout, Score, Update, UpdateParams
from steps.core.params_loss import SAPO, VESPO
from steps.core.params_sections import Judges
from steps.core.records import Reward, Row, Trajectory, Turn, write_records
from steps.core.section import at
from tests.support import tiny
from tests.support.tiny import LOOSE, moved, plain_logps, twin, weights

LOSSES = ("grpo", "dr_grpo", "dapo", "bnpo", "cispo", "gspo", "sapo", "luspo", "vespo")
SCALES = ("group", "batch", "none")
BETAS = (0.0, 0.02)
MODES = (None, "token_truncate", "token_mask", "sequence_truncate", "sequence_mask")
ADAPTIVE = {"use_adaptive_entropy": True, "entropy_coef": 0.05, "steps_per_generation": 4}
HIGH, SEQUENCES = {"top_entropy_quantile": 0.3}, {"importance_sampling_level": "sequence"}
SOFT = {"truncated_completions": "soft_overlong", "max_completion_len": 9, "soft_punish_cache": 5}
PARTS = {"multi_objective_aggregation": "normalize_then_sum"}
OPTIONS: dict[str, dict[str, Any]] = {  # alone and where they may act on one another; the other settings are drawn
    "grpo of sequences": {"loss_type": "grpo", **SEQUENCES},
    "dapo of sequences": {"loss_type": "dapo", **SEQUENCES},
    "cispo of sequences": {"loss_type": "cispo", **SEQUENCES, "beta": 0.02},
    "sapo of sequences": {"loss_type": "sapo", **SEQUENCES, "sapo_temperature_pos": 2.0, "sapo_temperature_neg": 3.0},
    "luspo of tokens": {"loss_type": "luspo", "importance_sampling_level": "token"},
    "sapo steep": {"loss_type": "sapo", "sapo_temperature_pos": 4.0, "sapo_temperature_neg": 9.0, "beta": 0.02},
    "vespo sharp": {"loss_type": "vespo", "vespo_k_pos": 1.0, "vespo_lambda_pos": 0.5, "vespo_k_neg": 0.3},
    "vespo corrected": {"loss_type": "vespo", "beta": 0.02, "vllm_importance_sampling_correction": True},
    "delta": {"loss_type": "dapo", "delta": 1.5},
    "delta of sequences": {"loss_type": "gspo", "delta": 1.05, "beta": 0.02},
    "delta with luspo": {"loss_type": "luspo", "delta": 1.1},
    "off-policy mask": {"loss_type": "dapo", "off_policy_mask_threshold": 0.1},
    "off-policy mask with gspo": {"loss_type": "gspo", "off_policy_mask_threshold": 0.05, "beta": 0.02},
    "off-policy mask with vespo": {"loss_type": "vespo", "off_policy_mask_threshold": 0.05},
    "off-policy mask with cispo": {"loss_type": "cispo", "off_policy_mask_threshold": 0.05},
    "entropy quantile": {"loss_type": "dapo", **HIGH, "beta": 0.0},
    "entropy quantile with beta": {"loss_type": "dapo", **HIGH, "beta": 0.02},
    "entropy quantile of sequences": {"loss_type": "gspo", **HIGH, "beta": 0.02},
    "entropy quantile, masked": {"loss_type": "grpo", "top_entropy_quantile": 0.2, "truncated_completions": "mask"},
    "the highest entropy alone": {"loss_type": "bnpo", "top_entropy_quantile": 0.0, "beta": 0.0},
    **{f"entropy bonus with {loss}": {"loss_type": loss, "entropy_coef": 0.3} for loss in LOSSES},
    "entropy bonus of the quantile": {"loss_type": "dr_grpo", "entropy_coef": 0.3, **HIGH},
    "less entropy": {"loss_type": "dapo", "entropy_coef": -0.1, "beta": 0.0},
    "adaptive, applied": {"loss_type": "dapo", **ADAPTIVE, "entropy_target": 9.0, "beta": 0.0},
    "adaptive, now and then": {"loss_type": "grpo", **ADAPTIVE, "entropy_target": 2.05},
    "adaptive, of the quantile": {"loss_type": "gspo", **ADAPTIVE, "entropy_target": 3.0, **HIGH},
    "many": {"loss_type": "dapo", **SEQUENCES, "delta": 1.2, "off_policy_mask_threshold": 0.1, "entropy_coef": 0.1}
    | {**HIGH, "beta": 0.02, "vllm_importance_sampling_correction": True, "truncated_completions": "mask"},
}
WEIGHTS = {"rule/a": 0.5, "rule/b": 0.5, "criteria/c": 2.0}
OPTIONS |= {
    "soft overlong": {"loss_type": "dapo", **SOFT},
    "soft overlong, scaled": {"loss_type": "grpo", **SOFT, "truncation_penalty": 0.3, "scale_rewards": "none"},
    "penalty": {"loss_type": "grpo", "truncated_completions": "penalise"},
    "parts": {"loss_type": "dapo", **PARTS},
    "parts with a penalty": {"loss_type": "grpo", **PARTS, "truncated_completions": "penalise"},
    "parts with soft overlong": {"loss_type": "gspo", **PARTS, **SOFT},
    "parts, masked": {"loss_type": "bnpo", **PARTS, "truncated_completions": "mask"},
}
TEMPERATURE = 0.8
GROUPS, ATTEMPTS = 6, 4
PAD, END = 0, 1  # tokens; the second ends a turn
MEASURED = ("entropy", "kl", "clip_ratio", "cispo_clip_ratio", "vespo", "sampling", "policy_loss")  # TRL's own metrics
LIMIT = 2e-5  # largest difference of a gradient, relative to its largest element
ROUNDING = 1e-6  # of the largest element of an update's gradients: a step that has no larger one is zero to float32


def column(name: str, **columns: Any) -> Any:
    """A reward function of TRL's that finds its rewards among the columns of the data set."""
    return columns[name]


class Comparison(NamedTuple):
    """One update by both sides."""

    gap: float  # largest difference of the gradients of a step, relative to their largest element; worst step
    size: float  # largest element of TRL's gradients
    metrics: dict[str, Any]  # what the stage wrote
    losses: list[float]  # TRL's, by optimiser step
    theirs: dict[str, list[float]]  # TRL's metrics, by optimiser step


class Batch(NamedTuple):
    """Trajectories, in groups of ATTEMPTS, and their scores. `parts` of rewards, named as in WEIGHTS, are what is compared
    with normalize_then_sum, which the scores have no share in."""

    trajectories: list[Trajectory]
    scores: list[float | None]
    parts: list[dict[str, float] | None]

    def rewards(self, update: Update) -> list[Reward]:
        """As the stage score writes them: a part is multiplied by its judge's weight."""
        rewards = []
        for played, score, values in zip(self.trajectories, self.scores, self.parts, strict=True):
            reward = Reward(
                trajectory_id=played.id, scenario_id=played.scenario_id, name="rule", score=score, success=False
            )
            if at(update, "multi_objective_aggregation") == "normalize_then_sum":
                parts = {name: WEIGHTS[name] * value for name, value in (values or {}).items()}
                total = None if values is None else sum(parts.values())
                reward = reward.model_copy(update={"name": "rule+criteria", "components": parts, "score": total})
            rewards.append(reward)
        return rewards

    def taken(self, update: Update) -> list[float | None]:
        """What a trajectory loses because it was cut off, or for its length; None of one without a score."""
        lost = []
        for played in self.trajectories:
            penalty = -float(update.truncation_penalty or 0) * (played.stop_reason == "length")
            if update.truncated_completions == "soft_overlong":
                punish = get_soft_overlong_punishment(at(update, "max_completion_len"), at(update, "soft_punish_cache"))
                [share] = punish([[token for turn in played.turns for token in turn.completion_ids]])
                penalty = share * float(update.truncation_penalty or 0)
            lost.append(penalty)
        return [None if score is None else penalty for score, penalty in zip(self.scores, lost, strict=True)]


def random_batch(model: Any, adapter_hash: str, seed: int) -> Batch:
    """Half of the groups are flat; a tenth of the trajectories unscored, a fifth cut off, a third of several rows."""
    rng = random.Random(seed)
    made = Batch([], [], [])
    flat = [number % 2 == 0 for number in range(GROUPS)]
    for group, attempt in product(range(GROUPS), range(ATTEMPTS)):
        is_cut, is_split = rng.random() < 0.2, rng.random() < 0.35
        score = group / 4 if flat[group] else rng.choice([rng.random(), 0.0, 1.0])
        made.trajectories.append(
            Trajectory(
                id=f"s{group}/{attempt}",
                scenario_id=f"s{group}",
                attempt=attempt,
                adapter_hash=adapter_hash,
                turns=tuple(random_turns(model, rng, is_cut, is_split)),
                stop_reason="length" if is_cut else "done",
                error=None,
            )
        )
        made.scores.append(None if rng.random() < 0.1 else score)
    draw = random.Random(f"parts {seed}")
    flat_parts: dict[tuple[int, str], bool] = {}
    for place, scored in enumerate(made.scores):
        group, parts = place // ATTEMPTS, {}
        for name, scale in (("rule/a", 1.0), ("rule/b", 16.0), ("criteria/c", 0.125)):
            is_flat = flat_parts.setdefault((group, name), flat[group] or draw.random() < 0.3)
            value = group / 4 if is_flat else draw.choice([draw.random(), 0.0, 1.0])
            parts[name] = scale * value
        made.parts.append(None if scored is None else parts)
    return made


def random_turns(model: Any, rng: random.Random, is_cut: bool, is_split: bool) -> Iterator[Turn]:
    """One to three turns with the model's logprobs and noise, which moves ratios to both sides of the clipping range."""
    import torch

    def tokens(most: int) -> list[int]:
        return [rng.randrange(2, tiny.VOCABULARY) for _ in range(rng.randint(1, most))]

    ids, count = tokens(5), rng.randint(2 if is_split else 1, 3)
    for left in reversed(range(count)):
        finish_reason = "length" if is_cut and not left else "stop"
        sampled = tokens(4) + [END] * (finish_reason == "stop")
        with torch.no_grad():
            logps = plain_logps(model, Row([*ids, *sampled], [], []), TEMPERATURE)[len(ids) - 1 :].tolist()
        turn = {
            "prompt_ids": ids,
            "completion_ids": sampled,
            "logprobs": [min(0.0, value + rng.gauss(0, 0.4)) for value in logps],
            "message": {"role": "assistant", "content": "text"},
            "observations": (),
            "finish_reason": finish_reason,
        }
        yield Turn.model_validate(turn)
        # a prompt that does not extend what was there begins a new row
        ids = tokens(8) if is_split and left == count - 1 else [*ids, *sampled, *tokens(3)]


class Trl:
    """TRL's trainer around a stock model with the adapter that is updated."""

    def __init__(self, model: Any, context: int, folder: Path) -> None:
        from datasets import Dataset
        from tokenizers import Tokenizer, models
        from transformers import PreTrainedTokenizerFast
        from trl import GRPOConfig, GRPOTrainer

        logging.getLogger("trl").setLevel(logging.ERROR)  # it warns of each unscored trajectory
        words = Tokenizer(models.WordLevel({str(token): token for token in range(tiny.VOCABULARY)}, unk_token=str(PAD)))
        self.model = model.train()
        self.trainer = GRPOTrainer(
            model=model,
            args=GRPOConfig(
                output_dir=str(folder),
                use_cpu=True,
                bf16=False,
                report_to=[],
                num_generations=ATTEMPTS,
                per_device_train_batch_size=ATTEMPTS,
                max_completion_length=context,
            ),
            reward_funcs=[partial(column, name=name) for name in ("score", "truncation", *WEIGHTS)],
            train_dataset=Dataset.from_dict({"prompt": ["1"]}),
            processing_class=PreTrainedTokenizerFast(tokenizer_object=words, pad_token=str(PAD), eos_token=str(END)),
        )
        self.trainer._get_per_token_logps_and_entropies = self.forward
        self.rows: list[list[Row]] = []

    def configure(self, update: Update) -> None:
        """What GRPOTrainer takes from its GRPOConfig when it is made."""
        import torch

        trainer = self.trainer
        trainer.loss_type = "grpo" if update.loss_type == "gspo" else update.loss_type
        trainer.importance_sampling_level = update.importance_sampling_level or "token"
        trainer.scale_rewards = update.scale_rewards
        is_summed = at(update, "multi_objective_aggregation") == "sum_then_normalize"
        trainer.multi_objective_aggregation = at(update, "multi_objective_aggregation")
        weights = [float(is_summed), 1.0, *(0.0 if is_summed else weight for weight in WEIGHTS.values())]
        trainer.reward_weights = torch.tensor(weights)
        terms = Terms.of(update)
        trainer.off_policy_mask_threshold = terms.off_policy_mask_threshold
        trainer.top_entropy_quantile = terms.top_entropy_quantile
        trainer.entropy_coef, trainer.use_adaptive_entropy = terms.entropy_coef, terms.use_adaptive_entropy
        trainer._entropy_bonus_enabled = terms.entropy_coef != 0 or terms.use_adaptive_entropy
        trainer._last_world_entropy, trainer._entropy_window_stats = float("inf"), None
        for name in ("delta", *SAPO, *VESPO, *ENTROPY):
            setattr(trainer.args, name, getattr(update, name))
        trainer.beta, trainer.args.use_bias_correction_kl = update.beta, bool(update.use_bias_correction_kl)
        trainer.epsilon_low, trainer.epsilon_high = update.epsilon, update.epsilon_high
        trainer.mask_truncated_completions = update.truncated_completions == "mask"
        trainer.use_vllm = trainer.vllm_importance_sampling_correction = terms.vllm_importance_sampling_correction
        for name in ("mode", "clip_min", "clip_max"):
            name = f"vllm_importance_sampling_{name}"
            setattr(trainer, name, getattr(update, name))
        trainer.current_gradient_accumulation_steps = 1  # the whole step is one batch
        trainer.args.steps_per_generation = update.steps_per_generation
        trainer._metrics["train"].clear()

    def batch(self, batch: Batch, update: Update) -> dict[str, Any]:
        """What the trainer makes of the trajectories before the first step."""
        self.configure(update)
        self.rows = [trajectory.flatten() for trajectory in batch.trajectories]

        def joined(name: str) -> list[list[Any]]:
            """Each trajectory's rows as one completion, from the first sampled token on."""
            return [
                [value for row in rows for value in getattr(row, name)][rows[0].mask.index(1) :] for rows in self.rows
            ]

        prompts = [[number] for number in range(len(self.rows))]  # by which `forward` finds the rows
        self.trainer._generate = lambda _: (
            *(prompts, joined("ids"), joined("mask"), [""] * len(prompts), joined("logprobs"), {}),
            *(None, None),
        )
        whole = self.trainer._generate_and_score_completions(
            [
                {"prompt": "1", "score": score, "truncation": taken, **(parts or dict.fromkeys(WEIGHTS))}
                for score, taken, parts in zip(batch.scores, batch.taken(update), batch.parts, strict=True)
            ]
        )
        if not Terms.of(update).vllm_importance_sampling_correction:
            whole["old_per_token_logps"] = whole["sampling_per_token_logps"]
        return dict(whole)

    def forward(self, model: Any, ids: Any, attention: Any, count: int, **_: Any) -> tuple[Any, Any, None]:
        """Logprobs and entropies [B, count] of completions, each training row by itself; 0 where nothing is predicted."""
        import torch
        from torch.nn.functional import pad

        chosen = [self.rows[number] for number in ids[:, 0].tolist()]
        rows = [row for rows in chosen for row in rows]
        longest = max(len(row.ids) for row in rows)
        whole = torch.tensor(
            [row.ids + [PAD] * (longest - len(row.ids)) for row in rows]
        )  # a row does not see what follows
        spread = torch.log_softmax(model(input_ids=whole).logits[:, :-1].double() / TEMPERATURE, -1)
        logps = spread.gather(-1, whole[:, 1:, None])[..., 0]
        results = []
        for values in (logps, -(spread.exp() * spread).sum(-1)):
            left = iter(pad(values, (1, 0)))
            parts = [torch.cat([next(left)[: len(row.ids)] for row in rows]) for rows in chosen]
            parts = [part[rows[0].mask.index(1) :] for part, rows in zip(parts, chosen, strict=True)]
            results.append(torch.stack([pad(part, (0, count - len(part))) for part in parts]))
        return results[0], results[1].float(), None  # as TRL has entropies: it compares them with a quantile in float32

    def gradients(self, batch: Batch, update: Update, parts: list[list[int]]) -> tuple[list[Any], list[float]]:
        """The gradient and the loss of each optimiser step, on the trajectories with these numbers."""
        import torch

        whole = self.batch(batch, update)
        gradients, losses = [], []
        for part in parts:
            step = {name: value[part] if value.ndim else value for name, value in whole.items()}
            loss = self.trainer._compute_loss(self.model, step)
            gradients.append(torch.autograd.grad(loss, weights(self.model)))
            losses.append(loss.item())
        return gradients, losses


@contextlib.contextmanager
def wide() -> Iterator[None]:
    """Inside, what the trainer's layers compute in float32 is computed in float64."""
    import pytest
    import torch

    from addons.kernels import layers
    from steps.training import logprobs

    class Wide:
        float32 = torch.float64

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

    narrow = torch.Tensor.float
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", lambda x: x if x.dtype == torch.float64 else narrow(x))
        for module in (layers, logprobs):
            patch.setattr(module, "torch", Wide())
        yield


class Side:
    """Both sides, from one adapter near the base policy: far from it, single terms of the KL drown the others' digits."""

    def __init__(self, policy: Policy, folder: Path, seed: int = 0, double: bool = False) -> None:
        from steps.training.grpo import Trainer

        policy = policy.model_copy(update={"dtype": "float64"}) if double else policy
        self.policy, self.folder = policy, folder
        trainer = moved(Trainer(policy, seed=1), size=0.05, seed=seed)
        self.adapter_hash = trainer.save_adapter(folder / "previous-adapter")
        trainer.save_checkpoint(folder / "previous", self.adapter_hash)
        self.model = twin(trainer, folder / "twin", double)
        self.trl = Trl(self.model, policy.context, folder / "trl")

    def batch(self, seed: int) -> Batch:
        return random_batch(self.model, self.adapter_hash, seed)

    def ours(self, batch: Batch, update: Update) -> tuple[list[Any], list[list[int]], dict[str, Any]]:
        """The stage's gradient at each optimiser step, the numbers of the step's trajectories, and its metrics."""
        import pytest
        import torch

        from steps.training import grpo
        from steps.update import update as stage

        gradients: list[Any] = []
        parts: list[list[int]] = []
        clip, split = torch.nn.utils.clip_grad_norm_, grpo.split_steps

        def recorded_clip(weights: Any, limit: float) -> Any:
            weights = list(weights)
            gradients.append([value.grad.double() for value in weights])
            return clip(weights, limit)

        def recorded_split(examples: Any, *others: Any) -> Any:
            numbers = {id(example): number for number, example in enumerate(examples)}
            steps = split(examples, *others)
            parts.extend([numbers[id(example)] for example in step] for step in steps)
            return steps

        with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory(dir=self.folder) as name:
            patch.setattr(torch.nn.utils, "clip_grad_norm_", recorded_clip)
            patch.setattr(grpo, "split_steps", recorded_split)
            out = Path(name)
            write_records(batch.trajectories, out / "trajectories.parquet")
            write_records(batch.rewards(update), out / "rewards.parquet")
            stage(
                out / "trajectories.parquet",
                out / "rewards.parquet",
                self.folder / "previous",
                out / "adapter",
                out / "checkpoint",
                out / "metrics.json",
                UpdateParams(
                    task="email_search",
                    seed=3,
                    policy=self.policy,
                    rollout=Rollout(temperature=TEMPERATURE),
                    update=update,
                    score=Score(
                        judges=Judges.model_validate({"rule": WEIGHTS["rule/a"], "criteria": WEIGHTS["criteria/c"]})
                    ),
                ),
            )
            return gradients, parts, json.loads((out / "metrics.json").read_text())

    def compare(self, batch: Batch, update: Update) -> Comparison:
        """One update by both sides. A gradient that is zero on TRL's side must be zero on ours. One that is tiny beside
        the update's largest must be zero or the same: TRL's reward parts leave the rounding of a zero in groups without
        variance, and vespo weights a step to 1e-15."""
        ours, parts, metrics = self.ours(batch, update)
        theirs, losses = self.trl.gradients(batch, update, parts)
        gaps, sizes = [0.0], [max(float(value.abs().max()) for value in expected) for expected in theirs]
        for mine, expected, size in zip(ours, theirs, sizes, strict=True):
            if size <= ROUNDING * max(sizes) and not any(bool(own.any()) for own in mine):
                continue
            gap = max(float((own - their).abs().max()) for own, their in zip(mine, expected, strict=True))
            gaps.append(gap / size if size else float("inf"))
        return Comparison(max(gaps), max(sizes), metrics, losses, dict(self.trl.trainer._metrics["train"]))


def metric_gap(both: Comparison) -> float:
    """The largest difference between a metric of an update of one optimiser step and TRL's, relative to TRL's or to 0.01."""
    gaps = []
    for name in [name for name in both.theirs if name.partition("/")[0] in MEASURED]:
        [theirs] = both.theirs[name]
        gaps.append(abs(both.metrics[name] - theirs) / max(abs(theirs), 0.01))
    return max(gaps)


def random_settings(seed: int, **fixed: Any) -> Update:
    """Clips often, and keeps so still that every step starts where the first did."""
    rng = random.Random(f"settings {seed} {fixed}")
    given: dict[str, Any] = {
        "steps_per_generation": rng.choice([1, 2, 3]),
        "truncated_completions": rng.choice(["keep", "mask"]),
        "tokens_per_micro_batch": rng.choice([64, 4096]),
        "learning_rate": 1e-12,
        "optimizer_steps": "fixed",  # as TRL's
        **LOOSE,
    }
    modes = [mode for mode in MODES if mode is None or mode.startswith("token") or fixed["loss_type"] != "vespo"]
    if mode := rng.choice(modes[bool(fixed.get("vllm_importance_sampling_correction")) :]):
        given |= {"vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": mode}
        low, high = (0.8, 1.3) if mode.startswith("token") else (0.4, 3.0)  # some ratios are outside, and some inside
        given |= {"vllm_importance_sampling_clip_min": low, "vllm_importance_sampling_clip_max": high}
    if fixed.get("beta"):
        given["use_bias_correction_kl"] = rng.random() < 0.5
    if fixed["loss_type"] == "cispo":
        given["epsilon_high"] = 1.2
    return Update.model_validate(given | fixed)


def settings_of(seed: int, losses: tuple[str, ...] = LOSSES) -> Iterator[Update]:
    """Each loss with each scaling of rewards, with and without the KL term."""
    for loss_type, scale, beta in product(losses, SCALES, BETAS):
        yield random_settings(seed, loss_type=loss_type, scale_rewards=scale, beta=beta)


def options_of(seed: int) -> Iterator[tuple[str, Update]]:
    """Each of OPTIONS, with and without the KL term where they leave that open."""
    for name, fixed in OPTIONS.items():
        yield name, random_settings(seed, **{"beta": BETAS[seed % 2]} | fixed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=100, help="random batches (default: 100)")
    parser.add_argument("--only", choices=["losses", "options"], help="the losses with each scaling, or OPTIONS")
    parser.add_argument("--names", nargs="+", choices=OPTIONS, metavar="NAME", help="some of OPTIONS alone")
    parser.add_argument("--float64", action="store_true", help="both sides in float64")
    chosen = parser.parse_args()
    count = chosen.batches
    if count < 1:
        parser.error(f"--batches must be 1 or more, not {count}")
    began = time.perf_counter()
    rows: dict[str, list[Comparison]] = {name: [] for name in (*LOSSES, *OPTIONS)}
    with (
        tempfile.TemporaryDirectory(prefix="against-trl-") as name,
        wide() if chosen.float64 else contextlib.nullcontext(),
    ):
        side = Side(tiny.make_policy(Path(name, "base")), Path(name), double=chosen.float64)
        for seed in range(count):
            batch = side.batch(seed)
            losses = [(update.loss_type, update) for update in settings_of(seed)] if chosen.only != "options" else []
            options = options_of(seed) if chosen.only != "losses" else ()
            picked = [(name, update) for name, update in options if not chosen.names or name in chosen.names]
            for name, update in [*losses, *picked]:
                with contextlib.redirect_stdout(io.StringIO()):  # the stage says how many trajectories it trained on
                    rows[name].append(side.compare(batch, update))
    worst = 0.0
    for name, updates in ((name, updates) for name, updates in rows.items() if updates):
        gap, still = max(update.gap for update in updates), sum(not update.size for update in updates)
        print(
            f"{name:30} {len(updates)} updates, {still} without a gradient, largest difference {gap:.1e}",
            flush=True,
        )
        worst = max(worst, gap)
    print(f"{count} batches in {time.perf_counter() - began:.0f} s; largest difference {worst:.1e}, limit {LIMIT:.0e}")
    if not worst <= LIMIT:
        raise SystemExit("the update is not TRL's")


if __name__ == "__main__":
    main()
