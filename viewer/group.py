"""The details of a group: the turns, tokens and rewards of its attempts, read from disk when a person opens it.

The agent's text stays plain text: this module makes no HTML. The package `tokenizers` reads tokenizer.json without
transformers, which takes 12 s to load. Nothing is downloaded.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from environments.kit.pictures import marked
from steps.core.parquet import read_columns, unreadable
from steps.core.records import sampled_mask
from steps.core.yaml_text import read_mapping
from steps.training.fates import DROPPED, token_fates
from viewer.index import AttemptGroup, AttemptSummary, Index, TrajectoryFile, line, stamp
from viewer.runs import LONGEST

# Lower ends of the probability bands, each with its own colour and legend.
LIKELY = (
    (0.95, "95 % and more"),
    (0.7, "70 to 95 %"),
    (0.4, "40 to 70 %"),
    (0.1, "10 to 40 %"),
    (0.01, "1 to 10 %"),
    (0.0, "below 1 %"),
)


class Token(NamedTuple):
    """A sampled token: text, place in LIKELY (None without a logprob, as in greedy evaluations), text on hovering."""

    text: str
    band: int | None
    about: str


class ShownCall(NamedTuple):
    name: str
    arguments: list[tuple[str, str]]  # name and value; arguments that are not an object are one value without a name


class ShownMessage(NamedTuple):
    """A message of the environment or of the scenario."""

    role: str
    name: str
    content: str


class ShownTurn(NamedTuple):
    number: int
    prompt: int  # tokens before it
    context: str  # the part of the prompt that is new since the turn before, as text
    fresh: bool  # the prompt does not extend the turn before, so a training row starts here
    tokens: list[Token]
    content: str
    calls: list[ShownCall]
    answers: list[ShownMessage]
    cut: bool  # cut off at max_tokens
    logprob: float | None  # mean over the sampled tokens, nats
    dropped: str  # why its tokens are not trained on; empty where they are, or where nobody knows yet
    branches: list[ShownBranch]  # that fork behind it


class ShownBranch(NamedTuple):
    """Turns that continue one another, which is a training row, and why they do not continue what came before."""

    cause: str
    turns: list[ShownTurn]


class RewardPart(NamedTuple):
    """A component of a reward with its reason."""

    name: str
    value: float
    why: str


class FullAttempt(NamedTuple):
    """An attempt with all its details."""

    attempt: AttemptSummary
    branches: list[ShownBranch]  # one, unless a prompt did not extend what came before
    judge: str  # name of the judge that scored it
    parts: list[RewardPart]
    explanation: str
    to_mean: float | None  # reward minus the mean of its group
    logprob: float | None  # mean of all sampled tokens, nats
    duplicate_of: int | None  # the first attempt with exactly the same sampled tokens


def full(index: Index, group: AttemptGroup) -> list[FullAttempt]:
    """The attempts of the group, in order. Empty if its file has just been replaced by one without the group."""
    batch = index.batches[group.batch]
    rows = {row["id"]: row for row in records(batch.trajectories, "scenario_id", group.scenario)}
    rewards = {row["trajectory_id"]: row for row in records(batch.rewards, "scenario_id", group.scenario)}
    mean = line(group, group.attempts, ()).reward or 0.0
    words = tokenizer(index.run, batch)
    fates = read_fates(batch)
    attempts = []
    first: dict[tuple[tuple[int, ...], ...], int] = {}
    for attempt in group.attempts:
        if attempt.id in rows:
            reward = rewards.get(attempt.id, {})
            own = rows[attempt.id]["turns"] or ()
            with damage_named(batch.trajectories):
                shown, logprobs = branches(own, words, fates.get(attempt.id, ""))
            duplicate_of = first.setdefault(tuple(tuple(turn["completion_ids"] or ()) for turn in own), attempt.number)
            with damage_named(batch.rewards):
                about = (reward.get("name", ""), *components(reward))
            to_mean = None if attempt.reward is None or len(group.attempts) == 1 else attempt.reward - mean
            logprob = sum(logprobs) / len(logprobs) if logprobs else None
            duplicate = duplicate_of if duplicate_of != attempt.number else None
            attempts.append(FullAttempt(attempt, shown, *about, to_mean, logprob, duplicate))
    return attempts


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """UserError names the file where its content is not what this project writes, such as JSON with a flipped bit."""
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError) as problem:
        raise unreadable(path, f"{type(problem).__name__}: {problem}") from None


def records(path: Path, column: str, value: str) -> list[dict[str, Any]]:
    """The rows of a parquet file with this value in a column, unchanged: nested objects are JSON."""
    import pyarrow.compute as pc

    try:
        table = read_columns(path)  # pyarrow's filters read as much, and load 0.1 s of modules first
    except FileNotFoundError:  # it is not there yet, or is being rewritten
        return []
    if not table.num_rows:  # a file without rows has no columns either
        return []
    rows: list[dict[str, Any]] = table.filter(pc.equal(table[column], value)).to_pylist()
    return rows


def read_fates(batch: TrajectoryFile) -> dict[str, str]:
    """What became of each trajectory in the update, by id; empty before it, and for evaluations."""
    path = batch.folder / "fates.json"
    if not path.is_file():
        return {}
    with damage_named(path):
        return {str(name): str(fate) for name, fate in json.loads(path.read_text()).items()}


def branches(rows: Sequence[Mapping[str, Any]], words: Any, fate: str = "") -> tuple[list[ShownBranch], list[float]]:
    """The turns of a trajectory as a tree, and the logprobs of all its sampled tokens (nats).

    A turn continues the longest turn with whose tokens its prompt begins; where another turn continues that one already, it
    is a branch of its own. `fate`: what became of the trajectory in the update.
    """
    roots: list[ShownBranch] = []
    every: list[float] = []
    ends: list[tuple[list[int], ShownTurn, ShownBranch]] = []
    for number, row in enumerate(rows, 1):
        prompt, sampled, logprobs = (list(row[name] or ()) for name in ("prompt_ids", "completion_ids", "logprobs"))
        continued = [end for end in ends if prompt[: len(end[0])] == end[0]]
        before, parent, branch = max(reversed(continued), key=lambda end: len(end[0]), default=([], None, None))
        if fresh := branch is None or branch.turns[-1] is not parent:
            branch = ShownBranch(str(row.get("fork") or ""), [])
            (parent.branches if parent else roots).append(branch)
        message, answers = json.loads(row["message"]), json.loads(row["observations"])
        shown = ShownTurn(
            number,
            len(prompt),
            text(prompt[len(before) :], words),
            fresh and number > 1,
            tokens(sampled, logprobs, words),
            str(message.get("content") or ""),
            [call(entry) for entry in message.get("tool_calls") or ()],
            [shown_message(entry) for entry in answers],
            row["finish_reason"] == "length",
            sum(logprobs) / len(logprobs) if logprobs else None,
            dropped(
                fate, sampled_mask(len(sampled), logprobs, bool(row.get("is_constrained")), row.get("grammar") or "")
            ),
            [],
        )
        branch.turns.append(shown)
        ends.append((prompt + sampled, shown, branch))
        every += logprobs
    return roots, every


def dropped(fate: str, mask: list[int]) -> str:
    """Why no token of a turn is trained on; empty where one is."""
    names = [name for name, count in token_fates(fate, mask).items() if count]
    return DROPPED.get(names[0], "") if len(names) == 1 else ""


def call(tool_call: Mapping[str, Any]) -> ShownCall:
    """A tool call as the model wrote it. Its arguments may be an object or any other value."""
    function = tool_call.get("function") or {}
    arguments = function.get("arguments")
    pairs = arguments.items() if isinstance(arguments, dict) else [("", arguments)]
    return ShownCall(str(function.get("name", "")), [(str(name), value(inside)) for name, inside in pairs])


def shown_message(message: Mapping[str, Any]) -> ShownMessage:
    content = marked(dict(message)) if message.get("pictures") else message.get("content")
    shown = content if isinstance(content, str) else "" if content is None else value(content)
    return ShownMessage(str(message.get("role", "")), str(message.get("name", "")), shown)


def value(inside: Any) -> str:
    return json.dumps(inside, ensure_ascii=False)


def components(reward: Mapping[str, Any]) -> tuple[list[RewardPart], str]:
    """The components of a reward with their reasons ("name: why; name: why"), and an explanation in any other form."""
    values = json.loads(reward.get("components") or "{}")
    explanation = str(reward.get("explanation") or "")
    name = "|".join(map(re.escape, values))
    # A reason may contain "; ", too: it ends only where the name of a component follows.
    pattern = rf"(?:^|; )({name}): (.*?)(?=; (?:{name}): |\Z)"
    reasons = dict(re.findall(pattern, explanation, re.DOTALL)) if values else {}
    parts = [RewardPart(name, number, reasons.get(name, "")) for name, number in values.items()]
    return parts, "" if parts and all(part.why for part in parts) else explanation


def asked(run: Path, scenario: str) -> dict[str, list[Any]]:
    """The scenario from run/scenarios: "messages", and "hidden" data as (name, JSON). Empty if no file holds it."""
    for path in sorted((run / "scenarios").glob("*.parquet")):
        for row in records(path, "id", scenario):
            with damage_named(path):
                hidden = [(name, value(inside)) for name, inside in json.loads(row["data"]).items()]
                messages = [shown_message(message) for message in json.loads(row["messages"])]
                return {"messages": messages, "hidden": hidden}
    return {"messages": [], "hidden": []}


def opinion(batch: TrajectoryFile, scenario: str) -> dict[str, Any] | None:
    """The judge's opinion of this group in judgements.jsonl, or None.

    "scores" and "reasons" are by trajectory id, "orders" is the number of orders in which the judge saw the attempts.
    """
    path = batch.folder / "judgements.jsonl"
    if not path.is_file():
        return None
    with damage_named(path), path.open(encoding="utf-8") as entries:
        for entry in entries:
            if scenario in entry and (judgement := json.loads(entry)).get("scenario_id") == scenario:
                orders = len(judgement.get("orders", ()))
                return {"reasons": {}, "problem": "", **judgement, "orders": orders}
    return None


def tokens(ids: Sequence[int], logprobs: Sequence[float], words: Any) -> list[Token]:
    """The sampled tokens. A token that is only part of a character shows what the decoder makes of it."""
    shown = []
    every = logprobs if len(logprobs) == len(ids) else [None] * len(ids)
    for before, number, logprob in zip([None, *ids], ids, every, strict=False):
        about, likely = "no logprob was kept", None
        if logprob is not None:
            about, likely = f"log probability {logprob:.4f} = {math.exp(min(logprob, 0.0)):.2%}", band(logprob)
        shown.append(Token(piece(before, number, words), likely, f"{about} · token {number}"))
    return shown


def band(logprob: float) -> int:
    """The place in LIKELY of a token with this logprob (nats)."""
    likely = math.exp(min(logprob, 0.0))
    return next(number for number, (low, _) in enumerate(LIKELY) if likely >= low)


def piece(before: int | None, number: int, words: Any) -> str:
    """The text that a token adds after another. Some decoders drop a leading space if no token precedes it."""
    if words is None:
        return f"{number} "
    if before is None:
        return str(words.decode([number], skip_special_tokens=False))
    alone, both = (words.decode(ids, skip_special_tokens=False) for ids in ([before], [before, number]))
    # The bytes of a character may be spread over two tokens; the first alone decodes to a replacement character.
    return str(both.removeprefix(alone if both.startswith(alone) else alone.rstrip("\ufffd")))


def text(ids: Sequence[int], words: Any) -> str:
    return " ".join(map(str, ids)) if words is None else str(words.decode(list(ids), skip_special_tokens=False))


def tokenizer(run: Path, batch: TrajectoryFile) -> Any:
    """The tokenizer of the base model, or None if it is not on this machine; nothing is downloaded.

    The model's name is read from the adapter that sampled (run/NNN/adapter), or from params.yaml beside the run.
    """
    name, revision = base_model(run, batch)
    path = find(name, revision, run.resolve().parent)
    return load(str(path), stamp(path)) if path else None


def base_model(run: Path, batch: TrajectoryFile) -> tuple[str, str | None]:
    for folder in (run / batch.iteration, run / "000"):
        config = folder / "adapter" / "adapter_config.json"
        if config.is_file():
            settings = read_mapping(config.read_bytes(), config)  # JSON is YAML
            return str(settings.get("base_model_name_or_path") or "")[:LONGEST], settings.get("revision")
    params = run.resolve().parent / "params.yaml"
    if params.is_file():
        policy = read_mapping(params.read_bytes(), params).get("policy") or {}
        if isinstance(policy, dict):
            return str(policy.get("base_model") or "")[:LONGEST], policy.get("revision")
    return "", None


def find(name: str, revision: str | None, root: Path) -> Path | None:
    """The tokenizer.json of a folder, or of a Hugging Face name in the cache of downloads; None if there is none."""
    if not name:
        return None
    here = root / name / "tokenizer.json"
    if here.is_file():
        return here
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    kept = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    main = kept / "refs" / (revision or "main")
    commit = main.read_text().strip() if main.is_file() else revision or ""
    snapshot = kept / "snapshots" / commit / "tokenizer.json"
    return snapshot if commit and snapshot.is_file() else None


@lru_cache(maxsize=4)
def load(path: str, version: object) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(path)
    except Exception:  # its errors have no class of their own; pages show token ids instead
        return None
