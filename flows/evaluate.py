"""Evaluate: judges a version of the registry beside champion, base policy and scripted player, and moves nothing.

    python -m flows.evaluate                # the version with the alias `challenger`
    python -m flows.evaluate --version 4

On the run's own test scenarios, paired, by the checks of the gate (steps/registry/gate.py): the same table, picture and
JSON as
flows/promote.py, in run/promote/<adapter>/, on the flow run's page, and with the MLflow run that made the version. What is
evaluated here is not evaluated again when it is promoted. `make ui` starts it by itself for every new challenger.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from prefect import flow

from flows.deployment.restore import restored
from flows.deployment.settings import EvaluateSettings
from flows.promotion.judging import challenge, print_end, run_of
from flows.terminal.command import end_worker, prepare, run_command
from steps.project import store
from steps.registry.gate import Verdict


@flow(name="evaluate", log_prints=False)
def evaluate(settings: EvaluateSettings) -> Verdict:
    """The verdict on a version (by default the challenger), as it would be if it were to be promoted now."""
    with restored():
        try:
            found = challenge(settings, anyone=True)
            assert found is not None
            with store.explained(store.address(Path.cwd())):
                run_id = run_of(found.registry, found.version, found.known)
                for name in ("verdict.json", "verdict.md", "verdict.png"):
                    found.registry.client.log_artifact(run_id, str(found.folder / name), "evaluation")
            print_end(found.verdict, found.registry, found.version, found.folder, dry_run=True)
            return found.verdict
        finally:
            end_worker()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.evaluate", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--version", default="challenger", metavar="N", help="of the registered model, or an alias")
    words = parser.parse_args()

    def work() -> int:
        prepare()
        evaluate(EvaluateSettings(version=words.version))
        return 0

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
