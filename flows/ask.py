"""Ask: plays one episode with the served model, with the task's tools and system prompt, and prints every turn.

    python -m flows.ask                                      # the first scenario of the test split (`make ask`)
    python -m flows.ask --scenario 7                         # another one
    python -m flows.ask "Who owns the Falcon contract?"      # a question of your own (`make ask Q="…"`)

`make serve` must be running. A question of your own replaces that of the scenario; the tools still work on the scenario's
data, such as its inbox, so the result is not compared with anything. The answers are not kept in the ledger, which would
give those of an earlier champion to the same question.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.serving.server import HOST, PORT, Server, served_key
from steps.core import params
from steps.core.errors import UserError
from steps.core.terminal import exit_code

if TYPE_CHECKING:
    from environments.base import Env, Message, Scenario
    from steps.sampling.players import Played

KEY_VARIABLE = "FLYWHEEL_SERVE_KEY"  # for steps/llm/client.py, while it asks


def scenario_of(env: type[Env], data: Any, settings: params.Params, number: int, question: str | None) -> Scenario:
    """A scenario of the test split, as the stage scenarios draws it, perhaps with another question. UserError where the task
    has no such scenario, or takes no other question."""
    from environments.base import Scenario

    count = settings.scenarios.test
    if not 0 <= number < count:
        raise UserError(f"--scenario {number}: the test split has the scenarios 0 to {count - 1} (scenarios.test)")
    try:
        scenario = env.scenarios(data, "test", count, settings.seed)[number]
    except ValueError as problem:
        raise UserError(f"scenarios.test: {problem}") from None
    if question is None:
        return scenario
    roles = [message["role"] for message in scenario.messages]
    if env.openings_repeat or roles.count("user") != 1:
        raise UserError(
            f"the task {settings.task} takes no question of your own: leave it out, and choose one by --scenario"
        )
    messages = [
        message | {"content": question} if message["role"] == "user" else message for message in scenario.messages
    ]
    return Scenario.make(scenario.task, scenario.split, messages, scenario.data)


def play(server: Server, settings: params.Params, env: type[Env], data: Any, scenario: Scenario) -> Played:
    """An episode of the served model. UserError where the server does not answer."""
    from steps.policy.loading import turn_limit
    from steps.project.store import variables
    from steps.sampling import players

    endpoint = params.Endpoint(
        model=server.name,
        base_url=f"{server.page}/v1",
        api_key_env=KEY_VARIABLE,
        temperature=settings.evaluate.temperature,
        max_tokens=turn_limit(settings.policy, settings.evaluate.max_tokens),
        max_retries=1,
    )
    policy = params.Policy(kind="openai", endpoint=endpoint)
    without_proxy = dict.fromkeys(("NO_PROXY", "no_proxy"), server.host)  # the key is for this machine alone
    with variables(**{KEY_VARIABLE: server.key, "FLYWHEEL_LEDGER_URL": "sqlite://"}, **without_proxy):  # in memory
        limits = settings.evaluate
        [played] = players.play(
            policy, env, data, [(scenario, 0)], prefix="ask", max_turns=limits.max_turns, slow=limits
        )
    return played


def lines(env: type[Env], scenario: Scenario, played: Played, is_own_question: bool) -> Iterator[str]:
    """The episode for a person: the question, the turns with the answers of the environment, and the result."""
    from steps.analytics.transcripts import STOPS, printable, shorten

    trajectory = played.trajectory
    for message in scenario.messages:
        if message["role"] == "user":
            yield f"question: {printable(str(message['content']))}"
    for number, turn in enumerate(trajectory.turns, 1):
        for text in shown(turn.message):
            yield f"turn {number}: {printable(text)}"
        for observation in turn.observations:
            yield "  → " + printable(shorten(str(observation.get("content", "")))).replace("\n", "\n    ")
    messages = trajectory.messages(scenario)
    outcome = env.outcome(scenario, messages)
    yield f"answer: {'none' if outcome.given is None else printable(str(outcome.given))}"
    if not is_own_question:
        expected = "" if outcome.expected is None else f"; expected: {printable(str(outcome.expected))}"
        yield f"success: {'yes' if env.success(scenario, messages) else 'no'}{expected}"
    counts = f"{len(trajectory.turns)} turns, {played.output_tokens} sampled tokens, {played.seconds:.1f} s"
    yield f"ended: {trajectory.error or STOPS[trajectory.stop_reason]} ({counts})"


def shown(message: Message) -> Iterator[str]:
    """A turn of the model: its words, then its calls as name(argument=value)."""
    if message.get("content"):
        yield str(message["content"])
    for call in message.get("tool_calls") or ():
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        inside = ", ".join(f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in arguments.items())
        yield f"{name}({inside})"


def ask(root: Path, host: str, port: int, number: int, question: str | None) -> None:
    """Play the episode and print it."""
    settings = params.load(root / "params.yaml", params.Params)
    name = params.load(root / "params.yaml", params.RegisterParams).model
    server = Server(host, port, name, served_key(root))
    served = server.models()
    if name not in served:
        raise UserError(
            f"{server.page} serves {', '.join(served) or 'nothing'}, and params.yaml is of {name}: start `make serve` again"
        )
    import environments

    env = environments.load(settings.task, settings.tasks)
    data = env.load(root / environments.data_of(settings.task))
    scenario = scenario_of(env, data, settings, number, question)
    print(f"{name}, adapter {Path(served[name]).name}, at {server.page}/v1; test scenario {number}", flush=True)
    for line in lines(env, scenario, play(server, settings, env, data, scenario), question is not None):
        print(line)


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.ask", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("question", nargs="?", help="in place of the scenario's own; not for games and dialogues")
    parser.add_argument("--scenario", type=int, default=0, metavar="N", help="of the test split (default: 0)")
    parser.add_argument("--host", default=HOST, help=f"where `make serve` listens (default: {HOST})")
    parser.add_argument("--port", type=int, default=PORT, help=f"(default: {PORT})")
    options = parser.parse_args(words)
    question = (options.question or "").strip() or None
    return exit_code(lambda: ask(Path.cwd(), options.host, options.port, options.scenario, question))


if __name__ == "__main__":
    sys.exit(main())
