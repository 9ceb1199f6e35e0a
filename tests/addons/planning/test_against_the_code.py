"""The plan's arithmetic against the code that it mirrors: parameters, adapters, batches, and what the trainer keeps."""

from __future__ import annotations

import random
from typing import Any

import pytest

from addons.planning import memory, shapes, workload
from addons.planning.models import COMMON
from addons.planning.workload import Episodes
from steps.core.params import Lora, Params, Policy, Update
from steps.core.records import Row
from steps.policy import served
from steps.training import batches, model, packing

PUBLISHED = {  # parameters, as the models' own pages on the Hub count them
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "Qwen/Qwen2.5-0.5B-Instruct": 494_032_768,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-30B-A3B": 30_532_122_624,
    "meta-llama/Llama-3.2-1B-Instruct": 1_235_814_400,
    "meta-llama/Llama-3.1-8B-Instruct": 8_030_261_248,
    "meta-llama/Llama-3.3-70B-Instruct": 70_553_706_496,
    "mistralai/Mistral-7B-Instruct-v0.3": 7_248_023_552,
}
SIZES: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 6}
FAMILIES: dict[str, dict[str, Any]] = {
    "Llama": {"attention_bias": True, "mlp_bias": True},
    "Qwen2": {"tie_word_embeddings": True},
    "Qwen3": {"head_dim": 16},
    "Mistral": {},
    "Qwen3Moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "mlp_only_layers": [1]},
    "DeepseekV3": LATENT
    | {"n_routed_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 20, "n_shared_experts": 1}
    | {"first_k_dense_replace": 1, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_of_common_models(name: str) -> None:
    assert shapes.of(COMMON[name]).parameters == PUBLISHED[name]


def test_kimi_k2_has_about_a_trillion_parameters_and_32_billion_active_ones() -> None:
    shape = shapes.of(COMMON["moonshotai/Kimi-K2-Instruct"])
    assert shape.parameters == pytest.approx(1.03e12, rel=0.01)
    assert shape.active + 2 * shape.embedding == pytest.approx(32.8e9, rel=0.02)
    assert shape.cached() == 61 * (512 + 64)


def random_model(family: str, **more: Any) -> Any:
    import transformers

    return getattr(transformers, f"{family}Config")(**SIZES | FAMILIES[family] | more)


@pytest.mark.parametrize("family", FAMILIES)
def test_parameters_and_adapter_are_those_of_the_model_that_is_trained(family: str) -> None:
    import torch
    import transformers

    config = random_model(family)
    with torch.device("meta"):
        base = getattr(transformers, f"{family}ForCausalLM")(config)
        count = sum(value.numel() for value in base.parameters())
        wrapped = model.wrap(base, Policy(lora=Lora(rank=2)))
    shape = shapes.of(config.to_dict())
    assert shape.parameters == count
    assert shape.lora(2) == sum(value.numel() for value in wrapped.parameters() if value.requires_grad)


def test_constants_are_those_of_the_code() -> None:
    from addons.kernels import fused
    from steps.sampling import engine
    from steps.training import logprobs

    assert memory.LOGITS == logprobs.LOGITS
    assert memory.LOGITS_ON_CARD == fused.LOGITS
    assert workload.QUERIES == packing.QUERIES
    assert served.RANKS == engine.RANKS


# scenarios, attempts, prompt, own tokens, optimiser steps, tokens_per_micro_batch
SHAPES = [
    (16, 8, 60, 40, 8, 4096),
    (3, 8, 300, 30, 8, 4096),
    (8, 4, 50, 100, 1, 1024),
    (4, 4, 20, 400, 2, 512),
    (5, 8, 90, 9, 4, 4096),
]


def rows_of(scenarios: int, attempts: int, prompt: int, own: int) -> list[tuple[int, Row]]:
    draw = random.Random(0)
    rows = []
    for group in range(scenarios):
        shared = [group, *(draw.randrange(50) for _ in range(prompt - 1))]
        for attempt in range(attempts):
            ids = [*shared, 50 + attempt, *(draw.randrange(50) for _ in range(own - 1))]
            rows.append((group, Row(ids, [0] * prompt + [1] * own, [0.0] * len(ids))))
    return rows


def planned(scenarios: int, attempts: int, prompt: int, own: int, steps: int, budget: int) -> workload.Batch:
    params = Params.model_validate(
        {
            "rollout": {"scenarios": scenarios, "attempts": attempts},
            "update": {"steps_per_generation": steps, "tokens_per_micro_batch": budget},
        }
    )
    return workload.batch(params, Episodes(prompt, 1, own, 0, ""))


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
def test_the_batch_is_cut_as_the_trainer_cuts_it(sizes: tuple[int, int, int, int, int, int]) -> None:
    scenarios, attempts, prompt, own, steps, budget = sizes
    examples = [batches.Example([row], 1.0, str(group)) for group, row in rows_of(scenarios, attempts, prompt, own)]
    parts = []
    for step in batches.split_steps(examples, steps, random.Random(1)):
        for chosen in batches.micro_batches(sorted(step, key=lambda example: example.ids), budget):
            parts.append(packing.pack([row for example in chosen for row in example.rows]))
    plan = planned(*sizes)
    assert plan.sampled == sum(len(part.targets) for part in parts) == scenarios * attempts * own
    assert plan.micro_batches == len(parts)
    assert plan.tokens == sum(part.ids.shape[1] for part in parts)
    assert plan.largest == max(part.ids.shape[1] for part in parts)
    keys = max(sum(call.path.numel() for call in part.calls) for part in parts)
    assert plan.largest_keys == pytest.approx(keys, rel=0.1)  # calls are padded


@pytest.mark.parametrize(
    ("dtype", "family", "checkpointing"),
    [
        ("float32", "Qwen3", False),
        ("bfloat16", "Qwen3", False),
        ("float32", "Qwen3", True),
        ("bfloat16", "Qwen3", True),
        (
            "float32",
            "Qwen2",
            False,
        ),  # in bfloat16 each layer keeps a float32 copy of the mask, which the plan leaves out
    ],
)
def test_activations_are_what_the_trainer_keeps(dtype: Any, family: str, checkpointing: bool) -> None:
    """All tensors that autograd saves in a forward pass, each once, weights excepted."""
    import torch
    import transformers

    config = random_model(family, intermediate_size=96, num_hidden_layers=4)
    kind = getattr(torch, dtype)
    base = getattr(transformers, f"{family}ForCausalLM")(config)
    wrapped = model.wrap(base.to(kind), Policy(lora=Lora(rank=2)))
    if checkpointing:
        wrapped.get_base_model().gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    wrapped.train()
    own = {value.untyped_storage().data_ptr() for value in [*wrapped.parameters(), *wrapped.buffers()]}
    packed = packing.pack([row for _, row in rows_of(2, 4, 60, 40)], kind)
    own |= {part.untyped_storage().data_ptr() for call in packed.calls for part in call}
    kept: dict[int, tuple[int, Any]] = {}

    def note(tensor: Any) -> Any:
        if tensor.untyped_storage().data_ptr() not in own:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes(), tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        result = packing.token_logps(wrapped, packed, 1.0)
    measured = sum(count for count, _ in kept.values())
    assert result[0].requires_grad
    params = Params(policy=Policy(dtype=dtype, lora=Lora(rank=2)), update=Update(gradient_checkpointing=checkpointing))
    shape, batch = shapes.of(config.to_dict()), planned(2, 4, 60, 40, 1, 4096)
    token, gathered = memory.saved(shape, params)
    expected = shape.layers * (token * batch.largest + gathered * batch.largest_keys)
    if checkpointing:
        expected = shape.layers * memory.size(params) * shape.width * batch.largest
    expected += 3 * memory.size(params) * batch.largest_sampled * shape.width  # around the output layer
    assert measured == pytest.approx(expected, rel=0.15)
