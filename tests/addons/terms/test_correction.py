"""The weights between sampler and trainer, by hand. Gradients with them are compared with the formulas' in
tests/training/test_loss.py, and with TRL's in tests/training/test_options.py."""

from __future__ import annotations

import math

import pytest

from addons.terms.correction import sampler_ratio
from addons.terms.section import Terms
from steps.core.params import Update

CORRECTED = {"vllm_importance_sampling_correction": True}
RATIOS = [[2.0, 0.5, 4.0, 9.0], [0.25, 1.0, 9.0, 9.0], [3.0, 9.0, 9.0, 9.0]]  # trainer / sampler
SAMPLED = [[1, 1, 1, 0], [1, 1, 0, 0], [1, 0, 0, 0]]


@pytest.mark.parametrize(
    ("mode", "low", "high", "expected"),
    [
        ("token_truncate", None, 3, [[2, 0.5, 3], [0.25, 1], [3]]),
        ("token_truncate", 0.4, 3, [[2, 0.5, 3], [0.4, 1], [3]]),
        ("token_truncate", 0.4, None, [[2, 0.5, 4], [0.4, 1], [3]]),
        ("token_truncate", None, None, [[2, 0.5, 4], [0.25, 1], [3]]),
        ("token_mask", None, 3.001, [[2, 0.5, 0], [0.25, 1], [3]]),
        ("token_mask", 0.4, 2.5, [[2, 0.5, 0], [0, 1], [0]]),
        ("token_mask", 0.4, None, [[2, 0.5, 4], [0, 1], [3]]),
        ("token_mask", None, None, [[2, 0.5, 4], [0.25, 1], [3]]),
        # of rows: 2 × 0.5 × 4 = 4, 0.25 × 1, 3
        ("sequence_truncate", None, 3.5, [[3.5], [0.25], [3]]),
        ("sequence_truncate", 0.4, 2, [[2], [0.4], [2]]),
        ("sequence_truncate", 0.4, None, [[4], [0.4], [3]]),
        ("sequence_truncate", None, None, [[4], [0.25], [3]]),
        ("sequence_mask", None, 3.5, [[0], [0.25], [3]]),
        ("sequence_mask", 0.4, 2, [[0], [0], [0]]),
        ("sequence_mask", 0.4, None, [[4], [0], [3]]),
        ("sequence_mask", None, None, [[4], [0.25], [3]]),
    ],
)
def test_sampler_ratio_by_hand(mode: str, low: float | None, high: float | None, expected: list[list[float]]) -> None:
    import torch

    bounds = {"vllm_importance_sampling_clip_min": low, "vllm_importance_sampling_clip_max": high}
    update = Terms.of(Update.model_validate(CORRECTED | {"vllm_importance_sampling_mode": mode})).model_copy(
        update=bounds
    )
    sampling = torch.tensor([[-1.0, -2.0, -3.0, -4.0]] * 3)
    old, mask = sampling + torch.tensor(RATIOS).log(), torch.tensor(SAMPLED, dtype=torch.float32)
    found = sampler_ratio(old, sampling, mask, update)
    assert found.shape == ((3, 1) if mode.startswith("sequence") else (3, 4))
    for row, values in zip(found.tolist(), expected, strict=True):
        assert row[: len(values)] == pytest.approx(values, abs=1e-5)
        assert all(math.isfinite(value) for value in row)
