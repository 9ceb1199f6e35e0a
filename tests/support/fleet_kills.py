"""Two Ray nodes on this machine play batches with real vLLM while engines and a node are killed; the bytes are compared.

    python -m tests.support.fleet_kills                         # 128 episodes in 8 shards, 20 kills
    python -m tests.support.fleet_kills --scenarios 4 --shards 2 --kills 1 --nodes 1

First the batch is played in a process without Ray. Then nodes with a CPU each play it again and again, with an engine of one
thread each, until all kills are done: SIGKILL to an engine's process or to everything of a node, which a new node replaces.
One line of JSON: `missing` and `doubled` episodes, `batches` and those that are `unlike` the first one's bytes. All but
`batches` must be 0, and exit code 1 says that they are not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil

from steps.core.params import Policy, Rollout

TASK, ATTEMPTS, SEED = "email_search", 8, 7


def play(policy: Policy, adapter: Path, scenarios: int, shards: int, path: Path) -> list[str]:
    """Play the batch and write it; the ids of its episodes."""
    import environments
    from steps.core.records import write_records
    from steps.sampling.job import Job
    from steps.sampling.play import play

    env, folder = environments.load(TASK), Path("tasks_data") / TASK
    data = env.load(folder)
    attempts = [
        (scenario, attempt) for scenario in env.scenarios(data, "train", scenarios, SEED) for attempt in range(ATTEMPTS)
    ]
    limits = Rollout.model_validate({"scenarios": scenarios, "shards": shards})
    played = play(Job(policy, limits, adapter, env, attempts, "001", SEED, data, folder))
    write_records(played, path)
    return [trajectory.id for trajectory in played]


class Nodes:
    """Ray nodes on this machine, of one CPU each: the head, which stays, and others."""

    def __init__(self, count: int) -> None:
        from ray.cluster_utils import Cluster

        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        self.others = [self.cluster.add_node(num_cpus=1) for _ in range(count - 1)]
        os.environ["RAY_ADDRESS"] = self.cluster.address

    def engines(self) -> list[psutil.Process]:
        """The processes of the engines on all nodes."""
        processes = []
        for node in [self.cluster.head_node, *self.others]:
            for entry in node.all_processes["raylet"]:
                try:
                    children = psutil.Process(entry.process.pid).children(recursive=True)
                    processes += [child for child in children if "EngineActor" in " ".join(child.cmdline())]
                except psutil.Error:
                    continue
        return processes

    def kill_engine(self, draw: random.Random) -> str:
        engines = self.engines()
        if not engines:
            return ""
        draw.choice(engines).kill()
        return "engine"

    def kill_node(self, draw: random.Random) -> str:
        if not self.others:
            return ""
        self.cluster.remove_node(self.others.pop(), allow_graceful=False)
        time.sleep(draw.uniform(0, 5))
        self.others.append(self.cluster.add_node(num_cpus=1))
        return "node"


def kill_some(nodes: Nodes, kills: int, pause: float, seed: int, is_over: threading.Event) -> list[str]:
    """Kill at random moments, `pause` seconds apart on average: every fourth time a node. What was killed."""
    draw, done = random.Random(seed), list[str]()
    while len(done) < kills and not is_over.wait(draw.uniform(0, 2 * pause)):
        kill = nodes.kill_node if len(done) % 4 == 3 else nodes.kill_engine
        if victim := kill(draw) or nodes.kill_engine(draw):
            done.append(victim)
            print(f"killed: {victim} ({len(done)} of {kills})", file=sys.stderr, flush=True)
    return done


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--scenarios", type=int, default=16)
    parser.add_argument("--shards", type=int, default=8)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--pause", type=float, default=25, help="seconds between kills, on average")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--adapter", type=Path, help="default: a fresh one")
    parser.add_argument("--reference", type=Path, help="only play it in this process, and write it there")
    options = parser.parse_args(words)
    policy, sizes = Policy(threads=1), (options.scenarios, options.shards)
    if options.reference:
        play(policy, options.adapter, *sizes, options.reference)
        return 0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if options.adapter is None:
            options.adapter = fresh_adapter(folder / "adapter")
        first = folder / "first.parquet"
        again = [*words, "--adapter", str(options.adapter), "--reference", str(first)]
        subprocess.run([sys.executable, "-m", "tests.support.fleet_kills", *again], check=True)
        result = beside_kills(policy, options, folder, first.read_bytes())
    print(json.dumps(result))
    return 1 if result["missing"] or result["doubled"] or result["unlike"] else 0


def fresh_adapter(path: Path) -> Path:
    from steps.training import grpo

    grpo.Trainer(Policy(), seed=1).save_adapter(path)
    return path


def beside_kills(policy: Policy, options: argparse.Namespace, folder: Path, expected: bytes) -> dict[str, Any]:
    """Play batches on the nodes until all kills are done, and one more: in a thread, because Ray starts nodes from the main
    thread alone."""
    from addons.fleet import raycluster

    raycluster.make_token()
    os.environ["RAY_AUTH_MODE"] = "token"
    nodes, is_over = Nodes(options.nodes), threading.Event()
    on_ray = policy.model_copy(update={"kind": "ray", "cluster": "auto"})
    raycluster.connect("auto", ["environments"])
    counts = {"batches": 0, "missing": 0, "doubled": 0, "unlike": 0}
    began = time.monotonic()

    def play_on() -> None:
        try:
            is_last = False
            while not is_last:
                is_last = is_over.is_set()
                path = folder / "again.parquet"
                ids = play(on_ray, options.adapter, options.scenarios, options.shards, path)
                counts["batches"] += 1
                counts["missing"] += options.scenarios * ATTEMPTS - len(set(ids))
                counts["doubled"] += len(ids) - len(set(ids))
                counts["unlike"] += path.read_bytes() != expected
        finally:
            is_over.set()

    try:
        with ThreadPoolExecutor(1) as thread:
            playing = thread.submit(play_on)
            kills = kill_some(nodes, options.kills, options.pause, options.seed, is_over)
            is_over.set()
            playing.result()
    finally:
        raycluster.disconnect()
        nodes.cluster.shutdown()
    of_what = {f"{name}s killed": kills.count(name) for name in ("engine", "node")}
    digest = hashlib.sha256(expected).hexdigest()[:16]
    return counts | of_what | {"sha256": digest, "seconds": round(time.monotonic() - began)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
