"""Addresses of `viewer.app`'s pages, and how its templates write numbers and tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from steps.core.errors import UserError
from viewer.runs import HERE

if TYPE_CHECKING:
    from markupsafe import Markup
    from starlette.requests import Request

STATE = (
    *(
        "run",
        "other",
        "q",
        "said",
        "iteration",
        "kind",
        "outcome",
        "stop",
        "min",
        "max",
        "error",
        "by",
        "sort",
        "order",
        "page",
    ),
    *("at", "scenario", "attempt", "tokens", "before", "after", "change"),
)


def shown_tokens(parameters: Mapping[str, str]) -> str:
    """The tokens that a page shows: "" the sampled ones, "all" those of prompts as well, or "none"."""
    if (tokens := parameters.get("tokens", "")) not in ("", "all", "none"):
        raise UserError(f"tokens={tokens[:40]} is not known: one of all, none")
    return tokens


def state(request: Request) -> dict[str, str]:
    """The part of the query string that links keep."""
    values = request.query_params
    return {name: values[name] for name in STATE if values.get(name) and (name, values[name]) != ("run", HERE)}


def link(path: str, current: Mapping[str, str], **changes: object) -> str:
    """An address with the query string of this page and some changes; empty values are left out."""
    values = {name: str(value) for name, value in (current | changes).items() if value not in ("", None)}  # type: ignore[operator]
    return f"{path}?{urlencode(values)}" if values else path


def breaks(text: str) -> Markup:
    """The escaped text of a token with visible line breaks."""
    from markupsafe import Markup, escape

    return Markup(str(escape(text)).replace("\n", '<i class="dim">↵</i>\n'))


FILTERS: dict[str, Callable[[Any], Any]] = {
    "number": lambda value: f"{value:,}",
    "fixed": lambda value: "–" if value is None else f"{value:.2f}",
    "signed": lambda value: f"{value:+.3f}",
    "share": lambda value: "–" if value is None else f"{value:.0%}",
    "short": lambda value: f"{value:,.1f}".removesuffix(".0"),
    "nats": lambda value: f"{value:.3f} nats",
    "breaks": breaks,
}
