"""Code: for each stage the files of steps/, environments/ and addons/ that it runs, with a hash of each.

A stage depends on its own list and not on whole folders, so a new task, or an edit to another one, to an add-on that
params.yaml does not name, or to a page of the viewer leaves its results as they are. A list has the stage's module and
all that it imports, directly or not, wherever the import stands; of the tasks of params.yaml the modules, and what
these import or name in a string, since such files run in processes of their own; and of an add-on what a port brings
(steps/core/ports.py). Modules of a person's own beside these folders (`my_package.my_task`, or what a task imports there)
are on the lists, too; a task of an installed package is on none: DVC knows nothing of it.

Left out are modules that decide nothing about what is in an output, such as how a line is shown: `NOT_IN_OUTPUTS`.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.core.files import own_modules
from steps.core.progress import say
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from steps.core.params import CodeParams

# With what they import, this is what the stages import of the folder; and what `load` imports by name.
EVERY_TASK = tuple(
    "__init__.py kit/__init__.py kit/http_client.py kit/agents.py kit/mixed.py bridges/packages.py".split()
)
OWN_POLICIES = ("tasks_data/embedded_policy", "tasks_data/general_policy")  # whose turns and model_type are known
# Arguments in and bytes out; errors, lines and progress that a person sees, masked; how addon.toml is read, for the modules
# that it names are listed; how a file is put in place; and how processes of this machine are started, ended, and kept from
# each other.
SHOWN = "cores errors files manifests masking progress terminal"
NOT_IN_OUTPUTS = {"steps/runner", *(f"steps/core/{name}.py" for name in SHOWN.split())}
NOT_IN_OUTPUTS |= {f"steps/kit/{name}.py" for name in ("lock", "process", "sockets")}


def code(steps: Input, environments: Input, addons: Input, listings: Output, params: CodeParams) -> None:
    """Write <stage>.json for each stage into `listings`: {path: SHA-256 in hex}."""
    import hashlib
    import json

    imports = Imports(steps.parent, named_by(params, environments))
    names = list(params.tasks or [params.task])
    tasks = files_of(environments, names)
    tasks += sorted(imports.own_of(tasks, [name for name in names if "." in name and ":" not in name]))
    hashes = dict[Path, str]()
    listings.mkdir()
    for stage, module in stages(steps.parent).items():
        files = imports.closure(module)
        if any(imports.loads_tasks(file) for file in files):
            files |= set(tasks)
        for file in files - hashes.keys():
            hashes[file] = hashlib.sha256(file.read_bytes()).hexdigest()
        content = {file.relative_to(steps.parent).as_posix(): hashes[file] for file in sorted(files)}
        (listings / f"{stage}.json").write_text(json.dumps(content, indent=2) + "\n")
    say(f"{len(hashes)} files, {len(tasks)} of them what the task is made of")


def stages(root: Path) -> dict[str, str]:
    """Name -> module of every stage that dvc.yaml runs, but this one."""
    from steps.core import ports

    own = {path.stem: f"steps.{path.stem}" for path in sorted((root / "steps").glob("[!_]*.py")) if path.stem != "code"}
    brought = (place.partition(":")[0] for addon in ports.addons() for place in addon.brings.get("stage", {}).values())
    return own | {module.rpartition(".")[2]: module for module in brought}


def named_by(params: CodeParams, environments: Path) -> dict[str, list[str]]:
    """By port, the names by which a stage asks for what add-ons bring, where params.yaml decides it."""
    from steps.core.ports import names
    from steps.core.section import at
    from steps.judging.judge import asked
    from steps.training.terms import asking

    own = (params.policy.chat_template, params.policy.tool_parser, params.policy.reasoning_parser)
    is_known = params.policy.base_model in OWN_POLICIES and own == (None, None, None)
    is_agent = any(may_be_agent(environments, task) for task in params.tasks or [params.task])
    is_compared = (at(params, "score.ruler") or at(params, "evaluate.judge")) is not None
    return {
        "sampler": [params.policy.kind],
        "player": [params.policy.kind],
        "launcher": [at(params, "update.launcher") or "none"],
        "processes": ["shared"] * (at(params, "update.launcher") not in (None, "none")),
        "weights": ["gguf"] * params.policy.is_gguf,
        "family": [] if is_known else names("family"),
        "turns": [] if is_known else names("turns"),
        "vision": [] if is_known else names("vision"),
        "template": [params.policy.chat_template or ""],
        "sharing": ["weights"] * bool(at(params, "policy.share_weights")),
        "grammar": ["xgrammar"] * is_agent,
        "probe": [params.policy.kind],
        "term": asking(params.update.lagging()),  # which a batch may be
        "advantages": [at(params, "update.advantages") or "grpo"],
        "parts": [at(params, "update.multi_objective_aggregation") or ""],
        "punishment": [params.update.truncated_completions],
        "agents": ["gateway"] * is_agent,
        "judge": asked(params.score),
        "comparison": ["pairs"] * is_compared,
        "reference": ["baselines"] * bool(at(params, "evaluate.references")),
        "drawing": [name for name in ("resample", "curriculum") if at(params, f"rollout.{name}")],
        "opponent": ["rival"] * (at(params, "rollout.opponent") is not None),
        "generated": ["supervised"] * bool(at(params, "scenarios.generated")),
        "scenarios": [name for name in names("scenarios") if at(params.scenarios, name) is not None],
    }


def may_be_agent(environments: Path, task: str) -> bool:
    """Whether a task is an agent of one's own, as far as its file tells; nothing is known of a task elsewhere."""
    texts = [file.read_text(encoding="utf-8") for file in own_files(environments, task) if file.suffix == ".py"]
    return not texts or any(word in text for word in ("def rollout(", "import rollout", "AgentEnv") for text in texts)


class Imports:
    """What modules of the project's packages import; `named` are the names that are asked for at ports."""

    def __init__(self, root: Path, named: dict[str, list[str]]) -> None:
        self.root, self.named = root, named
        self.own = {path.name for path in own_modules(root)}  # a person's own, in the root
        self.read = dict[Path, tuple[set[Path], bool]]()  # file -> what it imports, and whether it loads tasks by name

    def closure(self, module: str) -> set[Path]:
        """The files that a module imports, directly or not, and its own."""
        files, queue = set[Path](), [*self.file(module)]
        while queue:
            file = queue.pop()
            if file not in files:
                files.add(file)
                queue += self.of(file)[0]
        return files

    def own_of(self, tasks: Sequence[Path], names: Sequence[str]) -> set[Path]:
        """The files of a person's own modules that these files of tasks import, or that are named: of a package all."""
        queue = [imported for file in tasks for imported in self.of(file)[0]]
        queue += [file for name in names for file in self.file(name)]
        files = set[Path]()
        while queue:
            file = queue.pop()
            if file not in files and self.is_own(file):
                package = self.root / file.relative_to(self.root).parts[0]
                fresh = {file, *(package.rglob("*.py") if package.is_dir() else ())} - files
                files |= fresh
                queue += [imported for own in fresh for imported in self.of(own)[0]]
        return files

    def is_own(self, file: Path) -> bool:
        return file.relative_to(self.root).parts[0] in self.own

    def loads_tasks(self, file: Path) -> bool:
        """Whether a file asks for a task's module by name, which no import shows."""
        return self.of(file)[1]

    def of(self, file: Path) -> tuple[set[Path], bool]:
        if file not in self.read:
            nodes = list(ast.walk(parsed(file)))
            files = {path for node in nodes for name in self.names(node) for path in self.file(name)}
            if file.is_relative_to(self.root / "environments"):
                files |= set(named_files(self.root / "environments", file))
            self.read[file] = files, any(map(loads_task, nodes))
        return self.read[file]

    def names(self, node: ast.AST) -> Iterator[str]:
        """The dotted names that a node imports, or asks a port for."""
        match node:
            case ast.Import(names=aliases):
                yield from (alias.name for alias in aliases)
            case ast.ImportFrom(module=str(module), names=aliases, level=0):
                yield module
                yield from (f"{module}.{alias.name}" for alias in aliases)
            case ast.Call(func=ast.Name(id="bring" | "every") | ast.Attribute(attr="bring" | "every"), args=arguments):
                yield from self.brought(*(each.value if isinstance(each, ast.Constant) else None for each in arguments))

    def brought(self, port: Any, name: Any = None, *_: Any) -> Iterator[str]:
        """The modules of what `bring` or `every` asks for: of all names at the port, where nothing says which."""
        from steps.core import ports

        wanted = self.named.get(port, [name] if name else None)
        for addon in ports.addons():
            for key, place in addon.brings.get(port, {}).items():
                if wanted is None or key in wanted:
                    yield place.partition(":")[0]

    def file(self, name: str) -> list[Path]:
        """The file of a module, or of something in one, that may count."""
        parts = name.split(".")
        if f"{parts[0]}.py" in self.own:
            return [self.root / f"{parts[0]}.py"]
        if parts[0] not in ("steps", "environments", "addons", *self.own):
            return []
        files = list[Path]()
        path = self.root / parts[0]
        if parts[0] in self.own and (path / "__init__.py").is_file():
            files.append(path / "__init__.py")
        if parts[0] == "environments":
            files.append(path / "__init__.py")  # the other packages' hold a docstring
        for part in parts[1:]:
            path = path / part
            if path.with_suffix(".py").is_file():
                files.append(path.with_suffix(".py"))
                break
            if parts[0] == "environments" and (path / "__init__.py").is_file():
                files.append(path / "__init__.py")
        return [file for file in files if not self.is_left_out(file)]

    def is_left_out(self, file: Path) -> bool:
        path = file.relative_to(self.root)
        return path.as_posix() in NOT_IN_OUTPUTS or path.parent.as_posix() in NOT_IN_OUTPUTS


def loads_task(node: ast.AST) -> bool:
    """Whether a node is a call of environments.load."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="environments"), attr="load")):
            return True
    return False


def parsed(file: Path) -> ast.Module:
    """The syntax tree of a file. UserError where it is no Python."""
    try:
        return ast.parse(file.read_bytes(), str(file))
    except SyntaxError as problem:
        raise UserError(f"{file}, line {problem.lineno}: {problem.msg}") from None


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
    """A task's own module, all files of its folder, or the adapter of the package that has it (bridges/packages.py)."""
    package, is_packaged, _ = task.partition(":")
    if is_packaged:
        own = [folder / "bridges" / f"{kind}{package}.py" for kind in ("", "_package_")]
        return [file for file in own if file.is_file()]
    files = files_by_name(folder, task if "." in task else f"{folder.name}.{task}")
    if files and files[-1].name == "__init__.py":
        own = sorted(files[-1].parent.rglob("*"))
        files += [file for file in own if file.is_file() and "__pycache__" not in file.parts]
    return files


def named_files(folder: Path, file: Path) -> Iterator[Path]:
    """The files of the folder that one of them imports, or names in a string: `beside.py`, `environments.base`."""
    if file.suffix != ".py":
        return
    tree = parsed(file)
    package = file.parent.relative_to(folder.parent).parts
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                names = [alias.name for alias in aliases]
            case ast.ImportFrom(module=module, names=aliases, level=level):
                parts = [*(package[: len(package) + 1 - level] if level else ()), *([module] if module else ())]
                names = [".".join([*parts, alias.name]) for alias in aliases]
            case ast.Constant(value=str(text)) if text.startswith(f"{folder.name}."):
                names = [text]
            case ast.Constant(value=str(text)) if text.endswith(".py"):
                beside = Path(os.path.normpath(file.parent / text.removesuffix(".py")))
                names = [".".join(beside.relative_to(folder.parent).parts)] if folder in beside.parents else []
            case _:
                continue
        for name in names:
            yield from files_by_name(folder, name)


def files_by_name(folder: Path, name: str) -> list[Path]:
    """The files that importing a dotted name of the folder runs: packages on the way, and the module, if it is one."""
    first, *parts = name.split(".")
    path, files = folder, list[Path]()
    for part in parts if first == folder.name else ():
        path = path / part
        if path.with_suffix(".py").is_file():
            return [*files, path.with_suffix(".py")]
        if (path / "__init__.py").is_file():
            files.append(path / "__init__.py")
    return files


if __name__ == "__main__":
    main(code)
