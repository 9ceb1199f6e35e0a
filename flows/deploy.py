"""Deploy: the deployments of prefect.yaml, and the limit that lets one run at a time train on this machine.

python -m flows.deploy                 # `make ui` calls it; against the server that PREFECT_API_URL names
"""

from __future__ import annotations

import subprocess
import sys

from flows.ui import LIMIT
from steps.stage import UserError, exit_code


def deploy() -> None:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        client.upsert_global_concurrency_limit_by_name(LIMIT, 1)
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"], capture_output=True, text=True
    )
    if done.returncode:
        raise UserError(f"`prefect deploy --all` failed: {' '.join((done.stderr or done.stdout).split())[-600:]}")


if __name__ == "__main__":
    sys.exit(exit_code(deploy))
