"""Key files: whole, private, never empty."""

from __future__ import annotations

import errno
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from flows.ui import write_variables
from steps.core import keys
from steps.core.errors import UserError


@pytest.mark.parametrize("user", ["", "flywheel:"])
def test_a_key_is_made_once_for_its_owner_alone(tmp_path: Path, user: str) -> None:
    path = tmp_path / ".flywheel/a.key"
    made = keys.key(path, user)
    assert made.startswith(user)
    assert len(made) == len(user) + 32
    assert path.stat().st_mode & 0o777 == 0o600
    assert keys.key(path, user) == made
    assert {file.name for file in path.parent.iterdir()} == {"a.key", "a.key.lock"}


@pytest.mark.parametrize(
    ("user", "torn"), [("", ""), ("", " \n"), ("flywheel:", ""), ("flywheel:", "flywheel:"), ("flywheel:", "fly")]
)
def test_an_empty_key_is_made_anew(tmp_path: Path, user: str, torn: str) -> None:
    path = tmp_path / "a.key"
    path.write_text(torn)
    made = keys.key(path, user)
    assert len(made) == len(user) + 32
    assert path.read_text() == f"{made}\n"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_key_of_the_users_own_stays(tmp_path: Path) -> None:
    (tmp_path / "a.key").write_text("me:secret\n")
    assert keys.key(tmp_path / "a.key") == "me:secret"


def test_two_that_start_at_once_have_the_same_key(tmp_path: Path) -> None:
    for number in range(20):
        path = tmp_path / f"{number}.key"
        with ThreadPoolExecutor(4) as pool:
            assert len(set(pool.map(keys.key, [path] * 4))) == 1


@pytest.mark.parametrize("content", [b"\0" * 32, b"two words", b"one\ntwo", "schlüssel".encode(), b"\xff\xfe"])
def test_what_is_no_key_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.key").write_bytes(content)
    with pytest.raises(UserError, match=r"a\.key holds no key, .*: delete the file"):
        keys.key(tmp_path / "a.key", user="")
    assert (tmp_path / "a.key").read_bytes() == content


def test_a_full_disk_leaves_no_torn_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    names = ["PREFECT_API_URL", "PREFECT_API_AUTH_STRING"]
    variables = dict.fromkeys([*names, "DO_NOT_TRACK"], "x")
    write_variables(tmp_path / "ui.env", variables, names)
    before = (tmp_path / "ui.env").read_text()
    monkeypatch.setattr(os, "fsync", full)
    for write in (
        lambda: keys.key(tmp_path / "a.key", ""),
        lambda: write_variables(tmp_path / "ui.env", variables, names),
    ):
        with pytest.raises(OSError, match="No space left"):
            write()
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == {"ui.env": before, "a.key.lock": ""}
