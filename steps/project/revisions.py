"""The ledger's schema through time: one revision per change, by Alembic. steps/project/ledger.py applies what is missing.

A revision is named `major.minor`. A minor one only adds tables, indexes or columns that may be empty, so that code of the
same major version still works with the database: runs of the past are judged by their own code. Anything else is a new
major version, which older code refuses to open. The way back is the backup from before the upgrade (docs/team.md).

    alembic history                             # the revisions
    alembic upgrade head --sql                  # the SQL for an empty database, or one from before revisions
    alembic upgrade 1.0:head --sql              # the SQL from revision 1.0
    alembic revision --rev-id 1.2 -m "what"     # a new one; `SCHEMA` in steps/project/ledger.py names the newest

FLYWHEEL_LEDGER_URL names the database. Alembic is imported only where a database is not at the newest revision.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

VERSIONS = "ledger_version"  # the table with the revision; MLflow's and Prefect's are named alembic_version
FIRST = "1.0"
# The columns by which a table from before revisions is known to be the ledger's.
TABLES = {
    "replies": "key model request reply input_tokens output_tokens cost latency_seconds retries created",
    "nodes": "kind id data",
    "edges": "parent_kind parent_id role child_kind child_id data",
    "decisions": "id event model version adapter champion champion_adapter why verdict evidence created",
    "looks": "id model scenarios ids challenger against created",
}


def upgrade(connection: sa.Connection, revision: str = "head") -> None:
    """Apply the revisions that the database lacks, in the transaction of the caller, who commits."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def foreign(connection: sa.Connection) -> list[str]:
    """The tables that have a name of the ledger's, and are another application's."""
    tables = sa.inspect(connection)
    return [
        name
        for name, columns in TABLES.items()
        if tables.has_table(name)
        and not set(columns.split()) <= {column["name"] for column in tables.get_columns(name)}
    ]
