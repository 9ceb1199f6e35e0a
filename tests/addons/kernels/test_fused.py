"""The functions for a GPU, on a CPU: what torch compiles of them, and how much a layer does with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from addons.kernels import fused
from benchmarks.gpu import counted
from tests.support.tiny import relative

pytestmark = pytest.mark.usefixtures("one_thread")


def calls(tokens: int) -> list[tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Each function with random arguments."""
    import torch

    torch.manual_seed(1)

    def drawn(*shape: int) -> Any:
        return torch.randn(shape).bfloat16()

    x, weight, slope = drawn(tokens, 32), drawn(32), drawn(tokens, 32)
    heads, scale = drawn(tokens, 3, 8), drawn(8)
    inverse, inverses = torch.rand(tokens, 1), torch.rand(tokens, 3, 1)
    angles = torch.randn(tokens, 4).repeat(1, 2)
    cos, sin = angles.cos().bfloat16(), angles.sin().bfloat16()
    targets = torch.randint(32, (tokens, 1))
    back = drawn(tokens, 3, 8), cos, sin
    return [
        (fused.norm, (x, weight, 1e-6)),
        (fused.norm_back, (x, weight, inverse, slope)),
        (fused.turn, (heads, None, 0.0, cos, sin)),
        (fused.turn_back, (*back, None, None, None)),
        (fused.turn, (heads, scale, 1e-6, cos, sin)),
        (fused.turn_back, (*back, heads, scale, inverses)),
        (fused.gated, (x, slope)),
        (fused.gated_back, (x, slope, drawn(tokens, 32))),
        (fused.token_logps, (x, targets, 0.7, True, True, False)),
        (fused.token_logps, (x, targets, 0.7, False, False, False)),
    ]


@pytest.mark.nightly  # a minute of compilers
def test_compiled_functions_are_themselves_for_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled for the CPU, each at most twice: with a norm and without, with the slope of logprobs and without."""
    import torch

    monkeypatch.setattr(fused, "_compiles", lambda _: True)
    with torch.no_grad(), monkeypatch.context() as patched:
        patched.setattr(torch._dynamo.config, "recompile_limit", 2)
        patched.setattr(torch._dynamo.config, "fail_on_recompile_limit_hit", True)
        for tokens in (5, 64):
            for call, own in calls(tokens):
                plain = call.__wrapped__(*own)  # pyrefly: ignore[missing-attribute]
                for mine, theirs in zip(tensors(call(*own)), tensors(plain), strict=True):
                    assert mine.dtype == theirs.dtype
                    assert relative([mine], [theirs]) < (0.01 if mine.dtype == torch.bfloat16 else 1e-5)


def tensors(result: Any) -> list[Any]:
    return [each for each in (result if isinstance(result, tuple) else (result,)) if hasattr(each, "dtype")]


@pytest.mark.parametrize(("name", "kept"), [("0.5B", 32), ("7B", 125)])
def test_a_layer_on_a_gpu_has_few_kernels_and_keeps_little(name: str, kept: float) -> None:
    """Before these functions: 187 kernels, 50 KiB and 193 KiB kept, 450 KiB and 1,770 KiB of traffic."""
    layer = counted.layer(counted.SHAPES[name], tokens=1024)
    assert layer.products == 47
    assert layer.kernels <= 106
    assert layer.kept / 1024 <= kept
    assert layer.traffic / 1024 <= 5.2 * kept
