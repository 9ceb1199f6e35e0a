"""The trainer's base model in 4 bits, with bitsandbytes' kernels for CPUs. A run refuses policy.quantization on a CPU; these
tests take that check away. On a random tiny Qwen3; neither a GPU nor vLLM's engine in 4 bits is behind this."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from addons.gpu import device
from steps.core.params import Policy, Update
from steps.training import packing
from steps.training.grpo import Trainer
from tests.support import tiny

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def trainer(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> Trainer:
    pytest.importorskip("bitsandbytes", reason="`make dev` installs it")  # here, because it takes seconds
    monkeypatch.setattr(device, "check_gpus", lambda _: None)
    return tiny.moved(Trainer(policy.model_copy(update={"quantization": "bnb-4bit"}), seed=1))


def test_the_weights_are_those_of_vllms_plugin(trainer: Trainer) -> None:
    """Bit for bit what vllm_bnb_plugin 0.0.3 makes of the same file (bitsandbytes_loader.py calls this function so)."""
    from bitsandbytes.functional import quantize_4bit
    from safetensors.torch import load_file

    stored = load_file(Path(trainer.policy.base_model) / "model.safetensors")
    layers = {name: layer for name, layer in trainer.model.named_modules() if hasattr(layer, "quant_state")}
    assert len(layers) == 14  # of two decoder layers
    for name, layer in layers.items():
        weight = stored[f"{name.removeprefix('base_model.model.').removesuffix('.base_layer')}.weight"]
        packed, state = quantize_4bit(weight, compress_statistics=True, quant_type="nf4")
        assert packed.equal(layer.weight.data), name
        assert state.absmax.equal(layer.weight.quant_state.absmax), name
        assert state.state2.absmax.equal(layer.weight.quant_state.state2.absmax), name


def test_what_is_not_quantised_keeps_its_type_and_layers_in_4_bits_keep_their_own_forward(trainer: Trainer) -> None:
    import torch
    from peft.tuners.lora.bnb import Linear4bit

    kinds = {weight.dtype for name, weight in trainer.model.named_parameters() if "lora_" not in name}
    assert kinds == {torch.float32, torch.uint8}
    assert trainer.model.get_output_embeddings().weight.dtype == torch.float32
    adapted = [layer for layer in trainer.model.modules() if isinstance(layer, Linear4bit)]
    assert len(adapted) == 14
    assert not any("forward" in vars(layer) for layer in adapted)


def test_packed_rows_give_the_gradient_of_plain_ones(trainer: Trainer) -> None:
    rows = tiny.random_rows(8, seed=1, alike=0.5)
    logps, _ = packing.token_logps(trainer.model, trainer._pack(tiny.with_advantages(rows)), 1.0)
    logps.sum().backward()
    packed = gradients(trainer.model)
    plain = 0.0
    for row in rows:
        sampled = [place for place, is_sampled in enumerate(row.mask[1:]) if is_sampled]
        plain += tiny.plain_logps(trainer.model, row, 1.0)[sampled].sum()
    plain.backward()  # pyrefly: ignore[missing-attribute]
    assert tiny.relative(packed, gradients(trainer.model)) < 1e-5


def gradients(model: Any) -> list[Any]:
    taken = [weight.grad.clone() for weight in tiny.weights(model)]
    model.zero_grad()
    return taken


def test_an_update_moves_the_adapter_and_its_checkpoint_goes_on(trainer: Trainer, tmp_path: Path) -> None:
    examples = tiny.with_advantages(tiny.sampled_by(trainer.model, tiny.random_rows(8, seed=2), 1.0))
    settings = Update(steps_per_generation=2)
    before = [weight.detach().clone() for weight in tiny.weights(trainer.model)]
    measured = trainer.train(examples, settings, 1.0, seed=1)
    assert 0 <= measured["sampler_kl"] < 1e-9
    assert tiny.relative(before, tiny.weights(trainer.model)) > 1e-4
    trainer.save_checkpoint(tmp_path / "checkpoint", trainer.save_adapter(tmp_path / "adapter"))
    again = Trainer(trainer.policy, checkpoint=tmp_path / "checkpoint")
    assert again.save_adapter(tmp_path / "again") == again.adapter_hash
    again.train(examples, settings.model_copy(update=tiny.LOOSE), 1.0, seed=1)
    assert again.steps == 4
