"""Layers with a backward of their own compute what transformers and PEFT compute in float64, gradients included."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from addons.kernels import fused
from steps.core.params import Policy
from steps.training import packing
from steps.training.grpo import Trainer
from tests.support import tiny
from tests.support.tiny import moved, plain_logps, random_rows, relative, twin, weights

pytestmark = pytest.mark.usefixtures("one_thread")
GPU = 0  # in place of a block's size: the functions for a GPU, which run on a CPU as they stand
blocks = pytest.mark.parametrize(
    "block", [1, 100, 2**17, GPU], ids=lambda block: f"blocks of {block}" if block else "GPU"
)


def family(name: str, folder: Path, **more: Any) -> Policy:
    """A tiny random model of a family."""
    import torch
    from transformers import AutoModelForCausalLM

    policy = tiny.make_policy(folder, 4, 2, name, **more)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for key, value in model.named_parameters():
            if "norm" in key or key.endswith("bias"):  # ones and zeros would hide that they are read
                value.add_(torch.randn(value.shape) * 0.3)
    model.save_pretrained(folder)
    return policy


FAMILIES: list[tuple[str, dict[str, Any]]] = [
    ("Qwen2", {}),  # biases
    ("Qwen3", {}),  # norms of heads
    ("Llama", {}),
    ("Llama", {"attention_bias": True, "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}),
    ("Mistral", {"sliding_window": 64}),
    ("Gemma", {}),  # norms of another kind keep their own forward
]


@pytest.mark.parametrize(("name", "more"), FAMILIES, ids=[f"{name} {list(more)}" for name, more in FAMILIES])
@pytest.mark.parametrize("block", [100, 2**17, GPU])
def test_every_family_is_what_stock_transformers_and_peft_make_of_it(
    name: str, more: dict[str, Any], block: int, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from addons.kernels import layers

    monkeypatch.setattr(*((fused, "is_used", lambda _: True) if block == GPU else (layers, "BLOCK", block)))
    trainer = moved(Trainer(family(name, tmp_path / "base", **more), seed=1))
    model = twin(trainer, tmp_path / "adapter")
    rows = random_rows(12, 1, longest=30, alike=0.8)
    packed = packing.pack(rows, torch.float32, device)
    logps, _ = packing.token_logps(trainer.model, packed, 1.0)
    expected = [plain_logps(model, one, 1.0)[torch.tensor(one.mask[1:]).nonzero()[:, 0]] for one in rows]
    for found, one in zip(logps.cpu(), expected, strict=True):
        torch.testing.assert_close(found[: len(one)].double(), one, atol=2e-5, rtol=1e-5)
    factor = torch.randn(logps.shape, generator=torch.Generator().manual_seed(1))
    wanted = sum((one * own[: len(one)]).sum() for one, own in zip(expected, factor, strict=True))
    mine = torch.autograd.grad((logps * factor.to(device)).sum(), list(trainer.weights.values()))
    assert relative(mine, torch.autograd.grad(wanted, weights(model))) < 1e-5


def test_which_forwards_are_replaced(tmp_path: Path) -> None:
    from steps.training.model import load_model

    def replaced(name: str) -> set[str]:
        model = load_model(family(name, tmp_path / name))
        return {type(module).__name__ for module in model.modules() if "forward" in vars(module)}

    assert replaced("Qwen3") == {"Linear", "Qwen3RMSNorm", "Qwen3Attention", "Qwen3MLP"}
    assert replaced("Qwen2") == {"Linear", "Qwen2RMSNorm", "Qwen2Attention", "Qwen2MLP"}
    assert replaced("Gemma") == {"Linear"}


@pytest.mark.parametrize("with_gpus_functions", [False, True])
def test_bfloat16_is_float32_within_its_rounding(
    device: str, with_gpus_functions: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    if with_gpus_functions:
        monkeypatch.setattr(fused, "is_used", lambda _: True)
    policy = family("Qwen3", tmp_path / "base")
    rows = random_rows(12, 1, longest=30, alike=0.8)
    found = []
    for dtype in ("float32", "bfloat16"):
        trainer = moved(Trainer(policy.model_copy(update={"dtype": dtype}), seed=1))
        logps, _ = packing.token_logps(trainer.model, packing.pack(rows, *trainer.place), 1.0)
        factor = torch.randn(logps.shape, generator=torch.Generator().manual_seed(1)).to(device)
        found.append([logps, *torch.autograd.grad((logps * factor).sum(), list(trainer.weights.values()))])
        assert all(one.dtype == torch.float32 for one in found[-1])
    assert 1e-5 < relative(found[1][:1], found[0][:1]) < 0.03
    assert relative(found[1][1:], found[0][1:]) < 0.1


@blocks
@pytest.mark.parametrize("tokens", [1, 7])
@pytest.mark.parametrize("normed", [True, False])
def test_heads_normed_and_turned_by_the_formulas(
    block: int, tokens: int, normed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm, apply_rotary_pos_emb

    from addons.kernels import layers

    monkeypatch.setattr(*((fused, "is_used", lambda _: True) if block == GPU else (layers, "BLOCK", block)))
    torch.manual_seed(1)
    x, slope = torch.randn(2, tokens, 3, 8)
    angles = torch.randn(tokens, 4).repeat(1, 2)
    norm = Qwen3RMSNorm(8)
    norm.weight.data.normal_()
    x.requires_grad_()
    scale = norm.weight.detach() if normed else None
    found = layers._NormRope.apply(x, scale, norm.variance_epsilon, angles.cos(), angles.sin(), torch.float32)
    exact = x.detach().double().requires_grad_()
    heads = exact * torch.rsqrt(exact.square().mean(-1, keepdim=True) + 1e-6) * norm.weight.detach().double()
    heads = (heads if normed else exact).transpose(0, 1)[None]
    expected, _ = apply_rotary_pos_emb(heads, heads, angles.double().cos()[None], angles.double().sin()[None])
    expected = expected[0].transpose(0, 1)
    mine, theirs = (torch.autograd.grad(out, of, slope.to(out)) for out, of in ((found, x), (expected, exact)))
    assert relative([found, *mine], [expected, *theirs]) < 1e-6


def test_an_input_without_gradient_gets_none(tmp_path: Path) -> None:
    """The first layer's: its matrix product is spared."""
    import torch

    from addons.kernels import layers

    def backward(outs: list[Any]) -> None:
        torch.stack([out.square().sum() for out in outs]).sum().backward()

    trainer = moved(Trainer(tiny.make_policy(tmp_path), seed=1))
    attention = trainer.model.get_base_model().model.layers[0].self_attn
    x = torch.randn(1, 5, 16)
    backward(layers.project(x, [attention.q_proj, attention.v_proj]))
    assert x.grad is None
    own = attention.q_proj.lora_B["default"].weight.grad.clone()
    known = x.clone().requires_grad_()
    backward(layers.project(known, [attention.q_proj, attention.v_proj]))
    assert known.grad is not None
    torch.testing.assert_close(attention.q_proj.lora_B["default"].weight.grad, 2 * own)  # summed, as autograd does
    with torch.no_grad(), trainer.model.disable_adapter():
        [base] = layers.project(x, [attention.q_proj])
        torch.testing.assert_close(base, torch.nn.functional.linear(x, attention.q_proj.base_layer.weight))


MEMORY = """
import resource
import sys
import torch
from steps.policy.machine import keep_memory
if sys.argv[1:]:
    keep_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16 * 2**20)  # 64 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print([faults() for _ in range(20)][-1])
"""


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc alone is told to")
def test_memory_of_tensors_is_kept() -> None:
    """What is freed is soon not asked of the kernel again; without being told, it is: a page fault each 4 KiB, or 2 MiB."""
    found = []
    for words in ([], ["keep"]):
        done = subprocess.run([sys.executable, "-c", MEMORY, *words], capture_output=True, text=True, check=True)
        found.append(int(done.stdout))
    assert found[1] <= 8 < 30 < found[0]
