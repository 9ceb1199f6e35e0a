"""Rollback: moves the alias `champion` back to an earlier version of the registered model, and records why.

    python -m flows.rollback --to 3 --why "wrong dates in German mails"
    python -m flows.rollback --why "slower on long threads" --dry-run      # to the alias `previous`

From then on models:/<name>@champion is the earlier adapter. Both versions are tagged with the reason, and the former
champion gets the alias `previous`; nothing is deleted. Killed in between, the same command, or any other that decides,
finishes it (flows/promotion/change.py). The command needs no Prefect server, because it must work when there
is none; the deployment `rollback` calls the same function. Only the gate (flows/promote.py) moves the alias forward.
"""

from __future__ import annotations

import sys
from pathlib import Path

from prefect import flow

from flows.deployment.settings import RollbackSettings
from flows.promotion import change
from flows.terminal import recorded
from steps.core import dotenv, params
from steps.core.errors import UserError
from steps.core.terminal import command_parser, exit_code
from steps.registry.model import read_registry


def rollback(root: Path, name: str, to: str, why: str, dry_run: bool = False) -> tuple[str, str]:
    """(version that was champion, version that is champion now). UserError where the alias cannot be moved so."""
    if not why.strip():
        raise UserError("--why is empty: give the reason, for whoever looks at the version later")
    finished = None if dry_run else change.finish(root, name)
    model = read_registry(root, name)
    before = model.aliases.get("champion")
    last = finished or change.last(name)
    is_again = last is not None and (last.event, last.version) == ("rollback", before) and to in ("previous", before)
    if last is not None and is_again and (finished or last.why == why):
        return str(last.champion), last.version  # this command, after it was killed: not forward again
    if before is None:
        raise UserError(
            f"{name} has no champion that could be taken back: `.venv/bin/python -m flows.promote` makes one"
        )
    if to == "previous" and to not in model.aliases:
        raise UserError(f"{name} has no alias previous, for its champion never changed: name a version with --to")
    after = str(model.version(to).version)
    if after == before:
        raise UserError(f"version {after} of {name} is champion already: nothing to do")
    if int(after) > int(before) and after != model.aliases.get("previous"):
        raise UserError(
            f"version {after} of {name} is later than the champion, {before}: forward it goes through the gate alone, "
            f"`.venv/bin/python -m flows.promote --version {after}`"
        )
    if not dry_run:
        writes = change.champion_writes(model, after)
        writes.append(("tag", before, "rolled_back", f"to version {after}: {why}"))
        writes.append(("tag", after, "restored", f"from version {before}: {why}"))
        change.decide(model, "rollback", after, why, writes)
    return before, after


@flow(name="rollback", log_prints=False, on_crashed=[recorded.stopped])
def deployed(settings: RollbackSettings) -> tuple[str, str]:
    """(version that was champion, version that is champion now), which the flow run's page shows as well."""
    from prefect.artifacts import create_markdown_artifact

    before, after = rollback(Path.cwd(), settings.model, settings.to, settings.why, settings.dry_run)
    text = describe(settings.model, before, after, settings.why, settings.dry_run)
    create_markdown_artifact(text, key="rollback", description=text)
    return before, after


def describe(name: str, before: str, after: str, why: str, dry_run: bool) -> str:
    """What was done, or would be, in one line."""
    return f"{name}: champion was version {before}, and {'would be' if dry_run else 'is'} version {after} ({why})"


def main() -> int:
    parser = command_parser("flows.rollback", __doc__)
    parser.add_argument(
        "--to", default="previous", metavar="VERSION", help="a version, or an alias (default: previous)"
    )
    parser.add_argument("--why", required=True, metavar="TEXT", help="the reason, which is kept with both versions")
    parser.add_argument("--dry-run", action="store_true", help="print what would be done, and do nothing")
    options = parser.parse_args()

    def work() -> None:
        dotenv.load(Path.cwd())
        name = params.load("params.yaml", params.PromoteParams).model
        before, after = rollback(Path.cwd(), name, options.to, options.why, options.dry_run)
        print(describe(name, before, after, options.why, options.dry_run))

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
