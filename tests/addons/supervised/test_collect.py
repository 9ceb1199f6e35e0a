"""Demonstrations are brought together in one file, each with its source."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from addons.supervised import collect
from steps.core.errors import UserError
from steps.core.params import Params


def test_files_are_brought_together_and_each_line_has_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    folder = tmp_path / "tasks_data/multiplication/ingested"
    folder.mkdir(parents=True)
    (folder / "demonstrations.jsonl").write_text(f"{json.dumps(first | {'source': 'trace 1'})}\nno json\n")
    (tmp_path / "own.jsonl").write_text(f"\n{json.dumps(first)}\n{json.dumps(first | {'tools': []})}\n")
    names = ("ingested/demonstrations.jsonl", "own.jsonl")
    params = Params.model_validate({"task": "multiplication", "sft": {"demonstrations": names}})
    found = collect.take(tmp_path, params, tmp_path)
    assert found == {"rows": 3, "from": dict.fromkeys(names, 2), "repeated": 1}
    lines = (tmp_path / "demonstrations.jsonl").read_text().splitlines()
    assert lines[1] == "no json"  # the stage counts it
    assert [json.loads(lines[place])["source"] for place in (0, 2)] == ["trace 1", "own.jsonl:3"]


@pytest.mark.parametrize(
    ("text", "reason"), [(None, "there is no file"), ("", "line 0: it is empty"), ("[]\n", "line 1: it has no list of")]
)
def test_a_file_without_a_demonstration_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "own.jsonl").write_text(text)
    with pytest.raises(UserError, match=reason):
        collect.of_file(tmp_path, "own.jsonl", "multiplication")


def test_agents_of_ones_own_have_no_tools_in_their_trajectories(tmp_path: Path) -> None:
    params = Params.model_validate({"task": "tests.support.rollouts", "sft": {"from_runs": ["nightly"]}})
    with pytest.raises(UserError, match="is an agent of your own"):
        collect.take(tmp_path, params, tmp_path)
