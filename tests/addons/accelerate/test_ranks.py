"""Processes that share a stage: real ones, on a throw-away stage that imports nothing large. However one of them or their
parent ends, the stage ends with its sentence, and no process and no file is left."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from steps.kit.process import alive
from steps.runner import handover
from tests.conftest import ROOT
from tests.runner.test_stage import Project, ended, eventually, project

__all__ = ["project"]  # the fixture
SHARED = """
from __future__ import annotations
import os
import signal
import time
from pathlib import Path
from steps.core.errors import UserError
from steps.core.progress import measure, say
from addons.accelerate import ranks
from steps.runner.stage import Input, Output, main

def shared(source: Input, result: Output, do: str = "write") -> None:
    if "RANK" not in os.environ:
        if do == "bound":
            os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # as an engine of vLLM's does
        return ranks.shared(2, shared, source=source, result=result, do=do)
    rank = os.environ["RANK"]
    Path(f"new{rank}").write_text(str(os.getpid()))
    Path(f"new{rank}").rename(f"pid{rank}")  # the other one may end as soon as it is there
    say(f"of {rank}")
    print("a library's line")
    measure(rank=int(rank))
    result.write_text(f"{rank} of {os.environ['WORLD_SIZE']} {source.read_text()}")
    Path("cores").write_text(str(len(os.sched_getaffinity(0))))
    if rank == "1":
        while not Path("pid0").exists():
            time.sleep(0.01)
        if do == "refuse":
            raise UserError("the word is wrong; choose another")
        if do == "die":
            os.kill(os.getpid(), signal.SIGKILL)
    elif do not in ("write", "bound"):
        time.sleep(0.3)
        if do == "die":
            raise RuntimeError("the other one is gone")  # as a collective of torch fails
        time.sleep(60)

if __name__ == "__main__":
    main(shared)
"""
WORKERS = pytest.mark.parametrize("worker", ["on", "off"])


@pytest.fixture
def sharing(project: Project) -> Iterator[Project]:
    (project.root / "steps/shared.py").write_text(SHARED)
    for name in ("__init__.py", "accelerate/__init__.py", "accelerate/ranks.py"):
        (path := project.root / "addons" / name).parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((ROOT / "addons" / name).read_bytes())
    (project.root / "tmp").mkdir()
    project.env |= {"TMPDIR": str(project.root / "tmp")}
    yield project
    handover.stop_workers(project.root)
    eventually(lambda: not list((project.root / "tmp").iterdir()))


def run(project: Project, worker: str, *words: str) -> tuple[int, str, str]:
    command = ["-m", "steps.shared", "--source", "source", "--result", "out/result", *words]
    return ended(project.start(*command, FLYWHEEL_WORKER=worker))


def pids(project: Project) -> list[int]:
    return [int((project.root / f"pid{rank}").read_text()) for rank in range(2)]


def test_the_first_ones_outputs_count_and_they_stay(sharing: Project) -> None:
    """Their parent is the worker, and they go when it goes."""
    assert run(sharing, "on") == (0, "starting 2 processes that share the stage\nof 0\n", "")
    first = pids(sharing)
    assert run(sharing, "on") == (0, "of 0\n", "")
    assert pids(sharing) == first
    assert sharing.files() == {"out/result": "0 of 2 one"}
    assert '"rank": 0' in (sharing.root / "out/timings/result.json").read_text()
    handover.stop_workers(sharing.root)
    eventually(lambda: not any(map(alive, first)))


def test_they_have_the_cores_that_the_worker_had_before_an_engine_bound_it(sharing: Project) -> None:
    assert run(sharing, "on", "--do", "bound")[0] == 0
    assert int((sharing.root / "cores").read_text()) == len(os.sched_getaffinity(0))


@WORKERS
def test_one_that_refuses_ends_the_stage_with_its_sentence(sharing: Project, worker: str) -> None:
    code, _, err = run(sharing, worker, "--do", "refuse")
    assert code == 2
    assert err.endswith("error: the word is wrong; choose another\n")
    assert not any(map(alive, pids(sharing)))
    assert sharing.files() == {}
    assert run(sharing, worker)[0] == 0, "the next stage has new ones"


@WORKERS
def test_one_that_dies_ends_the_stage_with_the_reason(sharing: Project, worker: str) -> None:
    """What the other one's collective says of it is a consequence."""
    code, _, err = run(sharing, worker, "--do", "die")
    assert code == 1
    assert "error: process 2 of the 2 that share the stage shared died: " in err
    assert "SIGKILL" in err.rpartition("error: ")[2]
    assert not any(map(alive, pids(sharing)))
    assert sharing.files() == {}


@pytest.mark.parametrize(("worker", "number"), [("on", signal.SIGINT), ("off", signal.SIGINT), ("off", signal.SIGKILL)])
def test_none_outlives_an_interrupted_command(sharing: Project, worker: str, number: int) -> None:
    command = ["-m", "steps.shared", "--source", "source", "--result", "out/result", "--do", "wait"]
    process = sharing.start(*command, FLYWHEEL_WORKER=worker)
    eventually(lambda: all((sharing.root / f"pid{rank}").exists() for rank in range(2)), 30)
    os.kill(process.pid, number)
    ended(process)
    eventually(lambda: not any(map(alive, pids(sharing))))
    assert "out/result" not in sharing.files()
