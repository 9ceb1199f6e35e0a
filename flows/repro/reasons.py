"""Why a stage whose results exist runs again, in one sentence: what changed since it ran."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dvc.repo import Repo

CODE = "code"  # the stage that lists what the others run
LISTINGS = "run/code/"  # what it makes, a file for each
ENDS = ("evaluate", "test", "register")  # stages after which no policy is trained anew
MOST = 4  # changes that are named


def why_again(repo: Repo, name: str) -> str:
    """The sentence; empty for a stage that dvc.lock does not know, which never ran. DVC may be about to run the stage."""
    stage = repo.stage.load_one(name=name)
    if not any(dep.hash_info for dep in stage.deps):
        return ""
    causes = list[str]()
    for dep in stage.deps:
        if hasattr(dep, "read_params"):
            before, now = dep.hash_info.value or {}, dep.read_params()
            causes[:0] = [cause for key in dep.params for cause in differences(key, before.get(key), now.get(key))]
        elif dep.workspace_status():
            is_listing = dep.def_path.startswith(LISTINGS)
            causes += changed_code(repo, dep.def_path, dep.hash_info.value) if is_listing else [dep.def_path]
    if stage.changed_stage():
        causes.append("its command")
    begins = f"{name} runs again" if name.partition("@")[0] in ENDS else f"The run starts over from {name}"
    if not causes:
        return f"{begins}: run/ or DVC's cache lacks its results."
    more = [f"{len(causes) - MOST} more"] if len(causes) > MOST else []
    *first, last = causes[:MOST] + more
    return f"{begins}: {', '.join(first)}{' and ' if first else ''}{last} changed."


def differences(key: str, before: Any, now: Any) -> Iterator[str]:
    """The settings in which two values of a parameter differ, with both values: `rollout.temperature (1.0 → 0.7)`."""
    if isinstance(before, dict) and isinstance(now, dict):
        for name in sorted(before.keys() | now.keys()):
            yield from differences(f"{key}.{name}", before.get(name), now.get(name))
    elif before != now:
        yield f"{key} ({shown(before)} → {shown(now)})"


def shown(value: Any) -> str:
    """A setting's value, cut where it is long; one that is not there has its default."""
    text = "default" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 40 else f"{text[:39]}…"


def changed_code(repo: Repo, listing: str, before: str | None) -> list[str]:
    """The files that differ from those of the list with this hash, by the list that is there now. None: dvc.lock has no
    such list, as of runs from before there were any."""
    if before is None:
        return ["the way its code is listed"]
    with suppress(OSError, ValueError):
        old = json.loads(Path(repo.cache.local.oid_to_path(before)).read_text())
        new = json.loads((Path(repo.root_dir) / listing).read_text())
        return sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    return ["its code"]
