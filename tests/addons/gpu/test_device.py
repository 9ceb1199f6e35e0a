"""What GPUs demand before anything is loaded. No GPU is needed: torch's and the driver's answers are fakes."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from addons.gpu import device
from steps.core.errors import FreshProcessNeeded, UserError
from steps.core.params import Policy
from steps.policy import loading, machine


def no_driver() -> None:
    raise OSError("the library of the driver is missing")


def fake_machine(
    monkeypatch: pytest.MonkeyPatch, folder: Path, *, build: str | None, driver: str | None, gpus: int = 0
) -> None:
    """An environment that was made for GPUs, torch's build, the driver's version (None: no driver), and the visible GPUs."""
    (folder / ".gpu").touch()
    monkeypatch.setattr(sys, "prefix", str(folder))
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "Fake GPU")
    started = no_driver if driver is None else lambda: None
    nvml = SimpleNamespace(nvmlInit=started, nvmlSystemGetDriverVersion=lambda: driver)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.mark.parametrize(
    ("build", "driver", "sentence"),
    [
        (
            None,
            "580.65.06",
            r"its torch .* is a build for CPUs: `rm -rf \.venv && make install GPU=1` installs the CUDA build",
        ),
        (
            "13.0",
            None,
            r"no NVIDIA driver answers on this machine: CUDA 13\.0 needs the NVIDIA driver 580 or later\. Install it",
        ),
        (
            "13.0",
            "575.57.08",
            r"driver of this machine is 575\.57\.08, and CUDA 13\.0 needs the NVIDIA driver 580 or later: upd",
        ),
        (
            "13.0",
            "580.65.06",
            r"finds no GPU, although .* 580\.65\.06 answers: .* CUDA_VISIBLE_DEVICES \(it is not set\)",
        ),
    ],
)
def test_an_environment_for_gpus_that_finds_none_says_why(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, build: str | None, driver: str | None, sentence: str
) -> None:
    fake_machine(monkeypatch, tmp_path, build=build, driver=driver)
    with pytest.raises(UserError, match=sentence) as refused:
        loading.load_model(Policy(base_model="no such model"))  # refused before it is looked for
    assert "`make install GPU=0` goes back" in str(refused.value)


def test_make_install_ends_with_that_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_machine(monkeypatch, tmp_path, build="13.0", driver="575.57.08")
    assert device.main() == 2
    assert capsys.readouterr().err.startswith("the NVIDIA driver of this machine is 575.57.08")
    fake_machine(monkeypatch, tmp_path, build="13.0", driver="580.65.06", gpus=2)
    assert device.main() == 0
    assert capsys.readouterr().out == "GPU: Fake GPU, Fake GPU (driver 580.65.06, CUDA 13.0)\n"


def test_an_environment_for_cpus_is_not_asked_for_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    device.check_build()
    device.check_engine(Policy.model_validate({"deterministic": True}))  # a CPU always computes so


def test_what_vllm_cannot_do_on_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_machine(monkeypatch, tmp_path, build="13.0", driver="580.65.06", gpus=1)
    with pytest.raises(UserError, match=r"policy\.dtype: float32 .* set policy\.dtype to bfloat16"):
        device.check_engine(Policy())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    device.check_engine(Policy(dtype="bfloat16"))
    with pytest.raises(
        UserError, match=r"policy\.deterministic: .* 9\.0 and later, and Fake GPU has 8\.9; take it out"
    ):
        device.check_engine(Policy.model_validate({"dtype": "bfloat16", "deterministic": True}))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    device.check_engine(Policy.model_validate({"dtype": "bfloat16", "deterministic": True}))


@pytest.mark.parametrize(
    ("setting", "gpus", "problem"),
    [
        (
            {"tensor_parallel": 2},
            0,
            "policy.tensor_parallel is 2: the engine needs 2 GPUs, and this run sees none; set it to 1",
        ),
        ({"tensor_parallel": 4}, 2, "the engine needs 4 GPUs, and this run sees 2; set it to 2"),
        (
            {"rollout_quantization": "fp8", "dtype": "bfloat16"},
            0,
            "policy.rollout_quantization: fp8 needs a GPU, and this run sees none",
        ),
        (
            {"rollout_quantization": "fp8", "dtype": "bfloat16"},
            1,
            r"fp8 needs compute capability 8\.9, and NVIDIA A100 has 8\.0; take it out, or use an L40S",
        ),
        ({"quantization": "bnb-4bit"}, 0, "policy.quantization: bnb-4bit needs a GPU, and this run sees none"),
        ({"quantization": "bnb-4bit"}, 1, r"not installed \(.*vllm_bnb_plugin\): `make install GPU=1`"),
        ({"tensor_parallel": 2}, 2, None),
        ({}, 0, None),
    ],
)
@pytest.mark.parametrize("load", [loading.load_tokenizer, loading.load_model])
def test_gpus_that_there_are_not_are_named_before_anything_loads(
    setting: dict[str, Any], gpus: int, problem: str | None, load: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """How many GPUs torch sees is a fake here, and so is the lack of the plugin."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: gpus > 0)
    monkeypatch.setattr("torch.cuda.device_count", lambda: gpus)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda: (8, 0))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA A100")
    monkeypatch.setattr(device, "find_spec", lambda name: None)
    policy = Policy(base_model="no/such/model", **setting)
    if problem is None:
        device.check_gpus(policy)
        return
    with pytest.raises(UserError, match=problem):
        load(policy)


@pytest.mark.parametrize(
    ("settings", "expected", "words"),
    [
        ({}, {}, ""),
        (
            {"tensor_parallel": 2},
            {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"},
            "--tensor-parallel-size 2",
        ),
        ({"quantization": "bnb-4bit"}, {"quantization": "bitsandbytes"}, "--quantization bitsandbytes"),
        (
            {"rollout_quantization": "fp8", "dtype": "bfloat16"},
            {"quantization": "fp8_per_tensor"},
            "--quantization fp8_per_tensor",
        ),
    ],
)
def test_what_vllm_is_told_of_several_gpus_and_of_fewer_bits(
    settings: dict[str, Any], expected: dict[str, object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passed on only: no GPU and no process of vLLM is behind it."""
    monkeypatch.delenv("VLLM_WORKER_MULTIPROC_METHOD", raising=False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    policy = Policy.model_validate(settings)
    assert device.of_engine(policy) == expected
    assert device.of_server(policy) == words.split()
    assert os.environ.get("VLLM_WORKER_MULTIPROC_METHOD") == ("spawn" if "tensor_parallel" in settings else None)
    [package] = importlib.util.find_spec("vllm").submodule_search_locations or []  # pyrefly: ignore[missing-attribute]
    source = (Path(package) / "engine/arg_utils.py").read_text()  # importing it takes 20 s
    assert all(f"\n    {name}: " in source for name in expected)


# --- Sums in a fixed order


class Fake:
    """torch.cuda as a process sees it that has a GPU."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, initialised: bool = False) -> None:
        import torch

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: initialised)
        monkeypatch.setattr(device, "_workspaces", [])


@pytest.fixture
def as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preparing for training leaves this process's threads and memory as they are."""
    for name in ("use_threads", "keep_few_kernels", "keep_memory", "return_memory", "make_room"):
        monkeypatch.setattr(machine, name, lambda *_: None)


@pytest.mark.usefixtures("as_it_is")
def test_deterministic_kernels_are_used_within_and_not_after(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.delenv(device.CUBLAS, raising=False)
    with machine.deterministic(True):  # a CPU
        assert not torch.are_deterministic_algorithms_enabled()
    machine.prepare_training(2, is_deterministic=True)
    assert device.CUBLAS not in os.environ
    Fake(monkeypatch)
    machine.prepare_training(2)
    assert device.CUBLAS not in os.environ
    machine.prepare_training(2, is_deterministic=True)
    assert os.environ[device.CUBLAS] == ":16:8"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.delenv(device.CUBLAS)  # as in a warm process's next stage
    machine.prepare_training(2, is_deterministic=True)
    assert os.environ[device.CUBLAS] == ":16:8"
    with machine.deterministic(True):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.utils.deterministic.fill_uninitialized_memory
    assert not torch.are_deterministic_algorithms_enabled()
    assert torch.utils.deterministic.fill_uninitialized_memory


@pytest.mark.usefixtures("as_it_is")
def test_a_gpu_in_use_without_cublas_variable_needs_a_fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(device.CUBLAS, raising=False)
    Fake(monkeypatch, initialised=True)
    machine.prepare_training(2)
    with pytest.raises(FreshProcessNeeded, match="CUBLAS_WORKSPACE_CONFIG"):
        machine.prepare_training(2, is_deterministic=True)
    monkeypatch.setenv(device.CUBLAS, ":4096:8")
    machine.prepare_training(2, is_deterministic=True)
    assert os.environ[device.CUBLAS] == ":4096:8"


def test_batch_invariance_is_set_in_each_stage_and_never_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    kernels = ModuleType("vllm.fake_kernels")
    monkeypatch.setitem(sys.modules, "vllm.fake_kernels", kernels)
    for name in [name for name in sys.modules if name.startswith("vllm.") and name != "vllm.fake_kernels"]:
        monkeypatch.delitem(sys.modules, name)
    kernels.is_batch_invariant = True  # pyrefly: ignore[missing-attribute]
    for _ in range(2):  # a warm process forgets its variables from stage to stage
        device.use_invariant_batches()
        assert os.environ.pop("VLLM_BATCH_INVARIANT") == "1"
    kernels.is_batch_invariant = False  # pyrefly: ignore[missing-attribute]
    with pytest.raises(FreshProcessNeeded, match=r"policy\.deterministic"):
        device.use_invariant_batches()
    assert "VLLM_BATCH_INVARIANT" not in os.environ
