"""The databases of MLflow's and Prefect's servers: SQLite in .flywheel/, or PostgreSQL by URL, each in one of its own.

MLFLOW_BACKEND_STORE_URI and PREFECT_SERVER_DATABASE_CONNECTION_URL are read by the servers alone. A URL is checked before
its server starts: a wrong one would otherwise end in pages of tracebacks, or in tables beside those of another service.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from steps.core.errors import UserError
from steps.core.masking import masked


class Service(NamedTuple):
    """Whose database it is."""

    variable: str
    driver: str  # of SQLAlchemy, which a URL need not name
    table: str  # that only this service's database has


SERVICES = {
    "MLflow": Service("MLFLOW_BACKEND_STORE_URI", "postgresql+psycopg", "experiments"),
    "Prefect": Service("PREFECT_SERVER_DATABASE_CONNECTION_URL", "postgresql+asyncpg", "flow_run"),
    "the ledger": Service("FLYWHEEL_LEDGER_URL", "postgresql+psycopg", "ledger_version"),
}
OLDER = "PREFECT_API_DATABASE_CONNECTION_URL"  # Prefect's name for its variable until version 3
SECONDS = 10  # for a connection


def address(service: str, variables: Mapping[str, str]) -> str | None:
    """The URL of a service's PostgreSQL, with the driver that is installed; None where none is set.

    UserError where it is no URL of PostgreSQL, the database does not answer, or it is another service's.
    """
    import sqlalchemy as sa
    from sqlalchemy.exc import SQLAlchemyError

    wanted = SERVICES[service]
    url = variables.get(wanted.variable) or (variables.get(OLDER) if service == "Prefect" else None)
    if not url:
        return None
    try:
        parsed = sa.make_url(url)
    except SQLAlchemyError:
        raise UserError(f"{wanted.variable} is no address of a database: write {example(service)}") from None
    if parsed.get_backend_name() != "postgresql":
        raise UserError(f"{wanted.variable} names no PostgreSQL: write {example(service)}, or unset it for SQLite")
    shown = parsed.render_as_string(hide_password=True)
    # asyncpg and psycopg name the same option differently.
    query = {"sslmode" if name == "ssl" else name: value for name, value in parsed.query.items()}
    asked = parsed.set(drivername="postgresql+psycopg", query=query)
    engine = sa.create_engine(asked, connect_args={"connect_timeout": SECONDS}, poolclass=sa.NullPool)
    try:
        with engine.connect() as connection:
            tables = set(sa.inspect(connection).get_table_names())
    except SQLAlchemyError as problem:
        reason = masked(str(problem).strip().splitlines()[0])
        raise UserError(
            f"the database {shown} of {wanted.variable} cannot be used ({reason}): start its server, correct the address or "
            "make the database (docs/team.md)"
        ) from None
    for other, its in SERVICES.items():
        if other != service and its.table in tables:
            raise UserError(
                f"{wanted.variable} names the database {shown}, which is that of {other}: {service} needs one of its own"
            )
    return parsed.set(drivername=wanted.driver).render_as_string(hide_password=False)


def example(service: str) -> str:
    return f"postgresql://user:password@host/{service.split()[-1].lower()}"
