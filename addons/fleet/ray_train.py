"""The workers of a Ray cluster that share a stage: each runs the stage's function on its share, as ranks do on one machine.

    cluster.shared(2, 1, update, previous=Path(...), adapter=Path(...), params=params)     # 2 workers with 1 thread each

Ray Train (TorchTrainer) places the workers and joins them to one torch.distributed group: nccl with a GPU each where the
cluster has GPUs, else gloo with a core for each thread. Inputs go to them as bytes through Ray's object store, and the
outputs of the first one come back as bytes: the process that runs the stage alone writes, so the machines need no common
folder. A worker that dies ends the others, and the stage begins again from its inputs, at most `RESTARTS` times. `launch`
connects the process to the cluster before (addons/fleet/raycluster.py).

Not here: how the work is divided (addons/accelerate/processes.py); the processes of one machine, which stay for the
next stage (addons/accelerate/ranks.py). Workers of Ray Train end with each stage, so each update imports its packages again.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from addons.accelerate import ranks
from addons.accelerate.section import Divided
from addons.fleet import raycluster
from addons.fleet.section import Elsewhere
from steps.core import errors, progress
from steps.core.errors import UserError
from steps.runner import stage
from steps.runner.handover import WorkerError

if TYPE_CHECKING:
    from steps.core.params import UpdateParams

RESTARTS = 2
POLL = 0.2  # seconds between two looks at what the workers say
START = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S"
SETTINGS = {  # of Ray Train; the user's own win
    START: "60",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",  # the base model's path is relative to the project
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_METRICS_ENABLED": "0",
}
Files = dict[str, bytes]  # path below a folder -> content; "" is a file by itself


class StageFailed(Exception):
    """A worker's stage has failed: the explanation of the error, and the exit code that belongs to it."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text, code)
        self.text, self.code = text, code


def launch(function: Callable, params: UpdateParams, **files: object) -> None:
    """Run the stage update on these files on the cluster (update.launcher: ray)."""
    raycluster.connect(Elsewhere.of(params.policy).cluster)
    raycluster.make_room()
    shared(Divided.of(params.update).processes, params.policy.threads, function, **files, params=params)


def shared(count: int, threads: int, function: Callable, **values: object) -> None:
    """Run a stage's function with these values in `count` workers on the cluster, and write what the first one wrote.
    `threads`: with which each worker computes on a CPU.

    UserError with a worker's own sentence, or where the cluster has no room. WorkerError with a worker's traceback, or with
    why workers died, when the step has begun again in vain."""
    import ray

    job = ray.put(packed(function, values))
    messages = _queue()
    try:
        for restart in range(RESTARTS + 1):
            try:
                result = _fit(count, threads, job, messages)
                break
            except WorkerError as problem:
                if restart == RESTARTS:
                    raise
                progress.say(f"{problem}; the stage begins again ({restart + 1} of {RESTARTS})")
    finally:
        messages.shutdown(force=True)
    for name, files in result["outputs"].items():  # pyrefly: ignore[unbound-name]  # the last failure is raised
        path = values[name]
        assert isinstance(path, Path)
        unpack(files, path)
    progress.measure(**result["measured"])


def packed(function: Callable, values: dict[str, object]) -> dict[str, Any]:
    """What a worker needs to run a stage's function: its name, its arguments as JSON, and its inputs' content. Paths are the
    same on the worker as here, below a folder of its own."""
    kinds = {name: kind for name, (kind, _, _) in stage.signature(function).items()}
    paths = {name: _below(value) for name, value in values.items() if isinstance(value, Path)}
    return {
        "module": function.__module__,
        "function": function.__name__,
        "values": {name: paths.get(name) or ranks.as_json(value) for name, value in values.items()},
        "inputs": {name: read(Path(str(values[name]))) for name in paths if kinds[name] == "Input"},
        "outputs": [name for name in paths if kinds[name] == "Output"],
    }


def _below(path: Path) -> str:
    """The path without what leads out of a folder: relative to the current one where it lies in it."""
    absolute = Path(os.path.normpath(Path.cwd() / path))
    return str(absolute.relative_to(Path.cwd() if absolute.is_relative_to(Path.cwd()) else absolute.anchor))


def read(path: Path) -> Files:
    """The content of a file, or of all files below a folder."""
    if path.is_dir():
        return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}
    return {"": path.read_bytes()}


def unpack(files: Files, path: Path) -> None:
    """Write what `read` has read."""
    if "" not in files:
        path.mkdir(parents=True)
    for name, content in files.items():
        file = path / name if name else path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Run a packed stage in a folder of its own, which is removed: {"measured", "outputs": content by name}.

    StageFailed with the stage's explanation, in which paths are those of the process that runs the stage."""
    with tempfile.TemporaryDirectory(prefix="flywheel-update-") as folder:
        values = dict(job["values"])
        try:
            for name, files in job["inputs"].items():
                unpack(files, Path(folder, values[name]))
            for name in (*job["inputs"], *job["outputs"]):
                values[name] = str(Path(folder, values[name]))
            measured = ranks.call(job["module"], job["function"], values)
        except BaseException as error:
            text, code = errors.explain(error)
            raise StageFailed(text.replace(f"{folder}/", ""), code) from None
        return {"measured": measured, "outputs": {name: read(Path(values[name])) for name in job["outputs"]}}


def work(config: dict[str, Any]) -> dict[str, Any] | None:
    """What each worker of Ray Train runs. RANK and WORLD_SIZE are set, and the torch.distributed group is joined.

    LOCAL_WORLD_SIZE is set to 1, so that each computes with policy.threads wherever it was placed. Where the machine has the
    project's folder, a relative path of the base model is read from there."""
    import ray

    os.environ["LOCAL_WORLD_SIZE"] = "1"
    with contextlib.suppress(OSError):
        os.chdir(config["folder"])
    is_first = os.environ["RANK"] == "0"
    progress.report_to(config["messages"].put if is_first else lambda _: None)
    result = run(ray.get(config["job"]))
    return result if is_first else None


def _queue() -> Any:
    from ray.util.queue import Queue

    return Queue(actor_options={"num_cpus": 0})


def _fit(count: int, threads: int, job: Any, messages: Any) -> dict[str, Any]:
    """Have Ray Train run `work` in all workers; what the first one returned. UserError and WorkerError as `shared`."""
    ended: list[Any] = []
    thread = threading.Thread(target=lambda: ended.append(_outcome(count, threads, job, messages)), daemon=True)
    for name, value in SETTINGS.items():  # a warm worker forgets them after the stage
        os.environ.setdefault(name, value)
    thread.start()  # in the main thread Ray Train would take over SIGINT, and keep it
    while thread.is_alive():
        thread.join(POLL)
        _show(messages)
    if isinstance(ended[0], Exception):
        raise ended[0]
    result: dict[str, Any] = ended[0]
    return result


def _show(messages: Any) -> None:
    """Pass on what the first worker has reported since the last look."""
    for message in messages.get_nowait_batch(messages.qsize()):
        if "progress" in message:
            progress.progress(*message["progress"])
        elif "say" in message:
            progress.say(message["say"])


def _outcome(count: int, threads: int, job: Any, messages: Any) -> Any:
    """The result of a run of Ray Train, or the error that explains why there is none."""
    import ray
    from fsspec.implementations.memory import MemoryFileSystem
    from pyarrow.fs import FSSpecHandler, PyFileSystem
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer
    from ray.train.v2.api.exceptions import ControllerError, TrainingFailedError, WorkerGroupError

    has_gpus = ray.cluster_resources().get("GPU", 0) > 0
    each = {"CPU": 1, "GPU": 1} if has_gpus else {"CPU": threads}
    trainer = TorchTrainer(
        work,
        train_loop_config={"job": job, "messages": messages, "folder": str(Path.cwd())},
        scaling_config=ScalingConfig(num_workers=count, use_gpu=has_gpus, resources_per_worker=each),
        run_config=RunConfig(
            name=f"update-{uuid.uuid4().hex[:8]}",
            storage_path="/flywheel",  # Ray Train's own checkpoints are not used, and its folders are made in memory
            storage_filesystem=PyFileSystem(FSSpecHandler(MemoryFileSystem())),
            failure_config=FailureConfig(max_failures=0, controller_failure_limit=0, max_preemption_failures=0),
        ),
    )
    try:
        return trainer.fit().return_value
    except WorkerGroupError as problem:
        return explained(problem.worker_failures, count)
    except ControllerError as problem:
        if "startup timed out" in str(problem):
            return UserError(no_room(count, each, ray.cluster_resources(), ray.available_resources()))
        return WorkerError(f"Ray Train could not run the update: {problem}")
    except TrainingFailedError as problem:  # a node that is taken away says so before
        return WorkerError(str(problem))
    except Exception as problem:  # for the main thread
        return problem


def explained(failures: dict[int, Exception], count: int) -> Exception:
    """Why a run has failed, from each failed worker's error by rank: a refusal if one refused, else a death, of which what
    the others' collectives say is a consequence, else an error of the stage."""
    failed = {rank: error for rank, error in failures.items() if isinstance(error, StageFailed)}
    for error in failed.values():
        if error.code == 2:
            return UserError(error.text)
    for rank, death in failures.items():
        if rank not in failed:
            why = " ".join(str(getattr(death, "health_check_failure", death)).split())
            return WorkerError(f"worker {rank + 1} of the {count} that share the update died: {why[:500]}")
    return WorkerError(next(iter(failed.values())).text)


def no_room(count: int, each: Mapping[str, float], total: Mapping[str, float], free: Mapping[str, float]) -> str:
    """The sentence for a cluster that could not place `count` workers with the resources of `each`."""

    def listed(resources: Mapping[str, float]) -> str:
        return " and ".join(f"{resources.get(name, 0):g} {name}s" for name in each)

    wanted = listed({name: amount * count for name, amount in each.items()})
    return (
        f"the Ray cluster found no place for update.processes: {count} within {os.environ.get(START, '60')} s: they need "
        f"{wanted}, and of the cluster's {listed(total)}, {listed(free)} are free. Lower update.processes or, on CPUs, "
        f"policy.threads; add nodes; or give a cluster that grows more time ({START})"
    )
