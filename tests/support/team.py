"""A team from nothing: PostgreSQL for Prefect, MLflow and the ledger, S3 for DVC's data and MLflow's artifacts, two clones.

    python -m tests.support.team                           # all of it; some minutes
    python -m tests.support.team --only writers --rows 100000
    python -m tests.support.team --only flow               # a run, a second clone that reproduces it, backup and restore

One line of JSON per part; exit code 1 where something is lost or differs. The SQL, the DVC remote, people's keys and the
backup are those of docs/team.md, taken out of the page. Everything listens on the loopback. All but `--only writers` needs
Debian's PostgreSQL (`apt-get install postgresql`): Prefect's migrations want its extension pg_trgm.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tests.conftest import change_params, copy_project, environment
from tests.support.team_services import PORTS, Team, binaries, documented, passwords

WRITERS = 8
SMALL: dict[str, dict[str, float | str]] = {
    "scenarios": {"train": 12, "val": 8, "test": 10},
    "rollout": {"scenarios": 4, "attempts": 4, "temperature": 1.0, "max_tokens": 64},
    "train": {"iterations": 2, "patience": 2, "way": "grpo"},
}


def write_rows(url: str, writer: int, count: int) -> None:
    """A writer's share of nodes and edges, in transactions of a thousand, and every tenth row as an answer of a model."""
    from addons.lineage import tables
    from addons.models.replies import Replies

    with Replies(url) as ledger:
        for first in range(0, count, 1000):
            rows = tables.Rows()
            for number in range(first, min(first + 1000, count)):
                node = rows.node(("scenario", f"{writer}-{number}"), writer=writer)
                rows.edge(node, "drawn", ("run", "shared"), number=number)
            rows.node(("run", "shared"))  # all writers add this one, at the same time
            ledger.change(partial(tables.write, rows=rows))
            reply = {"key": f"{writer}-{first}", "model": "m", "request": {}, "reply": {}, "input_tokens": 1}
            ledger.put(reply | {"output_tokens": 1, "cost": 0.0, "latency_seconds": 0.0, "retries": 0})


def writers(url: str, rows: int) -> dict[str, Any]:
    """Rows by so many processes at once, and how many of them are missing afterwards."""
    from addons.lineage import tables
    from addons.models.replies import REPLIES
    from steps.project.ledger import Ledger

    share = rows // WRITERS
    began = time.perf_counter()
    with ProcessPoolExecutor(WRITERS) as pool:
        list(pool.map(write_rows, [url] * WRITERS, range(WRITERS), [share] * WRITERS))
    seconds = time.perf_counter() - began
    with Ledger(url) as ledger, ledger.reading() as link:
        scenarios = sa.select(sa.func.count()).select_from(tables.NODES).where(tables.NODES.c.kind == "scenario")
        counts = {
            "nodes": link.scalar(scenarios),
            "edges": link.scalar(sa.select(sa.func.count()).select_from(tables.EDGES)),
        }
        replies = link.scalar(sa.select(sa.func.count()).select_from(REPLIES))
        database = link.dialect.name
    missing = {name: share * WRITERS - int(number or 0) for name, number in counts.items()}
    missing["replies"] = WRITERS * -(-share // 1000) - int(replies or 0)
    return {
        "name": "writers",
        "database": database,
        "writers": WRITERS,
        "rows": share * WRITERS,
        "missing": missing,
        "seconds": round(seconds, 1),
        "ok": not any(missing.values()),
    }


class Person:
    """Somebody with a clone."""

    def __init__(self, team: Team, folder: Path, name: str, key: str) -> None:
        self.team, self.folder, self.name, self.key = team, folder, name, key

    def __call__(self, *words: str, seconds: float = 900) -> str:
        """What a command prints; RuntimeError with the end of its output where it fails."""
        variables = environment(self.folder, **self.team.variables(self.name, self.key))
        done = subprocess.run(words, cwd=self.folder, env=variables, capture_output=True, text=True, timeout=seconds)
        if done.returncode:
            raise RuntimeError(f"{self.name}: {' '.join(words)}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}")
        return done.stdout

    def python(self, *words: str, seconds: float = 900) -> str:
        return self(sys.executable, "-m", *words, seconds=seconds)


def flow(team: Team, folder: Path) -> dict[str, Any]:
    """Alice trains and pushes; Bob's clone has none of her data, fetches the run, and runs it again."""
    origin, began = folder / "origin.git", time.perf_counter()
    alice = Person(team, copy_project(folder / "alice"), "alice", team.key("add", "alice"))
    change_params(alice.folder, SMALL)
    for line in documented("dvc remote add").splitlines():  # the DVC remote
        alice(*line.partition("#")[0].replace(".venv/bin/", "").split())
    alice(
        "git",
        "-c",
        "user.name=alice",
        "-c",
        "user.email=alice@localhost",
        "commit",
        "-qam",
        "a remote, and a small run",
    )
    alice("git", "init", "--quiet", "--bare", os.fspath(origin))
    alice("git", "remote", "add", "origin", os.fspath(origin))
    alice.python("flows.train", "--name", "first")
    alice("dvc", "push", "--quiet")
    alice("git", "push", "--quiet", "origin", "HEAD:refs/heads/main", "refs/runs/*:refs/runs/*")
    trained = time.perf_counter() - began

    alice("git", "clone", "--quiet", "--branch", "main", os.fspath(origin), os.fspath(folder / "bob"))
    bob = Person(team, folder / "bob", "bob", team.key("add", "bob", "--promoter"))
    bob("git", "fetch", "--quiet", "origin", "refs/runs/*:refs/runs/*")
    kept = outputs(bob.python("flows.reproduce", "first", "--kept", "--json"))
    again = outputs(bob.python("flows.reproduce", "first", "--json"))
    receipt = json.loads((alice.folder / "run/receipt.json").read_text())
    counts = {
        "runs in MLflow's PostgreSQL": team.psql("mlflow", "SELECT count(*) FROM runs"),
        "flow runs in Prefect's": team.psql("prefect", "SELECT count(*) FROM flow_run"),
        "nodes in the ledger's": team.psql("ledger", "SELECT count(*) FROM nodes"),
    }
    artifacts = team.psql("mlflow", "SELECT DISTINCT split_part(artifact_uri, '/', 3) FROM runs").split()
    differing = [row["path"] for row in kept + again if not row["same"]]
    return {
        "name": "flow",
        "registered": receipt["registered"],
        "fetched by the second clone": len(kept),
        "run again there": len(again),
        "differing": differing,
        **{name: int(number) for name, number in counts.items()},
        "buckets of artifacts": artifacts,
        "seconds to train and push": round(trained, 1),
        "ok": not differing
        and min(len(kept), len(again)) > 20
        and artifacts == ["flywheel"]
        and "0" not in counts.values(),
    }


def outputs(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


def backup(team: Team, folder: Path) -> dict[str, Any]:
    """docs/team.md's dump and restore of the three databases, and their rows before and after."""

    address = {"PGHOST": team.where["postgres"][0], "PGPORT": str(PORTS["postgres"]), "PGUSER": "postgres"}
    variables = environment(folder, **address, PGPASSWORD="owner-of-all")
    variables["PATH"] = f"{binaries()}:{variables['PATH']}"

    def script(text: str) -> None:
        done = subprocess.run(["bash", "-euc", text], cwd=folder, env=variables, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)

    tables = {
        "ledger": "nodes edges replies decisions looks ledger_version",
        "mlflow": "runs metrics",
        "prefect": "flow_run",
    }

    def rows() -> dict[str, str]:
        return {
            f"{database}.{table}": team.psql(
                database, f"SELECT md5(string_agg(t::text, '|' ORDER BY t::text)) FROM {table} t"
            )
            for database, names in tables.items()
            for table in names.split()
        }

    script(documented("pg_dump "))
    before = rows()
    for database in tables:
        team.psql("postgres", f"DROP DATABASE {database} WITH (FORCE)")
    script(documented("pg_restore"))
    after = rows()
    return {"name": "backup", "tables": len(before), "ok": before == after and any(before.values())}


def main() -> int:
    about = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.support.team", description=about)
    parser.add_argument("--only", choices=["writers", "flow"])
    parser.add_argument("--rows", type=int, default=100_000)
    options = parser.parse_args()
    results = []

    def report(row: dict[str, Any]) -> None:
        results.append(row)
        print(json.dumps(row), flush=True)

    with tempfile.TemporaryDirectory(prefix="team-") as text, Team(Path(text)) as team:
        folder = Path(text)
        team.start_postgres()
        if options.only != "flow":
            team.psql("postgres", "CREATE DATABASE writers")
            report(writers(team.database("writers", "postgres"), options.rows))
            report(writers(f"sqlite:///{folder}/writers.db", options.rows))
        if options.only != "writers":
            team.machine.mkdir()
            team.start_s3()
            team.start_servers()
            ledger_rights(team)
            report(flow(team, folder))
            report(backup(team, folder))
    return 0 if all(row["ok"] for row in results) else 1


def ledger_rights(team: Team) -> None:
    """The owner opens the ledger, which makes its tables, and grants its people what docs/team.md says."""
    from steps.project.ledger import Ledger

    Ledger(team.database("ledger", "ledger"))
    team.psql("ledger", passwords(documented("ON replies")), user="ledger")


if __name__ == "__main__":
    sys.exit(main())
