"""The house in figures: what the main job reaches, what the product holds, and what LAYOUT's targets are.

    python -m tests.project.house             # a table, and what breaks a limit
    python -m tests.project.house --modules   # what the main job reaches, by room, and the largest modules

The main job is `flows.train` with the task email_search and the stages that it runs. It reaches what these import, wherever
the import stands, types excepted. What a port brings (steps/core/ports.py) where params.yaml names it is not; what every run
asks all add-ons for, such as trackers, is counted in a figure of its own.
tests/project/test_house.py holds the figures to what they are today, so that they may only fall.
"""

from __future__ import annotations

import argparse
import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel

import environments
from steps.core import ports
from steps.core.params import Params
from tests.project.test_layout import ROOT, imports, imports_of_addons, modules
from tests.support.sources import nodes

MAIN_JOB = (
    "flows.train",
    "environments.email_search",
    *(f"steps.{stage}" for stage in "code scenarios initialise rollout score update evaluate register".split()),
)
CORE = ("environments", "steps", "flows")
MOST_ARGUMENTS, MOST_LINES = 8, 350


class Figure(NamedTuple):
    """A measured figure, what it was before the house was built anew, and what it should come to."""

    name: str
    value: int
    before: int
    target: int


def ours(names: dict[str, ast.Module]) -> dict[str, ast.Module]:
    """Without the tasks that are one module, as `make new-task` writes a person's own: the project's are folders."""
    own = {f"environments.{task}" for task in environments.tasks() if not (ROOT / "environments" / task).is_dir()}
    return {name: tree for name, tree in names.items() if name not in own}


def lines_of(module: str, root: Path = ROOT) -> int:
    path = root / f"{module.replace('.', '/')}.py"
    path = path if path.exists() else root / module.replace(".", "/") / "__init__.py"
    return len(path.read_text(encoding="utf-8").splitlines())


def reached(starts: Iterable[str], names: dict[str, ast.Module]) -> set[str]:
    """The modules that these import, directly or not, and themselves."""
    graph = {name: imports(tree, names, types=False) for name, tree in names.items()}
    seen, queue = set[str](), [name for name in starts if name in names]
    while queue:
        if (name := queue.pop()) not in seen:
            seen.add(name)
            queue += graph[name]
    return seen


def with_ports(job: set[str], names: dict[str, ast.Module]) -> set[str]:
    """The same, with what add-ons bring to the ports of which these modules ask for all, and to params.yaml."""
    while True:
        calls = (node for name in job for node in nodes(names[name]) if isinstance(node, ast.Call) and node.args)
        named = ((getattr(call.func, "id", getattr(call.func, "attr", "")), call.args[0]) for call in calls)
        asked = [port for function, port in named if function == "every"]
        wanted = {"section", *(ast.literal_eval(port) for port in asked if isinstance(port, ast.Constant))}
        places = [addon.brings.get(port, {}).values() for addon in ports.addons() for port in wanted]
        more = reached([*job, *(place.partition(":")[0] for some in places for place in some)], names)
        if more == job:
            return job
        job = more


def settings() -> tuple[int, int]:
    """(of the core, in all) the fields of params.yaml that hold a value and no section; those of a section that stands at
    several places once. What add-ons bring (steps/core/section.py) is not the core's."""
    core = total = 0
    kinds: set[type[BaseModel]] = {Params, *sections_in_all(Params)}
    for kind in kinds:
        bases = [base for base in kind.__mro__ if base.__module__.startswith("addons.")]
        brought = {name for base in bases for name in base.__annotations__}
        values = {name for name, field in kind.model_fields.items() if not list(sections_in(field.annotation))}
        core, total = core + len(values - brought), total + len(values)
    return core, total


def sections_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in getattr(annotation, "__args__", ()):
        yield from sections_in(part)


def long_signatures(names: dict[str, ast.Module]) -> list[str]:
    """Functions with more than MOST_ARGUMENTS arguments, stages excepted: theirs are options of a command."""
    result = []
    for name, tree in names.items():
        for node in nodes(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = len([each for each in given if each.arg not in ("self", "cls")])
                kinds = (ast.unparse(each.annotation) for each in given if each.annotation)
                if count > MOST_ARGUMENTS and not {"Input", "Output"} & set(kinds):
                    result.append(f"{name}.{node.name}: {count} arguments")
    return result


def long_files(names: Iterable[str]) -> list[str]:
    return [f"{name}: {count} lines" for name in names if (count := lines_of(name)) > MOST_LINES]


def figures() -> list[Figure]:
    """What is measured, today."""
    names = ours(modules(ROOT))
    main_job = reached(MAIN_JOB, names)
    whole_job = with_ports(main_job, names)
    core = [name for name in names if name.partition(".")[0] in CORE]
    core_settings, all_settings = settings()
    return [
        Figure("lines that the main job reaches", sum(map(lines_of, main_job)), 40458, 14000),
        Figure("modules that the main job reaches", len(main_job), 246, 90),
        Figure("lines with what it asks all add-ons for", sum(map(lines_of, whole_job)), 40458, 0),
        Figure("lines of the product", sum(map(lines_of, names)), 70496, 44000),
        Figure("modules of the product", len(names), 451, 280),
        Figure("lines of environments, steps and flows", sum(map(lines_of, core)), 68571, 0),
        Figure("settings of the core", core_settings, 188, 60),
        Figure("settings in all", all_settings, 188, 125),
        Figure("lines of dvc.yaml", len((ROOT / "dvc.yaml").read_text().splitlines()), 712, 180),
        Figure("functions with more than 8 arguments", len(long_signatures(names)), 14, 0),
        Figure("files over 350 lines", len(long_files(names)), 23, 0),
        Figure("imports of an add-on by the core", len(imports_of_addons(ROOT)), 29, 0),
    ]


def sections_in_all(section: type[BaseModel]) -> set[type[BaseModel]]:
    inner = {kind for field in section.model_fields.values() for kind in sections_in(field.annotation)}
    return inner.union(*(sections_in_all(kind) for kind in inner if kind is not section))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", action="store_true", help="what the main job reaches, by room")
    if parser.parse_args().modules:
        main_job = reached(MAIN_JOB, modules(ROOT))
        rooms = Counter[str]()
        for name in main_job:
            rooms[".".join(name.split(".")[:2])] += lines_of(name)
        for room, count in rooms.most_common():
            print(f"{count:6} {room}")
        for name in sorted(main_job, key=lines_of, reverse=True)[:30]:
            print(f"{lines_of(name):6} {name}")
        return
    print(f"{'':40}{'before':>8}{'today':>8}{'target':>8}")
    for figure in figures():
        print(f"{figure.name:40}{figure.before:>8,}{figure.value:>8,}{figure.target or '':>8}")
    names = modules(ROOT)
    for line in [*long_signatures(names), *long_files(names)]:
        print(f"  {line}")


if __name__ == "__main__":
    main()
