"""Rollback: puts the alias `champion` back to an earlier version of the registered model, and says why.

    python -m flows.rollback --to 3 --why "wrong dates in German mails"
    python -m flows.rollback --why "slower on long threads" --dry-run      # to the alias `previous`

Whoever loads models:/<name>@champion gets the earlier adapter from then on. Both versions are tagged with the reason, and
the one that was champion keeps the alias `previous`: nothing is deleted. The command needs no server of
Prefect: it must work when that does not; the deployment `rollback` calls the same function. Forward it goes through the gate
alone (flows/promote.py), which moves the alias by the same function.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from prefect import flow

from flows.deployment.settings import RollbackSettings
from flows.promotion.decisions import Decided, remember
from steps.core.errors import UserError
from steps.core.terminal import exit_code
from steps.project.store import address, explained
from steps.registry.model import read_registry


def rollback(root: Path, name: str, to: str, why: str, dry_run: bool = False) -> tuple[str, str]:
    """(version that was champion, version that is); UserError where it cannot be."""
    if not why.strip():
        raise UserError("--why is empty: say why, for whoever looks at the version later")
    registry = read_registry(root, name)
    before = registry.aliases.get("champion")
    if before is None:
        raise UserError(f"{name} has no champion that could be taken back: `python -m flows.promote` makes one")
    if to == "previous" and to not in registry.aliases:
        raise UserError(f"{name} has no alias previous, for its champion never changed: name a version with --to")
    after = str(registry.version(to).version)
    if after == before:
        raise UserError(f"version {after} of {name} is champion already: nothing to do")
    if int(after) > int(before) and after != registry.aliases.get("previous"):
        raise UserError(
            f"version {after} of {name} is later than the champion, {before}: forward it goes through the gate alone, "
            f"`python -m flows.promote --version {after}`"
        )
    if not dry_run:
        with explained(address(root)):
            registry.set_champion(after)
            registry.client.set_model_version_tag(name, before, "rolled_back", f"to version {after}: {why}")
            registry.client.set_model_version_tag(name, after, "restored", f"from version {before}: {why}")
        remember(registry, Decided("rollback", after, before, why))
    return before, after


@flow(name="rollback", log_prints=False)
def deployed(settings: RollbackSettings) -> tuple[str, str]:
    """(version that was champion, version that is), also on the flow run's page."""
    from prefect.artifacts import create_markdown_artifact

    before, after = rollback(Path.cwd(), settings.model, settings.to, settings.why, settings.dry_run)
    text = told(settings.model, before, after, settings.why, settings.dry_run)
    create_markdown_artifact(text, key="rollback", description=text)
    return before, after


def told(name: str, before: str, after: str, why: str, dry_run: bool) -> str:
    return f"{name}: champion was version {before}, and {'would be' if dry_run else 'is'} version {after} ({why})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.rollback", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--to", default="previous", metavar="VERSION", help="or an alias (default: previous)")
    parser.add_argument("--why", required=True, metavar="TEXT", help="kept with both versions")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    words = parser.parse_args()

    def work() -> None:
        from steps.core import dotenv, params

        dotenv.load(Path.cwd())

        known = params.load("params.yaml", params.PromoteParams)
        before, after = rollback(Path.cwd(), known.model, words.to, words.why, words.dry_run)
        print(told(known.model, before, after, words.why, words.dry_run))

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
