"""Generates the mailboxes of email_search_plus: inboxes in English, Korean and Arabic with threads and attachments.

Inboxes hold facts as in email_search (stated several times, with different values), decisions (mails of a thread propose
values, and the last mail names whose proposal was accepted), and files that several people send about the same matter.

    python -m environments.email_search_plus.mailbox tasks_data/email_search_plus     # the two committed files
"""

from __future__ import annotations

import itertools
import sys
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

from environments.base import write_lines
from environments.email_search.mailbox import DAYS, FIRST_DAY
from environments.email_search_plus.languages import LANGUAGES, Language, Matter, fill

SEED = 20240229
INBOXES = {"train": 3, "val": 1, "test": 2}  # of each language; no inbox is in two splits
# Further ones, so that evaluations have many independent groups; drawn last, which leaves the others as they are.
MORE = {"val": 9, "test": 8}
MOST = 15  # questions of a kind about one of these
FACTS, DECISIONS, FILES, NOISE = 16, 10, 10, 40  # per inbox: pairs (project, matter) of three sorts, and small talk
EXTENSIONS = ("pdf", "xlsx", "docx", "csv")
DIFFICULTY = {"sender": 1, "month": 2, "latest": 2, "attachment": 2, "thread": 3}  # plus 1 if not in English

Row = dict[str, Any]
KEPT = ("owner", "language", "kind", "difficulty", "question", "answer", "conflicting", "source_ids")
MAIL = ("id", "thread", "owner", "date", "sender", "to", "subject", "body", "attachments")


class Inbox:
    """The mails of an owner and the questions about them, while they are generated."""

    def __init__(self, owner: str, code: str, rng: Random) -> None:
        self.owner, self.code, self.rng = owner, code, rng
        self.words: Language = LANGUAGES[code]()
        self.people = rng.sample([name for name in self.words.people if name != owner], 9)
        self.mails: list[Row] = []
        self.questions: list[Row] = []
        self.threads = 0

    def make(self) -> None:
        pairs = [
            (project, matter) for project in self.rng.sample(self.words.projects, 9) for matter in self.words.matters
        ]
        chosen = self.rng.sample(pairs, FACTS + DECISIONS + FILES)
        for pair in chosen[:FACTS]:
            self._fact(*pair)
        for pair in chosen[FACTS : FACTS + DECISIONS]:
            self._decision(*pair)
        for pair in chosen[FACTS + DECISIONS :]:
            self._files(*pair)
        for _ in range(NOISE):
            self._noise(*self.rng.choice(chosen))
        names = self.rng.sample(range(100, 1000), len(self.mails))
        for mail, number in zip(self.mails, names, strict=True):
            mail["id"] = f"m{number}"
        for question in self.questions:
            question["source_ids"] = [mail["id"] for mail in question.pop("sources")]
        self.mails.sort(key=lambda mail: (mail["date"], mail["id"]))

    def _mail(self, sender: str, to: str, day: int, subject: str, *body: str, thread: str = "") -> Row:
        date = (FIRST_DAY + timedelta(day)).isoformat()
        mail = {"thread": thread or self._new_thread(), "owner": self.owner, "date": date, "sender": sender, "to": to}
        self.mails.append(mail | {"subject": subject, "body": " ".join(body), "attachments": []})
        return self.mails[-1]

    def _new_thread(self) -> str:
        self.threads += 1
        return f"t{self.threads}"

    def _fields(self, project: str, matter: Matter, **more: str) -> dict[str, str]:
        fields = {"project": project, "matter": matter.name, "asks": matter.asks, "was": matter.was}
        return fields | {"pronoun": matter.asks.split()[-1] if matter.asks else ""} | more

    def _say(self, templates: tuple[str, ...], project: str, matter: Matter, **more: str) -> str:
        return fill(self.rng.choice(templates), **self._fields(project, matter, **more))

    def _ask(self, kind: str, project: str, matter: Matter, right: str, others: list[str], **more: Any) -> None:
        sources = more.pop("sources")
        words = fill(self.words.questions[kind], **self._fields(project, matter, **more))
        difficulty = DIFFICULTY[kind] + (self.code != "en")
        common = {"owner": self.owner, "language": self.code, "kind": kind, "difficulty": difficulty, "question": words}
        self.questions.append(common | {"answer": right, "conflicting": sorted(others), "sources": sources})

    def _values(self, matter: Matter, count: int) -> list[str]:
        values: list[str] = []
        while len(values) < count:
            value = matter.value(self.rng)
            if value not in values:
                values.append(value)
        return values

    def _fact(self, project: str, matter: Matter) -> None:
        """Three or four statements by different people on different days, each with its own value."""
        rng, words = self.rng, self.words
        count = rng.randrange(3, 5)
        days, senders, values = (
            rng.sample(range(4, DAYS), count),
            rng.sample(self.people, count),
            self._values(matter, 4),
        )
        subject = fill(words.subject, **self._fields(project, matter))
        stated = list(zip(days, senders, values, strict=False))
        for day, sender, value in stated:
            thread, asked = self._new_thread(), rng.random() < 0.4
            if asked:
                request = self._say(words.requests, project, matter)
                self._mail(self.owner, sender, day - rng.randrange(1, 4), subject, request, thread=thread)
            body = (rng.choice(words.openers), self._say(words.statements, project, matter, value=value))
            headline = ("Re: " if asked else "") + subject
            mail = self._mail(sender, self.owner, day, headline, *body, rng.choice(words.closers), thread=thread)
            others = [other for _, _, other in stated if other != value]
            self._ask("sender", project, matter, value, others, sender=sender, sources=[mail])
            dates = [FIRST_DAY + timedelta(other) for other in days]
            mine = FIRST_DAY + timedelta(day)
            if sum((other.year, other.month) == (mine.year, mine.month) for other in dates) == 1:
                when = {"month": words.months[mine.month - 1], "year": str(mine.year)}
                self._ask("month", project, matter, value, others, sources=[mail], **when)
            if day == max(days):
                self._ask("latest", project, matter, value, others, sources=[mail])

    def _decision(self, project: str, matter: Matter) -> None:
        """Two threads about a matter, each with three proposals and a last mail that says whose was accepted."""
        rng, words = self.rng, self.words
        values = self._values(matter, 6)
        starters = rng.sample(self.people, 2)
        subject = fill(words.subject, **self._fields(project, matter))
        for starter, offered, first in zip(starters, (values[:3], values[3:]), rng.sample(range(300), 2), strict=True):
            thread = self._new_thread()
            speakers = [starter, *rng.sample([name for name in self.people if name not in starters], 2)]
            proposals = []
            for place, (speaker, value) in enumerate(zip(speakers, offered, strict=True)):
                body = (rng.choice(words.openers), self._say(words.proposal, project, matter, value=value))
                headline = ("Re: " if place else "") + subject
                proposals.append(self._mail(speaker, self.owner, first + 2 * place, headline, *body, thread=thread))
            taken = rng.randrange(3)
            closing = self._say(words.decision, project, matter, person=speakers[taken])
            last = self._mail(starter, self.owner, first + 8, "Re: " + subject, closing, thread=thread)
            others = [value for value in values if value != offered[taken]]
            sources = [proposals[taken], last]
            self._ask("thread", project, matter, offered[taken], others, sender=starter, sources=sources)

    def _files(self, project: str, matter: Matter) -> None:
        """Three files about a matter, each from a different person."""
        rng, words = self.rng, self.words
        subject = fill(words.subject, **self._fields(project, matter))
        stem = fill(words.file, **self._fields(project, matter)).replace(" ", "_").lower()
        versions = rng.sample(range(1, 10), 3)
        files = [f"{stem}_v{version}.{rng.choice(EXTENSIONS)}" for version in versions]
        for sender, file in zip(rng.sample(self.people, 3), files, strict=True):
            body = (rng.choice(words.openers), self._say(words.attached, project, matter), rng.choice(words.closers))
            mail = self._mail(sender, self.owner, rng.randrange(DAYS), subject, *body)
            mail["attachments"] = [file]
            others = [other for other in files if other != file]
            self._ask("attachment", project, matter, file, others, sender=sender, sources=[mail])

    def _noise(self, project: str, matter: Matter) -> None:
        rng, words = self.rng, self.words
        body = self._say(words.requests + words.chatter, project, matter)
        subject = fill(words.subject, **self._fields(project, matter))
        self._mail(rng.choice(self.people), self.owner, rng.randrange(DAYS), subject, rng.choice(words.openers), body)


def make_mailbox(seed: int = SEED) -> tuple[list[Row], dict[str, list[Row]]]:
    """(mails, questions by split). Each wording stays in a single split: test before val, and val before train."""
    rng = Random(seed)
    mails: list[Row] = []
    asked: dict[str, dict[str, Row]] = {}
    owners = {code: rng.sample(make().people, sum(INBOXES.values())) for code, make in LANGUAGES.items()}
    for split in ("test", "val", "train"):
        asked[split] = {}
        taken = {words for other in asked.values() for words in other}
        for code in LANGUAGES:
            for _ in range(INBOXES[split]):
                inbox = Inbox(owners[code].pop(), code, rng)
                inbox.make()
                mails += inbox.mails
                fresh = (question for question in inbox.questions if question["question"] not in taken)
                asked[split].update({question["question"]: question for question in fresh})
    return mails, {split: list(asked[split].values()) for split in INBOXES}


def more(mails: list[Row], questions: dict[str, list[Row]], seed: int = SEED) -> None:
    """Adds inboxes to val and test. Left out of these are wordings of other splits, and questions with a source that is word
    by word in an inbox of training."""
    rng, owners = Random(f"more {seed}"), {mail["owner"] for mail in mails}
    others = {
        code: rng.sample([name for name in make().people if name not in owners], sum(MORE.values()))
        for code, make in LANGUAGES.items()
    }
    for split, count in MORE.items():
        taken = {question["question"] for other in questions if other != split for question in questions[other]}
        for code in LANGUAGES:
            for _ in range(count):
                inbox = Inbox(others[code].pop(), code, rng)
                inbox.make()
                mails += inbox.mails
                for kind in DIFFICULTY:
                    of_kind = [question for question in inbox.questions if question["kind"] == kind]
                    fresh = [question for question in of_kind if question["question"] not in taken]
                    questions[split] += rng.sample(fresh, min(MOST, len(fresh)))
    trained = {question["owner"] for question in questions["train"]}
    texts = {mail["body"] for mail in mails if mail["owner"] in trained}
    repeated = {(mail["owner"], mail["id"]) for mail in mails if mail["body"] in texts}
    for split in MORE:
        questions[split] = [
            row for row in questions[split] if repeated.isdisjoint(itertools.product([row["owner"]], row["source_ids"]))
        ]


def main(folder: str) -> None:
    """Write mails.jsonl and questions.jsonl."""
    mails, questions = make_mailbox()
    more(mails, questions)
    lines = [{"split": split} | {key: row[key] for key in KEPT} for split in INBOXES for row in questions[split]]
    write_lines(Path(folder, "mails.jsonl"), ({key: mail[key] for key in MAIL} for mail in mails))
    write_lines(Path(folder, "questions.jsonl"), lines)


if __name__ == "__main__":
    main(sys.argv[1])
