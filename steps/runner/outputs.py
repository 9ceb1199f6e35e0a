"""A stage's outputs have temporary names until all are complete and on the disk; then they are renamed."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
from pathlib import Path

from steps.core import errors, files
from steps.kit.process import alive


class Outputs:
    """The outputs of one running stage, under temporary names. When the `with` block ends without an error they are renamed;
    otherwise they are removed, and earlier outputs stay."""

    def __init__(self, finals: dict[str, Path], inputs: list[Path]) -> None:
        self.lock = threading.Lock()  # outputs are either put in place or abandoned
        for name, final in finals.items():
            others = [Path.cwd(), *inputs, *(p for other, p in finals.items() if other != name)]
            if hit := next((p for p in others if p.resolve().is_relative_to(final.resolve())), None):
                raise errors.UserError(f"--{name}: {final} would replace {hit}; give it a path of its own")
        self.finals = {name: final.absolute() for name, final in finals.items()}  # a stage may change the folder
        self.temporary = {name: p.with_name(f".tmp-{os.getpid()}.{p.name}") for name, p in self.finals.items()}
        self.made = [parent for p in self.finals.values() for parent in p.parents if not parent.exists()]

    def __enter__(self) -> Outputs:
        for final in self.finals.values():
            final.parent.mkdir(parents=True, exist_ok=True)
            for path in final.parent.iterdir():
                leftover = re.fullmatch(rf"\.(?:tmp|old)-(\d+)\.{re.escape(final.name)}", path.name)
                if leftover and ((pid := int(leftover[1])) == os.getpid() or not alive(pid)):
                    _remove_or_restore(path, final)
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        with self.lock:
            try:
                if kind is None:
                    self._put_in_place()
            finally:
                self.discard()

    def _put_in_place(self) -> None:
        for name, path in self.temporary.items():
            if not path.exists():
                raise RuntimeError(f"the stage returned without writing --{name} ({self.finals[name]})")
            files.flush(path)
        for name, final in self.finals.items():
            aside = final.with_name(f".old-{os.getpid()}.{final.name}")
            if final.is_dir() or (self.temporary[name].is_dir() and os.path.lexists(final)):
                if files.exchange(self.temporary[name], final):
                    continue  # `discard` removes the old one, which now has the temporary name
                final.rename(aside)  # a kill between here and the next rename is mended by the next start
            try:
                self.temporary[name].rename(final)
            finally:
                _remove_or_restore(aside, final)

    def discard(self) -> None:
        """Remove unfinished outputs. This is tried 20 times, because the stage may still be writing in another thread."""
        for name, path in self.temporary.items():
            for _ in range(20):
                _remove_or_restore(path, self.finals[name])
        for parent in self.made:
            with contextlib.suppress(OSError):  # not empty: it holds other results
                parent.rmdir()


def _remove_or_restore(path: Path, final: Path) -> None:
    """Remove a leftover, unless it is an old result that was moved aside and has no successor: that is moved back."""
    if path.name.startswith(".old-") and os.path.lexists(path) and not os.path.lexists(final):
        path.rename(final)
    else:
        try:
            path.unlink(missing_ok=True)
        except IsADirectoryError:
            shutil.rmtree(path, ignore_errors=True)
