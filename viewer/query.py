"""What an address of `viewer.app` asks for, and which trajectories that keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from steps.core.errors import UserError

SORTS = ("iteration", "question", "reward", "spread", "success", "turns", "tokens", "stop")
PART = 6  # characters of an id that a search takes for one: a 3 is in nearly every hash
OUTCOMES = ("success", "failure", "unscored")


class Attempt(NamedTuple):
    """One trajectory, without its tokens."""

    id: str
    number: int
    reward: float | None  # None: unscored, or not scored yet
    success: bool | None
    turns: int
    tokens: int  # sampled
    stop: str
    error: str
    adapter: str
    row: int  # in its file


class Query(NamedTuple):
    """What a page's address asks for."""

    iteration: str = ""
    kind: str = ""
    outcome: str = ""
    low: float | None = None
    high: float | None = None
    stop: str = ""
    error: bool = False
    text: str = ""  # words, all of which stand in question, error or id
    said: str = ""  # stands in what the agent said, or in what it was answered
    by: str = "group"
    sort: str = "iteration"
    down: bool = False
    page: int = 1


def parse(given: Mapping[str, str]) -> Query:
    """The query string as a `Query`; UserError where a value is none of those that there are."""

    def number(name: str) -> float | None:
        value = given.get(name, "").strip()
        try:
            return float(value) if value else None
        except ValueError:
            raise UserError(f"{name}={value[:40]} is no number") from None

    def one_of(name: str, values: Sequence[str], default: str) -> str:
        value = given.get(name, "") or default
        if value not in (default, *values):
            raise UserError(f"{name}={value[:40]} is not known: one of {', '.join(values)}")
        return value

    page = given.get("page", "") or "1"
    if not page.isascii() or not page.isdigit() or len(page) > 9 or not int(page):
        raise UserError(f"page={page[:40]} is no page: 1 is the first")
    return Query(
        iteration=given.get("iteration", ""),
        kind=given.get("kind", ""),
        outcome=one_of("outcome", OUTCOMES, ""),
        low=number("min"),
        high=number("max"),
        stop=given.get("stop", ""),
        error=given.get("error", "") not in ("", "0"),
        text=given.get("q", "").strip().lower(),
        said=given.get("said", "").strip(),
        by=one_of("by", ("group", "attempt"), "group"),
        sort=one_of("sort", SORTS, "iteration"),
        down=one_of("order", ("up", "down"), "up") == "down",
        page=int(page),
    )


def keeps(query: Query, one: Attempt, words: Sequence[str], about: str, said: set[int] | None) -> bool:
    """Whether a trajectory passes the filters that are not about its batch."""
    if query.outcome and query.outcome != outcome(one):
        return False
    if query.low is not None and (one.reward is None or one.reward < query.low):
        return False
    if query.high is not None and (one.reward is None or one.reward > query.high):
        return False
    if (query.stop and one.stop != query.stop) or (query.error and not one.error):
        return False
    if said is not None and one.row not in said:
        return False
    return not words or holds(words, f"{about} {one.error}", one.id)


def holds(words: Sequence[str], text: str, name: str) -> bool:
    """Whether each word (in lower case) stands in the text, or a long one in the id."""
    text, name = text.lower(), name.lower()
    return all(word in text or (len(word) >= PART and word in name) for word in words)


def outcome(one: Attempt) -> str:
    return "unscored" if one.reward is None else "success" if one.success else "failure"
