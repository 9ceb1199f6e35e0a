"""The processes that share a stage: each runs the stage's function on its share, and what the first one writes counts.

    ranks.shared(2, update, previous=Path(...), adapter=Path(...), params=params)     # in the process that runs the stage

They are children of the process that runs the stage, and stay for the next stage, as the warm worker does: packages are
imported and the base model is loaded once. Requests go to their standard input and JSON lines come back, as with the worker.
A process ends at once when its standard input closes, so none outlives its parent, however that ends. RANK, WORLD_SIZE,
LOCAL_RANK and LOCAL_WORLD_SIZE are set as torchrun sets them; FLYWHEEL_STORE is the file through which the processes meet,
so that no port is opened for it.

Not here: how the work is divided (addons/accelerate/processes.py), and several machines (addons/fleet/ray_train.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from subprocess import PIPE
from typing import IO, TYPE_CHECKING, Any

from steps.core import errors, progress
from steps.core.cores import allowed_cores
from steps.kit.process import start
from steps.runner import death, stage
from steps.runner.handover import WorkerError

if TYPE_CHECKING:
    from subprocess import Popen

GRACE = 1.0  # seconds in which a process that died shows itself, where another one fails because of it


class Ranks:
    """So many processes, and the pipes to them. `last` is the one set that this process has."""

    last: Ranks | None = None

    def __init__(self, count: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="flywheel-ranks-"))  # the meeting point, and what the others write
        self.kills = death.oom_kills()
        self.unread = [b""] * count
        self.processes = [self._start(rank, count) for rank in range(count)]

    def _start(self, rank: int, count: int) -> Popen[bytes]:
        numbers = {"RANK": rank, "WORLD_SIZE": count, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": count}
        ours = {name: str(number) for name, number in numbers.items()} | {"FLYWHEEL_STORE": str(self.folder / "store")}
        command = [sys.executable, "-m", "addons.accelerate.ranks"]
        variables = {"OMP_NUM_THREADS": "1"} | dict(os.environ) | ours  # else accelerate sets threads of its own
        return start(command, stdin=PIPE, stdout=PIPE, env=variables, start_new_session=True, bufsize=0)

    def end(self) -> None:
        """End all of them. They hold nothing that is not also in files."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            for pipe in filter(None, (process.stdin, process.stdout)):
                pipe.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, function: Callable, values: dict[str, object]) -> dict[str, float]:
        """Run the stage's function in all of them, and return what the first one measured.

        UserError with a process's own sentence, or WorkerError with its traceback or with why it died."""
        kinds = {name: kind for name, (kind, _, _) in stage.signature(function).items()}
        request: dict[str, Any] = {"module": function.__module__, "function": function.__name__}
        request |= {"folder": str(Path.cwd()), "cores": sorted(allowed_cores())}
        for rank, process in enumerate(self.processes):
            own = {name: self._place(value, kinds[name], name, rank) for name, value in values.items()}
            with contextlib.suppress(BrokenPipeError):  # it has died: below its end is seen
                os.write(_pipe(process.stdin), json.dumps(request | {"values": own}).encode() + b"\n")
        measured: dict[int, dict[str, float]] = {}
        while len(measured) < len(self.processes):
            for rank, message in self._messages(None):
                if "done" in message:
                    measured[rank] = message["done"]
                elif "progress" in message:
                    progress.progress(*message["progress"])
                elif "say" in message:
                    progress.say(message["say"])
                else:
                    self._raise(function, rank, message)
        return measured[0]

    def _place(self, value: Any, kind: str, name: str, rank: int) -> Any:
        """A value as JSON. The outputs of all but the first process go to a folder of their own, and are thrown away."""
        if kind == "Output" and rank and value is not None:
            return str(self.folder / str(rank) / name)
        return as_json(value)

    def _messages(self, patience: float | None) -> list[tuple[int, dict[str, Any]]]:
        """Messages by rank, in the order of ranks, when there are any or `patience` seconds have passed. {}: it has died."""
        pipes = [_pipe(process.stdout) for process in self.processes]
        ready = select.select(pipes, [], [], patience)[0]
        messages = []
        for rank, pipe in enumerate(pipes):
            if pipe in ready:
                data = os.read(pipe, 65536)
                *lines, self.unread[rank] = (self.unread[rank] + data).split(b"\n")
                messages += [(rank, json.loads(line)) for line in lines] if data else [(rank, {})]
        return messages

    def _raise(self, function: Callable, rank: int, message: dict[str, Any]) -> None:
        """Raise what a process ended with. Where another one has died, its death is the reason, and this the consequence."""
        deadline = time.monotonic() + GRACE
        while message.get("code", 2) != 2 and (left := deadline - time.monotonic()) > 0:
            rank, message = next((pair for pair in self._messages(left) if not pair[1]), (rank, message))
        if message:
            raise (errors.UserError if message["code"] == 2 else WorkerError)(message["error"])
        name = function.__module__.rpartition(".")[2]
        why = death.cause(self.processes[rank].wait(), self.kills, name)
        raise WorkerError(f"process {rank + 1} of the {len(self.processes)} that share the stage {name} died: {why}")


def _pipe(file: IO[bytes] | None) -> int:
    assert file is not None  # each process is started with both
    return file.fileno()


def shared(count: int, function: Callable, **values: object) -> None:
    """Run a stage's function with these values in `count` processes of this machine. Raises as `Ranks.run` does; then all of
    them have ended, and the next call starts others."""
    ranks = Ranks.last
    if ranks is None or len(ranks.processes) != count or any(process.poll() is not None for process in ranks.processes):
        end()
        progress.say(f"starting {count} processes that share the stage")
        ranks = Ranks.last = Ranks(count)
    try:
        progress.measure(**ranks.run(function, values))
    except BaseException:
        end()
        raise


def launch(stage_function: Callable, params: Any, **files: object) -> None:
    """Run the update in update.processes processes (the port `launcher`)."""
    from addons.accelerate.section import Divided

    shared(Divided.of(params.update).processes, stage_function, **files, params=params)


def end() -> None:
    """End this process's set, if it has one."""
    if Ranks.last is not None:
        Ranks.last.end()
        Ranks.last = None


def as_json(value: Any) -> Any:
    """An argument of a stage's function as JSON: a path as text, parameters as a mapping."""
    if isinstance(value, Path):
        return str(value)
    return value.model_dump(mode="json", by_alias=True) if hasattr(value, "model_dump") else value


def call(module: str, name: str, values: dict[str, Any]) -> dict[str, float]:
    """Run a stage's function with arguments from `as_json`, and return what it measured. Older outputs are removed first."""
    from steps.core import params

    function = stage.find(module, name)
    arguments: dict[str, Any] = {}
    for argument, value in values.items():
        kind = stage.signature(function)[argument][0]
        if kind.endswith("Params"):
            value = params.declared(kind, module).model_validate(value)
        elif kind in ("Input", "Output") and value is not None:
            value = Path(value)
            if kind == "Output":
                value.parent.mkdir(exist_ok=True, parents=True)
                (shutil.rmtree if value.is_dir() else Path.unlink)(value) if value.exists() else None
        arguments[argument] = value
    progress.take_measurements()  # drops those of a call that failed before
    function(**arguments)
    return progress.take_measurements().numbers


def main() -> None:
    """Serve requests until standard input closes. What libraries print goes to stderr, and stdout carries messages alone."""
    messages = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    requests: queue.SimpleQueue[dict] = queue.SimpleQueue()

    def listen() -> None:
        for line in sys.stdin.buffer:
            requests.put(json.loads(line))
        shutil.rmtree(Path(os.environ["FLYWHEEL_STORE"]).parent, ignore_errors=True)
        os._exit(0)  # the stage may be in a C++ loop or wait for another process

    threading.Thread(target=listen, daemon=True).start()

    def send(message: dict[str, Any]) -> None:
        messages.write(json.dumps(message).encode() + b"\n")

    while True:
        send(_answer(requests.get(), send if os.environ["RANK"] == "0" else lambda _: None))


def _answer(request: dict, show: Callable[[dict], None]) -> dict[str, Any]:
    """Run one request's function; what it measured, or its error."""
    progress.report_to(show)
    try:
        os.chdir(request["folder"])
        if request["cores"]:
            os.sched_setaffinity(0, request["cores"])
        return {"done": call(request["module"], request["function"], request["values"])}
    except BaseException as error:
        traceback.print_exc()
        text, code = errors.explain(error)
        return {"error": text, "code": code}


if __name__ == "__main__":
    main()
