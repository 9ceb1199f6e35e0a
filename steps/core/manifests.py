"""The files addon.toml, in which add-ons say what they bring (steps/core/ports.py).

What is wrong with one is kept as a sentence and raised by ports: an error is masked when it is made, and masking asks here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).absolute().parent.parent.parent / "addons"
MANIFEST = "addon.toml"


class AddOn(NamedTuple):
    """What addon.toml says of an add-on."""

    name: str  # its folder's
    about: str  # one sentence
    brings: dict[str, dict[str, str]]  # port -> name -> "module:attribute"
    needs: tuple[str, ...] = ()  # add-ons whose modules it imports
    fault: str = ""  # why it cannot be read


@functools.cache
def addons() -> tuple[AddOn, ...]:
    """The add-ons of this tree, by name."""
    return tuple(read(path) for path in sorted(folder().glob(f"*/{MANIFEST}")))


def folder() -> Path:
    """The folder addons/ of this tree, or where the package lies that was shipped beside steps/, as Ray does it."""
    spec = None if FOLDER.is_dir() else importlib.util.find_spec("addons")
    return Path(next(iter(spec.submodule_search_locations or [FOLDER]))) if spec else FOLDER


def read(path: Path) -> AddOn:
    """An add-on by its addon.toml."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        about, needs = content.pop("about"), tuple(content.pop("needs", ()))
    except (tomllib.TOMLDecodeError, KeyError) as problem:
        fault = f"{path} does not say what the add-on brings: {problem!r}"
        return AddOn(path.parent.name, "", {}, (), fault)
    return AddOn(path.parent.name, about, content, needs)


def every(port: str) -> Iterator[Any]:
    """The objects of all add-ons at a port, by the add-ons' names."""
    for addon in addons():
        for place in addon.brings.get(port, {}).values():
            yield load(place)


def load(place: str) -> Any:
    """The object that `module:attribute` names, or the module, whatever folder the process has gone to."""
    if (root := os.fspath(folder().parent)) not in sys.path:
        sys.path.append(root)
    module, _, attribute = place.partition(":")
    loaded = importlib.import_module(module)
    return getattr(loaded, attribute) if attribute else loaded
