"""The evaluations of a run, as the stage evaluate wrote them."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from steps.core.records import Evaluation
from steps.project import chain


def evaluations(run: Path, kind: str = "evaluation") -> dict[str, Evaluation]:
    """The evaluations of a kind (evaluation: on validation; test) by iteration, without those of a longer run before it.

    One that is being written, or that another version wrote, is left out.
    """
    listed, results = chain.listed(run), dict[str, Evaluation]()
    for path in sorted(run.glob(f"*/{kind}/summary.json")):
        name = path.parent.parent.name
        if re.fullmatch(r"\d{3}", name, re.ASCII) and (listed is None or name in listed):
            with suppress(OSError, ValueError):
                results[name] = Evaluation.model_validate_json(path.read_text())
    return results
