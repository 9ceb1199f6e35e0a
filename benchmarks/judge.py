"""How close to the ideal does RULER come when it judges many groups at once? A simulated judge answers after a set time.

    python -m benchmarks.judge                             # 1,000 groups of 8, 64 connections, 200 ms: half a minute
    python -m benchmarks.judge --json --groups 100

The judge is a server in a process of its own (tests/support/judge_server.py). Row `judge`: the seconds of `ruler.judge_all`
over the ideal, calls × latency / connections; then the same again from the ledger, whose bytes must be equal. No real model
is asked.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def served(*words: str) -> Iterator[str]:
    """The judge's address, while it runs."""
    command = [sys.executable, "-m", "tests.support.judge_server", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def measure(groups: int, attempts: int, latency: float, connections: int, orders: int) -> dict[str, float | str]:
    """The row. AssertionError where a group was lost or the second time differs."""
    from steps.core.params import Endpoint, Ruler
    from steps.judging import ruler
    from tests.support.judged import group

    made = [group(number, attempts) for number in range(groups)]
    with served("--seconds", str(latency)) as address:
        endpoint = Endpoint(model="simulated", base_url=address, max_connections=connections)
        settings = Ruler(endpoint=endpoint, orders=orders, probes=0.0)
        ruler.judge_all([group(groups)], settings, [])  # connects, and makes the ledger
        began = time.perf_counter()
        found = ruler.judge_all(made, settings, [])
        seconds = time.perf_counter() - began
    began = time.perf_counter()
    again = ruler.judge_all(made, settings, [])  # the server is gone
    cached = time.perf_counter() - began
    assert [one.model_dump_json() for one in found] == [one.model_dump_json() for one in again]
    assert all(None not in one.scores.values() for one in found)
    ideal = groups * orders * latency / connections
    return {
        "name": "judge",
        "ratio": round(seconds / ideal, 3),
        "seconds": round(seconds, 2),
        "ideal_seconds": round(ideal, 2),
        "cached_seconds": round(cached, 2),
        "calls": groups * orders,
        "groups": groups,
        "connections": connections,
        "latency_seconds": latency,
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.judge", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--groups", type=int, default=1000)
    parser.add_argument("--attempts", type=int, default=8, help="of a group")
    parser.add_argument("--latency", type=float, default=0.2, help="seconds that an answer takes")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--orders", type=int, default=2)
    words = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="judge-") as folder:
        os.environ["FLYWHEEL_LEDGER_URL"] = f"sqlite:///{Path(folder) / 'ledger.db'}"
        os.environ["NO_PROXY"] = "127.0.0.1"
        row = measure(words.groups, words.attempts, words.latency, words.connections, words.orders)
    if words.json:
        print(json.dumps(row))
    else:
        print(
            f"{row['groups']} groups, {row['calls']} calls: {row['seconds']} s, ideal {row['ideal_seconds']} s, "
            f"ratio {row['ratio']}; from the ledger {row['cached_seconds']} s, same bytes"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
