"""What a person sees while a flow runs: a table with one row per iteration, and how far the current stage is.

On a terminal it is live; elsewhere it prints one line per stage, how far a long stage is once a minute, and one row per
iteration. All other output of the process (of stages, DVC, libraries) goes to the log file. Everything printed and logged is
masked (steps/core/masking.py).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import Progress, TextColumn
from rich.table import Column, Table
from rich.text import Text

from flows.terminal.report import Point
from steps.core.masking import MaskingFilter, masked
from steps.core.terminal import logged

PROGRESS = Path(".flywheel/progress.json")
MINUTE = 60.0  # seconds between the lines that say how far a long stage is, where nothing is live
LATEST = 3  # iterations whose mean time the rest is estimated by
LOADS = {  # what takes the time of a stage that seems to do little
    "starting Prefect": "a server of its own, unless PREFECT_API_URL names one",
    "scenarios": "waits for packages that the worker still loads",
    "initialise": "loads torch and the trainer, unless the worker has",
    "evaluate@000": "starts vLLM, then plays validation",
    "sft@sft": "loads torch and the trainer, unless the worker has",
}


class RunDisplay:
    """The live table of a training run. It is silent until `shown()` opens it."""

    def __init__(self) -> None:
        self.console: Console | None = None
        self.live: Live | None = None
        self.stage = ""
        self.iteration = ""  # which one is at work, and how long all may still take
        self.spent: list[float] = []  # seconds of each iteration so far
        self.since = time.monotonic()
        self.beside: tuple[str, float] | None = None  # a stage that runs at the same time, and since when
        self.latest: dict[str, dict[str, Any]] = {}  # progress by the name of a stage's module
        self.first: dict[str, tuple[int, float]] = {}  # likewise, of the first progress: how much was done, and when
        self.rows: list[tuple[str, ...]] = []
        self.measure = "success"  # what is measured on validation
        self.counted = ""  # the scenarios that its intervals rest on
        self.lacks = False  # whether others have not been told all, for which the same command is needed again
        self.logger: Any = None  # of Prefect's flow run: its page shows the same lines

    def say(self, text: str) -> None:
        """Print a line that stays."""
        text = masked(text)
        if self.console is not None:
            self.console.print(text, highlight=False, soft_wrap=True, markup=False)
        if self.logger is not None:
            self.logger.info(text)

    def lack(self, text: str) -> None:
        """Print that others, such as MLflow, have not been told all, for which the same command is needed again."""
        self.lacks = True
        self.say(text)

    def begin(self, stage: str) -> None:
        """Show that a stage starts."""
        self.stage, self.since = stage, time.monotonic()
        PROGRESS.unlink(missing_ok=True)
        self._forget(stage)
        loads = f" ({LOADS[stage]})" if stage in LOADS else ""
        self._line(f"  {stage}{loads} …", style="dim")

    def begin_beside(self, stage: str) -> None:
        """Show that a stage starts at the same time as another."""
        self.beside = stage, time.monotonic()
        self._forget(stage)
        self._line(f"  {stage} (in the worker that samples ahead) …", style="dim")

    def end_beside(self) -> None:
        """Show that this stage has ended."""
        self.beside = None

    def begin_iteration(self, number: int, most: int, tests: float = 0.0) -> None:
        """Show which iteration begins, and how much time is left, by the latest ones and `tests` seconds for the tests."""
        latest, left = self.spent[-LATEST:], ""
        if latest:
            seconds = (most - number + 1) * sum(latest) / len(latest) + tests
            left = f", {duration(seconds)} left{', tests included' if tests else ''}"
        self.iteration = f"iteration {number} of at most {most}{left}"
        self._line(self.iteration)

    def end_iterations(self, tests: float = 0.0) -> None:
        """Only tests, of so many seconds, and the registration are left."""
        self.iteration = f"tests and registration, {duration(tests)} left" if tests else ""
        if tests:
            self._line(self.iteration)

    def _forget(self, stage: str) -> None:
        """Drop the progress of the stage that ran before under the same name."""
        name = module(stage)
        self.latest.pop(name, None)
        self.first.pop(name, None)

    def _look(self) -> None:
        """Read how far the stages are."""
        with contextlib.suppress(OSError, ValueError, KeyError):
            progress = json.loads(PROGRESS.read_text())
            self.latest[progress["stage"]] = progress
            self.first.setdefault(progress["stage"], (progress["done"], time.monotonic()))

    def _left(self, stage: str) -> str:
        """How long a stage may still take, by what it has done since its first progress; empty where nobody can tell."""
        name, now = module(stage), time.monotonic()
        done, total = self.latest[name]["done"], self.latest[name]["total"]
        before, since = self.first.get(name, (done, now))
        if not before < done < total:
            return ""
        return f"{duration((now - since) / (done - before) * (total - done))} left"

    def report_progress(self) -> None:
        """Say in a line how far the stages at work are, where they say so themselves."""
        self._look()
        for stage in [self.stage, *([self.beside[0]] if self.beside else [])]:
            if progress := self.latest.get(module(stage)):
                parts = (f"{progress['done']}/{progress['total']} {progress['note']}".strip(), self._left(stage))
                self._line(f"  {stage}: {', '.join(filter(None, parts))}", style="dim")

    def _report_often(self, ended: threading.Event) -> None:
        while not ended.wait(MINUTE):
            self.report_progress()

    def _line(self, text: str, style: str | None = None) -> None:
        """Log a line, and print it where no live table shows the same."""
        if self.live is None and self.console is not None:
            self.console.print(text, style=style, highlight=False, soft_wrap=True)
        if self.logger is not None:
            self.logger.info(text.strip())

    def row(self, point: Point, reward: float | None, spent: float | None) -> None:
        """Add the row of a finished iteration. `reward` is the training batch's mean, `spent` is in seconds."""
        low, high = point.ci95
        cells = (
            str(point.iteration) if point.iteration else "base",
            f"{reward:+.3f}" if reward is not None else "",
            f"{point.success:.3f}",
            f"{low:.2f} – {high:.2f}",
            f"{point.sampled:.3f}" if point.sampled is not None else "",
            f"{spent:.1f} s" if spent is not None else "",
        )
        self.rows.append(cells)
        self.measure, self.counted = point.measure, point.counted
        self.spent += [] if spent is None else [spent]
        of = f" of {self.counted}" if self.counted else ""
        start = f"iteration {cells[0]:>4}   train reward {cells[1]:>6}"
        sampled = f"   sampled {cells[4]}" if cells[4] else ""
        self._line(f"{start}   validation {self.measure} {cells[2]} [{cells[3]}]{of}{sampled}   {cells[5]}")

    def __rich__(self) -> Group:
        self._look()
        at_work = [(self.stage, self.since), *([self.beside] if self.beside else [])]
        iteration = [Text(self.iteration, style="dim")] if self.iteration else []
        return Group(self._table(), *iteration, *(self._stage_line(*each) for each in at_work))

    def _table(self) -> Table:
        titles = ("iteration", "train reward", f"validation {self.measure}", "95 %", "sampled", "time")
        columns = [Column(title, justify="right") for title in titles]
        caption = f"95 % intervals of {self.counted}" if self.counted else None
        table = Table(*columns, box=None, pad_edge=False, header_style="bold", caption=caption)
        for cells in self.rows:
            table.add_row(*cells)
        return table

    def _stage_line(self, stage: str, since: float) -> Text | Progress:
        spent = time.monotonic() - since
        progress = self.latest.get(module(stage))
        if progress is None:
            loads = f" ({LOADS[stage]})" if stage in LOADS else ""
            return Text(f"{stage}{loads}  {spent:.0f} s", style="cyan")
        finished, total, note = progress["done"], progress["total"], progress["note"]
        bar = Progress(
            TextColumn("[cyan]{task.description}"),
            *Progress.get_default_columns()[1:3],
            TextColumn("{task.fields[note]}"),
            TextColumn("[dim]{task.fields[spent]}"),
        )
        time_words = ", ".join(filter(None, (f"{spent:.0f} s", self._left(stage))))
        bar.add_task(stage, total=total, completed=finished, note=f"{finished}/{total} {note}", spent=time_words)
        return bar

    @contextlib.contextmanager
    def shown(self, log: Path, logger: Any = None) -> Iterator[None]:
        """Inside, show the run on this process's terminal, and by a flow run's logger; all other output goes to `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch(0o600)
        os.truncate(log, 0)
        os.environ["FLYWHEEL_PROGRESS"] = os.fspath(PROGRESS.absolute())
        mask_logs()
        self.logger = logger
        ended = threading.Event()
        try:
            with os.fdopen(os.dup(1), "w") as terminal, logged(log):
                self.console = Console(file=terminal)
                threading.Thread(target=self._report_often, args=(ended,), daemon=True).start()
                live = Live(self, console=self.console, refresh_per_second=4, transient=True)
                try:
                    with live if self.console.is_terminal else contextlib.nullcontext() as self.live:
                        yield
                finally:
                    ended.set()
                    if self.live is not None:
                        self.console.print(self._table())  # the live one is gone
                    if self.logger is not None:
                        deliver_logs()
        finally:
            self.live, self.logger = None, None
            os.environ.pop("FLYWHEEL_PROGRESS", None)
            self.console = Console()


def module(stage: str) -> str:
    """The module that runs a stage, under whose name its progress comes: the stage test@… evaluates, too."""
    name = stage.partition("@")[0]
    return "evaluate" if name == "test" else name


def duration(seconds: float) -> str:
    """Seconds in words, as exactly as a guess deserves."""
    return f"about {seconds / 60:.0f} min" if seconds >= 90 else f"about {max(1, round(seconds))} s"


def deliver_logs() -> None:
    """Send what the flow run has logged. Prefect sends it every two seconds, and who watches a run looks no further once it
    has ended: the result would be missing."""
    from prefect.logging.handlers import APILogWorker

    with contextlib.suppress(Exception):  # a server that is away costs these lines
        APILogWorker.drain_all(timeout=5)


def mask_logs() -> None:
    """Mask what is logged by Prefect's runs, which its server keeps, and by everything that writes to this process's output.

    A logger's filter does not see records of its children, so the root's handlers get one as well.
    """
    loggers = [logging.getLogger(name) for name in ("prefect.flow_runs", "prefect.task_runs")]
    for place in (*loggers, *logging.getLogger().handlers):
        if not any(isinstance(filter_, MaskingFilter) for filter_ in place.filters):
            place.addFilter(MaskingFilter())
