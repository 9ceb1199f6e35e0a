"""Finds the recorded answers in what a client sends back.

A client sends an answer back in a form of its own. It may fill in the defaults of a tool's schema, leave out what is null,
write the calls in another order or as messages of their own, put its words behind them, or add the stop text that ended the
answer. An assistant's messages that stand for a recorded answer are replaced by that answer here, so that the request
continues the recorded tokens. An answer is recognised by the ids of its calls, which the gateway made, and otherwise by its
words, and its calls with their arguments, among which only defaults of the tool's schema may have been filled in. What was
really changed (words, a value of an argument, a call) is left as it came.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from addons.agents.gateway.types import assistant
from environments.base import Message

Calls = list[dict[str, Any]]
Defaults = Mapping[str, Mapping[str, Any]]  # of arguments, by tool and name


class Part(NamedTuple):
    """Messages of an assistant read as one, with what tools answered between them."""

    end: int  # the place behind them
    words: str
    calls: Calls
    reasoning: str
    results: tuple[Message, ...]
    is_parted: bool  # by what tools answered


class Recorded(NamedTuple):
    """An answer, and its words with and without the texts that may have ended it."""

    message: Message
    words: frozenset[str]


class Answers:
    """The answers of an execution, as clients may send them back."""

    def __init__(self) -> None:
        self.by_call: dict[str, Recorded] = {}  # by the id of each of its calls
        self.by_text: dict[tuple[str, ...], list[Recorded]] = defaultdict(list)  # by its words, and its calls' names
        self.exact: dict[tuple[str, ...], Recorded] = {}  # the first, by its words, and its calls with their arguments
        self.most_calls = 0

    def add(self, answer: Message, stops: Sequence[str] = ()) -> None:
        """Note an answer, and the texts that may have ended it."""
        calls = answer.get("tool_calls") or ()
        text = str(answer["content"])
        own = Recorded(answer, frozenset({text.strip(), *((text + stop).strip() for stop in stops)}))
        self.most_calls = max(self.most_calls, len(calls))
        self.by_call |= {call["id"]: own for call in calls if "id" in call}
        for words in own.words:
            self.by_text[words, *_names(calls)].append(own)
            self.exact.setdefault((words, *_written(calls)), own)

    def recognised(self, messages: Sequence[Message], tools: Sequence[dict[str, Any]] = ()) -> list[Message]:
        """The messages, with recorded answers in the place of an assistant's that stand for them; `tools` of the request."""
        made: list[Message] = []
        place = 0
        defaults = {tool["function"]["name"]: _defaults(tool["function"].get("parameters")) for tool in tools}
        while place < len(messages):
            part = self._answer(messages, place, defaults) if messages[place]["role"] == "assistant" else None
            if part is None:
                made.append(messages[place])
                place += 1
                continue
            place = part.end
            while not part.results and place < len(messages) and _is_thought(messages[place]):
                part = part._replace(reasoning=part.reasoning or messages[place].get("reasoning") or "")
                place += 1
            made += [assistant(part.words, part.reasoning, part.calls), *part.results]
        return made

    def _answer(self, messages: Sequence[Message], place: int, defaults: Defaults) -> Part | None:
        """The recorded answer that begins here; None where there is none."""
        parts = []
        for part in _parts(messages, place, self.most_calls + 2):
            parts.append(part)
            own = self.by_call.get(str(part.calls[0].get("id"))) if part.calls else None
            if own is not None and (same := self._same(part, own)) is not None:
                return same
        for part in sorted(parts, key=lambda part: (part.is_parted, 0 if part.is_parted else -part.end)):
            words = part.words.strip()
            exact = self.exact.get((words, *_written(part.calls)))
            for own in [exact] if exact else self.by_text.get((words, *_names(part.calls)), ()):
                if (same := self._same(part, own, defaults)) is not None:
                    return same
        return None

    @staticmethod
    def _same(part: Part, own: Recorded, defaults: Defaults | None = None) -> Part | None:
        """The part with the answer's words, and its calls in their order with the arguments that were recorded; None where
        the two differ. Without `defaults`, for calls with the gateway's ids, any argument may have been added."""
        recorded: Calls = own.message.get("tool_calls") or []
        if part.words.strip() not in own.words or len(part.calls) != len(recorded):
            return None
        pairs: dict[int, dict[str, Any]] = {}  # the client's call by the place of the recorded one

        def stands_for(given: dict[str, Any], call: dict[str, Any]) -> bool:
            return _stands_for(given, call, defaults)

        for fits in (_has_id, _is_equal, stands_for):  # the surest sign first
            left = [given for given in part.calls if not any(given is taken for taken in pairs.values())]
            for place, call in enumerate(recorded):
                if place not in pairs and (given := next((each for each in left if fits(each, call)), None)):
                    pairs[place] = given
                    left = [each for each in left if each is not given]
        if len(pairs) < len(recorded) or not all(stands_for(pairs[place], call) for place, call in enumerate(recorded)):
            return None
        calls = [_as_recorded(pairs[place], call) for place, call in enumerate(recorded)]
        return part._replace(words=str(own.message["content"]), calls=calls)


def _parts(messages: Sequence[Message], place: int, most: int) -> Iterator[Part]:
    """The assistant's message here alone, and with each further one as far as only tools answer between them."""
    words: list[str] = []
    calls: Calls = []
    results: list[Message] = []
    reasoning = ""
    for at in range(place, len(messages)):
        message = messages[at]
        if message["role"] == "tool":
            results.append(message)
            continue
        if message["role"] != "assistant" or not most:
            return
        most -= 1
        words += [str(message["content"])] if stripped(message.get("content")) else []
        calls = [*calls, *(message.get("tool_calls") or ())]
        reasoning = reasoning or message.get("reasoning") or ""
        end = next((far for far in range(at + 1, len(messages)) if messages[far]["role"] != "tool"), len(messages))
        behind = (*results, *messages[at + 1 : end])
        yield Part(end, "".join(words), calls, reasoning, behind, bool(results))


def _is_thought(message: Message) -> bool:
    """Whether an assistant's message has no words and no calls: its reasoning came as a message of its own, or nothing."""
    return message["role"] == "assistant" and not (stripped(message.get("content")) or message.get("tool_calls"))


def stripped(text: Any) -> str:
    return str(text or "").strip()


def _names(calls: Sequence[dict[str, Any]]) -> list[str]:
    return sorted(call["function"]["name"] for call in calls)


def _written(calls: Sequence[dict[str, Any]]) -> list[str]:
    functions = [call["function"] for call in calls]
    return sorted(f"{each['name']} {json.dumps(each['arguments'], sort_keys=True)}" for each in functions)


def _has_id(given: dict[str, Any], recorded: dict[str, Any]) -> bool:
    return given.get("id") is not None and given["id"] == recorded.get("id")


def _is_equal(given: dict[str, Any], recorded: dict[str, Any]) -> bool:
    ours, theirs = recorded["function"], given["function"]
    return bool(theirs["name"] == ours["name"] and theirs["arguments"] == ours["arguments"])


def _stands_for(given: dict[str, Any], recorded: dict[str, Any], defaults: Defaults | None) -> bool:
    ours, theirs = recorded["function"], given["function"]
    if theirs["name"] != ours["name"] or not fills(theirs["arguments"], ours["arguments"]):
        return False
    if defaults is None or not isinstance(theirs["arguments"], dict):
        return True
    added = {name: value for name, value in theirs["arguments"].items() if name not in ours["arguments"]}
    own = defaults.get(ours["name"], {})
    return all(value is None or (name in own and own[name] == value) for name, value in added.items())


def _defaults(parameters: Any) -> dict[str, Any]:
    """The defaults of a tool's arguments, by its schema."""
    properties = parameters.get("properties") if isinstance(parameters, dict) else None
    listed = properties.items() if isinstance(properties, dict) else ()
    return {name: schema["default"] for name, schema in listed if isinstance(schema, dict) and "default" in schema}


def _as_recorded(given: dict[str, Any], recorded: dict[str, Any]) -> dict[str, Any]:
    """A call with the recorded arguments, the client's id, and the client's own text of the arguments where it differs."""
    function, own = given["function"], recorded["function"]
    if function["arguments"] == own["arguments"]:
        return given
    return given | {"function": own | {"written": function.get("written") or json.dumps(function["arguments"])}}


def fills(given: Any, recorded: Any) -> bool:
    """Whether arguments are those that were recorded, with more beside them, or without what was null."""
    if isinstance(given, list) and isinstance(recorded, list):
        return len(given) == len(recorded) and all(map(fills, given, recorded))
    if not isinstance(given, dict) or not isinstance(recorded, dict):
        return bool(given == recorded)
    return all(fills(given[name], value) if name in given else value is None for name, value in recorded.items())
