"""What a person sees while a flow runs: a table that grows by a row an iteration, and what the stage at work is doing.

On a terminal it is live; elsewhere it is a line a stage and a row an iteration. Everything else that writes to the
process's output (stages, DVC, libraries) goes to the log file. Lines and what is logged are masked (steps/core/masking.py).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

from flows.terminal.report import Point
from steps.core.masking import MaskingFilter, masked

PROGRESS = Path(".flywheel/progress.json")


class RunDisplay:
    """Silent unless opened by `shown()`."""

    def __init__(self) -> None:
        self.console: Console | None = None
        self.live: Live | None = None
        self.stage = ""
        self.since = time.monotonic()
        self.rows: list[tuple[str, ...]] = []
        self.logger: Any = None  # of Prefect's flow run, whose page shows the same lines

    def say(self, text: str) -> None:
        """A line that stays."""
        text = masked(text)
        if self.console is not None:
            self.console.print(text, highlight=False, soft_wrap=True, markup=False)
        if self.logger is not None:
            self.logger.info(text)

    def begin(self, stage: str) -> None:
        """A stage starts."""
        self.stage, self.since = stage, time.monotonic()
        PROGRESS.unlink(missing_ok=True)
        if self.live is None and self.console is not None:
            self.console.print(f"  {stage} …", style="dim", highlight=False)
        if self.logger is not None:
            self.logger.info("%s …", stage)

    def row(self, point: Point, reward: float | None, spent: float | None) -> None:
        """An iteration is done."""
        low, high = point.ci95
        cells = (
            str(point.iteration) if point.iteration else "base",
            f"{reward:+.3f}" if reward is not None else "",
            f"{point.success:.3f}",
            f"{low:.2f} – {high:.2f}",
            f"{spent:.1f} s" if spent is not None else "",
        )
        self.rows.append(cells)
        line = (
            f"iteration {cells[0]:>4}   reward {cells[1]:>6}   validation success {cells[2]} [{cells[3]}]   {cells[4]}"
        )
        if self.live is None and self.console is not None:
            self.console.print(line, highlight=False)
        if self.logger is not None:
            self.logger.info(line)

    def __rich__(self) -> Group:
        return Group(self._table(), self._at_work())

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("iteration", "train reward", "validation success", "95 %", "time"):
            table.add_column(title, justify="right")
        for cells in self.rows:
            table.add_row(*cells)
        return table

    def _at_work(self) -> Text | Progress:
        spent = time.monotonic() - self.since
        try:
            told = json.loads(PROGRESS.read_text())
            done, total, note = told["done"], told["total"], told["note"]
        except (OSError, ValueError, KeyError):
            return Text(f"{self.stage}  {spent:.0f} s", style="cyan")
        bar = Progress(
            TextColumn("[cyan]{task.description}"),
            *Progress.get_default_columns()[1:3],
            TextColumn("{task.fields[note]}"),
            TextColumn("[dim]{task.fields[spent]:.0f} s"),
        )
        bar.add_task(self.stage, total=total, completed=done, note=f"{done}/{total} {note}", spent=spent)
        return bar

    @contextlib.contextmanager
    def shown(self, log: Path, logger: Any = None) -> Iterator[None]:
        """Show on this process's terminal (and by a flow run's logger) from here on; all other output goes to `log`."""
        log.parent.mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        sys.stderr.flush()
        kept = os.dup(1), os.dup(2)
        file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        os.environ["FLYWHEEL_PROGRESS"] = os.fspath(PROGRESS.absolute())
        mask_logs()
        self.logger = logger
        self.console = Console(file=os.fdopen(kept[0], "w", closefd=False))
        os.dup2(file, 1)
        os.dup2(file, 2)
        try:
            if self.console.is_terminal:
                try:
                    with Live(self, console=self.console, refresh_per_second=4, transient=True) as self.live:
                        yield
                finally:
                    self.console.print(self._table())  # what stays
            else:
                yield
        finally:
            self.live, self.logger = None, None
            self.console.file.flush()
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(kept[0], 1)
            os.dup2(kept[1], 2)
            for number in (*kept, file):
                os.close(number)
            self.console = Console()


def mask_logs() -> None:
    """What is logged is masked: by Prefect's runs, whose server keeps it, and by whatever writes to this process's output.

    A logger's filter does not see what its children pass on, so that the root's handlers have it, too.
    """
    known = [logging.getLogger(name) for name in ("prefect.flow_runs", "prefect.task_runs")]
    for place in (*known, *logging.getLogger().handlers):
        if not any(isinstance(one, MaskingFilter) for one in place.filters):
            place.addFilter(MaskingFilter())


def last_error(log: Path) -> str | None:
    """The last `error:` line of a log."""
    with contextlib.suppress(OSError):
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.startswith("error: ")]
        return lines[-1].removeprefix("error: ") if lines else None
    return None
