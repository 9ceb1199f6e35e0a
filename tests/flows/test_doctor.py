"""The doctor: planted locks, orphans, leftovers, ports, thresholds and keys; a check that fails or hangs; the command."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows import doctor
from flows.diagnosis import findings, locks, machine, processes, secret_files
from flows.diagnosis.findings import BAD, OK, WARN, Check, Finding
from flows.repro import folder_lock
from steps.runner import handover
from tests.conftest import environment, free_port, start

ROOT = Path(doctor.__file__).resolve().parent.parent
PORTS = {"MLflow": 0, "Prefect": 0, "serve": 0, "viewer": 0}


def at(folder: Path, **ports: int) -> findings.Place:
    return findings.place(folder, ports)


def states(listed: list[Finding]) -> list[str]:
    return [each.state for each in listed]


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def sleeper() -> Iterator[int]:
    """The number of a process that runs."""
    process = subprocess.Popen(["sleep", "60"])
    yield process.pid
    process.kill()
    process.wait()


def aged(path: Path, seconds: float = 3600.0) -> Path:
    os.utime(path, (time.time() - seconds,) * 2)
    return path


# --- Checks that go wrong


def test_a_check_that_fails_or_hangs_is_a_finding(tmp_path: Path) -> None:
    def fails(_: findings.Place) -> list[Finding]:
        raise ValueError("the\nfile is odd")

    def hangs(_: findings.Place) -> list[Finding]:
        time.sleep(30)
        return []

    began = time.monotonic()
    seen = findings.examine(
        at(tmp_path), [Check("first", hangs, 0.2), Check("second", fails), Check("third", machine.gpu)]
    )
    assert time.monotonic() - began < 10
    assert [(each.check, each.state) for each in seen[:2]] == [("first", BAD), ("second", BAD)]
    assert "took longer than 0.2 s" in seen[0].text
    assert "this check could not be made (ValueError: the file is odd)" in seen[1].text
    assert len(seen) == 3


def test_findings_show_no_secret(tmp_path: Path) -> None:
    def tells(_: findings.Place) -> list[Finding]:
        return [Finding("servers", OK, "at postgresql://user:hunter22@host/database")]

    (seen,) = findings.examine(at(tmp_path), [Check("servers", tells)])
    assert "hunter22" not in seen.text


# --- Locks


def test_a_command_lock_of_an_ended_process_is_emptied(tmp_path: Path, ended: int) -> None:
    (tmp_path / ".flywheel").mkdir()
    path = tmp_path / folder_lock.LOCK
    path.write_text(json.dumps({"pid": ended, "host": socket.gethostname(), "command": "python -m flows.train"}))
    (seen,) = locks.locks(at(tmp_path))
    assert (seen.state, f"process {ended} has ended" in seen.text) == (WARN, True)
    assert doctor.mend(at(tmp_path), [seen])[0].startswith("mended: ")
    assert path.read_text() == ""
    assert states(locks.locks(at(tmp_path))) == [OK]


def test_a_command_lock_whose_number_is_another_process_now(tmp_path: Path, sleeper: int) -> None:
    (tmp_path / ".flywheel").mkdir()
    path = tmp_path / folder_lock.LOCK
    path.write_text(json.dumps({"pid": sleeper, "host": socket.gethostname(), "command": "python -m flows.train"}))
    aged(path)
    (seen,) = locks.locks(at(tmp_path))
    assert seen.state == WARN
    assert "its number is another process's now" in seen.text


def test_a_lock_of_another_machine_is_left_alone(tmp_path: Path, ended: int) -> None:
    (tmp_path / ".flywheel").mkdir()
    (tmp_path / folder_lock.LOCK).write_text(json.dumps({"pid": ended, "host": "elsewhere", "command": "x"}))
    (seen,) = locks.locks(at(tmp_path))
    assert (seen.state, seen.mend) == (WARN, None)


def test_dvcs_locks_of_ended_processes_are_released(tmp_path: Path, ended: int, sleeper: int) -> None:
    path = tmp_path / ".dvc/tmp/rwlock"
    path.parent.mkdir(parents=True)
    of_running = {"pid": sleeper, "cmd": "dvc repro"}
    content = {"read": {"/a": [{"pid": ended, "cmd": "dvc repro"}, of_running]}, "write": {"/b": of_running}}
    path.write_text(json.dumps(content))
    (seen,) = locks.locks(at(tmp_path))
    assert (seen.state, seen.text) == (
        WARN,
        f".dvc/tmp/rwlock holds locks of processes that have ended: process {ended} has ended",
    )
    (tmp_path / ".flywheel").mkdir()
    doctor.mend(at(tmp_path), [seen])
    assert json.loads(path.read_text()) == {"read": {"/a": [of_running]}, "write": {"/b": of_running}}
    assert states(locks.locks(at(tmp_path))) == [OK]
    aged(path)
    (seen,) = locks.locks(at(tmp_path))
    assert "another process's now" in seen.text
    assert locks.released(path) == ".dvc/tmp/rwlock: 2 locks of processes that have ended are released"


def test_a_list_of_locks_that_was_cut_short_is_removed(tmp_path: Path) -> None:
    path = tmp_path / ".dvc/tmp/rwlock"
    path.parent.mkdir(parents=True)
    for text in ('{"read": {"/a"', "[]", '{"read": {"/a": [{}]}}', '{"read": 3}'):
        path.write_text(text)
        (seen,) = locks.locks(at(tmp_path))
        assert (seen.state, seen.cure) == (BAD, "rm .dvc/tmp/rwlock")
        doctor.mend(at(tmp_path), [seen])
        assert not path.exists()


def test_sockets_of_workers_that_have_ended_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", os.fspath(tmp_path))
    monkeypatch.setattr(handover, "socket_folder", lambda: tmp_path)
    name = f"{handover._root_hash(tmp_path)}-abc"
    (tmp_path / f"{name}.lock").touch()
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.fspath(tmp_path / f"{name}.sock"))
    (seen,) = locks.locks(at(tmp_path))
    assert seen.state == WARN
    doctor.mend(at(tmp_path), [seen])
    assert list(tmp_path.glob(f"{name}*")) == []


# --- Orphans and leftovers

ORPHAN = """
import subprocess, sys
words, null, pipe = [sys.executable, *sys.argv[1:]], subprocess.DEVNULL, subprocess.PIPE
child = subprocess.Popen(words, start_new_session=True, stdin=null, stdout=pipe, stderr=null)
child.stdout.readline()  # until it runs, /proc may not show its command line yet
print(child.pid)
"""
SLEEP = "print(flush=True); import time; time.sleep(60)"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["-c", SLEEP, "flows.deployment.mlflow_server"], "a server"),
        (["-c", SLEEP, "VLLM::EngineCore"], "vLLM's engine"),
        (["-c", SLEEP, "steps.runner.worker", "/nowhere/x.sock"], "a warm worker that nobody"),
    ],
)
def test_an_orphan_is_named_and_not_ended(tmp_path: Path, words: list[str], kind: str) -> None:
    """Stand-ins with the command lines of the project's processes, whose parent has ended."""
    output = subprocess.run(
        [sys.executable, "-c", ORPHAN, *words], cwd=tmp_path, capture_output=True, check=True, text=True
    )
    pid = int(output.stdout)
    try:
        (seen,) = locks.orphans(at(tmp_path))
        assert (seen.state, seen.cure, seen.mend) == (WARN, f"kill {pid}", None)
        assert seen.text.startswith(kind)
        assert doctor.mend(at(tmp_path), [seen]) == []
        assert processes.read(pid) is not None
        assert states(locks.orphans(at(tmp_path / "elsewhere"))) == [OK]
    finally:
        os.kill(pid, signal.SIGKILL)


def test_a_process_with_a_parent_is_no_orphan(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import time; time.sleep(60)", "flows.deployment.mlflow_server"]
    process = subprocess.Popen(words, cwd=tmp_path)
    try:
        assert states(locks.orphans(at(tmp_path))) == [OK]
    finally:
        process.kill()
        process.wait()


def test_temporary_files_of_ended_processes_are_removed(tmp_path: Path, ended: int) -> None:
    run = tmp_path / "run/001"
    run.mkdir(parents=True)
    (run / f".tmp-{ended}.adapter").mkdir()
    left = [
        aged(path)
        for path in (run / f".tmp-{ended}-7.fates.json", run / f".tmp-{ended}.adapter/weights", tmp_path / "runs")
        if path.write_text("half") or True
    ]
    aged(run / f".tmp-{ended}.adapter")
    kept = run / f".tmp-{os.getpid()}.mine"
    kept.write_text("half")
    fresh = run / f".tmp-{ended}.fresh"
    fresh.write_text("half")
    seen = locks.orphans(at(tmp_path))
    assert sorted(each.cure for each in seen) == [
        f"rm 'run/001/.tmp-{ended}-7.fates.json'",
        f"rm -r 'run/001/.tmp-{ended}.adapter'",
    ]
    (tmp_path / ".flywheel").mkdir()
    assert all(line.startswith("mended: ") for line in doctor.mend(at(tmp_path), seen))
    assert (kept.exists(), fresh.exists(), left[2].exists()) == (True, True, True)
    assert sorted(path.name for path in run.iterdir()) == sorted([kept.name, fresh.name])


# --- The machine


def test_ports_are_free_ours_or_a_strangers(tmp_path: Path) -> None:
    port = free_port()
    assert states(machine.ports(at(tmp_path, MLflow=port))) == [OK]
    words = ["-m", "http.server", "--bind", "127.0.0.1", str(port)]
    for folder, more, state, text in (
        (tmp_path, [], BAD, "is taken by a stranger, process"),
        (tmp_path, ["flows.deployment.mlflow_server"], OK, "is this project's: process"),
        (
            tmp_path.parent,
            ["flows.deployment.mlflow_server"],
            WARN,
            f"is taken by the MLflow of {tmp_path.parent}, process",
        ),
    ):
        # Its command line is a stand-in's: a server of Python's, with the name of MLflow's as an argument of its own.
        launched = [
            "-c",
            f"import runpy, sys; sys.argv = {['x', *words[2:]]!r}; runpy.run_module('http.server', run_name='__main__')",
        ]
        process = subprocess.Popen(
            [sys.executable, *launched, *more], cwd=folder, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        try:
            until = time.monotonic() + 20
            while machine.is_free(port) and time.monotonic() < until:
                time.sleep(0.05)
            (seen,) = machine.ports(at(tmp_path, MLflow=port))
            assert (seen.state, text in seen.text, str(process.pid) in seen.text) == (state, True, True)
            assert bool(re.fullmatch(r"make ui MLFLOW_PORT=\d+", seen.cure)) == (state != OK)
        finally:
            process.kill()
            process.wait()


def test_disk_space_is_compared_with_what_a_run_needs(tmp_path: Path) -> None:
    assert OK in states(machine.disk(findings.place(tmp_path, {}, free_gb=0.0)))
    full = machine.disk(findings.place(tmp_path, {}, free_gb=1e9))
    assert states(full) == [BAD, BAD]
    assert full[0].cure == ".venv/bin/python -m flows.prune --delete"


def test_little_memory_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    available, total = machine.available_memory()
    assert 0 < available <= total
    monkeypatch.setattr(machine, "MEMORY_GB", 1e6)
    monkeypatch.setattr(machine, "SHARED_GB", 1e6)
    assert states(machine.memory(at(tmp_path))) == [BAD, WARN]


def test_packages_are_compared_with_the_lock_files(tmp_path: Path) -> None:
    folder = tmp_path / "requirements"
    folder.mkdir()
    lock = folder / "cpu.txt"
    lock.write_text(
        "# made\ndvc==1.0\n    # via x\nno-such-package==2.0 ; python_version >= '3'\nother==2.0 ; python_version < '3'\n"
    )
    seen = {each.state: each.text for each in machine.versions(at(tmp_path)) if each.state == BAD}
    texts = " ".join(each.text for each in machine.versions(at(tmp_path)))
    assert seen
    assert "1 of 2 locked packages are not installed: no-such-package" in texts
    assert "1 packages have other versions than locked: dvc " in texts
    lock.write_text("dvc==\x00broken[\n")
    (broken,) = findings.examine(at(tmp_path), [Check("versions", machine.versions)])
    assert (broken.state, "holds a damaged line" in broken.text) == (BAD, True)


# --- Keys


def test_files_with_keys_are_closed_to_others(tmp_path: Path) -> None:
    own = tmp_path / ".env"
    own.write_text("HF_TOKEN=hf_abcdefghijklmnop\n")
    own.chmod(0o644)
    (tmp_path / ".flywheel").mkdir()
    seen = [each for each in secret_files.keys(at(tmp_path)) if each.state == BAD]
    assert [(each.cure, "mode 644" in each.text) for each in seen] == [("chmod 600 .env", True)]
    assert doctor.mend(at(tmp_path), seen) == ["mended: only its owner can read .env now"]
    assert own.stat().st_mode & 0o777 == 0o600
    assert states(secret_files.keys(at(tmp_path))) == [OK]


def test_malformed_keys_are_named_without_their_values() -> None:
    wrong = {
        "OPENAI_API_KEY": "sk secret words",
        "LANGFUSE_PUBLIC_KEY": "sk-lf-swapped",
        "HF_TOKEN": "abc",
        "WANDB_API_KEY": "short",
        "PREFECT_API_AUTH_STRING": "nocolon",
        "FLYWHEEL_TRACE_RATE": "2",
        "MLFLOW_TRACKING_URI": "local host",
    }
    seen = secret_files.forms(wrong)
    assert {each.text.split()[0] for each in seen if each.state == BAD} == set(wrong)
    assert [each.text for each in seen if each.state == WARN] == [
        "LANGFUSE_PUBLIC_KEY and LANGFUSE_SECRET_KEY belong together, and LANGFUSE_SECRET_KEY is not set"
    ]
    assert not any(value in each.line for value in wrong.values() for each in seen if len(value) > 3)
    fine = {
        "HF_TOKEN": "hf_abcdefghijklmnop",
        "MLFLOW_TRACKING_URI": "sqlite:////tmp/x.db",
        "FLYWHEEL_TRACE_RATE": "0.05",
    }
    assert secret_files.forms(fine) == []


def test_a_misspelt_name_in_env_is_a_finding(tmp_path: Path) -> None:
    (tmp_path / ".env.example").write_text("#FLYWHEEL_TRACE_RATE=0.05\n")
    (tmp_path / ".env").write_text("FLYWHEL_TRACE_RATE=0.1\nMINE=1\n")
    (seen,) = secret_files.unfamiliar(tmp_path)
    assert (seen.state, "FLYWHEL_TRACE_RATE" in seen.text) == (WARN, True)


# --- The command


def doctored(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    ports = [word for service in PORTS for word in (f"--{service.lower()}-port", str(free_port()))]
    process = start(
        [sys.executable, "-m", "flows.doctor", *ports, *words], folder, None, PYTHONPATH=os.fspath(ROOT), **variables
    )
    try:
        out, err = process.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess([], process.returncode, out, err)


def test_the_command_on_a_broken_folder(tmp_path: Path) -> None:
    """Everything that the doctor reads is rubbish, or a folder in place of a file."""
    rubbish = b"\x00\xff{[rubbish"
    for (
        name
    ) in "dvc.yaml dvc.lock .env params.yaml .dvc/config .dvc/tmp/rwlock .flywheel/mlflow.db .flywheel/x.key".split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(rubbish)
    (tmp_path / "requirements/cpu.txt").mkdir(parents=True)
    (tmp_path / ".flywheel/ledger.db").mkdir()
    (tmp_path / ".flywheel/command.lock").mkdir()
    for words in ([], ["--mend"]):
        done = doctored(tmp_path, *words)
        assert done.returncode == 1, done
        assert "Traceback" not in done.stdout + done.stderr
        assert done.stderr == ""
        assert sum(line.startswith("bad ") for line in done.stdout.splitlines()) >= 5
    assert json.loads(doctored(tmp_path, "--json").stdout)["findings"]


def test_the_command_mends_and_looks_again(tmp_path: Path, ended: int) -> None:
    path = tmp_path / ".dvc/tmp/rwlock"
    path.parent.mkdir(parents=True)
    path.write_text("{")
    done = doctored(tmp_path, "--json", "--mend")
    printed = json.loads(done.stdout)
    assert printed["mended"] == ["mended: .dvc/tmp/rwlock is removed"]
    assert [each["state"] for each in printed["findings"] if each["check"] == "locks"] == [OK]


def test_the_command_imports_neither_torch_nor_vllm(tmp_path: Path) -> None:
    words = "import sys; from flows import doctor; doctor.main([]); "
    words += "print({'torch', 'vllm', 'mlflow', 'prefect', 'dvc'} & set(sys.modules))"
    variables = environment(tmp_path, PYTHONPATH=os.fspath(ROOT))
    done = subprocess.run([sys.executable, "-c", words], cwd=tmp_path, env=variables, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "set()"
