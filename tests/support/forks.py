"""An agent that talks to a token graph as frameworks do, and forks from its conversation for a known reason.

The conversations are made up from words, and the answers are written as the template writes them: no model samples here.
Each way of forking is one that an agent framework has; the texts of summaries are theirs.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from addons.agents.gateway.graph import Graph, Placement
from addons.agents.gateway.journal import Answer
from addons.agents.gateway.types import Request
from environments.base import Message
from environments.email_search import EmailSearch
from steps.policy.chat import Chat

WORDS = (
    "invoice falcon budget maria monday report crane lisbon harbour seven contract river update orchid ledger".split()
)
TOOLS = tuple(tool.schema for tool in EmailSearch.tools().values())
SUMMARIES = (
    "Here is a summary of the conversation to date: {}",
    "Summary of conversation earlier: {}",
    "This session is being continued from a previous conversation that ran out of context: {}",
    "[Earlier messages were removed: {}]",
    "<summary>{}</summary>",
)
NOTES = ("Known so far: {}", "Notes: {}", "{}")  # without a word that says what they are


class Agent:
    """One execution. `chats` gives the chat of a list of tools; `has_thoughts`: answers begin with <think>."""

    def __init__(self, chats: Callable[[tuple[Any, ...]], Chat], seed: int, has_thoughts: bool | None = None) -> None:
        self.graph, self.chats, self.draw = Graph(), chats, random.Random(seed)
        self.has_thoughts = self.draw.random() < 0.5 if has_thoughts is None else has_thoughts
        self.tools: tuple[Any, ...] = TOOLS
        self.messages: list[Message] = [self.system(), self.user()]
        self.calls = 0
        self.asked: list[tuple[list[Message], tuple[Any, ...]]] = []

    def text(self, count: int = 8) -> str:
        return " ".join(self.draw.choice(WORDS) for _ in range(count)) + f" {self.draw.randrange(10**6)}"

    def system(self) -> Message:
        return {"role": "system", "content": f"You are an assistant. {self.text()}"}

    def user(self) -> Message:
        return {"role": "user", "content": f"{self.text()}?"}

    def answer(self, calls: int) -> Message:
        message: Message = {"role": "assistant", "content": self.text(4)}
        if self.has_thoughts:
            message["content"] = f"<think>\n{self.text(6)}\n</think>\n\n{message['content']}"
        for _ in range(calls):
            self.calls += 1
            arguments = {"keywords": [self.draw.choice(WORDS)], "share": 1.0, "sender": self.text(2)}
            function = {"name": "search_emails", "arguments": arguments}
            message.setdefault("tool_calls", []).append(
                {"id": f"call_{self.calls}", "type": "function", "function": function}
            )
        return message

    def ask(
        self, messages: list[Message], tools: tuple[Any, ...] | None = None, calls: int = 1, **more: Any
    ) -> Placement:
        """Ask for an answer and record it; the conversation becomes these messages with it."""
        self.asked.append((messages, self.tools if tools is None else tools))
        request = Request(tuple(copy.deepcopy(messages)), self.tools if tools is None else tools, **more)
        chat = self.chats(request.tools)
        placement = self.graph.ask(self.graph.place(request, chat))
        answer = self.answer(calls)
        ids = tuple(chat.completion_ids(answer))
        logprobs = tuple(-self.draw.random() for _ in ids)
        self.graph.add(placement, request, chat, Answer(ids, logprobs, "stop"), answer)
        self.messages, self.tools = [*messages, answer], request.tools
        return placement

    def observed(self) -> list[Message]:
        """The conversation with what its last calls give, or with another question."""
        calls = self.messages[-1].get("tool_calls", ())
        answers = [{"role": "tool", "tool_call_id": call["id"], "content": self.text(6)} for call in calls]
        return [*copy.deepcopy(self.messages), *(answers or [self.user()])]

    @property
    def answers(self) -> int:
        """Answers in the conversation."""
        return len(self._answers(self.messages))

    def play(self, turns: int) -> None:
        for _ in range(turns):
            is_first = not self.graph.nodes
            self.ask(self.messages if is_first else self.observed(), calls=self.draw.choice([0, 1, 1, 1, 2]))

    def fork(self, cause: str) -> Placement:
        """Ask in a way that forks for this cause. The conversation has at least three answers."""
        asked = self.observed()
        placement: Placement = getattr(self, f"_{cause}")(asked)
        return placement

    def _retry(self, asked: list[Message]) -> Placement:
        return self.ask(*self.draw.choice(self.asked))

    def _json_rewritten(self, asked: list[Message]) -> Placement:
        calls = asked[self._answers(asked)[-1]].get("tool_calls", [])
        if not calls:  # the last answer had none: another does
            self.ask(asked)
            asked = self.observed()
            calls = asked[self._answers(asked)[-1]]["tool_calls"]
        for call in calls:
            arguments, way = call["function"]["arguments"], self.draw.randrange(3)
            if way == 0:  # keys in another order
                call["function"]["arguments"] = dict(reversed(arguments.items()))
            elif way == 1:  # 1.0 as 1
                call["function"]["arguments"] = arguments | {"share": 1}
            else:  # the client's own text, as the dialects hand it on
                call["function"]["written"] = str(arguments).replace("'", '"').replace(": ", ":")
        return self.ask(asked)

    def _reasoning_stripped(self, asked: list[Message]) -> Placement:
        places = self._answers(asked)
        for place in places if self.draw.random() < 0.5 else places[-1:]:
            content = asked[place]["content"].rpartition("</think>")[2]
            asked[place]["content"] = content if self.draw.random() < 0.5 else content.strip()
        return self.ask(asked)

    def _system_changed(self, asked: list[Message]) -> Placement:
        way = self.draw.randrange(4)
        if asked[0]["role"] != "system":
            asked.insert(0, self.system())
        elif way == 0:  # the date or the state is in it
            asked[0]["content"] += f"\n\nThe time is {self.draw.randrange(24)}:{self.draw.randrange(60)}."
        elif way == 1:
            asked[0] = self.system()
        elif way == 2:
            del asked[0]
        else:  # a hand-over: other instructions and other tools
            asked[0] = self.system()
            return self.ask(asked, TOOLS[:1])
        return self.ask(asked)

    def _tools_changed(self, asked: list[Message]) -> Placement:
        others = [(), TOOLS[:1], TOOLS[1:], tuple(reversed(TOOLS)), TOOLS]
        return self.ask(asked, self.draw.choice([tools for tools in others if tools != self.tools]))

    def _history_compacted(self, asked: list[Message]) -> Placement:
        if asked[0]["role"] != "system":
            return self.ask(asked[:1] + asked[self._answers(asked)[-1] :])
        way, tail = self.draw.randrange(5), self._answers(asked)[-1]
        summary = self.draw.choice(SUMMARIES).format(self.text(12))
        if way == 0:  # the middle is gone
            asked = asked[:2] + asked[tail:]
        elif way == 1:  # all but the system message is a summary
            asked = [asked[0], {"role": "user", "content": summary}]
        elif way == 2:  # a summary, and the latest messages
            note = self.draw.choice(NOTES).format(self.text(12))
            asked = [asked[0], {"role": "user", "content": note}, *asked[tail:]]
        elif way == 3:  # the summary is in the system message
            asked[0]["content"] += f"\n\n{summary}"
            asked = asked[:1] + asked[tail:]
        else:  # the question stays, a summary follows
            asked = [*asked[:2], {"role": "user", "content": summary}, *asked[tail:]]
        return self.ask(asked)

    def _sub_agent(self, asked: list[Message]) -> Placement:
        way = self.draw.randrange(4)
        if way == 0:
            return self.ask([self.system(), self.user()], TOOLS[:1])
        if way == 1 and asked[0]["role"] == "system":  # the same instructions, another piece of the work
            return self.ask([asked[0], {"role": "user", "content": f"Write a summary of chapter {self.text(6)}."}])
        if way == 2:
            return self.ask([self.user()])
        return self.ask([self.system(), {"role": "user", "content": f"{self.text(3)}: {asked[-1]['content']}"}])

    def _edited(self, asked: list[Message]) -> Placement:
        way = self.draw.randrange(4)
        if way == 0:  # what a tool gave is shortened
            place = next(
                at for at in reversed(range(self._answers(asked)[-1])) if asked[at]["role"] in ("tool", "user")
            )
            asked[place]["content"] = asked[place]["content"][:9] + "…"
        elif way == 1:  # the agent goes back and asks otherwise
            asked = [*asked[: self._answers(asked)[0] + 1], self.user()]
        elif way == 2 and (users := [at for at, message in enumerate(asked) if message["role"] == "user"]):
            place = users[0]  # the first question is made more precise
            asked = asked[: place + 1]
            asked[-1]["content"] += " Answer in one word."
        else:  # other words in the mouth of the model
            asked[self._answers(asked)[0]]["content"] = self.text(5)
        return self.ask(asked)

    @staticmethod
    def _answers(asked: list[Message]) -> list[int]:
        return [place for place, message in enumerate(asked) if message["role"] == "assistant"]
