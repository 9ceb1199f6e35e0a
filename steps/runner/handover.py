"""Hands a stage's command line over to this project's warm worker, and starts the worker if there is none.

    python -m steps.runner.handover --stop        # end this project's workers

The worker's socket is named after the project's folder and a hash of code, packages and environment (`fingerprint`), so
changed code never reaches an old worker. A worker beside the usual one, for stages that run at the same time as others, has
variables of its own, of which `LANE` is in the socket's name. One JSON request goes in and JSON lines come back:
{"started"}, {"progress"} and {"say"}, then {"done"} or {"error", "code"}. Only the standard library is imported, because
each iteration runs four stages.

Not here: running a stage (steps/runner/stage.py), serving (steps/runner/worker.py). The hash does not cover modules outside
steps/, environments/ and addons/, nor edits inside an installed package that keep its version: after one, `--stop`.
"""

from __future__ import annotations

import _thread
import contextlib
import hashlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from steps.core.errors import UserError
from steps.core.files import own_signatures, signatures
from steps.kit import sockets
from steps.kit.lock import opened, take
from steps.kit.process import end_all, start
from steps.runner import death

if TYPE_CHECKING:
    import socket
    import subprocess  # at run time only when a worker is started

START_SECONDS = 120
QUIET_SECONDS = 5  # without a line, after which the client looks whether the worker is stopped
STALE = 75  # exit code of a worker whose code or environment changed while it started
LOG = Path(".flywheel/worker.log")
_KEYED = "VLLM_ OMP_ MKL_ KMP_ CUDA_ NCCL_ TORCH PYTORCH_ HF_ TRANSFORMERS_ TOKENIZERS_ RAY_ MLFLOW_ LANGFUSE_ WANDB_"
KEYED = (*_KEYED.split(), "OPENAI_", "PYTHONPATH", "PYTHONHASHSEED", "LD_", "FLYWHEEL_")
CLIENTS_OWN = ("FLYWHEEL_PROGRESS", "FLYWHEEL_LOG", "FLYWHEEL_WORKER", "FLYWHEEL_IDLE_SECONDS")
NONE: Mapping[str, str] = {}
LANE = "FLYWHEEL_LANE"  # the name of a worker beside the usual one, whose stages run at the same time as that one's
CORES = "FLYWHEEL_CORES"  # the processor cores that such a worker uses, by their numbers; all where it is not set
REQUEST = ("module", "function", "arguments", "idle_seconds", "environment", "umask")
ENDING = ((signal.SIGTERM, 8.0), (signal.SIGKILL, 2.0))  # signals, and the seconds that a worker gets for each
RETIRE = {"retire": True}  # the request to end after what was asked before


class OwnWorkers:
    """The workers that this process has started, and those that have run stages for it."""

    def __init__(self) -> None:
        self.started: dict[int, subprocess.Popen] = {}  # by process id; the exit codes are known of these alone
        self.used: set[int] = set()  # process ids
        self.busy: set[int] = set()  # of those, with a stage of ours that has not ended


own = OwnWorkers()
_contents: dict[tuple[object, ...], str] = {}  # hashes of modules, as they are read
_umask = _thread.allocate_lock()  # it can only be read by setting it, and two threads may hand over at the same time


class WorkerError(UserError):
    """The worker or the stage failed, not the user; the text may be a traceback."""

    code = 1


def environment(more: Mapping[str, str] = NONE) -> dict[str, str]:
    """The variables that a stage sees; `more`: those of a worker beside the usual one."""
    return {name: value for name, value in os.environ.items() if name not in CLIENTS_OWN} | dict(more)


def fingerprint(more: Mapping[str, str] = NONE) -> str:
    """Hash of all that a stage's result may depend on and that a running process cannot load again. What has not changed
    since the last call is not read again."""
    digest = hashlib.blake2b(digest_size=12)

    def add(*parts: object) -> None:
        digest.update("\0".join(map(str, parts)).encode("utf-8", "surrogateescape") + b"\1")

    code = Path(__file__).absolute().parent.parent.parent
    add(Path.cwd(), code, sys.executable, sys.prefix, sys.version)
    folders = (code / "steps", code / "environments", code / "addons")
    for file in sorted([*signatures(*folders, suffix=".py"), *own_signatures(code)]):
        if file not in _contents:
            _contents[file] = hashlib.blake2b(Path(file[0]).read_bytes()).hexdigest()
        add(file[0], _contents[file])
    for place in sys.path:
        if place.endswith(("site-packages", "dist-packages")):
            add(place, *sorted(name for name in os.listdir(place) if name.endswith(".dist-info")))  # noqa: PTH208 (fast)
    add(*(f"{name}={value}" for name, value in sorted(environment(more).items()) if name.startswith(KEYED)))
    return digest.hexdigest()


def socket_folder() -> Path:
    """A folder that only this user can open. UserError where others could have prepared or could open it."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.access(runtime, os.W_OK | os.X_OK) and len(os.fsencode(runtime)) < 40:
        folder = Path(runtime) / "agent-flywheel"
    else:
        temporary = os.environ.get("TMPDIR", "/tmp")  # `tempfile` costs 5 ms
        short = len(os.fsencode(temporary)) < 30  # a socket's path has at most 107 bytes
        folder, name = Path(temporary if short else "/tmp"), f"agent-flywheel-{os.getuid()}"
        folder = folder if folder.name == name else folder / name  # the worker of `make ui` may have it as its TMPDIR
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    state = folder.lstat()
    if state.st_uid != os.getuid() or state.st_mode & 0o170077 != 0o040000:
        cure = "remove it, or chmod 700 it, and try again"
        raise UserError(f"{folder} must be a folder of yours that nobody else can open; {cure}")
    return folder


def socket_path(more: Mapping[str, str] = NONE) -> Path:
    """Where the worker for this code and this environment listens."""
    lane = environment(more).get(LANE)
    name = [_root_hash(Path.cwd()), fingerprint(more), *([lane] if lane else [])]
    return socket_folder() / f"{'-'.join(name)}.sock"


def lane_of(path: Path) -> str:
    """The lane of the worker that listens at `path`; empty for the usual one."""
    return path.stem.partition("-")[2].partition("-")[2]


def _root_hash(root: Path) -> str:
    return hashlib.blake2b(os.fsencode(root.resolve()), digest_size=6).hexdigest()


def take_lock(path: Path) -> int | None:
    """Descriptor of the lock that belongs to a socket, or None while another process has it. A worker keeps its lock."""
    lock = opened(path.with_suffix(".lock"))
    with contextlib.suppress(FileNotFoundError):
        if take(lock) and path.with_suffix(".lock").stat().st_ino == os.fstat(lock).st_ino:
            return lock
    os.close(lock)  # another process has it, or has just removed the file
    return None


def tidy(path: Path, lock: int | None) -> None:
    """Remove a socket and its lock file, for the holder of the lock."""
    if lock is not None:
        path.unlink(missing_ok=True)
        path.with_suffix(".lock").unlink(missing_ok=True)
        os.close(lock)


def _connect(more: Mapping[str, str]) -> socket.socket:
    """A connection to the right worker, which is started if there is none. Two clients at the same time start only one."""
    path, process, deadline = socket_path(more), None, time.monotonic() + START_SECONDS
    kills = death.oom_kills()
    try:
        while time.monotonic() < deadline:
            if connection := sockets.dial(path):
                return connection
            if (lock := take_lock(path)) is not None:
                process = process or _start(path, lock, more)
                os.close(lock)  # a worker that was started holds it through a copy of its own
            if process is not None and process.poll() == STALE:
                return _connect(more)
            if process is not None and process.poll() is not None:
                why = death.cause(process.returncode, kills, "")
                raise WorkerError(f"the worker could not start: {why}; {log_tail()}")
            time.sleep(0.005)
    except BaseException:
        if process is not None:
            process.terminate()  # nobody would use it
        raise
    raise WorkerError(f"no worker was ready within {START_SECONDS} s; {log_tail()}")


def start_ahead(module: str) -> None:
    """Start the usual worker before there is a stage to run, unless it is there: it imports `module` while this process does
    something else, and the first stage waits for that instead of importing the same."""
    path = socket_path()
    if connection := sockets.dial(path):
        connection.close()
    elif (lock := take_lock(path)) is not None:
        _start(path, lock, NONE, module)
        os.close(lock)


def _start(path: Path, lock: int, more: Mapping[str, str], *modules: str) -> subprocess.Popen:
    """Start a worker that goes on when this process and its terminal end. It imports `modules` before it listens."""
    LOG.parent.mkdir(exist_ok=True)
    if LOG.exists() and LOG.stat().st_size > 1_000_000:
        LOG.replace(LOG.with_suffix(".log.1"))
    command = [sys.executable, "-m", "steps.runner.worker", str(path), str(lock), *modules]
    process = start(command, log=LOG, pass_fds=[lock], env=environment(more), start_new_session=True)
    own.started[process.pid] = process
    return process


def log_tail() -> str:
    """The end of the worker's log, for an error message."""
    text = LOG.read_bytes()[-20_000:].decode(errors="replace").splitlines()[-15:] if LOG.exists() else []
    return f"the end of {LOG.absolute()}:\n" + "\n".join(f"    {line}" for line in text)


def hand_over(
    module: str, function: str, arguments: dict, show: Callable[[dict], None], more: Mapping[str, str] = NONE
) -> float:
    """Have the worker run a stage, and return the seconds it took. Raises UserError or WorkerError. `more`: variables of the
    worker beside the usual one that is to run it.

    A worker that ends before it has taken the request (idle, or the code changed) is replaced without a message."""
    limit = os.environ.get("FLYWHEEL_IDLE_SECONDS", "120")
    try:
        idle = float(limit)
    except ValueError:
        raise UserError(f"FLYWHEEL_IDLE_SECONDS={limit} is no number of seconds") from None
    with _umask:
        os.umask(mask := os.umask(0o077))
    request = dict(zip(REQUEST, (module, function, arguments, idle, environment(more), mask), strict=True))
    for _ in range(5):
        with _connect(more) as connection:
            worker, kills = sockets.peer(connection)[0], death.oom_kills()
            answer = _converse(connection, json.dumps(request).encode() + b"\n", show)
            own.busy.discard(worker)
        if answer is None:
            continue
        if "done" in answer:
            return answer["done"]
        if "error" in answer:
            raise (UserError if answer["code"] == 2 else WorkerError)(answer["error"])
        why = death.cause(_exit_code(worker), kills, module.rpartition(".")[2])
        raise WorkerError(f"the worker died while it ran {module}: {why}; {log_tail()}")
    raise WorkerError(f"the worker ended five times before it took {module}; {log_tail()}")


def _converse(connection: socket.socket, request: bytes, show: Callable[[dict], None]) -> dict | None:
    """The worker's last message: {"done"} or {"error"}; {} if it died during the stage, None if it took no request."""
    answer = None
    try:
        connection.sendall(request)
        if not select.select([connection], [], [], 2)[0]:
            show({"say": "waiting: the worker is busy with another stage"})
        for answer in _lines(connection, show):
            if "done" in answer or "error" in answer:
                return answer
            if "stale" in answer:
                return None
            if "started" in answer:
                own.used.add(answer["started"])
                own.busy.add(answer["started"])
            else:
                show(answer)
    except ConnectionError:
        pass
    except Exception:
        raise
    except BaseException:  # Ctrl-C, or what Prefect makes of a SIGTERM
        if answer is not None:  # the worker ends itself; wait up to 3 s for it to clean up
            connection.shutdown(sockets.SHUT_WR)
            connection.settimeout(3)
            with contextlib.suppress(OSError):
                while connection.recv(65536):
                    pass
        raise
    return None if answer is None else {}


def _exit_code(worker: int) -> int | None:
    """The exit code of a worker that is about to end; None where another process started it, or it takes over 2 s."""
    process, deadline = own.started.get(worker), time.monotonic() + 2
    while process is not None and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    return process.returncode if process is not None else None


def _lines(connection: socket.socket, show: Callable[[dict], None]) -> Iterator[dict]:
    unfinished, held = b"", None
    while True:
        while not select.select([connection], [], [], QUIET_SECONDS)[0]:
            if (stopped := death.stopped(sockets.peer(connection)[0])) not in (None, held):
                show({"say": f"waiting: a signal has stopped process {stopped}; `kill -CONT {stopped}` lets it go on"})
            held = stopped
        if not (data := connection.recv(65536)):
            return
        *lines, unfinished = (unfinished + data).split(b"\n")
        yield from map(json.loads, lines)


def worker_pids(root: Path) -> dict[Path, int]:
    """Socket -> process id of every worker of this project folder that answers. Removes the sockets of dead workers."""
    pids = {}
    for lock in sorted(socket_folder().glob(f"{_root_hash(root)}-*.lock")):
        path = lock.with_suffix(".sock")
        if connection := sockets.dial(path):
            with connection:
                pids[path] = sockets.peer(connection)[0]
        else:
            tidy(path, take_lock(path))
    return pids


def stop_workers(root: Path) -> int:
    """End every worker of this project folder at once, even during a stage, and return how many there were."""
    pids = list(worker_pids(root).values())
    end_all(pids, ENDING)
    worker_pids(root)  # removes the sockets of those that were killed
    return len(pids)


def end_lane(root: Path, lane: str) -> None:
    """End this project folder's workers of a lane at once, even during a stage."""
    end_all([pid for path, pid in worker_pids(root).items() if lane_of(path) == lane], ENDING)
    worker_pids(root)


def end_own_workers(patience: float = 2.0) -> None:
    """End the workers that this process started or that ran stages for it, so that their memory is free when it ends.

    One that runs another command's stage (`patience` seconds pass without its answer) ends when it has finished that."""
    if not (ours := own.used | set(own.started)):
        return
    listening = {pid: path for path, pid in worker_pids(Path.cwd()).items() if pid in ours}
    importing = [pid for pid, process in own.started.items() if pid not in listening and process.poll() is None]
    ready = [pid for pid, path in listening.items() if pid in own.busy or _retired(path, pid, patience)]
    end_all([*importing, *ready], ENDING)
    worker_pids(Path.cwd())  # removes the sockets of those that were killed


def _retired(path: Path, pid: int, patience: float) -> bool:
    """Ask a worker to end; whether it has taken that up within so many seconds."""
    if (connection := sockets.dial(path)) is None:
        return True
    with connection, contextlib.suppress(ConnectionError):
        if sockets.peer(connection)[0] != pid:
            return True
        connection.sendall(json.dumps(RETIRE).encode() + b"\n")
        return bool(select.select([connection], [], [], patience)[0])
    return True


if __name__ == "__main__":
    if sys.argv[1:] != ["--stop"]:
        sys.exit("usage: python -m steps.runner.handover --stop    (ends this project's workers)")
    print(f"workers ended: {stop_workers(Path.cwd())}")
