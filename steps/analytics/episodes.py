"""Reads the episodes of a run: the policy's actions in each turn, how the episode ended, and its reward. Tokens are counted.

A call is counted under the name of its tool; what was no call, or a call of no existing tool, under a name in brackets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from environments.base import Scenario, is_unparsed
from steps.core.parquet import read_columns
from steps.core.records import fingerprint, read_records
from steps.core.stats import slices_of

# Split -> the file or folder in run/NNN that holds its episodes.
SPLITS = {"train": "trajectories.parquet", "val": "evaluation", "test": "test"}
# Counted in place of a tool's name. Unanswered: the episode ended, or failed, before the call was made.
MALFORMED, NO_TOOL, UNANSWERED = "(malformed call)", "(unknown tool)", "(unanswered call)"
WORDS, CUT_OFF = "(words)", "(cut off)"
Times = list[tuple[float, float, float]]  # asked, answered, ended of each turn; Unix seconds


class Act(NamedTuple):
    """One action of the policy."""

    turn: int  # from 1
    name: str  # of the tool, or one of the names in brackets
    arguments: str  # JSON
    answer: str  # of the environment, as the policy saw it
    error: bool


class EpisodeSummary(NamedTuple):
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
    success: bool | None  # None: it has no reward
    latencies: tuple[float, ...]  # seconds of each turn; empty where they were not recorded


def slices_by_scenario(folder: Path) -> dict[str, tuple[str, ...]]:
    """Scenario id -> its slices, as the gate groups them."""
    scenarios = [scenario for path in sorted(folder.glob("*.parquet")) for scenario in read_records(Scenario, path)]
    slices: dict[str, list[str]] = {scenario.id: [] for scenario in scenarios}
    for name, places in slices_of(scenarios).items():
        for place in places:
            slices[scenarios[place].id].append(name)
    return {scenario_id: tuple(dict.fromkeys(names)) for scenario_id, names in slices.items()}


def read_episodes(folder: Path, split: str, slices: Mapping[str, tuple[str, ...]]) -> list[EpisodeSummary]:
    """A split's episodes in run/NNN, without the columns of prompts and logprobs; none where the file is missing."""
    place = folder / SPLITS[split]
    path = place if place.suffix else place / "trajectories.parquet"
    if not path.is_file():
        return []
    names = [f"turns.list.element.{name}" for name in ("completion_ids", "message", "observations", "finish_reason")]
    rows = read_columns(path, ["id", "scenario_id", "adapter_hash", "stop_reason", "error", *names]).to_pylist()
    beside = path.with_name("rewards.parquet")
    rewards = read_columns(beside, ["trajectory_id", "score", "success"]).to_pylist() if beside.is_file() else []
    scored = {row["trajectory_id"]: row for row in rewards}
    times = read_times(folder / "timings" / f"{place.stem}.turns.json")
    episodes = []
    for row in rows:
        turns, reward = row.get("turns") or [], scored.get(row["id"], {})
        sampled = [(turn["completion_ids"] or (), json.loads(turn["message"])) for turn in turns] if times else []
        moments = times.get(fingerprint(row["id"], row["adapter_hash"], sampled), ())
        episodes.append(
            EpisodeSummary(
                id=row["id"],
                iteration=folder.name,
                split=split,
                scenario_id=row["scenario_id"],
                slices=slices.get(row["scenario_id"], ()),
                turns=len(turns),
                tokens=sum(len(turn["completion_ids"] or ()) for turn in turns),
                acts=tuple(act for number, turn in enumerate(turns, 1) for act in acts_of(number, turn)),
                stop_reason=row["stop_reason"],
                error=row.get("error"),
                score=reward.get("score"),
                success=reward.get("success"),
                latencies=tuple(answered - asked for asked, answered, _ in moments),
            )
        )
    return episodes


def read_times(path: Path) -> dict[str, Times]:
    """Times by the trajectory's fingerprint; none where the file is missing or damaged."""
    try:
        content = json.loads(path.read_text())
        began = float(content["began"])
        return {
            name: [(began + asked, began + answered, began + ended) for asked, answered, ended in turns]
            for name, turns in content["turns"].items()
        }
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def acts_of(number: int, turn: Mapping[str, Any]) -> list[Act]:
    """The actions of a turn, each a call and its answer, from the policy's message and the environment's answers."""
    message, answers = json.loads(turn["message"]), json.loads(turn["observations"])
    calls = message.get("tool_calls") or []
    acts = []
    for place, call in enumerate(calls):
        function, answer = call["function"], str(answers[place].get("content", "")) if place < len(answers) else ""
        unknown = answer.startswith("Error: there is no tool named ")
        name = UNANSWERED if place >= len(answers) else NO_TOOL if unknown else str(function["name"])
        arguments = json.dumps(function["arguments"], ensure_ascii=False)
        acts.append(Act(number, name, arguments, answer, answer.startswith("Error: ")))
    others = [str(answer.get("content", "")) for answer in answers[len(calls) :]]
    if calls or any(map(is_unparsed, others)):
        return acts + [Act(number, MALFORMED, "", answer, True) for answer in others]
    answer = others[0] if others else ""
    name = CUT_OFF if turn["finish_reason"] == "length" else WORDS
    return [Act(number, name, "", answer, answer.startswith("Error: "))]
