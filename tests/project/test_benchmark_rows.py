"""All benchmarks have the same options, print rows as they are measured, and run together; what they measure is faked here,
but for the gate's."""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as runner
from benchmarks import _common, _runs, gate
from benchmarks._common import BENCHMARKS, ROOT, Rows, announcement, text
from steps.kit.process import alive

INTERVAL = {"success": 0.5, "ci95": [0.4, 0.6], "n": 10, "iteration": 1}
SUMMARY = {"base": INTERVAL | {"success": 0.25}, "trained": INTERVAL, "iterations": [{}], "wall_seconds": 1.0}
RUN = import_module("benchmarks.tracing").Run(10.0, "", "", {}, 0)
ROW = {"name": "x", "ratio": 2.0}
# What measures in each benchmark, with a result for it: called once for each row, or more often.
FAKES: dict[str, dict[str, Any]] = {
    "environments": {"measure": {"name": "x", "steps_per_second": 10}},
    "gate": {"measure": ROW, "slices": ROW, "turned_away": ROW, "coverage": ROW},
    "hacks": {"measure": ROW},
    "exploits": {"measure": ROW | {"blocked": True}, "clean": ROW},
    "recipes": {"run": {"task": "email_search", "recipe": "", "seed": 1}, "row": ROW},
    "judge": {"measure": ROW},
    "judge_bias": {"measure": ROW, "noise": ROW},
    "rollout": {"measure": ROW},
    "scale": {"row": ROW},
    "batches": {"measure": ROW},
    "gateway": {"row_of": ROW},
    "fleet": {"call": ROW},
    "tracking": {"measure": ROW, "finished": ["001"]},
    "learning": {"run_seed": {"seed": 1, "summary": SUMMARY, "curve": []}},
    "tracing": {"run": RUN},
    "attention": {"measure": ROW},
    "plan": {"call": {}, "compare": ROW, "refuse": ROW},
    "update": {"compare": ROW},
    "iteration": {"compare": ROW},
    "end_to_end": {"compare": ROW},
    "pretrained": {"measure": ROW},
    "sft": {"measure": ROW},
    "start": {"measure": ROW},
    "demonstrations": {"measure": ROW},
    "general_policy": {"measure": ROW},
    "masking": {"recall": ROW, "clean": ROW, "serving": ROW, "load": ROW},
    "mixed": {"both": None, "compare": ROW},
    "own_tasks": {"measure": ROW | {"minutes": 1.0}},
    "selfplay": {"train": None, "row": ROW},
    "packages": {"build": 1.0, "measure": ROW},
    "catalogue": {"measure": ROW},
    "mcp_servers": {"measure": ROW},
    "structured": {"prepare": None, "measure": ROW},
    "harnesses": {"install": "/a/folder", "build": 1.0, "measure": ROW},
}
ROWS = {
    "environments": len(import_module("benchmarks.environments").tasks(agents=False)),
    "rollout": 2,
    "scale": 22,
    "tracing": 5,
    "update": 4,
}
ROWS |= {"judge_bias": len(import_module("benchmarks.judge_bias").CASES) + 1}
ROWS |= {"hacks": len(import_module("benchmarks.hacks").HACKS)}
ROWS |= {"exploits": len(import_module("benchmarks.exploits").EXPLOITS) + 4}
ROWS |= {
    "attention": 2,
    "batches": 3,
    "plan": 4,
    "fleet": 3,
    "gate": 22,
    "general_policy": 2,
    "catalogue": 4,
    "mcp_servers": 3,
    "iteration": 2,
    "learning": 2,
    "masking": 8,
    "mixed": 2,
    "own_tasks": 2,
    "pretrained": 6,
}  # the others have one
AT_ONCE = {"mixed": 2, "own_tasks": 2}  # rows of one measurement; the others have one
WORDS = {"learning": ["--seeds", "1", "2"]}  # more than the quick form's one row


def call(name: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [f"benchmarks.{name}", *words])
    import_module(f"benchmarks.{name}").main()


def test_every_benchmark_has_an_estimate_and_every_file_is_one() -> None:
    files = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if not path.stem.startswith("_")}
    assert set(BENCHMARKS) == files == set(FAKES)
    assert sum(known.quick for known in BENCHMARKS.values()) < 58 * 60
    for name, known in BENCHMARKS.items():
        assert known.quick <= 300, name
        assert known.quick <= known.full, name


@pytest.mark.parametrize("name", BENCHMARKS)
def test_each_says_how_to_run_it(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        call(name, ["--help"], monkeypatch)
    assert end.value.code == 0
    shown = capsys.readouterr().out
    assert "--json" in shown
    assert "every row in a short form" in " ".join(shown.split())
    doc = import_module(f"benchmarks.{name}").__doc__ or ""
    for words in (f"python -m benchmarks.{name} ", "--quick"):
        assert words in doc, words


@pytest.mark.parametrize("name", BENCHMARKS)
def test_quick_rows_come_one_by_one(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each row is marked, has a ratio and the load, and is printed before the next is measured."""
    printed: list[str] = []
    before: list[int] = []  # rows that were printed before each call of what measures

    def fake(result: object) -> Callable[..., object]:
        def measured(*_: Any, **__: Any) -> object:
            printed.extend(capsys.readouterr().out.splitlines())
            before.append(len(printed))
            return result

        return measured

    module = import_module(f"benchmarks.{name}")
    for attribute, result in FAKES[name].items():
        monkeypatch.setattr(module, attribute, fake(result))
    monkeypatch.setattr(_common, "slowness", lambda: 1.0)
    monkeypatch.setattr(os, "chdir", lambda _: None)
    monkeypatch.setattr(_common, "call", lambda *_, **__: None)
    for variable in ("FLYWHEEL_LEDGER_URL", "NO_PROXY", "PATH", "DVC_NO_ANALYTICS"):  # benchmarks set them for good
        monkeypatch.setenv(variable, os.environ.get(variable, ""))
    call(name, ["--quick", "--json", *WORDS.get(name, [])], monkeypatch)
    printed.extend(capsys.readouterr().out.splitlines())
    rows = [json.loads(line) for line in printed]
    assert len(rows) == ROWS.get(name, 1)
    for row in rows:
        assert row["quick"] is True
        assert row["ratio"] is not None
        assert row["load_before"] >= 0
        assert row["load"] >= 0
        assert row["others"] >= 0
        assert row["measured"] is (row["others"] <= _common.SHARED or "reason" not in row)
    assert before[-1] == len(rows) - AT_ONCE.get(name, 1)


def test_jobs_have_a_core_each_and_their_results_keep_the_order() -> None:
    cores = os.sched_getaffinity(0)
    meeting = threading.Barrier(2, timeout=30)

    def measure(case: int) -> tuple[int, int | None, list[str], str]:
        if case < 2:
            meeting.wait()  # both are at work at one time
        home = _runs.environment(Path("/clones/seed1"))["PREFECT_HOME"]
        return case, _runs.own_core(), _runs.training({"seed": case}), home

    rows = list(_runs.side_by_side(2, measure, [0, 1, 2, 3]))
    assert [case for case, *_ in rows] == [0, 1, 2, 3]
    assert {core for _, core, *_ in rows[:2]} == set(sorted(cores)[:2])
    assert len({home for *_, home in rows[:2]}) == 2  # two servers of Prefect, two databases
    assert rows[3][2] == ["-m", "flows.train", "--set", "seed=3", "--set", "policy.threads=1"]
    assert os.sched_getaffinity(0) == cores

    [(case, core, words, home)] = _runs.side_by_side(1, measure, [3])
    assert (case, core, home) == (3, None, "/clones/prefect")
    assert words == ["-m", "flows.train", "--set", "seed=3"]


def test_an_error_of_a_job_ends_the_rest() -> None:
    made: list[int] = []

    def measure(case: int) -> int:
        made.append(case)
        if case == 0:
            raise SystemExit("failed")
        time.sleep(0.2)
        return case

    with pytest.raises(SystemExit, match="failed"):
        list(_runs.side_by_side(2, measure, range(20)))
    assert len(made) < 20


def test_other_programs_do_not_spoil_what_is_not_timed() -> None:
    assert _common.verdict(1.5, timed=False) == {"others": 1.5, "measured": True}
    assert _common.verdict(1.5)["measured"] is False


def test_rows_as_a_table_and_as_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter((0.5, 2.0, 3.0, 4.0, 0.5, 2.0))
    monkeypatch.setattr(os, "getloadavg", lambda: (next(loads), 0.0, 0.0))
    monkeypatch.setattr(_common.Work, "now", lambda: _common.Work(0.0, 0.0, 0.0))
    row = {"name": "a", "seconds": 1234.5678, "base": {"success": 0.5}, "parts": {"x": 1}, "same": True}
    rows = Rows()
    rows.add(row, base="0.500")
    rows.add(row | {"name": "b"}, base="0.600")
    rows.add({"name": "c"})
    assert capsys.readouterr().out.splitlines() == [
        "| name | seconds | same | load_before | load | others | measured | base |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        "| a | 1,235 | yes | 0.5 | 2 | 0 | yes | 0.500 |",
        "| b | 1,235 | yes | 0.5 | 3 | 0 | yes | 0.600 |",
        "",
        "| name | load_before | load | others | measured |",
        "| --- | --- | --- | --- | --- |",
        "| c | 0.5 | 4 | 0 | yes |",
    ]
    Rows(as_json=True).add(row, base="0.500")
    assert json.loads(capsys.readouterr().out) == row | {
        "load_before": 0.5,
        "load": 2.0,
        "others": 0.0,
        "measured": True,
    }
    assert [text(value) for value in (None, False, 12345, 0.00123456)] == ["", "no", "12,345", "0.001235"]


def test_a_ratio_beside_other_programs_is_not_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In 10 s, of 12 s of work 9 were ours: 0.3 cores worked for others; then 0.2 of them."""
    counts = [_common.Work(0.0, 5.0, 1.0), _common.Work(10.0, 17.0, 10.0), _common.Work(20.0, 28.0, 19.0)]
    for as_json in (True, False):
        times = iter(counts)
        monkeypatch.setattr(_common.Work, "now", lambda times=times: next(times))
        rows = Rows(as_json)
        rows.add(ROW)
        rows.add(ROW)
    printed = capsys.readouterr().out.splitlines()
    first, second = map(json.loads, printed[:2])
    assert (first["others"], first["measured"], first["ratio"]) == (0.3, False, 2.0)
    assert first["reason"] == "other programs kept 0.30 cores at work (0.25 are allowed): repeat it on an idle machine"
    assert (second["others"], second["measured"], "reason" in second) == (0.2, True, False)
    assert printed[4].startswith("| x | 2 (not measured) |")
    assert printed[-1].startswith("| x | 2 |")
    assert runner.cells(first | {"benchmark": "gate", "second": 1})[2] == "2 (not measured)"
    assert "reason other programs kept" in runner.cells(first | {"benchmark": "gate", "second": 1})[4]
    assert runner.cells(second | {"benchmark": "gate", "second": 1})[2] == "2"


def test_own_work_is_not_that_of_others() -> None:
    """A child's counts as own work while it runs, and after it has ended; in a group of its own, too."""
    work = "import time\nwhile time.process_time() < 0.3: pass"
    before = _common.Work.now()
    subprocess.run([sys.executable, "-c", work], check=True)
    between = _common.Work.now()
    assert between.own - before.own >= 0.25
    assert between.all - before.all >= 0.25
    with subprocess.Popen(
        [sys.executable, "-c", f"{work}\nprint(flush=True)\ntime.sleep(60)"],
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()  # a group of its own, and still alive
        assert _common.Work.now().own - between.own >= 0.25
        child.kill()
    assert _common.Work(10.0, 9.0, 9.0).others(_common.Work(0.0, 0.0, 0.0)) == 0


@pytest.mark.parametrize("as_json", [True, False])
def test_a_row_does_not_wait_in_a_buffer(as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As through a pipe: what is not flushed is not in `out`."""
    out = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, write_through=False, line_buffering=False))
    Rows(as_json).add({"name": "the row"})
    assert b"the row" in out.getvalue()


def test_how_long_it_takes_is_said_first(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "x: about 3 minutes (an estimate: 2 minutes on 2 idle cores, times 2.0 for this machine"
    assert announcement("x", 100.0, 2.0).startswith(expected)
    assert announcement("x", 30.0, 2.0).startswith("x: about 60 seconds (")
    monkeypatch.setattr(_common, "slowness", lambda: 3.0)
    monkeypatch.setitem(BENCHMARKS, "gate", _common.Benchmark(80.0, 10.0, ""))
    for quick, share, expected in ((False, 0.25, "60 seconds"), (True, 1.0, "30 seconds")):
        _common.begin("gate", argparse.Namespace(quick=quick, json=True), share)
        assert f"about {expected}" in capsys.readouterr().err
    _common.begin("gate", argparse.Namespace(quick=True, json=True), None)
    assert "has not been measured" in capsys.readouterr().err


def test_slowness_counts_what_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rounds in one second, where the reference has `REFERENCE`."""
    clock = iter((0.0, 0.3, 1.0))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    assert _common.slowness(0.5) == pytest.approx(_common.REFERENCE / 2 * _common.CORES)


@pytest.mark.parametrize("count", [6, pytest.param(17, marks=pytest.mark.nightly)])
def test_the_gates_quick_form_for_real(
    count: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of its designs by night."""
    assert len(gate.DESIGNS) == 17
    monkeypatch.setattr(gate, "DESIGNS", gate.DESIGNS[:count])
    monkeypatch.setattr(sys, "argv", ["gate", "--quick", "--json", "--trials", "20"])
    gate.main()
    shown = capsys.readouterr()
    *rows, coverage = map(json.loads, shown.out.splitlines())
    designs, others = rows[:count], rows[count:]
    assert [row["name"] for row in others] == [
        "3 slices",
        "12 slices",
        "turned away, 240 single",
        "turned away, 30 x 8",
    ]
    for row in designs:
        assert (row["trials"], row["quick"]) == (20, True)
        errors = (row["false_in_20"], row["judged_in_20"], row["watch"], row["fell"])
        assert row["ratio"] == pytest.approx(max(errors) / 0.05, abs=0.02)
        assert row["false_in_1"] <= row["false_in_5"] <= row["false_in_20"]
        assert row["power"] >= row["power_at_look_5"]
    assert coverage["ratio"] == pytest.approx((1 - coverage["0.05_0"]) / 0.05, abs=0.02), "the least covered"
    assert coverage["ratio"] <= 1
    assert shown.err.startswith("benchmarks.gate --quick: about ")


def test_ctrl_c_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as end:
        _common.command(interrupted)
    assert end.value.code == 130
    assert capsys.readouterr().err == "Stopped.\n"


def python(script: str, *words: object) -> list[str]:
    return [sys.executable, "-c", script, *map(str, words)]


def test_rows_reach_the_file_while_the_benchmark_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The benchmark prints its second row only after it has read the first in rows.jsonl; the next one fails."""
    waiting = """
import json, pathlib, sys, time
print(json.dumps({"name": "first", "ratio": 1.5, "load": 1.0, "parts": {"a": 1}, "same": True}), flush=True)
print("no row", flush=True)
until = time.monotonic() + 60
while "first" not in pathlib.Path(sys.argv[1]).read_text() and time.monotonic() < until:
    time.sleep(0.02)
print(json.dumps({"name": "second", "host": "slow", "in_time": time.monotonic() < until}), flush=True)
print("log line", file=sys.stderr)
"""
    commands = {
        "gate": python(waiting, tmp_path / "rows.jsonl"),
        "judge": python("raise SystemExit(3)"),
        "rollout": python('print(\'{"name": "last"}\')'),
    }
    outcomes = runner.run_all(list(commands), tmp_path, commands.__getitem__)
    assert [(one.name, one.code) for one in outcomes] == [("gate", 0), ("judge", 3), ("rollout", 0)]
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [(row["benchmark"], row["name"]) for row in rows] == [
        ("gate", "first"),
        ("gate", "second"),
        ("rollout", "last"),
    ]
    assert rows[1]["in_time"]
    assert (tmp_path / "gate.log").read_text() == "log line\n"
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 5
    assert "judge failed with exit code 3" in shown.err
    written = (tmp_path / "table.md").read_text()
    lines = [line.split(" | ") for line in written.splitlines() if line.startswith("| ")]
    assert lines[0][:4] == ["| benchmark", "row", "ratio", "which is"]
    assert lines[2][:6] == ["| gate", "first", "1.5", BENCHMARKS["gate"].ratio, "same yes", "1"]
    assert lines[3][:2] == ["| gate", "second slow"]
    endings = [line for line in written.splitlines() if line.startswith("- ")]
    assert [line.partition(":")[0] for line in endings] == ["- gate", "- judge", "- rollout"]
    assert endings[1].endswith(" s, failed with exit code 3")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_stopped_leaves_no_process_and_keeps_its_rows(number: int, tmp_path: Path) -> None:
    """The benchmark's own child ignores Ctrl-C, and ends with the group."""
    fake = """
import json, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN)\\n"
                          "print('ready', flush=True); time.sleep(600)"], stdout=subprocess.PIPE, text=True)
child.stdout.readline()
print(json.dumps({"name": "first", "child": child.pid}), flush=True)
child.wait()
"""
    script = """
import sys
import threading
from pathlib import Path
from benchmarks import __main__ as runner
runner.FOLDER, runner.GRACE, runner.slowness = Path(sys.argv.pop(1)), 1.0, lambda: 1.0
fake = sys.argv.pop(1)
runner.quick = lambda name: [sys.executable, "-c", fake]
raise SystemExit(runner.main())
"""
    command = [*python(script, tmp_path, fake), "gate", "judge"]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert "| gate | first |" in [process.stdout.readline() for _ in range(3)][2]
        [row] = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
        os.kill(row["child"], 0)
        process.send_signal(number)
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "Stopped; the rows so far are in" in errors
    assert "| gate | first |" in (tmp_path / "table.md").read_text()
    assert not (tmp_path / "judge.log").exists()
    assert not alive(row["child"])
