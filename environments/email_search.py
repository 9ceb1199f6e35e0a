"""Email search: find the one mail that answers a question, read it, and answer with its id.

The mailbox is real: mails in an SQLite FTS5 index, ranked by bm25, several inboxes apart. The policy sees only the inbox
of the scenario's owner and never names it. Mails and questions are generated (see _mailbox.py) and committed; the splits
share no inbox and no question.
"""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from environments.base import Component, Env, Message, Scenario, Split, error, is_error, tool, tool_calls

ROWS_SHOWN = 5
LONGEST = 500  # characters of a query
KINDS = ("sender", "month", "latest")  # what singles out the mail that a question is about
SYSTEM = (
    "You answer questions about the emails of one person. Search the inbox, read the email that holds the answer, then "
    "give the answer and the ids of its sources. If you cannot find it, answer: I don't know."
)

REWARD = {  # value, and why
    "correct": (1.0, "the answer is right"),
    "wrong": (-0.8, "a wrong answer misleads: it costs more than not knowing"),
    "unknown": (
        -0.5,
        "an honest 'I don't know' beats a guess; were it cheap, giving up would be learnt before searching",
    ),
    "no_answer": (-0.6, "the episode ended without an answer: no better than not knowing, and slower"),
    "found": (0.1, "the right mail was among the results: a step towards the answer"),
    "read": (0.15, "the right mail was read: another step"),
    "source": (0.15, "a right answer that cites its source can be checked"),
    "bad_source": (-0.1, "a cited id is not a source of the answer"),
    "invalid_id": (-0.1, "an id was read that does not exist: it was made up"),
    "error": (-0.1, "a malformed call, an unknown tool or wrong arguments"),
    "turn": (-0.03, "each call beyond the three that are needed takes time"),
}
UNKNOWN = "i don't know"
NEEDED_CALLS = 3


class Mailbox(NamedTuple):
    """The index over all inboxes, and the questions by split."""

    mails: sqlite3.Connection
    questions: dict[str, list[dict[str, Any]]]


def build_index(mails: Sequence[dict[str, Any]]) -> sqlite3.Connection:
    """An FTS5 index in memory, and the mails by id beside it: 0.03 s for 5,344 mails."""
    index = sqlite3.connect(":memory:", check_same_thread=False)
    columns = "id unindexed, owner unindexed, date unindexed, sender unindexed, recipient unindexed, subject, body"
    index.execute(f"create virtual table mail using fts5({columns}, tokenize='porter unicode61')")
    columns = "id, owner, date, sender, recipient, subject, body"
    index.execute(f"create table mail_by_id ({columns}, primary key (owner, id)) without rowid")
    rows = [tuple(mail[key] for key in ("id", "owner", "date", "sender", "to", "subject", "body")) for mail in mails]
    for table in ("mail", "mail_by_id"):
        index.executemany(f"insert into {table} values (?, ?, ?, ?, ?, ?, ?)", rows)
    return index


def read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is missing: restore it with `git checkout -- {path}` "
            f"or write it anew with `python -m environments._mailbox {path.parent}`"
        )
    with path.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


class EmailSearch(Env):
    """One question about one inbox."""

    max_turns = 6

    @classmethod
    def load(cls, folder: Path) -> Mailbox:
        questions: dict[str, list[dict[str, Any]]] = {}
        for question in read_lines(folder / "questions.jsonl"):
            questions.setdefault(question["split"], []).append(question)
        return Mailbox(build_index(read_lines(folder / "mails.jsonl")), questions)

    @classmethod
    def scenarios(cls, data: Mailbox, split: Split, count: int, seed: int) -> list[Scenario]:
        rng = random.Random(f"{split} {seed}")
        chosen: list[dict[str, Any]] = []
        for place, kind in enumerate(KINDS):  # as many of each kind, so that none is learnt at the cost of another
            known = [question for question in data.questions[split] if question["kind"] == kind]
            wanted = (count + len(KINDS) - 1 - place) // len(KINDS)
            if wanted > len(known):
                raise ValueError(
                    f"{count} scenarios need {wanted} questions of the kind {kind}, and email_search has {len(known)}: "
                    f"ask for {len(known) * len(KINDS)} or fewer"
                )
            chosen += rng.sample(known, wanted)
        rng.shuffle(chosen)
        return [cls.from_question(split, question) for question in chosen]

    @classmethod
    def from_question(cls, split: Split, question: dict[str, Any]) -> Scenario:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question["question"]}]
        keys = ("owner", "kind", "answer", "conflicting", "source_ids")
        return Scenario.make("email_search", split, messages, {key: question[key] for key in keys})

    @tool
    def search_emails(
        self,
        keywords: list[str],
        sender: str | None = None,
        after: str | None = None,
        before: str | None = None,
        sort: Literal["relevance", "newest", "oldest"] = "relevance",
    ) -> str:
        """Search the inbox. Shows the first 5 emails that hold all keywords: date, sender, subject, id.

        Args:
            keywords: words that the email must hold
            sender: only emails from this person
            after: only emails on or after this day, as 2001-01-31
            before: only emails on or before this day
            sort: order of the results
        """
        words = [word.replace('"', " ").strip() for word in keywords]
        words = [word for word in words if re.search(r"\w", word)]
        if not words:
            return error("keywords must hold at least one word")
        if len(sender or "") > LONGEST or sum(map(len, words)) > LONGEST:
            return error(f"keywords and sender may have {LONGEST} characters at most")
        for name, day in (("after", after), ("before", before)):
            if day is not None and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", day):
                return error(f"{name} must be a day as 2001-01-31")
        order = {"relevance": "rank, date desc, id", "newest": "date desc, id", "oldest": "date, id"}[sort]
        matched = "mail match ? and owner = ? and sender like ? escape '!' and date between ? and ?"
        name = "%" + re.sub(r"([%_!])", r"!\1", (sender or "").strip()) + "%"
        values = (
            " ".join(f'"{word}"' for word in words),
            self.scenario.data["owner"],
            name,
            after or "",
            before or "9",
        )
        rows = self.data.mails.execute(
            f"select date, sender, subject, id, count(*) over () from mail where {matched} order by {order} limit ?",
            (*values, ROWS_SHOWN),
        ).fetchall()
        if not rows:
            return "0 emails."
        return "\n".join([f"{rows[0][4]} emails:", *(" | ".join(row[:4]) for row in rows)])

    @tool
    def read_email(self, id: str) -> str:
        """Read one email.

        Args:
            id: the id of the email
        """
        query = "select date, sender, recipient, subject, body from mail_by_id where owner = ? and id = ?"
        row = self.data.mails.execute(query, (self.scenario.data["owner"], id)).fetchone()
        if row is None:
            return error("there is no email with this id")
        return "id: {}\ndate: {}\nfrom: {}\nto: {}\nsubject: {}\n\n{}".format(id, *row)

    @tool
    def return_final_answer(self, answer: str, source_ids: list[str]) -> str:
        """Give the answer. This ends the task.

        Args:
            answer: the answer, in a few words
            source_ids: ids of the emails that hold it
        """
        self.done = True
        return "The answer was given."

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        calls = tool_calls(messages)
        sources = set(scenario.data["source_ids"])
        counts = dict.fromkeys(REWARD, 0)
        for name, arguments, observation in calls:
            text = str(observation["content"])
            if name == "search_emails":
                counts["found"] |= any(f" | {source}\n" in text + "\n" for source in sources)
            elif name == "read_email" and "no email with this id" in text:
                counts["invalid_id"] += 1
            elif name == "read_email":
                counts["read"] |= not is_error(observation) and arguments.get("id") in sources
        errors = [message for message in messages if message["role"] == "tool" and is_error(message)]
        counts["error"] = len(errors) - counts["invalid_id"]
        counts["turn"] = max(0, sum(message["role"] == "assistant" for message in messages) - NEEDED_CALLS)
        answer = final_answer(messages)
        if answer is None:
            counts["no_answer"] = 1
        elif is_unknown(answer["answer"]):
            counts["unknown"] = 1
        else:
            right = cls.success(scenario, messages)
            cited = set(answer["source_ids"])
            counts["correct" if right else "wrong"] = 1
            counts["source"] = int(right and bool(cited & sources))
            counts["bad_source"] = len(cited - sources)
        return [
            Component(name, count * REWARD[name][0], f"{count} × {REWARD[name][0]}: {REWARD[name][1]}")
            for name, count in ((name, int(count)) for name, count in counts.items())
            if count
        ]

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        answer = final_answer(messages)
        if answer is None or is_unknown(answer["answer"]):
            return False
        given, right = normalise(answer["answer"]), normalise(scenario.data["answer"])
        others = {word for other in scenario.data["conflicting"] for word in normalise(other).split()}
        if others & set(given.split()) - set(right.split()):
            return False  # an answer that also names another statement's value hedges
        return f" {right} " in f" {given} " and len(given.split()) <= 20


def final_answer(messages: Sequence[Message]) -> dict[str, Any] | None:
    """The arguments of the answer that was accepted, or None."""
    for name, arguments, observation in tool_calls(messages):
        if name == "return_final_answer" and not is_error(observation):
            return arguments
    return None


def normalise(text: str) -> str:
    """Lower case, punctuation as spaces, one space between words."""
    return " ".join(re.findall(r"\w+", re.sub(r"(?<=\d),(?=\d)", "", text.lower())))


def is_unknown(answer: str) -> bool:
    return normalise(answer) in ("", normalise(UNKNOWN), "i do not know", "unknown")
