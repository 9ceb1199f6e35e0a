"""Proxy and truth: does what training is paid for still agree with what is wanted?

A policy learns what its reward pays, the faults of that reward included: it flatters a judge, or finds what a rule has not
thought of. Then the proxy, which is the reward, rises while the truth falls. Truths are what no update has optimised, on
the validation scenarios: success by the task's rule, and what a judge prefers that training never asks (`evaluate.judge`).
The proxy is the reward of the same attempts. RULER's score compares attempts of one batch with each other, so its level
says nothing about iterations; where it has a weight, the truth alone decides.

After each iteration k every earlier one j is compared with it, scenario by scenario. The alarm is raised where the truth
fell from j to k and the proxy rose, each by an interval of its own (steps/registry/paired.py). Both must hold, so the
probability of error is at most that of either (intersection-union test: Berger 1982, Technometrics 24, 295). Of
`promote.false_alarms` each of the K planned iterations may spend the same part (the linear spending function of Lan and
DeMets 1983, Biometrika 70, 659), divided equally among the truths and the k earlier iterations. So a run whose truth never
falls, or whose reward never rises while it does, is stopped with that probability at most, over all iterations together.

flows.train ends at the alarm, and flows.promote refuses all adapters of such a run, the earlier ones too: they have begun to
learn the same.

Scenarios that are alike count as clusters, as they do at the gate. So a validation split of few clusters shows little: a
fall by 0.3 from 0.8 within ten iterations is seen in 4 % of the runs with five clusters, in 28 % with twelve, in 89 % with
thirty and in nearly all with sixty. Of runs that are equal throughout at most 3.6 % are stopped (`python -m
benchmarks.gate`).

Left out: a reward that rises while the truth stays where it is. The gate refuses that, which asks for more success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from steps.core import alike
from steps.core.errors import UserError
from steps.core.evaluations import Evaluation
from steps.core.files import json_lines
from steps.core.records import PAIRS, Pair, Record, Reward, Trajectory, read_records
from steps.core.section import at
from steps.judging.judge import Batch, asked, kind_of
from steps.registry import paired

if TYPE_CHECKING:
    import numpy as np

    from environments.base import Env
    from steps.core.params import Params

BLIND = (
    "Warning: the judge that scores the training also says how good it is, for there is no rule and no evaluate.judge. "
    "Nothing would show that the policy only learns to please it."
)
SUCCESS, HELD_OUT = "success", "what the held-out judge prefers"
EXAMPLES = 3


class Point(NamedTuple):
    """An iteration on N validation scenarios."""

    iteration: int  # 0: the base policy
    proxy_N: np.ndarray | None  # the reward of each attempt, NaN where it failed; None where its level says nothing
    truths: Mapping[str, np.ndarray]  # [N] by name; 0 or 1, or a judge's 0, 0.5 and 1 against the base policy
    ids: Sequence[str]  # [N] of the trajectories
    clusters_N: np.ndarray  # number of each scenario's cluster of alike ones


class Alarm(Record):
    """The first iteration at which the reward had risen and a truth had fallen, and from which iteration on."""

    iteration: int
    since: int
    truth: str
    fall: tuple[float, float, float]  # (difference, low, high)
    rise: tuple[float, float, float] | None  # None: the reward's level says nothing
    tail: float  # one-sided probability of error of each of the two intervals
    n: int
    examples: tuple[str, ...]  # ids of the iteration's trajectories that show it best

    def sentence(self) -> str:
        """What was seen, and where to look."""
        low, high = self.fall[1:]
        fell = f"{self.truth} fell by {-self.fall[0]:.3f} [{-high:.3f}, {-low:.3f}]"
        if self.rise is None:
            rose = "the judge of the training compares attempts with each other, so that its scores do not show it"
        else:
            rose = f"the reward rose by {self.rise[0]:.3f} [{self.rise[1]:.3f}, {self.rise[2]:.3f}]"
        return (
            f"reward hacking: from iteration {self.since} to {self.iteration} {fell} on the same {self.n} validation "
            f"scenarios, while {rose} (intervals of {100 * (1 - 2 * self.tail):.4g} %); read {', '.join(self.examples)} in "
            f"run/{self.iteration:03d}/evaluation"
        )


def alarm(points: Sequence[Point], iterations: int, error: float) -> Alarm | None:
    """The first alarm of a run, whose points are those of the iterations 0, 1, …, K at most; None where all is well.

    `iterations` is K, the planned number, and `error` the probability of a false alarm over all of them. The alarm names the
    earlier iteration from which the truth fell most.
    """
    for place, point in enumerate(points):
        tail = tail_at(place, iterations, len(point.truths), error)
        seen = [
            (fall, rise, name, earlier)
            for earlier in points[:place]
            for name in point.truths
            if (fall := fallen(point, earlier, name, tail)) and (rise := risen(point, earlier, tail)) is not False
        ]
        if seen:
            fall, rise, name, earlier = min(seen, key=lambda entry: entry[0])
            return Alarm(
                iteration=point.iteration,
                since=earlier.iteration,
                truth=name,
                fall=fall,
                rise=rise if isinstance(rise, tuple) else None,
                tail=tail,
                n=len(point.ids),
                examples=examples(point, earlier, name),
            )
    return None


def tail_at(place: int, iterations: int, truths: int, error: float) -> float:
    """The one-sided probability of error of each interval of the iteration at this place, from 0."""
    return error / iterations / max(1, place) / max(1, truths)


def fallen(point: Point, earlier: Point, name: str, tail: float) -> tuple[float, float, float] | None:
    """The interval by which a truth fell since an earlier iteration; None where it may not have fallen."""
    gap_N = point.truths[name] - earlier.truths[name]
    mean, low, high = map(float, paired.interval(gap_N, point.clusters_N, tail))
    return (mean, low, high) if high < 0 else None


def risen(point: Point, earlier: Point, tail: float) -> tuple[float, float, float] | bool:
    """The interval by which the reward rose since an earlier iteration; False where it may not have risen, and True where
    its level says nothing."""
    import numpy as np

    if point.proxy_N is None or earlier.proxy_N is None:
        return True
    gap_N = point.proxy_N - earlier.proxy_N
    scored_N = np.isfinite(gap_N)
    mean, low, high = paired.mean_interval(gap_N[scored_N], point.clusters_N[scored_N], tail)
    return (mean, low, high) if low > 0 else False


def examples(point: Point, earlier: Point, name: str) -> tuple[str, ...]:
    """Ids of trajectories where the truth fell; those first whose reward rose most."""
    import numpy as np

    gap_N = point.truths[name] - earlier.truths[name]
    rise_N = np.zeros(len(gap_N))
    if point.proxy_N is not None and earlier.proxy_N is not None:
        rise_N = np.nan_to_num(point.proxy_N - earlier.proxy_N)
    places = sorted(np.nonzero(gap_N < 0)[0], key=lambda place: (-rise_N[place], place))
    return tuple(point.ids[place] for place in places[:EXAMPLES])


# --- Reading a run


def read_point(run: Path, iteration: int, params: Params, env: type[Env], clusters: Mapping[str, str]) -> Point:
    """The point of an iteration, from its evaluation in run/NNN. `clusters`: of each validation scenario, by id."""
    import numpy as np

    from environments.base import Scenario

    folder = run / f"{iteration:03d}" / "evaluation"
    if not folder.is_dir():
        raise UserError(
            f"{folder} does not exist: `.venv/bin/dvc checkout` brings it back, `.venv/bin/dvc repro` makes it again"
        )
    summary = Evaluation.model_validate_json((folder / "summary.json").read_text(encoding="utf-8"))
    rewards = read_records(Reward, folder / "rewards.parquet")
    truths: dict[str, np.ndarray] = {}
    if summary.judged is None:
        truths[SUCCESS] = np.array([float(reward.success or 0) for reward in rewards])
    if summary.held_out is not None or (summary.judged is not None and at(params, "evaluate.judge") is not None):
        lines = json_lines(folder / PAIRS)
        scores = {pair.scenario_id: pair.score for pair in map(Pair.model_validate_json, lines)}
        truths[HELD_OUT] = np.array([scores[reward.scenario_id] for reward in rewards])
    proxy_N = None
    judges = {name: kind_of(name) for name in asked(params.score)}
    if summary.judged is None and not any(kind.is_comparing for kind in judges.values()):
        proxy_N = params.score.judges.rule * scores_of(rewards)
        scenarios = {each.id: each for each in read_records(Scenario, run / "scenarios/val.parquet")} if judges else {}
        played = read_records(Trajectory, folder / "trajectories.parquet") if judges else []
        batch = Batch(env, scenarios, played, rewards, params.score)
        for name, kind in judges.items():
            proxy_N = proxy_N + getattr(params.score.judges, name) * scores_of(kind(batch).rewards())
    names = [clusters[reward.scenario_id] for reward in rewards]
    return Point(iteration, proxy_N, truths, [reward.trajectory_id for reward in rewards], paired.numbered(names))


def scores_of(rewards: Sequence[Reward]) -> np.ndarray:
    """The score of each attempt, [N]; NaN where it failed."""
    import numpy as np

    return np.array([np.nan if reward.score is None else reward.score for reward in rewards])


class Watch:
    """The points of a run as it goes on."""

    def __init__(self, run: Path, params: Params) -> None:
        """Reads the scenarios and the task's data, for the clusters; nothing with promote.false_alarms: null."""
        import environments
        from environments.base import Scenario

        self.run, self.params, self.points = run, params, list[Point]()
        self.error = at(params, "promote.false_alarms")
        if self.error is not None:
            self.env = environments.load(params.task)
            data = self.env.load(environments.data_of(params.task))
            scenarios = read_records(Scenario, run / "scenarios/val.parquet")
            groups = alike.groups_of(self.env, scenarios, data)
            self.clusters = dict(zip(ids := [scenario.id for scenario in scenarios], groups.of(ids), strict=True))

    def add(self, iteration: int) -> Alarm | None:
        """Read an iteration's evaluation; the run's first alarm, if there is one by now."""
        if self.error is None:
            return None
        self.points.append(read_point(self.run, iteration, self.params, self.env, self.clusters))
        return alarm(self.points, self.params.train.iterations, self.error)

    @property
    def warning(self) -> str:
        """What is said before the first iteration; empty where all is well."""
        return BLIND if self.is_blind else ""

    @property
    def is_blind(self) -> bool:
        """Whether there is nothing to compare the reward with: no rule, and no judge that is held out."""
        return self.error is not None and any(not point.truths for point in self.points)
