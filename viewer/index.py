"""The index of a run: a summary of each trajectory, read once from a few parquet columns, and the queries to it.

A file that changes on disk (modification time or size) is read again. Tokens and messages stay on disk: viewer/group.py
reads those of a group when a person opens it. Nothing is written.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from steps.core.errors import UserError
from steps.core.parquet import read_columns
from steps.project import chain
from viewer.query import Query

KINDS = ("rollout", "evaluation", "test")  # in the order in which an iteration makes them; other kinds may exist
WORDS = {"rollout": "training", "evaluation": "validation", "test": "test"}  # what a person reads of them
LONGEST = 300  # characters of a question that a list shows and a search reads
COLUMNS = ("id", "scenario_id", "attempt", "adapter_hash", "stop_reason", "error")
SAMPLED = "turns.list.element.completion_ids"
SAID = ("turns.list.element.message", "turns.list.element.observations")
PART = 6  # a search matches ids from this many characters on: a single 3 is in nearly every hash


class AttemptSummary(NamedTuple):
    """A trajectory without its messages and tokens."""

    id: str
    number: int
    reward: float | None  # None if it is not scored
    success: bool | None
    turns: int
    tokens: int  # sampled
    stop: str
    error: str
    adapter: str
    row: int  # in the parquet file


class AttemptGroup(NamedTuple):
    """The attempts at one scenario in one batch."""

    batch: str  # "001/rollout"
    iteration: str
    kind: str  # rollout, evaluation, test
    scenario: str
    question: str  # its first line
    attempts: tuple[AttemptSummary, ...]


class ListRow(NamedTuple):
    """A line of the list: a group (by=group) or an attempt (by=attempt)."""

    group: AttemptGroup
    attempts: tuple[AttemptSummary, ...]  # the attempts that the line summarises
    kept: frozenset[str]  # ids of the attempts that pass the filters
    reward: float | None  # means
    spread: float | None  # largest minus smallest reward: 0 for a group without signal, None for a single reward
    success: float | None  # share of the scored attempts
    turns: float
    tokens: float
    stop: str  # the stop reasons, the most frequent first
    errors: int


class TrajectoryFile:
    """A batch: a file of trajectories and the file of rewards beside it."""

    def __init__(self, folder: Path, iteration: str, kind: str) -> None:
        self.folder, self.iteration, self.kind, self.key = folder, iteration, kind, f"{iteration}/{kind}"
        self.trajectories, self.rewards = folder / "trajectories.parquet", folder / "rewards.parquet"
        self.version: object = None
        self.groups: tuple[AttemptGroup, ...] = ()
        self.problem = ""
        self._messages: Any = None

    def refresh(self, questions: Mapping[str, str], asked: object) -> None:
        """Read the file again if it, its rewards or the questions have changed."""
        version = (stamp(self.trajectories), stamp(self.rewards), asked)
        if version == self.version:
            return
        self.version, self._messages, self.problem = version, None, ""
        scores: dict[str, list[Any]] = {}  # score and success by trajectory id
        self.groups = ()
        path = self.rewards
        try:
            if path.is_file():
                columns = read_columns(path, ["trajectory_id", "score", "success"]).to_pydict()
                scores = {name: outcome for name, *outcome in zip(*columns.values(), strict=True)}
            path = self.trajectories
            self.groups = self._read(questions, scores)
        except FileNotFoundError:  # it is being rewritten
            return
        except UserError as problem:
            self.problem = str(problem)
        except Exception as problem:  # whatever it holds, the other files can still be read
            self.problem = f"{path} cannot be read ({str(problem).splitlines()[0][:200]})"

    def _read(self, questions: Mapping[str, str], scores: Mapping[str, Sequence[Any]]) -> tuple[AttemptGroup, ...]:
        table = read_columns(self.trajectories, [*COLUMNS, SAMPLED])
        turns, tokens = counts(table)
        attempts: dict[str, list[AttemptSummary]] = {}
        columns = [table[name].to_pylist() for name in COLUMNS]
        for row, (name, scenario, number, adapter, stop, error) in enumerate(zip(*columns, strict=True)):
            reward, success = scores.get(name, (None, None))
            sizes = turns[row], tokens[row]
            attempt = AttemptSummary(name, number, reward, success, *sizes, stop, error or "", adapter or "", row)
            attempts.setdefault(scenario, []).append(attempt)
        groups = []
        for scenario, members in attempts.items():
            inside = tuple(sorted(members, key=lambda attempt: attempt.number))
            asked = questions.get(scenario, "")
            groups.append(AttemptGroup(self.key, self.iteration, self.kind, scenario, asked, inside))
        return tuple(groups)

    def rows_with(self, text: str) -> set[int]:
        """The rows whose messages contain the text in any case. Messages stay in memory after the first search."""
        import pyarrow.compute as pc

        if self._messages is None:
            turns = read_columns(self.trajectories, SAID)
            self._messages = turns["turns"].combine_chunks() if "turns" in turns.column_names else []
        if not len(self._messages):
            return set()
        rows: set[int] = set()
        # Messages are stored as JSON, in which quotation marks are escaped.
        patterns = {text, json.dumps(text, ensure_ascii=False)[1:-1]}
        parents = pc.list_parent_indices(self._messages)
        inside = pc.list_flatten(self._messages)
        for index in range(inside.type.num_fields):
            texts = pc.struct_field(inside, [index])
            for pattern in patterns:
                hits = pc.match_substring(texts, pattern, ignore_case=True)
                rows |= set(parents.filter(pc.fill_null(hits, False)).to_pylist())
        return rows


class Index:
    """All batches of the run in a folder, which may not exist yet. Safe to call from several threads."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.batches: dict[str, TrajectoryFile] = {}
        self._questions: dict[str, str] = {}
        self._asked: object = None
        self._lock = threading.Lock()
        self.refresh()

    def refresh(self) -> None:
        """Read what has changed on disk; a few microseconds per file if nothing has."""
        with self._lock:
            self._read_questions()
            batches: dict[str, TrajectoryFile] = {}
            for key, folder in sorted(self._folders().items(), key=lambda pair: place(pair[0])):
                batches[key] = self.batches.get(key) or TrajectoryFile(folder, *key.split("/"))
                batches[key].refresh(self._questions, self._asked)
            self.batches = batches

    def _folders(self) -> dict[str, Path]:
        """The folders with trajectories by batch: run/NNN of a rollout, run/NNN/evaluation of an evaluation, and so on.

        Of the iterations that the chain.yaml beside the folder lists, where there is one.
        """
        folders = {}
        listed = chain.listed(self.run)
        with suppress(FileNotFoundError, NotADirectoryError):  # the run does not exist yet or is being removed
            for path in self.run.iterdir():
                if chain.NAME.fullmatch(path.name):
                    if listed is not None and path.name not in listed:
                        continue
                    if (path / "trajectories.parquet").is_file():
                        folders[f"{path.name}/rollout"] = path
                    for inside in path.glob("*/trajectories.parquet"):
                        folders[f"{path.name}/{inside.parent.name}"] = inside.parent
        return folders

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
            except (OSError, ValueError):  # being written, or a foreign file: the lists show ids instead
                continue
        self._questions, self._asked = questions, asked

    @property
    def problems(self) -> list[str]:
        return [batch.problem for batch in self.batches.values() if batch.problem]

    def groups(self) -> list[AttemptGroup]:
        return [group for batch in self.batches.values() for group in batch.groups]

    def find(self, batch: str, scenario: str) -> AttemptGroup:
        """The group of a scenario in a batch. UserError if there is none."""
        if batch not in self.batches:
            raise UserError(f"there is no batch {batch[:80]} in {self.run}")
        for group in self.batches[batch].groups:
            if group.scenario == scenario:
                return group
        raise UserError(f"{batch} holds no attempt at a scenario {scenario[:80]}")

    def search(self, query: Query) -> list[ListRow]:
        """The lines with an attempt that passes all filters, sorted. Lines without a value to sort by come last."""
        words = query.text.split()
        text = query.messages
        searched = {key: batch.rows_with(text) for key, batch in self.batches.items()} if text else None
        rows: list[ListRow] = []
        for group in self.groups():
            if (query.iteration and group.iteration != query.iteration) or (query.kind and group.kind != query.kind):
                continue
            matching = None if searched is None else searched[group.batch]
            kept = [attempt for attempt in group.attempts if keeps(query, attempt, words, group.question, matching)]
            if query.by == "attempt":
                rows += [line(group, (attempt,), [attempt]) for attempt in kept]
            elif kept:
                rows.append(line(group, group.attempts, kept))
        return ordered(rows, query)


def keeps(query: Query, attempt: AttemptSummary, words: Sequence[str], about: str, rows: set[int] | None) -> bool:
    """Whether a trajectory passes the filters, apart from those for iteration and kind. `rows`: those with the text."""
    outcome = "unscored" if attempt.reward is None else "success" if attempt.success else "failure"
    if attempt.reward is not None and attempt.success is None:
        outcome = "scored by a judge alone"  # neither a success nor a failure
    if query.outcome not in ("", outcome):
        return False
    if query.low is not None and (attempt.reward is None or attempt.reward < query.low):
        return False
    if query.high is not None and (attempt.reward is None or attempt.reward > query.high):
        return False
    if (query.stop and attempt.stop != query.stop) or (query.error and not attempt.error):
        return False
    if rows is not None and attempt.row not in rows:
        return False
    return not words or holds(words, f"{about} {attempt.error}", attempt.id)


def holds(words: Sequence[str], text: str, name: str) -> bool:
    """Whether each word (in lower case) is in the text, or in the id if the word is long enough."""
    text, name = text.lower(), name.lower()
    return all(word in text or (len(word) >= PART and word in name) for word in words)


def line(group: AttemptGroup, attempts: tuple[AttemptSummary, ...], kept: Iterable[AttemptSummary]) -> ListRow:
    rewards = [attempt.reward for attempt in attempts if attempt.reward is not None]
    outcomes = [attempt.success for attempt in attempts if attempt.success is not None]
    stops = [attempt.stop for attempt in attempts]
    return ListRow(
        group,
        attempts,
        frozenset(attempt.id for attempt in kept),
        sum(rewards) / len(rewards) if rewards else None,
        max(rewards) - min(rewards) if len(rewards) > 1 else None,
        sum(outcomes) / len(outcomes) if outcomes else None,
        sum(attempt.turns for attempt in attempts) / len(attempts),
        sum(attempt.tokens for attempt in attempts) / len(attempts),
        ", ".join(sorted(set(stops), key=lambda stop: (-stops.count(stop), stop))),
        sum(bool(attempt.error) for attempt in attempts),
    )


def ordered(rows: list[ListRow], query: Query) -> list[ListRow]:
    if query.sort == "iteration":  # the order on disk
        return rows[::-1] if query.down else rows

    def key(row: ListRow) -> Any:
        return (row.group.question.lower() or None) if query.sort == "question" else getattr(row, query.sort)

    with_value = sorted((row for row in rows if key(row) is not None), key=key, reverse=query.down)
    return with_value + [row for row in rows if key(row) is None]


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


def place(key: str) -> tuple[float, int, str]:
    """The sort key of a batch: batches stand in the order in which a run makes them."""
    iteration, kind = key.split("/")
    return chain.place(iteration), KINDS.index(kind) if kind in KINDS else len(KINDS), kind


def question(messages: Sequence[Mapping[str, Any]]) -> str:
    """The first line of the first user message."""
    asked = [str(message.get("content") or "") for message in messages if message.get("role") == "user"] or [""]
    return next((text.strip()[:LONGEST] for text in asked[0].splitlines() if text.strip()), "")


def stamp(path: Path) -> tuple[str, int, int, int] | None:
    """Identifies a version of a file; None if the file does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return path.name, status.st_mtime_ns, status.st_size, status.st_ino
