"""Promote: judges the challenger of the registry against the champion, and makes it champion past the gate.

    python -m flows.promote                 # the version with the alias `challenger`
    python -m flows.promote --version 4
    python -m flows.promote --dry-run       # judges, and changes nothing in MLflow

The champion's adapter comes from the registry, and is evaluated on the run's own test scenarios, as is the scripted player;
what is there from the same inputs is not made again. run/promote/<challenger's hash>/ holds verdict.json, verdict.md and
verdict.png, which are logged to the challenger's MLflow run, too; the version is tagged, and the champion before keeps the
alias `previous` (flows/rollback.py goes back to it). The decision is a row of the ledger. Exit code 0: it is champion now,
would be, or was before; 3: refused.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from prefect import flow

from flows.deployment.restore import restored
from flows.deployment.settings import PromoteSettings
from flows.promotion.decisions import Decided, remember
from flows.promotion.judging import challenge, print_end, run_of
from flows.terminal.command import end_worker, prepare, run_command
from steps.core.params import PromoteParams
from steps.project import store
from steps.registry import card, gate
from steps.registry.gate import Verdict
from steps.registry.model import RegisteredModel

REFUSED = 3  # exit code


@flow(name="promote", log_prints=False)
def promote(settings: PromoteSettings) -> Verdict | None:
    """Judge a version (by default the challenger), and make it champion past the gate. None where it is champion already."""
    with restored():
        try:
            found = challenge(settings)
            if found is None:
                return None
            if not settings.dry_run:
                with store.explained(store.address(Path.cwd())):
                    publish(found.registry, found.version, found.verdict, found.folder, found.known)
                event, number = "promotion" if found.verdict.promoted else "refusal", str(found.version.version)
                champion = found.registry.aliases.get("champion")
                remember(found.registry, Decided(event, number, champion, found.verdict.reason, found.folder))
            print_end(found.verdict, found.registry, found.version, found.folder, settings.dry_run)
            return found.verdict
        finally:
            end_worker()


def publish(registry: RegisteredModel, challenger: Any, verdict: Verdict, folder: Path, known: PromoteParams) -> None:
    """Log the verdict, tag the version, move the alias: in this order, so that no champion is without its evidence."""
    client, number = registry.client, str(challenger.version)
    run_id = run_of(registry, challenger, known)
    for name in ("verdict.json", "verdict.md", "verdict.png"):
        client.log_artifact(run_id, str(folder / name), "promotion")
    client.set_model_version_tag(registry.name, number, "verdict", verdict.hash)
    client.set_model_version_tag(registry.name, number, "verdict_run", run_id)
    text = card.with_verdict(challenger.description or "", gate.note(verdict))
    client.update_model_version(registry.name, number, text)
    if verdict.promoted:
        registry.set_champion(number)
    client.set_model_version_tag(registry.name, number, "promoted", str(verdict.promoted).lower())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.promote", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--version", default="challenger", metavar="N", help="or an alias (default: challenger)")
    parser.add_argument("--dry-run", action="store_true", help="judge and write the verdict; change nothing in MLflow")
    words = parser.parse_args()

    def work() -> int:
        prepare()
        verdict = promote(PromoteSettings(version=words.version, dry_run=words.dry_run))
        return 0 if verdict is None or verdict.promoted else REFUSED

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
