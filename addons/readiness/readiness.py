"""What a policy can do already of what a task needs, from several attempts at some scenarios: valid calls, successes, and
attempts that differ. Reinforcement learning needs all three.

flows.train asks this of the policy that it begins with, before anything is trained, and `make try` at any time. Left out:
how well the policy does it; an evaluation on held-out scenarios tells that.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from environments.base import is_error
from steps.training.batches import ROUNDING
from steps.training.contract import is_truncated

if TYPE_CHECKING:
    from environments.base import Env
    from steps.core.records import Reward, Trajectory

RARE = 0.02  # a share of the attempts that is as good as none: reinforcement would wait for one for too long
MOST = 0.9  # a share of the attempts that is as good as all


class Readiness(NamedTuple):
    """Counts over attempts, and over groups of attempts at one scenario."""

    attempts: int
    failed: int  # ended by an error of the environment or the agent
    # Made a call that a tool accepted; None: the task has no tools, or an agent has tools of its own
    called: int | None
    cut: int  # cut off by max_tokens or the context
    scored: int
    succeeded: int | None  # None: nothing but a judge says what a success is
    groups: int
    varied: int  # groups whose scores differ
    error: str = ""  # of the first attempt that failed

    @property
    def is_solved(self) -> bool:
        """Whether there is nothing left to learn here."""
        return self.succeeded == self.attempts and not self.varied

    @property
    def speaks(self) -> bool:
        """Whether the policy can do the task's form at all, and at times the task itself."""
        is_silent = self.called is not None and self.called <= RARE * self.attempts
        fails = self.succeeded is not None and self.succeeded <= RARE * self.attempts
        return not (is_silent or fails or self.failed == self.attempts)

    @property
    def is_cut(self) -> bool:
        """Whether nearly all attempts were cut off."""
        return self.cut >= MOST * self.attempts

    @property
    def can_be_taught(self) -> bool:
        """Whether demonstrations would help: they mend neither a task nor a judge, and what is solved needs none."""
        return self.failed < self.attempts and self.scored > 0 and not self.is_solved

    def table(self) -> list[str]:
        """The counts, one a line."""
        rows = [("made a valid call", self.called, self.attempts), ("were cut off", self.cut, self.attempts)]
        rows += [("failed", self.failed, self.attempts)] if self.failed else []
        rows += [("got a score", self.scored, self.attempts)] if self.scored < self.attempts else []
        rows += [("succeeded", self.succeeded, self.attempts)]
        lines = [f"{count:>6} of {whole:<5} attempts {what}" for what, count, whole in rows if count is not None]
        return [*lines, f"{self.varied:>6} of {self.groups:<5} scenarios had attempts of different reward"]

    def obstacle(self) -> str:
        """The first reason why reinforcement cannot begin here, as a sentence without its full stop; empty where it can."""
        whole = self.attempts
        if self.failed == whole:
            return f"all {whole} attempts failed: {self.error[:200]}"
        if not self.scored:
            return f"judge silent: none of {whole} attempts got a score"
        if self.is_solved:
            return f"no variance: all {whole} attempts succeed, so that there is nothing to learn"
        if self.is_cut and not self.succeeded:
            return f"cut off: {self.cut} of {whole} attempts were cut off before they came to an end"
        if self.called is not None and self.called <= RARE * whole:
            return f"no valid call: {self.called} of {whole} attempts made a call that a tool accepted"
        if not self.varied:
            return f"no variance: at each of {self.groups} scenarios all attempts earned the same"
        if not self.speaks:
            return f"no success: {self.succeeded} of {whole} attempts did what the task asks"
        return ""


def readiness(env: type[Env], trajectories: Sequence[Trajectory], rewards: Sequence[Reward]) -> Readiness:
    """Count over trajectories and their rewards."""
    scores: dict[str, list[float]] = defaultdict(list)
    for reward in rewards:
        if reward.score is not None:
            scores[reward.scenario_id].append(reward.score)
    failed = [each for each in trajectories if each.stop_reason == "error"]
    has_rule = any(reward.rule is not None for reward in rewards)
    return Readiness(
        attempts=len(trajectories),
        failed=len(failed),
        called=None if env.is_agent or not env.tools() else sum(map(has_valid_call, trajectories)),
        cut=sum(map(is_truncated, trajectories)),
        scored=sum(reward.score is not None for reward in rewards),
        succeeded=sum(bool(reward.success) for reward in rewards) if has_rule else None,
        groups=len({each.scenario_id for each in trajectories}),
        varied=sum(max(values) - min(values) > ROUNDING for values in scores.values()),
        error=next((each.error or "no message" for each in failed), ""),
    )


def has_valid_call(trajectory: Trajectory) -> bool:
    """Whether a tool accepted a call of the episode."""
    return any(
        turn.message.get("tool_calls") and not (turn.observations and all(map(is_error, turn.observations)))
        for turn in trajectory.turns
    )
