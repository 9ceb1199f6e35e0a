"""Puts an adapter into MLflow's registry: the logged model, its version, tags, model card and aliases."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from steps.core.errors import UserError
from steps.core.ports import every
from steps.project.git import git_state
from steps.project.lock import lineage
from steps.project.store import SQLITE, address, connect, experiment, explained, pages, variables

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from steps.core.evaluations import Evaluation
    from steps.core.params import Params, RegisterParams


HOLDING = """
    SELECT min(version) FROM model_versions JOIN model_version_tags USING (workspace, name, version)
    WHERE name = ? AND key = 'adapter_hash' AND value = ? AND current_stage != 'Deleted_Internal'
"""


def read_test(folder: Path) -> Evaluation:
    """The summary of an evaluation. UserError where it is not of the test split."""
    from steps.core.evaluations import Evaluation

    summary = Evaluation.model_validate_json((folder / "summary.json").read_text())
    if summary.split != "test":
        raise UserError(f"{folder} is of the split {summary.split}: what is registered is judged on the test split")
    return summary


def registered_version(name: str, adapter_hash: str, root: Path | None = None) -> str | None:
    """The number of the version of model `name` that holds this adapter, the lowest of several; None where none does. A
    store in a file is read without MLflow, which takes seconds to import, and says what is wrong with one that cannot be
    read."""
    root = root or Path.cwd()
    uri = os.environ.get("MLFLOW_REGISTRY_URI") or address(root)
    file = Path(uri.removeprefix(SQLITE))
    if uri.startswith(SQLITE) and file.exists():
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(file)) as link:
            [version] = link.execute(HOLDING, (name, adapter_hash)).fetchone()
            return None if version is None else str(version)
    with explained(address(root)):
        holding = pages(connect(root).search_model_versions, filter_string=f"tags.adapter_hash = '{adapter_hash}'")
        return min((str(version.version) for version in holding if version.name == name), key=int, default=None)


def publish(root: Path, adapter: Path, evaluation: Path, base_evaluation: Path, params: RegisterParams) -> str:
    """Register an adapter, unless it is registered already, and return its version, which gets the alias `challenger`.

    No version becomes champion here, not even the first: that is the gate's to decide (flows/promote.py).

    Whether the adapter deserves it is for the caller to decide. flows/training/ending.py calls it again where the store has
    lost the version: DVC does not know of the store, so it does not run the stage again.
    """
    from steps.policy.adapter import adapter_hash

    name, trained, base = params.model, read_test(evaluation), read_test(base_evaluation)
    with explained(address(root)):
        client = connect(root)
        from mlflow.exceptions import MlflowException  # only now: `connect` sets MLflow's environment variables

        version = registered_version(name, adapter_hash(adapter), root)
        if version is None:
            model, tags = logged_adapter(client, experiment(client, root, params.task), adapter, about(params))
            for prefix, summary in (("test", trained), ("base", base)):
                tags |= results(prefix, summary)
            tags |= lineage(root, adapter, evaluation, base_evaluation) | git_state(root)[0]
            card, run = next(every("card"), None), client.get_logged_model(model).source_run_id
            text = card.described(root, adapter, tags, {"test": trained, "base": base}, run) if card else None
            try:
                client.create_registered_model(name, tags={"task": params.task})
            except MlflowException as problem:
                if problem.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            if card:
                with tempfile.TemporaryDirectory() as folder:  # the adapter's hash covers only its own two files
                    readme = Path(folder) / "README.md"
                    readme.write_text(card.readme(f"{name}, adapter {tags['adapter_hash']}", tags, text))
                    client.log_model_artifact(model, str(readme))
            source = f"models:/{model}"  # MLflow looks it up in its default store, whatever store the client has
            with variables(MLFLOW_TRACKING_URI=address(root)):
                created = client.create_model_version(name, source, tags=tags, description=text, model_id=model)
            version = str(created.version)
            links = json.loads(client.get_logged_model(model).tags.get("mlflow.modelVersions", "[]"))
            links.append({"name": name, "version": created.version})
            client.set_logged_model_tags(model, {"mlflow.modelVersions": json.dumps(links)})
        client.set_registered_model_alias(name, "challenger", version)
    return version


def results(prefix: str, summary: Evaluation) -> dict[str, str]:
    """The tags of a version that say what was measured on the test split."""
    clusters = summary.clusters if summary.judged is None else summary.judged.clusters
    counted = {} if clusters is None else {f"{prefix}_clusters": str(clusters)}
    if summary.judged is None:
        return {f"{prefix}_{key}": str(getattr(summary, key)) for key in ("success", "ci95", "n", "reward")} | counted
    judged = {
        "judged_share": summary.share,
        "judged_ci95": summary.interval,
        "judge": summary.judged.judge,
        "n": summary.n,
    }
    return {f"{prefix}_{key}": str(value) for key, value in judged.items()} | counted


def about(params: RegisterParams | Params) -> dict[str, str]:
    """The tags that name the task and the base policy."""
    policy = params.policy
    return {"task": params.task, "base_model": policy.base_model, "base_revision": str(policy.revision)}


def logged_adapter(
    client: MlflowClient, experiment_id: str, folder: Path, tags: dict[str, str], run_id: str | None = None
) -> tuple[str, dict[str, str]]:
    """(id, tags) of the logged model that holds this adapter. It is uploaded once to an experiment, by the first caller."""
    from steps.policy.adapter import adapter_hash

    name = adapter_hash(folder)
    tags = tags | {"adapter_hash": name}
    for model in client.search_logged_models([experiment_id], f"tags.adapter_hash = '{name}'"):
        if str(model.status) == "READY":  # an upload that was interrupted leaves PENDING
            return model.model_id, tags
    model = client.create_logged_model(experiment_id, f"adapter-{name}", run_id, tags, model_type="lora")
    client.log_model_artifacts(model.model_id, str(folder))
    client.finalize_logged_model(model.model_id, "READY")
    return model.model_id, tags
