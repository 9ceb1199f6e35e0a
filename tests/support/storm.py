"""Many episodes by clients of six SDKs, on a network that fails, behind a gateway that is killed; all tokens are counted.

    python -m tests.support.storm                          # 200 episodes each, 50 kills in all
    python -m tests.support.storm --agents raw_events --episodes 20 --kills 3

The engine is vLLM with the embedded policy, in this process, as in the stage rollout. Between the agents and the gateway is
a proxy that cuts connections in mid-answer and holds answers back for longer than the clients wait. One line of JSON per
agent: `lost` episodes without a whole trajectory, `doubled` and `missing` answers against the agents' own count, `foreign`
turns whose ids or log probabilities are not in the engine's own log. All must be 0. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

AGENTS = (
    "openai_async openai_sync openai_stream openai_parsed openai_responses anthropic_messages langgraph_react openai_agents "
    "raw_events"
).split()
PLACE = "tests.support.agents"
ROOT = Path(__file__).resolve().parent.parent.parent


class Proxy:
    """A TCP proxy in a thread, to an address that may change, which cuts and delays answers."""

    def __init__(self, seed: int, cut: float, delay: float, seconds: float) -> None:
        self.draw, self.cut, self.delay, self.seconds = random.Random(seed), cut, delay, seconds
        self.target: Any = lambda: None
        self.port = 0
        self.cuts = self.delays = 0
        self.ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        self.ready.wait(10)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self.ready.set()
        await server.serve_forever()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            host, _, port = self.target().rpartition(":")
            other_reader, other_writer = await asyncio.open_connection(host, int(port))
        except (OSError, AttributeError, ValueError):
            writer.close()
            return
        ways = [self._copy(reader, other_writer, False), self._copy(other_reader, writer, True)]
        tasks = [asyncio.create_task(way) for way in ways]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)  # either side has gone
        for task in tasks:
            task.cancel()
        for end in (writer, other_writer):
            end.close()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_answer: bool) -> None:
        try:
            while data := await reader.read(2**16):
                if is_answer and self.draw.random() < self.delay:
                    self.delays += 1
                    await asyncio.sleep(self.seconds)
                if is_answer and self.draw.random() < self.cut:
                    self.cuts += 1
                    writer.write(data[: self.draw.randrange(len(data))])
                    await writer.drain()
                    return
                writer.write(data)
                await writer.drain()
        except (OSError, asyncio.CancelledError):
            return


@contextmanager
def logged(log: Counter[Any]) -> Iterator[None]:
    """Log every turn that the engine samples: (prompt ids, completion ids, logprobs)."""
    from steps.sampling.engine import EngineSampler

    submit, step, prompts = EngineSampler.submit, EngineSampler.step, dict[int, tuple[int, ...]]()

    def logging_submit(sampler: Any, key: int, prompt_ids: list[int], *words: Any) -> None:
        prompts[key] = tuple(prompt_ids)
        submit(sampler, key, prompt_ids, *words)

    def logging_step(sampler: Any) -> Any:
        finished = step(sampler)
        for turn in finished:
            log[prompts[turn.key], turn.completion_ids, turn.logprobs] += 1
        return finished

    EngineSampler.submit, EngineSampler.step = logging_submit, logging_step  # pyrefly: ignore[bad-assignment]
    try:
        yield
    finally:
        EngineSampler.submit, EngineSampler.step = submit, step


def kill_often(count: int, draw: random.Random, ended: threading.Event, killed: list[float], within: float) -> None:
    """Kill the gateway so often, at random moments in which it is at work."""
    from addons.agents.gateway import play

    while len(killed) < count and not ended.wait(draw.uniform(0.3, 1.0) * within):
        gateway = play._gateways[0] if play._gateways else None
        if (
            gateway is not None
            and play.ADDRESS.exists()
            and gateway.process is not None
            and gateway.process.poll() is None
        ):
            os.kill(gateway.process.pid, signal.SIGKILL)
            killed.append(time.monotonic())


def play_storm(
    name: str, adapter: Path, episodes: int, kills: int, seed: int, order: str, faults: bool, within: float = 2.0
) -> dict[str, Any]:
    """One agent's episodes, and what was counted of them."""
    import environments
    from addons.agents.gateway import play
    from addons.agents.section import Agents
    from environments.email_search import EmailSearch
    from steps.core.params import Policy, Rollout
    from steps.sampling.job import Job
    from tests.support.agents._common import mailbox

    task = f"{PLACE}.{name}"
    scenarios = EmailSearch.scenarios(mailbox(), "train", -(-episodes // 4), seed)
    attempts = [(scenario, attempt) for scenario in scenarios for attempt in range(4)][:episodes]
    proxy = Proxy(seed, cut=0.05 if faults else 0.0, delay=0.03 if faults else 0.0, seconds=2.5)
    proxy.target = lambda: play._gateways[0].address if play._gateways else None
    os.environ |= {"STORM_PROXY": f"127.0.0.1:{proxy.port}", "STORM_TIMEOUT": "2" if faults else "60"}
    log: Counter[Any] = Counter()
    ended, killed = threading.Event(), list[float]()
    killer = threading.Thread(target=kill_often, args=(kills, random.Random(seed), ended, killed, within), daemon=True)
    killer.start()
    began = time.perf_counter()
    try:
        with logged(log):
            limits = Rollout.model_validate({"max_tokens": 64, "order": order})
            env = environments.load(task)
            agents = Agents(concurrency=32)
            played = play.play(Job(Policy(), limits, adapter, env, attempts, "001", seed, task=task, settings=agents))
    finally:
        ended.set()
        killer.join()
        for gateway in play._gateways:
            gateway.stop_clients()  # the next agent's have another proxy
    seconds = time.perf_counter() - began
    counts = Counter({"lost": 0, "doubled": 0, "missing": 0, "foreign": 0, "turns": 0, "rows": 0})
    for (scenario, attempt), trajectory in zip(attempts, played, strict=True):
        is_whole = trajectory.scenario_id == scenario.id and trajectory.attempt == attempt and not trajectory.error
        counts["lost"] += not (is_whole and trajectory.result is not None)
        asked = trajectory.result.components["calls"] if trajectory.result else 0
        counts["doubled"] += max(len(trajectory.turns) - int(asked), 0)
        counts["missing"] += max(int(asked) - len(trajectory.turns), 0)
        counts["turns"] += len(trajectory.turns)
        counts["foreign"] += sum(
            not log[turn.prompt_ids, turn.completion_ids, turn.logprobs] for turn in trajectory.turns
        )
        rows = trajectory.flatten()
        counts["rows"] += len(rows)
        loss = sum(sum(row.mask) for row in rows)
        sampled = sum(len(turn.completion_ids) for turn in trajectory.turns if not turn.is_constrained)
        counts["tokens_miscounted"] += abs(loss - sampled)
    row = {"agent": name, "episodes": len(played), "kills": len(killed), "cuts": proxy.cuts, "delays": proxy.delays}
    errors = Counter(trajectory.error for trajectory in played if trajectory.error)
    return row | dict(counts) | {"seconds": round(seconds, 1), "sampled": log.total(), "errors": errors.most_common(3)}


def is_right(row: dict[str, Any]) -> bool:
    return not any(row[name] for name in ("lost", "doubled", "missing", "foreign", "tokens_miscounted"))


def fresh_adapter(folder: Path) -> Path:
    """The adapter of the stage initialise, from a process of its own: torch's threads are set in it for training."""
    words = ["-m", "steps.initialise", "--adapter", f"{folder}/adapter", "--checkpoint", f"{folder}/checkpoint"]
    subprocess.run([sys.executable, *words], check=True, env=os.environ | {"FLYWHEEL_WORKER": "off"}, stdout=sys.stderr)
    return folder / "adapter"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.storm", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--agents", nargs="+", choices=AGENTS, default=AGENTS)
    parser.add_argument("--episodes", type=int, default=200)
    parser.add_argument("--kills", type=int, default=50, help="of the gateway, over all agents")
    parser.add_argument("--order", choices=("lockstep", "free"), default="free")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calm", action="store_true", help="a network that does not fail")
    parser.add_argument("--adapter", type=Path, help="default: a fresh one, made in a temporary folder")
    options = parser.parse_args()
    right = True
    with tempfile.TemporaryDirectory(prefix="storm-") as folder:
        adapter = (options.adapter or fresh_adapter(Path(folder))).absolute()
        (Path(folder) / "tasks_data").symlink_to(ROOT / "tasks_data")
        os.chdir(folder)  # no journal of an earlier storm is there to be played from again
        os.environ["PYTHONPATH"] = os.fspath(ROOT)
        share, more = divmod(options.kills, len(options.agents))
        for place, name in enumerate(options.agents):
            kills = share + (place < more)
            row = play_storm(name, adapter, options.episodes, kills, options.seed, options.order, not options.calm)
            print(json.dumps(row), flush=True)
            right &= is_right(row)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
