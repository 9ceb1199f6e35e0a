"""A whole iteration against TRL's own loop: 128 episodes sampled, scored and trained on with the embedded policy.

    python -m benchmarks.iteration              # about 6 minutes on 2 cores
    python -m benchmarks.iteration --json

Ours is `flows.train` itself, in a clone of the committed tree: the median seconds of rollout, score and update, and beside
them what DVC, MLflow and Prefect add. TRL's is one GRPOTrainer that samples with Hugging Face generate, without dynamo, at
the fastest of several batch sizes. Same task, reward, first adapter, temperature, lengths, loss (dapo, no KL term) and one
optimiser step an iteration. multiplication has one turn of at most 16 tokens, TRL's loop as it comes; email_search goes
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

MAX_TOKENS = {"multiplication": 16, "email_search": 64}  # of a turn
BATCHES = {"multiplication": (32, 128), "email_search": (16, 32)}  # for TRL
WARM = 2  # steps before those that count


def ours(task: str, folder: Path, count: int) -> dict[str, Any]:
    """Medians over iterations of a run of the flow, in seconds: its stages' own work, and the rest."""
    root = folder / "ours"
    subprocess.run(["git", "clone", "--quiet", os.fspath(ROOT), os.fspath(root)], check=True)
    chosen = {
        "rollout.max_tokens": MAX_TOKENS[task],
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
    from steps import params as parameters
    from steps.types import read_records

    params = parameters.load(folder / "ours" / "params.yaml", parameters.Params)
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


def in_step(env: Any, data: Any, scenarios: list[Any], trainer: Any, params: Any) -> dict[str, Any]:
    """A turn of all unfinished episodes at a time, by Hugging Face generate: what TRL's rollout_func returns."""
    import torch

    from steps.chat import Chat

    tokenizer, model = trainer.processing_class, trainer.model
    if not hasattr(trainer, "chat"):
        trainer.chat = Chat(tokenizer, [tool.schema for tool in env.tools().values()])
    chat = trainer.chat
    playing = [env(scenario, data) for scenario in scenarios]
    ids = [chat.prompt_ids(scenario.messages) for scenario in scenarios]
    prompts, masks = [list(one) for one in ids], [[0] * len(one) for one in ids]
    transcript: list[list[Any]] = [[] for _ in ids]
    active = list(range(len(ids)))
    for turn in range(env.max_turns):
        longest = max(len(ids[one]) for one in active)
        rows = torch.tensor([[0] * (longest - len(ids[one])) + ids[one] for one in active])
        there = torch.tensor([[0] * (longest - len(ids[one])) + [1] * len(ids[one]) for one in active])
        with torch.no_grad():
            model.eval()
            out = model.generate(
                input_ids=rows,
                attention_mask=there,
                max_new_tokens=params.rollout.max_tokens,
                do_sample=True,
                temperature=params.rollout.temperature,
                top_k=0,
                top_p=1.0,
                eos_token_id=chat.end,
                pad_token_id=tokenizer.pad_token_id,
            )[:, longest:].tolist()
            model.train()
        left = []
        for one, tokens in zip(active, out, strict=True):
            sampled = tokens[: tokens.index(chat.end) + 1] if chat.end in tokens else tokens
            ids[one] += sampled
            masks[one] += [1] * len(sampled)
            parsed = chat.parse(sampled)
            transcript[one].append(parsed.message)
            if sampled[-1] != chat.end:
                continue
            said = [
                {"role": "tool", "name": call["function"]["name"]}
                | {"content": playing[one].call(call["function"]["name"], call["function"]["arguments"])}
                for call in parsed.message.get("tool_calls", ())
            ]
            said = said or playing[one].hear(str(parsed.message["content"]))
            transcript[one] += said
            added = chat.suffix_ids(said)
            full = len(ids[one]) + len(added) + params.rollout.max_tokens > params.policy.context
            if not playing[one].done and turn + 1 < env.max_turns and not full:
                ids[one] += added
                masks[one] += [0] * len(added)
                left.append(one)
        if not (active := left):
            break
    starts = [len(prompt) for prompt in prompts]
    return {
        "prompt_ids": prompts,
        "completion_ids": [one[start:] for one, start in zip(ids, starts, strict=True)],
        "env_mask": [one[start:] for one, start in zip(masks, starts, strict=True)],
        "logprobs": [[0.0] * (len(one) - start) for one, start in zip(ids, starts, strict=True)],
        "transcript": transcript,
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
