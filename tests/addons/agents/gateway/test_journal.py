"""The journal gives back exactly what was recorded, to any process, whatever ended the one that wrote."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from addons.agents.gateway.journal import Answer, Entry, Journal

ANSWER = Answer(
    (5, 2**31 - 1, 2), (-0.1, -1e-300, -3.141592653589793), "stop", (((5, -0.1), (7, -2.5)), ((1, -1.0),), ())
)
ENTRY = Entry(
    *("001-a-0", 1, 0, "digest", "key 1", "messages", {"messages": [{"role": "user", "content": "né \ud800"[:3]}]}),
    *("abc", 1_700_000_000, "adapter", (ANSWER, Answer((3,), (), "length")), ((None, (1, 2)), (4, ()))),
)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path / "folder" / "journal.sqlite")


def test_a_call_comes_back_as_it_was_to_the_last_bit(journal: Journal) -> None:
    [number] = journal.record([ENTRY])
    assert journal.entries() == [(number, ENTRY)]
    assert journal.entries("another") == []
    journal.deliver([number])
    assert journal.entries("001-a-0") == [(number, ENTRY._replace(delivered=True))]


def test_entries_are_in_the_order_of_executions_and_of_asking(journal: Journal) -> None:
    places = [(2, 0), (1, 1), (1, 0)]
    journal.record([ENTRY._replace(lease=lease, asked=asked) for lease, asked in places])
    assert [(entry.lease, entry.asked) for _, entry in journal.entries()] == sorted(places)


def test_an_episode_ends_once(journal: Journal) -> None:
    journal.lease([("e", 1, "key", 0)])
    journal.refuse("e", "context_length_exceeded")
    assert journal.episodes()["e"] == (1, "key", 0, False, "context_length_exceeded", None, 0)
    journal.lease([("e", 2, "other", 1)])
    assert journal.episodes()["e"] == (2, "other", 1, False, None, None, 0)
    journal.end("e", {"id": "first", "error": "it broke"})
    journal.end("e", {"id": "second"})
    journal.end("never leased", {"id": "x"})
    states = journal.episodes()
    assert states["e"] == (2, "other", 1, True, None, "it broke", 0)
    assert dict(journal.trajectories())["never leased"] == {"id": "x"}
    assert dict(journal.trajectories())["e"]["id"] == "first"
    journal.reopen()
    assert not any(state.ended for state in journal.episodes().values())
    assert not list(journal.trajectories())


def test_a_journal_of_an_earlier_version_is_read(journal: Journal, tmp_path: Path) -> None:
    journal.lease([("e", 1, "key", 0)])
    journal.database.execute("ALTER TABLE episodes DROP COLUMN error")
    journal.database.execute("DROP INDEX calls_of_episodes")
    journal.close()
    again = Journal(tmp_path / "folder" / "journal.sqlite")
    again.end("e", {"error": "it broke"})
    assert again.episodes()["e"].error == "it broke"


def test_a_failed_transaction_leaves_nothing(journal: Journal) -> None:
    broken = ENTRY._replace(asked=1, prompts=((None, (2**40,)), (4, ())))
    with pytest.raises(OverflowError):
        journal.record([ENTRY, broken])
    assert journal.entries() == []
    journal.record([ENTRY])


def test_what_was_recorded_survives_a_kill(tmp_path: Path) -> None:
    """A process records entry after entry and says so; it is killed in between."""
    code = f"""
import sys
from pathlib import Path
from tests.addons.agents.gateway.test_journal import ENTRY, Journal
journal = Journal(Path({os.fspath(tmp_path / "journal.sqlite")!r}))
for asked in range(10_000):
    journal.record([ENTRY._replace(asked=asked)])
    print(asked, flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if int(line) == 20:
                process.send_signal(signal.SIGKILL)
        said = int(line)
    entries = [entry for _, entry in Journal(tmp_path / "journal.sqlite").entries()]
    assert [entry.asked for entry in entries[: said + 1]] == list(range(said + 1))
    assert len(entries) <= said + 2
    assert entries[0] == ENTRY


def test_only_the_user_can_read_it(journal: Journal, tmp_path: Path) -> None:
    assert (tmp_path / "folder" / "journal.sqlite").stat().st_mode & 0o077 == 0
