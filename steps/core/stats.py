"""Small statistics that stages, gate and tables share. Tests hold them to scipy's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from steps.core.errors import UserError

if TYPE_CHECKING:
    import numpy as np

LEVEL = (0.025, 0.975)  # two-sided 95 %


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; 0 of no values."""
    return sum(values) / len(values) if values else 0.0


def wilson(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927), which stays within 0 and 1 for small n."""
    share = successes / n
    centre = share + z * z / (2 * n)
    spread = z * ((share * (1 - share) + z * z / (4 * n)) / n) ** 0.5
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def paired_bootstrap(
    challenger: np.ndarray, other: np.ndarray, seed: int, resamples: int = 10_000
) -> tuple[float, float, float]:
    """(mean difference, low, high): two-sided 95 % percentile bootstrap of the mean paired difference.

    Both are success by scenario, [N], in the same order. From Efron & Tibshirani, An Introduction to the Bootstrap (1993),
    chapter 13. A resample of N differences is a draw of how often each distinct value comes, which is multinomial: exact,
    and for 0/1 data a draw of three counts.
    """
    import numpy as np

    if challenger.shape != other.shape or challenger.ndim != 1 or not len(challenger):
        raise UserError(
            f"success by scenario of shapes {challenger.shape} and {other.shape} cannot be paired: evaluate both on the "
            "same scenarios"
        )
    values, counts = np.unique(challenger.astype(float) - other.astype(float), return_counts=True)
    drawn = np.random.default_rng(seed).multinomial(len(challenger), counts / len(challenger), size=resamples)
    low, high = np.quantile(drawn @ values / len(challenger), LEVEL)  # drawn: [resamples, distinct values]
    return float(counts @ values / len(challenger)), float(low), float(high)
