"""The players of email_search_plus: how they read questions and mails in three languages; the rest is email_search's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Any

from environments.base import Message, use
from environments.email_search import LONGEST, EmailSearch
from environments.email_search.inbox import seen_ids
from environments.email_search.players import MONTHS, days_of
from environments.email_search_plus.languages import LANGUAGES

# What the scripted player knows about the wording of questions and mails.
QUESTIONS = [
    ("en", "sender", r"What is the (?P<matter>.+) for (?P<project>.+) according to (?P<sender>.+)\?"),
    ("en", "month", r"What was the (?P<matter>.+) for (?P<project>.+) in (?P<month>\w+) (?P<year>\d+)\?"),
    ("en", "latest", r"What is the latest (?P<matter>.+) for (?P<project>.+)\?"),
    (
        "en",
        "thread",
        r"Which (?P<matter>.+) for (?P<project>.+) was agreed in the thread that (?P<sender>.+) started\?",
    ),
    ("en", "attachment", r"Which file did (?P<sender>.+) send about the (?P<matter>.+) for (?P<project>.+)\?"),
    (
        "ko",
        "thread",
        r"(?P<sender>\S+)님이 시작한 메일 대화에서 (?P<project>\S+) 프로젝트의 (?P<matter>.+)[은는] 결국 .+",
    ),
    ("ko", "attachment", r"(?P<sender>\S+)님이 (?P<project>\S+) 프로젝트의 (?P<matter>.+)에 관해 보낸 .+"),
    ("ko", "sender", r"(?P<sender>\S+)님에 따르면 (?P<project>\S+) 프로젝트의 (?P<matter>.+)[은는] .+"),
    ("ko", "latest", r"가장 최근 메일에 따르면 (?P<project>\S+) 프로젝트의 (?P<matter>.+)[은는] .+"),
    ("ko", "month", r"(?P<year>\d+)년 (?P<month>\d+월)에 (?P<project>\S+) 프로젝트의 (?P<matter>.+)[은는] .+"),
    ("ar", "sender", r"\S+ \S+ (?P<matter>.+) مشروع (?P<project>\S+) بحسب (?P<sender>.+)؟"),
    ("ar", "month", r"\S+ \S+ (?P<matter>.+) مشروع (?P<project>\S+) في رسالة (?P<month>\S+) (?P<year>\d+)؟"),
    ("ar", "latest", r"\S+ \S+ (?P<matter>.+) مشروع (?P<project>\S+) وفق أحدث رسالة؟"),
    ("ar", "thread", r"علام .+ بشأن (?P<matter>.+) مشروع (?P<project>\S+) في المحادثة .+ برسالة (?P<sender>.+)؟"),
    ("ar", "attachment", r".+ المرفق برسالة (?P<sender>.+) بشأن (?P<matter>.+) مشروع (?P<project>\S+)؟"),
]


STATED = (
    r" is (?:now )?((?:[A-Z]|\d)[^.]*)\.",
    r"[은는] (\S[^.]*?)입니다\.",
    r"[이가] ([^.]*?)(?:으로|로) 변경",
    r"[을를] ([^.]*?)(?:으로|로) 정했",
    r": ([^.:]+)\.",
    r" (?:هو|هي) ([^.]+)\.",
)


OFFERED = (r"I propose ([^.]+)\.", r": ([^.:]+)\.", r"(?:으로|로) ([^.]+?)[을를] 제안", r"대해 ([^.]+?)[을를] 제안")
DECIDED = r"(?:proposal of |(?<!\S)(?=\S+님의 제안)|على اقتراح )([^.]+?)(?:\.| it is\.|님의 제안)"


def take_apart(question: str) -> tuple[str, dict[str, str]]:
    """The kind of a question and its parts by name. If no pattern matches, the kind is empty and the words are kept."""
    for language, kind, pattern in QUESTIONS:
        if match := re.fullmatch(pattern, question):
            return kind, match.groupdict() | {"language": language}
    return "", {"project": question[:LONGEST], "matter": "", "language": ""}


def stated(text: str, patterns: Sequence[str]) -> str | None:
    return next((match[1] for pattern in patterns if (match := re.search(pattern, text))), None)


class Players(EmailSearch):
    """The players, who read the transcript; the task is in __init__.py."""

    def _open(self, name: str) -> Message:
        kind, _ = take_apart(str(self.scenario.messages[1]["content"]))
        return use("read_thread" if kind == "thread" else "read_email", id=name)

    @classmethod
    def _query(cls, question: str) -> dict[str, Any]:
        kind, parts = take_apart(question)
        query: dict[str, Any] = {"keywords": [parts["project"], *parts["matter"].split()]}
        if "sender" in parts:
            query |= {"sender": parts["sender"], "sort": "oldest"}
        elif kind == "month":
            months = MONTHS if parts["language"] == "en" else LANGUAGES[parts["language"]]().months
            query |= days_of(int(parts["year"]), months.index(parts["month"]) + 1)
        else:
            query["sort"] = "newest"
        return query

    def _value(self, mail: str, query: dict[str, Any]) -> str | None:
        """The value that a mail states, the file attached to it, or the value that the last mail of a thread decides on."""
        kind, _ = take_apart(str(self.scenario.messages[1]["content"]))
        if kind == "attachment":
            files = re.search(r"^attachments: (.+)$", mail, re.MULTILINE)
            return files[1] if files else None
        mails = mail.split("\n\n")[1:]
        if kind != "thread":
            return stated(mails[0], STATED) if mails else None
        taken = next((match[1] for part in mails for match in re.finditer(DECIDED, part)), None)
        offers = [part for part in mails if f"\nfrom: {taken}\n" in part]
        return next((value for part in offers if (value := stated(part.split("\n")[-1], OFFERED))), None)

    def random(self, messages: Sequence[Message], rng: Random) -> Message:
        words = re.findall(r"\w+", str(messages[1]["content"]))
        choice = rng.randrange(7)
        if choice == 0:
            return use("filter_results", field=rng.choice(("sender", "subject", "body", "attachment")), text=words[-1])
        if choice == 1:
            return use("sort_results", by=rng.choice(("newest", "oldest", "sender", "subject")))
        if choice == 2:
            return use("read_thread", id=rng.choice(seen_ids(messages) or ["t1"]))
        return super().random(messages, rng)
