"""Traces: what the agent really did, as OpenTelemetry spans, made from stored trajectories.

    episode                 a trajectory: task and messages in, final result, reward and success out
      turn 1                what was new to the policy, and what it said
        generation          the whole prompt, the completion, tokens, temperature, mean logprob, reasoning
        search_emails       a tool's span for each action: its arguments and its result

and a trace "training" for the run. Each span bears Langfuse's attributes and MLflow's, all masked
(steps/core/masking.py). Ids
are hashes, so that logging again makes no doubles. Times are those that the stage kept beside its outputs, in
timings/*.turns.json; where there are none, spans have no length and say "times: not recorded".

Which are traced, and where they lie: steps/tracing/files.py. Where spans go: steps/tracing/langfuse.py,
steps/tracing/to_mlflow.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from steps.core.masking import Masker
from steps.tracing.spans import Recorder, Score, Trace, as_json, hashed, said, trace_attributes

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import Span

    from environments.base import Message, Scenario
    from steps.core.records import Judgement, Reward, Trajectory, Turn
    from steps.tracing.files import Times

UNRECORDED = "not recorded"
THINKING = re.compile(r"<think>(.*?)(?:</think>|\Z)", re.DOTALL)


class About(NamedTuple):
    """What all episodes of a batch have in common."""

    run: str  # key of the training run: Langfuse's session
    task: str
    model: str
    iteration: str
    split: str
    temperature: float
    max_tokens: int
    environment: str  # Langfuse's
    at: float  # Unix seconds, for spans whose times are not known


def episode(
    recorder: Recorder,
    mask: Masker,
    about: About,
    scenario: Scenario,
    trajectory: Trajectory,
    reward: Reward | None,
    times: Times | None,
    judgement: Judgement | None = None,
) -> Trace:
    """The trace of one trajectory. `judgement` is what a model made of it beside the others of its group."""
    from steps.llm.messages import wire

    masked = [mask(message) for message in trajectory.messages(scenario)]
    sent = [as_json(message) for message in wire(masked)]
    told = _metadata(about, trajectory, reward, times, judgement)
    told = {name: mask.text(value) for name, value in told.items()}
    labels = [about.task, about.split, f"iteration {about.iteration}"]
    common = trace_attributes("episode", about.run, about.environment, labels, told)
    recorder.begin(trace_id(about.run, about.iteration, trajectory), common)

    moments = times or [(about.at,) * 3] * len(trajectory.turns)
    place = len(scenario.messages)
    outcome = {"result": _result(masked[place:]), "reward": reward.score if reward else None}
    outcome |= {"success": reward.success if reward else None, "stop_reason": trajectory.stop_reason}
    given = f'{{"task": {as_json(about.task)}, "messages": [{", ".join(sent[:place])}]}}'
    root = recorder.span(
        "episode",
        "episode",
        "agent",
        (moments[0][0], moments[-1][2]) if moments else (about.at, about.at),
        attributes={
            **said(given, as_json(outcome)),
            "mlflow.traceTag.mlflow.traceName": "episode",
        },
        error=mask.text(trajectory.error or "the episode failed") if trajectory.stop_reason == "error" else None,
    )
    fresh = 0
    for number, (turn, when) in enumerate(zip(trajectory.turns, moments, strict=True), 1):
        asked, answered, done = when
        heard = place + 1 + len(turn.observations)
        parent = recorder.span(
            f"turn {number}",
            f"turn {number}",
            "span",
            (asked, done),
            root,
            said(f"[{', '.join(sent[fresh:place])}]", sent[place]),
        )
        prompt = f"[{', '.join(sent[:place])}]"
        usage = None if not turn.prompt_ids else (len(turn.prompt_ids), len(turn.completion_ids))
        more = _generation(
            mask, about, turn, masked[place], prompt, sent[place], usage, None if times is None else answered - asked
        )
        recorder.span(f"turn {number} generation", "generation", "generation", (asked, answered), parent, more)
        _tools(recorder, number, masked[place], masked[place + 1 : heard], (answered, done), parent)
        fresh, place = place + 1, heard
    return recorder.finish(scores(reward, mask) + judged(trajectory, judgement, mask), told)


def _generation(
    mask: Masker,
    about: About,
    turn: Turn,
    message: Message,
    prompt: str,
    answer: str,
    usage: tuple[int, int] | None,
    latency: float | None,
) -> dict[str, Any]:
    """Attributes of what the policy was asked and said: a chat completion in OpenAI's form, for MLflow's view of it."""
    settings = {"temperature": about.temperature, "max_tokens": about.max_tokens}
    facts: dict[str, Any] = {"finish_reason": turn.finish_reason}
    if turn.logprobs:
        facts["mean_logprob"] = round(sum(turn.logprobs) / len(turn.logprobs), 6)
    if latency is not None:
        facts["latency_seconds"] = round(latency, 5)
    if thoughts := reasoning(message):
        facts["reasoning"] = thoughts
    model = mask.text(about.model)
    found = {
        "langfuse.observation.input": prompt,
        "langfuse.observation.output": answer,
        "langfuse.observation.model.name": model,
        "langfuse.observation.model.parameters": as_json(settings),
        "mlflow.spanInputs": f'{{"model": {as_json(model)}, "messages": {prompt}, "temperature": {about.temperature}}}',
        "mlflow.spanOutputs": (
            f'{{"choices": [{{"index": 0, "message": {answer}, "finish_reason": {as_json(turn.finish_reason)}}}]}}'
        ),
        "mlflow.message.format": "openai",
        "mlflow.llm.model": model,
    }
    if usage is not None:
        read, wrote = usage
        found["langfuse.observation.usage_details"] = as_json({"input": read, "output": wrote, "total": read + wrote})
        total = {"input_tokens": read, "output_tokens": wrote, "total_tokens": read + wrote}
        found["mlflow.chat.tokenUsage"] = as_json(total)
    for name, value in facts.items():
        found[f"langfuse.observation.metadata.{name}"] = value
        found[name] = value
    return found


def _tools(
    recorder: Recorder,
    number: int,
    message: Message,
    heard: Sequence[Message],
    times: tuple[float, float],
    parent: Span,
) -> None:
    """A span for each action. What only their turn's times are known of have those, and say so."""
    calls = message.get("tool_calls") or ()
    for place, call in enumerate(calls):
        result = str(heard[place]["content"]) if place < len(heard) else None  # the episode was over before
        shared = "of all actions of the turn" if len(calls) > 1 else None
        arguments = call["function"]["arguments"]
        recorder.span(
            f"turn {number} tool {place}",
            str(call["function"]["name"]) or "tool",
            "tool",
            times,
            parent,
            {
                **said(as_json(arguments), None if result is None else as_json(result)),
                "langfuse.observation.metadata.times": shared,
                "times": shared,
            },
            result[:500] if result is not None and result.startswith("Error: ") else None,
        )


def training(
    recorder: Recorder, mask: Masker, about: About, settings: Mapping[str, Any], end: float, found: Mapping[str, Any]
) -> Trace:
    """The trace of a training run, from `about.at` to `end`: what it was given, and what it came to."""
    told = {"task": about.task, "run": about.run, "base_model": mask.text(about.model)}
    told |= {name: mask.text(str(value)) for name, value in found.items() if not isinstance(value, Mapping)}
    common = trace_attributes("training", about.run, about.environment, [about.task, "training"], told)
    recorder.begin(hashed(about.run, "training"), common)
    recorder.span(
        "training",
        "training",
        "span",
        (about.at, max(about.at, end)),
        attributes={
            **said(as_json(mask(dict(settings))), as_json(mask(dict(found)))),
            "mlflow.traceTag.mlflow.traceName": "training",
        },
    )
    return recorder.finish([], told)


def trace_id(run: str, iteration: str, trajectory: Trajectory) -> str:
    return hashed(run, iteration, trajectory.id, trajectory.adapter_hash)


def scores(reward: Reward | None, mask: Masker) -> list[Score]:
    """What a reward says, score by score. Unscored is none, never 0."""
    if reward is None:
        return []
    why = mask.text(reward.explanation)
    by_model = "ruler" in reward.name
    found = [Score("success", reward.success, "by the environment's rule", False, "rule")]
    if reward.score is not None:
        found.append(Score("reward", reward.score, why, by_model, reward.name))
    if reward.rule is not None and reward.name != "rule":
        found.append(Score("rule", reward.rule, "the rule's own score", False, "rule"))
    reasons = dict(part.split(": ", 1) for part in why.split("; ") if ": " in part)
    for name, value in reward.components.items():
        judge = name.partition("/")[0]
        model = judge == "ruler" or reward.name == "ruler"
        found.append(Score(f"reward/{name}", value, reasons.get(name, ""), model, reward.name))
    return found


def judged(trajectory: Trajectory, judgement: Judgement | None, mask: Masker) -> list[Score]:
    """What the model that judges gave an attempt, before any weight, and why; none where it could not score it.

    The orders are those in which it was shown: attempts that read alike were shown once, under the name of one of them.
    """
    value = judgement.scores.get(trajectory.id) if judgement is not None else None
    if judgement is None or value is None:
        return []
    seen = []
    for order in judgement.orders:
        if trajectory.id in order.attempts:
            place = order.attempts.index(trajectory.id)
            given = order.scores[place]
            told = "no score" if given is None else f"{given:g}"
            seen.append(f"{told} as number {place + 1} of {len(order.attempts)}")
    why = mask.text(judgement.reasons.get(trajectory.id, ""))
    comment = " ".join(filter(None, (why, f"(in {len(seen)} orders: {'; '.join(seen)})" if seen else "")))
    return [Score("ruler", value, comment, True, f"ruler {judgement.judge}")]


def reasoning(message: Message) -> str:
    """What the policy thought before it answered, where its form shows that."""
    told = message.get("reasoning_content") or message.get("reasoning")
    if told:
        return str(told)
    return "\n".join(THINKING.findall(str(message.get("content") or ""))).strip()


def _metadata(
    about: About,
    trajectory: Trajectory,
    reward: Reward | None,
    times: Times | None,
    judgement: Judgement | None,
) -> dict[str, str]:
    """What a trace can be filtered by."""
    told = {
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
        "times": UNRECORDED if times is None else "recorded",
    }
    if trajectory.error:
        told["error"] = trajectory.error
    if reward is not None and reward.score is None:
        told["unscored"] = reward.explanation
    if judgement is not None and judgement.scores.get(trajectory.id) is None:
        told["not_judged"] = judgement.problem or "not shown to the judge"
    return told


def _result(turns: Sequence[Message]) -> Any:
    """The policy's last word: its last action, else what it wrote."""
    for message in reversed(turns):
        if message["role"] == "assistant":
            calls = message.get("tool_calls") or ()
            return dict(calls[-1]["function"]) if calls else message.get("content") or ""
    return None
