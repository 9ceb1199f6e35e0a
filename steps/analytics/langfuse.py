"""Analyses the episodes that Langfuse holds, which addons/trackers/tracing/episodes.py sent as traces, through its
public API.

    python -m steps.analytics --langfuse                 # LANGFUSE_HOST, LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY

Traces and observations are read page by page. Only a share of the scenarios is traced (FLYWHEEL_TRACE_RATE), so the counts
are lower than what was played. Traces hold neither slices of scenarios nor waste. Nothing is written.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from addons.trackers.tracing.langfuse_pages import PAGE, opened, page
from environments.kit.http_client import Client
from steps.analytics import analysis
from steps.analytics.episodes import SPLITS, Act, EpisodeSummary, acts_of
from steps.core.alike import Groups
from steps.core.errors import UserError


def analyse(by: str, splits: Sequence[str] = (), run: str | None = None) -> analysis.Analysis:
    """Analyse the latest run, or `run`. UserError where Langfuse is not set up, cannot be read, or has no episodes."""
    with opened("--langfuse") as client:
        host = client.base
        traces = [trace for trace in pages(client, "traces", name="episode") if trace.get("name") == "episode"]
        if not traces:
            advice = "they are sent while a run trains, where the keys are set"
            raise UserError(f"{host} has no traces of episodes: {advice}")
        latest = max(traces, key=lambda trace: str(trace.get("timestamp"))).get("sessionId")
        chosen = run or latest
        own = {trace["id"]: trace for trace in traces if trace.get("sessionId") == chosen}
        if not own:
            raise UserError(f"--run: {host} has no traces of {run}; the latest run is {latest}")
        observations: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for observation in pages(client, "observations"):
            if observation.get("traceId") in own:
                observations[observation["traceId"]].append(observation)
    episodes = [summary(trace, observations[name]) for name, trace in own.items()]
    names = tuple(splits) or tuple(name for name in SPLITS if name in {episode.split for episode in episodes})
    counted = [episode for episode in episodes if episode.split in names]
    if not counted:
        raise UserError(f"{host} has no episodes of {', '.join(names)} for the run {chosen}")
    others = len({trace.get("sessionId") for trace in traces}) - 1
    note = f"run {chosen}" + (f"; {others} others are there (--run KEY)" if others else "")
    made = analysis.summed(counted, tuple(by.split(",")), names, host, Groups({}))
    return made.model_copy(update={"notes": (note, *made.notes)})


def pages(client: Client, what: str, **filters: str) -> Iterator[dict[str, Any]]:
    """The rows of all pages of /api/public/<what>."""
    for number in itertools.count(1):
        answer = page(client, f"/api/public/{what}", {**filters, "page": str(number), "limit": str(PAGE)})
        yield from answer["data"]
        if number >= int(answer["meta"]["totalPages"]):
            return


def summary(trace: Mapping[str, Any], observations: Sequence[Mapping[str, Any]]) -> EpisodeSummary:
    """The episode that a trace was made of."""
    metadata: Mapping[str, Any] = trace.get("metadata") or {}
    root = next((span for span in observations if span.get("type") == "AGENT"), {})
    outcome = content(root.get("output")) or content(trace.get("output")) or {}
    turns = {int(str(span["name"])[5:]): span for span in observations if str(span.get("name", "")).startswith("turn ")}
    acts: list[Act] = []
    tokens, seconds = 0, []
    for number in sorted(turns):
        inside = [span for span in observations if span.get("parentObservationId") == turns[number]["id"]]
        generation = next((span for span in inside if span.get("type") == "GENERATION"), {})
        tokens += int((generation.get("usageDetails") or {}).get("output", 0))
        if metadata.get("times") == "recorded" and generation.get("endTime"):
            began, ended = (datetime.fromisoformat(generation[key]) for key in ("startTime", "endTime"))
            seconds.append((ended - began).total_seconds())
        tools = [span for span in inside if span.get("type") == "TOOL"]
        message = content(turns[number].get("output")) or {}
        later = content(turns[number + 1].get("input")) if number + 1 in turns else None
        answers = later if isinstance(later, list) else _answers(message, tools)
        stop = (generation.get("metadata") or {}).get("finish_reason", "stop")
        turn = {"message": json.dumps(_plain(message)), "observations": json.dumps(answers), "finish_reason": stop}
        acts += acts_of(number, turn)
    return EpisodeSummary(
        id=str(metadata.get("trajectory", trace["id"])),
        iteration=str(metadata.get("iteration", "")),
        split=str(metadata.get("split", "")),
        scenario_id=str(metadata.get("scenario", "")),
        slices=(),
        turns=len(turns),
        tokens=tokens,
        acts=tuple(acts),
        stop_reason=str(metadata.get("stop_reason", "")),
        error=metadata.get("error"),
        score=outcome.get("reward"),
        success=outcome.get("success"),
        latencies=tuple(seconds),
    )


def content(value: Any) -> Any:
    """A value as it was sent: the API returns it as it is, or as JSON text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return None


def _plain(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message whose calls have their arguments as objects, not as JSON texts."""
    calls = [
        {"function": {"name": call["function"]["name"], "arguments": content(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or ()
    ]
    return {"content": message.get("content") or "", "tool_calls": calls}


def _answers(message: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The answers to a last turn's calls, in the order of the calls; tools of one name in the order of their spans."""
    spans = list(tools)
    answers = []
    for call in message.get("tool_calls") or ():
        span = next((span for span in spans if span.get("name") == call["function"]["name"]), None)
        if span is not None and span.get("output") is not None:
            spans.remove(span)
            output = content(span["output"])
            answers.append({"content": str(span["output"] or "") if output is None else str(output)})
    return answers
