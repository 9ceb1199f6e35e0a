"""What DVC tells of two revisions, and how a run travels: `dvc params`, `metrics`, `plots`, `push` and `pull`, for real.

On a made-up project of two revisions whose dvc.yaml has this one's own `metrics:` and `plots:`.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent.parent
OWN = yaml.safe_load((ROOT / "dvc.yaml").read_text())
CHAIN = {"iterations": {"001": {"prev": "000"}}, "evaluated": ["000", "001"], "tested": {"base": "000", "best": "001"}}
# Stands for steps.evaluate: the success is a tenth of params.yaml's seed more in iteration 001.
MAKE = """
import json, os, sys, yaml
folder, split = sys.argv[1:]
success = 0.25 + ("001" in folder) * yaml.safe_load(open("params.yaml"))["seed"] / 10
os.makedirs(folder)
summary = {"split": split, "success": success, "ci95": [success - 0.1, success + 0.1], "n": 60, "slices": {"a": success}}
json.dump(summary, open(folder + "/summary.json", "w"))
open(folder + "/trajectories.parquet", "w").write("rows of " + folder)
"""


def git(folder: Path, *words: str) -> None:
    name = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", "-C", os.fspath(folder), *name, *words], check=True, capture_output=True)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two commits: the second with another seed and learning rate, both with what `dvc repro` made of them."""
    folder = tmp_path_factory.mktemp("compared")
    stages: dict[str, Any] = {}
    for name, policies, out, split in (
        ("evaluate", "evaluated", "evaluation", "val"),
        ("test", "tested", "test", "test"),
    ):
        stage = {"cmd": f"python make.py run/${{item}}/{out} {split}", "outs": [f"run/${{item}}/{out}"]}
        stages[name] = {"foreach": f"${{{policies}}}", "do": stage | {"params": ["seed"], "deps": ["make.py"]}}
    written = {"vars": ["chain.yaml"], "stages": stages, "metrics": OWN["metrics"], "plots": OWN["plots"]}
    (folder / "dvc.yaml").write_text(yaml.safe_dump(written))
    (folder / "chain.yaml").write_text(yaml.safe_dump(CHAIN))
    (folder / "make.py").write_text(MAKE)
    (folder / ".gitignore").write_text("/run/\n")
    git(folder, "init", "--quiet")
    before = dict(os.environ)
    os.environ |= {"DVC_NO_ANALYTICS": "1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    try:
        dvc(folder, "init", "--quiet")
        dvc(folder, "remote", "add", "--default", "team", os.fspath(folder.parent / f"{folder.name} remote"))
        for seed, rate in ((1, 0.0005), (4, 0.001)):
            (folder / "params.yaml").write_text(yaml.safe_dump({"seed": seed, "update": {"learning_rate": rate}}))
            dvc(folder, "repro", "--quiet")
            rows = [{"iteration": n, "success": 0.3 + n * seed / 10, "reward": float(seed)} for n in (1, 2)]
            summary = {"task": "toy", "base": {"ci95": [0, 1]}, "iterations": rows}
            (folder / "run/summary.json").write_text(json.dumps(summary))
            git(folder, "add", "--all")
            git(folder, "add", "--force", "run/summary.json")  # as the README says, where its curves are to be compared
            git(folder, "commit", "--quiet", "--message", f"seed {seed}")
        yield folder
    finally:
        os.environ.clear()
        os.environ.update(before)


def dvc(folder: Path, *words: str) -> None:
    """A command of DVC, in this process, which is quicker."""
    from dvc.cli import main

    here = Path.cwd()
    os.chdir(folder)
    try:
        code = main(list(words))
    finally:
        os.chdir(here)
    assert code == 0, words


@pytest.fixture
def dvc_json(project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Calls a command of DVC, and returns what it prints as JSON."""
    monkeypatch.setenv("DVC_TEST", "1")  # or it writes to the output that was there when DVC was imported

    def call(*words: str) -> Any:
        capsys.readouterr()
        dvc(project, *words, "--json")
        return json.loads(capsys.readouterr().out)

    return call


def test_params_diff(dvc_json: Callable[..., Any]) -> None:
    assert dvc_json("params", "diff", "HEAD~1", "HEAD") == {
        "params.yaml": {
            "seed": {"old": 1, "new": 4, "diff": 3},
            "update.learning_rate": {"old": 0.0005, "new": 0.001, "diff": 0.0005},
        }
    }


def test_metrics_show_and_diff(dvc_json: Callable[..., Any]) -> None:
    """Base and best on the test split, the best on validation: whichever iterations chain.yaml says they are."""
    files = ["run/000/test/summary.json", "run/001/test/summary.json", "run/001/evaluation/summary.json"]
    shown = dvc_json("metrics", "show")[""]["data"]
    assert sorted(shown) == sorted(files)
    assert [round(shown[file]["data"]["success"], 6) for file in files] == [0.25, 0.65, 0.65]
    changed = dvc_json("metrics", "diff", "HEAD~1", "HEAD")
    changed = changed.get("diff", changed)
    assert sorted(changed) == sorted(files[1:]), "the base is the same"
    summary = changed["run/001/test/summary.json"]
    assert {name: round(value, 6) for name, value in summary["success"].items()} == {
        "old": 0.35,
        "new": 0.65,
        "diff": 0.3,
    }
    assert round(summary["slices.a"]["diff"], 6) == 0.3


def curves(plots: Any) -> dict[tuple[str, str], list[float]]:
    """(plot, revision) -> its points."""
    result: dict[tuple[str, str], list[float]] = {}
    for name, (plot, *_) in plots["data"].items():
        field = plot["content"]["layer"][0]["encoding"]["y"]["field"]
        for value in plot["content"]["data"]["values"]:
            result.setdefault((name, value["rev"]), []).append(round(value[field], 6))
    return result


def test_plots_show_and_diff(dvc_json: Callable[..., Any]) -> None:
    success, reward = "validation success by iteration", "training reward by iteration"
    assert curves(dvc_json("plots", "show")) == {
        (success, "workspace"): [0.7, 1.1],
        (reward, "workspace"): [4.0, 4.0],
    }
    assert curves(dvc_json("plots", "diff", "HEAD~1", "HEAD")) == {
        (success, "HEAD~1"): [0.4, 0.5],
        (success, "HEAD"): [0.7, 1.1],
        (reward, "HEAD~1"): [1.0, 1.0],
        (reward, "HEAD"): [4.0, 4.0],
    }


def test_plots_are_a_page(project: Path, tmp_path: Path) -> None:
    dvc(project, "plots", "diff", "HEAD~1", "--out", os.fspath(tmp_path / "page"))
    assert "validation success by iteration" in (tmp_path / "page/index.html").read_text()


def test_push_and_pull_in_a_clean_clone(project: Path, tmp_path: Path) -> None:
    """Both revisions are pushed; a clone that has no cache gets the bytes of either."""
    dvc(project, "push", "--quiet", "--all-commits")
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", os.fspath(project), os.fspath(clone)], check=True)
    assert not (clone / "run/001").exists()
    dvc(clone, "pull", "--quiet")
    for path in sorted((project / "run").rglob("*")):
        if path.is_file():
            assert (clone / path.relative_to(project)).read_bytes() == path.read_bytes(), path
    git(clone, "checkout", "--quiet", "HEAD~1")
    shutil.rmtree(clone / ".dvc/cache")
    dvc(clone, "pull", "--quiet", "--force")
    assert json.loads((clone / "run/001/test/summary.json").read_text())["success"] == 0.35


def test_what_is_shown_is_made_by_a_stage_or_the_flow() -> None:
    """A file that nothing makes would be an error in every one of these commands."""
    outs = {
        out if isinstance(out, str) else next(iter(out))
        for stage in OWN["stages"].values()
        for out in stage.get("do", stage).get("outs", ())
    }
    curves_ = {
        f"run/${{tested.{key}}}/{out.rpartition('/')[2]}"
        for key in ("base", "best")
        for out in outs
        if "${item.name}" in out
    }
    for path in OWN["metrics"]:
        assert path.removesuffix("/summary.json") in curves_, path
    for plot in OWN["plots"]:
        (lines,) = plot.values()
        assert set(lines["y"]) == {"run/summary.json"}
        assert {*lines["y"].values(), lines["x"]} <= {
            "iteration",
            "success",
            "reward",
        }  # flows/terminal/report.py writes them
