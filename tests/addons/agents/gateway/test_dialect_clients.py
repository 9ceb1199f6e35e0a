"""The official clients, unpatched, against the dialects' own bytes: ids, calls, usage and parsed output come out whole."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from pydantic import BaseModel

from addons.agents.gateway.answers import DIALECTS
from addons.agents.gateway.events import error_event
from addons.agents.gateway.types import BadRequest
from tests.support.canned_gateway import ARGUMENTS, WORDS, CannedGateway, choice, reply

if TYPE_CHECKING:  # where they are used: each process of `pytest -n` imports all test modules
    import anthropic
    import openai

TOOL = {"name": "search", "description": "Find mails.", "parameters": {"type": "object", "properties": {}}}
CHAT_TOOL: Any = {"type": "function", "function": TOOL}
FLAT_TOOL: Any = {"type": "function", "strict": False} | TOOL
BLOCK_TOOL: Any = {"name": "search", "description": "Find mails.", "input_schema": TOOL["parameters"]}
ASK: Any = [{"role": "user", "content": "Where?"}]
CALLED = [("call00000", "search", ARGUMENTS), ("call00001", "search", {})]


class City(BaseModel):
    name: str


def of_openai(gateway: CannedGateway) -> openai.OpenAI:
    import openai

    http = httpx2.Client(transport=gateway.transport())
    return openai.OpenAI(base_url="http://gateway/v1", api_key="key", http_client=http, max_retries=0)


def of_anthropic(gateway: CannedGateway) -> anthropic.Anthropic:
    import anthropic

    http = httpx2.Client(transport=gateway.transport())
    return anthropic.Anthropic(base_url="http://gateway", api_key="key", http_client=http, max_retries=0)


def answering(*choices: Any) -> CannedGateway:
    return CannedGateway(lambda _: reply(*choices))


def calls_of(message: Any) -> list[Any]:
    return [(call.id, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]


@pytest.mark.parametrize("streams", [False, True])
def test_chat_with_several_answers_calls_reasoning_and_logprobs(streams: bool) -> None:
    gateway = answering(choice(calls=2, reasoning="Hm."), choice("", calls=1), choice(finish_reason="length"))
    asked: Any = {"model": "policy", "messages": ASK, "tools": [CHAT_TOOL], "n": 3, "logprobs": True, "top_logprobs": 2}
    chat = of_openai(gateway).chat.completions
    if streams:
        with chat.stream(**asked, stream_options={"include_usage": True}) as stream:
            done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
            completion: Any = stream.current_completion_snapshot
        assert [json.loads(event.arguments) for event in done] == [ARGUMENTS, {}, ARGUMENTS]
    else:
        completion = chat.create(**asked)
    both, calls, cut = completion.choices
    assert (both.message.content, calls_of(both.message)) == (WORDS, CALLED)
    assert both.message.reasoning == "Hm."
    assert (calls.message.content, calls_of(calls.message)) == (None, CALLED[:1])
    assert [made.finish_reason for made in completion.choices] == ["tool_calls", "tool_calls", "length"]
    assert (cut.message.content, cut.message.tool_calls) == (WORDS, None)
    (first, second), usage = both.logprobs.content, completion.usage
    assert (first.token, first.bytes, first.logprob) == ("Na", [78, 97], -0.25)
    assert [top.logprob for top in first.top_logprobs] == [-0.25, -1.5]
    assert (second.bytes, second.logprob) == ([], -9999.0)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (100, 21, 121)
    assert usage.prompt_tokens_details.cached_tokens == 60
    assert (completion.id, gateway.requests[0].n, gateway.requests[0].top_logprobs) == ("chatcmpl-r1", 3, 2)


@pytest.mark.parametrize("streams", [False, True])
def test_chat_parses_an_answer_into_the_clients_class(streams: bool) -> None:
    import openai

    gateway = answering(choice('{"name": "Lima"}'))
    chat = of_openai(gateway).chat.completions
    if streams:
        with chat.stream(model="policy", messages=ASK, response_format=City) as stream:
            parsed = stream.get_final_completion().choices[0].message.parsed
    else:
        parsed = chat.parse(model="policy", messages=ASK, response_format=City).choices[0].message.parsed
    assert parsed == City(name="Lima")
    assert gateway.requests[0].schema == openai.pydantic_function_tool(City)["function"]["parameters"] | {
        "title": "City"
    }


def test_chat_sends_back_what_it_got() -> None:
    """The answer of the first call, sent back by the client's own classes, is the message that was recorded."""
    first = choice("", calls=2)
    gateway = CannedGateway(lambda request: reply(first if len(request.messages) == 1 else choice("Lima.")))
    client = of_openai(gateway)
    history: Any = [*ASK]
    answer = client.chat.completions.create(model="policy", messages=history, tools=[CHAT_TOOL]).choices[0].message
    results = [{"role": "tool", "tool_call_id": call.id, "content": "None."} for call in answer.tool_calls or ()]
    client.chat.completions.create(model="policy", messages=[*history, answer, *results], tools=[CHAT_TOOL])  # pyrefly: ignore[no-matching-overload]
    user, back, *observations = gateway.requests[1].messages
    assert (user, back) == (ASK[0], first.message)
    assert [made["name"] for made in observations] == ["search", "search"]
    assert gateway.requests[0].tools == (CHAT_TOOL,)


@pytest.mark.parametrize("streams", [False, True])
def test_completions(streams: bool) -> None:
    gateway = answering(choice(), choice("", finish_reason="length"))
    asked: Any = {"model": "policy", "prompt": [[1, 2, 3]], "n": 2, "logprobs": 1}
    client = of_openai(gateway).completions
    if streams:
        chunks = list(client.create(**asked, stream=True, stream_options={"include_usage": True}))
        texts = ["".join(c.text for k in chunks for c in k.choices if c.index == index) for index in (0, 1)]
        ends = [c.finish_reason for k in chunks for c in k.choices if c.finish_reason]
        last = next(c for k in chunks for c in k.choices if c.finish_reason)
        usage = chunks[-1].usage
    else:
        made = client.create(**asked)
        texts, ends = [c.text for c in made.choices], [c.finish_reason for c in made.choices]
        last, usage = made.choices[0], made.usage
    assert (texts, ends) == ([WORDS, ""], ["stop", "length"])
    assert last.logprobs is not None
    assert (last.logprobs.tokens, last.logprobs.text_offset) == (["Na", "\ufffd"], [0, 2])
    assert (last.logprobs.token_logprobs, last.logprobs.top_logprobs) == (
        [-0.25, -9999.0],
        [{"Na": -0.25, "N": -1.5}, {}],
    )
    assert usage is not None
    assert (usage.total_tokens, gateway.requests[0].prompt) == (114, (1, 2, 3))


@pytest.mark.parametrize("streams", [False, True])
def test_responses_with_calls_and_the_previous_response(streams: bool) -> None:
    first = choice(calls=2, reasoning="Hm.")
    gateway = CannedGateway(lambda request: reply(first if len(request.messages) == 2 else choice("Lima.")))
    client = of_openai(gateway).responses

    def ask(**fields: Any) -> Any:
        fields |= {"model": "policy", "tools": [FLAT_TOOL], "instructions": "Be short."}
        if not streams:
            return client.create(**fields)
        with client.stream(**fields) as stream:
            return stream.get_final_response()

    answer = ask(input="Where?")
    assert [item.type for item in answer.output] == ["reasoning", "message", "function_call", "function_call"]
    calls = [item for item in answer.output if item.type == "function_call"]
    assert [(item.call_id, item.name, json.loads(item.arguments)) for item in calls] == CALLED
    assert (answer.output_text, answer.status, answer.usage.total_tokens) == (WORDS, "completed", 107)
    results: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "None."} for call in calls]
    by_id = ask(input=results, previous_response_id=answer.id)
    sent = [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in answer.output]
    whole = ask(input=[*ASK, *sent, *results])
    assert by_id.output_text == whole.output_text == "Lima."
    assert gateway.requests[1].messages == gateway.requests[2].messages
    system, user, back, *observations = gateway.requests[1].messages
    assert (system["content"], user, back) == ("Be short.", ASK[0], first.message)
    assert [made["tool_call_id"] for made in observations] == ["call00000", "call00001"]
    ask(input="And now?", previous_response_id=by_id.id)
    assert [made["role"] for made in gateway.requests[3].messages[-2:]] == ["assistant", "user"]
    assert len(gateway.requests[3].messages) == 7


def test_responses_parse_and_cut_short() -> None:
    client = of_openai(answering(choice('{"name": "Lima"}'))).responses
    assert client.parse(model="policy", input="Where?", text_format=City).output_parsed == City(name="Lima")
    cut = of_openai(answering(choice("Li", finish_reason="length"))).responses
    answer = cut.create(model="policy", input="Where?", max_output_tokens=1)
    assert (answer.status, answer.output_text) == ("incomplete", "Li")
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    with cut.stream(model="policy", input="Where?") as stream:
        assert [event.type for event in stream][-1] == "response.incomplete"


@pytest.mark.parametrize("streams", [False, True])
def test_messages_with_calls_and_results(streams: bool) -> None:
    first = choice(calls=2, reasoning="Hm." * 40)
    gateway = CannedGateway(lambda request: reply(first if len(request.messages) == 2 else choice("Lima.", stop="\n")))
    client = of_anthropic(gateway).messages

    def ask(*messages: Any, **fields: Any) -> Any:
        fields |= {"model": "policy", "max_tokens": 4096, "tools": [BLOCK_TOOL], "system": "Be short."}
        if not streams:
            return client.create(messages=messages, **fields)
        with client.stream(messages=messages, **fields) as stream:
            return stream.get_final_message()

    answer = ask(*ASK, thinking={"type": "enabled", "budget_tokens": 1024})
    thinking, text, *calls = answer.content
    assert (thinking.thinking, len(thinking.signature), text.text) == ("Hm." * 40, 64, WORDS)
    assert [(made.id, made.name, made.input) for made in calls] == CALLED
    usage = answer.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (40, 60, 7)
    assert (answer.id, answer.stop_reason, answer.stop_sequence) == ("msg_r1", "tool_use", None)
    results = [{"type": "tool_result", "tool_use_id": made.id, "content": "None."} for made in calls]
    nudge = {"type": "text", "text": "Go on."}
    last = ask(*ASK, {"role": "assistant", "content": answer.content}, {"role": "user", "content": [*results, nudge]})
    assert (last.stop_reason, last.stop_sequence, last.content[0].text) == ("stop_sequence", "\n", "Lima.")
    system, user, back, *observations, nudged = gateway.requests[1].messages
    assert (system["content"], user, back, nudged["content"]) == ("Be short.", ASK[0], first.message, "Go on.")
    assert [(made["tool_call_id"], made["name"]) for made in observations] == [(n, "search") for n, _, _ in CALLED]
    assert gateway.requests[0].tools == (CHAT_TOOL,)
    assert (gateway.requests[0].ignored, gateway.requests[1].ignored) == (("thinking.budget_tokens",), ())
    assert [block.type for block in ask(*ASK).content] == [
        "text",
        "tool_use",
        "tool_use",
    ]  # reasoning was not asked for


def test_messages_parse() -> None:
    gateway = answering(choice('{"name": "Lima"}'))
    answer = of_anthropic(gateway).messages.parse(model="policy", max_tokens=9, messages=ASK, output_format=City)
    assert answer.parsed_output == City(name="Lima")
    assert (gateway.requests[0].schema or {})["required"] == ["name"]


def test_asynchronous_clients_read_the_same_streams() -> None:
    import anthropic
    import openai

    gateway = answering(choice(calls=2))
    http = httpx2.AsyncClient(transport=gateway.transport())
    one = openai.AsyncOpenAI(base_url="http://gateway/v1", api_key="key", http_client=http)
    two = anthropic.AsyncAnthropic(base_url="http://gateway", api_key="key", http_client=http)

    async def ask() -> tuple[Any, Any, Any]:
        async with one.chat.completions.stream(model="policy", messages=ASK, tools=[CHAT_TOOL]) as stream:
            chat = await stream.get_final_completion()
        async with one.responses.stream(model="policy", input="Where?", tools=[FLAT_TOOL]) as stream_2:
            response = await stream_2.get_final_response()
        async with two.messages.stream(model="policy", max_tokens=9, messages=ASK, tools=[BLOCK_TOOL]) as stream_3:
            return chat, response, await stream_3.get_final_message()

    chat, response, message = asyncio.run(ask())
    assert calls_of(chat.choices[0].message) == CALLED
    assert [json.loads(item.arguments) for item in response.output[1:]] == [ARGUMENTS, {}]
    assert [block.input for block in message.content[1:]] == [ARGUMENTS, {}]


def test_a_refusal_reaches_the_client_as_its_own_error() -> None:
    import anthropic
    import openai

    gateway = answering()
    image: Any = [{"type": "image_url", "image_url": {"url": "data:"}}]
    with pytest.raises(openai.BadRequestError) as caught:
        of_openai(gateway).chat.completions.create(model="policy", messages=[{"role": "user", "content": image}])
    assert (caught.value.param, caught.value.code) == ("messages[0].content[0].image_url.url", "invalid_image")
    with pytest.raises(openai.BadRequestError) as caught:
        of_openai(gateway).responses.create(model="policy", input="Go on.", previous_response_id="resp_other")
    assert caught.value.code == "previous_response_not_found"
    with pytest.raises(anthropic.BadRequestError) as refused:
        of_anthropic(gateway).messages.create(model="policy", max_tokens=9, messages=[])
    assert refused.value.body == {
        "type": "error",
        "error": {"type": "invalid_request_error", "message": "messages must not be empty"},
    }


def test_an_error_in_a_stream_reaches_the_client() -> None:
    """After the first bytes there is no status left; each client raises from the event."""
    import anthropic
    import openai

    def broken(request: httpx2.Request) -> httpx2.Response:
        problem = DIALECTS[request.url.path.removeprefix("/v1/")].error(BadRequest("The engine is gone."), 400)
        return httpx2.Response(
            200,
            text=": sampling\n\n" + error_event(problem),
            headers={"content-type": "text/event-stream"},
        )

    http = httpx2.Client(transport=httpx2.MockTransport(broken))
    one = openai.OpenAI(base_url="http://gateway/v1", api_key="key", http_client=http, max_retries=0)
    two = anthropic.Anthropic(base_url="http://gateway", api_key="key", http_client=http, max_retries=0)
    with pytest.raises(openai.APIError, match="engine is gone"):
        list(one.chat.completions.create(model="policy", messages=ASK, stream=True))
    with pytest.raises(openai.APIError, match="engine is gone"):
        list(one.completions.create(model="policy", prompt="a", stream=True))
    with pytest.raises(openai.APIError, match="engine is gone"):
        list(one.responses.create(model="policy", input="a", stream=True))
    with pytest.raises(anthropic.APIStatusError, match="engine is gone"):
        list(two.messages.create(model="policy", max_tokens=9, messages=ASK, stream=True))
