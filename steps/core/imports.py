"""Importing large packages in less time."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Iterator

UNUSED = ("mlflow", "scipy", "sklearn", "wandb")  # TRL and transformers import them where they are installed


def import_lean(*modules: str) -> None:
    """Import modules that are not imported yet, without what they would import for nobody: torch, PEFT and TRL take 10 s of
    a core so, and 18 otherwise."""
    if absent := [name for name in modules if name not in sys.modules]:
        with uncollected(), hidden(*UNUSED):
            for name in absent:
                importlib.import_module(name)


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """Inside, no garbage is collected, which is a seventh of the time that large packages take to import. What they made is
    left out of all later collections."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextlib.contextmanager
def hidden(*packages: str) -> Iterator[None]:
    """Inside, these packages seem not to be installed, unless they are imported already: others import them only in case
    somebody uses them together. Afterwards they can be imported as usual."""
    absent = [name for name in packages if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # pyrefly: ignore[no-matching-overload]  # None: importing it fails
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]
