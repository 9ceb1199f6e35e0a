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
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

from prefect import flow

from flows.settings import RollbackSettings
from steps.register import address, connect, explained, hidden
from steps.stage import UserError, exit_code


class Registry(NamedTuple):
    """A registered model as it is now."""

    client: Any  # mlflow.MlflowClient
    name: str
    versions: dict[str, Any]  # version -> mlflow.entities.model_registry.ModelVersion
    aliases: dict[str, str]  # alias -> version

    def version(self, wanted: str) -> Any:
        """The version of this number, or with this alias; UserError where there is none."""
        number = self.aliases.get(wanted, wanted)
        if number in self.versions:
            return self.versions[number]
        known = ", ".join([*sorted(self.versions, key=int), *sorted(self.aliases)])
        raise UserError(f"{self.name} has no version {wanted}: give one of {known}")

    def crown(self, version: str) -> None:
        """Make a version champion; the champion before it becomes `previous`."""
        now = self.client.get_registered_model(self.name).aliases.get("champion")
        if _text(now) != self.aliases.get("champion"):
            raise UserError(f"the champion of {self.name} has become version {now} meanwhile: run the same again")
        if now is not None:
            self.client.set_registered_model_alias(self.name, "previous", str(now))
        self.client.set_registered_model_alias(self.name, "champion", version)


def _text(version: Any) -> str | None:
    return None if version is None else str(version)


def read_registry(root: Path, name: str) -> Registry:
    """The model as MLflow has it; UserError where there is none."""
    with explained(address(root)):
        client = connect(root)
        versions = {str(one.version): one for one in client.search_model_versions(f"name = '{name}'")}
        if not versions:
            raise UserError(f"MLflow at {hidden(address(root))} holds no version of {name}: `make train` registers one")
        aliases = client.get_registered_model(name).aliases
    return Registry(client, name, versions, {alias: str(version) for alias, version in aliases.items()})


def logged_model(version: Any) -> str:
    """The id of the logged model that steps/register.py made a version of; UserError where it was made otherwise."""
    source = str(version.source)
    if not source.startswith("models:/m-"):
        raise UserError(
            f"{version.name} version {version.version} is of {source}, and no logged model: only what the stage register "
            "made can be compared"
        )
    return source.removeprefix("models:/")


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
            registry.crown(after)
            registry.client.set_model_version_tag(name, before, "rolled_back", f"to version {after}: {why}")
            registry.client.set_model_version_tag(name, after, "restored", f"from version {before}: {why}")
        remember(registry, Decided("rollback", after, before, why))
    return before, after


class Decided(NamedTuple):
    """What was done with a version."""

    event: str  # promotion, refusal, rollback
    version: str
    champion: str | None  # before
    why: str
    verdict: Path | None = None  # the folder of the verdict that it rests on


def remember(registry: Registry, done: Decided) -> None:
    """A row in the ledger; one that is away undoes nothing, for MLflow's tags have it, too."""
    from sqlalchemy.exc import SQLAlchemyError

    from steps import decisions, lineage_index
    from steps.ledger import Ledger

    def adapter(version: str | None) -> str | None:
        return registry.versions[version].tags.get("adapter_hash") if version in registry.versions else None

    found = lineage_index.evidence(done.verdict, os.fspath(done.verdict)) if done.verdict else None
    row = decisions.Decision(
        done.event,
        registry.name,
        done.version,
        adapter(done.version),
        done.champion,
        adapter(done.champion),
        done.why,
        found["hash"] if found else None,
    )
    try:
        with Ledger() as ledger:
            decisions.record(ledger, row, found)
            if done.verdict:
                lineage_index.add_verdict(Path.cwd(), ledger, os.fspath(done.verdict))
    except (UserError, SQLAlchemyError) as problem:
        reason = " ".join(str(problem).split())[:300]
        print(
            f"The ledger was not written: {reason}; MLflow's tags have what was decided.", file=sys.stderr, flush=True
        )


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
        from steps import dotenv, params

        dotenv.load(Path.cwd())

        known = params.load("params.yaml", params.PromoteParams)
        before, after = rollback(Path.cwd(), known.model, words.to, words.why, words.dry_run)
        print(told(known.model, before, after, words.why, words.dry_run))

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
