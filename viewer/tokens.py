"""Tokens as `viewer.app` shows them: their text, how likely each was, and where the tokenizer lies.

The package `tokenizers` reads tokenizer.json by itself: transformers would take 12 s to load. Nothing is downloaded.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from viewer.index import Batch, stamp

# Lower ends of the probabilities that share a colour: the legend's words.
LIKELY = (
    (0.95, "95 % and more"),
    (0.7, "70 to 95 %"),
    (0.4, "40 to 70 %"),
    (0.1, "10 to 40 %"),
    (0.01, "1 to 10 %"),
    (0.0, "below 1 %"),
)


class Token(NamedTuple):
    """A sampled token: its text, its place in LIKELY (None: no logprob, as in greedy evaluations), what hovering says."""

    text: str
    band: int | None
    about: str


def tokens(ids: Sequence[int], logprobs: Sequence[float], words: Any) -> list[Token]:
    """Sampled tokens one by one. Those that are part of a character only show what a decoder makes of them."""
    found = []
    for place, number in enumerate(ids):
        shown = piece(ids[place - 1] if place else None, number, words)
        if len(logprobs) == len(ids):
            about = f"{logprobs[place]:.4f} nats = {math.exp(min(logprobs[place], 0.0)):.2%} · token {number}"
            found.append(Token(shown, band(logprobs[place]), about))
        else:
            found.append(Token(shown, None, f"no logprob was kept · token {number}"))
    return found


def band(logprob: float) -> int:
    """The place in LIKELY of a token of this logprob (nats)."""
    likely = math.exp(min(logprob, 0.0))
    return next(number for number, (low, _) in enumerate(LIKELY) if likely >= low)


def piece(before: int | None, number: int, words: Any) -> str:
    """What a token adds to the text behind another: some decoders drop a space where nothing stands before it."""
    if words is None:
        return f"{number} "
    if before is None:
        return str(words.decode([number], skip_special_tokens=False))
    alone, both = (words.decode(ids, skip_special_tokens=False) for ids in ([before], [before, number]))
    # A character's bytes may be spread over two tokens: the first alone is then no character.
    return str(both.removeprefix(alone if both.startswith(alone) else alone.rstrip("\ufffd")))


def text(ids: Sequence[int], words: Any) -> str:
    return " ".join(map(str, ids)) if words is None else str(words.decode(list(ids), skip_special_tokens=False))


def tokenizer(run: Path, batch: Batch) -> Any:
    """The base model's tokenizer, without transformers and without a download; None where it is not on this machine.

    Its name stands in the adapter that sampled, in run/NNN/adapter, else in params.yaml beside the run.
    """
    name, revision = base_model(run, batch)
    path = find(name, revision, run.resolve().parent)
    return load(str(path), stamp(path)) if path else None


def base_model(run: Path, batch: Batch) -> tuple[str, str | None]:
    for folder in (run / batch.iteration, run / "000"):
        config = folder / "adapter" / "adapter_config.json"
        if config.is_file():
            known = json.loads(config.read_text())
            return str(known.get("base_model_name_or_path") or ""), known.get("revision")
    params = run.resolve().parent / "params.yaml"
    if params.is_file():
        import yaml

        policy = (yaml.safe_load(params.read_text()) or {}).get("policy") or {}
        return str(policy.get("base_model") or ""), policy.get("revision")
    return "", None


def find(name: str, revision: str | None, root: Path) -> Path | None:
    """tokenizer.json of a folder, or of a Hugging Face name in the cache of downloads."""
    if not name:
        return None
    here = root / name / "tokenizer.json"
    if here.is_file():
        return here
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    kept = Path(os.environ.get("HF_HUB_CACHE") or home / "hub") / f"models--{name.replace('/', '--')}"
    main = kept / "refs" / (revision or "main")
    commit = main.read_text().strip() if main.is_file() else revision or ""
    there = kept / "snapshots" / commit / "tokenizer.json"
    return there if commit and there.is_file() else None


@lru_cache(maxsize=4)
def load(path: str, version: object) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(path)
    except Exception:  # its errors have no class of their own; the ids are shown instead
        return None
