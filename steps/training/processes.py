"""The processes that share an update (addons/accelerate/processes.py has them meet)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from steps.core.section import at

if TYPE_CHECKING:
    from steps.core.params import Update


def gathered(value: Any) -> list[Any]:
    """This value of every process, in the order of their ranks."""
    if process()[1] == 1:
        return [value]
    import torch

    values: list[Any] = [None] * process()[1]
    torch.distributed.all_gather_object(values, value)
    return values


def process() -> tuple[int, int]:
    """(rank of this process, number of processes), as an add-on that launches them sets them; (0, 1) where none share."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def is_launched(update: Update) -> bool:
    """Whether this process is one of those that make the update, and not the one that has yet to start them."""
    count, launcher = at(update, "processes") or 1, at(update, "launcher")
    return process()[1] == count and (launcher != "ray" or "RANK" in os.environ)
