"""Logs what chain.yaml, dvc.lock and run/ hold to MLflow, as the flow does. For use after a plain `dvc repro`.

python -m steps.tracking
"""

from __future__ import annotations

import sys
from pathlib import Path

from steps.core.terminal import command_parser, exit_code
from steps.tracking.tracker import log


def main(words: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = command_parser("steps.tracking", __doc__)
    folder = "the project's folder (default: this one)"
    parser.add_argument("--root", type=Path, default=Path(), metavar="PATH", help=folder)
    options = parser.parse_args(words)
    return exit_code(lambda: log(options.root))


if __name__ == "__main__":
    sys.exit(main())
