"""The doctor beside real files of DVC: each kind of damage is planted, described, and mended where that is safe."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows import doctor
from flows.diagnosis import findings, hashes, locks
from flows.diagnosis.findings import BAD, OK, WARN, Finding
from flows.repro import folder_lock
from tests.conftest import environment

STAGE = """stages:
  make:
    cmd: mkdir -p run/folder && echo first > run/folder/a && echo second > run/folder/b && echo alone > run/file
    outs: [run/folder, run/file]
"""

HOLDING = """
import sys, time
from pathlib import Path
from flows.repro.folder_lock import held
with held(Path(sys.argv[1]), "python -m flows.train"):
    print(flush=True)
    time.sleep(60)
"""


def command(folder: Path, *words: str) -> None:
    subprocess.run(words, cwd=folder, env=environment(folder), check=True, capture_output=True)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository in which DVC has run a stage."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "dvc.yaml").write_text(STAGE)
    (folder / ".venv").symlink_to(sys.prefix)  # for cures, which are run as they are printed
    command(folder, "git", "init", "--quiet")
    command(folder, sys.executable, "-m", "dvc", "init", "--quiet")
    command(folder, sys.executable, "-m", "dvc", "repro", "--quiet")
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "project"
    shutil.copytree(made, folder, symlinks=True)
    monkeypatch.chdir(folder)
    return folder


def look(folder: Path, is_thorough: bool = True) -> list[Finding]:
    return hashes.hashes(findings.place(folder, {}, is_thorough=is_thorough))


def mended(folder: Path) -> list[str]:
    return doctor.mend(findings.place(folder, {}), look(folder))


def stored(folder: Path, content: str) -> Path:
    """The file of DVC's cache with this content."""
    return next(
        path
        for path in (folder / ".dvc/cache/files/md5").rglob("*")
        if path.is_file() and path.read_bytes() == content.encode()
    )


def spoil(path: Path, content: str) -> None:
    path.chmod(0o644)
    path.write_text(content)


def test_a_whole_run_is_well(project: Path) -> None:
    assert [(each.state, each.text) for each in look(project)] == [(OK, "2 outputs are as recorded (6 files read)")]


def test_missing_outputs_are_brought_back(project: Path) -> None:
    shutil.rmtree(project / "run")
    seen = {each.cure: each.state for each in look(project)}
    assert seen == {".venv/bin/dvc checkout run/folder": WARN, ".venv/bin/dvc checkout run/file": WARN}
    assert sorted(mended(project)) == [
        "mended: run/file is back from DVC's cache",
        "mended: run/folder is back from DVC's cache",
    ]
    assert (project / "run/folder/b").read_text() == "second\n"
    assert [each.state for each in look(project)] == [OK]


@pytest.mark.parametrize(
    ("path", "content", "out"),
    [
        ("run/folder/a", "fir", "run/folder"),  # cut short
        ("run/folder/a", "thirs\n", "run/folder"),  # changed, of the same size
        ("run/folder/more", "more", "run/folder"),
        ("run/file", "alon", "run/file"),
    ],
)
def test_a_changed_output_is_named_and_stays(project: Path, path: str, content: str, out: str) -> None:
    (project / path).write_text(content)
    (finding,) = look(project)
    assert (finding.state, finding.cure, finding.mend) == (BAD, f".venv/bin/dvc checkout --force {out}", None)
    assert finding.text.startswith(f"{out} is not as dvc.lock has it: 1 ")
    assert mended(project) == []
    assert (project / path).read_text() == content
    command(project, *finding.cure.split())
    assert [each.state for each in look(project)] == [OK]


def test_a_damaged_file_of_the_cache_is_written_again(project: Path) -> None:
    spoil(stored(project, "first\n"), "fIrst\n")
    (finding,) = look(project)
    assert (finding.state, finding.cure) == (BAD, locks.MEND)
    assert finding.text == "1 file of run/folder is damaged in DVC's cache, and whole in the folder"
    assert mended(project) == ["mended: DVC's cache has run/folder/a again, from the folder's whole copy"]
    assert stored(project, "first\n").stat().st_mode & 0o777 == 0o444
    assert [each.state for each in look(project)] == [OK]


def test_what_is_lost_in_both_places_is_made_again(project: Path) -> None:
    spoil(stored(project, "alone\n"), "alo")
    (project / "run/file").unlink()
    (finding,) = look(project)
    assert (finding.state, finding.mend) == (BAD, None)
    subprocess.run(
        finding.cure,
        shell=True,
        env=environment(project),
        check=True,
    )
    assert [each.state for each in look(project)] == [OK]
    assert (project / "run/file").read_text() == "alone\n"


def test_a_damaged_list_of_a_folder_is_written_again_by_the_command(project: Path) -> None:
    listing = next((project / ".dvc/cache/files/md5").rglob("*.dir"))
    spoil(listing, listing.read_text()[:20])
    (finding,) = look(project)
    assert (finding.state, finding.text) == (
        BAD,
        "run/folder is whole, and its list of files in DVC's cache is damaged",
    )
    subprocess.run(
        finding.cure,
        shell=True,
        env=environment(project),
        check=True,
    )
    assert [each.state for each in look(project)] == [OK]


def test_a_file_that_only_the_folder_has_is_stored_by_the_command(project: Path) -> None:
    stored(project, "alone\n").unlink()
    (finding,) = look(project)
    assert (finding.state, finding.cure) == (WARN, ".venv/bin/dvc commit -q -f run/file")
    command(project, *finding.cure.split())
    assert [each.state for each in look(project)] == [OK]


def test_a_damaged_lock_file_is_a_finding(project: Path) -> None:
    text = (project / "dvc.lock").read_text()
    (project / "dvc.lock").write_text(text[: len(text) // 2] + "\n  - {")
    where = findings.place(project, {})
    (finding,) = findings.examine(where, [findings.Check("hashes", hashes.hashes)])
    assert finding.state == BAD
    assert "dvc.lock" in finding.text
    (project / "dvc.lock").unlink()
    assert look(project)[0].state == WARN


def test_with_little_time_files_are_compared_by_size(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashes, "SECONDS", -1.0)
    (project / "run/file").write_text("Alone\n")
    assert "compared by size alone" in look(project, is_thorough=False)[0].text
    assert look(project)[0].state == BAD


def test_nothing_is_mended_while_another_command_is_at_work(project: Path) -> None:
    (project / ".flywheel").mkdir(exist_ok=True)
    (project / "run/file").unlink()
    where, seen = findings.place(project, {}), look(project)
    words = [sys.executable, "-c", HOLDING, os.fspath(project)]
    other = subprocess.Popen(words, cwd=Path(doctor.__file__).parent.parent, stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        other.stdout.readline()
        (refusal,) = doctor.mend(where, seen)
        assert refusal.startswith("nothing was mended: ")
        assert not (project / "run/file").exists()
        assert "not compared" in look(project)[0].text
        (held,) = locks.command_lock(project)
        assert (held.state, f"process {other.pid}" in held.text) == (OK, True)
    finally:
        other.kill()
        other.wait()
    (left,) = locks.command_lock(project)
    assert (left.state, left.text) == (WARN, f"{folder_lock.LOCK} is left over: process {other.pid} has ended")
    assert sorted(doctor.mend(where, [left, *seen]))[0].startswith("mended: .flywheel/command.lock")
    assert locks.command_lock(project) == []
    assert (project / "run/file").read_text() == "alone\n"
