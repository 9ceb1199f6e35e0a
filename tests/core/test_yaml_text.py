"""YAML of others: what is read, and the one sentence that damaged and hostile texts end in."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from steps.core.errors import UserError
from steps.core.yaml_text import DEEPEST, LARGEST, REPEATED, read_mapping

ROOT = Path(__file__).parent.parent.parent
# Each line repeats the one before nine times: a few hundred bytes that stand for 9^9 values.
BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))


@pytest.mark.parametrize("name", ["dvc.yaml", "params.yaml", "chain.yaml", "dvc.lock", "prefect.yaml"])
def test_the_projects_own_files_are_read(name: str) -> None:
    import yaml

    text = (ROOT / name).read_text()
    assert read_mapping(text, name) == read_mapping(text.encode(), name) == yaml.safe_load(text)


def test_aliases_within_bounds_are_read() -> None:
    assert read_mapping("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n", "f") == {
        "a": {"x": 1},
        "b": {"x": 1},
        "c": {"x": 1, "y": 2},
    }
    assert read_mapping("a: [a, a]\nb: {a: a, b: {a: b}}\nc: a\n", "f")["b"] == {"a": "a", "b": {"a": "b"}}
    assert read_mapping("", "f") == read_mapping("# nothing\n", "f") == {}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, rf"cannot be read: its aliases \(such as \*a\d\) repeat more than {REPEATED:,} values; write them out"),
        ("a: {b: 1}\nc: 2\na: {d: 1}\n", "cannot be read: it has 'a' twice in one mapping: the first would count for"),
        ("tasks:\n  - x: [{y: 1, z: {y: 2}, y: 3}]\n", "cannot be read: it has 'y' twice in one mapping"),
        ("a: &a [*a]\n", r"cannot be read: the alias \*a refers to what it stands in"),
        ("a: *b\n", "is not valid YAML: .*undefined alias"),
        ("a: " + "[" * 100_000, f"cannot be read: it nests lists and mappings more than {DEEPEST} levels deep"),
        ("- " * 100_000, "levels deep"),
        ("? " * 100_000, "levels deep"),
        ("stages:\n  rollout@001:\n    cmd: 'python", "is not valid YAML: "),
        ("a: 2020-13-45\n", "is not valid YAML: month must be in"),
        ("a: " + "1" * 5000, "is not valid YAML: "),
        ("? {a: 1}\n: 2\n", "is not valid YAML: .*unhashable"),
        ("a: !!python/object:os.system x\n", "is not valid YAML: "),
        (b"\x00\x01\x02", "is not valid YAML: "),
        (b"\x89PNG\r\n\xff\xfe", "is not valid YAML: "),
        ("[1, 2]", "must hold keys and values, not a list"),
        ("just words", "must hold keys and values, not a str"),
    ],
    ids=range(17),
)
def test_each_mistake_is_one_sentence(text: Any, reason: str) -> None:
    with pytest.raises(
        UserError, match=f"^some/file {reason}" if not reason.startswith("levels") else reason
    ) as caught:
        read_mapping(text, "some/file", "bring it back")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("; bring it back")


def test_a_large_file_is_refused_before_it_is_read() -> None:
    with pytest.raises(UserError, match="f is too large to be read"):
        read_mapping("#" * (LARGEST + 1), "f")


def test_a_bomb_takes_no_memory() -> None:
    """Written out, its values would take gigabytes: 10 MB of growth are far from that."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError):
        read_mapping(BOMB, "f")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # KB


def test_the_bound_is_for_what_is_repeated() -> None:
    many = "all: &all [" + "x, " * (REPEATED // 2 - 2) + "x]\n"
    assert len(read_mapping(many + "a: *all\nb: *all\n", "f")) == 3
    with pytest.raises(UserError, match="repeat more than"):
        read_mapping(many + "a: *all\nb: *all\nc: *all\n", "f")
    assert len(read_mapping("all: [" + "x, " * 3 * REPEATED + "x]\n", "f")["all"]) == 3 * REPEATED + 1
