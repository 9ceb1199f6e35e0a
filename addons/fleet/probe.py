"""The probe of an adapter: what the trainer makes of a fixed text, by which a server shows what it serves.

Of a policy of kind `server`, the trainer writes probe.json beside each adapter (`of_trainer`), and every server
is asked for the same (addons/fleet/servers.py): the most probable next tokens at a few places of the text. The adapter's
hash does not cover the file. vLLM's `prompt_logprobs`, which would give all places at once, are not used: beside other
requests to adapters they end its engine on a CPU (vLLM 0.32).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from steps.core.errors import UserError
from steps.core.params_update import Update
from steps.core.records import Row
from steps.core.section import at
from steps.policy.loading import load_tokenizer
from steps.policy.machine import deterministic
from steps.training import packing

if TYPE_CHECKING:
    from steps.core.params import Policy

FILE = "probe.json"
# Prose, a list, a call in JSON and figures: an adapter that changes something changes some of it.
TEXT = (
    "Who wrote to me about the invoice of 14 March? I looked through the inbox, and found three messages.\n"
    '1. {"name": "search_mails", "arguments": {"query": "invoice", "limit": 10}}\n'
    "2. The amount was 1,250.00 and is due on 2 April; please answer before then.\n"
)
PLACES, TOP = 8, 5
CLEARLY = 0.5  # nearer to another version's logprobs, if its distance is less than this share of that to its own
NOISE = 1e-10  # nats per token: nearer than this, in float32, it is the version itself


class Probe(NamedTuple):
    """A text, and the most probable tokens after its first `places` tokens."""

    ids: tuple[int, ...]  # [P]
    tokens: tuple[tuple[int, ...], ...]  # [places, TOP]
    logprobs: tuple[tuple[float, ...], ...]  # [places, TOP] nats, at temperature 1
    limit: float  # nats per token: the largest distance that rounding explains


def places(ids: Sequence[int]) -> list[int]:
    """How many tokens of the text stand before each place."""
    return [len(ids) * (number + 1) // PLACES for number in range(PLACES)]


def token_ids(tokenizer: Any) -> tuple[int, ...]:
    """The probe's text in a policy's tokens."""
    return tuple(tokenizer(TEXT, add_special_tokens=False)["input_ids"])


def of_trainer(folder: Path, model: Any, policy: Policy, layers: int, dtype: Any, device: Any) -> None:
    """Write the probe of a trainer's model beside its adapter in `folder`."""
    import torch

    ids = token_ids(load_tokenizer(policy))
    row = Row([*ids, ids[0]], [0] + [1] * len(ids), [0.0] * (len(ids) + 1))  # each place has a token after it
    with torch.no_grad(), deterministic(at(policy, "deterministic")):
        packed = packing.pack([row], dtype, device)
        causal = model.get_base_model()
        hidden = causal.get_decoder()(
            input_ids=packed.ids, position_ids=packed.positions, packed=packed, use_cache=False
        ).last_hidden_state.squeeze(0)  # [U, W]
        chosen = packed.before[torch.tensor([place - 1 for place in places(ids)], device=hidden.device)]
        logits = causal.get_output_embeddings()(hidden[chosen]).float()  # [places, V]
        logprobs, tokens = torch.log_softmax(logits, -1).topk(TOP)
    limit = Update().of_dtype(policy.dtype).sampler_limit(layers)
    write(folder, Probe(ids, tuple(tokens.tolist()), tuple(logprobs.tolist()), limit))


def write(folder: Path, probe: Probe) -> None:
    """Write the probe beside the adapter in `folder`."""
    (folder / FILE).write_text(json.dumps(probe._asdict()) + "\n")


def read(folder: Path) -> Probe | None:
    """The probe of the adapter in `folder`; None where the trainer wrote none. UserError where it is damaged."""
    try:
        fields = json.loads((folder / FILE).read_text())
        tokens, logprobs = (tuple(tuple(row) for row in fields[name]) for name in ("tokens", "logprobs"))
        return Probe(tuple(fields["ids"]), tokens, logprobs, float(fields["limit"]))
    except FileNotFoundError:
        return None
    except (ValueError, LookupError, TypeError):
        raise UserError(
            f"{folder / FILE} is damaged: `.venv/bin/dvc checkout` brings it back, or make the adapter again"
        ) from None


def of_server(ids: Sequence[int], given: Sequence[Mapping[int, float]], dtype: str) -> Probe:
    """The probe that a server's answer makes, where the trainer wrote none."""
    best = [sorted(nats.items(), key=lambda item: (-item[1], item[0]))[:TOP] for nats in given]
    tokens = tuple(tuple(token for token, _ in row) for row in best)
    logprobs = tuple(tuple(logprob for _, logprob in row) for row in best)
    return Probe(tuple(ids), tokens, logprobs, 1e-3 if dtype == "float32" else 1e-2)


def distance(given: Sequence[Mapping[int, float]], probe: Probe) -> float:
    """How far a server's logprobs at the places (by token, nats) are from the probe's, in nats per token: of the k3 estimate
    of the KL divergence (Schulman 2020), as update.max_sampler_kl measures it, the part of the probe's tokens, weighted by
    their probability. Infinite where one is missing, or is no number."""
    total = 0.0
    for nats, tokens, logprobs in zip(given, probe.tokens, probe.logprobs, strict=True):
        for token, logprob in zip(tokens, logprobs, strict=True):
            gap = nats.get(token, math.inf) - logprob
            if not math.isfinite(gap):
                return math.inf
            total += math.exp(logprob) * (math.expm1(min(gap, 700.0)) - gap)
    return total / len(probe.tokens)


def problem(given: Sequence[Mapping[int, float]], name: str, probes: Mapping[str, Probe]) -> str:
    """What is wrong where a server that should serve the adapter `name` gives these logprobs; empty: nothing is.

    They must be as near to the trainer's as rounding explains. Where rounding alone could hide an older version, as in
    bfloat16, they must besides not be clearly nearer to those of another version in `probes`.
    """
    own = distance(given, probes[name])
    limit = probes[name].limit
    if not own <= limit:
        away = "other tokens" if math.isinf(own) else f"logprobs that are {own:.3g} nats a token from the trainer's"
        return f"after a fixed text it expects {away}, and at most {limit:.3g} is rounding"
    for other, probe in probes.items():
        if other != name and own > NOISE and distance(given, probe) < CLEARLY * own:
            return f"what it expects after a fixed text is that of the adapter {other}, and not that of {name}"
    return ""
