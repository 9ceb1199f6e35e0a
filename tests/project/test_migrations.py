"""The ledger's schema through time, on SQLite and on a real PostgreSQL: upgraded with rows in it, made anew, or refused."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from addons.lineage import tables
from addons.models.replies import REPLIES, Replies
from steps.core.errors import UserError
from steps.project import ledger as ledger_module
from steps.project import revisions
from steps.project.ledger import SCHEMA, Ledger
from steps.registry import decisions, judgements, looks
from steps.registry.decisions import Decision
from tests.conftest import ROOT, new_database
from tests.project.test_ledger import row

OLD = Path(__file__).with_name("ledger_before_revisions.sql")
DECIDED = Decision("promotion", "toy", "4", "a4", "1", "a1", "better", None)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    return new_database(request.getfixturevalue("postgresql_server"))


def engine(url: str) -> sa.Engine:
    return sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://", 1), poolclass=sa.NullPool)


def make_old(url: str, statements: int | None = None) -> None:
    """A database from before revisions; `statements`: only the first so many, for its tables came one by one."""
    text = re.sub(r"^--.*$", "", OLD.read_text(), flags=re.MULTILINE)
    if url.startswith("sqlite"):
        text = text.replace("SERIAL", "INTEGER").replace("TIMESTAMP WITH TIME ZONE", "DATETIME")
    with engine(url).begin() as link:
        for statement in [part.strip() for part in text.split(";\n") if part.strip()][:statements]:
            link.exec_driver_sql(statement.replace("%", "%%"))


def rows(url: str) -> dict[str, list[Any]]:
    """All rows of the five tables, in the columns of before revisions."""
    with engine(url).connect() as link:
        return {
            name: sorted(str(row) for row in link.exec_driver_sql(f"SELECT {columns.replace(' ', ', ')} FROM {name}"))
            for name, columns in revisions.TABLES.items()
        }


def test_a_database_from_before_revisions_is_upgraded_without_loss(url: str) -> None:
    make_old(url)
    before = rows(url)
    assert [len(before[name]) for name in ("replies", "nodes", "edges", "decisions", "looks")] == [2, 2, 1, 2, 1]
    with Replies(url) as ledger:
        assert rows(url) == before
        stored = ledger.get("k1")
        assert stored is not None
        assert stored["request"] == {"messages": ["네, مرحبا"]}
        assert decisions.record(ledger, DECIDED)
        assert judgements.count(ledger, "toy", ["t1", "t2"], "a9", "a1") == 2, "the old look counts"
        with ledger.reading() as link:
            assert [(item.why, bool(item.decided_by)) for item in decisions.listed(link)] == [
                ("no better", False),
                ("it's slow", False),
                ("better", True),
            ]


@pytest.mark.parametrize("statements", [1, 3, 6, 8])
def test_one_that_has_only_some_of_the_tables_gets_the_others(url: str, statements: int) -> None:
    make_old(url, statements)
    with Replies(url) as ledger:
        assert set(sa.inspect(ledger.engine).get_table_names()) == {*revisions.TABLES, revisions.VERSIONS}
        assert (ledger.get("k1") is not None) == (statements > 1)


@pytest.mark.parametrize("is_old", [False, True])
def test_what_the_revisions_make_is_what_the_code_declares(url: str, is_old: bool) -> None:
    if is_old:
        make_old(url)
    declared = sa.MetaData()
    for table in (REPLIES, tables.NODES, tables.EDGES, decisions.DECISIONS, looks.LOOKS):
        table.to_metadata(declared)
    with Ledger(url) as ledger, ledger.engine.connect() as link:
        context = MigrationContext.configure(link, opts={"version_table": revisions.VERSIONS, "compare_type": True})
        assert compare_metadata(context, declared) == []


def test_the_newest_revision_is_the_one_that_the_code_names() -> None:
    config = Config(toml_file=str(ROOT / "pyproject.toml"))
    script = ScriptDirectory.from_config(config)
    assert script.get_heads() == [SCHEMA]
    assert script.get_bases() == [revisions.FIRST]
    assert all(re.fullmatch(r"\d+\.\d+", revision.revision) for revision in script.walk_revisions())


def test_many_that_open_an_old_one_at_once_upgrade_it_once(url: str) -> None:
    make_old(url)
    before = rows(url)
    with ThreadPoolExecutor(8) as pool:
        for ledger in pool.map(lambda _: Ledger(url), range(8)):
            ledger.engine.dispose()
    assert rows(url) == before
    with engine(url).connect() as link:
        assert link.scalar(sa.text("SELECT count(*) FROM ledger_version")) == 1


def test_an_upgrade_that_fails_leaves_the_database_as_it_was(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_old(url)
    before = rows(url)

    def half(connection: sa.Connection) -> None:
        upgrade(connection, "1.0")
        connection.exec_driver_sql("DROP TABLE replies")
        raise RuntimeError("killed")

    upgrade = revisions.upgrade
    monkeypatch.setattr(revisions, "upgrade", half)
    with pytest.raises(RuntimeError, match="killed"):
        Ledger(url)
    assert rows(url) == before
    assert not sa.inspect(engine(url)).has_table(revisions.VERSIONS)
    monkeypatch.setattr(revisions, "upgrade", upgrade)
    Ledger(url)
    assert rows(url) == before


@pytest.mark.parametrize("newer", ["2.0", "10.3", "not ours"])
def test_a_newer_one_is_refused_with_a_sentence(url: str, newer: str) -> None:
    Ledger(url)
    with engine(url).begin() as link:
        link.execute(sa.text("UPDATE ledger_version SET version_num = :newer"), {"newer": newer})
    with pytest.raises(UserError, match=rf"has schema {newer}, and this code knows schemas up to {SCHEMA}: update"):
        Ledger(url)


def test_code_of_an_older_minor_version_works_on(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a run of the past does, which is judged by its own code."""
    with Replies(url) as ledger:
        ledger.put(row("a", "new"))
    with engine(url).begin() as link:
        link.exec_driver_sql("UPDATE ledger_version SET version_num = '1.7'")
    monkeypatch.setattr(ledger_module, "SCHEMA", "1.1")
    with Replies(url) as ledger:
        assert ledger.get("a") is not None


def test_another_application_s_database_is_refused_and_left_alone(url: str) -> None:
    with engine(url).begin() as link:
        link.exec_driver_sql("CREATE TABLE nodes (id INTEGER PRIMARY KEY, address VARCHAR)")
    with pytest.raises(
        UserError, match="has a table nodes of another application: give the ledger a database of its own"
    ):
        Ledger(url)
    assert sa.inspect(engine(url)).get_table_names() == ["nodes"]


def test_a_current_ledger_is_opened_by_one_query_and_without_alembic(tmp_path: Path) -> None:
    address = f"sqlite:///{tmp_path}/ledger.db"
    Ledger(address)
    program = f"""
import sqlalchemy as sa, sys
from steps.project.ledger import Ledger
asked = []
sa.event.listen(sa.Engine, "before_cursor_execute", lambda *words: asked.append(words[2]))
Ledger({address!r})
print(asked, "alembic" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "['SELECT version_num FROM ledger_version'] False\n", done.stderr


def test_the_sql_for_a_dba_upgrades_an_old_database(postgresql_server: str) -> None:
    url = new_database(postgresql_server)
    make_old(url)
    before = rows(url)
    words = [sys.executable, "-m", "alembic", "upgrade", "head", "--sql"]
    environment = os.environ | {"FLYWHEEL_LEDGER_URL": "postgresql://nobody@nowhere/ledger"}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    link = engine(url).raw_connection()
    link.driver_connection.execute(done.stdout)  # pyrefly: ignore[missing-attribute]
    link.close()
    with engine(url).connect() as checked:
        assert checked.scalar(sa.text("SELECT version_num FROM ledger_version")) == SCHEMA
    assert rows(url) == before


def test_a_role_that_may_not_change_tables_is_told_who_may(postgresql_server: str) -> None:
    """A member of a team, whose role reads and writes rows: the owner's first opening upgrades, then the member's works."""
    url = new_database(postgresql_server)
    make_old(url)
    with engine(url).begin() as link:
        link.exec_driver_sql("DROP ROLE IF EXISTS member")
        link.exec_driver_sql("CREATE ROLE member LOGIN")
        link.exec_driver_sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO member")
        link.exec_driver_sql("REVOKE INSERT ON decisions FROM member")
        link.exec_driver_sql("ALTER DEFAULT PRIVILEGES GRANT SELECT ON TABLES TO member")
    members = url.replace("postgres:@", "member:@")
    with pytest.raises(UserError, match=r"permission denied.*its owner may do this, or grant it to you"):
        Ledger(members)
    Ledger(url)
    with Replies(members) as ledger:
        assert ledger.put(row("m", "mine"))["model"] == "m"
        with pytest.raises(
            UserError, match="the role member may not promote or roll back: the ledger's owner allows it"
        ):
            decisions.check_right(ledger)
        with pytest.raises(UserError, match=r"permission denied for table decisions.*its owner may do this"):
            decisions.record(ledger, DECIDED)
    with Replies(url) as ledger:
        decisions.check_right(ledger)
        decisions.record(ledger, DECIDED)
        with ledger.reading() as link:
            assert decisions.listed(link)[-1].decided_by == "postgres"
        with engine(url).begin() as link:
            link.exec_driver_sql("DROP OWNED BY member CASCADE")
            link.exec_driver_sql("DROP ROLE member")
