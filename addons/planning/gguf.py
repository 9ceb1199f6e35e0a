"""The shape of a model in a GGUF file, from the header of the file: no weights are read.

The layout is that of the format's specification (ggml, docs/gguf.md, versions 2 and 3): magic, version, two counts, pairs
of keys and values, then names, sizes and types of tensors. Known are the architectures that llama.cpp names `llama`, `qwen2`
and `qwen3`.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, BinaryIO

from addons.planning import shapes
from steps.core.errors import UserError

SIZES = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
TEXT, LIST = 8, 9
LONGEST = 2**24  # bytes of a text or entries of a list, above which a file is not believed
ARCHITECTURES = ("llama", "qwen2", "qwen3")
NAMES = {  # in config.json -> in the file; {} is the architecture
    "hidden_size": "{}.embedding_length",
    "intermediate_size": "{}.feed_forward_length",
    "num_hidden_layers": "{}.block_count",
    "num_attention_heads": "{}.attention.head_count",
    "num_key_value_heads": "{}.attention.head_count_kv",
    "head_dim": "{}.attention.key_length",
    "max_position_embeddings": "{}.context_length",
    "vocab_size": "tokenizer.ggml.tokens",
}


def read(path: Path) -> shapes.Shape:
    """The shape that a GGUF file's header describes. UserError where it is none, or of an architecture that is not known."""
    try:
        with path.open("rb") as file:
            values, tensors = _header(file)
    except (OSError, ValueError, struct.error) as problem:
        raise UserError(f"{path} cannot be read as a GGUF file ({problem}); see policy.base_model") from None
    kind = str(values.get("general.architecture"))
    if kind not in ARCHITECTURES:
        raise UserError(f"{path}: no plan can be made for a model of the type {kind!r} in a GGUF file")
    config = {name: values[own] for name, key in NAMES.items() if (own := key.format(kind)) in values}
    return shapes.of(config | {"model_type": kind, "tie_word_embeddings": "output.weight" not in tensors}, str(path))


def _header(file: BinaryIO) -> tuple[dict[str, Any], set[str]]:
    """(values by key, of a list its length; names of tensors)."""
    if file.read(4) != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    version, tensors, pairs = struct.unpack("<IQQ", file.read(20))
    if version not in (2, 3):
        raise ValueError(f"version {version} of the format is not known")
    values = {}
    for _ in range(pairs):
        key = _text(file)
        values[key] = _value(file, _number(file, "<I"))
    names = set()
    for _ in range(tensors):
        names.add(_text(file))
        file.seek(8 * _number(file, "<I") + 12, 1)  # dimensions, type, place
    return values, names


def _value(file: BinaryIO, kind: int) -> Any:
    """A value; of a list the number of its entries."""
    if kind == TEXT:
        return _text(file)
    if kind in SIZES:
        return _number(file, SIZES[kind])
    if kind != LIST:
        raise ValueError(f"a value of the unknown type {kind}")
    inner, count = _number(file, "<I"), _number(file, "<Q")
    if count > LONGEST:
        raise ValueError(f"a list of {count} entries")
    if inner in SIZES:
        file.seek(count * struct.calcsize(SIZES[inner]), 1)
    else:
        for _ in range(count):
            _value(file, inner)
    return count


def _number(file: BinaryIO, form: str) -> Any:
    [value] = struct.unpack(form, file.read(struct.calcsize(form)))
    return value


def _text(file: BinaryIO) -> str:
    length = _number(file, "<Q")
    if length > LONGEST:
        raise ValueError(f"a text of {length} bytes")
    return file.read(length).decode("utf-8", "replace")
