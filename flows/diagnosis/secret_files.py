"""Keys: .env and the key files are readable by their owner alone, and the keys of optional services have their form.

No value is ever part of a finding, only its name and what is wrong with it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from flows.diagnosis.findings import BAD, OK, WARN, Finding, Place, parts
from steps.core.errors import UserError
from steps.project.git import git

WORDS = ("start",)  # folders with what people said
# Variable -> (its form, in words).
FORMS = {
    "OPENAI_API_KEY": (r"[!-~]{8,}", "at least 8 ASCII characters without spaces"),
    "HF_TOKEN": (r"hf_[A-Za-z0-9]{10,}|api_org_\w+", "hf_…"),
    "PREFECT_API_AUTH_STRING": (r"[^:\s]+:\S+", "user:password"),
    "FLYWHEEL_IDLE_SECONDS": (r"\d+(\.\d*)?", "a number of seconds"),
}
ADDRESSES = re.compile(r"MLFLOW_(TRACKING|REGISTRY|BACKEND_STORE)_URI|\w+_(BASE_|API_)?URL")
PAIRS = (("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"),)


def keys(where: Place) -> list[Finding]:
    """Files that hold keys, and the variables of services that are used only where they are set."""
    findings = [*modes(where.root), *in_git(where.root), *forms(where.variables), *unfamiliar(where.root)]
    named = [name for name in all_forms() if where.variables.get(name)]
    shown = f"set: {', '.join(named)}" if named else "no key of an optional service is set"
    return findings or [Finding("keys", OK, f"files with keys are readable by their owner alone; {shown}")]


def modes(root: Path) -> list[Finding]:
    """.env and what .flywheel/ keeps secret, where others can read it."""
    findings, state = [], root / ".flywheel"
    for shown in (*WORDS, *(folder for part in parts() for folder in part.words)):
        if (folder := root / shown).is_dir() and not folder.is_symlink() and folder.stat().st_mode & 0o077:
            text = f"others than its owner can enter {shown}, which holds what people said"
            findings.append(Finding("keys", BAD, text, f"chmod 700 {shown}", partial(closed, folder, shown)))
    for path in (root / ".env", *sorted(state.glob("*.key")), *sorted(state.glob("*.env"))):
        if not path.is_file():
            continue
        shown, about = os.path.relpath(path, root), path.stat()
        mode = stat.S_IMODE(about.st_mode)
        if mode & 0o077 and path.is_symlink():
            text = f"{shown} is a link, and others than its owner can read or change what it leads to (mode {mode:03o})"
            findings.append(Finding("keys", BAD, text, f"chmod 600 {shown}  # if that is the project's"))
        elif mode & 0o077:
            text = f"others than its owner can read or change {shown} (mode {mode:03o})"
            findings.append(Finding("keys", BAD, text, f"chmod 600 {shown}", partial(closed, path, shown)))
        if about.st_uid != os.getuid():
            findings.append(Finding("keys", WARN, f"{shown} belongs to another user", f"sudo chown $USER {shown}"))
        if path.suffix == ".key" and not re.fullmatch(r"[!-~]+", path.read_bytes().decode(errors="replace").strip()):
            findings.append(
                Finding("keys", BAD, f"{shown} holds no key: the next start makes a new one", f"rm {shown}")
            )
    return findings


def closed(path: Path, shown: str) -> str:
    """Close a file of this user's to others, and nothing that a link leads to."""
    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        if os.fstat(number).st_uid != os.getuid():
            raise PermissionError(f"{shown} belongs to another user")
        os.fchmod(number, 0o700 if path.is_dir() else 0o600)
    finally:
        os.close(number)
    return f"only its owner can read {shown} now"


def in_git(root: Path) -> list[Finding]:
    """.env in git's index, from where it would be pushed."""
    try:
        listed = git(root, "ls-files", "--", ".env")
    except UserError:
        listed = ""  # no repository; other checks say so
    if not listed:
        return []
    text = ".env is in git, so its keys are in the history: take it out, and replace the keys"
    return [Finding("keys", BAD, text, "git rm --cached .env")]


def all_forms() -> dict[str, tuple[str, str]]:
    """The forms of the core's variables and of the add-ons'."""
    return FORMS | {name: form for part in parts() for name, form in part.forms.items()}


def forms(variables: Mapping[str, str]) -> list[Finding]:
    """Variables whose values cannot be what they should be."""
    findings = []
    listed = all_forms()
    for name, (form, words) in listed.items():
        value = variables.get(name, "")
        if value and not re.fullmatch(form, value):
            findings.append(Finding("keys", BAD, f"{name} is set, and does not have its form: {words}", changed(name)))
    prefixes = ("MLFLOW_", *(f"{name.partition('_')[0]}_" for name in listed))
    for name, value in sorted(variables.items()):
        if value and name.startswith(prefixes) and ADDRESSES.fullmatch(name) and not is_address(value):
            findings.append(
                Finding("keys", BAD, f"{name} is set, and is no address such as https://host", changed(name))
            )
    for first, second in (*PAIRS, *(pair for part in parts() for pair in part.pairs)):
        if bool(variables.get(first)) != bool(variables.get(second)):
            lacking = second if variables.get(first) else first
            text = f"{first} and {second} belong together, and {lacking} is not set"
            findings.append(Finding("keys", WARN, text, changed(lacking)))
    return findings


def is_address(value: str) -> bool:
    try:
        parts = urlsplit(value)
        return bool(parts.scheme and (parts.netloc or parts.path.startswith("/")) and not re.search(r"\s", value))
    except ValueError:
        return False


def changed(name: str) -> str:
    return f"$EDITOR .env  # {name}=…"


def unfamiliar(root: Path) -> list[Finding]:
    """Names in .env that look like the project's and that .env.example does not have: mostly typing errors."""
    own, example = root / ".env", root / ".env.example"
    if not own.is_file() or not example.is_file():
        return []
    from difflib import get_close_matches

    listed = re.findall(r"^#?([A-Z][A-Z0-9_]+)=", example.read_text(errors="replace"), re.MULTILINE)
    findings = []
    for name in re.findall(r"^\s*(?:export\s+)?([A-Za-z_]\w*)\s*=", own.read_text(errors="replace"), re.MULTILINE):
        near = get_close_matches(name, listed, n=1, cutoff=0.85)
        if name not in listed and near:
            text = f".env sets {name}, which nothing reads; .env.example has {near[0]}"
            findings.append(Finding("keys", WARN, text, f"sed -i 's/{name}=/{near[0]}=/' .env"))
    return findings
