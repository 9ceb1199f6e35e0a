"""The store of captured conversations: append-only files of JSON lines, one or more for each day.

Files and not a table, because the server only ever appends, ingestion reads from an offset on, retention removes whole
days, and any tool can read them. A record is written and synchronised to the disk before `append` or `together` returns.
A process that is killed leaves at most one line without its end, which the next append closes and readers skip; what a full
disk cut off is taken back. Records are erased by spaces written over them, so that offsets stay right and nothing is left on
the disk, and tombstones (addons/production/traces/tombstones.py) keep out what would bring them back. Several processes
may append and erase at the same time. A folder that is removed meanwhile is made again.

A clock can be wrong, so no day is removed because of one look at it: where the clock and the stored days are not next to
each other, as after a jump or a pause, the days before the gap are kept until one process has seen the clock run evenly for
a day (WATCH), which `expire` says in a sentence.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from addons.production.traces.records import FAULTS, Conversation, Feedback, Unreadable, content_hash, parsed
from addons.production.traces.tombstones import Forgotten, Tombstones
from environments.base import Message
from steps.core.errors import UserError
from steps.core.files import owners, private_folder, write_text
from steps.kit.lock import alone

PRODUCER = "capture"
FOLDER = Path(".flywheel/capture")
FULL = "the store is full"  # what is counted where a record finds no room
GAP = timedelta(days=2)  # between two stored days, or the last one and the clock's, that says nothing of the clock
WATCH = 24 * 3600.0  # seconds
SEGMENT = 64 * 2**20  # bytes of a file, from which on another is begun
NAME = re.compile(r"(\d{4}-\d{2}-\d{2})\.(\d{4})\.jsonl")
HEAD = re.compile(rb'\{"kind": "call", "response": "([0-9a-f]{16})", "key": "([a-z]+:[0-9a-f]{16})"')


class Line(NamedTuple):
    """A line of the store."""

    segment: str
    end: int  # offset of what follows it
    record: dict[str, Any] | None  # None: no record, as a line that was cut off


class Store:
    """The store in a folder, which is made with the first record; only its owner can read it. OSError where a disk fails."""

    def __init__(self, folder: Path, max_bytes: int = 2**30, days: float = 30) -> None:
        self.folder, self.max_bytes, self.days = folder, max_bytes, days
        self.tombstones = Tombstones(folder / "forgotten")
        self.later: set[Path] | None = None  # the files that `together` synchronises
        self.watched: tuple[datetime, float] | None = None  # a moment by the clock, and by time.monotonic

    def append(self, record: Mapping[str, Any], now: datetime | None = None) -> bool:
        """Write a record for good; False where the store is full. What is older than `days` is removed first. Forgotten
        (a ValueError) where it is of a conversation that was erased."""
        data = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
        now = now or datetime.now(UTC)
        with self._locked():
            if self._is_forgotten(record):
                raise Forgotten("it was forgotten")
            self._expire(now)
            sizes = {path: path.stat().st_size for path in self.segments()}
            if sum(sizes.values()) + len(data) > self.max_bytes:
                return False
            day = self._day(now)
            today = [path for path in sizes if path.name.startswith(f"{day}.")]
            has_room = today and sizes[today[-1]] + len(data) <= SEGMENT
            path = today[-1] if has_room else self.folder / f"{day}.{len(today):04d}.jsonl"
            with open(path, "ab", buffering=0, opener=owners) as file:
                start = file.tell()
                if start and not _ends_line(path):
                    data = b"\n" + data
                try:
                    while data:
                        data = data[file.write(data) :]
                    if self.later is None:
                        os.fdatasync(file.fileno())
                    else:
                        self.later.add(path)
                except OSError:
                    file.truncate(start)
                    raise
        return True

    def _day(self, now: datetime) -> date:
        """The day under which a record is stored: the clock's, unless that lies before all of what is stored."""
        stored = self._days()
        return stored[-1] if stored and now.date() < stored[0] else now.date()

    def _days(self) -> list[date]:
        return sorted({date.fromisoformat(path.name[:10]) for path in self.segments()})

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is appended meanwhile is synchronised to the disk at the end, at once."""
        self.later = set()
        try:
            yield
        finally:
            later, self.later = self.later, None
            for path in later:
                with path.open("rb") as file:
                    os.fdatasync(file.fileno())

    def expire(self, now: datetime | None = None) -> str:
        """Remove the files of days that are older than the retention allows; a sentence where the clock is in doubt."""
        with self._locked():
            return self._expire(now or datetime.now(UTC))

    def _expire(self, now: datetime) -> str:
        oldest, stored, near = (now - timedelta(days=self.days)).date(), self._days(), now.date()
        is_watched = self._is_watched(now)
        for day in (day for day in reversed(stored) if day < near):
            if near - day > GAP and not is_watched:
                break
            near = day
        for path in self.segments():
            if near <= date.fromisoformat(path.name[:10]) < oldest:
                path.unlink()
        if not (left := [day for day in stored if day < min(near, oldest)]):
            return ""
        return (
            f"the clock says {now:%Y-%m-%d}, and before {near} nothing was stored since {left[-1]}: {len(left)} days in "
            f"{self.folder} that are over {self.days:g} days old by that clock are kept until it has run evenly for a day; "
            "if it is wrong, set it before"
        )

    def _is_watched(self, now: datetime) -> bool:
        """Whether this process has seen the clock run evenly for a day."""
        began, at = self.watched or (now, time.monotonic())
        passed = time.monotonic() - at
        if self.watched is None or abs((now - began).total_seconds() - passed) > 3600:
            self.watched = now, time.monotonic()
            return False
        return passed >= WATCH

    def segments(self) -> list[Path]:
        """The files, oldest first."""
        try:
            return sorted(path for path in self.folder.iterdir() if NAME.fullmatch(path.name))
        except FileNotFoundError:
            return []

    def lines(self, offsets: Mapping[str, int] | None = None) -> Iterator[Line]:
        """The lines after these offsets, by file, which are whole; erased ones are left out."""
        for path in self.segments():
            start = (offsets or {}).get(path.name, 0)
            with path.open("rb") as file:
                end = start if start <= path.stat().st_size else 0
                file.seek(end)
                for line in file:
                    if not line.endswith(b"\n"):
                        break
                    end += len(line)
                    if line.strip():
                        yield Line(path.name, end, _record(line))

    def keys(self) -> dict[str, str]:
        """The key of the conversation of each answer, by the answer's hashed id."""
        made: dict[str, str] = {}
        for path in self.segments():
            with path.open("rb") as file:
                for match in filter(None, map(HEAD.match, file)):
                    made.setdefault(match[1].decode(), match[2].decode())  # an id is of the first answer that had it
        return made

    def erase(self, keys: set[str], conversations: Iterable[Sequence[Message]] = ()) -> int:
        """Erase all records of these conversations, and of those in which the same was said; how many there were. No record
        of them is taken any more. `conversations`: what was said in them elsewhere."""
        count, responses = 0, set[str]()  # of erased answers, feedback on which goes with them
        with self._locked():
            self.tombstones.add(keys, [*conversations, *self.messages_of(keys)])
            for path in self.segments():
                with path.open("r+b") as file:
                    end = 0
                    for line in file.read().splitlines(keepends=True):
                        record = _record(line)
                        if record and (self._is_forgotten(record) or record.get("response") in responses):
                            responses.add(str(record.get("response") or "-"))
                            file.seek(end)
                            file.write(b" " * (len(line) - 1) + b"\n")
                            count += 1
                        end += len(line)
                    file.flush()
                    os.fsync(file.fileno())
        return count

    def messages_of(self, keys: set[str]) -> list[list[Message]]:
        """What the records of these conversations hold of what was said."""
        records = (line.record for line in self.lines() if line.record and line.record.get("key") in keys)
        return [messages for record in records if (messages := _messages(record))]

    def _is_forgotten(self, record: Mapping[str, Any]) -> bool:
        return self.tombstones.holds(str(record.get("key") or ""), _messages(record))

    def add(self, counts: Mapping[str, int]) -> None:
        """Add to the counts in counts.json, such as of requests that were not stored."""
        with self._locked():
            before = self.counts()
            made = before | {what: before.get(what, 0) + count for what, count in counts.items()}
            write_text(self.folder / "counts.json", json.dumps(dict(sorted(made.items()))) + "\n", lasting=False)

    def counts(self) -> dict[str, int]:
        """What was counted so far: requests that were not stored, by their reason."""
        try:
            content = json.loads((self.folder / "counts.json").read_text(encoding="utf-8"))
            return {str(name): int(number) for name, number in content.items()}
        except (FileNotFoundError, ValueError, AttributeError, TypeError):
            return {}

    def _locked(self) -> AbstractContextManager[None]:
        return alone(private_folder(self.folder) / "lock")


def opened(folder: Path) -> Store:
    """A store that is there. UserError where there is none."""
    if not folder.is_dir():
        raise UserError(
            f"{folder} does not exist: `make serve CAPTURE=1` makes it with the first request that it stores"
        )
    return Store(folder)


def read(store: Store, offsets: Mapping[str, int]) -> tuple[list[Conversation | Unreadable], dict[str, int]]:
    """(the parts of conversations that were added after these offsets, the offsets now). A file's name and offset stand for
    a line that is no record."""
    ends = {path.name: min(offsets.get(path.name, 0), path.stat().st_size) for path in store.segments()}
    parts: list[Conversation | Unreadable] = []
    for line in store.lines(ends):
        ends[line.segment] = line.end
        place = f"capture {line.segment}:{line.end}"
        if line.record is None:
            parts.append(Unreadable(place, "a line that was cut off when the server was stopped"))
            continue
        parts += [_part(line.record, place)]
    return parts, dict(sorted(ends.items()))


def _part(record: dict[str, Any], place: str) -> Conversation | Unreadable:
    try:
        if record["kind"] == "feedback":
            fields = {name: record[name] for name in Feedback.model_fields if name in record}
            return Conversation(key=record["key"], feedback=(Feedback.model_validate(fields),))
        messages = (*record["messages"], record["answer"])
        content_hash(messages)  # which a message of another form fails
        return Conversation(
            key=record["key"],
            started=record["time"],
            ended=record["time"],
            consent=record["consent"],
            messages=messages,
            tools=tuple(record["tools"]),
            responses={record["response"]: len(messages) - 1},
            metadata=record["metadata"],
        )
    except FAULTS:  # pydantic's is a ValueError
        return Unreadable(place, "no record of this store's form")


def _messages(record: Mapping[str, Any]) -> list[Message]:
    """The messages of a record; none of feedback, and of a record of another form."""
    messages: list[Any] = [*(record.get("messages") or ()), record.get("answer")]
    return messages if all(isinstance(each, Mapping) and "role" in each for each in messages) else []


def _ends_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _record(line: bytes) -> dict[str, Any] | None:
    record = parsed(line)
    return record if isinstance(record, dict) else None
