"""Worktrees of deployed runs: made, found again, kept under their refs, with the project's own stores."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.deployment import checkout, workspace
from flows.deployment.checkout import Source
from steps.core.errors import UserError
from steps.core.params import Params
from steps.project import kept_runs, store
from steps.project.git import git, git_state
from steps.project.kept_runs import WORKTREES
from steps.project.store import variables
from tests.conftest import ROOT, small_repository


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with one commit."""
    small_repository(tmp_path, "seed: 1\n")
    return tmp_path


def test_only_the_variables_of_the_stores_change_and_they_change_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", "")
    monkeypatch.delenv("SET_INSIDE", raising=False)
    (tmp_path / "worktree").mkdir()
    before, folder = dict(os.environ), Path.cwd()
    with contextlib.suppress(KeyboardInterrupt), workspace.here(tmp_path, tmp_path / "worktree"):
        assert Path.cwd() == tmp_path / "worktree"
        assert os.environ["MLFLOW_TRACKING_URI"] == f"sqlite:///{tmp_path}/.flywheel/mlflow.db"
        assert os.environ["FLYWHEEL_LEDGER_URL"] == f"sqlite:///{tmp_path}/.flywheel/ledger.db"
        monkeypatch.setenv("SET_INSIDE", "stays")
        raise KeyboardInterrupt
    assert Path.cwd() == folder
    assert dict(os.environ) == before | {"SET_INSIDE": "stays"}


def test_a_teams_stores_are_the_worktrees_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://team:5000")
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", "postgresql://team/ledger")
    with workspace.here(tmp_path, tmp_path):
        assert os.environ["MLFLOW_TRACKING_URI"] == "http://team:5000"
        assert os.environ["FLYWHEEL_LEDGER_URL"] == "postgresql://team/ledger"


def test_a_variable_that_had_another_value_gets_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://before")
    with variables(MLFLOW_TRACKING_URI="http://inside"):
        assert os.environ["MLFLOW_TRACKING_URI"] == "http://inside"
    assert os.environ["MLFLOW_TRACKING_URI"] == "http://before"


def test_a_training_run_has_a_worktree_and_goes_on_in_it(project: Path) -> None:
    path = checkout.new(project, "lucky-owl", {"name": "nightly"})
    assert path == project / WORKTREES / "nightly"
    assert git(path, "rev-parse", "HEAD") == git(project, "rev-parse", "HEAD")
    assert str(project / ".dvc/cache") in (path / ".dvc/config.local").read_text()
    (path / "half").touch()
    assert checkout.new(project, "shy-fox", {"name": "nightly"}) == path
    assert (path / "half").exists()
    assert checkout.new(project, "lucky-owl", {}).name == "lucky-owl"
    with pytest.raises(UserError, match="cannot be a run's name"):
        checkout.new(project, "lucky-owl", {"name": "../nightly"})


def test_a_named_run_of_the_checkout_is_kept_without_touching_it(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "params.yaml").write_text("seed: 2\n")
    (project / "chain.yaml").write_text("iterations: {}\n")
    before = git(project, "status", "--porcelain"), git(project, "rev-parse", "HEAD")
    kept_runs.keep_described(project, "second")
    assert (git(project, "status", "--porcelain"), git(project, "rev-parse", "HEAD")) == before
    assert git(project, "show", "refs/runs/second:params.yaml") == "seed: 2"
    assert git(project, "rev-parse", "refs/runs/second^") == before[1]
    assert checkout.source(project, "second").commit == git(project, "rev-parse", "refs/runs/second")
    assert capsys.readouterr().out == ""
    (project / ".gitignore").write_text("")
    kept_runs.keep_described(project, "second")
    assert git(project, "show", "refs/runs/second:.gitignore") == "/.flywheel/"
    assert "without your uncommitted changes" in capsys.readouterr().out


def test_a_kept_run_is_not_replaced_by_another_of_its_name(project: Path) -> None:
    (project / "params.yaml").write_text("seed: 2\ntrain: {iterations: 3}\n")
    (project / "chain.yaml").write_text("iterations: {}\n")
    kept_runs.refuse_other(project, "second", Params(seed=5))
    kept_runs.keep_described(project, "second")
    goes_on = {"seed": 2, "train": {"iterations": 9}, "sft": {"demonstrations": ["own.jsonl"]}}
    kept_runs.refuse_other(project, "second", Params.model_validate(goes_on))
    other = Params.model_validate({"seed": 5, "rollout": {"attempts": 4}})
    with pytest.raises(
        UserError, match=r"a run second is kept that has other settings in rollout, seed, .* update-ref -d"
    ):
        kept_runs.refuse_other(project, "second", other)


def test_a_name_whose_run_had_uncommitted_changes_says_which_id_has_them(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(kept_runs, "run_named", lambda root, name: "e" * 32 if name == "second" else None)
    code, settings = (f"diff --git a/{name} b/{name}\n" for name in ("steps/rollout.py", "params.yaml"))
    for difference in (settings, settings + code):
        monkeypatch.setattr(checkout, "source", lambda root, name, it=difference: checkout.Source("c", it, {}))
        assert checkout.uncommitted(project, "first") == ""
        advice = checkout.uncommitted(project, "second")
        assert advice == "" or ("steps/rollout.py" in advice and f"flows.reproduce {'e' * 32}`" in advice)
        assert bool(advice) == (code in difference)
    (project / ".gitignore").write_text("")
    kept_runs.keep_described(project, "second")
    assert f"`.venv/bin/python -m flows.reproduce {'e' * 32}` reproduces it with them" in capsys.readouterr().out


def test_a_run_is_found_by_its_name_in_mlflow(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as `email_search seed 2, 91e914`, which nobody chose and every page shows."""
    asked: list[str] = []

    class Client:
        """Stands for MLflow's: knows one run."""

        def search_experiments(self) -> list[SimpleNamespace]:
            return [SimpleNamespace(experiment_id="1")]

        def search_runs(self, _: list[str], query: str, max_results: int) -> list[SimpleNamespace]:
            asked.append(query)
            return [SimpleNamespace(info=SimpleNamespace(run_id="f" * 32))] if "seed 2" in query else []

        def get_run(self, name: str) -> SimpleNamespace:
            return SimpleNamespace(data=SimpleNamespace(tags={}), info=SimpleNamespace(run_id=name))

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow")
    monkeypatch.setattr(store, "connect", lambda root: Client())
    with pytest.raises(UserError, match=f"the MLflow run {'f' * 32} has no git commit"):
        checkout.source(project, "toy seed 2, 91e914")
    with pytest.raises(UserError, match="no run or revision 'toy seed 3'"):
        checkout.source(project, "toy seed 3")
    assert asked == [f"attributes.run_name = '{name}'" for name in ("toy seed 2, 91e914", "toy seed 3")]


def test_a_judging_run_has_the_tree_of_the_judged_run_and_begins_anew(project: Path) -> None:
    (project / "params.yaml").write_text("seed: 2\n")
    workspace.keep(project, project, kept_runs.ref("kept"), ["params.yaml"])
    git(project, "reset", "--quiet", "--hard", "HEAD~1")
    path = checkout.judged(project, "shy-fox", {"run": "kept"})
    assert (path / checkout.JUDGED).exists()
    assert (path / "params.yaml").read_text() == "seed: 2\n"
    assert (project / "params.yaml").read_text() == "seed: 1\n"
    (path / "half").touch()
    assert checkout.judged(project, "shy-fox", {"run": "HEAD"}) == path
    assert (path / "params.yaml").read_text() == "seed: 1\n"
    assert not (path / "half").exists()
    with pytest.raises(UserError, match=r"no run or revision 'lost'.*latest runs: kept"):
        checkout.judged(project, "lucky-owl", {"run": "lost"})


def difference(project: Path) -> str:
    """How the working tree stands to the commit, as MLflow has it of a run; the tree is put back."""
    git(project, "add", "--intent-to-add", "--all")
    text = f"{git_state(project)[1]}"
    git(project, "reset", "--quiet", "--hard")
    git(project, "clean", "--quiet", "--force", "-d")
    return text


def logged(project: Path, difference: str, **files: str) -> Source:
    """A run of MLflow's at the project's commit."""
    return Source(git(project, "rev-parse", "HEAD"), difference, files)


def test_a_link_that_a_difference_makes_is_refused(project: Path, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_text("before")
    (project / "params.yaml").unlink()
    (project / "params.yaml").symlink_to(outside)
    path, run = project / WORKTREES / "again", {"params.yaml": "written through"}
    with pytest.raises(UserError, match=r"git.diff makes a symbolic link of params.yaml"):
        checkout.restore(project, path, Source(git(project, "rev-parse", "HEAD"), difference(project), run))
    assert outside.read_text() == "before"
    workspace.remove(project, path)
    (project / "run").symlink_to(outside.parent)
    with pytest.raises(UserError, match=r"git.diff makes a symbolic link of run"):
        checkout.restore(project, path, logged(project, difference(project)))


def test_a_link_in_the_commit_is_replaced_not_followed(project: Path, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.write_text("before")
    (project / "chain.yaml").symlink_to(outside)
    git(project, "add", "chain.yaml")
    git(project, "commit", "--quiet", "--message", "link")
    path = project / WORKTREES / "again"
    checkout.restore(project, path, logged(project, "", **{"chain.yaml": "iterations: {}\n"}))
    assert (path / "chain.yaml").read_text() == "iterations: {}\n"
    assert outside.read_text() == "before"


@pytest.mark.parametrize("place", ["../../../out.txt", "/tmp/out.txt", ".git/hooks/post-checkout"])
def test_a_difference_cannot_leave_the_worktree(project: Path, place: str) -> None:
    text = f"diff --git a/{place} b/{place}\nnew file mode 100644\n--- /dev/null\n+++ b/{place}\n@@ -0,0 +1 @@\n+x\n"
    before = set(project.parent.rglob("out.txt"))
    with pytest.raises(UserError, match="git apply failed"):
        checkout.restore(project, project / WORKTREES / "again", logged(project, text))
    assert set(project.parent.rglob("out.txt")) == before


def test_a_deployment_runs_the_commits_code_alone(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "steps.py").write_text("print('committed')\n")
    git(project, "add", "--all")
    git(project, "commit", "--quiet", "--message", "code")
    (project / "params.yaml").write_text("seed: 2\n")
    (project / "notes").touch()
    ours = logged(project, f"?? notes\n{git_state(project)[1]}", **{"params.yaml": "seed: 2\n"})
    monkeypatch.setattr(checkout, "source", lambda root, name: ours)
    path = checkout.judged(project, "owl", {"run": "0" * 32})
    assert (path / "params.yaml").read_text() == "seed: 2\n"
    git(project, "reset", "--quiet", "--hard")
    for file in ("steps.py", "über.py"):
        (project / file).write_text("print('patched')\n")
        changed = logged(project, difference(project), **ours.files)
        monkeypatch.setattr(checkout, "source", lambda root, name, changed=changed: changed)
        with pytest.raises(UserError, match=r"uncommitted changes to .*\.py.*committed code alone: commit them"):
            checkout.judged(project, "owl", {"run": "0" * 32})
        assert not path.exists()
    checkout.restore(project, path, changed)  # `flows.reproduce`, which a person starts, has it as it was
    assert (path / "über.py").read_text() == "print('patched')\n"


def test_a_commit_must_be_a_hash(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tag comes from MLflow's store, and goes to git's command line."""
    run = SimpleNamespace(data=SimpleNamespace(tags={"git_commit": "--force"}), info=None)
    monkeypatch.setattr(store, "connect", lambda root: SimpleNamespace(get_run=lambda name: run))
    with pytest.raises(UserError, match=r"no commit's hash in its tag git_commit, but '--force'"):
        checkout.source(project, "0" * 32)


def test_loading_a_flow_from_a_worktree_takes_no_module_of_the_project_from_elsewhere(tmp_path: Path) -> None:
    """As Prefect does it, in a process whose pull steps import nothing of the project."""
    for name in ("__init__.py", "deployment/__init__.py"):
        (tmp_path / "flows" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "flows" / name).touch()
    (tmp_path / "flows/deployment/own.py").write_text("NAME = __file__\n")
    (tmp_path / "flows/some.py").write_text(
        "from prefect import flow\nfrom flows.deployment.own import NAME\n\n\n@flow\ndef some():\n    return NAME\n"
    )
    script = (
        "import os, sys; from prefect.flows import load_flow_from_entrypoint; os.chdir(sys.argv[1]); "
        "print(load_flow_from_entrypoint('flows/some.py:some').fn())"
    )
    process = subprocess.run(
        [sys.executable, "-c", script, os.fspath(tmp_path)], cwd=ROOT, capture_output=True, text=True
    )
    assert process.stdout.strip() == os.fspath(tmp_path / "flows/deployment/own.py"), process.stderr


def test_gits_errors_are_sentences(project: Path) -> None:
    with pytest.raises(UserError, match=r"^git rev-parse failed: fatal: "):
        git(project, "rev-parse", "nothing^{commit}")
    (project / "params.yaml").write_text("\tseed: 1 \n")
    assert git(project, "status", "--porcelain") == " M params.yaml"


def test_a_container_s_run_is_pushed_and_never_over_another_s(
    project: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As deploy/entrypoint.sh names the repository: in variables of git's."""
    origin = tmp_path_factory.mktemp("origin")
    git(origin, "init", "--quiet", "--bare")
    git(project, "update-ref", "refs/runs/first", "HEAD")
    monkeypatch.delenv("GIT_CONFIG_KEY_0", raising=False)
    workspace.share(project, "refs/runs/first")
    assert git(origin, "for-each-ref") == "", "elsewhere people push what they want to share"
    for name, value in {"COUNT": "1", "KEY_0": "remote.origin.url", "VALUE_0": str(origin)}.items():
        monkeypatch.setenv(f"GIT_CONFIG_{name}", value)
    workspace.share(project, "refs/runs/first")
    pushed = git(project, "rev-parse", "HEAD")
    assert git(origin, "rev-parse", "refs/runs/first") == pushed
    assert capsys.readouterr().out == ""
    git(project, "update-ref", "refs/runs/first", git(project, "commit-tree", "HEAD^{tree}", "-m", "another"))
    workspace.share(project, "refs/runs/first")
    assert "refs/runs/first could not be pushed, and is in this container alone" in capsys.readouterr().out
    assert git(origin, "rev-parse", "refs/runs/first") == pushed


def test_a_pool_has_a_limit_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLYWHEEL_POOL", raising=False)
    assert (workspace.limit(), workspace.limit("gpu")) == ("flywheel-local", "flywheel-gpu")
    monkeypatch.setenv("FLYWHEEL_POOL", "gpu")
    assert workspace.limit() == "flywheel-gpu"
