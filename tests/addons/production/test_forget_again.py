"""What was forgotten does not come back, and what still holds it is listed; people's words are their owner's alone."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from addons.models.replies import Replies
from addons.production import forget, ingest
from addons.production.serving import capture
from addons.production.traces import files, sources, tombstones
from addons.production.traces.store import Store
from steps.core.errors import UserError
from steps.core.params import Params
from tests.support import forget_kills as kills

WORD = "PRIVATE-1-WORD"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two conversations, ingested and given to DVC."""
    from dvc.repo import Repo

    root = tmp_path / "project"
    kills.prepare(root)
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(sources, "MOST", 0)  # a dozen scenarios are held out, not thousands
    monkeypatch.chdir(root)
    Repo.init(str(root), no_scm=True).close()
    kills.export(root / "chats.jsonl", [kills.row(f"c{number}", number) for number in (1, 2)])
    (root / kills.TASK).mkdir(parents=True)
    (root / kills.TASK / ".tmp-999999-1.conversations.jsonl").write_text(WORD)  # as an earlier release left it
    (root / kills.TASK / "notes.md").write_text("mine")
    assert ingest.main(["openai:chats.jsonl"]) == 0
    return root


def test_an_old_version_and_other_exports_do_not_bring_it_back(project: Path) -> None:
    pointer = (project / f"{kills.TASK}.dvc").read_text()
    assert not list((project / kills.TASK).glob(".tmp-*")), "no version takes a leftover along"
    assert (project / kills.TASK / "notes.md").read_text() == "mine"
    assert forget.main(["c1"]) == 0
    assert kills.held(project) == {2}
    (project / f"{kills.TASK}.dvc").write_text(pointer)
    from steps.project.dvc import dvc

    dvc(project, "checkout", "--quiet", "--force", f"{kills.TASK}.dvc")
    assert kills.held(project) == {1, 2}, "as it was before"
    with pytest.raises(UserError, match=r"was forgotten, and an old version of ingested/ has it again"):
        tombstones.check(project, Params(), project / kills.TASK)
    kills.export(project / "again.jsonl", [kills.row("another-id", 1)])
    ingest.main(["openai:again.jsonl"])
    assert kills.held(project) == {2}
    tombstones.check(project, Params(), project / kills.TASK)
    assert forget.main(["c1"]) == 0, "a second time is no error"


def test_what_still_holds_it_is_listed(project: Path, tmp_path: Path) -> None:
    from dvc.repo import Repo

    said = kills.row("", 1)["messages"][0]
    with Repo(str(project)) as repo, repo.config.edit() as config:
        config["remote"]["store"] = {"url": str(tmp_path / "remote")}
        config["core"]["remote"] = "store"
    with Repo(str(project)) as repo:
        repo.push()
    (project / "run/001").mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist([{"turns": [said]}]), project / "run/001/trajectories.parquet")
    kills.export(project / "copy.jsonl", [said])
    stray = project / ".dvc/cache/files/md5/ab" / ("c" * 30)  # a version that the ledger does not know
    stray.parent.mkdir(parents=True, exist_ok=True)
    kills.export(stray, [said])
    (project / ".flywheel").mkdir(exist_ok=True)
    with sqlite3.connect(project / ".flywheel/mlflow.db") as database:
        database.execute("CREATE TABLE spans (content TEXT)")
        database.execute("INSERT INTO spans VALUES (?)", (json.dumps(said),))
    database.close()
    answer = {"model": "m", "reply": {}, "input_tokens": 1, "output_tokens": 1, "cost": 0.0, "latency_seconds": 0.1}
    with Replies() as ledger:
        for key, text in (("a", said["content"]), ("b", "other words that nobody forgets")):
            ledger.put(answer | {"key": key, "request": {"messages": [text]}, "retries": 0})
    text = "\n".join(forget.run(project, ["c1"], project / ".flywheel/capture"))
    for line in (
        "run/001/trajectories.parquet holds it: the run in this folder was made with it",
        "copy.jsonl holds it",
        ".flywheel/mlflow.db holds it: MLflow's database",
        "DVC's cache holds it in 1 more files: ",
        "flows.prune --delete --data-set",
        "DVC's remote store holds it: delete ",
        "the ledger: 1 answers of models to what was said in it deleted",
    ):
        assert line in text, text
    with Replies() as ledger:
        assert (ledger.get("a"), bool(ledger.get("b"))) == (None, True)


def test_feedback_and_more_of_a_forgotten_conversation_are_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "capture"
    values = {"FOLDER": folder, "RATE": 1, "DAYS": 30, "BYTES": 2**30, "CONSENT": "given"}
    for name, value in values.items():
        monkeypatch.setenv(getattr(capture, name), str(value))
    serving = capture.Keeper()
    question, answer = kills.row("", 1)["messages"]
    request = {"messages": [question]}
    serving.keep("capture:0000000000000001", request, [{"id": "r1", "message": answer}])
    feedback = json.dumps({"response_id": "r1", "score": 0, "correction": f"{WORD} again"}).encode()
    assert serving.take(feedback)[0] == 201
    assert Store(folder).erase({"capture:0000000000000001"}) == 2
    status, said = serving.take(feedback)
    assert (status, "forgotten" in str(said)) == (404, True)
    serving.keep(
        "capture:0000000000000001", {"messages": [question, answer, question]}, [{"id": "r2", "message": answer}]
    )
    serving.keep("capture:0000000000000002", request, [{"id": "r3", "message": answer}])
    assert WORD not in "".join(path.read_text() for path in folder.rglob("*") if path.is_file())
    assert len(serving.missed) == 2
    assert all("it was forgotten" in why for why in serving.missed)


def test_a_deletion_that_finds_no_folder_of_a_version_deletes_nothing(project: Path) -> None:
    import shutil

    shutil.rmtree(project / kills.TASK)
    assert forget.main(["c1"]) == 2
    assert not (project / forget.INTENT).exists(), "and the next command does not go on with it"


@pytest.mark.parametrize("link", ["copy", "hardlink"])
def test_what_people_said_is_their_owners_alone(project: Path, link: str) -> None:
    """DVC gives files modes of its own (0444 in its cache, the umask's in the folder), so folders above them are closed."""
    from dvc.repo import Repo

    os.umask(0o022)
    with Repo(str(project)) as repo, repo.config.edit() as config:
        config["cache"]["type"] = link
    kills.export(project / "more.jsonl", [kills.row("c3", 3)])
    assert ingest.main(["openai:more.jsonl"]) == 0
    with Repo(str(project)) as repo:
        repo.checkout(force=True, relink=True)

    def can_others(path: Path) -> bool:
        shown = [path, *path.parents]
        within = shown[: shown.index(project)]
        return path.stat().st_mode & 0o044 != 0 and all(each.stat().st_mode & 0o011 for each in within[1:])

    holding = [path for path in project.rglob("*") if path.is_file() and b"PRIVATE-3-WORD" in path.read_bytes()]
    assert len(holding) > 3
    assert [path for path in holding if can_others(path)] == [project / "more.jsonl"], "the export is the user's own"
    assert files.read_conversations(project / kills.TASK)
