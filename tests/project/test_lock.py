"""dvc.lock, which is read stage by stage where it has the form that DVC writes."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from steps.core.errors import UserError
from steps.project import lock
from steps.project.lock import LockReader, read_lock
from tests.conftest import ROOT


def entry(number: int) -> dict[str, object]:
    deps = [{"path": f"steps/{name}.py", "hash": "md5", "md5": f"{number:032x}", "size": number} for name in "ab"]
    return {"cmd": "python -m steps.rollout --number '001' " + "word " * 30, "deps": deps, "params": {}, "outs": []}


WRITTEN = yaml.safe_dump(
    {"schema": "2.0", "stages": {f"rollout@{number:03}": entry(number) for number in range(5)}}, sort_keys=False
)


@pytest.mark.parametrize("text", [WRITTEN, (ROOT / "dvc.lock").read_text()], ids=["a run", "the committed one"])
def test_the_parts_are_the_whole(text: str, tmp_path: Path) -> None:
    whole = yaml.safe_load(text)
    assert LockReader().in_parts(text.encode()) == whole
    (tmp_path / "dvc.lock").write_text(text)
    assert read_lock(tmp_path) == whole["stages"]


def test_only_a_stage_that_has_changed_is_parsed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or each iteration would take longer to log than the one before."""
    read, parsed = lock.read_mapping, list[str]()

    def noted(text: str, *more: str) -> dict[str, object]:
        parsed.append(text)
        return read(text, *more)

    monkeypatch.setattr(lock, "read_mapping", noted)
    reader = LockReader()
    changed = WRITTEN.replace(f"{3:032x}", f"{7:032x}")
    for text, count in ((WRITTEN, 6), (WRITTEN, 1), (changed, 2), (WRITTEN, 2)):
        (tmp_path / "dvc.lock").write_text(text)
        parsed.clear()
        assert reader.read(tmp_path) == yaml.safe_load(text)["stages"]
        assert len(parsed) == count, "its head, and what has changed"


OTHERS = {
    "a comment": WRITTEN.replace("  rollout@002:", "# mine\n  rollout@002:"),
    "no end of line": WRITTEN.rstrip("\n"),
    "an alias of another stage": WRITTEN.replace("  rollout@001:\n", "  rollout@001: &other\n") + "  again: *other\n",
    "stages first": f"stages:\n{WRITTEN.partition('stages:' + chr(10))[2]}schema: '2.0'\n",
    "one line": "{schema: '2.0', stages: {a: {cmd: x}}}\n",
    "empty": "",
}


@pytest.mark.parametrize("name", OTHERS)
def test_another_form_is_read_as_a_whole(name: str, tmp_path: Path) -> None:
    text = OTHERS[name]
    assert LockReader().in_parts(text.encode()) is None
    (tmp_path / "dvc.lock").write_text(text)
    assert read_lock(tmp_path) == (yaml.safe_load(text) or {}).get("stages", {})


@pytest.mark.parametrize("end", ["\n\t: [", "  x:\n    deps: [\n", "  x:\n    - {\n", "  x: &a\n    cmd: *b\n"])
def test_a_damaged_one_names_its_file_and_the_cure(end: str, tmp_path: Path) -> None:
    (tmp_path / "dvc.lock").write_text(WRITTEN + end)
    with pytest.raises(UserError, match=r"dvc\.lock.*git checkout dvc\.lock"):
        read_lock(tmp_path)
