"""What GPUs demand before anything is loaded. No GPU is needed: torch's and the driver's answers are fakes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

from steps.core.errors import FreshProcessNeeded, UserError
from steps.core.params import Policy
from steps.policy import cuda, loading


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
    assert cuda.main() == 2
    assert capsys.readouterr().err.startswith("the NVIDIA driver of this machine is 575.57.08")
    fake_machine(monkeypatch, tmp_path, build="13.0", driver="580.65.06", gpus=2)
    assert cuda.main() == 0
    assert capsys.readouterr().out == "GPU: Fake GPU, Fake GPU (driver 580.65.06, CUDA 13.0)\n"


def test_an_environment_for_cpus_is_not_asked_for_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    cuda.check_build()
    cuda.check_engine(Policy(deterministic=True))  # a CPU always computes so


def test_what_vllm_cannot_do_on_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_machine(monkeypatch, tmp_path, build="13.0", driver="580.65.06", gpus=1)
    with pytest.raises(UserError, match=r"policy\.dtype: float32 .* set policy\.dtype to bfloat16"):
        cuda.check_engine(Policy())
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    cuda.check_engine(Policy(dtype="bfloat16"))
    with pytest.raises(
        UserError, match=r"policy\.deterministic: .* 9\.0 and later, and Fake GPU has 8\.9; take it out"
    ):
        cuda.check_engine(Policy(dtype="bfloat16", deterministic=True))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    cuda.check_engine(Policy(dtype="bfloat16", deterministic=True))


def test_batch_invariance_is_set_in_each_stage_and_never_too_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    kernels = ModuleType("vllm.fake_kernels")
    monkeypatch.setitem(sys.modules, "vllm.fake_kernels", kernels)
    for name in [name for name in sys.modules if name.startswith("vllm.") and name != "vllm.fake_kernels"]:
        monkeypatch.delitem(sys.modules, name)
    kernels.is_batch_invariant = True  # pyrefly: ignore[missing-attribute]
    for _ in range(2):  # a warm process forgets its variables from stage to stage
        cuda.use_invariant_batches()
        assert os.environ.pop("VLLM_BATCH_INVARIANT") == "1"
    kernels.is_batch_invariant = False  # pyrefly: ignore[missing-attribute]
    with pytest.raises(FreshProcessNeeded, match=r"policy\.deterministic"):
        cuda.use_invariant_batches()
    assert "VLLM_BATCH_INVARIANT" not in os.environ
