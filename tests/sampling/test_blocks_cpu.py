"""Products in blocks: a row has the same bits whatever stands beside it."""

from __future__ import annotations

import pytest
import torch

from steps.sampling.blocks_cpu import ROWS, in_blocks


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [16, 128, 384])
def test_a_row_has_the_same_bits_alone_and_beside_others(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, weight = torch.randn(3 * ROWS + 5, width).to(dtype), torch.randn(96, width).to(dtype)

    def product(block: torch.Tensor) -> torch.Tensor:
        assert block.shape == (ROWS, width)
        return torch.nn.functional.linear(block, weight)

    whole = in_blocks(x, product)
    assert torch.allclose(whole.float(), (x.float() @ weight.float().T), atol=0.5 if dtype == torch.bfloat16 else 1e-3)
    for rows in ([0], [2 * ROWS + 3], list(range(7, 80)), list(range(x.shape[0]))[::-1]):
        assert torch.equal(in_blocks(x[rows], product), whole[rows])


def test_the_shape_is_kept() -> None:
    assert in_blocks(torch.zeros(2, 3, 8), lambda block: block[:, :4]).shape == (2, 3, 4)
