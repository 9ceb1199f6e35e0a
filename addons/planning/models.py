"""Where a model's shape is read: in its folder, in a GGUF file, in the Hub's cache on this machine, or at the Hub; and the
shapes of common models, which a plan can be made for without any."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from addons.planning import gguf, shapes
from steps.core.errors import UserError

if TYPE_CHECKING:
    from steps.core.params import Policy


SIZES = """hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads vocab_size""".split()


def dense(kind: str, sizes: Sequence[int], tied: bool, head: int = 0) -> dict[str, Any]:
    """What a config.json has of a model without experts; `sizes` as SIZES names them."""
    named = dict(zip(SIZES, sizes, strict=True))
    head = head or named["hidden_size"] // named["num_attention_heads"]
    return {"model_type": kind, "tie_word_embeddings": tied, "head_dim": head} | named


SECONDS = 5  # in which the Hub has to answer
# What a plan reads of the config.json that each of these has on the Hub.
COMMON: dict[str, dict[str, Any]] = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": dense("llama", (576, 1536, 30, 9, 3, 49152), True)
    | {"max_position_embeddings": 8192},
    "Qwen/Qwen2.5-0.5B-Instruct": dense("qwen2", (896, 4864, 24, 14, 2, 151936), True),
    "Qwen/Qwen3-0.6B": dense("qwen3", (1024, 3072, 28, 16, 8, 151936), True, 128),
    "meta-llama/Llama-3.2-1B-Instruct": dense("llama", (2048, 8192, 16, 32, 8, 128256), True),
    "Qwen/Qwen2.5-1.5B-Instruct": dense("qwen2", (1536, 8960, 28, 12, 2, 151936), True),
    "meta-llama/Llama-3.2-3B-Instruct": dense("llama", (3072, 8192, 28, 24, 8, 128256), True),
    "Qwen/Qwen3-4B": dense("qwen3", (2560, 9728, 36, 32, 8, 151936), True, 128),
    "mistralai/Mistral-7B-Instruct-v0.3": dense("mistral", (4096, 14336, 32, 32, 8, 32768), False),
    "Qwen/Qwen2.5-7B-Instruct": dense("qwen2", (3584, 18944, 28, 28, 4, 152064), False),
    "meta-llama/Llama-3.1-8B-Instruct": dense("llama", (4096, 14336, 32, 32, 8, 128256), False),
    "Qwen/Qwen3-8B": dense("qwen3", (4096, 12288, 36, 32, 8, 151936), False, 128),
    "Qwen/Qwen2.5-14B-Instruct": dense("qwen2", (5120, 13824, 48, 40, 8, 152064), False),
    "Qwen/Qwen3-30B-A3B": dense("qwen3_moe", (2048, 6144, 48, 32, 4, 151936), False, 128)
    | {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768},
    "Qwen/Qwen2.5-32B-Instruct": dense("qwen2", (5120, 27648, 64, 40, 8, 152064), False),
    "meta-llama/Llama-3.3-70B-Instruct": dense("llama", (8192, 28672, 80, 64, 8, 128256), False),
    "moonshotai/Kimi-K2-Instruct": dense("kimi_k2", (7168, 18432, 61, 64, 64, 163840), False)
    | {"n_routed_experts": 384, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1}
    | {"first_k_dense_replace": 1, "q_lora_rank": 1536, "kv_lora_rank": 512}
    | {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
}


def at_hand(policy: Policy) -> shapes.Shape | None:
    """The shape of policy.base_model, where its config.json is on this machine or the model is a common one; else None."""
    path = Path(policy.base_model)
    if path.suffix == ".gguf":
        # Without the quantisation: a file that is still to be downloaded has no header.
        name = path.name.partition(".")[0]
        named = [config for common, config in COMMON.items() if common.rpartition("/")[2] == name]
        return gguf.read(path) if path.is_file() else shapes.of(named[0], name) if named else None
    if config := config_of(policy):
        return shapes.read(config)
    common = COMMON.get(policy.base_model)
    return shapes.of(common, policy.base_model) if common else None


def config_of(policy: Policy) -> Path | None:
    """The config.json of policy.base_model, in its folder or in the Hub's cache on this machine."""
    if (path := Path(policy.base_model) / "config.json").is_file():
        return path
    home = os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface")
    folder = Path(os.environ.get("HF_HUB_CACHE", f"{home}/hub")) / f"models--{policy.base_model.replace('/', '--')}"
    ref = folder / "refs" / (policy.revision or "main")
    commit = ref.read_text().strip() if ref.is_file() else policy.revision or "main"
    cached = folder / "snapshots" / commit / "config.json"
    return cached if cached.is_file() else None


def is_reachable(policy: Policy) -> bool:
    """Whether the model's files can be read: here, or at the Hub, whose own client tries for a minute where it is away."""
    return config_of(policy) is not None or (not Path(policy.base_model).exists() and hub_answers())


def hub_answers() -> bool:
    from huggingface_hub import constants, is_offline_mode

    from environments.kit.http_client import NoAnswer, asked

    if is_offline_mode():
        return False
    try:
        asked("HEAD", constants.ENDPOINT, seconds=SECONDS)
    except NoAnswer:
        return False
    return True


def shape_of(policy: Policy) -> shapes.Shape:
    """The same, asking the Hub where nothing is at hand. UserError where it does not answer within seconds."""
    if shape := at_hand(policy):
        return shape
    if Path(policy.base_model).exists():
        raise UserError(f"policy.base_model: {policy.base_model} holds no config.json; give the folder of a model")
    if policy.base_model.endswith(".gguf"):
        raise UserError(f"policy.base_model: there is no file {policy.base_model}")
    from steps.policy.loading import no_path

    no_path(policy.base_model, "policy.base_model")
    from huggingface_hub import hf_hub_download

    try:
        if not hub_answers():
            raise OSError(f"it does not answer within {SECONDS} seconds")
        return shapes.read(Path(hf_hub_download(policy.base_model, "config.json", revision=policy.revision)))
    except (OSError, ValueError) as problem:
        reason = str(problem).strip().splitlines()[0][:200]
        raise UserError(
            f"policy.base_model: {policy.base_model} is no folder here, and its config.json cannot be had from the Hub "
            f"({reason}); put the file into a folder and name that, or plan for one of {', '.join(COMMON)}"
        ) from problem
