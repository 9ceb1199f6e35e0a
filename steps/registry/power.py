"""Power of the gate: the smallest true gain that it would show four times in five, and what would make that smaller.

It is found by bisection: with so large a gain, the lower end of the interval of steps/registry/paired.py is above the
margin with the probability `OFTEN`, where the mean difference is as its variance says. The design effect and how often
the two policies differ are what was seen, and a larger gain is taken to be more uneven between clusters. Before a run the
effect is unknown, so both its ends are said: alike scenarios that have nothing in common, and ones that succeed or fail
as one. In the simulations of `python -m benchmarks.gate` the gain that is said is shown in 68 to 84 % of the splits, and
in 48 and 64 % with clusters that count as 5 and 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from steps.core.records import Record
from steps.registry import looks, paired

if TYPE_CHECKING:
    import numpy as np

    from steps.core.params import Promote

OFTEN = 0.8
UNEVEN = 0.5  # standard deviation of a gain between clusters, over the gain itself


class Power(Record):
    """Gains in success, or in the share that a judge finds better; None: no gain can be shown."""

    gain: float | None  # the smallest that this look shows four times in five
    more_clusters: float | None  # the same with twice as many clusters, all else as it is
    # With twice as many scenarios in the same clusters; unset where each is its own
    more_scenarios: float | None = None
    fresh_split: float | None = None  # at the first look; unset where this is one

    def sentence(self) -> str:
        """What can be shown, and what would show more."""
        gain = "No true gain" if self.gain is None else f"A true gain of {self.gain:.3f} or more"
        ways = {
            "twice as many clusters": ("more_clusters", self.more_clusters),
            "twice as many scenarios in the same clusters": ("more_scenarios", self.more_scenarios),
            "a first look at a fresh split": ("fresh_split", self.fresh_split),
        }
        if "more_scenarios" not in self.model_fields_set:
            ways = {name.replace("clusters", "scenarios"): way for name, way in ways.items()}
        shown = [
            f"{name}: {'none' if way is None else f'{way:.3f}'}"
            for name, (field, way) in ways.items()
            if field in self.model_fields_set
        ]
        return f"{gain} is shown four times in five at this look ({'; '.join(shown)})."


class Design(NamedTuple):
    """What the power of a look at N scenarios depends on. A gain is one in wins minus losses, per scenario."""

    n: float  # scenarios
    clusters: float  # effective ones
    effect: float  # design effect
    differing: float  # mean square of the difference at a scenario
    tail: float
    margin: float

    def smallest(self) -> float | None:
        """The smallest gain that is shown with the probability OFTEN; None where the largest is not."""
        if self.clusters < paired.FEWEST or self.low(1.0) <= self.margin:
            return None
        low, high = 0.0, 1.0
        while high - low > 1e-5:
            middle = (low + high) / 2
            low, high = (low, middle) if self.low(middle) > self.margin else (middle, high)
        return high

    def low(self, gain: float) -> float:
        """The lower end of the interval that is exceeded with the probability OFTEN, at this true gain."""
        n, differing = self.n / self.effect, max(self.differing, gain)
        uneven = (UNEVEN * gain) ** 2 / self.clusters
        deviation = (max(0.0, differing - gain**2) / n + uneven) ** 0.5
        seen = gain - paired.quantile(self.clusters, 1 - OFTEN) * deviation
        centre = n * seen / (n + 2)
        spread = (max(0.0, n * differing + 2 - n * seen * centre) / (n + 2) ** 2 + uneven) ** 0.5
        return centre - paired.quantile(self.clusters, self.tail) * spread

    @property
    def are_single(self) -> bool:
        return self.clusters > self.n - 1e-6

    def with_more_scenarios(self) -> Design:
        """Twice as many in the same clusters, which are as alike as they are (Kish: 1 + (size - 1) × correlation)."""
        size = self.n / self.clusters
        return self._replace(n=2 * self.n, effect=1 + (self.effect - 1) * (2 * size - 1) / (size - 1))


def power(gap_N: np.ndarray, clusters_N: np.ndarray, look: int, params: Promote, is_judged: bool = False) -> Power:
    """The power of a look at which these differences of success were seen, [N]; of a judge, wins minus losses, of which
    the share that is judged better is half."""
    scale, clusters, n = 2 if is_judged else 1, paired.clusters_of(clusters_N), len(gap_N)
    effect = float(paired.design_effect(gap_N, clusters))
    differing = (float(gap_N @ gap_N) + 2) / (n + 2)
    tail = looks.tail(max(1, look), params.false_promotions)
    design = Design(n, clusters.effective, effect, differing, tail, scale * params.margin)

    def gain(of: Design) -> float | None:
        smallest = of.smallest()
        return None if smallest is None else smallest / scale

    more: dict[str, Any] = {"more_clusters": gain(design._replace(n=2 * n, clusters=2 * design.clusters))}
    if not design.are_single:
        more["more_scenarios"] = gain(design.with_more_scenarios())
    if look > 1:
        more["fresh_split"] = gain(design._replace(tail=looks.tail(1, params.false_promotions)))
    return Power(gain=gain(design), **more)


def before(clusters: Sequence[str], success: float, params: Promote, is_judged: bool = False) -> str:
    """A sentence on the power of the first look at these test scenarios, by each one's cluster, before anything is trained.
    `success` is the base policy's; the trained one is taken to differ from it by chance and by its gain alone. A judge is
    taken to see no difference at half of the scenarios."""
    counted = paired.clusters_of(paired.numbered(clusters))
    n, number, scale = len(clusters), len(counted.sizes_C), 2 if is_judged else 1
    differing = 0.5 if is_judged else max(2 * success * (1 - success), 2 / (n + 2))
    tail = looks.tail(1, params.false_promotions)
    design = Design(n, counted.effective, 1.0, differing, tail, scale * params.margin)
    apart, alike = design.smallest(), design._replace(effect=n / counted.effective).smallest()
    ends = ["none" if gain is None else f"one of {gain / scale:.2f} or more" for gain in (apart, alike)]
    begun, where = "Of true gains", f"at its first look at the {n} test scenarios"
    if is_judged:
        begun = "Of true gains in the share that the judge finds better"
    if design.are_single:
        return f"{begun} the gate shows {ends[0]} four times in five, {where}; more scenarios would show smaller ones."
    where += f", which are {number} clusters of alike ones, the largest of {counted.sizes_C.max():.0f}"
    if apart is None:
        return f"The gate can show no gain {where}: it takes more clusters, of about one size (docs/operate.md)."
    return (
        f"{begun} the gate shows {ends[0]} four times in five if alike scenarios have nothing in common, and {ends[1]} if "
        f"they succeed or fail as one, {where}; more clusters would show smaller ones in both cases."
    )
