"""Past one machine: two Ray nodes against one, sampling ahead against a serial run, and adapters swapped under load.

    python -m benchmarks.fleet                   # the rows two_nodes, overlap and swap; --quick: less of each
    python -m benchmarks.fleet --rows cost       # seconds and memory by episodes, with the plot fleet_cost.png
    python -m benchmarks.fleet --rows learning   # does email_search with overlap 1 learn as serially? seeds 1, 2 and 3

`two_nodes`: episodes per second of two engines on two Ray nodes / of one, with tools of 50 ms. `overlap`: iterations an hour
with train.overlap: 1 / without, where sampling and updating take about as long (tools that sleep), and how many replays of
the run by `dvc repro --force` gave the same bytes. `swap`: the 95th percentile of the seconds that two vLLM servers under
load take to change to a new adapter / the second that is allowed. How each is measured: benchmarks/_fleet_<row>.py.
"""

from __future__ import annotations

import os

from benchmarks import _common
from benchmarks._common import ROOT, call

ROWS = {"two_nodes": "_fleet_two_nodes.measure", "overlap": "_fleet_overlap.measure", "swap": "_fleet_swap.measure"}
MORE = {"cost": "_fleet_two_nodes.costs", "learning": "_fleet_overlap.learning"}


def main() -> None:
    parser = _common.parser("fleet", __doc__, "fewer episodes, iterations, replays, swaps and seeds")
    parser.add_argument("--rows", nargs="+", choices=[*ROWS, *MORE], default=list(ROWS))
    options = parser.parse_args()
    os.chdir(ROOT)
    rows = _common.begin("fleet", options, 1.0 if options.rows == list(ROWS) else None)
    for name in options.rows:
        measured = call((ROWS | MORE)[name], quick=options.quick)
        for row in measured if isinstance(measured, list) else [measured]:
            rows.add(row)


if __name__ == "__main__":
    _common.command(main)
