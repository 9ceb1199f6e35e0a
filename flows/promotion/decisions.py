"""Records a decision about a version in the ledger."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from steps.core.errors import UserError
from steps.registry.model import RegisteredModel


class Decided(NamedTuple):
    """What was done with a version."""

    event: str  # promotion, refusal, rollback
    version: str
    champion: str | None  # before
    why: str
    verdict: Path | None = None  # the folder of the verdict that it rests on


def remember(registry: RegisteredModel, done: Decided) -> None:
    """A row in the ledger; one that is away undoes nothing, for MLflow's tags have it, too."""
    from sqlalchemy.exc import SQLAlchemyError

    from steps.lineage import index, reader
    from steps.project.ledger import Ledger
    from steps.registry import decisions

    def adapter(version: str | None) -> str | None:
        return registry.versions[version].tags.get("adapter_hash") if version in registry.versions else None

    found = reader.evidence(done.verdict, os.fspath(done.verdict)) if done.verdict else None
    row = decisions.Decision(
        done.event,
        registry.name,
        done.version,
        adapter(done.version),
        done.champion,
        adapter(done.champion),
        done.why,
        found["hash"] if found else None,
    )
    try:
        with Ledger() as ledger:
            decisions.record(ledger, row, found)
            if done.verdict:
                index.add_verdict(Path.cwd(), ledger, os.fspath(done.verdict))
    except (UserError, SQLAlchemyError) as problem:
        reason = " ".join(str(problem).split())[:300]
        print(
            f"The ledger was not written: {reason}; MLflow's tags have what was decided.", file=sys.stderr, flush=True
        )
