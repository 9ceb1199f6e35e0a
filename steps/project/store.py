"""MLflow's store: its address, a client, and sentences for its errors; and the ledger's address.

It is .flywheel/mlflow.db in the project, or what MLFLOW_TRACKING_URI names.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from steps.core.errors import UserError, causes
from steps.core.progress import say

if TYPE_CHECKING:
    from mlflow import MlflowClient

T = TypeVar("T")
FOREIGN = "mlflow requests urllib3 sqlalchemy botocore boto3".split()  # whose errors are explained here
PATIENCE = 90.0  # seconds to wait for a server of MLflow, or of its artifacts, that is away at the end of a run
# Errors of a connection that are no OSError: of databases and of object stores.
AWAY = "OperationalError EndpointConnectionError ConnectTimeoutError ReadTimeoutError ConnectionClosedError".split()

# An unreachable server must not hold up a run for minutes, as MLflow's default of 7 retries and 120 s would.
SETTINGS = {"HTTP_REQUEST_MAX_RETRIES": "2", "HTTP_REQUEST_BACKOFF_FACTOR": "1", "HTTP_REQUEST_TIMEOUT": "15"}
# MLflow sends no telemetry, and prints nothing into a live display.
SETTINGS |= {"DISABLE_TELEMETRY": "true", "SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}
SETTINGS |= {"ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}

# Which of an experiment's pages MLflow opens: its runs, not its traces.
KIND, TRAINING = "mlflow.experimentKind", "custom_model_development"
MANY_RUNS = {  # SQLite's statistics by index: rows of the table, and how many of them an entry of each column has
    "sqlite_autoindex_runs_1": "10000 1",
    "sqlite_autoindex_latest_metrics_1": "1000000 10000 1",
    "index_latest_metrics_run_uuid": "1000000 100",
    "sqlite_autoindex_params_1": "1000000 10000 1",
    "index_params_run_uuid": "1000000 100",
}


SQLITE = "sqlite:///"
LEDGER = f"{SQLITE}.flywheel/ledger.db"


def ledger_address() -> str:
    """FLYWHEEL_LEDGER_URL, else the project's own ledger (steps/project/ledger.py, which imports SQLAlchemy)."""
    return os.environ.get("FLYWHEEL_LEDGER_URL") or LEDGER


def address(root: Path) -> str:
    """MLFLOW_TRACKING_URI, else the project's own store. A bare postgresql:// gets the driver that is installed."""
    named = os.environ.get("MLFLOW_TRACKING_URI", "").replace("postgresql://", "postgresql+psycopg://", 1)
    return named or f"{SQLITE}{root.resolve() / '.flywheel' / 'mlflow.db'}"


def hidden(uri: str) -> str:
    """An address without its password."""
    return re.sub(r"//[^/@]*@", "//…@", uri)


def set_variables() -> None:
    """Set MLflow's variables in this process, where they are not set."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(f"MLFLOW_{name}", value)


def import_ahead() -> None:
    """Import MLflow and its store, which takes 2 s of a core, beside something else. What fails is for `connect` to say."""
    with contextlib.suppress(Exception):
        importlib.import_module("mlflow.store.tracking.sqlalchemy_store")


def connect(root: Path) -> MlflowClient:
    """A client of the store. The project's own store is made if it does not exist."""
    set_variables()
    import logging

    from mlflow import MlflowClient
    from mlflow.utils import request_utils

    from steps.project.slow_server import LimitedAdapter

    kept: Any = request_utils.TCPKeepAliveHTTPAdapter  # sessions are made with the first request
    if not issubclass(kept, LimitedAdapter):
        request_utils.TCPKeepAliveHTTPAdapter = type("LimitedKeepAlive", (kept, LimitedAdapter), {})
    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # its errors are raised as well
    uri, database = address(root), root.resolve() / ".flywheel" / "mlflow.db"
    if not os.environ.get("MLFLOW_TRACKING_URI") and not database.exists():
        make_store(database)
    return MlflowClient(uri, os.environ.get("MLFLOW_REGISTRY_URI") or uri)


def make_store(database: Path) -> None:
    """Make the database under another name, and rename it when it is complete: MLflow cannot resume an interrupted creation.

    Without waiting for the disk this takes 1 s instead of 5. The write-ahead log halves the time of each later write.
    """
    import sqlalchemy
    from mlflow.store.db import utils

    database.parent.mkdir(parents=True, exist_ok=True)
    temporary = database.with_name(f".tmp-{os.getpid()}.{database.name}")
    try:
        engine = sqlalchemy.create_engine(f"sqlite:///{temporary}")
        sqlalchemy.event.listen(engine, "connect", lambda link, _: link.execute("PRAGMA synchronous=OFF"))
        utils._initialize_tables(engine)
        with engine.connect() as link:
            link.exec_driver_sql("PRAGMA journal_mode=WAL")
        engine.dispose()
        plan_for_many_runs(temporary)
        with contextlib.suppress(FileExistsError):  # another process made it first, and may have written to it
            os.link(temporary, database)
    finally:
        for path in database.parent.glob(f"{temporary.name}*"):
            path.unlink()


def plan_for_many_runs(database: Path) -> None:
    """Give SQLite the statistics of a store with many runs.

    Without any, it compares every run with every metric to sort runs by one: 7 s with 10,000 runs in place of 1 s. Its own
    (ANALYZE) would be those of the few runs of that day. A store that is locked now is left as it is.
    """
    import sqlite3

    with contextlib.suppress(sqlite3.OperationalError), contextlib.closing(sqlite3.connect(database)) as link, link:
        link.execute("PRAGMA analysis_limit=100")
        link.execute("ANALYZE")
        link.execute("DELETE FROM sqlite_stat1")
        link.executemany(
            "INSERT INTO sqlite_stat1 SELECT tbl_name, name, :rows FROM sqlite_master WHERE name = :name",
            [{"name": name, "rows": rows} for name, rows in MANY_RUNS.items()],
        )


def experiment(client: MlflowClient, root: Path, task: str) -> str:
    """The id of the task's experiment. A server chooses where artifacts are kept; those of a database are in .flywheel, or
    where MLFLOW_DEFAULT_ARTIFACT_ROOT says."""
    with explained(address(root)):
        if existing := client.get_experiment_by_name(task):
            if existing.lifecycle_stage == "active":
                if KIND not in existing.tags:
                    client.set_experiment_tag(existing.experiment_id, KIND, TRAINING)
                return existing.experiment_id
            restore = f"mlflow experiments restore --experiment-id {existing.experiment_id}"
            where = f"MLFLOW_TRACKING_URI={hidden(address(root))}"
            raise UserError(f"MLflow's experiment {task} was deleted; bring it back with `{where} {restore}`")
        folder = None
        if re.match(r"(sqlite|postgresql|mysql|mssql)\b", address(root)):
            own = (root.resolve() / ".flywheel" / "mlartifacts").as_uri()
            folder = f"{os.environ.get('MLFLOW_DEFAULT_ARTIFACT_ROOT', own).rstrip('/')}/{task}"
        return client.create_experiment(task, folder, {KIND: TRAINING})


def pages(search: Callable[..., Any], **options: Any) -> Iterator[Any]:
    """Every entity that one of MLflow's paged searches finds, such as `pages(client.search_model_versions)`."""
    token = None
    while True:
        page = search(page_token=token, **options)
        yield from page
        if not (token := page.token):
            return


@contextlib.contextmanager
def explained(uri: str) -> Iterator[None]:
    """Inside, errors of MLflow and of the connection to it become a UserError that says what to do."""
    try:
        yield
    except Exception as problem:
        if type(problem).__module__.partition(".")[0] not in FOREIGN:
            raise
        reason = " ".join(str(problem).partition("[SQL:")[0].split())
        reason = hidden(reason if len(reason) < 400 else reason[:400] + " …")
        advice = "see to that"
        if "database is locked" in reason:
            reason, advice = "another process writes to its database", "wait until that has ended, or stop it"
        elif os.environ.get("MLFLOW_TRACKING_URI"):
            advice = "start or mend it, correct MLFLOW_TRACKING_URI, or unset it to log to .flywheel/mlflow.db"
        text = f"MLflow at {hidden(uri)} cannot be reached or does not accept this: {reason}"
        raise UserError(f"{text}; {advice}, then run the same again") from problem


def patiently(work: Callable[[], T], patience: float = PATIENCE, pause: float = 2.0) -> T:
    """What `work` returns. It is called again for up to `patience` seconds while the connection fails, which is said once.
    So it must find what an earlier call has done."""
    until, is_told = time.monotonic() + patience, False
    while True:
        try:
            return work()
        except UserError as problem:
            is_away = any(isinstance(link, OSError) or type(link).__name__ in AWAY for link in causes(problem))
            if not is_away or time.monotonic() > until:
                raise
            if not is_told:
                say(f"waiting for MLflow, {until - time.monotonic():.0f} s more at most: {problem}")
            is_told = True
            time.sleep(pause)


@contextlib.contextmanager
def variables(**values: str) -> Iterator[None]:
    """Inside, these environment variables have these values; afterwards they are as they were."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
