"""deploy/Containerfile by rules of our own (hadolint is not in the locks), and its entrypoint with a real repository."""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT

FILE = ROOT / "deploy/Containerfile"
LOCK = "torch==2\n"
KEYS = re.compile(r"KEY|TOKEN|PASSWORD|SECRET|AUTH")


def instructions(text: str) -> list[tuple[str, str]]:
    """(instruction, its words) of a Containerfile, with continued lines as one."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    whole = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(words[0], words[1]) for line in whole.splitlines() if len(words := line.split(maxsplit=1)) == 2]


def faults(text: str) -> list[str]:
    """What breaks the rules for an image."""
    listed, found = instructions(text), []
    stages = [number for number, (kind, _) in enumerate(listed) if kind == "FROM"]
    users = [words for kind, words in listed[stages[-1] :] if kind == "USER"]
    if not users or users[-1].split(":")[0] in ("root", "0") or not users[-1].split(":")[0].isdigit():
        found.append("the last stage runs as root, or as a user without a number, which Kubernetes cannot check")
    for kind, words in listed:
        if kind == "FROM" and not re.match(r"\$\{\w+\}|base\b|environment\b|\S+:\S+", words):
            found.append(f"FROM {words}: without a tag")
        if kind == "ARG" and "=" in words and ":latest" in words:
            found.append(f"ARG {words}: latest is another image every day")
        if kind == "ADD":
            found.append("ADD fetches and unpacks: COPY")
        if kind in ("ARG", "ENV") and KEYS.search(words):
            found.append(f"{kind} {words}: a key in an image")
        if kind == "RUN" and "apt-get install" in words:
            missing = [word for word in ("--no-install-recommends", "rm -rf /var/lib/apt/lists/*") if word not in words]
            found += [f"RUN apt-get install without {word}" for word in missing]
        if kind in ("ENTRYPOINT", "CMD") and not words.startswith("["):
            found.append(f"{kind} {words}: a shell would take its signals")
        if kind == "RUN" and subprocess.run(["sh", "-n", "-c", words], capture_output=True).returncode:
            found.append(f"RUN {words}: no shell command")
    return found


def test_the_images_keep_the_rules() -> None:
    assert faults(FILE.read_text()) == []


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("USER 1000:1000\n", "", "runs as root"),
        ("bookworm-slim", "latest", "latest"),
        ("COPY --chown", "ADD --chown", "ADD fetches"),
        ("ARG PIP_INDEX_URL", "ARG PIP_TOKEN", "a key"),
        ("&& rm -rf /var/lib/apt/lists/*", "&& true", "without rm -rf"),
        ('CMD ["make", "help"]', "CMD make help", "signals"),
        ("&& sha256sum", "&& ( sha256sum", "no shell command"),
    ],
)
def test_a_rule_can_be_broken(old: str, new: str, fault: str) -> None:
    text = FILE.read_text()
    assert old in text
    assert any(fault in problem for problem in faults(text.replace(old, new, 1)))


def test_what_is_copied_exists_and_keys_are_not() -> None:
    for kind, words in instructions(FILE.read_text()):
        if kind == "COPY" and "--from" not in words:
            *sources, _ = [word for word in words.split() if not word.startswith("--")]
            assert all((ROOT / source).exists() for source in sources), words
    kept_out = (ROOT / ".dockerignore").read_text().splitlines()
    assert {".env", ".git", ".venv", ".flywheel", ".dvc/cache", ".dvc/config.local", "run"} <= set(kept_out)


# --- The entrypoint


def git(folder: Path, *words: str) -> str:
    named = ["-c", "user.name=x", "-c", "user.email=x@localhost"]
    return subprocess.run(
        ["git", *named, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder: Path, lock: str, text: str) -> str:
    (folder / "lock.txt").write_text(lock)
    (folder / "code.py").write_text(text)
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", text)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path]:
    """(the team's repository, the project's folder of an image that was built from an older commit)."""
    origin, image = tmp_path / "origin", tmp_path / "image"
    for folder in (origin, image):
        folder.mkdir()
        git(folder, "init", "--quiet", "--initial-branch", "main")
        commit(folder, LOCK, "old")
    commit(origin, LOCK, "new")
    git(origin, "update-ref", "refs/runs/first", "HEAD")
    (image / ".venv").mkdir()
    (image / ".git/info/exclude").write_text(".venv\n")
    (image / ".venv/.lock").write_text(f"{hashlib.sha256(LOCK.encode()).hexdigest()}  lock.txt\n")
    return origin, image


def start(image: Path, url: str = "", **more: str) -> subprocess.CompletedProcess[str]:
    variables = {"PATH": "/usr/local/bin:/usr/bin:/bin", "FLYWHEEL_ROOT": str(image), "FLYWHEEL_GIT_URL": url} | more
    command = ["sh", str(ROOT / "deploy/entrypoint.sh"), "sh", "-c", "cat code.py && git config remote.origin.url"]
    return subprocess.run(command, env=variables, capture_output=True, text=True)


def test_a_container_has_the_newest_commit_and_the_names_of_runs(places: tuple[Path, Path]) -> None:
    """And the address, which may hold a token, is in no file."""
    origin, image = places
    ended = start(image, str(origin))
    assert ended.stdout == f"new{origin}\n"
    assert git(image, "rev-parse", "refs/runs/first", "HEAD").split() == [git(origin, "rev-parse", "HEAD")] * 2
    assert str(origin) not in (image / ".git/config").read_text()


def test_without_a_repository_a_container_has_the_image_s_code(places: tuple[Path, Path]) -> None:
    assert start(places[1]).stdout == "old"


def test_a_branch_can_be_chosen(places: tuple[Path, Path]) -> None:
    origin, image = places
    git(origin, "branch", "before", "HEAD~1")
    assert start(image, str(origin), FLYWHEEL_GIT_REF="before").stdout.startswith("old")


def test_a_commit_with_another_lock_needs_another_image(places: tuple[Path, Path]) -> None:
    origin, image = places
    commit(origin, "torch==3\n", "newest")
    ended = start(image, str(origin))
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "build the image from that commit" in ended.stderr
