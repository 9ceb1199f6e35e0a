"""The warm worker: a process in which stages run one after another, so that large packages are imported only once.

The first stage's command starts it (steps/runner/handover.py), or `make train` before that, so that it imports the packages
meanwhile; `python -m steps.runner.worker` starts one by hand, to show its output. It ends after FLYWHEEL_IDLE_SECONDS (120)
without work, on SIGTERM, or when the code or the environment differs from what it started with. If the client of the running
stage goes away, the process ends at once, because the stage may be in a C++ loop that nothing else interrupts. It runs only
functions of steps.*, environments.* and addons.*, and only for the user who started it; `make train` also names a module
that it imports first.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import io
import json
import os
import select
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from steps.core import errors, progress
from steps.core.cores import allowed_cores
from steps.kit import sockets
from steps.runner import handover, stage

if TYPE_CHECKING:
    import socket

ENDING = (signal.SIGTERM, signal.SIGINT)


class Worker:
    """Serves one socket from its main thread. While a stage runs, a second thread watches for signals and for the client's
    end."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self.lock, self.idle = path, lock, 120.0
        self.connection: socket.socket | None = None
        self.run: stage.StageRun | None = None  # while a stage runs
        path.unlink(missing_ok=True)  # a dead worker left it: this process holds the lock
        self.listener = sockets.listen_at(path)
        # A forked child must get no signal while it still shares the pipe: it would write to it, and this process would end.
        os.register_at_fork(
            before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ENDING),
            after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING),
            after_in_child=self._let_go,
        )
        self.signals, self.signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def _let_go(self) -> None:
        """In a child that a stage forks: give up the worker's signals, socket and lock, so that they end with the worker."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING)
        progress.report_to(None)
        self.listener.close()
        os.close(self.lock)
        if self.connection is not None:
            self.connection.close()

    def _catch_signals(self) -> None:
        """Have SIGTERM and SIGINT write to a pipe, which works even while the main thread is in C++. This is done before
        each request, because a stage may have changed it."""
        for number in ENDING:
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self.signalled, warn_on_full_buffer=False)

    def _has_end_signal(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            return any(number in ENDING for number in os.read(self.signals, 100))
        return False

    def _watch(self, connection: socket.socket, finished: threading.Event) -> None:
        """Runs in a thread of its own while a stage runs: ends the process on a signal, or when the client has gone."""
        watched = select.poll()
        watched.register(connection, select.POLLIN | select.POLLRDHUP)
        watched.register(self.signals, select.POLLIN)
        while not finished.is_set():
            ready = [descriptor for descriptor, _ in watched.poll()]
            if finished.is_set():
                return  # a signal stays in the pipe for the main thread
            if connection.fileno() in ready:
                self.end("the client has gone", 130)
            if self._has_end_signal():
                self.end("a signal", 143)

    def end(self, why: str, code: int) -> None:
        """End the process at once, from any thread: remove the running stage's unfinished outputs, then the socket.

        It ends even if that fails: else the stage's thread would wait for the outputs' lock, and clients for the stage."""
        try:
            if self.run is not None:
                self.run.abandon()
            _log(f"ends: {why}")
            handover.tidy(self.path, self.lock)
        except Exception:
            with contextlib.suppress(OSError):
                traceback.print_exc()
        finally:
            os._exit(code)

    def serve(self) -> None:
        """Serve until idle, ended by a signal, replaced or outdated. Libraries then have 5 s for what they do at exit."""
        why, since = "", time.monotonic()
        while not why:
            self._catch_signals()
            waiting: list[socket.socket | int] = [self.listener, self.signals]
            ready = select.select(waiting, [], [], max(0, since + self.idle - time.monotonic()))[0]
            if not ready:
                why = f"idle for {self.idle:g} s"
            elif self.signals in ready and self._has_end_signal():
                why = "a signal"
            elif self.listener in ready:
                self.connection = self.listener.accept()[0]
                with self.connection, contextlib.suppress(ConnectionError, TimeoutError):
                    if (request := self._request(self.connection)) is not None:
                        why = self._answer(self.connection, request)
                        since = time.monotonic()
        handover.tidy(self.path, self.lock)
        _log(f"ends: {why}")
        gc.freeze()  # at vLLM's end and Python's, garbage is collected five times, which takes 5 s
        gc.unfreeze = gc.collect = lambda *_: 0  # pyrefly: ignore[bad-assignment]
        signal.alarm(5)

    def _request(self, connection: socket.socket) -> dict | None:
        """The client's request; None if the client went away while it waited, or only asked for the worker's process id."""
        if sockets.peer(connection)[1] != os.getuid():
            return None
        connection.settimeout(10)
        line = b""
        while not line.endswith(b"\n"):
            if not (data := connection.recv(65536)):
                return None
            line += data
        connection.settimeout(None)
        with contextlib.suppress(ValueError):
            request = json.loads(line)
            if request == handover.RETIRE or (isinstance(request, dict) and request.keys() == set(handover.REQUEST)):
                gone = select.select([connection], [], [], 0)[0]
                return request if request == handover.RETIRE or not gone else None
        connection.sendall(b'{"error": "this is no request", "code": 2}\n')
        return None

    def _answer(self, connection: socket.socket, request: dict) -> str:
        """Serve one request, and return the reason why the worker should end now; empty where it should go on."""
        if request == handover.RETIRE:
            return "it was asked to"
        sending = threading.Lock()

        def send(message: dict) -> None:
            with sending, contextlib.suppress(ConnectionError):
                connection.sendall(json.dumps(message).encode() + b"\n")

        if handover.socket_path() != self.path:
            send({"stale": True})
            return "code or environment changed"
        send({"started": os.getpid()})
        self.idle = request["idle_seconds"]
        finished = threading.Event()
        watch = threading.Thread(target=self._watch, args=(connection, finished), daemon=True)
        watch.start()
        answer = self._run(request, send)
        finished.set()
        send(answer)
        with contextlib.suppress(OSError):  # gone already
            connection.shutdown(sockets.SHUT_RDWR)
        watch.join()
        if "stale" in answer:
            return "the stage needs a process of its own"
        return "" if handover.socket_path() == self.path else "code or environment changed"

    def _run(self, request: dict, send: Callable[[dict], None]) -> dict:
        """Run a stage with the client's environment variables and umask, and return the answer. Both are put back."""
        before, folder, mask = dict(os.environ), Path.cwd(), os.umask(request["umask"])
        _log(f"{request['module']} {json.dumps(request['arguments'])}")
        progress.report_to(send)
        try:
            _set_environment(request["environment"])
            self.run = stage.StageRun(stage.find(request["module"], request["function"]), request["arguments"])
            seconds = self.run.execute()
            _log(f"{request['module']} took {seconds:.3f} s")
            return {"done": seconds}
        except errors.FreshProcessNeeded:
            return {"stale": True}
        except BaseException as error:
            with contextlib.suppress(OSError):
                print(errors.masked("".join(traceback.format_exception(error))), end="", file=sys.stderr)
            text, code = errors.explain(error)
            return {"error": text, "code": code}
        finally:
            self.run = None
            progress.report_to(None)
            _set_environment(before)
            os.chdir(folder)
            os.umask(mask)


def _set_environment(variables: dict[str, str]) -> None:
    for name in set(os.environ) - set(variables):
        del os.environ[name]
    for name, value in variables.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _log(text: str) -> None:
    with contextlib.suppress(OSError):  # a full disk must not keep the client from its answer
        print(f"{time.strftime('%H:%M:%S')} worker {os.getpid()}: {text}", flush=True)


def import_ahead(module: str) -> None:
    """Import a module before the first stage. What it fails with is the stage's to report, which imports the same."""
    before, began = dict(os.environ), time.monotonic()
    try:
        importlib.import_module(module)
        _log(f"{module} took {time.monotonic() - began:.3f} s")
    except Exception:
        traceback.print_exc()
    finally:
        _set_environment(before)  # a worker is known by its variables


def main(words: list[str]) -> int:
    """Run the worker, and return the exit code. `words` are the socket that the client waits for, the lock that it passes
    on, and modules to import before the first stage; there are none when the worker is started by hand."""
    faulthandler.enable()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # complete lines: the end of the log is shown when the worker dies
    path = handover.socket_path()
    if words and words[0] != str(path):
        os.close(int(words[1]))
        return handover.STALE
    lock = int(words[1]) if words else handover.take_lock(path)
    if lock is None:
        print("this project already has a worker for this code and environment", file=sys.stderr)
        return 1
    os.set_inheritable(lock, False)
    for name in handover.CLIENTS_OWN:
        os.environ.pop(name, None)
    if cores := os.environ.get(handover.CORES):
        os.sched_setaffinity(0, map(int, cores.split(",")))
    allowed_cores()  # before an engine binds this process to one of them
    for module in words[2:]:
        import_ahead(module)
    worker = Worker(path, lock)
    for other in handover.worker_pids(Path.cwd()):
        if other != path and handover.lane_of(other) == handover.lane_of(path) and (connection := sockets.dial(other)):
            with connection:
                connection.sendall(json.dumps(handover.RETIRE).encode() + b"\n")
    worker.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
