"""What a plan refuses and advises, what it takes from a run, and its command; config.json is all it reads of a model."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from addons.planning import cards, gguf, models, plan, shapes, speed, workload
from addons.planning.__main__ import alike, given, main, planned, table
from addons.planning.cards import CARDS, GIB, Machine
from addons.planning.models import COMMON
from addons.planning.workload import Episodes
from flows.terminal import command
from steps.core.errors import UserError
from steps.core.params import Params
from steps.core.records import ITERATION_STAGES, Trajectory, Turn, write_records
from tests.conftest import ROOT

EPISODES = Episodes(400, 3, 60, 80, "as given")
CPU = Machine("this machine", 24 * GIB, 4e11, 2e11, 3e10, False)


def made(machine: Machine = CPU, model: str = "tasks_data/embedded_policy", **sections: dict[str, Any]) -> plan.Plan:
    policy = {"base_model": model} | sections.pop("policy", {})
    params = Params.model_validate({"policy": policy, **sections})
    shape = shapes.read(ROOT / model / "config.json") if model not in COMMON else shapes.of(COMMON[model], model)
    return plan.make(params, shape, machine, EPISODES)


QWEN7, HALF, BF16 = "Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", {"dtype": "bfloat16"}
QWEN14 = "Qwen/Qwen2.5-14B-Instruct"
CHECKPOINTED: dict[str, Any] = {"policy": BF16, "update": {"gradient_checkpointing": True}}
LARGE: dict[str, Any] = {
    "rollout": {"scenarios": 64},
    "update": {"tokens_per_micro_batch": 65536},
    "policy": {"context": 4096},
}


# --- What fits


@pytest.mark.parametrize(
    ("machine", "model", "sections", "words"),
    [
        (CPU, QWEN7, {}, ["7B-Instruct does not fit", "while the trainer works", "has 24.0 GiB", "smaller model"]),
        (CARDS["4090-24"], QWEN14, {"policy": BF16}, ["does not fit", "4090-24 has 23.6 GiB", "fits is"]),
        (CPU, HALF, {"policy": BF16 | {"context": 200_000}}, ["policy.context = 200000", "1.0 GiB", "KVCACHE"]),
        (CARDS["h100-80"], QWEN7, {}, ["float32", "bfloat16"]),
        (CPU, "Qwen/Qwen3-30B-A3B", {"policy": BF16}, ["mixture of experts", "--gpu"]),
        (CARDS["b200-192"], "moonshotai/Kimi-K2-Instruct", {"policy": BF16}, ["does not fit", "none of the cards"]),
    ],
)  # fmt: skip
def test_what_cannot_run_is_refused(machine: Machine, model: str, sections: dict[str, Any], words: list[str]) -> None:
    refused = plan.refusal(made(machine, model, **sections))
    assert refused
    assert [word for word in words if word not in refused] == []


@pytest.mark.parametrize(
    "sections",
    [
        {"policy": {"quantization": "bnb-4bit"}},
        {"policy": {"tensor_parallel": 2}},
        {"update": {"launcher": "accelerate", "processes": 2}},
    ],
)
def test_what_the_formulas_leave_out_is_not_refused_for_its_memory(sections: dict[str, Any]) -> None:
    policy = BF16 | {"base_model": "meta-llama/Llama-3.3-70B-Instruct"} | sections.get("policy", {})
    params = Params.model_validate(sections | {"policy": policy})
    assert plan.unplanned(params)
    plan.check(params)


@pytest.mark.parametrize(
    ("machine", "model", "sections"),
    [(CPU, "tasks_data/embedded_policy", {}), (CARDS["h100-80"], QWEN7, CHECKPOINTED)],
)
def test_what_fits_is_not_refused(machine: Machine, model: str, sections: dict[str, Any]) -> None:
    fits = made(machine, model, **sections)
    assert plan.refusal(fits) == ""
    assert "it fits" in plan.report(fits, 2.0)


def test_the_cure_names_a_knob_that_makes_it_fit() -> None:
    tight = made(CPU._replace(memory=6 * GIB), **LARGE)
    long = plan.make(tight.params, tight.shape, tight.machine, Episodes(1500, 3, 200, 200, ""))
    refused = plan.refusal(long)
    assert "would make it fit" in refused
    knob = refused.rpartition("; ")[2].partition(" would")[0]
    changed = dict(plan.knobs(long))[knob]
    assert changed.memory.peak <= long.machine.memory < long.memory.peak


def test_the_variable_of_the_engines_cache_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    before = made()
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "3")
    assert made().memory.peak - before.memory.peak == pytest.approx(2 * GIB)


def test_shared_weights_are_counted_once() -> None:
    """On a CPU they are not packed either; on a card an update has one copy there with and without."""
    apart, shared = (made(CPU, HALF, policy=BF16 | {"share_weights": on}).memory for on in (False, True))
    whole = apart.parts["weights of the trainer"]
    assert shared.parts["weights of the trainer"] == 0
    assert shared.parts["weights of the engine"] == whole
    assert apart.peak - shared.peak >= whole > 0
    cards_of = [made(CARDS["h100-80"], QWEN7, policy=BF16 | {"share_weights": on}).memory for on in (False, True)]
    assert [card.peak for card in cards_of] == [cards_of[0].peak] * 2


# --- Seconds


def test_operations_are_those_of_the_update_benchmark() -> None:
    """4 N for each token of linear layers of N parameters, 6 n for their adapters, 4 of the output layer's for each sampled
    token (benchmarks/update.py), where there is no reference and no check; cards have no narrow matrices."""
    card = Machine("a card that computes one operation a second", 1e15, 1.0, 1.0, 1e30, True)
    done = made(card, update={"beta": 0.0, "steps_per_generation": 1})
    shape, batch = done.shape, done.batch
    expected = batch.tokens * (4 * shape.linear + 6 * shape.lora(16)) + 4 * batch.sampled * shape.embedding
    assert done.stages["update"].products * speed.CARD.trainer == pytest.approx(expected, rel=1e-9)


def test_time_grows_with_the_work_and_falls_with_the_machine() -> None:
    base = made()
    assert made(update={"beta": 0.0}).seconds < base.seconds < made(update={"num_iterations": 2}).seconds
    assert made(CPU._replace(bfloat16=4e11, float32=1e12)).seconds < base.seconds
    assert made(policy={"lora": {"rank": 64}}).seconds > base.seconds


def test_the_knob_is_the_one_that_saves_most() -> None:
    slow = made()
    text = plan.knob(slow)
    seconds = {name: changed.seconds for name, changed in plan.knobs(slow)}
    assert text.startswith(min(seconds, key=lambda name: seconds[name]))
    assert f"{min(seconds.values()):.3g} s" in text


# --- What is known of the run before, and of this machine


def test_the_last_run_gives_episodes_and_corrects_the_seconds(tmp_path: Path) -> None:
    folder = tmp_path / "run" / "001"
    (folder / "timings").mkdir(parents=True)
    played = [
        Turn(
            prompt_ids=tuple(range(prompt)),
            completion_ids=(1,) * sampled,
            logprobs=(0.0,) * sampled,
            message={"role": "assistant", "content": "x"},
            observations=(),
            finish_reason="stop",
        )
        for prompt, sampled in ((50, 4), (60, 2))
    ]
    whole = Trajectory(id="t", scenario_id="s", attempt=0, adapter_hash="h", turns=tuple(played), stop_reason="done")
    write_records([whole, whole.model_copy(update={"id": "u"})], folder / "trajectories.parquet")
    for output in ITERATION_STAGES.values():
        (folder / "timings" / f"{output}.json").write_text(json.dumps({"stage": output, "seconds": 3.0}))
    assert workload.last_run(tmp_path) is None  # dvc.lock does not say what made it
    recorded = yaml.safe_load((ROOT / "params.yaml").read_text())
    entry = {"cmd": "c", "deps": [], "outs": [], "params": {"params.yaml": recorded}}
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": {"rollout@001": entry}}))
    last = workload.last_run(tmp_path)
    assert last is not None
    assert last.episodes[:4] == (50, 2, 3, 6)
    shape = shapes.read(ROOT / "tasks_data/embedded_policy/config.json")
    again = planned(last.params, shape, CPU, last.episodes, last)
    assert [stage.total for stage in again.stages.values()] == pytest.approx([3.0, 3.0, 3.0])
    other = last.params.model_copy(update={"policy": last.params.policy.model_copy(update={"threads": 1})})
    assert not alike(last.params, other)
    assert planned(other, shape, CPU, last.episodes, last).factors == {}


def test_a_card_is_found_by_its_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = tmp_path / "nvidia-smi"  # a fake that answers as the real one does
    fake.write_text("#!/bin/sh\necho 'NVIDIA H100 80GB HBM3, 81559'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    found = cards.card_here()
    assert found is not None
    assert found.name == "NVIDIA H100 80GB HBM3"
    assert (found.memory, found.bandwidth) == (81559 * 2**20, CARDS["h100-80"].bandwidth)
    fake.write_text("#!/bin/sh\nexit 9\n")
    assert cards.card_here() is None


def test_this_machine_is_measured() -> None:
    here = cards.this_machine(1)
    assert here.memory > GIB
    assert here.float32 > 1e9
    assert here.bandwidth > 1e8
    assert here.bfloat16 in (here.float32, 2 * here.float32, 8 * here.float32)


# --- Where a shape is from


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read"),
        ("[]", "describes no model"),
        ('{"hidden_size": 8}', "it lacks num_hidden_layers"),
        (json.dumps(COMMON[QWEN7] | {"model_type": "gpt2"}), "'gpt2'; known are llama"),
        (json.dumps(COMMON[QWEN7] | {"hidden_size": -3}), "hidden_size is -3"),
        (json.dumps(COMMON[QWEN7] | {"hidden_size": "wide"}), "hidden_size is 'wide'"),
        (json.dumps(COMMON["moonshotai/Kimi-K2-Instruct"] | {"v_head_dim": None}), "which a plan needs"),
    ],
)
def test_what_is_no_known_model_is_refused(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(UserError) as refused:
        shapes.read(tmp_path / "config.json")
    assert words in str(refused.value)


def test_the_hubs_cache_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "models--me--mine"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    (folder / "snapshots" / "abc" / "config.json").write_text(json.dumps(COMMON[QWEN7]))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    policy = Params().policy.model_copy(update={"base_model": "me/mine"})
    shape = models.at_hand(policy)
    assert shape is not None
    assert shape.parameters == 7_615_616_512
    assert models.at_hand(policy.model_copy(update={"base_model": "me/other"})) is None


def gguf_file(path: Path, layers: int = 2) -> Path:
    """The header of a llama in the format, by hand: version 3, one tensor, keys of each kind of value."""

    def text(words: str) -> bytes:
        return struct.pack("<Q", len(words)) + words.encode()

    values = {"embedding_length": 64, "feed_forward_length": 96, "block_count": layers, "attention.head_count": 4}
    pairs = [text(f"llama.{name}") + struct.pack("<II", 4, value) for name, value in values.items()]
    pairs.append(text("general.architecture") + struct.pack("<I", 8) + text("llama"))
    words = struct.pack("<IIQ", 9, 8, 3) + text("a") + text("bc") + text("")
    pairs.append(text("tokenizer.ggml.tokens") + words)
    pairs.append(text("tokenizer.ggml.scores") + struct.pack("<IIQ3f", 9, 6, 3, 0.0, 0.0, 0.0))
    tensor = text("token_embd.weight") + struct.pack("<IQQIQ", 2, 64, 3, 0, 0)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs)) + b"".join(pairs) + tensor)
    return path


def test_a_gguf_files_header_is_read(tmp_path: Path) -> None:
    shape = gguf.read(gguf_file(tmp_path / "m.gguf"))
    assert (shape.layers, shape.width, shape.heads, shape.key_heads, shape.vocabulary) == (2, 64, 4, 4, 3)
    assert shape.tied
    assert shape.parameters == 2 * (4 * 64 * 64 + 3 * 64 * 96) + 5 * 64 + 3 * 64
    whole = (tmp_path / "m.gguf").read_bytes()
    for broken in (
        whole[:60],
        b"GGML" + whole[4:],
        whole[:4] + b"\1" + whole[5:],
        b"",
        whole.replace(b"llama", b"gemma"),
    ):
        (tmp_path / "broken.gguf").write_bytes(broken)
        with pytest.raises(UserError, match=r"broken\.gguf"):
            gguf.read(tmp_path / "broken.gguf")


def test_a_gguf_file_that_is_still_to_come_is_known_by_its_name() -> None:
    policy = Params().policy.model_copy(update={"base_model": "pypi:p==1/SmolLM2-135M-Instruct.Q4_1.gguf"})
    shape = models.at_hand(policy)
    assert shape is not None
    assert shape.parameters == 134_515_008
    with pytest.raises(UserError, match="there is no file"):
        models.shape_of(policy.model_copy(update={"base_model": "mine.gguf"}))


# --- The commands


def test_the_command_and_what_a_flow_checks_need_neither_torch_nor_transformers() -> None:
    code = "import sys; sys.argv = ['plan', '--episode', '400,3,60,80']; "
    code += "from steps.core.params import Params; from addons.planning import plan; plan.check(Params()); "
    code += "from addons.planning.__main__ import main; code = main(); "
    code += "print('heavy:', sorted({'torch', 'transformers', 'vllm', 'prefect'} & sys.modules.keys()), code)"
    printed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "heavy: [] 0" in printed
    for word in ("1.09 M parameters", "KV cache", "weights of the trainer", "bottleneck:", "knob:", "it fits"):
        assert word in printed


def test_the_command_ends_with_1_where_it_cannot_run_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["plan"])
    before = (ROOT / "params.yaml").read_bytes()
    words = [
        "--set",
        f"policy.base_model={QWEN7}",
        "--set",
        "policy.dtype=bfloat16",
        "--gpu",
        "4090-24",
        "--price",
        "1",
    ]
    sys.argv += words
    handlers = {number: signal.getsignal(number) for number in command.STOPPING}
    try:
        assert main() == 1
    finally:  # a command that ends is not to be stopped any more
        for number, handler in handlers.items():
            signal.signal(number, handler)
    said = capsys.readouterr()
    assert "it cannot run:" in said.err
    assert "money" in said.out
    assert (ROOT / "params.yaml").read_bytes() == before


@pytest.mark.parametrize("text", ["1,2", "a,b,c,d", "0,1,1,1", "1,0,1,1", "1,1,nan,1", "inf,1,1,1"])
def test_episodes_that_cannot_be_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="--episode"):
        given(text)


def test_assumed_episodes_stay_within_the_context() -> None:
    params = Params.model_validate({"policy": {"context": 256}, "rollout": {"max_tokens": 500}})
    assert workload.assumed(params, 6).length <= 256 + 1e-6


def test_a_run_that_cannot_fit_is_refused_before_anything_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    """By `check`, which flows.train and the deployment call; models that are not at hand are left to the stages."""
    params = Params.model_validate({"policy": {"base_model": "meta-llama/Llama-3.3-70B-Instruct"}})
    monkeypatch.setattr(cards, "card_here", lambda: None)
    monkeypatch.setattr(cards, "memory", lambda: 64.0 * GIB)
    with pytest.raises(UserError, match=r"does not fit.*make plan"):
        plan.check(params)
    plan.check(Params())
    plan.check(Params.model_validate({"policy": {"base_model": "nobody/knows"}}))


def test_the_table_in_the_docs_is_the_commands() -> None:
    assert table() in (ROOT / "docs" / "gpu.md").read_text()
