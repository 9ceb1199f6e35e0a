"""Has a teacher play training scenarios, and writes its good episodes as demonstrations for the stage sft (distillation).

    python -m addons.supervised.teach --task email_search --count 500 --model gpt-5
    python -m addons.supervised.teach --task email_search --scripted

The teacher is a model behind an OpenAI-compatible server, or with --scripted the task's own player, which costs nothing. The
file, tasks_data/<task>/taught.jsonl, is made once, and versioned with the task's data (docs/start.md). An episode is taken
where it ended by itself and its reward by the rule is --min-reward at least; where there is no rule, each that ended is, and
the report says so. Others are counted with their reasons in <out>.report.json. Answers are kept in the ledger, so running
the same command again asks nothing and writes the same bytes. What the file held before is kept in <out>.before. Only
scenarios of the training split are played: --count of them, or all where there are fewer.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from environments.base import Env, Scenario
from environments.kit.values import REASON
from steps.core.errors import UserError
from steps.core.files import write_text
from steps.core.params import Policy
from steps.core.progress import say
from steps.core.stats import added
from steps.core.terminal import ProgressDisplay, command_parser, exit_code
from steps.judging.rule import by_rule

if TYPE_CHECKING:
    from addons.models.section import Endpoint


FILE = "taught.jsonl"


def taught(
    env: type[Env],
    data: Any,
    scenarios: Sequence[Scenario],
    attempts: int,
    endpoint: Endpoint | None,
    min_reward: float | None,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(demonstrations, report) of a teacher: the model of an endpoint, or the task's scripted player. With `min_reward` None
    an episode is taken where it is a success. UserError where the teacher cannot play at all."""
    from addons.models import players

    policy = Policy(kind="scripted") if endpoint is None else players.on_server(endpoint)
    pairs = [(scenario, number) for scenario in scenarios for number in range(attempts)]
    played = players.play(policy, env, data, pairs, prefix="taught")
    name, refused, lines = players.name(policy), Counter[str](), []
    best: float | None = None  # of the rewards that are too low
    for (scenario, number), game in zip(pairs, played, strict=True):
        reward = by_rule(env, scenario, game.trajectory)
        if game.trajectory.stop_reason != "done":
            refused[f"the episode ended by {game.trajectory.stop_reason}"] += 1
        elif reward.explanation.startswith(REASON):
            refused[reward.explanation] += 1
        elif env.has_rule and min_reward is None and not reward.success:
            refused["it is no success"] += 1
        elif env.has_rule and min_reward is not None and (reward.score is None or reward.score < min_reward):
            refused[f"the reward is below {min_reward:g}"] += 1
            best = max((score for score in (best, reward.score) if score is not None), default=None)
        else:
            messages = game.trajectory.messages(scenario)
            while messages[-1]["role"] != "assistant":  # what the task says to the last turn is not learnt
                messages.pop()
            lines.append({"messages": messages, "source": f"{name}/{scenario.id}/{number}"})
    report = {
        "teacher": name,
        "played": len(pairs),
        "taken": len(lines),
        "refused": dict(sorted(refused.items())),
        "best_refused": best,
        "checked": "by the task's rule" if env.has_rule else "not checked: the task has no rule",
        "cost": added(game.cost for game in played),
    }
    return lines, report


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    from addons.models.prices import add_options

    parser = command_parser("addons.supervised.teach", __doc__, allow_abbrev=False)
    parser.add_argument("--task", required=True, metavar="NAME")
    parser.add_argument(
        "--out", type=Path, metavar="PATH", help=f"one demonstration per line (default: tasks_data/<task>/{FILE})"
    )
    parser.add_argument(
        "--count", type=int, default=200, help="training scenarios that are played (default: 200, or all)"
    )
    parser.add_argument("--attempts", type=int, default=1, help="at each scenario (default: 1)")
    parser.add_argument("--min-reward", type=float, default=1.0, help="least reward by the rule (default: 1)")
    parser.add_argument("--seed", type=int, default=1, help="of the scenarios (default: 1, as in params.yaml)")
    parser.add_argument("--scripted", action="store_true", help="the task's own player in place of a model")
    add_options(parser)
    return parser.parse_args(words)


def run(words: argparse.Namespace) -> None:
    """Check the options, let the teacher play, and write both files."""
    import environments
    from addons.models.prices import endpoint_of

    endpoint = endpoint_of(words)
    if (endpoint is None) != words.scripted:
        raise UserError("name a teacher: --model, or --scripted for the task's own player, and not both")
    if words.count < 1 or words.attempts < 1:
        raise UserError("--count and --attempts must be 1 or more")
    try:
        env = environments.load(words.task)
    except (ModuleNotFoundError, ValueError) as problem:
        raise UserError(f"--task {words.task}: {problem}") from None
    if env.is_agent:
        raise UserError(f"--task {words.task} is an agent of your own, which no model but the run's own can play")
    if words.scripted and not env.has_player("scripted"):
        raise UserError(f"--scripted: {env.lacks('scripted')}")
    data = env.load(Path("tasks_data") / words.task)
    scenarios = training_scenarios(env, data, words.count, words.seed)
    lines, report = taught(env, data, scenarios, words.attempts, endpoint, words.min_reward)
    out = words.out or Path("tasks_data") / words.task / FILE
    report_path = out.with_name(f"{out.name}.report.json")
    report_path.parent.mkdir(parents=True, exist_ok=True)
    write_text(report_path, json.dumps(report, indent=1) + "\n")
    reasons = [f"{reason}: {count}" for reason, count in report["refused"].items()]
    if not lines:
        best = (
            f"; the best of those rewards is {report['best_refused']:g}" if report["best_refused"] is not None else ""
        )
        raise UserError(
            f"none of {report['played']} episodes by {report['teacher']} can be learnt from ({', '.join(reasons)}{best}): "
            "lower --min-reward, or mend the player or the reward of the task"
        )
    text = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    if out.exists() and (before := out.read_text(encoding="utf-8")) != text:
        write_text(out.with_name(f"{out.name}.before"), before)
        say(f"{out} held other demonstrations, which are kept in {out}.before")
    write_text(out, text)
    say(f"{len(lines)} of {report['played']} episodes by {report['teacher']}: {out}")
    for reason in reasons:
        say(f"left out: {reason}")
    name = out.name if out.parent == Path("tasks_data") / words.task else out
    say(f"to learn from them: make train TASK={words.task} ARGS='--set sft.demonstrations=[{name}]'")


def training_scenarios(env: type[Env], data: Any, count: int, seed: int) -> list[Scenario]:
    """So many scenarios of the training split, or all where there are fewer, which is said. UserError where there are none.

    A task refuses a number that it cannot draw and does not say how many it can, so the largest one is searched for."""
    try:
        return env.scenarios(data, "train", count, seed)
    except ValueError as problem:
        reason = problem
    least, most, drawn = 0, count, list[Scenario]()
    while most - least > 1:
        middle = (least + most) // 2
        try:
            drawn, least = env.scenarios(data, "train", middle, seed), middle
        except ValueError:
            most = middle
    if not drawn:
        raise UserError(f"--count {count}: {reason}")
    say(f"the task has {least} training scenarios, and not {count}: all of them are played")
    return drawn


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    return exit_code(lambda: run(parse(words)), ProgressDisplay("teach"))


if __name__ == "__main__":
    sys.exit(main())
