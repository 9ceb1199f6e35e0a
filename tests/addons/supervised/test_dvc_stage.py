"""A command that has scenarios written, as a stage of DVC: real DVC in a copy of the project, and the tests' server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import yaml

from addons.supervised import dvc_stage, generate
from steps.core.errors import UserError
from tests.addons.supervised.test_generate import writer
from tests.conftest import copy_project, python, run
from tests.support.openai_server import Server

pytestmark = pytest.mark.usefixtures("own_ledger")
OUT = Path("tasks_data/multiplication/more.jsonl")
STAGE = "generated/multiplication/dvc.yaml:more"


@pytest.mark.nightly
def test_the_stage_writes_the_same_file_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_project(tmp_path / "project")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")  # the stage's `python`
    (folder / "handbook.md").write_text("Multiply both numbers.")

    def dvc(*words: str) -> str:
        done = run(python("dvc", *words), folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    with Server(writer()) as server:
        words = [
            "--task",
            "multiplication",
            "--out",
            str(OUT),
            "--count",
            "3",
            "--model",
            "writer",
            "--url",
            server.url,
        ]
        assert generate.main([*words, "--documents", "handbook.md", "--dvc"]) == 0
        assert f"stage of DVC, frozen: {STAGE}" in capsys.readouterr().out
        written, asked = OUT.read_bytes(), len(server.bodies)
        made = yaml.safe_load((folder / "generated/multiplication/dvc.yaml").read_text())["stages"]["more"]
        assert made["frozen"] is True
        assert {"environments", "addons/supervised", "steps/data", "addons/models", "handbook.md"} < set(made["deps"])
        assert "tasks_data/multiplication/ranges.json" in made["deps"]
        assert not [path for path in made["deps"] if "more" in path or "policy" in path]

        OUT.unlink()
        dvc("unfreeze", STAGE)
        dvc("repro", STAGE)
        assert OUT.read_bytes() == written
        assert len(server.bodies) == asked, "the ledger has the answers"
        assert "up to date" in dvc("status", STAGE)
        (folder / "handbook.md").write_text("Multiply all numbers.")
        assert "handbook.md" in dvc("status", STAGE)

        assert generate.main([*words, "--dvc"]) == 0, "the stage is written anew"
    made = yaml.safe_load((folder / "generated/multiplication/dvc.yaml").read_text())["stages"]["more"]
    assert (made["frozen"], "handbook.md" in made["deps"]) == (True, False)


def test_what_cannot_be_a_stage_is_refused_before_anything_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--task", "multiplication", "--model", "writer", "--url", "http://127.0.0.1:1/v1", "--dvc"]
    for out in ("more.jsonl", "tasks_data/email_search/more.jsonl"):
        assert generate.main([*words, "--out", out]) == 2
        assert "--out must be in tasks_data/multiplication/" in capsys.readouterr().err
    assert generate.main([*words, "--out", str(OUT), "--from-failures", "run/010"]) == 2
    assert "the stage would depend on itself" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="no repository of DVC"):
        dvc_stage.check("multiplication", OUT, None)
