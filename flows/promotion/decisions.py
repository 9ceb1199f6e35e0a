"""Records decisions about registered versions in the ledger."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from steps.core.errors import UserError
from steps.registry.model import RegisteredModel


class Decided(NamedTuple):
    """A decision about a version."""

    event: str  # promotion, refusal, rollback
    version: str
    champion: str | None  # the version that was champion before
    why: str
    verdict: Path | None = None  # the folder of the verdict that it is based on


def remember(model: RegisteredModel, decided: Decided) -> None:
    """Write a decision to the ledger. An unreachable ledger is only a warning: MLflow's tags have the decision as well."""
    from sqlalchemy.exc import SQLAlchemyError

    from steps.lineage import index, reader
    from steps.project.ledger import Ledger
    from steps.registry import decisions

    def adapter(version: str | None) -> str | None:
        return model.versions[version].tags.get("adapter_hash") if version in model.versions else None

    evidence = reader.evidence(decided.verdict, os.fspath(decided.verdict)) if decided.verdict else None
    row = decisions.Decision(
        decided.event,
        model.name,
        decided.version,
        adapter(decided.version),
        decided.champion,
        adapter(decided.champion),
        decided.why,
        evidence["hash"] if evidence else None,
    )
    try:
        with Ledger() as ledger:
            decisions.record(ledger, row, evidence)
            if decided.verdict:
                index.add_verdict(Path.cwd(), ledger, os.fspath(decided.verdict))
    except (UserError, SQLAlchemyError) as problem:
        reason = " ".join(str(problem).split())[:300]
        print(
            f"The ledger was not written: {reason}; MLflow's tags have what was decided.", file=sys.stderr, flush=True
        )
