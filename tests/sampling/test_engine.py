"""How vLLM is started. The engine itself is tested, for real, by the stages that use it."""

from __future__ import annotations

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
            engine.EngineSampler(Policy(), Path("adapter"), 1.0, 8, 2)
        assert vllm.dynamo == [expected]
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
