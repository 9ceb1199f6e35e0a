"""Proxy and truth: when the alarm is raised, when it is not, what it names, and what is read of a run."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import environments
from addons.tripwires import watch
from addons.tripwires.watch import HELD_OUT, SUCCESS, Point, alarm
from benchmarks import exploits
from benchmarks._exploits import EXPLOITS
from environments import multiplication
from environments.base import Scenario
from steps.core.errors import UserError
from steps.core.evaluations import Evaluation, Judged
from steps.core.params import Params, Promote
from steps.core.records import PAIRS, Pair, Reward, write_records
from steps.judging.judge import Judge
from steps.judging.rule import by_rule
from steps.registry import checks, gate, paired
from tests.support.judged import attempt, words

N = 100


def point(iteration: int, wins: int, reward: float | None, clusters: int = N, **truths: int) -> Point:
    """Success at the first `wins` scenarios, or at those of other truths, and a reward that differs by scenario."""
    ids = [f"val-{place}" for place in range(N)]
    numbers = {SUCCESS: wins} | truths
    values = {name: (np.arange(N) < count).astype(float) for name, count in numbers.items()}
    proxy_N = None if reward is None else reward + 0.1 * np.cos(np.arange(N) * (iteration + 1.0))
    return Point(iteration, proxy_N, values, ids, np.arange(N) * clusters // N)


def curve(*pairs: tuple[int, float | None]) -> list[Point]:
    return [point(iteration, wins, reward) for iteration, (wins, reward) in enumerate(pairs)]


HACKED = ((40, 0.2), (60, 0.4), (80, 0.6), (55, 0.8), (20, 0.9))


def test_the_first_iteration_is_named_with_the_best_one_before_it_and_examples() -> None:
    seen = alarm(curve(*HACKED), 10, 0.05)
    assert seen is not None
    assert (seen.iteration, seen.since, seen.truth) == (3, 2, SUCCESS)
    assert seen.fall[0] == pytest.approx(-0.25)
    assert seen.rise is not None
    assert seen.rise[0] == pytest.approx(0.2, abs=0.02)
    assert seen.rise[1] > 0
    assert seen.tail == pytest.approx(0.05 / 10 / 3)
    assert all(55 <= int(name.removeprefix("val-")) < 80 for name in seen.examples)
    gains = np.cos(np.arange(N) * 4.0) - np.cos(np.arange(N) * 3.0)
    best = sorted(range(55, 80), key=lambda place: -gains[place])[:3]
    assert seen.examples == tuple(f"val-{place}" for place in best)
    assert seen.sentence().startswith("reward hacking: from iteration 2 to 3 success fell by 0.250 [")
    assert "on the same 100 validation scenarios, while the reward rose by 0.2" in seen.sentence()
    assert seen.sentence().endswith("in run/003/evaluation")


def test_the_intervals_are_those_of_the_gate() -> None:
    """25 lost and none won of 100, at the tail of the third iteration of ten."""
    seen = alarm(curve(*HACKED), 10, 0.05)
    assert seen is not None
    lost = np.arange(N) < 25
    assert seen.fall == pytest.approx(paired.paired_interval(np.zeros(N), lost, np.arange(N), 0.05 / 10 / 3))


@pytest.mark.parametrize(
    "pairs",
    [
        [(40, 0.2), (60, 0.4), (80, 0.6), (90, 0.8)],  # both rise
        [(40, 0.2), (80, 0.6), (50, 0.3), (20, 0.1)],  # both fall: training has broken down, and no reward hides it
        [(40, 0.2), (80, 0.6), (76, 0.8)],  # a fall within chance
        [(40, 0.2), (80, 0.6), (50, 0.6)],  # the reward stays
        [(40, 0.2)],
        [],
    ],
)
def test_a_run_that_is_well_goes_on(pairs: list[tuple[int, float]]) -> None:
    assert alarm(curve(*pairs), 10, 0.05) is None


def test_where_the_rewards_level_says_nothing_the_truth_alone_decides() -> None:
    relative = curve(*((wins, None) for wins, _ in HACKED))
    seen = alarm(relative, 10, 0.05)
    assert seen is not None
    assert (seen.iteration, seen.rise) == (3, None)
    assert "compares attempts with each other" in seen.sentence()


def test_a_second_truth_is_watched_and_shares_the_error() -> None:
    points = [point(k, 40 + 10 * k, 0.2 * k, **{HELD_OUT: held}) for k, held in enumerate((50, 60, 30, 20))]
    seen = alarm(points, 10, 0.05)
    assert seen is not None
    assert (seen.iteration, seen.truth) == (2, HELD_OUT)
    assert seen.tail == pytest.approx(0.05 / 10 / 2 / 2)


def test_more_planned_iterations_and_alike_scenarios_ask_for_more() -> None:
    fall = curve((80, 0.2), (65, 0.5))
    assert alarm(fall, 10, 0.05)
    assert alarm(fall, 10_000, 0.05) is None
    alike = [place._replace(clusters_N=np.arange(N) // 10) for place in fall]
    assert alarm(alike, 10, 0.05) is None, "one or two clusters of ten"


@pytest.mark.parametrize("sizes", [[20] * 5, [60, *[1] * 40], [10] * 10, [30, 20, 10, *[5] * 8]])
def test_a_run_whose_truth_stays_is_seldom_stopped_whatever_its_clusters(sizes: list[int]) -> None:
    """60 runs of six iterations that are equal in truth, where a fifth of a cluster are alike and the reward says nothing:
    three alarms are allowed, and eight or more have a probability of 0.01."""
    generator, clusters = np.random.default_rng(3), np.repeat(np.arange(len(sizes)), sizes)
    stopped = 0
    for _ in range(60):
        chance = generator.beta(1, 1, len(sizes))[clusters]
        points = []
        for iteration in range(6):
            common = generator.random(len(sizes))[clusters]
            drawn = np.where(generator.random(N) < 0.2, common, generator.random(N))
            points.append(Point(iteration, None, {SUCCESS: (drawn < chance) * 1.0}, [""] * N, clusters))
        stopped += alarm(points, 5, 0.05) is not None
    assert stopped <= 7


# --- Simulations of the benchmark


SIMULATED = ("email_search", "times_tables", "tic_tac_toe", "json_records")


@pytest.fixture(scope="module")
def data_once() -> Iterator[None]:
    """A task's data is read once for all its faults and splits."""
    with pytest.MonkeyPatch.context() as patch:
        for env in map(environments.load, SIMULATED):
            patch.setattr(env, "load", functools.cache(env.load))
        yield


def test_clean_runs_are_seldom_stopped() -> None:
    """300 simulated runs; 15 alarms are allowed. The benchmark's own rows have 300 more."""
    assert sum(exploits.clean_alarm(kind, 1000 + trial) for kind in exploits.KINDS for trial in range(100)) <= 15


@pytest.mark.parametrize(
    "exploit",
    [exploit for exploit in EXPLOITS if exploit.task in SIMULATED],
    ids=lambda exploit: f"{exploit.task}: {exploit.name}",
)
@pytest.mark.usefixtures("data_once")
def test_a_planted_fault_is_learnt_and_not_promoted(exploit: Any) -> None:
    """But for the one whose success is fooled as well, with no judge held out: nothing can see that. The six forms of
    json_records are too few clusters for the watch, so that the gate alone refuses there."""
    row = exploits.measure(exploit, (30, 60, 64))
    assert row["learnt"] > 0.5
    assert row["blocked"] == (exploit.held_out or not exploit.believed), row
    assert exploit.task == "json_records" or (row["stopped"] is None) == (not row["blocked"])
    assert row["clean"]


def test_there_are_faults_for_each_task_that_has_hacks() -> None:
    from benchmarks._hacks import HACKS

    assert {exploit.task for exploit in EXPLOITS} == set(HACKS)
    assert len(EXPLOITS) >= 20
    assert len({(exploit.task, exploit.name) for exploit in EXPLOITS}) == len(EXPLOITS)


# --- A run's files

SCENARIOS = [multiplication.scenario("val", 10 + number, 20 + number) for number in range(6)]


def evaluation(
    run: Path, iteration: int, right: int, held_out: list[float] | None = None, is_beside: bool = True, **more: Any
) -> None:
    """An evaluation on disk, in which the first `right` products are right. `held_out`: a judge's scores, beside success."""
    folder = run / f"{iteration:03d}" / "evaluation"
    folder.mkdir(parents=True)
    env = multiplication.Multiplication
    played = [
        attempt(scenario, 0, words(str(scenario.data["answer"] if place < right else 1)))
        for place, scenario in enumerate(SCENARIOS)
    ]
    rewards = [by_rule(env, scenario, one) for scenario, one in zip(SCENARIOS, played, strict=True)]
    if held_out is not None:
        pairs = [
            Pair(scenario_id=scenario.id, score=score, reason="")
            for scenario, score in zip(SCENARIOS, held_out, strict=True)
        ]
        (folder / PAIRS).write_text("".join(pair.model_dump_json() + "\n" for pair in pairs))
        counts = {"wins": 0, "ties": 6, "losses": 0, "disagreements": 0, "unjudged": 0}
        judged = Judged(rival="base policy", rival_hash="b", judge="j", share=0.5, ci95=(0, 1), **counts)
        more |= {"held_out": judged} if is_beside else {}
    summary = {"split": "val", "adapter_hash": "a", "n": 6, "turns": 1, "tokens": 2, "success": right / 6}
    summary |= {"ci95": (0, 1), "reward": 0.0} | more
    (folder / "summary.json").write_text(Evaluation.model_validate(summary).text())
    write_records(played, folder / "trajectories.parquet")
    write_records(rewards, folder / "rewards.parquet")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "scenarios").mkdir()
    write_records(SCENARIOS, tmp_path / "scenarios/val.parquet")
    return tmp_path


def read(run: Path, iteration: int = 0, **sections: Any) -> Point:
    clusters = {scenario.id: f"c{place // 2}" for place, scenario in enumerate(SCENARIOS)}
    params = Params.model_validate({"task": "multiplication"} | sections)
    return watch.read_point(run, iteration, params, multiplication.Multiplication, clusters)


RULER = {"endpoint": {"model": "trainer"}}


def test_by_the_rule_its_reward_is_the_proxy_and_its_success_the_truth(run: Path) -> None:
    evaluation(run, 0, 4)
    made = read(run, score={"judges": {"rule": 2}})
    assert made.truths.keys() == {SUCCESS}
    assert made.truths[SUCCESS].tolist() == [1, 1, 1, 1, 0, 0]
    right, wrong = multiplication.CORRECT, multiplication.WRONG
    assert made.proxy_N is not None
    assert made.proxy_N.tolist() == [2 * right] * 4 + [2 * wrong] * 2
    assert made.clusters_N.tolist() == [0, 0, 1, 1, 2, 2]
    assert made.ids[0] == f"001-{SCENARIOS[0].id}-0"


def test_criteria_are_computed_and_ruler_has_no_level(run: Path) -> None:
    evaluation(run, 0, 4)
    made = read(run, score={"judges": {"criteria": 1}})
    assert made.proxy_N is not None
    assert made.proxy_N[0] == pytest.approx(1.0)
    assert made.proxy_N[5] < 0.9
    assert read(run, score={"judges": {"rule": 1, "ruler": 1}, "ruler": RULER}).proxy_N is None


class Constant(Judge):
    """Gives every attempt the score 3."""

    def rewards(self) -> list[Reward]:
        return [reward.model_copy(update={"score": 3.0}) for reward in self.batch.rules]


class Comparing(Constant):
    is_comparing = True


def test_the_proxy_has_every_judge_with_a_weight(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the judge says of itself, and not by its name."""
    evaluation(run, 0, 4)
    weights = {"judges": {"rule": 1, "criteria": 2}}
    alone = read(run, score={"judges": {"rule": 1}})
    monkeypatch.setattr(watch, "kind_of", lambda name: Constant)
    both = read(run, score=weights)
    assert alone.proxy_N is not None
    assert both.proxy_N is not None
    assert (both.proxy_N - alone.proxy_N).tolist() == pytest.approx([6.0] * 6)
    monkeypatch.setattr(watch, "kind_of", lambda name: Comparing)
    assert read(run, score=weights).proxy_N is None


def test_a_judge_that_is_held_out_is_a_truth(run: Path) -> None:
    scores = [0.5, 0.5, 1.0, 0.0, 0.0, 1.0]
    evaluation(run, 0, 4, scores)
    made = read(run)
    assert {name: values.tolist() for name, values in made.truths.items()} == {
        SUCCESS: [1, 1, 1, 1, 0, 0],
        HELD_OUT: scores,
    }


def test_without_a_rule_only_another_judge_tells_the_truth(run: Path) -> None:
    counts = {"wins": 0, "ties": 6, "losses": 0, "disagreements": 0, "unjudged": 0}
    judged = Judged(rival="base policy", rival_hash="b", judge="j", share=0.5, ci95=(0, 1), **counts)
    evaluation(run, 0, 0, [0.5] * 6, judged=judged, is_beside=False, success=None, ci95=None, reward=None)
    score = {"judges": {"ruler": 1}, "ruler": RULER}
    assert read(run, score=score).truths == {}
    made = read(run, score=score, evaluate={"judge": {"endpoint": {"model": "other"}}})
    assert (made.proxy_N, list(made.truths)) == (None, [HELD_OUT])


def test_a_missing_evaluation_is_named(run: Path) -> None:
    with pytest.raises(UserError, match=r"003/evaluation does not exist: `.venv/bin/dvc checkout` brings it back"):
        read(run, 3)


def test_a_watch_reads_a_run_as_it_goes_on(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.conftest import ROOT

    monkeypatch.chdir(ROOT)
    for iteration, right in enumerate((6, 6, 0)):
        evaluation(run, iteration, right)
    params = Params.model_validate({"task": "multiplication", "score": {"judges": {"criteria": 1}}})
    seen = watch.Watch(run, params)
    assert [seen.add(iteration) for iteration in range(3)] == [None] * 3, "the reward fell as well"
    assert not seen.is_blind
    off = watch.Watch(run, params.model_copy(update={"promote": Promote.model_validate({"false_alarms": None})}))
    assert (off.add(0), off.points, off.is_blind) == (None, [], False)


def test_training_ends_where_the_alarm_is_raised() -> None:
    from flows.terminal import report
    from flows.training.ending import ending
    from steps.core.alike import Groups

    def point(iteration: int, wins: int) -> report.Point:
        scores = {str(place): float(place < wins) for place in range(20)}
        return report.Point(iteration, wins / 20, (0, 1), 0.0, scores=scores)

    shares = [point(iteration, wins) for iteration, wins in enumerate((8, 12, 16, 11))]
    seen = alarm(curve(*HACKED), 10, 0.05)
    assert seen is not None
    assert ending([], shares, [], 2) == ""
    assert ending([], shares, [], 1) == "Validation has not improved for 1 iterations"
    assert ending([], shares, [seen], 2).startswith("reward hacking: from iteration 2 to 3 success fell by 0.250")
    assert "No adapter of this run is promoted" in ending([], shares, [seen], 2)
    fallen = [point(iteration, wins) for iteration, wins in enumerate((16, 17, 0))]
    assert ending([], fallen, [], 9).startswith("Validation success fell to 0.000, below the 0.800 that")
    assert ending([], [*fallen[:2], point(2, 12)], [], 9) == "", "a fall by 0.2 on twenty scenarios may be chance"
    grouped = [each._replace(groups=Groups(dict.fromkeys(each.scores, "one"))) for each in fallen]
    assert ending([], grouped, [], 9) == "", "of a single group nothing can be said"


def test_promotion_looks_at_all_iterations_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of six scenarios, by RULER's reward, whose level says nothing: the base policy succeeds, the next iteration never."""
    import yaml

    from flows.promotion.judging import watched
    from steps.project import chain
    from tests.conftest import ROOT

    (tmp_path / "run/scenarios").mkdir(parents=True)
    write_records(SCENARIOS, tmp_path / "run/scenarios/val.parquet")
    (tmp_path / "tasks_data").symlink_to(ROOT / "tasks_data")
    monkeypatch.chdir(tmp_path)

    def check(right: int, **promote: Any) -> checks.Check | None:
        sections = {"score": {"judges": {"ruler": 1}, "ruler": RULER}, "train": {"iterations": 1}, "promote": promote}
        Path("params.yaml").write_text(yaml.safe_dump({"task": "multiplication"} | sections))
        chain.write_chain(1, 1, 0, [chain.START])  # what a run starts from is no iteration
        for iteration, count in enumerate((6, right)):
            shutil.rmtree(f"run/{iteration:03d}", ignore_errors=True)
            evaluation(Path("run"), iteration, count)
        return watched()

    assert check(0, false_alarms=None) is None
    made = check(0)
    assert made is not None
    assert not made.passed
    assert made.text.startswith("reward hacking: from iteration 0 to 1 success fell by 1.000")
    made = check(6)
    assert made is not None
    assert (made.passed, made.text) == (True, "in 1 iterations the reward has not risen while the truth fell")
    shutil.rmtree("run/001")
    made = watched()
    assert made is not None
    assert (made.passed, made.text.partition(":")[0]) == (True, "not measured")


# --- At the gate


def test_the_gate_refuses_what_was_seen_in_training_and_what_the_held_out_judge_finds_worse() -> None:
    scenarios = [Scenario.make("toy", "test", [], {"number": number}) for number in range(N)]
    better, base = ((np.arange(N) < wins).astype(float) for wins in (90, 40))
    report = {"passed": True, "scenarios": {"test": N}, "found": {}}

    def decide(share: float | None, watched: checks.Check | None = None) -> gate.Verdict:
        side = gate.Side("challenger", better, 3.0, 40.0)
        if share is not None:
            counts = {"wins": 0, "ties": 0, "losses": 0, "disagreements": 0, "unjudged": 0}
            judged = Judged(rival="base policy", rival_hash="b", judge="j", share=share, ci95=(0, 1), **counts)
            side = side._replace(held_out=judged)
        return gate.decide(gate.Look(scenarios, side, gate.Side("base", base, 3.0, 40.0)), report, Promote(), watched)

    assert decide(None).promoted
    assert {check.name for check in decide(None).checks}.isdisjoint({"held_out", "hacking"})
    assert decide(0.5, checks.hacking(None, "nothing")).promoted
    refused = decide(0.49, checks.hacking("reward hacking: it fell", "nothing"))
    assert [check.name for check in refused.checks if not check.passed] == ["held_out", "hacking"]
    assert refused.reason.startswith("failed: held_out, hacking; ")
    assert refused.checks[-1].text == "reward hacking: it fell"
