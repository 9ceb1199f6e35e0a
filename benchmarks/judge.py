"""How close to the ideal does RULER come when it judges many groups at once? A simulated judge answers after a set time.

    python -m benchmarks.judge                             # 1,000 groups of 8, 64 connections, 200 ms: half a minute
    python -m benchmarks.judge --quick                     # 300 groups

The judge is a server in a process of its own (tests/support/judge_server.py). Row `judge`: the seconds of
`ruler.judge_all` over the ideal, calls × latency / connections; then the same again from the ledger, whose bytes must be
equal. No real model is asked.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks import _common

GROUPS, QUICK = 1000, 300


@contextlib.contextmanager
def served(*words: str) -> Iterator[str]:
    """The judge's address, while it runs."""
    command = [sys.executable, "-m", "tests.support.judge_server", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait()


def measure(groups: int, attempts: int, latency: float, connections: int, orders: int) -> dict[str, float | str]:
    """The row. AssertionError where a group was lost or the second time differs."""
    from addons.judges import ruler
    from addons.judges.section import Ruler
    from addons.models.section import Endpoint
    from tests.support.judged import group

    made = [group(number, attempts) for number in range(groups)]
    with served("--seconds", str(latency)) as address:
        endpoint = Endpoint(model="simulated", base_url=address, max_connections=connections)
        settings = Ruler(endpoint=endpoint, orders=orders, probes=0.0)
        ruler.judge_all([group(groups)], settings, [])  # connects, and makes the ledger
        began = time.perf_counter()
        judgements = ruler.judge_all(made, settings, [])
        seconds = time.perf_counter() - began
    began = time.perf_counter()
    again = ruler.judge_all(made, settings, [])  # the server is gone
    cached = time.perf_counter() - began
    assert [judgement.model_dump_json() for judgement in judgements] == [
        judgement.model_dump_json() for judgement in again
    ]
    assert all(None not in judgement.scores.values() for judgement in judgements)
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


def main() -> None:
    quick = f"{QUICK} groups in place of {GROUPS:,}, of which the first and last calls take a larger share"
    parser = _common.parser("judge", __doc__, quick)
    parser.add_argument("--groups", type=int, help=f"default: {GROUPS}; quick: {QUICK}")
    parser.add_argument("--attempts", type=int, default=8, help="of a group")
    parser.add_argument("--latency", type=float, default=0.2, help="seconds that an answer takes")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--orders", type=int, default=2)
    options = parser.parse_args()
    usual = QUICK if options.quick else GROUPS
    groups = options.groups or usual
    rows = _common.begin("judge", options, groups / usual)
    with tempfile.TemporaryDirectory(prefix="judge-") as folder:
        os.environ["FLYWHEEL_LEDGER_URL"] = f"sqlite:///{Path(folder) / 'ledger.db'}"
        os.environ["NO_PROXY"] = "127.0.0.1"
        rows.add(measure(groups, options.attempts, options.latency, options.connections, options.orders))


if __name__ == "__main__":
    _common.command(main)
