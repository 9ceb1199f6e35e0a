"""The doctor beside databases of several revisions, servers that answer, refuse or hang, and DVC's remotes."""

from __future__ import annotations

import re
import shutil
import socket
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy as sa

from flows.diagnosis import findings, servers
from flows.diagnosis.findings import BAD, OK, WARN, Check, Finding
from flows.promotion import change as deciding
from steps.project import revisions
from steps.project.ledger import SCHEMA, Ledger
from tests.conftest import MlflowServer, free_port
from tests.support.fake_registry import FakeRegistry, Killed


def at(folder: Path, **variables: str) -> findings.Place:
    return findings.Place(folder, variables, {})


def change(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as link:
        link.execute(statement)
        link.commit()


# --- The ledger


def test_ledgers_of_every_age(tmp_path: Path) -> None:
    where, path = at(tmp_path), tmp_path / ".flywheel/ledger.db"
    assert "does not exist yet" in servers.of_ledger(where).text
    path.parent.mkdir()
    url = f"sqlite:///{path}"
    engine = sa.create_engine(url)
    with engine.connect() as connection:
        revisions.upgrade(connection, revisions.FIRST)
        connection.commit()
    engine.dispose()
    older = servers.of_ledger(where)
    assert (older.state, older.cure) == (WARN, "make ledger")
    assert servers.revision_of(path, revisions.VERSIONS) == revisions.FIRST  # looking has not upgraded it
    with Ledger(url):
        pass
    assert (servers.of_ledger(where).state, SCHEMA in servers.of_ledger(where).text) == (OK, True)
    for version, state in (("1.999", OK), ("2.0", BAD), ("unheard", BAD)):
        change(path, f"UPDATE {revisions.VERSIONS} SET version_num = '{version}'")
        assert servers.of_ledger(where).state == state
    path.write_bytes(b"rubbish" * 1000)
    assert (servers.of_ledger(where).state, "cannot be read" in servers.of_ledger(where).text) == (BAD, True)


def test_a_decision_that_was_interrupted_is_seen_and_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/.flywheel/ledger.db"
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", url)
    registry = FakeRegistry(champion="1")
    registry.fatal = 2
    with pytest.raises(Killed):
        deciding.decide(registry.model, "promotion", "2", "better", deciding.champion_writes(registry.model, "2"))
    monkeypatch.setattr(deciding, "connect", lambda _: registry)
    seen = servers.of_ledger(at(tmp_path, FLYWHEEL_LEDGER_URL=url))
    assert (seen.state, "a decision about toy was interrupted" in seen.text) == (WARN, True)
    assert seen.mend is not None
    assert seen.mend() == "promotion of toy version 2 is finished"
    assert registry.aliases == {"champion": "2", "previous": "1"}
    assert servers.of_ledger(at(tmp_path, FLYWHEEL_LEDGER_URL=url)).state == OK


@pytest.mark.slow
def test_a_ledger_in_postgresql(tmp_path: Path, postgresql: str) -> None:
    where = at(tmp_path, FLYWHEEL_LEDGER_URL=postgresql)
    assert servers.of_ledger(where).state == WARN
    with Ledger(postgresql):
        pass
    assert servers.of_ledger(where).state == OK
    away = f"postgresql://someone:hunter22@127.0.0.1:{free_port()}/flywheel"
    seen = servers.of_ledger(at(tmp_path, FLYWHEEL_LEDGER_URL=away))
    assert (seen.state, "hunter22" in seen.line) == (BAD, False)


# --- MLflow and Prefect


def test_databases_of_mlflow_of_every_age(tmp_path: Path, empty_store: Path) -> None:
    where, path = at(tmp_path), tmp_path / ".flywheel/mlflow.db"
    assert servers.mlflow(where).state == OK
    path.parent.mkdir()
    shutil.copy(empty_store, path)
    assert (servers.mlflow(where).state, "at the revision" in servers.mlflow(where).text) == (OK, True)
    change(path, "UPDATE alembic_version SET version_num = '451aebb31d03'")  # MLflow's first
    older = servers.mlflow(where)
    assert (older.state, older.cure) == (BAD, f"mlflow db upgrade sqlite:///{path}")
    change(path, "UPDATE alembic_version SET version_num = 'ffffffffffff'")
    assert "it is newer" in servers.mlflow(where).text
    path.write_bytes(b"rubbish" * 1000)
    assert "cannot be read" in servers.mlflow(where).text
    assert servers.mlflow(at(tmp_path, MLFLOW_TRACKING_URI=f"sqlite:///{empty_store}")).state == OK


def test_an_older_database_of_prefect_is_upgraded_by_its_server(tmp_path: Path) -> None:
    path = tmp_path / ".flywheel/prefect/prefect.db"
    path.parent.mkdir(parents=True)
    _, newest = servers.history("prefect", "server", "database", "_migrations", "versions", "sqlite")
    change(path, "CREATE TABLE alembic_version (version_num TEXT)")
    assert servers.prefect(at(tmp_path)).state == WARN
    for revision, state in (("f92143d30c27", WARN), (*newest, OK), ("ffffffffffff", BAD)):
        change(path, "DELETE FROM alembic_version")
        change(path, f"INSERT INTO alembic_version VALUES ('{revision}')")
        assert servers.prefect(at(tmp_path)).state == state


@pytest.mark.parametrize("package", ["mlflow", "prefect"])
def test_the_newest_revision_of_a_package_is_a_single_one(package: str) -> None:
    folders = {"mlflow": ["store", "db_migrations", "versions"]}
    folders["prefect"] = ["server", "database", "_migrations", "versions", "sqlite"]
    every, newest = servers.history(package, *folders[package])
    assert (len(newest), len(every) > 10, newest <= every) == (1, True, True)


def test_a_server_that_refuses_or_hangs_is_given_up_in_seconds(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        for port, reason in ((free_port(), "refused|attempts failed"), (silent.getsockname()[1], "no answer within")):
            address = f"http://127.0.0.1:{port}"
            began = time.monotonic()
            for seen in (
                servers.mlflow(at(tmp_path, MLFLOW_TRACKING_URI=address)),
                servers.prefect(at(tmp_path, PREFECT_API_URL=f"{address}/api")),
            ):
                assert seen.state == BAD
                assert re.search(reason, seen.text), seen.text
            assert time.monotonic() - began < 2 * servers.SECONDS + 2


@pytest.mark.slow
def test_mlflows_real_server(tmp_path: Path, mlflow_server: MlflowServer) -> None:
    variables = mlflow_server.variables
    assert servers.mlflow(at(tmp_path, **variables)).state == OK
    wrong = servers.mlflow(at(tmp_path, **variables | {"MLFLOW_TRACKING_PASSWORD": "another"}))
    assert (wrong.state, wrong.cure) == (BAD, ". .flywheel/ui.env")


@pytest.mark.slow
def test_prefects_real_server(tmp_path: Path, prefect_server: str) -> None:
    assert servers.prefect(at(tmp_path, PREFECT_API_URL=prefect_server)).state == OK


# --- DVC's remotes


def of_remotes(folder: Path, config: str) -> list[Finding]:
    (folder / ".dvc").mkdir(exist_ok=True)
    (folder / ".dvc/config").write_text(config)
    return servers.remotes(at(folder))


def test_remotes(tmp_path: Path) -> None:
    assert [each.state for each in of_remotes(tmp_path, "")] == [OK]
    store = tmp_path / "store"
    config = f"[core]\n    remote = store\n['remote \"store\"']\n    url = {store}\n"
    (missing,) = of_remotes(tmp_path, config)
    assert (missing.state, missing.cure) == (BAD, f"mkdir -p {store}")
    store.mkdir()
    assert [each.state for each in of_remotes(tmp_path, config)] == [OK]
    assert [each.state for each in of_remotes(tmp_path, config.replace("remote = store", "remote = other"))] == [
        BAD,
        OK,
    ]
    assert [each.state for each in of_remotes(tmp_path, config.partition("\n['")[2].join(["['", ""]))] == [OK, WARN]
    with socket.create_server(("127.0.0.1", 0)) as server:
        for port, state in ((server.getsockname()[1], OK), (free_port(), BAD)):
            s3 = (
                f"['remote \"s\"']\n url = s3://bucket/x\n endpointurl = http://127.0.0.1:{port}\n[core]\n remote = s\n"
            )
            assert [each.state for each in of_remotes(tmp_path, s3)] == [state]


def test_damaged_settings_of_dvc_are_a_finding(tmp_path: Path) -> None:
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[core\nx")
    (seen,) = findings.examine(at(tmp_path), [Check("remotes", servers.remotes)])
    assert (seen.state, ".dvc/config" in seen.text) == (BAD, True)
