"""How often do gate and watch err, and how often do they see what is there? Simulated evaluations; no model is asked.

    python -m benchmarks.gate                              # 17 designs × 54 worlds × 1,000 splits: minutes on one core
    python -m benchmarks.gate --quick                      # 17 × 18 × 100

Each row of a design is of splits whose scenarios are in clusters of these sizes. A cluster has a chance of success, from
a beta distribution with the given mean (concentration 2). A fifth of a cluster's scenarios, or all, succeed or fail as
one; the others are drawn for themselves. Two policies that are equal have the same chance and nothing else in common.
With drift the chances rise from look to look; checkpoints of one run do the same at 70 % of the clusters. A better
challenger's chance is higher by gain × (1 - p) / (1 - mean), which stays within 1 and is the gain in the mean.

`false_in_k`: the share of splits at which one of the first k equal challengers is promoted, in the worst world, which is
`at`; `judged_in_k` the same where a judge compares (its noise 0.5, 0.2, 0.05; three times
as many splits), and `watch` the share of runs of 10
iterations, all equal, that are stopped. `fell`: how often a regression set refuses an equal challenger. 0.05 are allowed
of each, 0.025 in the first look; the worst of many worlds is above that by chance, by 0.012 of 1,000 splits. `covered`
and `share_covered` are the smallest shares of 95 % intervals that hold the truth: of differences that are 0, 0.05 and
0.1, and of a policy's success. `power`, `power_at_0.8` and `power_at_look_5`: how often a gain of 0.10 is promoted from a
success of 0.5, of 0.8, and at the fifth look, where a fifth of a cluster are alike; `watch_power`: how often a fall by
0.3 from 0.8 is seen within 10 iterations. `said` is the gain which a verdict says that it shows four times in five (the
median), and `power_of_said` how often it does.

`3 slices` and `12 slices` are decisions of `gate.decide` on 240 single scenarios: `lost` is what its slices cost of the
power for +0.10, `seen` how often it refuses a challenger that is better by 0.15 and falls by 0.3 on the first slice.
`turned away`: false promotions among 20 runs of which the stage register keeps those above the base policy, where every
run is a look; and `registered_alone`, where only those are. `coverage` is exact, over all outcomes of 60 independent
pairs.
"""

from __future__ import annotations

import math
import time
from itertools import product
from typing import Any

import numpy as np

from addons.tripwires import watch
from benchmarks import _common
from benchmarks._gate import DESIGNS, Design, JudgedSplits, Splits, World
from environments.base import Scenario
from steps.core.params import Promote
from steps.registry import checks, gate, looks, paired, power

ALLOWED = 0.05
LOOKS = (1, 5, 20)
SHARES = (0.02, 0.05, 0.1, 0.2, 0.5, 0.8, 0.9, 0.95, 0.98)
HOWS = ("plain", "drift", "checkpoints")
FOLLOWING = (0.2, 1.0)
NOISES = (0.5, 0.2, 0.05)  # of a judge's scores
ITERATIONS = 10
TRIALS, QUICK = 1000, 100
NEAR = ((0.02, 0.0), (0.05, 0.0), (0.02, 0.02), (0.05, 0.01), (0.05, 0.05), (0.1, 0.02), (0.1, 0.1))  # won, lost
USUAL = World(0.5, FOLLOWING[0])
PARAMS = Promote()


def promoted(gap_TN: np.ndarray, clusters_N: np.ndarray, look: int) -> np.ndarray:
    """Whether the gate's interval is above the margin at this look, [T]."""
    _, low_T, _ = paired.interval(gap_TN, clusters_N, looks.tail(look, PARAMS.false_promotions))
    return low_T > PARAMS.margin + checks.EVEN


def false_in(splits: Splits | JudgedSplits) -> dict[int, float]:
    """Of splits with equal challengers: the share at which one of the first so many is promoted."""
    seen_KT = [promoted(gap_TN, splits.clusters_N, k) for k, gap_TN in enumerate(splits.gaps(LOOKS[-1]), 1)]
    return {k: float(np.any(seen_KT[:k], axis=0).mean()) for k in LOOKS}


def power_of(design: Design, world: World, trials: int, gain: float, look: int = 1) -> float:
    """The share of better challengers that are promoted at a look."""
    splits = Splits(design, world, trials, 2)
    return float(promoted(splits.gaps(1, gain)[0], splits.clusters_N, look).mean())


def covered_in(design: Design, world: World, trials: int) -> tuple[float, float]:
    """The smallest share of 95 % intervals of differences that hold the true one, and that of a policy's success."""
    shares = []
    for gain in (0.0, 0.05, 0.1):
        if gain < 0.9 * (1 - world.share):
            splits = Splits(design, world, trials, 3)
            _, low_T, high_T = paired.interval(splits.gaps(1, gain)[0], splits.clusters_N)
            shares.append(float(((low_T <= gain + 1e-9) & (gain - 1e-9 <= high_T)).mean()))
    success_TN = Splits(design, world, trials, 4).play()[: max(100, trials // 4)]
    ends = np.array([paired.share_interval(success_N, design.clusters_N) for success_N in success_TN])
    return min(shares), float(((ends[:, 0] <= world.share) & (world.share <= ends[:, 1])).mean())


def alarms(design: Design, world: World, trials: int, fall: float = 0.0) -> float:
    """The share of runs that the watch stops, where the truth alone decides; it falls by so much from the middle on."""
    splits = Splits(design, world, trials, 5)
    points = [splits.play(is_challenger=True) for _ in range(ITERATIONS + 1)]
    if fall:
        fallen = Splits(design, world._replace(share=world.share - fall), trials, 5)
        points[ITERATIONS // 2 :] = [fallen.play() for _ in points[ITERATIONS // 2 :]]
    seen_T = np.zeros(trials, bool)
    for k, j in [(later, earlier) for later in range(1, len(points)) for earlier in range(later)]:
        tail = watch.tail_at(k, ITERATIONS, 1, ALLOWED)
        seen_T |= paired.interval(points[k] - points[j], design.clusters_N, tail)[2] < 0
    return float(seen_T.mean())


def fell(design: Design, world: World, trials: int) -> float:
    """The share of regression sets on which an equal challenger is refused."""
    splits = Splits(design, world, trials, 6)
    mean_T, _, high_T = paired.interval(splits.gaps(1)[0], splits.clusters_N, checks.FALLS)
    ends = zip(mean_T.tolist(), high_T.tolist(), strict=True)
    return sum(checks.falls(mean, high, PARAMS) for mean, high in ends) / trials


def promised(design: Design, trials: int) -> tuple[float | None, float]:
    """The gain that verdicts say is shown four times in five, and how often it is."""
    gap_TN = Splits(design, USUAL, 60, 7).gaps(1, 0.1)[0].astype(float)
    gains = [power.power(gap_N, design.clusters_N, 1, PARAMS).gain for gap_N in gap_TN]
    gain = float(np.median([math.inf if value is None else value for value in gains]))
    return (None, 0.0) if gain > 0.45 else (round(gain, 3), power_of(design, USUAL, trials, gain))


def measure(design: Design, trials: int, gain: float, is_quick: bool = False) -> dict[str, Any]:
    """The row of a design."""
    began = time.perf_counter()
    shares = SHARES[::4] if is_quick else SHARES
    following = (0.0,) if max(design.sizes) == 1 else FOLLOWING
    worlds = [World(*world) for world in product(shares, following, HOWS)]
    plain = [world for world in worlds if world.how == "plain"]
    errors = {str(world): false_in(Splits(design, world, trials, 1)) for world in worlds}
    judged = [false_in(JudgedSplits(design, noise, 3 * trials, 1)) for noise in NOISES]
    cover = {str(world): covered_in(design, world, trials) for world in plain}
    few = max(100, trials // 4)
    row: dict[str, Any] = {f"false_in_{k}": max(error[k] for error in errors.values()) for k in LOOKS}
    row["at"] = max(errors, key=lambda world: errors[world][LOOKS[-1]])
    row |= {f"judged_in_{k}": max(error[k] for error in judged) for k in LOOKS[::2]}
    row["watch"] = max(alarms(design, world, few) for world in worlds if world.how != "drift")
    row["fell"] = max(fell(design, world, trials) for world in plain)
    for place, name in enumerate(("covered", "share_covered")):
        row[name] = min(shares_held[place] for shares_held in cover.values())
        row[f"{name}_at"] = next(world for world, shares_held in cover.items() if shares_held[place] == row[name])
    row["power"] = power_of(design, USUAL, trials, gain)
    row["power_at_0.8"] = power_of(design, USUAL._replace(share=0.8), trials, gain)
    row["power_at_look_5"] = power_of(design, USUAL, trials, gain, 5)
    row["watch_power"] = alarms(design, USUAL._replace(share=0.8), few, 0.3)
    row["said"], row["power_of_said"] = promised(design, trials)
    worst = max(row["false_in_20"], row["judged_in_20"], row["watch"], row["fell"])
    head = {"name": design.name, "ratio": round(worst / ALLOWED, 2)}
    ending = {"trials": trials, "gain": gain, "seconds": round(time.perf_counter() - began, 1)}
    return head | {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()} | ending


def slices(number: int, trials: int, gain: float) -> dict[str, Any]:
    """The row of decisions with so many slices: what they cost, and what they see."""
    n = 240
    names = [f"kind {place * number // n:02d}" for place in range(n)]
    scenarios = [Scenario.make("simulated", "test", [], {"number": i, "kind": name}) for i, name in enumerate(names)]
    report = {"passed": True, "scenarios": {"test": n}, "found": {}}
    splits = Splits(Design("", (1,) * n), World(0.5, 0.0), trials, 8)
    base_TN, better_TN, mixed_TN = splits.play(), splits.play(gain=gain), splits.play(gain=0.15)
    falling_TN = Splits(Design("", (1,) * n), World(0.2, 0.0), trials, 9).play()
    mixed_TN[:, : n // number] = falling_TN[:, : n // number]

    def failed(challenger_TN: np.ndarray) -> list[list[str]]:
        sides = [
            [gate.Side(name, row_N.astype(float), 3.0, 60.0) for row_N in rows_TN]
            for name, rows_TN in (("challenger", challenger_TN), ("base", base_TN))
        ]
        pairs = zip(*sides, strict=True)
        verdicts = [gate.decide(gate.Look(scenarios, challenger, base), report, PARAMS) for challenger, base in pairs]
        return [[check.name for check in verdict.checks if not check.passed] for verdict in verdicts]

    refused = failed(better_TN)
    shown = sum("base" not in names for names in refused)
    lost = sum(names == ["slices"] for names in refused) / max(1, shown)
    seen = sum("slices" in names for names in failed(mixed_TN)) / trials
    row = {"power": round(shown / trials, 3), "lost": round(lost, 3), "seen": round(seen, 3), "trials": trials}
    return {"name": f"{number} slices", "ratio": round(lost / ALLOWED, 2)} | row


def turned_away(design: Design, trials: int) -> dict[str, Any]:
    """The row of runs of which those that are not above the base policy are not registered."""
    splits = Splits(design, World(0.5, FOLLOWING[0], "drift"), trials, 10)
    everywhere_T, alone_T = np.zeros(trials, bool), np.zeros(trials, bool)
    number_T = np.zeros(trials, int)
    for look, gap_TN in enumerate(splits.gaps(LOOKS[-1]), 1):
        registered_T = gap_TN.mean(-1) > 0
        number_T += registered_T
        everywhere_T |= promoted(gap_TN, splits.clusters_N, look)
        for number in np.unique(number_T[registered_T]):
            own_T = registered_T & (number_T == number)
            alone_T[own_T] |= promoted(gap_TN[own_T], splits.clusters_N, int(number))
    every, alone = float(everywhere_T.mean()), float(alone_T.mean())
    row = {"false_in_20": round(every, 3), "registered_alone": round(alone, 3), "trials": trials}
    return {"name": f"turned away, {design.name}", "ratio": round(every / ALLOWED, 2)} | row


def coverage(n: int) -> dict[str, float | str]:
    """The row of the interval, by enumeration of how many scenarios are won and lost."""
    shares = {f"{won:g}_{lost:g}": covered(n, won, lost) for won, lost in NEAR}
    largest = max(1 - share for share in shares.values())
    rounded = {name: round(share, 3) for name, share in shares.items()}
    return {"name": "coverage", "ratio": round(largest / ALLOWED, 2), **rounded, "scenarios": n}


def covered(n: int, won: float, lost: float) -> float:
    """The probability that the 95 % interval holds the true difference, where each scenario is won or lost with these."""
    counts = [(wins, losses) for wins in range(n + 1) for losses in range(n + 1 - wins)]
    likely = {pair: chance for pair in counts if (chance := multinomial(n, pair, (won, lost))) > 1e-9}
    gap_XN = np.array([[1] * wins + [-1] * losses + [0] * (n - wins - losses) for wins, losses in likely], float)
    _, low_X, high_X = paired.interval(gap_XN, np.arange(n))
    holds_X = (low_X - 1e-12 <= won - lost) & (won - lost <= high_X + 1e-12)
    return float(np.array(list(likely.values())) @ holds_X)


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
    parser = _common.parser("gate", __doc__, f"{QUICK} splits of each world in place of {TRIALS}, and fewer worlds")
    parser.add_argument("--trials", type=int, help=f"splits of each world (default: {TRIALS}; quick: {QUICK})")
    parser.add_argument("--gain", type=float, default=0.10, help="in success, where there is a difference")
    options = parser.parse_args()
    usual = QUICK if options.quick else TRIALS
    trials = options.trials or usual
    rows = _common.begin("gate", options, trials / usual)
    for design in DESIGNS:
        rows.add(measure(design, trials, options.gain, options.quick))
    for number in (3, 12):
        rows.add(slices(number, trials, options.gain))
    for design in (DESIGNS[0], DESIGNS[5]):
        rows.add(turned_away(design, 4 * trials))
    rows.add(coverage(60))


if __name__ == "__main__":
    _common.command(main)
