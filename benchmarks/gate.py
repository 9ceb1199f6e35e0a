"""How often does the gate promote a challenger that is no better, and how often one that is? Simulated evaluations.

    python -m benchmarks.gate                              # 4 × 2,000 trials on one core: about a minute
    python -m benchmarks.gate --quick                      # 4 × 200

Each scenario has a difficulty of its own: the other policy's chance p of success there, from a beta distribution with the
given mean (concentration 4). Given p, the outcomes of both policies are independent. The challenger's chance is p, or
p + gain × (1 - p) / (1 - mean), whose mean is higher by exactly the gain and which stays within 1. Scenarios are of three
kinds; turns, tokens and the contamination report are in order, and there is no champion. Every decision is
`gate.decide`'s, with the defaults of steps/core/params.py. No model is asked: what real tasks add, such as errors that
come in clusters of alike scenarios, is not in it. `ratio` is the larger of the two shares of false promotions over the
0.05 that are allowed; `power` is the share of better challengers that are promoted, which should be at least 0.80.
"""

from __future__ import annotations

import time

from benchmarks import _common
from environments.base import Scenario
from steps.core.params import Promote

KINDS = ("a", "b", "c")
CONCENTRATION = 4.0
MOST_FALSE = 0.05
TRIALS, QUICK = 2000, 200  # of each of the four settings


def promoted(trials: int, scenarios: list[Scenario], mean: float, gain: float, params: Promote, seed: int) -> float:
    """The share of trials that end in a promotion."""
    import numpy as np

    from steps.registry import gate

    generator = np.random.default_rng(seed)
    n = len(scenarios)
    clean = {"passed": True, "scenarios": {"test": n}, "found": {}}
    count = 0
    for trial in range(trials):
        chance_N = generator.beta(CONCENTRATION * mean, CONCENTRATION * (1 - mean), n)
        better_N = chance_N + gain * (1 - chance_N) / (1 - mean)
        other_N, challenger_N = ((generator.random(n) < of).astype(float) for of in (chance_N, better_N))
        base, challenger = (gate.Side(name, of, 3.0, 60.0) for name, of in (("b", other_N), ("c", challenger_N)))
        drawn = params.model_copy(update={"seed": trial})
        count += gate.decide(scenarios, challenger, base, clean, drawn).promoted
    return count / trials


def measure(trials: int, n: int, gain: float) -> dict[str, float | str]:
    """The row."""
    params = Promote()
    scenarios = [Scenario.make("simulated", "test", [], {"number": i, "kind": KINDS[i % len(KINDS)]}) for i in range(n)]
    shares: dict[str, float] = {}
    began = time.perf_counter()
    for mean, suffix in ((0.5, ""), (0.8, "_at_0.8")):
        shares[f"false_promotions{suffix}"] = promoted(trials, scenarios, mean, 0.0, params, seed=1)
        shares[f"power{suffix}"] = promoted(trials, scenarios, mean, gain, params, seed=2)
        _common.tell(f"base success {mean}: done")
    seconds = (time.perf_counter() - began) / (4 * trials)
    worst = max(shares["false_promotions"], shares["false_promotions_at_0.8"])
    return {
        "name": "gate",
        "ratio": round(worst / MOST_FALSE, 2),
        **shares,
        "trials": trials,
        "scenarios": n,
        "gain": gain,
        "resamples": params.resamples,
        "milliseconds_per_decision": round(1000 * seconds, 2),
    }


def main() -> None:
    parser = _common.parser("gate", __doc__, f"{QUICK} trials of each setting in place of {TRIALS:,}")
    parser.add_argument("--trials", type=int, help=f"of each of the four settings (default: {TRIALS}; quick: {QUICK})")
    parser.add_argument("--scenarios", type=int, default=400)
    parser.add_argument("--gain", type=float, default=0.10, help="in success, where there is a difference")
    options = parser.parse_args()
    usual = QUICK if options.quick else TRIALS
    trials = options.trials or usual
    rows = _common.begin("gate", options, trials / usual)
    rows.add(measure(trials, options.scenarios, options.gain))


if __name__ == "__main__":
    _common.command(main)
