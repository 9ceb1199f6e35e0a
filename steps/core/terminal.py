"""What a person sees of a command: its options, its progress, an error's sentence, and the exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.errors import explain
from steps.core.files import write_json
from steps.core.progress import report_to

if TYPE_CHECKING:
    import argparse

    from rich.console import Console
    from rich.table import Table

INTERRUPTED = 130  # the exit code after Ctrl-C


def command_parser(name: str, about: str | None, **options: Any) -> argparse.ArgumentParser:
    """The parser of `python -m <name>`; its help begins with the first paragraph of `about`, the module's docstring."""
    import argparse

    return argparse.ArgumentParser(f"python -m {name}", description=(about or "").strip().split("\n\n")[0], **options)


def exit_code(function: Callable[[], None], display: ProgressDisplay | None = None) -> int:
    """Call `function` and return the command's exit code: 0, 130 after Ctrl-C, or the code of an error, which is explained
    on stderr. `display` shows the function's progress and lines; its line is wiped first in each case."""
    return outcome(function, display)[0]


def outcome(function: Callable[[], None], display: ProgressDisplay | None = None) -> tuple[int, str]:
    """What `exit_code` returns, and the explanation of the error; empty where there was none."""
    try:
        if display is not None:
            report_to(display)
        function()
        return 0, ""
    except KeyboardInterrupt:
        return INTERRUPTED, ""
    except Exception as error:
        text, code = explain(error)
    finally:
        if display is not None:
            report_to(None)
            display.clear()
    print(text if text.startswith("Traceback") else f"error: {text}", file=sys.stderr, flush=True)
    return code, text


def served(function: Callable[[], None]) -> int:
    """`exit_code` for a server, which ends by Ctrl-C when all is well: that is 0, so that make reports no error."""
    code = exit_code(function)
    return 0 if code == INTERRUPTED else code


def console(width: int, soft_wrap: bool = False) -> Console:
    """A console for tables and plain text: as wide as the terminal, or `width` columns where there is none."""
    from rich.console import Console

    terminal = Console(highlight=False, markup=False, emoji=False, soft_wrap=soft_wrap)
    return terminal if terminal.is_terminal else Console(highlight=False, markup=False, emoji=False, width=width)


def table(columns: Sequence[str], numbers: Collection[str], title: str | None = None) -> Table:
    """An empty table without a frame. The columns in `numbers` are aligned to the right."""
    from rich import box
    from rich.table import Column, Table

    headers = [Column(name, justify="right" if name in numbers else "left") for name in columns]
    return Table(*headers, box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, title=title, title_justify="left")


class ProgressDisplay:
    """Shows the progress and the lines of a command, as `report_to` passes them on.

    On a terminal, progress is one line that is drawn anew; elsewhere it is a line every 10 seconds. For a flow,
    FLYWHEEL_PROGRESS names a file for the latest progress (as JSON), and FLYWHEEL_LOG one to which lines are added.
    """

    def __init__(self, name: str) -> None:
        self.name, self.is_drawn, self.next_line = name, False, time.monotonic() + 10
        self.file, self.log = os.environ.get("FLYWHEEL_PROGRESS"), os.environ.get("FLYWHEEL_LOG")

    def __call__(self, message: dict[str, Any]) -> None:
        if "say" in message:
            self.clear()
            with Path(self.log).open("a") if self.log else contextlib.nullcontext(sys.stdout) as out:
                print(message["say"], file=out, flush=True)
            return
        done, total, note = message["progress"]
        text = f"{self.name} {done}/{total} {note}".rstrip()
        if self.file:
            latest = {"stage": self.name, "done": done, "total": total, "note": note}
            write_json(Path(self.file), latest, lasting=False)
        elif sys.stderr.isatty():
            print("\r\033[K" + text[: os.get_terminal_size(2).columns - 1], end="", file=sys.stderr, flush=True)
            self.is_drawn = True
        elif time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + 10
            print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Wipe the line that is drawn anew."""
        if self.is_drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self.is_drawn = False


@contextlib.contextmanager
def logged(log: Path) -> Iterator[None]:
    """Inside, what this process and its libraries print is added to a file."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    before = os.dup(1), os.dup(2)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.dup2(file, 1)
        os.dup2(file, 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for place, old in enumerate(before, 1):
            os.dup2(old, place)
            os.close(old)
        os.close(file)
