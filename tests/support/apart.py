"""Environments for packages in processes of their own, and stand-ins for the two packages.

`write_environments` writes the modules that both the real packages and the stand-ins load; their data are in them.
`write_stand_ins` writes packages named `verifiers` and `openenv` that have just what these environments and our side of the
pipe use, in the form of the real ones. They are no replacement: what the real ones do is tested where VERIFIERS_PYTHON and
OPENENV_PYTHON are set.
"""

from __future__ import annotations

from pathlib import Path

TEXTS = '''
"""Prompts that are texts, of one length."""
import verifiers as vf
from datasets import Dataset


def right(completion, answer, **kwargs):
    return float(completion[-1].content.strip() == answer)


def load_environment():
    rows = [{"prompt": f"Say the number {number} again.", "answer": str(number)} for number in range(100, 400)]
    return vf.SingleTurnEnv(dataset=Dataset.from_list(rows), rubric=vf.Rubric(funcs=[right]))
'''
SUMS = '''
"""A question, and an answer in words: verifiers' SingleTurnEnv."""
import os
import time

import verifiers as vf
from datasets import Dataset


def right(completion, answer, **kwargs):
    return float(completion[-1].content.strip() == answer)


def short(completion, **kwargs):
    return float(len(completion[-1].content) < 20)


def load_environment(most=30):
    print("this is printed, and no answer")
    rows = [
        {"question": f"What is {a} + {b}?", "answer": str(a + b)} for a in range(most) for b in range(most)
    ]
    return vf.SingleTurnEnv(
        dataset=Dataset.from_list(rows),
        system_prompt="Answer with a number.",
        rubric=vf.Rubric(funcs=[right, short], weights=[1.0, 0.1]),
    )
'''

TOOLS = '''
"""Tools, one of which draws from the global generator, one that raises, hangs, or ends the process: verifiers' ToolEnv."""
import os
import random
import time

import verifiers as vf
from datasets import Dataset


def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return str(a + b)


def roll(sides: int) -> str:
    """Roll a die.

    Args:
        sides: of the die
    """
    return str(random.randrange(max(1, sides)))


def break_down(how: str) -> str:
    """Break down.

    Args:
        how: hang, exit or raise
    """
    if how == "hang":
        time.sleep(600)
    if how == "exit":
        print("the last words", flush=True)
        os._exit(7)
    if how == "raise":
        raise ValueError("it broke")
    return "nothing happened"


def right(completion, answer, **kwargs):
    return float(completion[-1].content.strip() == answer)


def load_environment(broken=False, most=30):
    rows = [
        {"question": f"Add {a} to {b} with the tool, then answer with the sum.", "answer": str(a + b)}
        for a in range(most)
        for b in range(most)
    ]
    return vf.ToolEnv(
        dataset=Dataset.from_list(rows),
        tools=[add, roll] + ([break_down] if broken else []),
        max_turns=6,
        rubric=vf.Rubric(funcs=[right]),
    )
'''

GUESSES = '''
"""A hidden number and answers in words to each guess: verifiers' MultiTurnEnv."""
import verifiers as vf
from datasets import Dataset


def near(completion, answer, state, **kwargs):
    return 1.0 if state.get("hit") else 0.0


class Guesses(vf.MultiTurnEnv):
    async def env_response(self, messages, state, **kwargs):
        guess = messages[-1].content.strip()
        if guess == state["answer"]:
            state["hit"] = True
            state["final_env_response"] = [{"role": "user", "content": "That is it."}]
            return state["final_env_response"]
        if not guess.isdecimal():
            return [{"role": "user", "content": "Guess a number."}]
        text = "higher" if int(guess[:6]) < int(state["answer"]) else "lower"
        return [{"role": "user", "content": f"It is {text}."}]


def load_environment():
    rows = [{"question": f"Game {n}: guess my number, 0 to 99.", "answer": str(n * 37 % 100)} for n in range(400)]
    return Guesses(dataset=Dataset.from_list(rows), max_turns=8, rubric=vf.Rubric(funcs=[near]))
'''

CORRIDOR_MODELS = '''
from typing import Literal

from openenv.core.env_server.types import Action, Observation
from pydantic import Field


class CorridorAction(Action):
    """A step."""

    direction: Literal["left", "right"] = Field(..., description="where to go")


class CorridorObservation(Observation):
    place: int = Field(default=0)
    text: str = Field(default="")
'''

CORRIDOR = '''
import random

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import State

from ..models import CorridorAction, CorridorObservation


class CorridorEnvironment(Environment):
    """A corridor of five places with an exit at one end.

    More about it.
    """

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.place = random.Random(seed).randrange(1, 4)
        self.exit = random.choice((0, 4))
        return CorridorObservation(place=self.place, text=f"The exit is at {self.exit}.")

    def step(self, action, **kwargs):
        self.place += 1 if action.direction == "right" else -1
        is_end = self.place in (0, 4)
        reward = 1.0 if self.place == self.exit else 0.0
        text = f"A wind of {random.randrange(1000)}; the exit is at {self.exit}."
        return CorridorObservation(place=self.place, text=text, done=is_end, reward=reward)

    @property
    def state(self):
        return State()
'''

CORRIDOR_APP = """
from openenv.core.env_server.http_server import create_app

from ..models import CorridorAction, CorridorObservation
from .corridor_environment import CorridorEnvironment

app = create_app(CorridorEnvironment, CorridorAction, CorridorObservation, env_name="corridor")


@app.get("/more")
def more():
    return {}
"""

NOTE = '''
import os
import time

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.types import Action, Observation, State
from pydantic import Field


class NoteAction(Action):
    text: str = Field(..., description="what to write")
    count: int = Field(default=1, ge=1, le=9)


class NoteObservation(Observation):
    echoed: str = ""


class NoteEnvironment(Environment):
    """Repeats a text."""

    def reset(self):
        self.notes = []
        return NoteObservation(echoed="Write.")

    def step(self, action):
        if action.text == "hang":
            time.sleep(600)
        if action.text == "exit":
            print("the last words", flush=True)
            os._exit(7)
        self.notes.append(action.text)
        if action.text == "raise":
            raise ValueError("it broke")
        return NoteObservation(echoed=" ".join(self.notes * action.count), done=action.text == "end", reward=0.5)

    @property
    def state(self):
        return State()


app = create_app(NoteEnvironment, NoteAction, NoteObservation, env_name="note")
'''

VERIFIERS = '''
"""A stand-in for verifiers: the few parts of it that the test's environments and our side of the pipe use."""
import importlib
import inspect
import json

from verifiers.types import AssistantMessage, Tool, ToolMessage, UserMessage


class OverlongPromptError(Exception):
    pass


class Rubric:
    has_group_rewards = False

    def __init__(self, funcs, weights=None):
        self.funcs, self.weights = funcs, weights or [1.0] * len(funcs)

    def _get_reward_func_names(self):
        return [func.__name__ for func in self.funcs]

    def _get_reward_weights(self):
        return self.weights

    async def score_rollout(self, state):
        values = {}
        for func in self.funcs:
            try:
                values[func.__name__] = func(completion=state["completion"], answer=state["answer"], state=state)
            except Exception:
                values[func.__name__] = 0.0
        state["metrics"] = values
        state["reward"] = sum(values[func.__name__] * weight for func, weight in zip(self.funcs, self.weights))


class MultiTurnEnv:
    def __init__(self, dataset, rubric, system_prompt=None, max_turns=-1, tools=()):
        self.rows = [
            {
                "prompt": row.get("prompt")
                or [
                    *([{"role": "system", "content": system_prompt}] if system_prompt else []),
                    {"role": "user", "content": row["question"]},
                ],
                "answer": row["answer"],
            }
            for row in dataset
        ]
        self.rubric, self.max_turns, self.tools = rubric, max_turns, {tool.__name__: tool for tool in tools}
        names = {int: "integer", str: "string"}
        self.tool_defs = [
            Tool(
                tool.__name__,
                tool.__doc__.partition("\\n")[0],
                {
                    "type": "object",
                    "properties": {
                        key: {"type": names[kind]} for key, kind in tool.__annotations__.items() if key != "return"
                    },
                    "required": list(inspect.signature(tool).parameters),
                },
            )
            for tool in tools
        ]

    def build_dataset(self):
        return self.rows

    def build_eval_dataset(self):
        return None

    async def rollout(self, row, client, model, sampling_args):
        prompt = row["prompt"]
        prompt = [{"role": "text", "content": prompt}] if isinstance(prompt, str) else prompt
        state = {"prompt": prompt, "answer": row["answer"], "turns": 0, "error": None}
        messages = [UserMessage(each["role"], each["content"]) for each in prompt]
        known = len(messages)
        while True:
            try:
                response = await client.get_response(prompt=messages, model=model, sampling_args=sampling_args)
            except OverlongPromptError:
                break
            messages = [*messages, AssistantMessage(response.message.content, response.message.tool_calls)]
            state["turns"] += 1
            if 0 < self.max_turns <= state["turns"] or self.is_last(messages[-1]):
                break
            answers = await self.env_response(messages, state)
            messages = [*messages, *(UserMessage(**each) if isinstance(each, dict) else each for each in answers)]
            if state.get("final_env_response"):
                break
        state["completion"] = messages[known:]
        return state

    def is_last(self, message):
        return False


class SingleTurnEnv(MultiTurnEnv):
    def __init__(self, **settings):
        super().__init__(max_turns=1, **settings)


class ToolEnv(MultiTurnEnv):
    def is_last(self, message):
        return not message.tool_calls

    async def env_response(self, messages, state):
        answers = []
        for call in messages[-1].tool_calls:
            try:
                answers.append(ToolMessage(str(self.tools[call.name](**json.loads(call.arguments)))))
            except Exception as problem:
                answers.append(ToolMessage(str(problem)))
        return answers


def load_environment(name, **arguments):
    return importlib.import_module(name.replace("-", "_")).load_environment(**arguments)
'''

VERIFIERS_TYPES = """
from dataclasses import dataclass
from typing import Any


@dataclass
class UserMessage:
    role: str
    content: str


@dataclass
class AssistantMessage:
    content: str
    tool_calls: Any
    role: str = "assistant"


@dataclass
class ToolMessage:
    content: str
    role: str = "tool"


@dataclass
class Tool:
    name: str
    description: str
    parameters: dict


@dataclass
class ToolCall:
    id: str
    name: str
    arguments: str


@dataclass
class ResponseMessage:
    role: str
    content: str
    tool_calls: Any
    finish_reason: str
    is_truncated: bool


@dataclass
class Response:
    id: str
    created: int
    model: str
    message: ResponseMessage
"""

VERIFIERS_CLIENT = """
from abc import ABC, abstractmethod


class Client(ABC):
    def __init__(self, client):
        self.client = client

    @abstractmethod
    async def close(self):
        ...
"""

OPENENV_TYPES = """
from pydantic import BaseModel, ConfigDict, Field


class Action(BaseModel):
    model_config = ConfigDict(extra="forbid")
    metadata: dict = Field(default_factory=dict)


class Observation(BaseModel):
    done: bool = False
    reward: float | None = None
    metadata: dict = Field(default_factory=dict)


class State(BaseModel):
    episode_id: str | None = None
"""

OPENENV_SERVER = """
def create_app(*arguments, **settings):
    raise RuntimeError("a web server is not wanted here")


create_fastapi_app = create_app
"""

ENVIRONMENTS = {
    "sums_env.py": SUMS,
    "texts_env.py": TEXTS,
    "tools_env.py": TOOLS,
    "guesses_env.py": GUESSES,
    "corridor/__init__.py": "",
    "corridor/models.py": CORRIDOR_MODELS,
    "corridor/server/__init__.py": "",
    "corridor/server/corridor_environment.py": CORRIDOR,
    "corridor/server/app.py": CORRIDOR_APP,
    "note/__init__.py": "",
    "note/server/__init__.py": "",
    "note/server/app.py": NOTE,
}
STAND_INS = {
    "verifiers/__init__.py": VERIFIERS,
    "verifiers/types.py": VERIFIERS_TYPES,
    "verifiers/clients/__init__.py": "",
    "verifiers/clients/client.py": VERIFIERS_CLIENT,
    "datasets.py": "class Dataset:\n    from_list = list\n",
    "openenv/__init__.py": "",
    "openenv/core/__init__.py": "",
    "openenv/core/env_server/__init__.py": "",
    "openenv/core/env_server/types.py": OPENENV_TYPES,
    "openenv/core/env_server/interfaces.py": "class Environment:\n    pass\n",
    "openenv/core/env_server/http_server.py": OPENENV_SERVER,
}


def write_environments(folder: Path) -> None:
    _write(folder, ENVIRONMENTS)


def write_stand_ins(folder: Path) -> None:
    _write(folder, STAND_INS)


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.lstrip("\n"), encoding="utf-8")
