"""mcp-server-sqlite as a task from nothing to the gate: scenarios, two runs scored by RULER, two versions, a verdict.

    python -m tests.support.shop_gate --folder /tmp/shop                  # a clone of this repository; minutes
    python -m tests.support.shop_gate --folder /tmp/shop --iterations 8

The server is the package of PyPI as it is (tests/support/shop_database.py). vLLM, DVC, Prefect, MLflow and the gate are
real. Stand-ins write and solve the scenarios, and the judge is simulated: it prefers the shorter of two attempts. The
embedded policy was made for another task and calls no tool here, so brevity is what it can learn. A first run's version is
the champion; a longer run's is its challenger. Prints one line of JSON; exit code 1 where an episode or a judgement is
missing, or the gate gave no verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from environments.base import Message
from tests.conftest import ROOT
from tests.support import shop_database
from tests.support.judge_server import Judge
from tests.support.openai_server import Server

TASK, SCENARIOS = "shop", 300
LONGEST = 400  # characters of an attempt that is worth nothing


def by_brevity(shared: Sequence[Message], own: Sequence[Message]) -> float:
    """From 1 for an attempt without a word to 0 for a long one."""
    written = sum(len(str(message.get("content") or "")) for message in own)
    return max(0.0, 1.0 - written / LONGEST)


def call(words: Sequence[str], folder: Path, codes: Sequence[int] = (0,)) -> int:
    """Run one of the project's commands in the clone, and show what it prints."""
    print("$", *words, file=sys.stderr, flush=True)
    done = subprocess.run([sys.executable, *words], cwd=folder, stdout=sys.stderr, check=False)
    if done.returncode not in codes:
        raise SystemExit(f"exit code {done.returncode}: {' '.join(words)}")
    return done.returncode


def clone(folder: Path) -> str:
    """A clone with this environment, and the MCP server beside it; the command that starts the server."""
    subprocess.run(["git", "clone", "-q", os.fspath(ROOT), os.fspath(folder)], check=True)
    (folder / ".venv").symlink_to((ROOT / ".venv").resolve())
    site, uv = f"{folder}/.flywheel/site", Path(sys.executable).with_name("uv")
    for words in (["venv", site], ["pip", "install", "--python", f"{site}/bin/python", *shop_database.PACKAGES]):
        subprocess.run([uv, "--quiet", *words], check=True)
    return f"{site}/bin/mcp-server-sqlite --db-path {{work}}/shop.db"


def write_task(folder: Path, command: str, url: str, iterations: int) -> None:
    """The task by `make new-mcp`'s own words, its database, its scenarios, and a small run's settings."""
    call(["-m", "environments._new", TASK, "--mcp", command], folder)
    data = folder / "tasks_data" / TASK
    settings = yaml.safe_load((data / "server.yaml").read_text())
    settings |= {"description": shop_database.DESCRIPTION, "examples": shop_database.EXAMPLES}
    (data / "server.yaml").write_text(yaml.safe_dump(settings))
    (data / "work").mkdir()
    shop_database.make(data / "work" / "shop.db")
    out = ["--out", f"tasks_data/{TASK}/scenarios.jsonl", "--count", str(SCENARIOS)]
    models = ["--model", "writer", "--solver", "player", "--url", url]
    call(["-m", "addons.supervised.generate", "--task", TASK, *out, *models], folder)
    path = folder / "tasks_data" / f"{TASK}.yaml"
    preset: dict[str, Any] = yaml.safe_load(path.read_text())
    preset["scenarios"] = {"train": 60, "val": 40, "test": 40}
    preset["rollout"] = {"scenarios": 25, "attempts": 4, "max_tokens": 48, "max_turns": 3}
    endpoint = {"model": "simulated", "base_url": url}
    preset["score"] = {"judges": {"ruler": 1}, "ruler": {"endpoint": endpoint}}
    preset["update"] = {"learning_rate": 2e-3, "steps_per_generation": 4}  # few iterations must change what it says
    preset["evaluate"] = {"temperature": 1.0, "max_tokens": 48, "max_turns": 3}  # its likeliest words are a loop
    preset["train"] = {"iterations": iterations, "patience": iterations}
    path.write_text(yaml.safe_dump(preset))


def verdict(folder: Path) -> dict[str, Any]:
    """What the run holds, and what the gate said."""
    from steps.core.records import Reward, Trajectory, read_records

    run = folder / "run"
    played = read_records(Trajectory, run / "001" / "trajectories.parquet")
    rewards = read_records(Reward, run / "001" / "rewards.parquet")
    summary = json.loads((run / "summary.json").read_text())
    path = max((run / "promote").glob("*/verdict.json"), key=lambda file: file.stat().st_mtime)
    said = json.loads(path.read_text())
    return {
        "episodes": len(played),
        "failed": sum(trajectory.error is not None for trajectory in played),
        "scored": sum(reward.score is not None for reward in rewards),
        "judged_better_than_base": summary["trained"]["judged"]["share"],
        "verdict": said,
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.shop_gate", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--folder", type=Path, required=True, help="where the clone goes; it must not exist")
    parser.add_argument("--iterations", type=int, default=4)
    options = parser.parse_args()
    folder = options.folder.absolute()
    command = clone(folder)
    judge = Judge(by_brevity)

    def answer(body: dict[str, Any]) -> Any:
        return shop_database.stand_in(body) if body["model"] in ("writer", "player") else judge(body)

    with Server(answer) as server:
        write_task(folder, command, server.url, options.iterations)
        call(["-m", "flows.train", "--task", TASK], folder)
        call(["-m", "flows.promote"], folder)  # the first version, against the base policy
        more = f"train.iterations={options.iterations + 2}"
        call(["-m", "flows.train", "--set", more, "--set", "seed=2"], folder)
        code = call(["-m", "flows.promote"], folder, codes=(0, 3))
    result = verdict(folder)
    print(json.dumps({"promote_exit": code, **result}))
    return int(result["episodes"] != 100 or result["scored"] + result["failed"] < 100)


if __name__ == "__main__":
    sys.exit(main())
