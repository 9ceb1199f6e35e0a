"""The players of email_search: what they search for, which mail they read, and when they answer."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar

from environments import base
from environments.base import Env, Message
from environments.email_search import served
from environments.email_search.inbox import Mailbox, seen_ids

UNKNOWN = "I don't know"
MONTHS: Sequence[str] = "January February March April May June July August September October November December".split()


def days_of(year: int, month: int) -> dict[str, str]:
    """First and last day of a month for a search. Days are compared as text, so that 31 fits every month."""
    return {"after": f"{year}-{month:02d}-01", "before": f"{year}-{month:02d}-31"}


class Players(Env):
    """The players, who read the transcript; the task is in __init__.py."""

    readers: ClassVar[tuple[str, ...]] = ("read_email",)  # tools that show the text of emails

    @property
    def inbox(self) -> sqlite3.Connection:
        mailbox: Mailbox = self.data
        return mailbox[self.scenario.data["owner"]]

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        """Searches with the words and the filter of the question, then reads the results until a mail states a value."""
        query = self._query(str(messages[1]["content"]))
        calls = base.tool_calls(messages)
        if not calls:
            return base.use("search_emails", **query)
        name, arguments, observation = calls[-1]
        value = self._value(str(observation["content"]), query) if name in self.readers else None
        if value is not None:
            return base.use("return_final_answer", answer=value, source_ids=[arguments["id"]])
        asked = {str(inputs.get("id")) for _, inputs, _ in calls}
        unread = [id for id in seen_ids(messages) if id not in asked]
        if not unread or len(calls) >= self.max_turns - 1:
            return base.use("return_final_answer", answer=UNKNOWN, source_ids=[])
        return self._open(unread[0])

    def _open(self, name: str) -> Message:
        return base.use("read_email", id=name)

    @classmethod
    def _query(cls, question: str) -> dict[str, Any]:
        """The arguments of a search for the answer to a question."""
        words = re.match(r"What (?:is|was) the (?:latest )?(\w+) for (\w+)", question)
        query: dict[str, Any] = {"keywords": [words[2], words[1]] if words else re.findall(r"\w{4,}", question)}
        if sender := re.search(r" according to (.+)\?", question):
            query["sender"] = sender[1]
        elif when := re.search(rf" in ({'|'.join(MONTHS)}) (\d{{4}})\?", question):
            query |= days_of(int(when[2]), MONTHS.index(when[1]) + 1)
        else:
            query["sort"] = "newest"
        return query

    def _value(self, mail: str, query: dict[str, Any]) -> str | None:
        """The value that a mail states: the end of its sentence with `is`."""
        stated = served.VALUE.search(mail)
        return stated[1] if stated else None

    def random(self, messages: Sequence[Message], rng: Random) -> Message:
        """Searches words of the question, reads ids that were shown, and answers with a word of the question."""
        words = re.findall(r"\w+", str(messages[1]["content"]))
        ids = seen_ids(messages) or ["m100"]
        choice = rng.randrange(4)
        if choice < 2:
            return base.use("search_emails", keywords=rng.sample(words, min(len(words), rng.randrange(1, 3))))
        if choice == 2:
            return base.use("read_email", id=rng.choice(ids))
        return base.use("return_final_answer", answer=rng.choice(words), source_ids=[rng.choice(ids)])

    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        """Searches the source by its subject, sender and day, reads it, and answers."""
        source = self.scenario.data["source_ids"][0]
        calls = len(base.tool_calls(messages))
        if calls == 0:
            query = "select subject, sender, date from mail_by_id where id = ?"
            subject, sender, day = self.inbox.execute(query, (source,)).fetchone()
            words = subject.removeprefix("Re: ").split()
            return base.use("search_emails", keywords=words, sender=sender, after=day, before=day)
        if calls == 1:
            return self._open(source)
        return base.use(
            "return_final_answer", answer=self.scenario.data["answer"], source_ids=self.scenario.data["source_ids"]
        )

    def bad(self, messages: Sequence[Message], rng: Random) -> Message:
        """Answers at once with the value of another mail, or gives up."""
        answer = rng.choice([UNKNOWN, *self.scenario.data["conflicting"]])
        return base.use("return_final_answer", answer=answer, source_ids=[])
