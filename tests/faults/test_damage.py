"""Files of a finished run that were damaged: the next `dvc repro` has the same hashes again, or says what is wrong.

The run is the real one of the other slow tests; each fault is injected into a copy of its folder.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.conftest import Project, python, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def replace(path: Path, content: bytes) -> None:
    """Other content under this name; what shares its content, such as DVC's cache, stays as it is."""
    path.unlink()
    path.write_bytes(content)


def cut(path: Path) -> None:
    replace(path, path.read_bytes()[:-100])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    replace(path, bytes(content))


def cached(folder: Path, output: str) -> Path:
    """The content of an output that is one file, in DVC's cache."""
    stages = yaml.safe_load((folder / "dvc.lock").read_text())["stages"].values()
    [md5] = [out["md5"] for stage in stages for out in stage.get("outs", ()) if out["path"] == output]
    return folder / ".dvc/cache/files/md5" / md5[:2] / md5[2:]


def lose(folder: Path, output: str) -> None:
    """From the folder and from DVC's cache."""
    (folder / output).unlink()
    cached(folder, output).unlink()


def forget_stages(folder: Path) -> None:
    """A dvc.lock of the time before the last iteration."""
    lock = yaml.safe_load((folder / "dvc.lock").read_text())
    kept = {name: stage for name, stage in lock["stages"].items() if not name.endswith(("@002", "@best", "register"))}
    (folder / "dvc.lock").write_text(yaml.safe_dump(lock | {"stages": kept}, sort_keys=False))


def age(folder: Path) -> None:
    """As after the clock was set forward by a day, and back by years."""
    for place, path in enumerate(sorted(folder.glob("run/**/*"))):
        when = path.stat().st_mtime + 86_400 if place % 2 else 1.0
        os.utime(path, (when, when))


def damage_many(folder: Path) -> None:
    for fault in TOGETHER:
        FAULTS[fault](folder)


def lose_stages(folder: Path) -> None:
    for fault in AGAIN:
        FAULTS[fault](folder)


def leave_a_half(folder: Path) -> None:
    (folder / "run/001/.tmp-99999.rewards.parquet").write_bytes(b"PAR1")


FAULTS: dict[str, Callable[[Path], object]] = {
    "many at once": damage_many,
    "stages that run again": lose_stages,
    "trajectories cut off": lambda folder: cut(folder / "run/001/trajectories.parquet"),
    "a bit of the trajectories flipped": lambda folder: flip(folder / "run/002/trajectories.parquet"),
    "rewards empty": lambda folder: replace(folder / "run/001/rewards.parquet", b""),
    "rewards lost with their cache": lambda folder: lose(folder, "run/001/rewards.parquet"),
    "adapter cut off": lambda folder: cut(folder / "run/001/adapter/adapter_model.safetensors"),
    "a bit of the adapter flipped": lambda folder: flip(folder / "run/002/adapter/adapter_model.safetensors"),
    "the adapter's settings are no JSON": lambda folder: replace(folder / "run/001/adapter/adapter_config.json", b"{"),
    "checkpoint gone": lambda folder: shutil.rmtree(folder / "run/001/checkpoint"),
    "evaluation gone": lambda folder: shutil.rmtree(folder / "run/002/evaluation"),
    "scenarios cut off": lambda folder: cut(folder / "run/scenarios/train.parquet"),
    "half of an output under a temporary name": leave_a_half,
    "dvc.lock of an earlier time": forget_stages,
    "clocks that jumped": age,
}  # fmt: skip
TOGETHER = (  # what the next command finds by hash, and takes from DVC's cache
    *("trajectories cut off", "a bit of the trajectories flipped", "rewards empty", "adapter cut off"),
    *("a bit of the adapter flipped", "checkpoint gone", "evaluation gone", "scenarios cut off"),
    *("the adapter's settings are no JSON", "half of an output under a temporary name", "clocks that jumped"),
)
AGAIN = (
    "rewards lost with their cache",
    "dvc.lock of an earlier time",
)  # in this order: the lock says where the cache is


@pytest.fixture(scope="module")
def copy(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shutil.copytree(project.folder, tmp_path_factory.mktemp("faults") / "project", symlinks=True)


@pytest.mark.parametrize(  # those of "many at once" and "stages that run again" once more by night, each by itself
    "fault", [pytest.param(name, marks=pytest.mark.nightly) if name in TOGETHER + AGAIN else name for name in FAULTS]
)
def test_the_next_command_has_the_same_hashes_again(copy: Path, fault: str) -> None:
    before = (copy / "dvc.lock").read_bytes()
    FAULTS[fault](copy)
    done = run(["dvc", "repro"], copy, FLYWHEEL_WORKER="off")  # which would import everything for at most one stage
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load((copy / "dvc.lock").read_bytes()) == yaml.safe_load(before)
    status = run(["dvc", "status"], copy)
    assert "up to date" in status.stdout, status.stdout + status.stderr


def test_a_lock_file_that_is_damaged_is_one_sentence(copy: Path) -> None:
    before = (copy / "dvc.lock").read_bytes()
    (copy / "dvc.lock").write_bytes(before[: len(before) // 2] + b"\n\t: [")
    done = run(python("flows.train"), copy)
    (copy / "dvc.lock").write_bytes(before)
    assert done.returncode == 2
    assert "dvc.lock" in done.stderr
    assert "Traceback" not in done.stderr
