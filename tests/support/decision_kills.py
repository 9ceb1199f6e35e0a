"""Kills what decides about versions, and what takes uploads, at random moments; whoever comes next must find all in order.

    python -m tests.support.decision_kills                     # 50 kills
    python -m tests.support.decision_kills --kills 6 --seed 3 --ledger postgresql://…

MLflow's server and the ledger are real ones. Each operation runs in a process of its own, which gets SIGKILL at a random
moment of the time that the operation takes undisturbed: a promotion and the start of a trial from the verdict on, a
rollback, the end of a trial, what a nightly turn does after training (the gate, with what it finds), and the server that
takes adapters. Then another process starts, as `make serve` does, and finishes what was begun. One line of JSON: `kills` by
kind, `open`: after how many of them there was something to finish, and `wrong`, which must be empty:

- champion and previous are the same version, or the way back is lost
- the ledger's last decision is not what the registry says, or it has a decision twice
- a trial that the ledger does not know, or a tag of a decision that was not made
- a file of a verdict that is torn, or an adapter that is not whole
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, end, free_port, python, start, wait_for
from tests.flows.test_change import Scores

VERSIONS = ("1", "2", "3", "4")
KINDS = ("promotion", "rollback", "start of a trial", "end of a trial", "nightly", "upload")
FORK = multiprocessing.get_context("fork")  # so that a process begins with everything imported


def apart(work: Callable[..., Any], *arguments: Any, seconds: float | None = None) -> tuple[Any, float, bool]:
    """(what `work` returns, seconds, whether it was killed), in a process that is killed after so many seconds."""
    ours, theirs = FORK.Pipe()
    process = FORK.Process(target=_inside, args=(theirs, work, arguments))
    began = time.monotonic()
    process.start()
    theirs.close()
    result = None
    if ours.poll(240 if seconds is None else seconds):
        result = ours.recv()
    elif process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
    took = time.monotonic() - began
    process.join()
    if isinstance(result, Exception):
        raise result
    return result, took, result is None


def _inside(theirs: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    from flows.promotion import evaluations, judging
    from tests.flows import test_promote

    sys.stdout = sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115
    patch = pytest.MonkeyPatch()
    fake = test_promote.FakeEvaluate()
    fake.wins = json.loads(Path("wins.json").read_text()) if Path("wins.json").exists() else fake.wins
    patch.setattr(evaluations, "run_stage", fake)
    patch.setattr(judging, "show_page", lambda *_: None)  # it needs Prefect's server
    try:
        theirs.send((work(*arguments),))
    except Exception as problem:
        theirs.send(RuntimeError(f"{type(problem).__name__}: {problem}"))
    os._exit(0)


def prepare() -> None:
    """Four registered versions, of which the first is champion; a verdict to promote by."""
    from flows import promote
    from flows.deployment.settings import PromoteSettings
    from tests.flows.test_promote import Project

    project = Project(Path.cwd())
    for number, wins in enumerate((20, 30, 40, 55), 1):
        project.registered(f"{number:03}", wins)
        Path("wins.json").write_text(json.dumps(project.evaluate.wins))
        if number == 1:
            promote.decided(PromoteSettings())


def model() -> Any:
    from steps.registry.model import read_registry

    return read_registry(Path.cwd(), "toy")


def publish(version: str, canary: float) -> None:
    """What flows.promote does once the gate has let a version through."""
    from addons.production.section import Serve
    from flows import promote
    from flows.promotion.judging import Challenge
    from steps.core import params
    from steps.registry.gate import Verdict

    path = min(Path("run/promote").glob("*/verdict.json"))
    parameters = params.load("params.yaml", params.PromoteParams)
    serve = Serve.of(parameters).model_copy(update={"canary": canary})
    verdict, now = Verdict.model_validate_json(path.read_text()), model()
    chosen = parameters.model_copy(update={"serve": serve})
    promote.publish(Challenge(now, now.version(version), verdict, path.parent, chosen))


def roll_back(why: str) -> None:
    from flows.rollback import rollback

    rollback(Path.cwd(), "toy", "previous", why)


def end_trial(score: float) -> None:
    from addons.production.section import Serve
    from addons.production.serving import live

    live.decide_canary(model(), Content(score, model().aliases.get("canary", "")), Serve(canary=0.5, min_feedback=10))


class Content(Scores):
    """What people say of the version on trial, and 0.5 of each other."""

    def __init__(self, score: float, version: str) -> None:
        super().__init__(score)
        self.version = version

    def of(self, version: str, since: str = "") -> list[float]:
        return [self.score if version == self.version else 0.5] * 400


def nightly() -> None:
    """What a turn of addons.production.flywheel does with what it has registered, which is version 4 here."""
    from addons.production import flywheel
    from flows.promotion import change

    change.finish(Path.cwd(), flywheel.model_of(Path.cwd(), "toy"))
    flywheel.promoted({"registered": {"name": "toy", "version": "4"}})


def looked_at() -> dict[str, Any]:
    """What there is, after what was begun has been finished; `open`: whether there was such a thing."""
    from flows.promotion import change
    from steps.project.ledger import Ledger
    from steps.registry import decisions
    from steps.registry.gate import Verdict

    finished = change.finish(Path.cwd(), "toy")
    now = model()
    with Ledger() as ledger, ledger.reading() as link:
        listed = [(each.event, each.version, each.champion) for each in decisions.listed(link)]
        left = decisions.interrupted(link)
    for path in Path("run/promote").glob("*/verdict.json"):
        Verdict.model_validate_json(path.read_text())
    return {"aliases": now.aliases, "rows": listed, "left": left, "open": finished is not None}


def wrong(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """What does not agree."""
    aliases, rows, faults = after["aliases"], after["rows"], []
    champion, previous = aliases.get("champion"), aliases.get("previous")
    moved = [row for row in rows if row[0] in ("promotion", "rollback")][-1]
    if champion == previous:
        faults.append(f"champion and previous are {champion}")
    if (champion, previous) != moved[1:]:
        faults.append(f"champion {champion} and previous {previous}, and the ledger says {moved}")
    if after["left"]:
        faults.append("something is left open")
    if rows[: len(before["rows"])] != before["rows"] or len(rows) > len(before["rows"]) + 1:
        faults.append(f"rows {rows[len(before['rows']) :]} were added")
    trials = [row for row in rows if row[1] == aliases.get("canary")]
    if "canary" in aliases and trials[-1][0] != "canary":
        faults.append(f"version {aliases['canary']} is on trial, and the ledger says {trials[-1]}")
    return faults


class Decisions:
    """The operations on the registry, each with what must be so before it."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.usual = draw, dict[str, float]()  # kind -> seconds undisturbed
        self.now: dict[str, Any] = {}

    def look(self, *before: Any) -> dict[str, Any]:
        """What there is now, after this was done in a process of its own."""
        if before:
            apart(*before)
        self.now = apart(looked_at)[0][0]
        return self.now

    def operation(self, kind: str, place: int) -> tuple[Callable[..., None], tuple[Any, ...]]:
        aliases = self.now["aliases"]
        others = [version for version in VERSIONS if version not in (aliases["champion"], aliases.get("canary"))]
        if kind in ("promotion", "start of a trial"):
            return publish, (self.draw.choice(others), 0.0 if kind == "promotion" else 0.5)
        if kind == "end of a trial":
            if "canary" not in aliases:
                self.look(publish, self.draw.choice(others), 0.5)
            return end_trial, (self.draw.choice((0.0, 1.0)),)
        if kind == "rollback":
            if "previous" not in aliases:
                self.look(publish, self.draw.choice(others), 0.0)
            return roll_back, (f"kill {place}",)
        if aliases["champion"] == "4":
            self.look(roll_back, f"before {place}")
        return nightly, ()

    def kill(self, kind: str, place: int) -> tuple[bool, bool, list[str]]:
        """(whether it was killed, whether something was open, what is wrong)."""
        if kind not in self.usual:
            work, arguments = self.operation(kind, place)
            self.usual[kind] = apart(work, *arguments)[1]
            self.look()
        work, arguments = self.operation(kind, place)
        before = self.now
        killed = apart(work, *arguments, seconds=self.draw.uniform(0, 1.05 * self.usual[kind]))[2]
        after = self.look()
        return killed, after["open"], wrong(before, after)


# --- Uploads


def serve_uploads(port: int, folder: Path) -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.middleware import Middleware

    from addons.fleet import vllm_server
    from addons.fleet.uploads import Uploads
    from steps.core.params import Policy

    os.environ.update(vllm_server.environment(Policy(), "127.0.0.1", port, "a-key", folder, True))
    uvicorn.run(Starlette(middleware=[Middleware(Uploads)]), host="127.0.0.1", port=port, log_level="error")


def bring(port: int, adapter: Path, name: str) -> str | None:
    """The path that the server answers in the end; None where it was killed."""
    path = None
    for file in ("adapter_config.json", "adapter_model.safetensors"):
        address, body = f"http://127.0.0.1:{port}/flywheel/adapters/{name}/{file}", (adapter / file).read_bytes()
        request = urllib.request.Request(address, body, {"Authorization": "Bearer a-key"}, method="PUT")
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                path = json.loads(answer.read())["path"]
        except OSError:
            return None
    return path


def kill_upload(draw: random.Random, folder: Path) -> tuple[bool, bool, list[str]]:
    """The same for a server that takes an adapter of 24 MB. It starts again on the folder as it is."""
    from addons.fleet.uploads import KEPT, PARTS
    from steps.policy.adapter import adapter_hash

    kept, adapter = folder / "kept", Path(tempfile.mkdtemp(dir=folder))
    (adapter / "adapter_config.json").write_text(json.dumps({"r": draw.randrange(10**9)}))
    (adapter / "adapter_model.safetensors").write_bytes(draw.randbytes(24 * 2**20))
    name, results = adapter_hash(adapter), []
    for is_killed in (True, False):
        port = free_port()
        process = FORK.Process(target=serve_uploads, args=(port, kept))
        process.start()
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
            except urllib.error.HTTPError:
                break  # 404: it answers
            except OSError:
                time.sleep(0.02)
        if is_killed:
            killer = FORK.Process(target=_kill_after, args=(process.pid, draw.uniform(0, 0.4)))
            killer.start()
        results.append(bring(port, adapter, name))
        if is_killed:
            killer.join()  # pyrefly: ignore[unbound-name]
        process.kill()
        process.join()
    faults = [
        f"{path.name} is not whole" for path in kept.iterdir() if path.name != PARTS and adapter_hash(path) != path.name
    ]
    halves = list((kept / PARTS).iterdir()) if (kept / PARTS).exists() else []
    faults += [f"{len(halves)} unfinished ones"] if len(halves) > KEPT else []
    faults += [] if results[1] == str(kept / name) else [f"after the kill the server answers {results[1]}"]
    return results[0] is None, bool(halves), faults


def _kill_after(process: int, seconds: float) -> None:
    time.sleep(seconds)
    os.kill(process, signal.SIGKILL)


def run(kills: int, seed: int, ledger: str = "") -> dict[str, Any]:
    """So many kills, of each kind in turn. Only those count that came before the end of the operation."""
    import mlflow  # noqa: F401

    draw, kinds, opened, faults = random.Random(seed), Counter[str](), Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as name:
        folder, port = Path(name), free_port()
        (site := folder / "site").mkdir()
        (place := folder / "project").mkdir()
        words = python("flows.deployment.mlflow_server", "--port", str(port))
        server = start(words, site, site / "log", PYTHONPATH=os.fspath(ROOT), HOME=name)
        variables = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}", "MLFLOW_TRACKING_USERNAME": "flywheel"}
        before = Path.cwd()
        patch = pytest.MonkeyPatch()
        try:
            wait_for(f"{variables['MLFLOW_TRACKING_URI']}/health", server)
            key = (site / ".flywheel/mlflow.key").read_text().strip()
            variables |= {
                "MLFLOW_TRACKING_PASSWORD": key,
                "FLYWHEEL_LEDGER_URL": ledger or f"sqlite:///{folder}/ledger.db",
            }
            for variable, value in variables.items():
                patch.setenv(variable, value)
            os.chdir(place)
            apart(prepare)
            deciding, number = Decisions(draw), 0
            deciding.look()
            while sum(kinds.values()) < kills and number < 4 * kills:
                kind = KINDS[number % len(KINDS)]
                number += 1
                outcome = kill_upload(draw, folder) if kind == "upload" else deciding.kill(kind, number)
                killed, is_open, seen = outcome
                kinds[kind] += killed
                opened[kind] += is_open
                faults += [f"{kind} {number}: {text}" for text in seen]
        finally:
            patch.undo()
            os.chdir(before)
            end(server)
    return {"seed": seed, "tried": number, "kills": dict(kinds), "open": dict(opened), "wrong": faults}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.decision_kills")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ledger", default="", help="(default: a file of SQLite)")
    options = parser.parse_args()
    result = run(options.kills, options.seed, options.ledger)
    print(json.dumps(result), flush=True)
    return 1 if result["wrong"] or sum(result["kills"].values()) < options.kills else 0


if __name__ == "__main__":
    sys.exit(main())
