"""addons.production.ingest and addons.production.forget in a project of DVC's: versions, lineage, what they say, and
what they refuse."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from addons.production import forget, ingest
from addons.production.traces import files, sources, unchanged
from addons.production.traces.records import key_of
from addons.supervised.section import Sft
from flows.repro.parameters import set_params
from steps.core import params
from steps.core.errors import UserError
from steps.data.ingested import INGESTED
from tests.project.test_readme import commands

GOLDEN = Path(__file__).parent / "traces" / "golden"
PARAMS = {"scenarios": {"train": 12, "val": 12, "test": 12}, "rollout": {"scenarios": 4}}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    from dvc.repo import Repo

    root = tmp_path / "project"
    (root / "tasks_data").mkdir(parents=True)
    shutil.copytree("tasks_data/email_search", root / "tasks_data/email_search")
    (root / "params.yaml").write_text(yaml.safe_dump(PARAMS))
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    Repo.init(str(root), no_scm=True).close()
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(root)
    monkeypatch.setattr(sources, "MOST", 0)  # a dozen scenarios are held out, not thousands
    for module in (sources, forget):
        monkeypatch.setattr(module, "load_task", load_once)
    return root


TASKS: dict[str, sources.Task] = {}
load_task = sources.load_task


def load_once(root: Path, settings: params.Params) -> sources.Task:
    """The task, whose scenarios are drawn once for all tests with the same settings."""
    key = settings.model_dump_json()
    if key not in TASKS:
        TASKS[key] = load_task(root, settings)
    return TASKS[key]


def run(root: Path, *words: str, consented: bool = False) -> Any:
    return ingest.run(root, list(words), None, [], consented, None)


def test_versions_are_given_to_dvc_and_deletion_lists_them(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = f"openai:{GOLDEN}/openai.jsonl"
    said = "\n".join(ingest.report(run(project, source), "email_search"))
    assert "8 conversations new or longer, 8 in all" in said
    folder = project / INGESTED / "email_search"
    first = yaml.safe_load((project / "ingested/email_search.dvc").read_text())["outs"][0]["md5"]
    run(project, source)
    assert yaml.safe_load((project / "ingested/email_search.dvc").read_text())["outs"][0]["md5"] == first
    run(project, f"langfuse:{GOLDEN}/langfuse")
    second = yaml.safe_load((project / "ingested/email_search.dvc").read_text())["outs"][0]["md5"]
    assert second != first

    lines = forget.run(project, ["chat 0"], project / ".flywheel/capture")
    text = "\n".join(lines)
    assert "ingested/email_search/conversations.jsonl: 2 rows deleted" in lines
    for md5 in (first, second):
        assert f"data set ingested/email_search, version {md5}, holds it" in text
    third = yaml.safe_load((project / "ingested/email_search.dvc").read_text())["outs"][0]["md5"]
    assert third not in text
    assert third not in (first, second)
    keys = {key_of(producer, "chat 0") for producer in ("openai", "langfuse")}
    assert not any(key in path.read_text() for key in keys for path in folder.iterdir())
    with pytest.raises(UserError, match="nothing is known of chat 99"):
        forget.run(project, ["chat 99"], project / ".flywheel/capture")

    shutil.rmtree(folder)
    with pytest.raises(UserError, match=r"`.venv/bin/dvc pull .*ingested/email_search.dvc`"):
        run(project, source)
    with pytest.raises(UserError, match=r"`.venv/bin/dvc pull .*ingested/email_search.dvc`"):
        forget.run(project, ["chat 0"], project / ".flywheel/capture")


def test_rows_without_consent_are_refused_until_the_operator_speaks(project: Path) -> None:
    rows = [json.loads(line) | {"consent": False} for line in (GOLDEN / "openai.jsonl").read_text().splitlines()]
    source = project / "chats.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = run(project, f"openai:{source}")
    assert (done.conversations, done.unreadable) == (0, 8)
    quarantine = files.read_rows(project / "ingested/email_search/quarantine.jsonl")
    assert {row["reason"] for row in quarantine} == {"not read: no consent"}
    done = run(project, f"openai:{source}", consented=True)
    assert (done.conversations, done.unreadable) == (8, 0)
    done = run(project, f"openai:{source}")
    assert (done.conversations, done.unreadable) == (8, 0), "what was consented to stays, and the same file is known"
    more = {"messages": [*rows[-1]["request"]["messages"], {"role": "assistant", "content": "More."}]}
    (project / "more.jsonl").write_text(json.dumps(more | {"conversation_id": rows[-1]["conversation_id"]}))
    done = run(project, "openai:more.jsonl")
    assert (done.added, done.conversations, done.unreadable) == (0, 8, 1)
    assert run(project, "openai:more.jsonl").unreadable == 1, "a refusal stays in quarantine"


def test_ten_conversations_end_with_what_was_made_of_them_and_what_to_do_next(
    project: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "dvc")
    subprocess.run(["git", "init", "--quiet"], check=True)
    (project / ".dvc/config").write_text("")  # without core.no_scm, DVC has something to say of git
    rows: list[dict[str, Any]] = [
        {"messages": [{"role": "user", "content": f"In which room is meeting {number}?"}]} for number in range(10)
    ]
    for number, row in enumerate(rows):
        row["messages"].append({"role": "assistant", "content": f"In room {number}."})
    rated = [row | {"feedback": {"score": number % 2}} for number, row in enumerate(rows)]
    for name, listed in (("chats", rows), ("rated", rated)):
        (project / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in listed))
    refused = "10 were not kept, because nothing says that their people agreed: ingest them again with --consented"
    for words, code, says in (
        (
            ["openai:chats.jsonl"],
            1,
            ["in quarantine: 10, of which 10 could not be read (10 not read: no consent)", refused],
        ),
        (
            ["openai:chats.jsonl", "--consented"],
            0,
            [
                "10 in all; people said of them: good 0, bad 0, corrected 0, nothing 10",
                "10 teach nothing by themselves",
            ],
        ),
        (
            ["openai:rated.jsonl", "--consented"],
            0,
            [
                "good 5, bad 5, corrected 0, nothing 0",
                "made: scenarios 0, demonstrations 5",
                "nothing says whose inbox it is about",
                "--set 'sft.demonstrations=[ingested/email_search/demonstrations.jsonl]'",
                "for scenarios the task must know the right answer",
                "git add ingested/email_search.dvc ingested/.gitignore && git commit",
            ],
        ),
    ):
        assert ingest.main(words) == code
        output = capsys.readouterr().out
        assert all(text in output for text in [*says, "next:\n"]), output
    assert "To track the changes" not in caplog.text
    [setting] = re.findall("--set '(.*)'", output)
    checked = set_params([setting])
    sft = Sft.of(checked)
    assert sft is not None
    assert sft.demonstrations == ("ingested/email_search/demonstrations.jsonl",)
    assert Path(sft.demonstrations[0]).is_file()


def test_a_scale_that_is_given_later_reads_the_file_again(project: Path) -> None:
    row = json.loads((GOLDEN / "openai.jsonl").read_text().splitlines()[0]) | {"feedback": {"score": 5}}
    (project / "chats.jsonl").write_text(json.dumps(row))
    assert (run(project, "openai:chats.jsonl").conversations, run(project, "openai:chats.jsonl").unreadable) == (0, 1)
    done = ingest.run(project, ["openai:chats.jsonl"], None, ["score=1..5"], False, None)
    assert (done.conversations, done.unreadable) == (1, 0)


def test_a_source_of_which_nothing_is_read_ends_with_a_sentence(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spans = [{"traceId": "a" * 32, "spanId": sign * 16, "attributes": []} for sign in "abc"]
    (project / "web.json").write_text(
        json.dumps({"resourceSpans": [{"scopeSpans": [{"scope": {"name": "http"}, "spans": spans}]}]})
    )
    for _ in range(2):  # and again, as there is nothing to go on from
        assert ingest.main(["otel:web.json", f"openai:{GOLDEN}/openai.jsonl"]) == 1
        output = capsys.readouterr().out
        assert "otel:web.json: nothing in it was read: 3 spans of the scope http, in which no model speaks" in output
    assert ingest.main([f"openai:{GOLDEN}/openai.jsonl"]) == 0, "what was read before is no fault"


def test_the_commands_of_the_page_run(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Those of docs/traces.md, on files of these names, in their order."""
    for name, copy in (("openai", "chats"), ("otel", "spans"), ("mlflow", "traces")):
        shutil.copy(GOLDEN / f"{name}.jsonl", project / f"{copy}.jsonl")
    shutil.copytree(GOLDEN / "langfuse", project / "export")
    shutil.copytree(GOLDEN / "capture", project / ".flywheel/capture")
    page = (GOLDEN.parents[4] / "docs/traces.md").read_text()
    lines = [words[2:] for words in commands(page) if words[:2] == [".venv/bin/python", "-m"]]
    ran = 0
    for module, *words in lines:
        if module == "addons.production.ingest" and len(words) > 0:
            assert ingest.main(words) == 0, capsys.readouterr()
            ran += 1
        elif module == "addons.production.forget":
            expected = 2 if words[0].startswith("capture:") else 0  # the page's key is of no conversation
            assert forget.main(words) == expected, capsys.readouterr()
            ran += 1
    assert ran == 8
    assert "rows deleted" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["csv:a"], "give capture, langfuse, mlflow, otel, openai"),
        (["openai"], "name its file"),
        (["otel:none.json"], "none.json does not exist"),
        (["capture"], "make serve CAPTURE=1"),
    ],
)
def test_sources_that_are_none_are_refused(project: Path, words: list[str], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        run(project, *words)
    assert not (project / "ingested").exists()


def test_options_that_are_wrong_are_refused(project: Path) -> None:
    with pytest.raises(UserError, match=r"stars=1\.\.5"):
        ingest.run(project, ["capture"], None, ["stars"], False, None)
    with pytest.raises(UserError, match="--regression 2"):
        ingest.run(project, ["capture"], None, [], False, 2.0)


def test_the_commands(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert ingest.main([f"otel:{GOLDEN}/otel.jsonl", "--regression", "0.5"]) == 0
    assert "made: scenarios" in capsys.readouterr().out
    assert forget.main(["chat 1"]) == 0
    assert "rows deleted" in capsys.readouterr().out
    assert forget.main(["chat 1", "--capture", "none"]) == 0, "versions that hold it are still listed"
    assert ingest.main(["csv:x"]) == 2


def test_nothing_new_is_known_without_reading(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(GOLDEN / "openai.jsonl", project / "chats.jsonl")
    words = ["openai:chats.jsonl", "--consented"]
    runs: list[list[str]] = []
    real = ingest.run

    def noted(root: Path, words: list[str], *more: Any) -> Any:
        runs.append(words)
        return real(root, words, *more)

    monkeypatch.setattr(ingest, "run", noted)
    assert ingest.main(words) == 0
    first = capsys.readouterr().out
    assert ingest.main(words) == 0
    again = capsys.readouterr().out
    assert len(runs) == 1
    assert "nothing new since the last time" in again
    assert all(line in again for line in first.splitlines() if line.startswith("made: "))
    for number, change in enumerate(
        (
            lambda: (project / "chats.jsonl").write_text((GOLDEN / "openai.jsonl").read_text() + "\n"),
            lambda: (project / "ingested/email_search/scenarios.jsonl").write_text(""),
            lambda: (project / "params.yaml").write_text((project / "params.yaml").read_text() + "\n"),
            lambda: words.append("--regression=0.4"),
        ),
        2,
    ):
        change()
        assert ingest.main(words) == 0
        assert len(runs) == number, "it is another state"
    assert unchanged.state(project, ["mlflow"], "") == "", "an API is always asked"
