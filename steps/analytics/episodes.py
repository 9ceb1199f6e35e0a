"""Episodes for analytics: who did what in which turn, how it ended and what it earned. Tokens are counted, and not read.

A call is named by its tool. What was no call, or none of a tool that there is, is counted in brackets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from steps.core.parquet import read_columns

# Where run/NNN has each split's episodes.
SPLITS = {"train": "trajectories.parquet", "val": "evaluation", "test": "test"}
# What is counted in place of a tool's name. Unanswered: the episode was over, or failed, before.
MALFORMED, NO_TOOL, UNANSWERED = "(malformed call)", "(unknown tool)", "(unanswered call)"
WORDS, CUT_OFF = "(words)", "(cut off)"


class Act(NamedTuple):
    """Something that the policy did in a turn."""

    turn: int  # from 1
    name: str  # of a tool, or in brackets what it was instead
    arguments: str  # JSON
    answer: str  # what it saw of it
    error: bool


class Episode(NamedTuple):
    """One attempt, without its tokens."""

    id: str
    iteration: str
    split: str
    scenario_id: str
    slices: tuple[str, ...]  # key=value
    turns: int
    tokens: int  # sampled
    acts: tuple[Act, ...]
    stop_reason: str
    error: str | None
    score: float | None
    success: bool | None  # None: there is no reward
    latencies: tuple[float, ...]  # seconds, of its turns; empty where they were not recorded


def iterations(run: Path) -> list[Path]:
    """run/000, run/001, …"""
    return sorted(path for path in run.glob("[0-9]*") if path.is_dir() and path.name.isdigit())


def slices_by_scenario(folder: Path) -> dict[str, tuple[str, ...]]:
    """Scenario id -> the slices that it is of, as the gate has them."""
    from environments.base import Scenario
    from steps.core.records import read_records
    from steps.core.slices import slices_of

    known = [scenario for path in sorted(folder.glob("*.parquet")) for scenario in read_records(Scenario, path)]
    found: dict[str, list[str]] = {scenario.id: [] for scenario in known}
    for name, places in slices_of(known).items():
        for place in places:
            found[known[place].id].append(name)
    return {name: tuple(dict.fromkeys(slices)) for name, slices in found.items()}


def read_episodes(folder: Path, split: str, slices: Mapping[str, tuple[str, ...]]) -> list[Episode]:
    """A split's episodes of run/NNN, without the tokens' own columns; none where there is no file."""
    from steps.tracing.files import read_times

    place = folder / SPLITS[split]
    path = place if place.suffix else place / "trajectories.parquet"
    if not path.is_file():
        return []
    turns = [f"turns.list.element.{name}" for name in ("completion_ids", "message", "observations", "finish_reason")]
    rows = read_columns(path, ["id", "scenario_id", "adapter_hash", "stop_reason", "error", *turns]).to_pylist()
    beside = path.with_name("rewards.parquet")
    rewards = read_columns(beside, ["trajectory_id", "score", "success"]).to_pylist() if beside.is_file() else []
    scored = {row["trajectory_id"]: row for row in rewards}
    times = read_times(folder / "timings" / f"{place.stem}.turns.json")
    found = []
    for row in rows:
        told, reward = row.get("turns") or [], scored.get(row["id"], {})
        clock = times.get(_fingerprint(row, told)) if times else None
        found.append(
            Episode(
                id=row["id"],
                iteration=folder.name,
                split=split,
                scenario_id=row["scenario_id"],
                slices=slices.get(row["scenario_id"], ()),
                turns=len(told),
                tokens=sum(len(turn["completion_ids"] or ()) for turn in told),
                acts=tuple(act for number, turn in enumerate(told, 1) for act in acts_of(number, turn)),
                stop_reason=row["stop_reason"],
                error=row.get("error"),
                score=reward.get("score"),
                success=reward.get("success"),
                latencies=tuple(answered - asked for asked, answered, _ in clock or ()),
            )
        )
    return found


def _fingerprint(row: Mapping[str, Any], turns: Sequence[Mapping[str, Any]]) -> str:
    """That of the trajectory, from the columns that it is made of."""
    from steps.core.records import Trajectory, Turn

    said = [
        Turn.model_construct(
            prompt_ids=(),
            completion_ids=tuple(turn["completion_ids"] or ()),
            logprobs=(),
            message=json.loads(turn["message"]),
            observations=(),
            finish_reason="stop",
        )
        for turn in turns
    ]
    return Trajectory.model_construct(
        id=row["id"],
        scenario_id="",
        attempt=0,
        adapter_hash=row["adapter_hash"],
        turns=tuple(said),
        stop_reason="done",
    ).fingerprint()


def acts_of(number: int, turn: Mapping[str, Any]) -> list[Act]:
    """What a turn did, from its message and what the environment answered: a call and its answer each."""
    message, answers = json.loads(turn["message"]), json.loads(turn["observations"])
    calls = message.get("tool_calls") or []
    found = []
    for place, call in enumerate(calls):
        function, answer = call["function"], str(answers[place].get("content", "")) if place < len(answers) else ""
        unknown = answer.startswith("Error: there is no tool named ")
        name = UNANSWERED if place >= len(answers) else NO_TOOL if unknown else str(function["name"])
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        found.append(Act(number, name, arguments, answer, answer.startswith("Error: ")))
    rest = [str(answer.get("content", "")) for answer in answers[len(calls) :]]
    if calls or any(answer.startswith("Error: a tool call ") for answer in rest):  # steps/policy/chat.py words it so
        return found + [Act(number, MALFORMED, "", answer, True) for answer in rest]
    answer = rest[0] if rest else ""
    name = CUT_OFF if turn["finish_reason"] == "length" else WORDS
    return [Act(number, name, "", answer, answer.startswith("Error: "))]
