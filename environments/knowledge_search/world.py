"""Generates the document store of knowledge_search: an invented world, and questions about it.

Each town, person, company and invention of 18 provinces has a document. Older documents state former values of what changes
(mayors, directors, seats, numbers of people). Some facts are in no document. Provinces do not refer to each other, so
splits by province share no document that answers a question.

    python -m environments.knowledge_search.world tasks_data/knowledge_search      # the two committed files
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from environments.base import write_lines

SEED = 18470214  # its provinces fall into the splits as 10, 4 and 4
PROVINCES = 18
TOWNS, PEOPLE, COMPANIES, INVENTIONS = 5, 6, 4, 4  # per province; each has a document
OLD = 3  # towns and companies per province with an older document; one of them has two
MISSING = 0.2  # share of the facts that no document states
TWO_HOPS, TWO_HOPS_UNANSWERABLE = 24, 4  # questions per province

ONSETS = "B Br C Cr D Dr F Fl G Gr H J K Kl L M N Os P Pr Qu R S Sk St T Tr V W Z Al Er Il Or Un".split()
MIDDLES = "a e i o u ae ia ou ei".split()
ENDINGS = "dan ven lor mir nis rak sel tor vane wick berg dell fen garth holm mond ney rin stead thal vos zell".split()
DEVICES = "lamp loom pump clock engine press plough lens bellows furnace kiln compass".split()
HOUSES = "Works Foundry Mills Brothers Company Yards".split()
GOODS = "glass rope paper salt cheese copper linen pottery cider tiles ink soap".split()
TRADES = "engineer painter physician surveyor printer botanist".split()
USES = (
    "It saves a day's work a week.",
    "It is found on most farms.",
    "Schools show it to their pupils.",
    "Few of the first ones are left.",
)


class Attribute(NamedTuple):
    """A fact about an entity: how documents state it and how questions ask for it."""

    states: str  # the sentence of a document
    asks: str  # the question about {x}
    names: str = ""  # how to refer to the value where it is an entity with documents of its own
    changes: bool = False


ATTRIBUTES: dict[str, dict[str, Attribute]] = {
    "town": {
        "founded": Attribute("It was founded in {value}.", "In which year was {x} founded?"),
        "river": Attribute("It lies on the river {value}.", "On which river does {x} lie?"),
        "people": Attribute("{value} people live there.", "How many people live in {x}?", changes=True),
        "mayor": Attribute("Its mayor is {value}.", "Who is the mayor of {x}?", changes=True),
    },
    "person": {
        "birthplace": Attribute(
            "{name} was born in the town of {value}.", "In which town was {x} born?", "the town in which {x} was born"
        ),
        "birth": Attribute("The year of birth is {value}.", "In which year was {x} born?"),
        "teacher": Attribute("{name} was taught by {value}.", "Who taught {x}?", "the teacher of {x}"),
    },
    "company": {
        "beginning": Attribute("It began in {value}.", "In which year did {x} begin?"),
        "founder": Attribute("Its founder was {value}.", "Who founded {x}?", "the founder of {x}"),
        "seat": Attribute(
            "Its seat is in {value}.", "In which town is the seat of {x}?", "the town where {x} has its seat", True
        ),
        "director": Attribute("{value} directs it.", "Who directs {x}?", changes=True),
    },
    "invention": {
        "inventor": Attribute("It was invented by {value}.", "Who invented {x}?", "the inventor of {x}"),
        "year": Attribute("The first one was shown in {value}.", "In which year was {x} first shown?"),
        "maker": Attribute("It is made by {value}.", "Which company makes {x}?", "the company that makes {x}"),
    },
}
LEADS_TO = {
    "birthplace": "town",
    "teacher": "person",
    "founder": "person",
    "seat": "town",
    "inventor": "person",
    "maker": "company",
}
TYPES = {  # of each attribute's values: a wrong answer is drawn from the same type
    **dict.fromkeys(("founded", "birth", "beginning", "year"), "year"),
    **dict.fromkeys(("mayor", "teacher", "founder", "director", "inventor"), "person"),
    "river": "river",
    "people": "count",
    "birthplace": "town",
    "seat": "town",
    "maker": "company",
}


class Entity(NamedTuple):
    kind: str
    name: str
    facts: dict[str, str]  # current values
    former: list[dict[str, str]]  # earlier values, the latest first

    @property
    def shown(self) -> str:
        return f"the {self.name}" if self.kind == "invention" else self.name


def names(rng: Random) -> Iterator[str]:
    """Invented names without repetition."""
    used: set[str] = set()
    while True:
        name = rng.choice(ONSETS) + rng.choice(MIDDLES) + rng.choice(ENDINGS)
        if name not in used:
            used.add(name)
            yield name


def make_province(fresh: Iterator[str], rng: Random) -> list[Entity]:
    """The entities of a province, which refer only to each other."""

    def year(first: int, last: int) -> str:
        return str(rng.randrange(first, last))

    def count() -> str:
        return f"{rng.randrange(11, 990) * 100:,}"

    towns = [next(fresh) for _ in range(TOWNS)]
    people = [f"{next(fresh)} {next(fresh)}" for _ in range(PEOPLE)]
    companies = [f"{next(fresh)} {rng.choice(HOUSES)}" for _ in range(COMPANIES)]
    inventions = [f"{next(fresh)} {rng.choice(DEVICES)}" for _ in range(INVENTIONS)]

    def stranger() -> str:
        return f"{next(fresh)} {next(fresh)}"

    # How the changing values are drawn.
    made_anew = {"people": count, "mayor": stranger, "director": stranger, "seat": lambda: rng.choice(towns)}

    def other(entity: Entity, key: str) -> str:
        """A value that the entity neither has nor had."""
        taken = [facts[key] for facts in [entity.facts, *entity.former]]
        while (value := made_anew[key]()) in taken:
            pass
        return value

    entities = []
    for name in towns:
        facts = {"founded": year(1100, 1700), "river": next(fresh), "people": count(), "mayor": stranger()}
        entities.append(Entity("town", name, facts, []))
    for name in people:
        others = [other for other in people if other != name]
        facts = {"birthplace": rng.choice(towns), "birth": year(1700, 1900), "teacher": rng.choice(others)}
        entities.append(Entity("person", name, facts, []))
    for name in companies:
        facts = {"beginning": year(1750, 1930), "founder": rng.choice(people)}
        entities.append(Entity("company", name, facts | {"seat": rng.choice(towns), "director": stranger()}, []))
    for name in inventions:
        facts = {"inventor": rng.choice(people), "year": year(1720, 1940), "maker": rng.choice(companies)}
        entities.append(Entity("invention", name, facts, []))
    changing = [entity for entity in entities if entity.kind in ("town", "company")]
    for place, entity in enumerate(rng.sample(changing, OLD)):
        for _ in range(2 if place == 0 else 1):
            entity.former.append(entity.facts | {key: other(entity, key) for key in entity.facts if key in made_anew})
    for entity in entities:
        for key in list(entity.facts):
            if rng.random() < MISSING and not entity.former and len(entity.facts) > 1:
                del entity.facts[key]
    return entities


def documents_of(entity: Entity, province: str, rng: Random) -> list[dict[str, Any]]:
    """The current document and an older one for each former state."""
    good, trade = rng.choice(GOODS), rng.choice(TRADES)
    opening = {
        "town": f"{entity.name} is a town in the province of {province}. Its market is known for {good}.",
        "person": f"{entity.name} was a {trade} in the province of {province}.",
        "company": f"{entity.name} is a company in the province of {province}. It deals in {good}.",
        "invention": f"The {entity.name} comes from the province of {province}. {rng.choice(USES)}",
    }[entity.kind]
    written = rng.randrange(1990, 2000)
    documents = []
    for facts in [entity.facts, *entity.former]:
        sentences = [
            ATTRIBUTES[entity.kind][key].states.format(name=entity.name, value=value) for key, value in facts.items()
        ]
        rng.shuffle(sentences)
        date = f"{written}-{rng.randrange(1, 13):02d}-{rng.randrange(1, 29):02d}"
        title = f"{entity.name} ({written})"
        documents.append({"title": title, "date": date, "text": " ".join([opening, *sentences]), "facts": facts})
        written -= rng.randrange(8, 20)
    return documents


def questions_of(
    entities: Sequence[Entity], sources: dict[tuple[str, str], list[str]], rng: Random
) -> list[dict[str, Any]]:
    """All questions of one hop and some of two."""
    by_name = {entity.name: entity for entity in entities}
    values: dict[str, set[str]] = {}
    for entity in entities:
        for facts in [entity.facts, *entity.former]:
            for key, value in facts.items():
                values.setdefault(TYPES[key], set()).add(value)
    asked: list[dict[str, Any]] = []

    def ask(kind: str, text: str, difficulty: int, key: str, last: Entity, hops: list[list[str]]) -> None:
        """`hops` are the documents of each step: they hold the answer, or are where it would be if there were one."""
        right = last.facts.get(key, "")
        former = [value for value in dict.fromkeys(facts.get(key, "") for facts in last.former) if value != right]
        others = sorted(values.get(TYPES[key], set()) - {right} - set(former))
        conflicting = former + rng.sample(others, min(len(others), 8))  # the first is the most tempting
        row = {"kind": kind, "difficulty": difficulty, "question": text, "answer": right, "conflicting": conflicting}
        asked.append(row | {"sources": hops if right else [], "where": [] if right else hops})

    for entity in entities:
        for key, attribute in ATTRIBUTES[entity.kind].items():
            text = attribute.asks.format(x=entity.shown)
            if key not in entity.facts:
                ask("unanswerable", text, 2, key, entity, [sources[entity.name, ""]])
            elif attribute.changes and entity.former:
                ask("superseded", text, 2 + len(entity.former), key, entity, [sources[entity.name, key]])
            else:
                ask("one-hop", text, 1, key, entity, [sources[entity.name, key]])
    chains = []
    for entity in entities:
        for first, attribute in ATTRIBUTES[entity.kind].items():
            # Skip values that changed: after reading an old document, a chain could start from the former seat as well.
            if not attribute.names or first not in entity.facts or (attribute.changes and entity.former):
                continue
            middle = by_name[entity.facts[first]]
            for key, then in ATTRIBUTES[LEADS_TO[first]].items():
                stated = [value for facts in [entity.facts, *entity.former] for value in facts.values()]
                if middle.facts.get(key) not in (entity.name, *stated):  # no shortcut
                    text = then.asks.format(x=attribute.names.format(x=entity.shown))
                    chains.append((entity, first, middle, key, text))
    rng.shuffle(chains)
    quota = {True: TWO_HOPS, False: TWO_HOPS_UNANSWERABLE}
    for entity, first, middle, key, text in chains:
        answerable = key in middle.facts
        quota[answerable] -= 1
        if quota[answerable] < 0:
            continue
        if answerable:
            changed = ATTRIBUTES[middle.kind][key].changes and middle.former
            hops = [sources[entity.name, first], sources[middle.name, key]]
            ask("two-hop", text, 5 if changed else 3, key, middle, hops)
        else:
            ask("unanswerable", text, 4, key, middle, [sources[entity.name, first], sources[middle.name, ""]])
    return asked


def make_world(seed: int = SEED) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """(documents, questions)."""
    rng = Random(seed)
    fresh = names(rng)
    provinces = [(next(fresh), make_province(fresh, rng)) for _ in range(PROVINCES)]
    written = [
        (province, entity, documents_of(entity, province, rng))
        for province, entities in provinces
        for entity in entities
    ]
    numbers = list(range(1, sum(len(documents) for _, _, documents in written) + 1))
    rng.shuffle(numbers)
    rows: list[dict[str, Any]] = []
    # Documents that state the current value, by entity and attribute; those of the entity where the attribute is empty.
    sources: dict[tuple[str, str], list[str]] = {}
    for _, entity, documents in written:
        for document in documents:
            document["id"] = f"d{numbers.pop():03d}"
            sources.setdefault((entity.name, ""), []).append(document["id"])
            for key, value in document.pop("facts").items():
                if entity.facts[key] == value:
                    sources.setdefault((entity.name, key), []).append(document["id"])
            rows.append({key: document[key] for key in ("id", "title", "date", "text")})
    rows.sort(key=lambda row: str(row["id"]))
    asked = [
        {"province": province} | question
        for province, entities in provinces
        for question in questions_of(entities, sources, rng)
    ]
    return rows, asked


def main(folder: str) -> None:
    """Write documents.jsonl and questions.jsonl."""
    documents, questions = make_world()
    write_lines(Path(folder, "documents.jsonl"), documents)
    write_lines(Path(folder, "questions.jsonl"), questions)


if __name__ == "__main__":
    main(sys.argv[1])
