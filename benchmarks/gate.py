"""How often does the gate promote a challenger that is no better, and how often one that is? Simulated evaluations.

    python -m benchmarks.gate                              # 4 × 2,000 trials on one core: about a minute
    python -m benchmarks.gate --json --trials 200

Each scenario has a difficulty of its own: the other policy's chance p of success there, from a beta distribution with the
given mean (concentration 4). Given p, the outcomes of both policies are independent. The challenger's chance is p, or
p + gain × (1 - p) / (1 - mean), whose mean is higher by exactly the gain and which stays within 1. Scenarios are of three
kinds; turns, tokens and the contamination report are in order, and there is no champion. Every decision is
`gate.decide`'s, with the defaults of steps/core/params.py. No model is asked: what real tasks add, such as errors that
come in clusters of alike scenarios, is not in it.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from environments.base import Scenario
    from steps.core.params import Promote

KINDS = ("a", "b", "c")
CONCENTRATION = 4.0
MOST_FALSE, LEAST_POWER = 0.05, 0.80


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
    from environments.base import Scenario
    from steps.core.params import Promote

    params = Promote()
    scenarios = [Scenario.make("simulated", "test", [], {"number": i, "kind": KINDS[i % len(KINDS)]}) for i in range(n)]
    row: dict[str, float | str] = {"name": "gate"}
    began = time.perf_counter()
    for mean, suffix in ((0.5, ""), (0.8, "_at_0.8")):
        row[f"false_promotions{suffix}"] = promoted(trials, scenarios, mean, 0.0, params, seed=1)
        row[f"power{suffix}"] = promoted(trials, scenarios, mean, gain, params, seed=2)
    seconds = (time.perf_counter() - began) / (4 * trials)
    return row | {
        "trials": trials,
        "scenarios": n,
        "gain": gain,
        "resamples": params.resamples,
        "milliseconds_per_decision": round(1000 * seconds, 2),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.add_argument("--trials", type=int, default=2000, help="of each of the four settings")
    parser.add_argument("--scenarios", type=int, default=400)
    parser.add_argument("--gain", type=float, default=0.10, help="in success, where there is a difference")
    words = parser.parse_args()
    row = measure(words.trials, words.scenarios, words.gain)
    if words.json:
        print(json.dumps(row))
        return 0
    for mean, suffix in (("0.5", ""), ("0.8", "_at_0.8")):
        false, power = row[f"false_promotions{suffix}"], row[f"power{suffix}"]
        print(f"base success {mean}: promoted without a difference {false:.4f} (at most {MOST_FALSE}), ", end="")
        print(f"with {words.gain:+.2f} {power:.4f} (at least {LEAST_POWER:.2f})")
    print(
        f"{words.trials} trials of {words.scenarios} scenarios each, {row['milliseconds_per_decision']} ms a decision"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
