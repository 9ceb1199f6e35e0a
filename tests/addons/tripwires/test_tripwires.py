"""Tripwires: silent failures, each injected into the outputs of a real run, are seen; the run itself sets off none."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from addons.tripwires import tripwires
from addons.tripwires.__main__ import main
from addons.tripwires.tripwires import TRIPWIRES, findings
from environments.base import Scenario, error, use
from flows.terminal import health
from steps.core.errors import UserError
from steps.core.records import Reward, Trajectory, read_records, write_records
from tests.conftest import Project
from tests.support.judged import attempt

pytestmark = pytest.mark.slow
Change = Callable[[Path], None]


@pytest.fixture
def run(project: Project, tmp_path: Path) -> Path:
    """A copy of what the stages of two real iterations wrote."""
    names = shutil.ignore_patterns("timings", "checkpoint", "test", "rescored", "*.png")
    return shutil.copytree(project.folder / "run", tmp_path / "run", ignore=names)


def trajectories(change: Callable[[list[Trajectory]], list[Trajectory]]) -> Change:
    def inject(run: Path) -> None:
        path = run / "002/trajectories.parquet"
        write_records(change(read_records(Trajectory, path)), path)

    return inject


def each(change: Callable[[Trajectory], Trajectory]) -> Change:
    return trajectories(lambda batch: [change(trajectory) for trajectory in batch])


def rewards(change: Callable[[Reward], dict[str, Any]]) -> Change:
    def inject(run: Path) -> None:
        path = run / "002/rewards.parquet"
        write_records([reward.model_copy(update=change(reward)) for reward in read_records(Reward, path)], path)

    return inject


def json_file(name: str, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    def inject(run: Path) -> None:
        path = run / name
        values = json.loads(path.read_text())
        path.write_text(json.dumps(values | change(values)))

    return inject


def metrics(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Change:
    return json_file("002/metrics.json", change)


def with_observation(trajectory: Trajectory) -> Trajectory:
    first, *others = trajectory.turns
    answer = {"role": "tool", "name": "search_emails", "content": error("the index is locked")}
    return trajectory.model_copy(update={"turns": (first.model_copy(update={"observations": (answer,)}), *others)})


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        ("Error: wrong arguments for search_emails: keywords: field required.", "The policy makes it"),
        ("Error: there is no email with this id.", "A tool answers with it: mend the tool where"),
        ("ValueError: no such column", "It ends the episode: mend the environment"),
    ],
)
def test_an_error_that_repeats_is_the_policys_or_the_tools(text: str, advice: str) -> None:
    scenario = Scenario.make("t", "train", [], {})
    if text.startswith("Error: "):
        batch = [attempt(scenario, 0, use("search_emails"), {"role": "tool", "name": "", "content": text})]
    else:
        batch = [attempt(scenario, 0, use("search_emails"), stop="error", error=text)]
    [found] = tripwires.errors_of(batch[0])
    assert tripwires.cure(found, batch).startswith(advice)


def first_attempts(batch: list[Trajectory]) -> list[Trajectory]:
    """Each attempt at a scenario says what the first one said."""
    first: dict[str, Trajectory] = {}
    for trajectory in batch:
        first.setdefault(trajectory.scenario_id, trajectory)
    return [trajectory.model_copy(update={"turns": first[trajectory.scenario_id].turns}) for trajectory in batch]


def copy_adapter(run: Path) -> None:
    shutil.rmtree(run / "002/adapter")
    shutil.copytree(run / "001/adapter", run / "002/adapter")


def leak(run: Path) -> None:
    """The attempts at one scenario are at one of the test split."""
    held_out = read_records(Scenario, run / "scenarios/test.parquet")[0].id

    def moved(batch: list[Trajectory]) -> list[Trajectory]:
        first = batch[0].scenario_id
        return [one.model_copy(update={"scenario_id": held_out}) if one.scenario_id == first else one for one in batch]

    trajectories(moved)(run)


def validated(run: Path, number: str, success: float) -> None:
    """All validation scenarios of an iteration succeed (1.0) or fail (0.0); none is like another."""
    (run / "scenarios/clusters.json").unlink(missing_ok=True)
    json_file(f"{number}/evaluation/summary.json", lambda _: {"success": success, "clusters": None})(run)
    path = run / number / "evaluation/rewards.parquet"
    changed = [reward.model_copy(update={"success": bool(success)}) for reward in read_records(Reward, path)]
    write_records(changed, path)


def fall(run: Path) -> None:
    """Success falls from all to none, while the reward of the batch rises."""
    validated(run, "001", 1.0)
    validated(run, "002", 0.0)
    json_file("001/metrics.json", lambda _: {"reward_mean": -0.4})(run)
    metrics(lambda _: {"reward_mean": 0.9})(run)


def below_base(run: Path) -> None:
    for number, success in (("000", 1.0), ("001", 1.0), ("002", 0.0)):
        validated(run, number, success)


INJECTED: dict[str, tuple[str, Change]] = {  # the tripwire that must see it
    "all attempts earn the same": ("no variance", metrics(lambda old: {"zero_variance_groups": old["groups"]})),
    "an episode is lost": ("missing episodes", trajectories(lambda batch: batch[1:])),
    "captures are empty": ("empty episodes", each(lambda one: one.model_copy(update={"turns": ()}))),
    "a tool answers all with the same error": ("repeated error", each(with_observation)),
    "episodes fail": (
        "failed episodes",
        each(lambda one: one.model_copy(update={"stop_reason": "error", "error": f"KeyError {one.id}"})),
    ),
    "rows break the token contract": ("quarantine", metrics(lambda old: {"quarantined": old["collected"] // 2})),
    "the judge leaves attempts out": ("unscored", rewards(lambda _: {"score": None, "success": None})),
    "the judge answers alike for all": ("judge alike", rewards(lambda _: {"name": "ruler", "score": 0.5})),
    "the sampler repeats its seed": ("same attempts", trajectories(first_attempts)),
    "a stale adapter goes on sampling": (
        "stale sampler",
        each(lambda one: one.model_copy(update={"adapter_hash": "0123456789abcdef"})),
    ),
    "logprobs drift": ("logprob drift", metrics(lambda _: {"sampler_kl": 0.02})),
    "the adapter did not change": ("adapter unchanged", copy_adapter),
    "a mask takes the whole gradient": ("zero gradient", metrics(lambda _: {"grad_norm": 0.0})),
    "a grammar chooses nearly all tokens": (
        "no choice", metrics(lambda old: {"tokens_dropped/constrained": 99 * old["tokens_trained"]})
    ),
    "length explodes": ("length", metrics(lambda old: {"tokens": 5 * old["tokens"]})),
    "turns explode": ("turns", metrics(lambda old: {"turns": 5 * old["turns"]})),
    "episodes are cut off": ("truncation", metrics(lambda old: {"truncated": old["collected"]})),
    "the policy is sure of failing": ("certainty", metrics(lambda _: {"entropy": 1e-4, "success": 0.1})),
    "success falls below the base policy's": ("collapse", below_base),
    "validation falls while the reward rises": ("reward hacking", fall),
    "another adapter was evaluated": (
        "other adapter",
        json_file("002/evaluation/summary.json", lambda _: {"adapter_hash": "0123456789abcdef"}),
    ),
    "a test scenario was trained on": ("held-out scenarios", leak),
}  # fmt: skip


def test_a_real_run_sets_off_none(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [findings(run, number) for number in (1, 2)] == [[], []]
    assert main([str(run)]) == 0
    assert capsys.readouterr().out == "No tripwire sees anything.\n"


@pytest.mark.parametrize("fault", INJECTED)
def test_a_silent_failure_is_seen_in_its_iteration(
    run: Path, fault: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, inject = INJECTED[fault]
    inject(run)
    seen = {finding.name: finding.text for finding in findings(run, 2)}
    assert name in seen
    assert len(seen[name]) > 40
    assert findings(run, 1) == []
    monkeypatch.chdir(run.parent)
    assert health.tripped(2).keys() == seen.keys()
    assert main([]) == 1
    assert f"iteration 2, {name}: " in capsys.readouterr().out


def test_files_are_read_once_and_again_where_one_has_changed(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = list[int]()
    monkeypatch.setitem(TRIPWIRES, "length", lambda it: looked.append(it.number) or iter(()))
    for _ in range(3):
        assert findings(run, 2) == []
    (run / "002/timings").mkdir()
    (run / "002/timings/overhead.json").write_text("{}\n")
    findings(run, 2)
    assert looked == [2], "what a flow writes beside does not count"
    for name in ("001/metrics.json", "002/metrics.json"):
        (run / name).write_text((run / name).read_text() + " ")
        findings(run, 2)
    assert looked == [2, 2, 2]


def test_each_tripwire_has_a_fault() -> None:
    assert {name for name, _ in INJECTED.values()} == set(TRIPWIRES)
    assert len(INJECTED) >= 15


def test_a_missing_file_is_a_sentence(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run / "002/rewards.parquet").unlink()
    with pytest.raises(UserError, match=r"rewards\.parquet does not exist: make it"):
        findings(run, 2)
    monkeypatch.chdir(run.parent)
    assert list(health.tripped(2)) == ["not looked at"]
    (run / "002/metrics.json").write_text("{}")
    assert "run/002 cannot be read ('zero_variance_groups')" in health.tripped(2)["not looked at"]
