"""Waste: what an iteration cost, and what became of the tokens that it sampled. From files alone.

    python -m steps.analytics            # shows it beside everything else

Every trajectory has one fate, the first of steps/update.py's reasons not to learn from it that holds; its sampled tokens go
to that. A trajectory with the very mean of its group is trained on, but its advantage is 0: only the KL to the base policy
pulls at it. It is counted by itself, as `at_mean`, and `gradient` is what is left.

Left out: what clipping and importance sampling take from single tokens (`clip_ratio/region_mean` of metrics.json), the time
between stages, and prompts, which cost seconds but are not sampled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.core.parquet import read_columns
from steps.core.records import OUTPUTS, Record

if TYPE_CHECKING:
    from steps.core.params import Update

# In the order in which they are looked at: quarantined (breaks the token contract, or failed), unscored (a judge could not),
# zero_variance (all scores of its group are equal), truncated (cut off, and update.truncated_completions is mask).
LOST = ("quarantined", "unscored", "zero_variance", "truncated", "at_mean")
FATES = ("gradient", *LOST)
UNIT = 2**40  # shares are whole numbers of 1 / UNIT, so that floats of them sum to 1 exactly, in any order


class Waste(Record):
    """An iteration's cost, and its sampled tokens by fate."""

    trajectories: dict[str, int]  # by fate
    tokens: dict[str, int]  # sampled, by fate
    shares: dict[str, float]  # of the sampled tokens, by fate: they sum to 1 exactly; all 0 where none was sampled
    sampled: int  # tokens
    trained: int  # tokens in the training rows: gradient + at_mean
    seconds: dict[str, float]  # by stage, of those that were measured
    judge_cost: float | None  # money of this iteration's judge; None where none was asked
    seconds_per_gradient_token: float | None  # of all measured stages; None where no token bears a gradient

    def metrics(self) -> dict[str, float]:
        """As they are logged."""
        found = {f"waste/{fate}": self.shares[fate] for fate in LOST}
        found |= {"waste/gradient": self.shares["gradient"]}
        found |= {"waste/sampled_tokens": float(self.sampled), "waste/gradient_tokens": float(self.tokens["gradient"])}
        if self.seconds_per_gradient_token is not None:
            found["waste/seconds_per_gradient_token"] = self.seconds_per_gradient_token
        return found


def waste(folder: Path, update: Update | None = None) -> Waste:
    """Of run/NNN, whose update ran with these parameters (default: those of the params.yaml beside run/).

    UserError where a file is missing, or where the fates are not what the update itself counted.
    """
    import pyarrow.compute as pc

    text = _text(folder / "metrics.json", "update")
    counted: dict[str, Any] = json.loads(text)
    batch = read_columns(
        folder / "trajectories.parquet", ["id", "scenario_id", "stop_reason", "turns.list.element.completion_ids"]
    )
    rewards = read_columns(folder / "rewards.parquet", ["trajectory_id", "score"])
    scores = dict(zip(rewards["trajectory_id"].to_pylist(), rewards["score"].to_pylist(), strict=True))
    names, groups, stops = (batch[name].to_pylist() for name in ("id", "scenario_id", "stop_reason"))
    sampled = [0] * len(names)
    if "turns" in batch.column_names:  # [N] lists of turns, each a list of tokens
        turns = batch["turns"].combine_chunks()
        lengths = pc.list_value_length(pc.struct_field(pc.list_flatten(turns), "completion_ids"))
        for place, length in zip(pc.list_parent_indices(turns).to_pylist(), lengths.to_pylist(), strict=True):
            sampled[place] += length or 0
    if scores.keys() != set(names):
        raise UserError(f"{folder}/rewards.parquet does not fit trajectories.parquet beside it: score the batch again")
    update = update or _update(folder)
    bad = {name for listed in counted.get("quarantine", {}).values() for name in listed}
    found = fates(names, groups, stops, scores, bad, update)
    _check(folder, found, groups, scores, counted)
    tokens = {fate: sum(n for n, own in zip(sampled, found, strict=True) if own == fate) for fate in FATES}
    seconds = _seconds(folder)
    judged = folder / "judge.json"
    cost = json.loads(judged.read_text()).get("judge_cost") if judged.is_file() else None
    return Waste(
        trajectories={fate: found.count(fate) for fate in FATES},
        tokens=tokens,
        shares=shares(tokens),
        sampled=sum(sampled),
        trained=tokens["gradient"] + tokens["at_mean"],
        seconds=seconds,
        judge_cost=cost,
        seconds_per_gradient_token=sum(seconds.values()) / tokens["gradient"]
        if tokens["gradient"] and seconds
        else None,
    )


def fates(
    names: Sequence[str],
    groups: Sequence[str],
    stops: Sequence[str],
    scores: Mapping[str, float | None],
    quarantined: set[str],
    update: Update,
) -> list[str]:
    """What became of each trajectory: one of FATES. By the rules of steps/update.py and its own functions."""
    from steps.training import batches, contract

    cut = {name for name, stop in zip(names, stops, strict=True) if stop in contract.TRUNCATED} - quarantined
    penalty = update.truncation_penalty or 0.0
    usable: list[float | None] = []
    for name in names:
        score = None if name in quarantined else scores[name]
        usable.append(score - penalty if score is not None and name in cut else score)
    gained, _ = batches.advantages(usable, groups, update.scale_rewards)
    masked = cut if update.truncated_completions == "mask" else set()
    found = []
    for name, score, gain in zip(names, usable, gained, strict=True):
        if name in quarantined:
            found.append("quarantined")
        elif score is None:
            found.append("unscored")
        elif gain is None:
            found.append("zero_variance")
        elif name in masked:
            found.append("truncated")
        else:
            found.append("gradient" if abs(gain) > 1e-9 else "at_mean")
    return found


def shares(tokens: Mapping[str, int]) -> dict[str, float]:
    """Each count's share of them all, in whole units of 1 / UNIT: what rounding leaves goes to the largest remainders."""
    total = sum(tokens.values())
    if not total:
        return dict.fromkeys(tokens, 0.0)
    parts = {name: divmod(count * UNIT, total) for name, count in tokens.items()}
    left = UNIT - sum(whole for whole, _ in parts.values())
    raised = set(sorted(parts, key=lambda name: -parts[name][1])[:left])
    return {name: (whole + (name in raised)) / UNIT for name, (whole, _) in parts.items()}


def _check(
    folder: Path, found: list[str], groups: Sequence[str], scores: Mapping[str, float | None], counted: dict[str, Any]
) -> None:
    """The update counted the same. It knows no fates, but how many it was given, trained on, and had to leave."""
    ours = {
        "collected": len(found),
        "trained": found.count("gradient") + found.count("at_mean"),
        "quarantined": found.count("quarantined"),
        "without_signal": sum(found.count(fate) for fate in ("unscored", "zero_variance", "truncated")),
    }
    theirs = {name: counted.get(name) for name in ours}
    if ours != theirs:
        raise UserError(
            f"{folder}: these files come to {ours}, and metrics.json says {theirs}: they are of different updates, or "
            "params.yaml is not what it ran with (`dvc repro` runs it again)"
        )


def _seconds(folder: Path) -> dict[str, float]:
    kept = {stage: folder / "timings" / f"{output}.json" for stage, output in OUTPUTS.items()}
    return {stage: json.loads(path.read_text())["seconds"] for stage, path in kept.items() if path.is_file()}


def _update(folder: Path) -> Update:
    from steps.core import params

    path = folder.resolve().parent.parent / "params.yaml"
    return params.load(path, params.Params).update if path.is_file() else params.Update()


def _text(path: Path, maker: str) -> str:
    if not path.is_file():
        raise UserError(f"{path} does not exist: the stage {maker} makes it (`dvc repro`)")
    return path.read_text()
