"""Samples what this machine did while a flow ran (processor, memory, disk, network, GPUs), under MLflow's names.

    with sampled() as drain:           # FLYWHEEL_SYSTEM_METRICS=off: never any samples
        samples = drain()              # since the last call; steps/tracking/tracker.py logs them with an iteration

A daemon thread reads the counters of the whole machine every 2 s, which takes 0.1 ms. MLflow's own monitor is not used: it
needs one run for its whole life, and writes to the store for each sample. GPUs are read where pynvml is installed and
finds some. Left out: the use of single processes, and other machines.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from steps.tracking.tracker import Sample

SECONDS = 2.0  # between two samples
VALUES = 600  # numbers per drain; more are averaged down to this, because MLflow accepts 1,000 in one batch
OFF = "FLYWHEEL_SYSTEM_METRICS"


@contextlib.contextmanager
def sampled(seconds: float = SECONDS) -> Iterator[Callable[[], list[Sample]]]:
    """Sample inside the `with` block, which gets `Monitor.drain`."""
    if os.environ.get(OFF, "").lower() == "off":
        yield list
        return
    monitor = Monitor(seconds)
    try:
        yield monitor.drain
    finally:
        monitor.stop()


class Monitor:
    """Samples in a thread, until `stop` or the end of the process."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.psutil: Any = importlib.import_module("psutil")  # which has no types
        self.seconds, self.samples, self.stopped = seconds, deque[Sample](), threading.Event()
        self.gpus, self.disk = gpus(), str(Path.cwd())
        self.psutil.cpu_percent()  # measures since the last call, so the first one returns 0
        self.sent = self.psutil.net_io_counters()
        self.thread = threading.Thread(target=self._run, name="system metrics", daemon=True)
        self.thread.start()

    def drain(self) -> list[Sample]:
        """The samples since the last call, averaged down to at most VALUES numbers."""
        return thinned([self.samples.popleft() for _ in range(len(self.samples))])

    def stop(self) -> None:
        self.stopped.set()
        self.thread.join(1)

    def _run(self) -> None:
        while not self.stopped.wait(self.seconds):
            with contextlib.suppress(Exception):  # a counter that cannot be read must not end the run
                self.samples.append(Sample(int(1000 * time.time()), self.read()))

    def read(self) -> dict[str, float]:
        """The current values of all counters; their names contain the units."""
        memory, network = self.psutil.virtual_memory(), self.psutil.net_io_counters()
        disk = self.psutil.disk_usage(self.disk)
        values = {
            "cpu_utilization_percentage": self.psutil.cpu_percent(),  # mean of all cores since the last sample
            "system_memory_usage_megabytes": memory.used / 1e6,
            "system_memory_usage_percentage": 100 * memory.used / memory.total,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / 1e6,
            "disk_available_megabytes": disk.free / 1e6,
            "network_receive_megabytes": (network.bytes_recv - self.sent.bytes_recv) / 1e6,
            "network_transmit_megabytes": (network.bytes_sent - self.sent.bytes_sent) / 1e6,
        }
        for number, gpu in enumerate(self.gpus):
            values |= {f"gpu_{number}_{name}": value for name, value in read_gpu(gpu).items()}
        return {f"system/{name}": round(float(value), 1) for name, value in values.items()}


def gpus() -> list[Any]:
    """The handles of this machine's GPUs; none without pynvml, a driver or a GPU."""
    try:
        pynvml = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        return [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
    except Exception:  # no module, or one of NVML's many errors
        return []


def read_gpu(handle: Any) -> dict[str, float]:
    """The counters that this GPU has; some report no power, for example."""
    pynvml = importlib.import_module("pynvml")
    values: dict[str, float] = {}
    with contextlib.suppress(pynvml.NVMLError):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        values["memory_usage_megabytes"] = memory.used / 1e6
        values["memory_usage_percentage"] = 100 * memory.used / memory.total
    with contextlib.suppress(pynvml.NVMLError):
        values["utilization_percentage"] = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
    with contextlib.suppress(pynvml.NVMLError):
        values["power_usage_watts"] = pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
    return values


def thinned(samples: Sequence[Sample], values: int = VALUES) -> list[Sample]:
    """Samples averaged over equal parts, at most `values` numbers in all. A mean has the time of its part's last sample."""
    points = max(1, values // max((len(sample.values) for sample in samples), default=1))
    if len(samples) <= points:
        return list(samples)
    cuts = [len(samples) * number // points for number in range(points + 1)]
    return [mean(samples[low:high]) for low, high in pairwise(cuts)]


def mean(samples: Sequence[Sample]) -> Sample:
    """The mean of each counter over the samples that have it, at the time of the last one."""
    columns: dict[str, list[float]] = {}
    for sample in samples:
        for name, value in sample.values.items():
            columns.setdefault(name, []).append(value)
    means = {name: round(sum(values) / len(values), 1) for name, values in columns.items()}
    return Sample(samples[-1].time, means)
