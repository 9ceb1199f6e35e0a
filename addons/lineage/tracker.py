"""Adds each iteration of a run to the ledger's lineage while the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from steps.core.errors import UserError
from steps.project import chain

if TYPE_CHECKING:
    from steps.tracking.tracker import MlflowTracker, Sample


def begin(run: MlflowTracker, is_live: bool) -> LineageTracker | None:
    """The tracker of a run that goes on; later `make ledger` reads the files."""
    return LineageTracker(run.root, run.log_message) if is_live else None


class LineageTracker:
    """An unreachable ledger stops no run: `make ledger` adds what is missing later."""

    def __init__(self, root: Path, log_message: Callable[[str], None]) -> None:
        self.root, self.log_message = root, log_message

    def iteration(self, number: str, overhead_seconds: float | None = None, system: Sequence[Sample] = ()) -> None:
        """Add an iteration; with the first one what it continues."""
        self._add([chain.BASE, *chain.origins(self.root), number] if number == "001" else [number])

    def finish(self, status: str = "FINISHED") -> None:
        """FINISHED adds what the tests have measured."""
        if status == "FINISHED":
            best = str(chain.read_chain(self.root)["tested"]["best"])
            self._add(list(dict.fromkeys([chain.BASE, *chain.origins(self.root), best])))

    def _add(self, iterations: Sequence[str]) -> None:
        from addons.lineage.index import index
        from steps.project.ledger import Ledger

        try:
            with Ledger(patience=5) as ledger:
                index(self.root, ledger, iterations)
        except UserError as problem:
            self.log_message(f"The ledger was not written: {problem}; `make ledger` does it later.")
