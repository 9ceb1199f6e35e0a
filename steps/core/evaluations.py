"""What evaluations measured of a policy: success or a judge's preference, with intervals, and how that reads in words."""

from __future__ import annotations

from pydantic import Field

from steps.core.records import Record
from steps.core.stats import counted

# Groups of alike scenarios that an interval rests on. None: the task does not say which are alike, or it is an older record.
GROUPS = Field(None, exclude_if=lambda clusters: clusters is None)


class Judged(Record):
    """How often a policy's attempts are judged better than another policy's at the same scenarios; ties count half."""

    rival: str  # the other policy in words, such as "base policy"
    rival_hash: str  # its adapter's hash
    judge: str  # the model's name and the judge's identity
    share: float  # (wins + ties / 2) / scenarios; 0.5: neither is better
    ci95: tuple[float, float]  # by steps/registry/paired.py
    clusters: int | None = GROUPS
    wins: int
    ties: int
    losses: int
    disagreements: int  # ties because the judge contradicts itself when the order is reversed
    unjudged: int  # ties because the judge gave no usable answer
    # Of the judge: cost, answers, position_bias, retest_spread, … (addons/judges/report.py).
    measured: dict[str, float] = Field({})

    def sentence(self, n: int) -> str:
        """The result in words, of n scenarios."""
        low, high = self.ci95
        of = counted(n, self.clusters)
        return f"judged better than the {self.rival} on {self.share:.3f} [{low:.3f}, {high:.3f}] of {of}"

    def faults(self) -> str:
        """What the result rests on, in words: wins and losses, what was asked, and the judge's faults as measured."""
        names = {"position_bias": "position bias", "retest_spread": "test-retest spread", "canary_gain": "canary gain"}
        faults = [f"{text} {self.measured[name]:+.2f}" for name, text in names.items() if name in self.measured]
        cost = f", cost {self.measured['cost']:.4g}" if self.measured.get("cost") else ""
        counts = f"{self.wins} won, {self.losses} lost, {self.ties} ties: on {self.disagreements} the orders disagree"
        unjudged = f", {self.unjudged} could not be judged" if self.unjudged else ""
        asked = f"{self.measured.get('answers', 0):.0f} answers{cost}"
        return "; ".join([f"judge {self.judge}: {counts}{unjudged}", asked, *faults])


class TaskResult(Record):
    """A policy on the scenarios of one of several tasks."""

    n: int
    success: float  # share of the scenarios
    ci95: tuple[float, float]  # by steps/registry/paired.py
    clusters: int | None = GROUPS
    reward: float  # mean
    turns: float  # mean
    tokens: float  # mean of sampled tokens
    sampled_success: float | None  # share of the attempts at temperature 1

    def sentence(self, task: str) -> str:
        """The result in words."""
        low, high = self.ci95
        sampled = "" if self.sampled_success is None else f", sampled {self.sampled_success:.3f}"
        of = counted(self.n, self.clusters)
        return f"{task} {self.success:.3f} [{low:.3f}, {high:.3f}] of {of}{sampled}"


class Evaluation(Record):
    """A policy on a split: one attempt at each scenario, greedy by default, and beside it sampled ones.

    A task with a rule has `success`, `ci95` and `reward`; of one without, these are None, and `judged` is there.
    """

    split: str
    adapter_hash: str
    n: int
    success: float | None  # share of the scenarios
    ci95: tuple[float, float] | None  # by steps/registry/paired.py
    clusters: int | None = GROUPS
    reward: float | None  # mean
    turns: float  # mean
    tokens: float  # mean of sampled tokens
    slices: dict[str, float] = Field({})  # success by slice; of several tasks, by task
    by_task: dict[str, TaskResult] = Field({})  # of several tasks
    decisions: dict[str, tuple[int, int]] = Field({})  # kind of decision -> (right ones, all), where the task has them
    references: dict[str, float] = Field({})  # in the base policy's validation: success of others (evaluate.references)
    sampled_attempts: int = 0  # at each scenario, at temperature 1; 0: none were made
    sampled_success: float | None = None  # share of those attempts
    sampled_ci95: tuple[float, float] | None = None  # of the same clusters, in which all attempts at a scenario are
    judged: Judged | None = None  # None: by the rule
    held_out: Judged | None = None  # beside success: what a judge prefers that training never asks (evaluate.judge)

    @property
    def measure(self) -> str:
        """What `share` is the share of, in words."""
        return "success" if self.judged is None else f"judged better than the {self.judged.rival}"

    @property
    def share(self) -> float:
        """Of the scenarios: successes, or those on which the policy was judged better. ValueError where it has neither."""
        share = self.judged.share if self.judged is not None else self.success
        if share is None:
            raise ValueError("an evaluation without success must be judged")
        return share

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of `share`."""
        interval = self.judged.ci95 if self.judged is not None else self.ci95
        if interval is None:
            raise ValueError("an evaluation without success must be judged")
        return interval

    @property
    def counted(self) -> str:
        """The scenarios and groups that `interval` rests on, in words."""
        return counted(self.n, self.clusters if self.judged is None else self.judged.clusters)

    def text(self) -> str:
        """The contents of summary.json, without the fields that this evaluation has nothing for."""
        empty = {
            name for name in ("judged", "held_out", "by_task", "decisions", "references") if not getattr(self, name)
        }
        return self.model_dump_json(indent=2, exclude=empty) + "\n"

    def sentence(self) -> str:
        """The result in words: what is measured, and how much of it."""
        low, high = self.interval
        if self.judged is None:
            return f"success {self.share:.3f} [{low:.3f}, {high:.3f}] of {self.counted}"
        return self.judged.sentence(self.n)
