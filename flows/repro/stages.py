"""Runs a stage on files of the caller's choice, without DVC, as a Prefect task."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE

from flows.repro.pipeline import StageFailed
from steps.runner.stage import command, is_warm


@task(task_run_name="{stage} {iteration}", cache_policy=NO_CACHE)
def run_stage(stage: str, iteration: str, arguments: dict[str, str]) -> None:
    """Run a stage on these paths. StageFailed where it fails; KeyboardInterrupt on Ctrl-C."""
    if code := command(f"steps.{stage}", stage, arguments, is_warm()):
        if code == 130:
            raise KeyboardInterrupt
        raise StageFailed(f"{stage} {iteration}", code)
