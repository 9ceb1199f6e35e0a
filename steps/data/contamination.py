"""The contamination check: held-out scenarios must not be known from training. It runs before the stage scenarios writes
anything, and ends it with an error.

A scenario of val or test is compared with those of train by four rules, and one of test also with those of val by the first
three. Each scenario counts once, by the first rule that finds it:

- content: the same id, or the same messages and data under another id;
- source: the same origin of an answer, which the environment's `sources` names (a mail, a function, a seed);
- shown: the policy is shown the same messages, whatever the hidden data say;
- overlap: one training scenario has more than `scenarios.max_overlap` of its word n-grams. Words are those of the user's
  messages, numbers included, in lower case and without punctuation; a text of fewer than n words is a single n-gram. N-grams
  of more than a fifth of the training scenarios do not count, because they are the task's own wording; nor do those without
  a letter, such as rows of a board. An environment whose openings repeat by nature says so (`openings_repeat`), and only its
  sources are compared.

How Unicode writes a letter (é as one sign or two) is no difference, nor are the case and white space of what is shown, nor
a source's type (7 and "7").
It does not recognise paraphrases, translations, or texts in scripts without spaces between words.
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from environments.kit.pictures import named
from steps.core.errors import UserError

if TYPE_CHECKING:
    from environments.base import Env, Scenario, Split
    from steps.core.params import Scenarios

RULES = ("content", "source", "shown", "overlap")
HELD: tuple[Split, ...] = ("val", "test")
COMMON = 0.2  # share of the training scenarios above which an n-gram is the task's own wording
SHOWN = 10  # pairs that the error lists
NGRAM = 8  # words of the n-grams by which texts are compared


class SimilarPair(NamedTuple):
    """A scenario of val or test, and the scenario of train (or val) that is most like it by a rule."""

    rule: str
    split: Split
    scenario: str
    training: str
    share: float = 1.0
    other: Split = "train"

    def __str__(self) -> str:
        amount = f" {self.share:.2f}" if self.rule == "overlap" else ""
        return f"{self.split} {self.scenario} and {self.other} {self.training} ({self.rule}{amount})"


def check(env: type[Env], task: str, splits: Mapping[Split, Sequence[Scenario]], params: Scenarios) -> dict[str, Any]:
    """The contents of contamination.json. UserError, which lists the first pairs, where there is any contamination."""
    if env.openings_repeat and not env.sources and not env.task_classes:
        raise UserError(f"task {task}: openings_repeat without sources leaves nothing that could tell its splits apart")
    pairs, overlaps, measured = _compared(env, task, splits, params)
    if pairs:
        shown = ", ".join(map(str, pairs[:SHOWN])) + (f", and {len(pairs) - SHOWN} more" if pairs[SHOWN:] else "")
        raise UserError(
            f"task {task}: pairs of a held-out and a training scenario that are too much alike: {len(pairs)} ({shown}); "
            "take one of each out of the task's data (the rules, and `openings_repeat` for tasks whose scenarios can only "
            "begin alike: steps/data/contamination.py)"
        )
    keys = ("share", "split", "scenario", "training")
    largest = max(overlaps, key=lambda pair: pair.share, default=None)
    return {
        "passed": True,
        "scenarios": {split: len(scenarios) for split, scenarios in splits.items()},
        "found": dict.fromkeys(RULES, 0),
        "sources": list(env.sources) or sorted({key for part in env.task_classes.values() for key in part.sources}),
        "ngram": NGRAM,
        "max_overlap": params.max_overlap,
        "openings_seen": openings_seen(splits),
        "overlap_applies": not env.openings_repeat,
        "overlap_measured": measured,  # scenarios of val and test with n-grams that count
        "largest_overlap": largest and {key: getattr(largest, key) for key in keys},
    }


def openings_seen(splits: Mapping[Split, Sequence[Scenario]]) -> dict[str, int]:
    """How many scenarios of val and of test show the policy the very messages of a training one."""
    counts = Counter(
        pair.split for pair in _sharing("shown", splits["train"], [*splits["val"], *splits["test"]], _shown)
    )
    return {split: counts[split] for split in HELD}


def pairs(
    env: type[Env], task: str, splits: Mapping[Split, Sequence[Scenario]], params: Scenarios
) -> list[SimilarPair]:
    """The pairs for which `check` would end the stage."""
    return _compared(env, task, splits, params)[0]


def conflict(
    env: type[Env], task: str, splits: Mapping[Split, Sequence[Scenario]], scenario: Scenario, params: Scenarios
) -> SimilarPair | None:
    """The first pair in which a further scenario would be too much alike one of the other side."""
    more = {
        split: [*scenarios, *([scenario] if split == scenario.split else ())] for split, scenarios in splits.items()
    }
    if scenario.split != "train":
        more[scenario.split] = [scenario]
    pairs, _, _ = _compared(env, task, more, params)
    return next((pair for pair in pairs if scenario.id in (pair.scenario, pair.training)), None)


def _compared(
    env: type[Env], task: str, splits: Mapping[Split, Sequence[Scenario]], params: Scenarios
) -> tuple[list[SimilarPair], list[SimilarPair], int]:
    """(pairs that are too much alike, then as `by_overlap`). Of several tasks, each is compared by its own rules, and texts
    are compared across all tasks whose openings do not repeat."""
    if env.task_classes:
        return _compared_by_task(env.task_classes, splits, params)
    train = list(splits["train"])
    held = [scenario for split in HELD for scenario in splits[split]]
    rules: dict[str, Callable[[Scenario], Iterable[Any]]] = {
        "content": _contents,
        "source": lambda scenario: sources(scenario, task, env.sources),
    }
    rules |= {} if env.openings_repeat else {"shown": _shown}
    pairs = [
        pair
        for rule, keys_of in rules.items()
        for first, second in ((train, held), (splits["val"], splits["test"]))
        for pair in _sharing(rule, first, second, keys_of)
    ]
    overlaps, measured = ([], 0) if env.openings_repeat else by_overlap(train, held, NGRAM)
    pairs += [pair for pair in overlaps if pair.share > params.max_overlap]
    by_scenario = {(pair.split, pair.scenario): pair for pair in reversed(pairs)}
    return [pair for pair in pairs if by_scenario[pair.split, pair.scenario] is pair], overlaps, measured


def _compared_by_task(
    parts: Mapping[str, type[Env]], splits: Mapping[Split, Sequence[Scenario]], params: Scenarios
) -> tuple[list[SimilarPair], list[SimilarPair], int]:
    """As `_compared`, of several tasks."""
    pairs, overlaps, measured = list[SimilarPair](), list[SimilarPair](), 0
    for task, env in parts.items():
        own = {split: [each for each in scenarios if each.task == task] for split, scenarios in splits.items()}
        result = _compared(env, task, own, params)
        pairs, overlaps, measured = pairs + result[0], overlaps + result[1], measured + result[2]
        others = [each for each in splits["train"] if each.task != task and not parts[each.task].openings_repeat]
        if not env.openings_repeat:
            across, _ = by_overlap(others, [*own["val"], *own["test"]], NGRAM)
            pairs += [pair for pair in across if pair.share > params.max_overlap]
            overlaps += across
    return pairs, overlaps, measured


def _sharing(
    rule: str, first: Sequence[Scenario], held: Sequence[Scenario], keys_of: Callable[[Scenario], Iterable[Any]]
) -> Iterator[SimilarPair]:
    """For each held-out scenario that shares a key with `first`: the first of these, by its first such key."""
    owners: dict[Any, Scenario] = {}
    for scenario in first:
        for key in keys_of(scenario):
            owners.setdefault(key, scenario)
    for scenario in held:
        owner = next((owners[key] for key in keys_of(scenario) if key in owners), None)
        if owner is not None:
            yield SimilarPair(rule, scenario.split, scenario.id, owner.id, other=owner.split)


def _contents(scenario: Scenario) -> tuple[str, str]:
    """The id, and what it is a hash of but for the split."""
    return scenario.id, composed(json.dumps([scenario.messages, scenario.data], sort_keys=True, ensure_ascii=False))


def _shown(scenario: Scenario) -> list[str]:
    """What the policy sees first, as one key; none where that is nothing."""
    texts = [f"{message['role']} {alike(_text(message))}" for message in scenario.messages]
    return ["\n".join(texts)] if texts else []


def sources(scenario: Scenario, task: str, keys: Sequence[str]) -> list[tuple[Any, ...]]:
    """Where an answer comes from: the keys' values as tuples, one for each combination where values are lists."""
    if missing := [key for key in keys if key not in scenario.data]:
        raise UserError(f"task {task}: scenario {scenario.id} has no {missing[0]}, which `sources` of its class names")
    return list(itertools.product(*(_leaves(scenario.data[key]) for key in keys))) if keys else []


def _leaves(value: Any) -> list[str]:
    """All items of nested lists, or the only value, as texts that can be compared."""
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in _leaves(item)]
    if isinstance(value, dict):
        return [composed(json.dumps(value, sort_keys=True, ensure_ascii=False))]
    return [composed(str(int(value) if isinstance(value, float) and value.is_integer() else value))]


def composed(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def alike(text: str) -> str:
    """The text without what tells no two questions apart: case, white space, and how Unicode writes its letters."""
    return " ".join(composed(composed(text).casefold()).split())


def by_overlap(train: Sequence[Scenario], held: Sequence[Scenario], n: int) -> tuple[list[SimilarPair], int]:
    """(for each held-out scenario that shares n-grams with training scenarios: the one that has most of them; how many
    held-out scenarios have n-grams that count). An index of n-grams saves comparing texts that have none in common."""
    places: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for place, scenario in enumerate(train):
        for gram in n_grams(scenario, n):
            places[gram].append(place)
    most = max(1, int(COMMON * len(train)))
    common = {gram for gram, having in places.items() if len(having) > most}
    pairs, measured = [], 0
    for scenario in held:
        grams = n_grams(scenario, n) - common
        measured += bool(grams)
        counts = Counter(place for gram in grams for place in places.get(gram, ()))
        if counts:
            nearest = min(counts, key=lambda place: (-counts[place], place))
            share = counts[nearest] / len(grams)
            pairs.append(SimilarPair("overlap", scenario.split, scenario.id, train[nearest].id, share))
    return pairs, measured


def n_grams(scenario: Scenario, n: int) -> set[tuple[str, ...]]:
    """The word n-grams of the user's messages that hold a letter; a shorter text is a single one. A picture is a word."""
    messages = [message for message in scenario.messages if message["role"] == "user"]
    text = " ".join(map(_text, messages))
    words = re.findall(r"\w+", alike(text))
    grams = zip(*(words[start:] for start in range(n)), strict=False) if len(words) >= n else [tuple(words)]
    return {gram for gram in grams if any(map(str.isalpha, "".join(gram)))}


def _text(message: dict[str, Any]) -> str:
    return named(message) if message.get("content") or message.get("pictures") else ""
