"""Rescore: judges stored iterations again with other judges, and compares. Nothing is sampled again; the run is not changed.

    python -m flows.rescore --set score.judges.rule=0 --set score.judges.ruler=1 --set score.ruler.endpoint.model=gpt-5-mini
    python -m flows.rescore --params other.yaml --iterations 2-4 --update

The results are in run/rescored/<name>/: params.yaml and rubric.md, the rewards of each iteration as the stage score writes
them, and comparison.json. With --update each iteration is also trained on its stored trajectories with the new rewards, from
the checkpoint that the run continued and with the adapter that sampled them, so that the check of the sampler holds
(steps/training/contract.py); the adapter and metrics are written beside. To go on with these judges, put the same score
section into params.yaml and `make train`.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import flow

from environments.base import read_text
from flows.deployment import artifacts
from flows.deployment.checkout import restored
from flows.deployment.settings import RescoreSettings
from flows.promotion.evaluations import run_stage
from flows.repro.parameters import changed, values
from flows.terminal import recorded
from flows.terminal.command import prepare, run_command
from flows.terminal.report import RUN
from steps.core import params
from steps.core.errors import UserError
from steps.core.files import write_text
from steps.core.parquet import read_columns
from steps.core.terminal import command_parser
from steps.project.chain import iteration_folders, iteration_name, sampled_with
from steps.project.kept_runs import NAME


@flow(name="rescore", log_prints=False, on_crashed=[recorded.stopped])
def rescore(settings: RescoreSettings) -> list[dict[str, Any]]:
    """Judge iterations with other judges, and compare; one row per iteration."""
    with restored():
        iterations = choose(settings.iterations)
        rubric = Path(settings.rubric) if settings.rubric else None
        folder = write_settings(Path(settings.params), settings.assignments(), rubric, settings.label)
        rows = [judge(folder, number, settings.update) for number in iterations]
        write_text(folder / "comparison.json", json.dumps(rows, indent=2) + "\n")
        show_page(rows)
        print_end(rows, folder, iterations)
        return rows


def judge(folder: Path, number: str, update: bool) -> dict[str, Any]:
    """Judge an iteration by the parameters in `folder`; the row that compares the rewards with the former ones."""
    own, previous = folder / number, iteration_name(int(number) - 1)
    own.mkdir(parents=True, exist_ok=True)
    shared = {
        "trajectories": RUN / number / "trajectories.parquet",
        "rewards": own / "rewards.parquet",
        "params": folder / "params.yaml",
    }
    scoring = {"rubric": folder / "rubric.md", "scenarios": RUN / "scenarios"}
    scoring |= {"judgements": own / "judgements.jsonl", "judge": own / "judge.json"}
    if (cost := folder / previous / "judge.json").exists():  # the judge's cost so far
        scoring["previous_judge"] = cost
    run_stage("score", number, {key: str(path) for key, path in (shared | scoring).items()})
    if update:
        training = {"previous": RUN / previous / "checkpoint", "adapter": own / "adapter"}
        training |= {"scenarios": RUN / "scenarios"}
        training |= {"behaviour": RUN / sampled_with(Path.cwd(), number) / "adapter"}
        training |= {"checkpoint": own / "checkpoint", "metrics": own / "metrics.json", "fates": own / "fates.json"}
        run_stage("update", number, {key: str(path) for key, path in (shared | training).items()})
    row = compare(folder, number)
    print(row_text(row), flush=True)
    return row


@artifacts.shown
def show_page(rows: list[dict[str, Any]]) -> None:
    """Show the comparison on the flow run's page in Prefect."""
    from prefect.artifacts import create_table_artifact

    table = [row | {"flipped": len(row["flipped"])} for row in rows]
    create_table_artifact(table, key="rescored", description="judges compared; flipped: another best attempt")


def compare(folder: Path, number: str) -> dict[str, Any]:
    """The row of an iteration in comparison.json."""
    from steps.core.records import Reward, read_records
    from steps.judging import agreement

    before, after = (read_records(Reward, place / number / "rewards.parquet") for place in (RUN, folder))
    judges = {"before": before[0].name, "after": after[0].name}
    return {"iteration": int(number), **judges, **agreement.compare(before, after)._asdict()}


def row_text(row: dict[str, Any]) -> str:
    """A row as one line."""
    tau, shift = (f"{row[key]:+.3f}" if row[key] is not None else "none" for key in ("tau", "mean_shift"))
    return (
        f"iteration {row['iteration']}: {row['before']} -> {row['after']}, {row['trajectories']} trajectories in "
        f"{row['groups']} groups: tau {tau}, mean shift {shift}, {len(row['flipped'])} groups have another best attempt"
    )


def choose(words: str | None) -> list[str]:
    """The stored iterations that `words` name, as 3 or 2-4; all of them where it is None."""
    stored = [path.name for path in iteration_folders(RUN) if (path / "trajectories.parquet").exists()]
    if not stored:
        raise UserError(
            f"{RUN} holds no iteration to judge again: `make train` makes some, `.venv/bin/dvc checkout` brings them back"
        )
    if words is None:
        return stored
    names = []
    if bounds := re.fullmatch(r"(\d+)(?:-(\d+))?", words):
        names = [iteration_name(number) for number in range(int(bounds[1]), int(bounds[2] or bounds[1]) + 1)]
    if not names or set(names) - set(stored):
        raise UserError(f"--iterations {words}: give a number or a range of {stored[0]} to {stored[-1]}, as in 2-4")
    return names


def write_settings(source: Path, assignments: Sequence[str], rubric: Path | None, label: str | None) -> Path:
    """Write params.yaml and rubric.md of these judges to a folder in run/rescored, which is named `label` or after them."""
    if label and not re.fullmatch(NAME, label):
        raise UserError(f"{label!r} cannot be the name of a folder: letters, digits, dots, dashes and underscores")
    if not source.is_file():
        raise UserError(f"{source} does not exist: run from the project's root, or name a file with --params")
    changed_text = changed(params.read_text(source), source, list(assignments))
    settings = params.parse(changed_text, source, params.Params)
    if settings.tasks:
        raise UserError(
            f"{source} is of several tasks, and no rubric is of all of them: rescore works on a single task"
        )
    played = set(read_columns(RUN / "scenarios/train.parquet", ["task"])["task"].to_pylist())
    if not played <= {
        settings.task,
        settings.task.rpartition(".")[2],
    }:  # a task may name its scenarios by its last part
        raise UserError(f"the run in run/ is of {', '.join(sorted(played))}, not of {settings.task} ({source})")
    rubric_text = read_text(rubric or Path("tasks_data") / settings.task / "rubric.md")
    judged_by = json.dumps([settings.score.model_dump(mode="json"), rubric_text], sort_keys=True)
    weights = settings.score.judges.model_dump()
    judges = "+".join(judge for judge, weight in weights.items() if weight)
    folder = RUN / "rescored" / (label or f"{judges}-{hashlib.sha256(judged_by.encode()).hexdigest()[:8]}")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "rubric.md", rubric_text)
    write_text(folder / "params.yaml", changed_text)
    return folder


def print_end(rows: list[dict[str, Any]], folder: Path, iterations: list[str]) -> None:
    """Print some of the groups whose best attempt changed, and how to read on."""
    for row in rows:
        for scenario, (was, now) in list(row["flipped"].items())[:5]:
            print(f"  {scenario}: best was {', '.join(was[:3])}, is {', '.join(now[:3])}")
    print(f"Written: {folder}\nNext:")
    print(f"  .venv/bin/python -m steps.analytics.transcripts {RUN}/{iterations[0]}/trajectories.parquet ", end="")
    print(f"--rewards {folder}/{iterations[0]}/rewards.parquet      read what was judged", flush=True)


def main() -> int:
    parser = command_parser("flows.rescore", __doc__)
    parser.add_argument(
        "--params", default="params.yaml", help="the file whose score section judges (default: params.yaml)"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a parameter (repeatable)"
    )
    parser.add_argument("--rubric", metavar="PATH", help="RULER's rubric (default: tasks_data/<task>/rubric.md)")
    parser.add_argument("--iterations", metavar="N[-M]", help="which iterations (default: all that are stored)")
    parser.add_argument(
        "--name", dest="label", metavar="LABEL", help="of the folder in run/rescored (default: by the judges)"
    )
    parser.add_argument("--update", action="store_true", help="also train each iteration with the new rewards")
    options = parser.parse_args()

    def work() -> None:
        fields = {key: getattr(options, key) for key in ("params", "rubric", "iterations", "label", "update")}
        settings = RescoreSettings(**fields, more=values(options.set))
        prepare(by_hand=True)
        rescore(settings)

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
