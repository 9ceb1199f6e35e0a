"""MLflow, Prefect, the ledger and DVC's remotes: do they answer, with this project's keys, at the schema that is expected?

Nothing is written: a SQLite database is opened for reading, so that looking does not upgrade it.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import sqlite3
import urllib.parse
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from environments.kit import http_client
from flows.deployment import databases
from flows.diagnosis.findings import BAD, OK, WARN, Finding, Place
from flows.diagnosis.hashes import settings
from steps.kit.sockets import check_server
from steps.project import ledger, revisions, store
from steps.project.store import hidden

SECONDS = 2.0  # for an answer
DEFAULT_PORTS = {"http": 80, "https": 443, "ssh": 22, "webdav": 80, "webdavs": 443, "hdfs": 8020}
CLOUDS = {"gs": "storage.googleapis.com", "gdrive": "www.googleapis.com", "oss": "oss.aliyuncs.com"}


# --- Databases


def revision_of(path: Path, table: str) -> str | None:
    """The revision that a SQLite database names; None where it has none. sqlite3.Error where it cannot be read."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=1.0)) as link:
        has_table = link.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
        row = link.execute(f"SELECT version_num FROM {table}").fetchone() if has_table else None
    return str(row[0]) if row else None


def history(package: str, *folders: str) -> tuple[set[str], set[str]]:
    """(all revisions, the newest ones) of an installed package's migrations, which are read as text."""
    spec = importlib.util.find_spec(package)
    place = Path((spec.submodule_search_locations or ["/nowhere"])[0] if spec else "/nowhere", *folders)
    names, before = set(), set()
    for path in place.glob("*.py"):
        text = path.read_text(errors="replace")
        names |= set(re.findall(r"^revision(?:: \w+)? = [\"'](\w+)", text, re.MULTILINE))
        for line in re.findall(r"^down_revision(?:: [^=]+)? = (.+)", text, re.MULTILINE):
            before |= set(re.findall(r"[\"'](\w+)[\"']", line))
    return names, names - before


def of_sqlite(title: str, path: Path, package: str, folders: Iterable[str], older: str) -> Finding:
    """A database of MLflow or Prefect, against the newest revision of the installed package."""
    shown = os.path.relpath(path)
    if not path.exists():
        return Finding("servers", OK, f"{title} has no database yet: the first run makes {shown}")
    try:
        revision = revision_of(path, "alembic_version")
    except sqlite3.Error as problem:
        text = f"{title}'s database {shown} cannot be read ({problem})"
        return Finding("servers", BAD, text, f"mv {shown} {shown}.damaged")
    every, newest = history(package, *folders)
    if revision in newest:
        return Finding("servers", OK, f"{title}'s database {shown} is at the revision of the installed {package}")
    if revision is None or revision in every:
        named = f"the older revision {revision}" if revision else "no revision"
        text = f"{title}'s database {shown} is at {named}, not {', '.join(newest)}"
        if package == "prefect":  # its server brings it up to date; MLflow refuses it
            return Finding("servers", WARN, f"{text}: Prefect's server upgrades it when it starts", older)
        return Finding("servers", BAD, text, older)
    text = f"{title}'s database {shown} is at revision {revision}, which the installed {package} does not know: it is newer"
    return Finding("servers", BAD, text, "git pull && make install")


def of_ledger(where: Place) -> Finding:
    url = where.variables.get("FLYWHEEL_LEDGER_URL") or store.LEDGER
    import sqlalchemy as sa

    parsed = address = sa.make_url(url)
    shown = parsed.render_as_string(hide_password=True)
    if parsed.get_backend_name() == "sqlite":
        path = where.root / str(parsed.database)
        address = parsed.set(database=str(path))
        if not path.exists():
            return Finding("servers", OK, f"the ledger {shown} does not exist yet: the first run makes it")
        try:
            version = revision_of(path, revisions.VERSIONS)
        except sqlite3.Error as problem:
            text = f"the ledger {shown} cannot be read ({problem})"
            return Finding("servers", BAD, text, f"mv {path} {path}.damaged && make ledger")
    else:
        parsed = parsed.set(drivername=databases.SERVICES["the ledger"].driver)
        engine = sa.create_engine(parsed, connect_args={"connect_timeout": 2}, poolclass=sa.NullPool)
        try:
            with engine.connect() as link:
                has_table = sa.inspect(link).has_table(revisions.VERSIONS)
                version = link.scalar(ledger.VERSION) if has_table else None
        except sa.exc.SQLAlchemyError as problem:
            reason = str(problem).strip().splitlines()[0]
            text = f"the ledger {shown} does not answer ({reason}): start its server or correct FLYWHEEL_LEDGER_URL"
            return Finding("servers", BAD, text)
    if version == ledger.SCHEMA:
        text = address.render_as_string(hide_password=False)
        return unfinished(where, text) or Finding("servers", OK, f"the ledger {shown} is at schema {version}")
    if version is None or numbers(version) < numbers(ledger.SCHEMA):
        named = f"schema {version}" if version else "a schema from before revisions"
        text = f"the ledger {shown} is at {named}, and this code uses {ledger.SCHEMA}: keep a backup; opening it upgrades it"
        return Finding("servers", WARN, text, "make ledger")
    if numbers(version)[0] == numbers(ledger.SCHEMA)[0]:
        return Finding("servers", OK, f"the ledger {shown} is at schema {version}, with which this code works, too")
    text = f"the ledger {shown} is at schema {version}, and this code knows schemas up to {ledger.SCHEMA}"
    return Finding("servers", BAD, text, "git pull && make install")


def unfinished(where: Place, url: str) -> Finding | None:
    """A decision about a model that was interrupted; None where there is none."""
    from flows.promotion import change
    from steps.registry import decisions

    with ledger.Ledger(url, patience=2) as opened, opened.reading() as link:
        models = decisions.interrupted(link)
    if not models:
        return None

    def finish() -> str:
        named = {name: text for name, text in where.variables.items() if name.startswith("MLFLOW_")}
        with store.variables(FLYWHEEL_LEDGER_URL=url, **named):
            done = [change.finish(where.root, model) for model in models]
        return "; ".join(f"{each.event} of {each.model} version {each.version} is finished" for each in done if each)

    text = f"a decision about {', '.join(models)} was interrupted: whoever decides next, or `make serve`, finishes it"
    return Finding("servers", WARN, text, "make doctor ARGS=--mend", finish)


def numbers(version: str) -> tuple[int, ...]:
    parts = re.findall(r"\d+", version)
    return tuple(map(int, parts)) if parts else (2**31,)


# --- Servers


def answer(url: str, user: str = "", password: str = "") -> tuple[int, str]:
    """(status, text) of a GET request. OSError where nobody answers in time."""
    reply = http_client.asked("GET", url, seconds=SECONDS, auth=(user, password) if password else None)
    return reply.status, reply.text if reply.status < 400 else ""


def asked(name: str, url: str, path: str, key: tuple[str, str], variable: str, keys: str) -> tuple[Finding, str]:
    """Whether a server is well and takes the key (user and password), and what it answers at `path`. `variable` names the
    server, and `keys` are the variables of the key."""
    shown = hidden(url)
    try:
        status, text = answer(f"{url}/health")
        if status == 200:
            status, text = answer(f"{url}{path}", *key)
    except (OSError, ValueError) as problem:
        text = f"{name} at {shown}, which {variable} names, does not answer ({reason_of(problem)})"
        return Finding("servers", BAD, text, f"unset {variable}"), ""
    if status in (401, 403):
        return Finding("servers", BAD, f"{name} at {shown} does not accept {keys}", ". .flywheel/ui.env"), ""
    if status != 200:
        return Finding("servers", BAD, f"{name} at {shown} answers with status {status}", f"unset {variable}"), ""
    return Finding("servers", OK, f"{name} at {shown} answers"), text


def mlflow(where: Place) -> Finding:
    uri = where.variables.get("MLFLOW_TRACKING_URI", "")
    if not uri.startswith(("http://", "https://")):
        path = where.root / ".flywheel" / "mlflow.db"
        if uri.startswith("postgresql"):
            return reached("MLflow's database", uri, 5432, "MLFLOW_TRACKING_URI")
        if uri.startswith("sqlite:"):
            path = where.root / re.sub(r"^sqlite:/{0,3}(?=[^/]|/)", "", uri)
        return of_sqlite(
            "MLflow", path, "mlflow", ["store", "db_migrations", "versions"], f"mlflow db upgrade sqlite:///{path}"
        )
    user, password = (where.variables.get(f"MLFLOW_TRACKING_{name}", "") for name in ("USERNAME", "PASSWORD"))
    keys = "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
    searched = "/api/2.0/mlflow/experiments/search?max_results=1"
    return asked("MLflow", uri.rstrip("/"), searched, (user, password), "MLFLOW_TRACKING_URI", keys)[0]


def prefect(where: Place) -> Finding:
    api = where.variables.get("PREFECT_API_URL", "").rstrip("/")
    if not api:
        home = Path(where.variables.get("PREFECT_HOME") or where.root / ".flywheel" / "prefect")
        folders = ["server", "database", "_migrations", "versions", "sqlite"]
        return of_sqlite("Prefect", home / "prefect.db", "prefect", folders, "prefect server database upgrade -y")
    user, _, password = where.variables.get("PREFECT_API_AUTH_STRING", "").partition(":")
    variable, keys = "PREFECT_API_URL", "PREFECT_API_AUTH_STRING"
    finding, text = asked("Prefect", api, "/admin/version", (user, password), variable, keys)
    if finding.state != OK:
        return finding
    version, own = str(json.loads(text)) if text else "", importlib.metadata.version("prefect")
    if version != own:
        text = f"Prefect at {hidden(api)} is version {version}, and {own} is installed here: update the older"
        return Finding("servers", WARN, text)
    return Finding("servers", OK, f"Prefect {version} at {hidden(api)} answers")


def reason_of(problem: BaseException) -> str:
    return str(getattr(problem, "reason", problem)) or type(problem).__name__


def reached(title: str, url: str, port: int, variable: str) -> Finding:
    """Whether a host accepts a connection; whether it accepts a key is not tried."""
    parts = urllib.parse.urlsplit(url)
    host, port = parts.hostname or "localhost", parts.port or port
    try:
        check_server(host, port, SECONDS)
    except OSError as problem:
        text = f"{title} {hidden(url)}, which {variable} names, does not answer ({reason_of(problem)})"
        return Finding("servers", BAD, text, f"unset {variable}")
    return Finding("servers", OK, f"{title} {hidden(url)} accepts connections")


# --- DVC's remotes


def remotes(where: Place) -> list[Finding]:
    """DVC's remotes: a folder must exist, a host must accept connections. Keys are not tried."""
    parsed = settings(where.root)
    sections = {
        re.sub(r"^'?remote \"?|\"?'?$", "", name): parsed[name] for name in parsed.sections() if "remote " in name
    }
    default, findings = parsed.get("core", "remote", fallback=""), []
    if default and default not in sections:
        text = f"core.remote is {default}, and DVC has no remote of that name"
        findings.append(Finding("remotes", BAD, text, f".venv/bin/dvc remote add {default} ADDRESS"))
    for name, section in sections.items():
        findings.append(of_remote(where.root, name, section.get("url", ""), section.get("endpointurl", "")))
    if sections and not default:
        text = f"there are {len(sections)} remotes and no default one, so `.venv/bin/dvc push` does not know where to"
        findings.append(Finding("remotes", WARN, text, f".venv/bin/dvc remote default {next(iter(sections))}"))
    return findings or [Finding("remotes", OK, "DVC has no remote: runs are in this machine's cache alone")]


def of_remote(root: Path, name: str, url: str, endpoint: str) -> Finding:
    parts = urllib.parse.urlsplit(url)
    if not url:
        return Finding(
            "remotes", BAD, f"the remote {name} has no url", f".venv/bin/dvc remote modify {name} url ADDRESS"
        )
    if parts.scheme in ("", "file", "local"):
        folder = root / ".dvc" / url.removeprefix("file://")
        state = OK if folder.is_dir() else BAD
        text = f"the remote {name} is the folder {folder.resolve()}" + (
            ", which does not exist" if state == BAD else ""
        )
        return Finding("remotes", state, text, "" if state == OK else f"mkdir -p {folder.resolve()}")
    host, port = parts.hostname, parts.port or DEFAULT_PORTS.get(parts.scheme)
    if parts.scheme == "s3" or endpoint:
        asked = urllib.parse.urlsplit(endpoint or "https://s3.amazonaws.com")
        host, port = asked.hostname, asked.port or DEFAULT_PORTS.get(asked.scheme, 443)
    elif parts.scheme in CLOUDS:
        host, port = CLOUDS[parts.scheme], 443
    if not host or port is None:
        return Finding(
            "remotes",
            WARN,
            f"the remote {name} ({hidden(url)}) is of a kind that is not tried here",
            ".venv/bin/dvc status -c",
        )
    try:
        check_server(host, port, SECONDS)
    except OSError as problem:
        text = f"the remote {name} ({hidden(url)}) cannot be reached: {host}:{port}: {reason_of(problem)}"
        return Finding("remotes", BAD, text, f".venv/bin/dvc remote modify {name} url ADDRESS")
    return Finding("remotes", OK, f"the remote {name} ({hidden(url)}) accepts connections; its keys were not tried")
