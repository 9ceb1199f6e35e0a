"""Which GPUs a deployed run owns. `nvidia-smi` is a fake here, a script that lists as many as a test says."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from flows.deployment import cards
from steps.core.errors import UserError
from steps.policy import machine


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project's folder on a machine with a fake nvidia-smi that lists no GPU yet."""
    monkeypatch.delenv(machine.VISIBLE, raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(cards, "WAIT", 0.01)
    (tmp_path / "params.yaml").write_text("task: email_search\n")
    install_fake_nvidia_smi(tmp_path)
    return tmp_path


def install_fake_nvidia_smi(root: Path, *gpus: str) -> None:
    (root / "bin").mkdir(exist_ok=True)
    script = root / "bin/nvidia-smi"
    script.write_text("#!/bin/sh\n" + "".join(f"echo {name}\n" for name in gpus))
    script.chmod(0o755)


def test_two_runs_own_different_cards_and_a_third_waits(root: Path) -> None:
    install_fake_nvidia_smi(root, "GPU-a", "GPU-b")
    third: list[str] = []
    thread = threading.Thread(target=lambda: third.extend(own_two(root)), daemon=True)
    with cards.owned(root, 1) as first:
        assert os.environ[machine.VISIBLE] == "GPU-a"
        os.environ.pop(machine.VISIBLE)  # the next run is another process, without this process's variables
        with cards.owned(root, 1) as second:
            assert (first, second) == (["GPU-a"], ["GPU-b"])
            os.environ.pop(machine.VISIBLE)
            thread.start()
            thread.join(0.2)
            assert thread.is_alive()
            assert third == []
    thread.join(10)
    assert third == ["GPU-a", "GPU-b"]


def own_two(root: Path) -> list[str]:
    with cards.owned(root, 2) as own:
        return list(own)


def test_the_cards_that_a_user_chose_are_all_there_is(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_fake_nvidia_smi(root, "GPU-a", "GPU-b", "GPU-c")
    monkeypatch.setenv(machine.VISIBLE, "2,1")
    with cards.owned(root, 1) as own:
        assert own == ["2"]
        assert os.environ[machine.VISIBLE] == "2"
    assert os.environ[machine.VISIBLE] == "2,1"


def test_a_machine_without_cards_is_left_alone(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        cards.check(root, runs=3)
        with cards.owned(root, 2) as own:
            assert own == []
            assert machine.VISIBLE not in os.environ
        monkeypatch.setenv("PATH", "")  # no nvidia-smi at all
    assert not (root / cards.LOCKS).exists()


@pytest.mark.parametrize(
    ("params", "runs", "problem"),
    [
        ("", 2, None),
        ("", 3, "--runs 3 needs 3 GPUs, 1 for each run of params.yaml .* and this machine has 2: give --runs 2"),
        ("policy: {tensor_parallel: 2}", 1, None),
        ("policy: {tensor_parallel: 2}", 2, "--runs 2 needs 4 GPUs, 2 for each run .* has 2: give --runs 1"),
        ("update: {launcher: accelerate, processes: 2}", 2, "--runs 2 needs 4 GPUs, 2 for each run"),
    ],
)
def test_fewer_cards_than_runs_need(root: Path, params: str, runs: int, problem: str | None) -> None:
    install_fake_nvidia_smi(root, "GPU-a", "GPU-b")
    (root / "params.yaml").write_text(f"task: email_search\n{params}\n")
    if problem is None:
        cards.check(root, runs)
        return
    with pytest.raises(UserError, match=problem):
        cards.check(root, runs)


def test_a_run_that_needs_more_cards_than_there_are(root: Path) -> None:
    install_fake_nvidia_smi(root, "GPU-a", "GPU-b")
    with pytest.raises(UserError, match=r"this run needs 4 GPUs .*, and this machine has 2"), cards.owned(root, 4):
        pass
    assert own_two(root) == ["GPU-a", "GPU-b"], "nothing is held"
