"""The processes of `accelerate launch` that share an update."""

from __future__ import annotations

import os
from typing import Any


def gathered(value: Any) -> list[Any]:
    """This value of every process, in the order of their ranks."""
    if process()[1] == 1:
        return [value]
    import torch

    values: list[Any] = [None] * process()[1]
    torch.distributed.all_gather_object(values, value)
    return values


def process() -> tuple[int, int]:
    """(rank of this process, number of processes) of `accelerate launch`; (0, 1) without it."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
