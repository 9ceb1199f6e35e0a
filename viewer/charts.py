"""The charts of the pages: where their marks stand.

The numbers come from steps/analytics/analysis.py and steps/analytics/waste.py. A chart holds only geometry and texts.
viewer/templates/charts.html draws it as inline SVG and escapes all texts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from steps.analytics.analysis import Analysis, GroupSummary, Pattern
    from steps.core.evaluations import Evaluation

WIDTH, HEIGHT = 460, 200  # of a chart, in units of its viewBox
LEFT, RIGHT, TOP, BOTTOM = 46, 450, 10, 176  # edges of the plot
COLOURS = 6  # classes s0 … s5 of view.css
SPLITS = {"train": "training", "val": "validation", "test": "test"}
SHORTEST = 8  # an error text of fewer characters is too common to search for


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
    names: list[tuple[float, str]]  # labels below the plot: x, text
    ticks: list[tuple[float, str]]  # labels beside the plot: y, text
    series: list[Series]
    bars: list[Bar]
    legend: list[tuple[int, str]]  # colour, name


def curves(analysis: Analysis) -> list[Chart]:
    """Success, reward, turns, tokens and latency by iteration, a line per split. `analysis` is by iteration and split."""
    names = list(dict.fromkeys(line.group[0] for line in analysis.lines))

    def chart(title: str, value: Callable[[GroupSummary], float | None], share: bool = False) -> Chart:
        """A chart of one number of each line; a share has the scale from 0 to 1, and its interval."""
        values = [(line, number) for line in analysis.lines if (number := value(line)) is not None]
        scale = Scale(0.0, 1.0) if share else Scale.around([number for _, number in values])
        series = []
        for colour, (split, shown) in enumerate(SPLITS.items()):  # a split has the same colour in every chart
            dots = []
            for line, number in values:
                if line.group[1] == split:
                    name, ends = line.group[0], line.ci95 if share else None
                    low, high = (scale.y(end) for end in ends) if ends else (None, None)
                    about = f"{shown} {name}: {number:.3f}" + (f" [{ends[0]:.3f}, {ends[1]:.3f}]" if ends else "")
                    dots.append(Dot(across(names.index(name), len(names)), scale.y(number), about, low, high))
            if dots:
                series.append(Series(shown, colour, dots))
        return plotted(title, names, scale, series, share)

    charts = [
        chart("Success, with its 95 % interval", lambda line: line.success, share=True),
        chart("Reward, mean", lambda line: line.reward),
        chart("Turns, mean", lambda line: line.turns),
        chart("Sampled tokens, median", lambda line: line.tokens.p50),
        chart("Seconds of a turn, median", lambda line: line.latency.p50 if line.latency else None),
    ]
    return [chart for chart in charts if chart.series]


def stacked(title: str, shares: Mapping[str, Mapping[str, float]], order: Sequence[str]) -> Chart:
    """Stacked bars of shares (0 to 1 in total per bar), all in the same order."""
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


def actions(analysis: Analysis, split: str) -> Chart | None:
    """The agent's actions as shares of all its actions; None if the split has none."""
    lines = [line for line in analysis.lines if line.group[1] == split and line.actions]
    shares = {}
    for line in lines:
        total = sum(line.actions.values())
        shares[line.group[0]] = {name: count / total for name, count in line.actions.items()}
    order = [name for name in analysis.total.actions if any(name in parts for parts in shares.values())]
    return stacked(f"Actions: {SPLITS[split]}", shares, order) if shares else None


def fates(analysis: Analysis) -> Chart | None:
    """What became of the sampled tokens of each iteration; None without updates."""
    from steps.training.fates import FATES

    shares = {name: waste.shares for name, waste in analysis.waste.items()}
    order = [fate for fate in FATES if any(parts[fate] for parts in shares.values())]
    return stacked("Sampled tokens: what became of them", shares, order) if order else None


def learning(evaluations: Mapping[str, Evaluation]) -> Chart | None:
    """Success on validation by iteration with its interval, and that of sampled attempts where they were made."""
    names, scale = list(evaluations), Scale(0.0, 1.0)
    shown: dict[str, list[Dot]] = {"as evaluated": [], "sampled": []}
    for place, (name, result) in enumerate(evaluations.items()):
        x, (low, high) = across(place, len(names)), result.interval
        about = f"{name}: {result.share:.3f} [{low:.3f}, {high:.3f}]"
        shown["as evaluated"].append(Dot(x, scale.y(result.share), about, scale.y(low), scale.y(high)))
        if (sampled := result.sampled_success) is not None:
            shown["sampled"].append(Dot(x, scale.y(sampled), f"{name}: sampled {sampled:.3f}"))
    series = [Series(kind, colour, dots) for colour, (kind, dots) in enumerate(shown.items()) if dots]
    if not series:
        return None
    title = f"Validation by iteration: {result.measure}, with its 95 % interval of {result.counted}"
    return plotted(title, names, scale, series)


def decisions(evaluations: Mapping[str, Evaluation]) -> Chart | None:
    """Which decisions were right on validation by iteration, a line per kind; None for a task that counts none."""
    names, scale = list(evaluations), Scale(0.0, 1.0)
    kinds = list(dict.fromkeys(kind for result in evaluations.values() for kind in result.decisions))
    series = []
    for colour, kind in enumerate(kinds):
        counts = {name: result.decisions.get(kind, (0, 0)) for name, result in evaluations.items()}
        dots = [
            Dot(across(place, len(names)), scale.y(right / made), f"{kind} {name}: {right} of {made} right")
            for place, (name, (right, made)) in enumerate(counts.items())
            if made
        ]
        series.append(Series(kind, colour % COLOURS, dots))
    return plotted("Right decisions on validation", names, scale, series) if kinds else None


def plotted(title: str, names: Sequence[str], scale: Scale, series: list[Series], share: bool = True) -> Chart:
    """A chart of lines."""
    legend = [(entry.colour, entry.name) for entry in series]
    return Chart(title, below(names), scale.ticks(share), series, [], legend)


def search(pattern: Pattern) -> dict[str, str]:
    """The filters that find an error's trajectories by the longest fixed part of its text; empty if that is too short."""
    part = max((piece.strip(" .,:;'\"") for piece in pattern.text.split("…")), key=len)
    if len(part) < SHORTEST:
        return {}
    return {"by": "attempt", "said" if pattern.where == "tool" else "q": part}


class Scale(NamedTuple):
    """Converts values to heights in the plot."""

    low: float
    high: float

    @classmethod
    def around(cls, values: Sequence[float]) -> Scale:
        """A scale around the values with a margin; it is never empty."""
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


def across(place: int, count: int) -> float:
    return LEFT + (place + 0.5) * (RIGHT - LEFT) / count


def below(names: Sequence[str]) -> list[tuple[float, str]]:
    """Labels with their x: all names, or as many as fit without overlapping."""
    every = math.ceil(len(names) / 12)
    return [(across(place, len(names)), name) for place, name in enumerate(names) if place % every == 0]
