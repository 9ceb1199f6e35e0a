"""How often the gate errs, by simulation: quick forms of benchmarks/gate.py, and the same of an interval that is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from benchmarks import gate as benchmark
from benchmarks._gate import DESIGNS, Design, JudgedSplits, Splits, World
from environments.base import Scenario
from steps.core.params import Promote
from steps.registry import gate, paired, power

TRIALS = 200
MOST = binom.ppf(0.999, TRIALS, 0.05) / TRIALS  # 0.1: what chance leaves of 0.05
CHOSEN = [design for design in DESIGNS if design.name in ("240 single", "12 x 20", "2 x 100 + 40 x 1", "Zipf, 12")]
GIANT = Design("150 + 30 x 3", (150,) + (3,) * 30)


@pytest.mark.parametrize("design", [*CHOSEN, GIANT], ids=lambda design: design.name)
@pytest.mark.parametrize("how", ["plain", "drift", "checkpoints"])
def test_false_promotions_are_rare_over_twenty_looks(design: Design, how: str) -> None:
    for share in (0.05, 0.5):
        assert benchmark.false_in(Splits(design, World(share, 0.2, how), TRIALS, 21))[20] <= MOST


@pytest.mark.parametrize("design", [*CHOSEN[:2], GIANT], ids=lambda design: design.name)
def test_judges_and_the_watch_err_as_seldom(design: Design) -> None:
    assert benchmark.false_in(JudgedSplits(design, 0.2, TRIALS, 22))[20] <= MOST
    assert benchmark.alarms(design, World(0.5, 0.2), TRIALS) <= MOST
    assert benchmark.fell(design, World(0.2, 0.2), TRIALS) <= MOST


@pytest.mark.parametrize("design", [*CHOSEN, GIANT], ids=lambda design: design.name)
def test_intervals_cover_what_they_say(design: Design) -> None:
    """0.9 of 200: at 0.95, less has a probability of 0.001."""
    for share in (0.1, 0.5, 0.9):
        assert min(benchmark.covered_in(design, World(share, 0.2), TRIALS)) >= 0.9


def test_rare_successes_in_clusters_that_are_wholly_alike_are_covered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the large clusters are all equal by chance, single scenarios alone differ and tell nothing of clusters."""
    mixed, alike = Design("12 x 10 + 120 x 1", (10,) * 12 + (1,) * 120), World(0.02, 1.0)
    assert min(benchmark.covered_in(mixed, alike, 500)) >= 0.94
    monkeypatch.setattr(paired, "correlation", lambda *_: 0.0)  # the jackknife alone
    assert min(benchmark.covered_in(mixed, alike, 500)) < 0.9


def test_the_formula_of_equal_clusters_would_fail_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of clusters without leaving one out, and as many degrees of freedom as clusters."""

    def of_equal(values_XN: np.ndarray, clusters: paired.Clusters, *_: float, **__: float) -> np.ndarray:
        rest_XN = values_XN - values_XN.mean(-1, keepdims=True)
        sums_XC = np.add.reduceat(rest_XN[..., clusters.order_N], clusters.starts_C, axis=-1)
        return np.maximum(1.0, np.square(sums_XC).sum(-1) / np.maximum(1e-9, np.square(rest_XN).sum(-1)))

    monkeypatch.setattr(paired, "design_effect", of_equal)
    monkeypatch.setattr(paired.Clusters, "effective", property(lambda clusters: float(len(clusters.sizes_C))))
    world = World(0.5, 0.2)
    assert benchmark.false_in(Splits(GIANT, world, TRIALS, 21))[20] > MOST
    assert min(benchmark.covered_in(GIANT, world, TRIALS)) < 0.9


def test_what_is_simulated_is_what_the_gate_decides() -> None:
    """On 20 splits with better challengers, some of which are promoted."""
    design, world = CHOSEN[1], World(0.5, 0.2)
    splits = Splits(design, world, 20, 23)
    base_TN, own_TN = splits.play(), splits.play(gain=0.15)
    scenarios = [Scenario.make("toy", "test", [], {"number": number}) for number in range(240)]
    report, clusters = {"passed": True, "scenarios": {"test": 240}, "found": {}}, [str(c) for c in design.clusters_N]
    for look in (1, 4):
        decided = [
            gate.decide(
                gate.Look(
                    scenarios,
                    gate.Side("c", own_N.astype(float), 3.0, 60.0),
                    gate.Side("b", base_N.astype(float), 3.0, 60.0),
                    clusters=clusters,
                    number=look,
                ),
                report,
                Promote(),
            ).promoted
            for own_N, base_N in zip(own_TN, base_TN, strict=True)
        ]
        assert decided == benchmark.promoted(own_TN - base_TN, design.clusters_N, look).tolist()
        assert 0 < sum(decided) < 20


def test_slices_cost_little_and_see_a_large_fall() -> None:
    row = benchmark.slices(3, 60, 0.1)
    assert row["lost"] <= 0.05
    assert row["seen"] >= 0.8
    assert benchmark.slices(12, 60, 0.1)["lost"] <= 0.05


@pytest.mark.parametrize("name", ["240 single", "30 x 8", "20 x 10 + 40 x 1"])
def test_the_gain_that_is_said_is_shown_four_times_in_five(name: str) -> None:
    gain, often = benchmark.promised(next(design for design in DESIGNS if design.name == name), 600)
    assert gain is not None
    assert 0.7 <= often <= 0.9


def test_power_grows_with_what_is_named() -> None:
    """Twice as many clusters, more scenarios in them, and a fresh split show smaller gains; a single giant shows none."""
    gaps_N = Splits(CHOSEN[1], World(0.5, 0.2), 1, 3).gaps(1)[0][0].astype(float)
    seen = power.power(gaps_N, CHOSEN[1].clusters_N, 3, Promote())
    assert seen.gain is not None
    ways = (seen.more_clusters, seen.more_scenarios, seen.fresh_split)
    assert all(way is not None and way < seen.gain for way in ways)
    judged = power.power(gaps_N, CHOSEN[1].clusters_N, 3, Promote(), is_judged=True)
    assert judged.gain == pytest.approx(seen.gain / 2)
    giant = power.power(np.ones(240), np.repeat(np.arange(41), [200, *[1] * 40]), 1, Promote())
    assert giant.gain is None
    assert giant.sentence().startswith(
        "No true gain is shown four times in five at this look (twice as many clusters: "
    )
    assert power.power(gaps_N, np.arange(240), 1, Promote()).sentence().count(":") == 1


def test_before_a_run_both_ends_of_what_is_unknown_are_said() -> None:
    clusters = [str(number // 8) for number in range(240)]
    assert power.before(clusters, 0.5, Promote()) == (
        "Of true gains the gate shows one of 0.14 or more four times in five if alike scenarios have nothing in common, and "
        "one of 0.37 or more if they succeed or fail as one, at its first look at the 240 test scenarios, which are 30 "
        "clusters of alike ones, the largest of 8; more clusters would show smaller ones in both cases."
    )
    assert "more scenarios would show smaller ones" in power.before([str(i) for i in range(100)], 0.2, Promote())
    assert "can show no gain at its first look" in power.before(["one"] * 90 + ["two"] * 10, 0.2, Promote())
    assert "that the judge finds better" in power.before(clusters, 0.5, Promote(), is_judged=True)
