"""The list of known vulnerabilities that is kept in the repository, so that an audit answers without a network.

requirements/advisories.json has two parts, each with its date: what the Python Packaging Advisory Database
(pypa/advisory-database, CC-BY 4.0) said of the locked packages, made by `python -m flows.audit --keep CLONE`; and what was
added by hand since, with the reason why it reaches nothing here, where there is one. What became known later is in neither.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from packaging.utils import canonicalize_name

from steps.core.errors import UserError

KEPT = Path("requirements/advisories.json")
BLOBS = re.compile(r"^[0-9a-f]{40,64} blob \d+\n", re.MULTILINE)


class Vulnerability(NamedTuple):
    package: str
    version: str
    names: tuple[str, ...]  # in the database: its own first, then others such as CVE-2026-1
    fixed: tuple[str, ...]  # versions

    @property
    def line(self) -> str:
        cure = f'`make lock ARGS="--upgrade-package {self.package}"`'
        fixed = f"fixed in {', '.join(self.fixed)}: {cure}" if self.fixed else "no version without it is known"
        return f"{self.package} {self.version}: {', '.join(self.names)}; {fixed}"


class Kept(NamedTuple):
    """The list."""

    date: str  # of the database's commit
    commit: str
    advisories: list[dict[str, Any]]  # package, names, and ranges of [introduced, fixed or null] or versions
    by_hand_date: str
    by_hand: list[dict[str, Any]]  # the same, with a reason

    @property
    def description(self) -> str:
        return (
            f"the kept list {KEPT} (the Python Packaging Advisory Database of {self.date}, and {len(self.by_hand)} entries "
            f"by hand, {self.by_hand_date})"
        )

    def reason(self, vulnerability: Vulnerability) -> str:
        """Why a vulnerability is none here, as it was written down; empty where nothing was."""
        for each in self.by_hand:
            if each["package"] == vulnerability.package and set(each["names"]) & set(vulnerability.names):
                return str(each.get("reason", ""))
        return ""


def read(path: Path = KEPT) -> Kept:
    """UserError where the list is missing or damaged."""
    try:
        kept = Kept(**json.loads(path.read_text(encoding="utf-8")))
        for each in [*kept.advisories, *kept.by_hand]:
            _ = each["package"], each["names"], each.get("ranges", []), each.get("versions", [])
        return kept
    except (OSError, ValueError, TypeError, KeyError) as problem:
        raise UserError(
            f"{path} is no list of advisories ({problem}): `git checkout -- {path}` brings it back"
        ) from None


def affecting(kept: Kept, pinned: Mapping[str, str]) -> list[Vulnerability]:
    """The entries that affect the versions of these packages."""
    return [
        Vulnerability(each["package"], version, tuple(each["names"]), tuple(fixes(each)))
        for each in [*kept.advisories, *kept.by_hand]
        if (version := pinned.get(each["package"])) is not None and is_among(version, each)
    ]


def is_among(version: str, advisory: Mapping[str, Any]) -> bool:
    from packaging.version import Version

    if version in advisory.get("versions", ()):
        return True
    own = Version(version)
    return any(
        Version(first) <= own and (fixed is None or own < Version(fixed)) for first, fixed in advisory.get("ranges", ())
    )


def fixes(advisory: Mapping[str, Any]) -> list[str]:
    return [fixed for _, fixed in advisory.get("ranges", ()) if fixed is not None]


def keep(clone: Path, packages: Collection[str], path: Path = KEPT) -> str:
    """Write the list anew from a clone of the database (a bare one will do), by hand added entries as they are; what was
    done, in words. UserError where it is none."""
    import yaml

    files = [name for name in _git(clone, "ls-tree", "-r", "--name-only", "HEAD", "vulns").split("\n") if "/" in name]
    own = [name for name in files if name.split("/")[1] in packages]
    texts = BLOBS.split(_git(clone, "cat-file", "--batch", given="\n".join(f"HEAD:{name}" for name in own)))[1:]
    advisories = [entry for text in texts for entry in entries(yaml.load(text, Loader=yaml.CSafeLoader), packages)]
    commit, date = _git(clone, "log", "-1", "--format=%h %cs").split()
    before = read(path)._asdict() if path.exists() else {"by_hand_date": date, "by_hand": []}
    made = before | {"date": date, "commit": commit, "advisories": advisories}
    head = json.dumps({name: made[name] for name in ("date", "commit", "by_hand_date")}, indent=1)[:-2]
    rows = ",\n".join(f"  {json.dumps(each)}" for each in advisories)
    by_hand = json.dumps(made["by_hand"], indent=2)
    path.write_text(f'{head},\n "advisories": [\n{rows}\n ],\n "by_hand": {by_hand}\n}}\n', encoding="utf-8")
    return f"wrote {path}: {len(advisories)} advisories of {len(packages)} packages, of {date}"


def entries(advisory: Mapping[str, Any], packages: Collection[str]) -> list[dict[str, Any]]:
    """An advisory of the database as the list's entries: one for each package that it is about."""
    if advisory.get("withdrawn"):
        return []
    made = []
    for affected in advisory["affected"]:
        package = canonicalize_name(affected["package"]["name"])
        if package not in packages:
            continue
        ranges = list[tuple[str, str | None]]()
        for each in affected.get("ranges", ()):
            first = "0"
            for event in each["events"] if each["type"] == "ECOSYSTEM" else ():
                if "introduced" in event:
                    first = event["introduced"]
                    ranges.append((first, None))
                elif "fixed" in event:
                    ranges[-1:] = [(first, event["fixed"])]
        named = {"package": package, "names": [advisory["id"], *advisory.get("aliases", ())]}
        made.append(named | ({"ranges": ranges} if ranges else {"versions": affected.get("versions", [])}))
    return made


def _git(clone: Path, *words: str, given: str = "") -> str:
    done = subprocess.run(["git", "-C", str(clone), *words], input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise UserError(f"{clone} is no clone of the advisory database: {' '.join(done.stderr.split())[:200]}")
    return done.stdout
