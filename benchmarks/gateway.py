"""The gateway against the same engine in the same process: what a call costs more, and how much throughput is left.

    python -m benchmarks.gateway               # the row `gateway` with the embedded policy, then with SmolLM2-135M
    python -m benchmarks.gateway --quick       # the embedded policy alone, a quarter of the calls

`median_ms`: milliseconds by which a call over HTTP on an idle engine takes longer than the engine takes for the same prompt
and tokens. `throughput`: tokens per second of 64 connections through the gateway, as a share of those of the engine alone
with the same prompts, 64 at a time; `throughput_256`: the same with 256. `tools`: as the first with a tool of 50 ms after
each call, as a share of the engine alone with tools that take no time, with as many connections more as the tools keep
waiting. `crowd_p95`: the 95th percentile of 200 connections' calls while one more agent sends messages of 31 MB, which are
refused, one after another, as a multiple of theirs without it. The order is `free`. Gateway, agents and engine share the
machine's cores: on 2 cores a small policy has little to do for each token, so that HTTP counts most.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

from benchmarks import _common
from benchmarks._common import ROOT

TASK = "benchmarks._agent"
CONNECTIONS, MANY, MORE = 64, 256, 128  # and with tools
CROWD, HUGE = 200, 31 * 10**6  # connections, and letters of the message that does not fit
TOOL_SECONDS = 0.05
TEXT = "The meeting about the new office is on Tuesday at ten. " * 8
# Preset, tokens of a call, calls of an episode, and calls one after another on the idle engine.
SHAPES = {"embedded": (None, 32, 12, 200), "smollm2": ("smollm2", 32, 2, 40)}


@contextlib.contextmanager
def logged(prompts: list[tuple[list[int], int]], moments: list[float]) -> Iterator[None]:
    """Keep the prompts that the engine is given, how many tokens it samples for each, and when it began and ended each."""
    from steps.sampling.engine import EngineSampler

    submit, step, given = EngineSampler.submit, EngineSampler.step, dict[int, list[int]]()

    def logging_submit(sampler: Any, key: int, ids: list[int], *words: Any) -> None:
        given[key] = ids
        moments.append(time.perf_counter())
        submit(sampler, key, ids, *words)

    def logging_step(sampler: Any) -> Any:
        finished = step(sampler)
        prompts.extend((given[turn.key], len(turn.completion_ids)) for turn in finished)
        moments.append(time.perf_counter())
        return finished

    EngineSampler.submit, EngineSampler.step = logging_submit, logging_step  # pyrefly: ignore[bad-assignment]
    try:
        yield
    finally:
        EngineSampler.submit, EngineSampler.step = submit, step


def through_gateway(
    params: Any, adapter: Path, episodes: int, calls: int, tokens: int, tool_seconds: float, at_once: int, huge: int = 0
) -> tuple[float, list[float], list[tuple[list[int], int]]]:
    """(seconds from the first request to the engine to the last answer, seconds of each call, what the engine was given).
    `huge`: letters of the messages that one more agent sends."""
    import environments
    from addons.agents.gateway.play import play
    from addons.agents.section import Agents
    from environments.base import Scenario
    from steps.sampling.job import Job

    data = {"calls": calls, "tokens": tokens, "text": TEXT, "tool_seconds": tool_seconds}
    scenario = Scenario.make(TASK, "train", [{"role": "user", "content": "Go."}], data)
    attempts = [(scenario, number) for number in range(episodes)]
    if huge:
        attempts.insert(0, (Scenario.make(TASK, "train", list(scenario.messages), data | {"huge": huge}), 0))
    limits = params.rollout.model_copy(update={"order": "free", "max_tokens": tokens})
    prompts: list[tuple[list[int], int]] = []
    seed = time.time_ns() % 2**31  # another batch each time: a journal of an earlier one would answer
    moments: list[float] = []
    with logged(prompts, moments):
        env, agents = environments.load(TASK), Agents(concurrency=at_once + bool(huge))
        played = play(Job(params.policy, limits, adapter, env, attempts, "001", seed, task=TASK, settings=agents))
    seconds = moments[-1] - moments[0]
    times = [value for trajectory in played if trajectory.result for value in trajectory.result.components.values()]
    assert len(times) == episodes * calls == len(prompts), (len(times), len(prompts))
    return seconds, times, prompts


def alone(params: Any, adapter: Path, prompts: list[tuple[list[int], int]], at_once: int) -> tuple[float, list[float]]:
    """Seconds of the engine for the same prompts and lengths, so many at a time; and those of each."""
    from steps.policy.loading import load_tokenizer
    from steps.sampling.engine import EngineSampler
    from steps.sampling.turns import Limits

    never = load_tokenizer(params.policy).convert_tokens_to_ids("<|im_start|>")
    sampler = EngineSampler(params.policy, adapter, 1.0, max(count for _, count in prompts), never)
    waiting, begun, seconds = list(enumerate(prompts))[::-1], dict[int, float](), list[float]()
    began = time.perf_counter()
    while waiting or sampler.pending:
        while waiting and sampler.pending < at_once:
            key, (ids, count) = waiting.pop()
            begun[key] = time.perf_counter()
            sampler.submit(key, ids, key, Limits(count))
        seconds += [time.perf_counter() - begun[turn.key] for turn in sampler.step()]
    return time.perf_counter() - began, seconds


def measure(shape: str, folder: str, is_quick: bool) -> dict[str, Any]:
    """The row of a policy. A process has one engine, so each policy needs a process of its own."""
    from flows.repro.parameters import set_params
    from steps import initialise

    preset, tokens, calls, single_calls = SHAPES[shape]
    params = (
        set_params([], task="json_records", dry_run=True, preset=preset) if preset else set_params([], dry_run=True)
    )
    if is_quick:
        calls, single_calls = max(calls // 4, 1), single_calls // 5
    place = Path(folder)
    place.mkdir()
    with contextlib.redirect_stdout(sys.stderr):
        adapter = place / "adapter"
        initialise.initialise(adapter, place / "checkpoint", cast(Any, params))
        through_gateway(params, adapter, 8, 2, tokens, 0.0, 8)  # starts engine, gateway and clients
        _, single, prompts = through_gateway(params, adapter, 1, single_calls, tokens, 0.0, 1)
        _, bare = alone(params, adapter, prompts, 1)
        result: dict[str, Any] = {
            "median_ms": round(1e3 * (statistics.median(single) - statistics.median(bare)), 2),
            "call_ms": round(1e3 * statistics.median(single), 2),
        }
        for name, connections, wait in (
            ("throughput", CONNECTIONS, 0.0),
            ("throughput_256", MANY, 0.0),
            ("tools", CONNECTIONS, TOOL_SECONDS),
        ):
            at_once = connections + (MORE if wait else 0)
            seconds, _, prompts = through_gateway(params, adapter, at_once, calls, tokens, wait, at_once)
            ideal, _ = alone(params, adapter, prompts, connections)
            count = sum(length for _, length in prompts)
            result |= {name: round(ideal / seconds, 3), f"{name}_tokens_per_second": round(count / seconds)}
        quiet, crowd = (
            statistics.quantiles(through_gateway(params, adapter, CROWD, calls, tokens, 0.0, CROWD, huge)[1], n=20)[-1]
            for huge in (0, HUGE)
        )
        result |= {"crowd_p95": round(crowd / quiet, 2), "quiet_p95_ms": round(1e3 * quiet)}
    return {"name": "gateway", "policy": shape, "ratio": result["throughput"], **result, "connections": CONNECTIONS}


def row_of(shape: str, folder: str, is_quick: bool) -> dict[str, Any]:
    """`measure` in a process of its own."""
    return dict(_common.call("gateway.measure", shape=shape, folder=folder, is_quick=is_quick))


def main() -> None:
    parser = _common.parser("gateway", __doc__, "the embedded policy alone, a quarter of the calls")
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), help="default: all; quick: embedded")
    options = parser.parse_args()
    os.chdir(ROOT)
    shapes = options.shapes or (["embedded"] if options.quick else list(SHAPES))
    rows = _common.begin("gateway", options, len(shapes) / (1 if options.quick else len(SHAPES)))
    for shape in shapes:
        with tempfile.TemporaryDirectory(prefix="gateway-") as folder:
            rows.add(row_of(shape, f"{folder}/x", options.quick))


if __name__ == "__main__":
    _common.command(main)
