"""What of a conversation may not be learnt from, because a held-out scenario is like it.

Rules, any of which blocks the whole conversation:

- content: its scenario has the messages and data of a held-out one;
- source: its scenario's answer comes from where a held-out one's does (the environment's `sources`);
- overlap: a held-out text has more than `scenarios.max_overlap` of its word n-grams in the user's words, without those that
  are the task's own wording, as steps/data/contamination.py counts them;
- wording: a message of the user is a held-out text in other case, spacing or punctuation, holds one of at least four words
  whole, or differs from one by what typing errors and single words make (`is_near`).

Where a task's scenarios start with the same words (`openings_repeat`), only content and source count, and a conversation
without a scenario is blocked, for nothing can tell it from a held-out one.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from environments.base import Message
from steps.data import contamination
from steps.data.contamination import COMMON, n_grams, sources

if TYPE_CHECKING:
    from environments.base import Env, Scenario
    from steps.core.params import Scenarios

SHARED = 0.6  # of the character 3-grams that either of two near texts has; with less they are not compared
GRAM = 3
ALIKE = 0.75  # of the letters of two spellings of a word (difflib's ratio)
LEAST_WORDS = 4  # of a held-out text that is looked for within longer ones


class HeldOut:
    """The scenarios that nothing may be learnt from. `train`: the task's own, which show what is its usual wording."""

    def __init__(
        self, env: type[Env], task: str, held: Sequence[Scenario], train: Sequence[Scenario], params: Scenarios
    ) -> None:
        self.env, self.task, self.params = env, task, params
        self.contents = {content(scenario): name(scenario) for scenario in held}
        self.sources = {key: name(scenario) for scenario in held for key in sources(scenario, task, env.sources)}
        seen = Counter(gram for scenario in train for gram in n_grams(scenario, contamination.NGRAM))
        common = {gram for gram, count in seen.items() if count > max(1, COMMON * len(train))}
        self.grams: dict[tuple[str, ...], list[str]] = defaultdict(list)
        self.sizes: dict[str, int] = {}
        self.phrases: dict[int, dict[str, str]] = defaultdict(dict)  # by the number of words
        texts = []
        for scenario in held if not env.openings_repeat else ():
            grams = n_grams(scenario, contamination.NGRAM) - common
            self.sizes[name(scenario)] = len(grams)
            for gram in grams:
                self.grams[gram].append(name(scenario))
            for text in user_texts(scenario.messages):
                words = plain(text).split()
                self.phrases[len(words)][" ".join(words)] = name(scenario)
                texts.append((plain(text), name(scenario)))
        self.near = NearTexts(texts)

    def conflict(self, scenario: Scenario | None, messages: Sequence[Message]) -> str:
        """The rule and the held-out scenario that blocks a conversation; empty where none does."""
        if scenario is not None:
            if other := self.contents.get(content(scenario)):
                return f"content: {other}"
            for key in sources(scenario, self.task, self.env.sources):
                if other := self.sources.get(key):
                    return f"source: {other}"
        if self.env.openings_repeat:
            alone = "source: it cannot be told from held-out ones, for it has no scenario"
            return alone if scenario is None else ""
        for text in user_texts(messages):
            if other := self._by_wording(plain(text)):
                return f"wording: {other}"
        return self._by_overlap(messages)

    def _by_wording(self, text: str) -> str:
        words = text.split()
        for length, phrases in sorted(self.phrases.items()):
            places = range(len(words) - length + 1) if length >= LEAST_WORDS else range(int(length == len(words)))
            for place in places:
                if other := phrases.get(" ".join(words[place : place + length])):
                    return other
        return self.near.find(text) or ""

    def _by_overlap(self, messages: Sequence[Message]) -> str:
        from environments.base import Scenario

        if not self.grams:
            return ""
        asked = Scenario.make(self.task, "train", [message for message in messages if message["role"] == "user"], {})
        shared = Counter(other for gram in n_grams(asked, contamination.NGRAM) for other in self.grams.get(gram, ()))
        for other, count in sorted(shared.items(), key=lambda pair: (-pair[1], pair[0])):
            if count / self.sizes[other] > self.params.max_overlap:
                return f"overlap: {other}"
        return ""


class NearTexts:
    """Finds a text that is near another (`is_near`) and shares `SHARED` of its character 3-grams with it (Jaccard), without
    comparing all pairs: two such texts share one of the rarest 3-grams of each (prefix filtering, Chaudhuri et al. 2006).

    Texts are plain ones. They are compared only within the same `group`, a hashable such as their hidden data.
    """

    def __init__(self, texts: Iterable[tuple[str, str]] = (), rarity: Iterable[str] = ()) -> None:
        listed = list(texts)
        self.counts = Counter(gram for text in (*(text for text, _ in listed), *rarity) for gram in grams_of(text))
        self.places: dict[tuple[Hashable, ...], list[int]] = defaultdict(list)
        self.texts: list[tuple[str, frozenset[str], str]] = []
        self.lengths = defaultdict[tuple[Hashable, ...], set[int]](set)  # words of the texts, by group and numbers
        for text, owner in listed:
            self.add(text, owner)

    def add(self, text: str, owner: str, group: Hashable = None) -> None:
        grams, figures = grams_of(text), numbers(text)
        for gram in self._rarest(grams):
            self.places[group, figures, gram].append(len(self.texts))
        self.texts.append((text, grams, owner))
        self.lengths[group, figures].add(len(text.split()))

    def find(self, text: str, group: Hashable = None) -> str | None:
        """The owner of the first text added that is near this one."""
        figures, length = numbers(text), len(text.split())
        lengths = self.lengths.get((group, figures), ())
        if all(abs(length - other) > max(1, min(length, other) // 10) for other in lengths):  # as `is_near` has it
            return None
        grams = grams_of(text)
        near = {place for gram in self._rarest(grams) for place in self.places.get((group, figures, gram), ())}
        for place in sorted(near):
            other, others, owner = self.texts[place]
            if share(grams, others) >= SHARED and is_near(text, other):
                return owner
        return None

    def _rarest(self, grams: frozenset[str]) -> list[str]:
        ordered = sorted(grams, key=lambda gram: (self.counts[gram], gram))
        return ordered[: len(grams) - math.ceil(SHARED * len(grams)) + 1]


def is_near(text: str, other: str) -> bool:
    """Whether two plain texts have the same numbers, and differ only by words that are typing errors of each other and by
    few words more: a tenth of them, and at least one."""
    if numbers(text) != numbers(other):
        return False
    words, others = text.split(), other.split()
    more = 0
    for kind, start, end, from_, to in SequenceMatcher(None, words, others, autojunk=False).get_opcodes():
        if kind == "replace" and end - start == to - from_:
            if not all(map(is_misspelt, words[start:end], others[from_:to])):
                return False
        elif kind == "replace":
            return False
        elif kind != "equal":
            more += end - start + to - from_
    return more <= max(1, min(len(words), len(others)) // 10)


def is_misspelt(word: str, other: str) -> bool:
    """Whether two words are the same but for a typing error: letters in another order, or few more, fewer or other ones."""
    return sorted(word) == sorted(other) or SequenceMatcher(None, word, other, autojunk=False).ratio() >= ALIKE


def share(grams: frozenset[str], others: frozenset[str]) -> float:
    return len(grams & others) / len(grams | others)


def grams_of(text: str) -> frozenset[str]:
    """The character 3-grams of a text; a shorter one is its own."""
    return frozenset(text[place : place + GRAM] for place in range(max(1, len(text) - GRAM + 1)))


def numbers(text: str) -> tuple[str, ...]:
    return tuple(re.findall(r"\d+", text))


def plain(text: str) -> str:
    """The words of a text without regard to case, spacing, punctuation and Unicode form."""
    return " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))


def has_words(text: str) -> bool:
    return re.search(r"\w", text) is not None or bool(plain(text))


def user_texts(messages: Sequence[Message]) -> list[str]:
    return [text for message in messages if message["role"] == "user" and has_words(text := str(message["content"]))]


def content(scenario: Scenario) -> str:
    return json.dumps([list(scenario.messages), scenario.data], sort_keys=True, ensure_ascii=False)


def name(scenario: Scenario) -> str:
    return f"{scenario.split} {scenario.id}"
