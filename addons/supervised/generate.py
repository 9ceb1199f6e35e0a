"""Has a model write scenarios from a task's description, each checked by the task before it is taken.

    python -m addons.supervised.generate --task multiplication --out tasks_data/multiplication/generated.jsonl --count 50
    --model gpt-5
    python -m addons.supervised.generate --task support_agent --out … --model gpt-5 --from-failures run/010
    python -m addons.supervised.generate --task support_agent --out … --model gpt-5 --documents handbook/

A prompt tells the task's description, its tools and some of its training scenarios; with --from-failures also a scenario at
which the agent failed, and how; with --documents a part of a document (addons/supervised/material.py). The task checks each
scenario that the model writes (`Env.accept`) and says which split it belongs to. Doubles are refused, and so are those that
are too much like one of another split (steps/data/contamination.py), or that nobody could solve
(addons/supervised/solve.py): a task without an `accept` of its own has its scripted player try, and --solver names a
model that plays with its tools. Refused ones are listed with their reasons in <out>.report.json. Answers are kept in
the ledger, so running the same command again asks nothing and writes the same bytes. --dvc makes the command a stage of
DVC (addons/supervised/dvc_stage.py).
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from addons.supervised import dvc_stage
from addons.supervised.generated import SPLITS, Candidate, essence, take
from addons.supervised.material import Material, documents, failures
from addons.supervised.solve import Solver
from environments.base import Env, Scenario, Split, TaskProblem
from steps.core.errors import UserError
from steps.core.files import write_text
from steps.core.params import Scenarios
from steps.core.progress import say
from steps.core.terminal import ProgressDisplay, command_parser, exit_code

if TYPE_CHECKING:
    from addons.models.client import CallFailed, Reply, Request
    from addons.models.section import Endpoint

EXAMPLES = 3  # scenarios in a prompt, drawn anew for each
POOL = 30  # scenarios from which they are drawn
ASKED = """You write scenarios for the training of an agent. Each is what the agent is told at first. The task:

{description}

The agent's tools:
{tools}

Scenarios that there are already:
{examples}

Write one more, of difficulty {difficulty} on a scale from 1 (easy) to 5 (hard), unlike those above. Keep to their form
and wording where the task does. "messages": what the agent is told; it must not give away the answer. "data": what the
answer is judged by, an empty object where you do not know. "difficulty": {difficulty}. This is number {number}: others are
written at the same time, so choose something that they are unlikely to choose."""


def prompt(
    env: type[Env], data: Any, pool: Sequence[Scenario], number: int, difficulty: int, material: Material | None = None
) -> Request:
    """The request of this number, which is the same in each run."""
    from addons.models.client import Request

    difficulty = difficulty if material is None or material.difficulty is None else material.difficulty
    shown = Random(f"generate {number}").sample(list(pool), min(EXAMPLES, len(pool)))
    text = ASKED.format(
        description=env.describe(data),
        tools="\n".join(json.dumps(tool.schema["function"]) for tool in env.tools().values()) or "none",
        examples="\n".join(json.dumps(list(scenario.messages), ensure_ascii=False) for scenario in shown) or "none",
        difficulty=difficulty,
        number=number,
    )
    text = text if material is None else f"{text}\n\n{material.text}"
    return Request([{"role": "user", "content": text}], schema=Candidate.model_json_schema(), strict=False)


def check(env: type[Env], data: Any, split: Split | None, reply: Reply | CallFailed) -> tuple[Scenario, Candidate]:
    """The scenario that an answer holds. ValueError, with the reason in a few words, where there is none."""
    from addons.models import answers
    from addons.models.client import CallFailed

    if isinstance(reply, CallFailed):
        raise ValueError("the call was not answered")
    parsed = reply.parsed(Candidate.model_fields)
    if answers.cleaned(parsed) != parsed:
        raise ValueError("characters that are no text, or nested too deeply")
    try:
        candidate = Candidate.model_validate(parsed)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        raise ValueError(f"not of the form asked: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    return take(env, data, split, candidate), candidate


class Wanted(NamedTuple):
    """The scenarios that are asked for."""

    number: int  # of scenarios
    max_calls: int
    difficulties: Sequence[int]
    split: Split | None = None
    materials: Sequence[Material] = ()  # through which the prompts take turns


def generate(
    env: type[Env], data: Any, endpoint: Endpoint, wanted: Wanted, solver: Endpoint | None = None
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(the lines of accepted scenarios, the report). Asks in rounds, each for as many scenarios as are still missing."""
    from addons.models.client import CallFailed, ask_all

    count, max_calls, difficulties, split, materials = wanted
    pool = env.examples(data, POOL)
    taken: dict[str, str] = {essence(scenario): "an example" for scenario in pool}
    present = drawn(env, data, pool)
    for varied in (material.varied for material in materials if material.varied is not None):
        taken[essence(varied)] = "the scenario that it varies"
        present["train"].append(varied)
    solve = Solver(env, data, solver)
    kept: list[tuple[str, Scenario, Candidate]] = []  # each with the key of its prompt
    refused: list[dict[str, Any]] = []
    sources: dict[str, dict[str, str]] = {}  # by prompt
    asked = 0
    while len(kept) < count and asked < max_calls:
        numbers = range(asked, min(max_calls, asked + count - len(kept)))
        requests = []
        for number in numbers:
            material = materials[number % len(materials)] if materials else None
            requests.append(prompt(env, data, pool, number, difficulties[number % len(difficulties)], material))
            if material is not None:
                sources[requests[-1].key(endpoint)] = {"source": material.source}
        asked += len(requests)
        replies = ask_all(endpoint, requests, f"calls, {len(kept)} taken")
        if all(isinstance(reply, CallFailed) for reply in replies):
            raise UserError(f"no call was answered; the first: {replies[0]}")
        keys = [request.key(endpoint) for request in requests]
        judged = judge(env, data, split, zip(keys, replies, strict=True), taken, present)
        unsolved = solve([made[0] for _, made, _ in judged if made is not None])
        for key, made, reason in judged:
            if made is None:
                refused.append(refusal(key, reason))
            elif made[0].id in unsolved:
                present[made[0].split].remove(made[0])
                refused.append(refusal(key, unsolved[made[0].id]))
            else:
                kept.append((key, *made))
    lines = []
    for key, scenario, candidate in kept:
        written = candidate.model_dump()
        if env.is_agent:  # as people write them (environments/kit/agents.py)
            lines.append({"messages": written["messages"]} | written["data"])
        else:
            about = {"id": scenario.id, "split": scenario.split, "prompt": key}
            lines.append(about | sources.get(key, {}) | written)
    splits = Counter(scenario.split for _, scenario, _ in kept)
    reasons = Counter(entry["reason"] for entry in refused)
    report = {
        "task": task_of(env),
        "model": endpoint.model,
        "solvable": solve.how,
        "asked": asked,
        "taken": len(lines),
        "splits": dict(sorted(splits.items())),
        "refused": dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        "taken_prompts": [key for key, _, _ in kept],
        "refused_prompts": refused,
    }
    return lines, report


def task_of(env: type[Env]) -> str:
    return env.__module__.rpartition(".")[2]


def judge(
    env: type[Env],
    data: Any,
    split: Split | None,
    replies: Iterable[tuple[str, Reply | CallFailed]],
    taken: dict[str, str],
    present: dict[Split, list[Scenario]],
) -> list[tuple[str, tuple[Scenario, Candidate] | None, str]]:
    """(key of the prompt, what was made of the answer, or else why nothing was) of each (key, reply); what was made joins
    `taken`, by its words, and `present`."""
    from steps.data import contamination

    task, limits = task_of(env), Scenarios()
    judged: list[tuple[str, tuple[Scenario, Candidate] | None, str]] = []
    for key, reply in replies:
        try:
            scenario, candidate = check(env, data, split, reply)
            if (double := taken.get(essence(scenario))) is not None:
                raise ValueError(f"a double of {double}")
            if (pair := contamination.conflict(env, task, present, scenario, limits)) is not None:
                raise ValueError(f"too much like one of another split ({pair.rule})")
        except (ValueError, UserError) as problem:
            judged.append((key, None, str(problem)))
            continue
        taken[essence(scenario)] = "one before it"
        present[scenario.split].append(scenario)
        judged.append((key, (scenario, candidate), ""))
    return judged


def refusal(key: str, reason: str) -> dict[str, str]:
    """A line of the report. The reason may quote what the model wrote."""
    from addons.models import answers

    return {"prompt": key, "reason": " ".join(answers.plain(reason).split())[:300]}


def drawn(env: type[Env], data: Any, pool: Sequence[Scenario]) -> dict[Split, list[Scenario]]:
    """The scenarios that a new one may not be too much like: those that the task draws by itself, as many as a run with
    defaults does where there are so many. Those that a model wrote before are not among them: they come again."""
    present: dict[Split, list[Scenario]] = {split: [] for split in SPLITS}
    present["train"] += pool
    limits = Scenarios()
    for split in SPLITS if not env.is_written else ():
        count = getattr(limits, split)
        while count and len(present[split]) < count:
            try:
                present[split] = env.scenarios(data, split, count, 1)
            except ValueError:
                count -= max(1, count // 20)
    return present


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    """The command line's options."""
    from addons.models.prices import add_options

    parser = command_parser("addons.supervised.generate", __doc__, allow_abbrev=False)
    parser.add_argument("--task", required=True, metavar="NAME")
    parser.add_argument("--out", required=True, type=Path, metavar="PATH", help="written: one scenario per line")
    parser.add_argument("--count", type=int, default=50, help="number of scenarios (default: 50)")
    parser.add_argument(
        "--difficulty", default="1-5", metavar="FROM-TO", help="difficulties, asked for in turn (default: 1-5)"
    )
    parser.add_argument(
        "--split",
        choices=SPLITS,
        help="take scenarios of this split only (default: any; with --from-failures: train)",
    )
    parser.add_argument(
        "--max-calls", type=int, metavar="N", help="most calls to the model (default: three for each scenario)"
    )
    material = parser.add_mutually_exclusive_group()
    material.add_argument(
        "--from-failures", type=Path, metavar="RUN/NNN", help="write variations of training scenarios that failed there"
    )
    material.add_argument(
        "--documents", type=Path, nargs="+", metavar="PATH", help="base scenarios on these texts, or those in a folder"
    )
    parser.add_argument(
        "--dvc", action="store_true", help="also make this command a stage of DVC: generated/<task>/dvc.yaml"
    )
    parser.add_argument("--solver", metavar="MODEL", help="a strong model that has to solve each one")
    parser.add_argument("--solver-url", metavar="URL", help="its server (default: the other model's)")
    add_options(parser)
    return parser.parse_args(words)


def solver_of(words: argparse.Namespace) -> Endpoint | None:
    """The model that has to solve what is written. Beside its name and server, the options are those of the other model."""
    from addons.models.prices import endpoint_of

    if words.solver is None:
        if words.solver_url is not None:
            raise UserError("--solver-url is the server of --solver, which is not given")
        return None
    own = {"endpoint_model": words.solver, "endpoint_base_url": words.solver_url or words.endpoint_base_url}
    return endpoint_of(argparse.Namespace(**(vars(words) | own | {"endpoint_temperature": None})))


def material_of(words: argparse.Namespace) -> tuple[list[Material], Split | None]:
    """What the prompts are built on, and the only split that is taken: with --from-failures that of training, by default."""
    if words.from_failures is not None:
        failed = failures(words.task, words.from_failures)
        say(f"an attempt failed at {len(failed)} training scenarios of {words.from_failures}")
        return failed, words.split or "train"
    return documents(words.documents) if words.documents else [], words.split


def run(words: argparse.Namespace, given: Sequence[str]) -> None:
    """Check the options, ask the model, and write both files; with --dvc also the stage of the command line `given`."""
    import environments
    from addons.models.prices import endpoint_of

    endpoint = endpoint_of(words, temperature=1.0)  # so that the same prompt gives different scenarios
    if endpoint is None:
        raise UserError("--model is needed: the name of the model that writes the scenarios")
    grades = re.fullmatch(r"([1-5])(?:-([1-5]))?", words.difficulty)
    difficulties = range(int(grades[1]), int(grades[2] or grades[1]) + 1) if grades else range(0)
    if not difficulties:
        raise UserError(f"--difficulty {words.difficulty}: give a grade or a range from 1 to 5, as in 2-4")
    if words.count < 1 or (words.max_calls is not None and words.max_calls < 1):
        raise UserError("--count and --max-calls must be 1 or more")
    try:
        env = environments.load(words.task)
    except (ModuleNotFoundError, ValueError) as problem:
        raise UserError(f"--task {words.task}: {problem}") from None
    if words.dvc:
        dvc_stage.check(words.task, words.out, words.from_failures)
    materials, split = material_of(words)
    solver = solver_of(words)
    if env.is_agent and solver is not None:
        raise UserError(f"--solver: {words.task} is an agent of your own, which no model but the run's own can play")
    try:
        data = env.load(Path("tasks_data") / words.task)
    except FileNotFoundError:
        if not env.is_agent:
            raise
        data = []  # its scenarios are what is written now
    wanted = Wanted(words.count, words.max_calls or 3 * words.count, difficulties, split, materials)
    try:
        lines, report = generate(env, data, endpoint, wanted, solver)
    except TaskProblem as problem:
        raise UserError(f"--task {words.task}: {problem}") from None
    report_path = words.out.with_name(words.out.name + dvc_stage.REPORT)
    report_path.parent.mkdir(parents=True, exist_ok=True)
    write_text(report_path, json.dumps(report, indent=1) + "\n")
    if not lines:
        raise UserError(f"none of {report['asked']} answers was a scenario: {report_path} has the reasons")
    write_text(words.out, "".join(json.dumps(line, ensure_ascii=False, sort_keys=True) + "\n" for line in lines))
    say(f"{len(lines)} of {words.count} scenarios from {report['asked']} calls: {words.out}")
    say(f"solvable: {report['solvable']}")
    for reason, times in list(report["refused"].items())[:10]:
        say(f"refused {times}: {reason}")
    if words.dvc:
        command = [word for word in given if word != "--dvc"]
        say(f"stage of DVC, frozen: {dvc_stage.add(words.task, words.out, command, words.documents or ())}")


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    given = sys.argv[1:] if words is None else words
    return exit_code(lambda: run(parse(given), given), ProgressDisplay("generate"))


if __name__ == "__main__":
    sys.exit(main())
