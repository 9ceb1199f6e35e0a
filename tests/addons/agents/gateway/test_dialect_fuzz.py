"""Whatever JSON a client sends, a dialect gives a Request or raises BadRequest, and nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from addons.agents.gateway.events import as_json
from addons.agents.gateway.types import BadRequest, Request
from tests.support.dialect_bodies import FULL, places, replaced

DEEP: Any = []
for _ in range(3000):
    DEEP = [DEEP]

WORDS = (
    "role content type text system user assistant tool tool_calls function name arguments id tool_call_id messages prompt "
    "input tools tool_choice auto required none any description parameters input_schema json_schema schema object "
    "function_call function_call_output call_id output reasoning summary output_text input_text tool_use tool_result "
    "tool_use_id thinking max_tokens n stop stop_sequences seed logprobs top_logprobs response_format stream stream_options "
    'format item_reference previous_response_id instructions include metadata {} {"a":1} c1 search'
).split()
LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.sampled_from(WORDS) | st.text(max_size=3)
LEAVES |= st.sampled_from(["\ud800", "\0", 2**70, 10**400, "[" * 2000])
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=6),
    max_leaves=20,
)


def outcome(dialect: Any, body: Any) -> str:
    try:
        request = dialect.parse(body)
    except BadRequest as problem:
        as_json(dialect.error(problem, 400))
        f"{problem.message} {problem.param}".encode()  # it can be logged
        return "refused"
    assert isinstance(request, Request)
    json.dumps(list(request), ensure_ascii=False, allow_nan=False).encode()  # it can be kept and hashed
    return "read"


@pytest.mark.parametrize("dialect", FULL)
def test_a_full_request_is_read_and_each_wrong_value_in_it_is_no_crash(dialect: Any) -> None:
    assert outcome(dialect, FULL[dialect]) == "read"
    wrong: list[Any] = [
        None,
        True,
        -1,
        2**70,
        10**5000,
        0.5,
        float("nan"),
        float("inf"),
        "",
        "x",
        "\ud800",
        "\0",
        [],
        {},
    ]
    wrong += [[None], [[]], [{}], {"type": "x"}, {"a": []}, DEEP, object(), ("a",), {1: 2}, b"a"]
    counts = {"read": 0, "refused": 0}
    for path in places(FULL[dialect]):
        for value in wrong:
            counts[outcome(dialect, replaced(FULL[dialect], path, value))] += 1
    assert min(counts.values()) > 10


@pytest.mark.parametrize("dialect", FULL)
def test_any_json_is_read_or_refused(dialect: Any) -> None:
    @settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def check(data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(places(FULL[dialect])))
        outcome(dialect, replaced(FULL[dialect], path, data.draw(JSON)))

    check()
