"""Contamination: what is tested must not be known from training. The scenarios stage ends here before it writes anything.

A scenario of val or test is compared with those of train by three rules:

- content: the same id, or all else that an id is made of but the split;
- source: something that an answer comes from, as the environment's `sources` names it (a mail, a function, a seed);
- overlap: more than `scenarios.max_overlap` of its word n-grams are those of one training scenario. Words are those of the
  user's messages, numbers among them, in lower case and without punctuation; a text of fewer than n words counts as one.
  Left out are n-grams of more than a fifth of the training scenarios, which are the task's own wording, and those
  without a letter, as rows of a board are. An environment whose openings repeat by nature says so (`openings_repeat`),
  and is held to its sources alone.

What is left out: paraphrases, translations, and texts in scripts that put no space between words.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from steps.core.errors import UserError

if TYPE_CHECKING:
    from environments.base import Env, Scenario, Split
    from steps.core.params import Scenarios

RULES = ("content", "source", "overlap")
COMMON = 0.2  # n-grams of a greater share of the training scenarios are the task's own wording
SHOWN = 10  # pairs in the message

Gram = tuple[int, ...]


class Pair(NamedTuple):
    """A scenario of val or test, and the training scenario that is nearest to it by a rule."""

    rule: str
    split: Split
    scenario: str
    training: str
    share: float = 1.0

    def __str__(self) -> str:
        amount = f" {self.share:.2f}" if self.rule == "overlap" else ""
        return f"{self.split} {self.scenario} and train {self.training} ({self.rule}{amount})"


def check(env: type[Env], task: str, made: Mapping[Split, Sequence[Scenario]], params: Scenarios) -> dict[str, Any]:
    """What contamination.json says. UserError, with the first pairs, where there is any contamination."""
    if env.openings_repeat and not env.sources:
        raise UserError(f"task {task}: openings_repeat without sources leaves nothing that could tell its splits apart")
    train = list(made["train"])
    held = [scenario for split in ("val", "test") for scenario in made[split]]
    pairs = [*by_content(train, held), *by_source(train, held, task, env.sources)]
    overlaps: list[Pair] = []
    measured = 0
    if not env.openings_repeat:
        overlaps, measured = by_overlap(train, held, params.ngram)
    pairs += [pair for pair in overlaps if pair.share > params.max_overlap]
    if pairs:
        shown = ", ".join(map(str, pairs[:SHOWN])) + (f", and {len(pairs) - SHOWN} more" if pairs[SHOWN:] else "")
        raise UserError(
            f"task {task}: pairs of a held-out and a training scenario that are too much alike: {len(pairs)} ({shown}); "
            "take one of each out of the task's data (the rules, and when texts may repeat: steps/data/contamination.py)"
        )
    largest = max(overlaps, key=lambda pair: pair.share, default=None)
    return {
        "passed": True,
        "scenarios": {split: len(scenarios) for split, scenarios in made.items()},
        "found": dict.fromkeys(RULES, 0),
        "sources": list(env.sources),
        "ngram": params.ngram,
        "max_overlap": params.max_overlap,
        "overlap_applies": not env.openings_repeat,
        "overlap_measured": measured,  # of val and test; the rest has no n-gram of its own
        "largest_overlap": largest
        and {key: getattr(largest, key) for key in ("share", "split", "scenario", "training")},
    }


def by_content(train: Sequence[Scenario], held: Sequence[Scenario]) -> Iterator[Pair]:
    known: dict[str, str] = {}
    for scenario in train:
        for key in _contents(scenario):
            known.setdefault(key, scenario.id)
    for scenario in held:
        found = next((known[key] for key in _contents(scenario) if key in known), None)
        if found is not None:
            yield Pair("content", scenario.split, scenario.id, found)


def _contents(scenario: Scenario) -> tuple[str, str]:
    """An id holds the split; its other parts are what must differ."""
    return scenario.id, json.dumps([scenario.messages, scenario.data], sort_keys=True, ensure_ascii=False)


def by_source(train: Sequence[Scenario], held: Sequence[Scenario], task: str, keys: Sequence[str]) -> Iterator[Pair]:
    known: dict[tuple[Any, ...], str] = {}
    for scenario in train:
        for source in sources(scenario, task, keys):
            known.setdefault(source, scenario.id)
    for scenario in held:
        found = next((known[source] for source in sources(scenario, task, keys) if source in known), None)
        if found is not None:
            yield Pair("source", scenario.split, scenario.id, found)


def sources(scenario: Scenario, task: str, keys: Sequence[str]) -> list[tuple[Any, ...]]:
    """What an answer comes from: values of the keys together, one for each member where a value is a list."""
    if missing := [key for key in keys if key not in scenario.data]:
        raise UserError(f"task {task}: scenario {scenario.id} has no {missing[0]}, which `sources` of its class names")
    return list(itertools.product(*(_leaves(scenario.data[key]) for key in keys))) if keys else []


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [leaf for one in value for leaf in _leaves(one)]
    return [json.dumps(value, sort_keys=True) if isinstance(value, dict) else value]


def by_overlap(train: Sequence[Scenario], held: Sequence[Scenario], n: int) -> tuple[list[Pair], int]:
    """The nearest training scenario of each that shares an n-gram with one, and how many have n-grams of their own at all.
    N-grams lead to the training scenarios that have them, so that no two texts are compared in vain."""
    words = Words()
    places: dict[Gram, list[int]] = {}
    for place, scenario in enumerate(train):
        for gram in words.grams(scenario, n):
            places.setdefault(gram, []).append(place)
    most = max(1, int(COMMON * len(train)))
    common = {gram for gram, found in places.items() if len(found) > most}
    pairs, measured = [], 0
    for scenario in held:
        grams = words.grams(scenario, n) - common
        measured += bool(grams)
        counts: Counter[int] = Counter()
        for gram in grams:
            counts.update(places.get(gram, ()))
        if counts:
            nearest = min(counts, key=lambda place: (-counts[place], place))
            share = counts[nearest] / len(grams)
            pairs.append(Pair("overlap", scenario.split, scenario.id, train[nearest].id, share))
    return pairs, measured


class Words:
    """Numbers for words, so that an n-gram is a tuple of numbers."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.lettered: set[int] = set()

    def grams(self, scenario: Scenario, n: int) -> set[Gram]:
        """The n-grams of the user's messages that hold a letter; all of a text that is shorter."""
        said = " ".join(str(one.get("content") or "") for one in scenario.messages if one["role"] == "user")
        ids = [self._number(word) for word in re.findall(r"\w+", said.lower())]
        made = set(zip(*(ids[start:] for start in range(n)), strict=False)) if len(ids) >= n else {tuple(ids)}
        return {gram for gram in made if not self.lettered.isdisjoint(gram)}

    def _number(self, word: str) -> int:
        number = self.numbers.setdefault(word, len(self.numbers))
        if number == len(self.numbers) - 1 and any(map(str.isalpha, word)):
            self.lettered.add(number)
        return number
