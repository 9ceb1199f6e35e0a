"""Rows with pictures: their positions and their gradient are transformers' own, row by row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from addons.pictures.rows import layout
from steps.core.pictures import Shown
from steps.core.records import Row
from steps.policy.loading import load_vision
from steps.training import packing
from steps.training.grpo import Trainer
from tests.support import seeing, tiny

Made = tuple[Any, Trainer, Path]


@pytest.fixture(scope="module", params=seeing.FAMILIES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp(request.param)
    policy = seeing.make(request.param, folder / "base")
    trainer = tiny.moved(Trainer(policy, seed=1), size=0.05, seed=2)
    trainer.save_adapter(folder / "adapter")
    return policy, trainer, folder


def test_the_adapter_is_on_the_language_model_alone(made: Made) -> None:
    _, trainer, _ = made
    names = {name.partition(".lora_")[0] for name in trainer.weights}
    assert len(names) == 2 * 7
    assert all(".language_model.layers." in name and "visual" not in name for name in names)


def test_logprobs_and_gradient_of_packed_rows_are_transformers_own(made: Made) -> None:
    """In float64 against the whole model's own forward pass, one row at a time, without packing."""
    import torch

    policy, trainer, folder = made
    vision: Any = load_vision(policy)
    rows = seeing.random_rows(policy, 24, seed=3)
    packed = packing.pack(rows, torch.float32, vision=vision)
    assert packed.ids.shape[1] < sum(len(row.ids) for row in rows)  # some tokens are shared
    weights = torch.randn(packed.mask.shape, generator=torch.Generator().manual_seed(4)) * packed.mask
    logps, _ = packing.token_logps(trainer.model, packed, 0.7)
    trainer.model.zero_grad()
    (logps * weights).sum().backward()

    stock = seeing.stock(policy, folder / "adapter")
    total = torch.zeros((), dtype=torch.float64)
    for row, own, weight in zip(rows, logps, weights, strict=True):
        chosen = seeing.plain_logps(stock, row, vision, 0.7)[torch.tensor(row.mask[1:], dtype=torch.bool)]
        assert (chosen - own[: len(chosen)]).abs().max() < 5e-5
        total = total + (chosen * weight[: len(chosen)]).sum()
    total.backward()
    found = [value.grad for value in trainer.weights.values()]
    expected = [value.grad for value in tiny.weights(stock)]
    assert tiny.relative(found, expected) < 1e-5
    assert all(value.grad is None for name, value in trainer.model.named_parameters() if "visual" in name)


def test_other_pictures_give_other_logprobs(made: Made) -> None:
    """Same ids, another picture: the rows share nothing from the picture on."""
    import torch

    policy, trainer, _ = made
    vision: Any = load_vision(policy)
    row = next(row for row in seeing.random_rows(policy, 8, seed=5) if len(row.pictures) == 1)
    [shown] = row.pictures
    name, data = seeing.pictures.checked(seeing.picture(99))
    other = row._replace(pictures=(Shown(shown.start, shown.length, name, data),))
    packed = packing.pack([row, other, row], torch.float32, vision=vision)
    assert packed.ids.shape[1] == 2 * len(row.ids) - shown.start
    with torch.no_grad():
        logps, _ = packing.token_logps(trainer.model, packed, 1.0)
    assert (logps[0] - logps[1]).abs().max() > 0.1
    assert torch.equal(logps[0], logps[2])


def test_positions_are_those_that_transformers_finds(made: Made) -> None:
    import torch

    policy, trainer, _ = made
    vision: Any = load_vision(policy)
    assert vision is not None
    for row in (row for row in seeing.random_rows(policy, 8, seed=6) if row.pictures):
        kinds = torch.zeros(1, len(row.ids), dtype=torch.int)
        for each in row.pictures:
            kinds[0, each.start : each.start + each.length] = 1
        grids = torch.cat([vision.of(each.sha256, each.data).grid for each in row.pictures])
        model = trainer.model.get_base_model().model
        expected, _ = model.get_rope_index(torch.tensor([row.ids]), mm_token_type_ids=kinds, image_grid_thw=grids)
        found = layout([row], vision)
        assert found.positions[0].tolist() == expected[:, 0].tolist()


def test_a_picture_of_another_length_is_an_error(made: Made) -> None:
    policy, _, _ = made
    row = next(row for row in seeing.random_rows(policy, 8, seed=5) if len(row.pictures) == 1)
    shorter = row._replace(pictures=(row.pictures[0]._replace(length=1),))
    with pytest.raises(ValueError, match="was read into 1 tokens"):
        packing.pack([shorter], vision=load_vision(policy))
    with pytest.raises(ValueError, match="need the image processor"):
        packing.pack([row])


def test_rows_without_pictures_are_packed_as_before(made: Made) -> None:
    rows = [Row([1, 2, 3], [0, 1, 1], [0.0] * 3), Row([1, 2, 4], [0, 1, 1], [0.0] * 3)]
    assert packing.pack(rows).pictures is None
