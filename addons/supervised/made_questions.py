"""Made-up tools that tell something of a thing with a name, what users ask them, and tools that take the answer."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from addons.supervised import words as vocabulary
from addons.supervised.frames import rows
from addons.supervised.made_tools import Argument, Tool, argument, chosen, named, nothing, phrase, schema, slot, spaced
from addons.supervised.phrases import ANSWERS, ATTRIBUTES

# Names and descriptions of tools that tell all of a thing {n}, and of those that tell its attribute {l} (in words {a}).
GENERAL = "look_up look_up_{n} get_{n} {n}_info lookup find_{n} {n}_details show_{n} search query read_{n}"
GENERAL_TOLD = (
    "Look up {an}./Everything known about {an}./Find {an} by name./Look up the {a} of {an}./Get the details of {an}./"
    "Search for {an}."
)
SPECIAL = "get_{l} {l}_of {n}_{l} find_{l} look_up_{l} {l} check_{l} show_{l} {l}_of_{n}"
SPECIAL_TOLD = (
    "The {a} of {an}./Find the {a} of {an}./Get the {a} of {an}./Tells the {a} of {an}./What {a} {an} has./"
    "Look up the {a}."
)
ANSWER_TOLD = "the answer/what was asked for/the {l}/the {l} of the {n}/your answer/the result/name of the {l}"


class Attribute(NamedTuple):
    name: str
    kind: str
    questions: tuple[str, ...]


def attribute(rng: Random) -> Attribute:
    """Something that a thing has, such as its price."""
    own, kind, asked = rng.choice(rows(ATTRIBUTES))
    name = rng.choice(own.split())
    if rng.random() < 0.2:
        name, asked = vocabulary.noun(rng), ""
    general = ("What is the {a} of {v}", "What is the {a} of {v}", "What is {v}'s {a}", "Which {a} does {v} have",
               "Tell me the {a} of {v}.", "I need the {a} of {v}.", "Do you know the {a} of {v}", "the {a} of {v}",
               "{v}: what is the {a}", "Can you tell me {v}'s {a}")  # fmt: skip
    return Attribute(name, kind, (*general, *[part for part in asked.split("/") if part] * 3))


def question(attribute: Attribute, value: str, rng: Random) -> str:
    text = rng.choice(attribute.questions)
    text = text[:1].upper() + text[1:]  # a value keeps its letters as they are
    text = text.format(a=spaced(attribute.name), v=value)
    text = text if text.endswith((".", "?")) else f"{text}?"
    return text + rng.choice(("", "", "", " Thanks.", " I have to know.")) if rng.random() < 0.2 else text


def entity(thing: str, rng: Random) -> Argument:
    names = f"name {thing} {thing}_name {thing} which key title query {thing}_id"
    summary = "the name of the {n}/which {n}/the {n}/name of the {n}/what to look up"
    return argument(names, rng.choice(("title", "person", "place", "place", "code", "word")), summary, rng, thing)


def asking(thing: str, rng: Random, attributes: list[Attribute] | None = None) -> Tool:
    """A tool that tells something of a thing with a name."""
    own = attributes or [attribute(rng)]
    key, first = entity(thing, rng), own[0]
    label = first.name
    general = len(own) > 1 or rng.random() < 0.3
    names, summary = (GENERAL, GENERAL_TOLD) if general else (SPECIAL, SPECIAL_TOLD)
    parts = {"n": thing, "an": vocabulary.a(thing), "l": label, "a": spaced(label)}
    name, about = rng.choice(names.split()).format(**parts), rng.choice(summary.split("/")).format(**parts)
    more = [slot(thing, rng)] if not attributes and rng.random() < 0.2 else []
    more = [argument for argument in more if argument.name != key.name]

    def ask(rng: Random) -> tuple[str, dict[str, Any]]:
        values = chosen([key, *more], rng)
        wording = values[key.name] if rng.random() < 0.75 else f"the {thing} {values[key.name]}"
        wording += "".join(f" {phrase(each, values[each.name], rng)}" for each in more if each.name in values)
        return question(rng.choice(own), wording, rng), values

    return Tool(schema(named([name], rng), about, [key, *more]), ask, "")


def answering(rng: Random, label: str, thing: str) -> Tool:
    """A tool that gives the answer and ends the task."""
    name, summary = rng.choice(rows(ANSWERS))
    given = rng.choice(("answer", "text", "value", "result", label, label, label, f"{thing}_{label}", "reply", "words"))
    about = rng.choice(ANSWER_TOLD.split("/"))
    form = {"type": "string", "description": about.format(l=spaced(label), n=thing)}
    return Tool(
        schema(named([rng.choice(name.split())], rng), summary, [Argument(given, form, lambda rng: "")]), nothing
    )
