"""What training changed on the test split: scenarios that only one of the two policies solves, each in a few short lines.

    changed = changes(Path("run"), "004")  # from run/000/test and run/004/test
    changed.fixed[0].after.lines(env, scenario, width=100)

`fixed` are those that the base policy fails and the trained policy solves, `broken` the others. Where no rule tells success,
a scenario is fixed if a judge finds the trained policy's attempt better in both orders (pairs.jsonl), and broken if worse.
The order depends on the files alone: the fewest turns of both attempts first, then the order of the split.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from environments.base import Message, Scenario
from steps.analytics.transcripts import STOPS, printable, spoken
from steps.core.errors import UserError
from steps.core.files import json_lines
from steps.core.masking import masked
from steps.core.records import PAIRS, Pair, Reward, Trajectory, read_records
from steps.project.chain import BASE

if TYPE_CHECKING:
    from environments.base import Env

MOST = 4  # lines of an attempt
TURNS = MOST - 1  # of them for its turns; the last one is the result
CALL = 0.6  # of a line's width for what the policy said, where the environment's answer stands beside it


class Side(NamedTuple):
    """One policy's attempt at a scenario."""

    trajectory: Trajectory
    verdict: str  # in words, such as "success"; empty for the base policy where a judge compares
    is_good: bool

    def lines(self, env: type[Env], scenario: Scenario, width: int) -> list[str]:
        """At most MOST lines of `width` characters: what the policy did turn by turn, then its answer and the verdict."""
        turns = self.trajectory.turns
        shown = [turn_line(turn.message, turn.observations, width) for turn in turns]
        if len(shown) > TURNS:
            shown = [*shown[: TURNS - 2], f"… {len(shown) - TURNS + 1} more turns", shown[-1]]
        return [*shown, short("; ".join(filter(None, self._result(env, scenario))), width)]

    def _result(self, env: type[Env], scenario: Scenario) -> Iterator[str]:
        """The verdict, the answer with the one that is expected, and how the episode ended where it did not end itself."""
        trajectory = self.trajectory
        given, expected = answers(env, scenario, trajectory)
        yield self.verdict
        if given is not None:
            yield f"answer: {short(given, 60)}"
        if not self.is_good and expected is not None:
            yield f"expected: {short(expected, 60)}"
        if trajectory.stop_reason != "done":
            yield trajectory.error or STOPS[trajectory.stop_reason]


class Change(NamedTuple):
    """A scenario that one of the two policies solves."""

    scenario: Scenario
    before: Side  # of the base policy
    after: Side

    @property
    def turns(self) -> int:
        """Of both attempts."""
        return len(self.before.trajectory.turns) + len(self.after.trajectory.turns)


class Changes(NamedTuple):
    """The scenarios that only one of the two policies solves, those with the fewest turns first."""

    fixed: list[Change]
    broken: list[Change]


def changes(run: Path, name: str) -> Changes:
    """Of the policy run/<name> beside the base policy, by their attempts at the test split. UserError where
    the two have other scenarios."""
    if name == BASE:
        return Changes([], [])
    base, trained = (_attempts(run / folder / "test") for folder in (BASE, name))
    preferred = _preferred(run / name / "test" / PAIRS)
    changed = Changes([], [])
    for scenario in read_records(Scenario, run / "scenarios/test.parquet"):
        if scenario.id not in base or scenario.id not in trained:
            raise UserError(
                f"run/{BASE}/test and run/{name}/test do not have scenario {scenario.id}: evaluate again "
                "(`.venv/bin/dvc repro`)"
            )
        (first, before), (second, after) = base[scenario.id], trained[scenario.id]
        if before is None or after is None:
            score = preferred.get(scenario.id, 0.5)
            sides = (
                Side(first, "", score < 0.5),
                Side(second, f"judged {'better' if score > 0.5 else 'worse'}", score > 0.5),
            )
            is_changed, is_fixed = score in (0.0, 1.0), score == 1.0
        else:
            words = {True: "success", False: "no success"}
            sides = Side(first, words[before], before), Side(second, words[after], after)
            is_changed, is_fixed = before != after, after
        if is_changed:
            (changed.fixed if is_fixed else changed.broken).append(Change(scenario, *sides))
    return Changes(*(sorted(each, key=lambda change: change.turns) for each in changed))


def _attempts(folder: Path) -> dict[str, tuple[Trajectory, bool | None]]:
    """Scenario id -> the attempt, and whether the rule calls it a success."""
    played = read_records(Trajectory, folder / "trajectories.parquet")
    success = {reward.trajectory_id: reward.success for reward in read_records(Reward, folder / "rewards.parquet")}
    return {each.scenario_id: (each, success.get(each.id)) for each in played}


def _preferred(path: Path) -> dict[str, float]:
    """Scenario id -> a judge's score of the attempt beside the base policy's (1: better); nothing where none was asked."""
    lines = json_lines(path) if path.is_file() else []
    return {pair.scenario_id: pair.score for pair in map(Pair.model_validate_json, lines)}


def answers(env: type[Env], scenario: Scenario, trajectory: Trajectory) -> tuple[str | None, str | None]:
    """What an attempt came to, and what is expected; None where there is no such thing."""
    if trajectory.result is not None:  # of an agent of one's own
        return trajectory.result.output or None, None
    if not trajectory.turns:
        return None, None
    outcome = env.outcome(scenario, trajectory.messages(scenario))
    return _text(outcome.given), _text(outcome.expected)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def question(scenario: Scenario, width: int) -> str:
    """What the user of a scenario says last before the policy's first turn, in one line."""
    asked = [str(message["content"]) for message in scenario.messages if message["role"] == "user"]
    return short(asked[-1] if asked else "(no question)", width)


def turn_line(message: Message, observations: Sequence[Message], width: int) -> str:
    """A turn in a line: what the policy said and called, and the beginning of the answer."""
    turn = short("; ".join(spoken(message)) or "(nothing)", int(CALL * width) if observations else width)
    if not observations:
        return turn
    answer: Any = observations[0].get("content", "")
    return short(f"{turn} → {printable(str(answer))}", width)


def short(text: str, width: int) -> str:
    """The text in one printable line of at most `width` characters. It is masked first: half a secret is not recognised."""
    line = printable(" ".join(masked(text).split()))
    return line if len(line) <= width else line[: width - 1].rstrip() + "…"
