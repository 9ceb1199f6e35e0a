"""Email search: find the one mail that answers a question, read it, and answer with its id.

The mails of an inbox lie in an SQLite FTS5 index, ranked by bm25. The policy sees only the inbox of the scenario's owner
and never has to name it. Mails and questions are generated (see mailbox.py) and committed. The splits share neither inboxes
nor questions. Val and test ask equally many questions about each of their inboxes.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, Literal

from environments import base
from environments.base import Component, Message, Outcome, Scenario, Split, tool
from environments.email_search import decisions, served
from environments.email_search.inbox import ROWS_SHOWN, Mailbox, Row, build_index, shown
from environments.email_search.players import UNKNOWN, Players

LONGEST = 500  # characters of a query
KINDS = ("sender", "month", "latest")  # what identifies the mail that a question asks about
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
NEEDED_CALLS = 3


class EmailSearch(Players):
    """One question about one inbox."""

    max_turns = 6
    sources = ("owner", "source_ids")
    shown: ClassVar[tuple[str, ...]] = ("search_emails", "read_email")  # tools that may show the answer
    index = staticmethod(build_index)
    task: ClassVar[str] = "email_search"
    maker: ClassVar[str] = "email_search.mailbox"  # the module that generates the data
    system: ClassVar[str] = SYSTEM
    kinds: ClassVar[tuple[str, ...]] = KINDS
    kept: ClassVar[tuple[str, ...]] = ("owner", "kind", "answer", "conflicting", "source_ids")  # hidden data
    lists: ClassVar[tuple[str, ...]] = ("search_emails",)  # tools that list emails

    @classmethod
    def load(cls, folder: Path) -> Mailbox:
        mails, questions = (base.read_text(folder / f"{name}.jsonl", cls.maker) for name in ("mails", "questions"))
        return Mailbox(base.rows_of(mails), cls.index, lambda: _by_split(base.rows_of(questions)))

    @classmethod
    def scenarios(cls, data: Mailbox, split: Split, count: int, seed: int) -> list[Scenario]:
        asked = {row["kind"] for rows in data.questions.values() for row in rows}  # data may be of some kinds alone
        kinds = [kind for kind in cls.kinds if kind in asked]
        by_kind = {kind: [row for row in data.questions[split] if row["kind"] == kind] for kind in kinds}
        inbox = None if split == "train" else operator.itemgetter("owner")
        chosen = base.sample_kinds(Random(f"{split} {seed}"), by_kind, count, cls.task, inbox)
        return [cls.from_question(split, question) for question in chosen]

    @classmethod
    def from_question(cls, split: Split, question: dict[str, Any]) -> Scenario:
        messages = [{"role": "system", "content": cls.system}, {"role": "user", "content": question["question"]}]
        return Scenario.make(cls.task, split, messages, {key: question[key] for key in cls.kept})

    @classmethod
    def from_conversation(cls, data: Mailbox, conversation: dict[str, Any]) -> Scenario:
        """A question to an inbox. Those of val and test stay held out; any other is for training."""
        row = served.question(data, cls.readers, cls._plain, conversation)
        if lacking := [key for key in cls.kept if key not in row]:
            raise ValueError(f"nobody said its {lacking[0]}")
        held: tuple[Split, ...] = ("test", "val")
        owners = {split: {each["owner"] for each in data.questions.get(split, ())} for split in held}
        return cls.from_question(next((split for split in held if row["owner"] in owners[split]), "train"), row)

    @classmethod
    def corrected(cls, answer: Message, correction: Message) -> Message:
        return served.corrected(answer, correction)

    @classmethod
    def cluster(cls, scenario: Scenario, data: Mailbox) -> str:
        return str(scenario.data["owner"])

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
        rows = self._find(keywords, sender, after, before, sort, ROWS_SHOWN)
        return rows if isinstance(rows, str) else shown(rows, rows[0][4] if rows else 0)

    def _find(
        self, keywords: list[str], sender: str | None, after: str | None, before: str | None, sort: str, limit: int
    ) -> list[tuple[Any, ...]] | str:
        """(date, sender, subject, id, number of matches) of the first `limit` emails (-1: all), or an error text."""
        words = [word.replace('"', " ").strip() for word in keywords]
        words = [word for word in words if re.search(r"\w", word)]
        if not words:
            return base.error("keywords must hold at least one word")
        if len(sender or "") > LONGEST or sum(map(len, words)) > LONGEST:
            return base.error(f"keywords and sender may have {LONGEST} characters at most")
        for name, day in (("after", after), ("before", before)):
            if day is not None and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", day):
                return base.error(f"{name} must be a day as 2001-01-31")
        order = {"relevance": "rank, date desc, id", "newest": "date desc, id", "oldest": "date, id"}[sort]
        name = "%" + re.sub(r"([%_!])", r"!\1", (sender or "").strip()) + "%"
        matched = "mail match ?1 and sender like ?2 escape '!' and date between ?3 and ?4"
        rows: list[tuple[Any, ...]] = self.inbox.execute(
            f"select date, sender, subject, id, count(*) over () from mail where {matched} order by {order} limit ?5",
            (self._match(words), name, after or "", before or "9", limit),
        ).fetchall()
        return rows

    def _match(self, keywords: list[str]) -> str:
        """A query in the language of FTS5: all keywords must match, and the words within a keyword must be adjacent."""
        return " ".join(f'"{keyword}"' for keyword in keywords)

    @tool
    def read_email(self, id: str) -> str:
        """Read one email.

        Args:
            id: the id of the email
        """
        query = "select date, sender, recipient, subject, body from mail_by_id where id = ?"
        row = self.inbox.execute(query, (id,)).fetchone()
        if row is None:
            return base.error("there is no email with this id")
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
        calls = base.tool_calls(messages)
        sources = set(scenario.data["source_ids"])
        counts = dict.fromkeys(REWARD, 0)
        for name, arguments, observation in calls:
            text = str(observation["content"])
            if name in cls.lists:
                counts["found"] |= any(f" | {source}\n" in text + "\n" for source in sources)
            elif name in cls.readers and "no email with this id" in text:
                counts["invalid_id"] += 1
            elif name in cls.readers and not base.is_error(observation):
                counts["read"] |= cls._has_read(arguments, text, sources)
        counts["error"] = base.count_errors(messages) - counts["invalid_id"]
        counts["turn"] = max(0, base.count_calls(messages) - NEEDED_CALLS)
        answer = base.accepted(messages, "return_final_answer")
        if answer is None:
            counts["no_answer"] = 1
        elif cls._gives_up(answer["answer"]):
            counts["unknown"] = 1
        else:
            right = cls.success(scenario, messages)
            cited = set(answer["source_ids"])
            counts["correct" if right else "wrong"] = 1
            counts["source"] = int(right and bool(cited & sources))
            counts["bad_source"] = len(cited - sources)
        return base.weighed(counts, REWARD)

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        answer = base.accepted(messages, "return_final_answer")
        if answer is None or cls._gives_up(answer["answer"]):
            return False
        answered, right = cls._plain(answer["answer"]), cls._plain(scenario.data["answer"])
        others = {word for other in scenario.data["conflicting"] for word in cls._plain(other).split()}
        if others & set(answered.split()) - set(right.split()):
            return False  # an answer that also names another statement's value hedges
        return f" {right} " in f" {answered} " and len(answered.split()) <= 20

    @classmethod
    def anchor_state(cls, scenario: Scenario, messages: Sequence[Message]) -> str:
        """What the tools have shown so far, in whatever order and by whatever queries; errors show nothing."""
        shown = {
            str(message["content"]) for message in messages if message["role"] == "tool" and not base.is_error(message)
        }
        return "\n\n".join(sorted(shown))

    @classmethod
    def decisions(cls, scenario: Scenario, messages: Sequence[Message]) -> list[tuple[str, bool]]:
        query = cls._query(str(messages[1]["content"]))
        calls = base.tool_calls(messages)
        return decisions.decisions(calls, query, scenario.data["source_ids"], cls.success(scenario, messages))

    @classmethod
    def outcome(cls, scenario: Scenario, messages: Sequence[Message]) -> Outcome:
        sources, answer = set(scenario.data["source_ids"]), base.accepted(messages, "return_final_answer")
        calls = [call for call in base.tool_calls(messages) if not base.is_error(call[2])]
        required = {
            "search": any(name in cls.lists for name, _, _ in calls),
            "read": any(
                name in cls.readers and cls._has_read(arguments, str(observation["content"]), sources)
                for name, arguments, observation in calls
            ),
            "answer": answer is not None,
        }
        return Outcome(answer and answer["answer"], scenario.data["answer"], NEEDED_CALLS, required)

    @classmethod
    def _has_read(cls, arguments: dict[str, Any], text: str, sources: set[str]) -> bool:
        """Whether a successful call showed the text of a source."""
        return arguments.get("id") in sources

    @classmethod
    def _plain(cls, text: str) -> str:
        """The form in which answers are compared."""
        return base.normalise(text)

    @classmethod
    def _gives_up(cls, answer: str) -> bool:
        return is_unknown(answer)


def _by_split(rows: Iterable[Row]) -> dict[str, list[Row]]:
    asked: dict[str, list[Row]] = {}
    for row in rows:
        asked.setdefault(row["split"], []).append(row)
    return asked


def is_unknown(answer: str) -> bool:
    return base.normalise(answer) in ("", base.normalise(UNKNOWN), "i do not know", "unknown")
