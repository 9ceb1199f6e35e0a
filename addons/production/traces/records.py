"""The record that every producer's traces become: a conversation with its messages, tools, feedback, consent and time.

A producer's reader gives one `Conversation` for each call of a model, which holds the whole path of messages up to the
model's answer. `joined` makes conversations of them: a call whose messages go on where another's end extends it, and one
that differs earlier (a retry, a sub-agent, an edited history) is a branch of its own. What a reader cannot use becomes
`Unreadable`, with the place and the reason. Nothing here depends on the order in which calls are read.
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict

from environments.base import Message
from steps.core.errors import UserError
from steps.core.outside_json import DECODER

FAULTS = (ValueError, TypeError, KeyError, AttributeError, RecursionError)  # of what is not in its producer's form
T = TypeVar("T")
MARKUP = str.maketrans("<>[]`|", "()()'/")


def written(text: str) -> str:
    """A text that a file can hold: half a character in it is U+FFFD."""
    return text if text.isascii() else re.sub("[\ud800-\udfff]", "\ufffd", text)


def shown(text: str) -> str:
    """A text with a producer's words, such as the name of a field, for a terminal and a page: without characters that
    control the one or mark up the other."""
    plain = "".join(" " if unicodedata.category(sign)[0] == "C" else sign for sign in written(text))
    return plain.translate(MARKUP)


Text = Annotated[str, AfterValidator(written)]  # beside what was said, where readers refuse half a character


class Feedback(BaseModel):
    """What a person said of an answer, or of a whole conversation."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    response: str = ""  # the hashed id of the answer; empty: the whole conversation
    name: Text = ""  # of the score; empty: a word such as "good", which needs no scale
    # 0 (bad) to 1 (good); what is outside waits for a scale (addons/production/traces/opinions.py)
    score: float | None = None
    label: Text = ""
    comment: Text = ""
    correction: Message | None = None  # the answer that would have been right
    time: str = ""  # ISO 8601 in UTC; empty: not recorded


class Conversation(BaseModel):
    """One conversation, or a part of it that joins others with the same key; a part without messages holds feedback
    alone."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: str  # producer:hash of the producer's own id, so that no output holds an id that clients chose
    started: str = ""  # time of the first answer, ISO 8601 in UTC; empty: not recorded
    ended: str = ""  # time of the last one
    consent: bool = False
    messages: tuple[Message, ...] = ()  # OpenAI's chat form; arguments of calls are objects
    tools: tuple[dict[str, Any], ...] = ()
    feedback: tuple[Feedback, ...] = ()
    responses: dict[str, int] = {}  # hashed id of each answer -> its place in `messages`
    metadata: dict[Text, Text] = {}


class Unreadable(NamedTuple):
    """A row that cannot be used."""

    source: str  # where it stands: a file and line, or a key
    reason: str


class PassedOver(NamedTuple):
    """Something in a source that is no conversation, and no fault: it is counted."""

    what: str


Part = Conversation | Unreadable | PassedOver  # what readers make of a source


def guarded(place: str, made_of: Callable[..., Iterable[T]], *row: Any) -> Iterator[T | Unreadable]:
    """What a reader's function makes of a row; `Unreadable` from where on it cannot."""
    try:
        yield from made_of(*row)
    except FAULTS as problem:
        yield Unreadable(place, reason(problem))


def reason(problem: Exception) -> str:
    """Why a row cannot be used, without what is in it."""
    if isinstance(problem, json.JSONDecodeError):
        return f"no JSON ({problem.msg})"
    if isinstance(problem, ValueError | UserError):
        return " ".join(str(problem).split())[:200]
    return f"not in the form of its producer ({type(problem).__name__})"


def parsed(text: str | bytes) -> Any:
    """The value of a JSON text; None for what is none or has no value here, or is nested too deeply."""
    try:
        return DECODER.decode(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError):
        return None


def mapping(value: Any) -> dict[str, Any]:
    """An object; an empty one for anything else."""
    return dict(value) if isinstance(value, Mapping) else {}


def plain(metadata: Mapping[str, Any]) -> dict[str, str]:
    """The metadata that are texts or numbers, without the ids and the consent, which have fields of their own."""
    left = {"conversation_id", "consent", "session_id", "user_id", "user"}
    return {
        str(name): str(value)
        for name, value in sorted(metadata.items())
        if name not in left and isinstance(value, str | int | float)
    }


def unknown_fields(names: set[str], owner: str) -> list[PassedOver]:
    """What is said of fields that no reader knows."""
    return [PassedOver(f"fields {name[:40]} of {owner}, which no reader knows") for name in sorted(names)]


def not_kept(names: set[str]) -> list[PassedOver]:
    """What is said of what a conversation cannot hold."""
    return [PassedOver(f"{name}, which are not kept") for name in sorted(names)]


def key_of(producer: str, name: str) -> str:
    """The key of the conversation that a producer calls `name`."""
    return f"{producer}:{hashed(name)}"


def hashed(name: str) -> str:
    """16 hex digits for an id that a client or producer chose; empty for an empty one."""
    return hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:16] if name else ""


def signature(message: Message) -> str:
    """What two messages share that are the same to a reader: role, words and calls, without ids and reasoning."""
    calls = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in message.get("tool_calls") or ()
        if isinstance(call.get("function"), Mapping)
    ]
    return json.dumps([message["role"], message.get("content") or "", calls], sort_keys=True, ensure_ascii=False)


def content_hash(messages: Sequence[Message]) -> str:
    """A hash of what was said, 16 hex digits: the same whichever producer recorded it."""
    return _hash(map(signature, messages))


def _hash(signatures: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(signatures).encode("utf-8", "replace")).hexdigest()[:16]


def joined(parts: Iterable[Conversation]) -> tuple[list[Conversation], list[Unreadable]]:
    """(conversations in the order of their start, feedback that belongs to none of them).

    Parts of one key are joined as the module's docstring says. A conversation is consented only if all of its parts are.
    Feedback on an answer goes to the branch that holds it, and feedback on the whole to every branch.
    """
    groups: dict[str, list[Conversation]] = {}
    for part in parts:
        groups.setdefault(part.key, []).append(part)
    made, lost = [], []
    for key, group in groups.items():
        branches = _branches([part for part in group if part.messages])
        consent = all(part.consent for part in group if part.messages)
        feedback = {_dumped(entry): entry for part in group for entry in part.feedback}
        held = {name for branch in branches for name in branch.responses}
        for entry in feedback.values():
            if not branches or (entry.response and entry.response not in held):
                what = "an answer" if branches else "a conversation"
                lost.append(Unreadable(key, f"feedback on {what} that is not in any source"))
        for branch in branches:
            own = [text for text, entry in feedback.items() if entry.response in ("", *branch.responses)]
            about = tuple(feedback[text] for text in sorted(own, key=lambda text: (feedback[text].time, text)))
            made.append(branch.model_copy(update={"consent": consent, "feedback": about}))
    branched = Counter((each.started, each.key) for each in made)

    def place(each: Conversation) -> tuple[str, str, str]:
        """Only branches of one conversation need their messages to be told apart."""
        first = (each.started, each.key)
        return *first, content_hash(each.messages) if branched[first] > 1 else ""

    return sorted(made, key=place), sorted(set(lost))


def _branches(parts: Sequence[Conversation]) -> list[Conversation]:
    """The parts with messages, each joined with the one that it extends, or that extends it."""
    if len(parts) < 2:
        return list(parts)
    branches: list[tuple[list[str], Conversation]] = []
    paths = [([signature(message) for message in part.messages], part) for part in parts]
    for path, part in sorted(paths, key=lambda pair: (pair[1].started, len(pair[0]), _hash(pair[0]))):
        for place, (other, branch) in enumerate(branches):
            if path[: len(other)] == other or other[: len(path)] == path:
                branches[place] = (max(path, other, key=len), _extended(branch, part))
                break
        else:
            branches.append((path, part))
    return [branch for _, branch in branches]


def _extended(first: Conversation, second: Conversation) -> Conversation:
    """Two parts of one path. Messages that both have hold what either says of them, such as reasoning or a mark."""
    shared = min(len(first.messages), len(second.messages))
    longer = max(first.messages, second.messages, key=len)
    pairs = zip(first.messages[:shared], second.messages[:shared], strict=True)
    ordered = (sorted(pair, key=lambda message: (len(message), _dumped(message))) for pair in pairs)
    messages = (*(lesser | fuller for lesser, fuller in ordered), *longer[shared:])
    times = [time for part in (first, second) for time in (part.started, part.ended) if time]
    return first.model_copy(
        update={
            "messages": messages,
            "started": min(times, default=""),
            "ended": max(times, default=""),
            "tools": max(first.tools, second.tools, key=lambda tools: (len(tools), _dumped(list(tools)))),
            "responses": dict(sorted((first.responses | second.responses).items())),
            "metadata": dict(sorted((first.metadata | second.metadata).items())),
        }
    )


def _dumped(value: Any) -> str:
    plain = value.model_dump() if isinstance(value, BaseModel) else value
    return json.dumps(plain, sort_keys=True, ensure_ascii=False)
