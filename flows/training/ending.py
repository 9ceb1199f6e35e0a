"""The end of a training run: when it comes and which policy is the best, run/summary.json, the result in words, what
add-ons show of it, and commands to go on with.

What shows transcripts asks the task's own code for the answers (`Env.outcome`). Where that fails, or a file is damaged, the
end says so and leaves it out: the run itself is complete.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.terminal import health, report
from flows.terminal.display import RunDisplay
from flows.terminal.report import RUN, Point
from steps.analytics import gaps
from steps.core import params
from steps.core.errors import UserError, explain
from steps.core.evaluations import Judged, TaskResult
from steps.core.files import write_text
from steps.core.ports import every
from steps.core.stats import counted
from steps.project.chain import BASE, SFT, START, iteration_name, label

if TYPE_CHECKING:
    from steps.core.params import Params
    from steps.tracking.lasting import LastingMlflow

QUIET = 2  # iterations in a row without any signal, after which training ends
BEGUN = {SFT: "taught", START: "start"}  # what the policies before iteration 001 are called
NEXT = {  # commands and a page to go on with, and what each is for
    ".venv/bin/python -m steps.analytics.transcripts {test}": "read what the agent did",
    "make view": "the same as pages, with every attempt, reward and chart",
    "make mlflow": "compare iterations and runs, open the registry",
    "make promote": "judge the new version by the gate: it becomes champion if it passes",
    "make ui": "schedule and start runs from Prefect's pages",
    "make reproduce": "what is stale? everything again with ARGS=--force: same bytes",
}


def ending(begun: list[Point], curve: list[Point], alarms: Sequence[Any], patience: int, quiet: int = 0) -> str:
    """Why training ends after the last iteration of the curve, at which these alarms were raised, and the last `quiet` of
    which had no signal; empty where it goes on."""
    iteration, beginning = curve[-1].iteration, (begun or curve)[-1 if begun else 0]
    for alarm in alarms:
        return f"{alarm.sentence()}. No adapter of this run is promoted (docs/judging.md)"
    if report.compared(curve[-1], beginning, gaps.SURELY)[2] < 0:
        return (
            f"Validation {curve[-1].measure} fell to {curve[-1].success:.3f}, below the {beginning.success:.3f} that "
            "training began with"
        )
    if quiet >= QUIET:
        return f"No attempt of the last {quiet} iterations was better than another at the same scenario"
    if iteration - highest([*begun, *curve[1:]]).iteration >= patience:
        return f"Validation has not improved for {patience} iterations"
    return ""


def highest(points: list[Point]) -> Point:
    """The policy with the highest validation success, then reward, then the earliest. Without a rule, success is the share
    of scenarios on which a judge finds it better than the base policy."""
    return max(points, key=lambda point: (point.success, point.reward or 0.0, -point.iteration))


def best(begun: list[Point], curve: list[Point]) -> Point:
    """The policy that the run ends with; the base only where there is no other, since the best is compared with it.

    An iteration takes the place of what the iterations began with where its validation success is higher by more than a
    standard error of the difference (after Breiman et al. 1984, Classification and Regression Trees, 3.4.3): the highest of
    many iterations on few scenarios is often a lucky one, and each of them can have undone what it began with."""
    top = highest([*begun, *curve[1:]] or curve)
    if not begun or top.origin:
        return top
    beginning = highest(begun)
    return top if report.compared(top, beginning, gaps.ONE_ERROR)[1] > 0 else beginning


def passed_over(begun: list[Point], curve: list[Point]) -> str:
    """Why an iteration that was higher than what the run ends with is not that; empty where none was."""
    chosen, top = best(begun, curve), highest([*begun, *curve[1:]] or curve)
    if top.success <= chosen.success:  # higher in reward alone
        return ""
    lead, low, _ = report.compared(top, chosen, gaps.ONE_ERROR)
    return (
        f"Iteration {top.iteration} had validation {top.measure} {top.success:.3f}, and run/{chosen.name} is kept, with "
        f"{chosen.success:.3f}: of {chosen.counted} the lead of {lead:.3f} has a standard error of {lead - low:.3f}. More "
        "validation scenarios, of more groups, would tell (scenarios.val)."
    )


def write_summary(task: str, chosen: Point, iterations: int, started: float, display: RunDisplay) -> dict[str, Any]:
    """Write run/summary.json, and return its content. A registry that is away leaves the version's number open."""
    receipt, version, is_away = report.read(RUN / "receipt.json"), None, False
    if receipt["registered"]:
        try:
            version = version_of(receipt, RUN / chosen.name, display)
        except UserError as problem:
            is_away = True
            display.lack(f"The registry cannot be asked for the number of the version: {problem}")
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
    version that was deleted). `best` is the policy's folder."""
    from steps.registry.publish import publish, registered_version

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
        side = BEGUN.get(result.get("policy", ""), who) if who == "begun" else who
        sampled = "" if result.get("sampled_success") is None else f"; sampled {result['sampled_success']:.3f}"
        of = counted(result["n"], result.get("clusters"))
        lines.append(f"{side:>8}: test success {result['success']:.3f} [{low:.3f}, {high:.3f}] of {of}{sampled}")
        for task, fields in result.get("by_task", {}).items():
            lines.append(f"{'':>10}{TaskResult.model_validate(fields).sentence(task)}")
    for page in every("end"):
        lines += page.table(len(summary["iterations"]))
    policy = summary["trained"]["policy"]
    if (entry := summary["registered"]) and entry["version"] is None:
        lines.append(f"Registered {label(policy)} in {entry['name']}; `make mlflow` shows the version's number.")
    elif entry:
        lines.append(f"Registered {label(policy)} as models:/{entry['name']}/{entry['version']}.")
    else:
        lines.append(f"Not registered: {refusal(summary)}.")
    if seen := summary.get("tripwires"):
        lines.append(f"Tripwires: {tripwires(seen)} (.venv/bin/python -m addons.tripwires says what to do)")
    return [*lines, *health.at_end(policy, len(summary["iterations"]))]


def refusal(summary: dict[str, Any]) -> str:
    """Why the best policy is not registered, without the numbers that the result beside it has."""
    base, trained = (summary[who].get("success") for who in ("base", "trained"))
    if base is not None and trained is not None and trained <= base:
        return "that is not above the base policy"
    reason = str(report.read(RUN / "receipt.json")["reason"])
    return reason.rpartition("; ")[2] if summary["trained"].get("judged") else reason


def tripwires(seen: dict[str, list[str]]) -> str:
    """Which tripwires were set off, each with its iterations."""
    names = dict.fromkeys(name for names in seen.values() for name in names)
    places = {name: [str(int(number)) for number, own in seen.items() if name in own] for name in names}
    return "; ".join(f"{name} in iteration {', '.join(numbers)}" for name, numbers in places.items())


def judged_lines(judged: dict[str, Any], n: int) -> list[str]:
    """The result of the tests where a judge compared the trained policy with the base policy."""
    result = Judged.model_validate(judged)
    low, high = result.ci95
    of = counted(n, result.clusters, "test scenarios")
    text = f"judged better than the {result.rival} on {result.share:.3f} [{low:.3f}, {high:.3f}] of {of}"
    return [f" trained: {text}", f"          {result.faults()}"]


@contextlib.contextmanager
def left_out(what: str, say: Callable[[str], None]) -> Iterator[None]:
    """Inside, an error costs `what` alone, and is said."""
    try:
        yield
    except Exception as problem:
        say(f"{what} is left out: {explain(problem)[0].splitlines()[-1]}")


def write_page(params: Params, summary: dict[str, Any], tracker: LastingMlflow, say: Callable[[str], None]) -> None:
    """Write what add-ons make of a run that has ended, such as run/report.html, and give MLflow a copy."""
    for page in every("end"):
        with left_out(str(page.REPORT), say):
            tracker.log_artifact(page.write(params, summary))


def print_end(say: Callable[[str], None], summary: dict[str, Any]) -> None:
    """Print the result, a scenario before and after, and commands to go on with."""
    say("")
    for line in result_lines(summary):
        say(line)
    names = {"test": f"run/{report.tested(summary)}/test", "scenario": ""}
    for page in every("end"):
        with left_out("A scenario before and after", say):
            lines, scenario = page.story(summary)
            for line in ["", *lines, ""]:
                say(line)
            names["scenario"] = f" SCENARIO={scenario}" if scenario else ""
    seconds = f"({summary['wall_seconds']:.0f} s)"
    curve = f"Learning curve: {RUN / 'learning_curve.png'}   " if any(every("pages")) else ""
    say(f"{curve}summary: {RUN / 'summary.json'}   {seconds}")
    say("\nNext:")
    for commands in (*every("next"), NEXT):
        for words, what in commands.items():
            say(f"  {words.format(**names):<62}{what}")
