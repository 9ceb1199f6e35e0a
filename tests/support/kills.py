"""Kills processes of a training run at random moments, starts the same command again, and compares the ends.

    python -m tests.support.kills             # 50 kills, 4 iterations a run
    python -m tests.support.kills --kills 2 --iterations 1 --seed 3

First a run is made undisturbed. Then the same run is begun in fresh copies of the project, again and again, until all kills
are done: at a random moment of what is left of it, one process of the run gets SIGKILL, and the same command follows once
the killed run has ended. Of the kinds that are there, the one that was killed least is taken: the flow, the worker,
Prefect's server, and in every fourth run, which has no worker, a stage in a process of its own. vLLM's engine lives in the
worker, or in the stage; where it has a process of its own, on a GPU, that is a kind, too. One line of JSON: `kills` by kind,
`runs`, and what must be nothing:

- unlike: outputs whose hash in dvc.lock differs from the undisturbed run's
- left: processes that were still there 60 s after their flow
- torn: temporary files at a run's end
- refused: a command after a kill that ended by itself with an error

Exit code 1 where one of these is there.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.conftest import SMALL, change_params, copy_project, python, run, start

KINDS = {  # by words of the command line, the first that fits
    "flow": ("flows.train",),
    "engine": ("EngineCore",),
    "worker": ("steps.runner.worker",),
    "prefect": ("prefect",),
    "stage": ("-m steps.",),
}
ENDING = ("flow", "prefect", "stage")
WITHOUT_WORKER = 4  # every n-th run has none
SLOWER = 2.5  # times as long, about, is such a run: each stage imports everything
SHORTEST = 20.0  # seconds of which a moment is drawn, at least: in less no run gets to its first stage
GONE_IN = 60  # seconds in which what a dead flow started has to end by itself
LONGEST = 900  # seconds of a command


def kind_of(process: psutil.Process) -> str | None:
    words = f"{process.name()} {' '.join(process.cmdline())}"
    return next((kind for kind, marks in KINDS.items() if any(mark in words for mark in marks)), None)


def processes(folder: Path) -> dict[str, list[psutil.Process]]:
    """Those that work in the folder, by kind."""
    by_kind: dict[str, list[psutil.Process]] = {}
    for process in psutil.process_iter():
        try:
            if (
                Path(process.cwd()) == folder
                and process.status() != psutil.STATUS_ZOMBIE
                and (kind := kind_of(process))
            ):
                by_kind.setdefault(kind, []).append(process)
        except (psutil.Error, OSError):
            continue
    return by_kind


def outputs(folder: Path) -> dict[str, str]:
    """The hash of each output of each stage."""
    stages = yaml.safe_load((folder / "dvc.lock").read_text())["stages"]
    return {out["path"]: out["md5"] for stage in stages.values() for out in stage.get("outs", [])}


class Killed:
    """A run in a folder of its own that is killed and begun again until it has ended well, or all kills are done."""

    def __init__(
        self, folder: Path, seconds: float, draw: random.Random, totals: Counter[str], has_worker: bool = True
    ) -> None:
        """`seconds`: about how long it takes undisturbed. `totals`: the kills of all runs, which this one adds to."""
        self.folder, self.draw, self.totals = folder, draw, totals
        self.left_seconds = seconds if has_worker else SLOWER * seconds
        self.variables = {} if has_worker else {"FLYWHEEL_WORKER": "off"}
        self.kills: Counter[str] = Counter()
        self.left: list[str] = []
        self.refused: list[str] = []

    def once(self, at: float) -> bool:
        """Start the command, kill one of its processes, and wait for the end. Returns whether it ended well.

        `at`: seconds after the start; where the command ends before, nothing is killed.
        """
        log = self.folder / ".flywheel" / "kills.log"
        log.parent.mkdir(exist_ok=True)
        kills = self.kills.total()
        process = start(python("flows.train"), self.folder, log, OMP_WAIT_POLICY="passive", **self.variables)
        try:
            process.wait(at)
        except subprocess.TimeoutExpired:
            self._kill()
            self.left_seconds -= at
        code = process.wait(LONGEST)
        self._wait_for_the_rest()
        if code and self.kills.total() == kills:
            self.refused.append(log.read_text()[-500:])
        return code == 0

    def _kill(self) -> None:
        alive = processes(self.folder)
        if alive:
            kind = min(sorted(alive), key=lambda kind: self.totals[kind])
            self.draw.choice(alive[kind]).kill()
            self.kills[kind] += 1
            self.totals[kind] += 1

    def _wait_for_the_rest(self) -> None:
        """Until what the command has started has ended, too, but for a warm worker, which waits for the next command."""
        until = time.monotonic() + GONE_IN
        while alive := {kind: group for kind, group in processes(self.folder).items() if kind in ENDING}:
            if time.monotonic() > until:
                self.left += [f"{kind}: {len(group)}" for kind, group in alive.items()]
                for process in itertools.chain.from_iterable(alive.values()):
                    process.kill()
                return
            time.sleep(0.2)

    def go_on(self, kills: int) -> None:
        """Until `kills` kills are done, or the command has ended well, or by itself with an error."""
        while True:
            may_kill = self.totals.total() < kills
            at = self.draw.uniform(0.5, max(self.left_seconds, SHORTEST)) if may_kill else LONGEST
            if self.once(at) or self.refused:
                return


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--iterations", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    draw = random.Random(options.seed)
    totals: Counter[str] = Counter()
    result: dict[str, Any] = {"unlike": [], "left": [], "torn": [], "refused": []}
    runs = 0
    with tempfile.TemporaryDirectory(prefix="kills") as place:

        def fresh(name: str) -> Path:
            folder = copy_project(Path(place).resolve() / name)
            train = {"iterations": options.iterations, "patience": options.iterations}
            change_params(folder, SMALL | {"train": train})
            return folder

        whole = fresh("undisturbed")
        began = time.monotonic()
        done = run(python("flows.train"), whole, LONGEST, OMP_WAIT_POLICY="passive")
        seconds = time.monotonic() - began
        if done.returncode:
            raise SystemExit(f"the undisturbed run failed: {done.stderr}")
        expected = outputs(whole)
        print(f"undisturbed: {len(expected)} outputs in {seconds:.0f} s", file=sys.stderr, flush=True)
        while totals.total() < options.kills:
            runs += 1
            killed = Killed(fresh(f"run {runs}"), seconds, draw, totals, runs % WITHOUT_WORKER != 0)
            killed.go_on(options.kills)
            got = outputs(killed.folder) if not killed.refused else {}
            result["unlike"] += [path for path in expected if not killed.refused and got.get(path) != expected[path]]
            result["left"] += killed.left
            result["refused"] += killed.refused
            result["torn"] += [str(path) for path in killed.folder.glob("run/**/*.tmp*")]
            so_far = {name: len(each) for name, each in result.items()}
            text = f"run {runs}: {dict(killed.kills)}, {totals.total()} of {options.kills}; {so_far}"
            print(text, file=sys.stderr, flush=True)
            run(python("steps.runner.handover", "--stop"), killed.folder)
        run(python("steps.runner.handover", "--stop"), whole)
    print(json.dumps({"kills": dict(totals), "runs": runs} | result))
    return int(any(result.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
