"""The gateway's HTTP with real SDKs and a fake engine: keys, retries, restarts, leases, dialects, errors."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from addons.agents.gateway.answers import AT_ONCE
from addons.agents.gateway.batch import Batch
from addons.agents.gateway.calls import Execution
from addons.agents.gateway.plan import Chats
from addons.agents.gateway.server import Server
from addons.agents.gateway.types import Request
from addons.agents.section import Agents
from environments.base import Scenario
from steps.core.params import Policy
from steps.core.records import Trajectory
from steps.policy.chat import Chat
from steps.sampling.turns import Sampled
from tests.support.plans import plan

KEY = "the gateway's key"
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "",
        "parameters": {"type": "object", "properties": {"country": {"type": "string"}}, "required": ["country"]},
    },
}
ASK: list[Any] = [{"role": "user", "content": "What is the capital of Peru?"}]
CALL = {"type": "function", "function": {"name": "look_up", "arguments": {"country": "Peru"}}}


@pytest.fixture(scope="module")
def chats() -> Chats:
    return Chats(Policy())


class FakeEngine:
    """Answers each prompt with a tool call where it offers a tool and has no answer of one, otherwise with words."""

    def __init__(self, chats: Chats) -> None:
        self.chats, self.log, self.is_held = chats, list[dict[str, Any]](), False
        self.batch: Batch | None = None
        self.told: list[dict[str, Any]] = []
        self.held: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.told.append(message)
        if "sample" in message:
            self.held += message["sample"]
            if not self.is_held:
                asyncio.get_running_loop().call_soon(self.release)

    def release(self) -> None:
        assert self.batch is not None
        results = [self.sample(request) for request in self.held]
        self.held = []
        self.batch.sampled(results)

    def sample(self, request: dict[str, Any]) -> dict[str, Any]:
        chat: Chat = self.chats.of(())
        text = chat.tokenizer.decode(request["ids"])
        wants_tool = "look_up" in text and "<tool_response>" not in text
        said: Any = {"role": "assistant", "content": ""} | (
            {"tool_calls": [CALL]} if wants_tool else {"content": "Lima."}
        )
        ids = self.chats.of([TOOL]).completion_ids(said)[: request["limits"]["max_tokens"]]
        top = [[[token, -0.5]] for token in ids] if request["limits"].get("top_logprobs") else []
        reason = "stop" if ids[-1] == chat.end else "length"
        self.log.append({"prompt": request["ids"], "seed": request["seed"], "ids": ids})
        return Sampled(request["key"], tuple(ids), (-0.5,) * len(ids), reason)._asdict() | {"top": top}


class Table:
    """A gateway with a batch, and a client that plays its first episode."""

    def __init__(self, folder: Path, chats: Chats, episodes: int = 2, **settings: Any) -> None:
        scenarios = [
            Scenario.make("toy", "train", [{"role": "user", "content": f"{place}"}], {}) for place in range(episodes)
        ]
        entries = [
            {"episode": f"001-{place}", "scenario": scenario.model_dump(mode="json"), "attempt": 0}
            for place, scenario in enumerate(scenarios)
        ]
        agents = Agents(**settings.pop("agents", {}))
        self.plan = plan(folder / "journal.sqlite", entries, agents, **settings)
        self.chats, self.server, self.engine = chats, Server(KEY, ["gateway"]), FakeEngine(chats)
        self.start()
        transport = httpx.ASGITransport(self.server.app)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://gateway")

    def start(self) -> None:
        """Begin the batch, or go on with it as after a kill: nothing but the journal is left."""
        self.engine.held = []
        self.engine.batch = self.server.batch = Batch(self.plan, self.chats, self.engine.send)

    @property
    def batch(self) -> Batch:
        assert self.server.batch is not None
        return self.server.batch

    async def control(self, path: str, body: Any = None, key: str = KEY, method: str = "POST") -> httpx.Response:
        return await self.http.request(method, path, json=body or {}, headers={"Authorization": f"Bearer {key}"})

    async def lease(self, count: int = 1) -> list[dict[str, Any]]:
        answer = await self.control("/clients", {"name": "test", "capacity": 8, "task": "toy"})
        client = answer.json()["client"]
        given = (await self.control(f"/clients/{client}/leases", {"free": count, "wait": 0})).json()
        return [lease | {"client": client} for lease in given]

    async def ask(self, lease: dict[str, Any], route: str = "chat/completions", **body: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {lease['api_key']}".encode("latin-1")} | body.pop("headers", {})
        content = {"model": "policy", "messages": ASK} | body
        return await self.http.post(f"/episodes/{lease['episode']}/v1/{route}", json=content, headers=headers)

    async def report(self, lease: dict[str, Any], **body: Any) -> httpx.Response:
        named = {name: lease[name] for name in ("episode", "lease", "api_key")}
        content = named | {"result": {"reward": 1.0}} | body
        return await self.control(f"/clients/{lease['client']}/results", content)

    def trajectory(self, episode: str) -> Trajectory:
        return Trajectory.model_validate(dict(self.batch.journal.trajectories())[episode])


@pytest.fixture
def play(tmp_path: Path, chats: Chats) -> Callable[..., None]:
    def run(test: Callable[[Table], Awaitable[None]], **settings: Any) -> None:
        async def within() -> None:
            table = Table(tmp_path, chats, **settings)
            async with table.http:
                await asyncio.wait_for(test(table), 30)

        asyncio.run(within())

    return run


def test_an_agent_with_a_tool_gives_one_row_with_the_engines_tokens(play: Any) -> None:
    async def test(table: Table) -> None:
        [lease] = await table.lease()
        messages: list[Any] = list(ASK)
        message = (await table.ask(lease, messages=messages, tools=[TOOL])).json()["choices"][0]["message"]
        [call] = message["tool_calls"]
        assert json.loads(call["function"]["arguments"]) == {"country": "Peru"}
        messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "Lima"}]
        answer = (await table.ask(lease, messages=messages, tools=[TOOL])).json()
        assert (answer["choices"][0]["message"]["content"], answer["choices"][0]["finish_reason"]) == ("Lima.", "stop")
        assert (await table.report(lease)).status_code == 200
        trajectory = table.trajectory(lease["episode"])
        [row] = trajectory.flatten()
        log = table.engine.log
        assert row.ids == [*log[1]["prompt"], *log[1]["ids"]]
        assert row.ids[: len(log[0]["prompt"]) + len(log[0]["ids"])] == [*log[0]["prompt"], *log[0]["ids"]]
        assert sum(row.mask) == sum(len(entry["ids"]) for entry in log)
        assert (trajectory.result and trajectory.result.reward, trajectory.stop_reason) == (1.0, "done")

    play(test)


def test_only_the_keys_of_an_execution_open_it(play: Any) -> None:
    async def test(table: Table) -> None:
        one, other = await table.lease(2)
        for wrong in (other["api_key"], KEY, "", "é"):
            assert (await table.ask(one | {"api_key": wrong})).status_code == 401, wrong
        assert (await table.ask(one | {"episode": "001-9"})).status_code == 401, "whether it exists is not said"
        assert (await table.control("/status", method="GET", key=one["api_key"])).status_code == 401
        assert (await table.control("/clients", {"name": "x", "capacity": 1}, key="wrong")).status_code == 401
        assert (await table.ask(one)).status_code == 200
        anthropic = {"x-api-key": one["api_key"], "authorization": ""}
        assert (await table.ask(one, "messages", max_tokens=9, headers=anthropic)).status_code == 200

    play(test)


def test_the_address_of_an_episode_answers_whoever_asks_whether_it_is_there(play: Any) -> None:
    async def test(table: Table) -> None:
        [lease] = await table.lease()
        for episode in (lease["episode"], "001-9"):  # whether it exists is not said
            assert (await table.http.head(f"/episodes/{episode}")).status_code == 200

    play(test)


def test_a_retry_gets_the_same_answer_and_makes_no_second_row(play: Any) -> None:
    async def test(table: Table) -> None:
        [lease] = await table.lease()
        first = (await table.ask(lease)).json()
        assert (await table.ask(lease, headers={"x-stainless-retry-count": "1"})).json() == first
        assert (await table.ask(lease, stream=False)).json()["id"] == first["id"]
        await table.report(lease)
        assert len(table.trajectory(lease["episode"]).turns) == len(table.engine.log) == 1

    play(test)


def test_a_client_that_gave_up_finds_its_answer(play: Any) -> None:
    async def test(table: Table) -> None:
        [lease] = await table.lease()
        table.engine.is_held = True
        asking = asyncio.create_task(table.ask(lease))
        await asyncio.sleep(0.05)
        asking.cancel()
        table.engine.is_held = False
        again = asyncio.create_task(table.ask(lease, headers={"x-stainless-retry-count": "1"}))
        await asyncio.sleep(0.05)
        table.engine.release()
        assert (await again).status_code == 200
        assert len(table.engine.log) == 1

    play(test)


def test_a_killed_gateway_goes_on_where_it_was(play: Any) -> None:
    async def test(table: Table) -> None:
        [lease] = await table.lease()
        messages: list[Any] = list(ASK)
        first = (await table.ask(lease, messages=messages, tools=[TOOL])).json()
        table.start()
        same = (
            await table.ask(lease, messages=messages, tools=[TOOL], headers={"x-stainless-retry-count": "1"})
        ).json()
        assert same == first
        message = first["choices"][0]["message"]
        call = message["tool_calls"][0]
        messages += [message, {"role": "tool", "tool_call_id": call["id"], "content": "Lima"}]
        table.engine.is_held = True
        asking = asyncio.create_task(table.ask(lease, messages=messages, tools=[TOOL]))
        await asyncio.sleep(0.05)
        table.start()  # what was being sampled is lost
        asking.cancel()
        table.engine.is_held = False
        assert (await table.ask(lease, messages=messages, tools=[TOOL])).status_code == 200
        answer = await table.control(
            "/clients",
            {"name": "test", "capacity": 8, "held": [[lease["episode"], lease["lease"]]], "client": lease["client"]},
        )
        assert answer.json()["client"] == lease["client"]
        assert (await table.report(lease)).status_code == 200
        trajectory = table.trajectory(lease["episode"])
        [row] = trajectory.flatten()
        assert len(trajectory.turns) == 2
        assert row.ids[-len(table.engine.log[-1]["ids"]) :] == table.engine.log[-1]["ids"]

    play(test)


def test_the_next_execution_gets_the_answers_of_a_lost_one(play: Any) -> None:
    async def test(table: Table) -> None:
        [lease] = await table.lease()
        first = (await table.ask(lease)).json()
        assert (await table.report(lease, lost=True)).status_code == 200
        assert (await table.ask(lease)).status_code == 401, "its key is no longer valid"
        [again] = await table.lease()
        assert (again["episode"], again["lease"]) == (lease["episode"], 2)
        assert (await table.report(lease)).status_code == 409, "late"
        second = (await table.ask(again)).json()
        assert second["choices"] == first["choices"]
        assert (await table.ask(again, messages=[{"role": "user", "content": "Another?"}])).status_code == 200
        await table.report(again)
        assert len(table.engine.log) == 2
        assert len(table.trajectory(lease["episode"]).turns) == 2

    play(test)


def test_the_batch_is_finished_when_every_episode_has_ended(play: Any) -> None:
    async def test(table: Table) -> None:
        first, second = await table.lease(2)
        await table.report(first, result=None, error="ValueError: no")
        assert not any("finished" in message for message in table.engine.told)
        await table.report(second)
        assert len([message for message in table.engine.told if "finished" in message]) == 1
        assert table.batch.status()["failures"] == {"ValueError: no": 1}
        failed = table.trajectory(first["episode"])
        assert (failed.stop_reason, failed.error, failed.turns) == ("error", "ValueError: no", ())
        assert table.trajectory(second["episode"]).result is not None

    play(test)


def test_what_the_run_decides_is_said(play: Any) -> None:
    async def test(table: Table) -> None:
        [lease] = await table.lease()
        answer = await table.ask(lease, temperature=0.1, top_p=0.5)
        assert answer.headers["x-flywheel-ignored"] == "temperature, top_p"
        assert (await table.control("/status", method="GET")).json()["ignored"] == {"temperature": 1, "top_p": 1}

    play(test)


def test_a_prompt_that_does_not_fit_is_refused_by_name(play: Any) -> None:
    async def test(table: Table) -> None:
        [lease] = await table.lease()
        long = [{"role": "user", "content": "word " * 3000}]
        answer = await table.ask(lease, messages=long)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        await table.report(lease, result=None, error="BadRequestError: context_length_exceeded")
        assert table.trajectory(lease["episode"]).stop_reason == "context"

    play(test)


LONG = "word " * 200_000
LONG_REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "message": ("chat/completions", {"messages": [{"role": "user", "content": LONG}]}),
    "parts": ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]}),
    "tool's answer": (
        "chat/completions",
        {
            "messages": [
                *ASK,
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                },
                {"role": "tool", "tool_call_id": "a", "content": LONG},
            ]
        },
    ),
    "arguments": (
        "chat/completions",
        {
            "messages": [
                *ASK,
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"id": "a", "type": "function", "function": {"name": "f", "arguments": json.dumps({"x": LONG})}}
                    ],
                },
                {"role": "tool", "tool_call_id": "a", "content": "x"},
            ]
        },
    ),
    "tools": ("chat/completions", {"tools": [TOOL | {"function": TOOL["function"] | {"description": LONG}}]}),
    "many messages": ("chat/completions", {"messages": [{"role": "user", "content": "word " * 10}] * 20_000}),
    "text": ("completions", {"messages": None, "prompt": LONG}),
    "ids": ("completions", {"messages": None, "prompt": [5] * 200_000}),
    "input": ("responses", {"input": LONG}),
    "body": ("chat/completions", {"messages": ASK, "metadata": {"x": LONG * 8}}),
    "whole body": ("chat/completions", {"messages": [{"role": "user", "content": LONG * 31}]}),
}


@pytest.mark.parametrize("kind", LONG_REQUESTS)
def test_what_cannot_fit_is_refused_before_it_is_tokenised(play: Any, monkeypatch: Any, kind: str) -> None:
    async def test(table: Table) -> None:
        route, body = LONG_REQUESTS[kind]
        [lease] = await table.lease()
        monkeypatch.setattr("addons.agents.gateway.batch.Batch._placed", None)
        answer = await table.ask(lease, route, **body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded"), answer.text
        monkeypatch.undo()
        await table.report(lease, result=None, error="BadRequestError")
        assert table.trajectory(lease["episode"]).stop_reason == "context"

    play(test)


def test_a_long_prompt_holds_up_no_other_agent(play: Any, monkeypatch: Any) -> None:
    async def test(table: Table) -> None:
        first, second = await table.lease(2)
        placed, gate = Batch._placed, threading.Event()

        def slow(batch: Batch, execution: Execution, request: Request) -> Any:
            if len(request.messages[0]["content"]) > AT_ONCE:
                assert gate.wait(20)
            return placed(batch, execution, request)

        monkeypatch.setattr(Batch, "_placed", slow)
        long = asyncio.create_task(table.ask(first, messages=[{"role": "user", "content": "a" * (AT_ONCE + 1)}]))
        await asyncio.sleep(0.05)
        assert (await table.ask(second)).status_code == 200
        gate.set()
        assert (await long).json()["error"]["code"] == "context_length_exceeded"

    play(test, order="free")


def test_recorded_calls_are_read_when_their_episode_goes_on(play: Any) -> None:
    async def test(table: Table) -> None:
        first, second = await table.lease(2)
        for lease in (first, second):
            assert (await table.ask(lease)).status_code == 200
        table.start()
        executions = table.batch.executions.values()
        assert [each.unread for each in executions] == [1, 1]
        assert [entry["calls"] for entry in table.batch.status()["under_way"]] == [1, 1]
        await table.ask(first, messages=[*ASK, {"role": "user", "content": "And of Chile?"}])
        assert [each.unread for each in executions] == [None, 1]
        held = [[lease["episode"], lease["lease"]] for lease in (first, second)]
        await table.control("/clients", {"name": "test", "capacity": 8, "held": held, "client": first["client"]})
        for lease, turns in ((first, 2), (second, 1)):
            assert (await table.report(lease)).status_code == 200
            assert len(table.trajectory(lease["episode"]).turns) == turns

    play(test, order="free")


def test_lockstep_collects_the_calls_of_all_episodes(play: Any) -> None:
    async def test(table: Table) -> None:
        leases = await table.lease(3)
        later = asyncio.create_task(table.ask(leases[2]))
        await asyncio.sleep(0.05)
        assert table.engine.log == []
        answers = await asyncio.gather(table.ask(leases[1]), table.ask(leases[0]), later)
        assert [answer.status_code for answer in answers] == [200] * 3
        [round_] = [message["sample"] for message in table.engine.told if "sample" in message]
        assert [request["key"] for request in round_] == [1, 2, 3]
        seeds = [request["seed"] for request in round_]
        assert len(set(seeds)) == 3

    play(test, episodes=3, order="lockstep", agents={"clients": 1})


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 400), (b"{", 400), (b"[]", 400), (b"null", 400), (b'{"messages": []}', 400), (b"\xff\xfe", 400),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400), (b"[" * 100_000, 400),
        (b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}', 400),
    ],
)  # fmt: skip
def test_a_broken_request_is_refused_and_the_gateway_goes_on(play: Any, content: bytes, status: int) -> None:
    async def test(table: Table) -> None:
        [lease] = await table.lease()
        headers = {"Authorization": f"Bearer {lease['api_key']}"}
        for route in ("chat/completions", "completions", "responses", "messages"):
            path = f"/episodes/{lease['episode']}/v1/{route}"
            answer = await table.http.post(path, content=content, headers=headers)
            assert answer.status_code == status
            assert answer.json()["error"]["message"]
        assert (await table.ask(lease)).status_code == 200

    play(test)


def test_a_call_that_waits_ends_with_its_execution(play: Any) -> None:
    async def test(table: Table) -> None:
        first, second = await table.lease(2)
        asking = asyncio.create_task(table.ask(first))
        await asyncio.sleep(0.05)  # in lockstep it waits for the second episode
        await table.report(first, lost=True)
        answer = await asyncio.wait_for(asking, 5)
        assert answer.status_code == 400
        assert "is over" in answer.json()["error"]["message"]
        assert second["lease"] == 1

    play(test, order="lockstep")


def test_streams_and_the_other_dialects_by_their_own_packages(play: Any) -> None:
    async def test(table: Table) -> None:
        import anthropic
        import httpx2
        import openai

        [lease] = await table.lease()
        url = f"http://gateway/episodes/{lease['episode']}"
        own: Any = httpx2.AsyncClient(transport=httpx2.ASGITransport(table.server.app))
        client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=lease["api_key"], http_client=own)
        async with client.chat.completions.stream(model="policy", messages=ASK, tools=[TOOL]) as stream:
            async for _ in stream:
                pass
            final = await stream.get_final_completion()
        assert [call.function.name for call in final.choices[0].message.tool_calls or ()] == ["look_up"]
        response = await client.responses.create(model="policy", input="What is the capital of Chile?")
        assert response.output_text == "Lima."
        follow = await client.responses.create(model="policy", input="Sure?", previous_response_id=response.id)
        assert follow.output_text == "Lima."
        claude = anthropic.AsyncAnthropic(base_url=url, api_key=lease["api_key"], http_client=own)
        message = await claude.messages.create(
            model="policy", max_tokens=20, messages=[{"role": "user", "content": "Hello?"}]
        )
        assert [block.text for block in message.content if block.type == "text"] == ["Lima."]
        count = await claude.messages.count_tokens(model="policy", messages=[{"role": "user", "content": "Hello?"}])
        assert count.input_tokens == message.usage.input_tokens
        assert (await client.responses.retrieve(response.id)).output == response.output
        with pytest.raises(openai.NotFoundError, match="is no response of this episode"):
            await client.responses.retrieve("resp_other")
        assert [model.id async for model in client.models.list()] == ["policy"]
        assert (await client.models.retrieve("provider/name")).id == "provider/name"
        assert [model.id async for model in claude.models.list()] == ["policy"]
        assert (await claude.models.retrieve("policy")).display_name == "policy"
        await table.report(lease)
        trajectory = table.trajectory(lease["episode"])
        assert [turn.fork for turn in trajectory.turns][:3] == ["", "sub_agent", ""]
        assert len(trajectory.flatten()) == 3

    play(test)
