"""The same conversations in the files of five producers (made by tests/support/golden_traces.py): read, and written back."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import environments
from addons.production.traces import files, langfuse_traces, mlflow_traces, openai_jsonl, otel, store
from addons.production.traces.build import Task, build
from addons.production.traces.records import Conversation, PassedOver, Unreadable, hashed, joined, signature
from addons.production.traces.sources import Source, ingest
from addons.production.traces.store import Store
from steps.core.params import Scenarios
from steps.data.ingested import read_scenarios
from steps.sampling.wire import wire

GOLDEN = Path(__file__).parent / "golden"
TRUTH = [json.loads(line) for line in (GOLDEN / "truth.jsonl").read_text().splitlines()]
PRODUCERS = ("openai", "mlflow", "otel", "otel_old", "langfuse", "capture")


def parts(producer: str, folder: Path) -> Sequence[Conversation | Unreadable | PassedOver]:
    def lines(name: str) -> list[str]:
        return (GOLDEN / name).read_text().split("\n")

    match producer:
        case "openai":
            return list(openai_jsonl.read(lines("openai.jsonl"), "openai.jsonl"))
        case "mlflow":
            return list(mlflow_traces.read(langfuse_traces.export(GOLDEN / "mlflow.jsonl"), "mlflow.jsonl"))
        case "otel" | "otel_old":
            return list(otel.read(lines(f"{producer}.jsonl"), producer))
        case "langfuse":
            return list(langfuse_traces.read(langfuse_traces.export(GOLDEN / "langfuse"), "langfuse"))
        case _:
            shutil.copytree(GOLDEN / "capture", folder / "capture")
            return [*store.read(Store(folder / "capture"), {})[0]]


def same(given: dict[str, Any], expected: dict[str, Any]) -> bool:
    """Whether a message that went there and back is the one that was sent: role, words, and calls with ids and arguments."""

    def plain(message: dict[str, Any]) -> Any:
        calls = [
            (c["id"], c["function"]["name"], json.loads(c["function"]["arguments"]))
            for c in message.get("tool_calls") or ()
        ]
        return message["role"], message.get("content") or "", calls, message.get("tool_call_id")

    return plain(given) == plain(expected)


@pytest.mark.parametrize("producer", PRODUCERS)
def test_messages_come_there_and_back(producer: str, tmp_path: Path) -> None:
    made = parts(producer, tmp_path)
    assert [part for part in made if isinstance(part, Unreadable)] == []
    conversations, lost = joined(part for part in made if isinstance(part, Conversation))
    assert lost == []
    assert len(conversations) == len(TRUTH)
    by_key = {conversation.key.partition(":")[2]: conversation for conversation in conversations}
    total = right = 0
    for episode in TRUTH:
        conversation = by_key[hashed(episode["id"])]
        assert conversation.consent
        back = [json.loads(json.dumps(message)) for message in sent(conversation)]
        assert len(back) == len(episode["messages"])
        total += len(back)
        right += sum(map(same, back, episode["messages"]))
    assert right / total >= 0.99
    assert right == total, f"{total - right} of {total} messages of {producer} differ"
    if producer != "otel_old" and producer != "otel":  # whose spans here carry no evaluation
        scores = {key: conversation.feedback[-1].score for key, conversation in by_key.items() if conversation.feedback}
        assert scores.keys() == by_key.keys()
        corrected = {key for key, each in by_key.items() if any(entry.correction for entry in each.feedback)}
        assert corrected == {hashed(each["id"]) for each in TRUTH if "correction" in each["feedback"]}


def sent(conversation: Conversation) -> list[dict[str, Any]]:
    """The messages as servers take them. Their own ids of calls stay."""
    messages = []
    for message in conversation.messages:
        made = {name: value for name, value in message.items() if name not in ("name", "reasoning")}
        if calls := message.get("tool_calls"):
            made["tool_calls"] = [
                call | {"function": call["function"] | {"arguments": json.dumps(call["function"]["arguments"])}}
                for call in calls
            ]
        messages.append(made)
    return messages


def test_all_producers_make_the_same_conversations(tmp_path: Path) -> None:
    paths = []
    for producer in PRODUCERS:
        (tmp_path / producer).mkdir()
        conversations, _ = joined(
            part for part in parts(producer, tmp_path / producer) if isinstance(part, Conversation)
        )
        paths.append(sorted(tuple(map(signature, conversation.messages)) for conversation in conversations))
    assert all(path == paths[0] for path in paths)


@pytest.fixture(scope="module")
def task() -> Task:
    env = environments.load("email_search")
    data = env.load(Path("tasks_data/email_search"))
    held = [*env.scenarios(data, "val", 60, 1), *env.scenarios(data, "test", 60, 1)]
    return Task(env, "email_search", data, env.scenarios(data, "train", 12, 1), held, Scenarios())


SOURCES = ["openai:openai.jsonl", "mlflow:mlflow.jsonl", "otel:otel.jsonl", "langfuse:langfuse", "capture:capture"]


def sources(folder: Path) -> list[Source]:
    if not (folder / "golden").exists():
        shutil.copytree(GOLDEN, folder / "golden")
    return [
        Source.parse(f"{kind}:{folder}/golden/{name}", "email_search")
        for kind, _, name in (w.partition(":") for w in SOURCES)
    ]


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_ingesting_twice_adds_nothing_and_the_order_does_not_matter(task: Task, tmp_path: Path) -> None:
    everything = sources(tmp_path)
    once = ingest(tmp_path, tmp_path / "a", everything, task, {}, False, 0.5)
    assert once.added == once.conversations == 5 * len(TRUTH)
    bytes_of_once = written(tmp_path / "a")
    again = ingest(tmp_path, tmp_path / "a", everything, task, {}, False, None)
    assert (again.read, again.added) == (0, 0)
    assert written(tmp_path / "a") == bytes_of_once
    for source in reversed(everything):
        ingest(tmp_path, tmp_path / "b", [source], task, {}, False, 0.5)
    assert written(tmp_path / "b") == bytes_of_once
    (tmp_path / "a/state.json").write_text(json.dumps({"regression": 0.5}))  # as if nothing had been read
    afresh = ingest(tmp_path, tmp_path / "a", everything, task, {}, False, None)
    assert (afresh.added, written(tmp_path / "a")) == (0, bytes_of_once)


def test_every_conversation_is_used_or_quarantined(task: Task, tmp_path: Path) -> None:
    done = ingest(tmp_path, tmp_path / "a", sources(tmp_path), task, {}, False, 0.5)
    keys = {each.key for each in files.read_conversations(tmp_path / "a")}
    used = {row["source"] for name in files.SETS for row in getattr(done.sets, name)}
    quarantined = {row.source for row in done.sets.quarantine}
    assert used | quarantined == keys
    assert used & quarantined == set()
    assert len(done.sets.demonstrations) == 4, "each good conversation once, of five records of it"
    assert len(done.sets.scenarios) + len(done.sets.regression) > 0
    for name in ("scenarios", "regression"):
        for scenario in read_scenarios(tmp_path / f"a/{name}.jsonl"):
            gold = task.env(scenario, task.data).play("gold")
            assert task.env.success(scenario, gold), "a scenario made of a conversation can be solved"
            assert scenario.split == ("test" if name == "regression" else "train")
    for row in done.sets.demonstrations:
        assert set(row) == {"messages", "tools", "source"}
        assert row["messages"][-1]["role"] == "assistant"
        assert wire(row["messages"])
    for row in done.sets.preferences:
        assert row["chosen"]["role"] == row["rejected"]["role"] == "assistant"
        assert row["chosen"] != row["rejected"]


def test_the_data_sets_are_a_function_of_the_conversations(task: Task, tmp_path: Path) -> None:
    ingest(tmp_path, tmp_path / "a", sources(tmp_path), task, {}, False, 0.5)
    conversations = files.read_conversations(tmp_path / "a")
    assert build(conversations, task, 0.5) == build(conversations, task, 0.5)
    everything, nothing = build(conversations, task, 1.0), build(conversations, task, 0.0)
    assert not nothing.regression
    learnt = {
        row["source"] for name in ("scenarios", "demonstrations", "preferences") for row in getattr(everything, name)
    }
    assert not learnt & {row["source"] for row in everything.regression}
