"""Locks of the kernel: one holder at a time, known by its number, and free again when it has ended."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

from steps.kit.lock import alone, holder, opened, take
from tests.conftest import ROOT

HOLDS = """
import sys, time
from pathlib import Path
from steps.kit.lock import opened, take
lock = opened(Path(sys.argv[1]))
print(take(lock), flush=True)
time.sleep(60)
"""


def test_a_lock_has_one_holder_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lock = opened(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert holder(path) is None
    other = subprocess.Popen(
        [sys.executable, "-c", HOLDS, os.fspath(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert (take(lock), holder(path)) == (False, other.pid)
    finally:
        other.kill()
        other.communicate()
    assert (take(lock), holder(path)) == (True, os.getpid())
    os.close(lock)
    assert holder(path) is None


def test_threads_change_a_file_one_after_another(tmp_path: Path) -> None:
    counted = tmp_path / "count"
    counted.write_text("0")

    def count() -> None:
        for _ in range(50):
            with alone(tmp_path / "lock"):
                counted.write_text(str(int(counted.read_text()) + 1))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counted.read_text() == "200"


def test_an_error_inside_gives_the_lock_back(tmp_path: Path) -> None:
    try:
        with alone(tmp_path / "lock"):
            raise KeyError
    except KeyError:
        pass
    assert holder(tmp_path / "lock") is None
