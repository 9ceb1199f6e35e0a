"""Reads Langfuse's public API page by page: the rows of an episode's traces, and of what people asked an agent.

A page that does not come is asked for again, TRIES times in all, after as long as the server says or a few seconds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from addons.trackers.tracing.langfuse import KEYS, host, keys
from environments.kit.http_client import Answer, Client, NoAnswer
from steps.core.errors import UserError

PAGE, SECONDS, TRIES = 100, 30.0, 3  # rows: the API's limit; for a whole page; attempts
MOST = 2**28  # bytes of a page: a hundred conversations
LONGEST = 30.0  # seconds that a server may ask to wait for


def opened(who: str) -> Client:
    """A client of the project that the variables name. UserError, with who asks, where they do not."""
    public, secret = keys()
    if not (public and secret):
        raise UserError(f"{who} needs {' and '.join(KEYS)}, of the project's settings in Langfuse")
    return Client(host(), auth=(public, secret))


def page(client: Client, path: str, query: Mapping[str, str]) -> dict[str, Any]:
    """One page, with "data" and "meta". UserError where the server refuses, or gives none."""
    failure, pause = "", 0.0
    for attempt in range(TRIES):
        if attempt:
            time.sleep(pause or attempt)
        try:
            answer = client.asked("GET", path, query=query, seconds=SECONDS, most=MOST)
        except NoAnswer as problem:
            failure = f"cannot be reached ({problem})"
            continue
        if answer.status in (401, 403):
            raise UserError(f"{client.base} refuses the keys ({answer.status}): see {KEYS[0]} and its secret")
        content = _content(answer)
        if isinstance(content, dict) and {"data", "meta"} <= content.keys():
            return content
        failure = f"answers {path} with {answer.status} and no page"
        if answer.status < 429:
            break
        waits = answer.headers.get("retry-after", "")
        pause = min(LONGEST, float(waits)) if waits.isdecimal() else 0.0
    raise UserError(f"Langfuse at {client.base} {failure}: see LANGFUSE_HOST")


def _content(answer: Answer) -> Any:
    try:
        return answer.json() if answer.status == 200 else None
    except ValueError:
        return None
