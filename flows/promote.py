"""Promote: judges the challenger of the registry against the champion, and makes it champion past the gate.

    python -m flows.promote                 # the version with the alias `challenger`
    python -m flows.promote --version 4
    python -m flows.promote --dry-run       # judges, and changes nothing in MLflow

The champion's adapter comes from the registry, and is evaluated on the run's own test scenarios, as is the scripted player;
what is there from the same inputs is not made again. run/promote/<challenger's hash>/ holds verdict.json, verdict.md and
verdict.png, which are logged to the challenger's MLflow run, too; the version is tagged, and the champion before keeps the
alias `previous` (flows/rollback.py goes back to it). Exit code 0: it is champion now, would be, or was before; 3: refused.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import sys
from pathlib import Path
from typing import Any

from prefect import flow

from flows.report import RUN, read
from flows.rescore import run_stage
from flows.rollback import Registry, read_registry
from flows.train import end_worker, prepare, say_why
from steps import gate, params, register, tracking
from steps.gate import Verdict
from steps.params import Policy, PromoteParams
from steps.stage import UserError

PROMOTE = RUN / "promote"
REFUSED = 3  # exit code


@flow(name="promote", log_prints=False)
def promote(version: str | None = None, dry_run: bool = False) -> Verdict | None:
    """Judge a version (by default the challenger), and make it champion past the gate. None where it is champion already."""
    root, known = Path.cwd(), params.load("params.yaml", PromoteParams)
    registry = read_registry(root, known.model)
    challenger = registry.version(version or "challenger")
    champion = registry.versions[registry.aliases["champion"]] if "champion" in registry.aliases else None
    if champion is not None and champion.tags.get("adapter_hash") == challenger.tags.get("adapter_hash"):
        print(f"{known.model} version {challenger.version} is the champion already: nothing to do.", flush=True)
        return None
    best = tested(root, known, challenger)
    folder = PROMOTE / str(challenger.tags["adapter_hash"])
    folder.mkdir(parents=True, exist_ok=True)
    verdict = judge(known, folder, best, registry, champion)
    write(verdict, folder)
    show_page(verdict)
    if not dry_run:
        with register.explained(register.address(root)):
            publish(registry, challenger, verdict, folder, known)
    print_end(verdict, registry, challenger, folder, dry_run)
    return verdict


def tested(root: Path, known: PromoteParams, challenger: Any) -> dict[str, str]:
    """chain.yaml's `tested` (base and best); UserError where the run is not the one that the challenger comes from."""
    from steps.engine import adapter_hash

    chosen: dict[str, str] = tracking.read_chain(root).get("tested") or {}
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
    if reason := tracking.unfit(register.read_lock(root), ["test@base", "test@best"], whole):
        raise UserError(f"what was tested is not of these parameters: {reason}")
    return chosen


def judge(known: PromoteParams, folder: Path, best: dict[str, str], registry: Registry, champion: Any) -> Verdict:
    """The verdict on run/<best>, with what has to be evaluated for it."""
    from environments.base import Scenario
    from steps.types import read_records

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


def fetched(registry: Registry, version: Any, folder: Path) -> Path:
    """A version's adapter, from the registry; UserError where it is not the one that the version says."""
    from steps.engine import adapter_hash

    wanted = version.tags.get("adapter_hash")
    if not (folder.is_dir() and adapter_hash(folder) == wanted):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        with register.explained(register.address(Path.cwd())):
            # The public function stands in mlflow.artifacts, which flows do not import; register's own upload uses this one.
            store = registry.client._tracking_client._get_artifact_repo(logged_model(version), resource="logged_model")
            store.download_artifacts("", str(folder))
        if not (folder / "adapter_config.json").is_file() or adapter_hash(folder) != wanted:
            raise UserError(
                f"what MLflow holds of {registry.name} version {version.version} is not adapter {wanted}: its files were "
                "changed or lost; put champion on a whole one with `python -m flows.rollback`"
            )
    return folder


def logged_model(version: Any) -> str:
    """The id of the logged model that steps/register.py made a version of; UserError where it was made otherwise."""
    source = str(version.source)
    if not source.startswith("models:/m-"):
        raise UserError(
            f"{version.name} version {version.version} is of {source}, and no logged model: only what the stage register "
            "made can be compared"
        )
    return source.removeprefix("models:/")


def policy_of(version: Any, adapter: Path, policy: Policy) -> Policy:
    """params.yaml's policy, with the base model that this version was trained on and its own rank."""
    model, revision = version.tags.get("base_model", policy.base_model), version.tags.get("base_revision", "None")
    lora = policy.lora.model_copy(update={"rank": read(adapter / "adapter_config.json").get("r", policy.lora.rank)})
    changes = {"base_model": model, "revision": None if revision == "None" else revision, "lora": lora}
    return policy.model_copy(update=changes)


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
    from steps.engine import adapter_hash
    from steps.handover import fingerprint

    files = [RUN / "scenarios/test.parquet", *sorted(path for path in task_data(task).rglob("*") if path.is_file())]
    hashes = {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    return register.digest([settings, adapter_hash(adapter) if adapter else None, hashes, fingerprint()]) + "\n"


# --- What the verdict leads to


def write(verdict: Verdict, folder: Path) -> None:
    """verdict.json, verdict.md and verdict.png."""
    (folder / "verdict.json").write_text(verdict.text())
    (folder / "verdict.md").write_text(gate.table(verdict))
    gate.picture(verdict, folder / "verdict.png")


def show_page(verdict: Verdict) -> None:
    """The table, on the flow run's page in Prefect."""
    from prefect.artifacts import create_markdown_artifact

    create_markdown_artifact(gate.table(verdict), key="promotion", description=verdict.reason)


def publish(registry: Registry, challenger: Any, verdict: Verdict, folder: Path, known: PromoteParams) -> None:
    """Log the verdict, tag the version, move the alias: in this order, so that no champion is without its evidence."""
    client, number = registry.client, str(challenger.version)
    run_id = run_of(registry, challenger, known)
    for name in ("verdict.json", "verdict.md", "verdict.png"):
        client.log_artifact(run_id, str(folder / name), "promotion")
    client.set_model_version_tag(registry.name, number, "verdict", verdict.hash)
    client.set_model_version_tag(registry.name, number, "verdict_run", run_id)
    if verdict.promoted:
        registry.crown(number)
    client.set_model_version_tag(registry.name, number, "promoted", str(verdict.promoted).lower())


def run_of(registry: Registry, challenger: Any, known: PromoteParams) -> str:
    """The MLflow run that logged the challenger's adapter; a new one where there is none, as after a plain `dvc repro`."""
    client = registry.client
    run_id = challenger.run_id or client.get_logged_model(logged_model(challenger)).source_run_id
    if run_id and client.get_run(run_id).info.lifecycle_stage == "active":
        return str(run_id)
    experiment = register.experiment(client, Path.cwd(), known.task)
    adapter = challenger.tags["adapter_hash"]
    if found := client.search_runs([experiment], f"tags.promotion = '{adapter}'"):
        return str(found[0].info.run_id)
    tags = register.about(known) | {"promotion": adapter, "adapter_hash": adapter}
    run = client.create_run(experiment, tags=tags, run_name=f"promotion of {adapter}")
    client.set_terminated(run.info.run_id)
    return str(run.info.run_id)


def print_end(verdict: Verdict, registry: Registry, challenger: Any, folder: Path, dry_run: bool) -> None:
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


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.promote", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--version", metavar="N", help="of the registered model (default: the alias challenger)")
    parser.add_argument("--dry-run", action="store_true", help="judge and write the verdict; change nothing in MLflow")
    words = parser.parse_args()
    try:
        prepare()
        verdict = promote(words.version, words.dry_run)
    except BaseException as problem:
        return say_why(problem, interrupted=False)
    finally:
        end_worker()
    return 0 if verdict is None or verdict.promoted else REFUSED


if __name__ == "__main__":
    sys.exit(main())
