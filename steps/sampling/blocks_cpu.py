"""Products of matrices on a CPU whose rows do not depend on each other (steps/sampling/worker_cpu.py).

A library chooses its kernel by the number of rows, and with it the order of a sum. In blocks of one size each row meets the
same kernel, wherever it stands and whatever stands beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ROWS = 64  # of a block: smaller ones are slower to read prompts, larger ones to sample few sequences


def in_blocks(x: Any, product: Callable[[Any], Any]) -> Any:
    """`product` of x [..., in], computed on blocks of `ROWS` rows, the last one padded with zeros: [..., out]."""
    import torch

    rows = x.reshape(-1, x.shape[-1])
    count = rows.shape[0]
    rows = torch.nn.functional.pad(rows, (0, 0, 0, -count % ROWS))
    blocks = [product(block) for block in rows.split(ROWS)]
    return torch.cat(blocks)[:count].reshape(*x.shape[:-1], -1)
