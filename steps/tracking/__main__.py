"""Logs what chain.yaml, dvc.lock and run/ hold to MLflow, as the flow does. For use after a plain `dvc repro`.

python -m steps.tracking
python -m steps.tracking second     # a deployed run, or one with a name: refs/runs/second
"""

from __future__ import annotations

import sys
from pathlib import Path

from steps.core.terminal import command_parser, exit_code
from steps.tracking.kept import kept_run
from steps.tracking.tracker import log


def main(words: list[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = command_parser("steps.tracking", __doc__)
    folder = "the project's folder (default: this one)"
    parser.add_argument("--root", type=Path, default=Path(), metavar="PATH", help=folder)
    parser.add_argument("run", nargs="?", help="the name of a run that was kept (default: what run/ holds)")
    options = parser.parse_args(words)

    def work() -> None:
        if options.run is None:
            log(options.root)
            return
        with kept_run(options.root, options.run) as folder:
            log(folder, options.run)

    return exit_code(work)


if __name__ == "__main__":
    sys.exit(main())
