"""Looks: how often a test split has been used to judge challengers, and what each further look costs.

Whoever tries enough challengers on one split finds one that is better there by chance alone. So the ledger has a row for
each look: a challenger and the policy that it had to beat, both by adapter, at test scenarios. The name of the registered
model is noted beside it and counts for nothing, because another name makes no split new. A dry run and flows/evaluate.py
count as well, because people choose by what they show. The same two adapters at the same scenarios are one look, however
often they are compared, and keep its number.

A run that ends has tested its best adapter, and its result decides what is registered and judged. So that is a look, too,
of a challenger that has nothing to beat yet, also where the stage register turns it away; the first judgement of the same
adapter at the same scenarios is that look, and no second one. Were only registered challengers counted, which are those
above the base policy by chance, false promotions would be up to twice as frequent as they may be (`python -m
benchmarks.gate`).

The k-th look at a split may be wrong with the one-sided probability total / (k (k + 1)), where `total` is
`promote.false_promotions`, 0.05: the first look with a half of it, which is the lower end of a 95 % interval, the second
with a sixth, the third with a twelfth. These add up to `total` over however many looks there will be, so a false
promotion on a split is never more probable than that. A look at another split counts if more than a tenth of this split's
scenarios were in that one: exchanging a few scenarios does not make a split new. A scenario's id is a hash of its task,
split and content, so a copy of the same questions under another task's name is new here; the contamination check compares
contents.

Recorded decisions (steps/registry/decisions.py) without a look are looks as well: they are from before looks were
counted, or a run's own older code has made them. Left out: runs that ended before they were counted or while the ledger
was away, and what people learn from the scenarios won and lost and then train on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import sqlalchemy as sa

from steps.project.ledger import Ledger

TESTED = ""

LOOKS = sa.Table(
    "looks",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),  # counts up, in the order of the looks
    sa.Column("model", sa.String, nullable=False),  # its name then, for people
    sa.Column("scenarios", sa.String, nullable=False),  # hash of their ids, as in a verdict
    sa.Column("ids", sa.JSON(none_as_null=True)),  # None in rows made from older decisions
    sa.Column("challenger", sa.String, nullable=False),  # hash of its adapter
    sa.Column("against", sa.String, nullable=False),  # hash of the adapter that it had to beat; TESTED by a run alone
    sa.Column("created", sa.DateTime(timezone=True), nullable=False),
    sa.UniqueConstraint("model", "scenarios", "challenger", "against"),
)


class Look(NamedTuple):
    """A challenger, and the policy that it has to beat, at test scenarios."""

    scenarios: str
    challenger: str
    against: str


def tail(look: int, total: float) -> float:
    """The one-sided probability of error of the k-th look; the sum over all looks is `total`."""
    return total / (look * (look + 1))


def split_hash(ids: Sequence[str]) -> str:
    """What identifies a split: a hash of its scenarios' ids, in order."""
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16]


def tested(ledger: Ledger, model: str, ids: Sequence[str], challenger: str) -> None:
    """Record that a run has tested this adapter, unless it has been looked at at these scenarios."""
    add(ledger, model, Look(split_hash(ids), challenger, TESTED), list(ids))


def rows_of(link: sa.Connection) -> Sequence[Any]:
    """All rows, oldest first."""
    return link.execute(sa.select(LOOKS).order_by(LOOKS.c.id)).mappings().all()


def look_of(row: Any) -> Look:
    return Look(*(row[name] for name in Look._fields))


def add(ledger: Ledger, model: str, look: Look, ids: list[str] | None) -> None:
    """Add a look, unless it is there. The first one after a run's own test takes that one's place, and its number."""
    row = look._asdict() | {"model": model, "ids": ids, "created": datetime.now(UTC)}

    def insert(link: sa.Connection) -> None:
        if link.dialect.name == "postgresql":  # otherwise a lower id could appear after a higher one was counted
            link.exec_driver_sql(f"LOCK TABLE {LOOKS.name} IN EXCLUSIVE MODE")
        same = {place.against: place for place in map(look_of, rows_of(link)) if place[:2] == look[:2]}
        if look.against in same or (look.against == TESTED and same):
            return
        if TESTED in same:
            chosen = (LOOKS.c[name] == value for name, value in same[TESTED]._asdict().items())
            link.execute(LOOKS.update().where(*chosen).values(against=look.against))
        else:
            link.execute(LOOKS.insert().values(**row))

    ledger.change(insert)
