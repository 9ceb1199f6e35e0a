"""The versions of registered models that hold an adapter, as MLflow has them now."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from steps.core.errors import UserError
from steps.project import store

# --- Questions


@dataclasses.dataclass(frozen=True)
class Version:
    """A version of a registered model, as MLflow has it now."""

    name: str
    version: str
    aliases: list[str]
    adapter_hash: str


# --- The registry


def versions(root: Path) -> list[Version]:
    """All that hold an adapter, newest first; none where there is no store yet. UserError where it cannot be reached."""
    elsewhere = os.environ.get("MLFLOW_TRACKING_URI") or os.environ.get("MLFLOW_REGISTRY_URI")
    if not elsewhere and not (root / ".flywheel" / "mlflow.db").exists():
        return []
    with store.explained(store.address(root)):
        client = store.connect(root)
        aliases: dict[tuple[str, str], list[str]] = {}
        for model in _pages(client.search_registered_models):
            for alias, version in client.get_registered_model(model.name).aliases.items():
                aliases.setdefault((model.name, str(version)), []).append(alias)
        found = [
            Version(one.name, str(one.version), sorted(aliases.get((one.name, str(one.version)), [])), name)
            for one in _pages(client.search_model_versions)
            if (name := one.tags.get("adapter_hash"))
        ]
    return sorted(found, key=lambda one: (one.name, -int(one.version)))


def _pages(search: Any) -> Iterator[Any]:
    token = None
    while True:
        page = search(page_token=token)
        yield from page
        if not (token := page.token):
            return


def of_registry(model: str, known: Sequence[Version]) -> str | None:
    """The adapter of a models:/ address, None where it is no such address. UserError where there is no such version."""
    if not model.startswith("models:"):
        return None
    address = re.fullmatch(r"models:/([^/@]+)(?:@([^/@]+)|/([0-9]+))", model)
    if address is None:
        raise UserError(
            f"{model} is no version of a registered model: write models:/<name>@<alias> or models:/<name>/<number>"
        )
    name, alias, number = address.groups()
    of = [one for one in known if one.name == name]
    for one in of:
        if one.version == number or alias in one.aliases:
            return one.adapter_hash
    there = ", ".join(" ".join([one.version, *(f"@{alias}" for alias in one.aliases)]) for one in of)
    raise UserError(f"the registry has no {model} that holds an adapter; versions of {name}: {there or 'none'}")
