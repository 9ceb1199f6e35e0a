"""Loads the policy's tokenizer and base model, and says which layers have an adapter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.policy.cuda import check_build
from steps.policy.gguf import converted

if TYPE_CHECKING:
    from steps.core.params import Policy


def local(policy: Policy) -> Policy:
    """The policy with a base model that transformers and vLLM load: of a GGUF file, the folder that it is converted to."""
    if not policy.is_gguf:
        return policy
    with explained(policy):
        return policy.model_copy(update={"base_model": str(converted(policy)), "revision": None})


def load_tokenizer(policy: Policy) -> Any:
    """The policy's tokenizer. UserError where the base model cannot be loaded or has no chat template."""
    from transformers import AutoTokenizer

    base = local(policy)
    with explained(policy):
        tokenizer = AutoTokenizer.from_pretrained(base.base_model, revision=base.revision)
    if not tokenizer.chat_template:
        raise UserError(
            f"policy.base_model: {policy.base_model} has no chat template, so it cannot be told about tools; use an "
            "instruction-tuned model"
        )
    return tokenizer


def load_model(policy: Policy) -> Any:
    """The policy's base model for training, without an adapter. On a GPU its weights are read straight into its memory."""
    check_build()
    import torch
    from transformers import AutoModelForCausalLM

    place = {"device_map": {"": torch.cuda.current_device()}} if torch.cuda.is_available() else {}
    base = local(policy)
    with explained(policy):
        return AutoModelForCausalLM.from_pretrained(
            base.base_model, revision=base.revision, dtype=getattr(torch, policy.dtype), **place
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
            "give a folder that holds a model, a GGUF file, or the name of a model on the Hugging Face Hub that this "
            "machine can reach"
        ) from problem
