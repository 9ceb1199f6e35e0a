"""What a source as a whole decides: scales of scores, text that cannot be written, and sources of which nothing is read."""

from __future__ import annotations

import gzip
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import environments
from addons.production.ingest import described
from addons.production.traces.build import Task
from addons.production.traces.sources import KINDS, Ingested, Source, ingest
from addons.supervised import chats
from steps.core.errors import UserError
from steps.core.params import Scenarios
from steps.data.ingested import read_rows

Row = dict[str, Any]
HALF = "half an emoji \ud83d"


@pytest.fixture(scope="module")
def task() -> Task:
    env = environments.load("multiplication")
    return Task(env, "multiplication", env.load(Path("tasks_data/multiplication")), [], [], Scenarios())


@pytest.fixture
def night(tmp_path: Path, task: Task) -> Callable[..., Ingested]:
    """Ingests rows of a file; `scales` as --scale gives them."""

    def run(
        rows: list[Row] | bytes, kind: str = "openai", name: str = "a.jsonl", **scales: tuple[float, float]
    ) -> Ingested:
        data = rows if isinstance(rows, bytes) else "".join(json.dumps(row) + "\n" for row in rows).encode()
        (tmp_path / name).write_bytes(data)
        source = Source.parse(f"{kind}:{tmp_path / name}", "multiplication")
        return ingest(tmp_path, tmp_path / "out", [source], task, scales, True, None)

    return run


def chat(name: str, score: Any = None, **fields: Any) -> Row:
    messages = [{"role": "user", "content": f"How warm is bed {name}?"}, {"role": "assistant", "content": f"{name} °C"}]
    return {"id": name, "messages": messages} | ({} if score is None else {"feedback": {"score": score}}) | fields


def quarantined(tmp_path: Path) -> list[str]:
    return [row["reason"] for row in read_rows(tmp_path / "out/quarantine.jsonl")]


@pytest.mark.parametrize(
    ("scores", "good"),
    [
        ([5, 1, 4], None),
        ([1, 1, 2.0], None),
        ([-1, 1, 0.5], None),
        ([True, False, 3], None),
        ([float("nan"), 1], 1),  # which is no JSON
        (["5", 1], None),
        ([1, 0, True, False], 2),
        (["4/5", "80%", "1 of 5", "20 %"], 2),
        (["good", "thumbs-down", "no"], 1),
        ([0.7, 0.31, 0.3], 1),
    ],
)
def test_scores_of_a_name_count_only_where_all_are_on_the_scale(
    night: Callable[..., Ingested], tmp_path: Path, scores: list[Any], good: int | None
) -> None:
    done = night([chat(str(number), score) for number, score in enumerate(scores)] + [chat("other", "good")])
    expected = 0 if good is None else good
    assert len(done.sets.demonstrations) == 1 + expected, "a word needs no scale"
    assert sum("--scale score=LOW..HIGH" in why for why in quarantined(tmp_path)) == (
        len(scores) if good is None else 0
    )


@pytest.mark.parametrize(
    ("scores", "scales", "why"),
    [
        (["nan", 1, 0], {}, "is 'nan', neither a finite number"),
        (["-inf", 1, 0], {}, "is '-inf', neither a finite number"),
        (["7/5", 1, 0], {}, "is 7, not from 0 to 5"),
        (["nan", 5, 1], {"score": (1.0, 5.0)}, "is 'nan', neither a finite number"),
        ([7, 5, 1], {"score": (1.0, 5.0)}, "is 7, not from 1 to 5"),
    ],
)
def test_a_score_that_no_scale_would_help_is_refused_alone(
    night: Callable[..., Ingested], tmp_path: Path, scores: list[Any], scales: dict[str, tuple[float, float]], why: str
) -> None:
    done = night([chat(str(number), score) for number, score in enumerate(scores)], **scales)
    assert (done.opinions["good"], done.opinions["bad"]) == (1, 1)
    [reason] = [reason for reason in quarantined(tmp_path) if "not read" in reason]
    assert f"the score score {why}" in reason


def test_a_scale_is_judged_over_earlier_nights(night: Callable[..., Ingested], tmp_path: Path) -> None:
    stars = [chat("a", 1), chat("b", 1)]
    assert len(night(stars).sets.demonstrations) == 2, "nothing says yet that these are stars"
    second = night([chat("c", 5)], name="b.jsonl")
    assert second.sets.demonstrations == []
    assert sum("--scale score" in why for why in quarantined(tmp_path)) == 3
    third = night([chat("d", 0.9)], name="c.jsonl")
    assert len(third.sets.demonstrations) == 1, "another file may have another scale"
    night(stars, score=(1, 5))
    last = night([chat("c", 5)], name="b.jsonl", score=(1, 5))
    assert sorted(row["messages"][1]["content"] for row in last.sets.demonstrations) == ["c °C", "d °C"]
    assert last.opinions["bad"] == 2


def in_otel(row: Row) -> Row:
    def text(key: str, value: str) -> Row:
        return {"key": key, "value": {"stringValue": value}}

    said = [
        json.dumps([{"role": m["role"], "parts": [{"type": "text", "content": m["content"]}]}]) for m in row["messages"]
    ]
    names = ("gen_ai.input.messages", "gen_ai.output.messages")
    given = [text(name, messages) for name, messages in zip(names, said, strict=True)]
    span = {"traceId": row["id"] * 8, "spanId": row["id"] * 4, "name": row["id"], "attributes": given}
    return {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "x"}, "spans": [span]}]}]}


def in_langfuse(row: Row) -> Row:
    asked, said = row["messages"]
    return {"id": row["id"], "traceId": row["id"], "type": "GENERATION", "input": [asked], "output": said}


def in_mlflow(row: Row) -> Row:
    asked, said = row["messages"]
    fields = {"mlflow.spanType": '"LLM"', "mlflow.spanInputs": {"messages": [asked]}, "mlflow.spanOutputs": said}
    return {"info": {"trace_id": row["id"]}, "data": {"spans": [{"span_id": "s", "attributes": fields}]}}


@pytest.mark.parametrize("kind", ["openai", "otel", "langfuse", "mlflow"])
def test_half_a_character_is_refused_and_the_others_pass(
    night: Callable[..., Ingested], tmp_path: Path, kind: str
) -> None:
    form = {"otel": in_otel, "langfuse": in_langfuse, "mlflow": in_mlflow}.get(kind, lambda row: row)
    asked = chat("2") | {"messages": [{"role": "user", "content": HALF}, {"role": "assistant", "content": "x"}]}
    said = chat("3") | {"messages": [{"role": "user", "content": "y"}, {"role": "assistant", "content": HALF}]}
    named = chat("4") | ({"id": HALF} if kind != "otel" else {})
    for _ in range(2):
        done = night([form(row) for row in (chat("1"), asked, said, named, chat("5\x00"))], kind)
        assert done.conversations == 3
        assert sum("half a character" in why for why in quarantined(tmp_path)) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [{"type": "function", "function": {"name": "a", "description": HALF}}]},
        {"metadata": {"owner": HALF}},
        {"feedback": {"score": 1, "comment": HALF}},
        {"feedback": {"label": HALF}},
        {"feedback": {"correction": HALF}},
        {"feedback": {"score": 1, "name": HALF}},
        {"conversation_id": HALF},
        {"system": HALF},
        {HALF: 1},
    ],
)
def test_half_a_character_beside_the_messages_never_ends_ingestion(
    night: Callable[..., Ingested], tmp_path: Path, fields: Row
) -> None:
    done = night([chat("1"), chat("2", **fields), chat("3")])
    assert done.conversations >= 2
    assert done.conversations + done.unreadable == 3
    "\n".join(described(done)).encode()  # what is said can be written, too
    assert night([chat("4")], name="b.jsonl").conversations == done.conversations + 1


def test_bytes_that_are_no_text_cost_their_row(night: Callable[..., Ingested], tmp_path: Path) -> None:
    rows = [json.dumps(chat(name), ensure_ascii=False).encode() for name in ("1", "Gärten", "3")]
    rows[1] = rows[1].replace("ä".encode(), b"\xe4")  # Latin-1
    done = night(b"\xef\xbb\xbf" + b"\n".join(rows))  # with a byte order mark, as some editors write it
    assert (done.conversations, done.unreadable) == (2, 1)
    assert ["half a character" in why or "UTF-8" in why for why in quarantined(tmp_path) if "not read" in why] == [True]


def test_of_a_packed_file_that_is_cut_off_all_that_is_there_is_read(
    night: Callable[..., Ingested], tmp_path: Path
) -> None:
    packed = gzip.compress(b"".join(json.dumps(chat(str(number))).encode() + b"\n" for number in range(50)))
    done = night(packed[: len(packed) * 2 // 3], name="a.jsonl.gz")
    assert done.conversations > 10
    assert any(re.search(r"cut off or damaged after \d{4} bytes of text", why) for why in quarantined(tmp_path))


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipe_is_no_source(tmp_path: Path, kind: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="is a pipe or a device, which is read once only: give a file"):
        Source.parse(f"{kind}:{tmp_path / 'pipe'}", "multiplication")


WEB = [{"traceId": "a" * 32, "spanId": sign * 16, "attributes": []} for sign in "ab"]
OTHERS: dict[str, tuple[str, Any, str]] = {  # kind, what is in the file, what is said of it
    "spans of a web server": (
        "otel",
        {"resourceSpans": [{"scopeSpans": [{"scope": {"name": "http"}, "spans": WEB}]}]},
        "2 spans of the scope http, in which no model speaks",
    ),
    "rows of chats given as spans": ("otel", chat("1"), "the source openai reads"),
    "spans given as rows of chats": ("openai", {"resourceSpans": []}, "resourceSpans"),
    "a trace of MLflow given to Langfuse": ("langfuse", {"info": {}, "data": {"spans": []}}, "fields data, info"),
    "an observation given to MLflow": ("mlflow", {"id": "o", "type": "GENERATION"}, "no trace of MLflow"),
    "Jaeger's spans": ("otel", {"traceID": "a", "spans": []}, "Jaeger"),
    "metrics": ("otel", {"resourceMetrics": []}, "metrics"),
    "an empty file": ("openai", None, "it is empty"),
    "observations of tools": (
        "langfuse",
        {"id": "o", "traceId": "t", "type": "TOOL"},
        "1 observations of the type TOOL",
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_source_of_which_nothing_is_read_says_so_every_time(night: Callable[..., Ingested], name: str) -> None:
    kind, content, says = OTHERS[name]
    for _ in range(2):
        [line] = night([] if content is None else [content], kind).nothing
        assert says in line
        assert "nothing in it was read" in line


def test_what_was_read_before_is_no_fault(night: Callable[..., Ingested]) -> None:
    assert night([chat("1")]).nothing == night([chat("1")]).nothing == []


def test_fields_that_no_reader_knows_are_counted(night: Callable[..., Ingested]) -> None:
    done = night([chat("1", rating=5), chat("2", rating=1)])
    assert done.passed_over == {"fields rating of rows, which no reader knows": 2}
    marked = [{"role": "user", "content": "x", "mood": "merry"}, {"role": "assistant", "content": "y", "mood": None}]
    for kind, form in (("openai", dict), ("langfuse", in_langfuse), ("mlflow", in_mlflow)):
        done = night([form(chat("3") | {"messages": marked})], kind)
        assert done.passed_over == {"fields mood of messages, which no reader knows": 1}


def test_marks_of_turns_reach_the_demonstrations(night: Callable[..., Ingested], tmp_path: Path) -> None:
    """And stay where another record of the same conversation has none."""
    asked, wrong = {"role": "user", "content": "How warm?"}, {"role": "assistant", "content": "Sorry?"}
    messages = [asked, wrong | {"weight": 0}, asked, {"role": "assistant", "content": "17", "finish_reason": "length"}]
    more = [*messages[:1], wrong, asked, {"role": "assistant", "content": "17"}, asked]
    last = {"id": "a", "request": {"messages": more}, "response": {"message": {"role": "assistant", "content": "18"}}}
    night([{"id": "a", "messages": messages}, last | {"feedback": {"score": 1}}])
    [row] = read_rows(tmp_path / "out/demonstrations.jsonl")
    marks = [(turn.get("weight"), turn.get("finish_reason")) for turn in row["messages"] if turn["role"] == "assistant"]
    assert marks == [(0, None), (None, "length"), (None, None)]
    assert chats.parse(json.dumps(row)).messages == row["messages"]
