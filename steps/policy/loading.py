"""Loads the policy's tokenizer and base model, and says which layers have an adapter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.policy.cuda import check_build, check_gpus

if TYPE_CHECKING:
    from steps.core.params import Policy


def load_tokenizer(policy: Policy) -> Any:
    """The policy's tokenizer. UserError where the base model cannot be loaded or has no chat template."""
    check_gpus(policy)
    from transformers import AutoTokenizer

    with explained(policy):
        tokenizer = AutoTokenizer.from_pretrained(policy.base_model, revision=policy.revision)
    if not tokenizer.chat_template:
        raise UserError(
            f"policy.base_model: {policy.base_model} has no chat template, so it cannot be told about tools; use an "
            "instruction-tuned model"
        )
    return tokenizer


def load_model(policy: Policy, device: str | None = None) -> Any:
    """The policy's base model for training, without an adapter, on `device` or on the GPU where there is one.

    Its weights are read straight into the GPU's memory."""
    check_build()
    check_gpus(policy)
    import torch
    from transformers import AutoModelForCausalLM

    dtype, more = getattr(torch, policy.dtype), dict[str, Any]()
    if policy.quantization:
        more["quantization_config"] = four_bits(dtype)
    place = device or (torch.cuda.current_device() if torch.cuda.is_available() else "cpu")
    if policy.quantization or place != "cpu":
        more["device_map"] = {"": place}
    with explained(policy):
        return AutoModelForCausalLM.from_pretrained(policy.base_model, revision=policy.revision, dtype=dtype, **more)


def four_bits(dtype: Any) -> Any:
    """transformers' setting for a base model in 4 bits: that of vLLM's plugin, so that both have the same weights.

    The embedding, the head and the norms keep their type, without PEFT's cast of them to float32."""
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
    )


def adapted_layers(config: Any) -> list[str] | None:
    """Which layers have the adapter: None for all linear ones; of a mixture of experts, those of its attention.

    Experts are fused tensors, which PEFT adapts with other ranks and vLLM serves on GPUs only, if at all. vLLM's kernel of
    latent attention absorbs `kv_b_proj`, and would ignore its adapter.
    """
    config = config.get_text_config()
    if not any(getattr(config, name, None) for name in ("n_routed_experts", "num_experts", "num_local_experts")):
        return None
    latent = ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa"] if getattr(config, "kv_lora_rank", None) else []
    return sorted([*latent, "o_proj"] if latent else ["q_proj", "k_proj", "v_proj", "o_proj"])


@contextlib.contextmanager
def explained(policy: Policy) -> Iterator[None]:
    """Turns the many errors with which loading a model can fail into a UserError of one sentence."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, KeyError) as problem:
        reason = str(problem).strip().splitlines()[0][:200] if str(problem).strip() else type(problem).__name__
        raise UserError(
            f"policy.base_model: cannot load {policy.base_model!r} ({reason}); "
            "give a folder that holds a model, or the name of one on the Hugging Face Hub that this machine can reach"
        ) from problem
