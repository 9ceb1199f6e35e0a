"""A share of the conversations goes to a version on trial, and what people say of its answers decides."""

from __future__ import annotations

import asyncio
import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from addons.production.section import Serve
from addons.production.serving import capture, live, trial
from addons.production.serving.trial import Served, Trial
from addons.production.traces.store import Store
from flows.promotion import change
from steps.project.ledger import Ledger
from steps.registry import decisions
from tests.support.fake_registry import FakeRegistry

START = datetime(2026, 11, 1, tzinfo=UTC)


class FakeVllm:
    """Stands for vLLM's application: answers with the model that was asked, after `meanwhile`."""

    def __init__(self) -> None:
        self.models: list[str] = []
        self.meanwhile: Any = lambda: None

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        request = json.loads(message["body"])
        assert int(dict(scope["headers"])[b"content-length"]) == len(message["body"])
        self.models.append(request["model"])
        self.meanwhile()
        choice = {"message": {"role": "assistant", "content": "4"}}
        body = json.dumps({"id": f"chatcmpl-{len(self.models)}", "choices": [choice]}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers wait for their records, also on a busy machine."""
    monkeypatch.setattr(capture, "PATIENCE", 60.0)
    monkeypatch.setattr(capture, "START", 60.0)


class Place:
    """The middleware over a fake vLLM, with capture in front."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, served: Served) -> None:
        self.path = folder / "served.json"
        served.write(self.path)
        monkeypatch.setenv(trial.FILE, str(self.path))
        names = capture.FOLDER, capture.RATE, capture.DAYS, capture.BYTES, capture.CONSENT
        for name, value in zip(names, (folder / "store", 1, 30, 2**20, "assumed"), strict=True):
            monkeypatch.setenv(name, str(value))
        self.vllm = FakeVllm()
        self.app = capture.Capture(Trial(self.vllm))
        self.store = Store(folder / "store")

    def ask(self, conversation: str, model: str = "toy") -> str | None:
        """The version that the answer names."""
        body = json.dumps({"model": model, "messages": [{"role": "user", "content": "2 + 2?"}]}).encode()
        headers = [(b"content-length", str(len(body)).encode()), (b"x-flywheel-conversation", conversation.encode())]
        scope = {"type": "http", "method": "POST", "path": capture.CHAT, "headers": headers}
        sent: list[Any] = []

        async def receive() -> Any:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        asyncio.run(self.app(scope, receive, send))
        version = dict(sent[0]["headers"]).get(trial.VERSION_HEADER.encode())
        return version.decode() if version else None

    def versions(self) -> list[Any]:
        """Of what was stored, which on a busy machine comes later than the answer."""
        until = time.monotonic() + 60
        while len(list(self.store.lines())) < len(self.vllm.models) and time.monotonic() < until:
            time.sleep(0.05)
        return [line.record["version"] for line in self.store.lines() if line.record]


def test_a_share_of_the_conversations_goes_to_the_canary_and_each_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path, monkeypatch, Served("toy", "3", "4", "toy-v4", 0.2))
    first = [place.ask(f"chat {number}") for number in range(300)]
    assert 0.15 < first.count("4") / 300 < 0.25
    assert set(first) == {"3", "4"}
    assert [place.ask(f"chat {number}") for number in range(40)] == first[:40]
    assert [model == "toy-v4" for model in place.vllm.models[:300]] == [version == "4" for version in first]
    assert place.versions() == [*first, *first[:40]]


def test_other_models_and_no_canary_are_the_champions_business(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, monkeypatch, Served("toy", "3"))
    assert place.ask("chat 1") == "3"
    assert place.ask("chat 1", model="toy-base") is None, "the base model has no version"
    assert place.vllm.models == ["toy", "toy-base"]
    assert place.versions() == ["3", None]


def test_round_a_swap_no_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path, monkeypatch, Served("toy", None))
    assert place.ask("chat 1") is None
    Served("toy", "3").write(place.path)
    place.vllm.meanwhile = lambda: Served("toy", "4").write(place.path)
    assert place.ask("chat 2") is None, "it was swapped while the answer was made"
    place.vllm.meanwhile = lambda: None
    assert place.ask("chat 3") == "4"
    assert place.versions() == [None, None, "4"]


@pytest.mark.parametrize("content", [None, "", "{", "[1]", '{"name": "toy", "more": 1}'])
def test_a_state_that_cannot_be_read_fails_no_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None
) -> None:
    place = Place(tmp_path, monkeypatch, Served("toy", "3", "4", "toy-v4", 0.5))
    before = [place.ask(f"chat {number}") for number in range(8)]
    place.path.unlink()
    if content is not None:
        place.path.write_text(content)
    after = [place.ask(f"chat {number}") for number in range(8)]
    assert after == [None if version == "3" else "4" for version in before], "nobody can tell the champion"
    assert place.vllm.models[8:] == place.vllm.models[:8], "each conversation stays where it was"
    Served("toy", "3", "4", "toy-v4", 0.5).write(place.path)
    assert [place.ask(f"chat {number}") for number in range(8)] == before


class People:
    """What people said, in a store."""

    def __init__(self, folder: Path) -> None:
        self.store, self.count = Store(folder), 0
        self.scores = live.Scores(self.store)

    def say(self, version: str | None, *scores: float | None, days: float = 1.0) -> None:
        """A conversation for each score; None is a correction without one."""
        time = f"{START + timedelta(days=days):%Y-%m-%dT%H:%M:%S.%fZ}"
        for score in scores:
            self.count += 1
            names = {"response": f"{self.count:016x}", "key": f"capture:{self.count:016x}"}
            self.store.append({"kind": "call", **names, "version": version, "time": time})
            correction = {"content": "5"} if score is None else None
            self.store.append({"kind": "feedback", **names, "score": score, "correction": correction})
        self.scores.update()


@pytest.fixture
def people(tmp_path: Path) -> People:
    return People(tmp_path / "store")


@pytest.fixture(autouse=True)
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")


def events() -> list[tuple[str, str]]:
    """(event, version) of the ledger's decisions, but for those that put a version on trial."""
    with Ledger() as ledger, ledger.reading() as link:
        return [(each.event, each.version) for each in decisions.listed(link) if each.event != "canary"]


def begin(registry: FakeRegistry, version: str, is_past_the_gate: bool = True) -> None:
    """Put a version on trial, as flows.promote does; without the gate, as whoever may write to the registry could."""
    writes = live.trial_writes(version, START)
    if is_past_the_gate:
        change.decide(registry.model, "canary", version, "the gate let it through", writes)
    else:
        change._write(registry, "toy", writes)


SETTINGS = Serve(canary=0.5, min_feedback=10, max_drop=0.05, rollback=0.1)


def decide(registry: FakeRegistry, people: People, days: float = 1.0) -> str:
    return live.decide_canary(registry.model, people.scores, SETTINGS, START + timedelta(days=days))


def test_a_later_answer_with_the_same_id_takes_no_feedback(people: People) -> None:
    people.say("2", 1.0)
    names = {"response": f"{1:016x}", "key": "capture:" + "f" * 16}
    people.store.append({"kind": "call", **names, "version": "1", "time": "2026-11-02T00:00:00.000000Z"})
    for scores in (people.scores, live.Scores(people.store)):
        scores.update()
        assert (scores.of("2"), scores.of("1")) == ([1.0], [])
    assert people.store.keys()[names["response"]] == f"capture:{1:016x}"


def test_a_canary_that_people_like_is_promoted(people: People) -> None:
    registry = FakeRegistry(champion="1")
    begin(registry, "2")
    people.say("1", *[1.0] * 50, days=-1)  # before the trial: not compared
    people.say("1", *[0.0] * 9, *[1.0] * 5)
    people.say("2", *[1.0] * 9)
    people.say(None, *[0.0] * 99)
    assert decide(registry, people) == "", "nine are too few"
    people.say("2", 1.0)
    text = decide(registry, people)
    assert text.startswith(
        "version 2 is promoted, people's feedback on the canary: mean score 1.000 of 10 conversations"
    )
    assert registry.aliases == {"champion": "2", "previous": "1"}
    assert events() == [("promotion", "2")]


def test_a_canary_that_people_dislike_is_withdrawn(people: People) -> None:
    registry = FakeRegistry(champion="1")
    begin(registry, "2")
    people.say("1", *[1.0] * 14)
    people.say("2", *[0.0] * 5, *[None] * 9)
    text = decide(registry, people)
    assert text.startswith("version 2 is withdrawn, people's feedback on the canary: mean score 0.000 of 14")
    assert registry.aliases == {"champion": "1"}
    assert events() == [("withdrawal", "2")]
    assert live.WITHDRAWN in registry.versions["2"].tags


def test_the_alias_alone_puts_nothing_on_trial(people: People) -> None:
    """Others than promoters may be able to set it, and its tags."""
    registry = FakeRegistry(champion="1")
    people.say("1", *[0.0] * 40)
    people.say("2", *[1.0] * 40)
    begin(registry, "2", is_past_the_gate=False)
    assert decide(registry, people) == decide(registry, people, days=99) == ""
    assert registry.aliases == {"champion": "1", "canary": "2"}
    begin(registry, "2")
    registry.versions["2"].tags["adapter_hash"] = "another, which the gate has not seen"
    assert decide(registry, people) == ""
    registry.versions["2"].tags["adapter_hash"] = "adapter 2"
    assert decide(registry, people).startswith("version 2 is promoted")
    begin(registry, "2", is_past_the_gate=False)
    assert decide(registry, people) == "", "the champion is not on trial against itself"
    assert registry.aliases == {"champion": "2", "previous": "1", "canary": "2"}


def test_what_is_not_clear_waits_for_twice_as_many_and_not_for_ever(people: People) -> None:
    registry = FakeRegistry(champion="1")
    begin(registry, "2")
    for version in ("1", "2"):
        people.say(version, *[0.0] * 5, *[1.0] * 7)
    assert decide(registry, people) == ""
    assert decide(registry, people) == ""
    assert registry.versions["2"].tags[live.LOOKS] == "1", "looking again without more feedback is no look"
    people.say("1", *[1.0] * 10)
    people.say("2", *[1.0] * 10)
    assert decide(registry, people) == ""
    assert registry.versions["2"].tags[live.LOOKS] == "2"
    assert "not decided in 14 days (22 conversations with feedback, 22 of" in decide(registry, people, days=14.1)
    assert events() == [("withdrawal", "2")]


def test_a_champion_that_people_dislike_is_rolled_back_once(people: People) -> None:
    registry, calls = FakeRegistry(champion="3", previous="2"), list[str]()

    def roll_back(why: str) -> None:
        calls.append(why)
        registry.aliases |= {"champion": "2", "previous": "3"}

    people.say("2", *[1.0] * 20, days=-5)
    people.say("3", *[0.0] * 9)
    assert live.decide_champion(registry.model, people.scores, SETTINGS, roll_back) == ""
    people.say("3", *[0.0] * 3)
    text = live.decide_champion(registry.model, people.scores, SETTINGS, roll_back)
    assert text.startswith("version 3 is rolled back to 2, mean score 0.000 of 12 conversations against 1.000 of 20")
    people.say("2", *[0.0] * 50)
    assert live.decide_champion(registry.model, people.scores, SETTINGS, roll_back) == "", (
        "never forward again by itself"
    )
    assert len(calls) == 1


def test_without_a_bound_no_champion_is_rolled_back(people: People) -> None:
    registry = FakeRegistry(champion="3", previous="2")
    people.say("2", *[1.0] * 20)
    people.say("3", *[0.0] * 20)
    assert live.decide_champion(registry.model, people.scores, Serve(), lambda why: None) == ""
