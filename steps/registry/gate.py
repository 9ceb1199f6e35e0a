"""The promotion gate: decides whether a challenger becomes champion, and keeps the evidence with the decision.

One test decides. The challenger's success minus that of the champion (or of the base policy, where there is no champion) is
taken scenario by scenario, and the lower end of its interval must exceed `promote.margin`. The scenarios are the test split,
or with `promote.decides: regression` the regression set, which is made of what went wrong in production (docs/traces.md).
The interval (steps/registry/paired.py) allows for scenarios that are alike, and its level for earlier looks at the same
ones (steps/registry/looks.py). All other checks can only refuse, so the probability that any challenger is promoted on
these scenarios and is no better is `promote.false_promotions` at most. They refuse a challenger that is not above the base
policy, is below the scripted player, is worse on a slice, or plays longer episodes, and contaminated scenarios; and where
they were measured, one whose reward rose in training while success fell, that a judge which training never asks finds worse
than the base policy, or that falls on the regression set, or on the test split where the other one decides. Each check is a
row of the verdict.

Where the task has no rule, a judge has compared the challenger with each other policy at each scenario, in both orders
(addons/judges/pairs.py): 1 is a win, 0 a loss and 0.5 a tie. The test is the same, on that score minus 0.5 in place of the
difference of success, so its errors are as rare; but they are errors about what the judge prefers. All texts say so.

A verdict depends only on the evaluations, the parameters and the number of the look, not on the time or on names of runs and
versions. Left out: latency (times are not reproducible; turns and tokens stand for it), and several attempts at a scenario.
flows/promote.py calls this and moves the alias; verdict_report.py shows a verdict to a person.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from steps.core.errors import UserError
from steps.core.evaluations import Judged
from steps.core.files import json_lines
from steps.core.records import PAIRS, Pair, Record
from steps.core.section import at
from steps.core.stats import slices_of
from steps.registry import checks, looks, paired
from steps.registry.checks import EVEN, Check, Slice
from steps.registry.power import Power, power

if TYPE_CHECKING:
    import numpy as np

    from environments.base import Scenario
    from steps.core.params import Promote

FILES = ("summary.json", "trajectories.parquet", "rewards.parquet")  # those of an evaluation that are read


class Side(NamedTuple):
    """A policy's results on the test split, N scenarios."""

    adapter_hash: str
    # [N] 0 or 1, in the order of the scenarios; with `judged`: 1, 0.5 (a tie) or 0 against the rival
    success_N: np.ndarray
    turns: float  # mean
    tokens: float  # mean of sampled tokens
    errors: int = 0  # episodes that failed with an error; they count as no success
    judged: Judged | None = None  # None: by the rule
    held_out: Judged | None = None  # beside success: against the base policy, by a judge that training never asks


class PolicySummary(Record):
    """A side as the verdict records it."""

    adapter_hash: str
    success: float | None  # None where the task has no rule
    ci95: tuple[float, float] | None  # Wilson interval, of clusters where scenarios are alike
    turns: float
    tokens: float
    errors: int
    # Without a rule: the share of scenarios at which the challenger was judged better than this policy, and its interval
    beaten: float | None = None
    beaten_ci95: tuple[float, float] | None = None


class Verdict(Record):
    """Whether the challenger is promoted, and the evidence for that."""

    promoted: bool
    reason: str
    against: str  # the policy that it had to beat: champion, or base
    n: int  # scenarios
    scenarios: str  # hash of their ids, in order
    sides: dict[str, PolicySummary]
    checks: tuple[Check, ...]
    slices: tuple[Slice, ...]
    wins: tuple[str, ...]  # ids of the scenarios at which only the challenger succeeds, or is judged better
    losses: tuple[str, ...]  # ids of those at which only the other policy succeeds, or is judged better
    parameters: dict[str, float | int | str | None]  # the section `promote` of params.yaml
    # None in verdicts from before these were recorded: all scenarios were independent then, and every look the first
    look: int | None = None  # its number among the looks at this split; 0 for a champion, which is not judged
    tail: float | None = None  # one-sided probability of error that this look may have
    clusters: int | None = None  # of scenarios that are alike; as many as scenarios where all are independent
    largest: int | None = None  # scenarios of the largest cluster
    clustered: bool | None = None  # False: the task does not say which scenarios are alike
    power: Power | None = None  # where the test split decides
    judges: dict[str, Judged] | None = None  # without a rule: the comparisons, by the evaluation that they are in

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.text().encode()).hexdigest()[:16]

    def text(self) -> str:
        """The contents of verdict.json. An older verdict keeps its own, and so its hash."""
        return self.model_dump_json(indent=2, exclude_unset=True) + "\n"


def read_side(folder: Path, scenarios: Sequence[Scenario]) -> Side:
    """Read an evaluation that steps/evaluate.py wrote. UserError where it is incomplete or of other scenarios than these."""
    import numpy as np

    from steps.core.records import Reward, Trajectory, read_records
    from steps.registry.publish import read_test

    again = "evaluate it again (`.venv/bin/dvc repro`, or `.venv/bin/python -m steps.evaluate`)"
    if missing := [name for name in FILES if not (folder / name).is_file()]:
        raise UserError(f"{folder / missing[0]} does not exist: {again}")
    try:
        summary = read_test(folder)
        rewards = read_records(Reward, folder / "rewards.parquet")
        trajectories = read_records(Trajectory, folder / "trajectories.parquet")
    except ValueError as problem:  # raised by pydantic, pyarrow or json
        raise UserError(f"{folder} is no evaluation: {str(problem).splitlines()[0]}; {again}") from None
    expected = [scenario.id for scenario in scenarios]
    for records in (rewards, trajectories):
        if (ids := [record.scenario_id for record in records]) != expected:
            how = "in another order" if sorted(ids) == sorted(expected) else "others"
            raise UserError(
                f"{folder} is of {len(ids)} scenarios, which are {how} than the {len(expected)} of the test split: only the "
                f"same can be compared, {again}"
            )
    if summary.judged is None:
        success_N = np.array([float(reward.success or 0) for reward in rewards])
    else:
        success_N = read_scores(folder / PAIRS, expected)
    other_adapters = {trajectory.adapter_hash for trajectory in trajectories} - {summary.adapter_hash}
    if other_adapters or summary.n != len(rewards) or abs(summary.share - success_N.mean()) > EVEN:
        raise UserError(f"{folder / 'summary.json'} does not fit the files beside it: {again}")
    errors = sum(trajectory.stop_reason == "error" for trajectory in trajectories)
    return Side(
        summary.adapter_hash, success_N, summary.turns, summary.tokens, errors, summary.judged, summary.held_out
    )


def read_scores(path: Path, expected: Sequence[str]) -> np.ndarray:
    """The scores of a judge's comparisons, [N]. UserError where they are not of these scenarios."""
    import numpy as np

    lines = json_lines(path) if path.is_file() else []
    try:
        pairs = [Pair.model_validate_json(line) for line in lines]
    except ValueError as problem:
        raise UserError(f"{path} cannot be read ({str(problem).splitlines()[0]}): evaluate it again") from None
    if [pair.scenario_id for pair in pairs] != list(expected):
        raise UserError(
            f"{path} does not have the {len(expected)} test scenarios: evaluate it again (`.venv/bin/dvc repro`)"
        )
    return np.array([pair.score for pair in pairs])


def evidence(folder: Path, name: str) -> dict[str, Any]:
    """What a decision rests on, from the files of flows/promote.py: its verdict, and {side: {"path", "md5"}}."""
    try:
        verdict = Verdict.model_validate_json((folder / "verdict.json").read_bytes())
        path = folder / "evaluations.json"
        rests_on = json.loads(path.read_text()) if path.exists() else {}
        evaluations = {side: {key: str(file[key]) for key in ("path", "md5")} for side, file in rests_on.items()}
    except (ValidationError, ValueError, LookupError, TypeError, AttributeError, OSError) as problem:
        line = str(problem).strip().splitlines()[0]
        advice = "`.venv/bin/python -m flows.promote --dry-run` makes it again"
        raise UserError(f"{name} holds no verdict ({line}); {advice}") from None
    return {
        "hash": verdict.hash,
        "verdict": verdict.model_dump(mode="json", exclude_unset=True),
        "evaluations": evaluations,
    }


class Look(NamedTuple):
    """A look at a split: the policies that are compared on its scenarios."""

    scenarios: Sequence[Scenario]  # [N]
    challenger: Side
    base: Side
    champion: Side | None = None
    scripted: Side | None = None
    clusters: Sequence[str] | None = None  # the name of each scenario's cluster, [N]; None: all are independent
    number: int = 1  # of the looks at the split so far, this one included; 0 where a champion is shown and not judged


def decide(
    compared: Look,
    contamination: Mapping[str, Any],
    params: Promote,
    watched: Check | None = None,
    regression: Check | None = None,
) -> Verdict:
    """Decide on the challenger. `contamination` is the content of run/scenarios/contamination.json, `watched` what training
    showed of reward hacking, `regression` how the challenger does on that set. UserError where the sides cannot be
    compared."""
    import numpy as np

    scenarios, challenger, clusters, look = compared.scenarios, compared.challenger, compared.clusters, compared.number
    others = {"champion": compared.champion, "base": compared.base, "scripted": compared.scripted}
    measured = {name: side for name, side in others.items() if side is not None}
    n = len(scenarios)
    require_comparable(challenger, measured, n)
    against, by_test = "champion" if compared.champion is not None else "base", at(params, "decides") in (None, "test")
    other = measured[against]
    scores = {name: score_against(challenger, side, name) for name, side in measured.items()}
    clusters_N = checks.numbers(clusters, n)
    tail = looks.tail(max(1, look), params.false_promotions)

    def interval(name: str, tail: float = paired.TAIL, places: Any = slice(None)) -> tuple[float, float, float]:
        """(gain, low, high): of success, or of the share of scenarios that are judged better above 0.5."""
        if (score_N := scores[name]) is not None:
            share, low, high = paired.judged_interval(score_N[places], clusters_N[places], tail)
            return share - 0.5, low - 0.5, high - 0.5
        other_N = measured[name].success_N[places]
        return paired.paired_interval(challenger.success_N[places], other_N, clusters_N[places], tail)

    places_of = slices_of(scenarios)
    shared = checks.FALLS / max(1, sum(len(places) >= checks.MIN_SLICE for places in places_of.values()))
    slices = []
    for name, places in places_of.items():
        part, places_N = {"name": name, "n": len(places)}, np.array(places)
        difference, *ci95 = interval(against, places=places_N)
        judged = len(places) >= checks.MIN_SLICE
        fallen = judged and checks.falls(difference, interval(against, shared, places_N)[2], params)
        slices.append(Slice(difference=difference, ci95=ci95, judged=judged, fallen=fallen, **part))
    rows = [
        *(
            checks.holds(name, challenger, side, f"{name} on the {n} test scenarios", clusters, params)
            if side is not None and name == against and not by_test
            else checks.better(name, side, challenger, interval, tail if name == against else None, params)
            for name, side in others.items()
        ),
        checks.no_slice_falls(slices, params),
        checks.growth("turns", challenger.turns, other.turns, against),
        checks.growth("tokens", challenger.tokens, other.tokens, against),
        checks.clean(contamination, n),
        *([] if challenger.held_out is None else [checks.preferred(challenger.held_out, n)]),
        *([] if watched is None else [watched]),
        *([regression] if regression is not None else [] if by_test else [checks.lacking()]),
    ]
    failed = [check.name for check in rows if not check.passed]
    first = next(check for check in rows if check.name == (against if by_test else "regression"))
    gap_N = challenger.success_N - other.success_N if (score_N := scores[against]) is None else 2 * score_N - 1
    ids = [scenario.id for scenario in scenarios]
    sizes = np.unique(clusters_N, return_counts=True)[1]
    asked = {"challenger": challenger} | measured
    judges = {name: side.judged for name, side in asked.items() if side.judged is not None and name != "base"}
    return Verdict(
        promoted=not failed,
        reason=f"failed: {', '.join(failed)}; {first.text}" if failed else first.text,
        against=against,
        n=n,
        scenarios=looks.split_hash(ids),
        sides={"challenger": summarise(challenger, clusters_N)}
        | {name: summarise(side, clusters_N, scores[name]) for name, side in measured.items()},
        checks=tuple(rows),
        slices=tuple(slices),
        wins=tuple(name for name, gap in zip(ids, gap_N, strict=True) if gap > 0),
        losses=tuple(name for name, gap in zip(ids, gap_N, strict=True) if gap < 0),
        parameters=params.model_dump(),
        look=look,
        tail=tail,
        clusters=len(sizes),
        largest=int(sizes.max()),
        clustered=clusters is not None,
        # The regression set's check says its own power. Without a rule there are judges.
        **({"power": power(gap_N, clusters_N, look, params, scores[against] is not None)} if by_test else {}),  # pyrefly: ignore[bad-argument-type]
        **({"judges": judges} if judges else {}),
    )


def require_comparable(challenger: Side, sides: Mapping[str, Side], n: int) -> None:
    """UserError where a side is the challenger itself, or was measured otherwise than it on the `n` scenarios."""
    for name, side in sides.items():
        both = f"challenger and {name} are"
        if side.adapter_hash == challenger.adapter_hash:
            raise UserError(f"{both} the same adapter, {side.adapter_hash}: there is nothing to compare")
        if not len(side.success_N) == len(challenger.success_N) == n:
            raise UserError(f"{both} not of the same {n} scenarios: evaluate both again")
        if (side.judged is None) != (challenger.judged is None):
            raise UserError(f"{both} of two kinds: one has rewards by a rule, and the other was compared by a judge")


def score_against(challenger: Side, side: Side, name: str) -> np.ndarray | None:
    """The challenger's scores in a judge's comparison with another policy, [N]: 1 is a win, 0.5 a tie, 0 a loss. None by a
    rule. UserError where the two were not compared with each other."""
    if side.judged is None or challenger.judged is None:
        return None
    if challenger.judged.rival_hash == side.adapter_hash:
        return challenger.success_N
    if side.judged.rival_hash == challenger.adapter_hash:
        return 1 - side.success_N
    raise UserError(
        f"the judge has not compared the challenger {challenger.adapter_hash} with the {name} {side.adapter_hash}, but with "
        f"{challenger.judged.rival_hash}: evaluate both again"
    )


def summarise(side: Side, clusters_N: np.ndarray, score_N: np.ndarray | None = None) -> PolicySummary:
    """A side as the verdict has it. `score_N`: how the challenger compares with it by a judge."""
    fields = side._asdict()
    success_N, judged, _ = (fields.pop(name) for name in ("success_N", "judged", "held_out"))
    if judged is None:
        ci95 = paired.share_interval(success_N, clusters_N)
        return PolicySummary(success=float(success_N.mean()), ci95=ci95, **fields)
    if score_N is not None:
        share, low, high = paired.judged_interval(score_N, clusters_N)
        fields |= {"beaten": share, "beaten_ci95": (low, high)}
    return PolicySummary(success=None, ci95=None, **fields)
