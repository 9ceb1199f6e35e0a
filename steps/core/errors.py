"""Errors with a sentence for the user, and how any error is explained to a person.

The standard library alone: the command of every stage imports this.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


class UserError(Exception):
    """One clear sentence for the user: what was wrong, where, and what to do. Ends the command with exit code 2.

    Masked when it is made: it may quote a server's answer, and Prefect and logs keep it.
    """

    code = 2

    def __init__(self, text: str) -> None:
        super().__init__(masked(text))


def masked(text: str) -> str:
    """Without secrets (steps/core/masking.py, whose import takes longer than this module's)."""
    from steps.core import masking

    return str(masking.masked(text))


class FreshProcessNeeded(Exception):
    """What this process holds (an engine for another policy) rules out the stage: the worker ends, another runs it."""


def explain(error: BaseException) -> tuple[str, int]:
    """(masked text for the user, exit code): a sentence and 2 where the user can do something, else a traceback and 1."""
    text, code = _explain(error)
    return masked(text), code


def behind(error: BaseException | None) -> Iterator[BaseException]:
    """An error, then what it came of or came upon."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__


def _explain(error: BaseException) -> tuple[str, int]:
    if isinstance(error, UserError):
        return str(error), error.code
    import errno

    for link in behind(error):
        if getattr(link, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(link):
            where = getattr(link, "filename", None) or Path.cwd()
            return (
                f"the disk is full ({where}); free some space and run the same command again: nothing half-written is left",
                2,
            )
    if isinstance(error, FileNotFoundError) and error.filename is None and str(error):
        return str(error), 2  # raised by our own code, which says what to do
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"{error.filename} does not exist; check the command's paths and those in params.yaml", 2
    import traceback

    return "".join(traceback.format_exception(error)).rstrip(), 1
