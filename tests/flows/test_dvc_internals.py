"""What DVC writes is whole whenever it is stopped, and what it decides stays the same."""

from __future__ import annotations

import ast
import contextlib
import inspect
import json
import os
import sys
import tomllib
from pathlib import Path

import pytest
from dvc.exceptions import ReproductionError
from fsspec.implementations.memory import MemoryFileSystem
from packaging.requirements import Requirement

from flows.repro import dvc_internals
from flows.repro.pipeline import Pipeline, StageFailed
from flows.terminal.command import explained
from steps.core.errors import UserError
from tests.conftest import python, run

ROOT = Path(__file__).parent.parent.parent


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
    with dvc_internals.replaced(dvc_internals.parts(dvc_internals.run_stage_command)):
        assert not set(originals) & set(parts())
    assert parts() == originals


PUBLIC = {"dvc.repo", "dvc.exceptions", "dvc.stage.exceptions"}


def internals(tree: ast.Module) -> set[str]:
    """The modules of DVC that a module imports, but for those of its Python API."""
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name for name in names if name.partition(".")[0] == "dvc"} - PUBLIC


def test_only_two_modules_touch_dvcs_internals() -> None:
    files = [path for room in ("flows", "addons", "steps", "viewer") for path in (ROOT / room).rglob("*.py")]
    touching = {path.relative_to(ROOT).as_posix() for path in files if internals(ast.parse(path.read_text()))}
    assert touching == {"flows/repro/dvc_internals.py", "addons/quicker/stages.py"}


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


def by_stock(repository: Path, **options: bool) -> None:
    """`dvc repro`, by DVC as it comes."""
    from dvc.repo import Repo

    with contextlib.closing(Repo(str(repository))) as repo:
        repo.reproduce(**options)


@pytest.mark.parametrize("addons", ["all", "none"])
def test_a_new_lock_file_is_dvcs(repository: Path, monkeypatch: pytest.MonkeyPatch, addons: str) -> None:
    if addons == "none":
        monkeypatch.setattr(dvc_internals, "every", lambda _: iter(()))
        (repository / "a").write_text("b")
        assert Pipeline(Path.cwd()).reproduce("copy")
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
        with dvc_internals.replaced(dvc_internals.parts(dvc_internals.run_stage_command)):
            by_stock(repository, force=True)
    entries = sorted(path.parent.name for path in (repository / ".dvc/cache/runs").glob("*/*/*"))
    assert len(entries) == 3
    assert len(set(entries)) == 2


def test_a_lock_file_cut_short_is_a_sentence_with_the_cure(repository: Path) -> None:
    lock = repository / "dvc.lock"
    lock.write_text(lock.read_text()[:20])
    with pytest.raises(UserError, match=r"DVC cannot run copy: .*dvc\.lock.*git checkout dvc\.lock"):
        Pipeline(Path.cwd()).reproduce("copy")
