"""Warm worker: the process in which stages run, one after the other, so that heavy imports are paid once.

It is started by the first stage's command (steps/handover.py), or by hand with `python -m steps.worker` to see its output;
it ends by itself after FLYWHEEL_IDLE_SECONDS (120) without work, on SIGTERM, or when code or environment are no longer
those it began with. If the client of the running stage goes away, the process ends at once: the stage may sit in a C++ loop
that nothing else interrupts. Only functions of steps.* and environments.* are run, only for the user who started it.

Here too: `Outputs`, which holds a stage's results under temporary names until they are whole.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import select
import shutil
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from steps import handover, stage


class Outputs:
    """The outputs of one running stage: under temporary names until the `with` block has ended well, then renamed."""

    def __init__(self, finals: dict[str, Path], inputs: list[Path]) -> None:
        self.lock = threading.Lock()  # a stage's outputs are put in place or abandoned, never both
        for name, final in finals.items():
            others = [Path.cwd(), *inputs, *(p for other, p in finals.items() if other != name)]
            if hit := next((p for p in others if p.resolve().is_relative_to(final.resolve())), None):
                raise stage.UserError(f"--{name}: {final} would replace {hit}; give it a path of its own")
        self.finals = {name: final.absolute() for name, final in finals.items()}  # a stage may change the folder
        self.temporary = {name: p.with_name(f".tmp-{os.getpid()}.{p.name}") for name, p in self.finals.items()}
        self.made = [parent for p in self.finals.values() for parent in p.parents if not parent.exists()]

    def __enter__(self) -> Outputs:
        for final in self.finals.values():
            final.parent.mkdir(parents=True, exist_ok=True)
            for path in final.parent.iterdir():  # what killed processes left
                left = re.fullmatch(rf"\.(?:tmp|old)-(\d+)\.{re.escape(final.name)}", path.name)
                if left and (int(left[1]) == os.getpid() or not handover.alive(int(left[1]))):
                    _remove_or_restore(path, final)
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        with self.lock:
            try:
                if kind is None:
                    self._put_in_place()
            finally:
                self.discard()

    def _put_in_place(self) -> None:
        for name, path in self.temporary.items():
            if not path.exists():
                raise RuntimeError(f"the stage returned without writing --{name} ({self.finals[name]})")
        for name, final in self.finals.items():
            aside = final.with_name(f".old-{os.getpid()}.{final.name}")
            if final.is_dir() or (self.temporary[name].is_dir() and os.path.lexists(final)):
                final.rename(aside)
            try:
                self.temporary[name].rename(final)
            finally:
                _remove_or_restore(aside, final)

    def discard(self) -> None:
        """Remove what is unfinished; tried again, because the stage may still be writing in another thread."""
        for name, path in self.temporary.items():
            for _ in range(20):
                _remove_or_restore(path, self.finals[name])
        for parent in self.made:
            with contextlib.suppress(OSError):  # not empty: it holds results
                parent.rmdir()


def _remove_or_restore(path: Path, final: Path) -> None:
    """Remove a leftover; an old result that was moved aside goes back if nothing has taken its place."""
    if path.name.startswith(".old-") and os.path.lexists(path) and not os.path.lexists(final):
        path.rename(final)
    elif path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


class Worker:
    """Serves one socket from its main thread; while a stage runs, a second one watches for signals and the client's end."""

    def __init__(self, path: Path, lock: int) -> None:
        self.path, self.lock, self.idle = path, lock, 120.0
        self.umask = os.umask(0o077)
        path.unlink(missing_ok=True)  # left by a dead worker: the lock is ours
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(str(path))
        self.listener.listen(128)
        os.umask(self.umask)
        os.register_at_fork(after_in_child=self._let_go)
        self.signals, self.signalled = os.pipe()
        os.set_blocking(self.signals, False)
        os.set_blocking(self.signalled, False)

    def _let_go(self) -> None:
        """In a forked child: else it would keep socket and lock after the worker's death."""
        self.listener.close()
        os.close(self.lock)

    def _catch_signals(self) -> None:
        """SIGTERM and SIGINT write to a pipe even while the main thread is in C++; a stage may have changed that."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)
        signal.set_wakeup_fd(self.signalled, warn_on_full_buffer=False)

    def _told_to_end(self) -> bool:
        with contextlib.suppress(BlockingIOError):
            return any(number in (signal.SIGTERM, signal.SIGINT) for number in os.read(self.signals, 100))
        return False

    def _watch(self, connection: socket.socket, finished: threading.Event) -> None:
        """In a thread of its own while a stage runs: end the process when told to, or when nobody wants the result."""
        watched = select.poll()
        watched.register(connection, select.POLLIN | select.POLLRDHUP)
        watched.register(self.signals, select.POLLIN)
        while not finished.is_set():
            ready = [descriptor for descriptor, _ in watched.poll()]
            if finished.is_set():
                return  # a signal stays in the pipe for the main thread
            if connection.fileno() in ready:
                self.end("the client has gone", 130)
            if self._told_to_end():
                self.end("told to", 143)

    def end(self, why: str, code: int) -> None:
        """End at once, from whatever thread: the running stage's unfinished outputs go, then the socket."""
        stage.abandon()
        _log(f"ends: {why}")
        handover.tidy(self.path, self.lock)
        os._exit(code)

    def serve(self) -> None:
        """Until idle, told to end, retired or outdated. Then an ordinary exit, with 5 s for whatever libraries do there."""
        while True:
            self._catch_signals()
            ready = select.select([self.listener, self.signals], [], [], self.idle)[0]
            if not ready or (self.signals in ready and self._told_to_end()):
                why = "told to" if ready else f"idle for {self.idle:g} s"
                break
            if self.listener not in ready:
                continue
            connection = self.listener.accept()[0]
            with connection, contextlib.suppress(ConnectionError, TimeoutError):
                if why := self._answer(connection):
                    break
        handover.tidy(self.path, self.lock)
        _log(f"ends: {why}")
        signal.alarm(5)

    def _answer(self, connection: socket.socket) -> str:
        """Serve one connection; returns why the worker should end now, if it should."""
        if handover.peer(connection)[1] != os.getuid():
            return ""
        connection.settimeout(10)
        request = b""
        while not request.endswith(b"\n"):
            if not (data := connection.recv(65536)):
                return ""  # gone while it waited, or it only asked who is here
            request += data
        connection.settimeout(None)
        request = json.loads(request)
        if "retire" in request:
            return "another worker took over"
        if select.select([connection], [], [], 0)[0]:
            return ""
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
        answer = _run(request, send)
        finished.set()
        send(answer)
        connection.shutdown(socket.SHUT_RDWR)
        watch.join()
        return "" if handover.socket_path() == self.path else "code or environment changed"


def _run(request: dict, send: Callable[[dict], None]) -> dict:
    """Run one stage as its client would have: with its environment variables and umask, put back afterwards."""
    before, folder, mask = dict(os.environ), Path.cwd(), os.umask(request["umask"])
    _log(f"{request['module']} {json.dumps(request['arguments'])}")
    stage.report_to(send)
    try:
        _set_environment(request["environment"])
        seconds = stage.run(stage.find(request["module"], request["function"]), request["arguments"])
        _log(f"{request['module']} took {seconds:.3f} s")
        return {"done": seconds}
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        text, code = stage.explain(error)
        return {"error": text, "code": code}
    finally:
        stage.report_to(None)
        _set_environment(before)
        os.chdir(folder)
        os.umask(mask)


def _set_environment(wanted: dict[str, str]) -> None:
    for name in set(os.environ) - set(wanted):
        del os.environ[name]
    for name, value in wanted.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


def _log(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} worker {os.getpid()}: {text}", flush=True)


def main(words: list[str]) -> int:
    """`words`: the socket that the client waits for and the lock that it passes on; none when started by hand."""
    faulthandler.enable()
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
    worker = Worker(path, lock)
    for other in handover.worker_pids(Path.cwd()):
        if other != path and (connection := handover.dial(other)):
            with connection:
                connection.sendall(b'{"retire": true}\n')
    worker.serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
