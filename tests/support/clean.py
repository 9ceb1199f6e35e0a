"""Texts without secrets and personal data, of code, logs and mail: what masking must leave as it is.

Half are made from templates and a seed; the others are pieces of this project's source files and its history.
"""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

from tests.support.planted import filled

ROOT = Path(__file__).parent.parent.parent


def templates() -> list[tuple[str, str]]:
    lines = (Path(__file__).parent / "clean.txt").read_text(encoding="utf-8").split("\n")
    rows = [line.split("|", 1) for line in lines if line]
    return [(group.strip(), text.strip().replace("\\n", "\n")) for group, text in rows]


def made(count: int) -> list[tuple[str, str]]:
    """(group, text) of `count` clean texts."""
    rows, listed = templates(), []
    for number in range(count // 2):
        group, form = rows[number % len(rows)]
        listed.append((group, filled(form, random.Random(f"clean {number}"))))
    return listed + _pieces(count - len(listed))


def _pieces(count: int) -> list[tuple[str, str]]:
    """Pieces of 15 lines of this project's Python, Markdown and YAML, and of its history."""
    rng = random.Random("pieces")
    folders = ("steps", "addons", "flows", "environments", "docs", "requirements")
    files = [
        path
        for folder in folders
        for path in sorted((ROOT / folder).rglob("*"))
        if path.suffix in (".py", ".md", ".txt")
    ]
    # Files about masking show planted ones.
    files = [
        path
        for path in files
        if path.stem
        not in (
            "masker",
            "masking",
            "personal",
            "personal_forms",
            "privacy",
            "secret_forms",
            "secret_names",
            "readable",
        )
    ]
    listed = []
    history = _history()
    for number in range(count):
        if history and number % 4 == 0:
            listed.append(("history", rng.choice(history)))
            continue
        lines = rng.choice(files).read_text(encoding="utf-8").splitlines()
        start = rng.randrange(max(1, len(lines) - 15))
        listed.append(("source", "\n".join(lines[start : start + 15])))
    return listed


def _history() -> list[str]:
    words = ["git", "-C", str(ROOT), "log", "-n", "300", "--stat=100", "--format=commit %H%ndate %aI%n%n%s%n%n%b%x00"]
    done = subprocess.run(words, capture_output=True, text=True)
    return [text.strip()[:1500] for text in done.stdout.split("\0") if text.strip()] if done.returncode == 0 else []
