"""Made-up tools, and requests that they fit: what they do is in frames.py and phrases.py, and of what in words.py.

Left out: arithmetic, and knowledge of the world.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from addons.supervised import words as vocabulary
from addons.supervised.frames import ACTIONS, CHOICES, FLAGS, FRAMES, SLOTS, rows
from addons.supervised.phrases import LABELS, WRAPPERS

TYPES = {"whole": "integer", "number": "integer", "decimal": "number"}  # of kinds of values; the others are texts
# How an action's object is told: the argument's names, kinds of values and descriptions, and the object in a request.
MODES: dict[str, tuple[str, str, str, Sequence[str]]] = {
    "plain": ("", "", "", "the {n}/{an}/our {n}/the {n}/{p}".split("/")),
    "id": (
        "{n}_id id number {n}_number {n}_code code {n} reference key serial barcode tag",
        "code code number",
        "the number of the {n}/the {n}'s number/which {n}/the {n}'s code/id of the {n}/the {n}/reference of the {n}",
        "the {n} {v}/{n} {v}/{n} number {v}/the {n} with the {l} {v}/{n} with {l} {v}/number {v}/{v}".split("/"),
    ),
    "named": (
        "name {n} title {n}_name subject which label what {n}_title",
        "title person place title word login",
        "the name of the {n}/which {n}/the {n}'s name/title of the {n}/the {n}/the {n}'s full name/what it is called",
        '{v}/{v}/the {n} {v}/{n} {v}/the {n} called {v}/the {n} "{v}"/{v}/a {n} called {v}/the {n} of {v}'.split("/"),
    ),
    "content": (
        "item product what goods thing query text content material words article",
        "item item note title word",
        "what is wanted/name of the product/what it is/the words/the goods/which item/words to look for/the {n}'s content",
        '{v}/{v}/{v}/some {v}/"{v}"/the {n} with {v}/{n}: {v}/{p} about {v}/{p} with {v}'.split("/"),
    ),
}


class Tool(NamedTuple):
    """A tool of a set, and a request that it fits: the user's words and the arguments of the call."""

    schema: dict[str, Any]
    ask: Callable[[Random], tuple[str, dict[str, Any]]]
    done: str = "It is done."  # what it answers, or what the assistant says then

    @property
    def name(self) -> str:
        return str(self.schema["function"]["name"])


class Argument(NamedTuple):
    """An argument of a tool, how its value is drawn, and how a request says it ({v})."""

    name: str
    schema: dict[str, Any]
    draw: Callable[[Random], Any]
    phrases: tuple[str, ...] = ()
    wording: Callable[[Any, Random], str] | None = None  # where words do not repeat the value
    optional: bool = False


def schema(name: str, description: str, arguments: list[Argument]) -> dict[str, Any]:
    """As environments.kit.tools writes that of a method."""
    properties = {argument.name: argument.schema for argument in arguments}
    required = [argument.name for argument in arguments if not argument.optional]
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def nothing(rng: Random) -> tuple[str, dict[str, Any]]:
    """Of a tool for which nobody asks by itself."""
    raise NotImplementedError


def named(parts: list[str], rng: Random) -> str:
    """The name of a tool of its words: look_up_parcel, lookUpParcel, parcelLookUp."""
    pieces = [piece for part in parts for piece in part.split("_") if piece]
    if rng.random() < 0.2:
        return pieces[0] + "".join(piece.capitalize() for piece in pieces[1:])
    return "_".join(pieces)


def typed(kind: str, rng: Random, about: str) -> dict[str, Any]:
    name = TYPES.get(kind, "string")
    if name == "integer" and rng.random() < 0.1:
        name = "string"
    return {"type": name, "description": about}


def argument(names: str, kind: str, about: str, rng: Random, thing: str, optional: bool = False) -> Argument:
    """An argument of a kind of values; `names` are separated by spaces, descriptions by slashes."""
    name = rng.choice(names.split()).replace("{n}", thing)
    kind, _, choices = kind.partition(":")
    own = rng.choice(about.split("/")) if about and rng.random() < 0.85 else ""
    own = own or rng.choice(("the {l}", "{l} of the {n}", "the {n}'s {l}", "which {l}"))
    own = own.format(n=thing, p=vocabulary.plural(thing), l=spaced(name))
    if choices:
        options = rng.sample(choices.split(), rng.randint(2, 4))
        return Argument(name, {"type": "string", "enum": options, "description": own}, lambda rng: rng.choice(options))
    form = typed(kind, rng, own)

    def draw(rng: Random) -> Any:
        value = vocabulary.value(kind, rng)
        return str(value) if form["type"] == "string" else value

    return Argument(name, form, draw, optional=optional)


def spaced(name: str) -> str:
    return name.replace("_", " ")


def slot(thing: str, rng: Random) -> Argument:
    """An argument that any action may have, with phrases that say it."""
    chance = rng.random()
    if chance < 0.12:
        return flag(rng)
    if chance < 0.26:
        return choice(thing, rng)
    if chance < 0.32:
        return several(thing, rng)
    names, kind, summary, phrases = rng.choice(rows(SLOTS))
    made = argument(names, kind, summary, rng, thing, rng.random() < 0.3)
    wording = spelled if made.schema["type"] == "integer" else None
    return made._replace(phrases=tuple(phrases.split("/")), wording=wording)


def flag(rng: Random) -> Argument:
    name, yes, no = rng.choice(rows(FLAGS))
    about = rng.choice(("whether it is so: {}", "whether {}", "{} or not")).format(spaced(name))

    def wording(value: bool, rng: Random) -> str:
        return rng.choice((yes if value else no).split("/"))

    is_optional = rng.random() < 0.4
    form = {"type": "boolean", "description": about}
    return Argument(name, form, lambda rng: rng.random() < 0.5, wording=wording, optional=is_optional)


def choice(thing: str, rng: Random) -> Argument:
    names, choices, phrases = rng.choice(rows(CHOICES))
    options = [*choices.split()]
    if rng.random() < 0.3:
        options = [rng.choice((vocabulary.made_up(rng), rng.choice(vocabulary.ADJECTIVES))) for _ in options]
        options = list(dict.fromkeys(options))
    options = rng.sample(options, min(len(options), rng.randint(2, 4)))
    name = rng.choice(names.split())
    about = rng.choice(("the {}", "which {}", "{} of the {n}")).format(spaced(name), n=thing)
    form = {"type": "string", "enum": options, "description": about}
    is_optional = rng.random() < 0.3
    return Argument(name, form, lambda rng: rng.choice(options), tuple(phrases.split("/")), optional=is_optional)


def several(thing: str, rng: Random) -> Argument:
    name = rng.choice("items things goods contents parts names tags words extras".split())
    form = {"type": "array", "items": {"type": "string"}, "description": f"the {name} of the {thing}"}
    kind = rng.choice(("item", "item", "person", "word"))

    def draw(rng: Random) -> list[Any]:
        return [vocabulary.value(kind, rng) for _ in range(rng.choice((1, 2, 2, 3)))]

    return Argument(name, form, draw, ("with {v}", "{v}", f"{name}: {{v}}", "containing {v}"), wording=listed)


def listed(value: list[str], rng: Random) -> str:
    return value[0] if len(value) == 1 else f"{', '.join(value[:-1])} and {value[-1]}"


def spelled(value: int, rng: Random) -> str:
    """A number, at times in letters."""
    is_small = 0 < value <= len(vocabulary.NUMBERS) and rng.random() < 0.12
    return vocabulary.NUMBERS[value - 1] if is_small else str(value)


def phrase(argument: Argument, value: Any, rng: Random) -> str:
    wording = argument.wording(value, rng) if argument.wording else str(value)
    if argument.schema["type"] == "boolean":
        return wording
    if argument.schema["type"] == "string" and "enum" not in argument.schema and rng.random() < 0.06:
        wording = f'"{wording}"'
    forms = argument.phrases if rng.random() < 0.8 else LABELS
    return rng.choice(forms).format(v=wording, l=spaced(argument.name))


def sentence(core: str, rng: Random) -> str:
    """A wish as a user would say it; what begins with a capital is a sentence already."""
    if core[:1].isupper():
        return core + rng.choice((".", "?", "", ", please.") if rng.random() < 0.5 else ("?",))
    text = rng.choice(WRAPPERS).format(c=core, p=vocabulary.name(vocabulary.FIRST, rng))
    return text[:1].upper() + text[1:] if rng.random() < 0.93 else text


def acting(thing: str, rng: Random) -> Tool:
    """A tool that does something with a thing, which is told by a number, by a name, by its content, or not at all."""
    verbs, asks, tells, past = rng.choice(rows(ACTIONS))
    verb, plural = rng.choice(verbs.split()), vocabulary.plural(thing)
    mode = rng.choice(("plain", "id", "id", "named", "named", "content"))
    owned = rng.choice((thing, thing, plural)) if mode != "content" or rng.random() < 0.5 else ""
    name = named([verb, owned] if rng.random() < 0.85 else [thing, verb], rng)
    names, kinds, about, objects = MODES[mode]
    first = [argument(names, rng.choice(kinds.split()), about, rng, thing)] if names else []
    arguments = [*first]
    for _ in range(rng.choice((0, 0, 1, 1, 2) if first else (0, 1, 1, 2))):
        more = slot(thing, rng)
        if more.name not in [other.name for other in arguments]:
            arguments.append(more)
    if rng.random() < 0.2:
        rng.shuffle(arguments)
    target = rng.choice((vocabulary.a(thing), plural, f"the {thing}", f"one of the {plural}"))
    summary = f"{rng.choice(tells.split('/'))} {target}"
    summary = (summary[:1].upper() + summary[1:]).format(p=plural)
    summary += rng.choice((".", ".", f" by its {spaced(first[0].name)}." if first else ".", ""))
    done = rng.choice((f"The {thing} was {past}.", "Done.", "OK.", "It is done.", f"{thing.capitalize()} {past}."))
    parts = {"n": thing, "p": plural, "an": vocabulary.a(thing), "l": spaced(first[0].name) if first else ""}

    def ask(rng: Random) -> tuple[str, dict[str, Any]]:
        values = chosen(arguments, rng)
        others = [
            phrase(each, values[each.name], rng) for each in arguments if each.name in values and each not in first
        ]
        object_ = rng.choice(objects).format(v=values[first[0].name] if first else "", **parts)
        rng.shuffle(others)
        return wish(object_, others, asks.split("/"), past if mode in ("id", "named") else "", rng), values

    return Tool(schema(name, summary, arguments), ask, done)


def wish(object_: str, others: list[str], asks: list[str], past: str, rng: Random) -> str:
    """What a user says who wants something done with an object; `others` say more of it."""
    ending = "".join(f" {text}" for text in others)
    if rng.random() < 0.15 and past:
        text = f"{object_} {rng.choice(('has to be', 'should be', 'must be', 'needs to be', 'can be'))} {past}{ending}"
        return text + rng.choice((".", ", please.", ""))
    if rng.random() < 0.08 and others:
        sentences = [sentence(f"{rng.choice(asks)} {object_}", rng)]
        for other in others:
            sentences.append(f"It is {other}." if rng.random() < 0.5 else f"{other[:1].upper()}{other[1:]}.")
        return " ".join(sentences)
    if rng.random() < 0.06 and others:
        return sentence(f"{others[0]} {rng.choice(asks)} {object_}{''.join(f' {text}' for text in others[1:])}", rng)
    return sentence(f"{rng.choice(asks)} {object_}{ending}", rng)


def chosen(arguments: list[Argument], rng: Random) -> dict[str, Any]:
    """Values of the arguments; optional ones are often left out."""
    return {argument.name: argument.draw(rng) for argument in arguments if not argument.optional or rng.random() < 0.5}


def framed(thing: str, rng: Random) -> Tool:
    """A tool of FRAMES, whose sentences hold all that it needs."""
    names, summary, spec, sentences = rng.choice(rows(FRAMES))
    arguments = []
    for part in spec.split(";"):
        own, kind, about = (text.strip() for text in part.split("="))
        made = argument(own.rstrip("?"), kind.removeprefix("="), about, rng, thing, own.endswith("?"))
        arguments.append(made)
    if len({argument.name for argument in arguments}) < len(arguments):
        return framed(thing, rng)
    tail = thing if rng.random() < 0.3 else ""
    name = named([rng.choice(names.split()), tail], rng)
    description = rng.choice(summary.split("/")).format(n=thing, p=vocabulary.plural(thing))
    order = arguments[:]
    if rng.random() < 0.25:
        rng.shuffle(order)

    def ask(rng: Random) -> tuple[str, dict[str, Any]]:
        values = [argument.draw(rng) for argument in arguments]
        text = rng.choice(sentences.split("/"))
        wording = [spelled(value, rng) if isinstance(value, int) else str(value) for value in values]
        used = {place for place in range(len(values)) if f"{{{place}}}" in text}
        is_wish = text[:1].islower()  # what begins with a value keeps its letters as they are
        text = text.format(*wording, n=thing, p=vocabulary.plural(thing))
        given = {each.name: values[arguments.index(each)] for each in order if arguments.index(each) in used}
        return (sentence(text, rng) if is_wish else text + rng.choice((".", ".", ""))), given

    return Tool(schema(name, description, order), ask, rng.choice(("Done.", "OK.", "It is done.", "Noted.", "Saved.")))
