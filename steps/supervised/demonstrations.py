"""Scripted demonstrations of email_search: every part of the task, and many of them sloppy on purpose.

A demonstrator plays episodes in the real environment, over inboxes made for it and not those of the task. At each decision
it is careful or sloppy by chance, independently. A policy trained on this can do everything, and does little of it reliably:
it uses vague queries, takes the first hit, gives up early, and sometimes makes a malformed call. Left out: any other task,
and a demonstrator that plans further than the next call.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from environments._mailbox import FIRST_NAMES, LAST_NAMES, make_mailbox
from environments.base import Message
from environments.email_search import EmailSearch, Mailbox, build_index


class Habits(NamedTuple):
    """Probabilities of the careful choice at each decision; otherwise the choice is sloppy."""

    query: dict[
        str, tuple[float, float, float]
    ]  # by kind of question: with a filter, with both keywords, with one word
    one_is_project: float  # the single word is the project's name, else the matter
    take_match: float  # a matching row is listed: take it, else the first row
    search_again: float = 0.35  # no row matches: search with a filter, else take the first row or give up
    give_up: float = 0.25
    answer: float = 0.85  # the mail that was read holds the value: answer it, else "I don't know"
    look_further: float = 0.45  # the mail that was read is another one: go on, else answer with it, or "I don't know"
    malformed: float = 0.02  # a call with an error in it, corrected in the next turn


# For learning the skills: every way is shown often.
MIXED = Habits(
    query={"sender": (0.45, 0.30, 0.25), "month": (0.27, 0.25, 0.48), "latest": (0.27, 0.25, 0.48)},
    one_is_project=0.7,
    take_match=0.62,
)
# For learning the habits that reinforcement learning is to change: only questions about a sender are mostly searched for
# carefully.
SLOPPY = Habits(
    query={"sender": (0.50, 0.10, 0.40), "month": (0.30, 0.10, 0.60), "latest": (0.30, 0.10, 0.60)},
    one_is_project=1.0,
    take_match=0.6,
    look_further=0.65,
)

UNKNOWN = "I don't know"
Hit = tuple[str, str, str, str]  # a row of search results: date, sender, subject, id


def demonstrations(seed: int, habits: Habits, questions_per_inbox: int = 40) -> Iterator[list[Message]]:
    """Endless transcripts, over random inboxes; the same seed gives the same ones."""
    rng = random.Random(f"demonstrations {seed}")
    while True:
        owner = f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"
        mails, questions = make_mailbox([owner], rng)
        data = Mailbox(build_index(mails), {})
        bodies = {mail["id"]: mail for mail in mails}
        by_kind = [[question for question in questions if question["kind"] == kind] for kind in habits.query]
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
        weights = self.habits.query[self.question["kind"]]
        rows = self._search(self.rng.choices(("full", "both", "vague"), weights)[0])
        last: str | None = None
        while not self.env.done:
            if self.calls >= self.env.max_turns - 1:
                self._give_up(last)
                break
            pick = self._pick(rows)
            if pick == "again":
                rows = self._search("full")
                continue
            if pick is None:
                self._give_up(last)
                break
            last = pick
            self._call("read_email", {"id": pick})
            self.has_read.add(pick)
            self._after_reading(pick)
        return self.messages

    def _after_reading(self, name: str) -> None:
        """Answer, or do nothing, which leaves the episode open for the next search."""
        mail, question = self.mails[name], self.question
        right = name in question["source_ids"]
        value = next((v for v in (question["answer"], *question["conflicting"]) if f" {v}." in mail["body"]), None)
        chance = self.rng.random()
        if right:
            self._answer(question["answer"] if chance < self.habits.answer else UNKNOWN, name)
        elif chance >= self.habits.look_further:
            self._answer(value or UNKNOWN, name)

    def _pick(self, rows: list[Hit]) -> str | None:
        """The id of the row to read next, "again" to search again, or None to give up."""
        unread = [row for row in rows if row[3] not in self.has_read]
        matching = [row for row in unread if self._matches(row)]
        matching.sort(key=lambda row: not row[2].startswith("Re: "))  # replies hold answers
        if self.question["kind"] == "latest":
            matching.sort(key=lambda row: row[0], reverse=True)
        if matching and self.rng.random() < self.habits.take_match:
            return matching[0][3]
        chance = self.rng.random()
        if not matching and chance < self.habits.search_again and not self._searched_fully:
            return "again"
        if not unread or (not matching and chance > 1 - self.habits.give_up):
            return None
        return unread[0][3]

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

    def _search(self, style: str) -> list[Hit]:
        question, kind = self.question, self.question["kind"]
        vague = question["project"] if self.rng.random() < self.habits.one_is_project else question["matter"]
        arguments: dict[str, Any] = {
            "keywords": [vague] if style == "vague" else [question["project"], question["matter"]]
        }
        if style == "full" and kind == "sender":
            arguments["sender"] = question["sender"]
        if style == "full" and kind == "month":
            arguments |= {"after": question["date"][:8] + "01", "before": question["date"][:8] + "31"}
        if style == "full" and kind == "latest":
            arguments["sort"] = "newest"
        self._searched_fully = style == "full"
        lines = self._call("search_emails", arguments).splitlines()[1:]
        return [tuple(line.split(" | ")) for line in lines]  # type: ignore[misc]

    def _answer(self, answer: str, name: str | None) -> None:
        self._call("return_final_answer", {"answer": answer, "source_ids": [name] if name else []})

    def _give_up(self, last: str | None) -> None:
        self._answer(UNKNOWN, last)

    def _call(self, name: str, arguments: dict[str, Any]) -> str:
        """One turn. Sometimes the call is malformed first, if enough turns remain to correct it."""
        if self.rng.random() < self.habits.malformed and self.calls < self.env.max_turns - 3:
            wrong = {"email_id": arguments["id"]} if name == "read_email" else {}
            self._turn(name, wrong)
        return self._turn(name, arguments)

    def _turn(self, name: str, arguments: dict[str, Any]) -> str:
        self.calls += 1
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        text = self.env.call(name, arguments)
        self.messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        self.messages.append({"role": "tool", "name": name, "content": text})
        return text
