"""`make gpu-check` and `make gpu-train` run whole at toy size on the CPU, and their verdicts can fail."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from addons.kernels import fused
from benchmarks._common import ROOT
from benchmarks.gpu import __main__ as check
from benchmarks.gpu import models, parts, plain, right, sizes, train
from benchmarks.gpu.table import markdown
from steps.training import packing

FUSED = "functions of a GPU"
PHASES = {"weights", "between", "forward", "backward", "optimiser"}
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
@pytest.mark.nightly
@pytest.mark.timeout(900)
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
    checkpointed = [f"{way}, checkpointed" for way in ways]
    families = ("Qwen2", "Qwen3", "Llama")
    assert exact.keys() == {f"{family}, {way}" for family in families for way in (*ways, FUSED, *checkpointed)} | {
        right.LAST
    }
    assert {row["name"]: row["same_bytes"] for row in by_step["determinism"]} == {
        f"{way}, {how}": True for way in ways for how in ("as it is", "deterministic")
    }
    assert sum("ms" in row for row in by_step["attention"]) >= 2
    assert all(0 < row["kl"] < row["max_sampler_kl"] for row in by_step["drift"] + by_step["decode"])
    assert len(by_step["decode"]) == 2
    assert all(row["of_peak"] > 0 for row in by_step["peaks"][1:-1])
    assert by_step["peaks"][-1]["microseconds"] > 0
    for name in ("0.5B", "7B", "plain"):
        assert by_step[name][-1]["ratio"] > 0
    ways_of_recipe = ("without", "recipe, steps: 1", "recipe, steps: 8")
    assert [row["name"] for row in by_step["recipe"]] == [
        f"{n}, {way}" for n in ("0.5B", "7B") for way in ways_of_recipe
    ]
    sides = [f"{side}, {length} tokens" for side in ("ours", "plain") for length in sizes.TOY.single]
    assert [row["name"] for row in by_step["long"] if "seconds" in row] == sides
    for row in by_step["profile"]:
        assert row["seconds_by_kind"]["products"] > 0
        assert sum(row["seconds_by_kind"].values()) == pytest.approx(row["busy"] * row["seconds"], rel=0.05, abs=2e-3)
    assert all(row["gb"].keys() == PHASES and row["tokens"] for row in by_step["memory"])
    assert all(row["seconds_back"] >= 0 for row in by_step["to host"])


@pytest.mark.usefixtures("one_thread")
def test_an_update_that_is_not_exact_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    token_logps = packing.token_logps
    monkeypatch.setattr(packing, "token_logps", lambda *words: (1.001 * token_logps(*words)[0], None))
    row = next(right.exactness(sizes.TOY))
    assert not row["exact"]
    assert row["gradients_apart"] == pytest.approx(1e-3, rel=0.01)


@pytest.mark.usefixtures("one_thread")
def test_a_wrong_function_of_a_gpu_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = models.own_trainer(models.make_base(sizes.TOY.tiny, "float32", 0.2), "float32")
    rows = sizes.TOY.few.make(models.WORDS)

    def compared() -> dict[str, Any]:
        return right.compared(trainer, rows, right.functions(True), right.functions(False))

    models.moved(trainer, 0.05)
    row = compared()
    assert row["exact"]
    assert 0 < row["gradients_apart"] < 2e-5
    gated_back = fused.gated_back
    monkeypatch.setattr(fused, "gated_back", lambda *words: tuple(1.001 * slope for slope in gated_back(*words)))
    assert not compared()["exact"]
    monkeypatch.setattr(fused, "gated_back", lambda *_: 1 / 0)  # pyrefly: ignore[division-by-zero]
    assert compared() == {"exact": False, "error": "division by zero"}


@pytest.mark.slow
@pytest.mark.parametrize("again", [False, pytest.param(True, marks=pytest.mark.nightly)])
@pytest.mark.usefixtures("one_thread")
def test_the_plain_step_has_the_trainers_gradient(again: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    import peft
    import torch

    rows = sizes.TOY.long.make(models.WORDS)
    trainer = models.own_trainer(models.make_base(sizes.TOY.large, "float32"), "float32")
    logps = models.packed_logps(trainer, rows)
    total = torch.stack([own.sum() * row["reward"] for own, row in zip(logps, rows, strict=True)]).sum()
    (-total / sum(sum(row["mask"]) for row in rows)).backward()
    wrap = peft.get_peft_model
    gradients: list[Any] = []

    def with_the_same_adapter(*words: Any, **more: Any) -> Any:
        model = wrap(*words, **more)
        trained = {name: value for name, value in model.named_parameters() if value.requires_grad}
        assert trained.keys() == trainer.weights.keys()
        with torch.no_grad():
            for name, value in trained.items():
                value.copy_(trainer.weights[name])
        return model

    monkeypatch.setattr(peft, "get_peft_model", with_the_same_adapter)
    monkeypatch.setattr(
        torch.nn.utils, "clip_grad_norm_", lambda masters, _: gradients.extend(value.grad for value in masters)
    )
    plain.plain_step(sizes.TOY, rows, 2, again)()
    assert models.distance(gradients, [value.grad for value in trainer.weights.values()]) < 1e-5


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [
        ("triton_tem_fused_flex_attention_backward_1", "attention"),
        ("void cutlass::Kernel<fmha_cutlassF_bf16>", "attention"),
        ("nvjet_tst_256x128_64x4_2x1_v_bz_TNT", "products"),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "products"),
        ("Memcpy HtoD (Pinned -> Device)", "copies"),
        ("triton_red_fused_mean_mul_rsqrt_0", "compiled"),
        ("void at::native::reduce_kernel<512, 1>", "reductions"),
        ("void at::native::vectorized_elementwise_kernel<4>", "element-wise"),
        ("void at::native::indexSelectLargeIndex<float>", "places"),
        ("any", "others"),
    ],
)
def test_kinds_of_kernels(kernel: str, kind: str) -> None:
    assert parts.kind_of(kernel) == kind


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


def test_a_step_that_would_be_cut_is_not_begun() -> None:
    """The process that has begun it measures nothing more of it; shorter steps still run."""
    budgets = {"good": 30.0, "slow": 1000.0, "last": 20.0}
    rows = list(check.supervise(budgets, [sys.executable, "-c", WORKER], minutes=1))
    assert [row["step"] for row in rows if "seconds_in_all" in row] == ["good", "last"]
    [row] = [row for row in rows if row["step"] == "slow"]
    assert re.fullmatch(r"\d+ s left, and it may take 1000 s", row["not_begun"])


def test_steps_after_the_time_for_all_are_said() -> None:
    rows = list(check.supervise({"slow": 4.0, "good": 30.0}, [sys.executable, "-c", WORKER], minutes=3 / 60))
    assert rows[-2:] == [
        {"step": "slow", "error": "the time for all steps is over"},
        {"step": "good", "not_begun": "0 s left, and it may take 30 s"},
    ]


def test_three_commands_have_every_step_within_ten_minutes() -> None:
    lines = [line for line in str(check.__doc__).splitlines() if "python3 -m benchmarks.gpu --steps" in line]
    assert len(lines) == 3
    steps: list[str] = []
    for words in map(shlex.split, lines):
        names, minutes = words[4 : words.index("--minutes")], float(words[words.index("--minutes") + 1])
        assert sum(check.STEPS[name].seconds for name in names) <= 60 * minutes < 600
        steps += names
    assert sorted(steps) == sorted(check.STEPS)
    assert sum(step.seconds for step in check.STEPS.values()) <= 60 * check.MINUTES


LINES: list[dict[str, Any]] = [
    {
        "step": "environment",
        "date": "2026-01-02",
        "python": "3.12.3",
        "packages": {"torch": "2.11.0"},
        "device": "H100",
    },
    {"step": "7B", "name": "ours", "seconds": 5.43216, "tokens_per_second": 12064, "mfu": 0.4, "peak_gb": None},
    {"step": "7B", "seconds_in_all": 100.0},
    {"step": "profile", "name": "7B", "seconds_by_kind": {"products": 3.5}, "longest": [["nvjet", 3.5, 8]]},
    {"step": "memory", "name": "7B", "checkpointed": False, "gb": {"weights": None}},
    {"step": "long", "name": "plain", "out_of_memory": "tried | failed"},
    {"step": "plain", "not_begun": "3 s left"},
    {"step": "verdict", "passed": True},
]
TABLE = """\
2026-01-02 H100, Python 3.12.3, torch 2.11.0

| step | row | figures |
|---|---|---|
| `7B` | ours | `seconds` 5.432, `tokens_per_second` 12,064, `mfu` 0.4 |
| `profile` | 7B | `seconds_by_kind` products 3.5 |
| `memory` | 7B | `checkpointed` false |
| `long` | plain | out of memory: tried / failed |
| `plain` | | not begun: 3 s left |
"""


def test_stored_lines_are_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert markdown(LINES) == TABLE
    for name, part in (("first", LINES[:3]), ("second", LINES[3:])):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in part))
    monkeypatch.setattr(sys, "argv", ["any", "--table", str(tmp_path / "first"), str(tmp_path / "second")])
    check.main()
    assert capsys.readouterr().out == TABLE


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
    assert check.faults([{"step": "drift", "not_begun": "any"}], ["drift"], toy=True) == ["drift: any"]
    assert check.faults([{"step": "drift", "not_begun": "any"}], ["drift"], toy=False) == []
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
@pytest.mark.nightly
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
