"""The rooms and their levels: who may import whom, and that nothing imports in a circle.

Each rule is a function that returns what breaks it, so that further tests can feed it something bad.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import environments
from steps.core import ports
from tests.support.sources import parsed

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("environments", "steps", "flows", "viewer", "addons")
STAGES = """mix code scenarios initialise start rollout score update evaluate register""".split()
FLOWS = "train evaluate promote rescore rollback reproduce prune export ui deploy doctor audit".split()
# A room imports rooms of lower levels only, never a peer. Stages are above all rooms of steps/, flows above all of theirs.
LEVELS = {
    "steps": {
        "kit": 0,
        "core": 1,
        **dict.fromkeys(("runner", "policy", "project"), 2),
        **dict.fromkeys(("training", "registry"), 3),
        **dict.fromkeys(("judging", "sampling"), 4),
        **dict.fromkeys(("analytics", "data"), 5),
        "tracking": 6,
        **dict.fromkeys(STAGES, 7),
    },
    "flows": {
        "repro": 1,
        "terminal": 2,
        "deployment": 3,
        **dict.fromkeys(("promotion", "training"), 4),
        **dict.fromkeys(("diagnosis", "serving"), 5),
        **dict.fromkeys(FLOWS, 6),
    },
    "addons": {
        **dict.fromkeys(("gpu", "masking"), 0),
        **dict.fromkeys(
            """accelerate advantages agents drawing families gguf kernels lineage models pictures planning quicker
            readiness report selfplay sharing starts templates terms trackers tripwires""".split(),
            1,
        ),
        **dict.fromkeys(("fleet", "judges", "overlap", "production"), 2),
        "supervised": 3,
    },
}
RUNNERS = (*STAGES, "runner")  # rooms whose modules are run as stages


def module_of(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def modules(root: Path) -> dict[str, ast.Module]:
    """Name -> syntax tree of every module of the project."""
    files = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    return {module_of(path, root): parsed(path) for path in files}


class Import(NamedTuple):
    """An import as a module has it: of a module, and what is taken from it."""

    module: str
    names: tuple[str, ...]
    is_typing: bool  # under `if TYPE_CHECKING:`, where it never runs


def imports(tree: ast.Module, names: dict[str, ast.Module], types: bool = True) -> set[str]:
    """The project's modules that a module imports, wherever in it; without `types` not those for types alone."""
    imported = set[str]()
    for each in written(tree):
        if types or not each.is_typing:
            submodules = {f"{each.module}.{name}" for name in each.names} & names.keys()
            imported |= submodules or {each.module}
    return imported & names.keys()


@functools.cache
def written(tree: ast.Module) -> tuple[Import, ...]:
    """The imports of a module."""
    found, waiting = list[Import](), [(tree.body, False)]
    while waiting:
        nodes, is_typing = waiting.pop()
        for node in nodes:
            match node:
                case ast.Import(names=aliases):
                    found += (Import(alias.name, (), is_typing) for alias in aliases)
                case ast.ImportFrom(module=str(module), names=aliases, level=0):
                    found.append(Import(module, tuple(alias.name for alias in aliases), is_typing))
                case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                    waiting += [(node.body, True), (node.orelse, is_typing)]
                case _:
                    waiting += ((part, is_typing) for part in statements(node))
    return tuple(found)


def statements(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """The lists of statements in a statement, such as the two of an `if`."""
    for field in ("body", "orelse", "finalbody"):
        if isinstance(inner := getattr(node, field, None), list):
            yield inner
    for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
        yield part.body


def room_of(module: str) -> str:
    """The room of a module of steps/ or flows/; a flat module is a room by itself."""
    return module.split(".")[1] if "." in module else ""


def layout_faults(root: Path) -> list[str]:
    """Imports that run upwards or sideways, rooms without a level, and runners where none belongs."""
    names, faults = modules(root), []
    for importer, tree in names.items():
        package, room = importer.partition(".")[0], room_of(importer)
        levels = LEVELS.get(package, {})
        if room and levels and room not in levels:
            what = "no add-on" if package == "addons" else "no room and no stage or flow"
            faults.append(f"{importer}: {package}/ has {what} named {room}")
            continue
        for imported in sorted(imports(tree, names)):
            other = room_of(imported)
            if package == "flows" and imported.startswith("viewer"):
                faults.append(f"{importer} imports {imported}: no flow imports the viewer")
            if package == "viewer" and imported.startswith("flows"):
                faults.append(f"{importer} imports {imported}: the viewer imports no flow")
            if imported.partition(".")[0] != package or room == other or not levels or not other:
                continue
            if levels.get(other, 0) >= levels[room]:
                faults.append(f"{importer} imports {imported}: level {levels.get(other)} from level {levels[room]}")
            entry = importer.endswith(".__main__")
            if package == "steps" and other == "runner" and room not in RUNNERS and not entry:
                faults.append(f"{importer} imports {imported}: only stages and __main__ are run")
    return faults


def extended(task: str) -> set[str]:
    """The tasks whose classes a task's class extends; none of what is no task."""
    tasks = {*environments.tasks()}
    kinds = environments.load(task).__mro__ if task in tasks else ()
    return {room_of(kind.__module__) for kind in kinds if kind.__module__.startswith("environments.")} & tasks - {task}


def faults_of_tasks(root: Path) -> list[str]:
    """Imports of environments/ that make a task more than its folder: of what is shared, none of a task or a bridge; of a
    bridge, none of a task; of a task, none of a bridge, and of another task only where it extends that."""
    names, faults = modules(root), []
    for importer, tree in names.items():
        own = room_of(importer)
        if not importer.startswith("environments.") or own.startswith("_"):
            continue
        for imported in sorted(imports(tree, names)):
            other = room_of(imported)
            if not imported.startswith("environments.") or other in ("base", "kit", own, *extended(own)):
                continue
            faults.append(f"{importer} imports {imported}")
    return faults


def imports_of_addons(root: Path) -> set[str]:
    """`importer->add-on's module` for each import of an add-on by the core, which knows them through its ports alone."""
    names = modules(root)
    core = {name: tree for name, tree in names.items() if not name.startswith("addons")}
    pairs = ((importer, imported) for importer, tree in core.items() for imported in imports(tree, names))
    return {f"{importer}->{imported}" for importer, imported in pairs if imported.startswith("addons.")}


def circles(root: Path) -> list[str]:
    """A circle of imports between modules, wherever they import; types alone (`if TYPE_CHECKING:`) excepted."""
    names = modules(root)
    graph = {name: imports(tree, names, types=False) - {name} for name, tree in names.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def undeclared(root: Path, needs: dict[str, set[str]]) -> set[str]:
    """`importer->imported` for each import of another add-on that addon.toml does not name under `needs`."""
    names = modules(root)
    pairs = ((name, other) for name, tree in names.items() for other in imports(tree, names))
    of_addons = [(name, other) for name, other in pairs if name.startswith("addons.") and other.startswith("addons.")]
    allowed = {room: {"", room} | others for room, others in needs.items()}
    return {f"{name}->{other}" for name, other in of_addons if room_of(other) not in allowed.get(room_of(name), {""})}


def test_no_room_imports_upwards_or_sideways() -> None:
    assert layout_faults(ROOT) == []


def test_the_core_imports_no_addon() -> None:
    assert imports_of_addons(ROOT) == set()


def test_a_task_is_its_folder() -> None:
    assert faults_of_tasks(ROOT) == []


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        (
            "environments/kit/a.py",
            "from environments.chess import board",
            "environments.kit.a imports environments.chess.board",
        ),
        ("environments/base.py", "import environments.bridges.b", "environments.base imports environments.bridges.b"),
        (
            "environments/bridges/a.py",
            "from environments.chess import board",
            "bridges.a imports environments.chess.board",
        ),
        (
            "environments/go/a.py",
            "from environments.chess.board import x",
            "go.a imports environments.chess.board",
        ),
        ("environments/chess/a.py", "from environments.chess import board\nfrom environments.kit import tools", ""),
    ],
)
def test_a_task_that_reaches_out_of_its_folder_is_seen(tmp_path: Path, path: str, source: str, fault: str) -> None:
    for name in ("chess/__init__.py", "chess/board.py", "kit/tools.py", "bridges/b.py", path.partition("/")[2]):
        (tmp_path / "environments" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "environments" / name).touch()
    (tmp_path / path).write_text(source)
    faults = faults_of_tasks(tmp_path)
    assert (len(faults), fault in "".join(faults)) == (1 if fault else 0, True)


def test_an_addon_imports_only_those_that_it_says_it_needs() -> None:
    needs = {addon.name: {*addon.needs} for addon in ports.addons()}
    assert undeclared(ROOT, needs) == set()
    assert undeclared(ROOT, needs | {"production": set()}) != set()
    assert set().union(*needs.values()) <= needs.keys()


def test_nothing_imports_in_a_circle() -> None:
    assert circles(ROOT) == []


def test_steps_shows_its_stages_and_flows_its_flows() -> None:
    flat = {folder: {path.stem for path in (ROOT / folder).glob("[!_]*.py")} for folder in ("steps", "flows")}
    assert flat == {"steps": set(STAGES), "flows": set(FLOWS)}


def test_tests_mirror_the_rooms() -> None:
    rooms = {path.parent.name for path in (ROOT / "steps").glob("*/__init__.py")}
    tested = {path.name for path in (ROOT / "tests").iterdir() if path.is_dir() and list(path.glob("test_*.py"))}
    others = {
        "stages",
        "flows",
        "viewer",
        "environments",
        "browser",
        "project",
        "faults",
        "security",
        "fuzz",
        "attacks",
        "addons",
    }
    assert rooms | others == tested | {"browser", "addons"}


@pytest.mark.parametrize(
    ("path", "source", "fault"),
    [
        ("steps/core/a.py", "from steps.policy import b", "steps.core.a imports steps.policy.b: level 2 from level 1"),
        (
            "steps/sampling/a.py",
            "def f():\n    import steps.judging.b",
            "steps.sampling.a imports steps.judging.b: level 4",
        ),
        ("steps/analytics/a.py", "from steps.update import update", "level 7 from level 5"),
        ("steps/update.py", "import steps.rollout", "steps.update imports steps.rollout: level 7 from level 7"),
        ("steps/data/a.py", "from steps.runner.stage import main", "only stages and __main__ are run"),
        ("addons/lineage/a.py", "import addons.production.b", "level 2 from level 1"),
        ("addons/more/a.py", "", "addons/ has no add-on named more"),
        ("steps/helpers/a.py", "", "steps/ has no room and no stage or flow named helpers"),
        ("steps/more.py", "", "steps/ has no room and no stage or flow named more"),
        ("flows/train.py", "from flows import promote", "flows.train imports flows.promote: level 6 from level 6"),
        ("flows/repro/a.py", "import flows.terminal.b", "flows.repro.a imports flows.terminal.b: level 2 from level 1"),
        ("flows/train.py", "import viewer.app", "no flow imports the viewer"),
        ("viewer/app.py", "from flows.terminal import b", "the viewer imports no flow"),
        ("steps/update.py", "from steps.training import b\nfrom steps.runner import stage", ""),
        ("steps/tracking/__main__.py", "from steps.runner.stage import main", ""),
        ("steps/data/a.py", "if TYPE_CHECKING:\n    from steps.registry.b import Card", ""),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, path: str, source: str, fault: str) -> None:
    stood_in = "steps/policy/b.py steps/judging/b.py steps/update.py steps/rollout.py steps/runner/stage.py"
    stood_in += " steps/training/b.py steps/registry/b.py flows/promote.py flows/terminal/b.py viewer/app.py"
    stood_in += " addons/production/b.py"
    for name in stood_in.split():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / path).write_text(source)
    faults = layout_faults(tmp_path)
    assert (len(faults), fault in "".join(faults)) == (1 if fault else 0, True)


def test_a_planted_circle_is_found(tmp_path: Path) -> None:
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps/a.py").write_text("def f():\n    from steps import b")
    (tmp_path / "steps/b.py").write_text("import steps.c")
    (tmp_path / "steps/c.py").write_text("if TYPE_CHECKING:\n    import steps.a")
    assert circles(tmp_path) == []
    (tmp_path / "steps/c.py").write_text("import steps.a")
    assert set(circles(tmp_path)) == {"steps.a", "steps.b", "steps.c"}
