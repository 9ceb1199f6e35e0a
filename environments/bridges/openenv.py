"""OpenEnv's environments as tasks: `task: openenv:my_env`, in a process with the interpreter OPENENV_PYTHON.

An environment is a package with the module my_env.server.app, as `openenv init` makes it: an installed one, or yours in a
folder of PYTHONPATH or in the one in which the run is. No web server and no container is started. The fields of its action
are the parameters of the tool `act`; an environment of MCP tools has those. The agent reads the fields of the observation.

`openenv:my_env?key=value` gives arguments of reset, except `scale`, which multiplies the rewards, and `success`, the least
score that is a success (by default anything above 0). The score is the sum of the rewards, at most 1 in the reward.
Scenarios are seeds: an environment whose reset takes none has scenarios that differ in what it draws, if it draws at all.
"""

from __future__ import annotations

import itertools
import json
from collections import deque
from collections.abc import Sequence
from functools import cache, lru_cache
from random import Random
from typing import Any

from environments import base
from environments.base import Message, Scenario, Split
from environments.bridges.apart import Stopped, child_of, key_of
from environments.bridges.apart_env import Apart, Turn
from environments.bridges.packages import options_of
from environments.kit.tools import any_call, any_value

SEEDS = 100_000
TURNS = 30
ABOVE_NOTHING = 1e-9
SEARCHED = 200  # episodes that gold plays to find one that wins
CHOICES = 12  # actions that gold tries at each turn


class OpenEnv(Apart):
    """An episode of a seed."""

    sources = ("seed",)
    openings_repeat = True
    hears = False
    max_turns = TURNS

    @classmethod
    def start(cls, scenario: Scenario) -> dict[str, Any]:
        return {"seed": scenario.data["seed"]}

    @classmethod
    def scenarios(cls, data: Any, split: Split, count: int, seed: int) -> list[Scenario]:
        numbers = [number for number in range(SEEDS) if base.split_of(f"{cls.task} {number}") == split]
        if count > len(numbers):
            raise ValueError(f"{cls.task} has {len(numbers)} seeds for the split {split}, not {count}")
        rules = f"{child_of(*cls.key).facts['rules']} Call {' or '.join(cls.tools())} in each turn."
        made = []
        for number in Random(f"{split} {seed}").sample(numbers, count):
            opening = opening_of(cls.key, number)
            messages = [{"role": "system", "content": rules}, {"role": "user", "content": opening}]
            made.append(Scenario.make(cls.task, split, messages, {"seed": number}))
        return made

    # Players

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        return any_call(self.tools(), rng)

    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        """The next action of those that search finds; the last of them again where the episode goes on."""
        actions = solution(type(self), self.scenario.data["seed"])
        if not actions:
            return self.bad(messages, rng)
        call = json.loads(actions[min(base.count_turns(messages), len(actions) - 1)])
        return base.use(call["name"], **call["arguments"])


@lru_cache(maxsize=4096)
def opening_of(key: tuple[str, str, str], seed: int) -> str:
    return str(child_of(*key).ask("opening", start={"seed": seed}))


@lru_cache(maxsize=1024)
def solution(env: type[OpenEnv], seed: int) -> tuple[str, ...]:
    """The shortest calls, as JSON, whose score is a success; empty where search finds none."""
    waiting, seen = deque([list[Turn]()]), set[str]()
    tried = 0
    while waiting:
        path = waiting.popleft()
        for call in choices(env):
            turns = [*path, {"content": "", "tool_calls": [call]}]
            if (tried := tried + 1) > SEARCHED:
                return ()
            try:
                answer = child_of(*env.key).ask("score", start={"seed": seed}, turns=turns)
                score, is_over, text = float(answer["score"]), bool(answer["done"]), str(answer["text"])
            except (Stopped, LookupError, TypeError, ValueError):
                continue
            if score >= env.threshold:
                return tuple(json.dumps(turn["tool_calls"][0]) for turn in turns)
            if not is_over and text not in seen:
                seen.add(text)
                waiting.append(turns)
    return ()


@cache
def choices(env: type[OpenEnv]) -> list[dict[str, Any]]:
    """Calls to try: every choice of arguments that have few, and any value of the others."""
    calls = []
    for name, tool in env.tools().items():
        parameters = tool.schema["function"]["parameters"]
        required = {key: parameters["properties"].get(key, {}) for key in parameters["required"]}
        values = [list_of(schema) for schema in required.values()]
        for chosen in itertools.islice(itertools.product(*values), CHOICES):
            calls.append({"name": name, "arguments": dict(zip(required, chosen, strict=True))})
    return calls[:CHOICES]


def list_of(schema: dict[str, Any]) -> list[Any]:
    if schema.get("enum"):
        return list(schema["enum"])
    if schema.get("type") == "boolean":
        return [True, False]
    if schema.get("type") == "integer":
        low = int(schema.get("minimum", 0))
        return list(range(low, min(low + CHOICES, int(schema.get("maximum", low + CHOICES)) + 1)))
    return [any_value(schema, Random(0))]


def make(name: str) -> type[Apart]:
    """The task of an environment. TaskProblem where there is none of this name, or no interpreter."""
    key, least = key_of("openenv", *options_of(name))
    child_of(*key)
    fields = {"task": f"openenv:{name}", "key": key, "threshold": ABOVE_NOTHING if least is None else least}
    return type("OpenEnv_", (OpenEnv,), fields)
