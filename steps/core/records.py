"""The core types, and how they are stored: parquet, one row per record.

`Scenario` and `Message` belong to the environments (environments/base.py). Token counts in shapes: P prompt, C completion,
T a whole training row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict

from environments.base import Message, Scenario
from steps.core.parquet import read_columns

R = TypeVar("R", bound=BaseModel)
# Stage of an iteration -> its first output in run/NNN; run/NNN/timings/<output>.json holds the stage's seconds.
OUTPUTS = {"rollout": "trajectories", "score": "rewards", "update": "adapter", "evaluate": "evaluation"}
StopReason = Literal["done", "max_turns", "length", "context", "error"]


class Record(BaseModel):
    """A frozen record that refuses unknown fields, NaN and infinity."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Turn(Record):
    """One sampled turn and the environment's answer."""

    prompt_ids: tuple[int, ...]  # [P] all tokens before this turn
    completion_ids: tuple[int, ...]  # [C] sampled tokens, end-of-turn token included
    logprobs: tuple[float, ...]  # [C] nats, under the policy that sampled them
    message: Message
    observations: tuple[Message, ...]  # empty after the last turn of a finished episode
    finish_reason: Literal["stop", "length"]


class Row(NamedTuple):
    """A training row of T tokens; each list is [T]."""

    ids: list[int]
    mask: list[int]  # 1 where the token was sampled
    logprobs: list[float]  # nats; 0 where it was not


class Trajectory(Record):
    """One attempt at one scenario."""

    id: str
    scenario_id: str
    attempt: int
    adapter_hash: str  # content hash of the adapter that sampled it
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    error: str | None = None

    def fingerprint(self) -> str:
        """A hash of the adapter and what it sampled, by which measurements kept elsewhere, such as times, are found."""
        sampled = [[turn.completion_ids, turn.message] for turn in self.turns]
        whole = json.dumps([self.id, self.adapter_hash, sampled], ensure_ascii=False)
        return hashlib.blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()

    def flatten(self) -> list[Row]:
        """The training rows. A row goes on while each prompt extends all tokens before it; otherwise a new one begins."""
        rows: list[Row] = []
        for turn in self.turns:
            if len(turn.completion_ids) != len(turn.logprobs):
                raise ValueError(
                    f"trajectory {self.id}: {len(turn.completion_ids)} sampled tokens, {len(turn.logprobs)} logprobs"
                )
            prompt = list(turn.prompt_ids)
            if rows and prompt[: len(rows[-1].ids)] == rows[-1].ids:
                added = prompt[len(rows[-1].ids) :]
            else:
                rows.append(Row([], [], []))
                added = prompt
            ids, mask, logprobs = rows[-1]
            ids += [*added, *turn.completion_ids]
            mask += [0] * len(added) + [1] * len(turn.completion_ids)
            logprobs += [0.0] * len(added) + list(turn.logprobs)
        return rows

    def messages(self, scenario: Scenario) -> list[Message]:
        """The transcript: the scenario's messages, then turns and observations."""
        messages = list(scenario.messages)
        for turn in self.turns:
            messages += [turn.message, *turn.observations]
        return messages


class Reward(Record):
    """One judge's score of one trajectory. A trajectory without a score has None, never 0."""

    trajectory_id: str
    scenario_id: str
    name: str  # the judge or judges: "rule", "ruler", "rule+ruler", …
    score: float | None
    success: bool  # by the environment's rule, whichever judge scores
    rule: float | None = None  # the rule's score, kept with another judge's
    weight: float = 1.0
    components: dict[str, float] = {}
    explanation: str = ""


class Order(Record):
    """One order in which a judge was shown a group's attempts (equal ones once), and its scores."""

    attempts: tuple[str, ...]  # trajectory ids, first to last
    scores: tuple[float | None, ...]  # of each attempt
    calls: tuple[str, ...]  # keys of the answers in the ledger; two where the first could not be used
    problem: str = ""


class Probe(Record):
    """A judge's own faults, measured on one group."""

    retest: float | None  # mean distance of the scores when the same question is asked again
    canary_gain: float | None  # score that an attempt gains by telling the judge to score it 1.0
    calls: tuple[str, ...]


class Judgement(Record):
    """A model's scores of the attempts at one scenario; None where it gave none, with the reason in `problem`."""

    scenario_id: str
    judge: str  # identity: hash of model, prompts, rubric, orders and parameters
    scores: dict[str, float | None]  # by trajectory id; means over the orders
    reasons: dict[str, str] = {}
    orders: tuple[Order, ...] = ()
    probe: Probe | None = None
    shortened_to: int | None = None  # characters to which longer messages were cut
    problem: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0


class Evaluation(Record):
    """A policy's results on a split, with one attempt at each scenario."""

    split: str
    adapter_hash: str
    n: int
    success: float  # share of the scenarios
    ci95: tuple[float, float]  # Wilson interval
    reward: float  # mean
    turns: float  # mean
    tokens: float  # mean of sampled tokens
    slices: dict[str, float] = {}  # success by slice


def write_records(records: Iterable[BaseModel], path: Path) -> None:
    """Write parquet: numbers and lists of numbers as such, nested objects as JSON. The same records give the same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [_pack(record.model_dump(mode="json")) for record in records]
    pq.write_table(pa.Table.from_pylist(rows), path, compression="zstd")


def read_records(kind: type[R], path: Path) -> list[R]:
    """All records of a file, checked."""
    return [kind.model_validate(unpack(row)) for row in read_columns(path).to_pylist()]


NESTED = ("messages", "data", "message", "observations", "components", "slices")


def _pack(row: dict[str, Any]) -> dict[str, Any]:
    packed = {key: json.dumps(value, ensure_ascii=False) if key in NESTED else value for key, value in row.items()}
    if "turns" in row and isinstance(row["turns"], Sequence):
        packed["turns"] = [_pack(turn) for turn in row["turns"]]
    return packed


def unpack(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a file as its record has it: nested objects, which lie there as JSON, are read."""
    full = {key: json.loads(value) if key in NESTED else value for key, value in row.items()}
    if isinstance(row.get("turns"), list):
        full["turns"] = [unpack(turn) for turn in row["turns"]]
    return full
