"""Rows of a tensor by their places, with a gradient that is summed in float32. Importing this imports torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


class _Gather(Function):
    """x.index_select(0, places) of x [N, …]. Gradients of a place that comes often are summed in float32."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.count = len(x)
        return x.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        [places] = ctx.saved_tensors
        total = torch.zeros(ctx.count, *slope.shape[1:], dtype=torch.float32, device=slope.device)
        return total.index_add_(0, places, slope.float()).to(slope.dtype), None


gather = _Gather.apply
