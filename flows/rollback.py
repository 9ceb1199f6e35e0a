"""Rollback: puts the alias `champion` back to an earlier version of the registered model, and says why.

    python -m flows.rollback --to 3 --why "wrong dates in German mails"
    python -m flows.rollback --why "slower on long threads" --dry-run      # to the alias `previous`

Whoever loads models:/<name>@champion gets the earlier adapter from then on. Both versions are tagged with the reason, and
the one that was champion keeps the alias `previous`: nothing is deleted. No Prefect flow: it must work at once, and when
Prefect does not. Forward it goes through the gate alone (flows/promote.py), which moves the alias by the same function.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any, NamedTuple

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
    return before, after


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.rollback", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--to", default="previous", metavar="VERSION", help="or an alias (default: previous)")
    parser.add_argument("--why", required=True, metavar="TEXT", help="kept with both versions")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and do nothing")
    words = parser.parse_args()

    def work() -> None:
        from steps import params

        known = params.load("params.yaml", params.PromoteParams)
        before, after = rollback(Path.cwd(), known.model, words.to, words.why, words.dry_run)
        would = "would be" if words.dry_run else "is"
        print(f"{known.model}: champion was version {before}, and {would} version {after} ({words.why})")

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
