"""A hostile model folder: no code of it runs, no other place is asked, and it ends with a sentence in reasonable time."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from steps.core.errors import UserError
from steps.core.params import Policy
from steps.policy import loading, template_limits
from steps.policy.adapter import FILES

OWN = Path("tasks_data/embedded_policy")


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the embedded policy; no address can be reached, and each try is a failure of the test."""
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("an address was asked"))
    return Path(shutil.copytree(OWN, tmp_path / "model"))


def change(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def policy(folder: Path) -> Policy:
    return Policy(base_model=str(folder))


def load(folder: Path) -> None:
    loading.load_tokenizer(policy(folder))
    loading.load_model(policy(folder), "cpu")


class Payload:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.mark),))


def pickled(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(folder / "ran")))


def own_code(folder: Path) -> None:
    (folder / "mine.py").write_text(f"import os\nos.mkdir({str(folder / 'ran')!r})\nclass Mine: pass\n")
    change(
        folder / "config.json",
        model_type="mine",
        auto_map={"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine"},
    )


def code_elsewhere(folder: Path) -> None:
    change(folder / "config.json", model_type="mine", auto_map={"AutoConfig": "evil/repository--mine.Mine"})


def own_tokenizer(folder: Path) -> None:
    (folder / "mine.py").write_text(f"import os\nos.mkdir({str(folder / 'ran')!r})\nclass Mine: pass\n")
    change(folder / "tokenizer_config.json", tokenizer_class="Mine", auto_map={"AutoTokenizer": ["mine.Mine", None]})
    (folder / "tokenizer.json").unlink()


def long_header(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**60) + content[8:])


def places_beyond_the_end(folder: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def an_adapter(folder: Path) -> None:
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "base_model_name_or_path": "evil/model"})
    )


def a_giant_tokenizer(folder: Path) -> None:
    with (folder / "tokenizer.json").open("r+b") as file:
        file.truncate(2**40)  # a sparse file


def no_tokenizer_but_a_name(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    change(folder / "config.json", _name_or_path="evil/model", tokenizer_class=None)


def a_link_to_a_private_file(folder: Path) -> None:
    private = folder.parent / "private"
    private.write_text("PRIVATE-WORDS")
    for name in ("config.json", "tokenizer_config.json"):
        (folder / name).unlink()
        (folder / name).symlink_to(private)


ATTACKS: dict[str, Callable[[Path], None]] = {
    "pickled weights": pickled,
    "code of its own": own_code,
    "code of another repository": code_elsewhere,
    "a tokenizer's code": own_tokenizer,
    "safetensors with a header of 2^60 bytes": long_header,
    "safetensors with places beyond the end": places_beyond_the_end,
    "an adapter that names another base model": an_adapter,
    "a tokenizer of a terabyte": a_giant_tokenizer,
    "a configuration that names another model": no_tokenizer_but_a_name,
    "links to a private file": a_link_to_a_private_file,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_folder_is_a_sentence(model: Path, attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ATTACKS[attack](model)
    with pytest.raises(UserError, match=r"policy\.base_model") as raised:
        load(model)
    assert not (model / "ran").exists()
    assert "PRIVATE-WORDS" not in str(raised.value)


TEMPLATES = {
    "loops without end": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a text of ten gigabytes": "{{ 'x' * 10**10 }}",
    "a text that doubles": "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "in a block that only transformers knows": "{% generation %}{{ '%2000000000d' % 1 }}{% endgeneration %}",
    "output without end": "{% for a in range(99999) %}{{ 'abcdefghijklmnopqrstuvwxyz' }}{% endfor %}",
}


@pytest.mark.parametrize("attack", TEMPLATES)
def test_a_chat_template_ends(model: Path, attack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_limits, "SECONDS", 1)
    (model / "chat_template.jinja").write_text(TEMPLATES[attack] + "{# " + str(model) + " #}")
    with pytest.raises(UserError, match=r"chat template of .* does not end within 1 seconds, 1 GiB"):
        loading.load_tokenizer(policy(model))


@pytest.mark.parametrize(
    "code",
    ["''.__class__.__mro__[1].__subclasses__()", "cycler.__init__.__globals__.os.mkdir('ran')", "messages.append(1)"],
)
def test_a_chat_template_cannot_leave_its_sandbox(model: Path, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import environments

    (model / "chat_template.jinja").write_text("{{ " + code + " }}")
    monkeypatch.chdir(model)
    with pytest.raises(UserError, match=r"policy\.base_model|chat template"):
        loading.load_chat(policy(model), environments.load("multiplication"))
    assert not (model / "ran").exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"base_model_name_or_path": "evil/model"},
        {"target_modules": ["lm_head", "embed_tokens"]},
        {"modules_to_save": ["lm_head"]},
        {"auto_mapping": {"base_model_class": "Mine", "parent_library": "mine"}, "r": 4096},
    ],
)
def test_an_adapter_of_something_else_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    import torch
    from safetensors.torch import save_file

    from addons.starts import sources

    config = {
        "peft_type": "LORA",
        "r": 8,
        "lora_alpha": 16,
        "base_model_name_or_path": str(OWN),
        "target_modules": ["q_proj"],
    }
    (tmp_path / FILES[0]).write_text("{}")
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | fields))
    save_file({"base_model.model.lm_head.lora_A.weight": torch.zeros(8, 8)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(UserError):
        sources.check(tmp_path, Policy(), sources.Brought(str(tmp_path), str(config["base_model_name_or_path"])))


@pytest.mark.parametrize(
    "name",
    [
        "tasks_data/no_such_policy",
        "./model",
        "/srv/models/x",
        "~/models/x",
        "models/mine",
        "a/b/c",
        "..\\x",
        "run/000/adapter",
    ],
)
def test_a_missing_folder_is_not_looked_up_on_the_hub(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from addons.planning import models

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the Hub was asked"))
    for ask in (loading.load_tokenizer, loading.load_model, models.shape_of):
        with pytest.raises(UserError, match=r"there is no .*; run the command in the project's folder"):
            ask(Policy(base_model=name))
