"""The ledger's table of decisions: which version became champion, was refused or was taken back, when and why.

A row cannot be made again from anything else: a rollback leaves no file, MLflow keeps only the last tag of each kind, and
run/promote, which holds the verdict, is neither in git nor in DVC. So `python -m addons.lineage rebuild` keeps this
table and makes the nodes of verdicts from it: a row holds its whole verdict, with each scenario won and lost. Who made
a decision is the role in PostgreSQL, which nobody can choose, and in SQLite the user of the machine. A decision is
first a row `intent`, which flows/promotion/change.py writes and carries out; it is open while it is the last row of its
model. Left out: registrations, which MLflow has.
"""

from __future__ import annotations

import dataclasses
import getpass
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa

from steps.core.errors import UserError
from steps.project.ledger import Ledger

DECISIONS = sa.Table(
    "decisions",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True),  # counts up, in the order of the decisions
    sa.Column("event", sa.String, nullable=False),  # promotion, canary, refusal, withdrawal, rollback; or one of NOTES
    sa.Column("model", sa.String, nullable=False),
    sa.Column("version", sa.String, nullable=False),  # that was promoted, refused or gone back to
    sa.Column("adapter", sa.String),  # hash of that version's adapter
    sa.Column("champion", sa.String),  # version that was champion before; None where there was none
    sa.Column("champion_adapter", sa.String),
    sa.Column("why", sa.String, nullable=False),
    sa.Column("verdict", sa.String),  # hash of the verdict; None for a rollback
    sa.Column("evidence", sa.JSON(none_as_null=True)),  # what addons/lineage says the verdict rests on
    sa.Column("created", sa.DateTime(timezone=True), nullable=False),
    sa.Column("decided_by", sa.String),  # None in rows from before there was this column
)
INTENT, CANCELLED = NOTES = ("intent", "cancelled")  # events of rows that are no decisions; their `why` is JSON
IS_DECISION = DECISIONS.c.event.not_in(NOTES)


@dataclasses.dataclass(frozen=True)
class Decision:
    """A row without its evidence."""

    event: str
    model: str
    version: str
    adapter: str | None
    champion: str | None
    champion_adapter: str | None
    why: str
    verdict: str | None
    created: str = ""  # ISO 8601 in UTC; set by the ledger
    decided_by: str | None = None  # set by the ledger


def record(ledger: Ledger, decision: Decision, evidence: dict[str, Any] | None = None) -> bool:
    """Add a decision. False, and nothing is added, where it repeats the model's last one, as when an interrupted command is
    run again."""

    def write(link: sa.Connection) -> bool:
        if repeats(link, decision):
            return False
        add(link, decision, evidence)
        return True

    return ledger.change(write)


def add(link: sa.Connection, decision: Decision, evidence: dict[str, Any] | None = None) -> int:
    """Add a row; returns its number."""
    row: dict[str, Any] = dataclasses.asdict(decision)
    row["decided_by"] = sa.func.session_user() if link.dialect.name == "postgresql" else getpass.getuser()
    row |= {"evidence": evidence, "created": datetime.now(UTC)}
    [number] = link.execute(DECISIONS.insert().values(**row)).inserted_primary_key or (0,)
    return int(number)


def last(link: sa.Connection, model: str, *conditions: sa.ColumnElement[bool]) -> sa.RowMapping | None:
    """The last row of a model that fulfils these conditions."""
    of_model = sa.select(DECISIONS).where(DECISIONS.c.model == model, *conditions)
    return link.execute(of_model.order_by(DECISIONS.c.id.desc()).limit(1)).mappings().first()


def interrupted(link: sa.Connection) -> list[str]:
    """The models about which something was decided that nobody has finished."""
    newest = sa.select(sa.func.max(DECISIONS.c.id)).group_by(DECISIONS.c.model)
    return list(
        link.scalars(sa.select(DECISIONS.c.model).where(DECISIONS.c.id.in_(newest), DECISIONS.c.event == INTENT))
    )


def repeats(link: sa.Connection, decision: Decision) -> bool:
    """Whether a decision is the same as the model's last one."""
    row = last(link, decision.model, IS_DECISION)
    own = dataclasses.asdict(decision)
    del own["created"], own["decided_by"]
    return row is not None and {name: row[name] for name in own} == own


def let_on_trial(link: sa.Connection, model: str, version: str, adapter: str) -> bool:
    """Whether the gate let a version with this adapter on trial, and nothing else was decided about it since. The alias in
    MLflow alone does not say so: others than promoters may be able to set it."""
    row = last(link, model, IS_DECISION, DECISIONS.c.version == version)
    return row is not None and (row["event"], row["adapter"]) == ("canary", adapter)


def check_right(ledger: Ledger) -> None:
    """UserError where the ledger's PostgreSQL lets this role record no decisions: then it may make none."""
    with ledger.reading() as link:
        if link.dialect.name != "postgresql":
            return
        may = link.execute(sa.select(sa.func.has_table_privilege(DECISIONS.name, "INSERT"), sa.func.session_user()))
        is_allowed, role = may.one()
    if not is_allowed:
        raise UserError(
            f"the role {role} may not promote or roll back: the ledger's owner allows it by granting INSERT on the table "
            f"{DECISIONS.name} (docs/team.md); `--dry-run` judges without that"
        )


def listed(link: sa.Connection) -> list[Decision]:
    """All decisions in the order in which they were made."""
    names = [field.name for field in dataclasses.fields(Decision)]
    chosen = sa.select(*(DECISIONS.c[name] for name in names)).where(IS_DECISION)
    rows: Any = link.execute(chosen.order_by(DECISIONS.c.id)).mappings()
    return [Decision(**dict(row) | {"created": _iso(row["created"])}) for row in rows]


def evidence(link: sa.Connection) -> list[dict[str, Any]]:
    """The evidence of all verdicts, oldest first."""
    return [entry for _, entry in evidence_by_model(link)]


def evidence_by_model(link: sa.Connection) -> list[tuple[str, dict[str, Any]]]:
    """(registered model, evidence) of all verdicts, oldest first."""
    model, column = DECISIONS.c.model, DECISIONS.c.evidence
    rows = link.execute(sa.select(model, column).where(column.is_not(sa.null()), IS_DECISION).order_by(DECISIONS.c.id))
    return [(name, entry) for name, entry in rows]


def _iso(moment: datetime) -> str:
    """A moment in ISO 8601; SQLite does not keep the time zone, which is UTC."""
    return moment.replace(tzinfo=moment.tzinfo or UTC).astimezone(UTC).isoformat(timespec="seconds")
