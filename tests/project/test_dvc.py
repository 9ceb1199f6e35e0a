"""dvc.yaml is written by hand: these hold it to the stages' functions, parameters and imports.

Each rule is a function that returns what breaks it, so that further tests can feed it something bad.
"""

from __future__ import annotations

import ast
import copy
import importlib
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from steps.code import code
from steps.core import params, ports
from steps.core.params import Params
from steps.runner.stage import signature

ROOT = Path(__file__).parent.parent.parent
# The runner passes arguments in and bytes out: it decides nothing about what is in an output. Left out, so that a word in a
# message does not make every stage of every run stale.
RUNNER = {path.relative_to(ROOT).as_posix() for path in (ROOT / "steps/runner").glob("*.py")}
# Errors, lines and progress that a person sees, masked; how addon.toml is read; and how a file is put in place.
RUNNER |= {f"steps/core/{name}.py" for name in "cores errors files manifests masking progress terminal".split()}
# How processes of this machine are started, ended, and kept from each other.
RUNNER |= {f"steps/kit/{name}.py" for name in ("lock", "process", "sockets")}
# What a room is, in one docstring and no code: a test holds them to that.
RUNNER |= {
    path.relative_to(ROOT).as_posix() for folder in ("steps", "addons") for path in (ROOT / folder).rglob("__init__.py")
}
EMBEDDED = "tasks_data/embedded_policy"  # the default of policy.base_model, read through a parameter
GENERAL = "tasks_data/general_policy"  # that of new tasks
# Stages that read no task's data as such.
BUILT_OR_MIXED = ("embedded_policy", "general_policy", "mix", "register", "code")
FROZEN = ("embedded_policy", "general_policy")  # they depend on folders
TASK = "tasks_data/${task}"  # a policy made for the task lies there
CODE = "run/code/{}.json"  # what the stage code lists for a stage's module

Stage = dict[str, Any]


def stages() -> dict[str, Stage]:
    """Name -> stage, the body of `foreach` ones."""
    written = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    return {name: stage.get("do", stage) for name, stage in written.items()}


STAGES = stages()


def module(stage: Stage) -> str:
    return shlex.split(stage["cmd"])[2]


def path(name: str) -> Path:
    """The file of a module."""
    folder = ROOT / name.replace(".", "/")
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def function(name: str) -> Callable[..., None]:
    stage: Callable[..., None] = getattr(importlib.import_module(name), name.rpartition(".")[2])
    return stage


def options(stage: Stage) -> dict[str, str]:
    words = shlex.split(stage["cmd"])
    assert words[:2] == ["steps/python", "-m"]
    assert all(word.startswith("--") for word in words[3::2])
    return {
        word.removeprefix("--").replace("-", "_"): value for word, value in zip(words[3::2], words[4::2], strict=True)
    }


def declared(stage: Stage) -> type[BaseModel] | None:
    """The *Params class of a stage's function."""
    kinds = [kind for kind, _, _ in signature(function(module(stage))).values() if kind.endswith("Params")]
    assert len(kinds) <= 1
    return params.declared(kinds[0], module(stage)) if kinds else None


# --- Parameters


def params_faults(stage: Stage) -> set[str]:
    """Keys that dvc.yaml or the stage's *Params class has and the other has not."""
    kind = declared(stage)
    expected = {field.alias or name for name, field in kind.model_fields.items()} if kind else set()
    expected = {"${of.param}" if key in ("task", "tasks") else key for key in expected}  # one of the two
    return expected ^ set(stage.get("params", ()))


@pytest.mark.parametrize("name", STAGES)
def test_params_are_what_the_stage_declares(name: str) -> None:
    assert params_faults(STAGES[name]) == set()


def test_the_rule_of_params_can_fail() -> None:
    bad = copy.deepcopy(STAGES["rollout"])
    bad["params"] = ["${of.param}", "seed", "policy", "update"]
    assert params_faults(bad) == {"rollout", "agents", "update"}


# --- Commands


def command_faults(stage: Stage) -> list[str]:
    """Options that do not fit the stage's function, and paths that dvc.yaml does not list as deps or outs."""
    arguments, kinds = options(stage), signature(function(module(stage)))
    faults = [f"{name} is no option" for name in arguments.keys() - kinds.keys()]
    listed = {
        "Input": list(stage.get("deps", ())),
        "Output": [
            next(iter(out)) if isinstance(out, dict) else out
            for out in (*stage.get("outs", ()), *stage.get("metrics", ()))
        ],
    }
    for name, (kind, required, _) in kinds.items():
        if kind.endswith("Params"):
            continue
        if name not in arguments:
            faults += [f"{name} is missing"] if required else []
        elif kind in listed and arguments[name] not in listed[kind]:
            faults.append(f"{arguments[name]} is no {'dep' if kind == 'Input' else 'out'}")
    paths = {arguments[name] for name, (kind, _, _) in kinds.items() if kind == "Output" and name in arguments}
    faults += [f"{out} is not written" for out in listed["Output"] if out not in paths]
    paths = {arguments[name] for name, (kind, _, _) in kinds.items() if kind == "Input" and name in arguments}
    others = (CODE.format(module(stage).rpartition(".")[2]), EMBEDDED, GENERAL, TASK)
    is_built = module(stage).rpartition(".")[2] in FROZEN
    data = [dep for dep in listed["Input"] if dep not in others and not is_built]
    faults += [f"{dep} is not read" for dep in data if dep not in paths]
    return sorted(faults)


@pytest.mark.parametrize("name", STAGES)
def test_commands_fit_their_stages(name: str) -> None:
    assert command_faults(STAGES[name]) == []


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (("--iteration", "--number"), ["iteration is missing", "number is no option"]),
        (("--scenarios run/scenarios", "--scenarios run/tasks"), ["run/scenarios is not read", "run/tasks is no dep"]),
        (
            ("trajectories.parquet", "episodes.parquet"),
            ["run/${key}/episodes.parquet is no out", "run/${key}/trajectories.parquet is not written"],
        ),
    ],
)
def test_the_rule_of_commands_can_fail(change: tuple[str, str], expected: list[str]) -> None:
    bad = copy.deepcopy(STAGES["rollout"])
    bad["cmd"] = bad["cmd"].replace(*change)
    assert command_faults(bad) == expected


def test_the_policy_is_a_dependency_wherever_it_is_read() -> None:
    """policy.base_model is a parameter, so no option names the folder; its bytes count all the same."""
    reading = {name for name, stage in STAGES.items() if {EMBEDDED, GENERAL, TASK} <= set(stage["deps"])}
    assert reading >= {"initialise", "rollout", "update", "evaluate", "test"}
    assert all("policy" in STAGES[name]["params"] for name in reading)
    assert Params().policy.base_model == EMBEDDED


# --- Code


BRING_GPU = ["bring", "'gpu'"]  # which of its modules decide what is in an output is up to the machine: all are listed


def modules_imported(file: Path) -> Iterator[str]:
    """Files of steps/, environments/ and addons/ that a module imports anywhere in it, for types too, for those name its
    parameters; and what it asks all add-ons for, or for a GPU, which is no parameter."""
    for node in ast.walk(ast.parse(file.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "every":
            [port] = map(ast.literal_eval, node.args)
            names = [
                place.partition(":")[0] for addon in ports.addons() for place in addon.brings.get(port, {}).values()
            ]
        elif isinstance(node, ast.Call) and [ast.unparse(word) for word in (node.func, *node.args[:1])] == BRING_GPU:
            part = ast.literal_eval(node.args[1])
            names = [addon.brings["gpu"][part] for addon in ports.addons() if "gpu" in addon.brings]
        for name in names:
            # `import a.b` runs a/__init__.py too
            for part in itertools.accumulate(name.split("."), "{}.{}".format):
                if part.partition(".")[0] in ("steps", "environments", "addons") and path(part).is_file():
                    yield path(part).relative_to(ROOT).as_posix()


def closure(start: str) -> set[str]:
    """All files of steps/ and environments/ that a module imports, directly or not, itself included, the runner excepted."""
    files, queue = set(), [path(start).relative_to(ROOT).as_posix()]
    while queue:
        file = queue.pop()
        if file not in files and file not in RUNNER:
            files.add(file)
            queue += modules_imported(ROOT / file)
    return files


def loads_environments(file: str) -> bool:
    """Whether a module finds a task's module by name, which no import shows."""
    return "environments.load(" in (ROOT / file).read_text()


@pytest.fixture(scope="module")
def listings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the stage code makes for params.yaml's defaults."""
    folder = tmp_path_factory.mktemp("code") / "code"
    chosen = params.CodeParams(task="email_search", policy=Params().policy, update=Params().update)
    code(ROOT / "steps", ROOT / "environments", ROOT / "addons", folder, chosen)
    return folder


def code_faults(stage: Stage, listings: Path) -> set[str]:
    """Files that a stage's module imports and its list has not, or the other way round; and a list that it does not name."""
    needed, listing = closure(module(stage)), CODE.format(module(stage).rpartition(".")[2])
    if listing not in stage["deps"]:
        return {listing}
    files = set(json.loads((listings / Path(listing).name).read_text()))
    if "steps/training/terms.py" in needed:  # an older adapter may have sampled a batch, whose loss is then corrected
        needed |= closure("addons.terms.correction")
    if any(map(loads_environments, needed)):  # the list has what any task needs (tests/stages/test_code.py)
        needed, files = ({file for file in each if not file.startswith("environments/")} for each in (needed, files))
    return needed ^ files


@pytest.mark.parametrize("name", [name for name in STAGES if name not in (*FROZEN, "code")])
def test_a_stages_code_is_what_it_imports(name: str, listings: Path) -> None:
    assert code_faults(STAGES[name], listings) == set()


def test_the_rule_of_code_can_fail(listings: Path) -> None:
    bad = copy.deepcopy(STAGES["rollout"])
    bad["cmd"] = bad["cmd"].replace("steps.rollout", "steps.score")
    assert code_faults(bad, listings) == {"run/code/score.json"}
    bad["deps"].append("run/code/score.json")
    assert code_faults(bad, listings) == set()
    listing = listings / "score.json"
    content = listing.read_text()
    listing.write_text(content.replace("steps/judging/rule.py", "steps/training/grpo.py"))
    assert code_faults(bad, listings) == {"steps/judging/rule.py", "steps/training/grpo.py"}
    listing.write_text(content)


def test_imports_are_found_wherever_they_stand(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text(
        "import steps.policy.chat\nfrom environments import base\n"
        "def f():\n    from steps.sampling import engine, nothing\n    import torch\n"
        "if TYPE_CHECKING:\n    from steps.core.params import Policy\n"
    )
    assert set(modules_imported(tmp_path / "a.py")) == {
        "steps/__init__.py",
        "steps/core/__init__.py",
        "steps/policy/__init__.py",
        "steps/sampling/__init__.py",
        "steps/policy/chat.py",
        "environments/__init__.py",
        "environments/base.py",
        "steps/sampling/engine.py",
        "steps/core/params.py",
    }


def test_the_runner_imports_nothing_that_makes_a_difference() -> None:
    """It is left out of deps: what it imports in turn must be the runner itself, or the parameters, which are listed."""
    beyond = {imported for file in RUNNER for imported in modules_imported(ROOT / file)} - RUNNER
    assert beyond <= {"steps/core/params.py"}


def test_a_room_says_what_it_is_and_runs_no_code() -> None:
    for file in (*(ROOT / "steps").rglob("__init__.py"), *(ROOT / "addons").rglob("__init__.py")):
        body = ast.parse(file.read_text()).body
        assert [type(node) for node in body] == [ast.Expr], file
        assert ast.get_docstring(ast.parse(file.read_text())), file


def test_dependencies_exist_and_are_listed_once() -> None:
    for name, stage in STAGES.items():
        assert len(set(stage["deps"])) == len(stage["deps"]), name
        code = [dep for dep in stage["deps"] if dep.startswith(("steps", "addons", "environments"))]
        assert all((ROOT / dep).is_dir() for dep in code), name


# --- As DVC reads it


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """Name -> what DVC makes of each stage, in a copy, for a chain of three iterations of which the second is best."""
    from dvc.repo import Repo

    folder = tmp_path_factory.mktemp("project")
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(ROOT / name, folder)
    chain = {
        "of": {"param": "task", "rubric": "/rubric.md"},
        "iterations": {
            "001": {"prev": "000", "policy": "000", "opponent": "run/000/adapter"},
            "002": {"prev": "001", "policy": "001", "opponent": "run/000/adapter"},  # of a game
            "003": {"prev": "002", "policy": "001", "opponent": "run/001/adapter"},  # with overlap
        },
        "evaluated": {name: {"name": name, "against": "evaluation"} for name in ("001", "002", "003")}
        | {"000": {"name": "000", "against": "base.json"}},
        "tested": {"base": "000", "best": "002"},
        "tests": {"base": {"name": "000", "against": "base.json"}, "best": {"name": "002", "against": "test"}},
    }
    (folder / "chain.yaml").write_text(yaml.safe_dump(chain))
    subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
    with Repo.init(os.fspath(folder), subdir=False) as repo:
        return {
            stage.name: {
                "cmd": stage.cmd,
                "deps": {os.path.relpath(dep.fs_path, folder) for dep in stage.deps if not hasattr(dep, "params")},
                "outs": {os.path.relpath(out.fs_path, folder) for out in stage.outs},
            }
            for stage in repo.index.stages
        }


def test_dvc_makes_a_stage_of_each_iteration(listed: dict[str, dict[str, Any]]) -> None:
    numbers = ("001", "002", "003")
    expected = {"code", "scenarios", "initialise", "register", "test@base", "test@best"}
    expected |= {f"{name}@{number}" for name in ("rollout", "score", "update") for number in numbers}
    expected |= {f"evaluate@{number}" for number in ("000", *numbers)}
    assert listed.keys() - {"embedded_policy", "general_policy"} == expected


def test_an_iteration_starts_from_the_one_before(listed: dict[str, dict[str, Any]]) -> None:
    for number, before, policy in (("001", "000", "000"), ("002", "001", "001"), ("003", "002", "001")):
        assert {f"run/{policy}/adapter", f"run/{policy}/successes.json"} <= listed[f"rollout@{number}"]["deps"]
        assert f"--successes 'run/{policy}/successes.json'" in listed[f"rollout@{number}"]["cmd"]
        assert f"--adapter 'run/{policy}/adapter'" in listed[f"rollout@{number}"]["cmd"]
        assert f"run/{policy}/adapter" in listed[f"update@{number}"]["deps"]
        assert f"--behaviour 'run/{policy}/adapter'" in listed[f"update@{number}"]["cmd"]
        if policy != before:  # nothing of the iteration whose update may be at work
            assert not [dep for dep in listed[f"rollout@{number}"]["deps"] if dep.startswith(f"run/{before}/")]
        assert f"--previous-successes 'run/{before}/successes.json'" in listed[f"score@{number}"]["cmd"]
        assert f"run/{before}/checkpoint" in listed[f"update@{number}"]["deps"]
        assert f"--previous 'run/{before}/checkpoint'" in listed[f"update@{number}"]["cmd"]
    assert {"run/000/test", "run/002/test", "run/002/adapter"} <= listed["register"]["deps"]


def test_each_evaluation_can_be_compared_with_that_of_the_base_policy(listed: dict[str, dict[str, Any]]) -> None:
    against = {"evaluate@000": "base.json", "evaluate@002": "evaluation", "test@base": "base.json", "test@best": "test"}
    for stage, name in against.items():
        assert f"run/000/{name}" in listed[stage]["deps"]
        assert f"--against 'run/000/{name}'" in listed[stage]["cmd"]
    assert "run/000/base.json" in listed["initialise"]["outs"]


def test_every_input_of_the_run_is_made_by_one_stage(listed: dict[str, dict[str, Any]]) -> None:
    outputs = [out for stage in listed.values() for out in stage["outs"]]
    assert len(set(outputs)) == len(outputs)
    read = {dep for stage in listed.values() for dep in stage["deps"] if dep.startswith("run/")}
    assert {dep for dep in read - set(outputs) if not dep.startswith("run/code/")} == set()


def test_commands_hold_no_placeholders(listed: dict[str, dict[str, Any]]) -> None:
    for stage in listed.values():
        assert "$" not in stage["cmd"]
        assert not re.search(r"\s{2,}|\n", stage["cmd"])


def test_a_run_that_starts_from_something_has_two_more_stages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: dict[str, dict[str, Any]]
) -> None:
    """As write_chain has it; without them dvc.yaml makes the stages that it made before."""
    from dvc.repo import Repo

    from steps.project.chain import write_chain

    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(ROOT / name, tmp_path)
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "--quiet"], check=True)
    write_chain(1, 1, origins=["start", "sft"])
    with Repo.init(os.fspath(tmp_path), subdir=False) as repo:
        stages = {
            stage.name: (
                {os.path.relpath(dep.fs_path, tmp_path) for dep in stage.deps if not hasattr(dep, "params")},
                {os.path.relpath(out.fs_path, tmp_path) for out in stage.outs},
            )
            for stage in repo.index.stages
        }
    assert {"start@start", "sft@sft", "evaluate@start", "evaluate@sft"} <= stages.keys()
    assert not [name for name in listed if name.startswith(("start", "sft"))]
    read = {dep for deps, _ in stages.values() for dep in deps if dep.startswith(("run/", "start/"))}
    made = {out for _, outs in stages.values() for out in outs}
    read = {dep for dep in read if not dep.startswith("run/code/")}
    assert read - made == {"start/policy", "start/demonstrations.jsonl"}  # which start.dvc has
    assert "run/start/checkpoint" in stages["sft@sft"][0]
    assert {"run/sft/adapter", "run/sft/successes.json"} <= stages["rollout@001"][0]
    assert {"run/sft/checkpoint", "run/sft/adapter"} <= stages["update@001"][0]
    assert {"run/sft/judge.json", "run/sft/successes.json"} <= stages["score@001"][0]


def test_a_run_of_several_tasks_depends_on_the_data_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: dict[str, dict[str, Any]]
) -> None:
    """By copies side by side, which a stage for each task makes. A run of a single task has no such stage."""
    from dvc.repo import Repo

    from steps.project.chain import write_chain

    both = "multiplication+tic_tac_toe"
    shutil.copy(ROOT / "dvc.yaml", tmp_path)
    shutil.copy(ROOT / f"tasks_data/{both}.yaml", tmp_path / "params.yaml")
    monkeypatch.chdir(tmp_path)
    subprocess.run(["git", "init", "--quiet"], check=True)
    write_chain(1, 1, tasks=both)
    with Repo.init(os.fspath(tmp_path), subdir=False) as repo:
        stages = {stage.name: stage for stage in repo.index.stages}
        made = {name: [os.path.relpath(out.fs_path) for out in stage.outs] for name, stage in stages.items()}
        read = {name: {os.path.relpath(dep.fs_path) for dep in stage.deps} for name, stage in stages.items()}
        keys = {
            name: {key for dep in stage.deps for key in getattr(dep, "params", ())} for name, stage in stages.items()
        }
        before = {each.name for each in repo.index.graph.successors(stages["rollout@001"])}
    for task in both.split("+"):
        assert made[f"mix@{task}"] == [f"tasks_data/{both}/{task}"]
        assert read[f"mix@{task}"] == {"run/code/mix.json", f"tasks_data/{task}"}
        assert f"mix@{task}" in before, "whose copies it waits for"
    reading = {name for name, paths in read.items() if f"tasks_data/{both}" in paths}
    assert reading == {name for name in stages if name.partition("@")[0] not in BUILT_OR_MIXED}
    assert {"tasks"} == keys["score@001"] & {"task", "tasks"}
    assert not [name for name in listed if name.startswith("mix")]


def test_the_committed_chain_is_one() -> None:
    chain = yaml.safe_load((ROOT / "chain.yaml").read_text())
    numbers = list(chain["iterations"])
    assert numbers == [f"{number:03d}" for number in range(1, len(numbers) + 1)]
    assert [link["prev"] for link in chain["iterations"].values()] == ["000", *numbers[:-1]]
    assert [link["policy"] for link in chain["iterations"].values()] == ["000", *numbers[:-1]]
    assert chain["tested"]["base"] == "000"
    assert chain["tested"]["best"] in numbers
