"""Prints trajectories for a person: the attempts at one scenario side by side with their rewards, then each in full.

    python -m steps.analytics.transcripts run/001/trajectories.parquet --limit 8
    python -m steps.analytics.transcripts run/001/evaluation --failed

It reads trajectories, the rewards beside them, and their scenarios. It is no stage, and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from environments.base import Message, Scenario
from environments.kit.pictures import marked
from steps.core.errors import UserError
from steps.core.records import Reward, Trajectory, Turn, read_records
from steps.core.terminal import command_parser, console, exit_code, table

WIDTH = 120  # columns where the output is no terminal
LINES, CHARACTERS = 8, 600  # shown of a message, at most
SCENARIOS = Path("run/scenarios")
STOPS = {
    "done": "the environment said that it is done",
    "max_turns": "no turn was left",
    "length": "a turn was cut off at max_tokens",
    "context": "no room was left in the context",
    "error": "the episode failed",
}


def show(
    console: Console,
    groups: dict[str, list[Trajectory]],  # by scenario
    rewards: dict[str, Reward],
    scenarios: dict[str, Scenario],
    chosen: Sequence[Trajectory],
) -> None:
    """Print the chosen trajectories by scenario: the question, its attempts compared, then each in full."""
    for scenario_id in dict.fromkeys(trajectory.scenario_id for trajectory in chosen):
        group = groups[scenario_id]
        console.rule(f"scenario {scenario_id}", align="left")
        for line in _question(scenarios.get(scenario_id)):
            console.print(line)
        if len(group) > 1:
            console.print()
            console.print(_comparison(group, rewards))
        for trajectory in [trajectory for trajectory in chosen if trajectory.scenario_id == scenario_id]:
            console.print()
            for line in _transcript(trajectory, rewards.get(trajectory.id)):
                console.print(line)
        console.print()


def _question(scenario: Scenario | None) -> list[Text]:
    """The question to the policy, and the data that only the environment has."""
    if scenario is None:
        return [Text("its question is not known: name the folder that holds it with --scenarios", "yellow")]
    asked = [marked(message) for message in scenario.messages if message["role"] == "user"]
    data = ", ".join(f"{name} {_value(value)}" for name, value in sorted(scenario.data.items()))
    return [Text(printable("\n".join(asked)), "bold"), Text(f"known: {printable(data)}", "dim")]


def _comparison(group: Sequence[Trajectory], rewards: dict[str, Reward]) -> Table:
    """A table with one row per attempt. GRPO learns from the distance of each reward to the mean of its group."""
    scored = (rewards.get(trajectory.id) for trajectory in group)
    scores = [reward.score for reward in scored if reward is not None and reward.score is not None]
    mean = sum(scores) / len(scores) if scores else 0.0
    numbers = ("reward", "to the mean", "success", "turns", "tokens")
    attempts = table(("attempt", "id", *numbers, "stopped by"), ("attempt", *numbers))
    for trajectory in group:
        reward = rewards.get(trajectory.id)
        score = reward.score if reward else None
        attempts.add_row(
            str(trajectory.attempt),
            trajectory.id,
            "–" if score is None else f"{score:.3f}",
            "–" if score is None else f"{score - mean:+.3f}",
            "–" if reward is None or reward.success is None else "yes" if reward.success else "no",
            str(len(trajectory.turns)),
            str(_sampled(trajectory.turns)),
            trajectory.stop_reason,
        )
    if scores:
        spread = max(scores) - min(scores)
        attempts.caption = f"mean {mean:.3f} of {len(scores)} rewards" + ("" if spread else "; all equal: no signal")
        attempts.caption_justify = "left"
    return attempts


def _transcript(trajectory: Trajectory, reward: Reward | None) -> Iterable[Text]:
    """One attempt: its turns, then how it ended and its reward."""
    yield Text(f"attempt {trajectory.attempt} · {trajectory.id} · adapter {trajectory.adapter_hash}", "bold cyan")
    for number, turn in enumerate(trajectory.turns, 1):
        cut = ", cut off" if turn.finish_reason == "length" else ""
        counts = f"{len(turn.prompt_ids)} tokens before, {len(turn.completion_ids)} sampled{cut}"
        yield Text(f"  turn {number} · {counts} · {_mean_logprob([turn])}", "dim")
        for line in spoken(turn.message):
            yield _indented(shorten(line), "    ", "green")
        for observation in turn.observations:
            text = str(observation.get("content", ""))
            yield _indented(shorten(text), "    → ", "red" if text.startswith("Error: ") else "")
    stop = f"stopped by {trajectory.stop_reason}: {trajectory.error or STOPS[trajectory.stop_reason]}"
    total = f"{len(trajectory.turns)} turns, {_sampled(trajectory.turns)} sampled tokens"
    yield Text(printable(f"  {stop} · {total}, {_mean_logprob(trajectory.turns)}"))
    if reward is None:
        return
    score = "unscored" if reward.score is None else f"{reward.score:.3f}"
    success, style = ("success", "bold green") if reward.success else ("no success", "bold red")
    if reward.success is None:
        success, style = "no rule tells success", "bold"
    yield Text(f"  reward ({reward.name}) {score} · {success}", style)
    reasons = dict(part.split(": ", 1) for part in reward.explanation.split("; ") if ": " in part)
    for name, value in reward.components.items():
        yield _indented(reasons.get(name, ""), f"    {value:+.3f} {name:<10} ", "")
    if not reward.components and reward.explanation:
        yield _indented(reward.explanation, "    ", "")


def spoken(message: Message) -> Iterator[str]:
    """What the policy said in a turn: its words, then its calls as name(argument=value)."""
    if message.get("content"):
        yield str(message["content"])
    for call in message.get("tool_calls") or ():
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        named = isinstance(arguments, dict)
        inside = [f"{key}={_value(value)}" for key, value in arguments.items()] if named else [_value(arguments)]
        yield f"{name}({', '.join(inside)})"


def _indented(text: str, lead: str, style: str) -> Text:
    """Printable text after `lead`, with further lines below the first."""
    return Text(lead + printable(text).replace("\n", "\n" + " " * len(lead)), style)


def shorten(text: str) -> str:
    """The beginning of a text, and the number of characters left out."""
    lines = text.splitlines()
    kept = "\n".join(lines[:LINES])[:CHARACTERS]
    more = len(text) - len(kept)
    return kept if more <= 1 else f"{kept} … ({more} more characters)"


def printable(text: str) -> str:
    """The text with control characters, which a policy may sample and a terminal would obey, as escapes."""
    return "".join(sign if sign.isprintable() or sign == "\n" else f"\\x{ord(sign):02x}" for sign in text)


def _value(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _sampled(turns: Sequence[Turn]) -> int:
    return sum(len(turn.completion_ids) for turn in turns)


def _mean_logprob(turns: Sequence[Turn]) -> str:
    logprobs = [logprob for turn in turns for logprob in turn.logprobs]
    return f"mean logprob {sum(logprobs) / len(logprobs):.3f} nats" if logprobs else "no logprobs (greedy)"


def read(kind: Any, path: Path, what: str) -> list[Any]:
    """The records of a file; UserError where it is missing or holds something else."""
    if not path.is_file():
        raise UserError(f"{path} does not exist; name a file of {what}, or the folder that holds it")
    return read_records(kind, path)


def choose(
    trajectories: Sequence[Trajectory], rewards: dict[str, Reward], words: argparse.Namespace
) -> list[Trajectory]:
    """The trajectories that the options select, in order. UserError where an option selects none."""
    chosen = list(trajectories)
    for option, field in (("id", "id"), ("scenario", "scenario_id")):
        value = getattr(words, option)
        if value is None:
            continue
        values = [getattr(trajectory, field) for trajectory in trajectories]
        if value not in values:
            first = f"the first of {len(set(values))} is {values[0]}"
            raise UserError(f"--{option}: there is no {value} in {words.path}; {first}")
        chosen = [trajectory for trajectory in chosen if getattr(trajectory, field) == value]
    if words.failed:
        if not rewards:
            raise UserError(f"--failed needs rewards, and there are none beside {words.path}: name them with --rewards")
        succeeded = {name for name, reward in rewards.items() if reward.success}
        chosen = [trajectory for trajectory in chosen if trajectory.id not in succeeded]
    return chosen


def run(words: argparse.Namespace) -> None:
    """Read the files that the command line names, and print the trajectories."""
    if words.limit < 0:
        raise UserError(f"--limit: {words.limit} is no number of trajectories; 0 shows all")
    path = words.path / "trajectories.parquet" if words.path.is_dir() else words.path
    trajectories = read(Trajectory, path, "trajectories")
    if not trajectories:
        raise UserError(f"{path} holds no trajectories")
    beside = path.parent / "rewards.parquet"
    rewards: dict[str, Reward] = {}
    if words.rewards is not None or beside.is_file():
        rewards = {reward.trajectory_id: reward for reward in read(Reward, words.rewards or beside, "rewards")}
        if not rewards.keys() & {trajectory.id for trajectory in trajectories}:
            raise UserError(f"{words.rewards or beside} holds rewards of other trajectories than {path}")
    folder = words.scenarios or SCENARIOS
    if words.scenarios is not None and not folder.is_dir():
        raise UserError(f"--scenarios: {folder} is no folder; the stage scenarios writes it")
    files = sorted(folder.glob("*.parquet"))
    scenarios = {scenario.id: scenario for file in files for scenario in read(Scenario, file, "scenarios")}
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        groups.setdefault(trajectory.scenario_id, []).append(trajectory)
    matching = choose([trajectory for group in groups.values() for trajectory in group], rewards, words)
    chosen = matching[: words.limit or None]
    output = console(WIDTH)
    show(output, groups, rewards, scenarios, chosen)
    more = "" if len(chosen) == len(matching) else "; --limit shows more"
    output.print(f"{len(chosen)} of {len(matching)} trajectories{' without success' if words.failed else ''}{more}")


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = command_parser("steps.analytics.transcripts", __doc__, allow_abbrev=False)
    path = "trajectories.parquet, or a folder that holds it, such as run/001/evaluation"
    parser.add_argument("path", type=Path, help=path)
    parser.add_argument("--rewards", type=Path, metavar="PATH", help="default: rewards.parquet in the same folder")
    parser.add_argument("--scenarios", type=Path, metavar="PATH", help=f"default: {SCENARIOS}")
    parser.add_argument("--id", help="only this trajectory")
    parser.add_argument("--scenario", metavar="ID", help="only attempts at this scenario")
    parser.add_argument("--limit", type=int, default=3, help="trajectories printed in full; 0: all (default: 3)")
    parser.add_argument("--failed", action="store_true", help="only trajectories without success")
    return exit_code(lambda: run(parser.parse_args(words)))


if __name__ == "__main__":
    sys.exit(main())
