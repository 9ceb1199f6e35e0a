"""The decisions of an episode of email_search and which of them were right, to see which skill a policy lacks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from environments import base
from environments.base import Message

END = "return_final_answer"


def decisions(
    calls: Sequence[tuple[str, dict[str, Any], Message]],
    query: dict[str, Any],
    sources: Collection[str],
    is_right: bool,
) -> list[tuple[str, bool]]:
    """(decision, whether it was right) of each call that was no error, in order.

    `query` holds the arguments of a search that says all that the question says; `is_right` is whether the answer is right.

    - query: a search has all keywords. filter: it is narrowed or sorted as the question asks.
    - row: with the source listed and unread, it is the mail that is read.
    - go on: before the source is read, the episode does not end.
    - answer: once the source was read, the answer is right. cite: a right answer names its source.
    """
    made: list[tuple[str, bool]] = []
    words = {base.normalise(word) for word in query["keywords"]}
    narrow = {key: value for key, value in query.items() if key != "keywords"}
    listed: set[str] = set()
    is_read = False
    for place, (name, arguments, observation) in enumerate(calls):
        if base.is_error(observation):
            continue
        if place and not is_read:
            made.append(("go on", name != END))
        if name == "search_emails":
            made.append(("query", words <= {base.normalise(str(word)) for word in arguments.get("keywords", ())}))
            made.append(("filter", all(arguments.get(key) == value for key, value in narrow.items())))
            listed |= {line.rpartition(" | ")[2] for line in str(observation["content"]).splitlines()[1:]}
        elif name == "read_email":
            if not is_read and listed & set(sources):
                made.append(("row", arguments["id"] in sources))
            is_read |= arguments["id"] in sources
    if is_read:
        made.append(("answer", is_right))
    if is_right:
        cited = next(arguments["source_ids"] for name, arguments, _ in reversed(calls) if name == END)
        made.append(("cite", bool(set(cited) & set(sources))))
    return made
