"""The players of knowledge_search: what they read out of a transcript, and what they search, open and answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import NamedTuple

from environments import base
from environments.base import Env, Message
from environments.knowledge_search import world

MOST_ROWS = 10
UNKNOWN = "not known"


class Reading(NamedTuple):
    """What an agent has seen so far."""

    queries: set[str]
    hits: dict[str, tuple[str, int]]  # documents that a search showed: (what it is about, year it was written) by id
    opened: dict[str, str]  # their text by id

    @classmethod
    def of(cls, messages: Sequence[Message]) -> Reading:
        reading = cls(set(), {}, {})
        for name, arguments, seen in base.tool_calls(messages):
            text = str(seen["content"])
            if name == "search":
                reading.queries.add(str(arguments.get("query")))
                for id, title, year in re.findall(r"^(d\d+) \| (.+) \((\d+)\) \|", text, re.MULTILINE):
                    reading.hits[id] = title, int(year)
            elif name == "open" and not base.is_error(seen):
                reading.opened[str(arguments.get("id"))] = text
        return reading

    def newest(self, asked: str) -> str | None:
        """The newest document whose title occurs in what is asked; of several titles, that on the longest."""
        fitting = [
            (len(title), year, id)
            for id, (title, year) in self.hits.items()
            if re.search(rf"\b{re.escape(title)}\b", asked)
        ]
        return max(fitting)[2] if fitting else None


class Link(NamedTuple):
    """A reference to one thing by another: "the teacher of Ona Bek"."""

    phrase: str
    subject: str  # Ona Bek
    states: str  # the pattern of the sentence that tells, in a document on the subject

    def follow(self, document: str) -> str:
        match = re.search(self.states, document)
        return match[1] if match else ""


NAME = r"[A-Z]\w+(?: [A-Z]\w+)?"
SUBJECT = r"(?:the )?([A-Z]\w+ \w+)"  # of a reference: a person, a company or an invention
LINKS = {  # the phrase of a question: what the sentence looks like
    attribute.names.format(x=SUBJECT): re.escape(attribute.states.rpartition("{name} ")[2]).replace(
        r"\{value\}", f"({NAME})"
    )
    for attributes in world.ATTRIBUTES.values()
    for attribute in attributes.values()
    if attribute.names
}


def find_link(question: str) -> Link | None:
    for phrase, states in LINKS.items():
        if match := re.search(phrase, question):
            return Link(match[0], match[1], states)
    return None


def extract(question: str, document: str) -> str:
    """The answer that a document seems to give; empty if no sentence fits the question."""
    patterns = {  # what the question contains: what the sentence looks like
        "year was .+ born": r"birth is (\d+)",
        "town was .+ born": rf"born in the town of ({NAME})",
        "year .+ founded": r"founded in (\d+)",
        "year .+ begin": r"began in (\d+)",
        "year .+ shown": r"shown in (\d+)",
        "river": rf"river ({NAME})",
        "How many people": r"([\d,]+) people live",
        "mayor": rf"mayor is ({NAME})",
        "^Who taught": rf"taught by ({NAME})",
        "^Who founded": rf"founder was ({NAME})",
        "seat": rf"seat is in ({NAME})",
        "^Who directs": rf"({NAME}) directs it",
        "^Who invented": rf"invented by ({NAME})",
        "company makes": rf"made by ({NAME})",
    }
    for asked, states in patterns.items():
        match = re.search(states, document) if re.search(asked, question) else None
        if match:
            return match[1]
    return ""


class Players(Env):
    """The players, who read the transcript; the task is in __init__.py."""

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        """Searches the words of the question and opens the newest document on what it asks about. Where the question refers
        to that by something else ("the teacher of …"), it reads the something else first. Answers from the sentence that
        fits, and cites what it read."""
        asked, cited = str(messages[1]["content"]).rstrip("?"), list[str]()
        reading = Reading.of(messages)
        while True:
            link = find_link(asked)
            document = reading.newest(link.subject if link else asked)
            if document is None and asked not in reading.queries:
                return base.use("search", query=asked)
            if document is not None and document not in reading.opened:
                return base.use("open", id=document)
            text = reading.opened[document] if document else ""
            value = link.follow(text) if link else extract(asked, text)
            if not document or not value:
                return base.use("answer", text=UNKNOWN, citations=[])
            cited.append(document)
            if not link:
                return base.use("answer", text=value, citations=cited)
            asked = asked.replace(link.phrase, value)

    def random(self, messages: Sequence[Message], rng: Random) -> Message:
        words = re.findall(r"\w+", " ".join(str(message["content"]) for message in messages[1:]))
        ids = [word for word in words if re.fullmatch(r"d\d{3}", word)]
        draw = rng.random()
        if draw < 0.5:
            return base.use(
                "search", query=" ".join(rng.sample(words, min(3, len(words)))), limit=rng.randrange(1, MOST_ROWS + 1)
            )
        if draw < 0.75 and ids:
            return base.use("open", id=rng.choice(ids))
        return base.use("answer", text=rng.choice([*words, UNKNOWN]), citations=rng.sample(ids, min(len(ids), 1)))

    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        """Searches, opens the documents that tell, or that would tell if there were an answer, and answers."""
        hidden = self.scenario.data
        sources = [hop[0] for hop in hidden["sources"] or hidden["where"]]
        calls = len(base.tool_calls(messages))
        if calls == 0:
            return base.use("search", query=hidden["question"])
        if calls <= len(sources):
            return base.use("open", id=sources[calls - 1])
        return base.use("answer", text=hidden["answer"] or UNKNOWN, citations=sources if hidden["answer"] else [])

    def bad(self, messages: Sequence[Message], rng: Random) -> Message:
        """Searches, then gives a wrong answer and cites the first hit, whatever that says."""
        if messages[-1]["role"] == "user":
            return base.use("search", query=self.scenario.data["question"])
        cited = str(messages[-1]["content"]).partition(" | ")[0]
        return base.use("answer", text=[*self.scenario.data["conflicting"], "nobody"][0], citations=[cited])
