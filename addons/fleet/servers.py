"""vLLM's servers of a policy of kind `server`: their adapters, and what becomes of one that is away.

    fleet = get(policy)
    version = fleet.run(fleet.use(adapter))
    answer = fleet.run(fleet.turn(version, prompt_ids, {"max_tokens": 64, "seed": 1}))

An adapter is brought to all servers or to none: loaded everywhere, then probed everywhere (addons/fleet/probe.py), and then
asked; where one refuses, all forget it. Its name and path hold the hash of its content, and so does the salt of its
prefix cache. Each reply names its adapter, and the probe is repeated when nothing is under way (server_sampler.py).

A request goes to the server with the fewest. Where a server is away, its requests go to the others; it gets new ones once it
has been checked, loaded and probed again. A reply is a function of its request and its adapter alone (on CPUs by
steps/sampling/worker_cpu.py, on GPUs by VLLM_BATCH_INVARIANT): where it was sampled, and how often, does not matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from addons.fleet import probe
from addons.fleet.replica import AT_ONCE, PREFIX, Away, Refused, Replica
from addons.fleet.section import Elsewhere
from steps.core.errors import UserError
from steps.core.progress import say
from steps.core.section import at
from steps.policy.adapter import adapter_hash
from steps.policy.loading import load_tokenizer

if TYPE_CHECKING:
    from steps.core.params import Policy

T = TypeVar("T")
URLS = "FLYWHEEL_SERVERS"
KEPT = 4  # adapters that a server keeps beside the current one
TIMEOUT = 600.0  # seconds after which a request without an answer is made again
PULSE = 5.0  # seconds between two questions whether a server is still there
LOOK = 0.5  # seconds between two looks for one that is away
BROKEN = 3  # answers with an error of the server's own after which a request is given up

# The servers of this process's policy; at most one. Global for the same reason as the engine (steps/sampling/engine.py).
_fleets: dict[str, Fleet] = {}


class Version(NamedTuple):
    """An adapter on the servers."""

    name: str
    folder: Path


class Fleet:
    """The servers of a policy. Everything that is asynchronous here runs in a thread of its own."""

    def __init__(self, policy: Policy) -> None:
        settings = Elsewhere.of(policy).servers
        assert settings is not None
        self.policy, self.settings = policy, settings
        urls = list(dict.fromkeys(url.rstrip("/") for url in self.settings.urls or os.environ.get(URLS, "").split()))
        if not urls:
            raise UserError(
                f"policy.servers.urls is empty, and so is the environment variable {URLS}: name the servers"
            )
        self.replicas = [Replica(url, self.settings) for url in urls]
        self.versions: dict[str, Version] = {}  # those that are asked, the current one last
        self.probes: dict[str, probe.Probe] = {}  # of them
        self.probe_ids: tuple[int, ...] = ()
        self.problems: dict[str, str] = {}  # why a server is away, by its address
        self.is_uneven = False  # whether it was said that a reply depends on its batch
        self.loop = asyncio.new_event_loop()
        self.changed, self.swapping = asyncio.Condition(), asyncio.Lock()
        self.looking: dict[str, asyncio.Task[None]] = {}  # for servers that are away, by their address
        threading.Thread(target=self.loop.run_forever, name="servers", daemon=True).start()
        asyncio.run_coroutine_threadsafe(self._watch(), self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of asynchronous work, for the other thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    # --- Adapters

    async def use(self, adapter: Path) -> Version:
        """Have the adapter on all servers that answer. UserError where one refuses it, after all have forgotten it, or where
        none answers in time."""
        async with self.swapping:
            return await self._use(adapter)

    async def _use(self, adapter: Path) -> Version:
        version = Version(PREFIX + adapter_hash(adapter), adapter)
        expected = probe.read(adapter)
        if expected is not None:
            self.probes[version.name] = expected
        elif not self.probe_ids:
            self.probe_ids = probe.token_ids(load_tokenizer(self.policy))
        until = time.monotonic() + self.settings.wait_seconds
        is_waiting = False
        while True:
            missing = [replica for replica in self.replicas if version.name not in replica.held]
            outcomes = await asyncio.gather(*(self._load(each, version) for each in missing), return_exceptions=True)
            loaded = [each for each, outcome in zip(missing, outcomes, strict=True) if outcome is None]
            probed = await asyncio.gather(*(self._probe(each, version) for each in loaded), return_exceptions=True)
            outcomes += probed
            for replica, outcome in zip([*missing, *loaded], outcomes, strict=True):
                if isinstance(outcome, UserError | Refused):
                    await asyncio.gather(*(each.unload(version.name) for each in self.replicas if each.is_here))
                    self.probes.pop(version.name, None)
                    why = f"the server at {replica.url} refuses a request: " if isinstance(outcome, Refused) else ""
                    raise UserError(f"{why}{outcome}" + ("; no server keeps the adapter" if self.replicas[1:] else ""))
                if isinstance(outcome, Away):
                    self._lost(replica, str(outcome))
                elif outcome is not None:
                    raise outcome
            if any(each.is_here and version.name in each.held for each in self.replicas):
                break
            if time.monotonic() > until:
                raise UserError(self._nobody())
            if not is_waiting:
                say(f"no server answers ({self._why()}); waiting up to {self.settings.wait_seconds:.0f} s")
                is_waiting = True
            await asyncio.sleep(0.5)
        self.versions.pop(version.name, None)
        self.versions[version.name] = version
        await self._forget_old()
        for replica in self.replicas:
            if not (replica.is_here and version.name in replica.held):
                self._look_for(replica)
        return version

    async def _load(self, replica: Replica, version: Version) -> None:
        if not replica.is_here:
            await replica.check(self.policy)
            replica.is_here = True
            self.problems.pop(replica.url, None)
        await replica.load(version.name, version.folder, TIMEOUT)

    async def _probe(self, replica: Replica, version: Version) -> None:
        """Have the server show that the adapter is what it should be; from then on it is asked. Away, UserError."""
        wanted = self.probes.get(version.name)
        given = await replica.probe(version.name, wanted.ids if wanted else self.probe_ids)
        if wanted is None:  # the first server stands for the trainer
            wanted = self.probes[version.name] = probe.of_server(self.probe_ids, given, self.policy.dtype)
            say(
                f"the adapter in {version.folder} has no {probe.FILE} of a trainer: servers are compared with {replica.url}"
            )
        if wrong := probe.problem(given, version.name, self.probes):
            raise UserError(
                f"the server at {replica.url} does not answer as the adapter {version.name}: {wrong}. Its base model, its "
                "policy.revision, policy.dtype and policy.quantization must be the trainer's"
            )
        if not replica.held:
            await self._check_draws(replica, version, wanted.ids)
        if version.name not in replica.held:
            replica.held.append(version.name)

    async def _check_draws(self, replica: Replica, version: Version, ids: Sequence[int]) -> None:
        if await replica.check_draws(version.name, ids) or self.is_uneven:
            return
        if at(self.policy, "deterministic"):
            raise UserError(
                f"policy.deterministic: a reply of the server at {replica.url} depends on what else it computes; start it "
                "with VLLM_BATCH_INVARIANT=1 on a GPU, and by `make vllm-server` without"
            )
        self.is_uneven = True
        say(
            f"a reply of {replica.url} depends in its last bits on what else it computes: a repeated run gives other bytes"
        )

    async def _forget_old(self) -> None:
        """Have the servers forget all adapters but the newest; those that are asked at the moment stay."""
        for name in list(self.versions)[: -1 - KEPT]:
            del self.versions[name]
            self.probes.pop(name, None)
        for replica in self.replicas:
            if replica.is_here:
                old = [name for name in replica.listed if name not in self.versions]
                for name in old[: max(0, len(replica.listed) - 1 - KEPT)]:
                    await replica.unload(name)

    async def verify(self, version: Version) -> None:
        """Probe all servers again. UserError where one is not what it should be any more."""
        ids = self.probes[version.name].ids
        for replica in [each for each in self.replicas if each.is_here and version.name in each.held]:
            try:
                given = await replica.probe(version.name, ids)
            except (Away, Refused) as problem:
                self._lost(replica, str(problem))
                continue
            if wrong := probe.problem(given, version.name, self.probes):
                raise UserError(
                    f"the server at {replica.url} does not answer as the adapter {version.name} any more: {wrong}; nothing "
                    "of this batch is kept"
                )

    # --- Servers that go and come

    def _lost(self, replica: Replica, reason: str) -> None:
        """A server is away: take its requests back, and look for it until it answers again."""
        self.problems[replica.url] = reason
        if replica.is_here:
            say(f"the server at {replica.url} is away ({reason}): its {len(replica.turns)} requests go to others")
        replica.is_here, replica.held = False, []
        for turn in replica.turns:
            turn.cancel()
        if self.versions:
            self._look_for(replica)

    def _look_for(self, replica: Replica) -> None:
        if replica.url not in self.looking:
            self.looking[replica.url] = self.loop.create_task(self._bring_back(replica))

    async def _bring_back(self, replica: Replica) -> None:
        """Look for a server; check it, load what is asked, and probe it, before it gets a request."""
        while not (replica.is_here and self.versions.keys() <= set(replica.held)):
            await asyncio.sleep(LOOK)
            try:
                await replica.check(self.policy)
                for version in list(self.versions.values()):
                    await replica.load(version.name, version.folder, TIMEOUT)
                    await self._probe(replica, version)
                replica.is_here = True
            except (Away, Refused) as problem:
                replica.held, self.problems[replica.url] = [], str(problem)
            except UserError as problem:
                replica.held = []
                if self.problems.get(replica.url) != str(problem):
                    say(f"{problem}; it gets no requests")
                self.problems[replica.url] = str(problem)
        del self.looking[replica.url]
        self.problems.pop(replica.url, None)
        say(f"the server at {replica.url} is back, with {len(replica.held)} adapters")
        async with self.changed:
            self.changed.notify_all()

    async def _watch(self) -> None:
        """Notice servers that no longer answer although a connection to them stands."""
        while True:
            await asyncio.sleep(PULSE)
            for replica in self.replicas:
                if replica.is_here and replica.turns:
                    try:
                        await replica.ask("GET", "/health")
                    except (Away, Refused, UserError) as problem:
                        self._lost(replica, str(problem))

    async def _pick(self, version: Version) -> Replica:
        """A server with this adapter and room for a request. UserError where there is none for too long."""
        until: float | None = None
        while True:
            ready = [each for each in self.replicas if each.is_here and version.name in each.held]
            free = [each for each in ready if len(each.turns) < AT_ONCE]
            if free:
                return min(free, key=lambda replica: len(replica.turns))
            if ready:
                until = None
            elif until is None:
                until = time.monotonic() + self.settings.wait_seconds
            elif time.monotonic() > until:
                raise UserError(self._nobody())
            async with self.changed:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self.changed.wait(), 1.0)

    def _why(self) -> str:
        return "; ".join(f"{url}: {reason}" for url, reason in self.problems.items()) or "for an unknown reason"

    def _nobody(self) -> str:
        return (
            f"no server has answered for {self.settings.wait_seconds:.0f} seconds (policy.servers.wait_seconds; "
            f"{self._why()}): start one with `make vllm-server`, or see policy.servers.urls"
        )

    # --- Turns

    async def turn(self, version: Version, ids: list[int], sampling: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request, from whichever server. Refused where vLLM does not take the request; UserError."""
        failures = 0
        while True:
            replica = await self._pick(version)
            asked = replica.generate(version.name, ids, sampling, TIMEOUT)
            turn = self.loop.create_task(asked)
            replica.turns.add(turn)
            try:
                return await turn
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # nobody waits for it any more; else it was _lost
                    raise
            except Away as problem:
                self._lost(replica, str(problem))
            except Refused as problem:
                if problem.status == 404 and version.name in str(problem):  # restarted, or another flow made it forget
                    self._lost(replica, f"it has lost the adapter {version.name}")
                    continue
                failures += 1
                if problem.status < 500:
                    raise
                if failures == BROKEN:
                    raise UserError(f"the server at {replica.url} fails at a request: {problem}") from None
            finally:
                replica.turns.discard(turn)
                async with self.changed:
                    self.changed.notify()


def end() -> None:
    """Close the connections to all servers, and end the threads that ask them."""
    for fleet in _fleets.values():
        for replica in fleet.replicas:
            fleet.run(replica.http.close())
        fleet.loop.call_soon_threadsafe(fleet.loop.stop)
    _fleets.clear()


def get(policy: Policy) -> Fleet:
    """The servers of this policy."""
    key = policy.model_dump_json()
    if key not in _fleets:
        end()
        _fleets[key] = Fleet(policy)
    return _fleets[key]
