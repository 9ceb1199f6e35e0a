"""How vLLM is started: here it is a fake, and so is a GPU. The engine itself is tested, for real, by the stages."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from steps.core.errors import UserError
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
    transformers.AutoConfig = object  # pyrefly: ignore[missing-attribute]
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    engine_module = "vllm.v1.engine.llm_engine"
    monkeypatch.setitem(sys.modules, engine_module, ModuleType(engine_module))
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: on_gpu)
    monkeypatch.setattr(engine, "_engines", {})
    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as variables:
        for name in [name for name in os.environ if name.startswith("VLLM_")]:
            variables.delenv(name)
        variables.setenv("TORCHDYNAMO_DISABLE", set_before or "")
        if set_before is None:
            variables.delenv("TORCHDYNAMO_DISABLE")
        before = dict(os.environ)
        with pytest.raises(Imported):
            engine.EngineSampler(Policy(dtype="bfloat16"), Path("adapter"), 1.0, 8, 2)
        assert vllm.dynamo == [expected]
        for name in os.environ.keys() - before.keys():
            del os.environ[name]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """With what vLLM was started: a fake vLLM, and a fake GPU of Hopper's capability. `refusal` is raised instead."""
    seen: dict[str, Any] = {}

    class LLMEngine:
        @classmethod
        def from_engine_args(cls, arguments: dict[str, Any], usage_context: str) -> object:
            seen.update(arguments, usage_context=usage_context, invariant=os.environ.get("VLLM_BATCH_INVARIANT"))
            if "refusal" in seen:
                raise seen["refusal"]
            return cls()

    fakes: dict[str, dict[str, Any]] = {
        "vllm": {"EngineArgs": dict, "LLMEngine": LLMEngine},
        "vllm.v1": {},
        "vllm.v1.engine": {},
        "vllm.v1.engine.llm_engine": {},
        "vllm.usage": {},
        "vllm.usage.usage_lib": {"UsageContext": SimpleNamespace(LLM_CLASS="batches", ENGINE_CONTEXT="engine")},
    }
    for name in [name for name in sys.modules if name.startswith("vllm.")]:
        monkeypatch.delitem(sys.modules, name)
    for name, content in fakes.items():
        monkeypatch.setitem(sys.modules, name, module := ModuleType(name))
        vars(module).update(content)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    monkeypatch.setattr(engine, "load_tokenizer", lambda _: None)
    monkeypatch.setattr(engine, "_engines", {})
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr("steps.policy.machine._making_room", [])
    base = Path(Policy().base_model).absolute()
    monkeypatch.chdir(tmp_path)
    (tmp_path / base.relative_to(base.parent.parent)).parent.mkdir()
    (tmp_path / base.relative_to(base.parent.parent)).symlink_to(base)
    return seen


def test_an_engine_on_a_gpu_has_the_sizes_of_vllms_batches(started: dict[str, Any]) -> None:
    engine.get(Policy(dtype="bfloat16"))
    assert (started["usage_context"], started["invariant"], started["enable_sleep_mode"]) == ("batches", None, True)


def test_a_deterministic_engine_says_where_vllm_has_no_kernels_for_it(started: dict[str, Any]) -> None:
    policy = Policy.model_validate({"dtype": "bfloat16", "deterministic": True})
    engine.get(policy)
    assert started["invariant"] == "1"
    engine._engines.clear()
    started["refusal"] = ValueError("No valid attention backend: [FLASHMLA: batch invariance not supported]")
    with pytest.raises(
        UserError, match=r"policy\.deterministic: vLLM has no kernels .* invariance not supported.*; take it out"
    ):
        engine.get(policy)
    started["refusal"] = ValueError("the disk is on fire")
    with pytest.raises(UserError, match=r"policy\.base_model: cannot load .*fire"):
        engine.get(policy)


def test_float32_is_refused_on_a_gpu_before_vllm_is_imported(started: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"policy\.dtype: float32"):
        engine.get(Policy())
    assert not started


@pytest.mark.parametrize(
    ("is_shared", "expected"),
    [(False, ["sleep 1", "wake_up"]), (True, ["sleep 0", "release_kv_cache_memory", "wake_up"])],
)
def test_what_sleeps_for_an_update(is_shared: bool, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With an engine that is a fake, as vLLM's sleep needs a GPU: of one with the trainer's weights, keys and values alone.
    Whether vLLM has these methods is looked up in its source."""
    events: list[str] = []
    llm = SimpleNamespace(
        vllm_config=SimpleNamespace(model_config=SimpleNamespace(enable_sleep_mode=True)),
        sleep=lambda level: events.append(f"sleep {level}"),
        release_kv_cache_memory=lambda: events.append("release_kv_cache_memory"),
        wake_up=lambda: events.append("wake_up"),
    )
    monkeypatch.setattr(engine, "prepare_sampling", lambda: None)
    made = object.__new__(engine.Engine)
    made.policy, made.llm, made.asleep = Policy.model_validate({"share_weights": is_shared}), llm, False
    for _ in range(2):
        made.sleep()
    for _ in range(2):
        made.wake()
    assert events == expected
    [package] = importlib.util.find_spec("vllm").submodule_search_locations or []  # pyrefly: ignore[missing-attribute]
    source = (Path(package) / "v1/engine/llm_engine.py").read_text()
    assert all(f"    def {event.split()[0]}(self" in source for event in events)
