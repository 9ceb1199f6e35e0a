"""What export writes beside the weights: a base model that loads from anywhere, how to use it, and readable files."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from pathlib import Path

import pytest

from addons.production.serving.server import Server
from environments.email_search import EmailSearch
from flows import export
from steps.core.params import Lora, Policy
from steps.kit import vllm_process
from steps.policy.loading import load_chat
from steps.policy.served import SERVER


def test_a_base_model_in_a_folder_has_an_absolute_path(tmp_path: Path) -> None:
    (tmp_path / "tasks_data/embedded_policy").mkdir(parents=True)
    assert export.absolute(tmp_path, Policy()).base_model == str(tmp_path / "tasks_data/embedded_policy")
    assert export.absolute(tmp_path, Policy(base_model="Qwen/Qwen3-0.6B")).base_model == "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize(
    ("mask", "file", "folder"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700), (0o002, 0o664, 0o775)]
)
def test_files_have_the_mode_of_the_umask(tmp_path: Path, mask: int, file: int, folder: int) -> None:
    (tmp_path / "out/inner").mkdir(parents=True, mode=0o700)
    (tmp_path / "out/inner/adapter_model.safetensors").touch(mode=0o600)
    before = os.umask(mask)
    try:
        export.make_readable(tmp_path / "out")
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    modes = [
        (tmp_path / name).stat().st_mode & 0o777 for name in ("out", "out/inner", "out/inner/adapter_model.safetensors")
    ]
    assert modes == [folder, folder, file]


@pytest.mark.parametrize("merged", [False, True])
def test_the_commands_options_are_those_of_the_server_that_is_tested(merged: bool) -> None:
    """tests/addons/production/test_serve.py starts vLLM with `Server.command`, and reads the tokens of the evaluation
    from it."""
    policy = Policy(base_model="org/some model", revision="abc", lora=Lora(rank=12))
    chat = load_chat(Policy(), EmailSearch)
    text = export.usage(policy, chat, "toy", merged)
    [block] = re.findall(r"```sh\n(.+)\n```", text)
    words = shlex.split(block)
    ours = Server("127.0.0.1", 8000, "toy", "key").command(policy, Path(), chat)
    assert words[:3] == ["python", "-m", SERVER]
    assert ours[0] == vllm_process.__name__, "the same, with limits on what callers send"
    assert {word for word in words if word.startswith("--")} <= set(ours)
    options = dict(itertools.pairwise(words))
    assert options["--model"] == ("." if merged else "org/some model")
    if merged:
        assert options["--served-model-name"] == "toy"
        assert "--enable-lora" not in words
    else:
        assert (options["--revision"], options["--max-lora-rank"], options["--lora-modules"]) == ("abc", "16", "toy=.")
