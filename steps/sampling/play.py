"""Plays a batch of episodes with the policy, wherever its engines are: in this process, on a Ray cluster, or on servers.

    play(policy, limits, adapter, env, task_data, data, attempts, prefix, seed) -> trajectories, in the order of the attempts
    sampler(policy, adapter, temperature, max_tokens, stop) -> for episodes that ask by themselves
    (addons/agents/gateway/play.py)

The batch is cut into `limits.shards` (steps/sampling/shards.py), whose bytes are the same in this process and on a cluster.
Servers need none: a turn's bytes there are its own (addons/fleet/servers.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.progress import part
from steps.sampling import engine, shards

if TYPE_CHECKING:
    from environments.base import Env, Scenario
    from steps.core.params import Evaluate, Policy, Rollout
    from steps.core.records import Trajectory
    from steps.sampling.rivals import Opponent


def play(
    policy: Policy,
    limits: Rollout | Evaluate,
    adapter: Path,
    env: type[Env],
    task_data: Path,  # the folder that `data` was loaded from
    data: Any,
    attempts: Sequence[tuple[Scenario, int]],  # (scenario, number of the attempt)
    prefix: str,  # of the trajectories' ids
    seed: int,
    logit_bias: dict[int, float] | None = None,  # nats, by token id
    opponent: Opponent
    | None = None,  # on the other side of a game, in place of the scenarios' own; with kind vllm alone
) -> list[Trajectory]:
    """The trajectories of all attempts by the policy with this adapter, in the same order."""
    parts = shards.cut(attempts, limits.shards)
    if policy.kind == "ray":
        from addons.fleet import cluster

        return cluster.play(policy, limits, adapter, env, task_data, parts, prefix, seed, logit_bias)
    if policy.kind == "server":
        from addons.fleet.server_sampler import ServerSampler

        return engine.play(policy, limits, adapter, env, data, attempts, prefix, seed, logit_bias, ServerSampler)
    played: list[Trajectory] = []
    for shard in parts:
        with part(len(played), len(attempts)):
            more: dict[str, Any] = {} if opponent is None else {"opponent": opponent}
            played += engine.play(policy, limits, adapter, env, data, shard, prefix, seed, logit_bias, **more)
    return played


def sampler(policy: Policy, adapter: Path, temperature: float, max_tokens: int, stop: int) -> Any:
    """What samples single turns with this adapter: an EngineSampler (steps/sampling/engine.py), or what has its methods."""
    if policy.kind == "ray":
        from addons.fleet.cluster_sampler import ClusterSampler

        return ClusterSampler(policy, adapter, temperature, max_tokens, stop)
    if policy.kind == "server":
        from addons.fleet.server_sampler import ServerSampler

        return ServerSampler(policy, adapter, temperature, max_tokens, stop)
    return engine.EngineSampler(policy, adapter, temperature, max_tokens, stop)
