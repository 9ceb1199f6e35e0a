"""Rescore: judges stored iterations again with another judge, and compares. Nothing is sampled again, the run stays.

    python -m flows.rescore --set score.judges.rule=0 --set score.judges.ruler=1 --set score.ruler.endpoint.model=gpt-5-mini
    python -m flows.rescore --params other.yaml --iterations 2-4 --update

What is written stands in run/rescored/<name>/: params.yaml and rubric.md, for each iteration the rewards as the stage score
writes them, and comparison.json. --update also trains: each iteration's stored trajectories with the new rewards, from the
checkpoint whose adapter sampled them, so that the proof of the sampler holds (steps/training/contract.py); its adapter
and metrics stand beside.
To go on from there, put the same score section into params.yaml: the next `make train` judges, trains and samples by it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prefect import flow

from environments.base import read_text
from flows.deployment import pages
from flows.deployment.restore import restored
from flows.deployment.settings import RescoreSettings
from flows.deployment.workspace import NAME
from flows.repro.parameters import changed, values
from flows.repro.stages import run_stage
from flows.terminal.command import end_worker, prepare, run_command
from flows.terminal.report import RUN
from steps.core import params
from steps.core.errors import UserError
from steps.core.files import write_text
from steps.project.chain import iteration_name

RESCORED = RUN / "rescored"


@flow(name="rescore", log_prints=False)
def rescore(settings: RescoreSettings) -> list[dict[str, Any]]:
    """Judge iterations by other judges, and compare; a row an iteration."""
    with restored():
        try:
            iterations = choose(settings.iterations)
            rubric = Path(settings.rubric) if settings.rubric else None
            folder = settle(Path(settings.params), settings.assignments(), rubric, settings.label)
            rows = [judged(folder, number, settings.update) for number in iterations]
            (folder / "comparison.json").write_text(json.dumps(rows, indent=2) + "\n")
            show_page(rows)
            print_end(rows, folder, iterations)
            return rows
        finally:
            end_worker()


def judged(folder: Path, number: str, update: bool) -> dict[str, Any]:
    """One iteration by the parameters in `folder`, compared with what it had."""
    run_stage("score", number, score_arguments(folder, number))
    if update:
        run_stage("update", number, update_arguments(folder, number))
    row = compared(folder, number)
    print(row_text(row), flush=True)
    return row


def show_page(rows: list[dict[str, Any]]) -> None:
    """The comparison, on the flow run's page in Prefect."""
    from prefect.artifacts import create_table_artifact

    if pages.is_shown():
        with pages.kept():
            table = [row | {"flipped": len(row["flipped"])} for row in rows]
            create_table_artifact(table, key="rescored", description="judges compared; flipped: another best attempt")


def score_arguments(folder: Path, number: str) -> dict[str, str]:
    own, before = folder / number, folder / iteration_name(int(number) - 1) / "judge.json"
    own.mkdir(parents=True, exist_ok=True)
    found = {
        "rubric": folder / "rubric.md",
        "scenarios": RUN / "scenarios",
        "trajectories": RUN / number / "trajectories.parquet",
        "params": folder / "params.yaml",
        "rewards": own / "rewards.parquet",
        "judgements": own / "judgements.jsonl",
        "judge": own / "judge.json",
    }
    found |= {"previous_judge": before} if before.exists() else {}  # what the judge has cost so far
    return {key: str(path) for key, path in found.items()}


def update_arguments(folder: Path, number: str) -> dict[str, str]:
    own = folder / number
    found = {
        "trajectories": RUN / number / "trajectories.parquet",
        "rewards": own / "rewards.parquet",
        "previous": RUN / iteration_name(int(number) - 1) / "checkpoint",
        "params": folder / "params.yaml",
        "adapter": own / "adapter",
        "checkpoint": own / "checkpoint",
        "metrics": own / "metrics.json",
    }
    return {key: str(path) for key, path in found.items()}


def compared(folder: Path, number: str) -> dict[str, Any]:
    from steps.core.records import Reward, read_records
    from steps.judging import report

    before, after = (read_records(Reward, place / number / "rewards.parquet") for place in (RUN, folder))
    judges = {"before": before[0].name, "after": after[0].name}
    return {"iteration": int(number), **judges, **report.compare(before, after)._asdict()}


def row_text(row: dict[str, Any]) -> str:
    tau, shift = (f"{row[key]:+.3f}" if row[key] is not None else "none" for key in ("tau", "mean_shift"))
    return (
        f"iteration {row['iteration']}: {row['before']} -> {row['after']}, {row['trajectories']} trajectories in "
        f"{row['groups']} groups: tau {tau}, mean shift {shift}, {len(row['flipped'])} groups have another best attempt"
    )


def choose(words: str | None) -> list[str]:
    """The iterations asked for, 3 or 2-4; all that are stored by default."""
    there = sorted(path.parent.name for path in RUN.glob("[0-9][0-9][0-9]/trajectories.parquet"))
    if not there:
        raise UserError(
            f"{RUN} holds no iteration to judge again: `make train` makes some, `dvc checkout` brings them back"
        )
    if words is None:
        return there
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", words)
    wanted = [iteration_name(number) for number in range(int(found[1]), int(found[2] or found[1]) + 1)] if found else []
    if not wanted or set(wanted) - set(there):
        raise UserError(f"--iterations {words}: give a number or a range of {there[0]} to {there[-1]}, as in 2-4")
    return wanted


def settle(source: Path, assignments: Sequence[str], rubric: Path | None, label: str | None) -> Path:
    """The folder of this judge, with its params.yaml and rubric.md; its name is of what is judged by, unless given."""
    if label and not re.fullmatch(NAME, label):
        raise UserError(f"{label!r} cannot be the name of a folder: letters, digits, dots, dashes and underscores")
    if not source.is_file():
        raise UserError(f"{source} does not exist: run from the project's root, or name a file with --params")
    changed_text = changed(source.read_text(encoding="utf-8"), source, list(assignments))
    settings = params.parse(changed_text, source, params.Params)
    if params.load("params.yaml", params.Params).task != settings.task:
        raise UserError(f"{source} is of another task than params.yaml, which run/ was made with")
    rubric_text = read_text(rubric or Path("tasks_data") / settings.task.rpartition(".")[2] / "rubric.md")
    judged_by = json.dumps([settings.score.model_dump(mode="json"), rubric_text], sort_keys=True)
    weights = settings.score.judges.model_dump()
    judges = "+".join(judge for judge, weight in weights.items() if weight)
    folder = RESCORED / (label or f"{judges}-{hashlib.sha256(judged_by.encode()).hexdigest()[:8]}")
    folder.mkdir(parents=True, exist_ok=True)
    write_text(folder / "rubric.md", rubric_text)
    write_text(folder / "params.yaml", changed_text)
    return folder


def print_end(rows: list[dict[str, Any]], folder: Path, iterations: list[str]) -> None:
    for row in rows:
        for scenario, (was, now) in list(row["flipped"].items())[:5]:
            print(f"  {scenario}: best was {', '.join(was[:3])}, is {', '.join(now[:3])}")
    print(f"Written: {folder}\nNext:")
    print(f"  .venv/bin/python -m steps.analytics.transcripts {RUN}/{iterations[0]}/trajectories.parquet ", end="")
    print(f"--rewards {folder}/{iterations[0]}/rewards.parquet      read what was judged", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.rescore", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--params", default="params.yaml", help="whose score section judges")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="changes to it")
    parser.add_argument("--rubric", metavar="PATH", help="default: tasks_data/<task>/rubric.md")
    parser.add_argument("--iterations", metavar="N[-M]", help="default: all that are stored")
    parser.add_argument("--name", metavar="LABEL", help="of the folder in run/rescored (default: by the judge)")
    parser.add_argument("--update", action="store_true", help="train each iteration with the new rewards, too")
    words = parser.parse_args()

    def work() -> int:
        given = {"params": words.params, "rubric": words.rubric, "iterations": words.iterations, "label": words.name}
        settings = RescoreSettings(**given, more=values(words.set), update=words.update)
        prepare()
        rescore(settings)
        return 0

    return run_command(work)


if __name__ == "__main__":
    sys.exit(main())
