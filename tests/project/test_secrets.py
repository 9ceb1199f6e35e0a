"""Fifty secrets, planted wherever a run may hold one, are in nothing that leaves it: traces, MLflow, W&B, Prefect, logs.

What stays as it is: data under run/ and what DVC keeps of them are the user's own data set, and a trajectory whose tokens
were altered would be another one. So are the ledger, whose answers of judges are originals, the viewer, which shows those
files on this machine, and the adapter's own two files. Of the requests to Langfuse the bodies are searched: a header holds
its own keys, as it must.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import json
import logging
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from addons.trackers.tracing import sender
from environments.base import Scenario, use
from steps.core import errors, params, progress
from steps.core.masking import MASK, Masker, MaskingFilter
from steps.core.records import Judgement, Order, Reward, Trajectory, Turn, write_records
from steps.core.terminal import exit_code
from steps.project.git import git_state
from steps.registry import publish
from steps.runner import stage, worker
from tests.support.wandb_file import records
from tests.tracking.test_tracking import Project

ORDINARY = "the moon is 384400 km away"  # is to be read everywhere


def core(name: str) -> str:
    """24 letters and digits, of no meaning and unlike any other."""
    drawn = base64.b64encode(hashlib.sha256(f"planted {name}".encode()).digest()).decode()
    return "Q7" + "".join(letter for letter in drawn if letter.isalnum())[:22]


def pem(name: str) -> str:
    """Put together from parts, as all here: scanners of repositories look for such texts, too."""
    return "-----BEGIN " + f"PRIVATE KEY-----\nMIIE{core(name)}\nAAAA\n-----END " + "PRIVATE KEY-----"


def login(name: str) -> str:
    return base64.b64encode(f"me:{core(name)}".encode()).decode()


TEXTS: dict[str, list[tuple[str, Callable[[str], str]]]] = {  # place: (name, the text that holds the secret)
    "system": [
        ("openai", lambda name: f"Your key is sk-proj-{core(name)}."),
        ("anthropic", lambda name: f"export ANTHROPIC_API_KEY=sk-ant-api03-{core(name)}"),
        ("bearer", lambda name: f"curl -H 'Authorization: Bearer {core(name)}' https://shop.example"),
        ("database", lambda name: f"postgresql://agent:{core(name)}@db.example/mails"),
        ("pem", pem),
    ],
    "user": [
        ("hugging face", lambda name: f"use hf_{core(name)} for it"),
        ("github", lambda name: f"ghp_{core(name)}abcdefghijkl"),
        ("github fine", lambda name: f"github_pat_{core(name)}"),
        ("gitlab", lambda name: f"glpat-{core(name)}"),
        ("password", lambda name: f"password: {core(name)}"),
        ("quoted", lambda name: f"DB_PASSWORD='{core(name)} and more'"),
        ("webhook", lambda name: f"https://hooks.slack.com/services/T0/B0/{core(name)}"),
    ],
    "result": [
        ("jwt", lambda name: f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.{core(name)}"),
        ("json", lambda name: json.dumps({"user": "me", "api_key": core(name)})),
        ("nested json", lambda name: json.dumps({"found": [{"credentials": {"user": "me", "value": core(name)}}]})),
        ("json in json", lambda name: json.dumps({"body": json.dumps({"private_key": ["line", core(name)]})})),
        ("python", lambda name: repr({"refreshToken": core(name)})),
        ("git", lambda name: f"git clone https://me:{core(name)}@example.com/x.git"),
        ("long", lambda name: "far " * 118 + f"and sk-{core(name)} " + "far " * 400),  # where a table cuts a text
    ],
    "error": [
        ("aws", lambda name: f"OSError: aws_secret_access_key={core(name)}"),
        ("stripe", lambda name: f"HTTP 401: no such key: sk_live_{core(name)}"),
        ("groq", lambda name: f"gsk_{core(name)} is refused"),
    ],
    "explanation": [
        ("slack", lambda name: f"found: 1 × 0.5: it said xoxb-123456789012-{core(name)}"),
        ("address", lambda name: f"it opened https://example.com/?user=me&api_key={core(name)}&x=1"),
    ],
    "reason": [
        ("google", lambda name: f"The attempt printed AIza{core(name)}abcdefghijk."),
        ("npm", lambda name: f"It used npm_{core(name)}abcdefghijkl"),
    ],
    "diff": [
        ("settings", lambda name: f'OPENAI_API_KEY = "sk-{core(name)}"'),
        ("yaml", lambda name: f"    password: {core(name)}"),
        ("json file", lambda name: f'  "clientSecret": "{core(name)}",'),
        ("key file", pem),
        ("url", lambda name: f"redis://:{core(name)}@cache:6379"),
    ],
}
ARGUMENTS: dict[str, Callable[[str], Any]] = {
    "of a key": lambda name: {"api_key": core(name)},
    "of headers": lambda name: {"headers": {"Authorization": f"Basic {login(name)}"}},
    "of a list": lambda name: {"steps": [{"then": [{"password": core(name)}]}]},
    "of a number": lambda name: {"pwd": int(hashlib.sha256(name.encode()).hexdigest()[:12], 16) + 10**15},
    "of an object": lambda name: {"credentials": {"user": "me", "value": core(name)}},
    "of lines": lambda name: {"private_key": ["a line", core(name)]},
    "of camels": lambda name: {"accessToken": core(name)},
    "of a text": lambda name: {"body": f"send sk-or-v1-{core(name)} to Bob"},
}
VARIABLES: dict[
    str, Callable[[str], str]
] = {  # their values have no form that tells; the environment's answer holds them
    "SHOP_API_KEY": lambda name: f"heather-{words(name)}",
    "HF_TOKEN": lambda name: f"thistle-{words(name)}",
    "PGPASSWORD": lambda name: f"bracken-{words(name)}",
    "PREFECT_API_AUTH_STRING": lambda name: f"admin:{words(name)}",
    "FLYWHEEL_LEDGER_URL": lambda name: f"postgresql://team:{words(name)}@db/ledger",
    "FLYWHEEL_NOTIFY_URL": lambda name: f"slack://tokens/{words(name)}",
    "LANGFUSE_SECRET_KEY": lambda name: f"gorse-{words(name)}",
}
SETTINGS: dict[str, Callable[[str], Any]] = {  # score.ruler.endpoint.extra_body, and of the chat template
    "api_key": lambda name: core(name),
    "extra_headers": lambda name: {"x-api-key": core(name), "accept": "json"},
    "tools": lambda name: [{"auth": {"password": core(name)}}],
    "metadata": lambda name: {"note": f"sk-lf-{core(name)}"},
}


def words(name: str) -> str:
    """Small letters alone."""
    return "".join(chr(ord("a") + byte % 26) for byte in hashlib.sha256(f"planted {name}".encode()).digest()[:20])


def secrets() -> dict[str, str]:
    """What must not be found: by place and name."""
    planted_secrets = {f"{place}/{name}": core(name) for place, several in TEXTS.items() for name, _ in several}
    planted_secrets |= {f"argument/{name}": core(name) for name in ARGUMENTS}
    planted_secrets["argument/of headers"] = login("of headers")
    planted_secrets["argument/of a number"] = str(ARGUMENTS["of a number"]("of a number")["pwd"])
    planted_secrets |= {f"variable/{name}": words(name) for name in VARIABLES}
    return planted_secrets | {f"setting/{name}": core(name) for name in SETTINGS}


SECRETS = secrets()


def environment() -> str:
    """The variables' secrets, without what could tell them: of an address and of a login the password alone."""
    parts = ("PREFECT_API_AUTH_STRING", "FLYWHEEL_LEDGER_URL")
    return "\n".join(f"it says {words(name) if name in parts else make(name)} here" for name, make in VARIABLES.items())


def text(place: str) -> str:
    return "\n".join([ORDINARY, *(make(name) for name, make in TEXTS[place])])


def needles(secret: str) -> list[bytes]:
    """A secret as it is, and what of it stands in base64, wherever it begins there."""
    plain = secret.encode()
    forms = [plain]
    for shift in range(3):
        whole = base64.b64encode(b"\0" * shift + plain)
        forms.append(whole[4 if shift else 0 : len(whole) - 4])  # but for what its neighbours have a part in
    return forms


NEEDLES = {name: needles(secret) for name, secret in SECRETS.items()}


def planted(content: bytes) -> set[str]:
    """The secrets that are in it."""
    return {name for name, several in NEEDLES.items() if any(needle in content for needle in several)}


# --- A run that holds them


def trajectories(number: str, some: list[Scenario]) -> list[Trajectory]:
    """At each scenario an attempt that calls with nested arguments and is answered with secrets, and one that fails."""
    heard = [made(name) for name, made in TEXTS["result"]] + [f"{ORDINARY}\n{environment()}"]
    calls = [use("measure", **made(name)) for name, made in ARGUMENTS.items()]
    assert len(heard) == len(calls)
    turns = tuple(
        Turn(
            prompt_ids=(1,),
            completion_ids=(2, 3),
            logprobs=(-0.1, -0.1),
            message=call,
            observations=({"role": "tool", "name": "measure", "content": answer},),
            finish_reason="stop",
        )
        for call, answer in zip(calls, heard, strict=True)
    )
    made: list[Trajectory] = []
    for one in some:
        common: dict[str, Any] = {"scenario_id": one.id, "adapter_hash": "a"}
        made.append(Trajectory(id=f"{number}-{one.id}-0", attempt=0, turns=turns, stop_reason="done", **common))
        failed: dict[str, Any] = {"turns": turns[:1], "stop_reason": "error", "error": text("error")}
        made.append(Trajectory(id=f"{number}-{one.id}-1", attempt=1, **failed, **common))
    return made


def rewards(batch: list[Trajectory]) -> list[Reward]:
    return [
        Reward(
            trajectory_id=trajectory.id,
            scenario_id=trajectory.scenario_id,
            name="rule+ruler",
            score=None if trajectory.stop_reason == "error" else 0.5,
            success=trajectory.stop_reason == "done",
            components={} if trajectory.stop_reason == "error" else {"rule/found": 0.5, "ruler/ruler": 0.75},
            explanation=f"rule × 0.5: {text('explanation')} | ruler × 1: {text('reason')}",
        )
        for trajectory in batch
    ]


def planted_run(root: Path) -> Project:
    """A finished iteration in which all of them are, with changes that git knows of."""
    extra = {name: make(name) for name, make in SETTINGS.items()}
    endpoint = {"model": "judge", "extra_body": extra, "base_url": "https://judge.example/v1"}
    score = {"judges": {"rule": 0.5, "ruler": 1}, "ruler": {"endpoint": endpoint}}
    project = Project(root, iterations=1, score=score)
    run = root / "run"
    asked = [{"role": "system", "content": text("system")}, {"role": "user", "content": text("user")}]
    (run / "scenarios").mkdir()
    places: tuple[tuple[Any, str], ...] = (
        ("train", "001"),
        ("val", "001/evaluation"),
        ("val", "000/evaluation"),
        ("test", "001/test"),
    )
    for split, place in places:
        some = [Scenario.make("toy", split, asked, {"answer": 1})]
        write_records(some, run / f"scenarios/{split}.parquet")
        batch = trajectories(f"{place.partition('/')[0]}-{split}", some)
        write_records(batch, run / place / "trajectories.parquet")
        write_records(rewards(batch), run / place / "rewards.parquet")
        if split == "train":
            order = Order(attempts=(batch[0].id,), scores=(0.75,), calls=("a",))
            fields: dict[str, Any] = {"scenario_id": some[0].id, "judge": "j", "orders": (order,)}
            judgement = Judgement(scores={batch[0].id: 0.75}, reasons={batch[0].id: text("reason")}, **fields)
            (run / place / "judgements.jsonl").write_text(judgement.model_dump_json() + "\n")
    git = ["git", "-c", "user.name=test", "-c", "user.email=test@localhost", "-C", str(root)]
    (root / "deploy.txt").write_text("replicas: 2\n")
    for command in (["init", "--quiet"], ["add", "deploy.txt"], ["commit", "--quiet", "--message", "one"]):
        subprocess.run([*git, *command], check=True)
    (root / "deploy.txt").write_text(text("diff") + "\n")
    project.write()
    return project


class Receiver:
    """Takes whatever is posted to it."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                gzipped = self.headers.get("Content-Encoding") == "gzip"
                receiver.bodies.append(self.path.encode() + b" " + (gzip.decompress(body) if gzipped else body))
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, format: str, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    stand_in = Receiver()
    yield stand_in
    stand_in.server.shutdown()
    stand_in.server.server_close()


@pytest.fixture
def project(tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "WANDB_", "LANGFUSE_", "PREFECT_API"))]:
        monkeypatch.delenv(name)
    for name, make in VARIABLES.items():
        monkeypatch.setenv(name, make(name))
    monkeypatch.delenv("FLYWHEEL_ROOT", raising=False)
    monkeypatch.setenv("FLYWHEEL_TRACE_RATE", "1")
    root = tmp_path / "project"
    (root / ".flywheel").mkdir(parents=True)
    shutil.copy(empty_store, root / ".flywheel/mlflow.db")
    created = planted_run(root)
    monkeypatch.chdir(root)
    yield created
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        os.environ.pop(name)


# --- What leaves


def rows_of(database: Path) -> bytes:
    """Every value of every table, and the file's own bytes: a value may be torn apart by pages."""
    contents = [path.read_bytes() for path in database.parent.glob(f"{database.name}*")]
    with contextlib.closing(sqlite3.connect(database)) as link:
        for (name,) in link.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for row in link.execute(f'SELECT * FROM "{name}"'):
                contents += [value if isinstance(value, bytes) else str(value).encode() for value in row]
    return b"\n".join(contents)


def files_of(folder: Path) -> bytes:
    """Every file; of Weights & Biases' own the records, too, which its blocks tear apart."""
    contents = []
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            contents += [str(path).encode(), path.read_bytes()]
        if path.suffix == ".wandb":
            contents += [record.SerializeToString() for record in records(path)]
    return b"\n".join(contents)


def tracked(project: Project, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, wandb: bool) -> dict[str, bytes]:
    """MLflow's database and artifacts with traces, parameters, tags, files, a registered version and its card; Langfuse;
    Weights & Biases; and what was told."""
    from addons.trackers import wandb as weights_and_biases
    from addons.trackers.tracing import tracker as traces
    from steps.tracking import tracker as tracking

    messages: list[str] = []
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk-lf-1")
    monkeypatch.setenv("LANGFUSE_HOST", receiver.address)
    if wandb:
        monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = tracking.MlflowTracker(project.root, messages.append)
    beside = weights_and_biases.begin(tracker, is_live=True)
    assert (beside is not None) == wandb
    trackers: list[tracking.Tracker] = [tracker, traces.begin(tracker, is_live=True), *([beside] if beside else [])]
    for service in trackers:
        service.iteration("001", 0.25)
    for service in trackers:
        service.finish()
    (project.root / "curve.png").write_bytes(b"png")
    tracker.log_artifact(project.root / "curve.png")
    tracker.log_message(f"Langfuse at https://me:{core('git')}@example.com does not take traces")
    run = project.root / "run"
    registering = params.load(project.root / "params.yaml", params.RegisterParams)
    publish.publish(project.root, run / "001/adapter", run / "001/test", run / "000/test", registering)
    kept = project.root / ".flywheel"
    received = {"Langfuse": b"\n".join(receiver.bodies), "told": "\n".join([*messages, tracker.where()]).encode()}
    received |= {"MLflow's database": rows_of(kept / "mlflow.db"), "MLflow's artifacts": files_of(kept / "mlartifacts")}
    if wandb:
        received["Weights & Biases"] = files_of(kept / "wandb") + (kept / "wandb.log").read_bytes()

    receiver.bodies.clear()  # the same once more, as a server of MLflow's would get it
    monkeypatch.delenv("LANGFUSE_PUBLIC_KEY")
    traced = sender.Tracing(
        project.root, tracker.params, tracker.client, receiver.address, tracker.experiment, messages.append
    )
    traced.iteration("key", "run", "000", 1.0)
    traced.iteration("key", "run", "001", 1.0)
    settings = tracker.settings | tracker.flow_settings
    assert traced.finish("key", "run", {"best": "001"}, settings, {}, (1.0, 2.0)), messages
    received["MLflow's server"] = b"\n".join(receiver.bodies)
    return received


def shown(project: Project, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Prefect's artifacts, and the parameters that it keeps of a flow."""
    import prefect.artifacts
    from fastapi.encoders import jsonable_encoder

    from addons.report import pages
    from flows.deployment.settings import RescoreSettings
    from flows.terminal.report import Point

    given: list[Any] = []
    for name in ("markdown", "table", "progress", "image"):
        monkeypatch.setattr(
            prefect.artifacts, f"create_{name}_artifact", lambda *words, **more: given.append((words, more))
        )
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    point = Point(1, 0.5, (0.4, 0.6), 0.5)
    pages.iteration([point], {"reward": 0.5, "tokens_per_second": 3.0, "iteration": 1}, 1)
    pages.learned(project.root / "curve.png", f"MLflow: https://me:{core('git')}@example.com/")
    assert [more["key"] for _, more in given] == ["iterations", "progress", "trajectories", "learning-curve", "mlflow"]
    monkeypatch.delenv("PREFECT_API_URL")
    more = {f"score.ruler.endpoint.extra_body.{name}": make(name) for name, make in SETTINGS.items()}
    settings = RescoreSettings(more=more, judge_url=f"https://me:{core('git')}@example.com/v1")
    return {
        "Prefect's artifacts": repr(given).encode(),
        "Prefect's parameters": json.dumps(jsonable_encoder(settings)).encode(),
    }


def logged(project: Project, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> dict[str, bytes]:
    """The log of a flow, its terminal, what Prefect's logger passes on, and the worker's log and answer."""
    from flows.terminal.display import RunDisplay
    from flows.training.run import log_message

    everything = "\n".join(text(place) for place in TEXTS) + "\n" + environment()
    passed: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            passed.append(self.format(record))

    logger = logging.getLogger("prefect.flow_runs")
    monkeypatch.setattr(logger, "handlers", [Handler()])
    monkeypatch.setattr(logger, "filters", [])
    of_run = logging.LoggerAdapter(logger, {"flow_run_name": "a run", "flow_run_id": "1", "flow_name": "train"})

    def fails(*_: object) -> None:
        raise OSError(everything)

    for name, number in (("stdout", 1), ("stderr", 2)):  # pytest's own write past the descriptors
        monkeypatch.setattr(sys, name, open(number, "w", buffering=1, closefd=False))  # noqa: SIM115
    capfd.readouterr()
    log = project.root / ".flywheel/train.log"
    display = RunDisplay()
    with display.shown(log, of_run):
        log_message(display, everything)
        progress.say(everything)
        exit_code(fails)
        try:
            fails()
        except OSError:
            of_run.exception("it failed: %s", everything)
        try:
            raise errors.UserError(everything)
        except errors.UserError as problem:
            of_run.error(str(problem))
    terminal = capfd.readouterr()
    sent: list[dict[str, Any]] = []
    request = dict.fromkeys(("module", "function"), "steps.judging.rule") | {"arguments": {}, "umask": 0o022}
    monkeypatch.setattr(stage, "find", fails)
    serving = object.__new__(worker.Worker)
    serving._run(request | {"environment": dict(os.environ)}, sent.append)
    sent.append(serving._run(request | {"environment": dict(os.environ)}, sent.append))
    workers = capfd.readouterr()
    return {
        "the flow's log": log.read_bytes(),
        "the terminal": (terminal.out + terminal.err).encode(),
        "Prefect's log": "\n".join(passed).encode(),
        "the worker's log": (workers.out + workers.err).encode(),
        "the worker's answer": json.dumps(sent, ensure_ascii=False).encode(),
    }


def test_there_are_fifty() -> None:
    assert len(SECRETS) == len(set(SECRETS.values())) == 50


def test_a_run_holds_them_all(project: Project) -> None:
    """The search finds each in what is not masked, in base64 too, so that not to find them says something."""
    from addons.trackers import wandb_process
    from steps.core.records import read_records

    held = b""
    for path in (project.root / "run/001/trajectories.parquet", project.root / "run/001/rewards.parquet"):
        kind: Any = Trajectory if "trajectories" in path.name else Reward
        held += b"\n".join(repr(record.model_dump()).encode() for record in read_records(kind, path))
    held += b"\n".join(
        repr(record.model_dump()).encode()
        for record in read_records(Scenario, project.root / "run/scenarios/train.parquet")
    )
    held += (project.root / "params.yaml").read_bytes() + git_state(project.root)[1].encode()
    held += (project.root / "run/001/judgements.jsonl").read_bytes()
    assert planted(held) == SECRETS.keys()
    for before in (b"", b"a", b"ab"):
        for name, secret in SECRETS.items():
            assert planted(base64.b64encode(before + secret.encode() + b"more of it")) == {name}
    tables = repr(wandb_process.rows(project.root / "run", "001")).encode()
    assert len(planted(tables)) > 20, "they would be sent"


def test_none_of_them_leaves(
    project: Project, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    received = tracked(project, receiver, monkeypatch, wandb=True)
    received |= shown(project, monkeypatch) | logged(project, monkeypatch, capfd)
    assert len(received) == 13
    assert b"000-val" in received["Langfuse"], "the base policy's validation is traced, too"
    assert b"LLM_JUDGE" in received["Langfuse"]
    assert b"LLM_JUDGE" in received["MLflow's database"]
    assert {name: leaked for name, content in received.items() if (leaked := planted(content))} == {}
    for name, content in received.items():
        assert MASK.encode() in content, f"{name} was to hold one"
        if name not in ("told", "Prefect's parameters"):
            assert ORDINARY.encode() in content or name == "MLflow's artifacts", f"{name} has lost the rest"
    names = set(
        re.findall(rb"\b(?:git\.diff|params\.yaml|dvc\.lock|chain\.yaml|README\.md)\b", received["MLflow's artifacts"])
    )
    assert len(names) == 5


def test_without_masking_they_would(
    project: Project, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each of these is one that the test above looks into, and would see them in."""
    monkeypatch.setattr(Masker, "__call__", lambda _, value: value)
    monkeypatch.setattr(type(Masker()), "text", lambda _, value: value)
    monkeypatch.setattr(MaskingFilter, "filter", lambda *_: True)
    received = tracked(project, receiver, monkeypatch, wandb=False)
    received |= shown(project, monkeypatch) | logged(project, monkeypatch, capfd)
    assert [name for name, content in received.items() if not planted(content)] == []
    whole = planted(b"".join(received.values()))
    assert whole == SECRETS.keys()


# --- What is masked stays of use


def test_files_without_secrets_are_logged_as_they_are() -> None:
    from steps.tracking.entries import public

    root = Path(__file__).parent.parent.parent
    for path in (*root.glob("*.yaml"), *root.glob("tasks_data/*.yaml")):
        assert public(path.read_text()) == path.read_text(), path


def test_parameters_without_secrets_are_logged_as_they_are() -> None:
    given = params.Params.model_validate(
        {"score": {"judges": {"rule": 1, "ruler": 1}, "ruler": {"endpoint": {"model": "m"}}}}
    )
    plain = given.model_dump(mode="json", by_alias=True)
    assert Masker()(plain) == plain


def test_a_file_with_secrets_keeps_the_rest() -> None:
    from steps.tracking.entries import public

    given = {"task": "toy", "update": {"beta": 0.01}, "extra": {"password": "correct horse", "more": [1, "a"]}}
    content = yaml.safe_load(public(yaml.safe_dump(given)))
    assert content == given | {"extra": {"password": MASK, "more": [1, "a"]}}


def test_an_address_that_is_refused_is_not_quoted(tmp_path: Path) -> None:
    endpoint = {"model": "m", "base_url": f"https://me:{core('git')}@judge.example/v1"}
    (tmp_path / "params.yaml").write_text(
        yaml.safe_dump({"score": {"judges": {"ruler": 1}, "ruler": {"endpoint": endpoint}}})
    )
    with pytest.raises(errors.UserError, match="without a name, a key or a query") as refused:
        params.load(tmp_path / "params.yaml", params.Params)
    assert core("git") not in str(refused.value)


def test_a_secret_that_a_table_would_cut_in_two(tmp_path: Path, project: Project) -> None:
    from addons.trackers import wandb_process

    secret = core("long")
    _, actions = wandb_process.rows(project.root / "run", "001", Masker().text)
    answers = " ".join(row[5] for row in actions)
    assert secret[:8] not in answers
    assert secret[:8] in " ".join(row[5] for row in wandb_process.rows(project.root / "run", "001")[1])


def test_masking_of_long_answers_is_fast() -> None:
    """A hundred results of 20 KB of JSON that must be read: under two seconds of this process's own time."""
    answer = json.dumps([{"id": number, "author": "Ann", "body": "moon " * 10} for number in range(250)])
    mask = Masker()
    began = time.process_time()
    for _ in range(100):
        mask.text(answer)
    assert time.process_time() - began < 2
