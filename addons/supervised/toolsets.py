"""Demonstrations of tool calls with tools that are made up: sets of tools, requests to them, and whole episodes.

A set has one to five tools about the same things. Which of them fits follows from the words of the request and of the
descriptions, at times by a synonym; arguments are copied out of the request or out of what another tool answered. The frames
of tools and sentences are in addons/supervised/frames.py, the words in addons/supervised/words.py.

Left out: arithmetic, knowledge of the world, and calls side by side in one turn.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, NamedTuple

from addons.supervised import words as vocabulary
from addons.supervised.frames import ACTIONS, rows
from addons.supervised.made_questions import Attribute, answering, asking, attribute, question
from addons.supervised.made_tools import (
    Tool,
    acting,
    argument,
    framed,
    listed,
    named,
    nothing,
    schema,
    sentence,
    spaced,
)
from addons.supervised.phrases import CHAT, GOALS
from environments.base import Message, error, use, words

REQUESTS = 8  # episodes with a set of tools
# How a fact {f} about a thing's attribute {a} is told; {n} is the thing, {v} its name.
TOLD = (
    "The {a} of {v} is {f}./{v} has the {a} {f}./The {a} of the {n} {v} is {f}./{A} of {v}: {f}/{v}: {a} {f}./"
    "{v}'s {a} is {f}./The {a} is {f}."
)
FINDERS = "find search look_up get list"
FINDERS_TOLD = "Find the {p} of a person./Find {an} by its owner./Look up whose {n} it is./The {p} that somebody has."
OWNED = "the {n} of {v}/the {n} that {v} has/the {n} which belongs to {v}"


class ToolSet(NamedTuple):
    """Tools, and episodes with them; a message with `"flawed": True` is not to be learnt."""

    system: str
    tools: list[dict[str, Any]]  # schemas
    episodes: list[list[Message]]  # from the user's message on


def toolsets(seed: int) -> Iterator[ToolSet]:
    """Endless sets; same seed, same sets."""
    rng = Random(f"toolsets {seed}")
    while True:
        yield ToolSet("", [], [texts_alone(rng) for _ in range(REQUESTS)]) if rng.random() < 0.05 else about(rng)


def about(rng: Random) -> ToolSet:
    """A set of tools about one or two things."""
    things = [vocabulary.noun(rng), vocabulary.noun(rng)]
    tools: list[Tool] = []
    episodes: list[Callable[[Random], list[Message]]] = []
    kind = rng.random()
    if kind < 0.30:
        more, plays = questions(things[0], rng)
        tools += more
        episodes += [plays] * 3
    elif kind < 0.42:
        more, plays = chained(things[0], rng)
        tools += more
        episodes += [plays] * 2
    count = rng.choice((1, 2, 3, 3, 4, 4, 5))
    while len(tools) < count:
        tool = rng.choice((framed, acting, acting, asking))(rng.choice(things), rng)
        if tool.name not in [other.name for other in tools]:
            tools.append(tool)
    single = [tool for tool in tools if tool.ask is not nothing]
    rng.shuffle(tools)
    schemas = [tool.schema for tool in tools]
    played = []
    for _ in range(REQUESTS):
        if (episodes and rng.random() < 0.6) or not single:
            played.append(rng.choice(episodes)(rng))
        elif rng.random() < 0.03:
            asked, wording = rng.choice(rows(CHAT))
            played.append([{"role": "user", "content": asked}, words(wording)])
        elif len(single) > 1 and rng.random() < 0.06:
            first, second = rng.sample(single, 2)
            played.append(both(first, second, rng))
        else:
            played.append(called(rng.choice(single), rng))
    return ToolSet(system(things[0], rng), schemas, played)


def system(thing: str, rng: Random) -> str:
    if rng.random() < 0.5:
        return ""
    goal = rng.choice(GOALS).format(
        n=thing,
        p=vocabulary.plural(thing),
        q=rng.choice(vocabulary.PLACED),
        t=vocabulary.title(rng),
        w=vocabulary.made_up(rng),
    )
    return goal + rng.choice(("", "", " Use the tools.", " Call one tool at a time.", " Be brief.", " Help the user."))


# --- Episodes


def questions(thing: str, rng: Random) -> tuple[list[Tool], Callable[[Random], list[Message]]]:
    """Tools with which something is looked up, and then given to another tool or in words; and what plays it."""
    own = [attribute(rng) for _ in range(rng.choice((1, 1, 2, 3)))]
    own = list({each.name: each for each in own}.values())
    look = asking(thing, rng, own)
    answer = answering(rng, own[0].name if len(own) == 1 else "answer", thing) if rng.random() < 0.75 else None
    style = rng.randrange(4)
    [given] = answer.schema["function"]["parameters"]["properties"] if answer else [""]

    def play(rng: Random) -> list[Message]:
        asked = rng.choice(own)
        [(name, value)] = look.ask(rng)[1].items()
        wording = value if rng.random() < 0.8 else f"the {thing} {value}"
        facts = {each.name: str(vocabulary.value(each.kind, rng)) for each in own}
        messages = [{"role": "user", "content": question(asked, wording, rng)}]
        if rng.random() < 0.08:
            messages += mistaken(look, {name: value}, rng)
        messages += [use(look.name, **{name: value}), seen(look.name, observation(thing, value, facts, rng))]
        result = facts[asked.name]
        return [
            *messages,
            use(answer.name, **{given: result}) if answer else words(answer_words(asked, value, result, style)),
        ]

    return ([look, answer] if answer else [look]), play


def answer_words(attribute: Attribute, value: str, result: str, style: int) -> str:
    label = spaced(attribute.name)
    return (f"The {label} of {value} is {result}.", result, f"It is {result}.", f"{value}: {result}")[style]


def seen(name: str, text: str) -> Message:
    return {"role": "tool", "name": name, "content": text}


def observation(thing: str, value: str, facts: dict[str, str], rng: Random) -> str:
    """What a tool tells of a thing, in one of many forms."""
    if len(facts) == 1 or rng.random() < 0.3:
        sentences = [
            rng.choice(TOLD.split("/")).format(a=spaced(name), A=spaced(name).capitalize(), n=thing, v=value, f=fact)
            for name, fact in facts.items()
        ]
        if len(facts) == 1 and rng.random() < 0.25:
            return next(iter(facts.values()))
        if rng.random() < 0.7:
            return " ".join(sentences)
    record = {rng.choice(("name", thing)): value} | facts if rng.random() < 0.7 else dict(facts)
    return written(record, rng.randrange(5))


def written(record: dict[str, str], style: int) -> str:
    if style < 2:
        return json.dumps(record, ensure_ascii=False)
    lines = [f"{spaced(name)}: {value}" for name, value in record.items()]
    if style == 4:
        return f"{' | '.join(record)}\n{' | '.join(record.values())}"
    return "\n".join(lines if style == 2 else [f"- {line}" for line in lines])


def called(tool: Tool, rng: Random) -> list[Message]:
    """One call, and at times what is said after it."""
    asked, arguments = tool.ask(rng)
    messages = [{"role": "user", "content": asked}]
    if rng.random() < 0.06:
        messages += mistaken(tool, arguments, rng)
    messages.append(use(tool.name, **arguments))
    if tool.done and rng.random() < 0.25:
        messages += [seen(tool.name, tool.done), words(tool.done)]
    return messages


def both(first: Tool, second: Tool, rng: Random) -> list[Message]:
    """Two wishes at once, one call after the other."""
    (asked, arguments), (also, more) = first.ask(rng), second.ask(rng)
    text = f"{asked} {rng.choice(('Then:', 'And then:', 'After that:', 'Also:'))} {also}"
    messages = [{"role": "user", "content": text}, use(first.name, **arguments)]
    return [*messages, seen(first.name, first.done or "Done."), use(second.name, **more)]


def mistaken(tool: Tool, arguments: dict[str, Any], rng: Random) -> list[Message]:
    """A call with a mistake, which is not learnt, and the error that answers it."""
    wrong, name = dict(arguments), rng.choice([*arguments, ""])
    call, wording = tool.name, ""
    if not name or rng.random() < 0.25:
        call = vocabulary.made_up(rng)
        wording = f"there is no tool named {json.dumps(call)}; the tools are {tool.name}"
    elif rng.random() < 0.5:
        del wrong[name]
        wording = f"wrong arguments for {tool.name}: {name}: field required"
    else:
        wrong = {f"{key}_{vocabulary.made_up(rng)}" if key == name else key: value for key, value in wrong.items()}
        wording = f"wrong arguments for {tool.name}: {name}: field required"
    return [use(call, **wrong) | {"flawed": True}, seen(call, error(wording))]


def chained(thing: str, rng: Random) -> tuple[list[Tool], Callable[[Random], list[Message]]]:
    """A tool that finds a thing by its owner, and one that needs the id it finds; and what plays it."""
    verbs, asks, tells, past = rng.choice(rows(ACTIONS)[1:])
    owner = rng.choice(("person", "title", "place"))
    owner_text = "whose {n}/the owner of the {n}/who has the {n}"
    by = argument("name owner customer who holder client contact", owner, owner_text, rng, thing)
    plural, an = vocabulary.plural(thing), vocabulary.a(thing)
    key = argument("{n}_id id number {n}_number code", "code", "the number of the {n}/id of the {n}", rng, thing)
    name = named([rng.choice(FINDERS.split()), rng.choice((thing, plural))], rng)
    find = Tool(schema(name, rng.choice(FINDERS_TOLD.split("/")).format(n=thing, p=plural, an=an), [by]), nothing)
    action = rng.choice(tells.split("/")).format(p=plural).capitalize()
    name = named([rng.choice(verbs.split()), thing], rng)
    act = Tool(schema(name, f"{action} {an}.", [key]), nothing, f"The {thing} was {past}.")
    label = rng.choice(("id", "number", key.name))

    def play(rng: Random) -> list[Message]:
        who, own = by.draw(rng), key.draw(rng)
        verb = rng.choice([ask for ask in asks.split("/") if ask[:1].islower()])
        text = sentence(f"{verb} {rng.choice(OWNED.split('/')).format(n=thing, v=who)}", rng)
        other = attribute(rng)
        facts = {other.name: str(vocabulary.value(other.kind, rng))} if rng.random() < 0.6 else {}
        facts = facts | {label: own} if rng.random() < 0.5 or label in facts else {label: own} | facts
        messages = [
            {"role": "user", "content": text},
            use(find.name, **{by.name: who}),
            seen(find.name, observation(thing, who, facts, rng)),
            use(act.name, **{key.name: own}),
        ]
        return [*messages, seen(act.name, act.done), words(act.done)] if rng.random() < 0.3 else messages

    return [find, act], play


def texts_alone(rng: Random) -> list[Message]:
    """A question about a text, or a record to be written, without any tool."""
    thing, value = vocabulary.noun(rng), str(vocabulary.value(rng.choice(("title", "person", "place")), rng))
    own = list({each.name: each for each in (attribute(rng) for _ in range(3))}.values())
    facts = {each.name: vocabulary.value(each.kind, rng) for each in own}
    text = observation(thing, value, {name: str(fact) for name, fact in facts.items()}, rng)
    if rng.random() < 0.5:
        asked = rng.choice(own)
        return [{"role": "user", "content": f"{text}\n{question(asked, value, rng)}"}, words(str(facts[asked.name]))]
    keys = list(facts)
    rng.shuffle(keys)
    wish = rng.choice(("Give this as JSON with the keys {}.", "As JSON, please: {}.", "Write a JSON object with {}."))
    wish = wish.format(listed(keys, rng))
    wording = json.dumps({key: facts[key] for key in keys}, ensure_ascii=False)
    return [{"role": "user", "content": f"{text} {wish}"}, words(wording)]
