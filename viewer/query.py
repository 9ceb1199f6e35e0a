"""The query of an address, and which trajectories it keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from steps.core.errors import UserError

SORTS = ("iteration", "question", "reward", "spread", "success", "turns", "tokens", "stop")
PART = 6  # a search matches ids from this many characters on: a single 3 is in nearly every hash
OUTCOMES = ("success", "failure", "unscored")


class AttemptSummary(NamedTuple):
    """A trajectory without its messages and tokens."""

    id: str
    number: int
    reward: float | None  # None if it is not scored
    success: bool | None
    turns: int
    tokens: int  # sampled
    stop: str
    error: str
    adapter: str
    row: int  # in the parquet file


class Query(NamedTuple):
    """The filters, the order and the page that an address asks for."""

    iteration: str = ""
    kind: str = ""
    outcome: str = ""
    low: float | None = None
    high: float | None = None
    stop: str = ""
    error: bool = False
    text: str = ""  # words that must all stand in question, error or id
    messages: str = ""  # text that a message of the agent or an answer to it must contain
    by: str = "group"
    sort: str = "iteration"
    down: bool = False
    page: int = 1


def parse(parameters: Mapping[str, str]) -> Query:
    """The query string as a `Query`; UserError for an invalid value."""

    def number(name: str) -> float | None:
        value = parameters.get(name, "").strip()
        try:
            return float(value) if value else None
        except ValueError:
            raise UserError(f"{name}={value[:40]} is no number") from None

    def one_of(name: str, values: Sequence[str], default: str) -> str:
        value = parameters.get(name, "") or default
        if value not in (default, *values):
            raise UserError(f"{name}={value[:40]} is not known: one of {', '.join(values)}")
        return value

    page = parameters.get("page", "") or "1"
    if not page.isascii() or not page.isdigit() or len(page) > 9 or not int(page):
        raise UserError(f"page={page[:40]} is no page: 1 is the first")
    return Query(
        iteration=parameters.get("iteration", ""),
        kind=parameters.get("kind", ""),
        outcome=one_of("outcome", OUTCOMES, ""),
        low=number("min"),
        high=number("max"),
        stop=parameters.get("stop", ""),
        error=parameters.get("error", "") not in ("", "0"),
        text=parameters.get("q", "").strip().lower(),
        messages=parameters.get("said", "").strip(),
        by=one_of("by", ("group", "attempt"), "group"),
        sort=one_of("sort", SORTS, "iteration"),
        down=one_of("order", ("up", "down"), "up") == "down",
        page=int(page),
    )


def keeps(query: Query, attempt: AttemptSummary, words: Sequence[str], about: str, rows: set[int] | None) -> bool:
    """Whether a trajectory passes the filters, apart from those for iteration and kind. `rows`: those with the text."""
    outcome = "unscored" if attempt.reward is None else "success" if attempt.success else "failure"
    if query.outcome not in ("", outcome):
        return False
    if query.low is not None and (attempt.reward is None or attempt.reward < query.low):
        return False
    if query.high is not None and (attempt.reward is None or attempt.reward > query.high):
        return False
    if (query.stop and attempt.stop != query.stop) or (query.error and not attempt.error):
        return False
    if rows is not None and attempt.row not in rows:
        return False
    return not words or holds(words, f"{about} {attempt.error}", attempt.id)


def holds(words: Sequence[str], text: str, name: str) -> bool:
    """Whether each word (in lower case) is in the text, or in the id if the word is long enough."""
    text, name = text.lower(), name.lower()
    return all(word in text or (len(word) >= PART and word in name) for word in words)
