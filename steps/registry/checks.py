"""The checks of the promotion gate (steps/registry/gate.py): each is a row of the verdict, with measure and bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.core.evaluations import Judged
from steps.core.records import Record
from steps.registry import looks, paired, power

if TYPE_CHECKING:
    import numpy as np

    from steps.core.params import Promote
    from steps.registry.gate import Side

EVEN = 1e-9  # differences below this are rounding errors
MIN_SLICE = 20  # scenarios from which on a slice counts; smaller ones are listed and decide nothing
MAX_GROWTH = 1.5  # of the mean turns, and of the mean tokens, to those of the policy that it is compared with
FALLS = 0.05  # probability of refusing for a fall, on any slice or on the regression set, where there is none


class Check(Record):
    """A row of the verdict's table."""

    name: str
    passed: bool
    measured: float | None  # None: there was nothing to measure
    bound: float | None  # None: the check decides nothing
    text: str


class Slice(Record):
    """The challenger's success minus the other policy's on a part of the scenarios; without a rule, its share minus 0.5."""

    name: str  # "key=value", from the scenarios' data
    n: int
    difference: float
    ci95: tuple[float, float]
    judged: bool  # False: too small to decide anything
    fallen: bool = False  # by more than is allowed, and beyond chance; unset in verdicts from before it was recorded


def better(name: str, side: Side | None, challenger: Side, interval: Any, tail: float | None, params: Promote) -> Check:
    """Compare success with one other policy: by the interval with this tail where the check decides, otherwise (None) by the
    difference."""
    if side is None:
        text = "there is none: the base policy stands in for it" if name == "champion" else "not measured"
        if name == "scripted":
            text = "not measured: the task has no such player"
            if challenger.judged is not None:
                text = "not measured: a judge compares with the champion and the base policy alone"
        return Check(name=name, passed=True, measured=None, bound=None, text=text)
    difference, low, high = interval(name, tail or paired.TAIL)
    if challenger.judged is None:
        text = f"success {challenger.success_N.mean():.3f} against {side.success_N.mean():.3f} of the {name}: "
        text += f"{difference:+.3f} [{low:+.3f}, {high:+.3f}]"
        least, what = f"{params.margin:+.3f}", "difference must exceed 0"
    else:
        share = f"{0.5 + difference:.3f} [{0.5 + low:.3f}, {0.5 + high:.3f}]"
        text = f"judged better than the {name} on {share} of the scenarios"
        least, what = f"{0.5 + params.margin:.3f}", "share must exceed 0.5"
    if tail is not None:
        text = f"{text} ({percent(tail)}); the lower end must exceed {least}"
        return Check(name=name, passed=low > params.margin + EVEN, measured=low, bound=params.margin, text=text)
    if name == "base":
        text = f"{text}; the {what}"
        return Check(name=name, passed=difference > EVEN, measured=difference, bound=0.0, text=text)
    return Check(name=name, passed=True, measured=difference, bound=None, text=f"{text}; it decides nothing")


def percent(tail: float) -> str:
    """The level of a two-sided interval: 95 % with 0.025 on each side."""
    return f"{100 * (1 - 2 * tail):.4g} %"


def falls(difference: float, high: float, params: Promote) -> bool:
    """Whether success fell by more than `promote.max_slice_drop`, and beyond chance: the interval's upper end is below 0. Of
    twelve slices of 20 scenarios, one falls by so much in every second challenger that is better everywhere."""
    return difference < -params.max_slice_drop - EVEN and high < -EVEN


def no_slice_falls(slices: Sequence[Slice], params: Promote) -> Check:
    """No slice that is large enough to be judged falls; that is judged with FALLS shared among those."""
    judged = [part for part in slices if part.judged]
    worst = min(judged, key=lambda part: part.difference, default=None)
    bound = -params.max_slice_drop
    small = [f"{part.name} ({part.n})" for part in slices if not part.judged]
    ending = f"; too small to judge: {', '.join(small)}" if small else ""
    if worst is None:
        text = f"no slice has {MIN_SLICE} scenarios{ending}"
        return Check(name="slices", passed=True, measured=None, bound=bound, text=text)
    fallen = [f"{part.name} ({part.difference:+.3f})" for part in judged if part.fallen]
    text = f"the worst of {len(judged)} is {worst.name}, {worst.n} scenarios"
    if worst.difference < bound - EVEN and not worst.fallen:
        text += f", {worst.difference:+.3f}, which is within chance"
    text = f"fallen: {', '.join(fallen)}" if fallen else text
    return Check(name="slices", passed=not fallen, measured=worst.difference, bound=bound, text=text + ending)


def growth(name: str, challenger: float, other: float, against: str) -> Check:
    """The challenger's mean divided by the other policy's is at most MAX_GROWTH."""
    bound = MAX_GROWTH
    text = f"mean {name} {challenger:.2f} against {other:.2f} of the {against}"
    if not other:  # there is no ratio; anything above 0 is more
        return Check(name=name, passed=not challenger, measured=None, bound=bound, text=text)
    ratio = challenger / other
    return Check(name=name, passed=ratio <= bound + EVEN, measured=ratio, bound=bound, text=text)


def preferred(held_out: Judged, n: int) -> Check:
    """The judge that training never asks does not prefer the base policy."""
    bound, text = 0.0, f"by a judge that training never asks: {held_out.sentence(n)}; the share must be 0.5 at least"
    measured = held_out.share - 0.5
    return Check(name="held_out", passed=measured >= bound - EVEN, measured=measured, bound=bound, text=text)


def hacking(alarm: str | None, seen: str) -> Check:
    """The reward did not rise while success fell during training (addons/tripwires/watch.py). `alarm` says where it did,
    `seen` what was compared."""
    return Check(name="hacking", passed=alarm is None, measured=None, bound=None, text=alarm or seen)


def held(why: str) -> Check:
    """A row for a regression set that cannot be measured, and why."""
    return Check(name="regression", passed=True, measured=None, bound=None, text=why)


def holds(
    name: str, challenger: Side, other: Side, against: str, clusters: Sequence[str] | None, params: Promote
) -> Check:
    """The challenger does not fall on the scenarios that do not decide: the regression set, or the test split. `against`:
    the other policy and the scenarios, in words. `clusters`: of the scenarios; None: all are independent."""
    clusters_N = numbers(clusters, len(challenger.success_N))
    measured, low, high = paired.paired_interval(challenger.success_N, other.success_N, clusters_N, FALLS)
    bound = -params.max_slice_drop
    text = f"success {challenger.success_N.mean():.3f} against {other.success_N.mean():.3f} of the {against}: "
    text += (
        f"{measured:+.3f} [{low:+.3f}, {high:+.3f}] ({percent(FALLS)}); the difference must be {bound:+.3f} at least, "
    )
    text += "or within chance of 0"
    return Check(name=name, passed=not falls(measured, high, params), measured=measured, bound=bound, text=text)


def numbers(clusters: Sequence[str] | None, n: int) -> np.ndarray:
    """The number of each scenario's cluster, [N]; None: all are independent."""
    import numpy as np

    return np.arange(n) if clusters is None else paired.numbered(clusters)


def gains(
    challenger: Side, other: Side, against: str, clusters: Sequence[str] | None, look: int, params: Promote
) -> Check:
    """The challenger is better on the regression set: by the test that decides (`promote.decides: regression`), at this look
    at the set. `clusters`: of its scenarios; None: all are independent."""
    n = len(challenger.success_N)
    clusters_N = numbers(clusters, n)
    tail = looks.tail(max(1, look), params.false_promotions)
    gain, low, high = paired.paired_interval(challenger.success_N, other.success_N, clusters_N, tail)
    text = f"success {challenger.success_N.mean():.3f} against {other.success_N.mean():.3f} of the {against} on {n} "
    text += (
        f"scenarios that went wrong before: {gain:+.3f} [{low:+.3f}, {high:+.3f}] ({percent(tail)}, look {look}); the "
    )
    text += f"lower end must exceed {params.margin:+.3f}. "
    text += power.power(challenger.success_N - other.success_N, clusters_N, look, params).sentence().rstrip(".")
    return Check(name="regression", passed=low > params.margin + EVEN, measured=low, bound=params.margin, text=text)


def lacking() -> Check:
    """Refuses where the regression set decides, and there is none."""
    text = (
        "there is no regression set, which promote.decides names: `.venv/bin/python -m addons.production.ingest` makes "
        "one of bad answers"
    )
    return Check(name="regression", passed=False, measured=None, bound=None, text=text)


def clean(report: Mapping[str, Any], n: int) -> Check:
    """The scenarios passed the contamination check. UserError where that was of another number of test scenarios."""
    tested = (report.get("scenarios") or {}).get("test")
    if tested != n:
        raise UserError(
            f"contamination.json is of {tested} test scenarios, and there are {n}: make both again "
            "(`.venv/bin/dvc repro scenarios`)"
        )
    pairs = sum((report.get("found") or {}).values())
    passed = report.get("passed") is True and not pairs
    text = f"{pairs} pairs of a held-out and a training scenario that are too much alike"
    return Check(name="contamination", passed=passed, measured=float(pairs), bound=0.0, text=text)
