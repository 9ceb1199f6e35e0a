"""Rollouts that run ahead: when each begins, how the machine is divided, what the end leaves, and the bytes of a serial run.

The pipeline is DVC's, on stages that copy files. Real runs are replayed by benchmarks/_fleet_overlap.py, and stopped at
random moments by tests/support/overlapped.py.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from addons.overlap import ahead
from addons.overlap.ahead import Ahead, arranged, lead, settle, worker
from flows.repro.pipeline import Pipeline, StageFailed
from steps.core.params import Params
from steps.core.records import ITERATION_STAGES
from steps.project.chain import iteration_name, write_chain
from steps.runner import handover
from tests.conftest import run

SAMPLING = {handover.LANE: ahead.LANE}
WAITS = "for i in $(seq 200); do test -e began/002 && break; sleep 0.05; done; test -e began/002"
STAGES = """
vars: [chain.yaml]
stages:
  rollout:
    foreach: ${iterations}
    do:
      cmd: >-
        mkdir -p run/${key} began && touch began/${key} && test ! -e broken/${key} && (cat run/${item.policy}/adapter;
        echo ${key}) > run/${key}/trajectories.parquet && cp run/${key}/trajectories.parquet run/${key}/drawn.json
      deps: ["run/${item.policy}/adapter"]
      outs: ["run/${key}/trajectories.parquet", "run/${key}/drawn.json"]
  score:
    foreach: ${iterations}
    do:
      cmd: cp run/${key}/trajectories.parquet run/${key}/rewards.parquet
      deps: ["run/${key}/trajectories.parquet"]
      outs: ["run/${key}/rewards.parquet"]
  update:
    foreach: ${iterations}
    do:
      cmd: >-
        test ! -e waits || (WAITS) && cat run/${item.prev}/adapter run/${key}/rewards.parquet > run/${key}/adapter
      deps: ["run/${item.prev}/adapter", "run/${item.policy}/adapter", "run/${key}/rewards.parquet"]
      outs: ["run/${key}/adapter"]
  evaluate:
    foreach: ${evaluated}
    do:
      cmd: cp run/${item.name}/adapter run/${item.name}/evaluation
      deps: ["run/${item.name}/adapter"]
      outs: ["run/${item.name}/evaluation"]
""".replace("WAITS", WAITS)


class Begun:
    """What Prefect's `submit` returns, of a thread pool."""

    def __init__(self, future: Future[bool]) -> None:
        self.wrapped_future, self.result = future, future.result


def params_of(**train: int) -> Params:
    return Params.model_validate({"train": train})


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for words in (["git", "init", "--quiet"], ["dvc", "init", "--quiet"]):
        assert run(words, tmp_path).returncode == 0
    (tmp_path / "dvc.yaml").write_text(STAGES)
    (tmp_path / "run/000").mkdir(parents=True)
    (tmp_path / "run/000/adapter").write_text("base\n")
    return tmp_path


def trained(params: Params, is_beside: bool, last: int) -> None:
    """The loop of the flow, which ends after iteration `last`; rollouts run beside the other stages, or before them."""
    overlap, iterations = lead(params), params.train.iterations
    pipeline = Pipeline(Path.cwd(), SAMPLING)

    def submit(stage: str, before: Any) -> Any:
        def play() -> bool:
            return (before is None or before.result() is not None) and pipeline.reproduce(stage, beside=True)

        return Begun(threads.submit(play))

    write_chain(1, 1, overlap)
    pipeline.reproduce("evaluate@000")
    with ThreadPoolExecutor() as threads, Ahead(params, pipeline, submit) as rollouts:
        for iteration in range(1, last + 1):
            number = iteration_name(iteration)
            write_chain(min(iteration + overlap, iterations), 1, overlap)
            if is_beside:
                rollouts.begin(iteration)
                rollouts.result(iteration)
            for stage in list(ITERATION_STAGES)[is_beside:]:
                pipeline.reproduce(f"{stage}@{number}")
    write_chain(last, 1, overlap)
    settle(last, params)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.glob("run/**/[!.]*") if path.is_file()}


@pytest.mark.parametrize(("overlap", "last"), [pytest.param(1, 3, marks=pytest.mark.nightly), (2, 2)])
def test_what_runs_ahead_gives_the_bytes_of_a_serial_run(repository: Path, overlap: int, last: int) -> None:
    """The first updates wait until the next rollout has begun, so the two do run at the same time. With `last` below the
    iterations the run ends early: rollouts ahead of its end are gone from run/ and dvc.lock, however far they had come."""
    params = params_of(iterations=3, overlap=overlap)
    (repository / "waits").touch()
    trained(params, is_beside=True, last=last)
    overlapped = (repository / "dvc.lock").read_bytes(), (repository / "chain.yaml").read_bytes(), files(repository)
    assert run(["dvc", "repro", "--force", "--no-run-cache"], repository).returncode == 0
    assert files(repository) == overlapped[2]

    (repository / "dvc.lock").unlink()
    for number in ("001", "002", "003"):
        for path in (repository / "run" / number).glob("*"):
            path.unlink()
    trained(params, is_beside=False, last=last)
    serial = (repository / "dvc.lock").read_bytes(), (repository / "chain.yaml").read_bytes(), files(repository)
    assert serial == overlapped
    assert (repository / f"run/{last:03d}/adapter").exists()
    assert not (repository / f"run/{last + 1:03d}/trajectories.parquet").exists()


def test_a_rollout_that_fails_ahead_is_told_when_it_is_needed_and_goes_on_later(repository: Path) -> None:
    params = params_of(iterations=2, overlap=1)
    (repository / "broken").mkdir()
    (repository / "broken/002").touch()
    with pytest.raises(StageFailed, match="rollout@002"):
        trained(params, is_beside=True, last=2)
    assert (repository / "run/001/evaluation").exists()
    (repository / "broken/002").unlink()
    before = (repository / "run/001/adapter").stat().st_mtime_ns
    trained(params, is_beside=True, last=2)
    assert (repository / "run/001/adapter").stat().st_mtime_ns == before
    assert (repository / "run/002/evaluation").exists()


def test_an_update_that_fails_ends_what_runs_ahead(repository: Path) -> None:
    (repository / "dvc.yaml").write_text(STAGES.replace("(WAITS) && cat run".replace("WAITS", WAITS), "true; false"))
    before = set(threading.enumerate())
    with pytest.raises(StageFailed, match="update@001"):
        trained(params_of(iterations=4, overlap=2), is_beside=True, last=4)
    assert not [thread for thread in set(threading.enumerate()) - before if "ThreadPool" in thread.name]
    assert not (repository / "began/004").exists()


class Recorded:
    """A pipeline and a `submit` that do nothing: which rollouts were begun, after which, and whether they were ended."""

    def __init__(self) -> None:
        self.begun: list[tuple[str, bool]] = []
        self.is_ended = False
        self.futures: list[Future[bool]] = []
        self.last: Begun | None = None

    def submit(self, stage: str, before: Any) -> Any:
        assert before is self.last
        self.begun.append((stage, before is not None))
        self.futures.append(Future())
        self.last = Begun(self.futures[-1])
        return self.last

    def end_beside(self) -> None:
        self.is_ended = True
        for future in self.futures:
            if not future.done():
                future.set_result(False)


@pytest.mark.parametrize("overlap", [1, 2, 4])
def test_a_rollout_begins_as_soon_as_its_adapter_is_there(overlap: int) -> None:
    recorded, params = Recorded(), params_of(iterations=6, overlap=overlap)
    with Ahead(params, recorded, recorded.submit) as rollouts:  # pyrefly: ignore[bad-argument-type]
        for iteration in range(1, 7):
            rollouts.begin(iteration)
            begun = len(recorded.begun)
            assert begun == min(iteration + overlap, 6)
            assert begun - 1 - overlap <= iteration - 1  # of this adapter the update has ended
            recorded.futures[iteration - 1].set_result(True)
            assert rollouts.result(iteration)[0]
    assert [stage for stage, _ in recorded.begun] == [f"rollout@{number:03d}" for number in range(1, 7)]
    assert not recorded.is_ended


def test_leaving_early_ends_what_is_under_way() -> None:
    recorded = Recorded()
    with Ahead(params_of(overlap=2), recorded, recorded.submit) as rollouts:  # pyrefly: ignore[bad-argument-type]
        rollouts.begin(1)
    assert recorded.is_ended
    assert all(future.done() for future in recorded.futures)


def test_the_machine_is_divided_between_the_two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLYWHEEL_WORKER", raising=False)
    params, threads = params_of(overlap=1), Params().policy.threads
    cores = list(range(10, 10 + 2 * threads))
    assert worker(params_of(), [], cores) == ({}, {}, "")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("KMP_BLOCKTIME", "7")  # the user's own
    asleep = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "7"}
    assert worker(params, [], cores[:-1]) == (SAMPLING | asleep, asleep, "")
    own = {handover.CORES: ",".join(map(str, cores[threads:]))}
    assert worker(params, [], cores) == (SAMPLING | own, {}, "")
    seen = "CUDA_VISIBLE_DEVICES"
    assert worker(params, ["a", "b"], cores) == (SAMPLING | {seen: "b"}, {seen: "a"}, "")
    assert "need 2 GPUs, and this run sees 1" in worker(params, ["a"], cores)[2]
    on_ray = params.model_copy(update={"policy": params.policy.model_copy(update={"kind": "ray"})})
    assert worker(on_ray, ["a"], cores) == (SAMPLING, {}, "")
    monkeypatch.setenv("FLYWHEEL_GATEWAY_LISTEN", "127.0.0.1:0")
    assert not worker(params, [], cores)[2]
    monkeypatch.setenv("FLYWHEEL_GATEWAY_LISTEN", "0.0.0.0:9000")
    assert "names one port" in worker(params, [], cores)[2]
    monkeypatch.setenv("FLYWHEEL_WORKER", "off")
    assert worker(params, [], cores)[:2] == ({}, {})


def entries(*names: str) -> str:
    stages = {name: {"cmd": f"run {name}", "outs": [{"path": name, "md5": "1"}]} for name in names}
    return yaml.safe_dump({"schema": "2.0", "stages": stages}, sort_keys=False)


ORDERS = [
    ("scenarios", "rollout@001", "rollout@002", "score@001", "update@001", "score@002"),
    ("scenarios", "rollout@001", "score@001", "rollout@002", "update@001", "rollout@003", "score@002"),
]


@pytest.mark.parametrize("names", ORDERS)
def test_a_lock_file_does_not_show_which_stage_ended_first(names: tuple[str, ...]) -> None:
    order = [f"{stage}@{number}" for number in ("001", "002", "003") for stage in ITERATION_STAGES]
    text = arranged(entries(*names, "test@base"), order, ["rollout@003"])
    wanted = ("scenarios", "rollout@001", "score@001", "update@001", "rollout@002", "score@002", "test@base")
    assert text == entries(*wanted)
    assert arranged(text, order) == text
