"""What a person sees of a stage: a moving line or files for the flow, an error's sentence, an exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.errors import explain
from steps.core.files import write_json

if TYPE_CHECKING:
    from rich.console import Console


def exit_code(function: Callable[[], None], show: Display | None = None) -> int:
    """Call it for a person: 0, or an error told on stderr and its code. The display is cleared, whatever happens."""
    try:
        function()
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if show is not None:
            show.clear()
        text, code = explain(error)
        print(text if text.startswith("Traceback") else f"error: {text}", file=sys.stderr)
        return code
    finally:
        if show is not None:
            show.clear()
    return 0


def console(width: int, soft_wrap: bool = False) -> Console:
    """A console for tables and plain text: as wide as the terminal, or `width` columns where there is none."""
    from rich.console import Console

    terminal = Console(highlight=False, markup=False, emoji=False, soft_wrap=soft_wrap)
    return terminal if terminal.is_terminal else Console(highlight=False, markup=False, emoji=False, width=width)


class Display:
    """What a person, or the flow, sees of a stage: FLYWHEEL_PROGRESS names a file for the latest progress as JSON,
    FLYWHEEL_LOG one for what is said. Without them: one moving line on a terminal, else a line every 10 s."""

    def __init__(self, stage: str) -> None:
        self.stage, self.drawn, self.next_line = stage, False, time.monotonic() + 10
        self.file, self.log = os.environ.get("FLYWHEEL_PROGRESS"), os.environ.get("FLYWHEEL_LOG")

    def __call__(self, message: dict[str, Any]) -> None:
        if "say" in message:
            self.clear()
            with Path(self.log).open("a") if self.log else contextlib.nullcontext(sys.stdout) as out:
                print(message["say"], file=out, flush=True)
            return
        done, total, note = message["progress"]
        text = f"{self.stage} {done}/{total} {note}".rstrip()
        if self.file:
            write_json(Path(self.file), {"stage": self.stage, "done": done, "total": total, "note": note})
        elif sys.stderr.isatty():
            print("\r\033[K" + text[: os.get_terminal_size(2).columns - 1], end="", file=sys.stderr, flush=True)
            self.drawn = True
        elif time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + 10
            print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Wipe the moving line."""
        if self.drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self.drawn = False
