"""The end of a training run: run/summary.json, the result in words, and commands to go on with."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.terminal import health, report
from flows.terminal.display import RunDisplay
from flows.terminal.report import RUN, Point
from steps.core import params
from steps.core.errors import UserError
from steps.core.files import write_text
from steps.core.records import Judged, TaskResult
from steps.project.chain import BASE, iteration_name

NEXT = {  # commands to go on with, and what each is for
    ".venv/bin/python -m steps.analytics.transcripts {test}": "read what the agent did",
    "make view": "the same as pages, with every attempt, reward and chart",
    "make mlflow": "compare iterations and runs, open the registry",
    "make promote": "judge the new version by the gate: it becomes champion if it passes",
    "make serve": "serve the champion",
    "make ui": "schedule and start runs from Prefect's pages",
    "make reproduce": "what is stale? everything again with ARGS=--force: same bytes",
}


def write_summary(task: str, chosen: Point, iterations: int, started: float, display: RunDisplay) -> dict[str, Any]:
    """Write run/summary.json, and return its content. A registry that is away leaves the version's number open."""
    receipt, version, is_away = report.read(RUN / "receipt.json"), None, False
    if receipt["registered"]:
        try:
            version = version_of(receipt, RUN / iteration_name(chosen), display)
        except UserError as problem:
            is_away = True
            display.say(f"The registry cannot be asked for the number of the version: {problem}")
    summary = report.summary(task, chosen, iterations, version, time.monotonic() - started)
    if is_away:
        summary["registered"] = {"name": receipt["name"], "version": None}
    seen = {number: list(health.tripped(number)) for number in range(1, iterations + 1)}
    if any(seen.values()):
        summary["tripwires"] = {iteration_name(number): names for number, names in seen.items() if names}
    write_text(RUN / "summary.json", json.dumps(summary, indent=2) + "\n")
    return summary


def version_of(receipt: dict[str, Any], best: Path, display: RunDisplay) -> str:
    """The number of the version that the receipt speaks of. It is registered again where the registry has none: DVC keeps
    the receipt and knows nothing of the registry, which may be another one now (another machine or server, a store or a
    version that was deleted). `best` is the iteration's folder."""
    from steps.registry.model import registered_version
    from steps.registry.publish import publish

    name = receipt["name"]
    if version := registered_version(name, receipt["adapter_hash"]):
        return version
    parameters = params.load("params.yaml", params.RegisterParams)
    version = publish(Path.cwd(), best / "adapter", best / "test", RUN / BASE / "test", parameters)
    display.say(
        f"The registry had no version of {name} with this adapter: it is registered again, as version {version}."
    )
    return version


def result_lines(summary: dict[str, Any]) -> list[str]:
    """The result of the tests, and what was registered."""
    lines = []
    for who in ("base", "begun", "trained"):
        if (result := summary.get(who)) is None:
            continue
        if judged := result.get("judged"):
            if who == "trained":  # the base policy is what it is compared with
                lines += judged_lines(judged, result["n"])
            continue
        low, high = result["ci95"]
        sampled = "" if result.get("sampled_success") is None else f"; sampled {result['sampled_success']:.3f}"
        lines.append(
            f"{who:>8}: test success {result['success']:.3f} [{low:.3f}, {high:.3f}] of {result['n']} scenarios{sampled}"
        )
        for task, fields in result.get("by_task", {}).items():
            lines.append(f"{'':>10}{TaskResult.model_validate(fields).sentence(task)}")
    lines += report.decision_table(len(summary["iterations"]))
    policy = summary["trained"]["policy"]
    which = f"iteration {int(policy)}" if policy.isdigit() else f"run/{policy}"
    if (entry := summary["registered"]) and entry["version"] is None:
        lines.append(f"Registered {which} in {entry['name']}; `make mlflow` shows the version's number.")
    elif entry:
        lines.append(f"Registered {which} as models:/{entry['name']}/{entry['version']}.")
    else:
        lines.append(f"Not registered: {report.read(RUN / 'receipt.json')['reason']}.")
    for number, names in summary.get("tripwires", {}).items():
        lines.append(
            f"Tripwires in iteration {int(number)}: {', '.join(names)} (.venv/bin/python -m steps.analytics.tripwires)"
        )
    return [*lines, *health.at_end(policy, len(summary["iterations"]))]


def judged_lines(judged: dict[str, Any], n: int) -> list[str]:
    """The result of the tests where a judge compared the trained policy with the base policy."""
    result = Judged.model_validate(judged)
    low, high = result.ci95
    text = f"judged better than the {result.rival} on {result.share:.3f} [{low:.3f}, {high:.3f}] of {n} test scenarios"
    return [f" trained: {text}", f"          {result.faults()}"]


def print_end(say: Callable[[str], None], summary: dict[str, Any]) -> None:
    """Print the result, and commands to go on with."""
    say("")
    for line in result_lines(summary):
        say(line)
    seconds = f"({summary['wall_seconds']:.0f} s)"
    say(f"Learning curve: {RUN / 'learning_curve.png'}   summary: {RUN / 'summary.json'}   {seconds}")
    say("\nNext:")
    test = f"run/{summary['trained']['policy']}/test"
    for words, what in NEXT.items():
        say(f"  {words.format(test=test):<62}{what}")
