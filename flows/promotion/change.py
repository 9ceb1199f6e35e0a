"""Changes which version is champion or on trial: several writes to MLflow's registry and a row of the ledger, as one.

A process may be killed between any two writes. So the ledger first gets a row `intent`, with the decision and with every
write to the registry that it takes; then the writes are made, then the decision's own row closes the intent. Whoever finds
an open intent makes all of its writes again, which changes nothing where they were made before, and closes it:
flows.promote, flows.rollback, addons.production.flywheel and `make serve` do so before they look at the registry.
Databases call that a redo log.

The writes are made inside a transaction of the ledger that nobody else can have at the same time. So two who decide never
interleave: the second one finishes what the first one began, or waits and finds it done. The order of the writes keeps
`previous` away from the version that is champion at every moment in between.

Left out: a ledger that is away. A rollback must work then, too: the writes are made without an intent, and the row is added
afterwards, if the ledger is back within 90 seconds. The end of a trial waits, for the ledger says whether it is one.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa

from steps.core.errors import UserError
from steps.core.progress import say
from steps.project.ledger import PATIENCE as LOCKED
from steps.project.ledger import Ledger, LedgerAway
from steps.project.store import address, connect, explained
from steps.registry import decisions
from steps.registry.decisions import CANCELLED, INTENT, Decision
from steps.registry.model import CANARY, RegisteredModel

PATIENCE = 5.0  # seconds to wait for the ledger before the writes are made without it
LOCK = 0x_0DEC_1DE5  # of PostgreSQL's advisory locks, beside a hash of the model's name: an arbitrary number
Write = Sequence[str]  # alias NAME VERSION, no_alias NAME, tag VERSION NAME VALUE, text VERSION DESCRIPTION


class Intent(NamedTuple):
    """A decision, what it writes to the registry, in this order, and the evidence of its verdict."""

    decision: Decision
    writes: Sequence[Write]
    evidence: dict[str, Any] | None = None

    def row(self, event: str = INTENT) -> Decision:
        """The ledger's row that says what is going to be done."""
        content = {"event": self.decision.event, "why": self.decision.why, "writes": self.writes}
        return dataclasses.replace(self.decision, event=event, why=json.dumps(content))


def champion_writes(model: RegisteredModel, version: str) -> list[Write]:
    """The writes that make a version champion, and the one before it `previous`; it is on trial no longer."""
    before, writes = model.aliases.get("champion"), list[Write]()
    if model.aliases.get("previous") == version:
        writes.append(("no_alias", "previous"))
    writes.append(("alias", "champion", version))
    if before is not None and before != version:
        writes.append(("alias", "previous", before))
    if model.aliases.get(CANARY) == version:
        writes.append(("no_alias", CANARY))
    return writes


def decide(
    model: RegisteredModel,
    event: str,
    version: str,
    why: str,
    writes: Sequence[Write],
    folder: Path | None = None,
    is_of_trial: bool = False,
) -> None:
    """Make these writes and record the decision, with the verdict in `folder`. `model` is as it was when it was decided.

    UserError where another version is champion or on trial by now, where this person may not decide, where MLflow refuses
    it, and, for the end of a trial, where the ledger is away.
    """
    from addons.lineage import index, reader

    adapters = {number: entry.tags.get("adapter_hash") for number, entry in model.versions.items()}
    champion = model.aliases.get("champion")
    evidence = reader.evidence(folder, os.fspath(folder)) if folder else None
    own, former, verdict = adapters.get(version), adapters.get(champion or ""), evidence["hash"] if evidence else None
    is_recorded = True
    intent = Intent(Decision(event, model.name, version, own, champion, former, why, verdict), writes, evidence)
    try:
        with _here() as ledger:
            decisions.check_right(ledger)
            while not ledger.change(lambda link: _begun(link, model, intent)):
                _close(ledger, model.client, model.name)
            if isinstance(refusal := _close(ledger, model.client, model.name, intent), UserError):
                raise refusal
    except LedgerAway:
        if is_of_trial:
            raise
        _check(model)
        _write(model.client, model.name, writes)
        is_recorded = False
    try:
        with Ledger() as ledger:
            if not is_recorded:
                decisions.record(ledger, intent.decision, evidence)
            if folder:
                index.add_verdict(Path.cwd(), ledger, os.fspath(folder))
    except UserError as problem:
        text = f"The ledger was not written: {problem}; MLflow's tags have what was decided."
        print(text, file=sys.stderr, flush=True)


def finish(root: Path, name: str) -> Decision | None:
    """Carry out what somebody began who was killed, and return it; None where there is nothing, or the ledger is away.
    UserError where this person may not decide, or MLflow refuses it."""
    try:
        with _here() as ledger:
            with ledger.reading() as link:
                if _opened(link, name) is None:
                    return None
            decisions.check_right(ledger)
            done = _close(ledger, connect(root), name)
    except LedgerAway:
        return None
    assert not isinstance(done, UserError)
    if done is not None:
        say(f"finished what was begun and interrupted: {done.event} of {name} version {done.version} ({done.why})")
    return done


def last(name: str) -> Decision | None:
    """The last decision about a model; None where there is none, or the ledger is away."""
    try:
        with _here() as ledger, ledger.reading() as link:
            return next((each for each in reversed(decisions.listed(link)) if each.model == name), None)
    except LedgerAway:
        return None


def _here() -> Ledger:
    """The ledger, if it is there within PATIENCE; then it is waited for longer, while others decide or write."""
    ledger = Ledger(patience=PATIENCE)
    ledger.patience = LOCKED
    return ledger


def _opened(link: sa.Connection, name: str) -> Intent | None:
    """What was begun and is not closed."""
    row = decisions.last(link, name)
    if row is None or row["event"] != INTENT:
        return None
    content = json.loads(row["why"])
    values = {field.name: row[field.name] for field in dataclasses.fields(Decision)}
    values |= {"event": content["event"], "why": content["why"], "created": "", "decided_by": None}
    decision = Decision(**values)
    return Intent(decision, content["writes"], row["evidence"])


def _begun(link: sa.Connection, model: RegisteredModel, intent: Intent) -> bool:
    """Write the intent. False, and nothing is written, where another one is open. What repeats the last decision is made
    again, without a row."""
    _alone(link, model.name)
    if _opened(link, model.name) is not None:
        return False
    _check(model)
    if decisions.repeats(link, intent.decision):
        _write(model.client, model.name, intent.writes)
    else:
        decisions.add(link, intent.row(), intent.evidence)
    return True


def _close(ledger: Ledger, client: Any, name: str, own: Intent | None = None) -> Decision | UserError | None:
    """Carry out the open intent, and return its decision; None where there is none. With `own`, which nobody has tried yet,
    MLflow's refusal of the first write, which leaves nothing changed, cancels it and is returned."""
    fresh = [own] if own else []

    def work(link: sa.Connection) -> Decision | UserError | None:
        _alone(link, name)
        intent = _opened(link, name)
        if intent is None:
            return None
        is_own = bool(fresh) and fresh.pop().row() == intent.row()
        try:
            _write(client, name, intent.writes[:1], is_late=not is_own)
        except UserError as problem:
            if not is_own:
                raise
            decisions.add(link, intent.row(CANCELLED))
            return problem
        _write(client, name, intent.writes[1:], is_late=not is_own)
        decisions.add(link, intent.decision, intent.evidence)
        return intent.decision

    return ledger.change(work)


def _alone(link: sa.Connection, name: str) -> None:
    """Wait for the transaction of another one who decides about this model; in SQLite `change` has done so."""
    if link.dialect.name == "postgresql":
        link.exec_driver_sql("SET LOCAL lock_timeout = '30s'")
        link.execute(sa.select(sa.func.pg_advisory_xact_lock(LOCK, sa.func.hashtext(name))))


def _check(model: RegisteredModel) -> None:
    """UserError where the aliases are others than when the decision was made."""
    with explained(address(Path.cwd())):
        aliases = model.client.get_registered_model(model.name).aliases
    for alias in ("champion", "previous", CANARY):
        before, now = model.aliases.get(alias), aliases.get(alias)
        if before != (now and str(now)):
            raise UserError(f"the {alias} of {model.name} has become version {now} meanwhile: run the same again")


def _write(client: Any, name: str, writes: Sequence[Write], is_late: bool = False) -> None:
    """Make writes. `is_late`: what is about a version that was deleted since is passed over."""
    methods = {"alias": "set_registered_model_alias", "no_alias": "delete_registered_model_alias"}
    methods |= {"tag": "set_model_version_tag", "text": "update_model_version"}
    for kind, *values in writes:
        with explained(address(Path.cwd())):
            try:
                getattr(client, methods[kind])(name, *values)
            except Exception as problem:
                if not is_late or getattr(problem, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":
                    raise
