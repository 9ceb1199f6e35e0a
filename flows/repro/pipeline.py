"""Runs the stages of dvc.yaml through DVC, which alone decides what is stale.

A stage that is up to date takes some hundredths of a second, and less where DVC was asked about all of them at once. Why a
stage whose results exist runs again is said in one sentence: what changed since it ran.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.repro.process import last_line
from steps.core.errors import UserError, causes, masked
from steps.core.files import own_signatures, signatures
from steps.runner import handover

if TYPE_CHECKING:
    from dvc.repo import Repo


CODE = "code"  # the stage that lists what the others run
LISTINGS = "run/code/"  # what it makes, a file for each
ENDS = ("evaluate", "test", "register")  # stages after which no policy is trained anew
MOST = 4  # changes that are named
PACKAGES = ("steps", "environments", "addons")  # what stages run is in them


class StageFailed(Exception):
    """A stage ended with an error: its text is the stage's own sentence, or the last line of its traceback."""

    def __init__(self, stage: str, code: int, text: str) -> None:
        self.stage, self.code = stage, code
        self.reason = masked(last_line(text) if text.startswith("Traceback ") else text or f"exit code {code}")
        super().__init__(self.sentence())

    def sentence(self, log: Path | None = None) -> str:
        """What is printed; `log` is where the rest of the stage's output is."""
        return f"the stage {self.stage} failed{f' (log: {log})' if log else ''}: {self.reason}"


class Pipeline:
    """The dvc.yaml of a folder. DVC opens the repository once, and still looks at all files anew for each stage.

    One stage may run `beside` another, in a second thread. DVC keeps threads of a process no more apart than its lock does,
    so one of them has it at a time (`turn`), and gives it up only while its stage's command runs, which DVC does not see.
    """

    def __init__(
        self, root: Path, beside: Mapping[str, str] | None = None, say: Callable[[str], None] | None = None
    ) -> None:
        """`beside`: the variables of the worker that runs stages beside the usual one. `say` gets a sentence on why the
        first stage that runs does so again, where it had run before."""
        from flows.repro.dvc_internals import parts

        logging.getLogger("dvc").setLevel(logging.ERROR)
        self.root, self.beside = root, beside or {}
        self.repos: dict[bool, Repo] = {}  # DVC's lock on the repository belongs to such an object: one for each thread
        self.parts = parts(self._run_without_turn)  # of DVC, that are replaced while a stage runs
        self.turn = threading.Lock()
        self.own = threading.local()  # `variables`: of this thread's worker
        self.patches, self.patch_users = contextlib.ExitStack(), 0
        self.is_ended = False
        self.say, self.listed = say, frozenset[object]()  # `written` as of when the lists of code were made
        self.unchanged = frozenset[str]()  # by what `look` saw, until a stage may run

    def reproduce(self, stage: str, beside: bool = False) -> bool:
        """Run a stage if it is stale: whether it ran. StageFailed where it failed; KeyboardInterrupt on Ctrl-C. `beside`: in
        another thread than the main one, while that may run a stage, too."""
        self.own.variables = self.beside if beside else {}
        try:
            if not beside:
                self._list_code()
            if stage in self.unchanged:
                return False
            self.unchanged = frozenset()  # what this stage makes, others read
            return not (beside and self.is_ended) and self._reproduce(stage, beside)
        except (StageFailed, UserError, KeyboardInterrupt):
            if beside and self.is_ended:
                return False
            raise

    def look(self) -> bool:
        """Ask DVC once which stages of the chain as it stands are up to date, which need no further look until one runs;
        whether all of them are.

        A run that goes on, or that has ended, has dozens of them, and DVC reads dvc.yaml and dvc.lock anew for each."""
        from flows.repro.dvc_internals import up_to_date

        self.own.variables = {}
        if not (self.root / "dvc.lock").exists():
            return False
        self._list_code()
        with self.turn, self._replaced():
            stages = up_to_date(self._repo(beside=False))
        self.unchanged = frozenset(stage for stage, is_unchanged in stages.items() if is_unchanged)
        return bool(stages) and all(stages.values())

    def _list_code(self) -> None:
        """Write the lists of what each stage runs, where that may have changed since they were written."""
        if (code := written(self.root)) != self.listed:
            # DVC knows nothing of modules beside the folders that the stage depends on.
            self._reproduce(CODE, beside=False, force=any(own_signatures(self.root)))
            self.listed, self.unchanged = code, frozenset()

    def end_beside(self) -> None:
        """End the stage that runs beside at once, as one that did not run; none begins there any more."""
        self.is_ended = True
        handover.end_lane(self.root, self.beside[handover.LANE])

    @contextlib.contextmanager
    def _replaced(self) -> Iterator[None]:
        """Inside, by both threads together, DVC uses the parts of flows/repro/dvc_internals.py."""
        from flows.repro.dvc_internals import forget_listings, replaced

        if not self.patch_users:
            self.patches.enter_context(replaced(self.parts))
        self.patch_users += 1
        try:
            yield
        finally:
            self.patch_users -= 1
            if not self.patch_users:
                self.patches.close()
                forget_listings()

    def _run_without_turn(self, executable: str, line: str, **options: Any) -> None:
        """Run a stage's command; the other thread may have DVC meanwhile."""
        from flows.repro.dvc_internals import run_stage_command

        if self.say and self.own.stage != CODE:
            if sentence := why_again(next(iter(self.repos.values())), self.own.stage):
                self.say(sentence)
            self.say = None
        self.turn.release()
        try:
            run_stage_command(executable, line, self.own.variables, **options)
        finally:
            self.turn.acquire()

    def _repo(self, beside: bool) -> Repo:
        from dvc.repo import Repo

        if beside not in self.repos:
            self.repos[beside] = Repo(os.fspath(self.root))
        return self.repos[beside]

    def _reproduce(self, stage: str, beside: bool, force: bool = False) -> bool:
        from dvc.exceptions import DvcException, ReproductionError

        from flows.repro.dvc_internals import CommandFailed

        self.own.stage = stage
        try:
            with self.turn, self._replaced():
                return bool(self._repo(beside).reproduce(targets=[stage], single_item=True, force=force))
        except DvcException as problem:
            links = list(causes(problem))
            if any(isinstance(link, KeyboardInterrupt) for link in links):
                raise KeyboardInterrupt from None
            cause = next((link for link in links if isinstance(link, CommandFailed)), None)
            if cause is None:  # no command was run, for example because a file that the stage reads does not exist
                why = (problem.__cause__ or problem) if isinstance(problem, ReproductionError) else problem
                kind = "" if isinstance(why, DvcException) else f"{type(why).__name__}: "
                broken = [name for name in ("dvc.lock", "chain.yaml") if name in str(why)]
                cures = "".join(f"; `git checkout {name}` brings the committed one back" for name in broken)
                raise UserError(f"DVC cannot run {stage}: {kind}{why}{cures}") from None
            raise StageFailed(stage, cause.code, cause.text) from None


def written(root: Path) -> frozenset[object]:
    """The Python files that stages run and the parameters by which they are chosen, as each was last written."""
    files = frozenset[object](signatures(*(root / folder for folder in PACKAGES), suffix=".py"))
    if not files:
        return files
    return files | {*own_signatures(root)} | {path.stat().st_mtime_ns for path in root.glob("params.yaml")}


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
    with contextlib.suppress(OSError, ValueError):
        old = json.loads(Path(repo.cache.local.oid_to_path(before)).read_text())
        new = json.loads((Path(repo.root_dir) / listing).read_text())
        return sorted(path for path in old.keys() | new.keys() if old.get(path) != new.get(path))
    return ["its code"]
