"""A run whose parts are in network namespaces of their own, each of which is taken away for a while.

    python -m tests.support.namespaces                          # as root; a run without trouble, then one per part
    python -m tests.support.namespaces --only postgres mlflow
    python -m tests.support.namespaces --seconds 30

The flow with the engine and the gateway, the agents (a client of the gateway), MLflow's server with Prefect's and S3,
and PostgreSQL have an address each, on a bridge. A part's link goes down at one moment of the run, and up again after
`--seconds`. The run waits, or it ends with a sentence and is started again by the same command. One line of JSON per run:
`seconds` beside those of the run without trouble, the lines of the log that say what was away (`said`), and whether all
outputs have the bytes of the run without trouble (`same`). Exit code 1 where one has not. It needs Debian's PostgreSQL
(`apt-get install postgresql`), as tests/support/team.py does.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from flows.reproduce import outputs
from tests.conftest import change_params, copy_project, end, environment
from tests.support.team import ledger_rights
from tests.support.team_services import Team
from tests.support.two_clients import NETWORK, ip, namespaces

PARTS = {"flow": "fwflow", "sampler": "fwsampler", "mlflow": "fwmlflow", "postgres": "fwpostgres"}
ADDRESS = {part: f"{NETWORK}{11 + number}" for number, part in enumerate(PARTS)}
GATEWAY = f"{ADDRESS['flow']}:8712"
TASK = "fleet_agent"
SMALL: dict[str, Any] = {
    "scenarios": {"train": 12, "val": 8, "test": 8},
    "rollout": {"scenarios": 4, "attempts": 4, "temperature": 1.0, "max_tokens": 32},
    "train": {"iterations": 2, "patience": 2, "way": "grpo"},
    "agents": {"clients": 0, "heartbeat_seconds": 5},
}
# part -> the file (a pattern) whose appearance is the moment at which it is taken away
MOMENTS = {
    "flow": "run/001/trajectories.parquet",
    "sampler": "run/000/adapter",  # episodes are under way soon after
    "mlflow": "run/001/adapter",
    "postgres": "run/001/adapter",
    "mlflow at the end": "run/00[12]/test",  # of the iteration that validation chose
}
WORDS = (
    "waiting for",
    "cannot be reached",
    "was not written",
    "did not answer",
    "has not answered",
    "lacks",
    "works again",
)


def inside(part: str) -> list[str]:
    return ["ip", "netns", "exec", PARTS[part]]


class Run:
    """A run in a folder of its own, and its client of the gateway."""

    def __init__(self, team: Team, folder: Path, key: str) -> None:
        self.folder, self.log = folder, folder / "run.log"
        self.variables = environment(folder, **team.variables("alice", key))
        self.variables |= {"FLYWHEEL_GATEWAY_LISTEN": GATEWAY, "FLYWHEEL_GATEWAY_KEY": secrets.token_urlsafe(24)}

    def start(self, part: str, *words: str) -> subprocess.Popen[str]:
        with self.log.open("a") as log:
            return subprocess.Popen(
                [*inside(part), sys.executable, "-m", *words],
                cwd=self.folder,
                env=self.variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                text=True,
                start_new_session=True,
            )

    def play(self, part: str | None, moment: str | None, seconds: float) -> dict[str, Any]:
        """The run to its end, during which a part is away once."""
        client = self.start(
            "sampler", "addons.agents.client", "--server", f"http://{GATEWAY}", "--forever", "--task", TASK
        )
        attempts, codes, began = 0, list[int](), time.monotonic()
        ended, away = threading.Event(), list[float]()
        gone = threading.Thread(target=self.take_away, args=(part, moment, seconds, ended, away), daemon=True)
        if part:
            gone.start()
        try:
            while not codes or (codes[-1] and attempts < 3):
                attempts += 1
                flow = self.start("flow", "flows.train")
                try:
                    codes.append(flow.wait(900))
                finally:
                    end(flow)
            took = time.monotonic() - began
            ended.set()
            if part:
                gone.join()
                if not away:
                    raise RuntimeError(f"the run made no {moment}, so that {part} was never away; see {self.log}")
        finally:
            end(client)
            stop = [*inside("flow"), sys.executable, "-m", "steps.runner.handover", "--stop"]
            subprocess.run(stop, cwd=self.folder, env=self.variables, capture_output=True)
        lines = [
            line.strip()[:200] for line in self.log.read_text().splitlines() if any(word in line for word in WORDS)
        ]
        return {"codes": codes, "said": list(dict.fromkeys(lines))[:6], "seconds": round(took)}

    def take_away(self, part: str, moment: str, seconds: float, ended: threading.Event, away: list[float]) -> None:
        """Wait for the moment, or for the end of a run that never has it; `away` gets the seconds of the absence."""
        while not any(self.folder.glob(moment)):
            if ended.wait(0.2):
                return
        if part == "sampler":
            time.sleep(3)
        ip(f"link set v{PARTS[part]} down")
        try:
            time.sleep(seconds)
            away.append(seconds)
        finally:
            ip(f"link set v{PARTS[part]} up")


def play_all(team: Team, folder: Path, only: list[str], seconds: float) -> bool:
    """The run without trouble, and one per trouble; whether all is well."""
    key, original = team.key("add", "alice", "--promoter"), copy_project(folder / "project")
    subprocess.run(
        [sys.executable, "-m", "environments._new", TASK, "--agent"], cwd=original, check=True, stdout=sys.stderr
    )
    shutil.copy(original / f"tasks_data/{TASK}.yaml", original / "params.yaml")
    change_params(original, SMALL)
    expected: dict[str, str] = {}
    is_well = True
    for trouble in ["", *only]:
        part = trouble.partition(" ")[0]
        copied = folder / (trouble.replace(" ", "-") or "quiet")
        shutil.copytree(original, copied, symlinks=True)
        row = Run(team, copied, key).play(part or None, MOMENTS.get(trouble), seconds)
        made = outputs(copied)
        if not trouble:
            expected = made
        differing = sorted(name for name in expected.keys() | made.keys() if expected.get(name) != made.get(name))
        row |= {"away": trouble or None, "outputs": len(made), "same": not differing, "differing": differing[:5]}
        row["ok"] = bool(row["codes"][-1] == 0 and row["same"] and len(made) > 20)
        is_well = is_well and row["ok"]
        print(json.dumps(row), flush=True)
        if not row["ok"]:
            print((copied / "run.log").read_text()[-3000:], file=sys.stderr)
    return is_well


def main() -> int:
    about = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog="python -m tests.support.namespaces", description=about)
    parser.add_argument("--only", nargs="*", choices=[*MOMENTS], default=[*MOMENTS])
    parser.add_argument("--seconds", type=float, default=30)
    options = parser.parse_args()
    servers = ADDRESS["mlflow"], inside("mlflow")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started ends, too
    where = dict.fromkeys(("mlflow", "prefect", "s3"), servers) | {
        "postgres": (ADDRESS["postgres"], inside("postgres"))
    }
    with namespaces([*PARTS.values()]) as is_apart, tempfile.TemporaryDirectory(prefix="spaces-") as text:
        if not is_apart:
            print("network namespaces cannot be made here: run this as root", file=sys.stderr)
            return 2
        os.environ["NO_PROXY"] = ",".join(("127.0.0.1", "localhost", *ADDRESS.values()))
        with Team(Path(text), where) as team:
            team.start_postgres()
            team.start_s3()
            team.machine.mkdir()
            team.start_servers()
            ledger_rights(team)
            return 0 if play_all(team, Path(text), options.only, options.seconds) else 1


if __name__ == "__main__":
    sys.exit(main())
