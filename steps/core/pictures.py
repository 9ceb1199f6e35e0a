"""Pictures among token ids, and how a file of records has each picture once.

A picture is a run of tokens in a prompt, all with the same id: the model's vision tower says what stands there. So two
prompts with the same ids are the same only where their pictures are, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol


class Shown(NamedTuple):
    """A picture among the tokens of a prompt or of a row."""

    start: int  # place of its first token
    length: int  # tokens
    sha256: str
    data: str = ""  # base64 of its bytes; empty in a record, whose trajectory has them


class Vision(Protocol):
    """What reads pictures for a base model that sees (the port `vision`)."""

    architecture: str  # transformers' class of the model

    def expand(
        self, ids: Sequence[int], messages: Sequence[Any], bytes_of: Mapping[str, str], start: int = 0
    ) -> tuple[list[int], tuple[Shown, ...]]:
        """A prompt's ids with as many tokens for each picture of the messages as it is read into, and where they stand."""

    def arguments(self, policy: Any) -> dict[str, Any]:
        """vLLM's arguments for the model, for which this process is prepared."""

    def prompt(self, ids: Sequence[int], shown: Sequence[Shown]) -> dict[str, Any]:
        """A request's prompt for vLLM, with its pictures."""

    def layout(self, shown: Sequence[Any]) -> Any:
        """Where training rows show pictures (addons/pictures/rows.py): `keys`, by which they are packed, and `packed`."""


def before(pictures: Iterable[Shown], length: int) -> tuple[Shown, ...]:
    """Those among the first `length` tokens, without their bytes."""
    return tuple(each._replace(data="") for each in pictures if each.start < length)


def filled(pictures: Iterable[Shown], bytes_of: Mapping[str, str]) -> tuple[Shown, ...]:
    """With their bytes, which are empty where they are missing: `breach` says so."""
    return tuple(each._replace(data=bytes_of.get(each.sha256, "")) for each in pictures)


def breach(pictures: Iterable[Shown], ids: tuple[int, ...], bytes_of: Mapping[str, str]) -> str | None:
    """Why a prompt's pictures cannot be those that its ids show; None where they may be."""
    place = 0
    for start, length, name, _ in pictures:
        if start < place or length < 1 or start + length > len(ids) or len(set(ids[start : start + length])) != 1:
            return "a picture that does not stand on tokens of its own"
        if not bytes_of.get(name):
            return "a picture that is not in the record"
        place = start + length
    return None


def store_once(rows: list[dict[str, Any]]) -> None:
    """Keep the bytes of each picture in the first row that shows it, and its name alone in the others. Rows of records
    without any picture have no such column."""
    if not any("pictures" in row for row in rows):
        return
    stored: set[str] = set()
    for row in rows:
        own = row.get("pictures") or {}
        row["pictures"] = {name: "" if name in stored else data for name, data in sorted(own.items())}
        stored |= own.keys()


def restore(rows: list[dict[str, Any]]) -> None:
    """Give each row the bytes of its pictures again."""
    bytes_of = {name: data for row in rows for name, data in (row.get("pictures") or {}).items() if data}
    for row in rows:
        if row.get("pictures"):
            row["pictures"] = {name: bytes_of.get(name, "") for name in row["pictures"]}
