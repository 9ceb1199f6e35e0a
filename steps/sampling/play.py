"""Plays a batch of episodes with the policy, wherever its engines are: in this process, or where an add-on has them.

    play(Job(policy, limits, adapter, env, attempts, prefix, seed, data, …)) -> trajectories, in the order of the attempts

The batch is cut into `limits.shards` (steps/sampling/job.py), whose bytes are the same in this process and on a cluster.
Servers need none: a turn's bytes there are its own (addons/fleet/servers.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from steps.core.ports import bring
from steps.sampling import engine

if TYPE_CHECKING:
    from steps.core.params import Policy
    from steps.core.records import Trajectory
    from steps.sampling.job import Job
    from steps.sampling.turns import CallSampler


class Sampler(Protocol):
    """Where a job is played."""

    def play(self, job: Job) -> list[Trajectory]:
        """The trajectories of all attempts, in their order."""


class Engines(Sampler, Protocol):
    """The engines of a policy.kind, which also sample for episodes that ask by themselves (addons/agents/gateway/)."""

    def turns(self, job: Job, stop: int) -> CallSampler:
        """What samples the turns of a job; `stop` is the token that ends one."""


def play(job: Job) -> list[Trajectory]:
    """The trajectories of all attempts of a job, in their order. UserError where no add-on brings what the job needs."""
    return sampler(job).play(job)


def sampler(job: Job) -> Sampler:
    """Who plays a job: the gateway where the task is an agent of one's own, else the engines of policy.kind."""
    if not job.env.is_agent:
        return engines(job.policy)
    gateway: Sampler = bring("agents", "gateway", f"task: {job.task} is an agent of your own")
    return gateway


def engines(policy: Policy) -> Engines:
    """The engines of a policy."""
    if policy.kind == "vllm":
        return engine
    elsewhere: Engines = bring("sampler", policy.kind, "policy.kind")
    return elsewhere
