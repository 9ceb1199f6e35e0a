"""FlexAttention on a trie: its mask and blocks, and that the model gives with it what it gives with gathered keys.

torch has no backward pass of FlexAttention for CPUs, and refuses inputs with a gradient there. The fixture `unfused` takes
that refusal away, so that torch's own unfused implementation computes results and gradients, with the mask that a GPU gets.
No test here runs the Triton kernel.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from addons.gpu import flex
from steps.core.params import Policy
from steps.core.records import Row
from steps.training import attention, packing
from steps.training.grpo import Trainer
from tests.support import tiny
from tests.support.tiny import moved, plain_logps, random_rows, relative, weights

pytestmark = pytest.mark.usefixtures("one_thread")
ROWS = {f"random {seed}": random_rows(1 + seed * 4, seed, longest=30, alike=0.8) for seed in range(4)} | {
    "one row": random_rows(1, 9, longest=30),
    "equal rows": random_rows(1, 9, longest=30) * 3,
}
rows_of = pytest.mark.parametrize("rows", ROWS.values(), ids=ROWS.keys())


@pytest.fixture
def unfused(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention as on a GPU, computed by torch's unfused implementation."""
    monkeypatch.setattr(packing, "flex_on", lambda _: flex)
    monkeypatch.setattr(flex, "BLOCK", 4)
    monkeypatch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)


def dense(trie: flex.Trie, window: int | None) -> Any:
    """Which token attends to which, from the definition: [U, U], query by key."""
    import torch

    place = torch.arange(len(trie.ends))
    near = trie.positions[:, None] - trie.positions[None] < (window or 10**6)
    return (place[None] <= place[:, None]) & (place[:, None] < trie.ends[None]) & near


@rows_of
def test_a_token_attends_to_the_path_that_leads_to_it(unfused: None, rows: list[Row]) -> None:
    packed = packing.pack(rows)
    assert packed.trie is not None
    assert packed.calls == []
    ids, positions = packed.ids[0].tolist(), packed.positions[0].tolist()
    found = set()
    for query, keys in enumerate(dense(packed.trie, None)):
        path = keys.nonzero()[:, 0].tolist()
        assert path[-1] == query
        assert [positions[key] for key in path] == list(range(positions[query] + 1))
        found.add(tuple(ids[key] for key in path))
    assert found == {tuple(row.ids[: end + 1]) for row in rows for end in range(len(row.ids))}
    assert len(found) == len(ids)


@rows_of
@pytest.mark.parametrize("window", [None, 1, 3, 9, 30])
@pytest.mark.parametrize("block", [1, 4, 128])
def test_the_blocks_are_those_that_have_something_to_attend_to(
    unfused: None, monkeypatch: pytest.MonkeyPatch, rows: list[Row], window: int | None, block: int
) -> None:
    import torch

    monkeypatch.setattr(flex, "BLOCK", block)
    trie = packing.pack(rows).trie
    assert trie is not None
    count = len(trie.ends)
    mask = trie.mask(window)
    assert trie.mask(window) is mask
    wanted = dense(trie, window)
    place = torch.arange(count)
    attends = mask.mask_mod(None, None, place[:, None], place[None])
    assert torch.equal(attends, wanted)
    for queries in range(-(-count // block)):
        some: set[int] = set()
        whole: set[int] = set()
        for number, chosen, into in (
            (mask.kv_num_blocks, mask.kv_indices, some),
            (mask.full_kv_num_blocks, mask.full_kv_indices, whole),
        ):
            into |= set(chosen[0, 0, queries, : number[0, 0, queries]].tolist())
        assert not some & whole
        for keys in range(-(-count // block)):
            part = wanted[queries * block : (queries + 1) * block, keys * block : (keys + 1) * block]
            assert keys in some | whole or not part.any()
            assert keys not in whole or part.all()
            if window is None:  # with a window, extremes of a block may be of different paths
                assert (keys in some | whole) == bool(part.any())


@pytest.fixture
def pairs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Logprobs and gradients of rows by a model, with gathered keys and with FlexAttention."""
    import torch

    def made(model: Any, rows: list[Row]) -> list[list[Any]]:
        found = []
        for on in (False, True):
            monkeypatch.setattr(packing, "flex_on", lambda _, on=on: flex if on else None)
            packed = packing.pack(rows, torch.float32)
            assert (packed.trie is not None) is on
            logps, entropies = packing.token_logps(model, packed, 0.8)
            factor = torch.randn(logps.shape, generator=torch.Generator().manual_seed(1))
            found.append([logps, entropies, *torch.autograd.grad((logps * factor).sum(), weights(model))])
        return found

    return made


@pytest.mark.parametrize("heads", [(2, 1), (4, 2), (2, 2), (6, 1)], ids=str)
def test_logprobs_and_gradients_are_those_of_gathered_keys(
    unfused: None, pairs: Any, tmp_path: Path, heads: tuple[int, int]
) -> None:
    trainer = moved(Trainer(tiny.make_policy(tmp_path, *heads), seed=1))
    for rows in ROWS.values():
        gathered, flexed = pairs(trainer.model, rows)
        assert relative(flexed, gathered) < 1e-5


def test_layers_with_a_sliding_window(unfused: None, pairs: Any, tmp_path: Path) -> None:
    """One of two layers slides, and both ways give what stock transformers gives a row by itself."""
    import torch
    from transformers import AutoModelForCausalLM

    more = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    trainer = Trainer(tiny.make_policy(tmp_path, 4, 2, "Qwen2", **more), seed=1)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    rows = ROWS["random 3"]
    gathered, flexed = pairs(trainer.model, rows)
    for row, first, second in zip(rows, gathered[0], flexed[0], strict=True):
        places = torch.tensor(row.mask[1:]).nonzero()[:, 0]
        expected = plain_logps(stock, row, 0.8)[places]
        for found in (first, second):
            torch.testing.assert_close(found[: len(places)].double(), expected, atol=1e-5, rtol=1e-5)
    assert relative(flexed, gathered) < 1e-5


def test_checkpointed_layers_have_the_same_gradients_and_attend_once(
    unfused: None, monkeypatch: pytest.MonkeyPatch, policy: Policy, pairs: Any
) -> None:
    import torch

    operation = import_module("torch._higher_order_ops.flex_attention")
    attention = Mock(wraps=operation.math_attention)
    monkeypatch.setattr(operation, "math_attention", attention)
    trainer = moved(Trainer(policy, seed=1))
    _, expected = pairs(trainer.model, ROWS["random 3"])
    once = attention.call_count
    for keeps, passes in ((True, 2), (False, 4)):
        trainer.keeps_attention = keeps
        trainer.set_checkpointing(True)
        _, found = pairs(trainer.model, ROWS["random 3"])
        trainer.set_checkpointing(False)
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
        assert attention.call_count == passes * once > 0


def attend(heads: list[Any], packed: packing.Packed) -> Any:
    query, key, value = heads
    return attention.attention(None, query, key, value, None, packed=packed)


def group(tokens: int) -> list[Row]:
    """Four attempts, with as many unique tokens together: half are the prompt, and each attempt has an eighth."""
    part = tokens // 8
    return [Row([1] * 4 * part + [2 + n] * part, [0] * 4 * part + [1] * part, []) for n in range(4)]


def test_no_keys_are_gathered_and_what_is_kept_grows_with_the_tokens(
    unfused: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bytes that the backward pass of an attention keeps, for rows of one prompt: the same for each token, long or short."""
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    def kept(tokens: int) -> float:
        packed = packing.pack(group(tokens), torch.float32)
        heads = [torch.randn(1, number, packed.ids.shape[1], 8, requires_grad=True) for number in (6, 2, 2)]
        sizes = {}

        def keep(value: Any) -> Any:
            sizes[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
            return value

        with saved_tensors_hooks(keep, lambda value: value):
            held = attend(heads, packed)
        del held
        return sum(sizes.values()) / packed.ids.shape[1]

    monkeypatch.setattr(flex, "BLOCK", 128)
    few, many = kept(512), kept(2048)
    assert many < 1.01 * few
    monkeypatch.setattr(packing, "flex_on", lambda _: None)
    assert kept(2048) > max(1.5 * kept(512), 2 * many)


def test_where_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU from Ampere on, with Triton and a compiler: torch's answers are fakes here."""
    import torch

    assert not flex.runs_on(None)
    assert not flex.runs_on(torch.device("cpu"))
    capability, compilers = (8, 0), {"cc"}
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr("torch.utils._triton.has_triton", lambda: True)
    monkeypatch.setattr(flex.shutil, "which", lambda name: name if name in compilers else None)
    card = torch.device("cuda")
    assert flex.runs_on(card)
    assert packing.flex_on(card) is flex
    assert packing.flex_on(None) is packing.flex_on("cpu") is None
    compilers = set()
    assert not flex.runs_on(card)
    compilers = {"gcc"}
    assert flex.runs_on(card)
    capability = (7, 5)
    assert not flex.runs_on(card)


@pytest.mark.slow
@pytest.mark.nightly
def test_the_compiled_kernel_takes_the_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forward, by the C++ kernel, at lengths that are not multiples of a block: compiled once for all of them. Checkpointing
    sees it as one operation, and keeps what it gives."""
    import torch
    from torch._dynamo.utils import counters
    from torch.nn.attention.flex_attention import flex_attention

    counters.clear()
    compiled = flex.compiled(flex_attention)
    monkeypatch.setattr(flex, "_compiled", lambda _: compiled)
    draw = torch.Generator().manual_seed(1)
    with torch._dynamo.config.patch(disable=False), torch.no_grad():
        for tokens in (300, 1000, 2000):
            rows = group(tokens)
            packs = []
            for on in (True, False):
                monkeypatch.setattr(packing, "flex_on", lambda _, on=on: flex if on else None)
                packs.append(packing.pack(rows, torch.float32))
            heads = [torch.randn(1, number, packs[0].ids.shape[1], 32, generator=draw) for number in (6, 2, 2)]
            found, expected = (attend(heads, packed)[0] for packed in packs)
            assert relative([found], [expected]) < 1e-5
            first, again = flex.kept_contexts()
            with first:
                kept = attend(heads, packs[0])[0]
            with again:
                assert attend(heads, packs[0])[0].data_ptr() == kept.data_ptr()
    assert counters["stats"]["unique_graphs"] <= 2
