"""Grammars that are replayed: logprobs and gradients over what they allowed, against a float64 model that renormalises."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from addons.agents.grammar import FREE, Grammars
from steps.core.errors import UserError
from steps.core.params import Policy
from steps.core.records import Row, Stretch
from steps.policy.loading import load_tokenizer
from steps.training import packing
from steps.training.grpo import Trainer
from tests.conftest import ROOT
from tests.support.tiny import moved, plain_logits, relative, twin, weights

pytestmark = pytest.mark.usefixtures("one_thread")
END, TEMPERATURE = 2, 0.8
WORDS = ["red", "dark blue", "größer", "naïve", "東京", "🙂", 'a "quoted" one', "tab\tand\nline"]


def schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    """A random JSON schema: enums, unions, numbers, nested arrays and objects, texts beyond ASCII."""
    simple: list[dict[str, Any]] = [
        {"enum": rng.sample(WORDS, 3)},
        {"type": "integer", "minimum": rng.randrange(-50, 0), "maximum": rng.randrange(1, 500)},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "null"},
        {"const": rng.choice([3, "größer", None])},
        {"type": "string", "maxLength": rng.randrange(1, 6)},
        {"type": "string", "pattern": "^[a-c]{2}-[0-9]+$"},
    ]
    if not depth or rng.random() < 0.3:
        return rng.choice(simple)
    inner = [schema(rng, depth - 1) for _ in range(3)]
    names = rng.sample(WORDS, 3)
    return rng.choice(
        [
            {"type": "array", "items": inner[0], "minItems": 1, "maxItems": 3},
            {"anyOf": inner},
            {
                "type": "object",
                "properties": dict(zip(names, inner, strict=True)),
                "required": names[: rng.randrange(1, 4)],
                "additionalProperties": False,
            },
        ]
    )


def sampled(grammars: Grammars, grammar: str, rng: random.Random, longest: int = 40) -> tuple[list[int], list[Any]]:
    """Tokens that a grammar allows, drawn evenly, with the set that each is from, as indices."""
    import torch
    import xgrammar

    matcher = xgrammar.GrammarMatcher(grammars._compiled(json.loads(grammar)), override_stop_tokens=[END])
    bits = xgrammar.allocate_token_bitmask(1, grammars.vocabulary)
    ids: list[int] = []
    sets: list[Any] = []
    while len(ids) < longest and not matcher.is_terminated():
        matcher.fill_next_token_bitmask(bits)
        places = torch.arange(grammars.vocabulary)
        allowed = places[(bits[0, places // 32] >> (places % 32)) & 1 == 1]
        ids.append(int(rng.choice(allowed.tolist())))
        sets.append(allowed)
        assert matcher.accept_token(ids[-1])
    return ids, sets


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    made = moved(Trainer(Policy(base_model=str(ROOT / Policy().base_model)), seed=1), 0.05)
    made.grammars = Grammars(load_tokenizer(made.policy), made.vocabulary, {END})
    return made


def test_logprobs_and_gradients_are_those_over_the_allowed_tokens(trainer: Trainer, tmp_path: Path) -> None:
    """30 random schemas in one batch. A free turn stands between prompt and grammar in every third row."""
    import torch

    grammars, rng = trainer.grammars, random.Random(5)
    assert grammars is not None
    rows, sets = [], []
    for number in range(30):
        grammar = json.dumps({"schema": json.dumps(schema(rng)), "ends": [END]})
        ids, own = sampled(grammars, grammar, rng)
        before = [rng.randrange(3, 2000) for _ in range(8)]
        free = 4 if number % 3 == 0 else 0
        choices = [int(len(allowed) > 1) for allowed in own]
        mask = [0] * (len(before) - free) + [1] * free + choices
        rows.append(Row(before + ids, mask, [0.0] * len(mask), (Stretch(8, 8 + len(ids), grammar),)))
        sets.append([None] * 8 + own)
    packed = packing.pack(rows, *trainer.place, grammars=trainer._grammars(rows))
    logps, entropies = packing.token_logps(trainer.model, packed, TEMPERATURE)
    weight = [torch.randn(int(sum(row.mask)), generator=torch.Generator().manual_seed(n)) for n, row in enumerate(rows)]
    loss: Any = sum((part[: len(own)] * own).sum() for part, own in zip(logps, weight, strict=True))
    loss.backward()

    model = twin(trainer, tmp_path / "adapter")
    total = torch.zeros((), dtype=torch.float64)
    for row, own, given, found, spread in zip(rows, sets, weight, logps, entropies, strict=True):
        logits = plain_logits(model, row, TEMPERATURE)
        expected, entropy = [], []
        for place in (place for place, bears_loss in enumerate(row.mask) if bears_loss):
            allowed = own[place] if own[place] is not None else torch.arange(logits.shape[1])
            among = logits[place - 1, allowed].log_softmax(-1)
            expected.append(among[(allowed == row.ids[place]).nonzero()[0, 0]])
            entropy.append(-(among.exp() * among).sum())
        if expected:
            total = total + (torch.stack(expected) * given.double()).sum()
            torch.testing.assert_close(found[: len(expected)].double(), torch.stack(expected), atol=1e-4, rtol=0)
            torch.testing.assert_close(spread[: len(entropy)].double(), torch.stack(entropy), atol=1e-4, rtol=0)
    total.backward()
    found, expected = [w.grad for w in trainer.weights.values()], [w.grad for w in weights(model)]
    assert relative(found, expected) < 1e-5
    trainer.model.zero_grad()


def test_one_token_under_two_grammars_and_under_none(trainer: Trainer) -> None:
    """Three rows with the same tokens: the model passes over them once, and each has logprobs of its own."""
    import torch

    tokenizer = load_tokenizer(trainer.policy)
    answer = [*tokenizer.encode('{"a":"red"}', add_special_tokens=False), END]
    ids, mask = [5, 6, 7, *answer], [0, 0, 0, *[1] * len(answer)]
    grammars = [
        json.dumps(
            {"schema": json.dumps({"properties": {"a": inner}, "required": ["a"], "type": "object"}), "ends": [2]}
        )
        for inner in ({"type": "string"}, {"enum": ["red", "rust"]})
    ]
    stretches = [(Stretch(3, len(ids), grammar),) for grammar in grammars]
    rows = [Row(ids, mask, [0.0] * len(ids), own) for own in (*stretches, ())]
    with torch.no_grad():
        packed = packing.pack(rows, *trainer.place, grammars=trainer._grammars(rows))
        together, _ = packing.token_logps(trainer.model, packed, 1.0)
        alone = [
            packing.token_logps(
                trainer.model, packing.pack([row], *trainer.place, grammars=trainer._grammars([row])), 1.0
            )
            for row in rows
        ]
    assert packed.ids.shape[1] == len(ids)
    torch.testing.assert_close(together, torch.cat([logps for logps, _ in alone]))
    anything, chosen, free = together.sum(1).tolist()
    assert free < anything < chosen < 0


def test_tokens_that_the_grammar_does_not_allow_are_a_sentence(trainer: Trainer) -> None:
    grammar = json.dumps({"schema": '{"type": "boolean"}', "ends": [END]})
    row = Row([5, 6, 7, 8], [0, 0, 1, 1], [0.0, 0.0, -1.0, -1.0], (Stretch(2, 4, grammar),))
    with pytest.raises(
        UserError, match=r"token 1 of 2 of a turn is none that its grammar allows.*rollout\.grammar: off"
    ):
        packing.pack([row], *trainer.place, grammars=trainer._grammars([row]))


def test_rows_without_a_grammar_need_none(trainer: Trainer) -> None:
    row = Row([5, 6, 7], [0, 1, 1], [0.0, -1.0, -1.0])
    assert trainer._grammars([row]) is None
    assert trainer.grammars is not None
    assert trainer.grammars.of(row).tolist() == [FREE] * 3
