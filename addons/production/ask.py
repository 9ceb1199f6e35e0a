"""Ask: plays one episode with the task's tools and system prompt, and prints every turn.

    python -m addons.production.ask                                      # the first scenario of the test split (`make ask`)
    python -m addons.production.ask --scenario 7                   # another one, by its number or its id; --seed 3 draws one
    python -m addons.production.ask "Who owns the Falcon contract?"      # a question of your own (`make ask Q="…"`)

Where `make serve` runs, the served champion is asked. Elsewhere the run in run/ is: its base policy and its best one play
the same scenario in this process, by the same engine and settings as in the stage evaluate, and are shown side by side on a
wide terminal. With --host or --port only a server is asked.

A question of your own replaces that of a scenario: the one that has most of its rarer words, unless one is named. The tools
still work on that scenario's data, such as its inbox, so the result is not compared with anything. The answers are not kept
in the ledger, which would give those of an earlier champion to the same question.
"""

from __future__ import annotations

import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from addons.production.serving.server import Server, served_key
from flows.terminal import report
from steps.core import params
from steps.core.errors import UserError
from steps.core.terminal import command_parser, console, exit_code, logged
from steps.policy.served import HOST, PORT
from steps.project.chain import BASE

if TYPE_CHECKING:
    import argparse

    from addons.models.players import Played
    from environments.base import Env, Scenario
    from steps.core.records import Trajectory

KEY_VARIABLE = "FLYWHEEL_SERVE_KEY"  # for addons/models/client.py, while it asks
LOG = Path(".flywheel/ask.log")  # what the engine prints
WIDTH, WIDE = 120, 140  # columns where the output is no terminal; columns from which on two attempts stand side by side


class Task(NamedTuple):
    """The task that params.yaml names, and its data."""

    root: Path
    settings: params.Params
    env: type[Env]
    data: Any

    def scenarios(self) -> list[Scenario]:
        """The test split: that of run/, or as the stage scenarios would draw it. UserError where it cannot be drawn."""
        from environments.base import Scenario
        from steps.core.records import read_records

        path = self.root / report.RUN / "scenarios/test.parquet"
        names = self.settings.task.split("+")
        kept = read_records(Scenario, path) if path.exists() else []
        if kept and all(each.task in names for each in kept):
            return kept
        try:
            return self.env.scenarios(self.data, "test", self.settings.scenarios.test, self.settings.seed)
        except ValueError as problem:
            raise UserError(f"scenarios.test: {problem}") from None


def load(root: Path) -> Task:
    """The task of the project in `root`."""
    import environments

    settings = params.load(root / "params.yaml", params.Params)
    env = environments.load(settings.task, settings.tasks)
    return Task(root, settings, env, env.load(root / environments.data_of(settings.task)))


def choose(scenarios: Sequence[Scenario], wanted: str | None, seed: int | None, question: str | None) -> Scenario:
    """The scenario with this id or number, or one drawn by a seed, or the one most like a question, or the first. UserError
    where there is none."""
    named = {scenario.id: scenario for scenario in scenarios}
    if wanted in named:
        return named[wanted]
    if wanted is not None and not re.fullmatch(r"-?\d+", wanted):
        raise UserError(
            f"--scenario {wanted}: no test scenario has this id; the first of {len(named)} is {scenarios[0].id}"
        )
    if wanted is not None:
        if not 0 <= int(wanted) < len(scenarios):
            raise UserError(
                f"--scenario {wanted}: the test split has the scenarios 0 to {len(scenarios) - 1} (scenarios.test)"
            )
        return scenarios[int(wanted)]
    if seed is not None:
        return Random(f"ask {seed}").choice(scenarios)
    return scenarios[0] if question is None else most_like(scenarios, question)


def most_like(scenarios: Sequence[Scenario], question: str) -> Scenario:
    """The scenario whose user says most of a question's words, each by how few scenarios have it; the first of several."""
    from environments.base import normalise

    def words_of(scenario: Scenario) -> set[str]:
        texts = (str(message["content"]) for message in scenario.messages if message["role"] == "user")
        return {word for text in texts for word in normalise(text).split()}

    words = [words_of(scenario) for scenario in scenarios]
    counts = Counter(word for own in words for word in own)
    asked = set(normalise(question).split())
    alike = [sum(1 / counts[word] for word in sorted(own & asked)) for own in words]
    return scenarios[alike.index(max(alike))]


def with_question(task: Task, scenario: Scenario, question: str) -> Scenario:
    """The scenario with another question. UserError where the task takes none."""
    from environments.base import Scenario

    roles = [message["role"] for message in scenario.messages]
    if task.env.openings_repeat or roles.count("user") != 1:
        raise UserError(
            f"the task {task.settings.task} takes no question of your own: leave it out, and choose one by --scenario"
        )
    messages = [
        message | {"content": question} if message["role"] == "user" else message for message in scenario.messages
    ]
    return Scenario.make(scenario.task, scenario.split, messages, scenario.data)


def play_served(server: Server, task: Task, scenario: Scenario) -> Played:
    """An episode of the served model. UserError where the server does not answer."""
    from addons.models import players
    from addons.models.section import Endpoint
    from steps.policy.loading import turn_limit
    from steps.project.store import variables

    settings = task.settings
    endpoint = Endpoint(
        model=server.name,
        base_url=f"{server.page}/v1",
        api_key_env=KEY_VARIABLE,
        temperature=settings.evaluate.temperature,
        max_tokens=turn_limit(settings.policy, settings.evaluate.max_tokens),
        max_retries=1,
    )
    policy = players.on_server(endpoint)
    without_proxy = dict.fromkeys(("NO_PROXY", "no_proxy"), server.host)  # the key is for this machine alone
    with variables(**{KEY_VARIABLE: server.key, "FLYWHEEL_LEDGER_URL": "sqlite://"}, **without_proxy):  # in memory
        limits = settings.evaluate
        [played] = players.play(
            policy, task.env, task.data, [(scenario, 0)], prefix="ask", max_turns=limits.max_turns, slow=limits
        )
    return played


def policies(task: Task, why: str) -> dict[str, Path]:
    """The adapters of the run in run/, by what they are: the base policy's and the best one's. UserError, which begins with
    why no server is asked, where there is no finished run of this task."""
    path, name = task.root / report.RUN / "summary.json", task.settings.task
    cure = "`make train` makes one, and `make serve` serves the champion"
    if not path.exists():
        raise UserError(f"{why}, and there is no finished run in run/ to ask: {cure}")
    summary = report.read(path)
    if summary["task"] != name:
        raise UserError(f"{why}, and the run in run/ is of {summary['task']}, not of {name} (params.yaml): {cure}")
    adapters = {}
    for folder in dict.fromkeys((BASE, report.tested(summary))):
        who = f"{'base' if folder == BASE else 'trained'} (run/{folder})"
        adapters[who] = path.parent / folder / "adapter"
        if not adapters[who].is_dir():
            raise UserError(f"{why}, and the adapter of {who} is not here: `.venv/bin/dvc checkout` brings it back")
    return adapters


def start_engine(settings: params.Params) -> None:
    """Load the engine, where it is one of this process. UserError where the policy has no adapter."""
    if not settings.policy.has_adapter:
        raise UserError(f"policy.kind: {settings.policy.kind} has no adapters, so there are no two policies to ask")
    if settings.policy.kind == "vllm":
        from steps.sampling import engine

        engine.get(settings.policy)


def play_here(task: Task, scenario: Scenario, adapters: dict[str, Path]) -> dict[str, tuple[Trajectory, float]]:
    """An episode of each of these adapters, as the stage evaluate plays it, and its seconds."""
    import environments
    from steps.sampling import play
    from steps.sampling.job import Job

    settings = params.load(task.root / "params.yaml", params.EvaluateParams)
    folder = task.root / environments.data_of(settings.task)
    played = {}
    for who, adapter in adapters.items():
        begun = time.monotonic()
        job = Job(
            settings.policy, settings.evaluate, adapter, task.env, [(scenario, 0)], "ask", 0, task.data, folder,
            task=settings.task, settings=settings,
        )  # fmt: skip
        [trajectory] = play.play(job)
        played[who] = trajectory, time.monotonic() - begun
    return played


def lines(task: Task, scenario: Scenario, trajectory: Trajectory, is_own_question: bool, counts: str) -> Iterator[str]:
    """The episode for a person: the turns with the answers of the environment, and the result."""
    from steps.analytics.changes import answers
    from steps.analytics.transcripts import STOPS, printable, shorten, spoken
    from steps.judging.rule import by_rule

    for number, turn in enumerate(trajectory.turns, 1):
        for text in spoken(turn.message):
            yield f"turn {number}: {printable(text)}"
        for observation in turn.observations:
            yield "  → " + printable(shorten(str(observation.get("content", "")))).replace("\n", "\n    ")
    given, expected = answers(task.env, scenario, trajectory)
    yield f"answer: {'none' if given is None else printable(given)}"
    success = by_rule(task.env, scenario, trajectory).success
    if not is_own_question and success is not None:
        yield f"success: {'yes' if success else 'no'}{'' if expected is None else f'; expected: {printable(expected)}'}"
    yield f"ended: {trajectory.error or STOPS[trajectory.stop_reason]} ({len(trajectory.turns)} turns, {counts})"


def show(columns: dict[str, list[str]]) -> None:
    """Print attempts by who made them: side by side where the terminal is wide enough, else one under the other."""
    from rich.table import Table

    output = console(WIDTH, soft_wrap=True)
    if len(columns) > 1 and output.is_terminal and output.width >= WIDE:
        grid = Table(*columns, box=None, pad_edge=False, padding=(0, 2), expand=True, header_style="bold")
        for column in grid.columns:
            column.ratio = 1
        grid.add_row(*("\n".join(each) for each in columns.values()))
        console(WIDTH).print(grid)
        return
    for who, each in columns.items():
        output.print("\n".join([f"\n{who}", *each]))


def served_by(root: Path, host: str, port: int) -> tuple[Server, str]:
    """The server there, and the adapter that it serves. UserError where it is none, or serves another model."""
    name = params.load(root / "params.yaml", params.RegisterParams).model
    server = Server(host, port, name, served_key(root))
    served = server.models()
    if name not in served:
        raise UserError(
            f"{server.page} serves {', '.join(served) or 'nothing'}, and params.yaml is of {name}: start `make serve` again"
        )
    return server, Path(served[name]).name


def ask(root: Path, options: argparse.Namespace) -> None:
    """Play the episode and print it."""
    own = (options.question or "").strip() or None
    server, adapter, why = None, "", ""
    try:
        server, adapter = served_by(root, options.host or HOST, options.port or PORT)
    except UserError as problem:
        if options.host or options.port:
            raise
        why = str(problem).partition(": ")[0]
    task = load(root)
    adapters = {} if server else policies(task, why)
    scenario = choose(task.scenarios(), options.scenario, options.seed, own)
    about = f"test scenario {scenario.id}" + (", whose data the tools work on" if own else "")
    scenario = scenario if own is None else with_question(task, scenario, own)
    if server is not None:
        print(f"{server.name}, adapter {adapter}, at {server.page}/v1; {about}", flush=True)
        show_question(scenario)
        played = play_served(server, task, scenario)
        counts = f"{played.output_tokens} sampled tokens, {played.seconds:.1f} s"
        print("\n".join(lines(task, scenario, played.trajectory, own is not None, counts)))
        return
    print(f"No server is asked ({why}). Loading {task.settings.policy.base_model} here; log: {LOG}", flush=True)
    begun = time.monotonic()
    (root / LOG).unlink(missing_ok=True)
    with logged(root / LOG):
        start_engine(task.settings)
    print(f"Loaded in {time.monotonic() - begun:.0f} s; {about}", flush=True)
    show_question(scenario)
    with logged(root / LOG):
        attempts = play_here(task, scenario, adapters)
    columns = {}
    for who, (trajectory, seconds) in attempts.items():
        counts = f"{sum(len(turn.completion_ids) for turn in trajectory.turns)} sampled tokens, {seconds:.1f} s"
        columns[who] = list(lines(task, scenario, trajectory, own is not None, counts))
    show(columns)


def show_question(scenario: Scenario) -> None:
    """Print what the user says."""
    from steps.analytics.transcripts import printable

    for message in scenario.messages:
        if message["role"] == "user":
            print(f"question: {printable(str(message['content']))}", flush=True)


def main(words: list[str] | None = None) -> int:
    parser = command_parser("addons.production.ask", __doc__)
    parser.add_argument("question", nargs="?", help="in place of the scenario's own; not for games and dialogues")
    parser.add_argument(
        "--scenario", metavar="ID|N", help="of the test split, by its id or number (default: the first)"
    )
    parser.add_argument("--seed", type=int, help="draw a scenario of the test split by this number")
    parser.add_argument(
        "--host", help=f"where `make serve` listens, and nothing but a server is asked (default: {HOST})"
    )
    parser.add_argument("--port", type=int, help=f"likewise (default: {PORT})")
    options = parser.parse_args(words)
    return exit_code(lambda: ask(Path.cwd(), options))


if __name__ == "__main__":
    sys.exit(main())
