"""How often does the gate promote a challenger that is no better, and how often one that is? Simulated evaluations.

    python -m benchmarks.gate                              # 7 × 3 × 1,000 splits, 20 looks each: minutes on one core
    python -m benchmarks.gate --quick                      # 7 × 3 × 60

A row `alike m` has scenarios in clusters of m. Each cluster has a difficulty of its own: the other policy's chance p of
success there, from a beta distribution with the given mean (concentration 4). Given p, both policies succeed or fail
independently of each other, each at all scenarios of the cluster alike. `inboxes` is as email_search's test split: 5
clusters, where only a fifth of the scenarios follow the cluster and the others are drawn for themselves. The challenger's
chance is p, or p + gain × (1 - p) / (1 - mean), whose mean is higher by exactly the gain and which stays within 1.
Scenarios are of three kinds; turns, tokens and the contamination report are in order, and there is no champion. Every
decision is `gate.decide`'s, with the defaults of steps/core/params.py. No model is asked.

The rows `judged m` are of a task without a rule, where a simulated judge compares attempts in both orders. An attempt has a
quality; the challenger's is the base policy's plus the gain, what it gains or loses in each cluster, and what it does at
each scenario, with standard deviations of 0.1. The judge calls scores equal that differ by less than 0.05, it prefers the
first place by 0.1, and its noise has a standard deviation of 0.5, 0.2 or 0.05, in place of the base successes below.

`false_in_k` is the share of splits at which one of the first k challengers, none of which is better, is promoted; the worst
of base successes 0.5, 0.8 and 0.95. `ratio` is `false_in_20` over the 0.05 that are allowed. `power` is the share of better
challengers that are promoted at the first look, `power_at_look_5` at the fifth, both at a base success of 0.5, and
`power_at_0.8` at the first with a base success of 0.8.

The row `coverage` is exact: the gate's 95 % interval over all outcomes of independent pairs, for chances of winning and of
losing a scenario that are near 0. Its `ratio` is the largest share that is not covered over the 0.05 that are allowed.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import numpy as np

from benchmarks import _common
from environments.base import Scenario
from steps.core.params import Promote
from steps.core.records import Judged
from steps.registry import gate, paired

KINDS = ("a", "b", "c")
CONCENTRATION = 4.0
ALLOWED = 0.05
LOOKS = (1, 5, 20)
MEANS = (0.5, 0.8, 0.95)  # success of the other policy
SPREAD, BIAS = 0.1, 0.1  # of a quality as judges see it; what the first place gains
TRIALS, QUICK = 1000, 60  # splits of each setting and mean
NEAR = ((0.02, 0.0), (0.05, 0.0), (0.02, 0.02), (0.05, 0.01), (0.05, 0.05), (0.1, 0.02), (0.1, 0.1))  # won, lost


class Setting(NamedTuple):
    """How scenarios are alike."""

    name: str
    size: int  # scenarios of a cluster
    following: float = 1.0  # share of a cluster's scenarios that succeed or fail as one
    judged: bool = False  # by a simulated judge, without a rule


SETTINGS = tuple(Setting(f"alike {size}", size) for size in (1, 5, 10, 20))
JUDGED = tuple(Setting(f"judged {size}", size, judged=True) for size in (1, 10))


class Split:
    """A test split whose scenarios have difficulties, and policies that play it."""

    def __init__(self, n: int, setting: Setting, mean: float, seed: int) -> None:
        self.generator, self.n, self.setting, self.mean = np.random.default_rng(seed), n, setting, mean
        self.cluster_N = np.arange(n) // setting.size
        shape = CONCENTRATION * mean, CONCENTRATION * (1 - mean)
        self.chance_N = self.generator.beta(*shape, self.cluster_N[-1] + 1)[self.cluster_N]

    def play(self, name: str, gain: float = 0.0) -> gate.Side:
        """A policy's results; its chance of success is higher by `gain` in the mean."""
        chance_N = self.chance_N + gain * (1 - self.chance_N) / (1 - self.mean)
        drawn_N = self.generator.random(self.n)
        common_N = self.generator.random(self.cluster_N[-1] + 1)[self.cluster_N]
        follows_N = self.generator.random(self.n) < self.setting.following
        success_N = np.where(follows_N, common_N, drawn_N) < chance_N
        return gate.Side(name, success_N.astype(float), 3.0, 60.0)


class JudgedSplit:
    """A test split of a task without a rule, and policies that a simulated judge compares with the base policy."""

    def __init__(self, n: int, setting: Setting, noise: float, seed: int) -> None:
        self.generator, self.n, self.noise = np.random.default_rng(seed), n, noise
        self.cluster_N = np.arange(n) // setting.size
        self.quality_N = self.generator.normal(0.5, SPREAD, n)  # of the base policy's attempts

    def play(self, name: str, gain: float = 0.0) -> gate.Side:
        """A policy's results against the base policy; `base` is that itself."""
        score_N = np.full(self.n, 0.5)
        if name != "base":
            cluster_C = self.generator.normal(gain, SPREAD, self.cluster_N[-1] + 1)
            quality_N = self.quality_N + cluster_C[self.cluster_N] + self.generator.normal(0, SPREAD, self.n)
            first_N, second_N = self.preferred(quality_N, BIAS), self.preferred(quality_N, -BIAS)
            score_N = 0.5 + 0.5 * np.where(first_N == second_N, first_N, 0)
        counts = {
            "wins": int((score_N == 1).sum()),
            "losses": int((score_N == 0).sum()),
            "ties": int((score_N == 0.5).sum()),
        }
        share = float(score_N.mean())
        judged = Judged(
            rival="base policy",
            rival_hash="base",
            judge="simulated",
            share=share,
            ci95=(0, 1),
            disagreements=0,
            unjudged=0,
            **counts,
        )
        return gate.Side(name, score_N, 3.0, 60.0, judged=judged)

    def preferred(self, quality_N: np.ndarray, bias: float) -> np.ndarray:
        """1 where the judge scores a policy's attempt higher than the base policy's, -1 where lower, otherwise 0, [N]."""
        noise_2N = self.generator.normal(0, self.noise, (2, self.n))
        own_N, other_N = quality_N + noise_2N[0] + bias / 2, self.quality_N + noise_2N[1] - bias / 2
        return np.sign(np.round(own_N - other_N, 1))


def split_of(n: int, setting: Setting, mean: float, seed: int) -> Split | JudgedSplit:
    """A split of a setting. For a judge, 1 - `mean` is the noise of its scores."""
    return JudgedSplit(n, setting, 1 - mean, seed) if setting.judged else Split(n, setting, mean, seed)


class Simulation(NamedTuple):
    """The gate at many splits. `named`: whether it is told the clusters."""

    n: int
    params: Promote
    named: bool = True

    def promoted(self, split: Split | JudgedSplit, base: gate.Side, gain: float, look: int) -> bool:
        """The gate's decision on one more challenger."""
        scenarios = scenarios_of(self.n)
        report = {"passed": True, "scenarios": {"test": self.n}, "found": {}}
        clusters = [str(number) for number in split.cluster_N] if self.named else None
        challenger = split.play("challenger", gain)
        return gate.decide(scenarios, challenger, base, report, self.params, clusters=clusters, look=look).promoted

    def first_false(self, trials: int, setting: Setting, mean: float, looks: int = LOOKS[-1]) -> list[int]:
        """For each split: at which look a challenger is promoted that is no better; more than the last where none is."""
        ends = []
        for trial in range(trials):
            split = split_of(self.n, setting, mean, trial)
            base = split.play("base")
            numbers = range(1, looks + 1)
            ends.append(next((look for look in numbers if self.promoted(split, base, 0.0, look)), looks + 1))
        return ends

    def power(self, trials: int, setting: Setting, mean: float, gain: float, look: int = 1) -> float:
        """The share of better challengers that are promoted."""
        splits = [split_of(self.n, setting, mean, trials + trial) for trial in range(trials)]
        return sum(self.promoted(split, split.play("base"), gain, look) for split in splits) / trials


_SCENARIOS: dict[int, list[Scenario]] = {}


def scenarios_of(n: int) -> list[Scenario]:
    """Scenarios of three kinds in turn, made once."""
    if n not in _SCENARIOS:
        rows = [{"number": number, "kind": KINDS[number % len(KINDS)]} for number in range(n)]
        _SCENARIOS[n] = [Scenario.make("simulated", "test", [], row) for row in rows]
    return _SCENARIOS[n]


def measure(setting: Setting, trials: int, n: int, gain: float) -> dict[str, float | str]:
    """The row of a setting."""
    simulation, began = Simulation(n, Promote()), time.perf_counter()
    ends = [simulation.first_false(trials, setting, mean) for mean in MEANS]
    shares = {f"false_in_{k}": max(sum(end <= k for end in of_mean) / trials for of_mean in ends) for k in LOOKS}
    powers = {"power": (0.5, 1), "power_at_look_5": (0.5, 5), "power_at_0.8": (0.8, 1)}
    shares |= {name: simulation.power(4 * trials, setting, mean, gain, look) for name, (mean, look) in powers.items()}
    decisions = sum(min(end, LOOKS[-1]) for of_mean in ends for end in of_mean) + 4 * len(powers) * trials
    return {
        "name": setting.name,
        "ratio": round(shares[f"false_in_{LOOKS[-1]}"] / ALLOWED, 2),
        **shares,
        "trials": trials,
        "scenarios": n,
        "clusters": math.ceil(n / setting.size),
        "gain": gain,
        "milliseconds_per_decision": round(1000 * (time.perf_counter() - began) / decisions, 2),
    }


def coverage(n: int) -> dict[str, float | str]:
    """The row of the interval, by enumeration of how many scenarios are won and lost."""
    shares = {f"{won:g}_{lost:g}": covered(n, won, lost) for won, lost in NEAR}
    largest = max(1 - share for share in shares.values())
    rounded = {name: round(share, 3) for name, share in shares.items()}
    return {"name": "coverage", "ratio": round(largest / ALLOWED, 2), **rounded, "scenarios": n}


def covered(n: int, won: float, lost: float) -> float:
    """The probability that the 95 % interval holds the true difference, where each scenario is won or lost with these."""
    total, alone_N = 0.0, np.arange(n)
    for wins in range(n + 1):
        for losses in range(n + 1 - wins):
            probability = multinomial(n, (wins, losses), (won, lost))
            if probability > 1e-9:
                challenger_N = (alone_N < wins).astype(float)
                other_N = ((alone_N >= wins) & (alone_N < wins + losses)).astype(float)
                _, low, high = paired.paired_interval(challenger_N, other_N, alone_N)
                total += probability * (low - 1e-12 <= won - lost <= high + 1e-12)
    return total


def multinomial(n: int, counts: tuple[int, int], chances: tuple[float, float]) -> float:
    """The probability of so many wins and losses among n scenarios."""
    result = 1.0
    rest, left = n, 1.0
    for number, chance in zip(counts, chances, strict=True):
        share = chance / left
        result *= math.comb(rest, number) * share**number * (1 - share) ** (rest - number)
        rest, left = rest - number, left - chance
    return result


def main() -> None:
    parser = _common.parser("gate", __doc__, f"{QUICK} splits of each setting in place of {TRIALS}")
    parser.add_argument("--trials", type=int, help=f"splits of each setting (default: {TRIALS}; quick: {QUICK})")
    parser.add_argument("--scenarios", type=int, default=240)
    parser.add_argument("--gain", type=float, default=0.10, help="in success, where there is a difference")
    options = parser.parse_args()
    usual = QUICK if options.quick else TRIALS
    trials = options.trials or usual
    rows = _common.begin("gate", options, trials / usual)
    inboxes = Setting("inboxes", max(1, options.scenarios // 5), 0.2)
    for setting in (*SETTINGS, inboxes, *JUDGED):
        rows.add(measure(setting, trials, options.scenarios, options.gain))
    rows.add(coverage(60))


if __name__ == "__main__":
    _common.command(main)
