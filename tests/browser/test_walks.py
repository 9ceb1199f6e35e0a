"""README's two walks by the letter: from a clone to a scheduled, promoted, served model, and to a task of one's own.

In place of the clone a copy of this tree, with this environment in place of a new one (make -o install -o dev), on free
ports.
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import copy_project, end, free_port, run, start

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
TEXT = (Path(__file__).parent.parent.parent / "README.md").read_text()


def test_ten_commands(tmp_path: Path) -> None:
    [block] = re.findall(r"## Schedule, promote, serve\n.*?```sh\n(.*?)```", TEXT, re.DOTALL)
    lines = [line.partition("  #")[0].strip() for line in block.splitlines()]
    assert len(lines) <= 10
    assert lines[0].startswith("git clone ")
    folder = copy_project(tmp_path)
    (folder / ".venv").symlink_to(Path(sys.prefix))
    ports = {name: free_port() for name in ("PREFECT_PORT", "MLFLOW_PORT", "VIEW_PORT", "SERVE_PORT")}
    given = " ".join(f"{name}={port}" for name, port in ports.items())
    running, sourced, said = [], "", {}
    try:
        for line in lines[1:]:
            words = re.sub(r"^make ", f"make -o install -o dev {given} ", line).replace(
                ":8000", f":{ports['SERVE_PORT']}"
            )
            if line in ("make ui", "make serve"):
                log = folder / f"{line.split()[1]}.log"
                running.append(start(["bash", "-c", f"{sourced}exec {words}"], folder, log))
                wait_for(log, {"make ui": "Ctrl-C stops", "make serve": "Ctrl-C stops it"}[line])
            elif line.startswith(". "):
                sourced = f"{words}\n"
            else:
                done = run(["bash", "-c", sourced + words], folder, seconds=900)
                assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
                said[line] = done.stdout
    finally:
        for process in reversed(running):
            end(process)
    trained = [line for line in lines if "run train/train" in line]
    assert len(trained) == 2
    assert all("Completed" in said[line] or "finished" in said[line].lower() for line in trained)
    assert "email_search 2 @challenger @champion" in said[lines[7]], said[
        lines[7]
    ]  # promoted, and it leads back to its data
    assert "email_search" in said[lines[-1]]


def wait_for(log: Path, text: str, seconds: float = 300) -> None:
    until = time.monotonic() + seconds
    while text not in log.read_text():
        assert time.monotonic() < until, log.read_text()[-3000:]
        time.sleep(0.5)


def test_a_task_of_ones_own_by_the_letter(tmp_path: Path) -> None:
    [block] = re.findall(r"## A task of your own\n.*?```sh\n(.*?)```", TEXT, re.DOTALL)
    folder = copy_project(tmp_path)
    (folder / ".venv").symlink_to(Path(sys.prefix))
    lines = [line.partition(" #")[0].strip() for line in block.splitlines()]
    assert [line.split()[0] for line in lines] == ["make", "make", "make"]
    for line in lines:
        done = run(["bash", "-c", re.sub(r"^make ", "make -o install -o dev ", line)], folder, seconds=420)
        assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    found = json.loads((folder / "run/summary.json").read_text())
    assert found["task"] == "my_task"
    assert found["base"]["n"] == found["trained"]["n"] == 20
