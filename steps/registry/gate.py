"""Gate: whether a challenger becomes champion, with the evidence beside the decision.

One test decides: the challenger's success minus that of the champion (of the base policy, where there is no champion),
scenario by scenario on the test split; the lower end of its 95 % interval must exceed `promote.margin`. Everything else can
only refuse, so that the chance of promoting one that is no better stays that of the one test, 2.5 %: not above the base
policy, below the scripted player, worse on a slice, longer episodes, contaminated scenarios. Every check is a row.

A verdict is a function of the evaluations and of the parameters: no clock, no names of runs or versions. Left out: latency
(clocks are not reproducible: turns and tokens stand for it), several attempts at a scenario, a correction for the number of
challengers that were tried on the same test split. flows/promote.py calls this, and moves the alias.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from steps.core.errors import UserError
from steps.core.records import Record

if TYPE_CHECKING:
    import numpy as np

    from environments.base import Scenario
    from steps.core.params import Promote
from steps.core.slices import slices_of
from steps.core.stats import paired_bootstrap

FILES = ("summary.json", "trajectories.parquet", "rewards.parquet")  # of an evaluation
EVEN = 1e-9  # what floating point may lose at a bound


class Side(NamedTuple):
    """A policy on the test split."""

    adapter_hash: str
    success_N: np.ndarray  # [N] 0 or 1, in the order of the scenarios
    turns: float  # mean
    tokens: float  # mean of sampled tokens
    errors: int = 0  # episodes that failed: they count as no success


class Shown(Record):
    """A side, in the verdict."""

    adapter_hash: str
    success: float
    ci95: tuple[float, float]  # Wilson interval
    turns: float
    tokens: float
    errors: int


class Check(Record):
    """A row of the verdict's table."""

    name: str
    passed: bool
    measured: float | None  # None: there was nothing to measure
    bound: float | None  # None: it decides nothing
    text: str


class Slice(Record):
    """The challenger minus the other on a part of the scenarios."""

    name: str  # key=value, of the scenarios' data
    n: int
    difference: float
    ci95: tuple[float, float]
    judged: bool  # False: too small


class Verdict(Record):
    """Whether the challenger is promoted, and what that rests on."""

    promoted: bool
    reason: str
    against: str  # whom it had to beat: champion, or base
    n: int
    scenarios: str  # hash of their ids, in order
    sides: dict[str, Shown]
    checks: tuple[Check, ...]
    slices: tuple[Slice, ...]
    wins: tuple[str, ...]  # scenarios that the challenger alone succeeds at
    losses: tuple[str, ...]  # that the other alone succeeds at
    parameters: dict[str, float | int | None]  # the section promote, the seed among them

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]

    def text(self) -> str:
        """The bytes of verdict.json."""
        return self.model_dump_json(indent=2) + "\n"


def read_side(folder: Path, scenarios: Sequence[Scenario]) -> Side:
    """An evaluation as steps/evaluate.py writes it; UserError where it is not a whole one of these scenarios."""
    import numpy as np

    from steps.core.records import Reward, Trajectory, read_records
    from steps.registry.publish import read_test

    again = "evaluate it again (`dvc repro`, or `python -m steps.evaluate`)"
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise UserError(f"{folder / missing[0]} does not exist: {again}")
    try:
        summary = read_test(folder)
        rewards = read_records(Reward, folder / "rewards.parquet")
        tried = read_records(Trajectory, folder / "trajectories.parquet")
    except ValueError as problem:  # of pydantic, pyarrow or json
        raise UserError(f"{folder} is no evaluation: {str(problem).splitlines()[0]}; {again}") from None
    expected = [scenario.id for scenario in scenarios]
    for records in (rewards, tried):
        if (found := [record.scenario_id for record in records]) != expected:
            how = "in another order" if sorted(found) == sorted(expected) else "others"
            raise UserError(
                f"{folder} is of {len(found)} scenarios, which are {how} than the {len(expected)} of the test split: only "
                f"the same can be compared, {again}"
            )
    success_N = np.array([float(reward.success) for reward in rewards])
    strangers = {one.adapter_hash for one in tried} - {summary.adapter_hash}
    if strangers or summary.n != len(rewards) or abs(summary.success - success_N.mean()) > EVEN:
        raise UserError(f"{folder / 'summary.json'} does not fit the files beside it: {again}")
    errors = sum(one.stop_reason == "error" for one in tried)
    return Side(summary.adapter_hash, success_N, summary.turns, summary.tokens, errors)


def decide(
    scenarios: Sequence[Scenario],
    challenger: Side,
    base: Side,
    contamination: Mapping[str, Any],
    params: Promote,
    champion: Side | None = None,
    scripted: Side | None = None,
) -> Verdict:
    """The verdict. `contamination` is what run/scenarios/contamination.json says; UserError where sides do not fit."""
    import numpy as np

    others = {"champion": champion, "base": base, "scripted": scripted}
    there = {name: side for name, side in others.items() if side is not None}
    for name, side in there.items():
        if side.adapter_hash == challenger.adapter_hash:
            raise UserError(
                f"challenger and {name} are the same adapter, {side.adapter_hash}: there is nothing to compare"
            )
        if not len(side.success_N) == len(challenger.success_N) == len(scenarios):
            raise UserError(
                f"challenger and {name} are not of the same {len(scenarios)} scenarios: evaluate both again"
            )
    against = "champion" if champion is not None else "base"
    other = there[against]

    def interval(side: Side, of: Any = slice(None)) -> tuple[float, float, float]:
        return paired_bootstrap(challenger.success_N[of], side.success_N[of], params.seed, params.resamples)

    places = slices_of(scenarios)
    slices = []
    for name, of in places.items():
        difference, *ends = interval(other, np.array(of))
        judged = len(of) >= params.min_slice
        slices.append(Slice(name=name, n=len(of), difference=difference, ci95=(ends[0], ends[1]), judged=judged))
    checks = [
        *(better(name, side, challenger, interval, name == against, params) for name, side in others.items()),
        no_slice_falls(slices, params),
        growth("turns", challenger.turns, other.turns, against, params.max_turns_growth),
        growth("tokens", challenger.tokens, other.tokens, against, params.max_turns_growth),
        clean(contamination, len(scenarios)),
    ]
    failed = [check.name for check in checks if not check.passed]
    first = next(check for check in checks if check.name == against)
    gap_N = challenger.success_N - other.success_N
    ids = [scenario.id for scenario in scenarios]
    return Verdict(
        promoted=not failed,
        reason=f"failed: {', '.join(failed)}; {first.text}" if failed else first.text,
        against=against,
        n=len(scenarios),
        scenarios=hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16],
        sides={name: shown(side) for name, side in ({"challenger": challenger} | there).items()},
        checks=tuple(checks),
        slices=tuple(slices),
        wins=tuple(name for name, gap in zip(ids, gap_N, strict=True) if gap > 0),
        losses=tuple(name for name, gap in zip(ids, gap_N, strict=True) if gap < 0),
        parameters=params.model_dump(),
    )


def shown(side: Side) -> Shown:
    from steps.core.stats import wilson

    rest = {"turns": side.turns, "tokens": side.tokens, "errors": side.errors}
    n, successes = len(side.success_N), round(float(side.success_N.sum()))
    success = float(side.success_N.mean())
    return Shown(adapter_hash=side.adapter_hash, success=success, ci95=wilson(successes, n), **rest)


# --- The checks


def better(name: str, side: Side | None, challenger: Side, interval: Any, decides: bool, params: Promote) -> Check:
    """Success against one other: the one test where it `decides`, otherwise a guard on the difference itself."""
    if side is None:
        text = "there is none: the base policy stands in for it" if name == "champion" else "not measured"
        missing = name == "scripted" and params.scripted_tolerance is not None
        return Check(name=name, passed=not missing, measured=None, bound=None, text=text)
    difference, low, high = interval(side)
    text = (
        f"success {challenger.success_N.mean():.3f} against {side.success_N.mean():.3f} of the {name}: {difference:+.3f} "
        f"[{low:+.3f}, {high:+.3f}]"
    )
    if decides:
        text = f"{text}; the lower end must exceed {params.margin:+.3f}"
        return Check(name=name, passed=low > params.margin + EVEN, measured=low, bound=params.margin, text=text)
    if name == "base":
        text = f"{text}; the difference must exceed 0"
        return Check(name=name, passed=difference > EVEN, measured=difference, bound=0.0, text=text)
    if params.scripted_tolerance is None:
        return Check(name=name, passed=True, measured=difference, bound=None, text=f"{text}; it decides nothing")
    bound = -params.scripted_tolerance
    text = f"{text}; the difference must be {bound:+.3f} at least"
    return Check(name=name, passed=difference >= bound - EVEN, measured=difference, bound=bound, text=text)


def no_slice_falls(slices: Sequence[Slice], params: Promote) -> Check:
    judged = [one for one in slices if one.judged]
    worst = min(judged, key=lambda one: one.difference, default=None)
    bound = -params.max_slice_drop
    small = [f"{one.name} ({one.n})" for one in slices if not one.judged]
    rest = f"; too small to judge: {', '.join(small)}" if small else ""
    if worst is None:
        text = f"no slice has {params.min_slice} scenarios{rest}"
        return Check(name="slices", passed=True, measured=None, bound=bound, text=text)
    fallen = [f"{one.name} ({one.difference:+.3f})" for one in judged if one.difference < bound - EVEN]
    text = f"the worst of {len(judged)} is {worst.name}, {worst.n} scenarios"
    if fallen:
        text = f"fallen: {', '.join(fallen)}"
    return Check(name="slices", passed=not fallen, measured=worst.difference, bound=bound, text=text + rest)


def growth(name: str, challenger: float, other: float, against: str, bound: float) -> Check:
    """A mean of the challenger over that of the other: a ratio."""
    text = f"mean {name} {challenger:.2f} against {other:.2f} of the {against}"
    if not other:  # no ratio: only nothing is not more than nothing
        return Check(name=name, passed=not challenger, measured=None, bound=bound, text=text)
    ratio = challenger / other
    return Check(name=name, passed=ratio <= bound + EVEN, measured=ratio, bound=bound, text=text)


def clean(report: Mapping[str, Any], n: int) -> Check:
    """The contamination report, which must be of as many test scenarios."""
    tested = (report.get("scenarios") or {}).get("test")
    if tested != n:
        raise UserError(
            f"contamination.json is of {tested} test scenarios, and there are {n}: make both again (`dvc repro scenarios`)"
        )
    pairs = sum((report.get("found") or {}).values())
    passed = report.get("passed") is True and not pairs
    text = f"{pairs} pairs of a held-out and a training scenario that are too much alike"
    return Check(name="contamination", passed=passed, measured=float(pairs), bound=0.0, text=text)


# --- For a person


def table(verdict: Verdict) -> str:
    """verdict.md."""

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:+.3f}"

    lines = [f"# {'Promoted' if verdict.promoted else 'Not promoted'}", "", f"{verdict.reason}.", ""]
    lines += ["| check | passed | measured | bound | |", "|---|---|---:|---:|---|"]
    for check in verdict.checks:
        passed = "yes" if check.passed else "**no**"
        lines.append(f"| {check.name} | {passed} | {number(check.measured)} | {number(check.bound)} | {check.text} |")
    lines += [
        "",
        "| policy | adapter | success | 95 % | turns | tokens | failed |",
        "|---|---|---:|---|---:|---:|---:|",
    ]
    for name, side in verdict.sides.items():
        low, high = side.ci95
        rest = f"{side.turns:.2f} | {side.tokens:.1f} | {side.errors}"
        lines.append(f"| {name} | {side.adapter_hash} | {side.success:.3f} | {low:.3f} to {high:.3f} | {rest} |")
    if verdict.slices:
        lines += [
            "",
            f"| slice, against the {verdict.against} | scenarios | difference | 95 % | |",
            "|---|---:|---:|---|---|",
        ]
    for part in verdict.slices:
        low, high = part.ci95
        judged = "" if part.judged else "too small"
        lines.append(f"| {part.name} | {part.n} | {part.difference:+.3f} | {low:+.3f} to {high:+.3f} | {judged} |")
    settings = ", ".join(f"{name} {value}" for name, value in verdict.parameters.items())
    lines += ["", f"{verdict.n} scenarios: {len(verdict.wins)} won and {len(verdict.losses)} lost against the "]
    lines[-1] += f"{verdict.against} (their ids: verdict.json). Parameters: {settings}. Verdict {verdict.hash}."
    return "\n".join(lines) + "\n"


def note(verdict: Verdict) -> str:
    """The verdict in a model card (steps/registry/card.py): what was decided, and each check."""

    def number(value: float | None) -> str:
        return "" if value is None else f"{value:+.3f}"

    done = "Promoted" if verdict.promoted else "Not promoted"
    lines = [f"**{done}** (verdict `{verdict.hash}`): {verdict.reason}.", ""]
    lines += ["| check | passed | measured | bound |", "|---|---|---:|---:|"]
    for check in verdict.checks:
        passed = "yes" if check.passed else "**no**"
        lines.append(f"| {check.name} | {passed} | {number(check.measured)} | {number(check.bound)} |")
    counts = f"{verdict.n} scenarios: {len(verdict.wins)} won and {len(verdict.losses)} lost"
    lines += ["", f"{counts} against the {verdict.against}."]
    return "\n".join(lines) + "\n"


def picture(verdict: Verdict, path: Path) -> None:
    """One PNG: success of every side, and the differences by slice, with their 95 % intervals. Same verdict, same bytes."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sides, slices = list(verdict.sides.items()), list(verdict.slices)
    heights = (len(sides) + 1, len(slices) + 1)
    figure, (upper, lower) = plt.subplots(
        2, 1, figsize=(7, 1.6 + 0.35 * sum(heights)), height_ratios=heights, layout="constrained"
    )
    for place, (_, side) in enumerate(sides):
        upper.plot(side.ci95, (place, place), color="tab:blue")
        upper.plot(side.success, place, "o", color="tab:blue")
    upper.set(yticks=range(len(sides)), yticklabels=[name for name, _ in sides], xlim=(0, 1))
    upper.set_xlabel(f"test success (95 %, {verdict.n} scenarios)")
    upper.set_title("promoted" if verdict.promoted else "not promoted", loc="left")
    for place, part in enumerate(slices):
        colour = "tab:blue" if part.judged else "grey"
        lower.plot(part.ci95, (place, place), color=colour)
        lower.plot(part.difference, place, "o", color=colour, fillstyle="full" if part.judged else "none")
    lower.axvline(0, color="grey", linewidth=0.8)
    lower.axvline(-float(verdict.parameters["max_slice_drop"] or 0), linestyle=":", color="tab:red")
    lower.set(yticks=range(len(slices)), yticklabels=[f"{part.name} ({part.n})" for part in slices])
    lower.set_xlabel(f"challenger minus {verdict.against} by slice (95 %; hollow: too small to judge)")
    for axis in (upper, lower):
        axis.invert_yaxis()
        axis.grid(alpha=0.3)
    temporary = path.with_name(f".{path.name}")
    figure.savefig(temporary, dpi=120, format="png", metadata={"Software": None})
    plt.close(figure)
    temporary.replace(path)
