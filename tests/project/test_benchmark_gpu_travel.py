"""What `make gpu-sparse` lists is enough for a machine that gets no more of this repository."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks._common import ROOT


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The listed files, in a folder of their own."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    listed = subprocess.run(
        ["make", "--silent", "gpu-sparse"], cwd=ROOT, env=variables, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.splitlines():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    size = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert listed.stderr == f"gpu-sparse: {size / 2**20:.1f} MiB\n"
    assert size < 13 * 2**20
    return tmp_path


def rows(tree: Path, *words: str) -> list[dict[str, Any]]:
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-m", *words]
    done = subprocess.run(command, cwd=tree, env=variables, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps", [["environment"], pytest.param(["environment", "drift"], marks=pytest.mark.nightly)], ids=len
)
def test_gpu_check_runs_on_what_travels(tree: Path, steps: list[str]) -> None:
    """In the worker, which has no time limits: a busy machine fails no step."""
    written = rows(tree, "benchmarks.gpu", "--worker", "--toy", "--steps", *steps)
    assert [row["end"] for row in written if "end" in row] == steps
    assert all(0 < row["kl"] < row["max_sampler_kl"] for row in written if row.get("step") == "drift")
    assert [row for row in written if "error" in row] == []


@pytest.mark.slow
@pytest.mark.nightly
def test_gpu_train_runs_on_what_travels(tree: Path) -> None:
    """json_records, with an engine that compiles nothing."""
    words = ("--toy", "--once", "--eager", "--task", "json_records")
    written = rows(tree, "benchmarks.gpu.train", *words)
    assert sum(row.get("caught", False) for row in written) == 1
    assert written[-1]["passed"]
