"""flows.prune: what may go is only what nothing needs, for random projects and for a real cache."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest

from addons.lineage.tables import Rows, write
from flows import prune
from flows.deployment import pruning
from flows.deployment.pruning import CHECKPOINTS, ORPHANS, Cache, Snapshot, removable
from steps.project import kept_runs
from steps.project.git import git
from steps.project.ledger import Ledger
from tests.conftest import small_repository


def md5(text: str) -> str:
    return hashlib.md5(text.encode()).hexdigest()


class Project:
    """A random project: runs of some iterations, whose outputs may be the same, and folders that share files."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.cache = Cache(Path("none"), {}, {})
        self.snapshots = [self.run(f"run{number}", number != 0) for number in range(self.rng.randrange(1, 6))]
        self.indexed = {out for snapshot in self.snapshots for out in snapshot.outs.values() if self.rng.random() < 0.1}
        for _ in range(5):
            self.folder()

    def folder(self) -> str:
        files = [md5(str(self.rng.randrange(200))) for _ in range(self.rng.randrange(1, 4))]
        name = md5(" ".join(files)) + ".dir"
        self.cache.sizes.update(dict.fromkeys([*files, name], 10))
        self.cache.members[name] = files
        return name

    def run(self, name: str, is_kept: bool) -> Snapshot:
        numbers = tuple(f"{number:03d}" for number in range(1, self.rng.randrange(2, 7)))
        kinds = ("adapter", "checkpoint", "evaluation")
        outs = {f"run/{number}/{kind}": self.folder() for number in ("000", *numbers) for kind in kinds}
        start = f"run:run{self.rng.randrange(5)}/{self.rng.randrange(1, 5):03d}" if self.rng.random() < 0.5 else ""
        return Snapshot(name, outs, is_kept, numbers, self.rng.choice(numbers), start)


@pytest.mark.parametrize("seed", range(60))
def test_nothing_goes_that_a_revision_a_run_or_lineage_needs(seed: int) -> None:
    project = Project(seed)
    last = project.rng.randrange(3)
    gone = removable(project.cache, project.snapshots, project.indexed, [], last)
    assert gone.keys() <= project.cache.sizes.keys()
    needed = set(project.indexed)
    for snapshot in project.snapshots:
        starts = {other.starts_from for other in project.snapshots}
        held = {"000", snapshot.best, *(snapshot.iterations[-last:] if last else ())}
        for path, name in snapshot.outs.items():
            number = path.split("/")[1]
            is_spared = snapshot.is_kept_run and path.endswith("checkpoint") and number not in held
            if not is_spared or f"run:{snapshot.name}/{number}" in starts:
                needed.add(name)
    needed |= {member for name in needed for member in project.cache.members.get(name, ())}
    assert not needed & gone.keys()
    assert gone.keys() | needed >= project.cache.sizes.keys()  # and all else goes
    left = project.cache._replace(sizes={name: 1 for name in project.cache.sizes if name not in gone})
    assert not removable(left, project.snapshots, project.indexed, [], last)  # a second time finds nothing


def stored(root: Path, files: dict[str, bytes]) -> str:
    """Put a folder into the project's cache, as DVC does; its md5."""
    listed = []
    for name, content in files.items():
        digest = hashlib.md5(content).hexdigest()
        listed.append({"md5": digest, "relpath": name})
        put(root, digest, content)
    text = json.dumps(listed).encode()
    digest = hashlib.md5(text).hexdigest() + ".dir"
    put(root, digest, text)
    return digest


def put(root: Path, name: str, content: bytes) -> None:
    path = root / ".dvc/cache/files/md5" / name[:2] / name[2:]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    path.chmod(0o444)


def lock_of(outs: dict[str, str]) -> str:
    listed = [{"path": path, "md5": name} for path, name in outs.items()]
    return json.dumps({"stages": {"all": {"cmd": "true", "outs": listed}}})


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a kept run of three iterations, the first of which is best, and an object of no run."""
    small_repository(tmp_path, "task: toy\n")
    monkeypatch.chdir(tmp_path)
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI", "FLYWHEEL_LEDGER_URL"):
        monkeypatch.delenv(name, raising=False)
    outs = {
        f"run/{number}/{kind}": stored(tmp_path, {"file": f"{number} {kind}".encode()})
        for number in ("000", "001", "002", "003")
        for kind in ("adapter", "checkpoint")
    }
    links = {"001": {"prev": "000"}, "002": {"prev": "001"}, "003": {"prev": "002"}}
    (tmp_path / "dvc.lock").write_text(lock_of(outs))
    (tmp_path / "chain.yaml").write_text(json.dumps({"iterations": links, "tested": {"best": "001"}}))
    kept_runs.keep_described(tmp_path, "nightly")
    (tmp_path / "dvc.lock").unlink()
    (tmp_path / "chain.yaml").unlink()
    stored(tmp_path, {"lost": b"of no run"})
    return tmp_path


def files_in(project: Path) -> set[str]:
    return set(pruning.read_cache(project).sizes)


def test_a_dry_run_says_how_many_bytes_and_deletes_nothing(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_in(project)
    gone = prune.prune(project)
    assert files_in(project) == before
    assert sorted(gone.values()) == [CHECKPOINTS] * 2 + [ORPHANS] * 2  # of iteration 002, and the lost folder
    shown = capsys.readouterr().out
    assert f"{sum(pruning.read_cache(project).sizes[name] for name in gone)} bytes can go" in shown
    assert "nothing was deleted" in shown
    assert len(prune.prune(project, last=0)) == 6


def test_deleting_frees_it_and_the_entries_that_name_it(project: Path) -> None:
    (project / ".dvc/cache/runs/aa/bb").mkdir(parents=True)
    gone = prune.prune(project)
    entries = {"cc": next(iter(gone)), "dd": next(iter(files_in(project) - gone.keys()))}
    for name, content in entries.items():
        (project / ".dvc/cache/runs/aa/bb" / name).write_text(f"outs: [{{md5: {content}}}]")
    before = files_in(project)
    prune.prune(project, delete=True)
    assert files_in(project) == before - gone.keys()
    assert [path.name for path in (project / ".dvc/cache/runs/aa/bb").iterdir()] == ["dd"]
    assert prune.prune(project, delete=True) == {}


def test_what_another_revision_or_lineage_names_stays(project: Path) -> None:
    gone = prune.prune(project)
    orphan, checkpoint = (
        next(name for name, why in gone.items() if why == kind and name.endswith(".dir"))
        for kind in (ORPHANS, CHECKPOINTS)
    )
    (project / "data.dvc").write_text(json.dumps({"outs": [{"path": "data", "md5": orphan}]}))
    assert set(prune.prune(project).values()) == {CHECKPOINTS}  # a file that is not committed counts
    git(project, "add", "data.dvc")
    git(project, "commit", "--quiet", "-m", "data")
    git(project, "rm", "--quiet", "data.dvc")
    git(project, "commit", "--quiet", "-m", "gone again")
    assert set(prune.prune(project).values()) == {CHECKPOINTS}  # so does an earlier commit of a branch
    rows = Rows()
    rows.node(("evaluation", checkpoint))
    with Ledger() as ledger:
        ledger.change(lambda connection: write(connection, rows))
    assert prune.prune(project) == {}


def test_what_params_yaml_starts_from_stays(project: Path) -> None:
    (project / "params.yaml").write_text("policy: {start_from: 'run:nightly/002'}\n")
    assert set(prune.prune(project).values()) == {ORPHANS}


def test_a_checkpoint_of_a_registered_adapter_stays(project: Path) -> None:
    files = {"adapter_config.json": b"{}", "adapter_model.safetensors": b"weights"}
    adapter = stored(project, files)
    digest = hashlib.sha256(b"{}weights").hexdigest()[:16]
    cache = pruning.read_cache(project)
    run = next(item for item in pruning.snapshots(project) if item.is_kept_run)
    run.outs["run/002/adapter"] = adapter
    assert CHECKPOINTS in removable(cache, [run], [], ["0" * 16], 1).values()
    assert CHECKPOINTS not in removable(cache, [run], [], [digest], 1).values()


def test_it_waits_for_nobody_and_works_beside_nobody(project: Path) -> None:
    from flows.repro import folder_lock
    from steps.core.errors import UserError

    with folder_lock.held(project, "train"), pytest.raises(UserError, match="is at work in"):
        prune.prune(project)


def test_what_forget_prints_removes_the_version_and_no_kept_runs_data(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from addons.production import forget

    kept, free = (stored(project, {"scenarios.jsonl": f"said {word}\n".encode()}) for word in ("one", "two"))
    (project / "start.dvc").write_text(json.dumps({"outs": [{"path": "start", "md5": kept}]}))
    kept_runs.keep_described(project, "learnt")
    (project / "start.dvc").unlink()
    rows = Rows()
    for md5 in (kept, free):
        rows.edge(rows.node(("conversation", "capture:1")), "used", rows.node(("dataset", md5), path="ingested/toy"))
    with Ledger() as ledger:
        ledger.change(lambda connection: write(connection, rows))
        *_, advice = forget.made_of(project, {"capture:1"}, ledger)
    before = files_in(project)
    assert free in before
    words = advice.split("`")[1].split()
    assert words[:3] == [".venv/bin/python", "-m", "flows.prune"]
    assert prune.main(words[3:]) == 0
    assert before - files_in(project) == {free, hashlib.md5(b"said two\n").hexdigest()}
    assert f"{kept} stays: a commit, a worktree, a kept run (refs/runs/)" in capsys.readouterr().out
