"""What Alembic runs to apply revisions: in the transaction that steps/project/revisions.py hands over, or as SQL."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import context

from steps.project import store
from steps.project.ledger import Ledger
from steps.project.revisions import VERSIONS


def apply(connection: sa.Connection) -> None:
    # SQLite can change tables in a transaction, which Alembic does not assume.
    context.configure(connection=connection, version_table=VERSIONS, transactional_ddl=True)
    with context.begin_transaction():
        context.run_migrations()


if context.is_offline_mode():
    dialect = sa.make_url(store.ledger_address()).get_backend_name()
    context.configure(dialect_name=dialect, version_table=VERSIONS, literal_binds=True, transactional_ddl=True)
    with context.begin_transaction():
        context.run_migrations()
elif (given := context.config.attributes.get("connection")) is not None:
    apply(given)
else:  # the command `alembic`: opening the ledger brings it up to date, so that there is nothing left to apply
    with Ledger() as ledger, ledger.engine.begin() as own:
        apply(own)
