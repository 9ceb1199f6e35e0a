"""Probe: a few attempts of the base policy at a task: what it can do of what the task needs, and the way training takes.

    python -m addons.readiness.probe --task my_task                       # or: make try TASK=my_task
    python -m addons.readiness.probe --task my_task --preset smollm2 --set rollout.max_tokens=128

Nothing is written, and params.yaml stays as it is. flows.train measures the same on its first iteration's attempts, and
then chooses (addons/readiness/way.py). Left out: judges, which are not asked, and agents of your own, which need a gateway.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from flows.repro.parameters import set_params
from steps.core.errors import UserError
from steps.core.params import Params
from steps.core.progress import say
from steps.core.terminal import ProgressDisplay, command_parser, exit_code, logged

if TYPE_CHECKING:
    from environments.base import Env, Scenario
    from steps.core.records import Trajectory

LONGEST, TURNS = 110, 4  # characters of a line of the attempt that is shown, and turns
LOG = Path(".flywheel/try.log")


def probe(params: Params, scenarios: int, attempts: int) -> None:
    """Play, and print the table, one attempt and the decision. UserError where the task cannot be played here."""
    import environments
    from addons.readiness import way
    from addons.readiness.readiness import readiness
    from steps.judging.rule import by_rule, unusable_line
    from steps.sampling import engine
    from steps.sampling.job import Job
    from steps.scenarios import checked

    env = environments.load(params.task)
    if env.is_agent or params.policy.kind != "vllm" or params.tasks:
        raise UserError(
            "attempts can be tried of a single task with an environment, by policy.kind: vllm; of others, `make train` says "
            "after its first attempts what the policy can do"
        )
    folder = environments.data_of(params.task)
    count = min(scenarios, params.scenarios.train)
    try:
        data = env.load(folder)
        chosen = checked(env.scenarios(data, "train", count, params.seed), "train", count)
    except ValueError as problem:
        raise UserError(f"task {params.task}: {problem}") from None
    say(f"{params.task}: {attempts} attempts of {params.policy.base_model} at each of {len(chosen)} scenarios")
    pairs = [(scenario, number) for scenario in chosen for number in range(attempts)]
    began = time.monotonic()
    with logged(LOG):
        played = engine.play(Job(params.policy, params.rollout, None, env, pairs, "try", params.seed, data))
    say(f"played in {time.monotonic() - began:.1f} s, vLLM's start included. The first attempt:")
    for line in shown(env, pairs[0][0], played[0]):
        say(f"  {line}")
    rewards = [by_rule(env, scenario, trajectory) for (scenario, _), trajectory in zip(pairs, played, strict=True)]
    if problem := unusable_line([(reward.score, reward.explanation) for reward in rewards]):
        say(f"Warning: {problem}")
    measured = readiness(env, played, rewards)
    for line in way.described(measured):
        say(line)
    if not env.has_rule:
        say("A judge scores this task, and is not asked here: `make train` does that.")
        return
    chosen_way, sentence = way.decision(measured, params, [] if params.is_taught else way.material(params))
    if params.is_taught:
        sentence = f"{sentence} The section sft of its settings teaches it first."
    say(sentence if chosen_way or params.is_taught else f"Training would stop here: {sentence}")


def shown(env: type[Env], scenario: Scenario, trajectory: Trajectory) -> list[str]:
    """An attempt in a few lines: what was asked, what the policy did turn by turn, how it ended."""
    from steps.analytics.changes import question, turn_line
    from steps.judging.rule import succeeds

    turns = [turn_line(turn.message, turn.observations, LONGEST) for turn in trajectory.turns]
    if len(turns) > TURNS:
        turns = [*turns[:TURNS], f"… {len(turns) - TURNS} more turns"]
    success = env.has_rule and succeeds(env, scenario, trajectory.messages(scenario))
    verdict = ("success" if success else "no success") if env.has_rule else ""
    return [question(scenario, LONGEST), *turns, f"ended by {trajectory.stop_reason}" + (verdict and f": {verdict}")]


def main(words: list[str] | None = None) -> int:
    parser = command_parser("addons.readiness.probe", __doc__, allow_abbrev=False)
    parser.add_argument("--task", help="the task; by default that of params.yaml")
    parser.add_argument("--preset", help="a model's settings, on top of the task's")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting, for this time alone"
    )
    parser.add_argument("--scenarios", type=int, default=8, help="training scenarios that are tried (default: 8)")
    parser.add_argument("--attempts", type=int, default=4, help="at each of them (default: 4)")
    options = parser.parse_args(words)

    def work() -> None:
        if options.scenarios < 1 or options.attempts < 2:
            raise UserError(
                "--scenarios must be 1 or more, and --attempts 2 or more: a single attempt differs from none"
            )
        params = set_params(options.set, Path("params.yaml"), options.task, dry_run=True, preset=options.preset)
        probe(params, options.scenarios, options.attempts)

    return exit_code(work, ProgressDisplay("try"))


if __name__ == "__main__":
    sys.exit(main())
