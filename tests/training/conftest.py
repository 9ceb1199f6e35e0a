"""What tests of the update share."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The gradient at each optimiser step, before it is clipped."""
    import torch

    seen: list[list[Any]] = []
    clip = torch.nn.utils.clip_grad_norm_

    def record(weights: Any, limit: float) -> Any:
        weights = list(weights)
        seen.append([value.grad.clone() for value in weights])
        return clip(weights, limit)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", record)
    return seen
