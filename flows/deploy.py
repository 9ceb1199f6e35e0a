"""Deploy: the deployments of prefect.yaml, the automations, and the limit of how many runs train on this machine at a time.

python -m flows.deploy [--runs 1]      # `make ui` calls it; against the server that PREFECT_API_URL names
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
    """Idempotent: what is there is brought up to date."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(LIMIT, runs)
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"], capture_output=True, text=True
    )
    if done.returncode:
        raise UserError(f"`prefect deploy --all` failed: {' '.join((done.stderr or done.stdout).split())[-600:]}")
    automations.apply()


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.deploy", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--runs", type=int, default=1, help="at a time on this machine: as many as it has GPUs (default: 1)"
    )
    options = parser.parse_args(words)
    if options.runs < 1:
        parser.error(f"--runs {options.runs}: at least one run must be able to train")
    return exit_code(lambda: deploy(options.runs))


if __name__ == "__main__":
    sys.exit(main())
