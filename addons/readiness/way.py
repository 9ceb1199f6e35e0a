"""Which way a run takes: reinforcement at once, supervised training on demonstrations first, or none, with what is missing.

The policy that the run begins with is measured on the first iteration's attempts (addons/readiness/readiness.py). Where it
makes valid calls, succeeds at times and its attempts differ, reinforcement begins with those attempts. Where it does not,
and somebody can show how it is done, the section `sft` is written to params.yaml, which makes the choice part of what
`dvc repro` reproduces. Where nobody can, the run stops. `train.way` chooses by hand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import environments
from addons.readiness.section import Chosen
from flows.repro.parameters import set_params
from flows.terminal.report import RUN
from flows.training import start
from flows.training.start import DEMONSTRATIONS
from steps.core.errors import UserError
from steps.core.ports import every, names
from steps.project.chain import iteration_name

if TYPE_CHECKING:
    from addons.readiness.readiness import Readiness
    from steps.core.params import Params

FIRST = iteration_name(1)


def choose(params: Params, play: Callable[[], None], say: Callable[[str], None]) -> Params:
    """The parameters with which the run goes on, those of params.yaml; `play` makes the first iteration's attempts.
    UserError where the run could learn nothing."""
    asked = Chosen.of(params.train).way
    if params.is_taught or asked == "grpo":
        return params
    sources = material(params)
    if asked == "sft":
        if not sources:
            raise UserError(f"train.way is sft, and there is nothing to learn from. {missing(params)}")
        return adopt(params, sources, say)
    play()
    measured = measured_on(RUN, params.task)
    for line in described(measured):
        say(line)
    way, sentence = decision(measured, params, sources)
    if not way:
        raise UserError(f"{sentence} `make train TASK={params.task} ARGS=--force` goes on anyway")
    say(sentence)
    return adopt(params, sources, say) if way == "sft" else params


def described(measured: Readiness) -> list[str]:
    """What a policy can do, as lines."""
    head = f"What the policy can do before training, in {measured.attempts} attempts at {measured.groups} scenarios:"
    return [head, *measured.table()]


def decision(measured: Readiness, params: Params, sources: list[str]) -> tuple[str, str]:
    """(grpo, sft or nothing, the sentence that says why). `sources`: what could be learnt from."""
    obstacle = measured.obstacle()
    if not obstacle:
        return (
            "grpo",
            "It can do the task at times, and its attempts differ: it learns by reinforcement (GRPO) at once.",
        )
    if measured.can_be_taught and sources:
        first = f"{obstacle[0].upper()}{obstacle[1:]}"
        return "sft", f"{first}. It is taught by {' and '.join(sources)} first (SFT), then reinforced (GRPO)."
    return "", f"{obstacle}. {cure(measured, params)}"


def measured_on(run: Path, task: str) -> Readiness:
    """The readiness that the first iteration's attempts show."""
    from addons.readiness.readiness import readiness
    from steps.core.records import Reward, Trajectory, read_records

    trajectories = read_records(Trajectory, run / FIRST / "trajectories.parquet")
    rewards = read_records(Reward, run / FIRST / "rewards.parquet")
    return readiness(environments.load(task), trajectories, rewards)


def material(params: Params) -> list[str]:
    """What could be learnt from, as sft.demonstrations takes it."""
    return [source for teaching in every("teaching") for source in teaching.material(params)]


def adopt(params: Params, sources: list[str], say: Callable[[str], None]) -> Params:
    """Write the section `sft` to params.yaml, and bring its demonstrations together."""
    params = set_params([f"sft.demonstrations={json.dumps(sources)}"])
    for line in start.prepare(params, keep=True):
        say(line)
    return params


def missing(params: Params) -> str:
    """What would let the policy be taught, in two sentences; in one where no add-on teaches."""
    other = f"with a policy that knows more, such as `make train TASK={params.task} PRESET=smollm2`."
    if not names("teaching"):
        return f"Begin {other}"
    return (
        f"Write some 30 demonstrations to {environments.data_of(params.task) / DEMONSTRATIONS} (docs/start.md), or a player "
        f"`scripted` in the task, then run the same command again. Or begin {other}"
    )


def cure(measured: Readiness, params: Params) -> str:
    """What to do about what the policy lacks."""
    if measured.failed == measured.attempts:
        return f"Mend the task: `make check-task NAME={params.task}` tests it without a model."
    if not measured.scored:
        return f"Look at what the judge is asked and answers: {RUN / FIRST / 'judgements.jsonl'}."
    if measured.is_solved:
        return "Take harder scenarios, or evaluate what is there: `make promote` judges a version."
    if measured.speaks and not measured.varied:
        return "Give partial credit in the task's reward, take other scenarios, or raise rollout.attempts."
    longer = "Raise rollout.max_tokens and policy.context if the attempts need more. " if measured.is_cut else ""
    return longer + missing(params)
