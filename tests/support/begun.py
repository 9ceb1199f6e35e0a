"""Runs that start from what is known, each repeated by `dvc repro`: from the champion, a fork, and from demonstrations.

`python -m tests.support.begun` (about 12 minutes on 2 cores; not part of the tests). In a copy of the project small runs
of multiplication are made: one from nothing, which is registered; one from that version; a fork of the
first with another learning rate; one with supervised training on the good trajectories of both; and, after flows.prune has
deleted what it may, a fork of the first again. After each, everything it made is deleted from run/ and start/, `dvc checkout
start.dvc` and `dvc repro --force --no-run-cache` make it again, and every output's hash in dvc.lock must be what it was.
Lineage must lead from the version's successor to the run that made the version, and a name that no run has must be a
sentence. Ends with 1 where anything differs.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path

from steps.project.lock import read_lock
from steps.runner import handover
from tests.conftest import copy_project, python, run

SMALL: dict[str, object] = {
    "scenarios.train": 64,
    "scenarios.val": 40,
    "scenarios.test": 40,
    "rollout.scenarios": 8,
    "rollout.attempts": 4,
    "train.iterations": 2,
    "train.way": "grpo",
    "train.patience": 2,
}
SFT = {"from_runs": ["one", "two/001"], "batch": 8}
RUNS: dict[str, tuple[list[str], dict[str, object]]] = {
    "one": (["--task", "multiplication"], SMALL),
    "two": ([], {"policy.start_from": "models:/multiplication@challenger", "update.reference": "start", "seed": 2}),
    "three": (["--from", "one/001"], {"update.learning_rate": 0.0002, "train.iterations": 1}),
    "four": (["--from", "one"], {"policy.start_from": None, "policy.start_optimizer": False, "sft": SFT}),
}


def check(words: list[str], folder: Path) -> str:
    """What a command prints. SystemExit where it fails."""
    done = run(words, folder, seconds=900)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout + done.stderr


def outputs(folder: Path) -> dict[str, str]:
    return {out["path"]: out["md5"] for entry in read_lock(folder).values() for out in entry.get("outs", ())}


def repeated(folder: Path) -> list[str]:
    """The outputs that `dvc repro` from nothing makes otherwise."""
    before = outputs(folder)
    for name in ("run", "start"):
        shutil.rmtree(folder / name, ignore_errors=True)
    if (folder / "start.dvc").exists():
        check(python("dvc", "checkout", "--quiet", "start.dvc"), folder)
    try:
        check(python("dvc", "repro", "--force", "--no-run-cache", "--quiet"), folder)
    finally:
        handover.stop_workers(folder)
    after = outputs(folder)
    return [path for path in before if after.get(path) != before[path]]


def main() -> int:
    faults = 0
    with tempfile.TemporaryDirectory(prefix="begun-") as temporary:
        folder = copy_project(Path(temporary) / "project")
        for name, (options, settings) in RUNS.items():
            words = [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]
            said = check(python("flows.train", *options, *words, "--name", name), folder)
            print("\n".join(line for line in said.splitlines() if line.startswith(("train:", "start:", "sft:"))))
            different = repeated(folder)
            faults += bool(different)
            print(
                f"{name}: {len(outputs(folder))} outputs, made again with other bytes: {different or 'none'}",
                flush=True,
            )
            if name == "two":
                back = check(python("addons.lineage", "back", "models:/multiplication@challenger", "--json"), folder)
                runs = {made["run"] for step in json.loads(back)["steps"] for made in step["runs"]}
                faults += len(runs) != 2
                print(f"two: lineage goes back through {len(runs)} runs")
        pruned = check(python("flows.prune", "--delete", "--last", "0"), folder)
        print(pruned.splitlines()[-1])
        check(python("flows.train", "--from", "one", "--set", "train.iterations=1", "--name", "five"), folder)
        different = repeated(folder)
        faults += bool(different)
        print(f"five: from the pruned run's best iteration, made again with other bytes: {different or 'none'}")
        missing = run(python("flows.train", "--from", "none/001"), folder, seconds=100)
        faults += "there is no run or revision 'none'" not in missing.stderr
    print("faults:", faults)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
