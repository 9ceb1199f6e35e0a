"""The process that logs a run to Weights & Biases: fed by steps/tracking/wandb.py, a JSON line each.

{"start": {"id", "name", "task", "config"}}, then {"iteration": "001", "metrics": {…}} for each, 000 being the base policy,
and {"finish": "004", "metrics": {…}} with the best one. Lines that end before that mean an interruption: what is there is
uploaded, and the next process of the same id goes on. Episodes are read from run/NNN here: the flow has no work of it.

    WANDB_MODE=offline python -m steps.tracking.wandb_process . .flywheel < lines
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.tracking.wandb import UPLOAD

if TYPE_CHECKING:
    from steps.core.params import Update

USUAL = {  # the name that other trackers' pages have, and ours
    "policy_loss": "loss",
    "kl_divergence": "kl",
    "entropy": "entropy",
    "average_reward": "reward_mean",
    "success_rate": "success",
    "average_episode_length": "turns",
}
ROWS = 200  # of a table, at most, in an iteration
CHARACTERS = 500  # of a text in a table
CONNECT = 60.0  # seconds for the server to answer
EPISODES = "iteration episode scenario prompt turns tokens reward success stopped_by error".split()
ACTIONS = "iteration episode turn action arguments answer is_error".split()


def usual(metrics: Mapping[str, float], update: Update) -> dict[str, float]:
    """The metrics, and those with a usual name under it, too."""
    found = {name: metrics[own] for name, own in USUAL.items() if own in metrics}
    if "optimizer_steps" in metrics:
        found["learning_rate"] = rate(update, int(metrics["optimizer_steps"]))
    return {**metrics, **found}


def rate(update: Update, steps: int) -> float:
    """The learning rate of the last of so many optimiser steps: transformers' schedules, as steps/training/grpo.py has
    them.
    """
    done, warmup = max(0, steps - 1), update.warmup_steps
    if done < warmup:
        return update.learning_rate * done / max(1, warmup)
    if update.lr_scheduler_type == "constant" or update.max_steps is None:
        return update.learning_rate
    share = min(1.0, (done - warmup) / max(1, update.max_steps - warmup))
    return update.learning_rate * (
        1 - share if update.lr_scheduler_type == "linear" else (1 + math.cos(math.pi * share)) / 2
    )


def serve(root: Path, state: Path, lines: Iterable[str], tell: Callable[[str], None]) -> None:
    """Log what comes, line by line, until the run is finished or the lines end, as they do when it is interrupted."""
    from steps.core import params
    from steps.core.masking import masked

    run: Any = None
    finished = False
    update = params.Update()
    for line in lines:
        message = json.loads(line)
        if "start" in message:
            given = message["start"]
            update = params.load(root / "params.yaml", params.Params).update
            run = begin(masked(given), state)
        elif "iteration" in message:
            number = message["iteration"]
            if run.step > int(number):
                tell(f"iteration {number} is there already")
                continue
            values: dict[str, Any] = masked(usual(message["metrics"], update))
            try:
                values |= tables(root, number)
            except UserError as problem:
                tell(f"error: iteration {number} has no tables: {problem}")
            run.log(values, step=int(number))
        else:
            run.summary.update(masked(message["metrics"] | {"best_iteration": message["finish"]}))
            send_adapter(run, root / "run" / message["finish"] / "adapter", tell)
            finished = True
    if run is not None:
        run.finish(exit_code=0 if finished else 1)


def begin(given: Mapping[str, Any], state: Path) -> Any:
    """wandb's run, found again by its id or made."""
    import wandb

    settings = wandb.Settings(
        console="off",
        save_code=False,
        disable_code=True,
        disable_git=True,
        disable_job_creation=True,
        silent=True,
        init_timeout=CONNECT,
        finish_timeout=UPLOAD,
        host="",
        program="",
        program_relpath="",
        x_disable_meta=True,
        x_disable_stats=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
    )
    return wandb.init(
        project=os.environ.get("WANDB_PROJECT") or "agent-flywheel",
        id=given["id"],
        name=given["name"],
        group=given["task"],
        config=given["config"],
        dir=os.environ.get("WANDB_DIR") or str(state),
        resume="allow",
        settings=settings,
    )


def tables(root: Path, number: str) -> dict[str, Any]:
    """An iteration's episodes and what they did, masked, as wandb's tables; none where it has none."""
    import wandb

    from steps.core.masking import Masker

    mask = Masker()
    episodes, actions = rows(root / "run", number, mask.text)
    found = {"episodes": (EPISODES, episodes), "actions": (ACTIONS, actions)}
    return {
        name: wandb.Table(columns=columns, data=[mask(row) for row in data])
        for name, (columns, data) in found.items()
        if data
    }


def rows(run: Path, number: str, mask: Callable[[str], str] = str) -> tuple[list[list[Any]], list[list[Any]]]:
    """(episodes, actions) of a training batch: ROWS of each at most, from all over it, the actions by whole episodes.

    Texts are masked before they are cut: of half a secret nothing shows what it is.
    """
    from environments.base import Scenario
    from steps.analytics.episodes import read_episodes
    from steps.core.records import read_records

    played = read_episodes(run / number, "train", {})
    path = run / "scenarios" / "train.parquet"
    asked = {}
    for scenario in read_records(Scenario, path) if path.is_file() else ():
        said = [str(message["content"]) for message in scenario.messages if message["role"] == "user"]
        asked[scenario.id] = short(mask("\n".join(said)))
    episodes = [
        [
            number,
            one.id,
            one.scenario_id,
            asked.get(one.scenario_id, ""),
            one.turns,
            one.tokens,
            one.score,
            one.success,
            one.stop_reason,
            short(mask(one.error or "")),
        ]
        for one in spread(played, ROWS)
    ]
    actions: list[list[Any]] = []
    acts = sum(len(one.acts) for one in played)
    for one in spread(played, max(1, len(played) * ROWS // max(1, acts))):
        actions += [
            [number, one.id, act.turn, act.name, short(mask(act.arguments)), short(mask(act.answer)), act.error]
            for act in one.acts
        ]
    return episodes, actions[:ROWS]


def spread(values: Sequence[Any], most: int) -> list[Any]:
    """At most so many of them, evenly from first to last."""
    count = min(most, len(values))
    return [values[place * len(values) // count] for place in range(count)]


def short(text: str) -> str:
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"


def send_adapter(run: Any, folder: Path, tell: Callable[[str], None]) -> None:
    """The adapter as an artifact named by its content's hash, unless a file of it holds what must be masked."""
    import wandb

    from steps.core.masking import masked
    from steps.policy.adapter import adapter_hash

    if not folder.is_dir():
        tell(f"error: {folder} is not there, and is not sent")
        return
    for path in sorted(folder.glob("*.json")):
        if masked(text := path.read_text()) != text:
            tell(f"error: the adapter is not sent: {path} holds what looks like a secret")
            return
    artifact = wandb.Artifact(f"adapter-{adapter_hash(folder)}", type="model")
    artifact.add_dir(str(folder))
    run.log_artifact(artifact, aliases=["best"])


def main(words: Sequence[str]) -> int:
    """`words`: the project's root and its state. Exit code 1, and "error: …", where W&B could not be logged to."""
    root, state = map(Path, words)
    for name, folder in (("WANDB_DATA_DIR", "wandb-data"), ("WANDB_CACHE_DIR", "wandb-cache")):
        os.environ.setdefault(name, str(state / folder))
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_SILENT", "true")

    def tell(text: str) -> None:
        print(text, flush=True)

    try:
        serve(root, state, sys.stdin, tell)
    except (Exception, KeyboardInterrupt) as problem:
        from steps.core.masking import masked

        tell(f"error: {masked(' '.join(f'{type(problem).__name__}: {problem}'.split()))}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
