"""Pictures in the gateway: what each dialect reads and refuses, and how the token graph tells pictures apart."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from addons.agents.gateway import chat, messages, responses
from addons.agents.gateway.calls import branch_name
from addons.agents.gateway.graph import Graph, Placement
from addons.agents.gateway.journal import Answer
from addons.agents.gateway.plan import Chats
from addons.agents.gateway.types import BadRequest, Request
from environments.base import Message
from environments.kit import pictures
from steps.core.params import Policy
from steps.policy.chat import Chat
from steps.training.contract import breach
from tests.support import seeing

DATA = base64.b64encode(seeing.picture(1)).decode()
URL = f"data:image/png;base64,{DATA}"
NAME = pictures.checked(seeing.picture(1))[0]
CALLED = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}


def of_chat(address: str) -> Any:
    part = {"type": "image_url", "image_url": {"url": address, "detail": "high"}}
    parts = [{"type": "text", "text": "Look: "}, part, {"type": "text", "text": "what?"}]
    history = [{"role": "user", "content": parts}, {"role": "assistant", "content": "", "tool_calls": [CALLED]}]
    return chat, {"messages": [*history, {"role": "tool", "tool_call_id": "c1", "content": [part]}]}


def of_responses(address: str) -> Any:
    part = {"type": "input_image", "image_url": address}
    parts = [{"type": "input_text", "text": "Look: "}, part, {"type": "input_text", "text": "what?"}]
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    output = {"type": "function_call_output", "call_id": "c1", "output": [part]}
    return responses, {"input": [{"role": "user", "content": parts}, call, output]}


def of_messages(address: str) -> Any:
    source = {"type": "base64", "media_type": "image/png", "data": address.rpartition(",")[2]}
    part = {"type": "image", "source": source if address.startswith("data:image") else {"type": "url", "url": address}}
    parts = [{"type": "text", "text": "Look: "}, part, {"type": "text", "text": "what?"}]
    use = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [part]}
    history = [{"role": "user", "content": parts}, {"role": "assistant", "content": [use]}]
    return messages, {"messages": [*history, {"role": "user", "content": [result]}], "max_tokens": 9}


DIALECTS = (of_chat, of_responses, of_messages)


@pytest.mark.parametrize("make", DIALECTS)
def test_every_dialect_reads_pictures_of_users_and_tools(make: Any) -> None:
    dialect, body = make(URL)
    read, bytes_of = pictures.apart(dialect.parse(body).messages)
    assert read[0] == {"role": "user", "content": "Look: what?", "pictures": [{"at": 6, "sha256": NAME}]}
    assert read[2] == {
        "role": "tool",
        "content": "",
        "pictures": [{"at": 0, "sha256": NAME}],
        "tool_call_id": "c1",
        "name": "look",
    }
    assert bytes_of == {NAME: DATA}


@pytest.mark.parametrize("make", DIALECTS)
@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("https://example.org/a.png", "nothing is fetched from an address"),
        ("data:image/png;base64,AAAA", "is none of PNG, JPEG, WEBP, GIF"),
        ("data:image/png;base64,***", "no base64"),
    ],
)
def test_a_picture_that_cannot_be_shown_is_refused_with_its_field(make: Any, address: str, reason: str) -> None:
    dialect, body = make(address)
    with pytest.raises(BadRequest, match=reason) as refusal:
        dialect.parse(body)
    assert refusal.value.code == "invalid_image"
    assert str(refusal.value.param).startswith(("messages[0].content[1].", "input[0].content[1]."))


def test_a_file_that_a_provider_would_keep_is_refused() -> None:
    body = {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]}
    with pytest.raises(BadRequest, match="keeps no files, so send a data URL"):
        responses.parse(body)


def test_pictures_of_other_roles_are_refused() -> None:
    part = {"type": "image_url", "image_url": {"url": URL}}
    for role in ("system", "developer", "assistant"):
        with pytest.raises(BadRequest, match="what is read here is text"):
            chat.parse({"messages": [{"role": role, "content": [part]}, {"role": "user", "content": "hi"}]})


@pytest.fixture(scope="module")
def seer(tmp_path_factory: pytest.TempPathFactory) -> Chat:
    return Chats(seeing.make("qwen3-vl", tmp_path_factory.mktemp("seer") / "base")).of([])


def placed(graph: Graph, seer: Chat, *shown: Message) -> Placement:
    read, bytes_of = pictures.apart(shown)
    return graph.place(Request(messages=read, pictures=bytes_of), seer)


def answered(graph: Graph, seer: Chat, *shown: Message) -> Placement:
    read, bytes_of = pictures.apart(shown)
    request = Request(messages=read, pictures=bytes_of)
    placement = graph.place(request, seer)
    ids = seer.completion_ids({"role": "assistant", "content": "Red."})
    answer = Answer(tuple(ids), tuple(-0.5 for _ in ids), "stop", ())
    graph.add(placement, request, seer, answer, {"role": "assistant", "content": "Red."})
    return placement


RED = {"role": "assistant", "content": "Red."}


def test_a_conversation_with_pictures_continues_its_recorded_ids(seer: Chat) -> None:
    graph = Graph()
    first = answered(graph, seer, seeing.asked(1, "Look: ", "what?"))
    second = answered(graph, seer, seeing.asked(1, "Look: ", "what?"), RED, seeing.asked(2, "And?"))
    assert (second.cause, second.parent) == ("", 0)
    assert second.prompt_ids[: len(first.prompt_ids)] == first.prompt_ids
    assert [each.sha256 for each in second.pictures] == [
        pictures.checked(seeing.picture(number, 40 + 20 * number, 90))[0] for number in (1, 2)
    ]
    assert second.pictures[1].start > len(first.prompt_ids)
    played = graph.trajectory("e", "s", 0, "a")
    [row] = played.flatten()
    assert [each.data for each in row.pictures] == [each.data for each in second.pictures]
    assert all(not each.data for turn in played.turns for each in turn.pictures)
    assert breach(played, [row], seer.end, 10**6) is None
    assert len(played.pictures) == 2


def test_another_picture_of_the_same_size_is_another_conversation(seer: Chat) -> None:
    """Its ids are the same, so that only the picture tells them apart."""
    graph = Graph()
    one, other = (
        {"role": "user"} | pictures.with_pictures([pictures.checked(seeing.picture(number)), "What?"])
        for number in (1, 2)
    )
    first = answered(graph, seer, one)
    again = answered(graph, seer, one)
    second = answered(graph, seer, other)
    assert first.prompt_ids == again.prompt_ids == second.prompt_ids
    assert (again.cause, again.occurrence) == ("retry", 1)
    assert (second.cause, second.occurrence, second.parent) == ("edited", 0, None)
    assert branch_name(second, None, 0) != branch_name(second._replace(pictures=first.pictures), None, 0)
    third = answered(graph, seer, other, RED, {"role": "user", "content": "Sure?"})
    assert (third.cause, third.parent) == ("", 2)
    played = graph.trajectory("e", "s", 0, "a")
    rows = played.flatten()
    assert [[each.sha256 for each in row.pictures] for row in rows] == [
        [first.pictures[0].sha256],
        [first.pictures[0].sha256],
        [second.pictures[0].sha256],
    ]
    assert played.before(3) == 2
    assert breach(played, rows, seer.end, 10**6) is None


def test_a_policy_that_sees_none_answers_with_what_to_do() -> None:
    blind = Chats(Policy()).of([])
    with pytest.raises(BadRequest, match=r"sees no pictures; set policy.base_model to a model of the families Qwen2"):
        placed(Graph(), blind, seeing.asked(1, "What?"))
