"""Waste: what an iteration cost, and what became of the tokens that it sampled. From files alone.

    python -m steps.analytics            # shows it beside everything else

The stage update writes what became of each trajectory (run/NNN/fates.json; steps/training/fates.py explains the fates). A
trajectory's sampled tokens are counted under its fate, or as `constrained` where it is trained on and a grammar left no
choice.

Left out: what clipping and importance sampling take from single tokens (`clip_ratio/region_mean` of metrics.json), the time
between stages, and prompts, which cost seconds but are not sampled.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from steps.core.errors import UserError
from steps.core.parquet import read_columns
from steps.core.records import ITERATION_STAGES, Record, sampled_mask
from steps.training.fates import FATES, TRAINED, token_fates

UNIT = 2**40  # shares are whole numbers of 1 / UNIT, so that floats of them sum to 1 exactly, in any order


class Waste(Record):
    """An iteration's cost, and its sampled tokens by fate."""

    trajectories: dict[str, int]  # by fate
    tokens: dict[str, int]  # sampled, by fate
    shares: dict[str, float]  # of the sampled tokens, by fate: they sum to 1 exactly; all 0 where none was sampled
    sampled: int  # tokens
    trained: int  # tokens of the fates gradient and at_mean
    seconds: dict[str, float]  # by stage, of those that were measured
    judge_cost: float | None  # money of this iteration's judge; None where none was asked
    seconds_per_gradient_token: float | None  # of all measured stages; None where no token bears a gradient

    def metrics(self) -> dict[str, float]:
        """As they are logged."""
        logged = {f"waste/{fate}": share for fate, share in self.shares.items()}
        logged |= {"waste/sampled_tokens": float(self.sampled), "waste/gradient_tokens": float(self.tokens["gradient"])}
        if self.seconds_per_gradient_token is not None:
            logged["waste/seconds_per_gradient_token"] = self.seconds_per_gradient_token
        return logged


def waste(folder: Path) -> Waste:
    """Of run/NNN. UserError where a file is missing, or where the fates are not of these trajectories."""
    import pyarrow.compute as pc

    fates = _fates(folder / "fates.json")
    fields = ("completion_ids", "logprobs", "is_constrained", "grammar")  # files of earlier versions lack the last ones
    columns = ["id", *(f"turns.list.element.{field}" for field in fields)]
    batch = read_columns(folder / "trajectories.parquet", columns)
    names = batch["id"].to_pylist()
    if fates.keys() != set(names):
        raise UserError(
            f"{folder}/fates.json does not fit trajectories.parquet beside it: they are of different updates "
            "(`.venv/bin/dvc repro` runs it again)"
        )
    tokens: dict[str, int] = dict.fromkeys(FATES, 0)
    if "turns" in batch.column_names:  # [N] lists of turns, each a list of tokens
        turns = batch["turns"].combine_chunks()
        flat, places = pc.list_flatten(turns), pc.list_parent_indices(turns).to_pylist()
        lengths = pc.list_value_length(pc.struct_field(flat, "completion_ids")).to_pylist()
        has_field = flat.type.get_field_index("is_constrained") >= 0
        constrained = pc.struct_field(flat, "is_constrained").to_pylist() if has_field else ()
        masks = {
            number: sampled_mask(lengths[number] or 0, turn["logprobs"] or (), True, turn.get("grammar") or "")
            for number, is_constrained in enumerate(constrained)
            if is_constrained
            for turn in [flat[number].as_py()]
        }
        for number, (place, length) in enumerate(zip(places, lengths, strict=True)):
            for name, count in token_fates(fates[names[place]], masks.get(number, [1] * (length or 0))).items():
                tokens[name] += count
    kept = {stage: folder / "timings" / f"{output}.json" for stage, output in ITERATION_STAGES.items()}
    seconds = {stage: json.loads(path.read_text())["seconds"] for stage, path in kept.items() if path.is_file()}
    measured = bool(tokens["gradient"] and seconds)
    judge = folder / "judge.json"
    return Waste(
        trajectories={fate: list(fates.values()).count(fate) for fate in FATES},
        tokens=tokens,
        shares=shares(tokens),
        sampled=sum(tokens.values()),
        trained=sum(tokens[fate] for fate in TRAINED),
        seconds=seconds,
        judge_cost=json.loads(judge.read_text()).get("judge_cost") if judge.is_file() else None,
        seconds_per_gradient_token=sum(seconds.values()) / tokens["gradient"] if measured else None,
    )


def shares(tokens: Mapping[str, int]) -> dict[str, float]:
    """Each count's share of them all, in whole units of 1 / UNIT: what rounding leaves goes to the largest remainders."""
    total = sum(tokens.values())
    if not total:
        return dict.fromkeys(tokens, 0.0)
    parts = {name: divmod(count * UNIT, total) for name, count in tokens.items()}
    left = UNIT - sum(whole for whole, _ in parts.values())
    raised = set(sorted(parts, key=lambda name: -parts[name][1])[:left])
    return {name: (whole + (name in raised)) / UNIT for name, (whole, _) in parts.items()}


def _fates(path: Path) -> dict[str, str]:
    """What the update wrote: trajectory id -> fate. UserError where it is missing or holds something else."""
    if not path.is_file():
        raise UserError(f"{path} does not exist: the stage update makes it (`.venv/bin/dvc repro`)")
    try:
        fates = json.loads(path.read_text())
        if not isinstance(fates, dict) or not all(fate in FATES for fate in fates.values()):
            raise ValueError("it holds no fates")
    except ValueError as problem:
        raise UserError(f"{path} cannot be read ({problem}): make it again (`.venv/bin/dvc repro`)") from None
    return fates
