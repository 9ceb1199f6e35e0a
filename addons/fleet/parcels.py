"""Folders and files that other machines get, each once, by the hash of what is in them.

    parcel = Parcel.of(Path("run/007/adapter"))
    parcel.pack()                  # bytes, on the machine that has it
    parcel.unpack(content)         # its path on the machine that gets it; `parcel.path()` from then on

A machine keeps them in a folder of its user's own, and forgets those that nobody has used for a day.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import shutil
import tarfile
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from steps.core.errors import UserError

LARGEST = 4 * 2**30  # bytes of what is sent
WHOLE = (
    64 * 2**20
)  # bytes of a file up to which all of it is hashed; of a larger one its size, its beginning and its end
END = 2**20
UNUSED = 86400.0  # seconds


def store() -> Path:
    """Where this machine keeps parcels: a folder that no other user may enter. UserError where it is somebody else's."""
    folder = Path(tempfile.gettempdir()) / f"agent-flywheel-parcels-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or folder.is_symlink() or status.st_mode & 0o077:
        raise UserError(f"{folder} belongs to another user or is open to others; remove it, or set TMPDIR")
    return folder


class Parcel(NamedTuple):
    """What is sent: where it lies here, and the hash of its name and content."""

    source: str
    digest: str

    @classmethod
    def of(cls, source: Path) -> Parcel:
        """The parcel of a folder or a file. Hashes it."""
        digest = hashlib.sha256(source.name.encode())
        for path in contents(source):
            size = path.stat().st_size
            digest.update(f"{path.relative_to(source)}\0{size}\0".encode())
            with path.open("rb") as file:
                if size <= WHOLE:
                    digest.update(file.read())
                else:
                    digest.update(file.read(END))
                    file.seek(-END, os.SEEK_END)
                    digest.update(file.read(END))
        return cls(str(source), digest.hexdigest()[:24])

    def path(self) -> Path:
        """Where it lies on a machine that has got it."""
        return store() / self.digest / Path(self.source).name

    def is_here(self) -> bool:
        """Whether this machine has got it. It is then kept for another day."""
        here = self.path()
        with contextlib.suppress(FileNotFoundError):
            os.utime(here.parent)
        return here.exists()

    def pack(self) -> bytes:
        """Its content. UserError where it is too large to be sent."""
        source = Path(self.source)
        size = sum(path.stat().st_size for path in contents(source))
        if size > LARGEST:
            raise UserError(
                f"{source} has {size / 2**30:.1f} GiB, and at most {LARGEST / 2**30:.0f} are sent to other machines: give "
                "the name of a model on the Hugging Face Hub, which each machine downloads by itself"
            )
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path in contents(source):
                name = Path(source.name) / path.relative_to(source)
                entry = tarfile.TarInfo(str(name))
                entry.size = path.stat().st_size
                with path.open("rb") as file:
                    archive.addfile(entry, file)
        return buffer.getvalue()

    def unpack(self, content: bytes) -> Path:
        """Put it into this machine's folder, where it is not there yet, and return its path. ValueError where the content
        has another hash."""
        if self.is_here():
            return self.path()
        forget_unused()
        folder = Path(tempfile.mkdtemp(prefix="new-", dir=store()))
        try:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                archive.extractall(folder, filter="data")
            got = Parcel.of(folder / Path(self.source).name)
            if got.digest != self.digest:
                raise ValueError(f"{self.source}: what came has the hash {got.digest}, and {self.digest} was sent")
            with contextlib.suppress(OSError):  # another process of this machine was faster
                folder.rename(store() / self.digest)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        return self.path()


def contents(source: Path) -> list[Path]:
    """The files of a folder, or the file itself, in a fixed order."""
    if source.is_file():
        return [source]
    return sorted(path for path in source.rglob("*") if path.is_file() and "__pycache__" not in path.parts)


def forget_unused() -> None:
    """Delete what has not been used for a day."""
    for folder in store().iterdir():
        with contextlib.suppress(OSError):
            if folder.is_dir() and time.time() - folder.stat().st_mtime > UNUSED and folder.name != "cores":
                shutil.rmtree(folder)
