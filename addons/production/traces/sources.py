"""Reads sources from their watermarks on, and brings a task's ingested folder up to date.

A source is `capture`, `langfuse`, `mlflow`, `otel` or `openai`, with a path or a name behind a colon. Its watermark is,
for the store of captured conversations, the offset in each of its files; for a file, its hash; for an API, the time of
the latest record. APIs are read from some time before that, because feedback and slow exporters come later than the
answer; what is read twice joins what is there.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from addons.production.traces import files, langfuse_traces, mlflow_traces, openai_jsonl, otel, otlp, store, tombstones
from addons.production.traces.build import DataSets, Task, build, opinion
from addons.production.traces.opinions import Scales, moment, unscaled, waiting, waits, without_scores
from addons.production.traces.packed import text_of
from addons.production.traces.records import Conversation, Feedback, Part, PassedOver, Unreadable, hashed, joined, shown
from steps.core.errors import UserError
from steps.core.ports import bring, need
from steps.core.section import at

if TYPE_CHECKING:
    from addons.production.traces.privacy import Privacy
    from environments.base import Env, Scenario, Split
    from steps.core.params import Params

KINDS = ("capture", "langfuse", "mlflow", "otel", "openai")  # and how the keys of their conversations begin
LATE = {"langfuse": timedelta(hours=1), "mlflow": timedelta(days=7)}  # before the watermark that an API is read again
REGRESSION = 0.3
LEVELS, TOO_DEEP = 64, "nested more than 64 levels deep"
MOST = 4096  # held-out scenarios of a split that conversations are compared with


class Source(NamedTuple):
    """A source as the command line names it."""

    kind: str
    place: str  # a path, an experiment of MLflow, or empty

    @classmethod
    def parse(cls, word: str, task: str) -> Source:
        """UserError for a kind that there is not, and for a file that does not exist or is none."""
        kind, _, place = word.partition(":")
        if kind not in KINDS:
            raise UserError(f"source {word}: give {', '.join(KINDS)}, with a path behind a colon (openai:chats.jsonl)")
        if not place and kind in ("otel", "openai"):
            raise UserError(f"source {word}: name its file, as in {kind}:traces.jsonl")
        if place and kind != "mlflow" and not Path(place).exists():
            raise UserError(f"source {word}: {place} does not exist")
        if place and Path(place).exists() and not (Path(place).is_file() or Path(place).is_dir()):
            raise UserError(f"source {word}: {place} is a pipe or a device, which is read once only: give a file")
        if kind == "langfuse" and not place:
            bring("reader", "langfuse", "the source langfuse")
        defaults = {"capture": store.FOLDER.as_posix(), "mlflow": task}
        return cls(kind, place or defaults.get(kind, ""))


class Ingested(NamedTuple):
    """What an ingestion did."""

    read: int  # calls, rows and pieces of feedback that were new to a source's watermark
    added: int  # conversations that were not there before, or have more than before
    conversations: int  # in all
    sets: DataSets
    unreadable: int  # rows in quarantine of which no conversation was made
    unread: Mapping[str, int]  # why -> of how many of these rows
    opinions: Mapping[str, int]  # conversations that people called good, bad, corrected; and those of which nobody said
    passed_over: Mapping[str, int]  # what is in the sources beside conversations -> how often
    nothing: Sequence[str]  # sources of which nothing was read, though something is in them; each with the reason


def ingest(
    root: Path,
    folder: Path,
    sources: Sequence[Source],
    task: Task,
    scales: Scales,
    consent: bool,
    regression: float | None,
) -> Ingested:
    """Read the sources, mask, join with what is there, and write the folder. `consent`: the operator's word for sources
    whose rows do not say it. `regression`: the share of bad scenarios that are only checked; None: as the last time, 0.3
    at first."""
    need("masking", "ingestion")
    from addons.production.traces.privacy import Privacy

    state = files.read_state(folder)
    before, got = files.read_conversations(folder), _Reading(root, scales, consent, state)
    marks, privacy = tombstones.of(root), Privacy()
    for source in sources:
        got.take(source, privacy)
    starts = tuple(f"{place}{sign}" for place in got.afresh for sign in (":", " "))
    unreadable = got.unreadable | {row for row in files.read_unreadable(folder) if not row.source.startswith(starts)}
    parts = [part for part in got.parts if part.key not in got.refused]
    names, earlier = unscaled(parts), list(_before(before, parts))
    unjudged = [(part.key, waits(name)) for part in (*earlier, *parts) for name in waiting(part, names)]
    parts = [part for part in parts if not waiting(part, names)]
    conversations, lost = joined([*(without_scores(part, names) for part in earlier), *parts])
    kept = [each for each in conversations if not marks.holds(each.key, each.messages)]
    if gone := len(conversations) - len(kept):
        got.passed_over["conversations that were forgotten"] += gone
    taken = {part.key for part in parts if part.messages}
    unreadable = {row for row in unreadable if row.source not in taken}  # what was missing or refused, and is here now
    more = [(key, "no consent") for key in got.refused] + [(row.source, row.reason) for row in lost] + unjudged
    unreadable |= {Unreadable(key, f"{files.READING}{reason}") for key, reason in more}
    unreadable = {row for row in unreadable if not marks.holds(row.source)}
    share = state["regression"] = state.get("regression", REGRESSION) if regression is None else regression
    made = build(kept, task, share)
    files.write(folder, kept, made, unreadable, state)
    old = {conversation.model_dump_json() for conversation in before}
    added = sum(conversation.model_dump_json() not in old for conversation in kept)
    why = Counter(row.reason.removeprefix(files.READING) for row in unreadable)
    opinions = Counter(opinion(conversation) for conversation in kept)
    read = len(parts), added, len(kept), made, len(unreadable)
    return Ingested(*read, why, opinions, got.passed_over, got.nothing)


def _before(before: Sequence[Conversation], parts: Sequence[Conversation]) -> Iterator[Conversation]:
    """What was ingested earlier, without feedback that was read again, by another scale perhaps."""
    again = {(part.key, _unscored(each)) for part in parts for each in part.feedback}
    for part in before:
        kept = [each for each in part.feedback if (part.key, _unscored(each)) not in again]
        yield part.model_copy(update={"feedback": tuple(kept)}) if len(kept) < len(part.feedback) else part


def _unscored(feedback: Feedback) -> str:
    return feedback.model_copy(update={"score": None}).model_dump_json()


@dataclass
class _Reading:
    """How sources are read, and what was read of them."""

    root: Path
    scales: Scales
    consent: bool
    state: dict[str, Any]  # how far each source was read, which reading changes
    # How the places begin of sources that are read from their beginning: their old quarantine is void.
    afresh: set[str] = field(default_factory=set)
    parts: list[Conversation] = field(default_factory=list)
    unreadable: set[Unreadable] = field(default_factory=set)
    refused: set[str] = field(default_factory=set)  # keys: a part of each is without consent, so nothing new is taken
    passed_over: Counter[str] = field(default_factory=Counter)
    nothing: list[str] = field(default_factory=list)

    def take(self, source: Source, privacy: Privacy) -> None:
        """Read a source, and mask what is taken."""
        counts, other = Counter[str](), Counter[str]()
        for part in self.read(source):
            if isinstance(part, PassedOver):
                other[shown(part.what)] += 1
            elif isinstance(part, Unreadable):
                reason = privacy.text(shown(part.reason))
                counts[reason] += 1
                self.unreadable.add(Unreadable(shown(part.source), f"{files.READING}{reason}"))
            elif part.messages and not (part.consent or self.consent):
                counts[""] += 1
                self.refused.add(part.key)
            elif masked := _masked(part, privacy):
                counts[""] += 1
                self.parts.append(masked)
            else:
                counts[TOO_DEEP] += 1
                self.unreadable.add(Unreadable(part.key, f"{files.READING}{TOO_DEEP}"))
        self.passed_over.update(other)
        is_new_file = bool(source.place) and Path(source.place).name in self.afresh
        if (counts or other or is_new_file) and not counts[""]:
            why = [f"{count} {what}" for what, count in [*counts.most_common(3), *other.most_common(3)] if what]
            named = f"{source.kind}:{source.place}"
            self.nothing.append(f"{named}: nothing in it was read: {', '.join(why) or 'it is empty'}")

    def how(self) -> str:
        """What a reading depends on beside its source: another answer reads everything again."""
        scales = [f"{name}={low:g}..{high:g}" for name, (low, high) in sorted(self.scales.items())]
        return " ".join(["", *(["consented"] if self.consent else []), *scales])

    def read(self, source: Source) -> Iterator[Part]:
        """The parts of a source after its watermark, which is moved. A file of which nothing was read is read again."""
        path = Path(source.place) if source.place else None
        if source.kind == "capture":
            assert path is not None
            parts, self.state["capture"] = store.read(store.opened(path), self.state.get("capture") or {})
            yield from parts
        elif source.kind == "mlflow" and not (path and path.is_file()):
            name = f"mlflow {hashed(mlflow_traces.address(self.root))} {source.place}"
            yield from self._api(mlflow_traces, name, partial(mlflow_traces.fetch, self.root, source.place))
        elif source.kind == "langfuse" and path is None:
            need("trackers", "the source langfuse")
            from addons.trackers.tracing import langfuse_pages

            yield from self._api(langfuse_traces, f"langfuse {hashed(langfuse_pages.host())}", langfuse_traces.fetch)
        else:
            assert path is not None
            digest = hashlib.sha256()
            for file in sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]:
                digest.update(file.read_bytes())
            name = f"{source.kind} {digest.hexdigest()[:16]}{self.how()}"
            if name not in self.state.setdefault("files", []):
                self.afresh.add(path.name)
                is_read = False
                for part in _file(source.kind, path, self.scales):
                    is_read |= isinstance(part, Conversation)
                    yield part
                self.state["files"] = sorted([*self.state["files"], *([name] if is_read else [])])

    def _api(self, reader: Any, name: str, fetch: Callable[[str], Iterator[Any]]) -> Iterator[Part]:
        """The parts of an API from some time before its watermark on, which becomes the time of the latest of them."""
        place, name = f"{reader.PRODUCER} API", name + self.how()
        apis = self.state.setdefault("apis", {})
        if latest := str(apis.get(name) or ""):
            since = moment(datetime.fromisoformat(latest) - LATE[reader.PRODUCER])
        else:
            since = ""
            self.afresh.add(place)
        for part in reader.read(fetch(since), place, self.scales):
            if isinstance(part, Conversation):
                latest = max(latest, part.started, *(entry.time for entry in part.feedback), "")
            yield part
        if latest:
            apis[name] = latest


def _masked(part: Conversation, privacy: Privacy) -> Conversation | None:
    """A part as it is kept; None where its JSON has more levels than everything that reads it later can go down."""
    level: list[Any] = [*part.messages, *part.tools, *(each.correction for each in part.feedback)]
    for _ in range(LEVELS):
        inner = [value for value in level if isinstance(value, dict | list | tuple)]
        level = [each for value in inner for each in (value.values() if isinstance(value, dict) else value)]
    if level:
        return None
    try:
        return privacy.conversation(part.model_copy(update={"consent": True}) if part.messages else part)
    except RecursionError:  # JSON in a text, which is masked as JSON
        return None


def _file(kind: str, path: Path, scales: Scales) -> Iterator[Part]:
    if kind == "langfuse":
        return langfuse_traces.read(langfuse_traces.export(path), path.name, scales)
    if path.is_dir():
        raise UserError(f"{kind}:{path} is a folder: name its files")
    if kind == "mlflow":
        return mlflow_traces.read(langfuse_traces.export(path), path.name, scales)
    text, unread = text_of(path)
    if kind == "openai":
        return chain(unread, openai_jsonl.read(openai_jsonl.rows(text), path.name, scales))
    return chain(unread, otel.read(otlp.lines_or_whole(text), path.name, scales))


def load_task(root: Path, settings: Params) -> Task:
    """What ingestion needs of the task: its training scenarios as the stage scenarios draws them, and those of val and
    test, of which as many are drawn as the task has (4,096 at most), whatever the run's counts and seed."""
    import environments

    if "+" in settings.task:
        raise UserError(f"{settings.task} are several tasks: name that of these conversations with --task")
    env = environments.load(settings.task)
    path = root / "tasks_data" / settings.task
    data = env.load(path)
    drawn: dict[Split, list[Scenario]] = {"train": [], "val": [], "test": []}
    for split, scenarios in drawn.items():
        count = getattr(settings.scenarios, split)
        try:
            scenarios += env.scenarios(data, split, count, settings.seed)
        except ValueError as problem:
            raise UserError(f"scenarios.{split}: {problem}") from None
        while split != "train" and MOST > count > 0:
            try:
                scenarios += env.scenarios(data, split, (count := 2 * count), settings.seed)
            except ValueError:
                scenarios += _most(env, data, split, count // 2, settings.seed)
                break
    if file := at(settings, "scenarios.generated"):
        generated = bring("generated", "supervised", "scenarios.generated")
        for split, more in generated.read_generated(env, data, path / file).items():
            drawn[split] += more
    distinct = {split: list({each.id: each for each in scenarios}.values()) for split, scenarios in drawn.items()}
    return Task(env, settings.task, data, distinct["train"], distinct["val"] + distinct["test"], settings.scenarios)


def _most(env: type[Env], data: Any, split: Split, count: int, seed: int) -> list[Scenario]:
    """As many scenarios as a split has between `count` and twice as many, to the nearest twentieth."""
    for more in range(39, 20, -1):
        try:
            return env.scenarios(data, split, more * count // 20, seed)
        except ValueError:
            continue
    return []
