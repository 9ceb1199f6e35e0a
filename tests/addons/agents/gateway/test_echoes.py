"""What clients send back of an answer continues the recorded tokens, in each of the forms in which they write it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from addons.agents.gateway import chat, messages, responses
from addons.agents.gateway.graph import CONTINUES, Graph
from addons.agents.gateway.journal import Answer
from addons.agents.gateway.types import Choice, Reply, Request
from environments.base import Message
from steps.core.params import Policy
from steps.policy.chat import Chat
from steps.policy.loading import load_tokenizer

Body = dict[str, Any]
PARAMETERS = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "share": {"type": "number"},
        "note": {"type": ["string", "null"]},
        "edits": {"type": "array", "items": {"type": "object"}},
        "replace_all": {"type": "boolean", "default": False},
    },
}
NAMES = ("edit_file", "read_file")
WORDS = "I look at the budget in the naïve file 東京 first then next".split()
STOP = "\nObservation:"


@cache
def template() -> Chat:
    tools = [
        {"type": "function", "function": {"name": name, "description": "", "parameters": PARAMETERS}} for name in NAMES
    ]
    return Chat(load_tokenizer(Policy()), tools)


def choice(draw: Random, turn: int) -> Choice:
    """An answer with words, reasoning and calls by chance; some were ended by a stop text."""
    count = draw.choice([0, 0, 1, 1, 2, 3])
    words = " ".join(draw.choices(WORDS, k=draw.randrange(0 if count else 1, 5)))
    words += f" {turn}" if words else ""
    message: Message = {"role": "assistant", "content": words}
    if draw.random() < 0.3:
        message["reasoning"] = " ".join(draw.choices(WORDS, k=3))
    calls = []
    for place in range(count):
        arguments: Body = {"path": f"{draw.choice(WORDS)} {turn}.{place}", "share": draw.choice([1.0, 0.5])}
        if draw.random() < 0.5:
            arguments["note"] = None
        if draw.random() < 0.5:
            arguments["edits"] = [{"old": draw.choice(WORDS), "at": None}]
        function = {"name": draw.choice(NAMES), "arguments": arguments}
        calls.append({"id": f"call_{turn}_{place}", "type": "function", "function": function})
    stop = STOP if words and not calls and draw.random() < 0.5 else None
    return Choice(
        message | ({"tool_calls": calls} if calls else {}), words, "tool_calls" if calls else "stop", stop=stop
    )


def rewritten(draw: Random, arguments: Body) -> Body:
    """Arguments as a client's own types write them: defaults filled in, nulls left out or added, numbers, order."""
    made = copy.deepcopy(arguments)
    if draw.random() < 0.5:
        made["replace_all"] = False
    if draw.random() < 0.5 and made.get("note", "") is None:
        del made["note"]
    for edit in made.get("edits", ()):
        if draw.random() < 0.5:
            del edit["at"]
        edit["count"] = 1
    if draw.random() < 0.5 and float(made["share"]).is_integer():
        made["share"] = int(made["share"])
    return dict(reversed(made.items())) if draw.random() < 0.5 else made


def as_text(draw: Random, arguments: Body) -> str:
    if draw.random() < 0.3:
        return json.dumps(arguments, ensure_ascii=False)
    return json.dumps(rewritten(draw, arguments), separators=draw.choice([(",", ":"), (", ", ": ")]))


def shuffled(draw: Random, parts: list[Any]) -> list[Any]:
    return draw.sample(parts, len(parts)) if draw.random() < 0.5 else parts


def words_of(draw: Random, made: Choice) -> str:
    """An answer's words, by chance with the stop text and with white space around them."""
    text = str(made.message["content"]) + (STOP if made.stop and draw.random() < 0.5 else "")
    return text + draw.choice(["", "\n", " "]) if text else text


# --- How clients of each dialect write a turn: the answer, and what its tools gave


def chat_turn(draw: Random, reply: Reply, body: Body, results: dict[str, str]) -> list[Body]:
    made = reply.choices[0]
    written = chat.render(reply, body)["choices"][0]["message"]
    calls = [
        call | {"function": call["function"] | {"arguments": as_text(draw, own["function"]["arguments"])}}
        for call, own in zip(written.get("tool_calls", ()), made.message.get("tool_calls", ()), strict=True)
    ]
    prefix = draw.choice(["", "", "own_"])  # of ids; without the gateway's, calls are told apart by their order alone
    renamed = {call["id"]: prefix + call["id"] for call in calls}
    calls = [call | {"id": renamed[call["id"]]} for call in (calls if prefix else shuffled(draw, calls))]
    text = words_of(draw, made)
    content: Any = draw.choice([text, [{"type": "text", "text": text}]]) if text else draw.choice([None, ""])
    message: Body = {"role": "assistant", "content": content}
    if draw.random() < 0.5:
        message |= {"refusal": None, "annotations": [], "audio": None, "function_call": None, "name": "agent"}
    if made.message.get("reasoning") and draw.random() < 0.5:
        message[draw.choice(["reasoning", "reasoning_content"])] = made.message["reasoning"]
    answers = [{"role": "tool", "tool_call_id": renamed[name], "content": given} for name, given in results.items()]
    way = draw.randrange(3) if calls else 0
    if way == 1 and text:  # words and calls as messages of their own
        return [message, {"role": "assistant", "content": None, "tool_calls": calls}, *shuffled(draw, answers)]
    if way == 2:  # each call with what its tool gave
        by_id = {entry["tool_call_id"]: entry for entry in answers}
        made_of = [message | {"tool_calls": calls[:1]}, by_id[calls[0]["id"]]]
        for call in calls[1:]:
            made_of += [{"role": "assistant", "content": "", "tool_calls": [call]}, by_id[call["id"]]]
        return made_of
    return [message | ({"tool_calls": calls} if calls else {}), *shuffled(draw, answers)]


def messages_turn(draw: Random, reply: Reply, body: Body, results: dict[str, str]) -> list[Body]:
    made = reply.choices[0]
    blocks = messages.render(reply, body)["content"]
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = rewritten(draw, block["input"])
        elif block["type"] == "text":
            block["text"] = words_of(draw, made)
            block |= draw.choice([{}, {"citations": None}])
        if draw.random() < 0.3 and block["type"] != "thinking":
            block["cache_control"] = {"type": "ephemeral"}
    if draw.random() < 0.5:
        blocks = [block for block in blocks if block["type"] != "thinking"]
    blocks = shuffled(draw, blocks)
    answers = [
        {"type": "tool_result", "tool_use_id": name, "content": draw.choice([given, [{"type": "text", "text": given}]])}
        for name, given in shuffled(draw, list(results.items()))
    ]
    groups = [[block] for block in blocks] if draw.random() < 0.3 else [blocks]
    sent: list[Body] = [{"role": "assistant", "content": group} for group in groups]
    if len(blocks) == 1 and blocks[0]["type"] == "text":
        sent[0]["content"] = blocks[0]["text"]
    if draw.random() < 0.3:
        return [*sent, *({"role": "user", "content": [answer]} for answer in answers)]
    return [*sent, {"role": "user", "content": answers}] if answers else sent


def responses_turn(draw: Random, reply: Reply, body: Body, results: dict[str, str]) -> list[Body]:
    made = reply.choices[0]
    given = {call["id"]: call["function"]["arguments"] for call in made.message.get("tool_calls", ())}
    items = [
        item for item in responses.render(reply, body)["output"] if item["type"] != "reasoning" or draw.random() < 0.5
    ]
    answers = {
        name: {"type": "function_call_output", "call_id": name, "output": result} for name, result in results.items()
    }
    sent: list[Body] = []
    thoughts = [item for item in items if item["type"] == "reasoning"]
    others = [item for item in items if item["type"] != "reasoning"]
    has_ids = bool(body["store"])
    for item in thoughts + (shuffled(draw, others) if has_ids else others):
        if item["type"] == "message":
            text = words_of(draw, made)
            sent.append(item | {"content": [{"type": "output_text", "text": text}]})
            if not has_ids:
                sent[-1] = draw.choice([sent[-1], {"role": "assistant", "content": text}])
        elif item["type"] == "function_call":
            sent.append(item | {"arguments": as_text(draw, given[item["call_id"]])})
        else:
            sent.append(item | {"encrypted_content": None, "content": None})
        dropped = ("status",) if has_ids else ("id", "status")
        sent[-1] = {field: value for field, value in sent[-1].items() if field not in dropped}
        if has_ids and draw.random() < 0.3:
            sent[-1] = {"type": "item_reference", "id": item["id"]}
        if item["type"] == "function_call" and draw.random() < 0.5:  # what the tool gave, right behind its call
            sent.append(answers.pop(item["call_id"]))
    return [*sent, *shuffled(draw, list(answers.values()))]


TURNS: dict[str, tuple[Any, Callable[[Random, Reply, Body, dict[str, str]], list[Body]]]] = {
    "chat": (chat, chat_turn),
    "messages": (messages, messages_turn),
    "responses": (responses, responses_turn),
}


@pytest.mark.parametrize("name", TURNS)
@given(draw=st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_whatever_form_an_answer_comes_back_in_its_tokens_are_continued(name: str, draw: Random) -> None:
    """Random conversations: at each request the whole history is written anew, in other forms."""
    dialect, turn = TURNS[name]
    graph, texts = Graph(), template()
    turns: list[tuple[Reply, Any, Any, Body]] = []
    keeps_ids = draw.random() < 0.5  # of items
    for number in range(4):
        history: list[Body] = [{"role": "user", "content": "What is the budget?"}]
        for reply, body, results, question in turns:
            history += [*turn(draw, reply, body, results), *([question] if question else [])]
        body = {"thinking": {"type": "adaptive"}, "max_tokens": 9} if name == "messages" else {"store": keeps_ids}
        if name != "responses":
            body |= {"stop_sequences" if name == "messages" else "stop": [STOP]}
        body |= {"input" if name == "responses" else "messages": history}
        request = parsed(dialect, body, turns)
        placement = graph.ask(graph.place(request._replace(tools=tuple(texts.tools)), texts))
        parent = number - 1 if number else None
        assert (placement.parent, placement.cause in CONTINUES) == (parent, True), (placement.cause, history)
        if parent is not None:
            assert placement.prompt_ids[: graph.length(parent)] == graph.nodes[parent].ids
        answer = choice(draw, number)
        answer = answer._replace(stop=None) if name == "responses" else answer
        ids = (7, number, texts.end)
        graph.add(placement, request, texts, Answer(ids, (-0.5,) * len(ids), "stop"), answer.message)
        results = {call["id"]: " ".join(draw.choices(WORDS, k=2)) for call in answer.message.get("tool_calls", ())}
        question = {} if results else {"role": "user", "content": "And then?"}
        turns.append((Reply(f"r{number}", 0, "policy", (answer,), 1), body, results, question))


def parsed(dialect: Any, body: Body, turns: list[Any]) -> Request:
    if dialect is not responses:
        return dialect.parse(json.loads(json.dumps(body)))
    return responses.parse(
        json.loads(json.dumps(body)), responses.Recorded((before, reply) for reply, before, *_ in turns)
    )
