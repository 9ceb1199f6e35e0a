"""Why a process that ran a stage has ended, by the kernel's counts in files like its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from steps.runner import death

Machine = Path


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A folder with the kernel's files."""
    for name, path in (("GROUPS", "cgroup"), ("MACHINE", "vmstat"), ("MOUNT", "mount")):
        monkeypatch.setattr(death, name, tmp_path / path)
    return tmp_path


def count(machine: Machine, group: int | None, whole: int | None, version: int = 2, below: str = "box/one") -> None:
    """Write the kernel's counts; None: the kernel does not tell."""
    place, name = (
        (machine / "mount", "memory.events") if version == 2 else (machine / "mount/memory", "memory.oom_control")
    )
    (machine / "cgroup").write_text("0::/box/one\n" if version == 2 else "8:pids:/\n4:memory:/box/one\n0::/\n")
    for path, number in ((place / below / name, group), (machine / "vmstat", whole)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("low 0\noom_kill_disable 0\n" + (f"oom_kill {number}\n" if number is not None else ""))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("below", ["box/one", ""])  # a container may show its own group as the root
def test_the_counts_of_both_versions_of_groups(machine: Machine, version: int, below: str) -> None:
    count(machine, 3, 7, version, below)
    assert death.oom_kills() == (3, 7)


def test_nothing_to_read_is_no_count(machine: Machine) -> None:
    assert death.oom_kills() == (None, None)
    count(machine, None, 5)
    assert death.oom_kills() == (None, 5)


@pytest.mark.parametrize("code", [-9, 137, None])
def test_memory_that_ran_out_is_said_with_the_setting_to_turn(machine: Machine, code: int | None) -> None:
    count(machine, 3, 7)
    before = death.oom_kills()
    count(machine, 4, 7)
    text = death.cause(code, before, "update")
    assert text.startswith(
        "the kernel ended it because the memory ran out: it needs less with a smaller update.tokens_per_micro"
    )
    count(machine, None, 8)
    assert "the memory ran out: it needs less with a smaller policy.base_model" in death.cause(code, before, "score")


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (-9, "something ended it with SIGKILL; by the kernel's count the memory did not run out"),
        (None, "its exit code is not known; by the kernel's count the memory did not run out"),
        (-11, "SIGSEGV ended it"),
        (143, "SIGTERM ended it"),
        (3, "its exit code is 3"),
    ],
)
def test_what_was_not_for_want_of_memory_is_not_called_that(machine: Machine, code: int | None, text: str) -> None:
    count(machine, 3, 7)
    assert death.cause(code, death.oom_kills(), "rollout") == text


def test_what_cannot_be_known_is_left_open(machine: Machine) -> None:
    text = death.cause(-9, death.oom_kills(), "rollout")
    assert text.startswith("something ended it with SIGKILL, and the kernel's count")
    assert "if it was that, it needs less with a smaller policy.context" in text


def test_the_settings_exist() -> None:
    from steps.core.params import Params

    texts = " ".join(death.NEEDS_LESS.values())
    names = {word.strip(",.:") for word in f"{texts} {death.OTHERWISE}".split() if "." in word.strip(",.:")}
    assert len(names) == 5
    for name in names:
        section, key = name.split(".")
        assert key in type(getattr(Params(), section)).model_fields, name
