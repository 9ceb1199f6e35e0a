"""How errors are explained: a sentence and code 2 where the user can do something, otherwise a traceback and code 1."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import pytest

from steps.core.errors import UserError, causes, explain
from steps.core.terminal import ProgressDisplay, exit_code

SECRET = "sk-" + "a1B2c3D4e5F6g7H8"


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    """The error as it looks after it was raised, with a traceback."""
    try:
        raise error from cause
    except BaseException as caught:
        return caught


def test_causes_follow_both_links_and_end_in_a_circle() -> None:
    first, second = ValueError("first"), KeyError("second")
    first.__cause__, second.__context__ = second, first
    assert list(causes(first)) == [first, second]
    assert list(causes(None)) == []


def test_a_users_error_is_its_own_masked_sentence() -> None:
    assert explain(UserError("no such task")) == ("no such task", 2)
    assert SECRET not in explain(UserError(f"the server refuses {SECRET}"))[0]


def test_a_full_disk_is_recognised_behind_other_errors() -> None:
    full = OSError(errno.ENOSPC, "No space left on device", "/data/run")
    text, code = explain(raised(RuntimeError("writing failed"), raised(full)))
    assert (code, "/data/run" in text, "disk is full" in text) == (2, True, True)
    quoted = RuntimeError("sqlite: No space left on device")  # as libraries report it, without a number
    assert explain(quoted) == (
        f"the disk is full ({Path.cwd()}); free some space and run the same command again: nothing half-written is left",
        2,
    )


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_folder_without_the_right_to_write_is_a_sentence(number: int) -> None:
    refused = OSError(number, os.strerror(number), ".flywheel/command.lock")
    for error in (refused, raised(RuntimeError("no lock"), raised(refused))):
        text, code = explain(error)
        assert text.startswith(
            f".flywheel/command.lock cannot be used ({os.strerror(number)}): give your user the right"
        )
        assert code == 2


def test_a_read_only_database_is_a_sentence() -> None:
    """As SQLAlchemy quotes SQLite, without a number."""
    text, code = explain(
        raised(RuntimeError("(sqlite3.OperationalError) attempt to write a readonly database [SQL: …]"))
    )
    assert (text.partition(":")[0], code) == (f"{Path.cwd()}/.flywheel cannot be used (the database is read-only)", 2)


def test_a_file_where_a_folder_should_be_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / ".flywheel").touch()
    with pytest.raises(OSError, match="File exists") as caught:
        (tmp_path / ".flywheel").mkdir(exist_ok=True)
    assert explain(caught.value) == (
        f"{tmp_path}/.flywheel cannot be used (File exists): a file stands where a folder should be, or a folder where a "
        "file should be; move it elsewhere",
        2,
    )


def test_a_missing_file_is_a_sentence() -> None:
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", "run/scenarios")
    assert explain(missing) == ("run/scenarios does not exist; check the command's paths and those in params.yaml", 2)
    assert explain(FileNotFoundError("make the adapter first")) == ("make the adapter first", 2)
    assert explain(raised(FileNotFoundError()))[1] == 1  # no text at all: only the traceback helps


def test_any_other_error_is_a_masked_traceback() -> None:
    text, code = explain(raised(ValueError(f"bad key {SECRET}")))
    assert code == 1
    assert text.startswith("Traceback")
    assert "ValueError: bad key" in text
    assert SECRET not in text


def fail(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "shown"),
    [
        (None, 0, ""),
        (UserError("give --task"), 2, "error: give --task\n"),
        (KeyboardInterrupt(), 130, ""),
        (ValueError("bug"), 1, "Traceback"),
    ],
    ids=["success", "user error", "Ctrl-C", "bug"],
)
def test_the_exit_code_comes_with_the_error_on_stderr_and_a_clean_line(
    error: BaseException | None, code: int, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    display = ProgressDisplay("toy")
    display.is_drawn = True
    assert exit_code(lambda: fail(error) if error else None, display) == code
    printed = capsys.readouterr()
    assert printed.err.startswith("\r\033[K" + shown)
    assert (printed.out, display.is_drawn) == ("", False)


def test_progress_elsewhere_than_on_a_terminal_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FLYWHEEL_PROGRESS", raising=False)
    monkeypatch.delenv("FLYWHEEL_LOG", raising=False)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: False)
    display = ProgressDisplay("toy")
    display({"progress": [1, 4, "episodes"]})
    assert capsys.readouterr().err == ""
    display.next_line = 0.0
    display({"progress": [2, 4, "episodes"]})
    display({"progress": [3, 4, "episodes"]})
    assert capsys.readouterr().err == "toy 2/4 episodes\n"
