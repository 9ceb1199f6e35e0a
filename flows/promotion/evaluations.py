"""Evaluations that the gate needs beside the run's own: of the champion, the scripted player, and on the regression set."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from prefect import task
from prefect.cache_policies import NO_CACHE

import environments
from flows.deployment import workspace
from flows.repro.pipeline import StageFailed
from flows.terminal.report import RUN
from steps.core.files import write_text
from steps.core.params import Policy, PromoteParams
from steps.data.ingested import INGESTED, read_scenarios
from steps.project import lock
from steps.registry import gate
from steps.registry.model import policy_of
from steps.runner.stage import is_warm, run_shown

if TYPE_CHECKING:
    from environments.base import Scenario

OWN = {"challenger": "best", "base": "base"}  # the sides that the run itself has tested -> their keys in chain.yaml


class Regression(NamedTuple):
    """How the challenger does on the regression set, and the policy that it is compared with."""

    scenarios: list[Scenario]
    challenger: gate.Side
    other: gate.Side
    against: str  # champion, or base where there is none


def regression(folder: Path, parameters: PromoteParams, best: dict[str, str], champion: Any) -> Regression | None:
    """Evaluate on ingested/<task>/regression.jsonl the challenger and the champion or, without one, the base policy. None
    where nothing was ingested."""
    from steps.core.records import write_records

    scenarios = read_scenarios(regression_file(parameters.task))
    if not scenarios:
        return None
    place = folder / "regression"
    place.mkdir(exist_ok=True)
    write_records(scenarios, place / "test.parquet")
    adapters = {name: RUN / best[key] / "adapter" for name, key in OWN.items()}
    policies = dict.fromkeys(adapters, parameters.policy)
    if champion is not None:
        adapters["champion"] = folder / "champion_adapter"
        policies["champion"] = policy_of(champion, adapters["champion"], parameters.policy)
    against = "champion" if champion is not None else "base"

    def side(name: str) -> gate.Side:
        evaluation = evaluated(
            f"regression_{name}", folder, parameters, policies[name], adapters[name], scenarios=place
        )
        return gate.read_side(evaluation, scenarios)

    return Regression(scenarios, side("challenger"), side(against), against)


def regression_file(task: str) -> Path:
    """The scenarios of the regression set, which is the project's, also for a run in a worktree."""
    return workspace.project(Path.cwd()) / INGESTED / task / "regression.jsonl"


def evaluated(
    who: str,
    folder: Path,
    parameters: PromoteParams,
    policy: Policy,
    adapter: Path | None,
    rival: Path | None = None,
    scenarios: Path = RUN / "scenarios",
) -> Path:
    """The folder of a policy's evaluation on test.parquet in `scenarios`; made again only where its inputs have changed.

    `rival`: the challenger's evaluation, with which a judge compares this one where the task has no rule."""
    import yaml

    settings = {
        **({"tasks": parameters.tasks} if parameters.tasks else {"task": parameters.task}),
        "policy": policy.model_dump(mode="json", exclude_defaults=True),
        "evaluate": parameters.evaluate.model_dump(mode="json"),
    }
    if rival is not None:
        settings["score"] = parameters.score.model_dump(mode="json", exclude_unset=True)
    key, evaluation = folder / f"{who}.key", folder / who
    data = environments.data_of(parameters.task)
    files_read = [scenarios / "test.parquet", *([] if rival is None else sorted(rival.iterdir()))]
    inputs = inputs_of(settings, data, adapter, files_read)
    if evaluation.is_dir() and key.exists() and key.read_text() == inputs:
        print(f"{who}: {evaluation} is up to date", flush=True)
        return evaluation
    key.unlink(missing_ok=True)
    path = folder / f"{who}.yaml"
    write_text(path, yaml.safe_dump(settings))
    arguments = {
        "task_data": data,
        "scenarios": scenarios,
        "evaluation": evaluation,
        "split": "test",
        "params": path,
    }
    arguments |= {"adapter": adapter} if adapter else {}
    arguments |= {"against": rival, "rival": "challenger"} if rival else {}
    run_stage("evaluate", who, {name: str(value) for name, value in arguments.items()})
    write_text(key, inputs)
    return evaluation


@task(task_run_name="{stage} {iteration}", cache_policy=NO_CACHE)
def run_stage(stage: str, iteration: str, arguments: dict[str, str]) -> None:
    """Run a stage on these paths, without DVC. StageFailed where it fails; KeyboardInterrupt on Ctrl-C."""
    code, text = run_shown(f"steps.{stage}", stage, arguments, is_warm())
    if code == 130:
        raise KeyboardInterrupt
    if code:
        raise StageFailed(f"{stage} {iteration}", code, text)


def inputs_of(settings: dict[str, Any], data: Path, adapter: Path | None, more: Sequence[Path]) -> str:
    """A hash of everything an evaluation depends on: parameters, adapter, the task's data, code, packages, and `more`: its
    scenarios, and the evaluation that it is compared with."""
    from steps.policy.adapter import adapter_hash
    from steps.runner.handover import fingerprint

    read_files = [*sorted(path for path in data.rglob("*") if path.is_file()), *more]
    hashes = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in read_files}
    return lock.digest([settings, adapter_hash(adapter) if adapter else None, hashes, fingerprint()]) + "\n"
