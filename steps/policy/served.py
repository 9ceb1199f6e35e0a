"""How vLLM's OpenAI server is started for a policy: its options for the base model and for an adapter.

flows.export writes them into README.md; the add-ons that start servers use the same.
"""

from __future__ import annotations

import ipaddress
import json
import os
from typing import TYPE_CHECKING

from steps.core.errors import UserError
from steps.core.ports import bring
from steps.core.section import at
from steps.policy.loading import local
from steps.policy.machine import GPU

if TYPE_CHECKING:
    from steps.core.params import Policy
    from steps.policy.chat import Chat

SERVER = "vllm.entrypoints.openai.api_server"
LIMITED_SERVER = "steps.kit.vllm_process"  # the same, as this project starts it
HOST, PORT = "127.0.0.1", 8000
RANKS = (8, 16, 32, 64, 128, 256, 320, 512)  # vLLM's ranks, of which the smallest that is large enough is set


def model_options(policy: Policy, chat: Chat) -> list[str]:
    """vLLM's options for the base model, and for reading its turns as rollouts read them. UserError for one that sees."""
    if chat.vision is not None:
        raise UserError(
            f"{policy.base_model} sees pictures, and vLLM's server reads those with torchvision, which is not installed: "
            "such a model is trained and evaluated, and not served yet"
        )
    policy = local(policy)
    words = ["--model", policy.base_model, "--dtype", policy.dtype, "--max-model-len", str(policy.context)]
    words += ["--enable-auto-tool-choice", "--tool-call-parser", chat.tool_parser] if chat.tool_parser else []
    words += ["--chat-template-content-format", "string"]  # texts as rollouts show them, and no lists of parts
    words += ["--reasoning-parser", chat.reasoning_parser] if chat.reasoning_parser else []
    if policy.chat_template_kwargs:
        words += ["--default-chat-template-kwargs", json.dumps(policy.chat_template_kwargs)]
    words += bring("gpu", "device", GPU).of_server(policy) if at(policy, "needs_gpus") else []
    return words + (["--revision", policy.revision] if policy.revision else [])


def adapter_options(policy: Policy, name: str, folder: str) -> list[str]:
    """vLLM's options for an adapter on it."""
    rank = next(rank for rank in RANKS if rank >= policy.lora.rank)
    return ["--enable-lora", "--max-lora-rank", str(rank), "--lora-modules", f"{name}={folder}"]


def of_every_server() -> dict[str, str]:
    """Variables of every process of vLLM's server. VLLM_CPU_KVCACHE_SPACE is the GiB of memory for the engine's cache on a
    CPU, as in training: without it vLLM wants half of the machine's."""
    ours = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    return ours | {"VLLM_CPU_KVCACHE_SPACE": os.environ.get("VLLM_CPU_KVCACHE_SPACE") or "1"}


def checked_host(host: str) -> str:
    """The address to listen at. UserError for one that stands for several, because requests must name it as their host."""
    try:
        is_several = ipaddress.ip_address(host).is_unspecified
    except ValueError:
        is_several = not host.strip() or host != host.strip()
    if is_several:
        raise UserError(
            f"--host {host!r} is no address that a client could name: give this machine's own, such as 10.0.0.5"
        )
    return host
