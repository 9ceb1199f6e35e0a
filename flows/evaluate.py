"""Evaluate: judges a registered version beside champion, base policy and scripted player, and moves no alias.

    python -m flows.evaluate                # the version with the alias `challenger`
    python -m flows.evaluate --version 4

The policies are compared on the run's own test scenarios, paired, by the checks of the gate (steps/registry/gate.py). The
table, picture and JSON are those of flows/promote.py: in run/promote/<adapter>/, on the flow run's page, and with the MLflow
run that made the version. Promoting the version later does not evaluate it again; both together are one look at the test
split (steps/registry/looks.py). With `make ui` running, every new challenger is evaluated by itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

from prefect import flow

from flows.deployment.checkout import restored
from flows.deployment.settings import EvaluateSettings
from flows.promotion.judging import challenge, log_verdict, print_end
from flows.terminal import recorded
from flows.terminal.command import prepare, run_command
from steps.core.terminal import command_parser
from steps.project import store
from steps.registry.gate import Verdict


@flow(name="evaluate", log_prints=False, on_crashed=[recorded.stopped])
def evaluate(settings: EvaluateSettings) -> Verdict:
    """The verdict on a version (by default the challenger), as `promote` would reach it now."""
    with restored():
        judged = challenge(settings, also_champion=True)
        assert judged is not None
        with store.explained(store.address(Path.cwd())):
            log_verdict(judged, "evaluation")
        print_end(judged, dry_run=True)
        return judged.verdict


def main() -> int:
    parser = command_parser("flows.evaluate", __doc__)
    parser.add_argument(
        "--version", default="challenger", metavar="N", help="a version, or an alias (default: challenger)"
    )
    options = parser.parse_args()

    def work() -> None:
        prepare(by_hand=True)
        evaluate(EvaluateSettings(version=options.version))

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
