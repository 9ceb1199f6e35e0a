"""A baseline for greedy success: the base policy, untrained, with a fixed bias on the logit of one token.

Greedy decoding hides how close two tokens are. A policy that just misses the right one at many scenarios can jump with a
bias that teaches it nothing, so training has to be compared with this jump as well. The token and its bias are chosen on the
validation split, and measured on another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from environments.base import Scenario
from steps.core.progress import progress, say
from steps.core.records import Reward, Trajectory
from steps.core.stats import mean
from steps.judging.rule import by_rule, succeeds

if TYPE_CHECKING:
    from steps.sampling.job import Job

CANDIDATES = 24  # tokens: those that the base policy writes most often
SIZES = (-2.0, -1.0, -0.5, -0.25, 0.25, 0.5, 1.0, 2.0)  # nats
FIRST = (-0.5, 0.5)  # tried with every candidate; the other sizes only with the best of them
CHOSEN_ON = 60  # validation scenarios


class Bias(NamedTuple):
    token: int  # id
    size: float  # nats

    @property
    def logits(self) -> dict[int, float]:
        return {self.token: self.size}


def candidates(played: Sequence[Trajectory]) -> list[int]:
    """The tokens that were sampled most often, the most frequent first, equal counts by id."""
    counts = Counter(token for trajectory in played for turn in trajectory.turns for token in turn.completion_ids)
    return sorted(counts, key=lambda token: (-counts[token], token))[:CANDIDATES]


def best_bias(tokens: Sequence[int], success: Callable[[Bias], float]) -> Bias:
    """The bias of one of these tokens with the highest success; the earliest tried among equals."""
    tried: dict[Bias, float] = {}
    total = len(tokens) * len(FIRST) + len(SIZES) - len(FIRST)

    def attempt(bias: Bias) -> None:
        tried[bias] = success(bias)
        progress(len(tried), total, f"token {bias.token} {bias.size:+g}: success {tried[bias]:.3f}")

    for token in tokens:
        for size in FIRST:
            attempt(Bias(token, size))
    token = max(tried, key=lambda bias: tried[bias]).token
    for size in SIZES:
        if size not in FIRST:
            attempt(Bias(token, size))
    return max(tried, key=lambda bias: tried[bias])


class BiasedPolicy:
    """The base policy of a run, played greedily with a bias."""

    def __init__(self, job: Job) -> None:
        """`job` says what is played, and in what; its attempts are not."""
        limits = job.limits.model_copy(update={"temperature": 0.0})
        self.job = replace(job, limits=limits, prefix="bias", seed=0)

    def play(self, scenarios: Sequence[Scenario], bias: Bias | None) -> tuple[list[Trajectory], list[Reward]]:
        from steps.sampling.play import play

        attempts = [(scenario, 0) for scenario in scenarios]
        played = play(replace(self.job, attempts=attempts, logit_bias=bias.logits if bias else None))
        env = self.job.env
        rewards = [by_rule(env, scenario, shown) for scenario, shown in zip(scenarios, played, strict=True)]
        return played, rewards

    def success(self, scenarios: Sequence[Scenario], bias: Bias) -> float:
        return sum(bool(reward.success) for reward in self.play(scenarios, bias)[1]) / len(scenarios)

    def choose(self, scenarios: Sequence[Scenario]) -> Bias:
        """The best bias on these scenarios."""
        chosen = scenarios[:CHOSEN_ON]
        return best_bias(candidates(self.play(chosen, None)[0]), lambda bias: self.success(chosen, bias))


def references(job: Job, held_out: list[Scenario]) -> dict[str, float]:
    """Success on these scenarios of the task's script, where it has one, and of the base policy with the best bias on one
    token."""
    policy, env = BiasedPolicy(job), job.env
    bias = policy.choose(held_out)
    results = {"base with the best bias on a token": policy.success(held_out, bias)}
    if env.has_player("scripted"):
        scripted = [succeeds(env, scenario, env(scenario, job.data).play("scripted")) for scenario in held_out]
        return {"script": mean(scripted)} | results
    say(f"evaluate.references: {env.lacks('scripted')}")
    return results
