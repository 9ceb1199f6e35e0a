"""What the address of a list asks for: its filters, its order and its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from steps.core.errors import UserError

SORTS = ("iteration", "question", "reward", "spread", "success", "turns", "tokens", "stop")
OUTCOMES = ("success", "failure", "unscored")


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
