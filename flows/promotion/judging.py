"""Judges a registered version by the gate: makes missing evaluations, the verdict, its table and its picture.

It also runs single stages for that.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flows.deployment import artifacts
from flows.deployment.settings import VersionSettings
from flows.promotion.evaluations import OWN, Regression, evaluated, regression, regression_file
from flows.terminal.report import RUN, read
from steps.core import alike, params
from steps.core.errors import UserError
from steps.core.files import write_text
from steps.core.params import Policy, PromoteParams
from steps.core.ports import every
from steps.core.section import at
from steps.data.ingested import read_scenarios
from steps.project import chain, lock, store
from steps.registry import checks, gate, judgements, publish, verdict_report
from steps.registry.gate import Side, Verdict
from steps.registry.model import RegisteredModel, fetched, logged_model, policy_of, read_registry, tagged_adapter

if TYPE_CHECKING:
    from environments.base import Scenario


class Challenge(NamedTuple):
    """A version that was judged."""

    model: RegisteredModel
    version: Any  # mlflow.entities.model_registry.ModelVersion
    verdict: Verdict
    folder: Path  # run/promote/<hash>: verdict.json, verdict.md, verdict.png
    parameters: PromoteParams


def challenge(settings: VersionSettings, also_champion: bool = False) -> Challenge | None:
    """Judge a version, and write and show the verdict. None for the champion itself, unless `also_champion`."""
    root, parameters = Path.cwd(), params.load("params.yaml", PromoteParams)
    if settings.model not in (None, parameters.model):
        raise UserError(
            f"params.yaml is of the model {parameters.model}, not {settings.model}: name a run of that with `run`"
        )
    model = read_registry(root, parameters.model)
    challenger = model.version(settings.version)
    champion = model.versions[model.aliases["champion"]] if "champion" in model.aliases else None
    is_champion = champion is not None and same_adapter(champion, challenger)
    if is_champion:
        if not also_champion:
            entry = f"{parameters.model} version {challenger.version}"
            number = model.aliases["champion"]
            twin = "" if number == str(challenger.version) else f", as version {number}, which has the same adapter"
            print(f"{entry} is the champion already{twin}: nothing to do.", flush=True)
            return None
        champion = None
    best = tested(root, parameters, challenger)
    folder = RUN / "promote" / tagged_adapter(challenger)
    folder.mkdir(parents=True, exist_ok=True)
    verdict = judge(parameters, folder, best, model, champion, is_champion)
    write(verdict, folder, best)
    show_page(verdict, folder / "verdict.png")
    return Challenge(model, challenger, verdict, folder, parameters)


def same_adapter(champion: Any, challenger: Any) -> bool:
    """Whether two versions are one, or hold the same adapter."""
    held = champion.tags.get("adapter_hash"), challenger.tags.get("adapter_hash")
    return bool(champion.version == challenger.version or (held[0] and held[0] == held[1]))


def tested(root: Path, parameters: PromoteParams, challenger: Any) -> dict[str, str]:
    """chain.yaml's `tested` (base and best). UserError where run/ is not the run that made the challenger."""
    from steps.policy.adapter import adapter_hash

    chosen: dict[str, str] = chain.read_chain(root).get("tested") or {}
    adapter = RUN / str(chosen.get("best")) / "adapter"
    if not adapter.is_dir():
        raise UserError(
            f"{adapter}, which chain.yaml names as the best, does not exist: `.venv/bin/dvc checkout` brings it back"
        )
    if (best := adapter_hash(adapter)) != challenger.tags.get("adapter_hash"):
        raise UserError(
            f"{parameters.model} version {challenger.version} is adapter {challenger.tags.get('adapter_hash')}, and "
            f"{adapter} is {best}: {RUN}/ is of another run; bring that run back (`git checkout` of its revision, then "
            "`.venv/bin/dvc checkout`) or register this one (`make train`)"
        )
    whole = params.load("params.yaml", params.Params)
    if reason := lock.unfit(lock.read_lock(root), ["test@base", "test@best"], whole):
        raise UserError(f"what was tested is not of these parameters: {reason}")
    return chosen


def judge(
    parameters: PromoteParams,
    folder: Path,
    best: dict[str, str],
    model: RegisteredModel,
    champion: Any,
    is_champion: bool,
) -> Verdict:
    """The verdict on run/<best>. Champion and scripted player are evaluated where that has not been done yet. It is a look
    at the test split, unless the champion itself is shown."""
    from environments.base import Scenario
    from steps.core.records import read_records

    for path in (RUN / "scenarios/test.parquet", RUN / "scenarios/contamination.json"):
        if not path.is_file():
            raise UserError(f"{path} does not exist: the stage scenarios makes it (`.venv/bin/dvc repro`)")
    scenarios = read_records(Scenario, RUN / "scenarios/test.parquet")
    sides = {name: gate.read_side(RUN / best[key] / "test", scenarios) for name, key in OWN.items()}
    rival = RUN / best[OWN["challenger"]] / "test" if sides["challenger"].judged is not None else None
    if champion is not None:
        adapter = fetched(model, champion, folder / "champion_adapter")
        policy = policy_of(champion, adapter, parameters.policy)
        evaluation = evaluated("champion", folder, parameters, policy, adapter, rival)
        sides["champion"] = gate.read_side(evaluation, scenarios)
    if rival is None and has_script(parameters.task):  # a judge compares with the champion and the base policy alone
        evaluation = evaluated("scripted", folder, parameters, Policy(kind="scripted"), None)
        sides["scripted"] = gate.read_side(evaluation, scenarios)
    report = read(RUN / "scenarios/contamination.json")
    again = regression(folder, parameters, best, champion) if rival is None else None
    deciding = scenarios
    if again is not None and at(parameters, "promote.decides") == "regression":
        deciding = again.scenarios
    other = sides.get("champion", sides["base"])
    look = 0 if is_champion else counted(model.name, deciding, sides["challenger"], other)
    clusters = alike.named_clusters(parameters.task, scenarios)
    compared = gate.Look(scenarios, clusters=clusters, number=look, **sides)
    fallen = on_regression(again, parameters, look, rival is None)
    return gate.decide(compared, report, parameters.promote, watched(), fallen)


def on_regression(
    again: Regression | None, parameters: PromoteParams, look: int, is_by_rule: bool
) -> checks.Check | None:
    """The check of the regression set; None where there is no such set."""
    if again is None:
        there = not is_by_rule and read_scenarios(regression_file(parameters.task))
        return checks.held(f"not measured: {parameters.task} has no rule, by which to judge it") if there else None
    clusters = alike.named_clusters(parameters.task, again.scenarios)
    if at(parameters, "promote.decides") in (None, "test"):
        against = f"{again.against} on {len(again.scenarios)} scenarios that went wrong before"
        return checks.holds("regression", again.challenger, again.other, against, clusters, parameters.promote)
    return checks.gains(again.challenger, again.other, again.against, clusters, look, parameters.promote)


def watched() -> checks.Check | None:
    """Whether the reward rose while the truth fell in the run; None where nothing is to be watched."""
    whole = params.load("params.yaml", params.Params)
    watches = list(every("watch"))
    if not watches or at(whole, "promote.false_alarms") is None:
        return None
    evaluated_policies = chain.read_chain(Path.cwd()).get("evaluated") or {}
    iterations = sorted(name for name in evaluated_policies if name.isdigit())  # without what the run started from
    try:
        watch = watches[0](RUN, whole)
        alarms = [watch.add(int(iteration)) for iteration in iterations]
    except (UserError, ModuleNotFoundError, LookupError, FileNotFoundError) as problem:
        print(f"The run's iterations are not compared with each other: {problem}", flush=True)
        return checks.hacking(None, "not measured: the run's evaluations, or its task, are not here")
    alarm = next((alarm for alarm in alarms if alarm is not None), None)
    blind = " (nothing tells the truth here: no rule, and no evaluate.judge)" if watch.is_blind else ""
    seen = f"in {len(iterations) - 1} iterations the reward has not risen while the truth fell{blind}"
    return checks.hacking(alarm.sentence() if alarm else None, seen)


def counted(name: str, scenarios: list[Scenario], challenger: Side, other: Side) -> int:
    """The number of this look at the test split, which the ledger counts. UserError where it cannot: nobody could say then
    how often the split has been used."""
    from sqlalchemy.exc import SQLAlchemyError

    from steps.project.ledger import Ledger

    ids = [scenario.id for scenario in scenarios]
    try:
        with Ledger() as ledger:
            return judgements.count(ledger, name, ids, challenger.adapter_hash, other.adapter_hash)
    except (UserError, SQLAlchemyError) as problem:
        reason = " ".join(str(problem).split())[:300]
        raise UserError(
            f"the looks at the test split cannot be counted, and without that no version is judged: {reason}"
        ) from None


def has_script(task: str) -> bool:
    """Whether a task has a scripted player. An agent of the user's own has none, and a task need not have one."""
    import environments

    try:
        return environments.load(task).has_player("scripted")
    except (ModuleNotFoundError, ValueError):  # the evaluation will say so
        return True


# --- Writing and showing the verdict


def write(verdict: Verdict, folder: Path, best: dict[str, str]) -> None:
    """Write verdict.json, verdict.md, verdict.png, and evaluations.json: the evaluations it is based on, by DVC's md5."""
    from steps.project.lock import folder_md5

    paths = {side: RUN / best[OWN[side]] / "test" if side in OWN else folder / side for side in verdict.sides}
    evaluations = {side: {"path": path.as_posix(), "md5": folder_md5(path)} for side, path in paths.items()}
    write_text(folder / "evaluations.json", json.dumps(evaluations, indent=2) + "\n")
    write_text(folder / "verdict.json", verdict.text())
    write_text(folder / "verdict.md", verdict_report.table(verdict))
    verdict_report.picture(verdict, folder / "verdict.png")


def show_page(verdict: Verdict, picture: Path) -> None:
    """Show the table and the picture on the flow run's page in Prefect."""
    from prefect.artifacts import create_markdown_artifact

    create_markdown_artifact(verdict_report.table(verdict), key="promotion", description=verdict.reason)
    artifacts.show_picture(picture, "verdict", verdict.reason)


def log_verdict(judged: Challenge, place: str) -> str:
    """Log the verdict to the MLflow run that made the version, as artifacts in the folder `place`; the id of that run."""
    run_id = run_of(judged.model, judged.version, judged.parameters)
    for name in ("verdict.json", "verdict.md", "verdict.png"):
        judged.model.client.log_artifact(run_id, str(judged.folder / name), place)
    return run_id


def run_of(model: RegisteredModel, challenger: Any, parameters: PromoteParams) -> str:
    """The id of the MLflow run that logged the challenger's adapter; of a new run where none did (after `dvc repro`)."""
    client = model.client
    run_id = challenger.run_id or client.get_logged_model(logged_model(challenger)).source_run_id
    if run_id and client.get_run(run_id).info.lifecycle_stage == "active":
        return str(run_id)
    experiment = store.experiment(client, Path.cwd(), parameters.task)
    adapter = tagged_adapter(challenger)
    if runs := client.search_runs([experiment], f"tags.promotion = '{adapter}'"):
        return str(runs[0].info.run_id)
    tags = publish.about(parameters) | {"promotion": adapter, "adapter_hash": adapter}
    run = client.create_run(experiment, tags=tags, run_name=f"promotion of {adapter}")
    client.set_terminated(run.info.run_id)
    return str(run.info.run_id)


def on_trial(judged: Challenge) -> bool:
    """Whether a version that passes gets a share of the traffic before it is champion."""
    return share_on_trial(judged) > 0 and "champion" in judged.model.aliases


def share_on_trial(judged: Challenge) -> float:
    """The share of the conversations that a version gets which passes, before it is champion."""
    return max((float(trial.share(judged.parameters)) for trial in every("trial")), default=0.0)


def print_end(judged: Challenge, dry_run: bool) -> None:
    """Print the checks, what becomes of the version, and where the verdict is."""
    model, verdict = judged.model, judged.verdict
    for check in verdict.checks:
        print(f"  {'ok' if check.passed else 'NO':>2}  {check.name:<13} {check.text}", flush=True)
    for name, judged_by in (verdict.judges or {}).items():
        print(f"      {name} against {judged_by.rival}: {judged_by.faults()}", flush=True)
    entry = f"{model.name} version {judged.version.version}"
    champion = model.aliases.get("champion")
    if champion == str(judged.version.version):
        passes = "it passes against" if verdict.promoted else f"{verdict.reason}, against"
        print(f"{entry} is the champion already: {passes} the base policy.")
    elif verdict.promoted and on_trial(judged):
        share = f"{share_on_trial(judged):.0%} of the conversations"
        print(
            f"{entry} {'would get' if dry_run else 'gets'} {share} of `make serve`; what people say of its answers decides."
        )
    elif verdict.promoted:
        result = f"{entry} {'would be' if dry_run else 'is'} champion"
        print(f"{result}{f' in place of version {champion}' if champion else ''}.")
    else:
        stays = f"Champion stays version {champion}." if champion else "There is no champion."
        print(f"{entry} is refused, {verdict.reason}. {stays}")
    if verdict.power is not None and verdict.look:
        print(verdict.power.sentence(), flush=True)
    nothing = "; nothing in MLflow (--dry-run)" if dry_run else ""
    print(f"Written: {judged.folder}/verdict.md, .json and .png{nothing}", flush=True)


def check_right() -> None:
    """UserError where the ledger lets this person record no decisions. One that is away refuses nobody: a rollback must
    work then, too."""
    from steps.project.ledger import Ledger
    from steps.registry import decisions

    try:
        ledger = Ledger(patience=5)
    except UserError:
        return  # flows/promotion/change.py says why
    with ledger:
        decisions.check_right(ledger)
