"""What the prompts of addons/supervised/generate.py are built on beside the task: episodes in which the agent failed,
or documents.

Prompts take turns through it. It is text for the model that writes, and its answers are checked as all others are.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from addons.judges.prompts import lines_of, shorten
from environments.base import Scenario
from steps.core.errors import UserError
from steps.core.records import Reward, Trajectory, read_records

MOST_LINE = 1_500  # characters of a message of a failed attempt
MOST_LINES = 24  # messages of it: the last ones
EXCERPT = 4_000  # characters of a document in a prompt
TEXTS = (".md", ".rst", ".txt")

FAILED = """The agent succeeded in {right} of {attempts} attempts at the scenario below. Write a variation of it: with \
other names, numbers and words, so that what the agent lacks here is what it needs there.

The scenario:
{messages}
What it is judged by: {data}

An attempt that failed, one message per line:
{transcript}
How it was judged: {judged}"""
DOCUMENT = """Base the scenario on this part of {name}, without quoting what gives the answer away:

{text}"""


class Material(NamedTuple):
    """What a prompt is built on."""

    text: str  # stands at the end of the prompt
    source: str  # where it is from: a scenario's id, or a document and the number of its part
    difficulty: int | None = None  # asked for in place of the next one in turn: 1 + 4 * the share of failed attempts
    varied: Scenario | None = None  # the scenario at which an attempt failed


def failures(task: str, folder: Path) -> list[Material]:
    """The training scenarios of an iteration's folder, such as run/010, at which an attempt failed: those with the fewest
    successes first. Without a rule, an attempt that scores below its group's best failed. UserError where there are none."""
    paths = [folder / "trajectories.parquet", folder / "rewards.parquet", folder.parent / "scenarios" / "train.parquet"]
    for path in paths:
        if not path.is_file():
            raise UserError(f"--from-failures {folder}: {path} does not exist; name an iteration, such as run/010")
    played, rewards = read_records(Trajectory, paths[0]), read_records(Reward, paths[1])
    scenarios = read_records(Scenario, paths[2])
    by_id = {scenario.id: scenario for scenario in scenarios if scenario.task == task}
    judged = {reward.trajectory_id: reward for reward in rewards}
    groups: dict[str, list[tuple[Trajectory, Reward]]] = defaultdict(list)
    for trajectory in played:
        if trajectory.scenario_id in by_id and trajectory.id in judged:
            groups[trajectory.scenario_id].append((trajectory, judged[trajectory.id]))
    if not groups:
        raise UserError(f"--from-failures {folder}: it holds no judged attempts at scenarios of {task}")
    shares = {name: sum(map(_is_right, group, [group] * len(group))) / len(group) for name, group in groups.items()}
    wrong = sorted((share, name) for name, share in shares.items() if share < 1)
    if not wrong:
        raise UserError(
            f"--from-failures {folder}: no attempt at a scenario of {task} failed; take an earlier iteration"
        )
    return [_failure(by_id[name], groups[name], share) for share, name in wrong]


def _is_right(attempt: tuple[Trajectory, Reward], group: Sequence[tuple[Trajectory, Reward]]) -> bool:
    reward = attempt[1]
    if reward.success is not None:
        return reward.success
    return reward.score is not None and reward.score >= max(
        other.score for _, other in group if other.score is not None
    )


def _by_score(attempt: tuple[Trajectory, Reward]) -> tuple[float, str]:
    return -math.inf if attempt[1].score is None else attempt[1].score, attempt[0].id


def _failure(scenario: Scenario, group: Sequence[tuple[Trajectory, Reward]], share: float) -> Material:
    failed = [attempt for attempt in group if not _is_right(attempt, group)]
    worst, reward = min(failed, key=_by_score)
    lines = shorten(lines_of(worst, scenario)[len(scenario.messages) :], MOST_LINE)
    parts = [f"{name} {value:+.2g}" for name, value in reward.components.items()]
    score = "not scored" if reward.score is None else f"a reward of {reward.score:.3g}"
    text = FAILED.format(
        right=round(share * len(group)),
        attempts=len(group),
        messages=json.dumps(list(scenario.messages), ensure_ascii=False),
        data=json.dumps(scenario.data, ensure_ascii=False),
        transcript="\n".join(lines[-MOST_LINES:]),
        judged=f"{score} ({', '.join(parts)})" if parts else score,
    )
    return Material(text, scenario.id, 1 + round(4 * (1 - share)), scenario)


def documents(paths: Sequence[Path]) -> list[Material]:
    """The parts of text files, and of those in folders, of EXCERPT characters at most. UserError where one is no text."""
    files = [file for path in paths for file in (_texts_in(path) if path.is_dir() else [path])]
    parts = []
    for file in files:
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise UserError(f"--documents {file} cannot be read as text in UTF-8 ({problem})") from None
        for number, part in enumerate(_parts(text), 1):
            parts.append(Material(DOCUMENT.format(name=file.name, text=part), f"{file.name}, part {number}"))
    if not parts:
        names = ", ".join(map(str, paths))
        raise UserError(f"--documents: {names} holds no text; files in folders end in {' '.join(TEXTS)}")
    return parts


def _texts_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.suffix in TEXTS and path.is_file())


def _parts(text: str) -> Iterator[str]:
    """The text in parts of EXCERPT characters at most, divided between paragraphs where they are short enough."""
    part = ""
    for paragraph in filter(None, map(str.strip, text.split("\n\n"))):
        if part and len(part) + len(paragraph) + 2 > EXCERPT:
            yield part
            part = ""
        while len(paragraph) > EXCERPT:
            yield paragraph[:EXCERPT]
            paragraph = paragraph[EXCERPT:]
        part = f"{part}\n\n{paragraph}" if part else paragraph
    if part:
        yield part
