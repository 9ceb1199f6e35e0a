"""What `viewer.app` knows of a run: a line for each trajectory, read once from a few parquet columns, filtered and sorted.

A file that changes on disk is read again (time of change and size). Tokens and messages stay on disk: viewer/group.py
reads those of a group when it is opened. Nothing is written.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from steps.core.errors import UserError
from steps.core.parquet import read_columns
from viewer.query import Attempt, Query, keeps

KINDS = ("rollout", "evaluation", "test")  # in the order in which an iteration makes them; there may be others
LONGEST = 300  # characters of a question that a list shows and a search reads
COLUMNS = ("id", "scenario_id", "attempt", "adapter_hash", "stop_reason", "error")
SAMPLED = "turns.list.element.completion_ids"
SAID = ("turns.list.element.message", "turns.list.element.observations")


class Group(NamedTuple):
    """The attempts at one scenario in one batch."""

    batch: str  # "001/rollout"
    iteration: str
    kind: str  # rollout, evaluation, test
    scenario: str
    question: str  # its first line
    attempts: tuple[Attempt, ...]


class Row(NamedTuple):
    """A line of the list: a group (by=group), or one of its attempts (by=attempt)."""

    group: Group
    attempts: tuple[Attempt, ...]  # what the line is about
    found: frozenset[str]  # ids of those that the filters keep
    reward: float | None  # means
    spread: float | None  # largest minus smallest reward; 0 is a group without signal, None one with a single reward
    success: float | None  # share of the scored
    turns: float
    tokens: float
    stop: str  # the reasons, the commonest first
    errors: int


class Batch:
    """A file of trajectories with the rewards beside it."""

    def __init__(self, folder: Path, iteration: str, kind: str) -> None:
        self.folder, self.iteration, self.kind, self.key = folder, iteration, kind, f"{iteration}/{kind}"
        self.trajectories, self.rewards = folder / "trajectories.parquet", folder / "rewards.parquet"
        self.version: object = None
        self.groups: tuple[Group, ...] = ()
        self.problem = ""
        self._said: Any = None

    def refresh(self, questions: Mapping[str, str], asked: object) -> None:
        """Read the file again where it, its rewards or the questions have changed."""
        version = (stamp(self.trajectories), stamp(self.rewards), asked)
        if version == self.version:
            return
        self.version, self._said, self.problem = version, None, ""
        scores: dict[str, tuple[float | None, bool | None]] = {}
        self.groups = ()
        path = self.rewards
        try:
            if path.is_file():
                scores = self._scores()
            path = self.trajectories
            self.groups = self._read(questions, scores)
        except FileNotFoundError:  # it is being written anew
            return
        except UserError as problem:
            self.problem = str(problem)
        except Exception as problem:  # whatever it holds, the other files can still be read
            self.problem = f"{path} cannot be read ({str(problem).splitlines()[0][:200]})"

    def _scores(self) -> dict[str, tuple[float | None, bool | None]]:
        """Score and success by trajectory id."""
        names = ["trajectory_id", "score", "success"]
        table = read_columns(self.rewards, names)
        ids, scores, successes = (table[name].to_pylist() for name in names)
        return dict(zip(ids, zip(scores, successes, strict=True), strict=True))

    def _read(
        self, questions: Mapping[str, str], scores: Mapping[str, tuple[float | None, bool | None]]
    ) -> tuple[Group, ...]:
        table = read_columns(self.trajectories, [*COLUMNS, SAMPLED])
        turns, tokens = counts(table)
        attempts: dict[str, list[Attempt]] = {}
        columns = [table[name].to_pylist() for name in COLUMNS]
        for row, (name, scenario, number, adapter, stop, error) in enumerate(zip(*columns, strict=True)):
            reward, success = scores.get(name, (None, None))
            one = Attempt(name, number, reward, success, turns[row], tokens[row], stop, error or "", adapter or "", row)
            attempts.setdefault(scenario, []).append(one)
        return tuple(
            Group(
                self.key,
                self.iteration,
                self.kind,
                scenario,
                questions.get(scenario, ""),
                tuple(sorted(found, key=lambda one: one.number)),
            )
            for scenario, found in attempts.items()
        )

    def said(self, text: str) -> set[int]:
        """Rows whose messages hold the text, whatever its case; the messages stay in memory once they were searched."""
        import pyarrow.compute as pc

        if self._said is None:
            turns = read_columns(self.trajectories, SAID)
            self._said = turns["turns"].combine_chunks() if "turns" in turns.column_names else []
        if not len(self._said):
            return set()
        found: set[int] = set()
        # What is searched is JSON: within its texts, a quotation mark has a backslash before it.
        patterns = {text, json.dumps(text, ensure_ascii=False)[1:-1]}
        parents = pc.list_parent_indices(self._said)
        inside = pc.list_flatten(self._said)
        for index in range(inside.type.num_fields):
            told = pc.struct_field(inside, [index])
            for pattern in patterns:
                hits = pc.match_substring(told, pattern, ignore_case=True)
                found |= set(parents.filter(pc.fill_null(hits, False)).to_pylist())
        return found


class Index:
    """Every batch of the run under a folder: none where there is no run yet. Safe to call from several threads."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.batches: dict[str, Batch] = {}
        self._questions: dict[str, str] = {}
        self._asked: object = None
        self._lock = threading.Lock()
        self.refresh()

    def refresh(self) -> None:
        """Look at what lies there now; costs a few microseconds a file where nothing has changed."""
        with self._lock:
            self._read_questions()
            known: dict[str, Batch] = {}
            for key, folder in sorted(self._folders().items(), key=lambda pair: place(pair[0])):
                known[key] = self.batches.get(key) or Batch(folder, *key.split("/"))
                known[key].refresh(self._questions, self._asked)
            self.batches = known

    def _folders(self) -> dict[str, Path]:
        """Folders that hold trajectories: run/NNN is a rollout's, run/NNN/evaluation an evaluation's, and so on."""
        found = {}
        with suppress(FileNotFoundError, NotADirectoryError):  # there is none yet, or it is just being removed
            for path in self.run.iterdir():
                if path.name.isdigit() and path.is_dir():
                    if (path / "trajectories.parquet").is_file():
                        found[f"{path.name}/rollout"] = path
                    for inside in path.glob("*/trajectories.parquet"):
                        found[f"{path.name}/{inside.parent.name}"] = inside.parent
        return found

    def _read_questions(self) -> None:
        files = sorted((self.run / "scenarios").glob("*.parquet"))
        asked = tuple(map(stamp, files))
        if asked == self._asked:
            return
        questions: dict[str, str] = {}
        for file in files:
            try:
                table = read_columns(file, ["id", "messages"]).to_pydict()
                questions |= {name: question(json.loads(text)) for name, text in zip(*table.values(), strict=True)}
            except (UserError, ValueError):  # being written, or none of ours: the lists show ids instead
                continue
        self._questions, self._asked = questions, asked

    @property
    def problems(self) -> list[str]:
        return [batch.problem for batch in self.batches.values() if batch.problem]

    def groups(self) -> list[Group]:
        return [group for batch in self.batches.values() for group in batch.groups]

    def find(self, batch: str, scenario: str) -> Group:
        """UserError where there is none."""
        if batch not in self.batches:
            raise UserError(f"there is no batch {batch[:80]} in {self.run}")
        for group in self.batches[batch].groups:
            if group.scenario == scenario:
                return group
        raise UserError(f"{batch} holds no attempt at a scenario {scenario[:80]}")

    def search(self, query: Query) -> list[Row]:
        """Lines with a trajectory that all filters keep, sorted. What has no value of the sort stands last."""
        words = query.text.split()
        said = {key: batch.said(query.said) for key, batch in self.batches.items()} if query.said else None
        rows: list[Row] = []
        for group in self.groups():
            if (query.iteration and group.iteration != query.iteration) or (query.kind and group.kind != query.kind):
                continue
            heard = None if said is None else said[group.batch]
            found = [one for one in group.attempts if keeps(query, one, words, group.question, heard)]
            if query.by == "attempt":
                rows += [line(group, (one,), [one]) for one in found]
            elif found:
                rows.append(line(group, group.attempts, found))
        return ordered(rows, query)


def line(group: Group, attempts: tuple[Attempt, ...], found: Iterable[Attempt]) -> Row:
    rewards = [one.reward for one in attempts if one.reward is not None]
    known = [one.success for one in attempts if one.success is not None]
    stops = [one.stop for one in attempts]
    return Row(
        group,
        attempts,
        frozenset(one.id for one in found),
        sum(rewards) / len(rewards) if rewards else None,
        max(rewards) - min(rewards) if len(rewards) > 1 else None,
        sum(known) / len(known) if known else None,
        sum(one.turns for one in attempts) / len(attempts),
        sum(one.tokens for one in attempts) / len(attempts),
        ", ".join(sorted(set(stops), key=lambda stop: (-stops.count(stop), stop))),
        sum(bool(one.error) for one in attempts),
    )


def ordered(rows: list[Row], query: Query) -> list[Row]:
    keys: dict[str, Callable[[Row], Any]] = {"question": lambda row: row.group.question.lower() or None}
    if query.sort == "iteration":  # as they lie on disk
        return rows[::-1] if query.down else rows
    key = keys.get(query.sort, lambda row: getattr(row, query.sort))
    known = [row for row in rows if key(row) is not None]
    known.sort(key=key, reverse=query.down)
    return known + [row for row in rows if key(row) is None]


def counts(table: Any) -> tuple[list[int], list[int]]:
    """Turns and sampled tokens of each row. A file whose trajectories all lack turns has no column of tokens."""
    import numpy as np
    import pyarrow.compute as pc

    if "turns" not in table.column_names:
        return [0] * len(table), [0] * len(table)
    turns = table["turns"].combine_chunks()
    lengths = pc.list_value_length(turns).to_numpy(zero_copy_only=False)
    sampled = pc.list_value_length(pc.struct_field(pc.list_flatten(turns), [0])).to_numpy(zero_copy_only=False)
    ends = np.cumsum(lengths)
    total = np.concatenate([[0], np.cumsum(sampled)])
    return lengths.tolist(), (total[ends] - total[ends - lengths]).astype(int).tolist()


def place(key: str) -> tuple[int, int, str]:
    """Where a batch stands among all: in the order in which a run makes them."""
    iteration, kind = key.split("/")
    return int(iteration), KINDS.index(kind) if kind in KINDS else len(KINDS), kind


def question(messages: Sequence[Mapping[str, Any]]) -> str:
    """The first line of what the user asked."""
    asked = [str(one.get("content") or "") for one in messages if one.get("role") == "user"] or [""]
    return next((text.strip()[:LONGEST] for text in asked[0].splitlines() if text.strip()), "")


def stamp(path: Path) -> tuple[str, int, int, int] | None:
    """What tells one version of a file from another; None where there is none."""
    try:
        known = path.stat()
    except OSError:
        return None
    return path.name, known.st_mtime_ns, known.st_size, known.st_ino
