"""Engines on a Ray cluster (policy.kind: ray): started where nodes have room, and given shards and single turns to sample.

    fleet_of(policy, modules).play(shards, episodes, parcels) -> the answers of EngineActor.play

Each engine is an actor (addons/fleet/engine_actor.py) with `threads` CPUs, or `tensor_parallel` GPUs where the cluster has
GPUs. The engines stay for the next batch of this process, and end with it, however it ends. Base model, adapter and data
reach a node once each, by content hash, through Ray's object store. What shifts bytes must be alike everywhere: on CPUs as
in this process, on GPUs as in the first engine.

Not here: what a job becomes (addons/fleet/cluster_sampler.py), who plays which shard (addons/fleet/shards.py), and the
connection (addons/fleet/raycluster.py).
"""

from __future__ import annotations

import json
import math
import re
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from addons.fleet import raycluster
from addons.fleet.engine_actor import THREADS, EngineActor
from addons.fleet.parcels import Parcel
from addons.fleet.sameness import facts
from addons.fleet.section import Elsewhere
from addons.fleet.shards import Lost, Played, Ready, dispatch
from steps.core.errors import UserError
from steps.core.progress import progress, say
from steps.core.section import at
from steps.policy.loading import local
from steps.policy.machine import before_training

if TYPE_CHECKING:
    from steps.core.params import Policy

LOOK = 1.0  # seconds between looks at the cluster's nodes and at the engines' progress
ROOM = 900.0  # seconds that the first engine may take to start, waiting for others' work included
NODE_DIED, SILENT = "its node has died", "it does not answer any more"
DEAD, AVOID = math.inf, 30.0  # seconds for which no engine is started on such a node
BUSY = 120.0  # seconds after which that is said
# The engines of this process, by policy; at most one set. Global for the same reason as in steps/sampling/engine.py.
_fleets: dict[str, Fleet] = {}


class Member:
    """An engine of the fleet: its actor, the node that it is on, and what it is doing."""

    def __init__(self, node: str, handle: Any, starting: Any) -> None:
        self.node, self.handle = node, handle
        self.work: Any = starting  # reference to the answer that is waited for; None: idle
        self.is_ready = False
        self.watched: Any = None  # reference to its latest report
        self.done = 0  # episodes of its shard that have ended


class Fleet:
    """The engines of one policy. As shards.Engines, it has a batch of shards played."""

    def __init__(self, policy: Policy, modules: Iterable[str]) -> None:
        self.policy, self.ray = policy, raycluster.connect(Elsewhere.of(policy).cluster, modules)
        on_gpu = raycluster.largest("GPU") > 0
        setting = "policy.tensor_parallel" if on_gpu else "policy.threads"
        size = (at(policy, "tensor_parallel") or 1) if on_gpu else policy.threads
        self.needs: dict[str, float] = {"GPU": size, "CPU": 1} if on_gpu else {"CPU": size}
        raycluster.check_fit(self.needs, f"{setting}: {size}")
        self.facts = None if on_gpu else facts()
        self.members: dict[int, Member] = {}
        self.avoided: dict[str, float] = {}  # nodes, and time.monotonic() until which no engine is started there
        self.unlike: dict[str, str] = {}  # nodes whose engines would give other bytes, and why
        self.number = 0
        self.looked = 0.0  # time.monotonic() of the latest look at the cluster
        self.patience = ROOM  # seconds left for the first engine to start
        self.contents: dict[str, Any] = {}  # references to parcels in the object store, by digest
        base = local(policy)
        plain = {"kind": "vllm", "cluster": None, "engines": None}
        plain |= {"base_model": base.base_model, "revision": base.revision}
        self.start_parcels = {}
        if Path(base.base_model).exists():
            self.start_parcels["base"] = self.parcel(Path(base.base_model))
        if policy.chat_template and Path(policy.chat_template).is_file():
            self.start_parcels["template"] = self.parcel(Path(policy.chat_template))
        settings = policy.model_copy(update=plain).model_dump(mode="json")
        self.start_request = {"policy": settings, "facts": self.facts}
        self.actor = self.ray.remote(concurrency_groups=THREADS)(EngineActor)
        self.shards: list[str] = []  # requests of the batch
        self.parcels: dict[str, Any] = {}
        self.total = self.ended = 0  # episodes of the batch, and those of shards that were played

    def parcel(self, path: Path) -> list[Any]:
        """What an actor needs to have a folder on its node: [source, digest, reference to the content]."""
        parcel = Parcel.of(path)
        if parcel.digest not in self.contents:
            self.contents[parcel.digest] = self.ray.put(parcel.pack())
        return [parcel.source, parcel.digest, self.contents[parcel.digest]]

    def keep(self, parcels: Iterable[list[Any]]) -> None:
        """Let the object store forget all contents but those for starting engines and these."""
        kept = {digest for _, digest, _ in [*self.start_parcels.values(), *parcels]}
        self.contents = {digest: content for digest, content in self.contents.items() if digest in kept}

    # --- Engines that come and go

    def grow(self, wanted: int) -> None:
        """Start engines where nodes have room for them, up to `wanted` and policy.engines."""
        wanted = min(wanted, Elsewhere.of(self.policy).engines or wanted)
        on_node = Counter(member.node for member in self.members.values())
        room: dict[str, int] = {}
        for node in raycluster.alive_nodes():
            fits = min(int(node["Resources"].get(name, 0) // amount) for name, amount in self.needs.items())
            if node["NodeID"] not in self.unlike and self.avoided.get(node["NodeID"], 0) <= time.monotonic():
                room[node["NodeID"]] = fits - on_node[node["NodeID"]]
        while len(self.members) < wanted and room and max(room.values()) > 0:
            roomiest = max(room, key=lambda name: room[name])
            room[roomiest] -= 1
            self._start(roomiest)

    def _start(self, node: str) -> None:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        gpus = {"num_gpus": self.needs["GPU"]} if "GPU" in self.needs else {}
        place = NodeAffinitySchedulingStrategy(node, soft=False)
        options = {"num_cpus": self.needs["CPU"], "scheduling_strategy": place, "max_restarts": 0} | gpus
        handle = self.actor.options(**options).remote()
        request = json.dumps(self.start_request)
        starting = handle.start.remote(request, self.start_parcels)
        self.number += 1
        self.members[self.number] = Member(node, handle, starting)

    def idle(self) -> list[Ready]:
        """The engines of earlier batches, which are ready at once."""
        return [Ready(name) for name, member in self.members.items() if member.is_ready and member.work is None]

    def news(self, unplayed: int) -> Iterable[Ready | Played | Lost]:
        """As shards.Engines says. UserError where the engines cannot work."""
        if (since := time.monotonic() - self.looked) > LOOK:
            self.looked = time.monotonic()
            self.grow(unplayed)
            self._report()
            self._wait_for_room(min(since, 2 * LOOK))
        if not (working := {member.work: name for name, member in self.members.items() if member.work is not None}):
            if not self.members:
                self._check_room()
            time.sleep(LOOK / 4)
            return []
        finished, _ = self.ray.wait(list(working), num_returns=1, timeout=LOOK / 4)
        return [event for work in finished if (event := self._event(working[work])) is not None]

    def _event(self, name: int) -> Ready | Played | Lost | None:
        """What a member's answer says. None: it is left out, because its node is unlike the others."""
        member = self.members[name]
        work, member.work = member.work, None
        try:
            answer = self.ray.get(work)
        except self.ray.exceptions.RayTaskError as problem:  # the actor's methods raise nothing
            raise RuntimeError(f"an engine's actor failed: {problem}") from problem
        except self.ray.exceptions.RayError as problem:
            self.drop(name)
            why = reason(problem)
            # Ray takes a node for alive for some seconds more, and engines that are started there would be lost, too.
            self.avoided[member.node] = time.monotonic() + (DEAD if why == NODE_DIED else AVOID if why == SILENT else 0)
            return Lost(name, why)
        if answer.get("differs"):
            self.drop(name)
            self._leave_out(member.node, answer["error"])
            return None
        if "error" in answer:
            raise UserError(answer["error"]) if answer["code"] == 2 else RuntimeError(answer["error"])
        if not member.is_ready:
            member.is_ready = True
            if self.facts is None:
                self.facts = self.start_request["facts"] = answer["facts"]
            ready = sum(each.is_ready for each in self.members.values())
            say(f"engine {ready} of {len(self.members)} is ready on {self._address(member.node)}")
            return Ready(name)
        self.ended += len(answer["trajectories"])
        member.done = 0
        self._show()
        return Played(name, answer)

    def _leave_out(self, node: str, differs: str) -> None:
        """Use no engine of a node that would give other bytes."""
        self.unlike[node] = differs
        say(f"the node {self._address(node)} is left out, because it would give other bytes ({differs})")

    def _check_room(self) -> None:
        """UserError where no engine is there, and none can be started."""
        if self.unlike:
            raise UserError(
                "no node of the Ray cluster gives the bytes that this machine gives: "
                + "; ".join(f"{self._address(node)}: {differs}" for node, differs in self.unlike.items())
                + ". Use the same packages and processors everywhere, or start the run on a machine of the cluster"
            )
        raycluster.check_fit(self.needs, "an engine")

    def _wait_for_room(self, seconds: float) -> None:
        """Say that the cluster is busy, where no engine has started for long. UserError in the end."""
        if any(member.is_ready for member in self.members.values()):
            self.patience = ROOM
            return
        before, self.patience = self.patience, self.patience - seconds
        wanted = " and ".join(f"{amount:g} {name}" for name, amount in self.needs.items())
        if before >= ROOM - BUSY > self.patience:
            say(f"no engine is ready yet; each waits for {wanted} that nobody uses, or loads its model")
        if self.patience < 0:
            raise UserError(
                f"no engine has started within {ROOM / 60:.0f} minutes. Each needs {wanted} of one node: `ray status` shows "
                "who uses them"
            )

    @staticmethod
    def _address(node: str) -> str:
        nodes = {entry["NodeID"]: entry for entry in raycluster.alive_nodes()}
        return str(nodes[node]["NodeManagerAddress"]) if node in nodes else f"the lost node {node[:8]}"

    def drop(self, name: int) -> None:
        """Forget an engine, and end what may be left of it."""
        member = self.members.pop(name)
        self.ray.kill(member.handle)

    def end(self) -> None:
        """End all engines."""
        for name in list(self.members):
            self.drop(name)
        _fleets.clear()

    def sleep(self) -> None:
        """Have the engines leave GPUs to the trainer, which may be on the same ones."""
        if "GPU" in self.needs:
            self.ray.get([self.members[engine].handle.sleep.remote() for (engine,) in self.idle()])

    # --- A batch of shards

    def play(self, shards: list[str], total: int, parcels: dict[str, Any]) -> list[dict[str, Any]]:
        """The answers of EngineActor.play to these requests, in their order; `total` episodes in all."""
        self.shards, self.total, self.ended = shards, total, 0
        self.parcels = parcels
        self.keep(parcels.values())
        try:
            return dispatch(len(shards), self)
        except BaseException:
            self.end()
            raise

    def begin(self, engine: int, shard: int) -> None:
        """Have an engine play a shard."""
        member = self.members[engine]
        member.work = member.handle.play.remote(self.shards[shard], self.parcels)

    def _report(self) -> None:
        """Take the engines' reports, and ask for the next ones."""
        for member in self.members.values():
            if not member.is_ready:
                continue
            if member.watched is not None and self.ray.wait([member.watched], timeout=0)[0]:
                try:
                    report = self.ray.get(member.watched)
                except self.ray.exceptions.RayError:  # lost: its work says so
                    continue
                member.watched = None
                member.done = report["done"] if member.work is not None else 0
                for line in report["lines"]:
                    say(line)
            if member.watched is None:
                member.watched = member.handle.report.remote()
        self._show()

    def _show(self) -> None:
        if self.total:
            under_way = sum(member.done for member in self.members.values())
            done = min(self.ended + under_way, self.total)
            engines = sum(member.is_ready for member in self.members.values())
            progress(done, self.total, f"episodes, {engines} engine{'s' if engines != 1 else ''}")


def reason(problem: Exception) -> str:
    """Why an actor was lost, as far as Ray knows it."""
    text = " ".join(str(problem).split())
    if "node has died" in text or "node is dead" in text or "node was" in text:
        return NODE_DIED
    if "temporarily unavailable" in text:
        return SILENT
    kind = re.search(r"Worker exit type: (\w+)", text)
    detail = re.search(r"Worker exit detail: ([^.]*)", text)
    if kind is None:
        return text[:300] or type(problem).__name__
    return f"its process has died ({kind[1]}{': ' + detail[1] if detail else ''})"


def fleet_of(policy: Policy, modules: Iterable[str] = ()) -> Fleet:
    """The engines of this policy in this process; those of another policy end."""
    key = policy.model_dump_json()
    if key not in _fleets:
        for other in list(_fleets.values()):
            other.end()
        _fleets[key] = Fleet(policy, modules)
        before_training(_sleep)
        raycluster.before_leaving(end)
    return _fleets[key]


def _sleep() -> None:
    for fleet in list(_fleets.values()):
        fleet.sleep()


def end() -> None:
    """End the engines of this process."""
    for fleet in list(_fleets.values()):
        fleet.end()
