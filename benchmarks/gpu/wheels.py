"""vLLM for a machine with a GPU and no network: trimmed to what one card needs, in pieces that travel one after another.

    make gpu-wheels                                                          # installs and packs
    python3 -m benchmarks.gpu.wheels unpack .flywheel/gpu-wheels /tmp/vllm   # there, after each piece or after all

`pack` leaves out what LEFT_OUT names, and zeroes the machine code of other cards in the libraries: their size stays, and
they compress to what one card needs. `unpack` keeps the pieces that have arrived, and unpacks them into site-packages in
the target once all are there. Only the standard library is needed, of Python 3.11.4 or later.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import lzma
import os
import shutil
import struct
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

PIECE = 45 * 2**20  # bytes
SITE = "site-packages"  # dill pickles what does not lie in a folder of this name by value, and fails
LIST = "pieces.json"  # each piece's name and hash
# FlashAttention 2 is for cards before Hopper; third_party has kernels for mixtures of experts, for MLA and for Blackwell;
# vllm-rs is a front end of its own.
LEFT_OUT = ("vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so", "vllm/third_party", "vllm/vllm-rs", "bin")
KEPT = ("vllm/third_party/__init__.py", "vllm/third_party/pynvml.py")
CONTAINER, PTX, CUBIN = 0xBA55ED50, 1, 2


def sections(data: bytes | bytearray) -> Iterator[tuple[str, int, int]]:
    """(name, offset, size) of each section of a 64-bit ELF file."""
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    heads = [struct.unpack_from("<IIQQQQ", data, table + number * size) for number in range(count)]
    for name, _, _, _, offset, length in heads:
        start = heads[names][4] + name
        yield data[start : data.index(0, start)].decode(), offset, length


def containers(data: bytearray) -> Iterator[list[tuple[int, int, int, int]]]:
    """The entries of each container of machine code: (kind, compute capability times ten, offset, bytes)."""
    for name, at, size in sections(data):
        end = at + size
        while name in (".nv_fatbin", "__nv_relfatbin") and at + 16 <= end:
            magic, _, header, length = struct.unpack_from("<IHHQ", data, at)
            if magic != CONTAINER:
                at += 8  # containers are aligned to it
                continue
            entries, entry = [], at + header
            at = min(entry + length, end)
            while entry + 32 <= at:
                kind, _, head, payload = struct.unpack_from("<HHIQ", data, entry)
                (capability,) = struct.unpack_from("<I", data, entry + 28)
                entries.append((kind, capability, entry + head, payload))
                entry += head + payload
            yield entries


def strip(data: bytearray, card: int) -> tuple[Counter[str], Counter[str]]:
    """Zero what a card of this compute capability (90: a Hopper) does not run: bytes that stay and that went, by kind.

    Cubins run on cards of the same generation that are not older. A container without one for the card keeps its newest PTX
    that the card's driver can translate.
    """
    kept, gone = Counter[str](), Counter[str]()
    for entries in containers(data):
        runs = {at for kind, made, at, _ in entries if kind == CUBIN and made // 10 == card // 10 and made <= card}
        sources = [(made, at) for kind, made, at, _ in entries if kind == PTX and made <= card]
        if not runs and sources:
            runs = {max(sources)[1]}
        for kind, made, at, size in entries:
            count = kept if at in runs else gone
            count[f"{'ptx' if kind == PTX else 'sm'}{made}"] += size
            if at not in runs:
                data[at : at + size] = bytes(size)
    return kept, gone


def trim(site: Path, card: int) -> None:
    """Leave out and zero what the card does not need. Files are replaced and not changed: they may be links to a cache."""
    spared = {name: (site / name).read_bytes() for name in KEPT if (site / name).exists()}
    for name in LEFT_OUT:
        path = site / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    for name, content in spared.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(content)
    for path in sorted(site.rglob("*.so*")):
        data = bytearray(path.read_bytes())
        if data[:5] != b"\x7fELF\x02":
            continue
        kept, gone = strip(data, card)
        if gone:
            path.unlink()
            path.write_bytes(data)
            tell(f"{path.relative_to(site)}: kept {sizes(kept)}; zeroed {sizes(gone)}")


def sizes(count: Counter[str]) -> str:
    return ", ".join(f"{name} {size / 2**20:.1f} MiB" for name, size in count.most_common()) or "nothing"


def pack(folder: Path, card: int, piece: int = PIECE) -> list[Path]:
    """Trim folder/site-packages, and write it to pieces of at most `piece` bytes beside it: their paths."""
    site, whole = folder / SITE, folder / "whole.tar.xz"
    trim(site, card)
    with tarfile.open(whole, "w:xz", preset=6) as archive:
        archive.add(site, arcname=SITE, filter=lambda info: None if "__pycache__" in info.name else info)
    written: list[Path] = []
    with whole.open("rb") as file:
        while block := file.read(piece):
            written.append(folder / f"vllm.{len(written):02d}")
            written[-1].write_bytes(block)
    whole.unlink()
    hashes = {path.name: digest(path) for path in written}
    (folder / LIST).write_text(json.dumps(hashes, indent=1) + "\n")
    for path in written:
        tell(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")
    return written


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def unpack(folder: Path, target: Path) -> bool:
    """Take the pieces that are in `folder` to `target`, and unpack them there if none is missing: whether that was so."""
    hashes = json.loads((folder / LIST).read_text())
    target.mkdir(parents=True, exist_ok=True)
    for name in hashes:
        if (folder / name).exists():
            shutil.copy2(folder / name, target)
    missing = [name for name, value in hashes.items() if not (target / name).exists() or digest(target / name) != value]
    if missing:
        tell(f"still missing, or damaged: {', '.join(missing)}")
        return False
    whole = target / "whole.tar.xz"
    with whole.open("wb") as file:
        for name in hashes:
            file.write((target / name).read_bytes())
            (target / name).unlink()
    shutil.rmtree(target / SITE, ignore_errors=True)
    with lzma.open(whole) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
        archive.extractall(target, filter="data")
    whole.unlink()
    tell(f"PYTHONPATH={os.fspath(target / SITE)}")
    return True


def tell(sentence: str) -> None:
    print(f"gpu-wheels: {sentence}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.wheels", description=(__doc__ or "").split("\n\n")[0]
    )
    verbs = parser.add_subparsers(dest="verb", required=True)
    packs = verbs.add_parser("pack", help="trim the folder's site-packages and write the pieces beside it")
    packs.add_argument("folder", type=Path)
    packs.add_argument("--card", type=int, default=90, help="its compute capability times ten (default: 90, a Hopper)")
    unpacks = verbs.add_parser("unpack", help="take over the pieces that are here, and unpack them once all are")
    unpacks.add_argument("folder", type=Path)
    unpacks.add_argument("target", type=Path)
    options = parser.parse_args()
    if options.verb == "pack":
        pack(options.folder, options.card)
    elif not unpack(options.folder, options.target):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
