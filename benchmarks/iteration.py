"""A whole iteration against TRL's own loop: 128 episodes sampled, scored and trained on with the task's own small policy.

    python -m benchmarks.iteration              # about 8 minutes on 2 cores
    python -m benchmarks.iteration --json

Ours is `flows.train` itself, in a clone of the committed tree: the median seconds of rollout, score and update, and beside
them what DVC, MLflow and Prefect add. TRL's is one GRPOTrainer that samples with Hugging Face generate, without dynamo, at
the fastest of several batch sizes. Same task, reward, first adapter, temperature, lengths, loss (dapo, no KL term) and one
optimiser step an iteration. multiplication has one turn of at most 64 tokens, TRL's loop as it comes; email_search goes
through `rollout_func`, all episodes in step: every turn is one call of generate for those that are not done.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import _trl
from benchmarks._trl import LEARNING_RATE, ROOT, child, tell
from steps.sampling.engine import Sampled

MAX_TOKENS = {"multiplication": 64, "email_search": 64}  # of a turn
BATCHES = {"multiplication": (32, 128), "email_search": (16, 32)}  # for TRL
WARM = 2  # steps before those that count


def ours(task: str, folder: Path, count: int) -> dict[str, Any]:
    """Medians over iterations of a run of the flow, in seconds: its stages' own work, and the rest."""
    root = folder / "ours"
    subprocess.run(["git", "clone", "--quiet", os.fspath(ROOT), os.fspath(root)], check=True)
    chosen = {
        "rollout.max_tokens": MAX_TOKENS[task],
        "rollout.scenarios": 16,
        "update.beta": 0,
        "update.steps_per_generation": 1,
        "update.learning_rate": LEARNING_RATE,
        "train.iterations": WARM + count,
        "train.patience": WARM + count,
        "scenarios.val": 16,
        "scenarios.test": 16,
    }
    words = [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]
    subprocess.run(
        [sys.executable, "-m", "flows.train", "--task", task, *words],
        cwd=root,
        check=True,
        stdout=sys.stderr,
        stderr=sys.stderr,
    )
    rows = json.loads((root / "run" / "summary.json").read_text())["iterations"][WARM:]
    stages = ("rollout", "score", "update")
    found = {stage: median(row["seconds"][stage] for row in rows) for stage in stages}
    return found | {
        "compute": median(sum(row["seconds"][stage] for stage in stages) for row in rows),
        "overhead": median(row["overhead_seconds"] for row in rows),
    }


def prepare(task: str, folder: Path) -> None:
    """The scenarios and the first adapter, by the stages."""
    data = f"tasks_data/{task}"
    child(["-m", "steps.scenarios", "--task-data", data, "--scenarios", f"{folder}/scenarios"], folder / "ours")
    child(
        ["-m", "steps.initialise", "--adapter", f"{folder}/adapter", "--checkpoint", f"{folder}/start"], folder / "ours"
    )


def run_trl(task: str, folder: Path, count: int, batch: int) -> list[float]:
    """Seconds of each of TRL's iterations."""
    import environments
    from environments.base import Scenario
    from steps.core.params import Params, load
    from steps.core.records import read_records

    params = load(folder / "ours" / "params.yaml", Params)
    env = environments.load(task)
    scenarios = read_records(Scenario, folder / "scenarios" / "train.parquet")[: params.rollout.scenarios]
    told = {json.dumps(list(one.messages)): one for one in scenarios}
    settings: dict[str, Any] = {"max_completion_length": MAX_TOKENS[task], "temperature": params.rollout.temperature}
    rollout = None
    if task == "email_search":
        data, settings["max_completion_length"] = env.load(ROOT / "tasks_data" / task), params.policy.context

        def rollout(prompts: list[Any], trainer: Any) -> dict[str, Any]:
            return in_step(env, data, [told[json.dumps(prompt)] for prompt in prompts], trainer, params)

    def reward(prompts: list[Any], completions: list[Any], **columns: Any) -> list[float]:
        if "transcript" in columns:
            completions = columns["transcript"]
        pairs = zip((told[json.dumps(prompt)] for prompt in prompts), completions, strict=True)
        return [sum(part.value for part in env.reward(one, [*one.messages, *said])) for one, said in pairs]

    return _trl.train(
        params.policy.base_model,
        folder / "start",
        [list(one.messages) for one in scenarios],
        reward,
        WARM + count,
        batch,
        folder,
        rollout,
        attempts=params.rollout.attempts,
        **settings,
    )


class Lockstep:
    """Hugging Face generate in the place of `engine.EngineSampler`: one call for all turns that are asked for."""

    def __init__(self, model: Any, end: int, pad: int, max_tokens: int, temperature: float) -> None:
        self.model, self.end = model, end
        self.asked: dict[int, list[int]] = {}
        self.settings = {"max_new_tokens": max_tokens, "do_sample": True, "temperature": temperature}
        self.settings |= {"top_k": 0, "top_p": 1.0, "eos_token_id": end, "pad_token_id": pad}

    @property
    def pending(self) -> int:
        return len(self.asked)

    def submit(self, key: int, prompt_ids: list[int]) -> None:
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
        adapter_hash="",
        context=params.policy.context,
        max_tokens=settings.max_tokens,
    )
    starts = [len(one.turns[0].prompt_ids) for one in played]
    rows = [row for one in played for [row] in [one.flatten()]]
    cut = list(zip(rows, starts, strict=True))
    return {
        "prompt_ids": [row.ids[:start] for row, start in cut],
        "completion_ids": [row.ids[start:] for row, start in cut],
        "env_mask": [row.mask[start:] for row, start in cut],
        "logprobs": [row.logprobs[start:] for row, start in cut],
        "transcript": [[said for turn in one.turns for said in (turn.message, *turn.observations)] for one in played],
    }


def compare(task: str, folder: Path, count: int) -> dict[str, Any]:
    tell(f"{task}: the flow")
    own = ours(task, folder, count)
    prepare(task, folder)
    trials = {}
    for batch in BATCHES[task]:
        words = ["--trl", task, "--folder", os.fspath(folder), "--count", str(count), "--batch", str(batch)]
        trials[batch] = median(_trl.last_line(child(["-m", "benchmarks.iteration", *words]))["seconds"][WARM:])
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
    parser = argparse.ArgumentParser(prog="python -m benchmarks.iteration", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="one JSON object a task instead of the table")
    parser.add_argument("--tasks", nargs="+", choices=list(MAX_TOKENS), default=list(MAX_TOKENS))
    parser.add_argument("--count", type=int, default=5, help="timed iterations of each side")
    parser.add_argument("--trl", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--batch", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.trl:
        print(json.dumps({"seconds": run_trl(options.trl, options.folder, options.count, options.batch)}))
        return
    if not options.json:
        print("| task | TRL / ours | ours, s | TRL, s | the pipeline adds, s |\n|---|---|---|---|---|", flush=True)
    for task in options.tasks:
        with tempfile.TemporaryDirectory(prefix="iteration-") as folder:
            row = compare(task, Path(folder), options.count)
        columns = ("name", "ratio", "seconds_ours", "seconds_trl", "overhead_seconds")
        print(json.dumps(row) if options.json else f"| {' | '.join(str(row[key]) for key in columns)} |", flush=True)


if __name__ == "__main__":
    main()
