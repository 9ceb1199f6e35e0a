"""Scripted demonstrations of email_search: every part of the task, and each of its skills unreliable on purpose.

A demonstrator plays episodes in the real environment, over inboxes made for it and not those of the task. At each decision
it is careful or sloppy by chance; how likely it is to be careful depends on the skill and on the project that is asked
about, so that no single habit explains its failures. A policy trained on this can do everything, and does little of it
reliably: it forgets a keyword, leaves out the filter, takes the first row, gives up early, doubts what it has read, cites
nothing, and sometimes makes a malformed call. Left out: any other task, and a demonstrator that plans further than the next
call.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import exp, inf
from typing import Any, NamedTuple

from environments.base import Message, use
from environments.email_search import KINDS, EmailSearch
from environments.email_search.inbox import Mailbox, build_index
from environments.email_search.mailbox import FIRST_NAMES, LAST_NAMES, make_mailbox


class Habits(NamedTuple):
    """How often a demonstrator is careful: the log-odds of each skill (inf: always) and how far projects differ in them."""

    query: float  # a search has both keywords, else the project's name alone
    filter: float  # a search is narrowed to the sender or the month, or sorted by date, as the question asks
    row: float  # the mail that is read is one whose row matches the question, else the first row
    go_on: float  # without an answer at hand it searches or reads on, else it answers with what it has, or gives up
    answer: float  # the mail that was read holds the value: it is answered, else "I don't know"
    cite: float  # an answer names the mail that was read, else none
    spread: float  # standard deviation of a project's log-odds around those above
    malformed: float  # probability of a call with an error in it, which is corrected in the next turn

    def is_careful(self, skill: str, project: str, rng: random.Random) -> bool:
        """Decide by chance. The leaning of a project in a skill is always the same."""
        leaning = random.Random(f"{skill} {project}").gauss(0, 1)
        return rng.random() < 1 / (1 + exp(-(getattr(self, skill) + self.spread * leaning)))


CAREFUL = Habits(query=inf, filter=inf, row=inf, go_on=inf, answer=inf, cite=inf, spread=0.0, malformed=0.0)
SLOPPY = Habits(query=-0.3, filter=-0.8, row=-0.3, go_on=-0.6, answer=0.0, cite=0.6, spread=1.3, malformed=0.02)

UNKNOWN = "I don't know"
Hit = tuple[str, str, str, str]  # a row of search results: date, sender, subject, id


def demonstrations(seed: int, habits: Habits, questions_per_inbox: int = 40) -> Iterator[list[Message]]:
    """Endless transcripts, over random inboxes; the same seed gives the same ones."""
    rng = random.Random(f"demonstrations {seed}")
    while True:
        owner = f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"
        mails, questions = make_mailbox([owner], rng)
        data = Mailbox(mails, build_index)
        bodies = {mail["id"]: mail for mail in mails}
        by_kind = [[question for question in questions if question["kind"] == kind] for kind in KINDS]
        for _ in range(questions_per_inbox):
            question = rng.choice(rng.choice(by_kind))
            env = EmailSearch(EmailSearch.from_question("train", question), data)
            yield Demonstrator(env, question, bodies, habits, rng).play()


class Demonstrator:
    """Plays one episode by the script."""

    def __init__(
        self, env: EmailSearch, question: dict[str, Any], mails: dict[str, Any], habits: Habits, rng: random.Random
    ) -> None:
        self.env, self.question, self.mails, self.habits, self.rng = env, question, mails, habits, rng
        self.messages: list[Message] = list(env.scenario.messages)
        self.calls = 0
        self.has_read: set[str] = set()

    def play(self) -> list[Message]:
        rows = self._search(self._careful("query"), self._careful("filter"))
        last: str | None = None
        while not self.env.done:
            pick = self._pick(rows) if self.calls < self.env.max_turns - 1 else None
            if pick is None:
                self._answer(UNKNOWN, last)
                break
            if pick == "again":
                rows = self._search(True, True)
                continue
            last = pick
            self._call("read_email", {"id": pick})
            self.has_read.add(pick)
            self._after_reading(pick)
        return self.messages

    def _careful(self, skill: str) -> bool:
        return self.habits.is_careful(skill, self.question["project"], self.rng)

    def _after_reading(self, name: str) -> None:
        """Answer, or do nothing, which leaves the episode open for the next search."""
        mail, question = self.mails[name], self.question
        value = next((v for v in (question["answer"], *question["conflicting"]) if f" {v}." in mail["body"]), None)
        if name in question["source_ids"]:
            self._answer(question["answer"] if self._careful("answer") else UNKNOWN, name)
        elif not self._careful("go_on"):
            self._answer(value or UNKNOWN, name)

    def _pick(self, rows: list[Hit]) -> str | None:
        """The id of the row to read next, "again" to search again, or None to give up."""
        unread = [row for row in rows if row[3] not in self.has_read]
        matching = [row for row in unread if self._matches(row)]
        matching.sort(key=lambda row: not row[2].startswith("Re: "))  # replies hold answers
        if self.question["kind"] == "latest":
            matching.sort(key=lambda row: row[0], reverse=True)
        if matching:
            return matching[0][3] if self._careful("row") else unread[0][3]
        if not self._careful("go_on"):
            return None
        if not self._searched_fully:
            return "again"
        return unread[0][3] if unread else None

    def _matches(self, row: Hit) -> bool:
        day, sender, subject, _ = row
        question = self.question
        if subject.removeprefix("Re: ") != f"{question['project']} {question['matter']}":
            return False
        if question["kind"] == "sender":
            return sender == question["sender"]
        if question["kind"] == "month":
            return day[:7] == question["date"][:7]
        return self._searched_fully

    def _search(self, is_whole: bool, is_narrow: bool) -> list[Hit]:
        """Search, with both keywords where it is whole, and filtered or sorted as the question asks where it is narrow."""
        question, kind = self.question, self.question["kind"]
        arguments: dict[str, Any] = {"keywords": [question["project"], *([question["matter"]] if is_whole else [])]}
        if is_narrow and kind == "sender":
            arguments["sender"] = question["sender"]
        if is_narrow and kind == "month":
            arguments |= {"after": question["date"][:8] + "01", "before": question["date"][:8] + "31"}
        if is_narrow and kind == "latest":
            arguments["sort"] = "newest"
        self._searched_fully = is_whole and is_narrow
        lines = self._call("search_emails", arguments).splitlines()[1:]
        return [tuple(line.split(" | ")) for line in lines]  # pyrefly: ignore[bad-return]

    def _answer(self, answer: str, name: str | None) -> None:
        sources = [name] if name and self._careful("cite") else []
        self._call("return_final_answer", {"answer": answer, "source_ids": sources})

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        """One turn. Sometimes the call is malformed first, if enough turns remain to correct it."""
        if self.rng.random() < self.habits.malformed and self.calls < self.env.max_turns - 3:
            wrong = {"email_id": arguments["id"]} if name == "read_email" else {}
            self._turn(name, wrong)
        return self._turn(name, arguments)

    def _turn(self, name: str, arguments: dict[str, Any]) -> str:
        self.calls += 1
        text = self.env.call(name, arguments)
        self.messages += [use(name, **arguments), {"role": "tool", "name": name, "content": text}]
        return text
