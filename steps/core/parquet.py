"""Reads parquet files: whole, or a few of their columns, which is much faster where a file holds tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from steps.core.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa


# What a damaged file can end in beside pyarrow's own errors: a flipped bit may stand in a name, a length or a text.
DAMAGE = (ValueError, KeyError, TypeError, OverflowError, MemoryError)


class MissingFile(UserError, FileNotFoundError):
    """The file does not exist, or another process is replacing it."""


def read_columns(path: Path, names: Sequence[str] | None = None) -> pa.Table:
    """These columns of a parquet file, or all. A nested one, as turns.list.element.message, is left out where it is missing.

    A file without rows has no columns; the table then has the columns that are not nested, empty. UserError where the file
    is missing (MissingFile), is no parquet file, or lacks a column.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            flat = [name for name in names or () if "." not in name]
            if not file.metadata.num_rows:
                return pa.table({name: pa.nulls(0) for name in flat})
            if missing := sorted(set(flat) - set(file.schema_arrow.names)):
                raise unreadable(path, f"it has no column {', '.join(missing)}")
            return file.read(columns=names and list(names), use_threads=names is None)
    except FileNotFoundError:
        raise MissingFile(
            f"{path} does not exist: make it (`.venv/bin/dvc repro`), or bring it back (`.venv/bin/dvc checkout`)"
        ) from None
    except (pa.ArrowException, OSError, *DAMAGE) as problem:
        raise unreadable(path, str(problem)) from None


def unreadable(path: Path, reason: str) -> UserError:
    line = (reason.strip().splitlines() or [""])[0]
    return UserError(
        f"{path} cannot be read ({line}): make it again (`.venv/bin/dvc repro`), or bring it back "
        "(`.venv/bin/dvc checkout`)"
    )
