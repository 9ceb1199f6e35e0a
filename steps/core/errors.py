"""Errors that carry a sentence for the user, and the explanation of any error to a person.

Only the standard library is imported here, because the command of every stage loads this module.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path


class UserError(Exception):
    """One clear sentence for the user: what was wrong, where, and what to do. The command ends with exit code 2.

    The text is masked when the error is made, because it may quote a server's answer, and Prefect and logs keep it.
    """

    code = 2

    def __init__(self, text: str) -> None:
        super().__init__(masked(text))


class FreshProcessNeeded(Exception):
    """This process cannot run the stage because of what it holds, such as an engine for another policy. The worker ends,
    and a new one runs the stage."""


def explain(error: BaseException) -> tuple[str, int]:
    """(masked text, exit code): a sentence and 2 where the user can do something about it, else a traceback and 1."""
    if isinstance(error, UserError):
        return masked(str(error)), error.code
    if advice := _advice(error):
        return masked(advice), 2
    import traceback

    return masked("".join(traceback.format_exception(error)).rstrip()), 1


def _advice(error: BaseException) -> str:
    """What the user can do about an error that is no UserError; empty where only its traceback helps."""
    for cause in causes(error):
        text, where = str(cause), getattr(cause, "filename", None)
        if getattr(cause, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in text:
            cure = "free some space and run the same command again: nothing half-written is left"
            return f"the disk is full ({where or Path.cwd()}); {cure}"
        refused = isinstance(cause, OSError) and cause.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
        if (refused and where) or "attempt to write a readonly database" in text:
            why = os.strerror(cause.errno or 0) if isinstance(cause, OSError) else "the database is read-only"
            cure = "give your user the right to it (`ls -ld` shows its owner), or mount its file system for writing"
            return f"{where or Path.cwd() / '.flywheel'} cannot be used ({why}): {cure}"
        if isinstance(cause, FileExistsError | NotADirectoryError | IsADirectoryError) and where:
            why = os.strerror(cause.errno or 0)
            cure = "a file stands where a folder should be, or a folder where a file should be; move it elsewhere"
            return f"{where} cannot be used ({why}): {cure}"
    if isinstance(error, FileNotFoundError):
        if error.filename is not None:
            return f"{error.filename} does not exist; check the command's paths and those in params.yaml"
        return str(error)  # raised by this project's own code, whose text says what to do
    if getattr(error, "is_sentence", False):  # environments.base.TaskProblem
        return str(error)
    if isinstance(error, PermissionError) and error.errno is None:
        return str(error)  # likewise: a task that must not run on this machine
    return ""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, then the one that caused it or was being handled when it was raised, and so on."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__


def masked(text: str) -> str:
    """The text without secrets. steps/core/masking.py does it; importing that takes longer than this whole module."""
    from steps.core import masking

    return str(masking.masked(text))
