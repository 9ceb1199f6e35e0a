"""What the running stage reports beside its outputs: progress, lines for a person, and measurements.

A process runs one stage at a time, so there is one reporter per process. The worker, a command or a flow sets with
`report_to` where progress and lines go; the stage runner takes the measurements when the stage has ended.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from steps.core.errors import masked

Sink = Callable[[dict[str, Any]], None]
Turns = dict[str, list[tuple[float, float, float]]]  # trajectory's fingerprint -> (asked, answered, finished) per turn


class Measurements(NamedTuple):
    """What a stage measured that differs between runs with the same inputs."""

    numbers: dict[str, float]
    turns: Turns  # seconds after `began`
    began: float  # Unix seconds


class Reporter:
    """Where a stage's progress and lines go, and what it has measured so far."""

    def __init__(self) -> None:
        self.sink: Sink | None = None
        self.part: tuple[int, int] | None = None  # (done before it, of all): see `part`
        self.next_progress = 0.0  # time.monotonic() before which progress is not passed on
        self.measurements = Measurements({}, {}, 0.0)


_reporter = Reporter()


def report_to(sink: Sink | None) -> None:
    """Send progress() and say() to `sink` as {"progress": [done, total, note]} and {"say": text}. With None, say() prints to
    stdout and progress is not shown."""
    _reporter.sink, _reporter.next_progress = sink, 0.0


@contextlib.contextmanager
def part(before: int, total: int) -> Iterator[None]:
    """Within it, progress() speaks of a part of the stage's work: `before` of the whole `total` are done already."""
    outer, _reporter.part = _reporter.part, (before, total)
    try:
        yield
    finally:
        _reporter.part = outer


def progress(done: int, total: int, note: str = "") -> None:
    """Report how far the stage is. It is passed on at most 10 times a second; other calls cost nearly nothing."""
    if _reporter.part is not None:
        done, total = done + _reporter.part[0], _reporter.part[1]
    now = time.monotonic()
    if _reporter.sink is not None and (now >= _reporter.next_progress or done == total):
        _reporter.next_progress = now + 0.1
        _reporter.sink({"progress": [done, total, note]})


def measure(**numbers: float) -> None:
    """Keep numbers that differ between runs, such as times and retries: with the stage's seconds, and not in its outputs."""
    _reporter.measurements.numbers.update(numbers)


def measure_turns(began: float, turns: Turns) -> None:
    """Keep when each turn was asked, answered, and finished by the environment, in seconds after `began` (Unix seconds).
    Keys are fingerprints of trajectories (steps/core/records.py). Of several batches, the first one's `began` counts."""
    first = _reporter.measurements.began or began
    later = began - first
    for name, times in turns.items():
        _reporter.measurements.turns[name] = [
            (round(asked + later, 5), round(answered + later, 5), round(done + later, 5))
            for asked, answered, done in times
        ]
    _reporter.measurements = _reporter.measurements._replace(began=first)


def take_measurements() -> Measurements:
    """Return what was measured since the last call, and forget it."""
    measurements, _reporter.measurements = _reporter.measurements, Measurements({}, {}, 0.0)
    return measurements


def say(text: str) -> None:
    """Print one line for the person who runs the stage, masked."""
    text = masked(text)
    if _reporter.sink is None:
        print(text, flush=True)
    else:
        _reporter.sink({"say": text})
