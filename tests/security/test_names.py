"""Names, ids and refs that would leave their place, become an option of a command, or change a query."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from environments import _new, load
from flows.deployment import checkout, people
from steps.core.errors import UserError
from steps.core.params import Params
from steps.project import kept_runs, store
from steps.project.chain import read_chain
from steps.project.git import git
from steps.registry.model import adapter_at
from tests.conftest import small_repository
from viewer.runs import Runs

RUN_NAMES = {
    "a parent folder": "../x",
    "an absolute path": "/tmp/x",
    "a folder": "a/b",
    "an option": "-rf",
    "a long option": "--upload-pack=id",
    "a git range": "a..b",
    "a lock of git": "refs.lock",
    "a command": "$(id)",
    "another command": "a;id",
    "a line break": "a\nb",
    "a line break at the end": "a\n",
    "a NUL": "a\0b",
    "nothing": "",
    "a dot": ".",
    "an asterisk": "*",
    "another script's letters": "\u0430dmin",
    "a text that turns around": "a\u202eb",
    "very long": "a" * 300,
}
REVISIONS = {
    "an option with a value": "--git-dir=/tmp",
    "an option that prints": "--show-toplevel",
    "an option of all": "--all",
    "an option that ends options": "--",
    "a question for the terminal": "-h",
    "a command": "HEAD;id",
    "a NUL": "HEAD\0",
    "a file of the working tree": "../../etc/passwd",
}
STARTS = {
    "a parent folder": "run:../x/001",
    "an option": "run:--upload-pack=id/001",
    "a line break": "run:a\nb/001",
    "a model's parent folder": "models:/../x@champion",
    "a model's query": "models:/a' OR name != '@champion",
    "a model without a name": "models:/@champion",
}
TASKS = ["../x", "os:system()", "a;b", "/etc/passwd", "x\n", "-c", "a b", "__import__('os')", "email_search/../x"]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    small_repository(folder, "seed: 1\n")
    return folder


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if ".git/" not in f"{path}/"}


@pytest.mark.parametrize("name", RUN_NAMES)
def test_a_run_cannot_be_called(project: Path, name: str) -> None:
    before = files(project.parent)
    for work in (
        lambda: kept_runs.ref(RUN_NAMES[name]),
        lambda: checkout.new(project, "", {"name": RUN_NAMES[name]}),
        lambda: kept_runs.keep_described(project, RUN_NAMES[name]),
    ):
        with pytest.raises(UserError, match="cannot be a run's name"):
            work()
    assert files(project.parent) == before
    assert git(project, "for-each-ref", "refs/runs") == ""


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_revision_is_no_option(project: Path, revision: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{project}/.flywheel/none.db")
    with pytest.raises(UserError, match="there is no run or revision"):
        checkout.source(project, REVISIONS[revision])


@pytest.mark.parametrize(
    "name", ["x' OR attributes.status != 'x", "'; DROP TABLE runs; --", 'x" OR "1"="1', "x\\' OR 1=1"]
)
def test_a_runs_name_is_no_query(project: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{project}/mlflow.db")
    client = store.connect(project)
    run = client.create_run(client.create_experiment("toy"), run_name="nightly")
    assert kept_runs.run_named(project, "nightly") == run.info.run_id
    assert kept_runs.run_named(project, name) is None
    assert kept_runs.run_named(project, "nightly") == run.info.run_id


@pytest.mark.parametrize("start", STARTS)
def test_a_start_stays_a_name(project: Path, start: str) -> None:
    address = STARTS[start]

    def resolve() -> None:
        Params.model_validate({"policy": {"start_from": address}})
        if address.startswith("models:"):
            adapter_at(address, [])
        else:
            checkout.source(project, address.removeprefix("run:").rpartition("/")[0])

    with pytest.raises((UserError, ValueError)):
        resolve()


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_a_modules_name(task: str) -> None:
    with pytest.raises(ValueError, match="task"):
        Params(task=task)


@pytest.mark.parametrize("task", ["os:system", "subprocess:run", "builtins:exec", "sys:exit"])
def test_a_package_of_environments_is_one_of_a_list(task: str) -> None:
    with pytest.raises(ValueError, match="is no task"):
        load(task)


@pytest.mark.parametrize("name", ["../x", "a/b", "-x", "import", "A", "x.py", "a\nb", "__init__", ""])
def test_a_new_task_has_the_name_of_a_module(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be a task's name"):
        _new.check(name, tmp_path)


@pytest.mark.parametrize("name", ["../x", "a:b", "a\nadmin:x", "-x", "", "a b"])
def test_a_persons_name_is_one_word(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError):
        people.add(tmp_path, name, is_promoter=True)
    assert files(tmp_path) == set()


@pytest.mark.parametrize(
    "iteration", ["../../x", "/etc", "1", "001/../../x", "$(id)", "001 002", "--force", "001\n"], ids=repr
)
def test_an_iteration_is_a_number(tmp_path: Path, iteration: str) -> None:
    (tmp_path / "chain.yaml").write_text(yaml.safe_dump({"iterations": {iteration: {"previous": "000"}}}))
    with pytest.raises(UserError):
        read_chain(tmp_path)


@pytest.mark.parametrize("adapter", ["/etc/passwd", "../x/adapter", "run/../../x", "run/001/adapter; id", "$(id)"])
def test_a_chain_names_no_file_outside_the_run(tmp_path: Path, adapter: str) -> None:
    chain: dict[str, Any] = {"iterations": {"001": {"previous": "000", "sampler": adapter, "opponent": adapter}}}
    (tmp_path / "chain.yaml").write_text(yaml.safe_dump(chain))
    with pytest.raises(UserError):
        read_chain(tmp_path)


@pytest.mark.parametrize("md5", ["../../../../etc/passwd", "/etc/passwd", "0" * 31, "0" * 32 + "/../x", "*" * 32])
def test_a_hash_is_no_path(project: Path, md5: str) -> None:
    lock = {"stages": {"rollout@001": {"outs": [{"path": "run/001/trajectories.parquet", "md5": md5}]}}}
    (project / "dvc.lock").write_text(yaml.safe_dump(lock))
    (project / "dvc.yaml").write_text("stages: {rollout: {foreach: '${iterations}'}}")
    (project / "chain.yaml").write_text("iterations: {'001': {}}")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "run")
    git(project, "update-ref", "refs/runs/bad", "HEAD")
    with pytest.raises(UserError, match="where an MD5 should stand"):
        Runs(project / "run").open("bad")
    assert not [path for path in project.rglob("*") if path.is_symlink() and "etc" in str(path.readlink())]


@pytest.mark.parametrize("path", ["run/../../x", "/etc/x", "../x", "run/001/../../../x"])
def test_an_output_of_a_kept_run_stays_in_the_run(project: Path, path: str) -> None:
    lock = {"stages": {"rollout@001": {"outs": [{"path": path, "md5": "0" * 32}]}}}
    (project / "dvc.lock").write_text(yaml.safe_dump(lock))
    (project / "dvc.yaml").write_text("stages: {rollout: {foreach: '${iterations}'}}")
    (project / "chain.yaml").write_text("iterations: {'001': {}}")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "run")
    git(project, "update-ref", "refs/runs/bad", "HEAD")
    cache = project / ".dvc/cache/files/md5/00"
    cache.mkdir(parents=True)
    (cache / ("0" * 30)).write_text("x")
    before = files(project.parent)
    Runs(project / "run").open("bad")
    assert {name for name in files(project.parent) - before if not name.startswith("project/.flywheel")} == set()
