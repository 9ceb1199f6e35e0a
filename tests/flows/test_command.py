"""How a flow's command ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows import train
from steps.core.errors import UserError
from steps.core.params import Params
from steps.project import store
from tests.conftest import ROOT, python, run
from tests.support.slow_servers import dripping_server

# `exec` is where CPython takes note of an interrupt for its own exit code, which only `python -m` comes to.
MODULE = """
import os, signal, sys
from flows.terminal import command

def work():
    exec("os.kill(os.getpid(), signal.SIGINT); [None for _ in range(10**6)]")
    return 0

command.handover.end_own_workers = lambda: os.kill(os.getpid(), signal.SIGINT)
sys.exit(command.run_command(work))
"""


def test_ctrl_c_at_any_moment_is_exit_code_130_and_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "interrupted_work.py").write_text(MODULE)
    process = run(
        python("interrupted_work"), tmp_path, PYTHONPATH=os.pathsep.join((os.fspath(tmp_path), os.fspath(ROOT)))
    )
    assert (process.returncode, process.stderr) == (130, "Stopped. The same command goes on from here.\n")


TERMINATED = """
import os, signal, sys, time
from flows.terminal import command

def work():
    try:
        os.kill(os.getpid(), signal.{0})
        time.sleep(60)
    finally:
        os.kill(os.getpid(), signal.{0})  # as make does
        with command.undisturbed():
            os.kill(os.getpid(), signal.SIGINT)
            print("what ends has its moment", flush=True)

command.handover.end_own_workers = lambda: print("workers ended")
sys.exit(command.run_command(work))
"""


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_being_told_to_end_is_as_ctrl_c(tmp_path: Path, name: str, code: int) -> None:
    """It used to end the process at once: MLflow's run stayed RUNNING, and the worker went on."""
    (tmp_path / "terminated_work.py").write_text(TERMINATED.format(name))
    path = os.pathsep.join((os.fspath(tmp_path), os.fspath(ROOT)))
    process = run(python("terminated_work"), tmp_path, PYTHONPATH=path)
    assert (process.returncode, process.stdout) == (code, "what ends has its moment\nworkers ended\n")
    assert process.stderr == "Stopped. The same command goes on from here.\n"


SWALLOWED = """
import os, signal, sys
from flows.terminal import command

class Destroyed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(100_000):  # the handler runs in here, where Python drops exceptions
            pass

def work():
    sys.unraisablehook = lambda unraisable: print(unraisable.exc_type.__name__, "was dropped", flush=True)
    Destroyed()
    command.stop_if_signalled()
    print("went on")

command.handover.end_own_workers = lambda: None
sys.exit(command.run_command(work))
"""


def test_ctrl_c_in_a_destructor_is_not_lost(tmp_path: Path) -> None:
    (tmp_path / "swallowed_work.py").write_text(SWALLOWED)
    path = os.pathsep.join((os.fspath(tmp_path), os.fspath(ROOT)))
    process = run(python("swallowed_work"), tmp_path, PYTHONPATH=path)
    assert (process.returncode, process.stdout) == (130, "Stopped was dropped\n")
    assert process.stderr == "Stopped. The same command goes on from here.\n"


def test_only_the_first_signal_stops() -> None:
    from flows.terminal import command

    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    try:
        command.stop_once()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        for number in numbers:
            signal.raise_signal(number)
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_a_prefect_server_that_drips_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then satisfies every read, and no time-out of a read ends it."""
    from flows.terminal import command

    (tmp_path / "dvc.yaml").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "HEALTH", 0.5)
    with dripping_server() as url:
        monkeypatch.setenv("PREFECT_API_URL", f"{url}/api")
        with pytest.raises(UserError, match=r"no Prefect server answers \(no answer within 0.5 s\)"):
            command.prepare()


def test_the_help_of_train_imports_neither_prefect_nor_mlflow_nor_dvc() -> None:
    """It took three seconds; what can be refused is refused before these are imported, too."""
    script = (
        "import sys, flows.train; print(sorted({'prefect', 'mlflow', 'dvc', 'torch', 'rich'} & sys.modules.keys()))"
    )
    process = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert process.stdout == "[]\n", process.stderr


def test_a_run_starts_its_worker_ahead_where_it_will_need_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in store.SETTINGS:  # which start_worker sets, and the end of the test takes back
        monkeypatch.setenv(f"MLFLOW_{name}", "")
    started: list[str] = []
    monkeypatch.setattr(train.handover, "start_ahead", started.append)
    others = ({"train": {"overlap": 1}}, {"policy": {"kind": "scripted"}}, {"policy": {"deterministic": True}})
    usual = Params()
    train.start_worker(usual)
    assert started == ["steps.sampling.packages"]
    for settings in others:
        train.start_worker(Params.model_validate(settings))
    monkeypatch.setitem(os.environ, "FLYWHEEL_WORKER", "off")
    train.start_worker(usual)
    assert len(started) == 1
