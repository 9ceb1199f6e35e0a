"""What an update needs of a GPU's memory: counted, compared with what autograd keeps, and decided by; on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from addons.accelerate import processes
from addons.gpu import memory
from benchmarks.attention import kept
from steps.core.params import Policy, Update
from steps.core.records import Row
from steps.policy import machine
from steps.training import batches, model, packing, trained
from steps.training.grpo import Trainer
from tests.support import tiny
from tests.support.tiny import LOOSE, moved, random_rows, sampled_by, with_advantages

pytestmark = pytest.mark.usefixtures("one_thread")


SHAPES = {  # of Qwen2.5 7B, Llama 3.1 8B and Qwen3 8B
    "Qwen2": {"hidden_size": 3584, "intermediate_size": 18944, "num_attention_heads": 28, "num_key_value_heads": 4},
    "Llama": {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8},
    "Qwen3": {"hidden_size": 4096, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 8},
}


@pytest.mark.parametrize("family", SHAPES)
def test_the_count_is_what_autograd_keeps(family: str) -> None:
    """With FlexAttention, in float32: within 2 % of a layer."""
    import transformers

    found, rows = [], [Row([1] * 1024, [0] + [1] * 1023, [])]
    for layers in (1, 2):
        config = getattr(transformers, f"{family}Config")(vocab_size=64, num_hidden_layers=layers, **SHAPES[family])
        found.append(kept(config, rows))
    cost = memory.costs(config, Policy().lora.rank, 4)
    assert cost.layer == pytest.approx((found[1] - found[0]) / 1024, rel=0.02)
    assert cost.whole >= found[1] / 1024
    assert cost.whole - 2 * cost.layer == cost.checkpointed - 2 * 4 * config.hidden_size
    assert cost.attended == 2 * 4 * config.num_attention_heads * (
        128 + 1
    )  # what attention gives, and a scale for each head


def test_costs_of_a_mixture_of_experts_are_those_that_a_token_passes() -> None:
    from transformers import Qwen2Config, Qwen2MoeConfig

    sizes: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3}
    moe = Qwen2MoeConfig(
        **sizes,
        num_key_value_heads=4,
        num_experts_per_tok=3,
        moe_intermediate_size=32,
        shared_expert_intermediate_size=16,
        intermediate_size=9999,
    )
    dense = Qwen2Config(**sizes, num_key_value_heads=4, intermediate_size=2 * (3 * 32 + 16))  # which keeps half as much
    assert memory.costs(moe, 8, 2) == memory.costs(dense, 8, 2)


COST = memory.Costs(layer=100, whole=1000, checkpointed=50, attended=20)  # bytes


@pytest.mark.parametrize(
    ("free", "longest", "settings", "expected"),
    [
        (1e9, 500, {}, (MOST := memory.MOST, False, False)),  # all fits
        (1.2e7, 500, {}, (8192, False, False)),  # 10.2 MB / 1200
        (6e6, 500, {}, (4096, False, False)),  # 4250 tokens
        (
            4e6,
            500,
            {},
            (8192, True, True),
        ),  # 4096 tokens do not fit; checkpointed 13,600, or 12,600 with the attention's
        (6e6, 6000, {}, (16384, True, True)),  # the longest does not
        (5e6, 6000, {}, (16384, True, False)),  # 17,000 tokens checkpointed, or 15,700 with the attention's results
        (6e6, 6000, {"gradient_checkpointing": False}, (4096, False, False)),
        (1e9, 500, {"gradient_checkpointing": True}, (MOST, True, True)),
        (1e9, 500, {"tokens_per_micro_batch": 100}, (100, False, False)),
        (4e6, 500, {"tokens_per_micro_batch": 100}, (100, False, False)),  # 500 tokens, for one trajectory
        (4e6, 500, {"tokens_per_micro_batch": 9000}, (9000, True, True)),
        (1e3, 500, {}, (1024, True, False)),  # too little for anything
    ],
)
def test_micro_batches_by_memory(
    free: float, longest: int, settings: dict[str, Any], expected: tuple[int, bool, bool]
) -> None:
    assert memory.choose(Update(**settings), COST, longest, free) == expected


def test_a_trajectory_that_may_not_fit_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(memory, "say", said.append)
    memory.choose(Update(), COST, 4000, 1.25e6)
    assert said == []
    memory.choose(Update(), COST, 5000, 1.25e6)
    assert len(said) == 1
    assert said[0].endswith("is never divided, so lower policy.context if the update runs out of memory")


def test_on_a_cpu_and_in_a_deterministic_run_memory_decides_nothing() -> None:
    import torch

    example = batches.Example([random_rows(1, seed=1)[0]], 1.0)

    def chosen(kind: str, deterministic: bool, **settings: Any) -> tuple[int | None, bool | None]:
        policy = Policy.model_validate({"deterministic": deterministic})
        trainer: Any = SimpleNamespace(place=(None, torch.device(kind)), model=None, policy=policy)
        given = Trainer.with_micro_batches(trainer, [example], Update(**settings))
        return given.tokens_per_micro_batch, given.gradient_checkpointing

    assert chosen("cpu", False) == chosen("cpu", True) == (4096, False)
    assert chosen("cpu", False, gradient_checkpointing=True, tokens_per_micro_batch=64) == (64, True)
    assert chosen("cuda", True) == (4096, True)
    assert chosen("cuda", True, gradient_checkpointing=False, tokens_per_micro_batch=64) == (64, False)


def test_an_update_with_a_fake_gpus_memory(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The trainer asks for micro-batches with its own model and longest trajectory, and uses what it gets."""
    asked = []

    def fake(
        device: Any, model: Any, settings: Any, rank: int, longest: int, deterministic: bool
    ) -> memory.MicroBatches:
        asked.append((model, rank, longest, deterministic))
        return memory.MicroBatches(64, True)

    monkeypatch.setattr(memory, "micro_batches_on", fake)
    monkeypatch.setattr(Trainer, "with_micro_batches", memory.with_micro_batches)  # as on a GPU
    trainer = moved(Trainer(policy, seed=1))
    examples = with_advantages(sampled_by(trainer.model, random_rows(8, seed=2), 1.0))
    trainer.train(examples, Update(**LOOSE), 1.0, seed=1)
    assert asked == [(trainer.model, 2, max(len(example.rows[0].ids) for example in examples), False)]
    assert trainer.model.get_base_model().is_gradient_checkpointing
    trainer.set_checkpointing(False)


# --- The base model leaves the GPU; host memory stands for both here


@pytest.fixture
def callbacks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(machine, "_leaving", [])
    yield
    trained._bases.clear()


def test_frozen_weights_leave_and_come_back_with_the_same_bytes(policy: Policy) -> None:
    import weakref

    import torch

    trainer = moved(Trainer(policy, seed=1))
    base = memory.Base(trainer.model)
    rows = random_rows(5, 1)

    def logps() -> Any:
        with torch.no_grad():
            return packing.token_logps(trainer.model, packing.pack(rows, torch.float32), 1.0)[0]

    expected = logps()
    names = {value: name for name, value in trainer.model.named_parameters()}
    assert {names[value] for value in base.frozen} == {name for name in names.values() if "lora" not in name}
    copies = []
    for _ in range(2):
        before = {names[value]: value.data_ptr() for value in base.frozen}
        storages = [weakref.ref(value.data.untyped_storage()) for value in base.frozen]
        adapter = [value.data_ptr() for value in trainer.weights.values()]
        base.leave()
        base.leave()
        assert base.is_away
        assert all(names[value] and value.data_ptr() != before[names[value]] for value in base.frozen)
        assert not any(storage() for storage in storages), "memory is still held"
        assert [value.data_ptr() for value in trainer.weights.values()] == adapter
        copies.append([value.data_ptr() for value in base.frozen])
        base.come_back()
        base.come_back()
        assert not set(copies[-1]) & {value.data_ptr() for value in base.frozen}
        assert torch.equal(logps(), expected)
    assert copies[0] == copies[1], "the host's copy is made once"


def test_the_trainer_leaves_before_an_engine_wakes_and_is_back_for_the_next_update(
    callbacks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an engine and a GPU that are fakes: the order of leaving and waking, and that a CPU's base model stays."""
    from steps.sampling.engine import Engine

    policy = tiny.make_policy(tmp_path / "base")
    first = moved(Trainer(policy, seed=1))
    pointers = [value.data_ptr() for value in first.model.parameters()]
    machine.prepare_sampling()
    [stays] = trained._bases.values()
    assert type(stays) is model.Base, "this is a CPU"
    assert [value.data_ptr() for value in first.model.parameters()] == pointers

    class OnGpu(model.Base):
        def __init__(self, trained_model: Any) -> None:
            super().__init__(trained_model)
            self.device = SimpleNamespace(type="cuda")

    monkeypatch.setattr(trained, "Base", OnGpu)
    first = moved(Trainer(policy, seed=1))
    first.save_checkpoint(tmp_path / "checkpoint", "a")
    [base] = trained._bases.values()
    assert isinstance(base, memory.Base)
    events: list[str] = []

    class FakeLLM:
        def wake_up(self) -> None:
            events.append(f"engine wakes, base {'away' if base.is_away else 'there'}")

    engine = object.__new__(Engine)
    engine.llm, engine.asleep = FakeLLM(), True
    engine.wake()
    assert events == ["engine wakes, base away"]
    second = Trainer(policy, checkpoint=tmp_path / "checkpoint")
    assert second.model is first.model
    assert not base.is_away
    assert machine._leaving == [trained.leave_gpu]


def test_the_parts_of_a_sharded_base_leave_and_come_back(
    policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Divided among one process: FSDP2 gathers its parts nevertheless."""
    import torch

    if torch.distributed.is_initialized():  # by TRL's trainer in another test of this process
        torch.distributed.destroy_process_group()
    trainer = moved(Trainer(policy, seed=1))
    packed = packing.pack(random_rows(5, 1), torch.float32)
    expected = packing.token_logps(trainer.model, packed, 1.0)[0]
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        processes.shard(trainer.model)
        base = memory.Base(trainer.model)
        assert len(base.parts) == 22  # matrices and norms of two decoder layers
        for _ in range(2):
            base.leave()
            assert sum(part.size() for part in base.parts) == 0
            base.come_back()
            assert torch.equal(packing.token_logps(trainer.model, packed, 1.0)[0], expected)
    finally:
        torch.distributed.destroy_process_group()
        trained._bases.clear()
