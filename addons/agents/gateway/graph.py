"""The token graph of one execution of an episode: every answer, and what its prompt continues.

A request whose messages are those of a recorded answer, the answer itself, and further messages that are not an
assistant's, is continued from the recorded token ids; only the further messages are tokenised. Where a stop text ended the
answer, its tokens say more than the client has, and it is continued if the client puts that text back. Every other request
forks: its prompt is rendered whole, and its cause is named (addons/agents/gateway/causes.py). Which answers come before
a request depends on what was asked, in its order, and never on how long sampling took.

    placement = graph.ask(graph.place(request, chat))        # while the request waits
    graph.add(placement, request, chat, answer, message)     # when it is answered
    graph.trajectory(…)                                      # when the episode has ended
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from addons.agents.gateway.causes import Conversation, cause, conversation
from addons.agents.gateway.echoes import Answers, stripped
from addons.agents.gateway.replies import grammar, spoken
from addons.agents.gateway.types import BadRequest, Cause, Request
from environments.base import Message
from steps.core.pictures import Shown, filled
from steps.core.records import Trajectory, Turn

if TYPE_CHECKING:
    from addons.agents.gateway.journal import Answer
    from addons.agents.section import Grammar
    from environments.kit.values import Result
    from steps.policy.chat import Chat

CONTINUES: tuple[Cause, ...] = ("", "json_rewritten")  # causes of requests that go on where an answer ended


class Placement(NamedTuple):
    """Where an answer stands in the graph before it is there."""

    parent: int | None  # node whose tokens the prompt begins with
    prompt_ids: tuple[int, ...]  # [P]
    cause: Cause
    depth: int  # sampled answers before it on its branch
    occurrence: int = 0  # how often the same prompt was asked before
    cached: int = 0  # of the prompt's tokens, those continued from what was recorded
    number: int = -1  # of the node, in the order of asking; -1: only looked up
    shown: Conversation = Conversation()
    new: tuple[Message, ...] = ()  # messages behind the parent's answer
    is_text: bool = False  # a prompt without messages
    pictures: tuple[Shown, ...] = ()  # among the prompt's tokens, with their bytes


class Node:
    """An answer: its placement, what was sampled, and the nodes that continue it."""

    def __init__(self, placement: Placement, reasoning: list[str]) -> None:
        self.placement, self.reasoning = placement, reasoning  # reasoning of each message shown, "" where there is none
        self.children: list[int] = []
        self.answer: Answer | None = None
        self.message: Message = {}
        self.stop = ""  # the text that ended it: its tokens hold that, and its words do not
        self.grammar: dict[str, Any] = {}  # that chose among the tokens
        self.whole = placement.shown  # with the answer, once it is there

    @property
    def ids(self) -> tuple[int, ...]:
        """[P + C] prompt and completion."""
        return self.placement.prompt_ids + (self.answer.completion_ids if self.answer else ())


class Graph:
    """The answers of one execution, numbered in the order in which they were asked for. `mode`: rollout.grammar."""

    def __init__(self, mode: Grammar = "exact") -> None:
        self.mode = mode
        self.nodes: list[Node] = []
        self.prompts: Counter[tuple[tuple[int, ...], tuple[Shown, ...]]] = Counter()  # how often each was asked
        self.ends: dict[bytes, list[int]] = defaultdict(list)  # answered nodes by the name of their conversation
        self.answers: set[bytes] = set()  # `loose` of each answer
        self.echoes = Answers()  # as clients may send them back

    def place(self, request: Request, chat: Chat) -> Placement:
        """Where the answer to a request belongs; changes nothing. BadRequest where the template refuses its messages."""
        if request.prompt is not None:
            return self._place_text(request.prompt, chat)
        shown = conversation(self.echoes.recognised(request.messages, request.tools), chat.tools_text)
        place = max((at for at, message in enumerate(shown.messages) if message["role"] == "assistant"), default=-1)
        parent = self._continued(shown, place + 1)
        is_stopped = parent is not None and not _has_stop(request.messages, self.nodes[parent].stop)
        parent = None if is_stopped else parent
        new, before, pictures = shown.messages[place + 1 :], tuple[int, ...](), tuple[Shown, ...]()
        reason: Cause = ""
        try:
            if parent is None:
                new, prompt = (), chat.prompt(shown.messages, request.pictures)
                depth = sum(key in self.answers for key in shown.loose)
            else:
                node, before = self.nodes[parent], self._closed(parent, chat)
                prompt = chat.expanded(chat.suffix_ids(new, node.message), new, request.pictures, len(before))
                depth, pictures = node.placement.depth + 1, node.placement.pictures
                reason = "json_rewritten" if shown.written[: place + 1] != node.whole.written else ""
        except ValueError as problem:
            raise BadRequest(str(problem), "messages") from None
        ids, pictures = before + tuple(prompt.ids), pictures + filled(prompt.pictures, request.pictures)
        count = self.prompts[ids, pictures]
        if count:
            reason = "retry"
        elif is_stopped:
            reason = "stop_text"
        elif self.nodes and (parent is None or self.nodes[parent].children):
            tips = (node for node in self.nodes if not node.children)  # nothing continues them
            reason = cause(shown, (node.whole for node in tips if not node.placement.is_text)) or "sub_agent"
        size = self.length(parent)
        return Placement(parent, ids, reason, depth, count, size, shown=shown, new=new, pictures=pictures)

    def ask(self, placement: Placement) -> Placement:
        """Note that this answer is being asked for, and number it. What is placed later is compared with it at once."""
        placement = placement._replace(number=len(self.nodes))
        before = self.nodes[placement.parent] if placement.parent is not None else None
        reasoning = [str(message.get("reasoning") or "") for message in placement.shown.messages]
        if before:
            before.children.append(placement.number)
            reasoning = [
                *before.reasoning,
                before.message.get("reasoning") or "",
                *reasoning[len(before.reasoning) + 1 :],
            ]
        self.nodes.append(Node(placement, reasoning))
        self.prompts[placement.prompt_ids, placement.pictures] += 1
        return placement

    def add(self, placement: Placement, request: Request, chat: Chat, answer: Answer, message: Message) -> int:
        """Record an answer; the number of its node."""
        if placement.number < 0:
            placement = self.ask(placement)
        node = self.nodes[placement.number]
        node.answer, node.message = answer, message
        if self.mode != "free" and (fields := grammar(request, chat)):
            node.grammar = fields | {"ends": [chat.end]}
        node.whole = placement.shown.answered(message)
        node.stop = (spoken(answer, request, chat)[1] or "") if request.stop else ""
        if not placement.is_text:
            self.echoes.add(message, request.stop)
            self.ends[node.whole.name(len(node.whole.keys))].append(placement.number)
            self.answers.add(node.whole.loose[-1])
        return placement.number

    def length(self, number: int | None) -> int:
        """Tokens of a node's prompt and completion; 0 for no node."""
        return 0 if number is None else len(self.nodes[number].ids)

    def trajectory(
        self,
        name: str,
        scenario_id: str,
        attempt: int,
        adapter_hash: str,
        result: Result | None = None,
        error: str | None = None,  # why the episode failed
    ) -> Trajectory:
        """The record of the execution: its answers in the order in which they were asked for."""
        return Trajectory(
            id=name,
            scenario_id=scenario_id,
            attempt=attempt,
            adapter_hash=adapter_hash,
            turns=tuple(self._turn(node, node.answer) for node in self.nodes if node.answer is not None),
            stop_reason="done" if error is None else "error",
            error=error,
            result=result,
            pictures={
                each.sha256: each.data
                for node in self.nodes
                if node.answer is not None
                for each in node.placement.pictures
            },
        )

    def _turn(self, node: Node, answer: Answer) -> Turn:
        placement = node.placement
        children = (self.nodes[number].placement for number in node.children)
        goes_on = next((child.new for child in children if child.cause in CONTINUES), ())
        begins = placement.parent is None or placement.cause not in CONTINUES
        return Turn(
            prompt_ids=placement.prompt_ids,
            completion_ids=answer.completion_ids,
            logprobs=answer.logprobs,
            message=node.message,
            observations=goes_on,
            finish_reason="length" if answer.finish_reason == "length" else "stop",
            fork=placement.cause,
            context=placement.shown.messages if begins else (),
            is_constrained=bool(node.grammar),
            grammar=json.dumps(node.grammar) if node.grammar and self.mode == "exact" else "",
            pictures=filled(placement.pictures, {}),
        )

    def _continued(self, shown: Conversation, count: int) -> int | None:
        """The answered node whose conversation is these first `count` messages, of which the last is an assistant's."""
        if not count:
            return None
        reasoning = [
            (place, message["reasoning"]) for place, message in enumerate(shown.messages) if message.get("reasoning")
        ]
        fitting = [
            number
            for number in self.ends.get(shown.name(count), ())
            if all(stripped(text) == stripped(self._reasoning(number, at)) for at, text in reasoning)
        ]
        sent = _ids(shown.messages[count - 1])

        def rank(number: int) -> tuple[bool, bool, int]:
            node = self.nodes[number]
            return _ids(node.message) == sent, not node.children, number

        return max(fitting, key=rank, default=None)

    def _reasoning(self, number: int, place: int) -> Any:
        node = self.nodes[number]
        return node.reasoning[place] if place < len(node.reasoning) else node.message.get("reasoning")

    def _closed(self, number: int, chat: Chat) -> tuple[int, ...]:
        """[P + C] a node's tokens, with the end of turn where the answer was cut off or ended by a stop text."""
        ids = self.nodes[number].ids
        return ids if ids[-1] == chat.end else (*ids, chat.end)

    def _place_text(self, prompt: str | tuple[int, ...], chat: Chat) -> Placement:
        """Of a prompt without messages. It continues the longest node that it begins with."""
        text = prompt if isinstance(prompt, str) else chat.text(prompt)
        parent, rest = None, prompt
        for number, node in enumerate(self.nodes):
            if not node.placement.is_text or node.answer is None:
                continue
            before: Any = node.ids
            if isinstance(prompt, str):
                before = node.placement.shown.opening + chat.text(node.answer.completion_ids)
            if self.length(number) > self.length(parent) and prompt[: len(before)] == before:
                parent, rest = number, prompt[len(before) :]
        added = tuple(chat.tokenizer.encode(rest, add_special_tokens=False)) if isinstance(rest, str) else rest
        ids = (self.nodes[parent].ids if parent is not None else ()) + added
        count = self.prompts[ids, ()]
        reason: Cause = "retry" if count else "plain_text"
        depth, new = 0, tuple[Message, ...]()
        shown = conversation([{"role": "user", "content": text}], chat.tools_text)
        if parent is not None:
            depth = self.nodes[parent].placement.depth + 1
            reason = reason if count or self.nodes[parent].children else ""
            new = ({"role": "user", "content": rest if isinstance(rest, str) else chat.text(added)},)
        size = self.length(parent)
        return Placement(parent, ids, reason, depth, count, size, shown=shown, new=new, is_text=True)


def _ids(message: Message) -> list[Any]:
    """The ids of a message's calls, by which equal answers are told apart."""
    return [call.get("id") for call in message.get("tool_calls") or ()]


def _has_stop(messages: Sequence[Message], stop: str) -> bool:
    """Whether the last words of an assistant end with the stop text, as clients send it back that put it behind them."""
    spoken = (stripped(message.get("content")) for message in reversed(messages) if message["role"] == "assistant")
    return not stop.strip() or next(filter(None, spoken), "").endswith(stop.strip())
