"""System metrics: MLflow's names, none lost between two drains, means where there are many, little of the machine's time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from addons.trackers import system_metrics
from addons.trackers.system_metrics import Monitor, mean, thinned
from steps.tracking.tracker import Sample
from tests.conftest import ROOT


@pytest.fixture
def monitor() -> Iterator[Monitor]:
    sampler = Monitor(0.01)
    yield sampler
    sampler.stop()


def drained(monitor: Monitor, samples: int) -> list[Sample]:
    collected: list[Sample] = []
    until = time.monotonic() + 10
    while len(collected) < samples and time.monotonic() < until:
        time.sleep(0.01)
        collected += monitor.drain()
    return collected


def test_the_machine_is_sampled_under_mlflows_names(monitor: Monitor) -> None:
    from mlflow.system_metrics.metrics import cpu_monitor, disk_monitor, network_monitor

    samples = drained(monitor, 3)
    theirs = [cpu_monitor.CPUMonitor(), disk_monitor.DiskMonitor(), network_monitor.NetworkMonitor()]
    for source in theirs:
        source.collect_metrics()
    expected = {f"system/{name}" for source in theirs for name in source.aggregate_metrics()}
    assert expected == {name for name in samples[0].values if not name.startswith("system/gpu_")}
    assert [source.time for source in samples] == sorted(source.time for source in samples)
    last = samples[-1].values
    assert 0 <= last["system/cpu_utilization_percentage"] <= 100
    assert 0 < last["system/system_memory_usage_percentage"] <= 100
    assert last["system/disk_available_megabytes"] > 0
    monitor.stop()
    monitor.drain()
    assert monitor.drain() == []


def test_what_is_long_becomes_means() -> None:
    samples = [Sample(1000 * number, {"system/a": float(number)}) for number in range(6)]
    assert thinned(samples, values=6) == samples
    assert thinned(samples, values=3) == [
        Sample(1000, {"system/a": 0.5}),
        Sample(3000, {"system/a": 2.5}),
        Sample(5000, {"system/a": 4.5}),
    ]
    assert thinned([]) == []
    many = [Sample(number, {str(name): 1.0 for name in range(48)}) for number in range(5000)]
    assert sum(len(sample.values) for sample in thinned(many)) <= system_metrics.VALUES
    assert mean([Sample(1, {"a": 1.0}), Sample(2, {"a": 2.0, "b": 3.0})]) == Sample(2, {"a": 1.5, "b": 3.0})


def test_gpus_are_read_by_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    class NVMLError(Exception):
        pass

    def no_power(_: Any) -> int:
        raise NVMLError

    fake = SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetMemoryInfo=lambda number: SimpleNamespace(used=1e9, total=4e9),
        nvmlDeviceGetUtilizationRates=lambda number: SimpleNamespace(gpu=50 + number),
        nvmlDeviceGetPowerUsage=no_power,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monitor = Monitor(60)
    values = monitor.read()
    monitor.stopped.set()
    assert {name: value for name, value in values.items() if "gpu" in name} == {
        "system/gpu_0_memory_usage_megabytes": 1000.0,
        "system/gpu_0_memory_usage_percentage": 25.0,
        "system/gpu_0_utilization_percentage": 50.0,
        "system/gpu_1_memory_usage_megabytes": 1000.0,
        "system/gpu_1_memory_usage_percentage": 25.0,
        "system/gpu_1_utilization_percentage": 51.0,
    }

    def no_driver() -> None:
        raise NVMLError

    fake.nvmlInit = no_driver
    assert system_metrics.gpus() == []


def test_a_counter_that_fails_ends_nothing(monitor: Monitor, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> dict[str, float]:
        raise OSError("no such counter")

    monkeypatch.setattr(monitor, "read", broken)
    time.sleep(0.05)
    monitor.drain()
    monkeypatch.undo()
    assert drained(monitor, 1), "it goes on"


def test_it_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(system_metrics.OFF, "off")
    before = threading.active_count()
    with system_metrics.sampled(0.01) as drain:
        assert threading.active_count() == before
        time.sleep(0.03)
        assert drain() == []
    monkeypatch.delenv(system_metrics.OFF)
    with system_metrics.sampled(0.01) as drain:
        assert threading.active_count() == before + 1
        time.sleep(0.1)
        assert drain()
    assert threading.active_count() == before


def test_a_sample_costs_next_to_nothing(monitor: Monitor) -> None:
    monitor.stop()
    began = time.thread_time()
    for _ in range(100):
        monitor.read()
    assert (time.thread_time() - began) / 100 < 0.01, "s of a processor, every 2 s"


def test_importing_loads_nothing() -> None:
    program = "import sys, addons.trackers.system_metrics; print([name for name in ('mlflow', 'psutil')"
    program += " if name in sys.modules])"
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert process.stdout == "[]\n"
