"""chain.yaml: which iterations a run has, which policies are evaluated, and which iteration is tested as the best.

The flow writes it as the run goes on, and dvc.yaml reads it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from steps.core.errors import UserError
from steps.core.files import write_text

CHAIN = Path("chain.yaml")
HEADER = (
    "# Written by flows.train as a run goes on, read by dvc.yaml: which iterations there are, and which one is best on "
    "validation.\n"
)
BASE = "000"  # the policy before any iteration


def iteration_name(iteration: int) -> str:
    """The name of an iteration's folder: 001, 002, …"""
    return f"{iteration:03d}"


def write_chain(iterations: int, best: int) -> None:
    """Write a chain of iterations 1 … `iterations`, of which `best` is tested and offered to the registry."""
    links = "\n".join(f'  "{iteration_name(i)}": {{prev: "{iteration_name(i - 1)}"}}' for i in range(1, iterations + 1))
    evaluated = ", ".join(f'"{iteration_name(i)}"' for i in range(iterations + 1))
    tested = f'{{base: "{BASE}", best: "{iteration_name(best)}"}}'
    text = f"{HEADER}iterations:\n{links}\nevaluated: [{evaluated}]\ntested: {tested}\n"
    if not CHAIN.exists() or CHAIN.read_text() != text:
        write_text(CHAIN, text)


def read_chain(root: Path) -> dict[str, Any]:
    """The content of chain.yaml: "iterations", "evaluated" and "tested". UserError where there is no file."""
    import yaml

    path = root / "chain.yaml"
    if not path.exists():
        raise UserError(f"{path} does not exist: run from the project's root, or name it with --root")
    return yaml.safe_load(path.read_text()) or {}
