"""Registered models, as MLflow has them now: versions, aliases, the champion, and the adapter that a version holds."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from steps.core.errors import UserError
from steps.project.store import address, connect, explained, hidden, pages

if TYPE_CHECKING:
    from steps.core.params import Policy


CANARY = "canary"  # alias of a version on trial, which gets a share of the traffic


@dataclasses.dataclass(frozen=True)
class Version:
    """A version of a registered model, as MLflow has it now."""

    name: str
    version: str
    aliases: list[str]
    adapter_hash: str


def versions(root: Path) -> list[Version]:
    """Every version that holds an adapter, newest first; none where there is no store yet. UserError where the store cannot
    be reached."""
    elsewhere = os.environ.get("MLFLOW_TRACKING_URI") or os.environ.get("MLFLOW_REGISTRY_URI")
    if not elsewhere and not (root / ".flywheel" / "mlflow.db").exists():
        return []
    with explained(address(root)):
        client = connect(root)
        aliases: dict[tuple[str, str], list[str]] = {}
        for model in pages(client.search_registered_models):
            for alias, version in client.get_registered_model(model.name).aliases.items():
                aliases.setdefault((model.name, str(version)), []).append(alias)
        holding = []
        for entity in pages(client.search_model_versions):
            if adapter := entity.tags.get("adapter_hash"):
                key = entity.name, str(entity.version)
                holding.append(Version(*key, sorted(aliases.get(key, [])), adapter))
    return sorted(holding, key=lambda version: (version.name, -int(version.version)))


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
    if of_model and alias == "champion":
        raise no_champion(name)
    existing = ", ".join(" @".join([version.version, *version.aliases]) for version in of_model)
    raise UserError(f"the registry has no {address} that holds an adapter; versions of {name}: {existing or 'none'}")


def no_champion(name: str) -> UserError:
    return UserError(f"{name} has no champion yet: `make promote` judges its newest version by the gate")


class RegisteredModel(NamedTuple):
    """A registered model as it is now."""

    client: Any  # mlflow.MlflowClient
    name: str
    versions: dict[str, Any]  # version -> mlflow.entities.model_registry.ModelVersion
    aliases: dict[str, str]  # alias -> version

    def version(self, label: str) -> Any:
        """The version with this number or alias. UserError where there is none."""
        number = self.aliases.get(label, label)
        if number in self.versions:
            return self.versions[number]
        if label == "champion":
            raise no_champion(self.name)
        labels = ", ".join([*sorted(self.versions, key=int), *sorted(self.aliases)])
        raise UserError(f"{self.name} has no version {label}: give one of {labels}")


def read_registry(root: Path, name: str) -> RegisteredModel:
    """The model as MLflow has it. UserError where MLflow has no version of it."""
    with explained(address(root)):
        client = connect(root)
        entities = pages(client.search_model_versions, filter_string=f"name = '{name}'")
        versions = {str(version.version): version for version in entities}
        if not versions:
            raise UserError(f"MLflow at {hidden(address(root))} holds no version of {name}: `make train` registers one")
        aliases = client.get_registered_model(name).aliases
    return RegisteredModel(client, name, versions, {alias: str(version) for alias, version in aliases.items()})


def logged_model(version: Any) -> str:
    """The id of the logged model behind a version. UserError where the version was not made by the stage register."""
    source = str(version.source)
    if not source.startswith("models:/m-"):
        raise UserError(
            f"{version.name} version {version.version} is of {source}, and no logged model: only what the stage register "
            "made can be compared"
        )
    return source.removeprefix("models:/")


def tagged_adapter(version: Any) -> str:
    """The hash of the adapter that a version holds, from its tag. UserError where that is no hash: folders are named by it,
    and anybody who may write to the registry can set it."""
    tag = version.tags.get("adapter_hash")
    if not re.fullmatch(r"[0-9a-f]{16}", tag or ""):
        raise UserError(
            f"{version.name} version {version.version} has {f'{tag[:80]!r} as' if tag else 'no'} tag adapter_hash, which "
            "the stage register sets to 16 hexadecimal digits: use another version "
            "(`.venv/bin/python -m flows.rollback --to N --why TEXT` moves champion), or register the adapter again"
        )
    return str(tag)


def fetched(registry: RegisteredModel, version: Any, folder: Path) -> Path:
    """Download a version's adapter to `folder`, unless it is there already. UserError where its hash is another one.

    The files are complete and checked before the folder has its name; what it held before is replaced then.
    """
    expected = tagged_adapter(version)
    if holds(folder, expected):
        return folder
    temporary = folder.with_name(f".tmp-{os.getpid()}.{folder.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        with explained(address(Path.cwd())):
            # The public function is in mlflow.artifacts, which flows do not import; MLflow's own upload uses this one.
            store = registry.client._tracking_client._get_artifact_repo(logged_model(version), resource="logged_model")
            store.download_artifacts("", str(temporary))
        if not holds(temporary, expected):
            raise UserError(
                f"what MLflow holds of {registry.name} version {version.version} is not adapter {expected}: its files were "
                "changed or lost; put champion on a whole one with `.venv/bin/python -m flows.rollback`"
            )
        shutil.rmtree(folder, ignore_errors=True)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def holds(folder: Path, adapter: str) -> bool:
    """Whether the folder holds this adapter, whole."""
    from steps.policy.adapter import adapter_hash

    try:
        return adapter_hash(folder) == adapter
    except OSError:  # a file is missing, or the whole folder
        return False


def policy_of(version: Any, adapter: Path, policy: Policy) -> Policy:
    """The policy of params.yaml, with the base model and the LoRA rank that this version was trained with."""
    model, revision = version.tags.get("base_model", policy.base_model), version.tags.get("base_revision", "None")
    rank = json.loads((adapter / "adapter_config.json").read_text()).get("r", policy.lora.rank)
    lora = policy.lora.model_copy(update={"rank": rank})
    changes = {"base_model": model, "revision": None if revision == "None" else revision, "lora": lora}
    return policy.model_copy(update=changes)
