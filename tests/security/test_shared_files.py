"""Files that others can write, such as a hub's models, a team's adapters, runs and data: none of them may run code.

Each carries code that would leave a file behind, in the place where a careless reader runs it.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import pickle
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from addons.fleet.parcels import Parcel
from addons.report.card import parsed
from addons.starts.sources import from_folder
from steps.core import params
from steps.core.errors import UserError
from steps.core.params import Policy, RolloutParams
from steps.core.parquet import read_columns
from steps.core.records import Trajectory, read_records
from steps.core.yaml_text import read_mapping
from steps.policy.loading import load_model, load_tokenizer
from steps.project.chain import read_chain
from steps.training.grpo import Trainer
from steps.training.model import take_adapter
from tests.conftest import ROOT
from tests.support.tiny import make_policy

EMBEDDED = ROOT / "tasks_data" / "embedded_policy"


class Bomb:
    """Leaves a file behind where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch '{self.mark}'",)


@pytest.fixture
def mark(tmp_path: Path) -> Path:
    """What a bomb leaves behind; the test's end looks for it."""
    return tmp_path / "it ran"


@pytest.fixture(autouse=True)
def nothing_ran(mark: Path) -> Any:
    yield
    assert not mark.exists()


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, Policy]:
    """A tiny model in a folder, with the embedded policy's tokenizer."""
    folder = tmp_path / "model"
    policy = make_policy(folder)
    for path in EMBEDDED.glob("*token*"):
        shutil.copy(path, folder)
    return folder, policy


def test_the_bomb_works(tmp_path: Path) -> None:
    """Otherwise the other tests would show nothing."""
    mark = tmp_path / "on purpose"
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists()


# --- Models of a hub


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.safetensors"])
@pytest.mark.parametrize("form", ["pickle", "torch"])
def test_a_models_weights_are_not_unpickled(model: tuple[Path, Policy], mark: Path, file: str, form: str) -> None:
    import torch

    folder, policy = model
    (folder / "model.safetensors").unlink()
    buffer = io.BytesIO()
    (pickle.dump if form == "pickle" else torch.save)({"model.embed_tokens.weight": Bomb(mark)}, buffer)
    (folder / file).write_bytes(buffer.getvalue())
    with pytest.raises(UserError, match=r"policy\.base_model: cannot load"):
        load_model(policy, "cpu")


@pytest.mark.parametrize("kind", ["qwen3", "of_its_own"])
def test_a_models_own_code_does_not_run(model: tuple[Path, Policy], mark: Path, kind: str) -> None:
    folder, policy = model
    (folder / "theirs.py").write_text(f"open({str(mark)!r}, 'w')\nclass C: pass\nM = T = C\n")
    config = json.loads((folder / "config.json").read_text()) | {"model_type": kind}
    config["auto_map"] = {
        "AutoConfig": "theirs.C",
        "AutoModelForCausalLM": "theirs.M",
        "AutoTokenizer": ["theirs.T", None],
    }
    (folder / "config.json").write_text(json.dumps(config))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(settings | {"auto_map": {"AutoTokenizer": ["theirs.T", None]}})
    )
    for load in (load_model, load_tokenizer):
        with contextlib.suppress(UserError):  # or it is loaded as the known kind that its name says
            load(policy)
        assert not mark.exists(), load


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ cycler.__init__.__globals__.os.system('touch MARK') }}",
        "{{ self.__init__.__globals__.__builtins__.__import__('os').system('touch MARK') }}",
        "{{ namespace.__init__.__globals__['os'].popen('touch MARK').read() }}",
        "{% include '/etc/passwd' %}",
        "{{ messages.append.__self__.__class__.__base__.__subclasses__() }}",
    ],
)
def test_a_chat_template_reaches_no_python(model: tuple[Path, Policy], mark: Path, template: str) -> None:
    folder, policy = model
    for path in folder.glob("*.jinja"):
        path.unlink()
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["chat_template"] = template.replace("MARK", str(mark))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = load_tokenizer(policy)
    with pytest.raises(Exception, match=r"unsafe|undefined|no attribute|no loader|not callable"):
        print(tokenizer.apply_chat_template([{"role": "user", "content": "?"}], tokenize=False))


# --- Adapters and checkpoints


def adapter(folder: Path, content: bytes, name: str = "adapter_model.safetensors") -> Path:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2}))
    (folder / name).write_bytes(content)
    return folder


def test_an_adapter_in_pickle_is_none(tmp_path: Path, mark: Path) -> None:
    folder = adapter(tmp_path / "theirs", pickle.dumps(Bomb(mark)), "adapter_model.bin")
    with pytest.raises(UserError, match=r"has no adapter_model\.safetensors"):
        from_folder(folder, tmp_path / "ours", optimizer=False)


def test_pickle_under_an_adapters_name_is_not_read(tmp_path: Path, mark: Path, model: tuple[Path, Policy]) -> None:
    folder = adapter(tmp_path / "theirs", pickle.dumps(Bomb(mark)))
    trainer = Trainer(model[1], seed=1)
    with pytest.raises(Exception, match=r"[Hh]eader|safetensors"):
        take_adapter(trainer.model, folder)


@pytest.mark.parametrize("file", ["state.safetensors", "optimizer.pt", "state.pkl"])
def test_a_checkpoint_is_not_unpickled(tmp_path: Path, mark: Path, model: tuple[Path, Policy], file: str) -> None:
    trainer = Trainer(model[1], seed=1)
    folder = tmp_path / "checkpoint"
    trainer.save_checkpoint(folder, "0" * 16)
    (folder / file).write_bytes(pickle.dumps(Bomb(mark)))
    if file == "state.safetensors":
        with pytest.raises(Exception, match=r"[Hh]eader|safetensors"):
            Trainer(model[1], seed=1, checkpoint=folder)
    else:
        assert Trainer(model[1], seed=1, checkpoint=folder).steps == 0  # it is not looked at


def test_a_parcel_of_a_model_stays_in_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    for name, link in (("../../out", ""), (str(tmp_path / "out"), ""), ("in", "/etc/passwd"), ("in", "../../out")):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = (tarfile.SYMTYPE, link) if link else (tarfile.REGTYPE, "")
            archive.addfile(entry)
        with pytest.raises((tarfile.TarError, ValueError, OSError)):
            Parcel("model", "0" * 24).unpack(buffer.getvalue())
        assert not (tmp_path / "out").exists()


# --- Tables


def test_a_type_of_arrow_that_is_pickled_is_not_read(tmp_path: Path, mark: Path) -> None:
    """pyarrow unpickled such types up to 14.0 (CVE-2023-47248)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    metadata = {"ARROW:extension:name": "arrow.py_extension_type", "ARROW:extension:metadata": pickle.dumps(Bomb(mark))}
    field = pa.field("id", pa.string(), metadata=metadata)
    path = tmp_path / "trajectories.parquet"
    pq.write_table(pa.table([pa.array(["x"])], schema=pa.schema([field])), path)
    assert read_columns(path, ["id"]).column("id").to_pylist() == ["x"]
    with pytest.raises(UserError):
        read_records(Trajectory, path)


def test_a_pickled_text_in_a_table_stays_text(tmp_path: Path, mark: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "rows.parquet"
    text = base64.b64encode(pickle.dumps(Bomb(mark))).decode()
    pq.write_table(pa.table({"id": [text]}, metadata={b"pandas": pickle.dumps(Bomb(mark))}), path)
    assert read_columns(path).column("id").to_pylist() == [text]


# --- Text


YAML = {
    "an object": "!!python/object/apply:os.system ['touch MARK']",
    "a new object": "!!python/object/new:os.system ['touch MARK']",
    "a module": "!!python/module:os",
    "a name": "!!python/name:os.system",
    "an object's state": "!!python/object:tests.security.test_shared_files.Bomb {mark: MARK}",
}


@pytest.mark.parametrize("tag", YAML)
@pytest.mark.parametrize("file", ["params.yaml", "chain.yaml", "a text"])
def test_a_tag_of_yaml_makes_no_object(tmp_path: Path, mark: Path, tag: str, file: str) -> None:
    text = f"task: {YAML[tag].replace('MARK', str(mark))}\n"
    (tmp_path / file).write_text(text)
    read: dict[str, Callable[[], Any]] = {
        "params.yaml": lambda: params.load(tmp_path / file, RolloutParams),
        "chain.yaml": lambda: read_chain(tmp_path),
        "a text": lambda: read_mapping(text, file),
    }
    with pytest.raises((UserError, yaml.YAMLError)):
        read[file]()


TAGS = ["__import__('os').system('touch MARK')", "(lambda: 1)()", "[x for x in ().__class__.__mro__]"]


@pytest.mark.parametrize("tag", TAGS)
def test_a_tag_of_the_registry_is_a_value(mark: Path, tag: str) -> None:
    text = tag.replace("MARK", str(mark))
    assert parsed(text) == text
