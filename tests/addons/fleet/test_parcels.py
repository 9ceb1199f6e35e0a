"""What is sent to other machines, and how machines are compared."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from addons.fleet import parcels, sameness
from addons.fleet.parcels import Parcel
from steps.core.errors import UserError


@pytest.fixture(autouse=True)
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


def folder(path: Path, weight: bytes = b"w") -> Path:
    (path / "inner").mkdir(parents=True)
    (path / "inner" / "weights").write_bytes(weight)
    (path / "config.json").write_text("{}")
    return path


def test_a_folder_arrives_as_it_is(tmp_path: Path) -> None:
    parcel = Parcel.of(folder(tmp_path / "adapter"))
    assert not parcel.is_here()
    path = parcel.unpack(parcel.pack())
    assert path.name == "adapter"
    assert (path / "inner" / "weights").read_bytes() == b"w"
    assert parcel.is_here()
    assert path == parcel.path() == parcel.unpack(b"not read again")


def test_a_file_arrives_too(tmp_path: Path) -> None:
    (tmp_path / "template.jinja").write_text("{{ messages }}")
    parcel = Parcel.of(tmp_path / "template.jinja")
    assert parcel.unpack(parcel.pack()).read_text() == "{{ messages }}"


def test_the_hash_follows_name_and_content_and_not_the_place(tmp_path: Path) -> None:
    first, same = folder(tmp_path / "a" / "adapter"), folder(tmp_path / "b" / "adapter")
    assert Parcel.of(first).digest == Parcel.of(same).digest
    (same / "config.json").write_text("{ }")
    assert Parcel.of(first).digest != Parcel.of(same).digest


def test_the_same_content_under_two_names_arrives_under_both(tmp_path: Path) -> None:
    for source in (folder(tmp_path / "adapter"), folder(tmp_path / "older adapter")):
        parcel = Parcel.of(source)
        assert (parcel.unpack(parcel.pack()) / "config.json").is_file()


def test_content_of_another_hash_is_refused(tmp_path: Path) -> None:
    parcel, other = Parcel.of(folder(tmp_path / "a")), Parcel.of(folder(tmp_path / "x" / "a", b"other"))
    with pytest.raises(ValueError, match="was sent"):
        parcel.unpack(other.pack())
    assert not parcel.is_here()


def test_what_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parcels, "LARGEST", 1)
    with pytest.raises(UserError, match="the name of a model on the Hugging Face Hub"):
        Parcel.of(folder(tmp_path / "base")).pack()


def test_a_folder_that_others_can_enter_is_not_used(own_store: Path) -> None:
    (own_store / f"agent-flywheel-parcels-{os.getuid()}").mkdir(mode=0o777)
    (own_store / f"agent-flywheel-parcels-{os.getuid()}").chmod(0o777)
    with pytest.raises(UserError, match="open to others"):
        parcels.store()


def test_what_nobody_used_for_a_day_is_forgotten(tmp_path: Path) -> None:
    old, new = Parcel.of(folder(tmp_path / "old", b"1")), Parcel.of(folder(tmp_path / "new", b"2"))
    path = old.unpack(old.pack())
    os.utime(path.parent, (0, time.time() - 2 * parcels.UNUSED))
    new.unpack(new.pack())
    assert new.is_here()
    assert not old.is_here()


def test_this_machine_is_like_itself() -> None:
    assert sameness.difference(sameness.facts(), sameness.facts()) == ""


def test_a_difference_is_named() -> None:
    here = sameness.facts()
    there = here | {"torch": "2.1.0", "torch's CPU capability": "DEFAULT"}
    text = sameness.difference(here, there)
    assert f"torch: {here['torch']} here, 2.1.0 there" in text
    assert "torch's CPU capability" in text
    assert "none there" in sameness.difference({"vllm": "0.32.0"}, {"vllm": ""})


def test_instructions_are_read_from_the_kernels_list(tmp_path: Path) -> None:
    (tmp_path / "cpuinfo").write_text("processor: 0\nflags\t: fpu avx2 fma avx512f\n")
    assert sameness.instructions(tmp_path / "cpuinfo") == "avx2 fma avx512f"
    assert sameness.instructions(tmp_path / "nothing") == ""
