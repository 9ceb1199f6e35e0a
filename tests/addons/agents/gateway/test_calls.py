"""Which request is asked again, and which is new; in which order calls are sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest

from addons.agents.gateway.answers import Rounds
from addons.agents.gateway.calls import Asked, Call, Execution, branch_name, recorded
from addons.agents.gateway.graph import Placement
from addons.agents.gateway.journal import Entry
from addons.agents.gateway.types import BadRequest, Cause, Reply, Request

REPLY = Reply("id", 1, "policy", (), 3)
CHAT: Any = None
GRAPH: Any = None


class Connection:
    """A fake connection of a client."""

    def __init__(self) -> None:
        self.is_closed = False

    async def is_disconnected(self) -> bool:
        return self.is_closed


def asked(text: str, key: str | None = None, is_retry: bool | None = None) -> Asked:
    return Asked("chat/completions", {"messages": [{"role": "user", "content": text}]}, key, is_retry)


class Table:
    """An execution that opens a call for each new request."""

    def __init__(self) -> None:
        self.execution = Execution("e", 0, 1, "key", GRAPH)

    async def ask(self, request: Asked, connection: Connection | None = None) -> Call:
        call = await self.execution.find(request, request.digest())
        if call is None:
            call = Call(self.execution, len(self.execution.calls), request, request.digest(), Request(), CHAT, [])
            self.execution.open(call)
        if connection:
            call.waiters.append(connection)
        return call

    @staticmethod
    def answer(call: Call, is_delivered: bool = True) -> None:
        call.reply.set_result(REPLY)
        call.is_delivered = is_delivered


def run(test: Any) -> None:
    asyncio.run(test(Table()))


def test_a_retry_by_header_is_the_same_call() -> None:
    async def test(table: Table) -> None:
        waiting = Connection()
        first = await table.ask(asked("a"), waiting)
        assert await table.ask(asked("a", is_retry=True)) is first, (
            "the SDK gave up, though its connection is still open"
        )
        table.answer(first)
        assert await table.ask(asked("a", is_retry=True)) is first
        await table.ask(asked("b"))
        assert await table.ask(asked("a", is_retry=True)) is first, "even later"

    run(test)


def test_a_client_that_went_away_finds_its_answer() -> None:
    async def test(table: Table) -> None:
        connection = Connection()
        first = await table.ask(asked("a"), connection)
        connection.is_closed = True
        assert await table.ask(asked("a")) is first, "while it is sampled"
        table.answer(first, is_delivered=False)
        assert await table.ask(asked("a")) is first, "afterwards"

    run(test)


def test_the_same_body_is_a_retry_until_the_agent_goes_on() -> None:
    async def test(table: Table) -> None:
        first = await table.ask(asked("a"))
        table.answer(first)
        assert await table.ask(asked("a")) is first, "the answer may have been lost on the way"
        table.answer(await table.ask(asked("b")))
        again = await table.ask(asked("a"))
        assert again is not first, "it had the answer, for it went on"
        assert await table.ask(asked("c")) not in (first, again)

    run(test)


def test_a_client_that_counts_its_retries_gets_another_answer() -> None:
    """As the SDKs of OpenAI and Anthropic, and all that is built on them, when an agent asks until an answer fits."""

    async def test(table: Table) -> None:
        first = await table.ask(asked("a", is_retry=False))
        assert await table.ask(asked("a", is_retry=True)) is first, "while it is sampled"
        table.answer(first)
        second = await table.ask(asked("a", is_retry=False))
        assert second is not first
        table.answer(second, is_delivered=False)
        assert await table.ask(asked("a", is_retry=False)) is second, "that answer never arrived"

    run(test)


def test_the_same_body_at_the_same_time_is_as_many_calls() -> None:
    async def test(table: Table) -> None:
        connections = [Connection() for _ in range(3)]
        calls = [await table.ask(asked("a"), connection) for connection in connections]
        assert len(set(calls)) == 3
        connections[1].is_closed = True
        assert await table.ask(asked("a")) is calls[1]

    run(test)


def test_an_idempotency_key_decides() -> None:
    async def test(table: Table) -> None:
        first = await table.ask(asked("a", "k1"))
        assert await table.ask(asked("a", "k1")) is first
        assert await table.ask(asked("a", "k2")) is not first
        with pytest.raises(BadRequest, match="was used with another request"):
            await table.ask(asked("b", "k1"))

    run(test)


def test_how_an_answer_is_delivered_is_not_part_of_the_question() -> None:
    plain = asked("a")
    streamed = plain._replace(body=plain.body | {"stream": True, "stream_options": {"include_usage": True}})
    assert plain.digest() == streamed.digest() != plain._replace(dialect="responses").digest()
    assert plain.digest() != plain._replace(body=plain.body | {"seed": 1}).digest()
    assert asked("\ud800").digest()  # no text, and no crash


class Recorded(NamedTuple):
    digest: str
    lease: int
    name: str


def test_recorded_answers_come_in_their_order_whoever_was_given_them_last() -> None:
    entries: list[Any] = [
        Recorded("x", 1, "x1"), Recorded("y", 1, "y1"), Recorded("x", 1, "x2"),  # the first execution got three
        Recorded("x", 2, "x1 again"),  # the second was lost after one
    ]  # fmt: skip
    found: dict[str, Sequence[Entry]] = {digest: list(answers) for digest, answers in recorded(entries).items()}
    assert {digest: [entry.name for entry in answers] for digest, answers in found.items()} == {  # pyrefly: ignore[missing-attribute]
        "x": ["x1", "x2"],
        "y": ["y1"],
    }


def placement(cause: Cause = "", depth: int = 0, occurrence: int = 0, ids: tuple[int, ...] = (1, 2)) -> Placement:
    return Placement(parent=None, prompt_ids=ids, cause=cause, depth=depth, occurrence=occurrence, cached=0)


def test_an_agent_that_appends_draws_as_an_environments_turns_do() -> None:
    assert [branch_name(placement(depth=depth), None, 0) for depth in range(3)] == ["0", "1", "2"]
    assert branch_name(placement("json_rewritten", 1), None, 0) == "1"


def test_what_differs_draws_otherwise() -> None:
    names = [
        branch_name(placement(), None, 0),
        branch_name(placement(), None, 1),
        branch_name(placement(), 0, 0),
        branch_name(placement(), 7, 0),
        branch_name(placement("retry", occurrence=2), None, 0),
        branch_name(placement("sub_agent"), None, 0),
        branch_name(placement("sub_agent", ids=(3,)), None, 0),
        branch_name(placement("edited", depth=1), None, 0),
    ]
    assert len(set(names)) == len(names)


def call(number: int, execution: Execution) -> Call:
    return Call(execution, number, asked("a"), "d", Request(), CHAT, [])


def test_lockstep_waits_for_all_and_sorts_by_episode() -> None:
    async def test(_: Table) -> None:
        rounds, executions = Rounds("lockstep"), [Execution(f"e{place}", place, 1, "", GRAPH) for place in range(3)]
        calls = [call(number, executions[place]) for number, place in enumerate((2, 0, 1, 0))]
        rounds.add(calls[0])
        rounds.add(calls[1])
        assert rounds.begin(executions, False, False) == [], "e1 has not asked"
        rounds.add(calls[2])
        assert rounds.begin(executions, True, False) == [], "another episode is about to begin"
        assert rounds.begin(executions, False, False) == [calls[1], calls[2], calls[0]]
        rounds.add(calls[3])
        assert rounds.begin(executions[:1], False, True) == [], "the round is being sampled"
        assert rounds.begin(executions[:1], False, False) == [calls[3]]

    run(test)


def test_free_samples_at_once() -> None:
    async def test(_: Table) -> None:
        rounds, execution = Rounds("free"), Execution("e", 0, 1, "", GRAPH)
        for each in (call(0, execution), call(1, execution)):
            rounds.add(each)
            assert rounds.begin([execution, execution], True, True) == [each]

    run(test)
