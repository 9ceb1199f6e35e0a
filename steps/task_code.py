"""Task code: the files of environments/ that the run's task is made of, with a hash of each.

The stages that play or judge the task depend on this list and not on the whole folder, so a new task, or an edit to another
one, leaves their results as they are. The list has the task's module, what every task needs, and all in the folder that
these import, directly or not, wherever the import stands. A file that a module names in a string is on it, too: such files
run in processes of their own. A module elsewhere (`my_package.my_task`) is not: DVC knows nothing of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from steps.core.errors import UserError
from steps.core.progress import say
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from steps.core.params import TaskCodeParams

EVERY_TASK = (
    "__init__.py",
    "_two_sided.py",
    "kit/__init__.py",
    "kit/http_client.py",
)  # with what they import, this is what the stages import of the folder


def task_code(environments: Input, listing: Output, params: TaskCodeParams) -> None:
    """Write {path: SHA-256 in hex} as JSON."""
    import hashlib
    import json

    files = files_of(environments, list(params.tasks or [params.task]))
    hashes = {file.as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    listing.write_text(json.dumps(hashes, indent=2) + "\n")
    say(f"{len(files)} files")


def files_of(folder: Path, tasks: list[str]) -> list[Path]:
    """The files in the folder `environments` that these tasks are made of. UserError where one is no Python."""
    files = set[Path]()
    queue = [folder / name for name in EVERY_TASK] + [file for task in tasks for file in own_files(folder, task)]
    while queue:
        file = queue.pop()
        if file not in files:
            files.add(file)
            queue += named_files(folder, file)
    return sorted(files)


def own_files(folder: Path, task: str) -> list[Path]:
    """A task's own module, or the adapter of the package that has it (environments/_packages.py)."""
    package, is_packaged, _ = task.partition(":")
    if is_packaged:
        return [file for kind in ("_", "_package_") if (file := folder / f"{kind}{package}.py").is_file()]
    return files_by_name(folder, task if "." in task else f"{folder.name}.{task}")


def named_files(folder: Path, file: Path) -> Iterator[Path]:
    """The files of the folder that one of them imports, or names in a string: `_runner.py`, `environments._runner`."""
    if file.suffix != ".py":
        return
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except SyntaxError as problem:
        raise UserError(f"{file}, line {problem.lineno}: {problem.msg}") from None
    package = file.parent.relative_to(folder.parent).parts
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names = [alias.name for alias in aliases]
            case ast.ImportFrom(module=module, names=aliases, level=level):
                parts = [*(package[: len(package) + 1 - level] if level else ()), *([module] if module else ())]
                names = [".".join([*parts, alias.name]) for alias in aliases]
            case ast.Constant(value=str(text)) if text.endswith(".py") or text.startswith(f"{folder.name}."):
                names = [text if text.startswith(f"{folder.name}.") else f"{folder.name}.{text.removesuffix('.py')}"]
            case _:
                continue
        for name in names:
            yield from files_by_name(folder, name)


def files_by_name(folder: Path, name: str) -> list[Path]:
    """The files of a dotted name in the folder: a module, that of something in a module, or all files of a package."""
    first, *parts = name.split(".")
    path = folder
    for part in parts if first == folder.name else ():
        path = path / part
        if path.with_suffix(".py").is_file():
            return [path.with_suffix(".py")]
        if not path.is_dir():
            return []
    if path == folder:
        return []
    return [file for file in sorted(path.rglob("*")) if file.is_file() and "__pycache__" not in file.parts]


if __name__ == "__main__":
    main(task_code)
