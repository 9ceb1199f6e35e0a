"""Puts an adapter into MLflow's registry: the logged model, its version, tags, model card and aliases."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.registry import card

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from steps.core.params import Params, RegisterParams
    from steps.core.records import Evaluation
from steps.project.git import git_state
from steps.project.lock import ancestry, lineage
from steps.project.store import address, connect, default, experiment, explained
from steps.registry.versions import registered_version


def read_test(folder: Path) -> Evaluation:
    """An evaluation's summary; UserError where it is not of the test split."""
    from steps.core.records import Evaluation

    summary = Evaluation.model_validate_json((folder / "summary.json").read_text())
    if summary.split != "test":
        raise UserError(f"{folder} is of the split {summary.split}: what is registered is judged on the test split")
    return summary


def publish(root: Path, adapter: Path, evaluation: Path, base_evaluation: Path, params: RegisterParams) -> str:
    """The version of this adapter in the registry: the one that is there, else a new one. Sets the aliases.

    Whether it ought to be there is not asked. The same call serves after the store was lost: DVC knows nothing of it.
    """
    from steps.policy.adapter import adapter_hash

    name, trained, base = params.model, read_test(evaluation), read_test(base_evaluation)
    with explained(address(root)):
        client = connect(root)
        from mlflow.exceptions import MlflowException  # after connect, which sets MLflow's environment

        version = registered_version(name, adapter_hash(adapter), root)
        if version is None:
            model, tags = logged_adapter(client, experiment(client, root, params.task), adapter, about(params))
            for prefix, summary in (("test", trained), ("base", base)):
                tags |= {f"{prefix}_{key}": str(getattr(summary, key)) for key in ("success", "ci95", "n", "reward")}
            tags |= lineage(root, adapter, evaluation, base_evaluation) | git_state(root)[0]
            text = described(root, adapter, tags, {"test": trained, "base": base}, client.get_logged_model(model))
            try:
                client.create_registered_model(name, tags={"task": params.task})
            except MlflowException as problem:
                if problem.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            with tempfile.TemporaryDirectory() as folder:  # the adapter's hash is of its own two files
                readme = Path(folder) / "README.md"
                readme.write_text(card.readme(f"{name}, adapter {tags['adapter_hash']}", tags, text))
                client.log_model_artifact(model, str(readme))
            source = f"models:/{model}"
            with default(address(root)):
                made = client.create_model_version(name, source, tags=tags, description=text, model_id=model)
            version = str(made.version)
            links = json.loads(client.get_logged_model(model).tags.get("mlflow.modelVersions", "[]"))
            links.append({"name": name, "version": made.version})
            client.set_logged_model_tags(model, {"mlflow.modelVersions": json.dumps(links)})
        client.set_registered_model_alias(name, "challenger", version)
        if "champion" not in client.get_registered_model(name).aliases:
            client.set_registered_model_alias(name, "champion", version)
    return version


def described(root: Path, adapter: Path, tags: dict[str, str], evaluations: dict[str, Evaluation], model: Any) -> str:
    """The model card of an adapter that is registered."""
    report = root / "run/scenarios/contamination.json"
    checked = json.loads(report.read_text()) if report.is_file() else None
    return card.card(tags, recorded(root, adapter), evaluations, checked, model.source_run_id)


def about(params: RegisterParams | Params) -> dict[str, str]:
    """Tags: the task and the base policy."""
    policy = params.policy
    return {"task": params.task, "base_model": policy.base_model, "base_revision": str(policy.revision)}


def logged_adapter(
    client: MlflowClient, experiment_id: str, folder: Path, tags: dict[str, str], run_id: str | None = None
) -> tuple[str, dict[str, str]]:
    """(id, tags) of the logged model that holds this adapter: copied once into an experiment, whoever logs it first."""
    from steps.policy.adapter import adapter_hash

    name = adapter_hash(folder)
    tags = tags | {"adapter_hash": name}
    for model in client.search_logged_models([experiment_id], f"tags.adapter_hash = '{name}'"):
        if str(model.status) == "READY":  # one that was interrupted stays PENDING
            return model.model_id, tags
    made = client.create_logged_model(experiment_id, f"adapter-{name}", run_id, tags, model_type="lora")
    client.log_model_artifacts(made.model_id, str(folder))
    client.finalize_logged_model(made.model_id, "READY")
    return made.model_id, tags


def recorded(root: Path, adapter: Path) -> card.Recorded:
    """What dvc.lock has of an adapter's making; nothing where it has none, or parameters of another version of the code."""
    from pydantic import ValidationError

    from steps.core.params import Params

    found = ancestry(root, adapter)
    updates = sorted(name for name in found if name.startswith("update@"))
    if not updates:
        return card.Recorded()
    given: dict[str, Any] = {}
    for name in [*sorted(found.keys() - updates), *updates]:  # of what changed on the way, the last iteration's
        given |= (found[name].get("params") or {}).get("params.yaml") or {}
    try:
        params = Params.model_validate(given)
    except ValidationError:
        params = None
    read = {dep["path"]: dep.get("md5") for dep in found[updates[-1]].get("deps", []) if dep["path"].startswith("run/")}
    made = {out["path"]: out.get("md5") for entry in found.values() for out in entry.get("outs", [])}
    hashes = {
        path: md5 for path, md5 in read.items() if path.endswith(("/checkpoint", "/trajectories.parquet")) and md5
    }
    if md5 := made.get("run/scenarios"):
        hashes = {"run/scenarios": md5} | hashes
    return card.Recorded(params, len(updates), hashes)
