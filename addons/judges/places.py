"""In which orders a judge is shown attempts, and what it gives an attempt for its place, estimated and taken off.

Orders are rows of Williams designs (Williams 1949, Aust. J. Sci. Res. A2): squares of n orders of n attempts, in which each
attempt comes once at each place and, where n is even, once directly after each other one. Fewer than n orders are rows whose
distances differ, so that each two places are compared through some attempts. From three orders on every place's effect can
be estimated within the group; from four on also where one of them is lost.

A score is taken as quality + order + place + noise (least squares). Place effects are shrunk by what the residuals say of
the noise (empirical Bayes: Efron and Morris 1973), so that a judge without such effects loses next to nothing. A score of 0
or 1 says only that quality and place together come to that or beyond (censored regression: Tobin 1958).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from random import Random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np

DUST = 1e-9  # below which a number is rounding, eigenvalues included
STEPS = 300  # most steps of the censored fit; each moves it by a tenth of the way at the least, mostly by half


def orders(attempts: int, count: int, seed: str) -> list[list[int]]:
    """`count` different orders of so many attempts, or all there are if fewer. Two are an order and its reverse: they cannot
    tell what a place gives, but a linear preference cancels out."""
    rng, n = Random(seed), attempts
    wanted = min(count, math.factorial(n))
    if wanted == 2:
        first = rng.sample(range(n), n)
        return [first, first[::-1]]
    zigzag = [(place + 1) // 2 if place % 2 else -place // 2 for place in range(n)]
    gap = max(2, round(n**0.5))
    pairs = [(start + step) % n for start in range(0, n, gap) for step in (0, 1)]
    chosen: list[list[int]] = []
    while len(chosen) < wanted:
        names = rng.sample(range(n), n)
        for shift in dict.fromkeys([*pairs, *range(n)]):
            order = [names[(step + shift) % n] for step in zigzag]
            if order not in chosen and len(chosen) < wanted:
                chosen.append(order)
    return chosen


class Fit(NamedTuple):
    """Scores of a group's attempts in several orders, taken apart."""

    values: dict[str, float]  # of each attempt that was scored, without the effect of its places; may leave 0 to 1
    effects: list[float] | None  # [n] of each place, as measured, sum 0; None where they cannot be told apart
    first_to_last: float | None  # what the first place gains over the last, which more orders tell than all effects
    noise: float | None  # variance of one score; None where there is nothing left to tell it by


def fit(orders: Sequence[Sequence[str]], scores: Sequence[Sequence[float | None]]) -> Fit | None:
    """Take apart the scores of K orders of n attempts; both arguments are [K][n] by place. None where the scored attempts
    cannot all be compared: there are none, or no order that scored two joins the orders of some with those of others."""
    import numpy as np

    numbers: dict[str, int] = {}  # as they come, so that groups of a size have the same columns
    cells, given = [], []
    for number, (order, row) in enumerate(zip(orders, scores, strict=True)):
        for place, (name, score) in enumerate(zip(order, row, strict=True)):
            if score is not None:
                cells.append((number, place, numbers.setdefault(name, len(numbers))))
                given.append(score)
    model = _model(tuple(cells), len(orders[0])) if cells else None
    if model is None:
        return None
    completed_N = model.completed(np.array(given, dtype=float))
    measured_n, shrunk_n, noise = model.effects(completed_N)
    values = model.solve_PN @ (completed_N - model.place_Nn @ shrunk_n)
    ends_n = np.zeros(len(shrunk_n))
    ends_n[0], ends_n[-1] = 1, -1
    return Fit(
        dict(zip(numbers, map(float, values), strict=False)),
        [round(float(effect), 6) for effect in measured_n] if model.rank == len(ends_n) - 1 else None,
        round(float(measured_n @ ends_n), 6) if model.tells(ends_n) else None,
        noise,
    )


@lru_cache(maxsize=32)
def _model(cells: tuple[tuple[int, int, int], ...], n: int) -> _Model | None:
    """The model of scores by (order, place, attempt); None where the attempts cannot all be compared. An order's effect is
    what sets it apart from the mean order."""
    import numpy as np

    order_N, place_N, attempt_N = np.array(cells).T
    order_N = np.unique(order_N, return_inverse=True)[1]
    apart = np.eye(order_N.max() + 1)
    base_NP = np.hstack([np.eye(attempt_N.max() + 1)[attempt_N], (apart[:, :-1] - apart[:, -1:])[order_N]])
    return _Model(base_NP, np.eye(n)[place_N]) if np.linalg.matrix_rank(base_NP) == base_NP.shape[1] else None


class _Model:
    """Least squares of N scores by P columns of attempts and orders, and n of places, which share a constant with them."""

    def __init__(self, base_NP: np.ndarray, place_Nn: np.ndarray) -> None:
        import numpy as np

        self.base_NP, self.place_Nn = base_NP, place_Nn
        self.solve_PN = np.linalg.pinv(base_NP)
        self.own_Nn = place_Nn - base_NP @ (self.solve_PN @ place_Nn)  # what attempts and orders do not explain
        values, vectors = np.linalg.eigh(self.own_Nn.T @ self.own_Nn)
        self.known_r, self.axes_nr = values[values > DUST], vectors[:, values > DUST]
        self.rank = len(self.known_r)
        self.left = len(base_NP) - base_NP.shape[1] - self.rank  # degrees of freedom of the noise

    def tells(self, contrast_n: np.ndarray) -> bool:
        """Whether the scores determine this contrast of places."""
        import numpy as np

        return bool(np.abs(contrast_n - self.axes_nr @ (self.axes_nr.T @ contrast_n)).max() < DUST)

    def fitted(self, score_N: np.ndarray) -> np.ndarray:
        effect_r = (self.axes_nr.T @ (self.own_Nn.T @ score_N)) / self.known_r
        return self.base_NP @ (self.solve_PN @ score_N) + self.own_Nn @ (self.axes_nr @ effect_r)

    def completed(self, score_N: np.ndarray) -> np.ndarray:
        """The scores, with the fit's own value for each 0 or 1 that it expects beyond the end of the scale."""
        import numpy as np

        completed_N = score_N
        for _ in range(STEPS if ((score_N <= 0) | (score_N >= 1)).any() else 0):
            expected_N = self.fitted(completed_N)
            beyond_N = np.where(score_N >= 1, np.maximum(1, expected_N), np.minimum(0, expected_N))
            next_N = np.where((score_N > 0) & (score_N < 1), score_N, beyond_N)
            moved, completed_N = np.abs(next_N - completed_N).max(), next_N
            if moved < DUST:
                break
        return completed_N

    def effects(self, score_N: np.ndarray) -> tuple[np.ndarray, np.ndarray, float | None]:
        """(each place's effect as measured, and shrunk towards 0, [n]; the variance of a score)."""
        import numpy as np

        sum_r = self.axes_nr.T @ (self.own_Nn.T @ score_N)
        measured_r = sum_r / self.known_r
        if self.left == 0:
            return self.axes_nr @ measured_r, np.zeros(len(self.axes_nr)), None
        noise = float(((score_N - self.fitted(score_N)) ** 2).sum()) / self.left
        spread = float((measured_r**2 - noise / self.known_r).mean()) if self.rank else 0.0
        shrunk_r = sum_r / (self.known_r + noise / spread) if spread > DUST**2 else 0 * sum_r
        return self.axes_nr @ measured_r, self.axes_nr @ shrunk_r, noise
