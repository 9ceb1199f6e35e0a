"""chain.yaml: which iterations a run has, which policies are evaluated, and which iteration is tested as the best.

The flow writes it as the run goes on, and dvc.yaml reads it. Beside each evaluation it says with what in run/000 it is
compared where the task has no rule: with the base policy's evaluation, or for the base policy itself the file that names it.
"""

from __future__ import annotations

import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from steps.core.errors import UserError
from steps.core.files import write_text
from steps.core.yaml_text import read_mapping

CHAIN = Path("chain.yaml")
HEADER = (
    "# Written by flows.train as a run goes on, read by dvc.yaml: which iterations there are, and which one is best on "
    "validation.\n"
)
BASE = "000"  # the policy before any iteration
ITSELF = "base.json"  # in run/000: names the base policy's adapter
AGAINST = (ITSELF, "evaluation", "test")  # in run/000: what an evaluation may be compared with
NAME = re.compile(r"\d{3}", re.ASCII)  # of an iteration


def iteration_name(iteration: int) -> str:
    """The name of an iteration's folder: 001, 002, …"""
    return f"{iteration:03d}"


def write_chain(iterations: int, best: int) -> None:
    """Write a chain of iterations 1 … `iterations`, of which `best` is tested and offered to the registry."""
    links = "\n".join(f'  "{iteration_name(i)}": {{prev: "{iteration_name(i - 1)}"}}' for i in range(1, iterations + 1))
    names = [iteration_name(i) for i in range(iterations + 1)]
    evaluated = "\n".join(compared(f'"{name}"', name, "evaluation") for name in names)
    tested = {"base": BASE, "best": iteration_name(best)}
    tests = "\n".join(compared(key, name, "test") for key, name in tested.items())
    pair = ", ".join(f'{key}: "{name}"' for key, name in tested.items())
    text = f"{HEADER}iterations:\n{links}\nevaluated:\n{evaluated}\ntested: {{{pair}}}\ntests:\n{tests}\n"
    if not CHAIN.exists() or CHAIN.read_text() != text:
        write_text(CHAIN, text)


def compared(key: str, name: str, evaluation: str) -> str:
    """The line of an evaluation of run/<name>, and what in run/000 it is compared with where the task has no rule."""
    return f'  {key}: {{name: "{name}", against: {ITSELF if name == BASE else evaluation}}}'


def read_chain(root: Path) -> dict[str, Any]:
    """The content of chain.yaml: "iterations", "evaluated", "tested" and "tests". UserError where there is no file, or
    where it is damaged: dvc.yaml writes the names in it into the commands of the stages."""
    path = root / "chain.yaml"
    if not path.exists():
        raise UserError(f"{path} does not exist: run from the project's root, or name it with --root")
    cure = "`git checkout chain.yaml` brings the committed one back"
    content = read_mapping(path.read_bytes(), path, cure)
    if problem := misshapen(content):
        raise UserError(f"{path}: {problem}; {cure}")
    return content


def listed(run: Path) -> frozenset[str] | None:
    """The iterations that belong to the run in a folder, by the chain.yaml beside it: a longer run before it, or one of
    another task, leaves folders there that the run never had. None where no chain.yaml says so, or a damaged one."""
    path = run.absolute().parent / CHAIN
    try:
        state = path.stat()
    except OSError:
        return None
    return _listed(path, state.st_mtime_ns, state.st_size)


@lru_cache(maxsize=16)
def _listed(path: Path, *_: int) -> frozenset[str] | None:
    """The names in a chain.yaml; further arguments change with the file."""
    with suppress(UserError, OSError):
        content = read_chain(path.parent)
        return frozenset([BASE, *(content.get("iterations") or ()), *(content.get("evaluated") or ())])
    return None


def misshapen(chain: dict[str, Any]) -> str:
    """What in a chain does not have the form that `write_chain` gives it; empty where all has."""
    for key in ("iterations", "evaluated", "tested", "tests"):
        if key == "evaluated" and isinstance(chain.get(key), list):  # of runs from before they could be compared
            continue
        if not isinstance(chain.get(key) or {}, dict):
            return f"{key} must be a mapping, not a {type(chain[key]).__name__}"
    iterations, evaluated, tested, tests = (
        chain.get(key) or {} for key in ("iterations", "evaluated", "tested", "tests")
    )
    links = [link.get("prev", BASE) if isinstance(link, dict) else BASE for link in iterations.values()]
    sides = [*(evaluated.values() if isinstance(evaluated, dict) else ()), *tests.values()]
    if not all(isinstance(side, dict) and side.get("against") in AGAINST for side in sides):
        return f"an evaluation must have a name, and be against one of {', '.join(AGAINST)}"
    names = [side.get("name") for side in sides]
    for name in [*iterations, *links, *evaluated, *filter(None, tested.values()), *names]:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            return f'{str(name)[:40]!r} is no name of an iteration, such as "001"'
    return ""
