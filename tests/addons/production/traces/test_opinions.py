"""What producers say about a conversation, in the forms that they have for it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from addons.production.traces import langfuse_traces, openai_jsonl
from addons.production.traces.opinions import moment, score_of
from addons.production.traces.records import Conversation, PassedOver, Unreadable

AT = "2026-03-01T12:00:00.500000Z"
SECONDS = datetime.fromisoformat(AT).timestamp()


@pytest.mark.parametrize(
    "value",
    [
        AT,
        "2026-03-01T13:00:00.5+01:00",
        datetime(2026, 3, 1, 12, 0, 0, 500_000),
        datetime(2026, 3, 1, 12, 0, 0, 500_000, UTC),
        SECONDS,
        int(SECONDS * 1000),
        int(SECONDS * 10**6),
        int(SECONDS * 10**9),
        str(int(SECONDS * 10**9)),
        str(SECONDS),
    ],
)
def test_a_time_in_any_form_is_the_same_text(value: Any) -> None:
    assert moment(value) == AT


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, "", "soon", -1, 0, [], {}),
        *(10**24, 10**300, 10**400, 1e300, float("inf"), float("nan")),  # Unix times after 9999, or of no year at all
        *("9999-12-31T23:59:59-05:00", "0001-01-01T00:00:00+05:00"),
    ],
)
def test_what_is_no_time_or_outside_of_the_calendar_is_empty(value: Any) -> None:
    assert moment(value) == ""


@pytest.mark.parametrize(
    ("fields", "score"),
    [
        ({"value": None, "stringValue": "False"}, 0.0),
        *(({"value": value}, 0.0) for value in ("False", "0", 0, False)),
        *(({"value": value}, 1.0) for value in ("True", "1", 1, True)),
    ],
)
def test_a_boolean_of_langfuse_is_what_it_says(fields: dict[str, Any], score: float) -> None:
    row = {"id": "s", "traceId": "t", "name": "ok", "dataType": "BOOLEAN"} | fields
    [made] = langfuse_traces.read([row], "f")
    assert isinstance(made, Conversation)
    assert made.feedback[0].score == score


@pytest.mark.parametrize(
    ("text", "share"),
    [("-1", 0.0), ("-0.5", 0.25), (" 0 ", 0.5), ("+1", 1.0), ("1e-1", 0.55), ("-5e-1", 0.25), ("-1/4", 0.0)],
)
def test_a_number_in_a_text_is_that_number(text: str, share: float) -> None:
    assert score_of(text, "ok", {"ok": (-1, 1)}) == (share, "ok")


@pytest.mark.parametrize(
    ("text", "score"),
    [
        *(("thumbs-down", 0.0), ("Thumbs up", 1.0), ("👎", 0.0), ("👍🏽", 1.0)),
        *(("4/5", 0.8), ("4 of 5 stars", 0.8), ("4-out-of-5", 0.8), ("80 %", 0.8)),
    ],
)
def test_a_word_and_a_share_of_a_whole_need_no_scale(text: str, score: float) -> None:
    assert score_of(text, "ok")[0] == score


def feedback(**fields: Any) -> list[Any]:
    messages = [{"role": "user", "content": "Is it dry?"}, {"role": "assistant", "content": "Yes."}]
    return list(openai_jsonl.read([json.dumps({"messages": messages, "feedback": fields})], "f"))


@pytest.mark.parametrize(
    ("fields", "score", "name"),
    [
        *(({"rating": 0}, 0.0, "rating"), ({"rating": 5, "name": "stars"}, 5.0, "stars")),
        *(({"thumbs": "down"}, 0.0, ""), ({"thumbs": "👍"}, 1.0, ""), ({"score": None, "thumbs": -1}, -1.0, "thumbs")),
        *(({"label": "verbose"}, None, ""), ({"label": "bad"}, 0.0, ""), ({"score": 1, "label": "bad"}, 1.0, "score")),
        *(({"comment": "It rained."}, None, ""), ({"score": " "}, None, ""), ({"score": None}, None, "")),
    ],
)
def test_feedback_is_understood(fields: dict[str, Any], score: float | None, name: str) -> None:
    [made] = feedback(**fields)
    assert isinstance(made, Conversation), made
    assert (made.feedback[0].score, made.feedback[0].name) == (score, name)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        *(({"score": text}, f"score is {text!r}, neither a finite number") for text in ("banana", "3 stars", "0,5")),
        *(({"score": [1], "comment": "x"}, "[1]"), ({"rating": {"stars": 1}}, "the score rating is {'stars': 1}")),
        ({"stars": 0, "response_id": "r"}, "no field stars: give score, label, comment or correction"),
    ],
)
def test_feedback_that_says_nothing_plain_is_refused(fields: dict[str, Any], reason: str) -> None:
    [made] = feedback(**fields)
    assert isinstance(made, Unreadable), made
    assert reason in made.reason


def test_fields_of_feedback_that_nobody_reads_are_named() -> None:
    made, other = feedback(score=1, user="u7")
    assert isinstance(made, Conversation)
    assert other == PassedOver("fields user of feedback, which no reader knows")


@pytest.mark.parametrize("kind", ["NUMERIC", "BOOLEAN", "CATEGORICAL"])
def test_only_a_label_may_be_any_word(kind: str) -> None:
    [made] = langfuse_traces.read([{"id": "s", "traceId": "t", "value": "cold", "dataType": kind}], "f")
    assert isinstance(made, Conversation) == (kind == "CATEGORICAL"), made
