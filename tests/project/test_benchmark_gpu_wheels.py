"""What `make gpu-wheels` does to a library and to a folder of packages, on a small made-up library."""

from __future__ import annotations

import random
import shutil
import struct
from pathlib import Path

import pytest

from benchmarks.gpu import wheels
from benchmarks.gpu.wheels import CUBIN, PTX

Entry = tuple[int, int, bytes]  # kind, compute capability times ten, code
NEWER = [(CUBIN, 80, b"a" * 24), (CUBIN, 90, b"b" * 40), (PTX, 90, b"c" * 16)]
SOURCES = [(PTX, 75, b"d" * 16), (PTX, 80, b"e" * 24), (PTX, 120, b"f" * 8), (CUBIN, 120, b"g" * 32)]


def container(entries: list[Entry]) -> bytes:
    """Machine code as the CUDA compiler wraps it: a header of 16 bytes, and one of 64 before each code."""
    body = b"".join(
        struct.pack("<HHIQ12xI32x", kind, 0x101, 64, len(code), capability) + code for kind, capability, code in entries
    )
    return struct.pack("<IHHQ", wheels.CONTAINER, 1, 16, len(body)) + body


def library(parts: dict[str, bytes]) -> bytes:
    """A 64-bit ELF file with these sections and nothing else that is read."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*parts, ".shstrtab"))
    contents, heads = b"", struct.pack("<IIQQQQIIQQ", *[0] * 10)
    for name, content in {**parts, ".shstrtab": names}.items():
        place = names.index(b"\0" + name.encode() + b"\0") + 1
        heads += struct.pack("<IIQQQQIIQQ", place, 1, 0, 0, 64 + len(contents), len(content), 0, 0, 8, 0)
        contents += content + bytes(-len(content) % 8)
    number = len(parts) + 2
    start = struct.pack("<4sB35xQI6HQ", b"\x7fELF", 2, 64 + len(contents), 0, 64, 0, 0, 64, number, number - 1, 0)[:64]
    return start + contents + heads


def made() -> bytes:
    same = container(NEWER)
    return library({".text": same, ".nv_fatbin": same + bytes(16) + container(SOURCES), "__nv_relfatbin": same})


def test_a_library_keeps_what_the_card_runs_and_its_size() -> None:
    before = made()
    assert [name for name, _, _ in wheels.sections(before)] == [
        "", ".text", ".nv_fatbin", "__nv_relfatbin", ".shstrtab",
    ]  # fmt: skip
    data = bytearray(before)
    kept, gone = wheels.strip(data, 90)
    assert kept == {"sm90": 80, "ptx80": 24}
    assert gone == {"sm80": 48, "ptx90": 32, "ptx75": 16, "ptx120": 8, "sm120": 32}
    text = before.index(container(NEWER))
    end = text + len(container(NEWER))
    # .text is not touched, though it looks the same
    assert (len(data), bytes(data[:end])) == (len(before), before[:end])
    left = {letter: data[end:].count(letter * 8) for letter in (b"a", b"b", b"c", b"d", b"e", b"f", b"g")}
    assert left == {b"a": 0, b"b": 10, b"c": 0, b"d": 0, b"e": 3, b"f": 0, b"g": 0}


@pytest.mark.parametrize(("card", "kinds"), [(86, {"sm80", "ptx80"}), (75, {"ptx75"}), (121, {"ptx90", "sm120"})])
def test_another_card_keeps_other_code(card: int, kinds: set[str]) -> None:
    assert set(wheels.strip(bytearray(made()), card)[0]) == kinds


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Installed packages, of which the library is a link to a cache."""
    (tmp_path / "cached.so").write_bytes(made())
    site = tmp_path / "here" / wheels.SITE
    for name in ("vllm/third_party/pynvml.py", "vllm/third_party/kernels/a.py", "vllm/vllm-rs", "bin/vllm"):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(name)
    (site / "vllm/kernels.so").hardlink_to(tmp_path / "cached.so")
    (site / "vllm/weights.bin").write_bytes(random.Random(0).randbytes(9000))
    return tmp_path / "here"


def test_pieces_that_come_one_after_another_are_joined(folder: Path, tmp_path: Path) -> None:
    pieces = wheels.pack(folder, 90, piece=4000)
    assert len(pieces) == 3
    assert all(piece.stat().st_size <= 4000 for piece in pieces)
    assert (tmp_path / "cached.so").read_bytes() == made()
    way, target = tmp_path / "way", tmp_path / "there"
    for number, piece in enumerate(reversed(pieces), 1):
        way.mkdir()
        shutil.copy2(folder / wheels.LIST, way)
        piece.rename(way / piece.name)
        assert wheels.unpack(way, target) == (number == 3)
        shutil.rmtree(way)
    arrived = sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file())
    names = ("vllm/kernels.so", "vllm/third_party/pynvml.py", "vllm/weights.bin")
    assert arrived == [f"{wheels.SITE}/{name}" for name in names]
    for name in names:
        assert (target / wheels.SITE / name).read_bytes() == (folder / wheels.SITE / name).read_bytes()
    assert b"b" * 40 in (target / wheels.SITE / names[0]).read_bytes()


def test_a_damaged_piece_is_not_unpacked(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pieces = wheels.pack(folder, 90, piece=4000)
    pieces[1].write_bytes(pieces[1].read_bytes()[:-1] + b"?")
    assert not wheels.unpack(folder, tmp_path / "there")
    assert "missing, or damaged: vllm.01" in capsys.readouterr().err
    assert not (tmp_path / "there" / wheels.SITE).exists()
