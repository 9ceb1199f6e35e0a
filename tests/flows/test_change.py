"""A decision is killed at every moment, and whoever comes next finishes it: registry and ledger agree, and there is a way
back.

The registry is in memory, so that each write can be the last one; the ledger is a real one. `python -m
tests.support.decision_kills` kills real processes at random moments, with MLflow's real server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from addons.production.section import Serve
from addons.production.serving import live
from flows import rollback
from flows.promotion import change
from steps.core.errors import UserError
from steps.project.ledger import Ledger
from steps.registry import decisions
from tests.support.fake_registry import FakeRegistry, Killed

START = datetime(2026, 11, 1, tzinfo=UTC)


class Scores(live.Scores):
    """What people say: all of them are content with version 2, or none."""

    def __init__(self, score: float) -> None:
        self.score = score

    def of(self, version: str, since: str = "") -> list[float]:
        return [self.score if version == "2" else 0.5] * 400


def promote(registry: FakeRegistry) -> None:
    if registry.aliases.get("champion") == "2":
        return  # as flows.promote, which has nothing to do then
    writes = [*change.champion_writes(registry.model, "2"), ("tag", "2", "promoted", "true")]
    change.decide(registry.model, "promotion", "2", "better", writes)


def refuse(registry: FakeRegistry) -> None:
    change.decide(registry.model, "refusal", "2", "worse", [("tag", "2", "promoted", "false")])


def begin_trial(registry: FakeRegistry) -> None:
    change.decide(registry.model, "canary", "2", "better", live.trial_writes("2", START))


def roll_back(registry: FakeRegistry) -> None:
    rollback.rollback(Path.cwd(), "toy", "previous", "slow")


def decide_trial(score: float) -> Callable[[FakeRegistry], None]:
    def decide(registry: FakeRegistry) -> None:
        for _ in range(6):  # as a server looks again and again
            live.decide_canary(registry.model, Scores(score), Serve(canary=0.5, min_feedback=10), START)

    return decide


# name -> (aliases before, whether version 2 is on trial, the operation, aliases after, the ledger's last event)
OPERATIONS: dict[str, tuple[dict[str, str], bool, Callable[[FakeRegistry], None], dict[str, str], str]] = {
    "first promotion": ({}, False, promote, {"champion": "2"}, "promotion"),
    "promotion": ({"champion": "1"}, False, promote, {"champion": "2", "previous": "1"}, "promotion"),
    "promotion of the previous one": (
        {"champion": "3", "previous": "2"},
        False,
        promote,
        {"champion": "2", "previous": "3"},
        "promotion",
    ),
    "refusal": ({"champion": "1"}, False, refuse, {"champion": "1"}, "refusal"),
    "rollback": (
        {"champion": "3", "previous": "1"},
        False,
        roll_back,
        {"champion": "1", "previous": "3"},
        "rollback",
    ),
    "start of a trial": ({"champion": "1"}, False, begin_trial, {"champion": "1", "canary": "2"}, "canary"),
    "trial that ends well": (
        {"champion": "1", "previous": "3"},
        True,
        decide_trial(1.0),
        {"champion": "2", "previous": "1"},
        "promotion",
    ),
    "trial that ends badly": (
        {"champion": "1", "previous": "3"},
        True,
        decide_trial(0.0),
        {"champion": "1", "previous": "3"},
        "withdrawal",
    ),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")


def made(registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, is_on_trial: bool) -> FakeRegistry:
    """The product's ways to this registry lead to the fake one."""
    monkeypatch.setattr(rollback, "read_registry", lambda *_: registry.model)
    monkeypatch.setattr(change, "connect", lambda _: registry)
    if is_on_trial:
        begin_trial(registry)
        registry.made = 0
    return registry


def rows() -> list[tuple[str, str, str | None]]:
    with Ledger() as ledger, ledger.reading() as link:
        assert change._opened(link, "toy") is None, "nothing is left open"
        return [(each.event, each.version, each.champion) for each in decisions.listed(link)]


@pytest.mark.parametrize("name", OPERATIONS)
def test_killed_at_any_write_whoever_comes_next_finishes_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, is_on_trial, operation, after, event = OPERATIONS[name]
    undisturbed = made(FakeRegistry(**before), monkeypatch, is_on_trial)
    operation(undisturbed)
    assert undisturbed.aliases == after
    expected, writes = rows(), undisturbed.made
    assert expected[-1] == (event, after.get("champion") if event == "rollback" else "2", before.get("champion"))
    for place in range(1, writes + 1):
        for is_after in (False, True):
            case = f"write {place} of {writes}, {'after' if is_after else 'before'} it"
            monkeypatch.setenv("FLYWHEEL_LEDGER_URL", f"sqlite:///{tmp_path}/{place}-{is_after}.db")
            registry = made(FakeRegistry(**before), monkeypatch, is_on_trial)
            registry.fatal, registry.is_after = place, is_after
            with pytest.raises(Killed):
                operation(registry)
            assert registry.aliases.get("champion") != registry.aliases.get("previous", ""), case
            change.finish(tmp_path, "toy")  # as `make serve` does when it starts
            aliases = dict(registry.aliases)
            assert aliases.get("champion") != aliases.get("previous", ""), case
            is_done = rows() == expected
            assert is_done or registry.made == 0 or event in ("promotion", "withdrawal"), case
            assert aliases == (after if is_done else before | ({"canary": "2"} if is_on_trial else {})), case
            operation(registry)  # the same command again
            assert (registry.aliases, rows()) == (after, expected), case
            assert registry.versions["2"].tags.keys() == undisturbed.versions["2"].tags.keys(), case


@pytest.mark.parametrize("is_committed", [False, True])
@pytest.mark.parametrize("fatal", [1, 2])
def test_killed_at_a_commit_of_the_ledger(fatal: int, is_committed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, count = made(FakeRegistry(champion="1"), monkeypatch, False), iter(range(1, 9))
    whole = Ledger.change

    def change_and_die(ledger: Ledger, work: Any) -> Any:
        is_fatal = next(count) == fatal
        if is_fatal and not is_committed:

            def interrupted(link: Any) -> None:
                work(link)
                raise Killed

            return whole(ledger, interrupted)
        result = whole(ledger, work)
        if is_fatal:
            raise Killed
        return result

    monkeypatch.setattr(Ledger, "change", change_and_die)
    with pytest.raises(Killed):
        promote(registry)
    monkeypatch.setattr(Ledger, "change", whole)
    change.finish(Path.cwd(), "toy")
    begun = (fatal, is_committed) != (1, False)
    assert registry.aliases == ({"champion": "2", "previous": "1"} if begun else {"champion": "1"})
    assert rows() == ([("promotion", "2", "1")] if begun else [])


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_two_who_decide_at_once_do_not_interleave(
    database: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each time one of them decides, and the other is told that the champion has changed, or decides after it."""
    if database == "postgresql":
        monkeypatch.setenv("FLYWHEEL_LEDGER_URL", request.getfixturevalue("postgresql"))
    registry = made(FakeRegistry(champion="1"), monkeypatch, False)
    registry.meanwhile = lambda: time.sleep(0.003)
    told: list[str] = []

    def decide(version: str) -> None:
        count, until = 0, time.monotonic() + 30
        while count < 3 and time.monotonic() < until:
            model = registry.model
            if model.aliases["champion"] == version:
                time.sleep(0.001)
                continue
            try:
                change.decide(model, "promotion", version, "better", change.champion_writes(model, version))
                count += 1
            except UserError as problem:
                told.append(str(problem))

    threads = [threading.Thread(target=decide, args=(version,)) for version in ("2", "3")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    decided = rows()
    assert len(decided) == 6
    with Ledger() as ledger, ledger.reading() as link:
        events = list(link.scalars(sa.select(decisions.DECISIONS.c.event).order_by(decisions.DECISIONS.c.id)))
    assert events == ["intent", "promotion"] * 6
    assert all("has become version" in text for text in told)
    champions = ["1", *(version for _, version, _ in decided)]
    assert [champion for _, _, champion in decided] == champions[:-1], "each decision replaced the one before it"
    assert registry.aliases == {"champion": champions[-1], "previous": champions[-2]}


def test_what_mlflow_refuses_leaves_nothing_to_finish(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who may write to the ledger, and not to the registry: nobody else carries that out later."""
    registry = made(FakeRegistry(champion="1"), monkeypatch, False)

    def refused(*_: object) -> None:
        raise UserError("403")

    monkeypatch.setattr(registry, "set_registered_model_alias", refused)
    with pytest.raises(UserError, match="403"):
        promote(registry)
    monkeypatch.undo()
    assert change.finish(Path.cwd(), "toy") is None
    assert registry.aliases == {"champion": "1"}


def test_a_version_that_was_deleted_meanwhile_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = made(FakeRegistry(champion="1"), monkeypatch, False)
    registry.fatal = 1
    with pytest.raises(Killed):
        promote(registry)

    def gone(*_: object) -> None:
        raise type("MlflowException", (Exception,), {"error_code": "RESOURCE_DOES_NOT_EXIST"})

    monkeypatch.setattr(registry, "set_registered_model_alias", gone)
    assert change.finish(Path.cwd(), "toy") is not None
    assert change.finish(Path.cwd(), "toy") is None


def test_a_trials_end_waits_for_the_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = made(FakeRegistry(champion="1"), monkeypatch, True)
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", "sqlite:////proc/no/ledger.db")
    with pytest.raises(UserError, match=r"the ledger .* cannot be opened"):
        decide_trial(1.0)(registry)
    assert registry.aliases == {"champion": "1", "canary": "2"}
    assert registry.versions["2"].tags[live.LOOKS] == "0", "nor is it a look"


@pytest.mark.nightly
def test_real_processes_killed_at_random_moments() -> None:
    from tests.support import decision_kills

    result = decision_kills.run(12, seed=3)
    assert result["wrong"] == []
    assert sum(result["kills"].values()) == 12
