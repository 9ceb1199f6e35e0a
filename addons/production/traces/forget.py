"""Deletes conversations from a task's ingested folder, whose data sets are made anew, and keeps them out from then on
(addons/production/traces/tombstones.py). A conversation is named by the id that its client or producer gave it, or by
its key; the same words under another id go with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from addons.production.traces import captured, files, langfuse_traces, mlflow_traces, openai_jsonl, otel, tombstones
from addons.production.traces.build import Task, build
from addons.production.traces.records import key_of
from addons.production.traces.sources import REGRESSION
from environments.base import Message
from steps.data.ingested import read_rows

PRODUCERS = tuple(module.PRODUCER for module in (captured, langfuse_traces, mlflow_traces, openai_jsonl, otel))
KEY = re.compile(rf"(?:{'|'.join(PRODUCERS)}):[0-9a-f]{{16}}")


def keys_of(names: Iterable[str]) -> set[str]:
    """The keys that these conversations can have: a key itself, or that of each producer for an id."""
    return {
        key for name in names for key in ([name] if KEY.fullmatch(name) else [key_of(each, name) for each in PRODUCERS])
    }


def forget(keys: set[str], folder: Path, task: Task, elsewhere: Iterable[Sequence[Message]] = ()) -> dict[str, int]:
    """Delete the conversations with these keys, and those in which the same was said, from the folder ingested/<task> of a
    project; how many rows of each file were of them. `elsewhere`: what other places have of what was said in them."""
    marks, conversations = tombstones.of(folder.parent.parent), files.read_conversations(folder)
    marks.add(keys, [*elsewhere, *(each.messages for each in conversations if each.key in keys)])
    kept = [each for each in conversations if not marks.holds(each.key, each.messages)]
    keys = keys | ({each.key for each in conversations} - {each.key for each in kept})
    names = (*files.SETS, "conversations", "quarantine")
    rows = {name: read_rows(folder / f"{name}.jsonl") for name in names}
    counts = {name: sum(holds(row, keys) for row in listed) for name, listed in rows.items()}
    if any(counts.values()) or len(kept) < len(conversations):
        unreadable = [row for row in files.read_unreadable(folder) if row.source not in keys]
        state = files.read_state(folder)
        files.write(folder, kept, build(kept, task, state.get("regression", REGRESSION)), unreadable, state)
    return {name: count for name, count in counts.items() if count}


def holds(row: dict[str, object], keys: set[str]) -> bool:
    """Whether a row of any file of an ingested folder is of one of these conversations."""
    return row.get("source", row.get("key")) in keys or any(key in str(row.get("reason", "")) for key in keys)
