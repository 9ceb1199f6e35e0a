"""Decisions: which version became champion, was refused, or was taken back, when and why. A table of the ledger.

A row is an original: of a rollback there is no file, MLflow keeps the last tag of each kind alone, and run/promote, where a
verdict lies, is neither in git nor in DVC. So `python -m steps.lineage rebuild` leaves this table alone, and makes the nodes
of verdicts from it as well: a row holds its verdict whole, with each scenario won and lost. flows/promote.py and
flows/rollback.py write it.

Left out: who typed the command; registrations (MLflow has them).
"""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from steps.project.ledger import Ledger, create

DECISIONS = sa.Table(
    "decisions",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),  # in the order in which they were made
    sa.Column("event", sa.String, nullable=False),  # promotion, refusal, rollback
    sa.Column("model", sa.String, nullable=False),
    sa.Column("version", sa.String, nullable=False),  # promoted, refused, or gone back to
    sa.Column("adapter", sa.String),  # its hash
    sa.Column("champion", sa.String),  # the champion before; None where there was none
    sa.Column("champion_adapter", sa.String),
    sa.Column("why", sa.String, nullable=False),
    sa.Column("verdict", sa.String),  # its hash; None for a rollback
    sa.Column("evidence", sa.JSON(none_as_null=True)),  # as lineage_index.evidence() has it
    sa.Column("created", sa.DateTime(timezone=True), nullable=False),
)


@dataclasses.dataclass(frozen=True)
class Decision:
    """A row, but for its evidence."""

    event: str
    model: str
    version: str
    adapter: str | None
    champion: str | None
    champion_adapter: str | None
    why: str
    verdict: str | None
    created: str = ""  # ISO 8601, UTC; the ledger's


def record(ledger: Ledger, decision: Decision, evidence: dict[str, Any] | None = None) -> bool:
    """Add a decision; False where it repeats the model's last one, as an interrupted command does that is run again."""
    row = dataclasses.asdict(decision)
    del row["created"]
    with ledger.engine.begin() as link:
        create(link, DECISIONS)
        of_model = sa.select(DECISIONS).where(DECISIONS.c.model == decision.model)
        last = link.execute(of_model.order_by(DECISIONS.c.id.desc()).limit(1)).mappings().first()
        if last is not None and {name: last[name] for name in row} == row:
            return False
        link.execute(DECISIONS.insert().values(**row, evidence=evidence, created=datetime.now(UTC)))
        return True


def listed(link: sa.Connection) -> list[Decision]:
    """All, in the order in which they were made."""
    if not sa.inspect(link).has_table(DECISIONS.name):
        return []
    names = [field.name for field in dataclasses.fields(Decision)]
    rows = link.execute(sa.select(*(DECISIONS.c[name] for name in names)).order_by(DECISIONS.c.id)).mappings()
    return [Decision(**dict(row) | {"created": _iso(row["created"])}) for row in rows]


def evidence(link: sa.Connection) -> list[dict[str, Any]]:
    """What the verdicts rest on, oldest first."""
    if not sa.inspect(link).has_table(DECISIONS.name):
        return []
    found = link.scalars(sa.select(DECISIONS.c.evidence).order_by(DECISIONS.c.id))
    return [one for one in found if one is not None]


def _iso(moment: datetime) -> str:
    """SQLite forgets the time zone, which is UTC."""
    return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC).isoformat(timespec="seconds")
