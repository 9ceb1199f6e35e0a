"""Judges a registered version by the gate: the evaluations that are missing, the verdict, its table and picture."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

from flows.deployment.settings import VersionSettings
from flows.repro.stages import run_stage
from flows.terminal.report import RUN, read
from steps.core import params
from steps.core.errors import UserError
from steps.core.params import Policy, PromoteParams
from steps.project import chain, lock, store
from steps.registry import gate, publish
from steps.registry.gate import Verdict
from steps.registry.model import RegisteredModel, fetched, logged_model, policy_of, read_registry

PROMOTE = RUN / "promote"


class Challenge(NamedTuple):
    """A version that was judged."""

    registry: RegisteredModel
    version: Any  # mlflow.entities.model_registry.ModelVersion
    verdict: Verdict
    folder: Path  # run/promote/<hash>: verdict.json, verdict.md, verdict.png
    known: PromoteParams


def challenge(settings: VersionSettings, anyone: bool = False) -> Challenge | None:
    """The verdict on a version, written and shown. None for the champion itself, unless `anyone` is judged."""
    root, known = Path.cwd(), params.load("params.yaml", PromoteParams)
    if settings.model not in (None, known.model):
        raise UserError(
            f"params.yaml is of the model {known.model}, not {settings.model}: name a run of that with `run`"
        )
    registry = read_registry(root, known.model)
    challenger = registry.version(settings.version)
    champion = registry.versions[registry.aliases["champion"]] if "champion" in registry.aliases else None
    if champion is not None and champion.tags.get("adapter_hash") == challenger.tags.get("adapter_hash"):
        if not anyone:
            print(f"{known.model} version {challenger.version} is the champion already: nothing to do.", flush=True)
            return None
        champion = None
    best = tested(root, known, challenger)
    folder = PROMOTE / str(challenger.tags["adapter_hash"])
    folder.mkdir(parents=True, exist_ok=True)
    verdict = judge(known, folder, best, registry, champion)
    write(verdict, folder, best)
    show_page(verdict, folder / "verdict.png")
    return Challenge(registry, challenger, verdict, folder, known)


def tested(root: Path, known: PromoteParams, challenger: Any) -> dict[str, str]:
    """chain.yaml's `tested` (base and best); UserError where the run is not the one that the challenger comes from."""
    from steps.policy.adapter import adapter_hash

    chosen: dict[str, str] = chain.read_chain(root).get("tested") or {}
    adapter = RUN / str(chosen.get("best")) / "adapter"
    again = (
        "bring that run back (`git checkout` of its revision, then `dvc checkout`) or register this one (`make train`)"
    )
    if not adapter.is_dir():
        raise UserError(f"{adapter}, which chain.yaml names as the best, does not exist: `dvc checkout` brings it back")
    if (found := adapter_hash(adapter)) != challenger.tags.get("adapter_hash"):
        raise UserError(
            f"{known.model} version {challenger.version} is adapter {challenger.tags.get('adapter_hash')}, and {adapter} is "
            f"{found}: {RUN}/ is of another run; {again}"
        )
    whole = params.load("params.yaml", params.Params)
    if reason := lock.unfit(lock.read_lock(root), ["test@base", "test@best"], whole):
        raise UserError(f"what was tested is not of these parameters: {reason}")
    return chosen


def judge(
    known: PromoteParams, folder: Path, best: dict[str, str], registry: RegisteredModel, champion: Any
) -> Verdict:
    """The verdict on run/<best>, with what has to be evaluated for it."""
    from environments.base import Scenario
    from steps.core.records import read_records

    for path in (RUN / "scenarios/test.parquet", RUN / "scenarios/contamination.json"):
        if not path.is_file():
            raise UserError(f"{path} does not exist: the stage scenarios makes it (`dvc repro`)")
    scenarios = read_records(Scenario, RUN / "scenarios/test.parquet")
    sides = {name: gate.read_side(RUN / best[key] / "test", scenarios) for name, key in OWN.items()}
    if champion is not None:
        adapter = fetched(registry, champion, folder / "champion_adapter")
        found = evaluated("champion", folder, known, policy_of(champion, adapter, known.policy), adapter)
        sides["champion"] = gate.read_side(found, scenarios)
    found = evaluated("scripted", folder, known, Policy(kind="scripted"), None)
    sides["scripted"] = gate.read_side(found, scenarios)
    report = read(RUN / "scenarios/contamination.json")
    return gate.decide(scenarios, contamination=report, params=known.promote, **sides)


OWN = {"challenger": "best", "base": "base"}  # sides that the run itself has tested, and their names in chain.yaml


def evaluated(who: str, folder: Path, known: PromoteParams, policy: Policy, adapter: Path | None) -> Path:
    """The evaluation of a policy on the run's test scenarios: the one of these very inputs that is there, else a new one."""
    import yaml

    settings = {
        "task": known.task,
        "policy": policy.model_dump(mode="json", exclude_defaults=True),
        "evaluate": known.evaluate.model_dump(mode="json"),
    }
    key, evaluation = folder / f"{who}.key", folder / who
    inputs = inputs_of(settings, known.task, adapter)
    if evaluation.is_dir() and key.exists() and key.read_text() == inputs:
        print(f"{who}: {evaluation} is there", flush=True)
        return evaluation
    key.unlink(missing_ok=True)
    path = folder / f"{who}.yaml"
    path.write_text(yaml.safe_dump(settings))
    arguments = {
        "task_data": task_data(known.task),
        "scenarios": RUN / "scenarios",
        "evaluation": evaluation,
        "split": "test",
        "params": path,
    }
    arguments |= {"adapter": adapter} if adapter else {}
    run_stage("evaluate", who, {name: str(value) for name, value in arguments.items()})
    key.write_text(inputs)
    return evaluation


def task_data(task: str) -> Path:
    return Path("tasks_data") / task.rpartition(".")[2]


def inputs_of(settings: dict[str, Any], task: str, adapter: Path | None) -> str:
    """A hash of all that an evaluation comes from: parameters, adapter, scenarios, the task's data, code and packages."""
    from steps.policy.adapter import adapter_hash
    from steps.runner.handover import fingerprint

    files = [RUN / "scenarios/test.parquet", *sorted(path for path in task_data(task).rglob("*") if path.is_file())]
    hashes = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return lock.digest([settings, adapter_hash(adapter) if adapter else None, hashes, fingerprint()]) + "\n"


# --- What the verdict leads to


def write(verdict: Verdict, folder: Path, best: dict[str, str]) -> None:
    """verdict.json, verdict.md, verdict.png, and evaluations.json: which evaluations it rests on, by DVC's md5."""
    from steps.project.hashes import folder_md5

    paths = {side: RUN / best[OWN[side]] / "test" if side in OWN else folder / side for side in verdict.sides}
    found = {side: {"path": path.as_posix(), "md5": folder_md5(path)} for side, path in paths.items()}
    (folder / "evaluations.json").write_text(json.dumps(found, indent=2) + "\n")
    (folder / "verdict.json").write_text(verdict.text())
    (folder / "verdict.md").write_text(gate.table(verdict))
    gate.picture(verdict, folder / "verdict.png")


def show_page(verdict: Verdict, picture: Path) -> None:
    """The table and the picture, on the flow run's page in Prefect."""
    from prefect.artifacts import create_image_artifact, create_markdown_artifact

    create_markdown_artifact(gate.table(verdict), key="promotion", description=verdict.reason)
    shown = base64.b64encode(picture.read_bytes()).decode()
    create_image_artifact(f"data:image/png;base64,{shown}", key="verdict", description=verdict.reason)


def run_of(registry: RegisteredModel, challenger: Any, known: PromoteParams) -> str:
    """The MLflow run that logged the challenger's adapter; a new one where there is none, as after a plain `dvc repro`."""
    client = registry.client
    run_id = challenger.run_id or client.get_logged_model(logged_model(challenger)).source_run_id
    if run_id and client.get_run(run_id).info.lifecycle_stage == "active":
        return str(run_id)
    experiment = store.experiment(client, Path.cwd(), known.task)
    adapter = challenger.tags["adapter_hash"]
    if found := client.search_runs([experiment], f"tags.promotion = '{adapter}'"):
        return str(found[0].info.run_id)
    tags = publish.about(known) | {"promotion": adapter, "adapter_hash": adapter}
    run = client.create_run(experiment, tags=tags, run_name=f"promotion of {adapter}")
    client.set_terminated(run.info.run_id)
    return str(run.info.run_id)


def print_end(verdict: Verdict, registry: RegisteredModel, challenger: Any, folder: Path, dry_run: bool) -> None:
    for check in verdict.checks:
        print(f"  {'ok' if check.passed else 'NO':>2}  {check.name:<13} {check.text}", flush=True)
    entry = f"{registry.name} version {challenger.version}"
    champion = registry.aliases.get("champion")
    if verdict.promoted:
        done = f"{entry} {'would be' if dry_run else 'is'} champion"
        print(f"{done}{f' in place of version {champion}' if champion else ''}.")
    else:
        print(
            f"{entry} is refused, {verdict.reason}. Champion {f'stays version {champion}' if champion else 'there is none'}."
        )
    print(
        f"Written: {folder}/verdict.md, .json and .png{'; nothing in MLflow (--dry-run)' if dry_run else ''}",
        flush=True,
    )
