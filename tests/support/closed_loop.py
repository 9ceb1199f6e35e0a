"""The closed loop, whole, with real parts and simulated people: docs/flywheel.md's commands, in a copy of the project.

    python -m tests.support.closed_loop                       # about 12 minutes on 2 cores
    python -m tests.support.closed_loop --folder /tmp/loop    # keeps the copy

A champion is trained and promoted, and served by vLLM with capture. People ask it 300 questions of a kind that it was never
trained on, and say which answers were right. One turn of the flywheel ingests that, trains from the champion, and the gate
lets the version through to a share of the traffic; what people say of its answers then decides. Lines of JSON, the last one
with the seconds of each part and `ok`: the version was promoted, success on that kind rose by 0.15 at least with an interval
above 0, and on the old kinds it did not fall by more than the gate allows.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.conftest import ROOT, copy_project, end, environment

CHAMPION = ["train.iterations=3"]  # a champion of six answers two of three of these questions already
ASKED, ON_TRIAL = 300, 150
LONGEST = 900.0  # seconds of a part


class Loop:
    """A copy of the project, and what runs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = copy_project(folder)
        self.variables = environment(folder, PYTHONPATH=os.fspath(ROOT))
        self.seconds: dict[str, float] = {}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def run(self, part: str, *words: str, codes: tuple[int, ...] = (0,)) -> str:
        """What a command prints, which counts as a part of the loop. RuntimeError where it ends otherwise."""
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", *words],
            cwd=self.folder,
            env=self.variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST,
        )
        self.seconds[part] = round(self.seconds.get(part, 0) + time.monotonic() - began, 1)
        print(f"{part}: {' '.join(words)} ({self.seconds[part]:.0f} s)", file=sys.stderr, flush=True)
        if done.returncode not in codes:
            raise RuntimeError(f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-4000:]}")
        return done.stdout

    def commit(self) -> None:
        git = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", "commit", "--quiet", "--all"]
        subprocess.run([*git, "--message", "other data"], cwd=self.folder, check=True)

    def visitors(self, *words: str, codes: tuple[int, ...] = (0,)) -> list[dict[str, Any]]:
        text = self.run(words[0], "tests.support.visitors", *words, codes=codes)
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    def serve(self) -> subprocess.Popen[str]:
        """`make serve CAPTURE=1`, once it answers."""
        began = time.monotonic()
        with (self.folder / ".flywheel/closed_loop_serve.log").open("wb") as log:
            words = ["addons.production.serve", "--port", str(self.port), "--capture", "--seconds", "1"]
            served = subprocess.Popen(
                [sys.executable, "-m", *words],
                cwd=self.folder,
                env=self.variables,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        self.until(lambda: "serving:" in self.printed(), served)
        self.seconds["serve"] = round(time.monotonic() - began, 1)
        return served

    def printed(self) -> str:
        return (self.folder / ".flywheel/closed_loop_serve.log").read_text(errors="replace")

    def until(self, is_done: Any, served: subprocess.Popen[str], seconds: float = 300) -> None:
        until = time.monotonic() + seconds
        while not is_done():
            if served.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server said:\n{self.printed()[-3000:]}")
            time.sleep(0.5)


def play(loop: Loop) -> bool:
    """The whole loop; whether it shows what it should."""

    def report(row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)

    for row in loop.visitors("prepare"):
        report(row)
    loop.commit()
    settings = [word for change in CHAMPION for word in ("--set", change)]
    loop.run("train the champion", "flows.train", *settings, "--name", "first")
    loop.run("promote it", "flows.promote")
    served = loop.serve()
    try:
        [asked] = loop.visitors("ask", "--count", str(ASKED), "--port", str(loop.port))
        report(asked)
        turn = ["--set", "serve.canary=0.5", "--set", "serve.min_feedback=20", "--set", "train.iterations=6"]
        text = loop.run("turn", "addons.production.flywheel", *turn, "--name", "turn-1")
        report(
            {
                "flywheel": [
                    line.removeprefix("flywheel: ") for line in text.splitlines() if line.startswith("flywheel:")
                ]
            }
        )
        loop.until(lambda: "is on trial:" in loop.printed(), served)
        [trial] = loop.visitors("ask", "--count", str(ON_TRIAL), "--offset", str(ASKED), "--port", str(loop.port))
        report(trial)
        loop.until(lambda: re.search(r"is (promoted|withdrawn),", loop.printed()), served, 60)
        report({"server": loop.printed().splitlines()[-6:]})
    finally:
        served.send_signal(signal.SIGINT)
        end(served)
    judged = loop.visitors("judge", "1", "2", codes=(0, 1))
    for row in judged:
        report(row)
    gains = {row["on"]: row for row in judged}
    if missing := {"asked", "before"} - gains.keys():
        raise RuntimeError(f"`visitors judge` said nothing of {', '.join(sorted(missing))}")
    is_promoted = "version 2 is promoted," in loop.printed()
    is_better = gains["asked"]["gain"] >= 0.15 and gains["asked"]["ci95"][0] > 0
    is_well = is_promoted and is_better and gains["before"]["gain"] >= -0.1
    report(
        {"ok": is_well, "promoted": is_promoted, "seconds": loop.seconds, "in_all": round(sum(loop.seconds.values()))}
    )
    return is_well


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.support.closed_loop", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--folder", type=Path, help="for the copy, which is kept (default: a temporary one)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="closed-loop-") as text:
        return 0 if play(Loop(options.folder or Path(text) / "project")) else 1


if __name__ == "__main__":
    sys.exit(main())
