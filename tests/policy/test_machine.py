"""The machine's cores: the number of threads is a setting, because the bytes depend on it. And its GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from steps.core.errors import FreshProcessNeeded, UserError
from steps.core.params import InitialiseParams, Policy
from steps.policy import loading, machine


class Threads:
    """Stands for torch's two functions on threads; a bound one ignores the number, as under vLLM."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int, bound: bool = False) -> None:
        import torch

        self.number, self.bound, self.told = number, bound, list[int]()
        monkeypatch.setattr(machine, "_thread_counts", [])
        monkeypatch.setattr(torch, "get_num_threads", lambda: self.number)
        monkeypatch.setattr(torch, "set_num_threads", self.set)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)

    def set(self, number: int) -> None:
        self.told.append(number)
        self.number = self.number if self.bound else number


def give(monkeypatch: pytest.MonkeyPatch, cores: list[int]) -> None:
    monkeypatch.setattr(machine, "cores", lambda: cores)


@pytest.mark.parametrize(
    ("cores", "threads"), [([0, 1], 2), ([3, 5, 6, 7], 2), (list(range(16)), 2), (list(range(16)), 8)]
)
def test_threads_are_those_of_the_setting_whatever_the_machine_has(
    cores: list[int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    give(monkeypatch, cores)
    torchs = Threads(monkeypatch, 16)
    machine.use_threads(threads)
    assert torchs.number == threads
    assert machine.own_cores(threads) == cores[:threads]


def test_the_processes_of_a_launch_share_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, [0, 1, 2, 3])
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    torchs = Threads(monkeypatch, 4)
    machine.use_threads(4)
    assert torchs.number == 2


def test_torch_is_told_its_own_number_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """MKL hears of it, too, which otherwise takes fewer threads for small matrices and rounds them otherwise."""
    give(monkeypatch, [0, 1])
    torchs = Threads(monkeypatch, 2)
    machine.use_threads(2)
    assert torchs.told == [2]
    give(monkeypatch, [0])  # vLLM binds the main thread to one core
    machine.use_threads(2)
    assert torchs.told == [2]


def test_a_process_that_is_bound_to_another_number_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    give(monkeypatch, [0, 1, 2, 3])
    Threads(monkeypatch, 4, bound=True)
    with pytest.raises(FreshProcessNeeded, match="computes with 4 threads, not with 2"):
        machine.use_threads(2)
    give(monkeypatch, [0])  # vLLM binds the main thread to one core
    machine.use_threads(4)


FEWER = r"policy\.threads is 2, and this process may use 1 of the machine's cores\. .* set policy\.threads to 1"


def test_training_stops_where_there_are_fewer_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from steps.initialise import initialise

    give(monkeypatch, [0])
    Threads(monkeypatch, 1)
    with pytest.raises(UserError, match=FEWER):
        initialise(tmp_path / "adapter", tmp_path / "checkpoint", InitialiseParams(policy=Policy(), seed=1))
    assert list(tmp_path.iterdir()) == []


def test_sampling_stops_where_there_are_fewer_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    from steps.sampling.engine import Engine

    give(monkeypatch, [0])
    monkeypatch.delenv("VLLM_CPU_OMP_THREADS_BIND", raising=False)
    with pytest.raises(UserError, match=FEWER):
        Engine(Policy())
    assert "VLLM_CPU_OMP_THREADS_BIND" not in os.environ


def test_the_number_is_recorded_with_the_parameters() -> None:
    """Two policies of different numbers are different policies: no engine and no base model serves both."""
    assert Policy().threads == 2
    assert Policy(threads=1).model_dump_json() != Policy().model_dump_json()


def test_a_base_model_that_cannot_be_loaded_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UserError, match=r"policy\.base_model.*no/such-model"):
        loading.load_tokenizer(Policy(base_model="no/such-model"))


# --- A GPU, which is a fake here: torch's answers about it are set by the test


@pytest.mark.parametrize("has_gpu", [True, False])
def test_malloc_keeps_memory_on_a_cpu_alone(has_gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(machine, "use_threads", lambda _: None)
    monkeypatch.setattr(machine, "keep_memory", lambda: calls.append("kept"))
    monkeypatch.setattr(machine, "_making_room", [lambda: calls.append("room")])
    monkeypatch.delenv(machine.KERNELS, raising=False)
    machine.prepare_training(2)
    assert calls == (["room"] if has_gpu else ["kept", "room"])
    assert os.environ.pop(machine.KERNELS, None) == (None if has_gpu else "64")
    monkeypatch.setenv(machine.KERNELS, "8")
    machine.prepare_training(2)
    assert os.environ[machine.KERNELS] == "8", "the user's choice"


def test_weights_are_loaded_straight_to_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    asked: list[dict[str, object]] = []
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda name, **how: asked.append(how))
    monkeypatch.setattr(loading, "vision_of", lambda policy: None)
    loading.load_model(Policy(base_model="some/model"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    loading.load_model(Policy(base_model="some/model"))
    assert [how.get("device_map") for how in asked] == [None, {"": 3}]


def test_openmp_is_loaded_first_where_the_path_has_a_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the loader has it: vLLM's own way, the path in LD_PRELOAD, loads nothing there, and each process says so."""
    folder = tmp_path / "my projects/lib/torch/lib"
    folder.mkdir(parents=True)
    [library, *_] = (Path(machine.sysconfig.get_path("purelib")) / "torch/lib").glob("libgomp*.so*")
    shutil.copy(library, folder)
    for name in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)

    def started(variables: dict[str, str]) -> tuple[bool, str]:
        words = [sys.executable, "-S", "-c", "print(open('/proc/self/maps').read())"]
        done = subprocess.run(words, env=os.environ | variables, capture_output=True, text=True)
        return str(folder / library.name) in done.stdout, done.stderr

    assert started(machine.preloaded(tmp_path / "my projects/lib")) == (True, "")
    is_loaded, said = started({"LD_PRELOAD": str(folder / library.name)})
    assert not is_loaded
    assert "cannot be preloaded" in said
    monkeypatch.setenv("LD_PRELOAD", "/lib/libgomp.so.1")
    assert machine.preloaded(tmp_path / "my projects/lib") == {}, "somebody has seen to it"


def test_elsewhere_the_loader_is_left_to_vllm(tmp_path: Path) -> None:
    (tmp_path / "torch/lib").mkdir(parents=True)
    (tmp_path / "torch/lib/libgomp.so.1").touch()
    assert machine.preloaded(tmp_path) == {}
