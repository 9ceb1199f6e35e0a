"""A registered model: its versions and aliases, its champion, and the adapter that a version holds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from steps.core.errors import UserError
from steps.core.params import Policy
from steps.project.store import address, connect, explained, hidden
from steps.registry.versions import pages


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
        labels = ", ".join([*sorted(self.versions, key=int), *sorted(self.aliases)])
        raise UserError(f"{self.name} has no version {label}: give one of {labels}")

    def set_champion(self, version: str) -> None:
        """Make a version champion; the champion before it becomes `previous`."""
        now = self.client.get_registered_model(self.name).aliases.get("champion")
        if _text(now) != self.aliases.get("champion"):
            raise UserError(f"the champion of {self.name} has become version {now} meanwhile: run the same again")
        if now is not None:
            self.client.set_registered_model_alias(self.name, "previous", str(now))
        self.client.set_registered_model_alias(self.name, "champion", version)


def _text(version: Any) -> str | None:
    return None if version is None else str(version)


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


def fetched(registry: RegisteredModel, version: Any, folder: Path) -> Path:
    """Download a version's adapter into `folder`, unless it is there already. UserError where its hash is another one."""
    from steps.policy.adapter import adapter_hash

    expected = version.tags.get("adapter_hash")
    if not (folder.is_dir() and adapter_hash(folder) == expected):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with explained(address(Path.cwd())):
            # The public function is in mlflow.artifacts, which flows do not import; MLflow's own upload uses this one.
            store = registry.client._tracking_client._get_artifact_repo(logged_model(version), resource="logged_model")
            store.download_artifacts("", str(folder))
        if not (folder / "adapter_config.json").is_file() or adapter_hash(folder) != expected:
            raise UserError(
                f"what MLflow holds of {registry.name} version {version.version} is not adapter {expected}: its files were "
                "changed or lost; put champion on a whole one with `python -m flows.rollback`"
            )
    return folder


def policy_of(version: Any, adapter: Path, policy: Policy) -> Policy:
    """The policy of params.yaml, with the base model and the LoRA rank that this version was trained with."""
    model, revision = version.tags.get("base_model", policy.base_model), version.tags.get("base_revision", "None")
    lora = policy.lora.model_copy(
        update={"rank": json.loads((adapter / "adapter_config.json").read_text()).get("r", policy.lora.rank)}
    )
    changes = {"base_model": model, "revision": None if revision == "None" else revision, "lora": lora}
    return policy.model_copy(update=changes)
