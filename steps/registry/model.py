"""A registered model: its versions and aliases, the champion, and the adapter that a version holds."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

from steps.core.errors import UserError
from steps.core.params import Policy
from steps.project.store import address, connect, explained, hidden


class RegisteredModel(NamedTuple):
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
    """The model as MLflow has it; UserError where there is none."""
    with explained(address(root)):
        client = connect(root)
        versions = {str(one.version): one for one in client.search_model_versions(f"name = '{name}'")}
        if not versions:
            raise UserError(f"MLflow at {hidden(address(root))} holds no version of {name}: `make train` registers one")
        aliases = client.get_registered_model(name).aliases
    return RegisteredModel(client, name, versions, {alias: str(version) for alias, version in aliases.items()})


def logged_model(version: Any) -> str:
    """The id of the logged model that steps/register.py made a version of; UserError where it was made otherwise."""
    source = str(version.source)
    if not source.startswith("models:/m-"):
        raise UserError(
            f"{version.name} version {version.version} is of {source}, and no logged model: only what the stage register "
            "made can be compared"
        )
    return source.removeprefix("models:/")


def fetched(registry: RegisteredModel, version: Any, folder: Path) -> Path:
    """A version's adapter, from the registry; UserError where it is not the one that the version says."""
    from steps.policy.adapter import adapter_hash

    wanted = version.tags.get("adapter_hash")
    if not (folder.is_dir() and adapter_hash(folder) == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with explained(address(Path.cwd())):
            # The public function stands in mlflow.artifacts, which flows do not import; register's own upload uses this one.
            store = registry.client._tracking_client._get_artifact_repo(logged_model(version), resource="logged_model")
            store.download_artifacts("", str(folder))
        if not (folder / "adapter_config.json").is_file() or adapter_hash(folder) != wanted:
            raise UserError(
                f"what MLflow holds of {registry.name} version {version.version} is not adapter {wanted}: its files were "
                "changed or lost; put champion on a whole one with `python -m flows.rollback`"
            )
    return folder


def policy_of(version: Any, adapter: Path, policy: Policy) -> Policy:
    """params.yaml's policy, with the base model that this version was trained on and its own rank."""
    model, revision = version.tags.get("base_model", policy.base_model), version.tags.get("base_revision", "None")
    lora = policy.lora.model_copy(
        update={"rank": json.loads((adapter / "adapter_config.json").read_text()).get("r", policy.lora.rank)}
    )
    changes = {"base_model": model, "revision": None if revision == "None" else revision, "lora": lora}
    return policy.model_copy(update=changes)
