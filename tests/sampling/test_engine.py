"""How vLLM is started. The engine itself is tested, for real, by the stages that use it."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from steps.core.params import Policy
from steps.sampling import engine


class Imported(Exception):
    """Raised in place of importing vLLM."""


class FakeVllm(ModuleType):
    """Stands for vLLM: notes whether torch would compile its functions when something is imported from it."""

    def __init__(self) -> None:
        super().__init__("vllm")
        self.dynamo: list[str | None] = []

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        self.dynamo.append(os.environ.get("TORCHDYNAMO_DISABLE"))
        raise Imported


@pytest.mark.parametrize(
    ("on_gpu", "set_before", "expected"), [(False, None, "1"), (False, "0", "0"), (True, None, None)]
)
def test_nothing_is_compiled_on_the_cpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, on_gpu: bool, set_before: str | None, expected: str | None
) -> None:
    """Without a C++ compiler or Python's headers, or in a path with a space, the first batch failed."""
    vllm = FakeVllm()
    transformers = ModuleType("transformers")
    transformers.AutoConfig = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as variables:
        for name in [name for name in os.environ if name.startswith("VLLM_")]:
            variables.delenv(name)
        variables.setenv("TORCHDYNAMO_DISABLE", set_before or "")
        if set_before is None:
            variables.delenv("TORCHDYNAMO_DISABLE")
        before = dict(os.environ)
        with pytest.raises(Imported):
            engine.EngineSampler(Policy(), Path("adapter"), 1.0, 8, 2, 1)
        assert vllm.dynamo == [expected]
        for name in os.environ.keys() - before.keys():
            del os.environ[name]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Policy(), {}),
        (Policy(tensor_parallel=2), {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}),
        (Policy(quantization="bnb-4bit"), {"quantization": "bitsandbytes"}),
    ],
)
def test_what_vllm_is_told_of_several_gpus_and_of_4_bits(
    policy: Policy, expected: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passed on only: no GPU and no process of vLLM is behind it."""
    monkeypatch.delenv("VLLM_WORKER_MULTIPROC_METHOD", raising=False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    assert engine.divided(policy) == expected
    assert os.environ.get("VLLM_WORKER_MULTIPROC_METHOD") == ("spawn" if policy.tensor_parallel > 1 else None)
    [package] = importlib.util.find_spec("vllm").submodule_search_locations or []  # type: ignore[union-attr]
    source = (Path(package) / "engine/arg_utils.py").read_text()  # importing it takes 20 s
    assert all(f"\n    {name}: " in source for name in expected)
