"""Databases of MLflow and Prefect with thousands of runs: how long the answers take that their pages ask for.

    python -m tests.support.filled                 # 10,000 runs of each
    python -m tests.support.filled --runs 100

A run is logged to MLflow and a flow is run on a Prefect server of its own; their rows are then copied under new ids into the
SQLite files, because making so many for real takes hours. The servers, which are the real ones, are asked what their pages
ask: one line of JSON with the seconds of each answer, the longest of three. Exit code 1 where one takes over two seconds.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import sqlite3
import sys
import tempfile
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import ROOT, end, free_port, python, run, start, wait_for

LONGEST = 2.0  # seconds of an answer
TIMES = 3
METRICS, PARAMS, TASK_RUNS = 40, 60, 12  # of a run, as many as an iteration of a default run has
FLOW = f"""
from prefect import flow, task

@task
def stage(number): return number

@flow(name="train")
def train():
    for number in range({TASK_RUNS}): stage(number)

train()
"""
Row = dict[str, Any]


def copies(database: sqlite3.Connection, table: str, where: str, change: Callable[[Row, int], Row], runs: int) -> int:
    """Copy the rows of a table that fit `where`, once for each run, as `change` makes them of a row and the run's number."""
    cursor = database.execute(f"SELECT * FROM {table} WHERE {where}")
    names = [column[0] for column in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    words = f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join(f':{name}' for name in names)})"
    database.executemany(words, (change(row, number) for number in range(1, runs) for row in rows))
    return len(rows)


def of_run(text: str, number: int) -> str:
    """The id of a copy, in the form of the one that is copied."""
    made = uuid.uuid5(uuid.NAMESPACE_OID, f"{text} {number}")
    return str(made) if "-" in text else made.hex


def fill_mlflow(folder: Path, runs: int) -> str:
    """A store in the folder, with so many runs in one experiment; the experiment's id."""
    from mlflow.entities import Metric, Param

    from steps.project import store

    (folder / ".flywheel").mkdir(parents=True)
    store.make_store(folder / ".flywheel/mlflow.db")
    client = store.connect(folder)
    experiment = client.create_experiment("email_search")
    made = client.create_run(experiment, run_name="run")
    when = int(time.time() * 1000)
    metrics = [Metric(f"metric_{place}", place / 7, when, 0) for place in range(METRICS)]
    client.log_batch(made.info.run_id, metrics, [Param(f"param_{place}", str(place)) for place in range(PARAMS)])
    client.set_terminated(made.info.run_id)
    with closing(sqlite3.connect(folder / ".flywheel/mlflow.db")) as database, database:

        def change(row: Row, number: int) -> Row:
            moved = {"start_time": (row.get("start_time") or 0) - 1000 * number} if "start_time" in row else {}
            return row | {"run_uuid": of_run(row["run_uuid"], number)} | moved

        for table in ("runs", "metrics", "latest_metrics", "params", "tags"):
            copies(database, table, f"run_uuid = '{made.info.run_id}'", change, runs)
    return str(experiment)


def fill_prefect(folder: Path, runs: int, port: int) -> None:
    """A database of Prefect's in the folder, with so many runs of one flow."""
    with prefect(folder, port) as address:
        done = run([sys.executable, "-c", FLOW], folder, PREFECT_API_URL=address)
        if done.returncode:
            raise SystemExit(f"the flow failed: {done.stderr}")
        until = time.monotonic() + 60  # task runs arrive as events
        while len(ask(f"{address}/task_runs/filter", {})) < TASK_RUNS and time.monotonic() < until:
            time.sleep(0.5)
    with closing(sqlite3.connect(folder / ".flywheel/prefect/prefect.db")) as database, database:

        def change(row: Row, number: int) -> Row:
            linked = ("id", "flow_run_id", "task_run_id", "state_id")
            return row | {name: of_run(row[name], number) for name in linked if row.get(name)} | unique(row, number)

        for table in ("flow_run_state", "task_run_state", "flow_run", "task_run"):
            copies(database, table, "1", change, runs)


def unique(row: Row, number: int) -> Row:
    """What may be there once for a flow or a task."""
    names = ("idempotency_key", "dynamic_key")
    return {name: f"{row[name]} {number}" for name in names if row.get(name)}


@contextmanager
def prefect(folder: Path, port: int) -> Iterator[str]:
    words = python("prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port))
    (folder / ".flywheel").mkdir(parents=True, exist_ok=True)
    process = start(words, folder, folder / ".flywheel/server.log")
    try:
        wait_for(f"http://127.0.0.1:{port}/api/health", process)
        yield f"http://127.0.0.1:{port}/api"
    finally:
        end(process)


@contextmanager
def mlflow(folder: Path, port: int) -> Iterator[tuple[str, str]]:
    """(address, the header that opens it) of MLflow's server as `make mlflow` starts it."""
    words = python("flows.deployment.mlflow_server", "--port", str(port))
    process = start(words, folder, folder / ".flywheel/server.log", PYTHONPATH=os.fspath(ROOT), HOME=os.fspath(folder))
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process)
        password = (folder / ".flywheel/mlflow.key").read_text().strip()
        token = base64.b64encode(f"flywheel:{password}".encode()).decode()
        yield f"http://127.0.0.1:{port}/ajax-api/2.0/mlflow", f"Basic {token}"
    finally:
        end(process)


def ask(address: str, body: Row | None, key: str = "") -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"} | ({"authorization": key} if key else {})
    with urllib.request.urlopen(urllib.request.Request(address, data, headers), timeout=60) as answer:
        return json.loads(answer.read())


def seconds(address: str, body: Row | None, key: str = "") -> float:
    """The longest of three answers."""
    longest = 0.0
    for _ in range(TIMES):
        began = time.monotonic()
        ask(address, body, key)
        longest = max(longest, time.monotonic() - began)
    return round(longest, 3)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=10_000)
    runs = parser.parse_args(words).runs
    times: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="filled") as place:
        experiment = fill_mlflow(Path(place, "mlflow"), runs)
        with mlflow(Path(place, "mlflow"), free_port()) as (address, key):
            search = {"experiment_ids": [experiment], "max_results": 100}
            newest = search | {"order_by": ["attributes.start_time DESC"]}
            [first, *_] = ask(f"{address}/runs/search", newest, key)["runs"]
            times["mlflow, runs of an experiment"] = seconds(f"{address}/runs/search", newest, key)
            best = search | {"order_by": ["metrics.metric_3 DESC"], "filter": "params.param_5 = '5'"}
            times["mlflow, sorted by a metric"] = seconds(f"{address}/runs/search", best, key)
            single = f"{address}/runs/get?run_id={first['info']['run_id']}"
            times["mlflow, a run"] = seconds(single, None, key)
            times["mlflow, experiments"] = seconds(f"{address}/experiments/search", {"max_results": 100}, key)
        port = free_port()
        fill_prefect(Path(place, "prefect"), runs, port)
        with prefect(Path(place, "prefect"), port) as address:
            newest = {"sort": "START_TIME_DESC", "limit": 100}
            [flow_run, *_] = ask(f"{address}/flow_runs/filter", newest)
            count = ask(f"{address}/flow_runs/count", {})
            if count != runs:
                raise SystemExit(f"Prefect has {count} runs in place of {runs}")
            times["prefect, runs"] = seconds(f"{address}/flow_runs/filter", newest)
            times["prefect, a page of runs"] = seconds(f"{address}/flow_runs/paginate", newest | {"page": 1})
            times["prefect, number of runs"] = seconds(f"{address}/flow_runs/count", {})
            own = {"flow_runs": {"id": {"any_": [flow_run["id"]]}}, "limit": 200}
            times["prefect, tasks of a run"] = seconds(f"{address}/task_runs/filter", own)
            times["prefect, flows"] = seconds(f"{address}/flows/paginate", {"limit": 50, "page": 1})
    print(json.dumps({"runs": runs, "seconds": times}))
    return int(max(times.values()) > LONGEST)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
