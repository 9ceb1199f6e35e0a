"""The store of captured conversations: what was acknowledged survives kill -9, its size and age are bounded, erasing
erases."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from addons.production.traces import store
from addons.production.traces.records import Unreadable, key_of
from addons.production.traces.store import Store, opened, read
from addons.production.traces.tombstones import Forgotten
from steps.core.errors import UserError

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
WRITER = """
import sys
from pathlib import Path
from addons.production.traces.store import Store
store, number = Store(Path(sys.argv[1])), 0
while True:
    store.append({"kind": "test", "number": number, "text": "x" * 500})
    print(number, flush=True)
    number += 1
"""


def test_every_acknowledged_record_survives_kill_9(tmp_path: Path) -> None:
    acknowledged = []
    for _ in range(2):  # the second writer goes on behind what the first left
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        acknowledged.append([int(next(writer.stdout)) for _ in range(30)])
        writer.send_signal(signal.SIGKILL)
        acknowledged[-1] += map(int, writer.stdout.read().split("\n")[:-1])
        writer.wait()
    numbers = [line.record["number"] for line in Store(tmp_path).lines() if line.record]
    assert numbers.count(0) == 2
    second = numbers.index(0, 1)
    for written, known in ((numbers[:second], acknowledged[0]), (numbers[second:], acknowledged[1])):
        assert written[: len(known)] == known
        assert len(written) <= len(known) + 1, "at most the record whose acknowledgement did not come"


def test_a_line_that_was_cut_off_spoils_no_other(tmp_path: Path) -> None:
    kept = Store(tmp_path)
    kept.append({"number": 1}, NOW)
    [path] = kept.segments()
    with path.open("ab") as file:
        file.write(b'{"number": 2, "te')
    assert [line.record for line in kept.lines()] == [{"number": 1}]
    kept.append({"number": 3}, NOW)
    assert [line.record for line in kept.lines()] == [{"number": 1}, None, {"number": 3}]
    parts, _ = read(kept, {})
    assert [part.reason for part in parts if isinstance(part, Unreadable)][1].startswith("a line that was cut off")


def test_offsets_go_on_where_they_ended(tmp_path: Path) -> None:
    kept = Store(tmp_path)
    kept.append({"number": 1}, NOW)
    first = {line.segment: line.end for line in kept.lines()}
    kept.append({"number": 2}, NOW)
    kept.append({"number": 3}, NOW + timedelta(days=1))
    assert [line.record for line in kept.lines(first)] == [{"number": 2}, {"number": 3}]


def test_the_size_is_bounded_and_retention_makes_room(tmp_path: Path) -> None:
    kept = Store(tmp_path, max_bytes=2000, days=3)
    for day in range(3):
        assert kept.append({"text": "x" * 100}, NOW + timedelta(days=day))
    written = sum(kept.append({"text": "x" * 100}, NOW + timedelta(days=3)) for _ in range(50))
    assert 0 < written < 50
    assert sum(path.stat().st_size for path in kept.segments()) <= 2000
    assert kept.append({"text": "x" * 100}, NOW + timedelta(days=4)), "the first day is over its retention"
    assert [path.name[:10] for path in kept.segments()] == [f"2026-11-{day}" for day in (24, 25, 26, 27)]


@pytest.mark.parametrize("jump", [timedelta(days=days) for days in (20, 40, 3650, -20000)], ids=str)
def test_a_jump_of_the_clock_removes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: timedelta) -> None:
    passed = 0.0
    monkeypatch.setattr(store.time, "monotonic", lambda: passed)
    kept = Store(tmp_path, days=30)
    for day in range(31):
        kept.append({"day": day}, NOW + timedelta(days=day))
    there = {path.name for path in kept.segments()}
    late = NOW + timedelta(days=30) + jump
    kept.append({"day": "late"}, late)
    assert there <= {path.name for path in kept.segments()}
    assert there <= {path.name for path in Store(tmp_path, days=30).segments()}
    said = Store(tmp_path, days=30).expire(late + timedelta(days=1))  # another process, of which it is the first look
    assert there <= {path.name for path in kept.segments()}
    if jump > timedelta(0):
        assert f"the clock says {late + timedelta(days=1):%Y-%m-%d}" in said
        assert "are kept until it has run evenly for a day" in said
        kept.expire(late)
        passed = store.WATCH + 60
        assert kept.expire(late + timedelta(seconds=passed)) == ""
        assert len(kept.segments()) < len(there), "a pause that was none of the clock's"
    else:
        assert [line.record for line in kept.lines()][-1] == {"day": "late"}, "it is not the first to be removed"
    kept.append({"day": 31}, NOW + timedelta(days=31))


def test_what_a_full_disk_cuts_off_is_taken_back(tmp_path: Path) -> None:
    kept = Store(tmp_path)
    kept.append({"number": 1}, NOW)
    size = kept.segments()[0].stat().st_size
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            kept.append({"number": 2, "text": "x" * 100}, NOW)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert kept.segments()[0].stat().st_size == size
    kept.append({"number": 3}, NOW)
    assert [line.record for line in kept.lines()] == [{"number": 1}, {"number": 3}]


def test_a_day_has_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SEGMENT", 100)
    kept = Store(tmp_path)
    for number in range(5):
        kept.append({"number": number, "text": "x" * 60}, NOW)
    assert len(kept.segments()) == 5
    assert [line.record["number"] for line in kept.lines() if line.record] == list(range(5))


def test_erasing_leaves_nothing_and_moves_nothing(tmp_path: Path) -> None:
    kept, keys = Store(tmp_path), [key_of("capture", name) for name in "abc"]
    for number in range(9):
        kept.append(
            {"kind": "call", "response": f"{number:016x}", "key": keys[number % 3], "text": f"word{number}"}, NOW
        )
    before = list(kept.lines())
    assert len(kept.keys()) == 9
    assert kept.erase({keys[1]}) == 3
    text = kept.segments()[0].read_text()
    assert [number for number in range(9) if f"word{number}" in text] == [0, 2, 3, 5, 6, 8]
    assert list(kept.lines()) == [line for line in before if line.record and line.record["key"] != keys[1]]
    assert set(kept.keys().values()) == {keys[0], keys[2]}
    assert kept.erase({keys[1]}) == 0


def test_several_writers_and_an_eraser_at_the_same_time(tmp_path: Path) -> None:
    def write(name: str) -> None:
        mine = Store(tmp_path)
        for number in range(20):
            with contextlib.suppress(Forgotten):  # from the first deletion on
                mine.append({"key": name, "number": number}, NOW)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for _ in range(10):
        Store(tmp_path).erase({"a"})
    for thread in threads:
        thread.join()
    Store(tmp_path).erase({"a"})
    records = [line.record for line in Store(tmp_path).lines()]
    assert all(record is not None for record in records)
    assert len(records) == 60


def test_only_its_owner_can_read_it(tmp_path: Path) -> None:
    kept = Store(tmp_path / "capture")
    kept.append({"a": 1})
    assert kept.folder.stat().st_mode & 0o777 == 0o700
    assert kept.segments()[0].stat().st_mode & 0o777 == 0o600
    kept.add({"x": 1})
    kept.add({"x": 1, "y": 2})
    assert kept.counts() == {"x": 2, "y": 2}
    with pytest.raises(UserError, match="make serve CAPTURE=1"):
        opened(tmp_path / "none")
    assert json.loads((tmp_path / "capture/counts.json").read_text()) == {"x": 2, "y": 2}
