"""Which look at a split a judgement is (steps/registry/looks.py says what that costs)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steps.project.ledger import Ledger
from steps.registry import decisions
from steps.registry.looks import Look, add, look_of, rows_of, split_hash

SHARED = 0.1  # share of a split's scenarios above which a look at another split counts for it


def count(ledger: Ledger, model: str, ids: Sequence[str], challenger: str, against: str) -> int:
    """Record a look, unless it is recorded already, and return its number among those at this split: 1 is the first."""
    look = Look(split_hash(ids), challenger, against)
    with ledger.reading() as link:
        recorded = {look_of(row) for row in rows_of(link)}
        decided = [(name, decided_look(evidence)) for name, evidence in decisions.evidence_by_model(link)]
    for name, older in decided:
        if older not in recorded:
            add(ledger, name, older, None)
    add(ledger, model, look, list(ids))
    with ledger.reading() as link:
        rows = rows_of(link)
    own = next(row["id"] for row in rows if look_of(row) == look)
    return 1 + len({look_of(row) for row in rows if row["id"] < own and at_this_split(row, look.scenarios, set(ids))})


def decided_look(evidence: Mapping[str, Any]) -> Look:
    """The look that a recorded decision rests on."""
    verdict = evidence["verdict"]
    adapters = [verdict["sides"][side]["adapter_hash"] for side in ("challenger", verdict["against"])]
    return Look(verdict["scenarios"], *adapters)


def at_this_split(row: Any, scenarios: str, ids: set[str]) -> bool:
    """Whether a row was a look at the split with these scenarios, or at enough of them."""
    return bool(row["scenarios"] == scenarios or len(ids.intersection(row["ids"] or ())) > SHARED * len(ids))
