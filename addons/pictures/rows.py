"""Pictures in packed rows: which tokens they are, their positions, and what the vision tower gives for them.

The vision tower is frozen and passes through once for each different picture of a micro-batch. Its results stand in the
place of the picture tokens' embeddings, and of Qwen3-VL's are added to its first layers, too. Tokens of the same picture
after the same tokens are the same wherever they stand, so rows share them (steps/training/packing.py).

Positions are those of the families' rotary embeddings in time, height and width (Wang et al. 2024, "Qwen2-VL",
arXiv:2409.12191): a picture's tokens have one time and their place in the grid, and what follows begins behind the larger
of its sides. Shapes: T tokens of a row, U unique tokens, M of them in pictures, W width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    import torch

    from addons.pictures.vision import Vision
    from steps.core.records import Row


class Layout(NamedTuple):
    """The pictures of rows, before these are packed."""

    keys: list[list[int]]  # [T] of each row: the token, or for a picture's tokens a negative number of its own
    positions: list[np.ndarray]  # [3, T] of each row
    sources: list[np.ndarray]  # [T] of each row: the vision tower's result that stands there, or -1
    pixels: torch.Tensor  # of all different pictures, one after another
    grids: torch.Tensor  # [pictures, 3]

    def packed(self, paths: Sequence[np.ndarray], total: int, tensor: Callable[..., torch.Tensor]) -> Pictures:
        """The pictures among `total` unique tokens, of which each row has those of its path [T]. `tensor` brings numbers to
        the model's device."""
        import numpy as np
        import torch

        turned, sources = np.zeros((3, total), np.int64), np.full(total, -1)
        for path, angles, source in zip(paths, self.positions, self.sources, strict=True):
            turned[:, path], sources[path] = angles, source
        at = np.nonzero(sources >= 0)[0]
        places = tensor(turned)[:, None], tensor(at), tensor(sources[at])
        return Pictures(*places, tensor(self.pixels, torch.float32), tensor(self.grids))


class Pictures(NamedTuple):
    """The pictures among the unique tokens."""

    positions: torch.Tensor  # [3, 1, U]
    places: torch.Tensor  # [M] in rising order
    sources: torch.Tensor  # [M] which of the vision tower's results
    pixels: torch.Tensor
    grids: torch.Tensor

    def inputs(self, causal: Any, ids: torch.Tensor) -> dict[str, Any]:
        """What a model's decoder takes in place of its unique tokens [1, U]."""
        import torch

        with torch.no_grad():
            seen = causal.model.get_image_features(self.pixels, self.grids, return_dict=True)
            embedded = causal.get_input_embeddings()(ids)  # [1, U, W]
            results = torch.cat(list(seen.pooler_output)).to(embedded.dtype)
            embedded = embedded.index_copy(1, self.places, results[self.sources][None])
        inputs: dict[str, Any] = {"inputs_embeds": embedded, "position_ids": self.positions}
        if (deeper := getattr(seen, "deepstack_features", None)) is not None:
            mask = torch.zeros(ids.shape, dtype=torch.bool, device=ids.device)
            mask[0, self.places] = True
            added = [torch.cat(list(each))[self.sources].to(embedded.dtype) for each in deeper]
            inputs |= {"visual_pos_masks": mask, "deepstack_visual_embeds": added}
        return inputs


def layout(rows: Sequence[Row], vision: Vision) -> Layout:
    """Where the rows show pictures."""
    import numpy as np
    import torch

    bytes_of = {each.sha256: each.data for row in rows for each in row.pictures}
    names = sorted(bytes_of)
    features = [vision.of(name, bytes_of[name]) for name in names]
    lengths = [int(each.grid.prod()) // vision.side**2 for each in features]
    starts = dict(zip(names, np.cumsum([0, *lengths]).tolist(), strict=False))
    keys, positions, sources = [], [], []
    for row in rows:
        key, source = list(row.ids), np.full(len(row.ids), -1)
        for start, length, name, _ in row.pictures:
            number = names.index(name)
            if length != lengths[number]:
                raise ValueError(f"a picture that was read into {length} tokens is {lengths[number]} for this model")
            key[start : start + length] = [-1 - number] * length
            source[start : start + length] = starts[name] + np.arange(length)
        keys.append(key)
        sources.append(source)
        sides = [(features[names.index(each.sha256)].grid[0, 1:] // vision.side).tolist() for each in row.pictures]
        positions.append(row_positions(row, sides))
    pixels, grids = (torch.cat([each[part] for each in features]) for part in (0, 1))
    return Layout(keys, positions, sources, pixels, grids)


def row_positions(row: Row, sides: Sequence[Sequence[int]]) -> np.ndarray:
    """[3, T] the positions of a row's tokens in time, height and width; `sides`: height and width of each picture, in
    tokens."""
    import numpy as np

    parts, done, position = [], 0, 0
    for each, (height, width) in zip(row.pictures, sides, strict=True):
        parts.append(np.broadcast_to(np.arange(each.start - done) + position, (3, each.start - done)))
        position += each.start - done
        parts.append(np.indices((1, height, width)).reshape(3, -1) + position)
        position, done = position + max(height, width), each.start + each.length
    parts.append(np.broadcast_to(np.arange(len(row.ids) - done) + position, (3, len(row.ids) - done)))
    return np.concatenate(parts, axis=1)
