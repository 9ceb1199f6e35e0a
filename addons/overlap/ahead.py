"""Rollouts that run ahead of the updates, beside them (`train.overlap`): in a worker of their own, one after another.

While iteration n is scored, trained on and evaluated, rollouts up to n + overlap run as soon as the adapter is there that
chain.yaml names for them. What a stage reads is in chain.yaml and not in the order of events: the bytes are those of `dvc
repro`, and a stage that was stopped runs again later. Two workers need GPUs or cores for both. A machine that has one GPU,
or no warm worker (FLYWHEEL_WORKER=off), runs the same stages one after another, with the same bytes.

The end of a run is decided by the evaluations alone, in the order of iterations: at the first iteration after which patience
is used up. chain.yaml then ends with it, however far sampling has come. A rollout ahead of the end is stopped, and it is
removed where it is there already (`settle`); DVC's run cache keeps it, so a longer run does not sample it again.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Self

from addons.overlap.section import Overlapped
from flows.terminal.report import RUN
from steps.core.files import write_text
from steps.core.params import Params
from steps.core.ports import every
from steps.core.records import ITERATION_STAGES
from steps.policy import machine
from steps.project.chain import iteration_name
from steps.project.lock import ENTRY
from steps.runner import handover
from steps.runner.stage import is_warm

if TYPE_CHECKING:
    from prefect.futures import PrefectFuture

    from flows.repro.pipeline import Pipeline

LANE = "sampling"
# Of GNU's and of LLVM's OpenMP: no result depends on them.
SLEEPING = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}


def lead(params: Params) -> int:
    """By how many iterations rollouts run ahead."""
    return Overlapped.of(params.train).overlap


def worker(params: Params, gpus: list[str], cores: list[int]) -> tuple[dict[str, str], dict[str, str], str]:
    """(variables of the worker that samples ahead, those of the usual one, why nothing runs ahead here). The first are empty
    where the third is not, and with train.overlap: 0.

    The two divide the GPUs, and the cores where there are enough for both; else they share the cores, and threads that wait
    sleep, because those that spin would keep the other worker's from working. An engine of another policy.kind than vllm
    needs none of them."""
    if not lead(params):
        return {}, {}, ""
    if not is_warm():
        return {}, {}, "FLYWHEEL_WORKER is off"
    for alone in every("alone"):
        if why := alone():
            return {}, {}, why
    if params.policy.kind != "vllm":
        return {handover.LANE: LANE}, {}, ""
    others, own = machine.gpu_shares(params)
    if gpus and len(gpus) < others + own:
        return {}, {}, f"sampling and training at once need {others + own} GPUs, and this run sees {len(gpus)}"
    lane, usual = {handover.LANE: LANE}, dict[str, str]()
    if gpus:
        return lane | {machine.VISIBLE: ",".join(gpus[-own:])}, {machine.VISIBLE: ",".join(gpus[:-own])}, ""
    threads = params.policy.threads
    if len(cores) >= 2 * threads:
        lane[handover.CORES] = ",".join(map(str, cores[threads : 2 * threads]))
    else:
        usual = {name: os.environ.get(name, value) for name, value in SLEEPING.items()}
    return lane | usual, usual, ""


class Ahead:
    """The rollouts of a run that samples ahead. Leaving the `with` block ends the one that is under way."""

    def __init__(
        self,
        params: Params,
        pipeline: Pipeline,
        submit: Callable[[str, PrefectFuture[bool] | None], PrefectFuture[bool]],
    ) -> None:
        """`submit` begins a stage in another thread, when the one before it has ended."""
        self.overlap, self.last = lead(params), params.train.iterations
        self.pipeline, self.submit = pipeline, submit
        self.futures: dict[int, PrefectFuture[bool]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while not all(future.wrapped_future.done() for future in self.futures.values()):
            self.pipeline.end_beside()
            time.sleep(0.05)

    def begin(self, iteration: int) -> None:
        """Begin all rollouts whose adapters are there, when the iteration before this one is trained."""
        for number in range(len(self.futures) + 1, min(iteration + self.overlap, self.last) + 1):
            before = self.futures.get(number - 1)
            self.futures[number] = self.submit(f"rollout@{iteration_name(number)}", before)

    def result(self, iteration: int) -> tuple[bool, float]:
        """Wait for an iteration's rollout: (whether it ran, seconds that were waited)."""
        began = time.monotonic()
        return bool(self.futures[iteration].result()), time.monotonic() - began


def settle(last: int, params: Params) -> None:
    """Make dvc.lock and run/ independent of how far sampling had come when the run ended with iteration `last`: remove the
    rollouts that may have run ahead of it, and put the iterations' entries in dvc.lock in the order of a serial run."""
    numbers = [iteration_name(number) for number in range(1, min(last + lead(params), params.train.iterations) + 1)]
    for number in numbers[last:]:
        for path in (RUN / number / "trajectories.parquet", RUN / number / "drawn.json"):
            path.unlink(missing_ok=True)
        shutil.rmtree(RUN / number / "timings", ignore_errors=True)
        if (RUN / number).is_dir() and not any((RUN / number).iterdir()):
            (RUN / number).rmdir()
    path = Path("dvc.lock")
    order = [f"{stage}@{number}" for number in numbers for stage in ITERATION_STAGES]
    text = path.read_text(encoding="utf-8")
    if (settled := arranged(text, order, [f"rollout@{number}" for number in numbers[last:]])) != text:
        write_text(path, settled)


def arranged(text: str, order: Sequence[str], dropped: Collection[str] = ()) -> str:
    """dvc.lock's text without the entries of the stages in `dropped`, and with those of `order` in that order, at the places
    where they stand now. Entries that it does not name stay where they are."""
    texts = {match[1]: match[0] for match in ENTRY.finditer(text) if match[1] not in dropped}
    sorted_names = iter([name for name in order if name in texts])

    def place(match: re.Match[str]) -> str:
        if match[1] in dropped:
            return ""
        return texts[next(sorted_names)] if match[1] in order else match[0]

    return ENTRY.sub(place, text)
