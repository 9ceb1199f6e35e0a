"""The rollout stage against raw vLLM: tokens per second of the same prompts and lengths, in the same process and engine.

    python -m benchmarks.rollout             # a minute on 2 cores
    python -m benchmarks.rollout --quick     # one timed run of each side

The stage plays a batch at default size: chat template, tools, environment, trajectories to parquet. Then `LLM.generate`
samples the same number of tokens for each of its prompts, those of all turns in one call: what an oracle could do that knew
each prompt before the turn ahead of it was sampled. multiplication has one turn. Each side's best of several runs in turn.

On the CPU the stage has operators of its own for the adapter (addons/kernels/lora_cpu.py). `ratio` is against vLLM as
it comes, `ratio_same_operators` against vLLM with them: what template, tools, environment and waiting for turns cost.
`ratio_same_turns` is against vLLM with them that asks for a turn when the one before it was sampled, as the stage has to:
what is left for template, tools, environment and the file alone.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import _common
from benchmarks._common import ROOT

TASKS = ("email_search", "multiplication")
RUNS, QUICK = 5, 1  # timed runs of each side


def stock(params: Any) -> Any:
    """vLLM's `LLM` around the engine that the stage uses."""
    from unittest.mock import patch

    from vllm import LLM, LLMEngine

    from steps.policy.loading import local
    from steps.sampling import engine

    started = engine.get(params.policy).llm
    with patch.object(LLMEngine, "from_engine_args", lambda *_, **__: started):
        return LLM(model=local(params.policy).base_model)


def stage(params: Any, task: str, folder: Path) -> float:
    """Seconds of the rollout stage."""
    from steps.rollout import rollout

    started = time.perf_counter()
    data = ROOT / "tasks_data" / task
    rollout(data, folder / "scenarios", folder / "adapter", folder / "trajectories.parquet", "001", params)
    return time.perf_counter() - started


def raw(llm: Any, folder: Path, params: Any, own_operators: bool) -> tuple[float, int]:
    """Seconds and tokens of `LLM.generate` on the trajectories' prompts, as many tokens as each turn had."""
    import torch
    from vllm import SamplingParams

    from addons.kernels import lora_cpu
    from steps.core.records import Trajectory, read_records
    from steps.sampling import engine

    turns = [turn for row in read_records(Trajectory, folder / "trajectories.parquet") for turn in row.turns]
    prompts = [{"prompt_token_ids": list(turn.prompt_ids)} for turn in turns]
    counts = [len(turn.completion_ids) for turn in turns]
    same = {"temperature": params.rollout.temperature, "ignore_eos": True, "logprobs": 0, "detokenize": False}
    sampling = [SamplingParams(max_tokens=count, min_tokens=count, **same) for count in counts]
    lora = engine.get(params.policy).lora(folder / "adapter")
    llm.llm_engine.reset_prefix_cache()
    torch.manual_seed(0)
    lora_cpu.OneAdapter.enabled = own_operators
    started = time.perf_counter()
    llm.generate(prompts, sampling, use_tqdm=False, lora_request=lora)
    seconds = time.perf_counter() - started
    lora_cpu.OneAdapter.enabled = True
    return seconds, sum(counts)


def by_turns(folder: Path, params: Any) -> float:
    """Seconds of the same engine and operators for the same turns, each asked for when the one before it was sampled."""
    from steps.core.records import Trajectory, read_records
    from steps.sampling.engine import EngineSampler

    played = read_records(Trajectory, folder / "trajectories.parquet")
    sampler = EngineSampler(params.policy, folder / "adapter", params.rollout.temperature, max_tokens=1, stop=-1)
    left = [list(row.turns) for row in played]

    def ask(key: int) -> None:
        if left[key]:
            turn = left[key].pop(0)
            count = len(turn.completion_ids)
            sampler.sampling = partial(sampler.sampling, max_tokens=count, min_tokens=count, stop_token_ids=[])
            sampler.submit(key, list(turn.prompt_ids), seed=1_000 * key + len(left[key]))

    started = time.perf_counter()
    for key in range(len(left)):
        ask(key)
    while sampler.pending:
        for sampled in sampler.step():
            ask(sampled.key)
    return time.perf_counter() - started


def measure(task: str, folder: Path, runs: int, given: Any = None) -> dict[str, Any]:
    """The row of a task, with the parameters of params.yaml or those that are given."""
    from steps import initialise, scenarios
    from steps.core.params import Params, load

    params: Any = given or load(ROOT / "params.yaml", Params).model_copy(update={"task": task})
    folder.mkdir()
    with contextlib.redirect_stdout(sys.stderr):
        scenarios.scenarios(ROOT / "tasks_data" / task, folder / "scenarios", params)
        initialise.initialise(folder / "adapter", folder / "checkpoint", params)
        llm = stock(params)
        times: dict[str, list[float]] = {"stage": [], "raw": [], "raw, own operators": [], "by turns": []}
        tokens = 0
        for _ in range(runs + 1):
            times["stage"].append(stage(params, task, folder))
            for side in ("raw", "raw, own operators"):
                seconds, tokens = raw(llm, folder, params, side != "raw")
                times[side].append(seconds)
            times["by turns"].append(by_turns(folder, params))
    best = {side: min(values[1:]) for side, values in times.items()}  # the first warms up
    return {
        "name": task,
        "ratio": round(best["raw"] / best["stage"], 3),
        "ratio_same_operators": round(best["raw, own operators"] / best["stage"], 3),
        "ratio_same_turns": round(best["by turns"] / best["stage"], 3),
        "tokens": tokens,
        "tokens_per_second": round(tokens / best["stage"]),
        "tokens_per_second_raw": round(tokens / best["raw"]),
    }


def main() -> None:
    parser = _common.parser("rollout", __doc__, f"{QUICK} timed run of each side in place of {RUNS}")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--runs", type=int, help=f"timed runs of each side (default: {RUNS}; quick: {QUICK})")
    options = parser.parse_args()
    os.chdir(ROOT)
    rows = _common.begin("rollout", options, len(options.tasks) / len(TASKS))
    with tempfile.TemporaryDirectory(prefix="rollout-") as folder:
        for task in options.tasks:
            rows.add(measure(task, Path(folder) / task, options.runs or (QUICK if options.quick else RUNS)))


if __name__ == "__main__":
    _common.command(main)
