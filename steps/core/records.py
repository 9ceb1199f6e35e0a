"""The core types, and how they lie on disk (parquet, one row each).

`Scenario` and `Message` belong to the environments (environments/base.py). Token counts in shapes: P prompt, C completion,
T a whole training row.
"""

from __future__ import annotations

import hashlib
import json
import operator
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from environments.base import Message, Scenario
from environments.kit.values import Result
from steps.core import pictures as images
from steps.core.parquet import DAMAGE, read_columns, unreadable

R = TypeVar("R", bound=BaseModel)
# An iteration's stages in their order, and the first output of each in run/NNN: seconds stand in timings/<output>.json.
ITERATION_STAGES = {"rollout": "trajectories", "score": "rewards", "update": "adapter", "evaluate": "evaluation"}
PAIRS = "pairs.jsonl"  # of an evaluation that a judge compared: one Pair for each scenario, in their order
StopReason = Literal["done", "max_turns", "length", "context", "error"]


class Record(BaseModel):
    """A frozen record; unknown fields are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Turn(Record):
    """One sampled turn and what the environment answered."""

    prompt_ids: tuple[int, ...]  # [P] all tokens before this turn
    completion_ids: tuple[int, ...]  # [C] sampled tokens, the end-of-turn token included
    logprobs: tuple[float, ...]  # [C] nats, of the policy that sampled
    message: Message
    observations: tuple[Message, ...]  # none after the last turn of a finished episode
    finish_reason: Literal["stop", "length"]
    # Of agents behind the gateway (addons/agents/gateway/): why the turn does not continue an earlier one, the messages
    # that it was shown where it does not, whether a grammar chose among its tokens, and which: JSON that the update can
    # replay. Without it the turn is not trained on.
    fork: str = ""
    context: tuple[Message, ...] = ()
    is_constrained: bool = False
    grammar: str = ""
    pictures: tuple[images.Shown, ...] = Field((), exclude_if=operator.not_)  # among the prompt's tokens, in order

    @property
    def mask(self) -> list[int]:
        """[C] 1 for each sampled token that can bear loss. Where a grammar left no choice, the logprob is 0 exactly."""
        return sampled_mask(len(self.completion_ids), self.logprobs, self.is_constrained, self.grammar)

    @property
    def trained_logprobs(self) -> list[float]:
        """[C] nats; 0 where the mask is."""
        if not self.is_constrained:
            return list(self.logprobs)
        return [logprob if bears_loss else 0.0 for logprob, bears_loss in zip(self.logprobs, self.mask, strict=True)]

    @property
    def length(self) -> int:
        """Tokens of the prompt and sampled ones."""
        return len(self.prompt_ids) + len(self.completion_ids)


class Stretch(NamedTuple):
    """Tokens of a row that were sampled one after another under a grammar."""

    start: int
    stop: int
    grammar: str  # the JSON of Turn.grammar


class Row(NamedTuple):
    """A training row: [T] each."""

    ids: list[int]
    mask: list[int]  # 1 = sampled token
    logprobs: list[float]  # nats; 0 where not sampled
    stretches: tuple[Stretch, ...] = ()
    pictures: tuple[images.Shown, ...] = ()  # with their bytes


def sampled_mask(count: int, logprobs: Sequence[float], is_constrained: bool, grammar: str) -> list[int]:
    """Turn.mask, of a turn's fields; `count`: sampled tokens."""
    if not is_constrained or not grammar or len(logprobs) != count:
        return [int(not is_constrained)] * count
    return [int(logprob != 0) for logprob in logprobs]


def fingerprint(name: str, adapter_hash: str, sampled: Sequence[tuple[Sequence[int], Any]]) -> str:
    """The fingerprint of a trajectory, from its id, its adapter, and (completion_ids, message) of each turn."""
    whole = json.dumps([name, adapter_hash, sampled], ensure_ascii=False)
    return hashlib.blake2b(whole.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


class Trajectory(Record):
    """One attempt at one scenario."""

    id: str
    scenario_id: str
    attempt: int
    adapter_hash: str  # content hash of the adapter that sampled it
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    error: str | None = None
    result: Result | None = None  # what an agent's own rollout function returned
    pictures: dict[str, str] = Field({}, exclude_if=operator.not_)  # base64 by SHA-256, of those that its turns show

    def fingerprint(self) -> str:
        """A hash of who sampled what: what is measured of a trajectory beside it, as its times, is found again by this."""
        return fingerprint(self.id, self.adapter_hash, [(turn.completion_ids, turn.message) for turn in self.turns])

    @property
    def is_from_gateway(self) -> bool:
        """Whether an agent of one's own asked for the turns: they may fork, be cut off in between, or end by a stop text."""
        return any(turn.context for turn in self.turns)

    def flatten(self) -> list[Row]:
        """The training rows.

        A turn extends the longest row that its prompt begins with, the latest of several; where there is none, it begins a
        row with its whole prompt as context. Each sampled token bears loss in one row, and in none where `Turn.mask` is 0.
        """
        return [row for row, _ in self._rows()]

    def turns_of_rows(self) -> list[list[int]]:
        """For each of `flatten`'s rows, the places of the turns whose sampled tokens are in it, in their order."""
        return [places for _, places in self._rows()]

    def _rows(self) -> list[tuple[Row, list[int]]]:
        rows: list[tuple[Row, list[int]]] = []
        for place, turn in enumerate(self.turns):
            if len(turn.completion_ids) != len(turn.logprobs):
                raise ValueError(
                    f"trajectory {self.id}: {len(turn.completion_ids)} sampled tokens, {len(turn.logprobs)} logprobs"
                )
            prompt = turn.prompt_ids
            extended = [number for number, (row, _) in enumerate(rows) if continues(turn, row.ids, row.pictures)]
            number = max(extended, key=lambda number: (len(rows[number][0].ids), number), default=len(rows))
            if not extended:
                rows.append((Row([], [], []), []))
            row, places = rows[number]
            places.append(place)
            if turn.pictures:
                row = row._replace(pictures=images.filled(turn.pictures, self.pictures))
                rows[number] = row, places
            added = prompt[len(row.ids) :]
            row.ids.extend((*added, *turn.completion_ids))
            row.mask.extend([0] * len(added) + turn.mask)
            row.logprobs.extend([0.0] * len(added) + turn.trained_logprobs)
            if turn.grammar:
                stretch = Stretch(len(prompt), turn.length, turn.grammar)
                rows[number] = row._replace(stretches=(*row.stretches, stretch)), places
        return rows

    def messages(self, scenario: Scenario) -> list[Message]:
        """The transcript: the scenario's messages, then turns and observations.

        Of an agent that asked by itself, it is the conversation of its last request: what was shown where that conversation
        was last sent whole, then the turns that continue it. Other branches, such as those of sub-agents, are not in it.
        """
        if not self.is_from_gateway:
            turns = (message for turn in self.turns for message in (turn.message, *turn.observations))
            return [*scenario.messages, *turns]
        place = max(place for place, turn in enumerate(self.turns) if turn.fork != "alternative" or not place)
        branch = [self.turns[place]]
        while not branch[0].context and (before := self.before(place)) is not None:
            place = before
            branch.insert(0, self.turns[place])
        return [*branch[0].context, *(message for turn in branch for message in (turn.message, *turn.observations))]

    def before(self, place: int) -> int | None:
        """The earlier turn with whose tokens the prompt of turn `place` begins: the longest, and the latest of several."""
        asked, earlier = self.turns[place], list(enumerate(self.turns[:place]))
        longest_first = sorted(earlier, key=lambda entry: (-entry[1].length, -entry[0]))
        return next(
            (
                number
                for number, turn in longest_first
                if continues(asked, turn.prompt_ids + turn.completion_ids, turn.pictures)
            ),
            None,
        )


def continues(turn: Turn, ids: Sequence[int], pictures: Sequence[images.Shown]) -> bool:
    """Whether a turn's prompt begins with these token ids and the pictures among them."""
    if not begins(turn.prompt_ids, ids):
        return False
    return not (turn.pictures or pictures) or images.before(turn.pictures, len(ids)) == images.before(
        pictures, len(ids)
    )


def begins(prompt: tuple[int, ...], ids: Sequence[int]) -> bool:
    """Whether a prompt begins with these token ids. Where it does not, most differ in the last one already."""
    length = len(ids)
    return length <= len(prompt) and (not length or prompt[length - 1] == ids[-1]) and prompt[:length] == tuple(ids)


class Reward(Record):
    """One judge's score of one trajectory. Unscored is None, never 0."""

    trajectory_id: str
    scenario_id: str
    name: str  # which judge, or judges: "rule", "ruler", "rule+ruler", …
    score: float | None
    success: bool | None  # by the environment's rule, whoever scores; None where there is no rule
    rule: float | None = None  # the rule's own score, kept beside another judge's
    weight: float = 1.0
    components: dict[str, float] = {}
    explanation: str = ""


class Order(Record):
    """One order in which a judge was shown a group's attempts (those that read alike once), and what it answered."""

    # Trajectory ids, first to last; "longer copy" and "long copy" for the copies that measure the liking of length
    attempts: tuple[str, ...]
    scores: tuple[float | None, ...]  # of each
    calls: tuple[str, ...]  # keys of the answers in the ledger: one, or two where the first could not be used
    problem: str = ""


class Probe(Record):
    """What a judge's own faults were measured as, on one group."""

    retest: float | None  # mean distance of scores when the same is asked again
    canary_gain: float | None  # what an attempt gains by telling the judge to score it 1.0
    calls: tuple[str, ...]


class Judgement(Record):
    """What a model made of the attempts at one scenario. Unscored is None, with the reason in `problem`."""

    scenario_id: str
    judge: str  # identity: hash of model, prompts, rubric, orders and parameters
    scores: dict[str, float | None]  # by trajectory id; from all orders, without the effects of place and length
    reasons: dict[str, str] = {}
    orders: tuple[Order, ...] = ()
    # What a copy gains by being as long as the longest; None: none was shown or scored
    length_gain: float | None = None
    probe: Probe | None = None
    shortened_to: int | None = None  # characters of a message, where longer ones lost their middle
    problem: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float = 0.0


class Pair(Record):
    """A policy's attempt at a scenario beside another policy's, as a judge compares them where the task has no rule."""

    scenario_id: str
    score: float  # 1: better in both orders, 0: worse in both, 0.5: a tie
    reason: str  # why this score
    # None: no judge had to be asked; attempts are named <adapter>/<trajectory id> in it
    judgement: Judgement | None = None


def write_records(records: Iterable[BaseModel], path: Path) -> None:
    """Parquet: numbers and lists of numbers as such, nested objects as JSON. Same records, same bytes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [record.model_dump(mode="json") for record in records]
    images.store_once(rows)
    rows = [_pack(row) for row in rows]
    pq.write_table(pa.Table.from_pylist(rows), path, compression="zstd")


def read_records(kind: type[R], path: Path) -> list[R]:
    """All records of a file, validated. UserError where the file is damaged, or is not of this kind."""
    try:
        rows = [unpack(row) for row in read_columns(path).to_pylist()]
        images.restore(rows)
        return [kind.model_validate(row) for row in rows]
    except (*DAMAGE, AttributeError, RecursionError) as problem:  # pydantic's and JSON's errors are ValueErrors
        reason = (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200]
        raise unreadable(path, f"a row is no {kind.__name__}: {reason}") from None


NESTED = ("messages", "data", "message", "observations", "context", "result", "components", "slices", "pictures")


def _pack(row: dict[str, Any]) -> dict[str, Any]:
    packed = {key: json.dumps(value, ensure_ascii=False) if key in NESTED else value for key, value in row.items()}
    if "turns" in row and isinstance(row["turns"], Sequence):
        packed["turns"] = [_pack(turn) for turn in row["turns"]]
    return packed


def unpack(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a file as its record has it: nested objects, which lie there as JSON, are read."""
    if row.get("pictures", "") is None:  # of a turn without any, beside turns that show some
        row = {key: value for key, value in row.items() if key != "pictures"}
    full = {key: json.loads(value) if key in NESTED else value for key, value in row.items()}
    if isinstance(row.get("turns"), list):
        full["turns"] = [unpack(turn) for turn in row["turns"]]
    return full
