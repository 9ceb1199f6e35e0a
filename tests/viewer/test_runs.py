"""viewer.app and runs that are not in run/: at work in a worktree, kept under refs/runs/, or not made yet."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from starlette.testclient import TestClient

from flows.deployment import checkout, workspace
from steps.project import kept_runs
from steps.project.git import git
from tests.conftest import ROOT
from tests.viewer.test_pages import Text, browse, make_run, read, scenario, write_judgement
from viewer import runs as view_runs

# Of a run in dvc.yaml: which stage makes what. {} is an iteration's name.
OUTS = {
    "rollout@{}": ("run/{}/trajectories.parquet",),
    "score@{}": ("run/{}/rewards.parquet", "run/{}/judgements.jsonl"),
    "update@{}": ("run/{}/metrics.json", "run/{}/fates.json"),
    "evaluate@{}": ("run/{}/evaluation",),
    "test@best": ("run/{}/test",),
}


def store(project: Path, path: Path) -> str:
    """Into DVC's cache, as `dvc commit` has it; the MD5."""
    end, data = "", b""
    if path.is_dir():
        listed = [{"md5": store(project, one), "relpath": one.name} for one in sorted(path.iterdir())]
        end, data = ".dir", json.dumps(listed).encode()
    else:
        data = path.read_bytes()
    md5 = hashlib.md5(data).hexdigest() + end
    kept = project / view_runs.CACHE / md5[:2] / md5[2:]
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_bytes(data)
    return md5


def make_project(folder: Path) -> Path:
    """A repository with this project's dvc.yaml, and no run."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch", "main")
    shutil.copy(ROOT / "dvc.yaml", folder)
    (folder / ".gitignore").write_text("/.flywheel/\n/.dvc/\n/run/\n")
    (folder / "params.yaml").write_text("policy: {base_model: tasks_data/policy}\n")
    tokenizer = ROOT / "tasks_data" / "embedded_policy" / "tokenizer.json"
    (folder / "tasks_data" / "policy").mkdir(parents=True)
    shutil.copy(tokenizer, folder / "tasks_data" / "policy")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "project")
    return folder


def keep(project: Path, name: str, run: Path, more: Mapping[str, object] | None = None) -> None:
    """What flows.deployment.workspace leaves of a run that ended well. `more`: further entries of its dvc.lock."""
    stages: dict[str, object] = {"scenarios": {"outs": [entry(project, run, "run/scenarios")]}}
    found = sorted(path.name for path in run.iterdir() if path.name.isdigit())
    for iteration in found:
        for stage, paths in OUTS.items():
            there = [path.format(iteration) for path in paths if (run.parent / path.format(iteration)).exists()]
            if there:
                stages[stage.format(iteration)] = {"outs": [entry(project, run, path) for path in there]}
    chain = {"iterations": {name: {} for name in found[1:]}, "evaluated": found}
    chain |= {"tested": {"best": found[-1]}, "tests": {"best": {"name": found[-1], "against": "test"}}}
    (project / "chain.yaml").write_text(yaml.safe_dump(chain))
    (project / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": stages | dict(more or {})}))
    workspace.keep(project, project, f"refs/runs/{name}", kept_runs.KEPT)


def entry(project: Path, run: Path, path: str) -> dict[str, str]:
    return {"path": path, "hash": "md5", "md5": store(project, run.parent / path)}


def make_team(folder: Path) -> Path:
    """No run of its own; nightly (of 2 iterations) and short (1) are kept; late is at work, and kept from before."""
    project = make_project(folder / "project")
    long = make_run(folder / "long" / "run", iterations=2)
    write_judgement(long, (0.5, 0.5, 0.5), "it counted well")
    short = make_run(folder / "short" / "run", iterations=1)
    # What dvc.lock says of 009 is left from another run: the chain has no such iteration.
    stale = {"evaluate@009": {"outs": [{"path": "run/009/evaluation", "md5": "0" * 32 + ".dir"}]}}
    keep(project, "nightly", long, stale)
    keep(project, "short", short)
    keep(project, "late", short)
    shutil.copytree(short, project / view_runs.WORKTREES / "late" / "run")
    return project


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_team(tmp_path_factory.mktemp("team"))


@pytest.fixture(scope="module")
def client(team: Path) -> Iterator[TestClient]:
    with browse(team / "run") as opened:
        yield opened


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A project with a kept run that the test may change."""
    project = make_project(tmp_path / "project")
    keep(project, "nightly", make_run(tmp_path / "kept" / "run", iterations=1))
    return project


def cached(project: Path, run: str, path: str) -> Path:
    """The cache's file of a run's output."""
    lock = yaml.safe_load(git(project, "show", f"refs/runs/{run}:dvc.lock"))["stages"]
    [md5] = [out["md5"] for one in lock.values() for out in one["outs"] if out["path"] == path]
    return project / view_runs.CACHE / md5[:2] / md5[2:]


# --- Which there are


def test_runs_there_are(team: Path, client: TestClient) -> None:
    found = view_runs.Runs(team / "run").all()
    assert list(found)[:2] == [".", "late"]
    assert set(found) == {".", "late", "nightly", "short"}
    assert found["late"].about == "late (at work or stopped)"
    assert not found["late"].commit
    assert found["nightly"].about.startswith("nightly (kept, 20")
    page = client.get("/?run=.").text
    assert all(f'<option value="{name}"' in page for name in found)
    assert '<option value="." selected>' in page
    assert '<option value="short" selected>' in client.get("/?run=short").text


def test_places_are_those_of_the_deployments(team: Path) -> None:
    assert view_runs.WORKTREES == workspace.WORKTREES
    assert view_runs.JUDGED == checkout.JUDGED
    path = team / ".flywheel" / "elsewhere"
    git(team, "worktree", "add", "--quiet", "--detach", str(path), "HEAD")
    try:
        assert view_runs.project(path / "run") == team  # as seen from a worktree, too
    finally:
        git(team, "worktree", "remove", "--force", str(path))


def test_without_a_repository_there_is_the_folders_own(tmp_path: Path) -> None:
    assert list(view_runs.Runs(make_run(tmp_path / "run", iterations=1)).all()) == ["."]
    (tmp_path / ".git").mkdir()  # none that git knows
    assert list(view_runs.Runs(tmp_path / "run").all()) == ["."]


@pytest.mark.parametrize(
    "name", ["nothing", "..", "../short", "short/", "/etc", "refs/runs/short", ".lock", "<b>x</b>"]
)
def test_other_names_are_none(team: Path, client: TestClient, name: str) -> None:
    read(client, "/", run="short")
    before = sorted((team / view_runs.LAID_OUT).glob("*"))
    for address in ("/", "/group", "/compare", "/analytics"):
        answer = client.get(address, params={"run": name})
        assert answer.status_code == 400
        assert f"there is no run {name}: one of ., " in str(Text(answer.text))
        assert "<b>" not in answer.text
    assert "there is no run" in client.get("/compare", params={"run": "short", "other": name}).text
    assert sorted((team / view_runs.LAID_OUT).glob("*")) == before


def test_git_is_asked_again_only_where_runs_have_changed(own: Path, tmp_path: Path, monkeypatch: Any) -> None:
    asked: list[tuple[str, ...]] = []

    def counted(root: Path, *words: str) -> str:
        asked.append(words)
        return git(root, *words)

    monkeypatch.setattr(view_runs, "git", counted)
    runs = view_runs.Runs(own / "run")
    references, earlier = own / ".git/refs/runs", set(runs.all())

    def settle() -> None:
        """As if what is there had been written some seconds ago."""
        for path in (references, own / ".git/packed-refs"):
            if path.exists():
                os.utime(path, (path.stat().st_mtime - 9, path.stat().st_mtime - 9))

    commit = git(own, "rev-parse", "HEAD").strip()
    for change, names in (
        (["update-ref", "refs/runs/a", commit], {"a"}),
        (["update-ref", "refs/runs/b", commit], {"a", "b"}),
        (["pack-refs", "--all"], {"a", "b"}),
        (["update-ref", "-d", "refs/runs/a"], {"b"}),
    ):
        git(own, *change)
        assert set(runs.all()) == names | earlier, change
        settle()
        runs.all()
        count = len(asked)
        assert set(runs.all()) == names | earlier, change
        assert len(asked) == count, change


def test_a_ref_with_a_slash_is_no_run(own: Path) -> None:
    git(own, "update-ref", "refs/runs/a/b", "HEAD")
    assert list(view_runs.Runs(own / "run").all()) == [".", "nightly"]


def test_the_newest_run_is_shown_while_the_folder_has_none(own: Path, tmp_path: Path) -> None:
    with browse(own / "run") as client:
        page = client.get("/?kind=rollout")
        assert dict(page.url.params) == {"kind": "rollout", "run": "nightly"}
        assert '<option value="nightly" selected>' in page.text
        assert client.get("/?run=.").url.params.get("run") == ".", "the empty folder can be chosen"
        shutil.copytree(tmp_path / "kept" / "run", own / view_runs.WORKTREES / "late" / "run")
        for year, newest in ((1990, "nightly"), (2090, "late")):
            for path in (own / view_runs.WORKTREES).rglob("trajectories.parquet"):
                os.utime(path, ((year - 1970) * 31_557_600,) * 2)
            assert client.get("/").url.params.get("run") == newest
        mark = own / view_runs.WORKTREES / "late" / view_runs.JUDGED  # a copy of another run, made to judge it
        mark.parent.mkdir()
        mark.touch()
        assert client.get("/").url.params.get("run") == "nightly"
        assert "late (another run, being judged)" in client.get("/?run=late").text
        shutil.copytree(tmp_path / "kept" / "run", own / "run")
        assert "run" not in client.get("/").url.params, "a run in the folder itself comes first"


# --- A kept run


def test_a_kept_run_reads_as_if_it_were_there(client: TestClient) -> None:
    assert "44 of 44 trajectories in 28 of 28 groups" in read(client, "/", run="nightly")
    assert "24 of 44" in read(client, "/", run="nightly", kind="rollout", part="rows")
    assert "27 of 27" in read(client, "/", run="short")
    assert "27 of 27" in read(client, "/", run="late")
    page = read(client, "/group", run="nightly", at="001/rollout", scenario=scenario(0).id)
    assert "How many blue boxes stand in room 0 of the train house?" in page
    assert "judge 0.50 it counted well" in page
    assert "2 fixed" in read(client, "/compare", run="nightly")


def test_analytics_of_a_kept_run(client: TestClient) -> None:
    page = read(client, "/analytics", run="nightly")
    assert "000 validation 5 20% 2% to 74%" in page
    assert "not recorded" in page  # the seconds of a turn
    assert "2 120 100.0%" in page.replace("002", "2")  # params.yaml beside it: the update's own
    assert "002" not in read(client, "/analytics", run="short")  # each run's numbers are its own
    assert "002 validation" in read(client, "/analytics", run="nightly")


def test_tokens_of_a_kept_run_have_their_text(client: TestClient) -> None:
    page = client.get("/group", params={"run": "nightly", "at": "001/rollout", "scenario": scenario(0).id}).text
    assert "token 301" in page
    assert ">301 </span>" not in page  # its tokenizer is taken from the run's own commit


@pytest.mark.parametrize("address", ["/", "/?kind=rollout&q=zebra", "/compare", "/analytics", "/group", "/?min=x"])
def test_links_keep_the_run(client: TestClient, address: str) -> None:
    query = {"run": "nightly"} | ({"at": "001/rollout", "scenario": scenario(0).id} if address == "/group" else {})
    page = client.get(address + ("&" if "?" in address else "?") + "&".join(f"{k}={v}" for k, v in query.items()))
    links = [one for one in Text(page.text).links if not one.startswith(("/static/", "#"))]
    assert len(links) >= 3
    assert all("run=nightly" in one for one in links), links
    hidden = page.text.count('<input type="hidden" name="run" value="nightly">')
    assert hidden == page.text.count("<form") - 1  # but the choice of a run


def test_laid_out_as_links_once(team: Path, client: TestClient) -> None:
    read(client, "/", run="nightly")
    folder = team / view_runs.LAID_OUT / "nightly"
    files = [path for path in folder.rglob("*") if not path.is_dir()]
    own = {path.relative_to(folder).as_posix() for path in files if not path.is_symlink()}
    assert own == {"params.yaml", "chain.yaml", "commit", "tasks_data/policy/tokenizer.json"}
    links = [path for path in files if path.is_symlink()]
    assert len(links) == 3 + 3 * 3 + 3 + 2 * 4 + 1  # scenarios, evaluations, test, 001 and 002, judgements of 001
    assert all(path.resolve().is_relative_to(team / view_runs.CACHE) for path in links)
    assert (folder / "chain.yaml").read_text() == git(team, "show", "refs/runs/nightly:chain.yaml") + "\n"
    before = {path: path.lstat().st_mtime_ns for path in files}
    read(client, "/", run="nightly")
    assert {path: path.lstat().st_mtime_ns for path in before} == before
    assert git(team, "status", "--porcelain") == ""


def test_what_the_cache_lacks_is_named_until_it_is_there(own: Path) -> None:
    evaluation, rollouts = (
        cached(own, "nightly", f"run/001/{name}") for name in ("evaluation", "trajectories.parquet")
    )
    kept = {path: path.read_bytes() for path in (evaluation, rollouts)}
    with browse(own / "run") as client:
        assert "27 of 27" in read(client, "/", run="nightly")
        for path in kept:
            path.unlink()  # as `dvc gc` does
        page = read(client, "/", run="nightly")
        assert "10 of 10" in page  # the base's evaluation, and the test
        assert "The DVC cache lacks" in page
        assert "run/001/evaluation" in page
        assert "run/001/trajectories.parquet" in page
        assert ".venv/bin/python -m flows.reproduce nightly --kept fetches" in page
        for path, data in kept.items():
            path.write_bytes(data)  # as `dvc fetch` does
        page = read(client, "/", run="nightly")
        assert "27 of 27" in page
        assert "The DVC cache" not in page
        shutil.rmtree(own / view_runs.CACHE)
        page = read(client, "/", run="nightly")
        assert "The DVC cache lacks" in page
        assert "and 5 more of this run" in page  # of 8 outputs
        assert "holds no trajectories that can be shown" in page


def test_a_run_of_the_same_name_is_laid_out_anew(own: Path, tmp_path: Path) -> None:
    with browse(own / "run") as client:
        assert "27 of 27" in read(client, "/", run="nightly")
        keep(own, "nightly", make_run(tmp_path / "again" / "run", iterations=2, groups=1))
        assert "26 of 26" in read(client, "/", run="nightly")  # 2 x 3 rollouts, 3 x 5, 5
        shutil.copytree(tmp_path / "kept" / "run", own / view_runs.WORKTREES / "nightly" / "run")
        assert "27 of 27" in read(client, "/", run="nightly")  # it works again
        shutil.rmtree(own / view_runs.WORKTREES / "nightly")
        assert "26 of 26" in read(client, "/", run="nightly")


@pytest.mark.parametrize(
    ("outs", "said"),
    [
        ([{"path": "run/../../x", "md5": "1" * 32}], ""),  # left out, as all that is not in run/
        ([{"path": "/tmp/x", "md5": "1" * 32}], ""),
        ([{"path": "run/x", "md5": "../../../x"}], "'../../../x' where an MD5 should stand"),
        ([{"path": "run/x", "md5": "LIST"}], "lists run/x/../../../../x, which is none of its files"),
    ],
)
def test_a_lock_cannot_lead_elsewhere(own: Path, tmp_path: Path, outs: list[dict[str, str]], said: str) -> None:
    listed = tmp_path / "list"
    listed.write_text(json.dumps([{"md5": "1" * 32, "relpath": "../../../../x"}]))
    md5 = store(own, listed)
    kept = own / view_runs.CACHE / md5[:2] / md5[2:]
    kept.rename(f"{kept}.dir")
    for one in outs:
        one["md5"] = one["md5"].replace("LIST", f"{md5}.dir")
    keep(own, "bad", tmp_path / "kept" / "run", {"embedded_policy": {"outs": outs}})
    before = {path for path in tmp_path.rglob("*") if not path.is_relative_to(own / ".flywheel")}
    with browse(own / "run") as client:
        answer = client.get("/?run=bad")
        assert answer.status_code == (400 if said else 200)
        assert said in str(Text(answer.text))
    assert {path for path in tmp_path.rglob("*") if not path.is_relative_to(own / ".flywheel")} == before


BOMB = "policy: {base_model: *a9}"
BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10)) + BOMB


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("dvc.lock", "stages: {a: [", "dvc.lock of the kept run"),
        ("dvc.lock", "stages: [1, 2]", "does not have the form"),
        ("dvc.lock", "stages: {a: {outs: [{md5: x}]}}", "does not have the form"),
        ("chain.yaml", "iterations: 3", "does not have the form"),
        ("params.yaml", "- a", "must hold keys and values, not a list"),
        ("params.yaml", "policy: [a]", "params.yaml of the kept run"),
        ("params.yaml", BOMB, "repeat more than 10,000 values"),
        ("params.yaml", "[" * 50_000, "levels deep"),
    ],
    ids=range(8),
)
def test_a_kept_run_with_damaged_files_is_a_page_that_says_so(own: Path, name: str, text: str, said: str) -> None:
    git(own, "read-tree", "refs/runs/nightly")
    (own / name).write_text(text)
    git(own, "add", "--force", name)
    commit = git(own, "commit-tree", git(own, "write-tree"), "-m", "damaged")
    git(own, "update-ref", "refs/runs/damaged", commit)
    with browse(own / "run") as client:
        answer = client.get("/?run=damaged")
        assert answer.status_code == 400
        assert said in str(Text(answer.text))
        assert client.get("/?run=nightly").status_code == 200


def test_a_state_folder_that_cannot_be_written_is_a_page_that_says_so(own: Path) -> None:
    (own / ".flywheel").touch()
    with browse(own / "run") as client:
        answer = client.get("/?run=nightly")
        assert answer.status_code == 503
        assert ".flywheel/view cannot be used (Not a directory): a file stands where a folder should be" in str(
            Text(answer.text)
        )


def test_the_latest_few_stay_in_memory(team: Path) -> None:
    runs = view_runs.Runs(team / "run")
    for name in ("nightly", "short", "late", ".", "nightly"):
        runs.open(name)
    assert [folder.parent.name for folder in runs.indexes] == ["short", "late", "project", "nightly"]
    again = runs.open("nightly").index
    assert again is runs.open("nightly").index
    git(team, "update-ref", "refs/runs/other", "refs/runs/short")
    try:
        runs.open("other")
        assert [folder.parent.name for folder in runs.indexes] == ["late", "project", "nightly", "other"]
    finally:
        git(team, "update-ref", "-d", "refs/runs/other")


# --- No run yet


def test_it_waits_for_a_run(tmp_path: Path) -> None:
    with browse(tmp_path / "run") as client:
        for address in ("/", "/group", "/compare", "/analytics"):
            page = client.get(address)
            assert page.status_code == 200
            words = str(Text(page.text))
            assert f"{tmp_path}/run holds no trajectories yet. make train makes a run there" in words
            assert 'id="waiting"' in page.text
        make_run(tmp_path / "run", iterations=1)
        assert "27 of 27" in read(client, "/")
        assert "waiting" not in client.get("/").text
        shutil.rmtree(tmp_path / "run")
        assert "holds no trajectories yet" in read(client, "/")


def test_a_run_at_work_shows_what_it_has(team: Path, client: TestClient) -> None:
    folder = team / view_runs.WORKTREES / "fresh"
    folder.mkdir()
    try:
        assert "fresh/run holds no trajectories yet." in read(client, "/", run="fresh")
        assert "make train" not in read(client, "/", run="fresh")
        make_run(folder / "run", iterations=1, groups=1)
        assert "18 of 18" in read(client, "/", run="fresh")
    finally:
        shutil.rmtree(folder)


# --- Two runs beside each other


def test_compare_two_runs(client: TestClient) -> None:
    """Of 5 scenarios, short's best evaluation solves 2 and nightly's 3."""
    page = read(client, "/compare", run="short", other="nightly")
    assert "5 of 5 scenarios that both hold · 1 fixed · 2 solved · 2 unsolved" in page
    assert "short 001 validation: reward" in page
    assert "nightly 002 validation: reward" in page
    assert "1 broken · 2 solved" in read(client, "/compare", run="nightly", other="short")
    assert "1 solved" in read(
        client, "/compare", run="nightly", other="short", before="000/evaluation", after="000/evaluation"
    )
    one = scenario(2, "val").id
    both = client.get("/compare", params={"run": "short", "other": "nightly", "scenario": one}).text
    assert both.count('<article class="attempt"') == 2
    words = str(Text(both))
    assert words.index("short 001 validation -0.70") < words.index("nightly 002 validation 0.80")
    assert all("other=nightly" in link for link in Text(both).links if "scenario=" in link)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"other": "nightly", "after": "009/evaluation"}, "there is no batch 009/evaluation: one of 000/evaluation"),
        ({"other": "nightly", "before": "002/evaluation"}, "there is no batch 002/evaluation: one of 000/evaluation"),
        ({"other": "."}, "the other run has no trajectories yet"),
    ],
)
def test_compare_with_what_is_not_there(client: TestClient, query: dict[str, str], said: str) -> None:
    answer = client.get("/compare", params={"run": "short", **query})
    assert answer.status_code == 400
    assert said in str(Text(answer.text))
