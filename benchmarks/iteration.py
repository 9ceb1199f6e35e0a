"""A whole iteration against TRL's own loop: 128 episodes sampled, scored and trained on with the task's own small policy.

    python -m benchmarks.iteration              # about 8 minutes on 2 cores
    python -m benchmarks.iteration --quick      # one timed iteration of 64 episodes, TRL at one batch size

Ours is `flows.train` itself, in a clone of the committed tree: the median seconds of rollout, score and update, and beside
them what DVC, MLflow and Prefect add. TRL's is one GRPOTrainer that samples with Hugging Face generate, without dynamo, at
the fastest of several batch sizes. Same task, reward, first adapter, temperature, lengths, loss (dapo, no KL term) and one
optimiser step an iteration. multiplication has one turn of at most 64 tokens, TRL's loop as it comes; email_search goes
through `rollout_func`, all episodes in step: every turn is one call of generate for those that are not done.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import _common, _runs
from benchmarks._common import ROOT, tell
from benchmarks._trl import train_with_trl
from benchmarks._update import LEARNING_RATE
from steps.sampling.engine import Sampled

MAX_TOKENS = {"multiplication": 64, "email_search": 64, "json_records": 48}  # of a turn
BATCHES = {"multiplication": (32, 128), "email_search": (16, 32), "json_records": (16, 32)}  # for TRL
TASKS = ("multiplication", "email_search")  # with small policies; benchmarks.pretrained has the other


class Size(NamedTuple):
    """How much of both sides is done."""

    warm: int  # iterations before those that count
    timed: int  # iterations that count
    scenarios: int  # of an iteration, with 8 attempts each
    batches: int  # sizes that TRL is tried with, of BATCHES


FULL, QUICK = Size(2, 5, 16, 2), Size(1, 1, 8, 1)


def ours(task: str, root: Path, size: Size, more: Sequence[str] = ()) -> dict[str, Any]:
    """Medians over iterations of a run of the flow in a clone, in seconds: its stages' own work, and the rest. `more`: words
    of its command."""
    _runs.clone(root)
    chosen = {
        "rollout.max_tokens": MAX_TOKENS[task],
        "rollout.scenarios": size.scenarios,
        "update.beta": 0,
        "update.steps_per_generation": 1,
        "update.learning_rate": LEARNING_RATE,
        "train.iterations": size.warm + size.timed,
        "train.patience": size.warm + size.timed,
        "scenarios.val": 16,
        "scenarios.test": 16,
    }
    _runs.show(root, [*_runs.training(chosen), "--task", task, *more])
    rows = json.loads((root / "run" / "summary.json").read_text())["iterations"][size.warm :]
    stages = ("rollout", "score", "update")
    seconds = {stage: median(row["seconds"][stage] for row in rows) for stage in stages}
    return seconds | {
        "compute": median(sum(row["seconds"][stage] for stage in stages) for row in rows),
        "overhead": median(row["overhead_seconds"] for row in rows),
    }


def run_trl(task: str, folder: str, steps: int, batch: int) -> list[float]:
    """Seconds of each of TRL's iterations, on the scenarios and from the first adapter of our side's run in folder/ours.

    `compare` runs this in a process of its own.
    """
    import environments
    from environments.base import Scenario
    from steps.core.params import Params, load
    from steps.core.records import read_records
    from steps.policy.loading import local

    own = Path(folder, "ours")
    params = load(own / "params.yaml", Params)
    env = environments.load(task)
    scenarios = read_records(Scenario, own / "run" / "scenarios" / "train.parquet")[: params.rollout.scenarios]
    by_prompt = {json.dumps(list(scenario.messages)): scenario for scenario in scenarios}
    settings: dict[str, Any] = {"max_completion_length": MAX_TOKENS[task], "temperature": params.rollout.temperature}
    rollout = None
    if task == "email_search":
        data, settings["max_completion_length"] = env.load(ROOT / "tasks_data" / task), params.policy.context

        def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
            return in_step(env, data, [by_prompt[json.dumps(prompt)] for prompt in prompts], trainer, params)

    def reward(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        if "transcript" in columns:
            completions = columns["transcript"]
        pairs = zip((by_prompt[json.dumps(prompt)] for prompt in prompts), completions, strict=True)
        return [
            sum(part.value for part in env.components(scenario, [*scenario.messages, *answers]))
            for scenario, answers in pairs
        ]

    settings["bf16"] = params.policy.dtype == "bfloat16"
    return train_with_trl(
        local(params.policy).base_model,
        own / "run" / "000" / "checkpoint",
        [list(scenario.messages) for scenario in scenarios],
        reward,
        steps,
        batch,
        Path(folder),
        rollout,
        attempts=params.rollout.attempts,
        **settings,
    )


class Lockstep:
    """Hugging Face generate in the place of `engine.EngineSampler`: one call for all turns that are asked for."""

    def __init__(self, model: Any, end: int, pad: int, max_tokens: int, temperature: float) -> None:
        self.model, self.end = model, end
        self.asked: dict[int, list[int]] = {}
        self.settings: dict[str, Any] = {"max_new_tokens": max_tokens, "eos_token_id": end, "pad_token_id": pad}
        if temperature > 0:
            self.settings |= {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        else:
            self.settings |= {"do_sample": False}

    @property
    def pending(self) -> int:
        return len(self.asked)

    def submit(self, key: int, prompt_ids: list[int], seed: int) -> None:  # generate draws from torch's own
        self.asked[key] = prompt_ids

    def step(self) -> list[Sampled]:
        import torch

        asked, self.asked = self.asked, {}
        longest = max(map(len, asked.values()))
        rows = torch.tensor([[0] * (longest - len(ids)) + ids for ids in asked.values()])
        there = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in asked.values()])
        self.model.eval()
        with torch.no_grad():
            out = self.model.generate(input_ids=rows, attention_mask=there, **self.settings)[:, longest:].tolist()
        self.model.train()
        done = []
        for key, tokens in zip(asked, out, strict=True):
            ended = self.end in tokens
            ids = tuple(tokens[: tokens.index(self.end) + 1] if ended else tokens)
            done.append(Sampled(key, ids, (0.0,) * len(ids), "stop" if ended else "length"))
        return done


def in_step(env: Any, data: Any, scenarios: list[Any], trainer: Any, params: Any) -> dict[str, Any]:
    """What TRL's rollout_func returns: episodes played as the pipeline plays them, but by Hugging Face generate."""
    from steps.policy.chat import Chat
    from steps.sampling import episodes

    if not hasattr(trainer, "chat"):
        trainer.chat = Chat(trainer.processing_class, [tool.schema for tool in env.tools().values()])
    settings, pad = params.rollout, trainer.processing_class.pad_token_id
    played = episodes.play(
        Lockstep(trainer.model, trainer.chat.end, pad, settings.max_tokens, settings.temperature),
        trainer.chat,
        env,
        data,
        list(zip(scenarios, range(len(scenarios)), strict=True)),
        prefix="trl",
        seed=0,
        adapter_hash="",
        context=params.policy.context,
        max_tokens=settings.max_tokens,
    )
    cut = [(row, len(trajectory.turns[0].prompt_ids)) for trajectory in played for [row] in [trajectory.flatten()]]
    return {
        "prompt_ids": [row.ids[:start] for row, start in cut],
        "completion_ids": [row.ids[start:] for row, start in cut],
        "env_mask": [row.mask[start:] for row, start in cut],
        "logprobs": [row.logprobs[start:] for row, start in cut],
        "transcript": [
            [message for turn in trajectory.turns for message in (turn.message, *turn.observations)]
            for trajectory in played
        ],
    }


def compare(task: str, folder: Path, size: Size, more: Sequence[str] = ()) -> dict[str, Any]:
    """Both sides of a task: its row. `more`: further words of the flow's command."""
    tell(f"{task}: the flow")
    own = ours(task, folder / "ours", size, more)
    trials = {}
    for batch in BATCHES[task][: size.batches]:
        steps = size.warm + size.timed
        seconds = _common.call("iteration.run_trl", task=task, folder=folder, steps=steps, batch=batch)
        trials[batch] = median(seconds[size.warm :])
        tell(f"{task}: TRL with batches of {batch}: {trials[batch]:.2f} s an iteration")
    best = min(trials, key=lambda batch: trials[batch])
    return {
        "name": task,
        "ratio": round(trials[best] / own["compute"], 2),
        "seconds_ours": round(own["compute"], 3),
        "seconds_trl": round(trials[best], 3),
        "overhead_seconds": round(own["overhead"], 3),
        "seconds": {stage: round(own[stage], 3) for stage in ("rollout", "score", "update")},
        "batch_trl": best,
    }


def main() -> None:
    quick = f"{QUICK.timed} timed iteration of {8 * QUICK.scenarios} episodes in place of {FULL.timed} of "
    quick += f"{8 * FULL.scenarios}, and TRL at the first of its batch sizes alone, which need not be its fastest"
    parser = _common.parser("iteration", __doc__, quick)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--count", type=int, help=f"timed iterations (default: {FULL.timed}; quick: {QUICK.timed})")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    size = size._replace(timed=options.count or size.timed)
    rows = _common.begin("iteration", options, len(options.tasks) / len(TASKS))
    for task in options.tasks:
        with tempfile.TemporaryDirectory(prefix="iteration-") as folder:
            rows.add(compare(task, Path(folder), size))


if __name__ == "__main__":
    _common.command(main)
