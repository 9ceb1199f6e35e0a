"""The processes that share an update: how they meet, and the base model of which each holds a part."""

from __future__ import annotations

import os
from typing import Any

from steps.core.errors import UserError
from steps.training.processes import process

# Ways of accelerate to divide a model, which would change what its state says of the processes and divide nothing here.
ELSEWHERE = ("ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_FSDP", "ACCELERATE_USE_MEGATRON_LM")


def join() -> None:
    """Meet the other processes, and take a GPU where there are GPUs. UserError where they are too few."""
    rank, count = process()
    import torch
    from accelerate import PartialState

    if wrong := [name for name in ELSEWHERE if os.environ.get(name, "").lower() in ("true", "1")]:
        raise UserError(
            f"{wrong[0]} is set, and the update does not use it: unset it; update.shard divides the base model"
        )
    if torch.distributed.is_initialized():  # by Ray Train, which has also given each worker its GPU
        PartialState()
        return
    if torch.cuda.is_available() and (cards := torch.cuda.device_count()) < count:
        raise UserError(
            f"update.processes is {count}, and this run sees {cards} GPUs: each process needs one; set it to {cards} at most"
        )
    PartialState(init_method=f"file://{os.environ['FLYWHEEL_STORE']}", rank=rank, world_size=count)


def shard(model: Any) -> None:
    """Divide the weights of a PEFT model's decoder layers among the processes (FSDP2: Zhao et al. 2023, arXiv:2304.11277).

    Each layer is whole only while it computes, forward or backward. The adapter, the embedding and the head stay whole in
    each process, so that adapters and checkpoints are as in one process. All processes must make the same passes.
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cuda" if torch.cuda.is_available() else "cpu", (process()[1],))
    decoder = model.get_base_model().get_decoder()
    adapter = {weight for weight in decoder.parameters() if weight.requires_grad}
    divided = set[Any]()
    for layer in decoder.layers:
        divided |= set(layer.parameters())  # before they are replaced by their parts
        fully_shard(layer, mesh=mesh, reshard_after_forward=True, ignored_params=adapter)
        divided |= set(layer.parameters())
    fully_shard(decoder, mesh=mesh, ignored_params=set(decoder.parameters()) - divided | adapter)
    model.to(mesh.device_type)
