"""Stops DVC's own work on a stage at many places, and looks whether the next run goes on from there to the same dvc.lock.

`python -m tests.support.interrupted --points 200` (also `make faults`). A process runs two small stages and is stopped
at one of
its lines, spread evenly over all of them in DVC, ruamel and flows: by Ctrl-C (KeyboardInterrupt) or as by SIGKILL (it ends
there, with nothing flushed). A second process runs them to their end as `dvc repro` does. Prints each place after which it
could not, and ends with 1 where there is any. `--stock` stops DVC without flows/repro/dvc_internals.py instead.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

STAGES = """stages:
  first:
    cmd: mkdir one && cp in/a in/b one && cp in/a two && echo 1 > m.json
    deps: [in]
    params: [x]
    outs: [one, two]
    metrics:
    - m.json: {cache: false}
  second:
    cmd: cp two three
    deps: [two]
    outs: [three]
"""
FILES = {"in/a": "a", "in/b": "b", "params.yaml": "x: 1\n", "dvc.yaml": STAGES}
WANTED = ("dvc.lock", "one/a", "one/b", "two", "three", "m.json")
WHERE: dict[str, tuple[str, ...]] = {"ctrl-c": ("/dvc/", "/dvc_data/", "/dvc_objects/", "/ruamel/", "/flows/")}
WHERE["kill"] = tuple(name for name in WHERE["ctrl-c"] if name != "/ruamel/")  # which writes no file by itself there


def by_flow() -> None:
    from flows.repro.pipeline import Pipeline

    pipeline = Pipeline(Path.cwd())
    for stage in ("first", "second"):
        pipeline.reproduce(stage)


def by_dvc() -> None:
    from dvc.repo import Repo

    Repo(os.fspath(Path.cwd())).reproduce(targets=["second"])


class Stopper:
    """Counts the lines that run in some files, and stops the process at one of them."""

    def __init__(self, how: str, at: int) -> None:
        self.how, self.at, self.seen = how, at, 0

    def call(self, frame: FrameType, event: str, argument: Any) -> Any:
        return self.line if any(name in frame.f_code.co_filename for name in WHERE[self.how]) else None

    def line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.seen += 1
            if self.seen == self.at:
                print(f"{frame.f_code.co_filename}:{frame.f_lineno}", flush=True)
                if self.how == "kill":
                    os._exit(137)
                raise KeyboardInterrupt
        return self.line


def in_child(folder: Path, work: Callable[[], None], stopper: Stopper | None = None) -> tuple[int, str]:
    """(exit code, what was printed) of a process of its own: 0 done, 1 failed, 130 and 137 stopped."""
    out = folder / ".git" / "out"
    if child := os.fork():
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), out.read_text().strip()
    code = 0
    os.chdir(folder)
    file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        sys.settrace(stopper.call if stopper else None)
        work()
    except KeyboardInterrupt:
        code = 130
    except BaseException:
        sys.settrace(None)
        traceback.print_exc()
        code = 1
    sys.settrace(None)
    if stopper and not stopper.at:
        print(stopper.seen)
    sys.stdout.flush()
    os._exit(code)


def sweep(how: str, points: int, stock: bool) -> list[str]:
    """A line for each place after which the next run failed or came to something else."""
    stopped = by_dvc if stock else by_flow
    faults = []
    with tempfile.TemporaryDirectory() as top:
        start, folder = Path(top, "start"), Path(top, "repository")
        for name, text in FILES.items():
            (start / name).parent.mkdir(parents=True, exist_ok=True)
            (start / name).write_text(text)
        for words in (["git", "init", "--quiet"], [sys.executable, "-m", "dvc", "init", "--quiet"]):
            subprocess.run(words, cwd=start, check=True)

        def fresh() -> Path:
            shutil.rmtree(folder, ignore_errors=True)
            return Path(shutil.copytree(start, folder))

        def results() -> dict[str, bytes | None]:
            return {name: (folder / name).read_bytes() if (folder / name).exists() else None for name in WANTED}

        code, output = in_child(fresh(), stopped, Stopper(how, 0))
        assert code == 0, output
        lines, expected = int(output.splitlines()[-1]), results()
        assert None not in expected.values()
        for point in range(points):
            at = lines * point // points + 1
            code, place = in_child(fresh(), stopped, Stopper(how, at))
            again, output = in_child(folder, by_dvc)
            if again or results() != expected:
                faults.append(f"{how} at line {at} of {lines}, {place.splitlines()[-1:]}: {output.splitlines()[-1:]}")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=int, default=100, help="how many places of each kind (default: %(default)s)")
    parser.add_argument("--how", choices=list(WHERE), action="append", help="only this kind (repeatable)")
    parser.add_argument("--stock", action="store_true", help="stop DVC as it comes")
    words = parser.parse_args()
    import dvc.dependency
    import dvc.output
    import dvc.repo.reproduce
    import dvc.stage.run  # noqa: F401 - imported once, here, and not in each child

    failed = False
    for how in words.how or WHERE:
        faults = sweep(how, words.points, words.stock)
        print(*faults, f"{how}: {words.points} places, {len(faults)} after which the next run failed", sep="\n")
        failed |= bool(faults)
    return failed


if __name__ == "__main__":
    sys.exit(main())
