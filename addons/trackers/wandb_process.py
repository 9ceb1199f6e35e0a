"""The process that logs a run to Weights & Biases: addons/trackers/wandb.py feeds it JSON, one line per message.

First {"start": {"id", "name", "task", "config"}}, then {"iteration": "001", "metrics": {…}} for each iteration (000 is the
base policy), then {"finish": "004", "metrics": {…}} with the best one. Input that ends earlier is an interruption: what
arrived is uploaded, and the next process with the same id continues. Episodes are read from run/NNN here, not in the flow.

    WANDB_MODE=offline python -m addons.trackers.wandb_process . .flywheel < lines
"""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from addons.trackers.wandb import UPLOAD
from environments.base import Scenario
from steps.analytics.episodes import read_episodes
from steps.core.errors import UserError
from steps.core.masking import Masker, masked
from steps.core.records import read_records
from steps.policy.adapter import adapter_hash

USUAL = {  # the name on other projects' W&B pages -> our name
    "policy_loss": "loss",
    "kl_divergence": "kl",
    "entropy": "entropy",
    "average_reward": "reward_mean",
    "success_rate": "success",
    "average_episode_length": "turns",
    "learning_rate": "update/learning_rate",
}
ROWS = 200  # of a table in an iteration, at most
CHARACTERS = 500  # of a text in a table
CONNECT = 60.0  # seconds until the server must have answered
EPISODES = "iteration episode scenario prompt turns tokens reward success stopped_by error".split()
ACTIONS = "iteration episode turn action arguments answer is_error".split()


def usual(metrics: Mapping[str, float]) -> dict[str, float]:
    """The metrics, and again under their usual names those that have one."""
    return {**metrics, **{name: metrics[own] for name, own in USUAL.items() if own in metrics}}


def serve(root: Path, state: Path, lines: Iterable[str], log_message: Callable[[str], None]) -> None:
    """Log message by message, until the run is finished or the lines end, as they do at an interruption."""
    run: Any = None
    finished = False
    for line in lines:
        message = json.loads(line)
        if "start" in message:
            run = begin(masked(message["start"]), state)
        elif "iteration" in message:
            number = message["iteration"]
            if run.step > int(number):
                log_message(f"iteration {number} was logged before")
                continue
            values: dict[str, Any] = masked(usual(message["metrics"]))
            try:
                values |= tables(root, number)
            except UserError as problem:
                log_message(f"error: iteration {number} has no tables: {problem}")
            run.log(values, step=int(number))
        else:
            run.summary.update(masked(message["metrics"] | {"best_iteration": message["finish"]}))
            send_adapter(run, root / "run" / message["finish"] / "adapter", log_message)
            finished = True
    if run is not None:
        run.finish(exit_code=0 if finished else 1)


def begin(description: Mapping[str, Any], state: Path) -> Any:
    """Create wandb's run, or continue the one with this id."""
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
        id=description["id"],
        name=description["name"],
        group=description["task"],
        config=description["config"],
        dir=os.environ.get("WANDB_DIR") or str(state),
        resume="allow",
        settings=settings,
    )


def tables(root: Path, number: str) -> dict[str, Any]:
    """The masked episodes of an iteration and their actions as wandb's tables; nothing where it has no episodes."""
    import wandb

    mask = Masker()
    episodes, actions = rows(root / "run", number, mask.text)
    contents = (("episodes", EPISODES, episodes), ("actions", ACTIONS, actions))
    return {
        name: wandb.Table(columns=names, data=[mask(row) for row in data]) for name, names, data in contents if data
    }


def rows(run: Path, number: str, mask: Callable[[str], str] = str) -> tuple[list[list[Any]], list[list[Any]]]:
    """(episodes, actions) of a training batch, in the columns of EPISODES and ACTIONS: at most ROWS of each.

    Both are spread over the whole batch; actions come from whole episodes. Texts are masked before they are cut, because a
    cut secret is no longer recognised.
    """
    played = read_episodes(run / number, "train", {})
    path = run / "scenarios" / "train.parquet"
    prompts = {}
    for scenario in read_records(Scenario, path) if path.is_file() else ():
        user = [str(message["content"]) for message in scenario.messages if message["role"] == "user"]
        prompts[scenario.id] = short(mask("\n".join(user)))
    episodes = [
        [
            number,
            episode.id,
            episode.scenario_id,
            prompts.get(episode.scenario_id, ""),
            episode.turns,
            episode.tokens,
            episode.score,
            episode.success,
            episode.stop_reason,
            short(mask(episode.error or "")),
        ]
        for episode in spread(played, ROWS)
    ]
    actions: list[list[Any]] = []
    acts = sum(len(episode.acts) for episode in played)
    for episode in spread(played, max(1, len(played) * ROWS // max(1, acts))):
        actions += [
            [number, episode.id, act.turn, act.name, short(mask(act.arguments)), short(mask(act.answer)), act.error]
            for act in episode.acts
        ]
    return episodes, actions[:ROWS]


def spread(values: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the values, evenly spaced from first to last."""
    count = min(most, len(values))
    return [values[place * len(values) // count] for place in range(count)]


def short(text: str) -> str:
    return text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"


def send_adapter(run: Any, folder: Path, log_message: Callable[[str], None]) -> None:
    """Send the adapter as an artifact named by its content's hash, unless one of its files holds a secret."""
    import wandb

    if not folder.is_dir():
        log_message(f"error: {folder} does not exist, and is not sent")
        return
    for path in sorted(folder.glob("*.json")):
        if masked(text := path.read_text()) != text:
            log_message(f"error: the adapter is not sent: {path} holds what looks like a secret")
            return
    artifact = wandb.Artifact(f"adapter-{adapter_hash(folder)}", type="model")
    artifact.add_dir(str(folder))
    run.log_artifact(artifact, aliases=["best"])


def main(words: Sequence[str]) -> int:
    """`words`: the project's root, and its state folder. A failure prints "error: …" and is exit code 1."""
    root, state = map(Path, words)
    for name, folder in (("WANDB_DATA_DIR", "wandb-data"), ("WANDB_CACHE_DIR", "wandb-cache")):
        os.environ.setdefault(name, str(state / folder))
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_SILENT", "true")

    log_message = functools.partial(print, flush=True)
    try:
        serve(root, state, sys.stdin, log_message)
    except (Exception, KeyboardInterrupt) as problem:
        log_message(f"error: {masked(' '.join(f'{type(problem).__name__}: {problem}'.split()))}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
