"""One copy of the base weights, where engine and trainer are in one process and on one device (policy.share_weights).

The trainer's frozen tensors become the engine's. What vLLM fuses (queries, keys and values; gate and up) is shared as views
of its rows, and an embedding without the rows that pad the vocabulary. All tensors are compared, byte for byte, before the
first is replaced, so for that moment there are two copies. Neither side writes to them afterwards.

Engine and trainer say here that they exist, in any order; the second of them makes the two share.

On a CPU, vLLM packs its matrices for oneDNN and drops the plain ones, so `keep_plain` has it compute with plain ones. On a
GPU the engine's weights stay on the card, and its keys and values alone sleep (steps/sampling/engine.py). None of this has
run on a GPU yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from steps.core.errors import UserError
from steps.core.progress import say
from steps.policy.machine import return_memory

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from steps.core.params import Policy
    from steps.training.model import Base


# vLLM's model and the trainer's, by policy. Global, because one process has one device, and the two do not know each other.
_engines: WeakValueDictionary[str, Any] = WeakValueDictionary()
_bases: WeakValueDictionary[str, Base] = WeakValueDictionary()


def of_engine(policy: Policy, llm: Any) -> None:
    """Share the weights of this engine (vLLM's LLMEngine) with the trainer that there is, or will be."""
    [_engines[policy.model_dump_json()]] = llm.apply_model(lambda model: model)
    _share(policy)


def of_trainer(policy: Policy, base: Base) -> None:
    """Share the weights of the engine that there is, or will be, with this trainer."""
    _bases[policy.model_dump_json()] = base
    _share(policy)


def _share(policy: Policy) -> None:
    key = policy.model_dump_json()
    engine, base = _engines.get(key), _bases.get(key)
    if engine is None or base is None or not base.frozen:  # nothing is frozen any more where it is shared already
        return
    tensors = views(engine, base)
    base.share(tensors)
    return_memory()
    size = sum(tensor.nbytes for tensor in tensors)
    say(f"engine and trainer share the base weights, {size / 2**20:.0f} MiB")


def views(engine: Any, base: Base) -> list[torch.Tensor]:
    """For each frozen tensor of the trainer the same numbers in the engine's model, without a copy. UserError where a tensor
    of the engine's has another layout or other numbers."""
    theirs = {name.replace(".base_layer.", "."): value.data for name, value in engine.named_parameters()}
    frozen = set(base.frozen)
    mine = {
        name.removeprefix("base_model.model.").replace(".base_layer.", "."): value.data
        for name, value in base.model.named_parameters()
        if value in frozen
    }
    fused = getattr(engine, "packed_modules_mapping", None) or {}
    shared = []
    for name, own in mine.items():
        whole, row = (name, 0) if name in theirs else place(name, mine, fused)
        part = theirs[whole][row : row + len(own)] if whole in theirs else None
        if problem := difference(own, part):
            raise UserError(
                f"policy.share_weights: trainer and engine cannot share {name} of {base.model.config.name_or_path}, because "
                f"the engine's {problem}; set policy.share_weights to false, and each has its own copy"
            )
        shared.append(part)
    return shared


def place(name: str, mine: Mapping[str, torch.Tensor], fused: Mapping[str, Sequence[str]]) -> tuple[str, int]:
    """The name of the engine's tensor that holds this one of the trainer's, and the row at which it begins there."""
    for whole, parts in fused.items():
        for number, part in enumerate(parts):
            if f".{part}." in name:
                before = [name.replace(f".{part}.", f".{other}.") for other in parts[:number]]
                return name.replace(f".{part}.", f".{whole}."), sum(len(mine[each]) for each in before if each in mine)
    return name, 0


def difference(own: torch.Tensor, part: torch.Tensor | None) -> str:
    """What keeps a part of the engine's tensor from taking the place of the trainer's; empty where nothing does."""
    import torch

    if part is None:
        return "model has no such tensor"
    if part.dtype != own.dtype:
        return f"is {part.dtype}, and the trainer's {own.dtype}"
    if part.shape != own.shape:
        return f"has the shape {list(part.shape)}, and the trainer's {list(own.shape)}"
    if not part.is_contiguous():
        return "has its numbers in another order in memory"
    if not torch.equal(part.view(torch.int16), own.to(part.device).contiguous().view(torch.int16)):
        return "holds other numbers"
    return ""


def keep_plain() -> None:
    """Have the CPU engines that this process starts from now on keep their matrices as they are, and multiply with them by
    torch's function. vLLM calls the replaced function once for each linear layer, the embedding and the head, after it has
    loaded the weights (vLLM 0.32)."""
    import torch
    from vllm.model_executor.layers import utils

    def keep(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    utils.dispatch_cpu_unquantized_gemm = keep
