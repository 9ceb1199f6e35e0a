"""Promote: judges the registry's challenger against the champion, and makes it champion if it passes the gate.

A model's first version passes it as well, against the base policy. Before that there is no champion.

    python -m flows.promote                 # the version with the alias `challenger`
    python -m flows.promote --version 4
    python -m flows.promote --dry-run       # judges, and changes nothing in MLflow; counts as a look at the test split

The champion's adapter comes from the registry. It is evaluated on the run's own test scenarios, as the scripted player is;
an evaluation of the same inputs is not made again. run/promote/<challenger's hash>/ holds verdict.json, verdict.md and
verdict.png, which are also logged to the challenger's MLflow run. The version is tagged, the former champion gets the alias
`previous` (flows/rollback.py goes back to it), and the ledger gets the decision. Killed in between, the next command
finishes it (flows/promotion/change.py). With serve.canary, a version that passes gets that share of the traffic first, under
the alias `canary`, and what people say decides (docs/flywheel.md).
Exit code 0: the version is champion now, would be with --dry-run, or was before; 3: it is refused.
"""

from __future__ import annotations

import sys
from pathlib import Path

from prefect import flow

from flows.deployment.checkout import restored
from flows.deployment.settings import PromoteSettings
from flows.promotion import change
from flows.promotion.judging import Challenge, challenge, check_right, log_verdict, on_trial, print_end
from flows.terminal import recorded
from flows.terminal.command import prepare, run_command
from steps.core import params
from steps.core.ports import every
from steps.core.terminal import command_parser
from steps.project import store
from steps.registry import verdict_report
from steps.registry.gate import Verdict

REFUSED = 3  # exit code


@flow(name="promote", log_prints=False, on_crashed=[recorded.stopped])
def promote(settings: PromoteSettings) -> Verdict | None:
    """Judge a version (by default the challenger), and promote it past the gate. None where it is champion already."""
    if not settings.dry_run:
        check_right()
    with restored():
        return decided(settings)


def decided(settings: PromoteSettings) -> Verdict | None:
    """The same on the run in the current folder, whose data are there."""
    if not settings.dry_run:
        change.finish(Path.cwd(), params.load("params.yaml", params.PromoteParams).model)
    judged = challenge(settings)
    if judged is None:
        return None
    if not settings.dry_run:
        publish(judged)
    print_end(judged, settings.dry_run)
    return judged.verdict


def publish(judged: Challenge) -> None:
    """Log the verdict, then decide: tag the version, move the alias, write the ledger's row. No champion is ever without its
    evidence."""
    model, verdict, number = judged.model, judged.verdict, str(judged.version.version)
    with store.explained(store.address(Path.cwd())):
        run_id = log_verdict(judged, "promotion")
    text, note = judged.version.description or "", verdict_report.note(verdict)
    tags = {"verdict": verdict.hash, "verdict_run": run_id}
    writes: list[change.Write] = [("tag", number, *tag) for tag in tags.items()]
    writes += [("text", number, card.with_verdict(text, note)) for card in every("card")]
    event = ("canary" if on_trial(judged) else "promotion") if verdict.promoted else "refusal"
    if event == "canary":
        writes += [write for trial in every("trial") for write in trial.trial_writes(number)]
    else:
        writes += change.champion_writes(model, number) if verdict.promoted else []
        writes.append(("tag", number, "promoted", str(verdict.promoted).lower()))
    change.decide(model, event, number, verdict.reason, writes, judged.folder)


def main() -> int:
    parser = command_parser("flows.promote", __doc__)
    parser.add_argument(
        "--version", default="challenger", metavar="N", help="a version, or an alias (default: challenger)"
    )
    parser.add_argument("--dry-run", action="store_true", help="judge and write the verdict; change nothing in MLflow")
    options = parser.parse_args()

    def work() -> int:
        prepare(by_hand=True)
        verdict = promote(PromoteSettings(version=options.version, dry_run=options.dry_run))
        return 0 if verdict is None or verdict.promoted else REFUSED

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
