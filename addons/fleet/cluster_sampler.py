"""The sampler of policy.kind ray (steps/sampling/play.py): a job's shards, and single turns, on a Ray cluster.

    play(job) -> trajectories
    sampler = ClusterSampler(policy, adapter, temperature=1.0, max_tokens=64, stop=2)      # as an EngineSampler

Single turns are for episodes that ask by themselves (addons/agents/gateway/play.py). All turns of a batch go to one engine
of addons/fleet/cluster.py. Where it is lost, another one samples again what was with it, all of the round together, so that
what is in a batch is the same again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from addons.fleet.cluster import fleet_of, reason
from addons.fleet.engine_actor import STEPS
from addons.fleet.shards import TRIES, Lost, Ready
from steps.core.errors import UserError
from steps.core.progress import measure, measure_turns, say
from steps.sampling.turns import Limits, Sampled

if TYPE_CHECKING:
    from addons.fleet.cluster import Member
    from steps.core.params import Policy
    from steps.core.records import Trajectory
    from steps.sampling.job import Job


def play(job: Job) -> list[Trajectory]:
    """The trajectories of all attempts of a job, in their order, by the engines of the cluster."""
    from steps.core.records import Trajectory

    env = job.env
    fleet = fleet_of(job.policy, [part.__module__ for part in env.task_classes.values()] or [env.__module__])
    limits = job.limits.model_copy(update={"max_tokens": job.max_tokens})
    request = {
        "module": env.__module__,
        "env": env.__qualname__,
        "kind": type(limits).__name__,
        "limits": limits.model_dump(mode="json"),
        "prefix": job.prefix,
        "seed": job.seed,
        "logit_bias": job.logit_bias,
    }
    assert job.adapter is not None
    parcels = {"adapter": fleet.parcel(job.adapter)}
    if job.task_data is not None and job.task_data.is_dir():
        parcels["data"] = fleet.parcel(job.task_data)
    requests = []
    for shard in job.shards:
        attempts = [[scenario.model_dump(mode="json"), attempt] for scenario, attempt in shard.attempts]
        requests.append(json.dumps(request | {"attempts": attempts}))
    answers = fleet.play(requests, len(job.attempts), parcels)
    measure(engines=len(fleet.members))
    for answer in answers:
        measure(**answer["numbers"])
        measure_turns(answer["began"], answer["turns"])
    return [Trajectory.model_validate(fields) for answer in answers for fields in answer["trajectories"]]


def turns(job: Job, stop: int) -> ClusterSampler:
    """What samples the turns of a job on the cluster; `stop` is the token that ends one."""
    assert job.adapter is not None
    return ClusterSampler(job.policy, job.adapter, job.limits.temperature, job.max_tokens, stop)


class ClusterSampler:
    """A batch of requests to one adapter on one engine of the cluster, with the methods of EngineSampler."""

    def __init__(self, policy: Policy, adapter: Path, temperature: float, max_tokens: int, stop: int) -> None:
        self.fleet = fleet_of(policy)
        self.adapter = {"adapter": self.fleet.parcel(adapter)}
        self.fleet.keep(self.adapter.values())
        self.settings = json.dumps({"temperature": temperature, "max_tokens": max_tokens, "stop": stop})
        self.engine: int | None = None  # its name in the fleet
        self.losses = 0  # engines lost since the last turn that was finished
        self.round: dict[int, list[Any]] = {}  # requests since none was pending, by key
        self.unsent: list[list[Any]] = []
        self.open: set[int] = set()  # keys of turns that are not finished

    @property
    def pending(self) -> int:
        return len(self.open)

    def submit(self, key: int, prompt_ids: list[int], seed: int, limits: Limits | None = None) -> None:
        """As EngineSampler.submit. A request with a grammar is sent at once, because vLLM may refuse it with a ValueError;
        the others wait for `step`."""
        if not self.open:
            self.round = {}
        request = [key, list(prompt_ids), seed, limits._asdict() if limits else None]
        self.round[key] = request
        self.unsent.append(request)
        self.open.add(key)
        if limits is not None and (limits.schema is not None or limits.tag is not None):
            refused = dict(self._send(0)["refused"])
            if key in refused:
                del self.round[key]
                self.open.discard(key)
                raise ValueError(refused[key])

    def step(self) -> list[Sampled]:
        """Let the engine step, until turns are finished or a few times; the finished turns, in the order of their keys."""
        finished = [_sampled(fields) for fields in self._send(STEPS)["finished"]]
        fresh = [
            sampled for sampled in finished if sampled.key in self.open
        ]  # not those of a round that is sampled again
        self.open -= {sampled.key for sampled in fresh}
        self.losses = 0 if fresh else self.losses
        return fresh

    def _send(self, steps: int) -> dict[str, Any]:
        """The engine's answer to what was not sent yet. Where the engine is lost, another's to the whole round."""
        while True:
            member = self._member()
            unsent, self.unsent = self.unsent, []
            try:
                return self._get(member.handle.step.remote(json.dumps(unsent), steps))
            except self.fleet.ray.exceptions.RayError as problem:
                assert self.engine is not None
                self._lose(self.engine, reason(problem))

    def _member(self) -> Member:
        """The engine, with this batch begun on it."""
        while self.engine is None:
            while self.engine is None:
                for event in self.fleet.idle() or self.fleet.news(1):
                    if isinstance(event, Ready) and self.engine is None:
                        self.engine = event.engine
                    elif isinstance(event, Lost):
                        self._lose(None, event.reason)
            sample = self.fleet.members[self.engine].handle.sample
            try:
                self._get(sample.remote(self.settings, self.adapter))
            except self.fleet.ray.exceptions.RayError as problem:
                self._lose(self.engine, reason(problem))
        return self.fleet.members[self.engine]

    def _get(self, work: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self.fleet.ray.get(work)
        if "error" in answer:
            raise UserError(answer["error"]) if answer["code"] == 2 else RuntimeError(answer["error"])
        return answer

    def _lose(self, engine: int | None, why: str) -> None:
        """Forget an engine; what it had is to be sent again. UserError where too many were lost in a row."""
        if engine is not None:
            self.fleet.drop(engine)
            self.engine = None
        self.unsent = list(self.round.values())
        self.losses += 1
        if self.losses >= TRIES:
            raise UserError(f"{self.losses} engines were lost in a row, the last one because {why}")
        say(f"an engine was lost ({why}); another one samples its calls")


def _sampled(fields: list[Any]) -> Sampled:
    key, ids, logprobs, finish_reason, top = fields
    ranked = tuple(tuple((token, nats) for token, nats in place) for place in top)
    return Sampled(key, tuple(ids), tuple(logprobs), finish_reason, ranked)
