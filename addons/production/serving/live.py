"""Decides on served versions by what people say: a canary is promoted or withdrawn, and a champion may be rolled back.

addons/production/serve.py calls this at each look-up of the alias. The scores are those of feedback in the store of captured
conversations; a correction without a score counts as 0. Looks are counted in the versions' tags, so that a restart of the
server does not begin again (addons/production/serving/comparison.py says why they count). Every decision is a row of the
ledger. One puts a version on trial: the alias alone does not.
"""

from __future__ import annotations

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel

from addons.production.section import Serve
from addons.production.serving import comparison
from addons.production.traces.opinions import moment
from addons.production.traces.store import Store
from flows.promotion import change
from steps.project.ledger import Ledger
from steps.registry import decisions
from steps.registry.model import CANARY, RegisteredModel

SINCE, LOOKS = "canary_since", "canary_looks"  # tags of a version on trial
WITHDRAWN = "withdrawn"
ERRORS = 0.05  # largest probability of a wrong decision on a version, over all comparisons that are made
DAYS = 14  # after which a canary that is not decided is withdrawn
BACK = "rollback_looks"  # tag of a champion


class Scores:
    """The scores of conversations by version, read from the store as it grows."""

    def __init__(self, store: Store) -> None:
        self.store, self.ends = store, dict[str, int]()
        self.answers: dict[str, tuple[str, str, str]] = {}  # response -> conversation, version, time
        self.scores: dict[str, float] = {}  # response -> its last score

    def update(self) -> None:
        """Read what was added."""
        for line in self.store.lines(self.ends):
            self.ends[line.segment] = line.end
            record = line.record or {}
            if record.get("kind") == "call" and record.get("version"):
                place = record["key"], record["version"], record["time"]
                self.answers.setdefault(record["response"], place)  # an id is of the first answer that had it
            elif record.get("kind") == "feedback":
                score = record.get("score")
                score = 0.0 if score is None and record.get("correction") else score
                if score is not None:
                    self.scores[record["response"]] = float(score)

    def of(self, version: str, since: str = "") -> list[float]:
        """The mean score of each conversation in which this version answered, from this moment (ISO 8601, UTC) on."""
        by_conversation: dict[str, list[float]] = defaultdict(list)
        for response, score in self.scores.items():
            key, answered, time = self.answers.get(response, ("", "", ""))
            if answered == version and time >= since:
                by_conversation[key].append(score)
        return [sum(scores) / len(scores) for scores in by_conversation.values()]


def share(params: BaseModel) -> float:
    """The share of the conversations that a version gets on trial; 0: none is put on trial."""
    return Serve.of(params).canary


def trial_writes(version: str, now: datetime | None = None) -> list[change.Write]:
    """The writes that put a version on trial, from now on."""
    since = ("tag", version, SINCE, moment(now or datetime.now(UTC)))
    return [since, ("tag", version, LOOKS, "0"), ("alias", CANARY, version)]


def on_trial(model: RegisteredModel) -> str | None:
    """The version on trial: that with the alias, if it is not champion and the ledger says that the gate let it through.
    UserError where the ledger cannot be asked."""
    version = model.aliases.get(CANARY)
    if version is None or version == model.aliases.get("champion"):
        return None
    adapter = model.versions[version].tags.get("adapter_hash", "")
    with Ledger(patience=change.PATIENCE) as ledger, ledger.reading() as link:
        return version if decisions.let_on_trial(link, model.name, version, adapter) else None


def decide_canary(model: RegisteredModel, scores: Scores, settings: Serve, now: datetime | None = None) -> str:
    """Promote or withdraw the version on trial where that can be said now: the sentence that says it, else an empty text."""
    version, champion = on_trial(model), model.aliases.get("champion")
    if version is None or champion is None:
        return ""
    tags = model.versions[version].tags
    since = tags.get(SINCE, "")
    own, other = scores.of(version, since), scores.of(champion, since)
    looks = int(tags.get(LOOKS, 0))
    if comparison.is_due(looks, len(own), len(other), settings.min_feedback):
        model.client.set_model_version_tag(model.name, version, LOOKS, str(looks + 1))
        compared = comparison.compare(own, other, looks + 1, ERRORS)
        if compared.low >= -settings.max_drop:
            return promote(model, version, f"people's feedback on the canary: {compared}")
        if compared.high < 0:
            return withdraw(model, version, f"people's feedback on the canary: {compared}")
        return ""
    began = datetime.fromisoformat(since) if since else None
    if began and (now or datetime.now(UTC)) - began > timedelta(days=DAYS):
        counts = f"{len(own)} conversations with feedback, {len(other)} of the champion"
        return withdraw(model, version, f"not decided in {DAYS} days ({counts})")
    return ""


def promote(model: RegisteredModel, version: str, why: str) -> str:
    """Make the version on trial champion."""
    writes = [*change.champion_writes(model, version), ("tag", version, "promoted", "true")]
    change.decide(model, "promotion", version, why, writes, is_of_trial=True)
    return f"version {version} is promoted, {why}"


def withdraw(model: RegisteredModel, version: str, why: str) -> str:
    """End a trial. The version keeps its number; only a person can put it on trial again (`flows.promote --version`)."""
    writes = [("no_alias", CANARY), ("tag", version, WITHDRAWN, why)]
    change.decide(model, "withdrawal", version, why, writes, is_of_trial=True)
    return f"version {version} is withdrawn, {why}"


def decide_champion(model: RegisteredModel, scores: Scores, settings: Serve, roll_back: Any) -> str:
    """Have the champion rolled back where its scores are surely worse than those of the version before it were, by more than
    serve.rollback: the sentence that says it, else an empty text. `roll_back(why)` does it."""
    version, before = model.aliases.get("champion"), model.aliases.get("previous")
    if settings.rollback is None or version is None or before is None or int(version) < int(before):
        return ""  # the last: it was rolled back already, and is not taken forward again
    own, other = scores.of(version), scores.of(before)
    looks = int(model.versions[version].tags.get(BACK, 0))
    if not comparison.is_due(looks, len(own), len(other), settings.min_feedback):
        return ""
    model.client.set_model_version_tag(model.name, version, BACK, str(looks + 1))
    compared = comparison.compare(own, other, looks + 1, ERRORS)
    if compared.high >= -settings.rollback:
        return ""
    roll_back(f"people's feedback, champion against version {before}: {compared}")
    return f"version {version} is rolled back to {before}, {compared}"
