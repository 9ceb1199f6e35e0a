"""What a run becomes in MLflow: metrics, parameters, tags, inputs, and its name."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from steps.core.masking import masked
from steps.core.yaml_text import read_mapping
from steps.project.lock import Lock

KEPT = ("iteration", "iteration_key", "traced")  # the tags of a nested run that this module reads


def slim(run: Any) -> Any:
    """A nested run (mlflow.entities.Run) without parameters, inputs and most tags: a tracker keeps one per iteration."""
    from mlflow.entities import Metric, Run, RunData, RunTag

    metrics = [Metric(sys.intern(name), value, 0, 0) for name, value in run.data.metrics.items()]
    tags = [RunTag(name, run.data.tags[name]) for name in KEPT if name in run.data.tags]
    return Run(run.info, RunData(metrics, [], tags), None, run.outputs)


def inputs(number: str, entries: Lock) -> list[Any]:
    """The data of an iteration as MLflow's inputs (DatasetInput), identified by their md5s in dvc.lock."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    md5s = {dep["path"]: dep.get("md5") for entry in entries.values() for dep in [*entry["deps"], *entry["outs"]]}
    paths = ("run/scenarios", f"run/{number}/trajectories.parquet", f"run/{number}/rewards.parquet")
    sources = [{"path": path, "md5": md5} for path in paths if (md5 := md5s.get(path))]
    datasets = [Dataset(Path(source["path"]).stem, source["md5"], "dvc", json.dumps(source)) for source in sources]
    return [DatasetInput(dataset, [InputTag("mlflow.data.context", "training")]) for dataset in datasets]


def batch(run: Any, metrics: dict, step: int, params: dict, tags: dict, model: str | None = None) -> dict[str, Any]:
    """The arguments of `log_batch`. A metric's time is its run's start. Validation metrics belong to the model, too."""
    from mlflow.entities import Metric, Param, RunTag

    models = {name: model if is_models(name) else None for name in metrics}
    return {
        "metrics": [Metric(name, value, run.info.start_time, step, models[name]) for name, value in metrics.items()],
        "params": [Param(*item) for item in params.items()],
        "tags": [RunTag(*item) for item in tags.items()],
    }


def is_models(name: str) -> bool:
    """Whether a metric belongs to the model: what its validation is compared by, without sizes and intervals."""
    return name.startswith("val/") and "ci95" not in name and name not in ("val/scenarios", "val/clusters")


def public(text: str) -> str:
    """A YAML file without secrets: unchanged where it holds none, else written anew with masked values."""
    import yaml

    content = read_mapping(text, "a file of this run")
    safe = masked(content)
    return masked(text if safe == content else yaml.safe_dump(safe, sort_keys=False, allow_unicode=True))


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values as {"update.beta": 0.001}."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        result |= flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return result
