"""One group in full, for `viewer.app`: each attempt's turns, tokens and rewards, read from disk when a person opens it.

What the agent said stays text: nothing here is HTML.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from steps.core.parquet import read_columns
from viewer.index import Attempt, Batch, Group, Index
from viewer.tokens import Token, text, tokenizer, tokens


class Call(NamedTuple):
    name: str
    arguments: list[tuple[str, str]]  # name and value; a call that is no object has one, without a name


class Said(NamedTuple):
    """A message of the environment, or of the scenario."""

    role: str
    name: str
    content: str


class Turn(NamedTuple):
    number: int
    prompt: int  # tokens before it
    context: str  # those of them that came since the turn before: not sampled
    fresh: bool  # the prompt does not extend what came before, so that a training row begins here
    tokens: list[Token]
    content: str
    calls: list[Call]
    answers: list[Said]
    cut: bool  # at max_tokens
    logprob: float | None  # mean, nats


class Part(NamedTuple):
    """A component of a reward, with its reason."""

    name: str
    value: float
    why: str


class Full(NamedTuple):
    """An attempt with all that is known of it."""

    attempt: Attempt
    turns: list[Turn]
    judge: str  # who scored
    parts: list[Part]
    explanation: str
    to_mean: float | None  # reward minus the mean of its group
    logprob: float | None  # mean of all sampled tokens, nats
    like: int | None  # the first attempt that sampled the very same tokens: between the two there is nothing to learn


class Asked(NamedTuple):
    """The scenario: what the policy saw first, and what only the environment knows."""

    messages: list[Said]
    known: list[tuple[str, str]]


class Opinion(NamedTuple):
    """What a judge said of the group (run/NNN/judgements.jsonl)."""

    scores: Mapping[str, float | None]  # by trajectory id
    reasons: Mapping[str, str]
    orders: int  # in which it was shown the attempts
    problem: str


def full(index: Index, group: Group) -> list[Full]:
    """The group's attempts, in order. Empty where its file has just been replaced by one without it."""
    batch = index.batches[group.batch]
    rows = {row["id"]: row for row in records(batch.trajectories, "scenario_id", group.scenario)}
    rewards = {}
    if batch.rewards.is_file():
        rewards = {row["trajectory_id"]: row for row in records(batch.rewards, "scenario_id", group.scenario)}
    scored = [one.reward for one in group.attempts if one.reward is not None]
    mean = sum(scored) / len(scored) if scored else 0.0
    words = tokenizer(index.run, batch)
    found = []
    first: dict[tuple[tuple[int, ...], ...], int] = {}
    for one in group.attempts:
        if one.id in rows:
            reward = rewards.get(one.id, {})
            own = rows[one.id]["turns"] or ()
            told, logprobs = turns(own, words)
            like = first.setdefault(tuple(tuple(turn["completion_ids"] or ()) for turn in own), one.number)
            parts, rest = components(reward)
            found.append(
                Full(
                    one,
                    told,
                    reward.get("name", ""),
                    parts,
                    rest,
                    None if one.reward is None or len(group.attempts) == 1 else one.reward - mean,
                    sum(logprobs) / len(logprobs) if logprobs else None,
                    like if like != one.number else None,
                )
            )
    return found


def records(path: Path, column: str, value: str) -> list[dict[str, Any]]:
    """Rows of a parquet file with this value, as they lie there: nested objects are JSON."""
    import pyarrow.compute as pc

    try:
        table = read_columns(path)  # filters would read as much, and load modules for 0.1 s first
    except FileNotFoundError:  # it is being written anew
        return []
    if not table.num_rows:  # it has no columns then
        return []
    found: list[dict[str, Any]] = table.filter(pc.equal(table[column], value)).to_pylist()
    return found


def turns(rows: Sequence[Mapping[str, Any]], words: Any) -> tuple[list[Turn], list[float]]:
    """The turns of a trajectory, and the logprobs of all its sampled tokens."""
    told: list[Turn] = []
    every: list[float] = []
    before: list[int] = []
    for number, row in enumerate(rows, 1):
        prompt, sampled, logprobs = (list(row[name] or ()) for name in ("prompt_ids", "completion_ids", "logprobs"))
        extends = prompt[: len(before)] == before
        message, answers = json.loads(row["message"]), json.loads(row["observations"])
        told.append(
            Turn(
                number,
                len(prompt),
                text(prompt[len(before) :] if extends else prompt, words),
                not extends,
                tokens(sampled, logprobs, words),
                str(message.get("content") or ""),
                [call(one) for one in message.get("tool_calls") or ()],
                [said(one) for one in answers],
                row["finish_reason"] == "length",
                sum(logprobs) / len(logprobs) if logprobs else None,
            )
        )
        every += logprobs
        before = prompt + sampled
    return told, every


def call(one: Mapping[str, Any]) -> Call:
    """A tool call as a model made it: its arguments may be an object, or any text."""
    function = one.get("function") or {}
    arguments = function.get("arguments")
    pairs = arguments.items() if isinstance(arguments, dict) else [("", arguments)]
    return Call(str(function.get("name", "")), [(str(name), value(inside)) for name, inside in pairs])


def said(message: Mapping[str, Any]) -> Said:
    content = message.get("content")
    shown = content if isinstance(content, str) else "" if content is None else value(content)
    return Said(str(message.get("role", "")), str(message.get("name", "")), shown)


def value(inside: Any) -> str:
    return json.dumps(inside, ensure_ascii=False)


def components(reward: Mapping[str, Any]) -> tuple[list[Part], str]:
    """A reward's parts with their reasons ("name: why; name: why"), and the explanation where it is not theirs."""
    values = json.loads(reward.get("components") or "{}")
    explanation = str(reward.get("explanation") or "")
    reasons = dict(part.split(": ", 1) for part in split(explanation, values))
    parts = [Part(name, number, reasons.get(name, "")) for name, number in values.items()]
    return parts, "" if parts and all(part.why for part in parts) else explanation


def split(explanation: str, names: Mapping[str, Any]) -> list[str]:
    """At each "; " that a component's name follows: a reason may hold one too."""
    found: list[str] = []
    for part in explanation.split("; "):
        if part.split(": ", 1)[0] in names and ": " in part:
            found.append(part)
        elif found:
            found[-1] += f"; {part}"
    return found


def asked(run: Path, scenario: str) -> Asked:
    """The scenario from run/scenarios; empty where none of its files holds it."""
    for path in sorted((run / "scenarios").glob("*.parquet")):
        for row in records(path, "id", scenario):
            known = [(name, value(inside)) for name, inside in json.loads(row["data"]).items()]
            return Asked([said(one) for one in json.loads(row["messages"])], known)
    return Asked([], [])


def opinion(batch: Batch, scenario: str) -> Opinion | None:
    """What a judge said of this group; None where none was asked."""
    path = batch.folder / "judgements.jsonl"
    if not path.is_file():
        return None
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            if scenario in line and (found := json.loads(line)).get("scenario_id") == scenario:
                orders = found.get("orders", ())
                return Opinion(found["scores"], found.get("reasons", {}), len(orders), found.get("problem", ""))
    return None
