"""How long large things take, for a person to look at: no test, because machines differ.

python -m tests.support.large journal     # a gateway goes on with 50,000 calls, 200 of 5,000 episodes under way
python -m tests.support.large viewer      # a page of the viewer in a project with 3,000 kept runs
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from addons.agents.gateway.batch import Batch
from addons.agents.gateway.journal import Answer, Entry, Journal
from addons.agents.gateway.plan import Chats
from addons.agents.section import Agents
from environments.base import Scenario
from steps.core.params import Policy
from tests.support.plans import plan

EPISODES, CALLS, UNDER_WAY, RUNS = 5_000, 10, 200, 3_000


def memory() -> float:
    """MiB of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20


def entries(name: str, chats: Chats) -> list[Entry]:
    """An episode's calls, each of which goes on where the last one ended."""
    chat = chats.of(())
    spoken = {"role": "assistant", "content": "Lima."}
    answer = tuple(chat.completion_ids(spoken))
    messages: list[Any] = [{"role": "user", "content": f"What is the capital of Peru? {name}"}]
    made, prompt = [], tuple(chat.prompt_ids(messages))
    for number in range(CALLS):
        answers = (Answer(answer, (-0.5,) * len(answer), "stop"),)
        words = (name, 1, number, secrets.token_hex(16), None, "chat/completions", {"messages": list(messages)})
        parent = number - 1 if number else None
        made.append(Entry(*words, secrets.token_hex(12), 0, "adapter", answers, ((parent, prompt),)))
        messages += [spoken, {"role": "user", "content": f"And of {number}?"}]
        prompt = tuple(chat.suffix_ids(messages[-1:]))
    return made


async def journal(folder: Path) -> None:
    chats, names = Chats(Policy()), [f"001-{number}" for number in range(EPISODES)]
    kept = Journal(folder / "journal.sqlite")
    kept.database.execute("PRAGMA synchronous = OFF")
    kept.lease((name, 1, secrets.token_urlsafe(24), 0) for name in names)
    for number, name in enumerate(names):
        kept.record(entries(name, chats))
        if number >= UNDER_WAY:
            kept.end(name, {"id": name, "error": None})
    kept.close()
    scenario = Scenario.make("toy", "train", [{"role": "user", "content": "?"}], {}).model_dump(mode="json")
    episodes = [{"episode": name, "scenario": scenario, "attempt": 0} for name in names]
    before, began = memory(), time.perf_counter()
    batch = Batch(plan(folder / "journal.sqlite", episodes, Agents(concurrency=256)), chats, lambda message: None)
    print(f"taken up: {time.perf_counter() - began:.2f} s, {memory() - before:.0f} MiB")
    began = time.perf_counter()
    for execution in batch.executions.values():
        batch.recall(execution)
        assert len(execution.calls) == CALLS
    print(f"all {len(batch.executions)} under way read: {time.perf_counter() - began:.2f} s more")


def viewer(folder: Path) -> None:
    from starlette.testclient import TestClient

    from viewer.app import application

    def git(*words: str, given: str = "") -> str:
        command = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(command, input=given, text=True, capture_output=True, check=True).stdout.strip()

    git("init", "--quiet")
    for name in ("params.yaml", "chain.yaml", "dvc.lock", "dvc.yaml"):
        (folder / name).write_text("{}\n")
    git("add", "--all")
    git("commit", "--quiet", "--message", "project")
    tree = git("rev-parse", "HEAD^{tree}")
    commits = (
        f"commit refs/runs/run-{number:04d}\ncommitter a <a@b> {1_700_000_000 + number} +0000\ndata 3\nrun\n"
        f"M 040000 {tree} \n\n"
        for number in range(RUNS)
    )
    git("fast-import", "--quiet", given="".join(commits))
    time.sleep(1.5)  # until what git wrote is older than the file system's clock tells apart
    with TestClient(application(folder / "run", "k" * 32), base_url="http://127.0.0.1") as client:
        client.get(f"/?key={'k' * 32}")
        for address in ("/", "/?run=run-0007", "/?run=run-0007", "/analytics?run=run-0007"):
            began = time.perf_counter()
            assert client.get(address).status_code == 200
            print(f"{address}: {time.perf_counter() - began:.3f} s")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.support.large", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("what", choices=["journal", "viewer"])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="large-") as folder:
        asyncio.run(journal(Path(folder))) if options.what == "journal" else viewer(Path(folder))


if __name__ == "__main__":
    main()
