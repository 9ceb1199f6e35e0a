"""Email search with threads, attachments and three languages: English, Korean and Arabic inboxes, each asked in its own.

As email_search, whose reward it has, and with more tools: the last results can be narrowed and sorted, and a thread read
at once. How words are found in Korean and Arabic is said in _languages.py; mails and questions are made by
_mailbox_plus.py and committed.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar, Literal

from environments._languages import LANGUAGES, is_korean, stems, unified
from environments.base import Message, error, tool, use
from environments.email_search import (
    LONGEST,
    MONTHS,
    EmailSearch,
    days_of,
    is_unknown,
    normalise,
    seen_ids,
    shown,
    with_inboxes,
)

CUT = 200  # characters of an email in a thread
MOST = 8  # emails of a thread
UNKNOWN = {"모르겠습니다", "잘 모르겠습니다", "모릅니다", "لا اعرف", "لا ادري", "غير معروف"}  # as `unified` writes them
SYSTEM = (
    "You answer questions about the emails of one person, in the language of the question. Search the inbox, filter or "
    "sort the results, read the email or the thread that holds the answer, then give the answer and the ids of its "
    "sources. If you cannot find it, answer: I don't know."
)
Field = Literal["sender", "subject", "body", "attachment"]


def build_index(mails: Sequence[dict[str, Any]]) -> sqlite3.Connection:
    """As in email_search; `words` are the stems of all that is searched."""
    index = sqlite3.connect(":memory:", check_same_thread=False)
    columns = "id unindexed, owner unindexed, date unindexed, sender unindexed, subject unindexed, words"
    index.execute(f"create virtual table mail using fts5({columns}, tokenize='porter unicode61')")
    columns = "id, owner, thread, date, sender, recipient, subject, body, attachments"
    index.execute(f"create table mail_by_id ({columns}, primary key (owner, id)) without rowid")
    index.execute("create index thread on mail_by_id (owner, thread)")
    for mail in mails:
        files = ", ".join(mail["attachments"])
        words = stems(f"{mail['subject']} {mail['body']} {files}")
        row = [mail[key] for key in ("id", "owner", "date", "sender", "subject")]
        index.execute("insert into mail values (?, ?, ?, ?, ?, ?)", (*row, words))
        row = [mail[key] for key in ("id", "owner", "thread", "date", "sender", "to", "subject", "body")]
        index.execute("insert into mail_by_id values (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*row, files))
    return with_inboxes(index)


class EmailSearchPlus(EmailSearch):
    """One question about one inbox, which may be Korean or Arabic."""

    max_turns = 8
    shown: ClassVar[tuple[str, ...]] = (
        "search_emails",
        "read_email",
        "filter_results",
        "sort_results",
        "read_thread",
    )  # tools whose job it is to show the answer
    task = "email_search_plus"
    maker = "_mailbox_plus"
    system = SYSTEM
    kinds = ("sender", "month", "latest", "thread", "attachment")
    kept = ("owner", "language", "kind", "difficulty", "answer", "conflicting", "source_ids")
    lists = ("search_emails", "filter_results", "sort_results")
    readers = ("read_email", "read_thread")

    results: list[tuple[Any, ...]] | None = None  # (date, sender, subject, id) of the last list, all of it

    @classmethod
    def _index(cls, mails: Sequence[dict[str, Any]]) -> sqlite3.Connection:
        return build_index(mails)

    @tool
    def search_emails(
        self,
        keywords: list[str],
        sender: str | None = None,
        after: str | None = None,
        before: str | None = None,
        sort: Literal["relevance", "newest", "oldest"] = "relevance",
    ) -> str:
        """Search the inbox. Shows the first 5 emails that hold all keywords: date, sender, subject, id. Names of attached
        files are searched too.

        Args:
            keywords: words that the email must hold
            sender: only emails from this person
            after: only emails on or after this day, as 2001-01-31
            before: only emails on or before this day
            sort: order of the results
        """
        rows = self._find(keywords, sender, after, before, sort, -1)
        if isinstance(rows, str):
            return rows
        self.results = rows
        return shown(rows, len(rows))

    @tool
    def filter_results(self, field: Field, text: str) -> str:
        """Keep those of the last results, also of those not shown, that hold a text in one field. Shows the first 5.

        Args:
            field: where the text must be
            text: what it must hold
        """
        if self.results is None:
            return error("there are no results to filter; call search_emails first")
        sought = unified(text).casefold().strip()
        if not sought:
            return error("text must hold at least one letter or digit")
        query = "select id, sender, subject, body, attachments from mail_by_id where owner = ?"
        place = ("sender", "subject", "body", "attachment").index(field) + 1
        mails = self.data.mails.execute(query, (self.scenario.data["owner"],))
        held = {mail[0] for mail in mails if sought in unified(mail[place]).casefold()}
        kept = [row for row in self.results if row[3] in held]
        if not kept:
            return f"0 emails. The last results stay: {len(self.results)} emails."
        self.results = kept
        return shown(kept, len(kept))

    @tool
    def sort_results(self, by: Literal["newest", "oldest", "sender", "subject"]) -> str:
        """Sort the last results, also those not shown. Shows the first 5.

        Args:
            by: what comes first; senders and subjects go by the alphabet
        """
        if self.results is None:
            return error("there are no results to sort; call search_emails first")
        place = {"newest": 0, "oldest": 0, "sender": 1, "subject": 2}[by]
        self.results = sorted(self.results, key=lambda row: str(row[place]), reverse=by == "newest")
        return shown(self.results, len(self.results))

    @tool
    def read_email(self, id: str) -> str:
        """Read one email.

        Args:
            id: the id of the email
        """
        columns = "thread, date, sender, recipient, subject, attachments, body"
        query = f"select {columns} from mail_by_id where owner = ? and id = ?"
        row = self.data.mails.execute(query, (self.scenario.data["owner"], id)).fetchone()
        if row is None:
            return error("there is no email with this id")
        *head, files, body = row
        attached = f"\nattachments: {files}" if files else ""
        return "id: {}\nthread: {}\ndate: {}\nfrom: {}\nto: {}\nsubject: {}".format(id, *head) + f"{attached}\n\n{body}"

    @tool
    def read_thread(self, id: str) -> str:
        """Read a whole thread, oldest email first. Emails are cut after 200 characters; of more than 8, the first and the
        last 7 are shown.

        Args:
            id: the id of the thread, or of any email in it
        """
        columns = "id, date, sender, attachments, body, thread, subject"
        thread = "(select thread from mail_by_id where owner = :owner and id = :id)"
        where = f"owner = :owner and thread = coalesce({thread}, :id)"
        query = f"select {columns} from mail_by_id where {where} order by date, id"
        rows = self.data.mails.execute(query, {"owner": self.scenario.data["owner"], "id": id}).fetchall()
        if not rows:
            return error("there is no email with this id, nor a thread")
        omitted = len(rows) - MOST
        parts = [f"thread: {rows[0][5]}\nsubject: {rows[0][6]}\nemails: {len(rows)}"]
        for name, day, sender, files, body, *_ in rows if omitted <= 0 else [rows[0], *rows[1 - MOST :]]:
            if len(parts) == 2 and omitted > 0:
                parts.append(f"({omitted} emails are left out)")
            attached = f"attachments: {files}\n" if files else ""
            text = body if len(body) <= CUT else body[:CUT] + "…"
            parts.append(f"id: {name}\ndate: {day}\nfrom: {sender}\n{attached}{text}")
        return "\n\n".join(parts)

    return_final_answer = EmailSearch.return_final_answer

    def _match(self, keywords: list[str]) -> str:
        """Stems of the keywords; a Korean word matches as a prefix."""
        phrases = []
        for stem in map(stems, keywords):
            last = re.findall(r"\w+", stem)[-1:]
            phrases.append(f'"{stem}"' + ("*" if last and is_korean(last[0]) else ""))
        return " ".join(phrases)

    @classmethod
    def _has_read(cls, arguments: dict[str, Any], text: str, sources: set[str]) -> bool:
        return any(text.startswith(f"id: {source}\n") or f"\n\nid: {source}\n" in text for source in sources)

    @classmethod
    def _plain(cls, text: str) -> str:
        return normalise(stems(text))

    @classmethod
    def _gives_up(cls, answer: str) -> bool:
        return is_unknown(answer) or normalise(unified(answer)) in UNKNOWN

    # Players

    def _open(self, name: str) -> Message:
        kind, _ = _take_apart(str(self.scenario.messages[1]["content"]))
        return use("read_thread" if kind == "thread" else "read_email", id=name)

    def _query(self, question: str) -> dict[str, Any]:
        kind, parts = _take_apart(question)
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
        """What a mail states, what it has attached, or what a thread's last mail decides."""
        kind, _ = _take_apart(str(self.scenario.messages[1]["content"]))
        if kind == "attachment":
            files = re.search(r"^attachments: (.+)$", mail, re.MULTILINE)
            return files[1] if files else None
        mails = mail.split("\n\n")[1:]
        if kind != "thread":
            return _stated(mails[0], STATED)
        taken = next((match[1] for part in mails for match in re.finditer(DECIDED, part)), None)
        offers = [part for part in mails if f"\nfrom: {taken}\n" in part]
        return next((value for part in offers if (value := _stated(part.split("\n")[-1], OFFERED))), None)

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


# What the scripted player knows of the mails' wording.
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


def _take_apart(question: str) -> tuple[str, dict[str, str]]:
    """A question's kind, and its parts by name. No template of the task fits: the words alone."""
    for language, kind, pattern in QUESTIONS:
        if match := re.fullmatch(pattern, question):
            return kind, match.groupdict() | {"language": language}
    return "", {"project": question[:LONGEST], "matter": "", "language": ""}


def _stated(text: str, patterns: Sequence[str]) -> str | None:
    return next((match[1] for pattern in patterns if (match := re.search(pattern, text))), None)
