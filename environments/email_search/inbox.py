"""Inboxes of email_search: the search index of each, and how its rows are shown."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

from environments.base import Message

Row = dict[str, Any]
ROWS_SHOWN = 5


class Mailbox(dict[str, sqlite3.Connection]):
    """The index of each inbox by its owner, and the questions by split. Both are made when they are first asked for: a stage
    needs few of them."""

    def __init__(
        self,
        mails: Iterable[Row],
        index: Callable[[Sequence[Row]], sqlite3.Connection],
        questions: Callable[[], dict[str, list[Row]]] = dict,
    ) -> None:
        super().__init__()
        self.mails: dict[str, list[Row]] = {}  # by owner
        for mail in mails:
            self.mails.setdefault(mail["owner"], []).append(mail)
        self._index, self._questions = index, questions

    def __missing__(self, owner: str) -> sqlite3.Connection:
        self[owner] = self._index(self.mails.get(owner, []))
        return self[owner]

    @cached_property
    def questions(self) -> dict[str, list[Row]]:
        return self._questions()


def build_index(mails: Sequence[Row]) -> sqlite3.Connection:
    """An FTS5 index of one inbox in memory, with a table of the mails by id: built in 2 ms."""
    index = sqlite3.connect(":memory:", check_same_thread=False)
    columns = "id unindexed, date unindexed, sender unindexed, recipient unindexed, subject, body"
    index.execute(f"create virtual table mail using fts5({columns}, tokenize='porter unicode61')")
    index.execute("create table mail_by_id (id primary key, date, sender, recipient, subject, body) without rowid")
    rows = [tuple(mail[key] for key in ("id", "date", "sender", "to", "subject", "body")) for mail in mails]
    for table in ("mail", "mail_by_id"):
        index.executemany(f"insert into {table} values (?, ?, ?, ?, ?, ?)", rows)
    return index


def shown(rows: Sequence[Sequence[Any]], count: int) -> str:
    """The first rows of a result under the number of all of them."""
    if not rows:
        return "0 emails."
    return "\n".join([f"{count} emails:", *(" | ".join(row[:4]) for row in rows[:ROWS_SHOWN])])


def seen_ids(messages: Sequence[Message]) -> list[str]:
    """Ids of all rows that were shown, in order, without repetition."""
    texts = [str(message["content"]) for message in messages if message["role"] == "tool"]
    return list(dict.fromkeys(id for text in texts for id in re.findall(r" \| (m\d+)$", text, re.MULTILINE)))
