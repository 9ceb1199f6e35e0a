"""Analytics from Langfuse: the episodes of its traces, as steps/tracing/episodes.py writes them, through its public API.

    python -m steps.analytics --langfuse                 # LANGFUSE_HOST, LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY

Traces and observations are read page by page. Only a share of the scenarios is traced (FLYWHEEL_TRACE_RATE), so that what is
counted is less than what was played. Traces hold no slices of scenarios and no account of waste. Nothing is written.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from steps.analytics import analysis
from steps.analytics.episodes import SPLITS, Act, Episode, acts_of
from steps.core.errors import UserError

if TYPE_CHECKING:
    import httpx

    from steps.analytics.analysis import Analysis

PAGE = 100  # rows, the most that the API gives
TRIES, TIMEOUT = 3, 30.0  # of a page; seconds for each


def analyse(by: str, splits: Sequence[str] = (), run: str | None = None) -> Analysis:
    """The latest run's episodes, or those of `run`. UserError where Langfuse is not set up, cannot be read, or has none."""
    import httpx

    from steps.tracing.langfuse import CLOUD

    host = (os.environ.get("LANGFUSE_BASE_URL") or os.environ.get("LANGFUSE_HOST") or CLOUD).rstrip("/")
    keys = [os.environ.get(name, "").strip() for name in ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY")]
    if not all(keys):
        raise UserError(
            "--langfuse needs LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY, of the project's settings in Langfuse"
        )
    with httpx.Client(base_url=host, auth=(keys[0], keys[1]), timeout=TIMEOUT) as client:
        traces = [trace for trace in pages(client, "traces", name="episode") if trace.get("name") == "episode"]
        if not traces:
            raise UserError(
                f"{host} has no traces of episodes: they are sent while a run trains, where the keys are set"
            )
        latest = max(traces, key=lambda trace: str(trace.get("timestamp"))).get("sessionId")
        chosen = run or latest
        own = {trace["id"]: trace for trace in traces if trace.get("sessionId") == chosen}
        if not own:
            raise UserError(f"--run: {host} has no traces of {run}; the latest run is {latest}")
        observations: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for one in pages(client, "observations"):
            if one.get("traceId") in own:
                observations[one["traceId"]].append(one)
    episodes = [episode(trace, observations[name]) for name, trace in own.items()]
    wanted = tuple(splits) or tuple(name for name in SPLITS if any(one.split == name for one in episodes))
    kept = [one for one in episodes if one.split in wanted]
    if not kept:
        raise UserError(f"{host} has no episodes of {', '.join(wanted)} for the run {chosen}")
    others = len({trace.get("sessionId") for trace in traces}) - 1
    note = f"run {chosen}" + (f"; {others} others are there (--run KEY)" if others else "")
    found = analysis.summed(kept, tuple(by.split(",")), wanted, host)
    return found.model_copy(update={"notes": (note,)})


def pages(client: httpx.Client, what: str, **filters: str) -> Iterator[dict[str, Any]]:
    """All rows of /api/public/<what>."""
    number = 1
    while True:
        answer = page(client, f"/api/public/{what}", {**filters, "page": str(number), "limit": str(PAGE)})
        yield from answer["data"]
        if number >= int(answer["meta"]["totalPages"]):
            return
        number += 1


def page(client: httpx.Client, path: str, query: Mapping[str, str]) -> dict[str, Any]:
    """One answer; a server that is busy is asked again. UserError says what it did not like."""
    import httpx

    said = ""
    for attempt in range(TRIES):
        if attempt:
            time.sleep(attempt)
        try:
            answer = client.get(path, params=dict(query))
        except httpx.HTTPError as problem:
            said = f"cannot be reached ({problem})"
            continue
        if answer.status_code in (401, 403):
            raise UserError(
                f"{client.base_url} refuses the keys ({answer.status_code}): see LANGFUSE_PUBLIC_KEY and its secret"
            )
        try:
            if (
                answer.status_code == 200
                and isinstance(found := answer.json(), dict)
                and {"data", "meta"} <= found.keys()
            ):
                return found
        except ValueError:
            pass
        said = f"answers {path} with {answer.status_code} and no page"
        if answer.status_code < 429:
            break
    raise UserError(f"Langfuse at {client.base_url} {said}: see LANGFUSE_HOST")


def episode(trace: Mapping[str, Any], observations: Sequence[Mapping[str, Any]]) -> Episode:
    """A trace as the episode that it was made of."""
    told: Mapping[str, Any] = trace.get("metadata") or {}
    root = next((one for one in observations if one.get("type") == "AGENT"), {})
    outcome = content(root.get("output")) or content(trace.get("output")) or {}
    turns = {int(str(one["name"])[5:]): one for one in observations if str(one.get("name", "")).startswith("turn ")}
    acts: list[Act] = []
    tokens, seconds = 0, []
    for number in sorted(turns):
        inside = [one for one in observations if one.get("parentObservationId") == turns[number]["id"]]
        asked = next((one for one in inside if one.get("type") == "GENERATION"), {})
        tokens += int((asked.get("usageDetails") or {}).get("output", 0))
        if told.get("times") == "recorded" and asked.get("endTime"):
            seconds.append((_moment(asked["endTime"]) - _moment(asked["startTime"])).total_seconds())
        tools = [one for one in inside if one.get("type") == "TOOL"]
        message = content(turns[number].get("output")) or {}
        later = content(turns[number + 1].get("input")) if number + 1 in turns else None
        heard = later if isinstance(later, list) else _answers(message, tools)
        stop = (asked.get("metadata") or {}).get("finish_reason", "stop")
        turn = {"message": json.dumps(_plain(message)), "observations": json.dumps(heard), "finish_reason": stop}
        acts += acts_of(number, turn)
    return Episode(
        id=str(told.get("trajectory", trace["id"])),
        iteration=str(told.get("iteration", "")),
        split=str(told.get("split", "")),
        scenario_id=str(told.get("scenario", "")),
        slices=(),
        turns=len(turns),
        tokens=tokens,
        acts=tuple(acts),
        stop_reason=str(told.get("stop_reason", "")),
        error=told.get("error"),
        score=outcome.get("reward"),
        success=outcome.get("success"),
        latencies=tuple(seconds),
    )


def content(value: Any) -> Any:
    """What was sent: the API gives it as it is, or as the JSON text of it."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message with its calls' arguments as objects: on the wire they are texts."""
    calls = [
        {"function": {"name": call["function"]["name"], "arguments": content(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    return {"content": message.get("content") or "", "tool_calls": calls}


def _answers(message: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a last turn's calls were answered with, in their order: spans of one name are taken as they come."""
    left = list(tools)
    heard = []
    for call in message.get("tool_calls") or ():
        span = next((one for one in left if one.get("name") == call["function"]["name"]), None)
        if span is not None and span.get("output") is not None:
            left.remove(span)
            given = span.get("output")
            told = content(given)
            heard.append({"content": str(given or "") if told is None else str(told)})
    return heard


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)
