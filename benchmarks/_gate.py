"""Simulated test splits for benchmarks/gate.py: which scenarios are alike, and which policies play them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

CONCENTRATION = 2.0  # of the beta distribution that a cluster's chance of success is drawn from
REPEATED = 0.7  # share of clusters at which a checkpoint of a run does what the others do
DRIFT = 0.9  # at each look the chance is that power of the one before, so that success rises
BIAS = 0.1  # what the first place gains with a judge, of a quality between 0 and 1
SPREAD = 0.1  # of that quality


class Design(NamedTuple):
    """The sizes of a split's clusters."""

    name: str
    sizes: tuple[int, ...]

    @property
    def clusters_N(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.sizes)), self.sizes)


def by_zipf(clusters: int, n: int) -> tuple[int, ...]:
    """Sizes that fall as 1, 1/2, 1/3, …, of about n scenarios."""
    weights = 1 / np.arange(1, clusters + 1)
    return tuple(int(size) for size in np.maximum(1, np.round(n * weights / weights.sum())))


DESIGNS = (
    Design("240 single", (1,) * 240),
    Design("60 single", (1,) * 60),
    Design("2 x 120", (120,) * 2),
    Design("5 x 48", (48,) * 5),
    Design("12 x 20", (20,) * 12),
    Design("30 x 8", (8,) * 30),
    Design("60 x 4", (4,) * 60),
    Design("200 + 40 x 1", (200,) + (1,) * 40),
    Design("2 x 100 + 40 x 1", (100, 100) + (1,) * 40),
    Design("160 + 4 x 20", (160,) + (20,) * 4),
    Design("60 + 60 x 3", (60,) + (3,) * 60),
    Design("20 x 10 + 40 x 1", (10,) * 20 + (1,) * 40),
    Design("12 x 10 + 120 x 1", (10,) * 12 + (1,) * 120),
    Design("128, 64, … 1", (128, 64, 32, 16, 8, 4, 2, 1)),
    Design("Zipf, 12", by_zipf(12, 240)),
    Design("Zipf, 30", by_zipf(30, 240)),
    Design("Zipf, 60", by_zipf(60, 240)),
)


class World(NamedTuple):
    """How policies do at a split."""

    share: float  # mean success of the other policy
    following: float  # share of a cluster's scenarios that succeed or fail as one
    how: str = "plain"  # drift, or checkpoints of one run

    def __str__(self) -> str:
        return f"{self.share:g}, {self.following:g} alike, {self.how}"


class Splits:
    """Many splits of a design in a world, and policies that play them."""

    def __init__(self, design: Design, world: World, trials: int, seed: int) -> None:
        self.generator, self.world, self.trials = np.random.default_rng(seed), world, trials
        self.clusters_N, self.number = design.clusters_N, len(design.sizes)
        shape = CONCENTRATION * world.share, CONCENTRATION * (1 - world.share)
        self.chance_TC = self.generator.beta(*shape, (trials, self.number))
        self.common_TN = self.drawn(self.chance_TC) if world.how == "checkpoints" else None

    def drawn(self, chance_TC: np.ndarray) -> np.ndarray:
        """Successes by these chances, [T, N]: of a cluster's scenarios some succeed or fail as one."""
        shape = self.trials, len(self.clusters_N)
        own_TN = self.generator.random(shape, dtype=np.float32)
        if self.world.following:
            common_TN = self.generator.random((self.trials, self.number), dtype=np.float32)[:, self.clusters_N]
            if self.world.following < 1:
                follows_TN = self.generator.random(shape, dtype=np.float32) < self.world.following
                common_TN = np.where(follows_TN, common_TN, own_TN)
            own_TN = common_TN
        return (own_TN < chance_TC.astype(np.float32)[:, self.clusters_N]).astype(np.float32)

    def play(self, look: int = 1, gain: float = 0.0, is_challenger: bool = False) -> np.ndarray:
        """A policy's successes, [T, N], at this look; its mean success is higher by `gain`."""
        chance_TC = self.chance_TC + gain * (1 - self.chance_TC) / (1 - self.world.share)
        if self.world.how == "drift":
            chance_TC = chance_TC ** (DRIFT ** (look - 1))
        drawn_TN = self.drawn(chance_TC)
        if self.common_TN is not None and is_challenger:
            repeats_TC = self.generator.random((self.trials, self.number)) < REPEATED
            return np.where(repeats_TC[:, self.clusters_N], self.common_TN, drawn_TN)
        return drawn_TN

    def gaps(self, looks: int, gain: float = 0.0) -> list[np.ndarray]:
        """The challenger's successes minus the other policy's, [T, N], at each of these looks."""
        base_TN = self.play()
        return [
            self.play(look, gain, is_challenger=True) - (self.play(look) if self.world.how == "drift" else base_TN)
            for look in range(1, looks + 1)
        ]


class JudgedSplits:
    """Many splits of a task without a rule, at which a simulated judge compares attempts in both orders.

    An attempt has a quality: the base policy's, plus what the challenger gains in the mean, in each cluster and at each
    scenario. The judge calls qualities alike that differ by less than 0.05."""

    def __init__(self, design: Design, noise: float, trials: int, seed: int) -> None:
        self.generator, self.noise, self.trials = np.random.default_rng(seed), noise, trials
        self.clusters_N, self.number = design.clusters_N, len(design.sizes)
        self.shape = trials, len(self.clusters_N)
        self.quality_TN = self.generator.normal(0.5, SPREAD, self.shape)

    def gaps(self, looks: int, gain: float = 0.0) -> list[np.ndarray]:
        """Wins minus losses against the base policy, [T, N], of one challenger after another."""
        return [self.compared(gain) for _ in range(looks)]

    def compared(self, gain: float) -> np.ndarray:
        cluster_TC = self.generator.normal(gain, SPREAD, (self.trials, self.number))
        quality_TN = self.quality_TN + cluster_TC[:, self.clusters_N] + self.generator.normal(0, SPREAD, self.shape)
        first_TN, second_TN = self.preferred(quality_TN, BIAS), self.preferred(quality_TN, -BIAS)
        return np.where(first_TN == second_TN, first_TN, 0)

    def preferred(self, quality_TN: np.ndarray, bias: float) -> np.ndarray:
        """1 where the judge scores a policy's attempt higher than the base policy's, -1 where lower, otherwise 0."""
        noise_2TN = self.generator.normal(0, self.noise, (2, *self.shape))
        own_TN, other_TN = quality_TN + noise_2TN[0] + bias / 2, self.quality_TN + noise_2TN[1] - bias / 2
        return np.sign(np.round(own_TN - other_TN, 1))
