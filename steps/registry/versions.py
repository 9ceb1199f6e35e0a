"""The versions of registered models that hold an adapter, as MLflow has them now."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from steps.core.errors import UserError
from steps.project import store


@dataclasses.dataclass(frozen=True)
class Version:
    """A version of a registered model, as MLflow has it now."""

    name: str
    version: str
    aliases: list[str]
    adapter_hash: str


def pages(search: Callable[..., Any], **options: Any) -> Iterator[Any]:
    """Every entity that one of MLflow's paged searches finds, such as `pages(client.search_model_versions)`."""
    token = None
    while True:
        page = search(page_token=token, **options)
        yield from page
        if not (token := page.token):
            return


def versions(root: Path) -> list[Version]:
    """Every version that holds an adapter, newest first; none where there is no store yet. UserError where the store cannot
    be reached."""
    elsewhere = os.environ.get("MLFLOW_TRACKING_URI") or os.environ.get("MLFLOW_REGISTRY_URI")
    if not elsewhere and not (root / ".flywheel" / "mlflow.db").exists():
        return []
    with store.explained(store.address(root)):
        client = store.connect(root)
        aliases: dict[tuple[str, str], list[str]] = {}
        for model in pages(client.search_registered_models):
            for alias, version in client.get_registered_model(model.name).aliases.items():
                aliases.setdefault((model.name, str(version)), []).append(alias)
        holding = [
            Version(
                entity.name, str(entity.version), sorted(aliases.get((entity.name, str(entity.version)), [])), adapter
            )
            for entity in pages(client.search_model_versions)
            if (adapter := entity.tags.get("adapter_hash"))
        ]
    return sorted(holding, key=lambda version: (version.name, -int(version.version)))


def registered_version(name: str, adapter_hash: str, root: Path | None = None) -> str | None:
    """The number of the version of model `name` that holds this adapter, the lowest of several; None where none does."""
    root = root or Path.cwd()
    with store.explained(store.address(root)):
        holding = pages(
            store.connect(root).search_model_versions, filter_string=f"tags.adapter_hash = '{adapter_hash}'"
        )
        return min((str(version.version) for version in holding if version.name == name), key=int, default=None)


def adapter_at(address: str, registered: Sequence[Version]) -> str | None:
    """The hash of the adapter that a models:/ address names, out of `registered`; None where it is no such address.
    UserError where the registry has no such version."""
    if not address.startswith("models:"):
        return None
    parts = re.fullmatch(r"models:/([^/@]+)(?:@([^/@]+)|/([0-9]+))", address)
    if parts is None:
        raise UserError(
            f"{address} is no version of a registered model: write models:/<name>@<alias> or models:/<name>/<number>"
        )
    name, alias, number = parts.groups()
    of_model = [version for version in registered if version.name == name]
    for version in of_model:
        if version.version == number or alias in version.aliases:
            return version.adapter_hash
    existing = ", ".join(
        " ".join([version.version, *(f"@{label}" for label in version.aliases)]) for version in of_model
    )
    raise UserError(f"the registry has no {address} that holds an adapter; versions of {name}: {existing or 'none'}")
