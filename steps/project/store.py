"""MLflow's store: where it is, a client of it, and what its errors mean.

It is .flywheel/mlflow.db in the project, or what MLFLOW_TRACKING_URI names.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from steps.core.errors import UserError

if TYPE_CHECKING:
    from mlflow import MlflowClient


# A server that is away must not hold a run up for minutes, as MLflow's own 7 retries and 120 s would.
SETTINGS = {"HTTP_REQUEST_MAX_RETRIES": "2", "HTTP_REQUEST_BACKOFF_FACTOR": "1", "HTTP_REQUEST_TIMEOUT": "15"}
# It reports nothing home, and prints nothing into a live display.
SETTINGS |= {"DISABLE_TELEMETRY": "true", "SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}
SETTINGS |= {"ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}


def address(root: Path) -> str:
    """MLFLOW_TRACKING_URI, else the project's own store."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root.resolve() / '.flywheel' / 'mlflow.db'}"


def hidden(uri: str) -> str:
    """An address without its password."""
    return re.sub(r"//[^/@]*@", "//…@", uri)


def connect(root: Path) -> MlflowClient:
    """A client of the store, which is made where it is the project's own and not there yet."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(f"MLFLOW_{name}", value)
    import logging

    from mlflow import MlflowClient

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # what it says is raised as well
    uri = address(root)
    database = root.resolve() / ".flywheel" / "mlflow.db"
    if not os.environ.get("MLFLOW_TRACKING_URI") and not database.exists():
        make_store(database)
    return MlflowClient(uri, os.environ.get("MLFLOW_REGISTRY_URI") or uri)


def make_store(database: Path) -> None:
    """MLflow's tables, under another name until they are whole: an interrupted creation could not be gone on with.

    Without waiting for the disk it takes 1 s instead of 5. The write-ahead log halves the time of each later write.
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
        with contextlib.suppress(FileExistsError):  # another process was quicker, and may have written to it
            os.link(temporary, database)
    finally:
        for left in database.parent.glob(f"{temporary.name}*"):
            left.unlink()


def experiment(client: MlflowClient, root: Path, task: str) -> str:
    """The id of the task's experiment. A server decides itself where artifacts lie; a database has them in .flywheel."""
    with explained(address(root)):
        if found := client.get_experiment_by_name(task):
            if found.lifecycle_stage == "active":
                return found.experiment_id
            restore = f"mlflow experiments restore --experiment-id {found.experiment_id}"
            where = f"MLFLOW_TRACKING_URI={hidden(address(root))}"
            raise UserError(f"MLflow's experiment {task} was deleted; bring it back with `{where} {restore}`")
        folder = None
        if re.match(r"(sqlite|postgresql|mysql|mssql)\b", address(root)):
            folder = (root.resolve() / ".flywheel" / "mlartifacts" / task).as_uri()
        return client.create_experiment(task, folder)


@contextlib.contextmanager
def explained(uri: str) -> Iterator[None]:
    """What MLflow and the connection to it complain of, as a sentence that says what to do."""
    try:
        yield
    except Exception as problem:
        if type(problem).__module__.partition(".")[0] not in ("mlflow", "requests", "urllib3", "sqlalchemy"):
            raise
        said = " ".join(str(problem).split())
        said = hidden(said if len(said) < 400 else said[:400] + " …")
        advice = "see to that"
        if os.environ.get("MLFLOW_TRACKING_URI"):
            advice = "start or mend it, correct MLFLOW_TRACKING_URI, or unset it to log to .flywheel/mlflow.db"
        text = f"MLflow at {hidden(uri)} cannot be reached or does not accept this: {said}"
        raise UserError(f"{text}; {advice}, then run the same again") from problem


@contextlib.contextmanager
def default(uri: str) -> Iterator[None]:
    """For a moment, MLflow logs here by default: there it looks up a models:/… address, not where its client does."""
    own = not os.environ.get("MLFLOW_TRACKING_URI")
    os.environ["MLFLOW_TRACKING_URI"] = uri
    try:
        yield
    finally:
        if own:
            del os.environ["MLFLOW_TRACKING_URI"]
