"""What git says of a run's changes, whatever the person's own git settings are, and that the changes can be made again."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from flows.deployment import checkout
from steps.project.git import git, git_state

SETTINGS = {
    "none": "",
    "color": "[color]\n ui = always\n diff = always\n status = always",
    "noprefix": "[diff]\n noprefix = true",
    "mnemonic": "[diff]\n mnemonicPrefix = true",
    "prefixes": "[diff]\n srcPrefix = ./\n dstPrefix = new/",
    "context": "[diff]\n context = 0\n interHunkContext = 9\n suppressBlankEmpty = true",
    "external": "[diff]\n external = /bin/false",
    "driver": '[core]\n attributesFile = {home}/attributes\n[diff "upper"]\n textconv = tr a-z A-Z <\n command = /bin/false',
    "words": "[diff]\n wordRegex = .\n relative = true\n renames = copies\n algorithm = histogram\n colorMoved = zebra",
    "order": "[diff]\n orderFile = {home}/order\n submodule = log",
    "status": "[status]\n showUntrackedFiles = no\n short = true\n branch = true\n relativePaths = true",
    "signed": "[commit]\n gpgSign = true\n[log]\n showSignature = true\n[user]\n signingKey = 0xDEADBEEF",
    "hooks": "[core]\n hooksPath = {home}/hooks",
    "quoted": "[core]\n quotePath = true\n pager = /bin/false\n[apply]\n whitespace = error\n ignoreWhitespace = change",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with changes of every kind: text, other encodings, line ends, binary, a name beyond ASCII."""
    root = tmp_path / "project"
    root.mkdir()
    git(root, "init", "--quiet")
    (root / "prices.py").write_text("# prices\n" + "".join(f"PRICE_{n} = {n}\n" for n in range(30)))
    (root / "crlf.txt").write_bytes(b"one\r\ntwo\r\n")
    (root / "latin.txt").write_bytes("caf\u00e9\n".encode("latin-1"))
    (root / "picture.bin").write_bytes(bytes(range(256)))
    (root / "größe.txt").write_text("10\n")
    (root / ".dvc").mkdir()
    (root / ".dvc/config").write_text("")
    git(root, "add", ".")
    git(root, "commit", "--quiet", "-m", "first")
    (root / "prices.py").write_text(
        (root / "prices.py").read_text().replace("= 3\n", "= 4\n").replace("= 20\n", "= 2 \n")
    )
    (root / "crlf.txt").write_bytes(b"one\r\n2\r\n")
    (root / "picture.bin").write_bytes(bytes(range(255)))
    (root / "größe.txt").write_text("11\n")
    (root / "new.py").write_text("")
    return root


def settle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    home = tmp_path / "home"
    (home / "hooks").mkdir(parents=True)
    (home / "hooks/post-checkout").write_text("#!/bin/sh\nexit 1\n")
    (home / "hooks/post-checkout").chmod(0o755)
    (home / "attributes").write_text("*.py diff=upper\n")
    (home / "order").write_text("*.txt\n*.py\n")
    (home / "config").write_text(SETTINGS[name].format(home=home) + "\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / "config"))


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
def test_a_runs_changes_do_not_depend_on_settings(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, encoding: str
) -> None:
    if encoding == "latin-1":
        (project / "latin.txt").write_bytes("th\u00e9\n".encode("latin-1"))
    plain = git_state(project)
    settle(tmp_path, monkeypatch, name)
    assert git_state(project) == plain
    assert "?? new.py" in plain[1]
    assert "größe.txt" in plain[1]
    place = tmp_path / "restored"
    checkout.restore(project, place, checkout.Source(plain[0]["git_commit"], plain[1], {}))
    for file in ("prices.py", "crlf.txt", "latin.txt", "picture.bin", "größe.txt"):
        assert (place / file).read_bytes() == (project / file).read_bytes(), file
    assert git(project, "log", "--format=%H") == plain[0]["git_commit"]
    git(place, "commit", "--quiet", "--all", "-m", "second")


def test_another_repository_in_the_environment_is_not_asked(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As within a hook of another repository."""
    plain = git_state(project)
    git(tmp_path, "init", "--quiet", "other")
    for variable, value in {"GIT_DIR": str(tmp_path / "other/.git"), "GIT_LITERAL_PATHSPECS": "1"}.items():
        monkeypatch.setenv(variable, value)
    monkeypatch.setenv("GIT_EXTERNAL_DIFF", "/bin/false")
    assert git_state(project) == plain


def test_a_name_like_a_patch_is_no_patch(project: Path, tmp_path: Path) -> None:
    (project / "diff --git a").write_text("")
    tags, difference = git_state(project)
    checkout.restore(project, tmp_path / "restored", checkout.Source(tags["git_commit"], difference, {}))
    assert (tmp_path / "restored/größe.txt").read_text() == "11\n"
    subprocess.run(["git", "-C", str(tmp_path / "restored"), "status"], check=True, capture_output=True)
