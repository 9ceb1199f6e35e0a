"""Makes traces from stored trajectories: what the agent did, as OpenTelemetry spans.

    episode                 a trajectory: task and messages in, final result, reward and success out
      turn 1                the messages that were new to the policy, and its answer
        generation          the whole prompt, the completion, tokens, temperature, mean logprob, reasoning
        search_emails       a tool's span for each action: its arguments and its result

A run has a trace of its own, named "training". Every span has the attributes of Langfuse and of MLflow, all masked
(steps/core/masking.py). Ids are hashes, so logging again makes no duplicates. Times are those that the stage kept beside its
outputs, in timings/*.turns.json; without them spans have no length, and are marked "times: not recorded".

Which trajectories are traced: addons/trackers/tracing/files.py. Where the spans go: addons/trackers/tracing/langfuse.py and
addons/trackers/tracing/to_mlflow.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from opentelemetry.sdk.trace import ReadableSpan

from addons.trackers.tracing.spans import Recorder, Trace, TraceScore, as_json, hashed, span_messages
from environments.base import Message, Scenario
from steps.analytics.episodes import Times
from steps.core.masking import Masker
from steps.core.records import Judgement, Reward, Trajectory, Turn
from steps.sampling.wire import wire

THINKING = re.compile(r"<think>(.*?)(?:</think>|\Z)", re.DOTALL)


class About(NamedTuple):
    """What the episodes of a batch have in common."""

    run: str  # key of the training run: Langfuse's session
    task: str
    model: str
    iteration: str
    split: str
    temperature: float
    max_tokens: int
    environment: str  # Langfuse's
    at: float  # Unix seconds, for spans whose times were not recorded


def episode(
    mask: Masker,
    about: About,
    scenario: Scenario,
    trajectory: Trajectory,
    reward: Reward | None,
    times: Times | None,
    judgement: Judgement | None = None,
) -> Trace:
    """The trace of one trajectory. `judgement`: a model's comparison of it with the others of its group."""
    masked = [mask(message) for message in trajectory.messages(scenario)]
    sent = [as_json(message) for message in wire(masked)]
    metadata = _metadata(about, trajectory, reward, times, judgement)
    metadata = {name: mask.text(value) for name, value in metadata.items()}
    labels = [about.task, about.split, f"iteration {about.iteration}"]
    identity = hashed(about.run, about.iteration, trajectory.id, trajectory.adapter_hash)
    recorder = Recorder(identity, "episode", about.run, about.environment, labels, metadata)

    moments = times or [(about.at,) * 3] * len(trajectory.turns)
    place = len(scenario.messages)
    outcome = {"result": _result(masked[place:]), "reward": reward.score if reward else None}
    outcome |= {"success": reward.success if reward else None, "stop_reason": trajectory.stop_reason}
    question = f'{{"task": {as_json(about.task)}, "messages": [{", ".join(sent[:place])}]}}'
    error = mask.text(trajectory.error or "the episode failed") if trajectory.stop_reason == "error" else None
    played = (moments[0][0], moments[-1][2]) if moments else (about.at, about.at)
    root = recorder.span("episode", "agent", played, None, span_messages(question, as_json(outcome)), error)
    fresh = 0
    for number, (turn, when) in enumerate(zip(trajectory.turns, moments, strict=True), 1):
        asked, answered, ended = when
        after = place + 1 + len(turn.observations)  # messages until the end of this turn
        prompt = f"[{', '.join(sent[:place])}]"
        new = span_messages(f"[{', '.join(sent[fresh:place])}]", sent[place])
        parent = recorder.span(f"turn {number}", "span", (asked, ended), root, new)
        latency = None if times is None else answered - asked
        attributes = _generation(mask.text(about.model), about, turn, masked[place], prompt, sent[place], latency)
        path = f"turn {number} generation"
        recorder.span(path, "generation", (asked, answered), parent, attributes, name="generation")
        _tools(recorder, number, masked[place], masked[place + 1 : after], (answered, ended), parent)
        fresh, place = place + 1, after
    return recorder.finish(scores(reward, mask) + judge_scores(trajectory, judgement, mask))


def _generation(
    model: str, about: About, turn: Turn, message: Message, prompt: str, answer: str, latency: float | None
) -> dict[str, Any]:
    """Attributes of one completion: prompt and answer, for MLflow in the form of OpenAI's chat completions."""
    settings = {"temperature": about.temperature, "max_tokens": about.max_tokens}
    facts = {  # those that are None are left out of the span
        "finish_reason": turn.finish_reason,
        "mean_logprob": round(sum(turn.logprobs) / len(turn.logprobs), 6) if turn.logprobs else None,
        "latency_seconds": None if latency is None else round(latency, 5),
        "reasoning": reasoning(message) or None,
    }
    choice = f'{{"index": 0, "message": {answer}, "finish_reason": {as_json(turn.finish_reason)}}}'
    attributes: dict[str, Any] = {
        "langfuse.observation.input": prompt,
        "langfuse.observation.output": answer,
        "langfuse.observation.model.name": model,
        "langfuse.observation.model.parameters": as_json(settings),
        "mlflow.spanInputs": f'{{"model": {as_json(model)}, "messages": {prompt}, "temperature": {about.temperature}}}',
        "mlflow.spanOutputs": f'{{"choices": [{choice}]}}',
        "mlflow.message.format": "openai",
        "mlflow.llm.model": model,
    }
    if turn.prompt_ids:
        details = {"input": len(turn.prompt_ids), "output": len(turn.completion_ids)}
        details["total"] = sum(details.values())
        attributes["langfuse.observation.usage_details"] = as_json(details)
        attributes["mlflow.chat.tokenUsage"] = as_json({f"{name}_tokens": count for name, count in details.items()})
    for name, value in facts.items():
        attributes |= {f"langfuse.observation.metadata.{name}": value, name: value}
    return attributes


def _tools(
    recorder: Recorder,
    number: int,
    message: Message,
    answers: Sequence[Message],
    times: tuple[float, float],
    parent: ReadableSpan,
) -> None:
    """A span for each action. Several actions share the times of their turn, and are marked so."""
    calls = message.get("tool_calls") or ()
    for place, call in enumerate(calls):
        result = str(answers[place]["content"]) if place < len(answers) else None  # None: the episode ended before
        shared = "of all actions of the turn" if len(calls) > 1 else None
        arguments = call["function"]["arguments"]
        attributes = span_messages(as_json(arguments), None if result is None else as_json(result))
        attributes |= {"langfuse.observation.metadata.times": shared, "times": shared}
        error = result[:500] if result is not None and result.startswith("Error: ") else None
        name = str(call["function"]["name"]) or "tool"
        recorder.span(f"turn {number} tool {place}", "tool", times, parent, attributes, error, name)


def training(mask: Masker, about: About, settings: Mapping[str, Any], end: float, results: Mapping[str, Any]) -> Trace:
    """The trace of a training run, from `about.at` to `end`: its settings and its results."""
    metadata = {"task": about.task, "run": about.run, "base_model": mask.text(about.model)}
    metadata |= {name: mask.text(str(value)) for name, value in results.items() if not isinstance(value, Mapping)}
    identity, labels = hashed(about.run, "training"), [about.task, "training"]
    recorder = Recorder(identity, "training", about.run, about.environment, labels, metadata)
    attributes = span_messages(as_json(mask(dict(settings))), as_json(mask(dict(results))))
    recorder.span("training", "span", (about.at, max(about.at, end)), None, attributes)
    return recorder.finish([])


def scores(reward: Reward | None, mask: Masker) -> list[TraceScore]:
    """The scores of a reward: success, reward, and its components. Unscored is no score, never 0."""
    if reward is None:
        return []
    why = mask.text(reward.explanation)
    by_model = "ruler" in reward.name
    values = []
    if reward.success is not None:
        values.append(TraceScore("success", reward.success, "by the environment's rule", False, "rule"))
    if reward.score is not None:
        values.append(TraceScore("reward", reward.score, why, by_model, reward.name))
    if reward.rule is not None and reward.name != "rule":
        values.append(TraceScore("rule", reward.rule, "the rule's own score", False, "rule"))
    reasons = dict(part.split(": ", 1) for part in why.split("; ") if ": " in part)
    for name, value in reward.components.items():
        judge = name.partition("/")[0]
        model = judge == "ruler" or reward.name == "ruler"
        values.append(TraceScore(f"reward/{name}", value, reasons.get(name, ""), model, reward.name))
    return values


def judge_scores(trajectory: Trajectory, judgement: Judgement | None, mask: Masker) -> list[TraceScore]:
    """The score that a judging model gave an attempt, before any weight, with its reason; none where it gave none.

    The comment lists the orders in which the attempt was shown. Of attempts that read alike the judge was shown only one.
    """
    value = judgement.scores.get(trajectory.id) if judgement is not None else None
    if judgement is None or value is None:
        return []
    orders = []
    for order in judgement.orders:
        if trajectory.id in order.attempts:
            place = order.attempts.index(trajectory.id)
            score = "no score" if order.scores[place] is None else f"{order.scores[place]:g}"
            orders.append(f"{score} as number {place + 1} of {len(order.attempts)}")
    why = mask.text(judgement.reasons.get(trajectory.id, ""))
    comment = " ".join(filter(None, (why, f"(in {len(orders)} orders: {'; '.join(orders)})" if orders else "")))
    return [TraceScore("ruler", value, comment, True, f"ruler {judgement.judge}")]


def reasoning(message: Message) -> str:
    """The policy's reasoning before its answer, from a field of its own or between <think> tags; else empty."""
    if text := message.get("reasoning_content") or message.get("reasoning"):
        return str(text)
    return "\n".join(THINKING.findall(str(message.get("content") or ""))).strip()


def _metadata(
    about: About, trajectory: Trajectory, reward: Reward | None, times: Times | None, judgement: Judgement | None
) -> dict[str, str]:
    """The metadata of a trace, by which traces are filtered."""
    metadata = {
        "task": about.task,
        "base_model": about.model,
        "adapter": trajectory.adapter_hash,
        "run": about.run,
        "iteration": about.iteration,
        "split": about.split,
        "scenario": trajectory.scenario_id,
        "attempt": str(trajectory.attempt),
        "trajectory": trajectory.id,
        "stop_reason": trajectory.stop_reason,
        "times": "not recorded" if times is None else "recorded",
    }
    if trajectory.error:
        metadata["error"] = trajectory.error
    if reward is not None and reward.score is None:
        metadata["unscored"] = reward.explanation
    if judgement is not None and judgement.scores.get(trajectory.id) is None:
        metadata["not_judged"] = judgement.problem or "not shown to the judge"
    return metadata


def _result(turns: Sequence[Message]) -> Any:
    """The result of an episode: the policy's last action, or its last text where that had no action."""
    for message in reversed(turns):
        if message["role"] == "assistant":
            calls = message.get("tool_calls") or ()
            return dict(calls[-1]["function"]) if calls else message.get("content") or ""
    return None
