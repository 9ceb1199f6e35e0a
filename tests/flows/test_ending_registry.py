"""The end of a training run: what it says of the registry, whatever has become of it since the stage register ran."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.terminal.display import RunDisplay
from flows.terminal.report import Point
from flows.training import ending
from flows.training.ended import is_registered
from steps.policy.adapter import adapter_hash
from steps.project import store
from steps.registry.publish import registered_version
from tests.stages.test_register import PARAMS, Run


def ended(root: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Run, list[str]]:
    """A run whose stage register has run, and what the end of the run says."""
    run, said = Run(root), list[str]()
    (root / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    (root / "chain.yaml").write_text(yaml.safe_dump({"tested": {"base": "000", "best": "004"}}))
    run.register()
    shutil.copy(root / "receipt.json", root / "run/receipt.json")
    monkeypatch.setattr(RunDisplay, "say", lambda _, text: said.append(text))
    monkeypatch.setattr(ending.report, "iteration_row", lambda number: {"iteration": number})
    for name in ("tripped", "at_end"):  # which read the iterations' files
        monkeypatch.setattr(ending.health, name, lambda *_: [])
    return run, said


def summary_of() -> dict[str, Any]:
    return ending.write_summary("toy", Point(4, 0.5, (0.4, 0.6), 0.0), 4, 0.0, RunDisplay())


AGAIN = "The registry had no version of toy with this adapter: it is registered again, as version "


@pytest.mark.parametrize("lost", ["nothing", "store", "version", "server"])
def test_an_unchanged_run_is_registered_again_where_the_registry_has_lost_it(
    here: Path, empty_store: Path, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    run, said = ended(here, monkeypatch)
    if lost == "store":  # `dvc pull` brought the run to another machine, or .flywheel was deleted
        run.root = here / "elsewhere"
        shutil.copytree(here / "run", run.root / "run")
        for name in ("params.yaml", "chain.yaml"):
            shutil.copy(here / name, run.root)
        (run.root / ".flywheel").mkdir()
        shutil.copy(empty_store, run.root / ".flywheel/mlflow.db")
        monkeypatch.chdir(run.root)
    elif lost == "version":
        store.connect(here).delete_model_version("toy", "1")
    elif lost == "server":
        shutil.copy(empty_store, here / "other.db")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{here / 'other.db'}")
    number = "2" if lost == "version" else "1"
    assert is_registered({"name": "toy", "version": "1"}) is (lost == "nothing"), "else the same command does it again"
    for _ in range(2):
        summary = summary_of()
        assert summary["registered"] == {"name": "toy", "version": number}
        assert f"Registered iteration 4 as models:/toy/{number}." in ending.result_lines(summary)
    assert is_registered(summary["registered"])
    assert said == ([] if lost == "nothing" else [AGAIN + number + "."]), "once"
    assert registered_version("toy", adapter_hash(run.adapter)) == number
    assert len(run.versions()) == 1
