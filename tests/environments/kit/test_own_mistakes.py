"""What is easily written wrong in a task of one's own: each is refused by a sentence, or means what it seems to mean."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import environments
from environments.base import Env, Scenario, read_lines, tool
from environments.bridges.packages import value
from environments.kit.scenarios import draw
from environments.kit.tools import text_of
from steps.scenarios import checked
from tests.conftest import ROOT

USER = [{"role": "user", "content": "What?"}]


def made(split: Any = "train", **data: Any) -> Scenario:
    return Scenario.make("t", split, USER, data)


# --- Scenarios


@pytest.mark.parametrize(
    ("returned", "sentence"),
    [
        (None, "returned NoneType; it must return a list of Scenario"),
        ([{"messages": USER}], "returned a list with dict; it must return a list of Scenario"),
        ([], "returned none of this split"),
        ([made("test")], "returned one of the split test"),
    ],
)
def test_scenarios_are_a_list_of_their_split(returned: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        checked(returned, "train", 1)


def test_fewer_scenarios_than_were_asked_for_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(checked([made(a=1), made(a=2)], "train", 12)) == 2
    assert "train has 2 scenarios, and 12 were asked for" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ({"answer": float("nan")}, "data.answer is nan, which JSON does not have"),
        ({"a": [1.0, float("inf")]}, r"data.a\[1\] is inf"),
        ({"prices": {1: "a"}}, "data.prices has the key 1, and JSON has texts as keys alone"),
        ({"day": np.int64(3)}, "data.day is a int64, which JSON does not have"),
    ],
    ids=str,
)
def test_data_that_would_be_others_when_they_are_read_again_are_refused(data: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Scenario.make("t", "train", USER, data)
    assert made(p=(1, 2), n=None, f=1.5).data == {"p": (1, 2), "n": None, "f": 1.5}


def test_a_role_that_no_template_knows_is_refused() -> None:
    with pytest.raises(ValueError, match="has the role 'human'; the roles are system, user"):
        Scenario.make("t", "train", [{"role": "human", "content": "What?"}], {})


def test_what_is_another_text_in_each_process_decides_no_split() -> None:
    with pytest.raises(ValueError, match="a set has another order in each process"):
        draw({"a", "b"}, "train", 1, 1)

    class Item:
        pass

    with pytest.raises(ValueError, match="that of a Item is another one in each process"):
        draw([Item(), Item()], "train", 1, 1)


# --- Data files


def test_lines_of_json_are_read_or_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\n  \n{"a": 2}\n')
    assert read_lines(path) == [{"a": 1}, {"a": 2}]
    path.write_text('{"a": 1}\n{"a": \n')
    with pytest.raises(ValueError, match=r"rows\.jsonl, line 2: it must be a JSON object"):
        read_lines(path)
    path.write_bytes(b'{"a": "\xe9"}\n')
    with pytest.raises(ValueError, match=r"rows\.jsonl is not UTF-8"):
        read_lines(path)


# --- Tools


def test_a_tool_has_no_name_of_the_class() -> None:
    class Own(Env):
        @tool
        def done(self) -> str:  # pyrefly: ignore[bad-override]
            """Say that there is nothing left to do."""
            return "You are done."

    with pytest.raises(TypeError, match=r"Own\.done: an Env has this name for itself; give the tool another one"):
        Own.tools()


def test_results_are_shown_as_what_they_are() -> None:
    class Color(str, enum.Enum):  # noqa: UP042 (as people still write it)
        RED = "red"

    assert text_of("t", {"n": np.int64(3), "ok": np.bool_(True), "all": np.arange(3)}) == (
        '{"n": 3, "ok": true, "all": [0, 1, 2]}'
    )
    assert len(text_of("t", np.arange(1500)).split(",")) == 1500
    assert text_of("t", Color.RED) == "red"


# --- The class


def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str) -> Any:
    """The template with a change, as a module beside the project's folders."""
    text = (ROOT / "environments/_template.py").read_text()
    assert old in text
    (tmp_path / f"{name}.py").write_text(text.replace(old, new, 1))
    (tmp_path / "own_tasks").mkdir(exist_ok=True)
    (tmp_path / f"{name}.py").rename(tmp_path / "own_tasks" / f"{name}.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    for known in ("own_tasks", f"own_tasks.{name}"):
        sys.modules.pop(known, None)
    return environments.load(f"own_tasks.{name}")


def test_what_is_of_the_class_is_a_classmethod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "environments/_template.py").read_text()
    before = text[: text.index("def success")].rpartition("@classmethod")[2]
    with pytest.raises(ValueError, match=r"Template\.success is of the class: write @classmethod above it"):
        load(tmp_path, monkeypatch, "plain", f"@classmethod{before}def success", "def success")


def test_a_tuple_of_one_without_a_comma_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r'Template\.secret is a text, and must be a tuple: \("answer",\)'):
        load(tmp_path, monkeypatch, "commaless", "    @classmethod", '    secret = ("answer")\n\n    @classmethod')


# --- Options of a package's environment


@pytest.mark.parametrize("text", ["False", "FALSE", "false"])
def test_false_is_false_in_any_case(text: str) -> None:
    assert value(text) is False
    assert value("True") is True
