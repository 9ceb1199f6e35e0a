"""Findings of the doctor's checks, and running all checks at the same time, each within its time limit.

A check is a function of a `Place` that returns findings. One that fails or takes too long is a finding itself, so a broken
folder never breaks the doctor.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from steps.core import dotenv
from steps.core.errors import explain
from steps.core.masking import masked
from steps.core.ports import every

OK, WARN, BAD = "ok", "warn", "bad"


class Place(NamedTuple):
    """What is looked at."""

    root: Path
    variables: Mapping[str, str]  # of the environment and of .env
    ports: Mapping[str, int]  # service -> port
    free_gb: float = 2.0  # with less disk space a run is likely to fail
    is_thorough: bool = False  # files are hashed however long it takes


class Finding(NamedTuple):
    """What a check has seen, and for a problem the command that mends it."""

    check: str
    state: str  # OK, WARN or BAD
    text: str
    cure: str = ""  # a command, as a person would type it
    mend: Callable[[], str] | None = None  # a safe repair, which returns a sentence about what it did

    @property
    def line(self) -> str:
        cure = f"; to mend it: `{self.cure}`" if self.cure else ""
        return f"{self.state:<5} {self.check:<9} {self.text}{cure}"


class Service(NamedTuple):
    """A server of the project that listens at a port."""

    marks: tuple[str, ...]  # words of its command line begin with one of these
    port: int  # by default
    variable: str  # make's, for its port
    target: str  # make's, that starts it


class Parts(NamedTuple):
    """What the doctor looks at because of an add-on (the port `doctor`)."""

    services: Mapping[str, Service] = {}  # by their names
    servers: tuple[str, ...] = ()  # modules that should have a parent, beside the services
    made: Mapping[str, str] = {}  # folder -> the names, as a pattern, of what is written there under a temporary one
    words: tuple[str, ...] = ()  # folders with what people said, which are their owner's alone
    forms: Mapping[str, tuple[str, str]] = {}  # variable -> (its form, in words)
    pairs: tuple[tuple[str, str], ...] = ()  # variables that belong together


def parts() -> list[Parts]:
    """Those of all add-ons."""
    return list(every("doctor"))


class Check(NamedTuple):
    name: str
    look: Callable[[Place], list[Finding]]
    seconds: float = 4.0  # after which it is no longer waited for


def place(
    root: Path, ports: Mapping[str, int], free_gb: float = Place._field_defaults["free_gb"], is_thorough: bool = False
) -> Place:
    """The place with the variables of the environment and of .env; without the latter where that cannot be read."""
    try:
        more = dotenv.values(root)
    except Exception:  # the check of keys says what is wrong with it
        more = {}
    return Place(root.resolve(), {**more, **os.environ}, ports, free_gb, is_thorough)


def examine(where: Place, checks: Sequence[Check]) -> list[Finding]:
    """The findings of all checks, in the order of the checks. None is waited for longer than its limit."""
    results: dict[str, list[Finding]] = {}

    def look(check: Check) -> None:
        try:
            results[check.name] = check.look(where)
        except BaseException as problem:
            results[check.name] = [Finding(check.name, BAD, failure(problem))]

    threads = [threading.Thread(target=look, args=[check], daemon=True) for check in checks]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    findings = []
    for check, thread in zip(checks, threads, strict=True):
        thread.join(max(0.0, began + check.seconds - time.monotonic()))
        late = f"this check took longer than {check.seconds:g} s and was given up: what it waits for does not answer"
        findings += results.get(check.name) or [Finding(check.name, BAD, late)]
    return [each._replace(text=str(masked(each.text))) for each in findings]


def failure(problem: BaseException) -> str:
    """One sentence about why a check could not be made."""
    text, _ = explain(problem)
    if text.startswith("Traceback"):
        reason = " ".join(str(problem).split()) or "no message"
        text = f"{type(problem).__name__}: {reason[:300]}"
    return f"this check could not be made ({text})"


def ending(findings: Sequence[Finding]) -> str:
    """The last line: how many problems there are."""
    bad, warn = (sum(each.state == state for each in findings) for state in (BAD, WARN))
    if not bad and not warn:
        return "All is well."
    return f"{bad} bad, {warn} to look at, {len(findings) - bad - warn} well."
