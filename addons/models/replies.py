"""The answers of models in the ledger (steps/project/ledger.py): each is kept, and paid for, only once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from steps.project.ledger import Ledger

REPLIES = sa.Table(
    "replies",
    sa.MetaData(),
    sa.Column("key", sa.String(64), primary_key=True),  # a hash of the request's content
    sa.Column("model", sa.String, nullable=False),
    sa.Column("request", sa.JSON, nullable=False),  # the body as it was sent, without address, headers and keys
    sa.Column("reply", sa.JSON, nullable=False),
    sa.Column("input_tokens", sa.Integer, nullable=False),
    sa.Column("output_tokens", sa.Integer, nullable=False),
    sa.Column("cost", sa.Float, nullable=False),  # at the prices of that time
    sa.Column("latency_seconds", sa.Float, nullable=False),  # of the successful attempt
    sa.Column("retries", sa.Integer, nullable=False),
    sa.Column("created", sa.DateTime(timezone=True), nullable=False),
)


class Replies(Ledger):
    """An open ledger, and the answers in it."""

    def get(self, key: str) -> dict[str, Any] | None:
        """The stored answer to a request, as a row of `replies`; None where there is none."""

        def read() -> dict[str, Any] | None:
            with self.engine.connect() as connection:
                row = connection.execute(sa.select(REPLIES).where(REPLIES.c.key == key)).mappings().first()
            return dict(row) if row else None

        return self.patiently(read)

    def put(self, row: dict[str, Any]) -> dict[str, Any]:
        """Store an answer, and return the stored row: that of another process, where it stored one first."""

        def write() -> None:
            with contextlib.suppress(IntegrityError), self.engine.begin() as connection:
                connection.execute(REPLIES.insert().values(created=datetime.now(UTC), **row))

        self.patiently(write)
        stored = self.get(row["key"])
        assert stored is not None
        return stored

    def forget(self, keys: Iterable[str]) -> None:
        """Remove answers, so that they are asked for again."""
        chosen = list(keys)

        def remove(connection: sa.Connection) -> None:
            for key in chosen:
                connection.execute(REPLIES.delete().where(REPLIES.c.key == key))

        self.change(remove)

    def forget_texts(self, texts: Iterable[str]) -> int:
        """Remove the answers whose request or reply holds one of these texts; how many there were."""
        chosen = list(texts)

        def remove(connection: sa.Connection) -> int:
            columns = [sa.cast(column, sa.String) for column in (REPLIES.c.request, REPLIES.c.reply)]
            holding = [column.contains(text, autoescape=True) for text in chosen for column in columns]
            return sum(connection.execute(REPLIES.delete().where(each)).rowcount for each in holding)

        return self.change(remove) if chosen else 0
