"""Adapters are swapped on two of vLLM's servers under load, and a server is killed in the middle of a batch and of a load.

    python -m tests.support.swaps                   # 50 swaps, two real servers on the CPU with the embedded policy
    python -m tests.support.swaps --swaps 10

Each reply is checked against the trainer's model with the adapter that it was asked of, token by token, and against that with
the adapters before and after, which are a small step away. The first request to each version on each server must find nothing
in the prefix cache although other versions have left its prompt there; the second one must. Prints one line of JSON; exit
code 1 where a reply is another adapter's, a prefix was stale, bytes changed, or a swap's 95th percentile is over 1 s.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks._fleet_swap import Load, Server, p95, play, prompts, servers, swap, versions
from steps.core.params import Policy

NEAR = 1e-4  # nats per token: the largest distance of a reply's logprobs from its own adapter's


def cached(policy: Policy, adapter: Path) -> list[int]:
    """How many of a prompt's tokens each server takes from its prefix cache."""
    from steps.policy.adapter import adapter_hash
    from steps.sampling.replica import PREFIX
    from steps.sampling.servers import get

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
        for ids, one in replies:
            count = len(one.completion_ids)
            mask = [0] * len(ids) + [1] * count
            rows.append(Row([*ids, *one.completion_ids], mask, [0.0] * len(mask)))
        logps = packing.token_logps(trainer.model, packing.pack(rows), 1.0)[0]
    return [
        statistics.fmean(abs(float(logp) - given) for logp, given in zip(row, one.logprobs, strict=False))
        for row, (_, one) in zip(logps, replies, strict=True)
    ]


def check_replies(trainer: Any, adapters: Sequence[Path], load: Load) -> dict[str, Any]:
    """How many replies are not their adapter's, and how far they are from it and from its neighbours."""
    wrong, own, nearest = 0, [0.0], [1e9]
    for number, adapter in enumerate(adapters):
        replies = [(ids, one) for asked, ids, _, one in load.replies if asked == adapter]
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
    stale, warm, seconds = 0, 0, []
    with Load(policy) as load:
        swap(policy, adapters[:1], load)
        for adapter in adapters[1:]:
            seconds += swap(policy, [adapter], load, 0.0)
            load.adapter = None  # what is cached next is counted
            stale += sum(found > 0 for found in cached(policy, adapter)) if not played(load, adapter) else 0
            warm += sum(found > 0 for found in cached(policy, adapter))
            load.adapter = adapter
            time.sleep(0.3)
    measured = {"swaps": count, "p50_seconds": statistics.median(seconds), "p95_seconds": p95(seconds)}
    return measured | {"stale_prefixes": stale, "warm_prefixes": warm} | check_replies(trainer, adapters, load)


def played(load: Load, adapter: Path) -> bool:
    """Whether the load has asked this adapter anything."""
    return any(asked == adapter for asked, *_ in load.replies)


def killed(policy: Policy, started: Sequence[Server], folder: Path) -> dict[str, Any]:
    """A server is killed in a batch, and another time while an adapter is loaded. It comes back in the middle of the batch."""
    from steps.sampling.servers import get

    adapters, _ = versions(policy, folder / "killed", 3)
    asked = prompts(192, 7)
    fleet = get(policy)
    whole = {adapter: play(policy, adapter, asked, 7, 64) for adapter in adapters}
    ended = []
    for case, adapter in zip(("batch", "load"), adapters[1:], strict=True):
        play(policy, adapters[0], asked[:4], 1, 4)
        for name in [name for name in fleet.versions if name not in held(fleet)[0]]:
            fleet.versions.pop(name)
        for replica in fleet.replicas:
            fleet.run(replica.unload(f"flywheel-{hash_of(adapter)}"))
        victim = started[0]
        kill = threading.Timer(0.0 if case == "load" else 0.7, victim.kill)
        kill.start()
        results: list[Any] = []
        batch = threading.Thread(
            target=lambda adapter=adapter, results=results: results.append(play(policy, adapter, asked, 7, 64))
        )
        batch.start()
        kill.join()
        victim.start()
        batch.join()
        victim.wait()
        until = time.monotonic() + 60
        while (
            not all(f"flywheel-{hash_of(adapter)}" in each.held for each in fleet.replicas) and time.monotonic() < until
        ):
            time.sleep(0.2)
        again = play(policy, adapter, asked, 7, 64)  # by both
        ended.append(
            {
                "killed_in": case,
                "same_bytes": bool(results) and results[0] == whole[adapter] == again,
                "one_version": all(f"flywheel-{hash_of(adapter)}" in names for names in held(fleet)),
            }
        )
    return {"kills": ended}


def held(fleet: Any) -> list[list[str]]:
    return [replica.held for replica in fleet.replicas]


def hash_of(adapter: Path) -> str:
    from steps.policy.adapter import adapter_hash

    return adapter_hash(adapter)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.swaps", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--swaps", type=int, default=50, help="(default: 50)")
    options = parser.parse_args()
    with servers() as (policy, started, folder):
        result = swaps(policy, folder, options.swaps) | killed(policy, started, folder)
    print(json.dumps(result))
    is_fine = (
        result["wrong"] == result["stale_prefixes"] == 0 and result["warm_prefixes"] and result["p95_seconds"] <= 1
    )
    return 0 if is_fine and all(each["same_bytes"] and each["one_version"] for each in result["kills"]) else 1


if __name__ == "__main__":
    sys.exit(main())
