"""Rows packed as a trie: what the model sees, and that it gives what whole rows give, gradients included."""

from __future__ import annotations

import random
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from steps.core.errors import UserError
from steps.core.params import Policy
from steps.core.records import Row
from steps.training import attention, packing
from steps.training.grpo import Trainer
from tests.support import tiny
from tests.support.tiny import moved, plain_logits, plain_logps, random_rows, relative, twin, weights

pytestmark = pytest.mark.usefixtures("one_thread")
TEMPERATURE = 0.8


def row(text: str, mask: str) -> Row:
    """A row of letters: a is token 0."""
    return Row([ord(letter) - ord("a") for letter in text], [int(one) for one in mask], [0.0] * len(text))


TRIES = {
    "one row": [row("abcde", "01101")],
    "equal rows": [row("abcab", "01101"), row("abcab", "01101"), row("abcab", "01101")],
    "equal rows, other masks": [row("abcab", "01100"), row("abcab", "00011")],
    "one begins the other": [row("abcde", "01111"), row("abc", "011"), row("abcd", "0010")],
    "nothing shared": [row("abcd", "0111"), row("bbcd", "0111"), row("cc", "01"), row("dd", "01")],
    "all but the last": [row("aaaaaaab", "00000001"), row("aaaaaaac", "01111111"), row("aaaaaaaa", "01010101")],
    "every length": [row("x" * n + "abcdefgh"[n:], "0" + "1" * 7) for n in range(8)],
    "nothing sampled": [row("abc", "000"), row("abd", "001")],
    **{
        f"random {seed}": random_rows(1 + seed * 3, seed, longest=30, alike=0.8) for seed in range(6)
    },  # masks of shared tokens differ
}
tries = pytest.mark.parametrize("rows", TRIES.values(), ids=TRIES.keys())
# queries of a stretch, waste and size of a call: as they are; long rows in several stretches; a call for each size; for each
cuts = pytest.mark.parametrize("cut", [(256, 1.15, 20_000), (3, 1.15, 20_000), (3, 1.0, 0), (1, 0.0, 0)], ids=str)


def set_cut(monkeypatch: pytest.MonkeyPatch, cut: tuple[int, float, int]) -> None:
    for name, value in zip(("QUERIES", "WASTE", "SMALL"), cut, strict=True):
        monkeypatch.setattr(packing, name, value)


def prefixes(rows: list[Row]) -> set[tuple[int, ...]]:
    """The trie's nodes, each by the path that leads to it."""
    return {tuple(one.ids[: end + 1]) for one in rows for end in range(len(one.ids))}


# --- What is packed


@pytest.mark.parametrize(
    ("one", "other", "length"), [("", "", 0), ("abc", "", 0), ("abc", "abc", 3), ("abc", "abd", 2), ("ab", "abc", 2)]
)
def test_shared(one: str, other: str, length: int) -> None:
    assert packing.shared(list(one), list(other)) == packing.shared(list(other), list(one)) == length


def test_padded() -> None:
    assert packing.padded([[1, 2], [], [3.5]]).tolist() == [[1, 2], [0, 0], [3.5, 0]]
    assert packing.padded([]).shape == (0, 0)


def test_two_rows_by_hand() -> None:
    packed = packing.pack([row("abdc", "0110"), row("abcd", "0011")])
    assert packed.ids.tolist() == [[0, 1, 2, 3, 3, 2]]  # sorted: abcd, then dc
    assert packed.positions.tolist() == [[0, 1, 2, 3, 2, 3]]
    assert packed.targets.tolist() == [1, 2, 3, 3]  # b, c and d of the second row, d of the first
    assert packed.before.tolist() == [0, 1, 2, 1]
    assert packed.rows.tolist() == [[0, 3], [1, 2]]
    assert packed.mask.tolist() == [[1, 1], [1, 1]]


@cuts
@tries
def test_a_token_is_there_once_and_attends_to_the_path_that_leads_to_it(
    monkeypatch: pytest.MonkeyPatch, rows: list[Row], cut: tuple[int, float, int]
) -> None:
    import torch

    set_cut(monkeypatch, cut)
    packed = packing.pack(rows, dtype=torch.float32)
    ids, positions = packed.ids[0].tolist(), packed.positions[0].tolist()
    found: dict[int, tuple[int, ...]] = {}  # the ids that each place attends to
    places: list[int] = []
    for own, path, mask in packed.calls:
        assert own.shape[1] <= packing.QUERIES
        assert mask.shape == (len(own), 1, own.shape[1], path.shape[1])
        assert set(mask.unique().tolist()) <= {0, -torch.inf}
        assert not mask[..., 0].any(), "a query without a key makes NaN"
        places += own.flatten().tolist()
    assert [places[back] for back in packed.back.tolist()] == list(range(len(ids)))
    number = 0
    for own, path, mask in packed.calls:
        for queries, keys, scores in zip(own, path, mask[:, 0], strict=True):
            for query, score in zip(queries.tolist(), scores, strict=True):
                if packed.back[query] == number:  # others are padding
                    attended = keys[score == 0].tolist()
                    assert attended[-1] == query
                    assert [positions[key] for key in attended] == list(range(positions[query] + 1))
                    found[query] = tuple(ids[key] for key in attended)
                number += 1
    assert len(found) == len(ids)
    assert sorted(found.values()) == sorted(prefixes(rows))


@tries
def test_every_sampled_token_is_predicted_from_the_one_before_it(rows: list[Row]) -> None:
    packed = packing.pack(rows)
    ids, positions = packed.ids[0].tolist(), packed.positions[0].tolist()
    sampled = {tuple(one.ids[: end + 1]) for one in rows for end, mask in enumerate(one.mask) if mask}
    assert len(packed.targets) == len(packed.before) == len(sampled)
    assert packed.rows.shape == packed.mask.shape == (len(rows), max(sum(one.mask) for one in rows))
    for one, numbers, mask in zip(rows, packed.rows, packed.mask, strict=True):
        assert mask.tolist() == [1.0] * sum(one.mask) + [0.0] * (len(mask) - sum(one.mask))
        ends = [end for end, is_sampled in enumerate(one.mask) if is_sampled]
        assert packed.targets[numbers[: len(ends)]].tolist() == [one.ids[end] for end in ends]
        before = packed.before[numbers[: len(ends)]].tolist()
        assert [(ids[place], positions[place]) for place in before] == [(one.ids[end - 1], end - 1) for end in ends]


def distinct_rows(lengths: list[int]) -> list[Row]:
    """Rows that share their first token."""
    return [
        Row([0, *[number] * (length - 1)], [0] + [1] * (length - 1), [0.0] * length)
        for number, length in enumerate(lengths)
    ]


def test_rows_of_like_size_share_a_call() -> None:
    rows = distinct_rows([400] * 30)
    assert [len(call.own) for call in packing.pack(rows).calls] == [30, 30]  # first halves, second halves


def test_the_first_rows_of_groups_do_not_attend_with_the_others() -> None:
    """The first of a group owns the prompt as well, and all rows have as many keys: two calls, without padding."""
    rows = [
        Row([group] * 36 + [100 + attempt] * 64, [0] * 36 + [1] * 64, [0.0] * 100)
        for group in range(5)
        for attempt in range(8)
    ]
    assert [tuple(call.mask.shape) for call in packing.pack(rows).calls] == [(35, 1, 64, 100), (5, 1, 100, 100)]


@pytest.mark.parametrize("longest", [50, 300, 900])
def test_a_call_computes_little_more_than_what_is_asked_for(longest: int) -> None:
    rng = random.Random(longest)
    packed = packing.pack(distinct_rows([rng.randrange(20, longest) for _ in range(60)]))
    real, number = set(packed.back.tolist()), 0
    for call in packed.calls:
        asked = 0
        for mask in call.mask[:, 0]:
            queries = sum(number + place in real for place in range(len(mask)))
            asked += queries * int((mask == 0).sum(-1).max())
            number += len(mask)
        assert call.mask.numel() <= packing.WASTE * asked + packing.SMALL
    assert max(call.mask.numel() for call in packed.calls) > packing.SMALL or longest == 50


# --- What the model makes of it


@pytest.mark.parametrize(
    ("heads", "temperature"),
    [
        pytest.param(heads, temperature, marks=() if usual == temperature else pytest.mark.nightly)
        for (heads, usual), temperature in product({(2, 1): 1.0, (4, 2): 0.6, (2, 2): 1.7}.items(), (1.0, 0.6, 1.7))
    ],
    ids=lambda value: f"{value[0]} heads, {value[1]} of keys" if isinstance(value, tuple) else f"{value}",
)
def test_logprobs_entropies_and_gradients_are_those_of_whole_rows(
    tmp_path: Path, heads: tuple[int, int], temperature: float, device: str
) -> None:
    """Against stock transformers and PEFT in float64, one row at a time."""
    import torch

    trainer = moved(Trainer(tiny.make_policy(tmp_path / "base", *heads), seed=1))
    model = twin(trainer, tmp_path / "adapter")
    for rows in TRIES.values():
        packed = packing.pack(rows, torch.float32, device)
        logps, entropies = packing.token_logps(trainer.model, packed, temperature)
        assert logps.shape == entropies.shape == packed.mask.shape
        assert not entropies.requires_grad
        weight = torch.randn(logps.shape, generator=torch.Generator().manual_seed(1))
        expected: Any = 0.0
        for one, found, entropy, factor in zip(rows, logps.cpu(), entropies.cpu(), weight, strict=True):
            places = torch.tensor(one.mask[1:]).nonzero()[:, 0]
            count = len(places)
            plain = plain_logps(model, one, temperature)[places]
            spread = torch.distributions.Categorical(logits=plain_logits(model, one, temperature)).entropy()[places]
            torch.testing.assert_close(found[:count].double(), plain, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(entropy[:count].double(), spread, atol=1e-5, rtol=1e-5)
            assert not found[count:].any()
            assert not entropy[count:].any()
            expected = expected + (plain * factor[:count]).sum()
        mine = torch.autograd.grad((logps * weight.to(device)).sum(), list(trainer.weights.values()))
        theirs = torch.autograd.grad(expected, weights(model))
        assert relative(mine, theirs) < 1e-5


@pytest.fixture
def measure(policy: Policy) -> Any:
    """Logprobs, entropies and gradient of some rows with a given model, as it is just now."""
    import torch

    rows = TRIES["random 5"] + TRIES["every length"]

    def made(model: Any) -> list[Any]:
        logps, entropies = packing.token_logps(model, packing.pack(rows, torch.float32), TEMPERATURE)
        factor = torch.randn(logps.shape, generator=torch.Generator().manual_seed(1))
        return [logps.detach(), entropies, *torch.autograd.grad((logps * factor).sum(), weights(model))]

    return made


def shapes() -> list[tuple[int, ...]]:
    return [tuple(call.mask.shape) for call in packing.pack(TRIES["random 5"]).calls]


@pytest.mark.parametrize("cut", [(3, 1.15, 20_000), (3, 1.0, 0), (1, 0.0, 0), (5, 9.0, 0)], ids=str)
def test_how_rows_are_cut_into_calls_changes_nothing(
    policy: Policy, measure: Any, monkeypatch: pytest.MonkeyPatch, cut: tuple[int, float, int]
) -> None:
    trainer = moved(Trainer(policy, seed=1))
    expected = measure(trainer.model)
    calls = shapes()
    set_cut(monkeypatch, cut)
    assert shapes() != calls
    assert relative(measure(trainer.model), expected) < 1e-5


@pytest.mark.parametrize("logits", [1, 3 * tiny.VOCABULARY, 7 * tiny.VOCABULARY + 5])
def test_logits_made_a_block_at_a_time_are_the_same(
    policy: Policy, measure: Any, monkeypatch: pytest.MonkeyPatch, logits: int
) -> None:
    from steps.training import logprobs

    trainer = moved(Trainer(policy, seed=1))
    expected = measure(trainer.model)
    monkeypatch.setattr(logprobs, "LOGITS", logits)
    assert relative(measure(trainer.model), expected) < 1e-5


def test_gradient_checkpointing_gives_the_same_gradients(policy: Policy, measure: Any) -> None:
    import torch

    trainer = moved(Trainer(policy, seed=1))
    passes = []
    layer = trainer.model.get_base_model().model.layers[0].mlp
    hook = layer.register_forward_pre_hook(lambda *_: passes.append(1))
    expected = measure(trainer.model)
    assert len(passes) == 1
    trainer.model.gradient_checkpointing_enable()
    found = measure(trainer.model)
    hook.remove()
    trainer.model.gradient_checkpointing_disable()  # the base model is shared with other tests
    assert len(passes) == 3, "the layer was not computed again for the gradient"
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_rows_without_packing_attend_as_usual(policy: Policy, tmp_path: Path) -> None:
    import torch

    trainer = moved(Trainer(policy, seed=1))
    model = twin(trainer, tmp_path)
    ids = torch.tensor([one.ids for one in random_rows(40, 1, longest=6) if len(one.ids) == 6])
    assert len(ids) > 5
    with torch.no_grad():
        assert relative(trainer.model(input_ids=ids).logits, model(input_ids=ids).logits) < 1e-5


def test_a_trained_output_layer_is_refused() -> None:
    import torch

    from steps.training import logprobs

    weight = torch.zeros(4, 3, requires_grad=True)
    with pytest.raises(ValueError, match="must be frozen"):
        logprobs.log_softmax(torch.zeros(2, 3), weight, None, torch.tensor([0, 1]), logprobs.Wanted(1.0))


def test_an_output_layer_with_a_bias() -> None:
    import torch

    from steps.training import logprobs

    draw = torch.Generator().manual_seed(1)
    hidden, weight, bias = (torch.randn(shape, generator=draw) for shape in ((5, 3), (7, 3), (7,)))
    targets, factor = torch.tensor([0, 6, 2, 2, 5]), torch.tensor([1.0, -2.0, 0.0, 3.0, 0.5])
    hidden.requires_grad_()
    found, entropies = logprobs.log_softmax(hidden, weight, bias, targets, logprobs.Wanted(TEMPERATURE))
    spread = torch.distributions.Categorical(logits=(hidden.double() @ weight.double().T + bias.double()) / TEMPERATURE)
    expected = spread.log_prob(targets)
    assert relative([found, entropies], [expected, spread.entropy()]) < 1e-5
    mine, theirs = (torch.autograd.grad(logps @ factor.to(logps), hidden) for logps in (found, expected))
    assert relative(mine, theirs) < 1e-5


def test_rows_of_one_trajectory_are_one_row_of_the_results(policy: Policy) -> None:
    import torch

    trainer = moved(Trainer(policy, seed=1))
    rows = [row("abcde", "01101"), row("abxy", "0011"), row("zab", "001"), row("abcz", "0001")]
    alone, joined = (packing.pack(rows, torch.float32, counts=counts) for counts in (None, [2, 1, 1]))
    with torch.no_grad():
        single, _ = packing.token_logps(trainer.model, alone, 1.0)
        logps, entropies = packing.token_logps(trainer.model, joined, 1.0)
    assert joined.mask.tolist() == [[1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]
    assert torch.equal(logps[0], torch.cat([single[0, :3], single[1, :2]]))
    assert torch.equal(logps[1:, :1], single[2:, :1])
    assert logps.shape == entropies.shape == (3, 5)


@pytest.mark.parametrize("rows", [[], [Row([], [], [])]], ids=["no rows", "an empty row"])
def test_nothing_to_pack_is_one_sentence(rows: list[Row]) -> None:
    with pytest.raises(ValueError, match=rf"^there is nothing to pack: {len(rows)} rows without a token; leave"):
        packing.pack(rows)


# --- Models that it does not fit


def test_attention_that_cannot_be_had_is_refused() -> None:
    import torch

    packed = packing.pack([row("abcde", "01111"), row("abcxy", "01111")], torch.float32)
    tokens = 7
    query, key = torch.ones(1, 4, tokens, 8), torch.ones(1, 2, tokens, 8)

    def attend(**options: Any) -> Any:
        return attention.attention(None, query, key, key, None, packed=packed, **options)[0]

    assert attend(softcap=None).shape == (1, tokens, 4, 8)
    for name in ("softcap", "s_aux", "position_bias"):
        with pytest.raises(UserError, match=rf"policy\.base_model: the model's attention has {name}, which"):
            attend(**{name: 50.0})


@pytest.mark.parametrize("heads", [(6, 2), (4, 4), (3, 1)], ids=str)
def test_query_heads_of_one_head_of_keys_as_its_queries(heads: tuple[int, int]) -> None:
    """What a GPU without FlexAttention computes, on the CPU."""
    import torch

    draw = torch.Generator().manual_seed(1)
    shapes = [(3, heads[0], 5, 8), (3, heads[1], 7, 8), (3, heads[1], 7, 4)]
    inputs = [torch.randn(shape, generator=draw, requires_grad=True) for shape in shapes]
    mask = torch.zeros(3, 1, 5, 7).masked_fill(torch.rand(3, 1, 5, 7, generator=draw) < 0.4, -torch.inf)
    mask[..., 0] = 0
    results = []
    for fold in (False, True):
        out = attention._call(inputs[0], inputs[1], inputs[2], mask, 0.3, fold=fold)
        assert out.shape == (3, heads[0], 5, 4)
        results.append([out, *torch.autograd.grad(out.square().sum(), inputs)])
    assert relative(results[1], results[0]) < 1e-6


def test_gathered_rows_have_the_gradient_of_indexing_summed_in_float32() -> None:
    import torch

    from steps.training.logprobs import gather

    draw = torch.Generator().manual_seed(1)
    places = torch.tensor([0] * 700 + [3, 1, 3])
    slope = torch.rand(len(places), 2, generator=draw)
    for kind, bound in ((torch.float32, 1e-6), (torch.bfloat16, 4e-3)):
        x = torch.randn(4, 2, generator=draw).to(kind).requires_grad_()
        assert torch.equal(gather(x, places), x[places])
        [grad] = torch.autograd.grad(gather(x, places), x, slope.to(kind))
        exact = torch.zeros(4, 2, dtype=torch.float64).index_add_(0, places, slope.to(kind).double())
        assert grad.dtype == kind
        assert relative([grad], [exact]) < bound  # one rounding; 700 additions in bfloat16 would stand still at 256


def test_layers_of_other_kinds_are_refused() -> None:
    from transformers import BloomConfig, BloomForCausalLM, Lfm2Config, Lfm2ForCausalLM

    mixed = Lfm2Config(
        vocab_size=48,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        layer_types=["conv", "full_attention"],
    )
    with pytest.raises(UserError, match=r"lfm2 models cannot be updated yet: their layers \(conv\) are not plain"):
        attention.prepare(Lfm2ForCausalLM(mixed))
    old = BloomForCausalLM(BloomConfig(vocab_size=48, hidden_size=16, n_layer=1, n_head=2))
    with pytest.raises(UserError, match=r"bloom models cannot be updated yet: their layers \(attention of their own\)"):
        attention.prepare(old)


@pytest.mark.parametrize("in_thread", [False, True])
def test_batches_are_packed_in_order_and_not_more_than_the_next(in_thread: bool) -> None:
    made: list[int] = []

    def make(batch: int) -> Any:
        made.append(batch)
        if batch == 5:
            raise ValueError("no rows")
        return -batch

    for batch, packed in packing.ahead([1, 2, 3], make, in_thread):
        assert packed == -batch
        assert made in ([*range(1, batch + 1)], [*range(1, min(batch + 2, 4))] if in_thread else [])
    assert list(packing.ahead([], make, in_thread)) == []
    passed = []
    with pytest.raises(ValueError, match="no rows"):
        passed += [batch for batch, _ in packing.ahead([4, 5, 6], make, in_thread)]
    assert 6 not in made
