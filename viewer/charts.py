"""The page "Analytics" of `viewer.app`: where the marks of its charts stand.

Numbers are those of steps/analytics/analysis.py and steps/analytics/waste.py. A chart is geometry;
viewer/templates/charts.html draws it as inline SVG, so that every text in it is escaped there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from steps.analytics.analysis import Analysis, Pattern

WIDTH, HEIGHT = 460, 200  # of a chart, in its own units
LEFT, RIGHT, TOP, BOTTOM = 46, 450, 10, 176  # of its plot
COLOURS = 6  # classes s0 … s5 of view.css
SPLITS = {"train": "rollouts", "val": "evaluation", "test": "test"}
SHORTEST = 8  # characters of an error that are worth a search


class Dot(NamedTuple):
    x: float
    y: float
    about: str
    low: float | None = None  # ends of its interval
    high: float | None = None


class Series(NamedTuple):
    name: str
    colour: int
    dots: list[Dot]

    @property
    def points(self) -> str:
        return " ".join(f"{dot.x:.1f},{dot.y:.1f}" for dot in self.dots)


class Bar(NamedTuple):
    x: float
    y: float
    width: float
    height: float
    colour: int
    about: str


class Chart(NamedTuple):
    title: str
    names: list[tuple[float, str]]  # below the plot: where, and what
    ticks: list[tuple[float, str]]  # beside it
    series: list[Series]
    bars: list[Bar]
    legend: list[tuple[int, str]]  # colour, name


def curves(found: Analysis) -> list[Chart]:
    """Success, reward, turns, tokens and latency by iteration (`found` is by iteration and split), a line for each split."""
    names = list(dict.fromkeys(one.group[0] for one in found.lines))
    by_split = {split: [one for one in found.lines if one.group[1] == split] for split in SPLITS}

    def chart(
        title: str, values: Mapping[str, list[tuple[str, float, tuple[float, float] | None]]], share: bool
    ) -> Chart:
        every = [value for of in values.values() for _, value, _ in of]
        scale = Scale(0.0, 1.0) if share else Scale.around(every)
        series = []
        for colour, (split, of) in enumerate(values.items()):  # a split has the same colour in every chart
            dots = []
            for name, value, ends in of:
                low, high = (scale.y(end) for end in ends) if ends else (None, None)
                about = f"{SPLITS[split]} {name}: {value:.3f}" + (f" [{ends[0]:.3f}, {ends[1]:.3f}]" if ends else "")
                dots.append(Dot(across(names.index(name), len(names)), scale.y(value), about, low, high))
            series.append(Series(SPLITS[split], colour, dots))
        series = [one for one in series if one.dots]
        legend = [(one.colour, one.name) for one in series]
        return Chart(title, below(names), scale.ticks(share), series, [], legend)

    of = by_split.items()
    charts = [
        chart(
            "Success, with its 95 % interval",
            {
                name: [(one.group[0], one.success, one.ci95) for one in lines if one.success is not None]
                for name, lines in of
            },
            True,
        ),
        chart(
            "Reward, mean",
            {name: [(one.group[0], one.reward, None) for one in lines if one.reward is not None] for name, lines in of},
            False,
        ),
        chart("Turns, mean", {name: [(one.group[0], one.turns, None) for one in lines] for name, lines in of}, False),
        chart(
            "Sampled tokens, median",
            {name: [(one.group[0], one.tokens.p50, None) for one in lines] for name, lines in of},
            False,
        ),
        chart(
            "Seconds of a turn, median",
            {
                name: [(one.group[0], one.latency.p50, None) for one in lines if one.latency is not None]
                for name, lines in of
            },
            False,
        ),
    ]
    return [chart for chart in charts if chart.series]


def stacked(title: str, shares: Mapping[str, Mapping[str, float]], order: Sequence[str]) -> Chart:
    """Bars of shares by name (each from 0 to 1 in all), in one order."""
    scale, names = Scale(0.0, 1.0), list(shares)
    width = min(36.0, 0.7 * (RIGHT - LEFT) / max(1, len(names)))
    bars = []
    for place, (name, parts) in enumerate(shares.items()):
        low = 0.0
        for colour, part in enumerate(order):
            if share := parts.get(part, 0.0):
                top, bottom = scale.y(low + share), scale.y(low)
                x = across(place, len(names)) - width / 2
                bars.append(Bar(x, top, width, bottom - top, colour % COLOURS, f"{name}: {part} {share:.1%}"))
                low += share
    legend = [(colour % COLOURS, part) for colour, part in enumerate(order)]
    return Chart(title, below(names), scale.ticks(True), [], bars, legend)


def actions(found: Analysis, split: str) -> Chart | None:
    """What the agent did, as shares of all its acts."""
    lines = [one for one in found.lines if one.group[1] == split and one.actions]
    shares = {one.group[0]: {name: n / sum(one.actions.values()) for name, n in one.actions.items()} for one in lines}
    order = [name for name in found.total.actions if any(name in of for of in shares.values())]
    return stacked(f"Actions: {SPLITS[split]}", shares, order) if shares else None


def fates(found: Analysis) -> Chart | None:
    """What became of the sampled tokens of each iteration."""
    from steps.training.fates import FATES

    shares = {name: one.shares for name, one in found.waste.items()}
    order = [fate for fate in FATES if any(of[fate] for of in shares.values())]
    return stacked("Sampled tokens: what became of them", shares, order) if order else None


def search(pattern: Pattern) -> dict[str, str]:
    """The filters that find an error's trajectories: by the longest part of its text that does not vary; or none."""
    part = max((piece.strip(" .,:;'\"") for piece in pattern.text.split("…")), key=len)
    if len(part) < SHORTEST:
        return {}
    return {"by": "attempt", "said" if pattern.where == "tool" else "q": part}


class Scale(NamedTuple):
    """Values to heights in the plot."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Sequence[float]) -> Scale:
        """With some air, and never empty."""
        low, high = (min(values), max(values)) if values else (0.0, 1.0)
        air = 0.1 * (high - low) or 0.1 * abs(high) or 0.5
        return cls(0.0 if 0.0 <= low < 0.5 * high else low - air, high + air)

    def y(self, value: float) -> float:
        return BOTTOM - (value - self.low) / (self.high - self.low) * (BOTTOM - TOP)

    def ticks(self, share: bool) -> list[tuple[float, str]]:
        """Four to nine round values."""
        step = 10.0 ** math.floor(math.log10((self.high - self.low) / 4))
        step *= next(factor for factor in (1, 2, 2.5, 5, 10) if (self.high - self.low) / (step * factor) <= 6)
        first = math.ceil(self.low / step - 1e-9)
        values = [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]
        return [(self.y(value), f"{value:.0%}" if share else f"{value:.4g}") for value in values]


def across(place: int, of: int) -> float:
    return LEFT + (place + 0.5) * (RIGHT - LEFT) / of


def below(names: Sequence[str]) -> list[tuple[float, str]]:
    """Where the names stand: all of them, or so many as do not overlap."""
    every = math.ceil(len(names) / 12)
    return [(across(place, len(names)), name) for place, name in enumerate(names) if place % every == 0]
