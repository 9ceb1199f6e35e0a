"""The lines of gpu-check as a Markdown table: a row for each thing that was measured, with its figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

WORDS = {"out_of_memory", "unavailable", "missing", "error", "not_begun"}  # why there are no figures
LEFT_OUT = {"step", "name", "longest", "seconds_in_all"}


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """The table, after a line that names the device. The times of whole steps and the verdict are left out."""
    lines = []
    for row in rows:
        if "device" in row:
            named = " ".join(f"{name} {version}" for name, version in row.get("packages", {}).items())
            lines += [f"{row.get('date', '')} {row['device']}, Python {row.get('python', '')}, {named}".strip(), ""]
            break
    lines += ["| step | row | figures |", "|---|---|---|"]
    for row in rows:
        if row["step"] == "verdict" or "device" in row or row.keys() <= LEFT_OUT:
            continue
        figures = {key: value for key, value in row.items() if key not in LEFT_OUT and not is_empty(value)}
        texts = [text(key, value) for key, value in figures.items()]
        lines.append(f"| `{row['step']}` | {row.get('name', '')} | {', '.join(texts)} |".replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def is_empty(value: Any) -> bool:
    """Whether there is no figure, as for a GPU's memory on a CPU."""
    return value is None or (isinstance(value, dict) and all(each is None for each in value.values()))


def text(key: str, value: Any) -> str:
    """A figure with its name."""
    if key in WORDS:
        return f"{key.replace('_', ' ')}: {str(value).replace('|', '/')}"
    if isinstance(value, dict):
        return f"`{key}` " + ", ".join(f"{name} {number(each)}" for name, each in value.items() if each is not None)
    return f"`{key}` {number(value)}"


def number(value: Any) -> str:
    """A number with four digits at least that count, as the tables of docs have it."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if value == 0 or isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
