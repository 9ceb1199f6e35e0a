"""An engine on a node of a Ray cluster: what steps/sampling/engine.py is in a stage's process, in a process of its own.

addons/fleet/cluster.py makes a Ray actor of the class, whose methods take and return JSON alone. Ray calls all of them but
`report` one after another in the same thread, because vLLM binds its threads to the one that started it. A method does not
raise: {"error": …, "code": 2} is a sentence for the user, and code 1 a traceback.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

from addons.fleet.parcels import Parcel, store
from addons.fleet.sameness import difference, facts
from steps.core import progress
from steps.core.errors import UserError, explain
from steps.kit.lock import opened, take
from steps.policy.machine import cores

STEPS = 8  # of the engine, at most, before requests that came meanwhile are taken
Method = Callable[..., dict[str, Any]]
THREADS = {"engine": 1, "watch": 1}  # Ray's concurrency groups
# Files whose locks say which cores this process computes on; they stay open for its life.
_locks: list[Any] = []


def answering(method: Method) -> Method:
    """Return an error in place of raising it, and have Ray call the method in the engine's thread."""

    @wraps(method)
    def answer(*arguments: Any) -> dict[str, Any]:
        try:
            return method(*arguments)
        except BaseException as problem:
            text, code = explain(problem)
            return {"error": text, "code": code}

    return in_thread("engine")(answer)


def in_thread(name: str) -> Callable[[Method], Method]:
    """What `ray.method(concurrency_group=…)` does, without ray, which need not be installed to import this module. Ray's
    client cannot name the group with a call."""

    def mark(method: Method) -> Method:
        method.__ray_concurrency_group__ = name  # pyrefly: ignore[missing-attribute]
        return method

    return mark


class EngineActor:
    """One engine, started by `start`."""

    def __init__(self) -> None:
        self.done = [0, 0]  # episodes of the shard that is played: ended, all
        self.lines: list[str] = []  # for the person who runs the stage
        self.data: dict[str, Any] = {}  # of tasks, by hash
        self.sampler: Any = None  # for single turns

    @answering
    def start(self, request: str, parcels: dict[str, Any]) -> dict[str, Any]:
        """Start the engine. `request` has `policy`; `parcels` by name, [source, digest, reference to the content]; and
        `facts` of the machine whose bytes count, or null where there is no such machine."""
        from steps.core.params import Policy
        from steps.sampling import engine

        progress.report_to(self._hear)
        asked = json.loads(request)
        here = facts()
        if asked["facts"] and (differs := difference(asked["facts"], here)):
            return {"error": differs, "code": 2, "differs": True, "facts": here}
        self.policy = Policy(**asked["policy"])
        if "base" in parcels:
            self.policy = self.policy.model_copy(update={"base_model": str(self.get(parcels["base"]))})
        if "template" in parcels:
            self.policy = self.policy.model_copy(update={"chat_template": str(self.get(parcels["template"]))})
        if here["the device"] == "CPU":
            take_cores(self.policy.threads)
        engine.get(self.policy)
        return {"facts": here}

    @answering
    def play(self, request: str, parcels: dict[str, Any]) -> dict[str, Any]:
        """Play one shard. Its trajectories, what was measured, and when its turns were."""
        from environments.base import Scenario
        from steps.core import params
        from steps.sampling import engine
        from steps.sampling.job import Job

        asked = json.loads(request)
        env = getattr(import_module(asked["module"]), asked["env"])
        if "data" in parcels and parcels["data"][1] not in self.data:
            self.data = {parcels["data"][1]: env.load(self.get(parcels["data"]))}
        data = next(iter(self.data.values()), None)
        attempts = [(Scenario.model_validate(scenario), attempt) for scenario, attempt in asked["attempts"]]
        limits = getattr(params, asked["kind"]).model_validate(asked["limits"])
        logit_bias = asked["logit_bias"] and {int(token): nats for token, nats in asked["logit_bias"].items()}
        self.done = [0, len(attempts)]
        progress.take_measurements()
        adapter, same = self.get(parcels["adapter"]), (asked["prefix"], asked["seed"], data)
        played = engine.play_shard(Job(self.policy, limits, adapter, env, attempts, *same, logit_bias=logit_bias))
        measured = progress.take_measurements()
        return {"trajectories": [trajectory.model_dump(mode="json") for trajectory in played]} | measured._asdict()

    @answering
    def sample(self, request: str, parcels: dict[str, Any]) -> dict[str, Any]:
        """Begin a batch of single turns: `request` has temperature, max_tokens and stop."""
        from steps.sampling.engine import EngineSampler

        asked = json.loads(request)
        self.sampler = EngineSampler(self.policy, self.get(parcels["adapter"]), **asked)
        return {}

    @answering
    def step(self, request: str, steps: int) -> dict[str, Any]:
        """Take requests, [key, prompt ids, seed, limits] each, and let the engine step until turns are finished, or `steps`
        times. Finished turns as lists of Sampled's fields, and the requests that vLLM refuses, [key, reason] each."""
        from steps.sampling.turns import Limits

        refused = []
        for key, ids, seed, fields in json.loads(request):
            limits = Limits(**fields | {"stop": tuple(fields.get("stop", ()))}) if fields else None
            try:
                self.sampler.submit(key, ids, seed, limits)
            except ValueError as problem:
                refused.append([key, str(problem)])
        finished: list[Any] = []
        for _ in range(steps):
            if finished or not self.sampler.pending:
                break
            finished = self.sampler.step()
        return {"finished": [list(sampled) for sampled in finished], "refused": refused}

    @answering
    def sleep(self) -> dict[str, Any]:
        """Leave a GPU's memory to the trainer, until the next batch."""
        from steps.sampling import engine

        engine.get(self.policy).sleep()
        return {}

    @in_thread("watch")
    def report(self) -> dict[str, Any]:
        """How far the shard is, and what is to be said. In a thread of its own."""
        lines, self.lines = self.lines, []
        return {"done": self.done[0], "lines": lines}

    def _hear(self, message: dict[str, Any]) -> None:
        if "progress" in message:
            self.done = message["progress"][:2]
        elif "say" in message and not message["say"].startswith("starting vLLM"):
            self.lines.append(message["say"])

    @staticmethod
    def get(parcel: list[Any]) -> Path:
        """The path of a parcel on this node, which gets its content where it has not got it yet."""
        source, digest, content = parcel
        sent = Parcel(source, digest)
        if sent.is_here():
            return sent.path()
        import ray

        return sent.unpack(ray.get(content))


def take_cores(threads: int) -> None:
    """Let this thread, and those that it starts, compute on cores that no other engine of this machine computes on, as far
    as there are such. The files of the locks lie in the folder of parcels. UserError where the node has fewer cores."""
    folder = store() / "cores"
    folder.mkdir(exist_ok=True)
    taken = list[int]()
    for core in cores():
        if len(taken) < threads:
            lock = opened(folder / str(core))
            if take(lock):  # else it is another engine's
                _locks.append(lock)
                taken.append(core)
            else:
                os.close(lock)
    if len(taken) < threads:
        if len(cores()) < threads:
            raise UserError(f"policy.threads is {threads}, and a node of the Ray cluster has {len(cores())} cores")
        taken += [core for core in cores() if core not in taken][: threads - len(taken)]
        progress.say("a node has more engines than cores for them: they share")
    os.sched_setaffinity(0, taken)
