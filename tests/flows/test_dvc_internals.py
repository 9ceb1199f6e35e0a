"""dvc.lock written quickly is what DVC writes, byte for byte; and what DVC writes is whole whenever it is stopped."""

from __future__ import annotations

import ast
import contextlib
import copy
import inspect
import json
import os
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from dvc.exceptions import ReproductionError
from fsspec.implementations.memory import MemoryFileSystem
from packaging.requirements import Requirement

from flows.repro import dvc_internals
from flows.repro.dvc_internals import LockFile, Texts
from flows.repro.pipeline import Pipeline, StageFailed
from flows.terminal.command import explained
from steps.core.errors import UserError
from tests.conftest import python, run

ROOT = Path(__file__).parent.parent.parent
LONG = (
    "steps/python -m steps.rollout --scenarios run/scenarios --adapter run/000/adapter --trajectories run/t --number 1"
)


def entry(number: int) -> dict[str, Any]:
    deps = [{"path": f"steps/{name}.py", "hash": "md5", "md5": f"{number:032d}", "size": number} for name in "abc"]
    params = {"params.yaml": {"policy": {"lora": {"rank": 16, "alpha": 32}, "dtype": "float32"}, "seed": number}}
    return {
        "cmd": f"{LONG} {number}",
        "deps": deps,
        "params": params,
        "outs": [{"path": "run/x", "md5": "1e5", "size": 1}],
    }


@pytest.mark.parametrize("name", ["rollout@002", "score@001", "update@009", "scenarios"])
def test_bytes_are_dvcs(tmp_path: Path, name: str) -> None:
    from dvc.utils.serialize import dumps_yaml, modify_yaml

    start: dict[str, Any] = {"schema": "2.0", "stages": {f"rollout@{n:03d}": entry(n) for n in range(1, 4)}}
    start["stages"] |= {"scenarios": entry(7), "score@001": entry(8)}
    paths = [tmp_path / where / "dvc.lock" for where in ("ours", "dvc")]
    for path, way in zip(paths, (LockFile().modify, modify_yaml), strict=True):
        path.parent.mkdir()
        path.write_text(dumps_yaml(start))
        with way(str(path)) as data:
            data["stages"].update({name: entry(99)})
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert [path.name for path in paths[0].parent.iterdir()] == ["dvc.lock"]


def test_what_cannot_be_spliced_is_written_whole(tmp_path: Path) -> None:
    from dvc.utils.serialize import dumps_yaml, parse_yaml

    path = tmp_path / "dvc.lock"
    content = {"schema": "2.0", "stages": {"a": entry(1)}, "datasets": [{"name": "z"}]}
    path.write_text(dumps_yaml(content))
    with LockFile().modify(str(path)) as data:
        data["stages"]["b"] = entry(2)
        content = copy.deepcopy(data)
    assert parse_yaml(path.read_text(), path) == content


def test_dvc_is_itself_again_afterwards() -> None:
    from dvc import dvcfile, rwlock
    from dvc.scm import Git
    from dvc.stage import cache, run
    from dvc.utils import strictyaml
    from dvc.utils.serialize import _yaml

    def parts() -> list[object]:
        stage_cache = cache.StageCache
        return [
            dvcfile.modify_yaml,
            dvcfile.Lockfile.load,
            rwlock._edit_rwlock,
            stage_cache._load,
            stage_cache.save,
            run._run,
            _yaml.parse_yaml,
            strictyaml.parse_yaml,
            strictyaml.validate,
            inspect.getattr_static(Git, "is_tracked"),
            cache._can_hash,
        ]

    originals = parts()
    with dvc_internals.replaced(LockFile(), Texts(), dvc_internals.run_stage_command):
        assert not set(originals) & set(parts())
    assert parts() == originals


PUBLIC = {"dvc.repo", "dvc.exceptions", "dvc.stage.exceptions"}


def internals(tree: ast.Module) -> set[str]:
    """The modules of DVC that a module imports, but for those of its Python API."""
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name for name in names if name.partition(".")[0] == "dvc"} - PUBLIC


def test_only_one_module_touches_dvcs_internals() -> None:
    files = [path for room in ("flows", "addons", "steps", "viewer") for path in (ROOT / room).rglob("*.py")]
    touching = {path.relative_to(ROOT).as_posix() for path in files if internals(ast.parse(path.read_text()))}
    assert touching == {"flows/repro/dvc_internals.py"}


@pytest.mark.parametrize(
    "line", ["import dvc", "from dvc.utils.serialize import modify_yaml", "from dvc.stage import run"]
)
def test_the_rule_on_internals_can_fail(line: str) -> None:
    assert internals(ast.parse(line))


def test_no_other_minor_release_of_dvc_is_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [dvc] = [line for line in map(Requirement, project["dependencies"]) if line.name == "dvc"]
    assert dvc.specifier.contains("3.67.1")
    assert not dvc.specifier.contains("3.68.0")


def test_stopped_anywhere_the_next_run_goes_on(tmp_path: Path) -> None:
    """The short form of `make faults`."""
    process = run(python("tests.support.interrupted", "--points", "3"), ROOT)
    assert process.returncode == 0, process.stdout + process.stderr


@pytest.mark.nightly
def test_the_sweep_can_fail(tmp_path: Path) -> None:
    process = run(python("tests.support.interrupted", "--points", "8", "--how", "ctrl-c", "--stock"), ROOT)
    assert process.returncode == 1
    assert "dvc.lock" in process.stdout


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DVC repository with one stage."""
    folder = tmp_path_factory.mktemp("begun")
    for words in (["git", "init", "--quiet"], ["dvc", "init", "--quiet"]):
        assert run(words, folder).returncode == 0
    (folder / "dvc.yaml").write_text("stages: {copy: {cmd: cp a b, deps: [a], outs: [b]}}")
    (folder / "a").write_text("a")
    return folder


@pytest.fixture
def repository(begun: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A DVC repository with one stage, which has run."""
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    assert Pipeline(Path.cwd()).reproduce("copy")
    return tmp_path


def by_stock(repository: Path, **options: bool) -> None:
    """`dvc repro`, by DVC as it comes."""
    from dvc.repo import Repo

    with contextlib.closing(Repo(str(repository))) as repo:
        repo.reproduce(**options)


def test_a_new_lock_file_is_dvcs(repository: Path) -> None:
    kept = (repository / "dvc.lock").read_bytes()
    (repository / "dvc.lock").unlink()
    by_stock(repository, force=True)
    assert (repository / "dvc.lock").read_bytes() == kept


@pytest.mark.parametrize("remains", ["half", "nothing", "folder"])
def test_what_dvc_by_itself_left_in_its_run_cache_stops_no_run(repository: Path, remains: str) -> None:
    [entry] = (repository / ".dvc/cache/runs").glob("*/*/*")
    (repository / "dvc.lock").unlink()
    if remains == "folder":
        entry.unlink()
    else:
        (entry.parent / ".abc.tmp").write_text("cmd: cp a b\n" if remains == "half" else "")
    with contextlib.nullcontext() if remains == "nothing" else pytest.raises(ReproductionError):
        by_stock(repository)
    (repository / "b").unlink(missing_ok=True)
    Pipeline(Path.cwd()).reproduce("copy")
    assert (repository / "b").read_text() == "a"
    assert list((repository / ".dvc/cache/runs").glob("*/*/*")) == [entry]
    assert [path.name for path in (repository / ".dvc/cache").iterdir() if "tmp" in path.name] == []


@pytest.mark.parametrize("text", ["", '{"read": {"/x', "\0\0"])
def test_who_is_at_work_is_asked_again_where_that_was_cut_short(repository: Path, text: str) -> None:
    lock = repository / ".dvc/tmp/rwlock"
    lock.write_text(text)
    (repository / "a").write_text("b")
    with pytest.raises(ReproductionError, match="failed to reproduce 'copy'"):
        by_stock(repository)
    assert Pipeline(Path.cwd()).reproduce("copy")
    assert json.loads(lock.read_text()) == {}


@pytest.mark.parametrize("forgets", [True, False])
def test_listings_of_folders_do_not_stay_in_memory(
    repository: Path, forgets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not forgets:  # as DVC has it, which this test would not see otherwise
        monkeypatch.setattr(dvc_internals, "forget_listings", lambda: None)
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    pipeline = Pipeline(Path.cwd())
    (repository / "dvc.yaml").write_text("stages: {copy: {cmd: rm -rf b; cp -r a b, deps: [a], outs: [b]}}")
    (repository / "a").unlink()
    (repository / "a").mkdir()
    for text in ("first", "second"):
        (repository / "a/file").write_text(text)
        assert pipeline.reproduce("copy")
        assert (MemoryFileSystem.store == {}) == forgets
        assert not pipeline.reproduce("copy")
    assert (repository / "b/file").read_text() == "second"


def test_a_stage_that_another_process_is_at_work_on_waits_for_nobody(repository: Path) -> None:
    """Told as DVC does: who it is."""
    info = {"pid": os.getppid(), "cmd": "dvc repro elsewhere"}
    (repository / ".dvc/tmp/rwlock").write_text(json.dumps({"write": {str(repository / "b"): info}}))
    (repository / "a").write_text("b")
    with pytest.raises(UserError, match="dvc repro elsewhere"):
        Pipeline(Path.cwd()).reproduce("copy")


def test_ctrl_c_stays_that_whatever_dvc_makes_of_it(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dvc.exceptions import DvcException

    def broken(*_: object, **__: object) -> None:
        try:
            raise KeyboardInterrupt
        finally:
            raise DvcException("the lock is gone")

    (repository / "a").write_text("b")
    monkeypatch.setattr(dvc_internals, "run_stage_command", broken)
    with pytest.raises(KeyboardInterrupt):
        Pipeline(Path.cwd()).reproduce("copy")


FAILING = """
import sys
print("progress 1/2", file=sys.stderr)
sys.exit("error: the mailbox does not exist; `git checkout` brings it back")
"""


@pytest.mark.parametrize("warm", [True, False])
def test_a_stage_that_fails_says_so_in_its_own_words(
    repository: Path, monkeypatch: pytest.MonkeyPatch, warm: bool
) -> None:
    """Whether the worker ran it or a process of its own: on Prefect's page (the error's text) and in the terminal."""
    sentence = "the mailbox does not exist; `git checkout` brings it back"
    (repository / "failing.py").write_text(FAILING)
    line = "steps/python -m steps.rollout" if warm else f"{sys.executable} failing.py"
    (repository / "dvc.yaml").write_text(f"stages: {{copy: {{cmd: {line}, deps: [a], outs: [b]}}}}")
    monkeypatch.setattr(dvc_internals, "is_warm", lambda: True)
    monkeypatch.setattr(dvc_internals, "find", lambda *_: None)
    monkeypatch.setattr(dvc_internals, "parse", lambda *_: {})
    monkeypatch.setattr(dvc_internals, "run_shown", lambda *_, **__: (2, sentence))
    with pytest.raises(StageFailed) as caught:
        Pipeline(Path.cwd()).reproduce("copy")
    assert str(caught.value) == f"the stage copy failed: {sentence}"
    assert caught.value.code == (2 if warm else 1)
    printed, _ = explained(caught.value, Path("train.log"))
    assert printed == f"the stage copy failed (log: train.log): {sentence}"


def test_a_fault_of_the_program_is_named_by_its_last_line() -> None:
    text = "Traceback (most recent call last):\n  File x\nValueError: a bug\nof two lines"
    assert str(StageFailed("update@001", 1, text)) == "the stage update@001 failed: ValueError: a bug"


def test_a_command_that_is_killed_says_by_what(repository: Path) -> None:
    (repository / "dvc.yaml").write_text("stages: {copy: {cmd: 'kill -SEGV $$', deps: [a], outs: [b]}}")
    with pytest.raises(StageFailed, match="the stage copy failed: SIGSEGV ended it"):
        Pipeline(Path.cwd()).reproduce("copy")


def test_two_results_of_one_stage_are_both_kept(repository: Path) -> None:
    (repository / "dvc.yaml").write_text("stages: {copy: {cmd: date +%N > b, deps: [a], outs: [b]}}")
    for _ in range(2):
        with dvc_internals.replaced(LockFile(), Texts(), dvc_internals.run_stage_command):
            by_stock(repository, force=True)
    entries = sorted(path.parent.name for path in (repository / ".dvc/cache/runs").glob("*/*/*"))
    assert len(entries) == 3
    assert len(set(entries)) == 2


STAGE = "stages: {copy: {cmd: cp a b, deps: [a], outs: [b]%s}}"


def test_what_is_kept_of_files_between_stages_goes_with_their_text(repository: Path) -> None:
    pipeline, dvc_yaml, params = Pipeline(Path.cwd()), repository / "dvc.yaml", repository / "params.yaml"
    assert not pipeline.reproduce("copy")
    dvc_yaml.write_text(STAGE % ", params: [seed]")
    params.write_text("seed: 1")
    assert pipeline.reproduce("copy")
    assert not pipeline.reproduce("copy")
    params.write_text("seed: 2")
    assert pipeline.reproduce("copy"), "another text of params.yaml"
    assert "seed: 2" in (repository / "dvc.lock").read_text()
    for _ in range(2):
        dvc_yaml.write_text(STAGE % ", params: 3")
        with pytest.raises(UserError, match=r"dvc\.yaml"):
            pipeline.reproduce("copy")
    dvc_yaml.write_text(STAGE % ", params: [seed]")
    assert not pipeline.reproduce("copy")


def test_an_output_that_git_has_is_refused_as_long_as_git_has_it(repository: Path) -> None:
    pipeline = Pipeline(Path.cwd())
    for text in "bc":
        (repository / "a").write_text(text)
        assert pipeline.reproduce("copy")
        assert run(["git", "add", "--force", "b"], repository).returncode == 0
        (repository / "a").write_text(f"not {text}")
        with pytest.raises(UserError, match="already tracked"):
            pipeline.reproduce("copy")
        assert run(["git", "rm", "--cached", "--force", "--quiet", "b"], repository).returncode == 0


def test_which_stages_are_in_the_run_cache_is_as_dvc_has_it(repository: Path) -> None:
    from dvc.repo import Repo
    from dvc.stage import cache

    more = {
        "copy": "deps: [a], outs: [b]",
        "always": "deps: [a], outs: [c], always_changed: true",
        "sourceless": "outs: [d]",
        "barren": "deps: [a]",
        "lasting": "deps: [a], outs: [{e: {persist: true}}]",
        "outside": f"deps: [a], outs: [{{{repository.parent / 'f'}: {{cache: false}}}}]",
        "with_parameters": "deps: [a], params: [seed], outs: [g]",
    }
    (repository / "params.yaml").write_text("seed: 1")
    stages = ", ".join(f"{name}: {{cmd: 'true', {rest}}}" for name, rest in more.items())
    (repository / "dvc.yaml").write_text(f"stages: {{{stages}}}")
    with contextlib.closing(Repo(str(repository))) as repo:
        ours = {stage.name: bool(dvc_internals.can_hash(stage)) for stage in repo.index.stages}
        assert ours == {stage.name: bool(cache._can_hash(stage)) for stage in repo.index.stages}
    assert {name for name, is_cached in ours.items() if is_cached} == {"copy", "with_parameters"}


def test_a_lock_file_cut_short_is_a_sentence_with_the_cure(repository: Path) -> None:
    lock = repository / "dvc.lock"
    lock.write_text(lock.read_text()[:20])
    with pytest.raises(UserError, match=r"DVC cannot run copy: .*dvc\.lock.*git checkout dvc\.lock"):
        Pipeline(Path.cwd()).reproduce("copy")
