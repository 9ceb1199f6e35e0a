"""Knowledge search: questions about an invented world, answered from a store of documents, with citations.

The store is an SQLite FTS5 index over all documents (tasks_data/knowledge_search, written by world.py). Some questions
need two documents, some have an outdated document that contradicts the answer, and some have no answer: then "not known" is
right. Splits share no province, and provinces do not refer to each other, so no document answers questions of two splits.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple

from environments import base
from environments.base import Component, Message, Outcome, Scenario, Split, count_turns, tool
from environments.knowledge_search import world
from environments.knowledge_search.players import MOST_ROWS, UNKNOWN, Players

MAKER = "knowledge_search.world"  # of the data
SHARES: dict[Split, float] = {"train": 0.6, "val": 0.2, "test": 0.2}  # of all provinces
KINDS = ("one-hop", "two-hop", "superseded", "unanswerable")
RARE = "unanswerable"  # one scenario of eight is of this kind, so that giving up every time earns little
MOST_CITED = 10
LONGEST = 300  # characters of a query or an answer
SYSTEM = (
    "You answer questions from a store of documents. Search it, open what may hold the answer, then answer in a few words "
    "and cite the ids of the documents that you needed. The newest document on a matter holds. Where no document tells, "
    "answer: not known, and cite nothing."
)

REWARD = {  # value, and why
    "correct": (1.0, "the answer is right"),
    "wrong": (-0.8, "a wrong answer misleads: it costs more than saying that it is not known"),
    "unknown": (-0.3, "an answer that the documents hold was said not to be known: honest, but not looked for"),
    "not_looked": (-0.3, "it is not known, but what would tell was not opened: giving up unread must not pay"),
    "no_answer": (-0.6, "the episode ended without an answer"),
    "cited": (0.2, "the share of what a right answer rests on that is cited: it can be checked"),
    "bad_citation": (-0.1, "a cited document does not support the answer"),
    "invalid_id": (-0.1, "an id was opened that does not exist: it was made up"),
    "error": (-0.1, "a malformed call, an unknown tool or wrong arguments"),
    "turn": (-0.02, "each turn beyond those that are needed takes time"),
}
# Words without content, which may surround the answer in a whole sentence.
FILLERS = frozenset(
    "the a an it its is was are in of on at by to and as has had that which who year town river company mayor director "
    "founder inventor teacher people persons live lived lies there born founded called named makes made directs".split()
)
# Words that every document contains, which a query ignores.
COMMON = frozenset(
    "the a an of in on is was are did does do who what which where when how many by to it its has had".split()
)


class Store(NamedTuple):
    """The index over all documents, and the questions by split and kind."""

    documents: sqlite3.Connection
    questions: dict[tuple[str, str], list[dict[str, Any]]]


def build_index(documents: Sequence[dict[str, str]]) -> sqlite3.Connection:
    """An FTS5 index in memory, with a table of the documents by id."""
    index = sqlite3.connect(":memory:", check_same_thread=False)
    index.execute("create virtual table found using fts5(id unindexed, title, text, tokenize='porter unicode61')")
    index.execute("create table document (id primary key, title, date, text) without rowid")
    for row in documents:
        index.execute("insert into found values (?, ?, ?)", (row["id"], row["title"], row["text"]))
        index.execute("insert into document values (?, ?, ?, ?)", (row["id"], row["title"], row["date"], row["text"]))
    return index


class KnowledgeSearch(Players):
    """One question."""

    max_turns = 8
    sources = ("sources",)
    secret: ClassVar[tuple[str, ...]] = ("answer",)
    shown: ClassVar[tuple[str, ...]] = ("search", "open")  # tools that may show the answer

    @classmethod
    def load(cls, folder: Path) -> Store:
        questions, documents = (base.read_lines(folder / f"{name}.jsonl", MAKER) for name in ("questions", "documents"))
        return cls.store(documents, questions)

    @classmethod
    def practice(cls, data: Store, seed: int) -> Store:
        """Another invented world."""
        return cls.store(*world.make_world(seed))

    @classmethod
    def store(cls, documents: Sequence[dict[str, Any]], questions: Sequence[dict[str, Any]]) -> Store:
        """The documents with an index, and the questions by split and kind."""
        asked: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for question in questions:
            asked.setdefault((base.split_of(question["province"], SHARES), question["kind"]), []).append(question)
        return Store(build_index(documents), asked)

    @classmethod
    def scenarios(cls, data: Store, split: Split, count: int, seed: int) -> list[Scenario]:
        rng, where = Random(f"{split} {seed}"), f"the split {split} of knowledge_search"
        rare = (count + 7) // 8
        chosen = base.sample_kinds(rng, {RARE: data.questions[split, RARE]}, rare, where)
        others = {kind: data.questions[split, kind] for kind in KINDS if kind != RARE}
        chosen += base.sample_kinds(rng, others, count - rare, where)
        rng.shuffle(chosen)
        return [cls.from_question(split, question) for question in chosen]

    @classmethod
    def from_question(cls, split: Split, question: dict[str, Any]) -> Scenario:
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question["question"]}]
        keys = ("kind", "difficulty", "question", "answer", "conflicting", "sources", "where")
        return Scenario.make("knowledge_search", split, messages, {key: question[key] for key in keys})

    @classmethod
    def cluster(cls, scenario: Scenario, data: Store) -> str:
        """The province. An unanswerable question has no sources that would tell it."""
        asked = data.questions[scenario.split, scenario.data["kind"]]
        provinces = {row["question"]: str(row["province"]) for row in asked}
        return provinces[scenario.data["question"]]

    @tool
    def search(self, query: str, limit: int = 5) -> str:
        """Search the documents. Shows the best first: id | title (year it was written) | part of the text.

        Args:
            query: words that the document should hold
            limit: most documents to show, 1 to 10
        """
        if not 1 <= limit <= MOST_ROWS:
            return base.error(f"limit must be 1 to {MOST_ROWS}")
        if len(query) > LONGEST:
            return base.error(f"query may have {LONGEST} characters at most")
        words = re.findall(r"\w+", query)
        words = [word for word in words if word.lower() not in COMMON] or words
        if not words:
            return base.error("query must hold at least one word")
        rows = self.data.documents.execute(
            "select id, title, snippet(found, 2, '', '', '…', 12) from found where found match ? order by rank, id limit ?",
            (" OR ".join(f'"{word}"' for word in dict.fromkeys(words)), limit),
        ).fetchall()
        return "\n".join(" | ".join(row) for row in rows) or "0 documents."

    @tool
    def open(self, id: str) -> str:
        """Read one document.

        Args:
            id: the id of the document
        """
        row = self.data.documents.execute("select title, date, text from document where id = ?", (id,)).fetchone()
        if row is None:
            return base.error("there is no document with this id; search shows ids")
        return "{}, written on {}\n{}".format(*row)

    @tool
    def answer(self, text: str, citations: list[str]) -> str:
        """Answer the question. This ends the task.

        Args:
            text: the answer in a few words, or: not known
            citations: ids of the documents that the answer rests on; none where it is not known
        """
        if not base.normalise(text):
            return base.error(f"text must not be empty; where no document tells, answer: {UNKNOWN}")
        if len(text) > LONGEST or len(citations) > MOST_CITED:
            return base.error(f"text may have {LONGEST} characters at most, and citations {MOST_CITED} ids")
        self.done = True
        return "The answer was given."

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        hops: list[list[str]] = scenario.data["sources"]
        counts: dict[str, float] = dict.fromkeys(REWARD, 0)
        errors = [
            str(message["content"]) for message in messages if message["role"] == "tool" and base.is_error(message)
        ]
        counts["invalid_id"] = sum("no document with this id" in text for text in errors)
        counts["error"] = len(errors) - counts["invalid_id"]
        counts["turn"] = max(0, count_turns(messages) - needed_turns(scenario))
        answer = base.accepted(messages, "answer")
        if answer is None:
            counts["no_answer"] = 1
        else:
            right = is_right(scenario, answer["text"])
            cited = set(answer["citations"])
            if right:
                counts["correct" if has_looked(scenario, messages) else "not_looked"] = 1
            else:
                counts["unknown" if is_unknown(answer["text"]) else "wrong"] = 1
            if right and hops:
                counts["cited"] = sum(bool(cited & set(hop)) for hop in hops) / len(hops)
            counts["bad_citation"] = len(cited - {source for hop in hops for source in hop})
        return base.weighed(counts, REWARD)

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        """A right answer whose citations all support it, one at least. For a question without an answer: "not known"
        without citations, after the documents were opened that would tell."""
        answer = base.accepted(messages, "answer")
        if answer is None or not is_right(scenario, answer["text"]):
            return False
        cited, supporting = set(answer["citations"]), {source for hop in scenario.data["sources"] for source in hop}
        return cited <= supporting and bool(cited) == bool(supporting) and has_looked(scenario, messages)

    @classmethod
    def outcome(cls, scenario: Scenario, messages: Sequence[Message]) -> Outcome:
        hidden, answer = scenario.data, base.accepted(messages, "answer")
        calls = [
            (name, arguments.get("id"))
            for name, arguments, seen in base.tool_calls(messages)
            if not base.is_error(seen)
        ]
        required = {"search": any(name == "search" for name, _ in calls)}
        for number, hop in enumerate(hidden["sources"] or hidden["where"], 1):
            required[f"open {number}"] = any(name == "open" and opened in hop for name, opened in calls)
        required["answer"] = answer is not None
        text = answer and (UNKNOWN if is_unknown(answer["text"]) else answer["text"])
        return Outcome(text, hidden["answer"] or UNKNOWN, needed_turns(scenario), required)


def needed_turns(scenario: Scenario) -> int:
    """Search, document and answer; search and document twice for two hops; one more to compare an older document."""
    hops = scenario.data["sources"] or scenario.data["where"]
    return 1 + 2 * len(hops) + int(scenario.data["kind"] == "superseded")


def has_looked(scenario: Scenario, messages: Sequence[Message]) -> bool:
    """Whether the documents were opened in which the answer would be; nothing need be opened where there is an answer."""
    opened = {
        str(arguments.get("id"))
        for name, arguments, observation in base.tool_calls(messages)
        if name == "open" and not base.is_error(observation)
    }
    return all(opened & set(hop) for hop in scenario.data["where"])


def is_right(scenario: Scenario, text: str) -> bool:
    """Whether an answer is right. An answer that also names another value hedges and is wrong."""
    if not scenario.data["answer"]:
        return is_unknown(text)
    answered, right = base.normalise(text), base.normalise(scenario.data["answer"])
    if f" {right} " not in f" {answered} ":
        return False
    question = set(base.normalise(scenario.data["question"]).split())
    extra = [word for word in answered.split() if word not in {*right.split(), *question, *FILLERS}]
    others = {word for value in scenario.data["conflicting"] for word in base.normalise(value).split()}
    number_besides = right.isdigit() and any(word.isdigit() for word in extra)
    return len(extra) <= 1 and not others & set(extra) and not number_besides


def is_unknown(text: str) -> bool:
    unknown = (UNKNOWN, "it is not known", "unknown", "i don t know", "i do not know", "that is not known")
    return base.normalise(text) in unknown
