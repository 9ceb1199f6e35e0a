"""Deletes conversations: from the store of captured ones and from every task's ingested folder, whose data sets are made
anew.

A conversation is named by the id that its client or producer gave it, or by its key. What was made of it before is
listed, and not touched: versions of data sets in DVC's cache, and adapters that were trained on them, from the ledger's
lineage.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from steps.data.ingested import read_rows
from steps.traces import captured, files, langfuse_traces, mlflow_traces, openai_jsonl, otel
from steps.traces.build import Task, build
from steps.traces.records import key_of

PRODUCERS = tuple(module.PRODUCER for module in (captured, langfuse_traces, mlflow_traces, openai_jsonl, otel))
KEY = re.compile(rf"(?:{'|'.join(PRODUCERS)}):[0-9a-f]{{16}}")


def keys_of(names: Iterable[str]) -> set[str]:
    """The keys that these conversations can have: a key itself, or that of each producer for an id."""
    return {
        key for name in names for key in ([name] if KEY.fullmatch(name) else [key_of(each, name) for each in PRODUCERS])
    }


def forget(keys: set[str], folder: Path, task: Task) -> dict[str, int]:
    """Delete the conversations with these keys from a task's ingested folder; how many rows of each file were of them."""
    names = (*files.SETS, "conversations", "quarantine")
    rows = {name: read_rows(folder / f"{name}.jsonl") for name in names}
    counts = {name: sum(holds(row, keys) for row in listed) for name, listed in rows.items()}
    if any(counts.values()):
        kept = [each for each in files.read_conversations(folder) if each.key not in keys]
        unreadable = [row for row in files.read_unreadable(folder) if row.source not in keys]
        state = files.read_state(folder)
        files.write(folder, kept, build(kept, task, state["regression"]), unreadable, state)
    return {name: count for name, count in counts.items() if count}


def holds(row: dict[str, object], keys: set[str]) -> bool:
    """Whether a row of any file of an ingested folder is of one of these conversations."""
    return row.get("source", row.get("key")) in keys or any(key in str(row.get("reason", "")) for key in keys)
