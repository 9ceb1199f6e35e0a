"""The row `swap` of benchmarks/fleet.py: seconds until two of vLLM's servers sample with a new adapter, while they work.

A swap is all of addons/fleet/servers.py's `use`: send the adapter to both, load it on both, probe both, forget old ones.
The servers are real, on the CPU, with the embedded policy and a core each; 16 requests are under way the whole time.
"""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from addons.fleet import vllm_server
from environments.kit.http_client import NoAnswer, asked
from steps.core.params import Policy
from steps.kit.process import end_all, start
from steps.kit.sockets import listen

START_SECONDS = 300.0
KEY_ENV = "FLYWHEEL_SWAP_KEY"


class Server:
    """A real server of vLLM's, on a core of its own; it can be killed and started again at the same address."""

    def __init__(self, policy: Policy, folder: Path, key: str, core: int) -> None:
        with listen("127.0.0.1", 0) as listener:
            self.port = int(listener.getsockname()[1])
        self.policy, self.folder, self.key, self.core = policy, folder, key, core
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; it answers after a while (`wait`)."""
        own = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self.core})
        try:
            kept = self.folder / str(self.port)
            variables = vllm_server.environment(self.policy, "127.0.0.1", self.port, self.key, kept, False)
            words = vllm_server.command(self.policy, "127.0.0.1", self.port, False)
            log, command = self.folder / f"{self.port}.log", [sys.executable, "-m", *words]
            self.process = start(command, log=log, env=variables, start_new_session=True)
        finally:
            os.sched_setaffinity(0, own)

    def wait(self) -> None:
        """Wait until it answers. RuntimeError with the end of its log where it does not."""
        until = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(NoAnswer):
                if asked("GET", f"{self.url}/health", seconds=5).status == 200:
                    return
            if self.process is None or self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError((self.folder / f"{self.port}.log").read_text()[-3000:])
            time.sleep(0.2)

    def kill(self) -> None:
        """End it with all its processes, at once."""
        if self.process is not None:
            end_all([self.process.pid], ((signal.SIGKILL, 0.0),), is_group=True)
            self.process.wait()


@contextlib.contextmanager
def servers(count: int = 2) -> Iterator[tuple[Policy, list[Server], Path]]:
    """(the policy that samples on them, running servers, a folder)."""
    key = os.environ[KEY_ENV] = secrets.token_urlsafe(24)
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        plain = Policy(threads=1)
        started = [Server(plain, Path(name), key, cores[number % len(cores)]) for number in range(count)]
        settings = {"urls": [server.url for server in started], "key_env": KEY_ENV}
        try:
            for server in started:
                server.start()
            for server in started:
                server.wait()
            yield Policy.model_validate({"kind": "server", "servers": settings, "threads": 1}), started, Path(name)
        finally:
            for server in started:
                server.kill()


def versions(policy: Policy, folder: Path, count: int) -> tuple[list[Path], Any]:
    """(adapters of which each is a small step from the one before, with the trainer's probes; the trainer)."""
    from steps.training.grpo import Trainer
    from tests.support.tiny import moved

    trainer = Trainer(policy)
    adapters = [folder / f"adapter-{number}" for number in range(count)]
    for number, adapter in enumerate(adapters):
        moved(trainer, 0.02, number).save_adapter(adapter)
    return adapters, trainer


def prompts(count: int, seed: int) -> list[list[int]]:
    """Prompts that begin alike, so that they meet each other in a prefix cache (its blocks are of 128 tokens on a CPU)."""
    rng = random.Random(seed)
    begin = [random.Random(0).randrange(3, 2000) for _ in range(140)]
    return [begin + [rng.randrange(3, 2000) for _ in range(rng.randrange(4, 24))] for _ in range(count)]


class Load:
    """Requests that are always under way, `width` of them, with whatever adapter is the current one."""

    def __init__(self, policy: Policy, width: int = 16, tokens: int = 24) -> None:
        self.policy, self.width, self.tokens = policy, width, tokens
        self.replies: list[tuple[Path, list[int], int, Any]] = []  # (adapter, prompt, seed, what was sampled)
        self.errors: list[BaseException] = []
        self.adapter: Path | None = None
        self.is_over = False
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            number = 0
            while not self.is_over:
                adapter, number = self.adapter, number + 1
                if adapter is not None:
                    asked = prompts(self.width, number)
                    for key, sampled in enumerate(play(self.policy, adapter, asked, number, self.tokens)):
                        self.replies.append((adapter, asked[key], number, sampled))
        except BaseException as problem:
            self.errors.append(problem)

    def __enter__(self) -> Load:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over = True
        self.thread.join()
        if self.errors:
            raise self.errors[0]


def play(policy: Policy, adapter: Path, asked: Sequence[list[int]], seed: int, tokens: int) -> list[Any]:
    """What is sampled for these prompts, in their order."""
    from addons.fleet.server_sampler import ServerSampler

    sampler = ServerSampler(policy, adapter, 1.0, tokens, 2)
    for key, ids in enumerate(asked):
        sampler.submit(key, ids, seed * 1_000_003 + key)
    finished: list[Any] = []
    while sampler.pending:
        finished += sampler.step()
    return sorted(finished)


def swap(policy: Policy, adapters: Sequence[Path], load: Load | None = None) -> list[float]:
    """Seconds of each swap, in the order of the adapters; with `load`, it goes on with each for a while."""
    from addons.fleet.servers import get

    seconds = []
    for adapter in adapters:
        began = time.perf_counter()
        get(policy).run(get(policy).use(adapter))
        seconds.append(time.perf_counter() - began)
        if load is not None:
            load.adapter = adapter
            time.sleep(0.3)
    return seconds


def p95(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=20, method="inclusive")[-1]


def measure(quick: bool) -> dict[str, Any]:
    """The row: seconds of a swap under load, without the first, in which the servers are met."""
    count = 12 if quick else 50
    with servers() as (policy, _, folder):
        adapters, _ = versions(policy, folder, count + 1)
        with Load(policy) as load:
            swap(policy, adapters[:1], load)
            seconds = swap(policy, adapters[1:], load)
    return {
        "name": "swap",
        "ratio": round(p95(seconds), 3),  # seconds / the 1 s that are allowed
        "p50_seconds": round(statistics.median(seconds), 3),
        "p95_seconds": round(p95(seconds), 3),
        "swaps": count,
        "replies": len(load.replies),
    }
