"""What producers say about a conversation, in the forms that they have for it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from addons.production.traces import langfuse_traces
from addons.production.traces.opinions import moment, score_of
from addons.production.traces.records import Conversation

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
    [("thumbs-down", 0.0), ("Thumbs up", 1.0), ("4/5", 0.8), ("4 of 5", 0.8), ("4-out-of-5", 0.8), ("80 %", 0.8)],
)
def test_a_word_and_a_share_of_a_whole_need_no_scale(text: str, score: float) -> None:
    assert score_of(text, "ok")[0] == score
