"""What several tests share: a copy of the project, commands in process groups of their own, and one real run of the flow."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from steps.core.params import Policy
from steps.runner.handover import LOG
from tests.support import tiny

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell's background job; what tests interrupt would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

gc.disable()  # until all tests are collected
ROOT = Path(__file__).parent.parent
STORES = ["sqlite", "postgresql and s3"]  # of MLflow, for the fixture `here`
SMALL: dict[str, dict[str, float | str]] = {  # a run of a minute or two
    "scenarios": {"train": 24, "val": 24, "test": 30},
    "rollout": {"scenarios": 6, "attempts": 4, "temperature": 1.0, "max_tokens": 64},
    "train": {"iterations": 2, "patience": 2, "way": "grpo"},  # so few attempts may show no success
}


def pytest_addoption(parser: pytest.Parser) -> None:
    names = (
        "a task, or a dotted module, that tests/environments/test_environments.py checks in place of all (repeatable)"
    )
    parser.addoption("--task", action="append", default=[], metavar="NAME", help=names)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What shares the trained project first, then files with slow tests, so that with several processes (`-n 3`) the longest
    ones do not come last."""
    items.sort(key=lambda item: (shared_by(item.path) != "Project", not has_slow_tests(item.path)))  # stable


def pytest_collection_finish() -> None:
    """What collecting has made stays to the end, so that no later collection of garbage goes through it again."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n 3`, a file is the work of one process, and so are together the files that share a project that was trained
    once, or a server."""
    from xdist.scheduler import LoadScopeScheduling

    class FilesThatShare(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return shared_by(ROOT / file) or file

    config.option.loadscopereorder = False
    return FilesThatShare(config, log)


@functools.cache
def has_slow_tests(file: Path) -> bool:
    return "pytest.mark.slow" in file.read_text()


@functools.cache
def shared_by(file: Path) -> str | None:
    """What a file shares with others: a class of this module, which it imports for a fixture of the whole session. Prefect's
    server is the one that `Project` has: another costs 9 s of a core to start, and 2 a minute to keep."""
    text = file.read_text()
    if re.search(r"^from tests\.(support\.sources|project\.(house|test_layout)) ", text, re.MULTILINE):
        return "sources"  # 500 modules, which are parsed once
    imports = re.findall(r"^from tests\.conftest import (.+)$", text, re.MULTILINE)
    if "prefect_server: str" in text:
        return "Project"
    return next((name for name in ("Project", "MlflowServer") if any(name in line for line in imports)), None)


def copy_project(folder: Path) -> Path:
    """The working tree as git sees it (files not yet committed included), in a repository of its own."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    git = "git -c user.name=test -c user.email=test@localhost -c core.looseCompression=0".split()  # 1 s less
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "copy"]):
        subprocess.run([*git, *words], cwd=folder, check=True)
    return folder


def small_repository(folder: Path, params: str) -> None:
    """A git repository in `folder` with one commit, of what a run's own files are kept beside."""
    from steps.project.git import git

    git(folder, "init", "--quiet")
    for name, text in {".gitignore": "/.flywheel/\n", ".dvc/config": "", "params.yaml": params}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "first")


def change_params(folder: Path, changes: Mapping[str, object]) -> None:
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))


def environment(folder: Path, **more: str) -> dict[str, str]:
    """This process's variables, with all state of the tools inside the folder."""
    ours = ("PREFECT_", "MLFLOW_", "FLYWHEEL_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    binaries = os.fspath(Path(sys.executable).parent)
    (folder / ".flywheel" / "prefect").mkdir(parents=True, exist_ok=True)  # Prefect does not make it
    return kept | {
        "PATH": os.pathsep.join((binaries, kept.get("PATH", ""))),
        "PREFECT_HOME": os.fspath(folder / ".flywheel" / "prefect"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "DVC_NO_ANALYTICS": "1",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        **more,
    }


def start(words: list[str], folder: Path, log: Path | None = None, **variables: str) -> subprocess.Popen[str]:
    """A command in a process group of its own; its output goes to `log` or is captured."""
    log_file = log.open("w") if log else None
    return subprocess.Popen(
        words,
        cwd=folder,
        env=environment(folder, **variables),
        stdin=subprocess.DEVNULL,
        stdout=log_file or subprocess.PIPE,
        stderr=subprocess.STDOUT if log_file else subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end(process: subprocess.Popen[str], how: int = signal.SIGTERM) -> None:
    """End a process group, at the latest after 20 s."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def run(words: list[str], folder: Path, seconds: float = 280, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; its whole process group is killed where it takes too long."""
    process = start(words, folder, None, **variables)
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        end(process, signal.SIGKILL)
        raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)


def python(*words: str) -> list[str]:
    return [sys.executable, "-m", *words]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def wait_for(url: str, process: subprocess.Popen[str], seconds: float = 150) -> None:
    """Until the address answers; an error where the process ends first."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if process.poll() is not None:
            raise RuntimeError(f"the server for {url} ended with {process.returncode}")
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2):
            return
        time.sleep(0.3)
    raise TimeoutError(url)


@pytest.fixture
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The trainer takes two cores, which costs more than it gains on a tiny model beside other work on the machine. Nor does
    it see a GPU: what these tests expect is computed on a CPU, and with `device` alone on a GPU, too."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    before = torch.get_num_threads()
    monkeypatch.setattr("steps.policy.machine.use_threads", lambda _: None)
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(params=["cpu", *(["cuda"] if list(Path("/dev").glob("nvidia[0-9]*")) else [])])
def device(request: pytest.FixtureRequest, one_thread: None, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where the trainer computes: on the CPU, and on a machine with a GPU once more on that."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: request.param == "cuda")
    return str(request.param)


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """A random base model of a few thousand parameters."""
    return tiny.make_policy(tmp_path_factory.mktemp("base"))


@pytest.fixture
def rates(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The learning rate of each optimiser step."""
    import torch

    seen = []
    step = torch.optim.AdamW.step

    def record(self: Any, *words: Any) -> Any:
        seen.append(self.param_groups[0]["lr"])
        return step(self, *words)

    monkeypatch.setattr(torch.optim.AdamW, "step", record)
    return seen


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> list[list[Any]]:
    """The gradient at each optimiser step, before it is clipped."""
    import torch

    seen: list[list[Any]] = []
    clip = torch.nn.utils.clip_grad_norm_

    def record(weights: Any, limit: float) -> Any:
        weights = list(weights)
        seen.append([value.grad.clone() for value in weights])
        return clip(weights, limit)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", record)
    return seen


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """The address of a real PostgreSQL server's own database, for this process of the tests."""
    pgserver = pytest.importorskip("pgserver", reason="pgserver has no wheel for this Python")
    folder = tempfile.mkdtemp(prefix="pg")  # short: a socket's path has 107 characters at most
    server = pgserver.get_server(folder, cleanup_mode="stop")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def postgresql(postgresql_server: str) -> str:
    """The address of an empty database on a real PostgreSQL server."""
    return new_database(postgresql_server)


def new_database(server: str, template: str = "template1") -> str:
    """The address of a new database on the server, a copy of the template."""
    import psycopg

    name = f"test_{secrets.token_hex(4)}"
    with psycopg.connect(server, autocommit=True) as link:
        link.execute(f"CREATE DATABASE {name} TEMPLATE {template}".encode())
    return server.replace("/postgres?", f"/{name}?")


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's database without a run, to copy: making one takes a second."""
    from steps.project import store

    path = tmp_path_factory.mktemp("store") / ".flywheel" / "mlflow.db"
    store.make_store(path)
    return path


@pytest.fixture(scope="session")
def postgresql_store(postgresql_server: str) -> str:
    """The name of a PostgreSQL database with MLflow's tables, to copy: making them takes seconds."""
    import sqlalchemy
    from mlflow.store.db import utils

    url = new_database(postgresql_server)
    engine = sqlalchemy.create_engine(
        url.replace("postgresql:", "postgresql+psycopg:", 1), poolclass=sqlalchemy.NullPool
    )
    utils._initialize_tables(engine)
    return re.findall(r"/(test_\w+)\?", url)[0]


@pytest.fixture(params=["sqlite"])
def here(
    request: pytest.FixtureRequest, tmp_path: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    """A project's folder with an empty store, which is the current folder, as it is for every stage.

    `pytest.mark.parametrize("here", STORES, indirect=True)`: also with the store in PostgreSQL and artifacts in S3.
    """
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    (tmp_path / ".flywheel").mkdir()
    if request.param == "sqlite":
        shutil.copy(empty_store, tmp_path / ".flywheel/mlflow.db")
    else:
        server, template = request.getfixturevalue("postgresql_server"), request.getfixturevalue("postgresql_store")
        variables = {"MLFLOW_TRACKING_URI": new_database(server, template)}
        variables |= {"MLFLOW_DEFAULT_ARTIFACT_ROOT": f"s3://flywheel/{tmp_path.name}"}
        for name, value in (variables | request.getfixturevalue("object_store")).items():
            monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        os.environ.pop(name)


@pytest.fixture
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger of the test's own, in the project's folder, for commands that ask a server and try again soon."""
    from addons.models import client

    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(client, "SHORTEST", 0.01)
    monkeypatch.chdir(ROOT)


class MlflowServer(NamedTuple):
    url: str
    artifacts: Path  # the folder where it keeps artifacts
    variables: dict[str, str]  # what a client needs


@pytest.fixture(scope="session")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory, empty_store: Path) -> Iterator[MlflowServer]:
    """MLflow's server as `make mlflow` runs it, with a store of its own."""
    folder = tmp_path_factory.mktemp("mlflow")
    state = folder / ".flywheel"
    state.mkdir()
    shutil.copy(empty_store, state / "mlflow.db")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    words = python("flows.deployment.mlflow_server", "--port", str(port))
    process = start(words, folder, folder / "log", PYTHONPATH=os.fspath(ROOT), HOME=os.fspath(folder))
    try:
        wait_for(f"{url}/health", process)
        password = (state / "mlflow.key").read_text().strip()
        variables = {"MLFLOW_TRACKING_USERNAME": "flywheel", "MLFLOW_TRACKING_PASSWORD": password}
        yield MlflowServer(url, state / "mlartifacts", variables | {"MLFLOW_TRACKING_URI": url})
    finally:
        end(process)


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A real S3 server with an empty bucket `flywheel`: the variables that its clients need."""
    port = free_port()
    words = python("moto.server", "--host", "127.0.0.1", "--port", str(port))
    process = start(words, tmp_path_factory.mktemp("s3"), tmp_path_factory.mktemp("s3") / "log")
    url = f"http://127.0.0.1:{port}"
    try:
        wait_for(url, process)
        urllib.request.urlopen(urllib.request.Request(f"{url}/flywheel", method="PUT")).close()
        yield s3_variables(url)
    finally:
        end(process)


def s3_variables(url: str) -> dict[str, str]:
    """What a client of moto's server needs, which takes any key."""
    keys = {"AWS_ACCESS_KEY_ID": "AKIAFLYWHEEL", "AWS_SECRET_ACCESS_KEY": "of-the-tests"}
    return keys | {"AWS_ENDPOINT_URL": url, "AWS_DEFAULT_REGION": "us-east-1", "NO_PROXY": "127.0.0.1,localhost"}


prefect_servers: list[subprocess.Popen[str]] = []  # that run for the fixture below


def pytest_runtest_teardown(nextitem: pytest.Item | None) -> None:
    """End Prefect's server after the files that share it: it takes 2 s of a core a minute."""
    if prefect_servers and (nextitem is None or shared_by(nextitem.path) != "Project"):
        end(prefect_servers.pop())


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a real Prefect server's API."""
    folder = tmp_path_factory.mktemp("prefect")
    port = free_port()
    words = python("prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port))
    process = start(words, folder, log=folder / "server.log")
    try:
        wait_for(f"http://127.0.0.1:{port}/api/health", process)
        prefect_servers.append(process)
        yield f"http://127.0.0.1:{port}/api"
    finally:
        end(process)


class Project:
    """A copy of the project in which a small run has been made, interrupted once, and finished."""

    def __init__(self, folder: Path, api: str) -> None:
        self.folder, self.api = folder, api
        self.interrupted: subprocess.CompletedProcess[str]
        self.sampled_before: bytes  # the first batch of the run that was stopped; it is sampled again
        self.logged_before: str  # the worker's log of that run
        self.finished: subprocess.CompletedProcess[str]

    def train(self, **variables: str) -> subprocess.CompletedProcess[str]:
        return run(python("flows.train"), self.folder, seconds=600, PREFECT_API_URL=self.api, **variables)


@pytest.fixture(scope="session")
def project(tmp_path_factory: pytest.TempPathFactory, prefect_server: str) -> Iterator[Project]:
    """The main job on small numbers, on the real Prefect server: stopped by Ctrl-C in iteration 1, then run to its end."""
    project = Project(copy_project(tmp_path_factory.mktemp("project")), prefect_server)
    change_params(project.folder, SMALL | {"evaluate": {"sampled_attempts": 1}})
    interrupt(project)
    forget_batch(project.folder)
    project.logged_before = (project.folder / LOG).read_text()
    project.finished = project.train()
    yield project
    run(python("steps.runner.handover", "--stop"), project.folder)


def interrupt(project: Project) -> None:
    """Begin the run, and stop it as soon as the first batch is there."""
    process = start(python("flows.train"), project.folder, PREFECT_API_URL=project.api)
    batch, until = project.folder / "run/001/trajectories.parquet", time.monotonic() + 240
    try:
        while not batch.exists():
            if process.poll() is not None or time.monotonic() > until:
                raise AssertionError(f"no first batch: {process.communicate(timeout=240)}")
            time.sleep(0.005)
        os.killpg(process.pid, signal.SIGINT)
        project.sampled_before = batch.read_bytes()
        out, err = process.communicate(timeout=240)
    finally:
        end(process, signal.SIGKILL)
    project.interrupted = subprocess.CompletedProcess([], process.returncode, out, err)


def forget_batch(folder: Path) -> None:
    """Take the first batch out of what DVC has recorded: on a busy machine it has done so before Ctrl-C reaches it."""
    path = folder / "dvc.lock"
    locked = yaml.safe_load(path.read_text())
    if locked["stages"].pop("rollout@001", None):
        path.write_text(yaml.safe_dump(locked, sort_keys=False))
        shutil.rmtree(folder / ".dvc/cache/runs")


@pytest.fixture(scope="module")
def copying_begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DVC repository with one stage."""
    folder = tmp_path_factory.mktemp("begun")
    for words in (["git", "init", "--quiet"], ["dvc", "init", "--quiet"]):
        assert run(words, folder).returncode == 0
    (folder / "dvc.yaml").write_text("stages: {copy: {cmd: cp a b, deps: [a], outs: [b]}}")
    (folder / "a").write_text("a")
    return folder


@pytest.fixture
def repository(copying_begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A DVC repository with one stage, which has run."""
    shutil.copytree(copying_begun, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    from flows.repro.pipeline import Pipeline

    assert Pipeline(Path.cwd()).reproduce("copy")
    return tmp_path
