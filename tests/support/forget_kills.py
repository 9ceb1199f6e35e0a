"""Kills ingestions and deletions, and looks whether files, versions and tombstones agree after the next start.

    python -m tests.support.forget_kills            # 25 kills -9 at random moments, with versions of DVC's
    python -m tests.support.forget_kills --kills 5 --seed 3

Each command runs in a process forked from one that has imported everything, so that kills meet work and not imports. After
each kill the same command is given again. One line of JSON: `kills` by command, and what must be nothing: `lost` (taken in
and not forgotten, yet not there), `back` (forgotten, and there again after another export under another id, feedback and a
restored version), `torn` (leftovers, or a version that is not the folder). Exit code 1 where one of these is there.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from addons.production import forget, ingest
from addons.production.traces.records import key_of
from addons.production.traces.store import Store
from addons.production.traces.tombstones import Forgotten
from steps.project.lock import folder_md5

PARAMS = {"scenarios": {"train": 12, "val": 12, "test": 12}, "rollout": {"scenarios": 4}}
WRITES = ("os.rename", "os.rmdir", "ctypes.dlsym")  # the last one: two folders are exchanged (steps/core/files.py)
TASK = Path("ingested/email_search")


def prepare(root: Path) -> None:
    """A project's folder with the task's data."""
    (root / "tasks_data").mkdir(parents=True)
    shutil.copytree(Path(__file__).parents[2] / "tasks_data/email_search", root / "tasks_data/email_search")
    (root / "params.yaml").write_text(yaml.safe_dump(PARAMS))


def row(name: str, number: int) -> dict[str, Any]:
    """A conversation in which things are said that no other says."""
    question, answer = f"Where did PRIVATE-{number}-WORD park the blue car?", f"At the pier, place {number}."
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"id": name, "consent": True, "messages": messages, "feedback": {"score": 1}}


def export(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows))
    return path


def capture(root: Path, number: int) -> None:
    """The same conversation, as the server stores it."""
    said = row("", number)["messages"]
    record: dict[str, Any] = {"kind": "call", "response": f"{number:016x}", "key": key_of("capture", f"c{number}")}
    record |= {"time": f"2026-11-23T00:00:{number:02d}.000000Z", "consent": True, "messages": said[:1]}
    assert Store(root / ".flywheel/capture").append(record | {"answer": said[1], "tools": [], "metadata": {}})


def child(
    root: Path, work: Callable[[], object], at: int | None = None, after: float | None = None
) -> tuple[int, float]:
    """(how a fork of this process ended that did this work in the folder, its seconds). `at`: the change of a file that is
    there before which it kills itself; `after`: the seconds after which it is killed."""
    started, pid = time.monotonic(), os.fork()
    if pid == 0:
        code = 1
        try:
            os.chdir(root)
            silent = os.open(root / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(silent, 1), os.dup2(silent, 2)
            if at is not None:
                sys.addaudithook(_killing(at))
            code = int(work() or 0)  # pyrefly: ignore[bad-argument-type]
        finally:
            os._exit(code)
    if after is not None:
        time.sleep(after)
        os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), time.monotonic() - started


def _killing(at: int) -> Callable[[str, tuple[Any, ...]], None]:
    left = [at]

    def hook(event: str, args: tuple[Any, ...]) -> None:
        in_place = event == "open" and isinstance(args[2], int) and args[2] & os.O_RDWR and not args[2] & os.O_CREAT
        if event in WRITES or in_place:
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    return hook


def ingesting(*words: str) -> Callable[[], int]:
    return lambda: ingest.main([*words, "--consented"])


def forgetting(name: str) -> Callable[[], int]:
    return lambda: forget.main([name])


def held(root: Path) -> set[int]:
    """The numbers of the conversations that anything in the folder and the store holds."""
    texts = [path.read_text() for path in (root / "ingested").rglob("*") if path.is_file()]
    texts += [json.dumps(line.record) for line in Store(root / ".flywheel/capture").lines()]
    return {number for number in range(100) if any(f"PRIVATE-{number}-WORD" in text for text in texts)}


def torn(root: Path) -> list[str]:
    """Leftovers, and a version that is not the folder."""
    beside = {TASK.name, f"{TASK.name}.dvc", ".gitignore"}
    left = [path.name for path in (root / "ingested").iterdir() if path.name not in beside]
    left += [path.name for path in (root / TASK).iterdir() if path.name.startswith(".")]
    pointer = root / f"{TASK}.dvc"
    if pointer.exists() and yaml.safe_load(pointer.read_text())["outs"][0]["md5"] != folder_md5(root / TASK):
        left.append(f"{pointer.name} names another version")
    return left + (["intended"] if (root / forget.INTENT).exists() else [])


def brought_back(root: Path, forgotten: set[int]) -> set[int]:
    """What is there again of the forgotten, after all that could bring it back."""
    for number in sorted(forgotten):
        try:
            capture(root, number)
        except Forgotten:
            pass
        else:
            return {number}
    export(root / "again.jsonl", [row(f"other-{number}", number) for number in sorted(forgotten)])
    traces = [
        {"id": f"t{n}", "type": "GENERATION", "traceId": f"trace-{n}", "input": row("", n)["messages"][:1]}
        | {"output": row("", n)["messages"][1], "startTime": "2026-11-24T00:00:00Z"}
        for n in sorted(forgotten)
    ]
    export(root / "traces.jsonl", traces)
    words = ["openai:again.jsonl", "langfuse:traces.jsonl", "capture", "openai:chats.jsonl"]
    child(root, ingesting(*words))
    return held(root) & forgotten


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    draw, kills, lost, back, left = random.Random(options.seed), Counter[str](), list[int](), list[int](), list[str]()
    with tempfile.TemporaryDirectory(prefix="forget-kills-") as place:
        root = Path(place)
        os.environ |= {"DVC_NO_ANALYTICS": "1", "FLYWHEEL_LEDGER_URL": f"sqlite:///{root}/ledger.db"}
        prepare(root)

        def init() -> None:
            from dvc.repo import Repo

            Repo.init(str(root), no_scm=True).close()

        child(root, init)
        import dvc.repo.add  # noqa: F401  # once, for all forks

        seconds: dict[str, float] = {}
        there: set[int] = set()
        forgotten: set[int] = set()
        while kills.total() < options.kills:
            number = len(there) + len(forgotten)
            capture(root, number)
            export(root / "chats.jsonl", [row(f"c{each}", each) for each in range(number + 1)])
            named, gone, work = "ingest", -1, ingesting("openai:chats.jsonl", "capture")
            if there and number % 2:
                named, gone = "forget", draw.choice(sorted(there))
                work = forgetting(f"c{gone}")
            else:
                there.add(number)
            if named in seconds:
                code, _ = child(root, work, after=draw.uniform(0.0, 1.1 * seconds[named]))
                kills[named] += code == -signal.SIGKILL
            code, took = child(root, work)
            seconds[named] = took
            if code:
                left.append(f"{named} ended with {code}: {(root / 'log.txt').read_text()[-300:]}")
                break
            if named == "forget":
                forgotten.add(gone)
                there.discard(gone)
                there.add(number)
            left += torn(root)
            back += sorted(brought_back(root, forgotten))
            lost += sorted(there - held(root))
    print(json.dumps({"kills": kills, "forgotten": len(forgotten), "lost": lost, "back": back, "torn": left}))
    return int(bool(lost or back or left))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
