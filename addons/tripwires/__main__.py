"""Tripwires over all iterations of a run; see addons/tripwires/tripwires.py."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from addons.tripwires.tripwires import findings
from steps.project import chain


def main(words: Sequence[str]) -> int:
    """Print the findings of all iterations; 1 where there is one."""
    run = Path(words[0] if words else "run")
    lines = [
        f"iteration {int(folder.name)}, {finding.name}: {finding.text}"
        for folder in chain.iteration_folders(run)
        if folder.name != "000"
        for finding in findings(run, int(folder.name))
    ]
    print("\n".join(lines) or "No tripwire sees anything.")
    return int(bool(lines))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
