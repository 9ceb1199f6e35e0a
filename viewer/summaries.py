"""The evaluations of a run, as the stage evaluate wrote them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from steps.core.evaluations import Evaluation
from steps.project import chain


def evaluations(run: Path, kind: str = "evaluation") -> dict[str, Evaluation]:
    """The evaluations of a kind (evaluation: on validation; test) by iteration, and of what the iterations began with
    (start, sft). Those of a longer run before it are left out.

    One that is being written, or that another version wrote, is left out.
    """
    listed, results = chain.listed(run), dict[str, Evaluation]()
    paths = {path.parent.parent.name: path for path in run.glob(f"*/{kind}/summary.json")}
    for name in sorted(filter(chain.NAME.fullmatch, paths), key=chain.place):
        path = paths[name]
        if listed is None or name in listed:
            with suppress(OSError, ValueError):
                results[name] = Evaluation.model_validate_json(path.read_text())
    return results
