"""Deploy: makes the deployments of prefect.yaml, the automations, and the limit of how many runs train at a time.

python -m flows.deploy [--runs 1]      # on the server that PREFECT_API_URL names; `make ui` calls it
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from flows.deployment import automations
from flows.deployment.workspace import LIMIT
from steps.core.errors import UserError
from steps.core.terminal import exit_code


def deploy(runs: int = 1) -> None:
    """Make them, or bring those that exist up to date. `runs` train on this machine at a time."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(LIMIT, runs)
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    process = subprocess.run(command, capture_output=True, text=True)
    if process.returncode:
        raise UserError(f"`prefect deploy --all` failed: {' '.join((process.stderr or process.stdout).split())[-600:]}")
    automations.apply()


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.deploy", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--runs", type=int, default=1, help="runs at a time: as many as this machine has GPUs (default: 1)"
    )
    options = parser.parse_args(words)
    if options.runs < 1:
        parser.error(f"--runs {options.runs}: at least one run must be able to train")
    return exit_code(lambda: deploy(options.runs))


if __name__ == "__main__":
    sys.exit(main())
