"""The shape of a model, from its config.json: its matrices, and with them its parameters. No weights are read.

Known are decoders of the Llama, Mistral and Qwen kind (grouped-query attention, gated feed-forward layers), mixtures of
experts of such layers (Qwen3-MoE, Mixtral), and DeepSeek-V3's latent attention, which Kimi-K2 has, too. Sources: the
modelling files of transformers for `llama`, `mistral`, `qwen2`, `qwen3`, `qwen2_moe`, `qwen3_moe`, `mixtral` and
`deepseek_v3`. Left out: vision towers, and norms of families that have more than two in a layer.

    shape = read(Path("tasks_data/embedded_policy/config.json"))
    shape.parameters, shape.active, shape.lora(16)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from steps.core.errors import UserError

EXPERTS = ("n_routed_experts", "num_experts", "num_local_experts")  # one name in each family
KINDS = "llama mistral qwen2 qwen3 qwen2_moe qwen3_moe mixtral deepseek_v3 kimi_k2".split()  # model_type
NEEDED = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
LARGEST = 2**21  # width, layers or vocabulary above which a config.json is not believed


class Matrix(NamedTuple):
    """Linear layers of one size."""

    inputs: int
    outputs: int
    copies: int  # in the whole model
    used: float  # copies that a token passes through; fewer than `copies` for experts alone
    adapted: bool  # whether LoRA trains an adapter of each

    @property
    def parameters(self) -> int:
        return self.inputs * self.outputs * self.copies

    @property
    def active(self) -> float:
        return self.inputs * self.outputs * self.used


@dataclass(frozen=True)
class Shape:
    """A decoder's sizes. All are counts; `head` is the size of a query's head."""

    kind: str  # model_type
    layers: int
    width: int
    vocabulary: int
    heads: int
    key_heads: int
    head: int
    value: int  # size of a value's head
    inner: int  # width of the gated feed-forward layer that a token passes through, experts together
    matrices: tuple[Matrix, ...]  # without embedding and output layer
    biases: int
    norms: int
    tied: bool  # the output layer is the embedding
    experts: int  # 0: a dense model
    latent: int  # numbers per token and layer that latent attention keeps; 0 without it
    positions: int  # most tokens that it was trained on; 0 where that is not known, or its positions can be scaled

    @property
    def linear(self) -> int:
        """Parameters of all linear layers but the output layer."""
        return sum(matrix.parameters for matrix in self.matrices)

    @property
    def embedding(self) -> int:
        """Parameters of the embedding; the output layer has as many."""
        return self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        """All parameters, a tied output layer counted once."""
        return self.linear + self.biases + self.norms + self.embedding * (1 if self.tied else 2)

    @property
    def active(self) -> float:
        """Parameters of linear layers that one token passes through, without the output layer."""
        return sum(matrix.active for matrix in self.matrices)

    def lora(self, rank: int) -> int:
        """Parameters of an adapter: rank × (inputs + outputs) for each adapted layer (Hu et al. 2021, arXiv:2106.09685)."""
        return sum(
            rank * (matrix.inputs + matrix.outputs) * matrix.copies for matrix in self.matrices if matrix.adapted
        )

    def cached(self) -> int:
        """Numbers that the engine's cache holds for each token: keys and values of all layers, or their latent form."""
        return self.layers * (self.latent or self.key_heads * (self.head + self.value))


def read(path: Path) -> Shape:
    """The shape that a config.json describes. UserError where it is none, or of a family that is not known."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise UserError(
            f"{path} cannot be read as a model's configuration ({problem}); see policy.base_model"
        ) from None
    return of(config, str(path))


def of(config: Any, where: str = "config.json") -> Shape:
    """The shape that the content of a config.json describes; `where` is named in errors."""
    if isinstance(config, dict) and isinstance(config.get("text_config"), dict):
        config = config["text_config"]  # of a model that sees, too
    if not isinstance(config, dict) or (missing := [name for name in NEEDED if name not in config]):
        lacking = f" (it lacks {', '.join(missing)})" if isinstance(config, dict) else ""
        raise UserError(f"{where} describes no model that can be planned for{lacking}: known are {', '.join(KINDS)}")
    if config.get("model_type") not in KINDS:
        raise UserError(
            f"{where}: no plan can be made for a model of the type {config.get('model_type')!r}; known are "
            f"{', '.join(KINDS)}"
        )
    if wrong := [name for name in NEEDED if type(config[name]) is not int or not 0 < config[name] <= LARGEST]:
        raise UserError(f"{where}: {wrong[0]} is {config[wrong[0]]!r}, which is no size of a model")
    try:
        return _shape(config, *(config[name] for name in NEEDED))
    except (KeyError, TypeError, ValueError) as problem:
        raise UserError(f"{where}: its {problem} is missing or no number, which a plan needs") from None


def _shape(config: dict[str, Any], width: int, layers: int, heads: int, vocabulary: int) -> Shape:
    """The shape, from sizes that were checked and what else config.json says of them."""
    experts = next((int(config[name]) for name in EXPERTS if config.get(name)), 0)
    latent = int(config.get("kv_lora_rank") or 0)
    key_heads = int(config.get("num_key_value_heads") or heads)
    head = int(config.get("head_dim") or width // heads)
    value = head
    if latent:
        rope = int(config["qk_rope_head_dim"])
        head, value = int(config["qk_nope_head_dim"]) + rope, int(config["v_head_dim"])
        attention = _latent(config, width, layers, heads, head, value)
        key_heads = heads
    else:
        adapted = ((width, heads * head), (width, key_heads * head), (width, key_heads * head), (heads * head, width))
        attention = [Matrix(*sizes, layers, layers, True) for sizes in adapted]
    feed, inner = _feed_forward(config, width, layers, experts)
    kind = str(config["model_type"])
    return Shape(
        kind=kind,
        layers=layers,
        width=width,
        vocabulary=vocabulary,
        heads=heads,
        key_heads=key_heads,
        head=head,
        value=value,
        inner=inner,
        matrices=(*attention, *feed),
        biases=_biases(config, kind, layers, width, heads, key_heads, head),
        norms=_norms(config, kind, layers, width, head, latent),
        tied=bool(config.get("tie_word_embeddings", False)),
        experts=experts,
        latent=latent + int(config["qk_rope_head_dim"]) if latent else 0,
        positions=_positions(config),
    )


def _positions(config: dict[str, Any]) -> int:
    scaled = config.get("rope_scaling") or config.get("rope_parameters") or {}
    is_plain = scaled.get("rope_type", scaled.get("type", "default")) == "default"
    return int(config.get("max_position_embeddings") or 0) if is_plain else 0


def _latent(config: dict[str, Any], width: int, layers: int, heads: int, head: int, value: int) -> list[Matrix]:
    """Latent attention's matrices (DeepSeek-V2, arXiv:2405.04434). kv_b has no adapter: see steps/policy/loading.py."""
    rank, rope = int(config["kv_lora_rank"]), int(config["qk_rope_head_dim"])
    queries = int(config.get("q_lora_rank") or 0)
    first = [(width, queries), (queries, heads * head)] if queries else [(width, heads * head)]
    adapted = [*first, (width, rank + rope), (heads * value, width)]
    keys = (rank, heads * (head - rope + value))
    return [*(Matrix(*sizes, layers, layers, True) for sizes in adapted), Matrix(*keys, layers, layers, False)]


def _feed_forward(config: dict[str, Any], width: int, layers: int, experts: int) -> tuple[list[Matrix], int]:
    """The gated feed-forward matrices (Shazeer 2020, arXiv:2002.05202), and how wide a token's are. Only a dense model's
    have adapters: see `adapted_layers` in steps/policy/loading.py."""
    dense = int(config.get("intermediate_size") or 4 * width)
    if not experts:
        return _gated(width, dense, layers, layers, True), dense
    own = int(config.get("moe_intermediate_size") or dense)
    chosen = int(config.get("num_experts_per_tok") or 1)
    shared = int(config.get("n_shared_experts") or 0) * own + int(config.get("shared_expert_intermediate_size") or 0)
    plain = int(config.get("first_k_dense_replace") or 0) + len(config.get("mlp_only_layers") or ())
    mixed = layers - plain
    matrices = _gated(width, own, mixed * experts, mixed * chosen, False)
    matrices.append(Matrix(width, experts, mixed, mixed, False))  # the router
    if shared:
        matrices += _gated(width, shared, mixed, mixed, False)
    if config.get("shared_expert_intermediate_size"):
        matrices.append(Matrix(width, 1, mixed, mixed, False))  # its gate
    if plain:
        matrices += _gated(width, dense, plain, plain, False)
    return matrices, chosen * own + shared


def _gated(width: int, inner: int, copies: int, used: float, adapted: bool) -> list[Matrix]:
    return [Matrix(width, inner, 2 * copies, 2 * used, adapted), Matrix(inner, width, copies, used, adapted)]


def _biases(config: dict[str, Any], kind: str, layers: int, width: int, heads: int, key_heads: int, head: int) -> int:
    """Biases: Qwen2 has those of queries, keys and values, whatever its config.json says; others where it says so."""
    count = 0
    if kind.startswith("qwen2") or config.get("attention_bias"):
        count += (heads + 2 * key_heads) * head
    if config.get("attention_bias") and not kind.startswith("qwen2"):
        count += width  # of the output projection
    if config.get("mlp_bias"):
        count += 2 * int(config["intermediate_size"]) + width
    return count * layers


def _norms(config: dict[str, Any], kind: str, layers: int, width: int, head: int, latent: int) -> int:
    """Weights of norms: two of a layer, the last one, and those of heads (Qwen3) or latents (DeepSeek-V3)."""
    own = 2 * head if kind.startswith("qwen3") else 0
    if latent:
        own = latent + int(config.get("q_lora_rank") or 0)
    return layers * (2 * width + own) + width
