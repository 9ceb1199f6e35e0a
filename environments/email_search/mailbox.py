"""Generates the mailboxes of email_search: inboxes with threads and near-duplicates, and questions about them.

Each fact (such as the budget of a project) is stated several times by different senders, in different months, with
different values. Requests and small talk mention the same words without a value. A question identifies its mail by sender
or month, or asks for the latest.

    python -m environments.email_search.mailbox tasks_data/email_search     # the two committed files, same bytes
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from environments.base import write_lines

SEED = 20010314
OWNERS = {"train": 10, "val": 4, "test": 5}  # inboxes of each split; no inbox is in two splits
# Further ones, for evaluations that tell more: drawn last, which leaves the others as they are.
MORE = {"val": 26, "test": 55}
MOST = 20  # questions of a kind about one of these
FACTS_PER_INBOX = 34  # (project, matter) pairs, each stated by several mails
NOISE_PER_INBOX = 90  # requests and small talk
FIRST_DAY = date(2001, 1, 2)
DAYS = 360

FIRST_NAMES = (
    "Maria Anna John Peter Laura David Susan Karen Mark Linda Paul Nancy Carol Frank Diana Kevin Helen Brian Julia Oscar "
    "Irene Simon Clara Henry Alice Victor Paula Martin Ellen George Sarah Thomas Judith Robert Monica Daniel"
).split()
LAST_NAMES = (
    "Lopez Smith Chen Keller Novak Brown Garcia Miller Davis Wilson Moore Taylor Clark Lewis Young Allen Wright Scott "
    "Baker Adams Nelson Carter Turner Parker Evans Collins Stewart Morris Rogers Reed Cook Bell Murphy Bailey Cooper Ward"
).split()
PROJECTS = (
    "Falcon Orion Cedar Atlas Comet Delta Ember Harbor Indigo Jasper Kestrel Lotus Maple Nimbus Onyx Pioneer Quartz Raven "
    "Summit Tundra Umbra Vertex Willow Zenith Apollo Beacon Canyon Drift Echo Fjord Granite Horizon Island Juniper Lagoon "
    "Meadow Nova Opal Prairie Saturn"
).split()
CITIES = (
    "Lisbon Oslo Vienna Dublin Prague Madrid Athens Geneva Boston Denver Austin Toronto Warsaw Zurich Naples Bergen Porto "
    "Hamburg Glasgow Ottawa"
).split()
COMPANIES = (
    "Northwind Contoso Fabrikam Brightline Stonegate Clearwater Ironworks Redwood Silverline Bluepeak Goldfield Westbrook "
    "Eastgate Crestview Fairmont Oakridge Lakeside Riverbend Highland Pinecrest"
).split()
MONTHS = "January February March April May June July August September October November December".split()

Row = dict[str, Any]
KEPT = ("owner", "kind", "question", "answer", "conflicting", "source_ids")  # fields of a question in questions.jsonl

MATTERS = {  # how the values of each matter are drawn
    "budget": lambda rng: f"{rng.randrange(1000, 10000)} dollars",
    "room": lambda rng: f"Room {rng.randrange(100, 1000)}",
    "deadline": lambda rng: f"{rng.choice(MONTHS)} {rng.randrange(1, 29)}",
    "supplier": lambda rng: rng.choice(COMPANIES),
    "venue": lambda rng: rng.choice(CITIES),
    "contract": lambda rng: f"C{rng.randrange(100, 1000)}",
    "headcount": lambda rng: f"{rng.randrange(10, 100)} people",
    "quote": lambda rng: f"{rng.randrange(100, 1000)} euros",
}
STATEMENTS = (
    "The {matter} for {project} is {value}.",
    "For {project} the {matter} is now {value}.",
    "We agreed that the {project} {matter} is {value}.",
    "Please note the {matter} of {project} is {value}.",
)
OPENERS = (
    "Thanks for your note.",
    "Sorry for the late reply.",
    "Good talking to you.",
    "Here is what you asked for.",
    "A short update.",
    "I checked this with the team.",
)
CLOSERS = (
    "Best regards.",
    "Call me on extension {number} if anything is unclear.",
    "I am back in {city} next week.",
    "More in our next meeting.",
    "Let me know what you think.",
    "The other {count} points can wait.",
)
REQUESTS = (
    "Could you send me the {matter} for {project}?",
    "Does anyone know the {matter} of {project}?",
    "I still need the {project} {matter} from you.",
)
CHATTER = (
    "After the {project} meeting we should talk about the {matter}.",
    "The {matter} of {project} came up again, nothing is decided.",
    "Lunch was good. The {project} team says hello, the {matter} is still open.",
)


def make_inbox(owner: str, rng: random.Random) -> tuple[list[Row], list[Row]]:
    """(mails, questions) of one owner. Ids are unique within the inbox."""
    firsts, lasts = (rng.sample(names, 9) for names in (FIRST_NAMES, LAST_NAMES))
    people = [f"{first} {last}" for first, last in zip(firsts, lasts, strict=True)]
    pairs = rng.sample(
        [(project, matter) for project in rng.sample(PROJECTS, 9) for matter in MATTERS], FACTS_PER_INBOX
    )
    drafts: list[Row] = []
    questions: list[Row] = []
    for project, matter in pairs:
        facts = _facts(project, matter, people, rng)
        for fact in facts:
            drafts += _thread(fact, owner, rng)
        questions += _questions(facts)
    for _ in range(NOISE_PER_INBOX):
        drafts.append(_noise(*rng.choice(pairs), owner, people, rng))
    names = rng.sample(range(100, 1000), len(drafts))
    for draft, number in zip(drafts, names, strict=True):
        draft |= {"id": f"m{number}", "owner": owner}
    drafts.sort(key=lambda draft: (draft["date"], draft["id"]))
    sources = {id(draft["fact"]): draft["id"] for draft in drafts if draft["fact"] is not None}
    for question in questions:
        question.update(owner=owner, source_ids=[sources[id(question.pop("fact"))]])
    order = ("id", "owner", "date", "sender", "to", "subject", "body")
    return [{key: draft[key] for key in order} for draft in drafts], questions


def _facts(project: str, matter: str, people: Sequence[str], rng: random.Random) -> list[Row]:
    """Three to five statements of a fact by different senders, on different days, with different values."""
    count = rng.randrange(3, 6)
    days = rng.sample(range(DAYS), count)
    senders = rng.sample(list(people), count)
    values: list[str] = []
    while len(values) < count:
        value = MATTERS[matter](rng)
        if value not in values:
            values.append(value)
    return [
        {"project": project, "matter": matter, "sender": sender, "day": FIRST_DAY + timedelta(day), "value": value}
        for sender, day, value in zip(senders, days, values, strict=True)
    ]


def _mail(sender: str, to: str, day: date, subject: str, body: str, fact: Row | None) -> Row:
    return {"sender": sender, "to": to, "date": day.isoformat(), "subject": subject, "body": body, "fact": fact}


def _thread(fact: Row, owner: str, rng: random.Random) -> list[Row]:
    """The mail that states a fact and, in four of ten cases, the request that it answers."""
    subject = f"{fact['project']} {fact['matter']}"
    closer = rng.choice(CLOSERS).format(
        number=rng.randrange(100, 1000), city=rng.choice(CITIES), count=rng.randrange(2, 10)
    )
    body = " ".join((rng.choice(OPENERS), rng.choice(STATEMENTS).format(**fact), closer))
    asked = rng.random() < 0.4
    mails = [_mail(fact["sender"], owner, fact["day"], ("Re: " if asked else "") + subject, body, fact)]
    if asked:
        before = fact["day"] - timedelta(rng.randrange(1, 4))
        mails.append(_mail(owner, fact["sender"], before, subject, rng.choice(REQUESTS).format(**fact), None))
    return mails


def _noise(project: str, matter: str, owner: str, people: Sequence[str], rng: random.Random) -> Row:
    text = rng.choice(REQUESTS + CHATTER).format(project=project, matter=matter)
    subject = rng.choice((f"{project} meeting", f"{project} notes", f"About {project}", f"{project} {matter}"))
    day = FIRST_DAY + timedelta(rng.randrange(DAYS))
    return _mail(rng.choice(list(people)), owner, day, subject, f"{rng.choice(OPENERS)} {text}", None)


def _questions(facts: list[Row]) -> list[Row]:
    """A question about each fact for every property (sender, month, latest) that identifies it."""
    asked = []
    for fact in facts:
        others = sorted(other["value"] for other in facts if other is not fact)
        common = {"answer": fact["value"], "conflicting": others, "fact": fact}
        common |= {key: fact[key] for key in ("project", "matter", "sender")} | {"date": fact["day"].isoformat()}
        what = f"{fact['matter']} for {fact['project']}"
        asked.append({"kind": "sender", "question": f"What is the {what} according to {fact['sender']}?", **common})
        month = (fact["day"].year, fact["day"].month)
        if sum((other["day"].year, other["day"].month) == month for other in facts) == 1:
            when = f"{MONTHS[fact['day'].month - 1]} {fact['day'].year}"
            asked.append({"kind": "month", "question": f"What was the {what} in {when}?", **common})
        if fact["day"] == max(other["day"] for other in facts):
            asked.append({"kind": "latest", "question": f"What is the latest {what}?", **common})
    return asked


def make_mailbox(owners: Iterable[str], rng: random.Random) -> tuple[list[Row], list[Row]]:
    mails: list[Row] = []
    questions: list[Row] = []
    for owner in owners:
        inbox, asked = make_inbox(owner, rng)
        mails += inbox
        questions += asked
    return mails, questions


def main(folder: str) -> None:
    """Write mails.jsonl and questions.jsonl."""
    rng = random.Random(SEED)
    names = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
    owners = rng.sample(names, sum(OWNERS.values()))
    others = [name for name in names if name not in owners]
    mails: list[Row] = []
    questions: dict[str, dict[str, Row]] = {}  # by split and wording
    for split, count in OWNERS.items():
        inboxes, asked = make_mailbox((owners.pop() for _ in range(count)), rng)
        mails += inboxes
        questions[split] = {row["question"]: row for row in asked}
    # A wording that occurs for several inboxes stays in a single split: test before val, and val before train.
    for split, later in (("val", ("test",)), ("train", ("test", "val"))):
        taken = {words for other in later for words in questions[other]}
        questions[split] = {words: row for words, row in questions[split].items() if words not in taken}
    chosen = {split: list(rows.values()) for split, rows in questions.items()}
    mails += more(chosen, mails, random.Random(f"more {SEED}").sample(others, sum(MORE.values())))
    lines = [{"split": split} | {key: row[key] for key in KEPT} for split, rows in chosen.items() for row in rows]
    write_lines(Path(folder, "mails.jsonl"), mails)
    write_lines(Path(folder, "questions.jsonl"), lines)


def more(chosen: dict[str, list[Row]], mails: Sequence[Row], owners: list[str]) -> list[Row]:
    """Adds questions to `chosen`, by split, about further inboxes, and returns their mails. Left out are wordings of other
    splits, and questions whose mail says the same, word by word, in an inbox of training."""
    rng, made = random.Random(f"more questions {SEED}"), list[Row]()
    trained = {row["owner"] for row in chosen["train"]}
    texts = {mail["body"] for mail in mails if mail["owner"] in trained}
    for split, count in MORE.items():
        taken = {row["question"] for other in chosen if other != split for row in chosen[other]}
        for _ in range(count):
            inbox, asked = make_inbox(owners.pop(), rng)
            made += inbox
            bodies = {mail["id"]: mail["body"] for mail in inbox}
            fresh = [row for row in asked if row["question"] not in taken and bodies[row["source_ids"][0]] not in texts]
            for kind in ("sender", "month", "latest"):
                of_kind = [row for row in fresh if row["kind"] == kind]
                chosen[split] += rng.sample(of_kind, min(MOST, len(of_kind)))
    return made


if __name__ == "__main__":
    main(sys.argv[1])
