"""Which tokens a grammar allowed when a turn was sampled, found again for the update.

For a JSON schema or a forced call, the engine leaves out at each token what cannot go on (Willard and Louf 2023,
arXiv:2307.09702), and the logprobs are of the tokens that are left. The grammar is deterministic: the recorded tokens
give the same sets again through the same matcher (Dong et al. 2024, "XGrammar", arXiv:2411.15100). With the others left out
of the trainer's logits, too, its logprobs, ratios and KL terms are of the distributions that were sampled from.

Each different set is kept once, as bits. Shapes: T tokens of a row, V vocabulary, M different sets.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from steps.core.records import Row

FREE = -1  # the set of a token that was sampled without a grammar


class Grammars:
    """The sets of allowed tokens of an update's rows. `ends`: the model's own tokens that end a text."""

    def __init__(self, tokenizer: Any, vocabulary: int, ends: set[int]) -> None:
        import xgrammar

        self.ends, self.vocabulary = ends, vocabulary
        tokens = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocabulary)
        self.compiler = xgrammar.GrammarCompiler(tokens, max_threads=1)
        self.numbers: dict[bytes, int] = {}  # of each set, by its bits
        self.sets: list[np.ndarray] = []  # M of [ceil(V / 32)], int32
        self.replayed: dict[tuple[str, tuple[int, ...]], list[int]] = {}

    def of(self, row: Row) -> np.ndarray:
        """[T] the number of the set that each token was sampled from, or FREE. UserError where a token is not in it."""
        import numpy as np

        numbers = np.full(len(row.ids), FREE)
        for start, stop, grammar in row.stretches:
            key = grammar, tuple(row.ids[start:stop])
            if key not in self.replayed:
                self.replayed[key] = self._replay(*key)
            numbers[start:stop] = self.replayed[key]
        return numbers

    def _replay(self, grammar: str, ids: tuple[int, ...]) -> list[int]:
        import xgrammar

        fields = json.loads(grammar)
        ends = sorted(self.ends | set(fields["ends"]))
        matcher = xgrammar.GrammarMatcher(self._compiled(fields), override_stop_tokens=ends)
        bits = xgrammar.allocate_token_bitmask(1, self.vocabulary)
        numbers = []
        for place, token in enumerate(ids):
            matcher.fill_next_token_bitmask(bits)
            if not matcher.accept_token(token):
                raise UserError(
                    f"token {place + 1} of {len(ids)} of a turn is none that its grammar allows: another tokenizer or "
                    f"version of xgrammar sampled it; run rollout again, or set rollout.grammar: off ({grammar[:200]})"
                )
            key = bits.numpy().tobytes()
            if key not in self.numbers:
                self.numbers[key] = len(self.sets)
                self.sets.append(bits.numpy()[0].copy())
            numbers.append(self.numbers[key])
        return numbers

    def _compiled(self, fields: dict[str, Any]) -> Any:
        """As vLLM's xgrammar backend compiles it, with the settings of steps/sampling/engine.py."""
        if "tag" in fields:
            return self.compiler.compile_structural_tag(fields["tag"])
        return self.compiler.compile_json_schema(fields["schema"], any_whitespace=False, separators=(",", ":"))
