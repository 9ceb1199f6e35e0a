"""The stand-in hosts of benchmarks/tracing.py do what they say, and its counts are right; the measurement is run by hand."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import reduce
from operator import getitem
from pathlib import Path

import pytest
import yaml

from addons.trackers.tracing import langfuse
from benchmarks import tracing
from benchmarks._common import ROOT
from benchmarks.tracing import Run, host, lost, outputs, row, warnings
from tests.addons.trackers.tracing.test_tracing import traced


def sent(kind: str, patience: float = 1.5) -> tuple[str, set[str], float]:
    """(what a run would say, the traces that the host took, seconds until the end) for two iterations of five traces."""
    messages: list[str] = []
    some = traced(10)
    with host(kind, 0.1) as stand:
        assert stand.address is not None
        project = langfuse.Langfuse(stand.address, "pk-lf-stand-in", "sk-lf-stand-in", messages.append)
        for place in (0, 5):
            project.send(some[place : place + 5])
        began = time.perf_counter()
        project.deliveries.settle(patience)
        spent = time.perf_counter() - began
        return "".join(f"tracking: {line}\n" for line in messages), set(stand.traces), spent


@pytest.mark.parametrize("kind", ["refusing", "hanging", "failing"])
def test_a_host_that_takes_nothing_is_one_warning(kind: str) -> None:
    output, taken, spent = sent(kind)
    assert warnings(output) == 1
    assert lost(output) == 10
    assert taken == set()
    assert spent < 4.5  # less than an answer of one that hangs; 1.5 on an idle machine
    assert ("HTTP 500" in output) == (kind == "failing")
    assert ("did not answer within" in output) == (kind == "hanging")


def test_a_slow_host_takes_all() -> None:
    output, taken, spent = sent("slow")
    assert output == ""
    assert (warnings(output), lost(output)) == (0, 0)
    assert taken == {trace.id for trace in traced(10)}
    assert spent > 0.05


def test_no_host() -> None:
    with host("none") as stand:
        assert stand == (None, set())
    variables = tracing.environment(Path("/x"), None)
    assert not [name for name in variables if name.startswith("LANGFUSE_")]
    assert variables["FLYWHEEL_TRACE_RATE"] == "1"


def test_what_a_run_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """No store but the clone's own."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere")
    monkeypatch.setenv("PREFECT_API_URL", "http://elsewhere")
    variables = tracing.environment(Path("/x"), "http://127.0.0.1:9")
    assert variables["LANGFUSE_HOST"] == "http://127.0.0.1:9"
    assert {"LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"} <= variables.keys()
    assert {"MLFLOW_TRACKING_URI", "PREFECT_API_URL"}.isdisjoint(variables)
    assert variables["PATH"] == os.environ["PATH"]


def test_rows_by_hand(tmp_path: Path) -> None:
    def locked(md5: str) -> dict[str, str]:
        stages = {"update@001": {"cmd": "x", "outs": [{"path": "run/001/adapter", "md5": md5}]}, "none": {"cmd": "y"}}
        (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages}))
        return outputs(tmp_path / "dvc.lock")

    plain = Run(60.0, "", "", locked("a"), 0)
    assert plain.outputs == {"run/001/adapter": "a"}
    output = f"row\ntracking: Langfuse at x {tracing.WARNING}: why; the run goes on\n"
    again = "`.venv/bin/python -m steps.tracking` sends them again"
    output += f"tracking: 240 scores and 60 traces did not reach Langfuse at x; {again}\n"
    measured = row("hanging", Run(63.0, output, output + "other\n", locked("b"), 7), plain, 3)
    assert measured == {
        "name": "tracing",
        "host": "hanging",
        "ratio": 1.05,
        "seconds": 63.0,
        "extra_seconds_per_iteration": 1.0,
        "allowed_seconds_per_iteration": 2.0,
        "warnings": 1,
        "warnings_in_log": 1,
        "same_outputs": False,
        "delivered": 7,
        "lost": 60,
    }
    assert (
        row("slow", plain._replace(outputs=locked("a")), plain._replace(seconds=600.0), 3)[
            "allowed_seconds_per_iteration"
        ]
        == 4.0
    )
    assert row("slow", plain._replace(outputs=locked("a")), plain, 3)["same_outputs"]
    assert (
        lost("tracking: 8 scores did not reach Langfuse at x; …\ntracking: 60 traces did not reach MLflow at y; …") == 0
    )


def test_the_sizes_are_ones_that_params_take(tmp_path: Path) -> None:
    """`--dry-run` of the flow with what the benchmark sets."""
    from flows.repro.parameters import set_params

    (tmp_path / "params.yaml").write_text((ROOT / "params.yaml").read_text())
    set_params([f"{name}={value}" for name, value in tracing.SMALL.items()], tmp_path / "params.yaml")
    written = yaml.safe_load((tmp_path / "params.yaml").read_text())
    for name, value in tracing.SMALL.items():
        assert reduce(getitem, name.split("."), written) == value


def test_help_starts_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tracing", "--help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0
    assert "--iterations" in done.stdout
