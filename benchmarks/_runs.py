"""Processes that benchmarks start: the main job in a clone of the committed tree, and this Python on a module or a function.

They stay in the benchmark's process group, so that one signal to it ends all of them. What is not committed is not measured
by those that clone.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks._rows import tell

ROOT = Path(__file__).parent.parent
# Variables of the tools, by the start of their names: they would reach other stores.
TOOLS = ("FLYWHEEL_", "LANGFUSE_", "MLFLOW_", "PREFECT_", "WANDB_")
TRL = {
    "TORCHDYNAMO_DISABLE": "1",  # compilation takes longer than the steps
    "FLYWHEEL_WORKER": "off",
    "HF_HUB_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}


def clone(root: Path) -> Path:
    """The committed tree, cloned to `root`."""
    subprocess.run(["git", "clone", "--quiet", os.fspath(ROOT), os.fspath(root)], check=True)
    return root


def environment(root: Path) -> dict[str, str]:
    """This process's variables for a command in a clone, with all state of the tools in the clone or in the folder that
    it lies in (Prefect's database: clones side by side share it, for making it takes long)."""
    state = root.parent / "prefect"
    return {name: value for name, value in os.environ.items() if not name.startswith(TOOLS)} | {
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_HOME": os.fspath(state),
        "PREFECT_LOCAL_STORAGE_PATH": os.fspath(state / "storage"),
        "PREFECT_MEMO_STORE_PATH": os.fspath(state / "memo_store.toml"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    }


def settings(chosen: Mapping[str, object]) -> list[str]:
    """Words of `flows.train` that set parameters."""
    return [word for name, value in chosen.items() for word in ("--set", f"{name}={value}")]


def show(root: Path, words: list[str], variables: Mapping[str, str] | None = None) -> tuple[float, str]:
    """Run this Python on the words in a clone, and repeat on standard error what it prints, as it comes.

    Returns its seconds, and what it printed. SystemExit where it fails.
    """
    tell(f"{root.name}: {' '.join(words)}")
    began, lines = time.perf_counter(), []
    with subprocess.Popen(
        [sys.executable, *words],
        cwd=root,
        env=environment(root) if variables is None else dict(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                lines.append(line)
                tell(line.rstrip("\n"))
        except KeyboardInterrupt:  # the command has had the same signal, and stops its own processes
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            raise
    if process.returncode:
        log = root / ".flywheel" / "train.log"
        raise SystemExit(
            f"{' '.join(words)} in {root} failed with exit code {process.returncode}; see above, and {log}"
        )
    return time.perf_counter() - began, "".join(lines)


def train(root: Path, words: list[str]) -> None:
    """The main job, `flows.train`, in a clone."""
    show(root, ["-m", "flows.train", *words])


def child(words: list[str], folder: Path = ROOT) -> str:
    """This Python on the words, without compilation and warm worker; its standard output. SystemExit where it fails."""
    done = subprocess.run([sys.executable, *words], cwd=folder, env=os.environ | TRL, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    return done.stdout


def call(function: str, **arguments: object) -> Any:
    """What a function of benchmarks/, named as `_update.run_ours`, returns in a process of its own. Arguments and result
    pass as JSON, paths as text. SystemExit where it fails."""
    words = ["-m", "benchmarks._runs", function, json.dumps(arguments, default=os.fspath)]
    return json.loads(child(words).splitlines()[-1])


if __name__ == "__main__":
    module, _, name = sys.argv[1].rpartition(".")
    print(json.dumps(getattr(import_module(f"benchmarks.{module}"), name)(**json.loads(sys.argv[2]))))
