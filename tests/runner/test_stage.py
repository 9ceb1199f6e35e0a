"""The stage runner, the hand-over and the warm worker: real processes, on throw-away stages in a folder of their own."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from steps.core import files
from steps.kit.process import alive
from steps.runner import handover, outputs

STEPS = Path(handover.__file__).parent.parent
CORE = (
    "__init__",
    "cores",
    "errors",
    "files",
    "manifests",
    "masking",
    "progress",
    "terminal",
)  # what the runner imports of it
TOY = '''
"""Toy: a stage for tests.

Not shown by --help.
"""
from __future__ import annotations
import os
import time
from typing import TYPE_CHECKING
from steps.core.errors import FreshProcessNeeded, UserError
from steps.core.progress import progress, say
from steps.runner.stage import Input, Output, main
if TYPE_CHECKING:
    from steps.core.params import ToyParams

stages_run = 0

def toy(source: Input, result: Output, params: ToyParams, previous: Input | None = None, do: str = "write",
        files: int = 3, slow: float = 0.0, loud: bool = False) -> None:
    """Write a directory of equal files."""
    say(f"{os.getpid()} {__name__} {os.environ.get('TOY_COLOUR')} {os.getcwd()}")
    os.environ["TOY_COLOUR"] = "left behind"
    if do == "nothing":
        return
    if do == "cores":
        say(f"cores {sorted(os.sched_getaffinity(0))}")
    global stages_run
    stages_run += 1
    result.mkdir()
    if do == "never fits" or (do == "first" and stages_run > 1):
        (result / "half").write_text("")
        raise FreshProcessNeeded("another stage ran here before")
    for number in range(files):
        (result / f"{number}.txt").write_text(f"{source.read_text()} {params.word} {loud}")
        progress(number + 1, files, "files")
        time.sleep(slow / files)
    if do == "fork":
        from multiprocessing import get_context
        child = get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        if slow:
            (source.parent / "child").write_text(str(child.pid))
            time.sleep(60)
        child.terminate()
        child.join(10)
        say(f"child {child.exitcode}")
    if do == "chdir":
        os.chdir("/")
    if do == "user error":
        raise UserError("the word is wrong; choose another")
    if do == "crash":
        raise ValueError("a bug")
    if do == "lost file":
        open("no/such/file")
    if do == "full disk":
        try:
            raise OSError(28, "No space left on device", "big.bin")
        except OSError as problem:
            raise RuntimeError("could not write") from problem

if __name__ == "__main__":
    main(toy)
'''
PARAMS = """
from steps.core.errors import UserError
class ToyParams:
    word = ""
def declared(kind, stage):
    return globals()[kind]
def load(path, kind):
    params = kind()
    params.word = path.read_text().strip()
    if params.word == "bad":
        raise UserError(f"{path}: word: must not be 'bad'")
    return params
"""


class Project:
    """A folder with stages, and the processes that were started in it."""

    def __init__(self, root: Path, runtime: Path) -> None:
        self.root = root
        self.started: list[subprocess.Popen[str]] = []
        self.env = {name: value for name, value in os.environ.items() if not name.startswith("FLYWHEEL_")}
        self.env |= {"XDG_RUNTIME_DIR": str(runtime)}
        (root / "steps/core").mkdir(parents=True)
        shutil.copy(STEPS / "__init__.py", root / "steps")
        shutil.copytree(STEPS / "runner", root / "steps/runner", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copytree(STEPS / "kit", root / "steps/kit", ignore=shutil.ignore_patterns("__pycache__"))
        for name in CORE:
            shutil.copy(STEPS / "core" / f"{name}.py", root / "steps/core")
        (root / "steps/toy.py").write_text(TOY.lstrip())
        (root / "steps/core/params.py").write_text(PARAMS)
        (root / "params.yaml").write_text("hello\n")
        (root / "source").write_text("one")

    def start(self, *words: str, **env: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=self.root,
            env=self.env | env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.started.append(process)
        return process

    def toy(self, *words: str, result: str = "out/result", **env: str) -> subprocess.Popen[str]:
        return self.start("-m", "steps.toy", "--source", "source", "--result", result, *words, **env)

    def run(self, *words: str, **env: str) -> tuple[int, str, str]:
        return ended(self.toy(*words, **env))

    def pids(self) -> list[int]:
        return list(handover.worker_pids(self.root).values())

    def files(self, folder: str = "out") -> dict[str, str]:
        found = sorted(
            path for path in (self.root / folder).rglob("*") if path.is_file() and "timings" not in path.parts
        )
        return {path.relative_to(self.root).as_posix(): path.read_text() for path in found}

    def settled(self, folder: str) -> dict[str, str]:
        """The files, read while the folder stayed the same one: a worker whose client was killed may replace it meanwhile,
        and a listing of both is the reader's fault."""
        place, deadline = self.root / folder, time.monotonic() + 10
        while True:
            with contextlib.suppress(FileNotFoundError):
                before, found = place.stat().st_ino, self.files(folder)
                if place.stat().st_ino == before:
                    return found
            assert time.monotonic() < deadline, f"{place} is not there, or never stays"


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=240)
    return process.returncode, out, err


def eventually(condition: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "has not happened in time"
        time.sleep(0.01)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    runtime = Path(tempfile.mkdtemp(prefix="fly-", dir="/tmp"))  # short: a socket's path has at most 107 bytes
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    made = Project(tmp_path, runtime)
    yield made
    for process in made.started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    handover.stop_workers(tmp_path)
    shutil.rmtree(runtime)


def test_warm_and_cold_give_the_same(project: Project) -> None:
    code, said, _ = project.run("--loud", TOY_COLOUR="red")
    worker, *told = said.split()
    assert (code, [int(worker)]) == (0, project.pids())
    assert told == ["steps.toy", "red", str(project.root)], "the client's environment, and the module by its real name"
    warm = project.files()
    assert warm == {f"out/result/{number}.txt": "one hello True" for number in range(3)}
    shutil.rmtree(project.root / "out")

    code, said, _ = project.run("--loud", TOY_COLOUR="red", FLYWHEEL_WORKER="off")
    assert (code, said.split()[1:], project.files()) == (0, told, warm)
    assert said.split()[0] != worker

    project.run("--do", "chdir")
    code, said, _ = project.run("--previous", "out/result", "--result", "out/second")
    assert said.split() == [worker, "steps.toy", "None", str(project.root)], "nothing stays from the stage before"
    timing = json.loads((project.root / "out/timings/result.json").read_text())
    assert timing.keys() == {"stage", "seconds"}
    assert timing["stage"] == "toy"
    assert 0 < timing["seconds"] < 60, "of this stage alone"


def test_help_starts_nothing(project: Project) -> None:
    code, text, _ = ended(project.start("-m", "steps.toy", "--help"))
    assert code == 0
    assert "Toy: a stage for tests." in text
    assert "Not shown" not in text
    for option in ("--source PATH", "--result PATH", "--params PATH", "--files FILES", "--no-loud"):
        assert option in text
    assert project.pids() == []


FAILURES = [
    (["--source", "elsewhere"], 2, "error: --source: elsewhere does not exist; check the path"),
    (["--previous", "run/000/adapter"], 2, "it is made by the stage update"),
    (["--params", "bad.yaml"], 2, "error: bad.yaml: word: must not be 'bad'"),
    (["--params", "none.yaml"], 2, "error: none.yaml does not exist"),
    (["--result", "."], 2, "error: --result: . would replace"),
    (["--sauce", "source"], 2, "unrecognized arguments: --sauce"),
    (["--files", "many"], 2, "invalid int value: 'many'"),
    (["--do", "user error"], 2, "error: the word is wrong; choose another\n"),
    (["--do", "lost file"], 2, "error: no/such/file does not exist"),
    (["--do", "full disk"], 2, "error: the disk is full (big.bin)"),
    (["--do", "crash"], 1, "ValueError: a bug"),
    (["--do", "nothing"], 1, "returned without writing --result"),
]


@pytest.mark.parametrize("worker", ["on", "off"])
def test_failures_are_one_sentence_and_leave_nothing(project: Project, worker: str) -> None:
    (project.root / "bad.yaml").write_text("bad")
    for words, wanted, sentence in FAILURES:
        code, _, text = project.run(*words, FLYWHEEL_WORKER=worker)
        assert (code, sentence in text) == (wanted, True), f"{words}: {code} {text}"
        assert ("Traceback" in text) == (wanted == 1)
        assert not (project.root / "out").exists(), words
    assert project.run(FLYWHEEL_WORKER=worker)[0] == 0
    before = project.files()
    (project.root / "source").write_text("two")
    assert project.run("--do", "crash", FLYWHEEL_WORKER=worker)[0] == 1
    assert project.files() == before, "the old result stands"
    assert project.run(FLYWHEEL_WORKER=worker)[0] == 0
    assert set(project.files().values()) == {"two hello False"}
    if worker == "on":
        assert "ValueError: a bug" in (project.root / handover.LOG).read_text()


@pytest.mark.parametrize("victim", ["client", "worker", "cold"])
def test_killed_at_any_moment_leaves_old_or_new(project: Project, victim: str) -> None:
    chance = random.Random(victim)
    options = {"FLYWHEEL_WORKER": "off"} if victim == "cold" else {}
    assert project.run(**options)[0] == 0
    for round_ in range(8):
        (project.root / "source").write_text(f"round {round_}")
        process = project.toy("--files", "40", "--slow", "0.05", **options)
        time.sleep(chance.uniform(0.02, 0.2))
        for pid in project.pids() if victim == "worker" else [process.pid]:
            os.kill(pid, signal.SIGKILL)
        process.communicate()
        result = project.settled("out/result")
        assert (len(result), len(set(result.values()))) in ((3, 1), (40, 1)), result
    assert project.run(**options)[0] == 0
    eventually(lambda: sorted(path.name for path in (project.root / "out").iterdir()) == ["result", "timings"])


def _replaced(folder: Path, rounds: int) -> int:
    """Replace an output in another process. Returns how often this process, which looks meanwhile, did not see it."""
    program = """if True:
        import pathlib, sys
        from steps.runner import outputs
        final = pathlib.Path(sys.argv[1])
        for number in range(int(sys.argv[2])):
            with outputs.Outputs({"result": final}, []) as writing:
                writing.temporary["result"].mkdir()
                (writing.temporary["result"] / "number").write_text(str(number))
    """
    environment = os.environ | {"PYTHONPATH": str(STEPS.parent)}
    folder.mkdir(parents=True)
    process = subprocess.Popen([sys.executable, "-c", program, str(folder), str(rounds)], env=environment)
    missing = 0
    while process.poll() is None:
        missing += not folder.exists()
    assert (process.returncode, (folder / "number").read_text()) == (0, str(rounds - 1))
    assert [path.name for path in folder.parent.iterdir()] == [folder.name], "nothing is left beside it"
    return missing


def test_a_result_is_never_missing_while_it_is_replaced(tmp_path: Path) -> None:
    assert _replaced(tmp_path / "a/result", 300) == 0


def test_a_file_system_that_cannot_exchange(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS: the old result is moved aside. It comes back when the process was killed before the new one had its place."""
    monkeypatch.setattr(files, "exchange", lambda *_: False)
    final = tmp_path / "result"
    for text in ("old", "new"):
        with outputs.Outputs({"result": final}, []) as writing:
            writing.temporary["result"].mkdir()
            (writing.temporary["result"] / "text").write_text(text)
    assert ((final / "text").read_text(), list(tmp_path.iterdir())) == ("new", [final])
    ended_process = subprocess.Popen(["true"])
    ended_process.wait()
    final.rename(tmp_path / f".old-{ended_process.pid}.result")
    with pytest.raises(RuntimeError, match="without writing"), outputs.Outputs({"result": final}, []):
        pass
    assert ((final / "text").read_text(), list(tmp_path.iterdir())) == ("new", [final])


def test_a_folder_that_appears_while_leftovers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage's thread makes its output just when the watching thread has seen that there is none."""
    (tmp_path / ".tmp-1.result").mkdir()
    (tmp_path / ".tmp-1.result/0.txt").write_text("half")
    monkeypatch.setattr(Path, "is_dir", lambda _: False)
    outputs._remove_or_restore(tmp_path / ".tmp-1.result", tmp_path / "result")
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_is_told_to_end_ends_whatever_goes_wrong(tmp_path: Path) -> None:
    """Else the stage's thread waits for the outputs' lock for ever, and every later stage for the worker."""
    program = """if True:
        import os, pathlib
        from steps.runner import stage, worker
        class Running:
            def abandon(self): raise PermissionError("no")
        ending = object.__new__(worker.Worker)
        ending.path, ending.lock, ending.run = pathlib.Path("w.sock"), os.open("w.lock", os.O_CREAT), Running()
        ending.end("the client has gone", 130)
    """
    words = [sys.executable, "-c", program]
    environment = os.environ | {"PYTHONPATH": str(STEPS.parent)}
    done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert (done.returncode, "PermissionError: no" in done.stderr) == (130, True)


def test_other_code_or_environment_gets_another_worker(project: Project) -> None:
    project.run()
    (first,) = project.pids()
    (project.root / "steps/toy.py").write_text(TOY.lstrip().replace("{loud}", "changed"))
    project.run()
    assert set(project.files().values()) == {"one hello changed"}
    eventually(lambda: not alive(first))
    (second,) = project.pids()
    project.run(FLYWHEEL_PROGRESS="progress.json", FLYWHEEL_LOG="log", TOY_COLOUR="blue")
    assert project.pids() == [second]
    project.run(VLLM_SOMETHING="1")
    eventually(lambda: not alive(second))
    assert len(project.pids()) == 1


def test_code_that_changes_in_mid_stage_ends_the_worker(project: Project) -> None:
    process = project.toy("--slow", "0.5")
    eventually(lambda: list((project.root / "out").glob(".tmp-*")))
    (project.root / "steps/other.py").write_text("")
    assert ended(process)[0] == 0
    eventually(lambda: project.pids() == [])


def test_idle_worker_ends_and_leaves_no_socket(project: Project) -> None:
    project.run(FLYWHEEL_IDLE_SECONDS="0.2")
    eventually(lambda: project.pids() == [])
    eventually(lambda: list(handover.socket_folder().iterdir()) == [])
    code, _, text = project.run(FLYWHEEL_IDLE_SECONDS="soon")
    assert (code, text) == (2, "error: FLYWHEEL_IDLE_SECONDS=soon is no number of seconds\n")


AHEAD = "from steps.runner import handover; handover.start_ahead('steps.packages')"
PACKAGES = """
import os, time
from pathlib import Path
os.environ["VLLM_SET_HERE"] = "1"
Path("imports").open("a").write(f"{os.getpid()}\\n")
time.sleep(float(os.environ.get("TOY_SECONDS", 0)))
"""


def test_a_worker_that_was_started_ahead_imports_first_and_runs_the_first_stage(project: Project) -> None:
    (project.root / "steps/packages.py").write_text(PACKAGES)
    starts = [project.start("-c", AHEAD, TOY_SECONDS="0.5") for _ in range(2)]
    assert [ended(process) for process in starts] == [(0, "", "")] * 2
    code, said, _ = project.run()
    worker = said.split()[0]
    assert (code, [int(worker)]) == (0, project.pids()), "one worker, which its own variables do not make another"
    assert (project.root / "imports").read_text().split() == [worker]
    assert "waiting" not in said


def test_what_cannot_be_imported_ahead_is_left_to_the_stages(project: Project) -> None:
    (project.root / "steps/packages.py").write_text("import no_such_package")
    assert ended(project.start("-c", AHEAD)) == (0, "", "")
    code, said, text = project.run()
    assert (code, text, [int(said.split()[0])]) == (0, "", project.pids())
    assert "No module named 'no_such_package'" in (project.root / handover.LOG).read_text()


def test_a_command_ends_the_worker_that_it_started_and_did_not_need(project: Project) -> None:
    """Also one that still imports, which no socket leads to."""
    (project.root / "steps/packages.py").write_text(PACKAGES)
    imported = "while not Path('imports').exists(): time.sleep(0.01)"
    program = f"import time; from pathlib import Path; {AHEAD}\n{imported}\nhandover.end_own_workers()"
    assert ended(project.start("-c", program, TOY_SECONDS="60")) == (0, "", "")
    (worker,) = (project.root / "imports").read_text().split()
    assert not alive(int(worker))
    assert handover.worker_pids(project.root) == {}
    assert list(handover.socket_folder().iterdir()) == []


def test_stop_ends_workers_even_in_mid_stage(project: Project) -> None:
    process = project.toy("--slow", "30")
    eventually(lambda: list((project.root / "out").glob(".tmp-*")))
    code, text, _ = ended(project.start("-m", "steps.runner.handover", "--stop"))
    assert (code, text) == (0, "workers ended: 1\n")
    code, _, text = ended(process)
    assert code == 1
    assert "error: the worker died while it ran steps.toy" in text
    assert list(handover.socket_folder().iterdir()) == []
    assert not (project.root / "out").exists()


def test_a_command_ends_its_own_workers_alone(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two commands in one folder: `--dry-run` beside a training used to end the training's worker."""
    monkeypatch.chdir(project.root)
    program = "from flows.terminal import command; command.run_command(lambda: 0, writes=False)"
    project.run()
    (worker,) = project.pids()
    assert ended(project.start("-P", "-c", program, PYTHONPATH=str(STEPS.parent)))[0] == 0
    assert project.pids() == [worker], "it has run no stage"

    process = project.toy("--slow", "0.6", result="out/other")
    eventually(lambda: list((project.root / "out").glob(".tmp-*")))
    monkeypatch.setattr(handover.own, "used", {worker})
    handover.end_own_workers(patience=0.05)
    assert ended(process)[0] == 0, "another command's stage goes on"
    eventually(lambda: not alive(worker))

    project.run()
    (worker,) = project.pids()
    monkeypatch.setattr(handover.own, "used", {worker})
    handover.end_own_workers()
    assert (alive(worker), list(handover.socket_folder().iterdir())) == (False, [])


def test_a_stage_of_ours_that_was_left_ends_with_its_worker(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.root)
    process = project.toy("--slow", "30")
    eventually(lambda: list((project.root / "out").glob(".tmp-*")))
    (worker,) = project.pids()
    for name in ("used", "busy"):
        monkeypatch.setattr(handover.own, name, {worker})
    handover.end_own_workers()
    code, _, text = ended(process)
    assert (code, "SIGTERM ended it" in text) == (1, True), text
    assert not (project.root / "out").exists()


def test_simultaneous_clients_share_one_worker_in_turn(project: Project) -> None:
    clients = [project.toy("--slow", "0.2", result=f"out/{number}") for number in range(4)]
    answers = [ended(client) for client in clients]
    assert [code for code, _, _ in answers] == [0] * 4, answers
    assert len({said.splitlines()[-1].split()[0] for _, said, _ in answers}) == 1  # the worker, after "waiting: …"
    log = (project.root / handover.LOG).read_text().splitlines()
    stages = ["took" in line for line in log if "steps.toy" in line]
    assert stages == [False, True] * 4, "one stage at a time"


def test_worker_killed_in_mid_stage(project: Project) -> None:
    process = project.toy("--slow", "30")
    eventually(lambda: list((project.root / "out").glob(".tmp-*")))
    os.kill(project.pids()[0], signal.SIGKILL)
    code, _, text = ended(process)
    assert code == 1
    assert "error: the worker died while it ran steps.toy: something ended it with SIGKILL" in text
    assert "worker.log:\n    " in text, "followed by that end"
    assert '"slow": 30.0' in text, "the end of the log"
    assert project.run()[0] == 0, "the dead worker's socket is replaced"
    assert sorted(path.name for path in (project.root / "out").iterdir()) == ["result", "timings"]


def test_a_worker_that_a_signal_stops_is_named_and_goes_on(project: Project) -> None:
    process = project.toy("--slow", "1")
    eventually(lambda: list((project.root / "out").glob(".tmp-*")))
    (worker,) = project.pids()
    os.kill(worker, signal.SIGSTOP)
    assert process.stdout is not None
    said = next((line for line in process.stdout if "waiting" in line), "")
    assert f"a signal has stopped process {worker}; `kill -CONT {worker}` lets it go on" in said
    os.kill(worker, signal.SIGCONT)
    assert ended(process)[0] == 0
    assert project.files() == {f"out/result/{number}.txt": "one hello False" for number in range(3)}


def test_a_stage_that_needs_a_fresh_process_is_run_by_another_worker(project: Project) -> None:
    assert project.run()[0] == 0
    (first,) = project.pids()
    code, said, text = project.run("--do", "first")
    assert (code, text) == (0, "")
    refused, ran = (int(line.split()[0]) for line in said.splitlines())
    assert refused == first
    assert project.pids() == [ran] != [first]
    assert project.files() == {f"out/result/{number}.txt": "one hello False" for number in range(3)}
    assert sorted(path.name for path in (project.root / "out").iterdir()) == ["result", "timings"]
    eventually(lambda: not alive(first))
    assert "the stage needs a process of its own" in (project.root / handover.LOG).read_text()
    assert project.run()[1].split()[0] == str(ran), "the new worker stays"


def test_a_stage_that_no_process_fits_ends_with_an_error(project: Project) -> None:
    code, said, text = project.run("--do", "never fits")
    assert code == 1
    assert text.startswith("error: the worker ended five times before it took steps.toy; the end of ")
    assert 1 < len({line.split()[0] for line in said.splitlines()}) <= 5, "each attempt in a process of its own"
    assert not (project.root / "out").exists()
    eventually(lambda: project.pids() == [])
    code, said, text = project.run("--do", "never fits", FLYWHEEL_WORKER="off")
    assert (code, len(said.splitlines())) == (1, 1)
    assert "FreshProcessNeeded: another stage ran here before" in text
    assert not (project.root / "out").exists()
    assert project.run()[0] == 0


def test_a_forked_child_does_not_stand_in_for_the_worker(project: Project) -> None:
    code, said, _ = project.run("--do", "fork")
    assert code == 0, _
    assert said.splitlines()[1] == f"child -{signal.SIGTERM}", "its signals are its own"
    (worker,) = project.pids()
    process = project.toy("--do", "fork", "--slow", "0.01")
    child = project.root / "child"
    eventually(lambda: child.exists() and child.read_text())  # it exists before it holds the process id
    os.kill(worker, signal.SIGKILL)
    assert ended(process)[0] == 1
    assert project.run()[0] == 0
    os.kill(int(child.read_text()), signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("worker", ["on", "off"])
def test_interrupt_ends_client_and_worker(project: Project, number: int, worker: str) -> None:
    process = project.toy("--slow", "30", "--files", "1", FLYWHEEL_WORKER=worker)
    eventually(lambda: list((project.root / "out").glob(".tmp-*/*.txt")))
    process.send_signal(number)
    code, _, text = ended(process)
    assert (code, text) == (130, "")
    assert not (project.root / "out").exists()
    assert project.pids() == []
    assert project.run(FLYWHEEL_WORKER=worker)[0] == 0


def ask(project: Project, request: bytes) -> dict:
    """What the worker answers last to a raw request."""
    (path,) = handover.worker_pids(project.root)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(str(path))
        connection.sendall(request + b"\n")
        return list(handover._lines(connection, print))[-1]


def test_foreign_modules_are_refused(project: Project) -> None:
    project.run()
    (worker,) = project.pids()
    request = {"arguments": {"command": "touch touched"}, "environment": {}, "umask": 0o22, "idle_seconds": 60}
    for module, function in (("os", "system"), ("stepsother.x", "f"), ("steps.toy", "os"), ("steps.toy", "UserError")):
        answer = ask(project, json.dumps(request | {"module": module, "function": function}).encode())
        assert answer["code"] == 2, answer
    assert "error" in ask(project, b"not json")
    assert not (project.root / "touched").exists()
    assert project.run()[0] == 0
    assert project.pids() == [worker]


def test_progress_and_log_go_where_the_flow_looks(project: Project) -> None:
    code, out, err = project.run("--files", "500", FLYWHEEL_PROGRESS="progress.json", FLYWHEEL_LOG="log.txt")
    assert (code, out, err) == (0, "", "")
    latest = json.loads((project.root / "progress.json").read_text())
    assert latest == {"stage": "toy", "done": 500, "total": 500, "note": "files"}
    assert "steps.toy" in (project.root / "log.txt").read_text()


@pytest.mark.skipif("coverage" in sys.modules, reason="coverage is imported, and takes time, too")
def test_the_hand_over_imports_the_standard_library_alone(project: Project) -> None:
    project.run()
    code, _, text = ended(
        project.start("-X", "importtime", "-m", "steps.toy", "--source", "source", "--result", "out/x")
    )
    names = {line.rpartition("|")[2].strip().partition(".")[0] for line in text.splitlines() if "|" in line}
    ours = {"steps", "imported package", "_distutils_hack", "sitecustomize", "usercustomize"}
    assert code == 0
    assert names - ours <= sys.stdlib_module_names
    assert not names & {"inspect", "dataclasses", "tempfile", "subprocess", "threading", "asyncio"}


def test_a_folder_that_others_can_open_is_refused(project: Project) -> None:
    handover.socket_folder().chmod(0o755)
    code, _, text = project.run()
    assert code == 2
    assert "nobody else can open" in text
    (Path(project.env["XDG_RUNTIME_DIR"]) / "agent-flywheel").chmod(0o700)


def test_a_worker_that_cannot_start(project: Project) -> None:
    (project.root / "steps/runner/worker.py").write_text("raise RuntimeError('not today')")
    code, _, text = project.run()
    assert code == 1
    assert "error: the worker could not start: its exit code is 1; the end of " in text
    assert "not today" in text


def test_two_workers_run_stages_at_the_same_time_and_one_lane_ends_alone(project: Project) -> None:
    """A worker beside the usual one has its own socket: neither retires the other, nor waits for it."""
    first = project.toy("--slow", "30", result="out/first")
    eventually(lambda: len(project.pids()) == 1)
    beside = {handover.LANE: "sampling"}
    second = project.toy("--slow", "30", result="out/second", **beside)
    eventually(lambda: len(list((project.root / "out").glob(".tmp-*"))) == 2)
    lanes = {handover.lane_of(path): pid for path, pid in handover.worker_pids(project.root).items()}
    assert lanes.keys() == {"", "sampling"}
    handover.end_lane(project.root, "sampling")
    assert ended(second)[0] == 1
    assert not [path for path in (project.root / "out").glob(".tmp-*") if "second" in path.name]
    assert list(handover.worker_pids(project.root).values()) == [lanes[""]]
    assert first.poll() is None
    assert handover.stop_workers(project.root) == 1
    ended(first)


def test_a_worker_beside_uses_the_cores_that_it_was_given(project: Project) -> None:
    core = min(os.sched_getaffinity(0))
    code, said, _ = project.run("--do", "cores", **{handover.LANE: "sampling", handover.CORES: str(core)})
    assert (code, said.splitlines()[-1]) == (0, f"cores [{core}]")
