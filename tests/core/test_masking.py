"""What the core masks by itself, and that an add-on masks in its place where there is one."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from steps.core import manifests, masking, ports
from steps.core.errors import UserError
from steps.core.masking import MASK, Masker, MaskingFilter, masked, secrets_of
from tests.conftest import ROOT, run

SECRET = "plain-words-only"
KEY = "sk-" + "Zx9Kq2Lm8Np4Rt6Vw1Yb3Cd5"  # put together, because scanners look for such texts, too
# What a process says that goes to another folder before its first error, and the class by which it masks.
ELSEWHERE = """
import os, sys
from steps.core import errors
os.chdir("/")
print(errors.UserError(sys.argv[1]))
from steps.core.masking import Masker
print(type(Masker()).__module__)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of add-ons with none in it."""
    monkeypatch.setattr(manifests, "FOLDER", tmp_path)
    for cached in (manifests.addons, masking.finer):
        cached.cache_clear()
    yield tmp_path
    for cached in (manifests.addons, masking.finer):
        cached.cache_clear()


def test_what_is_known_exactly_is_masked_without_an_addon(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Settings(BaseModel):
        note: str

    @dataclass
    class Login:
        user: str
        words: list[str]

    text = f"it is {SECRET}."
    assert masked(text) == text
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    assert type(Masker()) is Masker
    masks = f"it is {MASK}."
    assert masked(text) == masks
    assert str(UserError(text)) == masks
    assert masked({"a": [text, (text, 1, None)], SECRET: {text}}) == {"a": [masks, (masks, 1, None)], MASK: [masks]}
    assert masked([Settings(note=text), Login("me", [text])]) == [{"note": masks}, {"user": "me", "words": [masks]}]
    assert masked(text.encode()) == masks.encode()
    assert masked(ValueError(text)) == masks
    assert masked(Path("a/b")) == "a/b"
    assert masked("git clone https://me:pa55@example.com/x.git") == f"git clone https://me:{MASK}@example.com/x.git"
    assert masked({"password": "x", "key": KEY}) == {"password": "x", "key": KEY}, "an add-on would recognise both"


def test_circles_and_depth_are_bounded_without_an_addon(folder: Path) -> None:
    circle: dict[str, Any] = {"a": 1}
    circle["self"] = [circle]
    assert masked(circle) == {"a": 1, "self": ["[refers to itself]"]}
    deep: Any = "bottom"
    for _ in range(100):
        deep = [deep]
    assert "[nested too deeply]" in repr(masked(deep))


def test_logs_are_masked_without_an_addon(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", SECRET)
    out = StringIO()
    handler = logging.StreamHandler(out)
    handler.addFilter(MaskingFilter())
    log = logging.Logger("tests.masking")
    log.addHandler(handler)
    log.warning("%s of %d", SECRET, 3)
    try:
        raise ValueError(SECRET)
    except ValueError:
        log.exception("failed")
    assert f"{MASK} of 3" in out.getvalue()
    assert f"ValueError: {MASK}" in out.getvalue()
    assert SECRET not in out.getvalue()


@pytest.mark.parametrize(
    ("name", "value", "secrets"),
    [
        ("HF_TOKEN", "looks harmless", {"looks harmless"}),
        ("AWS_ACCESS_KEY_ID", "abcdefgh", {"abcdefgh"}),
        ("LANGFUSE_SECRET_KEY", "not of the form", {"not of the form"}),
        ("PREFECT_API_AUTH_STRING", "admin:swordfish", {"admin:swordfish", "swordfish"}),
        ("FLYWHEEL_LEDGER_URL", "postgresql://u:tiger%40lily@db/x", {"tiger%40lily", "tiger@lily"}),
        ("FLYWHEEL_NOTIFY_URL", "slack://one/two/three", {"slack://one/two/three"}),
        ("TOKENIZERS_PARALLELISM", "false!", set()),
        ("SSH_AUTH_SOCK", "/tmp/ssh", set()),
        ("PWD", "/home/me", set()),
        ("HF_TOKEN", "short", set()),
        ("MONKEY", "looks harmless", set()),
    ],
)
def test_variables_that_hold_a_secret(name: str, value: str, secrets: set[str]) -> None:
    given = secrets_of(((name, value),), Masker.names_secret)
    assert {secret for secret in given if "%" not in secret or secret in value} == secrets


def test_an_addon_masks_in_its_place(folder: Path) -> None:
    assert masked(KEY) == KEY
    (folder / "own").mkdir()
    (folder / "own/addon.toml").write_text(f'about = "It is own."\n[masker]\nown = "{__name__}:Own"\n')
    for cached in (manifests.addons, masking.finer):
        cached.cache_clear()
    assert type(Masker()).__name__ == "Own"
    assert masked(["a", 1]) == ["a, masked by an add-on", 1]
    assert str(UserError("a")) == "a, masked by an add-on"


class Own(Masker):
    def text(self, text: str) -> str:
        return f"{text}, masked by an add-on"


def test_a_manifest_that_says_nothing_takes_no_masking_away(folder: Path) -> None:
    """Not even that of the error which names it."""
    (folder / "near").mkdir()
    (folder / "near/addon.toml").write_text("about = ")
    (folder / "own").mkdir()
    (folder / "own/addon.toml").write_text(f'about = "It is own."\n[masker]\nown = "{__name__}:Own"\n')
    with pytest.raises(UserError, match=r"near/addon\.toml does not say .*, masked by an add-on"):
        ports.addons()


def test_a_process_that_has_gone_to_another_folder_masks_as_well(tmp_path: Path) -> None:
    """The folder of `python -c` is no fixed one, and Ray lays each package into a folder of its own."""
    apart = {name: tmp_path / f"beside-{name}" for name in ("steps", "addons")}
    for name, place in apart.items():
        place.mkdir()
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    whole = [sys.executable, "-c", ELSEWHERE, f"the key is {KEY}"]
    for folder, variables in ((ROOT, {}), (tmp_path, {"PYTHONPATH": os.pathsep.join(map(os.fspath, apart.values()))})):
        done = run(whole, folder, **variables)
        assert done.stdout.splitlines() == [f"the key is {MASK}", "addons.masking.masker"], done.stderr
    shutil.rmtree(apart["addons"] / "addons")
    done = run(whole, tmp_path, PYTHONPATH=os.fspath(apart["steps"]), MY_API_KEY=KEY)
    assert done.stdout.splitlines() == [f"the key is {MASK}", "steps.core.masking"], done.stderr
