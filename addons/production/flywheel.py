"""Flywheel: one turn of the loop. Ingest what people asked and said, train from the champion, judge, promote.

    python -m addons.production.flywheel                          # what `make serve CAPTURE=1` has stored; in this folder
    python -m addons.production.flywheel --source langfuse --source openai:chats.jsonl
    python -m addons.production.flywheel --min-new 100 --share 0.3 --set train.iterations=6
    python -m addons.production.flywheel --dry-run                # ingests, and says what it would train on

A turn ends without training where too little is new, or a version is still on trial (serve.canary). Otherwise a run starts
from the champion, on the task's own scenarios and those from production, mixed by `--share`, with a seed that no turn before
it had; the gate judges its best adapter, by default on the regression set of what went wrong; and the alias champion moves,
which `make serve` follows. Each turn says what it learnt from, and why it promoted or did not. The deployment `flywheel`
does the same each night, in a worktree of its own. docs/flywheel.md walks through one turn.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any, Literal, NamedTuple

from prefect import flow
from pydantic import Field

from addons.production import ingest
from environments import tasks
from flows.deployment import workspace
from flows.deployment.settings import Form, PromoteSettings, assigned
from flows.promotion import change
from flows.repro.parameters import set_params
from flows.terminal import recorded
from flows.terminal.command import LOG, prepare, run_command
from steps.core import params
from steps.core.errors import UserError
from steps.core.params import Params, PromoteParams
from steps.core.params_tasks import short_name
from steps.core.ports import every
from steps.core.terminal import command_parser
from steps.core.yaml_text import read_mapping
from steps.data.ingested import INGESTED, read_rows
from steps.project import kept_runs
from steps.project.dvc import dvc_output
from steps.project.git import git
from steps.project.kept_runs import NAME
from steps.registry.model import CANARY, RegisteredModel, read_registry

LATEST = 200  # kept runs that are looked through for the last turn


class FlywheelSettings(Form):
    """One turn of the flywheel: ingest, train from the champion where there is enough that is new, and promote past the
    gate. Fields left empty have the values of the task's preset, or of params.yaml."""

    task: str = Field(
        "email_search",
        description="what the agent learns: a task in environments/",
        json_schema_extra={"enum": [*tasks()]},
    )
    own_task: str | None = Field(
        None, min_length=1, description="instead of `task`: the dotted name of your own module, such as my_team.my_task"
    )
    name: str | None = Field(None, pattern=f"^{NAME}$", description="of the run. Empty: the flow run's")
    sources: list[str] = Field(
        ["capture"],
        description="of conversations, as .venv/bin/python -m addons.production.ingest takes them; empty: what was ingested",
    )
    consented: bool = Field(False, description="everybody in these sources agreed, where rows do not say so")
    min_new: int = Field(
        30, ge=1, description="scenarios that no run has trained on yet; with fewer nothing is trained"
    )
    share: float = Field(
        0.5,
        gt=0,
        le=1,
        description="of the training and validation scenarios from production (scenarios.ingested.share)",
    )
    demonstrations: bool = Field(
        False, description="train on the conversations that people called good first (the stage sft)"
    )
    decides: Literal["test", "regression"] = Field(
        "regression",
        description="the scenarios on which the gate wants a gain: the test split, or what went wrong in production",
    )
    iterations: int | None = Field(None, ge=1, le=999, description="at most; training stops early without progress")
    more: dict[str, Any] = Field({}, description='any other key of params.yaml, as {"update.beta": 0.02}')

    @property
    def chosen(self) -> str:
        """The task to train on."""
        return self.own_task or self.task


class Turn(NamedTuple):
    """What there is to learn from, and how."""

    lines: list[str]  # what was ingested, what is new, and why nothing is trained where that is so
    assignments: list[str]  # the run's settings; empty: nothing is trained


def gather(root: Path, settings: FlywheelSettings, task: str) -> Turn:
    """Ingest the sources, which is done in the project's folder, and decide whether there is something to train on."""
    lines = []
    if settings.sources:
        done = ingest.run(root, settings.sources, task, [], settings.consented, None)
        lines += ingest.described(done)
    path = root / INGESTED / task / "scenarios.jsonl"
    ids = {str(row["id"]) for row in read_rows(path)}
    before = last_turn(root, task)
    new = len(ids - (learnt(root, before) if before else set()))
    since = f" since the run {before.name}" if before else ""
    lines.append(f"{new} scenarios are new{since}, of {len(ids)} from production")
    model = registered(root, task)
    champion = model.aliases.get("champion") if model else None
    if model and CANARY in model.aliases:
        trial = model.aliases[CANARY]
        return Turn([*lines, f"nothing is trained: version {trial} of {model.name} is on trial (serve.canary)"], [])
    if new < settings.min_new:
        return Turn([*lines, f"nothing is trained: fewer than {settings.min_new} (--min-new)"], [])
    start = f"models:/{model.name}@champion" if model and champion else None
    seed = (before.seed if before else current_seed(root, task)) + 1
    chosen: dict[str, Any] = {
        "seed": seed,
        "scenarios.ingested": {"share": settings.share, "version": None},
        "policy.start_from": start,
        "policy.start_optimizer": False,
        "promote.decides": settings.decides,
        "train.iterations": settings.iterations,
    }
    rows = read_rows(path.with_name("demonstrations.jsonl")) if settings.demonstrations else []
    if rows:
        chosen["sft.demonstrations"] = [path.with_name("demonstrations.jsonl").relative_to(root).as_posix()]
    lines.append(f"training starts from {start or 'a fresh adapter, for there is no champion'}, with seed {seed}")
    opened = [] if start else ["policy.start_from=null"]
    closed = [] if rows else ["sft=null"]
    return Turn(lines, [*opened, *closed, *assigned(chosen | settings.more)])


class KeptTurn(NamedTuple):
    """An earlier turn's run."""

    name: str
    version: str  # md5 of the scenarios from production that it had
    seed: int


def last_turn(root: Path, task: str) -> KeptTurn | None:
    """The latest kept run of a task that had scenarios from production; None where there is none."""
    names = git(root, "for-each-ref", "--format=%(refname)", "--sort=-committerdate", f"--count={LATEST}", "refs/runs")
    for name in names.split():
        with contextlib.suppress(UserError):
            content = read_mapping(git(root, "show", f"{name}:params.yaml"), f"params.yaml of {name}")
            version = ((content.get("scenarios") or {}).get("ingested") or {}).get("version")
            if version and content.get("task") == task:
                return KeptTurn(name.removeprefix("refs/runs/"), str(version), int(content.get("seed", 1)))
    return None


def learnt(root: Path, turn: KeptTurn) -> set[str]:
    """The ids of the scenarios from production that a turn had; none where DVC's cache has lost them: all count as new."""
    cache = Path(dvc_output(root, "cache", "dir").strip() or root / ".dvc/cache")
    path = cache / "files" / "md5" / turn.version[:2] / turn.version[2:]
    return {str(row["id"]) for row in read_rows(path)}


def registered(root: Path, task: str) -> RegisteredModel | None:
    """The registered model; None where there is no version."""
    try:
        return read_registry(root, model_of(root, task))
    except UserError as problem:
        if "holds no version" in str(problem):
            return None
        raise


def model_of(root: Path, task: str) -> str:
    """The name of the registered model of params.yaml, or of the task where that is of another one."""
    parameters = params.load(root / "params.yaml", PromoteParams)
    return parameters.model if parameters.task == task else short_name(task)


def current_seed(root: Path, task: str) -> int:
    """The seed of params.yaml, where that is of this task."""
    parameters = params.load(root / "params.yaml", Params)
    return parameters.seed if parameters.task == task else 0


def promoted(summary: dict[str, Any]) -> list[str]:
    """Judge what the run registered; lines that say what became of it."""
    from flows.promote import decided

    entry = summary["registered"]
    if not entry or entry["version"] is None:
        receipt = json.loads(Path("run/receipt.json").read_text())
        return [f"not promoted: nothing was registered: {receipt.get('reason') or 'the registry is away'}"]
    verdict = decided(PromoteSettings(version=str(entry["version"])))
    label = f"models:/{entry['name']}/{entry['version']}"
    if verdict is None:
        return [f"not promoted: {label} is the champion already"]
    if not verdict.promoted:
        return [f"{label} is refused: {verdict.reason}"]
    champion = read_registry(Path.cwd(), entry["name"]).aliases.get("champion")
    became = "promoted" if champion == str(entry["version"]) else "on trial (serve.canary)"
    return [f"{label} is {became}: {verdict.reason}"]


def show(lines: list[str]) -> None:
    """Show a turn's lines on the flow run's page."""
    from flows.deployment.artifacts import shown

    @shown
    def make() -> None:
        from prefect.artifacts import create_markdown_artifact

        text = "\n".join(f"- {line}" for line in lines)
        create_markdown_artifact(text, key="flywheel", description=lines[-1])

    make()


@flow(name="flywheel", log_prints=False, on_crashed=[recorded.stopped])
def deployed(settings: FlywheelSettings) -> list[str]:
    """A turn in the worktree that the deployment's pull step made; the lines that it says."""
    from flows.deployment.checkout import keep_results
    from flows.promotion.judging import check_right
    from flows.repro import folder_lock
    from flows.training.deployed import in_worktree, train_deployed

    prepare()
    check_right()
    path = Path.cwd().resolve()
    root = workspace.root_of(path)
    with contextlib.chdir(root), folder_lock.held(root, "deployed flywheel"):
        change.finish(root, model_of(root, settings.chosen))
        turn = gather(root, settings, settings.chosen)
    for line in turn.lines:
        print(f"flywheel: {line}", flush=True)
    lines = list(turn.lines)
    if turn.assignments:
        with in_worktree() as (folder, display, gpus):
            summary = train_deployed(folder, display, gpus, turn.assignments, settings.chosen)
            keep_results(root, folder)
            lines += promoted(summary)
            display.say(lines[-1])
            show(lines)
    else:
        os.chdir(root)  # out of the worktree, which goes
        workspace.remove(root, path)
        show(lines)
    return lines


def main(words: list[str] | None = None) -> int:
    parser = command_parser("addons.production.flywheel", __doc__)
    fields = FlywheelSettings.model_fields
    parser.add_argument("--task", help="default: that of params.yaml")
    parser.add_argument(
        "--source", action="append", metavar="SOURCE", help="as of addons.production.ingest (default: capture)"
    )
    parser.add_argument("--consented", action="store_true", help=fields["consented"].description)
    parser.add_argument("--min-new", type=int, default=30, metavar="N", help=f"{fields['min_new'].description} (30)")
    parser.add_argument("--share", type=float, default=0.5, help=f"{fields['share'].description} (0.5)")
    parser.add_argument("--demonstrations", action="store_true", help=fields["demonstrations"].description)
    parser.add_argument(
        "--decides", choices=["test", "regression"], default="regression", help=fields["decides"].description
    )
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change params.yaml first")
    parser.add_argument("--name", default="", help="of the run (default: flywheel-<seed>)")
    parser.add_argument("--dry-run", action="store_true", help="ingest, say what would be trained on, and stop")
    options = parser.parse_args(words)

    def work() -> int:
        if options.name:
            kept_runs.ref(options.name)
        if not 0 < options.share <= 1 or options.min_new < 1:
            raise UserError("--share must be above 0 and at most 1, and --min-new 1 or more")
        prepare(by_hand=True)
        root = Path.cwd()
        task = options.task or params.load(root / "params.yaml", Params).task
        given = {name: getattr(options, name) for name in "consented min_new share demonstrations decides".split()}
        settings = FlywheelSettings(own_task=task, sources=options.source or ["capture"], **given)
        if not options.dry_run:
            change.finish(root, model_of(root, task))
        turn = gather(root, settings, task)
        for line in turn.lines:
            print(f"flywheel: {line}", flush=True)
        if options.dry_run or not turn.assignments:
            return 0
        train(task, [*turn.assignments, *options.set], options.name)
        return 0

    return recorded.leave(run_command(work))


def train(task: str, assignments: list[str], name: str) -> None:
    """Train and judge in the current folder, as a flow run of Prefect's."""
    from flows.promotion.judging import check_right
    from flows.training import start

    check_right()
    chosen = set_params(assignments, task=task)
    for check in every("preflight"):
        check(chosen)
    for line in start.prepare(chosen):
        print(f"flywheel: {line}", flush=True)
    from flows.terminal.display import RunDisplay
    from flows.training.ending import print_end

    display, run_name = RunDisplay(), name or f"flywheel-{chosen.seed}"

    def turn() -> tuple[dict[str, Any], list[str]]:
        from flows.training.run import train_here

        summary = train_here(display, run_name)
        return summary, promoted(summary)

    with display.shown(LOG):
        display.begin("starting Prefect")
        summary, lines = recorded.result_of("flywheel", turn, display.say, run_name)
    kept_runs.keep_described(Path.cwd(), run_name)
    print_end(display.say, summary)
    for line in lines:
        print(f"flywheel: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
