"""The text of a source's file, plain or packed by gzip, within limits: a small file may hold more than memory does."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import NamedTuple

from addons.production.traces.records import Unreadable

MOST = 2 * 2**30  # bytes of a text, plain or unpacked; a row of it takes several times as much memory
RATIO, ANYWAY = 200, 64 * 2**20  # times its size that a packed file may hold; and bytes that it may hold in any case
PIECE = 2**20
FORMS = {  # how files begin that are packed otherwise
    b"PK\x03\x04": "zip",
    b"(\xb5/\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"PAR1": "parquet",
}


class Text(NamedTuple):
    """A file's text, and why something of it could not be read."""

    text: str
    unread: list[Unreadable]


def text_of(path: Path) -> Text:
    """What can be read of a file: of a packed one that is cut off or damaged, what comes before; nothing of one that is too
    large, or packed otherwise. Bytes that are no UTF-8 are escaped, so that their row is refused as a row."""
    with path.open("rb") as file:
        start = file.read(8)
    if name := next((name for mark, name in FORMS.items() if start.startswith(mark)), ""):
        return Text("", [Unreadable(f"{path.name}:0", f"a file of {name}: give its JSON, plain or packed by gzip")])
    is_packed, size = start.startswith(b"\x1f\x8b"), path.stat().st_size
    most = min(MOST, max(ANYWAY, RATIO * size)) if is_packed else MOST
    pieces, count, unread = [], 0, []
    try:
        with gzip.open(path) if is_packed else path.open("rb") as file:
            while piece := file.read1(PIECE):
                count += len(piece)
                if count > most:
                    why = f"it holds more than {most / 2**30:.1f} GiB of text: unpack it, and give it in parts"
                    return Text("", [Unreadable(f"{path.name}:0", why)])
                pieces.append(piece)
    except (EOFError, gzip.BadGzipFile, zlib.error) as problem:
        why = f"the gzip file is cut off or damaged after {count} bytes of text ({problem})"
        unread = [Unreadable(f"{path.name}:0", why)]
    return Text(b"".join(pieces).decode("utf-8-sig", "surrogateescape"), unread)
