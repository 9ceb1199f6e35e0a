"""`make gpu-check` and `make gpu-train` run whole at toy size on the CPU, and their verdicts can fail."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks._common import ROOT
from benchmarks.gpu import __main__ as check
from benchmarks.gpu import right, sizes, train
from steps.training import packing

LATE = "it took longer than 2 s"
WORKER = """
import json, sys, time
for name in sys.argv[1:]:
    print(json.dumps({"begin": name}), flush=True)
    print(json.dumps({"step": name, "number": 1}), flush=True)
    if name == "slow":
        time.sleep(60)
    if name == "fatal":
        sys.exit(7)
    print(json.dumps({"end": name, "seconds": 0.0}), flush=True)
"""  # a fake worker: steps that are too slow, or end the process


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_every_step_runs_at_toy_size() -> None:
    written: list[dict[str, Any]] = []
    check.work(list(check.STEPS), True, lambda row: written.append(json.loads(json.dumps(row))))
    assert [row["begin"] for row in written if "begin" in row] == list(check.STEPS)
    assert [row["end"] for row in written if "end" in row] == list(check.STEPS)
    rows = [row for row in written if "step" in row]
    assert check.faults(rows, list(check.STEPS), toy=True) == []
    by_step = {name: [row for row in rows if row["step"] == name] for name in check.STEPS}
    exact = {row["name"]: row["exact"] for row in by_step["exactness"]}
    ways = ("gathers", "flex")
    assert exact.keys() == {f"{family}, {way}" for family in ("Qwen2", "Qwen3", "Llama") for way in ways} | {right.LAST}
    assert {row["name"]: row["same_bytes"] for row in by_step["determinism"]} == {
        f"{way}, {how}": True for way in ways for how in ("as it is", "deterministic")
    }
    assert sum("ms" in row for row in by_step["attention"]) >= 2
    assert all(0 < row["kl"] < row["max_sampler_kl"] for row in by_step["drift"])
    for name in ("0.5B", "7B"):
        assert by_step[name][-1]["ratio"] > 0
    assert [row["name"] for row in by_step["7B, one row"]] == [f"one row of {length}" for length in sizes.TOY.single]
    assert all(row["seconds_back"] >= 0 for row in by_step["to host"])


@pytest.mark.usefixtures("one_thread")
def test_an_update_that_is_not_exact_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    token_logps = packing.token_logps
    monkeypatch.setattr(packing, "token_logps", lambda *words: (1.001 * token_logps(*words)[0], None))
    row = next(right.exactness(sizes.TOY))
    assert not row["exact"]
    assert row["gradients_apart"] == pytest.approx(1e-3, rel=0.01)


def test_a_step_that_hangs_or_ends_the_process_does_not_end_the_others() -> None:
    budgets = {"good": 30.0, "slow": 2.0, "fatal": 30.0, "last": 30.0}
    began = time.monotonic()
    rows = list(check.supervise(budgets, [sys.executable, "-c", WORKER], minutes=5))
    assert time.monotonic() - began < 30
    assert {row["step"]: row["error"] for row in rows if "error" in row} == {
        "slow": LATE,
        "fatal": "the process ended with exit code 7",
    }
    assert [row["step"] for row in rows if "number" in row] == list(budgets)
    assert [row["step"] for row in rows if "seconds_in_all" in row] == ["good", "last"]


def test_steps_after_the_time_for_all_are_said() -> None:
    rows = list(check.supervise({"slow": 30.0, "good": 30.0}, [sys.executable, "-c", WORKER], minutes=1 / 30))
    assert {row["step"]: row["error"] for row in rows if "error" in row} == dict.fromkeys(
        ("slow", "good"), "the time for all steps is over"
    )


def passed() -> list[dict[str, Any]]:
    """Rows of a run in earnest without a fault; made up."""
    names = ("first family", "second family", "third family", right.LAST)
    rows: list[dict[str, Any]] = [{"step": "exactness", "name": name, "exact": True} for name in names]
    rows.append({"step": "attention", "name": "packed, flex", "tokens": 16_384, "ms": 1.0})
    return [*rows, {"step": "drift", "error": "any"}, {"step": "7B", "name": "ratio", "ratio": 1.2}]


@pytest.mark.parametrize(
    ("index", "change", "reason"),
    [
        (0, {}, None),
        (1, {"exact": False}, "second family: the update is not exact"),
        (3, {"step": "other"}, "exactness was not measured to its end"),
        (4, {"tokens": 8192}, "FlexAttention did not run on two rows of 16384 tokens"),
        (4, {"ms": None, "out_of_memory": "CUDA"}, "FlexAttention did not run on two rows of 16384 tokens"),
        (6, {"ratio": 0.9}, "the update of the model of 7B has 0.9 of TRL's speed"),
        (6, {"ratio": float("nan")}, "the update of the model of 7B has nan of TRL's speed"),
        (6, {"step": "0.5B"}, "the update of the model of 7B was not compared with TRL's"),
    ],
)
def test_what_fails_the_check(index: int, change: dict[str, Any], reason: str | None) -> None:
    rows = passed()
    rows[index] = {name: value for name, value in (rows[index] | change).items() if value is not None}
    assert check.faults(rows, list(check.STEPS), toy=False) == ([reason] if reason else [])


def test_a_toy_fails_by_any_error_and_steps_left_out_are_not_missed() -> None:
    assert check.faults([{"step": "drift", "error": "any"}], ["drift"], toy=True) == ["drift: any"]
    assert check.faults([], ["drift"], toy=False) == []


def test_without_a_gpu_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for main in (check.main, train.main):
        monkeypatch.setattr(sys, "argv", ["any"])
        with pytest.raises(SystemExit, match=r"^torch finds no GPU.* TOY=1'.*$"):
            main()
    monkeypatch.setattr(train, "find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r"^gpu-train needs vLLM"):
        train.main()


@pytest.mark.slow
@pytest.mark.long
def test_two_iterations_at_toy_size(tmp_path: Path) -> None:
    """In one process: a warm engine samples the same, and an engine with a stale adapter is noticed."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu.train", "--toy", "--once", "--out", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [json.loads(line) for line in (tmp_path / "gpu-train.jsonl").read_text().splitlines()] == rows
    assert rows[-1]["passed"]
    [canary] = [row for row in rows if row["phase"] == "canary"]
    assert canary["caught"]
    assert all(row["sampler_kl"] < 1e-6 for row in rows if "sampler_kl" in row)
    [end] = [row for row in rows if row["phase"] == "bytes"]
    assert end["same_when_warm"]
    assert len(set(end["hashes"].values())) == len(train.BYTES)


def finished(process: int) -> list[dict[str, Any]]:
    return [
        {"process": process, "phase": "canary", "caught": True, "refusal": "…"},
        {
            "process": process,
            "phase": "bytes",
            "same_when_warm": True,
            "hashes": {"first/adapter": "a", "second/adapter": "b"},
        },
    ]


def test_what_fails_two_iterations() -> None:
    whole = finished(1) + finished(2)
    assert train.faults(whole, exact=True) == []
    whole[0] |= {"caught": False, "refusal": ""}
    whole[3] |= {"same_when_warm": False, "hashes": {"first/adapter": "a", "second/adapter": "c"}}
    assert train.faults(whole, exact=False) == ["a stale adapter was not noticed: no error"]
    assert train.faults(whole, exact=True)[1:] == [
        "a warm engine gives other trajectories",
        "another process wrote other bytes: second/adapter",
    ]
    assert train.faults([], exact=False) == ["the phases did not come to their end"]
