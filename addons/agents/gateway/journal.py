"""The journal: every answer of the gateway, in SQLite, before the client sees it.

A call that was answered is in the file and on the disk. One process writes; the file can be read at any time. It holds what
another process needs to go on: the requests as they came, the tokens exactly, who has which lease, and how each episode
ended. `finished` calls of an earlier execution of an episode are answers for the next one (addons/agents/gateway/calls.py).
"""

from __future__ import annotations

import json
import sqlite3
import zlib
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

TABLES = """
CREATE TABLE IF NOT EXISTS calls (
    id INTEGER PRIMARY KEY,     -- in the order in which they were answered
    episode TEXT NOT NULL, lease INTEGER NOT NULL,
    asked INTEGER NOT NULL,     -- number of the call in its execution, by the order of asking
    digest TEXT NOT NULL,       -- of the dialect and the body
    idempotency TEXT,
    dialect TEXT NOT NULL, body BLOB NOT NULL,
    reply TEXT NOT NULL, created INTEGER NOT NULL,
    adapter TEXT NOT NULL,      -- content hash of the adapter that sampled
    delivered INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS answers (
    call INTEGER NOT NULL REFERENCES calls, place INTEGER NOT NULL,  -- of the answer in its reply
    parent INTEGER,             -- node of the token graph that it continues
    prompt BLOB NOT NULL,       -- token ids behind those of the parent
    completion BLOB NOT NULL, logprobs BLOB NOT NULL, top TEXT,
    finish_reason TEXT NOT NULL,
    PRIMARY KEY (call, place));
CREATE TABLE IF NOT EXISTS episodes (
    episode TEXT PRIMARY KEY, lease INTEGER NOT NULL, key TEXT NOT NULL, lost INTEGER NOT NULL DEFAULT 0,
    refused TEXT, ended INTEGER NOT NULL DEFAULT 0, trajectory BLOB, error TEXT);
CREATE INDEX IF NOT EXISTS calls_of_episodes ON calls (episode);
"""


class Answer(NamedTuple):
    """One sampled answer."""

    completion_ids: tuple[int, ...]  # [C]
    logprobs: tuple[float, ...]  # [C] nats; empty when greedy
    finish_reason: str  # stop or length
    top: tuple[tuple[tuple[int, float], ...], ...] = ()  # [C] most probable tokens


class Entry(NamedTuple):
    """A call that was answered."""

    episode: str
    lease: int
    asked: int
    digest: str
    idempotency: str | None
    dialect: str
    body: dict[str, Any]
    reply: str  # its id
    created: int  # Unix seconds
    adapter: str
    answers: tuple[Answer, ...]
    prompts: tuple[tuple[int | None, tuple[int, ...]], ...]  # of each answer: (parent, token ids behind the parent's)
    delivered: bool = False


class EpisodeState(NamedTuple):
    """How far an episode is."""

    lease: int  # number of its latest execution, from 1
    key: str  # of that execution
    lost: int  # executions whose client was lost
    ended: bool
    refused: str | None  # why its latest request was refused, such as context_length_exceeded
    error: str | None  # with which it has ended
    calls: int  # that were answered in its latest execution


class Journal:
    """The file of one batch of episodes."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.database = sqlite3.connect(path, isolation_level="IMMEDIATE")
        path.chmod(0o600)
        for setting in ("journal_mode = WAL", "synchronous = FULL", "busy_timeout = 10000"):
            self.database.execute(f"PRAGMA {setting}")
        self.database.executescript(TABLES)
        if "error" not in {column[1] for column in self.database.execute("PRAGMA table_info (episodes)")}:
            self.database.execute("ALTER TABLE episodes ADD COLUMN error TEXT")  # a journal of an earlier version

    def close(self) -> None:
        self.database.close()

    def record(self, entries: Iterable[Entry]) -> list[int]:
        """Write calls, all in one transaction, which is on the disk when this returns. Their ids."""
        numbers = []
        with self.database:
            for entry in entries:
                values = (*entry[:6], _packed(entry.body), entry.reply, entry.created, entry.adapter)
                marks = ", ".join("?" * len(values))
                columns = "episode, lease, asked, digest, idempotency, dialect, body, reply, created, adapter"
                number = self.database.execute(f"INSERT INTO calls ({columns}) VALUES ({marks})", values).lastrowid
                assert number is not None
                numbers.append(number)
                for place, (answer, (parent, prompt)) in enumerate(zip(entry.answers, entry.prompts, strict=True)):
                    row = (
                        *(number, place, parent, _ids(prompt), _ids(answer.completion_ids)),
                        array("d", answer.logprobs).tobytes(),
                        json.dumps(answer.top) if answer.top else None,
                        answer.finish_reason,
                    )
                    self.database.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
        return numbers

    def deliver(self, numbers: Iterable[int]) -> None:
        """Note that clients have these answers. Where the note is lost, a client that asks again gets the same answer."""
        with self.database:
            self.database.executemany("UPDATE calls SET delivered = 1 WHERE id = ?", [(number,) for number in numbers])

    def lease(self, executions: Iterable[tuple[str, int, str, int]]) -> None:
        """Note new executions of episodes: (episode, lease, key, how many were lost before)."""
        with self.database:
            self.database.executemany(
                "INSERT INTO episodes (episode, lease, key, lost) VALUES (?, ?, ?, ?) "
                "ON CONFLICT (episode) DO UPDATE SET lease = ?2, key = ?3, lost = ?4, refused = NULL",
                executions,
            )

    def refuse(self, episode: str, reason: str) -> None:
        """Note why the latest request of an episode was refused."""
        with self.database:
            self.database.execute("UPDATE episodes SET refused = ? WHERE episode = ?", (reason, episode))

    def end(self, episode: str, trajectory: dict[str, Any]) -> None:
        """Note what an episode came to, once and for all."""
        with self.database:
            self.database.execute(
                "INSERT INTO episodes (episode, lease, key, ended, trajectory, error) VALUES (?1, 0, '', 1, ?2, ?3) "
                "ON CONFLICT (episode) DO UPDATE SET ended = 1, trajectory = ?2, error = ?3 WHERE ended = 0",
                (episode, _packed(trajectory), trajectory.get("error")),
            )

    def reopen(self) -> None:
        """Have all episodes played again, with the answers that are here."""
        with self.database:
            self.database.execute(
                "UPDATE episodes SET ended = 0, lost = 0, refused = NULL, trajectory = NULL, error = NULL"
            )

    def episodes(self) -> dict[str, EpisodeState]:
        counted = "SELECT count(*) FROM calls WHERE calls.episode = episodes.episode AND calls.lease = episodes.lease"
        rows = self.database.execute(
            f"SELECT episode, lease, key, lost, ended, refused, error, CASE ended WHEN 0 THEN ({counted}) ELSE 0 END "
            "FROM episodes"
        )
        return {
            name: EpisodeState(lease, key, lost, bool(ended), refused, error, calls)
            for name, lease, key, lost, ended, refused, error, calls in rows
        }

    def trajectories(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The record of each episode that has ended, with its name."""
        rows = self.database.execute("SELECT episode, trajectory FROM episodes WHERE trajectory IS NOT NULL")
        yield from ((name, _unpacked(packed)) for name, packed in rows)

    def entries(self, episode: str | None = None) -> list[tuple[int, Entry]]:
        """The calls of an episode, or of all, with their ids, in the order of their executions and of asking."""
        where, values = ("WHERE episode = ?", (episode,)) if episode else ("", ())
        rows = self.database.execute(f"SELECT * FROM calls {where} ORDER BY episode, lease, asked", values).fetchall()
        result = []
        for number, name, lease, asked, digest, key, dialect, body, reply, created, adapter, delivered in rows:
            parts = self.database.execute("SELECT * FROM answers WHERE call = ? ORDER BY place", (number,)).fetchall()
            answers = tuple(
                Answer(_read("i", completion), _read("d", logprobs), reason, alternatives(json.loads(top or "[]")))
                for _, _, _, _, completion, logprobs, top, reason in parts
            )
            prompts = tuple((parent, _read("i", prompt)) for _, _, parent, prompt, *_ in parts)
            request = (name, lease, asked, digest, key, dialect, _unpacked(body))
            entry = Entry(*request, reply, created, adapter, answers, prompts, bool(delivered))
            result.append((number, entry))
        return result


def _packed(body: dict[str, Any]) -> bytes:
    return zlib.compress(json.dumps(body, ensure_ascii=False).encode(), level=1)


def _unpacked(body: bytes) -> dict[str, Any]:
    return dict(json.loads(zlib.decompress(body)))


def _ids(ids: Iterable[int]) -> bytes:
    return array("i", ids).tobytes()


def _read(kind: Literal["i", "d"], data: bytes) -> tuple[Any, ...]:
    """The numbers of an array of a kind, as the module array names it."""
    return tuple(memoryview(data).cast(kind))


def alternatives(lists: list[Any]) -> tuple[tuple[tuple[int, float], ...], ...]:
    """The most probable tokens of an answer, of their JSON."""
    return tuple(tuple((token, nats) for token, nats in place) for place in lists)
