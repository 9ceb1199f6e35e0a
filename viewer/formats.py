"""How pages write values and addresses: the templates' filters, links that keep a page's filters, and pages of a list."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup, escape
from starlette.requests import Request

from steps.core.errors import UserError
from viewer.index import WORDS
from viewer.runs import HERE

# The parts of an address that links keep.
STATE = "run other q said iteration kind outcome stop min max error by sort order page".split()
STATE += "at scenario attempt tokens before after change".split()


def beside(entries: Sequence[Any], entry: Any) -> tuple[Any, Any]:
    """The entries before and after this one; None at an end, and where it is none of them."""
    if entry not in entries:
        return None, None
    place = entries.index(entry)
    return (entries[place - 1] if place else None), (entries[place + 1] if place + 1 < len(entries) else None)


def paged(rows: Sequence[Any], page: int, size: int) -> dict[str, Any]:
    """A page of a list: the rows shown, and the numbers of this page and of the last, which is the highest."""
    last = max(1, -(-len(rows) // size))
    page = min(page, last)
    return {"shown": rows[(page - 1) * size : page * size], "page": page, "last": last}


def words(key: str) -> str:
    """A batch as a person reads it: 001 training for 001/rollout."""
    iteration, _, kind = key.partition("/")
    return f"{iteration} {WORDS.get(kind, kind)}"


def code(text: str) -> Markup:
    """The escaped text of a message, in which what stands between backticks is code."""
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(text))))


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
    values = {name: str(value) for name, value in {**current, **changes}.items() if value not in ("", None)}
    return f"{path}?{urlencode(values)}" if values else path


def breaks(text: str) -> Markup:
    """The escaped text of a token with visible line breaks."""
    return Markup(str(escape(text)).replace("\n", '<i class="dim">↵</i>\n'))


FILTERS: dict[str, Callable[[Any], Any]] = {
    "number": lambda value: f"{value:,}",
    "fixed": lambda value: "–" if value is None else f"{value:.2f}",
    "signed": lambda value: f"{value:+.3f}",
    "share": lambda value: "–" if value is None else f"{value:.0%}",
    "short": lambda value: f"{value:,.1f}".removesuffix(".0"),
    "logprob": lambda value: f"log probability {value:.3f}",
    "breaks": breaks,
    "code": code,
    "words": words,
    "kind": lambda kind: WORDS.get(kind, kind),
}
