"""A random Qwen3 of a few thousand parameters on disk, rows as a sampler would write them, and stock PEFT beside it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from steps.core.params import Lora, Policy
from steps.core.records import Row
from steps.training.batches import Example
from steps.training.grpo import Trainer

VOCABULARY = 48
LOOSE = {"max_sampler_kl": 1e6, "max_grad_norm": 1e6, "max_kl": None}  # where the logprobs are random on purpose


def make_policy(folder: Path, heads: int = 2, groups: int = 1, family: str = "Qwen3", **more: Any) -> Policy:
    """A random base model in `folder`, `heads` of the queries and `groups` of the keys; `more` of its configuration."""
    import torch
    import transformers

    torch.manual_seed(3)
    config = getattr(transformers, f"{family}Config")(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        head_dim=8,
        max_position_embeddings=64,
        initializer_range=0.4,  # far from uniform, so that mistakes show
        tie_word_embeddings=True,
        **more,
    )
    getattr(transformers, f"{family}ForCausalLM")(config).save_pretrained(folder)
    return Policy(base_model=str(folder), context=64, lora=Lora(rank=2, alpha=4))


def moved(trainer: Trainer, size: float = 0.1, seed: int = 0) -> Trainer:
    """The trainer with an adapter that changes something: LoRA's B is zero at first."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in trainer.weights.values():
            value.add_(torch.randn(value.shape, generator=generator).to(value.device) * size)
    return trainer


def stock(policy: Policy, adapter: Path, double: bool = False) -> Any:
    """transformers and PEFT as they come, with a saved adapter; float64 where it must be exact."""
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(policy.base_model, attn_implementation="eager")
    model = PeftModel.from_pretrained(base, adapter, is_trainable=True)
    return model.double() if double else model


def twin(trainer: Trainer, folder: Path, double: bool = True) -> Any:
    """A stock model with the adapter that the trainer holds now."""
    trainer.save_adapter(folder)
    return stock(trainer.policy, folder, double)


def weights(model: Any) -> list[Any]:
    """What is trained, in the order of Trainer.weights."""
    return [value for value in model.parameters() if value.requires_grad]


def relative(found: Sequence[Any], expected: Sequence[Any]) -> float:
    """‖found - expected‖ / ‖expected‖ over all tensors together."""
    pairs = [
        (one.detach().double().cpu(), other.detach().double().cpu()) for one, other in zip(found, expected, strict=True)
    ]
    gap = sum(float((one - other).square().sum()) for one, other in pairs)
    return float((gap / sum(float(other.square().sum()) for _, other in pairs)) ** 0.5)


def random_rows(count: int, seed: int, longest: int = 14, alike: float = 0.0) -> list[Row]:
    """Prompt, sampled, observation, sampled; without logprobs. A share of them begins as a row before does."""
    rng = random.Random(seed)
    rows: list[Row] = []
    for _ in range(count):
        length = rng.randrange(5, longest + 1)
        ids = [rng.randrange(VOCABULARY) for _ in range(length)]
        if rows and rng.random() < alike:
            start = rng.choice(rows).ids[: rng.randrange(1, length)]
            ids = [*start, *ids[len(start) :]]
        mask = [0, 1, *(int(rng.random() < 0.6) for _ in range(length - 2))]
        rows.append(Row(ids, mask, [0.0] * length))
    return rows


def plain_logits(model: Any, row: Row, temperature: float) -> Any:
    """Logits of a row's tokens from the second on, one row at a time: [T-1, V], float64."""
    import torch

    return model(input_ids=torch.tensor([row.ids])).logits[0, :-1].double() / temperature


def plain_logps(model: Any, row: Row, temperature: float) -> Any:
    """Logprobs of a row's tokens from the second on: [T-1], float64."""
    import torch

    logps = torch.log_softmax(plain_logits(model, row, temperature), -1)
    return logps[torch.arange(len(row.ids) - 1), torch.tensor(row.ids[1:])]


def sampled_by(model: Any, rows: list[Row], temperature: float, noise: float = 0.0, seed: int = 0) -> list[Row]:
    """The rows with the model's own logprobs, as a sampler would have written them, and noise on them."""
    import torch

    rng = random.Random(seed)
    made = []
    with torch.no_grad():
        for row in rows:
            found = [0.0, *plain_logps(model, row, temperature).tolist()]
            values = [mask * (value + rng.gauss(0, noise)) for mask, value in zip(row.mask, found, strict=True)]
            made.append(Row(row.ids, row.mask, values))
    return made


def with_advantages(rows: list[Row], seed: int = 0, sizes: Sequence[int] = ()) -> list[Example]:
    """A trajectory of each row, with a random advantage, in groups of the given sizes; the rest are groups of their own."""
    rng = random.Random(seed)
    names = [f"group {number}" for number, size in enumerate(sizes) for _ in range(size)]
    names += [f"row {number}" for number in range(len(rows) - len(names))]
    return [Example([row], rng.gauss(0, 1), name) for row, name in zip(rows, names, strict=True)]


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}
