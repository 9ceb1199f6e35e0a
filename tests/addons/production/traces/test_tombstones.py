"""What was forgotten stays so under another id, from another producer and in part; what others said does not go with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from addons.production.traces.tombstones import Damaged, Tombstones

Messages = list[dict[str, Any]]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str, call: str = "") -> dict[str, Any]:
    calls = [{"id": "x", "type": "function", "function": {"name": "find", "arguments": {"q": call}}}]
    return {"role": "assistant", "content": text} | ({"tool_calls": calls} if call else {})


ASKED = user("My daughter Mia starts school in Bern on Monday, what does she need?")
LONG: Messages = [
    ASKED,
    assistant("", "school Bern"),
    {"role": "tool", "tool_call_id": "x", "content": "a list"},
    assistant("A schoolbag and slippers."),
    user("And on Tuesday?"),
    assistant("Gym shoes."),
]


@pytest.mark.parametrize(
    ("what", "messages"),
    [
        ("the same", LONG),
        ("with a system message in front", [{"role": "system", "content": "You are kind."}, *LONG]),
        ("in other case and spacing", [user(ASKED["content"].upper() + " \n"), *LONG[1:]]),
        ("with another producer's ids of calls", [ASKED, assistant("", "school Bern") | {"name": "a"}, *LONG[2:]]),
        ("without the calls, as a trace", [ASKED, LONG[3], *LONG[4:]]),
        ("up to its first call", LONG[:2]),
        ("up to its first answer", LONG[:4]),
        ("gone on with", [*LONG, user("Thanks!"), assistant("You are welcome.")]),
        ("gone on with, as a trace", [ASKED, LONG[3], *LONG[4:], user("Thanks!"), assistant("You are welcome.")]),
    ],
)
def test_the_same_conversation_is_known_under_any_id(tmp_path: Path, what: str, messages: Messages) -> None:
    Tombstones(tmp_path / "forgotten").add({"capture:00"}, [LONG])
    marks = Tombstones(tmp_path / "forgotten")
    assert marks.holds("langfuse:ff", messages), what
    assert marks.holds("capture:00")


@pytest.mark.parametrize(
    ("what", "messages"),
    [
        ("asked the same, answered otherwise", [ASKED, assistant("Nothing at all.")]),
        ("began alike, went elsewhere", [*LONG[:4], user("And in winter?"), assistant("A hat.")]),
        ("an answer alone", [LONG[-1]]),
        ("nothing", []),
    ],
)
def test_what_others_said_is_not_forgotten(tmp_path: Path, what: str, messages: Messages) -> None:
    marks = Tombstones(tmp_path / "forgotten")
    marks.add({"capture:00"}, [LONG, [user("hi"), assistant("Hello!")]])
    assert not marks.holds("capture:01", messages), what
    going_on = [user("hi"), assistant("Hello!"), user("What is a pier?"), assistant("A landing place.")]
    assert not marks.holds("capture:01", going_on), "many conversations go on from there"
    assert marks.holds("capture:01", going_on[:2])


def test_a_language_without_spaces_has_words_too(tmp_path: Path) -> None:
    marks = Tombstones(tmp_path / "forgotten")
    marks.add({"capture:00"}, [[user("我的女儿星期一在伯尔尼上学"), assistant("好的。")]])
    assert marks.holds(
        "capture:01", [user("我的女儿星期一在伯尔尼上学"), assistant("好的。"), user("谢谢"), assistant("不客气")]
    )


def test_tombstones_name_nobody_and_need_their_key(tmp_path: Path) -> None:
    marks, others = (Tombstones(tmp_path / name) for name in ("one", "two"))
    for each in (marks, others):
        each.add({"capture:0123456789abcdef"}, [LONG])
    text = marks.path.read_text()
    assert not {"capture", "0123456789abcdef", "Mia", "Bern"} & set(text.split())
    assert not set(text.split()) & set(others.path.read_text().split()), "another key, other hashes"
    assert {path.stat().st_mode & 0o777 for path in marks.folder.iterdir()} == {0o600}
    assert marks.folder.stat().st_mode & 0o777 == 0o700
    (marks.folder / "key").write_text((others.folder / "key").read_text())
    with pytest.raises(Damaged, match="do not belong together"):
        Tombstones(marks.folder).holds("capture:00")
    (marks.folder / "key").unlink()
    with pytest.raises(Damaged, match="do not belong together"):
        Tombstones(marks.folder).add({"capture:00"}, [])
