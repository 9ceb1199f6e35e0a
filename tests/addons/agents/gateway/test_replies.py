"""What of a sampled answer a client gets, and what it does when the client sends it back in an unusual form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from addons.agents.gateway import chat as dialect
from addons.agents.gateway import fields, replies
from addons.agents.gateway.graph import Graph
from addons.agents.gateway.journal import Answer
from addons.agents.gateway.plan import Chats
from addons.agents.gateway.types import BadRequest, Request
from environments.base import Message
from steps.core.params import Policy
from steps.policy.chat import Chat
from tests.support.templates import FAMILIES, tokenizer

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "",
        "parameters": {
            "type": "object",
            "properties": {"country": {"type": "string"}, "limit": {"type": "integer", "default": 9}},
        },
    },
}
ASK: Message = {"role": "user", "content": "What is the capital of Peru?"}
SCHEMA = {"type": "object"}


@pytest.fixture(scope="module")
def chat() -> Chat:
    return Chats(Policy()).of([TOOL])


def sampled(chat: Chat, text: str, *, end: int | None = None, logprobs: bool = True) -> Answer:
    ids = (*chat._encode(text), chat.end if end is None else end)
    return Answer(ids, (-0.5,) * len(ids) if logprobs else (), "stop")


def read(chat: Chat, text: str, mode: Any = "exact", **asked: Any) -> Message:
    more: dict[str, Any] = {"tools": (TOOL,), **asked}
    request = Request(messages=(ASK,), **more)
    return replies.read(sampled(chat, text), request, chat, "x", mode).message


def call(**arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "look_up", "arguments": {json.dumps(arguments)}}}\n</tool_call>'


@pytest.fixture(scope="module")
def thinker() -> Chat:
    """The chat of a policy that reasons, with a tool."""
    return Chat(tokenizer(FAMILIES["qwen3"]), [TOOL])


def test_json_under_a_grammar_is_what_a_policy_that_reasons_says(thinker: Chat) -> None:
    """Its parser takes words without an end of reasoning for reasoning, and a grammar leaves no room for one."""
    assert read(thinker, '{"a":1}', schema=SCHEMA) == {"role": "assistant", "content": '{"a":1}'}
    assert read(thinker, call(country="Peru"), schema=SCHEMA)["tool_calls"][0]["function"]["name"] == "look_up"
    said = read(thinker, '<think>\nhm\n</think>\n\n{"a":1}', "free", schema=SCHEMA)
    assert (said["reasoning"], said["content"]) == ("hm", '{"a":1}')


def test_without_a_choice_of_tools_reasoning_is_still_apart(thinker: Chat) -> None:
    said = read(thinker, "<think>\nhm\n</think>\n\nLima", tool_choice="none")
    assert (said["reasoning"], said["content"]) == ("hm", "Lima")


def test_a_schema_beside_tools_leaves_the_calls(chat: Chat, thinker: Chat) -> None:
    limits = replies.limits(Request(messages=(ASK,), tools=(TOOL,), schema=SCHEMA), chat, 8)
    kinds = [each["type"] for each in json.loads(limits["tag"])["format"]["elements"]]
    assert (kinds, "schema" in limits) == (["json_schema", "tag"], False)
    for changed in ({"tools": ()}, {"tool_choice": "none"}):
        more: dict[str, Any] = {"tools": (TOOL,), "schema": SCHEMA, **changed}
        request = Request(messages=(ASK,), **more)
        assert set(replies.limits(request, chat, 8)) == {"max_tokens", "stop", "schema"}
    other = Chat(tokenizer(FAMILIES["llama3.1"]), [TOOL])
    with pytest.raises(BadRequest, match=r"response_format: beside tools .* set rollout\.grammar: free"):
        replies.limits(Request(messages=(ASK,), tools=(TOOL,), schema=SCHEMA), other, 8)


@pytest.mark.parametrize(
    "arguments", ['"Peru"', "null", "[1]", "3", '"{\\"country\\": 1}"', f'{{"limit": {"9" * 320}}}']
)
def test_a_call_that_could_not_be_sent_back_is_words(chat: Chat, arguments: str) -> None:
    """The gateway refuses such arguments, and the episode would end without a score."""
    text = f'<tool_call>\n{{"name": "look_up", "arguments": {arguments}}}\n</tool_call>'
    assert read(chat, text) == {"role": "assistant", "content": text}


def test_another_end_token_is_not_in_the_words(chat: Chat) -> None:
    end = chat.tokenizer.eos_token_id
    answer = sampled(chat, '{"a":1}', end=end)
    request = Request(messages=(ASK,), tools=(TOOL,))
    assert replies.read(answer, request, chat, "x").message["content"] == '{"a":1}'


def test_logprobs_of_a_greedy_policy_are_asked_for(chat: Chat) -> None:
    """The engine has none otherwise, and every token would seem certain."""
    request = Request(messages=(ASK,), top_logprobs=0)
    assert replies.limits(request, chat, 8)["top_logprobs"] == 1
    answer = sampled(chat, "Hi", logprobs=False)
    answer = answer._replace(top=tuple(((token, -0.25),) for token in answer.completion_ids))
    tokens = replies.read(answer, request, chat, "x").tokens
    assert [(each.logprob, each.top) for each in tokens] == [(-0.25, ())] * len(answer.completion_ids)


# --- What comes back


def talk(chat: Chat, graph: Graph, messages: list[Message], text: str, **more: Any) -> Message:
    """Ask, and the answer as the client has it."""
    request = Request(messages=tuple(messages), tools=(TOOL,), **more)
    placement = graph.ask(graph.place(request, chat))
    answer = sampled(chat, text)
    message = replies.read(answer, request, chat, str(placement.number)).message
    graph.add(placement, request, chat, answer, message)
    return message


def result(name: str, content: str) -> Message:
    return {"role": "tool", "tool_call_id": name, "name": "look_up", "content": content}


def renamed(message: Message, name: str, **arguments: Any) -> Message:
    """The answer as a client sends it that writes ids of its own, and may change arguments."""
    [own] = message["tool_calls"]
    function = own["function"] | {"arguments": own["function"]["arguments"] | arguments}
    return message | {"tool_calls": [own | {"id": name, "function": function}]}


def test_calls_with_a_clients_own_ids_keep_their_arguments(chat: Chat) -> None:
    """A recorded call without arguments is not what a later one with some stands for."""
    graph, history = Graph(), [ASK]
    for place, arguments in enumerate(({}, {"country": "Peru"}, {"country": "Chile"})):
        said = renamed(talk(chat, graph, history, call(**arguments)), f"own-{place}")
        history += [said, result(f"own-{place}", "?")]
    talk(chat, graph, history, "Lima.")
    assert [node.placement.cause for node in graph.nodes] == [""] * 4
    assert [row.parent for row in (node.placement for node in graph.nodes)] == [None, 0, 1, 2]


def test_defaults_may_be_filled_in_and_nothing_else(chat: Chat) -> None:
    for changed, cause in (({"limit": 9}, "json_rewritten"), ({"country": "Chad"}, "edited")):
        graph = Graph()
        said = renamed(talk(chat, graph, [ASK], call()), "own", **changed)
        talk(chat, graph, [ASK, said, result("own", "?")], "Lima.")
        assert graph.nodes[1].placement.cause == cause


def test_an_example_is_no_answer(chat: Chat) -> None:
    """Of a scenario's own messages, whose call has the name of one that was sampled and other arguments."""
    shown = {"id": "ex1", "type": "function", "function": {"name": "look_up", "arguments": {"country": "Chad"}}}
    example: list[Message] = [
        {"role": "user", "content": "And of Chad?"},
        {"role": "assistant", "content": "", "tool_calls": [shown]},
        result("ex1", "N'Djamena"),
        {"role": "assistant", "content": "N'Djamena."},
    ]
    graph = Graph()
    said = talk(chat, graph, [*example, ASK], call())
    name = said["tool_calls"][0]["id"]
    talk(chat, graph, [*example, ASK, said, result(name, "?")], "Lima.")
    assert [node.placement.cause for node in graph.nodes] == ["", ""]
    assert "Chad" in chat.text(graph.nodes[1].placement.prompt_ids)


def test_the_end_of_turn_as_a_stop_text_ends_nothing_else(chat: Chat) -> None:
    graph, history = Graph(), [ASK]
    for _ in range(3):
        history += [talk(chat, graph, history, "Lima", stop=(chat.mark, "<|")), {"role": "user", "content": "Go on."}]
    assert [node.placement.cause for node in graph.nodes] == ["", "", ""]


def test_of_two_equal_answers_the_one_that_was_sent_back_is_continued(chat: Chat) -> None:
    graph = Graph()
    request = Request(messages=(ASK,), tools=(TOOL,), n=2)
    first = graph.place(request, chat)
    placements = [graph.ask(first), graph.ask(first._replace(cause="alternative"))]
    made = []
    for placement, text in zip(placements, (call(country="Peru"), f"{call(country='Peru')} "), strict=True):
        answer = sampled(chat, text)
        made.append(replies.read(answer, request, chat, str(placement.number)).message)
        graph.add(placement, request, chat, answer, made[-1])
    for place in (0, 1):
        name = made[place]["tool_calls"][0]["id"]
        asked = Request(messages=(ASK, made[place], result(name, "Lima")), tools=(TOOL,))
        assert graph.place(asked, chat).parent == place


# --- Options that nobody reads


def test_what_is_false_may_be_ignored_and_is_named() -> None:
    asked = {"enable_thinking": False, "do_sample": False, "background": False, "unknown": [], "other": 0}
    assert fields.ignored(asked, ()) == ("enable_thinking", "do_sample", "other")


def test_a_schema_of_any_json_counts_too() -> None:
    form = {"type": "json_object", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}
    assert dialect.schema(form, "response_format", "json_schema") == form["schema"]
    assert dialect.schema({"type": "json_object"}, "response_format", "json_schema") == {"type": "object"}


def test_an_answer_that_was_begun_is_refused() -> None:
    begun = {"role": "assistant", "content": "Sure: ", "prefix": True}
    with pytest.raises(BadRequest, match=r"messages\[1\]\.prefix cannot be honoured"):
        dialect.parse({"messages": [ASK, begun]})
