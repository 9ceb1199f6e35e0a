"""Tokens as the pages show them: text and probability; and where the tokenizer lies.

The package `tokenizers` reads tokenizer.json without transformers, which takes 12 s to load. Nothing is downloaded.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from viewer.index import TrajectoryFile, stamp

# Lower ends of the probability bands, each with its own colour and legend.
LIKELY = (
    (0.95, "95 % and more"),
    (0.7, "70 to 95 %"),
    (0.4, "40 to 70 %"),
    (0.1, "10 to 40 %"),
    (0.01, "1 to 10 %"),
    (0.0, "below 1 %"),
)


class Token(NamedTuple):
    """A sampled token: text, place in LIKELY (None without a logprob, as in greedy evaluations), text on hovering."""

    text: str
    band: int | None
    about: str


def tokens(ids: Sequence[int], logprobs: Sequence[float], words: Any) -> list[Token]:
    """The sampled tokens. A token that is only part of a character shows what the decoder makes of it."""
    shown = []
    every = logprobs if len(logprobs) == len(ids) else [None] * len(ids)
    for before, number, logprob in zip([None, *ids], ids, every, strict=False):
        about, likely = "no logprob was kept", None
        if logprob is not None:
            about, likely = f"{logprob:.4f} nats = {math.exp(min(logprob, 0.0)):.2%}", band(logprob)
        shown.append(Token(piece(before, number, words), likely, f"{about} · token {number}"))
    return shown


def band(logprob: float) -> int:
    """The place in LIKELY of a token with this logprob (nats)."""
    likely = math.exp(min(logprob, 0.0))
    return next(number for number, (low, _) in enumerate(LIKELY) if likely >= low)


def piece(before: int | None, number: int, words: Any) -> str:
    """The text that a token adds after another. Some decoders drop a leading space if no token precedes it."""
    if words is None:
        return f"{number} "
    if before is None:
        return str(words.decode([number], skip_special_tokens=False))
    alone, both = (words.decode(ids, skip_special_tokens=False) for ids in ([before], [before, number]))
    # The bytes of a character may be spread over two tokens; the first alone decodes to a replacement character.
    return str(both.removeprefix(alone if both.startswith(alone) else alone.rstrip("\ufffd")))


def text(ids: Sequence[int], words: Any) -> str:
    return " ".join(map(str, ids)) if words is None else str(words.decode(list(ids), skip_special_tokens=False))


def tokenizer(run: Path, batch: TrajectoryFile) -> Any:
    """The tokenizer of the base model, or None if it is not on this machine; nothing is downloaded.

    The model's name is read from the adapter that sampled (run/NNN/adapter), or from params.yaml beside the run.
    """
    name, revision = base_model(run, batch)
    path = find(name, revision, run.resolve().parent)
    return load(str(path), stamp(path)) if path else None


def base_model(run: Path, batch: TrajectoryFile) -> tuple[str, str | None]:
    for folder in (run / batch.iteration, run / "000"):
        config = folder / "adapter" / "adapter_config.json"
        if config.is_file():
            settings = json.loads(config.read_text())
            return str(settings.get("base_model_name_or_path") or ""), settings.get("revision")
    params = run.resolve().parent / "params.yaml"
    if params.is_file():
        import yaml

        policy = (yaml.safe_load(params.read_text()) or {}).get("policy") or {}
        return str(policy.get("base_model") or ""), policy.get("revision")
    return "", None


def find(name: str, revision: str | None, root: Path) -> Path | None:
    """The tokenizer.json of a folder, or of a Hugging Face name in the cache of downloads; None if there is none."""
    if not name:
        return None
    here = root / name / "tokenizer.json"
    if here.is_file():
        return here
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    kept = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    main = kept / "refs" / (revision or "main")
    commit = main.read_text().strip() if main.is_file() else revision or ""
    snapshot = kept / "snapshots" / commit / "tokenizer.json"
    return snapshot if commit and snapshot.is_file() else None


@lru_cache(maxsize=4)
def load(path: str, version: object) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(path)
    except Exception:  # its errors have no class of their own; pages show token ids instead
        return None
