"""Which files a stage runs, and which a task is made of: by name, by what modules load, and by what DVC makes of an edit."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import environments
from flows.training import ended
from steps.code import EVERY_TASK, Imports, code, files_of, named_by
from steps.core import ports
from steps.core.errors import UserError
from steps.core.params import CodeParams, Policy, Update
from tests.conftest import copy_project, environment
from tests.project.test_dvc import STAGES, closure, module
from tests.project.test_layout import extended

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "environments"
EVERY = [name.removesuffix(".py") for name in EVERY_TASK]


def names(*tasks: str, folder: Path = FOLDER) -> set[str]:
    return {file.relative_to(folder).as_posix() for file in files_of(folder, list(tasks))}


def test_a_task_has_its_own_module_and_what_that_imports() -> None:
    files = {"times_tables/__init__.py", "multiplication/__init__.py", "base.py", "kit/tools.py"}
    assert files <= names("times_tables")
    assert "times_tables/__init__.py" not in names("multiplication")
    files = {"code_repair/__init__.py", "kit/sandbox/__init__.py", "kit/sandbox/_runner.py"}
    assert files <= names("code_repair")
    others = {
        "tic_tac_toe/__init__.py",
        "email_search/mailbox.py",
        "kit/sandbox/__init__.py",
        "_new.py",
        "_template.py",
    }
    assert not others & names("multiplication")


@pytest.mark.parametrize("task", environments.tasks())
def test_a_task_has_no_file_of_another_but_of_one_that_it_imports(task: str) -> None:
    own = {file.partition("/")[0].removesuffix(".py") for file in names(task)} & {*environments.tasks()}
    assert own == {task, *extended(task)}


def test_several_tasks_have_the_files_of_each() -> None:
    assert names("multiplication", "tic_tac_toe") == names("multiplication") | names("tic_tac_toe")


def test_a_task_of_a_package_has_its_adapter_and_what_runs_in_another_interpreter() -> None:
    assert {"bridges/gymnasium.py", "bridges/stepped.py"} <= names("gymnasium:Taxi-v4")
    kinds = {"bridges/verifiers.py", "bridges/_package_process.py", "bridges/_package_verifiers.py"}
    assert kinds <= names("verifiers:any")
    walls = {"kit/sandbox/confined.py", "kit/sandbox/_confined_inside.py", "kit/sandbox/_runner.py", "kit/keeper.py"}
    assert walls <= names("harness:codex")
    assert not {"bridges/openenv.py", "bridges/_package_openenv.py"} & names("verifiers:any")


def test_a_module_elsewhere_has_what_every_task_has() -> None:
    assert names("my_package.my_task") == names()
    assert names("environments.multiplication") == names("multiplication")


@pytest.mark.parametrize(
    "source",
    [
        "from environments._helper import x",
        "from environments import _helper",
        "import environments._helper as helper",
        "from ._helper import x",
        "from . import _helper",
        "def f():\n    from environments import _helper",
        "PROCESS = Path(__file__).with_name('_helper.py')",
        "m = importlib.import_module('environments._helper')",
    ],
)
def test_an_import_is_found_however_it_is_written(tmp_path: Path, source: str) -> None:
    folder = tmp_path / "environments"
    (folder / "kit").mkdir(parents=True)
    (folder / "bridges").mkdir()
    files = {
        **dict.fromkeys(EVERY, ""),
        "_helper": "from environments import _deeper",
        "_deeper": "",
        "other": "",
    }
    for name, text in (files | {"mine": source}).items():
        (folder / f"{name}.py").write_text(text)
    assert names("mine", folder=folder) == {f"{name}.py" for name in (*EVERY, "mine", "_helper", "_deeper")}


def test_a_task_may_be_a_folder(tmp_path: Path) -> None:
    folder = tmp_path / "environments"
    (folder / "mine").mkdir(parents=True)
    (folder / "kit").mkdir()
    (folder / "bridges").mkdir()
    files = {
        **dict.fromkeys(EVERY, ""),
        "base": "",
        "mine/__init__": "from ..base import Env",
        "mine/players": "",
    }
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    assert names("mine", folder=folder) == {f"{name}.py" for name in files}


def test_a_module_that_is_no_python_is_named(tmp_path: Path) -> None:
    (tmp_path / "kit").mkdir()
    (tmp_path / "bridges").mkdir()
    for name, text in {**dict.fromkeys(EVERY, ""), "mine": "x = 1\ndef f(:\n"}.items():
        (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(UserError, match=r"mine\.py, line 2: "):
        files_of(tmp_path, [f"{tmp_path.name}.mine"])


@pytest.mark.parametrize("name", [name for name in STAGES if name not in ("embedded_policy", "general_policy", "code")])
def test_every_task_has_what_the_stages_import(name: str) -> None:
    of_folder = {file for file in closure(module(STAGES[name])) if file.startswith("environments/")}
    assert of_folder <= {f"environments/{file}" for file in names()}


LOADED = """
import json, sys
import environments
environments.load(sys.argv[1])
print(json.dumps([m.__file__ for n, m in sys.modules.items() if n.partition(".")[0] == "environments"]))
"""


@pytest.mark.parametrize("task", environments.tasks())
def test_what_loading_a_task_imports_is_among_its_files(task: str) -> None:
    done = subprocess.run([sys.executable, "-c", LOADED, task], cwd=ROOT, capture_output=True, text=True, check=True)
    assert {Path(file).relative_to(FOLDER).as_posix() for file in json.loads(done.stdout)} <= names(task)


def test_the_list_is_the_same_again_and_changes_with_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "environments"
    for file in files_of(FOLDER, ["multiplication"]):
        copied = folder / file.relative_to(FOLDER)
        copied.parent.mkdir(parents=True, exist_ok=True)
        copied.write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)

    def listing() -> dict[str, str]:
        shutil.rmtree("listings", ignore_errors=True)
        (tmp_path / "steps").mkdir(exist_ok=True)
        (tmp_path / "steps/rollout.py").write_text("import environments\nenvironments.load('x')\n")
        params = CodeParams(task="multiplication", policy=Policy(), update=Update())
        code(tmp_path / "steps", tmp_path / "environments", tmp_path / "addons", Path("listings"), params)
        return dict(json.loads(Path("listings/rollout.json").read_text()))

    first = listing()
    assert "environments/multiplication/__init__.py" in first
    (folder / "other.py").write_text("")
    assert listing() == first
    (folder / "multiplication/__init__.py").write_text("from environments import other\n")
    changed = {path for path, name in listing().items() if first.get(path) != name}
    assert changed == {"environments/multiplication/__init__.py", "environments/other.py"}


def test_a_persons_own_modules_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task beside the project's folders, with what it imports there, and what a task of environments/ imports there."""
    files = {
        "steps/rollout.py": "import environments\nenvironments.load('x')\n",
        "environments/__init__.py": "",
        "environments/mine.py": "import mylib\n",
        "addons/__init__.py": "",
        "mylib.py": "import more.words\n",
        "more/words.py": "",
        "more/others.py": "",
        "my_pkg/my_task.py": "from . import tools\n",
        "my_pkg/tools.py": "",
        "benchmarks/mine.py": "",
        "scratch.py": "",
        ".env.example": "",
    }
    for name in (*EVERY_TASK, *(name.removeprefix("environments/") for name in files)):
        if (FOLDER / name).is_file():
            files.setdefault(f"environments/{name}", "")
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)

    def own(task: str) -> set[str]:
        shutil.rmtree("listings", ignore_errors=True)
        params = CodeParams(task=task, policy=Policy(), update=Update())
        code(tmp_path / "steps", tmp_path / "environments", tmp_path / "addons", Path("listings"), params)
        listed = json.loads(Path("listings/rollout.json").read_text())
        return {name for name in listed if name.partition("/")[0] not in ("steps", "environments", "addons")}

    assert own("mine") == {"mylib.py", "more/words.py", "more/others.py"}
    assert own("my_pkg.my_task") == {"my_pkg/my_task.py", "my_pkg/tools.py"}
    before = ended.state("")
    (tmp_path / "my_pkg/tools.py").write_text("# edited\n")
    assert ended.state("") != before


@pytest.mark.nightly
def test_only_an_edit_to_what_the_task_is_made_of_makes_its_stages_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By DVC itself, for a task that extends another one."""
    from dvc.repo import Repo

    folder = copy_project(tmp_path / "project")
    (folder / "params.yaml").write_bytes((folder / "tasks_data/times_tables.yaml").read_bytes())
    for name, value in environment(folder, FLYWHEEL_WORKER="off").items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)

    def append(name: str) -> None:
        with (folder / "environments" / name).open("a") as file:
            file.write("# edited\n")

    with Repo(str(folder)) as repo:

        def stale() -> bool:
            """Whether the scenarios are stale once the list is made again."""
            assert repo.reproduce("code", single_item=True), "all code is read"
            return bool(repo.status(["scenarios"]))

        assert repo.reproduce("scenarios")
        append("my_task.py")
        append("tic_tac_toe/__init__.py")
        assert not stale()
        append("multiplication/__init__.py")
        assert stale()


def test_an_addons_code_counts_where_params_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "steps/rollout.py": 'from steps.core import ports\nports.bring("sampler", policy.kind, "policy.kind")\n',
        "addons/far/swarm.py": "import addons.far.bees\n",
        "addons/far/bees.py": "",
        "addons/near/other.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    far = ports.AddOn(
        "far", "It is far.", {"sampler": {"ray": "addons.far.swarm:Swarm", "server": "addons.near.other:O"}}
    )
    monkeypatch.setattr(ports, "addons", lambda: (far,))

    def listed(kind: str) -> set[str]:
        settings = CodeParams.model_validate({"task": "mine", "policy": {"kind": kind}, "update": {}})
        return {
            path.relative_to(tmp_path).as_posix()
            for path in Imports(tmp_path, named_by(settings, tmp_path)).closure("steps.rollout")
        }

    assert listed("vllm") == {"steps/rollout.py"}
    assert listed("ray") == {"steps/rollout.py", "addons/far/swarm.py", "addons/far/bees.py"}
