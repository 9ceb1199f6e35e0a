"""Scenarios: what one is, which split it belongs to, and how some are drawn.

A split is decided by the hash of what a scenario is about, so that no content of a test is ever trained on, whatever the
seed. Left out: scenarios that a model writes (addons/supervised/generate.py).
"""

from __future__ import annotations

import hashlib
import heapq
import json
import math
import operator
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from environments.kit.pictures import apart, hashes, read
from environments.kit.transcripts import Message

T = typing.TypeVar("T")
Split = Literal["train", "val", "test"]
ROLES = ("system", "user", "assistant", "tool")


class Scenario(BaseModel):
    """One instance of a task: what the policy is shown first, and what only the environment knows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str  # hash of all other fields; of pictures the messages name the hashes
    task: str
    split: Split
    messages: tuple[Message, ...]  # the system and user messages that the policy sees first
    data: dict[str, Any]  # for the environment alone: the policy never sees it
    # base64 by SHA-256, of those that the messages show (environments/kit/pictures.py)
    pictures: dict[str, str] = Field({}, exclude_if=operator.not_)

    @classmethod
    def make(cls, task: str, split: Split, messages: Sequence[Message], data: dict[str, Any]) -> Scenario:
        """A scenario whose id is a hash of its content, so that the same content has the same id everywhere. What a message
        of the user says may be a list of OpenAI's parts text and image_url (`picture_url`)."""
        messages, pictures = apart([read(message) for message in messages])
        if lacking := [name for name in hashes(messages) if name not in pictures]:
            raise ValueError(f"a message names the picture {lacking[0]}, whose bytes are not given with it")
        if strange := [role for message in messages if (role := message.get("role")) not in ROLES]:
            raise ValueError(f"a scenario's message has the role {strange[0]!r}; the roles are {', '.join(ROLES)}")
        if problem := next(unkept(data, "data"), ""):
            raise ValueError(f"a scenario's {problem}")
        content = json.dumps([task, split, list(messages), data], sort_keys=True, ensure_ascii=False)
        name = hashlib.sha256(content.encode()).hexdigest()[:16]
        return cls(id=name, task=task, split=split, messages=messages, data=data, pictures=pictures)


def unkept(value: Any, where: str) -> Iterator[str]:
    """What of a scenario's data would be something else when they are read again."""
    if isinstance(value, dict):
        for key, part in value.items():
            if not isinstance(key, str):
                yield f"{where} has the key {key!r}, and JSON has texts as keys alone: write it as a text"
            yield from unkept(part, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for place, part in enumerate(value):
            yield from unkept(part, f"{where}[{place}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{where} is {value}, which JSON does not have: leave it out, or write null or a text"
    elif not isinstance(value, str | int | float | None):
        yield f"{where} is a {type(value).__name__}, which JSON does not have: write a number, a text or a list"


SHARES: dict[Split, float] = {"train": 0.7, "val": 0.15, "test": 0.15}


def split_of(content: str, shares: Mapping[Split, float] = SHARES) -> Split:
    """The split of a content, decided by its hash: whatever the seed, no test content is ever trained on."""
    place = int(hashlib.sha256(content.encode()).hexdigest()[:8], 16) / 16**8
    return "train" if place < shares["train"] else "val" if place < 1 - shares["test"] else "test"


def draw(items: Iterable[T], split: Split, count: int, seed: int, train: float = SHARES["train"]) -> list[T]:
    """`count` items of a split, the same for the same seed. The item itself decides its split: the share `train` of all are
    for training, and val and test have half of the rest each. ValueError if the split has too few."""
    if isinstance(items, (set, frozenset)):
        raise ValueError("a set has another order in each process: draw from a list, such as sorted(…)")
    items = list(items)
    if items and re.search(r" at 0x[0-9a-f]+>", str(items[0])):
        raise ValueError(
            f"an item's text decides its split, and that of a {type(items[0]).__name__} is another one in each process: "
            "give it a __repr__ of what it holds, or draw from dictionaries or texts"
        )
    rest = (1 - train) / 2
    pool = [item for item in items if split_of(str(item), {"train": train, "val": rest, "test": rest}) == split]
    if count > len(pool):
        raise ValueError(f"{count} scenarios were asked for, and {split} has {len(pool)}: ask for fewer")
    return Random(f"{split} {seed}").sample(pool, count)


def sample_kinds(
    rng: Random, by_kind: Mapping[str, Sequence[T]], count: int, where: str, group: Callable[[T], str] | None = None
) -> list[T]:
    """Equally many of each kind (none is learnt at the cost of another), shuffled. ValueError if a kind has too few. With
    `group`, which names an item's group, they are spread evenly over the groups, too, as far as each has enough."""
    chosen: list[T] = []
    turns = dict[str, int]()  # items that a group has given
    for place, kind in enumerate(by_kind):
        quota = (count + len(by_kind) - 1 - place) // len(by_kind)
        if quota > len(by_kind[kind]):
            raise ValueError(
                f"{count} scenarios need {quota} questions of the kind {kind}, and {where} has {len(by_kind[kind])}: "
                f"ask for {len(by_kind[kind]) * len(by_kind)} or fewer"
            )
        chosen += (
            rng.sample(by_kind[kind], quota) if group is None else _spread(rng, by_kind[kind], quota, group, turns)
        )
    rng.shuffle(chosen)
    return chosen


def _spread(rng: Random, items: Sequence[T], count: int, group: Callable[[T], str], turns: dict[str, int]) -> list[T]:
    """`count` items, each from the group that has given the fewest so far and has one left; `turns` counts them."""
    left: dict[str, list[T]] = {}
    for item in rng.sample(items, len(items)):
        left.setdefault(group(item), []).append(item)
    chosen: list[T] = []
    queue = [(turns.get(name, 0), place, name) for place, name in enumerate(left)]
    heapq.heapify(queue)
    for _ in range(count):
        given, place, name = heapq.heappop(queue)
        chosen.append(left[name].pop())
        turns[name] = given + 1
        if left[name]:
            heapq.heappush(queue, (given + 1, place, name))
    return chosen
