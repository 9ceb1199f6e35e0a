"""The forward pass of an update: rows without padding, and tokens that rows share computed once.

Attempts at one scenario begin with the same prompt, and are often the same for a turn or two more. Rows with a common
beginning form a trie; each of its tokens passes through the model once (U unique tokens), and attends to the path that
leads to it. This is exact, gradients included: a causal model's hidden state depends on the path only, and a shared
token's gradient is the sum over its rows. (For prompts that a group shares: "Prefix Grouper", Liu et al. 2025,
arXiv:2506.05433.)

Linear layers see [1, U, width] and need no change; a model's attention is replaced (attention.py), through transformers'
AttentionInterface: FlexAttention on a GPU (addons/gpu/flex.py), and elsewhere calls of torch's attention on the keys
that are gathered for stretches of rows. Logits are computed for sampled tokens only, block by block, and never kept.

Shapes: B trajectories of one row or more, S sampled tokens of the longest, U unique sampled tokens, V vocabulary, W width,
H heads, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from steps.core.ports import bring
from steps.core.records import Row
from steps.policy.machine import GPU

if TYPE_CHECKING:
    import numpy as np
    import torch

    from steps.core.pictures import Vision

QUERIES = 256  # most tokens of a row that attend together; fewer would mean smaller masks and more calls
WASTE = 1.15  # most queries × keys of a padded call, as a multiple of the needed ones
SMALL = 20_000  # queries × keys that are too few for a call of their own
ALIKE = 64  # stretches whose lengths differ by less are sorted side by side
Batch = TypeVar("Batch")
Made = TypeVar("Made")


class AttentionCall(NamedTuple):
    """One call of the attention kernel: stretches of rows, each attending to its path."""

    own: torch.Tensor  # [n, Q] places of the queries among the unique tokens; padded with 0
    path: torch.Tensor  # [n, K] places of the keys
    mask: torch.Tensor  # [n, 1, Q, K] added to the scores: 0 or -inf


class Packed(NamedTuple):
    """Rows as the model sees them, and where each trajectory's sampled tokens are among the results."""

    ids: torch.Tensor  # [1, U]
    positions: torch.Tensor  # [1, U] in the row
    calls: list[AttentionCall]  # none where FlexAttention computes
    back: torch.Tensor  # [U] place of a token's result in the concatenated results of the calls
    trie: Any  # for FlexAttention; else None
    before: torch.Tensor  # [N] place of the token before each sampled one; its hidden state predicts the sampled one
    targets: torch.Tensor  # [N] sampled token ids
    rows: torch.Tensor  # [B, S] places of a trajectory's sampled tokens among the N
    mask: torch.Tensor  # [B, S] 1 for a sampled token, 0 for padding
    # Where rows were sampled under grammars: [N] which set of tokens each is from, or -1, and the sets [M, V / 32] as bits.
    allowed: tuple[torch.Tensor, torch.Tensor] | None
    copies: torch.Tensor  # [U] how many rows have each token
    pictures: Any = None  # where rows show some
    wide_head: bool = False  # logits are computed in float32


def flex_on(device: Any) -> Any:
    """FlexAttention (port `gpu`), where it can be compiled for this device; else None, as on a CPU."""
    import torch

    if torch.device(device or "cpu").type != "cuda":
        return None
    flex = bring("gpu", "flex", GPU)
    return flex if flex.runs_on(device) else None


def shared(row: Any, other: Any) -> int:
    """How many tokens two rows (lists or arrays of ids) have in common at their beginning."""
    import numpy as np

    length = min(len(row), len(other))
    different = np.nonzero(np.asarray(row[:length]) != np.asarray(other[:length]))[0]
    return int(different[0]) if len(different) else length


def pack(
    rows: Sequence[Row],
    dtype: Any = None,
    device: Any = None,
    counts: Sequence[int] | None = None,
    grammars: Any = None,
    vision: Vision | None = None,
) -> Packed:
    """Pack rows for a model of this dtype. In sorted order each row shares most with the row before it.

    `counts`: of how many rows each trajectory consists, in order; its sampled tokens become one row of the results. Without
    it each row is a trajectory. `grammars`: what replays those that rows were sampled under (port `grammar`); a token that
    was sampled from two sets counts twice among the N. `vision`: of the model, where rows show pictures. ValueError where
    there is nothing to pack.
    """
    import numpy as np
    import torch

    if not any(row.ids for row in rows):
        raise ValueError(f"there is nothing to pack: {len(rows)} rows without a token; leave the forward pass out")
    shows_pictures = any(row.pictures for row in rows)
    if shows_pictures and vision is None:
        raise ValueError("rows with pictures need the image processor of the model that is trained")
    seen = vision.layout(rows) if vision is not None and shows_pictures else None
    keyed = seen.keys if seen else [row.ids for row in rows]  # by which rows are compared
    tokens = [np.asarray(row, dtype=np.int64) for row in keyed]
    order = sorted(range(len(rows)), key=lambda index: keyed[index])
    paths: list[np.ndarray] = [np.empty(0, np.int64)] * len(rows)
    starts = [0] * len(rows)  # of the tokens that a row does not share with the row before it
    ends = np.empty(sum(map(len, tokens)), np.int64)  # of the tokens below each token
    total, previous = 0, None
    for index in order:
        start = 0 if previous is None else shared(tokens[index], tokens[previous])
        if previous is not None:
            ends[paths[previous][start:]] = total
        fresh = np.arange(total, total + len(tokens[index]) - start)
        paths[index] = fresh if previous is None else np.concatenate([paths[previous][:start], fresh])
        starts[index], total, previous = start, total + len(fresh), index
    ends[paths[order[-1]]] = total
    ids, positions = np.empty(total, np.int64), np.empty(total, np.int64)
    before, keys = np.zeros(total, np.int64), []  # of each sampled token: its place, and which set it is from
    chosen = [0 if grammars is None else grammars.of(row) + 1 for row in rows]
    many = 1 if grammars is None else len(grammars.sets) + 1
    for path, values, row, numbers in zip(paths, tokens, rows, chosen, strict=True):
        ids[path], positions[path] = row.ids, np.arange(len(values))
        before[path[1:]] = path[:-1]
        keys.append((path * many + numbers)[np.asarray(row.mask, bool)])
    unique, number = np.unique(np.concatenate(keys), return_inverse=True)
    sampled = np.split(number, np.cumsum([len(part) for part in keys])[:-1])
    places, sets = unique // many, unique % many - 1
    if counts is not None:
        sampled = [np.concatenate(sampled[begin:end]) for begin, end in pairwise(accumulate(counts, initial=0))]
    flex, is_cuda = flex_on(device), torch.device(device or "cpu").type == "cuda"
    calls, back = ([], np.empty(0, np.int64)) if flex else _calls(paths, starts, total)

    def tensor(values: Any, kind: Any = torch.long) -> torch.Tensor:
        made = torch.as_tensor(values, dtype=kind)
        made = made.pin_memory() if is_cuda else made
        return made.to(device, non_blocking=True)  # it does not wait for the GPU's work

    allowed = None
    if grammars is not None and (sets >= 0).any():
        used, sets = np.unique(np.append(sets, -1), return_inverse=True)  # -1, for all tokens, comes first
        bits = np.stack([grammars.sets[number] for number in used[1:]])
        allowed = tensor(sets[:-1] - 1), tensor(bits, torch.int32)

    return Packed(
        ids=tensor(ids)[None],
        positions=tensor(positions)[None],
        calls=[AttentionCall(tensor(own), tensor(path), tensor(mask, dtype)) for own, path, mask in calls],
        back=tensor(back),
        trie=flex.Trie(tensor(ends[:total]), tensor(positions), max(map(len, tokens))) if flex else None,
        before=tensor(before[places]),
        targets=tensor(ids[places]),
        rows=tensor(padded(sampled)),
        mask=tensor(padded([np.ones(len(row)) for row in sampled]), torch.float32),
        allowed=allowed,
        copies=tensor(np.bincount(np.concatenate(paths), minlength=total), torch.float32),
        pictures=seen.packed(paths, total, tensor) if seen else None,
    )


def ahead(batches: Sequence[Batch], make: Callable[[Batch], Made], in_thread: bool) -> Iterator[tuple[Batch, Made]]:
    """Each batch with what is made of it; in a thread, the next one is made while this one is computed."""
    if not in_thread:
        yield from ((batch, make(batch)) for batch in batches)
        return
    with ThreadPoolExecutor(1) as pool:
        made = [pool.submit(make, batch) for batch in batches[:1]]
        for number, batch in enumerate(batches, 1):
            packed = made.pop().result()
            made += [pool.submit(make, following) for following in batches[number : number + 1]]
            yield batch, packed


def padded(values: Sequence[Any]) -> np.ndarray:
    """Lists of numbers as one array [B, longest], zeros on the right."""
    import numpy as np

    result = np.zeros((len(values), max(map(len, values), default=0)))
    for row, value in zip(result, values, strict=True):
        row[: len(value)] = value
    return result


def _calls(paths: list[np.ndarray], starts: list[int], total: int) -> tuple[list[tuple[Any, Any, Any]], np.ndarray]:
    """Stretches of at most QUERIES of a row's own tokens; stretches of similar size form one padded call."""
    import numpy as np

    stretches = []  # (queries, keys, row)
    for index, (path, start) in enumerate(zip(paths, starts, strict=True)):
        own = len(path) - start
        parts = -(-own // QUERIES)
        ends = [start + own * part // parts for part in range(parts + 1)] if parts else []
        stretches += [(end - begin, end, index) for begin, end in pairwise(ends)]
    batches: list[list[tuple[int, int, int]]] = []
    asked = longest = most = 0
    for queries, keys, index in sorted(
        stretches, key=lambda stretch: (stretch[0] // ALIKE, stretch[1] // ALIKE, stretch)
    ):
        longest, most = max(longest, keys), max(most, queries)
        if not batches or (len(batches[-1]) + 1) * most * longest > WASTE * (asked + queries * keys) + SMALL:
            batches.append([])
            asked, longest, most = 0, keys, queries
        batches[-1].append((queries, keys, index))
        asked += queries * keys
    calls, places = [], []
    for batch in batches:
        most, longest = (max(stretch[side] for stretch in batch) for side in (0, 1))
        places_own, path = np.full((len(batch), most), -1), np.zeros((len(batch), longest), np.int64)
        mask = np.full((len(batch), 1, most, longest), -np.inf, np.float32)
        mask[..., 0] = 0  # a padded query needs a key to attend to
        for number, (queries, keys, index) in enumerate(batch):
            places_own[number, :queries] = paths[index][keys - queries : keys]
            path[number, :keys] = paths[index][:keys]
            last = np.arange(keys - queries, keys)[:, None]
            mask[number, 0, :queries][np.arange(longest)[None, :] <= last] = 0
        calls.append((np.maximum(places_own, 0), path, mask))
        places.append(places_own.ravel())
    place = np.concatenate(places)
    back = np.empty(total, np.int64)
    back[place[place >= 0]] = np.nonzero(place >= 0)[0]
    return calls, back


def token_logps(
    model: Any,
    packed: Packed,
    temperature: float,
    with_entropies: bool = True,
    learn_entropies: bool = False,
    routed: list[Any] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs and entropies (nats) of the sampled tokens: two [B, S], 0 where padded. Entropies have a gradient where they
    are learnt, and are all 0 where they are not asked for. `routed` is given the router's logits [U, experts] of each layer,
    of a mixture of experts."""
    from steps.training.logprobs import Wanted, gather, log_softmax

    causal = model.get_base_model() if hasattr(model, "get_base_model") else model
    inputs: dict[str, Any] = {"input_ids": packed.ids, "position_ids": packed.positions}
    if packed.pictures is not None:
        inputs = packed.pictures.inputs(causal, packed.ids)
    more = {} if routed is None else {"output_router_logits": True}
    passed = causal.get_decoder()(**inputs, packed=packed, use_cache=False, **more)
    hidden = passed.last_hidden_state.squeeze(0)  # [U, W]
    if routed is not None:
        routed.extend(passed.router_logits)
    head = causal.get_output_embeddings()
    sampled, weight, bias = gather(hidden, packed.before), head.weight, head.bias
    if packed.wide_head:
        sampled, weight, bias = sampled.float(), weight.float(), None if bias is None else bias.float()
    wanted = Wanted(temperature, with_entropies, packed.allowed, learn_entropies)
    logps, entropies = log_softmax(sampled, weight, bias, packed.targets, wanted)
    return logps[packed.rows] * packed.mask, entropies[packed.rows] * packed.mask
