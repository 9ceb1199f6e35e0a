"""Logs what chain.yaml, dvc.lock and run/ hold to MLflow, as the flow does. For use after a plain `dvc repro`.

python -m steps.tracking
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from steps.core.terminal import exit_code
from steps.tracking.tracker import log


def main(words: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m steps.tracking", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--root", type=Path, default=Path(), metavar="PATH", help="the project's folder (default: this one)"
    )
    options = parser.parse_args(words)
    return exit_code(lambda: log(options.root))


if __name__ == "__main__":
    sys.exit(main())
