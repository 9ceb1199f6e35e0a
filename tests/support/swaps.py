"""Adapters are swapped on two of vLLM's servers under load, and a server is killed in the middle of a batch and of a load.

    python -m tests.support.swaps                   # 50 swaps, two real servers on the CPU with the embedded policy
    python -m tests.support.swaps --swaps 10

Each reply is checked against the trainer's model with the adapter that it was asked of, token by token, and against that
with the adapters before and after, which are a small step away. The first request to each version on each server must find
nothing in the prefix cache, although other versions have left its prompt there; the second one must. Prints one line of
JSON; exit code 1 where a reply is another adapter's, a prefix was stale, bytes changed, or a swap's 95th percentile is over
1 s.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from addons.fleet.replica import PREFIX
from benchmarks._fleet_swap import Load, Server, p95, play, prompts, servers, swap, versions
from steps.core.params import Policy
from steps.policy.adapter import adapter_hash

NEAR = 1e-4  # nats per token: the largest distance of a reply's logprobs from its own adapter's


def cached(policy: Policy, adapter: Path) -> list[int]:
    """How many of a prompt's tokens each server takes from its prefix cache."""
    from addons.fleet.servers import get

    fleet = get(policy)
    counts = []
    for replica in fleet.replicas:
        asked = replica.generate(PREFIX + adapter_hash(adapter), prompts(1, -1)[0], {"max_tokens": 1}, 60.0)
        counts.append(int(fleet.run(asked)["usage"]["prompt_tokens_details"]["cached_tokens"]))
    return counts


def distances(trainer: Any, adapter: Path, replies: Sequence[tuple[list[int], Any]]) -> list[float]:
    """How far the logprobs of replies are from those of the trainer's model with this adapter, in nats per token."""
    import torch
    from safetensors.torch import load_file

    from steps.core.records import Row
    from steps.training import packing

    saved = load_file(adapter / "adapter_model.safetensors")
    with torch.no_grad():
        for name, value in trainer.weights.items():
            value.copy_(saved[name.replace(".default", "")])
        rows = []
        for ids, sampled in replies:
            count = len(sampled.completion_ids)
            mask = [0] * len(ids) + [1] * count
            rows.append(Row([*ids, *sampled.completion_ids], mask, [0.0] * len(mask)))
        logps = packing.token_logps(trainer.model, packing.pack(rows), 1.0)[0]
    return [
        statistics.fmean(abs(float(logp) - given) for logp, given in zip(row, sampled.logprobs, strict=False))
        for row, (_, sampled) in zip(logps, replies, strict=True)
    ]


def check_replies(trainer: Any, adapters: Sequence[Path], load: Load) -> dict[str, Any]:
    """How many replies are not their adapter's, and how far they are from it and from its neighbours."""
    wrong, own, nearest = 0, [0.0], [1e9]
    for number, adapter in enumerate(adapters):
        replies = [(ids, sampled) for asked, ids, _, sampled in load.replies if asked == adapter]
        if not replies:
            continue
        near = distances(trainer, adapter, replies)
        beside = [each for each in (number - 1, number + 1) if 0 <= each < len(adapters)]
        others = [distances(trainer, adapters[each], replies) for each in beside]
        away = [min(values) for values in zip(*others, strict=True)]
        wrong += sum(not (mine < NEAR and mine < other / 10) for mine, other in zip(near, away, strict=True))
        own += near
        nearest += away
    return {"replies": len(load.replies), "wrong": wrong, "own_nats": max(own), "neighbour_nats": min(nearest)}


def swaps(policy: Policy, folder: Path, count: int) -> dict[str, Any]:
    """The swaps under load."""
    adapters, trainer = versions(policy, folder, count + 1)
    seconds: list[float] = []
    first: list[int] = []
    second: list[int] = []
    with Load(policy) as load:
        swap(policy, adapters[:1])
        for before, adapter in itertools.pairwise(adapters):
            load.adapter = before
            time.sleep(0.3)
            seconds += swap(policy, [adapter])  # the load goes on with the version before
            first += cached(policy, adapter)
            second += cached(policy, adapter)
    measured = {"swaps": count, "p50_seconds": statistics.median(seconds), "p95_seconds": p95(seconds)}
    prefixes = {"stale_prefixes": sum(map(bool, first)), "own_prefixes": sum(map(bool, second)), "asked": len(first)}
    return measured | prefixes | check_replies(trainer, adapters, load)


def killed(policy: Policy, started: Sequence[Server], folder: Path) -> dict[str, Any]:
    """A server is killed in a batch, and another time while an adapter is loaded; it is started again at once."""
    from addons.fleet.servers import get

    adapters, _ = versions(policy, folder / "killed", 3)
    asked, fleet, victim = prompts(192, 7), get(policy), started[0]
    whole = {adapter: play(policy, adapter, asked, 7, 64) for adapter in adapters}
    kills = []
    for case, adapter in zip(("batch", "load"), adapters[1:], strict=True):
        name = PREFIX + adapter_hash(adapter)
        for replica in fleet.replicas:
            fleet.run(replica.unload(name))
        kill = threading.Timer(0.7 if case == "batch" else 0.05, victim.kill)
        with ThreadPoolExecutor(1) as thread:
            batch = thread.submit(play, policy, adapter, asked, 7, 64)
            kill.start()
            kill.join()
            victim.start()
            replies = batch.result()
        victim.wait()
        until = time.monotonic() + 60
        while not all(name in each.held for each in fleet.replicas) and time.monotonic() < until:
            time.sleep(0.2)
        is_one = all(name in each.held for each in fleet.replicas)
        again = play(policy, adapter, asked, 7, 64)  # by both
        kills.append({"killed_in": case, "same_bytes": replies == whole[adapter] == again, "one_version": is_one})
    return {"kills": kills}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.swaps", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--swaps", type=int, default=50, help="(default: 50)")
    options = parser.parse_args()
    with servers() as (policy, started, folder):
        result = swaps(policy, folder, options.swaps) | killed(policy, started, folder)
    print(json.dumps(result))
    is_fine = (
        result["wrong"] == result["stale_prefixes"] == 0
        and result["own_prefixes"] == result["asked"]
        and result["p95_seconds"] <= 1
    )
    return 0 if is_fine and all(each["same_bytes"] and each["one_version"] for each in result["kills"]) else 1


if __name__ == "__main__":
    sys.exit(main())
