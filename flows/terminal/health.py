"""What a person should hear while a run goes on: episodes that failed, iterations that teach nothing, with the cause, and
what add-ons see (port `warning`).

It reads what the stages wrote, and changes nothing.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from flows.terminal.report import RUN, read
from steps.core.errors import UserError
from steps.core.ports import every
from steps.project.chain import iteration_name

LONGEST = 300  # characters shown of an error
CRAMPED = "no room"  # for a first turn

CURES = {  # stop reason -> what helps
    "length": "raise rollout.max_tokens, and what an agent of your own asks for: turns are cut off",
    "context": "raise policy.context, for episodes fill it",
    CRAMPED: "lower max_tokens, or raise policy.context: no turn fits behind the prompt",
    "max_turns": "raise rollout.max_turns, or train a policy that comes to an end",
}
# Findings that see what a warning has said already, by the words of that warning.
SAID = {
    "failed episodes": "Warning: rollout: ",
    "no variance": " teaches nothing: ",
    "unscored": "could be scored",
    "no choice": "no token bears loss",
}
EQUAL = (
    "the attempts at each scenario all earned the same reward, so that none is better than another. Take easier scenarios "
    "or a policy that succeeds at times, give partial credit in the task's reward, or raise rollout.attempts"
)


def failures(folder: Path) -> str:
    """How many episodes of a folder's trajectories failed, with the first error, or had no room for a turn; empty where none
    did."""
    ends = stops(folder)
    errors, total = [error or "no message" for reason, error in ends if reason == "error"], len(ends)
    if not errors:
        cramped = sum(reason == CRAMPED for reason, _ in ends)
        return f"{cramped} of {total} episodes ended before their first turn: {CURES[CRAMPED]}" if cramped else ""
    first = " ".join("".join(letter if letter.isprintable() else " " for letter in errors[0]).split())
    first = first if len(first) <= LONGEST else f"{first[:LONGEST]} …"
    return f"{len(errors)} of {total} episodes failed ({100 * len(errors) / total:.0f} %); the first error: {first}"


def unusable(folder: Path) -> str:
    """How many attempts of a folder's rewards have no score because of a number; empty where none."""
    from steps.core.parquet import read_columns
    from steps.judging.rule import unusable_line

    path = folder / "rewards.parquet"
    rows = read_columns(path, ["score", "explanation"]).to_pylist() if path.exists() else []
    return unusable_line([(row["score"], row["explanation"]) for row in rows])


def stops(folder: Path) -> list[tuple[str, str | None]]:
    """(stop reason, error) of each episode. An agent of one's own goes on after a turn that was cut off, and ends by itself:
    its reason is `length`, too, where a turn was. One that the context ended before any turn has the reason CRAMPED."""
    from steps.core.parquet import read_columns

    path, finish = folder / "trajectories.parquet", "finish_reason"
    names = ["stop_reason", "error", f"turns.list.element.{finish}"]
    rows = read_columns(path, names).to_pylist() if path.exists() else []

    def reason(row: dict[str, Any]) -> str:
        turns = [turn[finish] for turn in row.get("turns") or ()]
        if row["stop_reason"] == "context" and not turns:
            return CRAMPED
        return "length" if "length" in turns and row["stop_reason"] == "done" else str(row["stop_reason"])

    return [(reason(row), row["error"]) for row in rows]


def teaches_nothing(iteration: int) -> bool:
    """Whether no token of the iteration's batch pushed the policy anywhere."""
    folder = RUN / iteration_name(iteration)
    counts = read(folder / "metrics.json") if (folder / "metrics.json").exists() else {}
    return "gradient" not in read(folder / "fates.json").values() or counts.get("tokens_trained") == 0


def warnings(iteration: int) -> list[str]:
    """Lines about an iteration's batch and validation: what failed, and why nothing was learnt. Empty where all is well."""
    folder = RUN / iteration_name(iteration)
    validation = folder / "evaluation"
    problems = {"validation: ": failures(validation), "validation rewards: ": unusable(validation)}
    if iteration:
        problems = {"rollout: ": failures(folder), "rewards: ": unusable(folder)} | problems
    lines = [f"{place}{text}" for place, text in problems.items() if text]
    if iteration and teaches_nothing(iteration):
        lines.append(f"iteration {iteration} teaches nothing: {cause(folder)}")
    return [f"Warning: {line}" for line in lines]


def tripped(iteration: int) -> dict[str, str]:
    """What add-ons see in an iteration, by name; also where they cannot look."""
    try:
        return {name: text for findings in every("warning") for name, text in findings(RUN, iteration)}
    except UserError as problem:
        return {"not looked at": str(problem)}


def lines(iteration: int) -> list[str]:
    """All that a person should hear of an iteration: `warnings`, and what else add-ons see."""
    spoken = warnings(iteration)
    seen = tripped(iteration) if iteration else {}
    new = {name: text for name, text in seen.items() if not any(SAID.get(name, name) in line for line in spoken)}
    return [*spoken, *(f"Tripwire in iteration {iteration}, {name}: {text}" for name, text in new.items())]


def at_end(best: str, iterations: int) -> list[str]:
    """Lines beside a run's result: whether anything was learnt at all, and how many test episodes failed."""
    lines = []
    if all(teaches_nothing(iteration) for iteration in range(1, iterations + 1)):
        lines.append(
            "Warning: no iteration taught anything, so this is no result of training; the lines above say why."
        )
    test = RUN / best / "test"
    lines += [f"Warning: test of run/{best}: {text}" for text in (failures(test), unusable(test)) if text]
    return lines


def cause(folder: Path) -> str:
    """Why an iteration without a signal has none, and the setting to change."""
    fates = Counter(read(folder / "fates.json").values())
    reasons = Counter(reason for reason, _ in stops(folder))
    total, cut = fates.total(), {reason: reasons[reason] for reason in CURES if reasons[reason]}
    if reasons["error"] == total:
        return f"all {total} episodes failed. `make check-task NAME=…` tests a task without a model"
    if fates["quarantined"] == total:
        return f"all {total} trajectories are quarantined, for the reasons in {folder / 'metrics.json'}"
    if fates["unscored"] == total:
        if unusable(folder):
            return "no reward of its batch is a number that can be compared, as the line on rewards says"
        return (
            f"none of the {total} episodes could be scored by a judge: the reasons are in {folder / 'judgements.jsonl'}"
        )
    if sum(cut.values()) == total:
        return f"all {total} episodes were truncated: {'; '.join(CURES[reason] for reason in cut)}"
    if held := fates["constrained"] + fates["gradient"]:  # of earlier versions' runs: a gradient of no token
        return (
            f"in {held} of {total} trajectories no token bears loss, because the grammar of a schema "
            "(response_format) or of a forced tool left no choice at it, or is not known: look at rollout.grammar, and at "
            "what the agent asks for"
        )
    counts = ", ".join(f"{number} {fate.replace('_', ' ')}" for fate, number in sorted(fates.items()))
    return f"{EQUAL} (of {total} trajectories: {counts}; truncated: {sum(cut.values())})"
