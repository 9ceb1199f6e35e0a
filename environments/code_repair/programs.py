"""Makes random programs for code_repair's demonstrations, so that their lines are copied and not known by heart.

make_problem(Random(1))     # a function of some lines over numbers, lists and texts, with two examples and six tests

They compute nothing of use. A program is kept that ends in time, fails for none of its arguments and has several results.
"""

from __future__ import annotations

from random import Random
from typing import Any

from environments.kit.sandbox import run_trusted

NAMES = {
    "int": "a b c i k n x y base best bottom column count current depth end first floor gap height high index last left "
    "level limit low lowest middle number offset place point position price product rate right room row score seconds share "
    "side size speed start steps sum_so_far top total value weight width year".split(),
    "list": "cells days edges found groups heights items kept lengths letters lines moves numbers pairs parts pieces places "
    "points prices queue results rows scores seen sizes stack taken values weights words".split(),
    "str": "char code key label letter line name path prefix suffix text title word".split(),
}
VERBS = "add best check clean count fill find first fold join keep last longest make merge move next pick score".split()
TEXTS = "a, ,-,.,x,ab,no,#,e,/".split(",")
WORDS = ("hello", "a b c", "Moon", "x-y-z", "", "level", "red green", "abc", "A1b2", "noon day")
BEGINNINGS = "b br c ch d dr f fl g gr h j k l m n p pl qu r s sh st t tr v w z".split()
VOWELS = "a e i o u ea oo".split()
ENDS = "b ck d g l m n p r s t x".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"
EXAMPLES, TESTS = 2, 6


def make_problem(rng: Random) -> dict[str, Any]:
    """A problem in the form of problems.jsonl."""
    while True:
        kinds = [rng.choice(("int", "int", "list", "str")) for _ in range(rng.choice((1, 1, 2, 2, 3)))]
        writer = _Writer(rng)
        arguments = [writer.name(kind) for kind in kinds]
        name = f"{rng.choice(VERBS)}_{word(rng, 6)}" if rng.random() < 0.5 else word(rng, 9)
        lines = writer.body()
        signature = f"{name}({', '.join(arguments)})"
        reference = "\n".join([f"def {signature}:", *lines]) + "\n"
        calls = [[_argument(rng, kind) for kind in kinds] for _ in range(EXAMPLES + TESTS)]
        answers = run_trusted(reference, name, calls).answers
        results = [answer.value for answer in answers if answer.kind == "value" and len(repr(answer.value)) < 60]
        if len(results) == len(calls) and len({repr(value) for value in results}) > 2:
            tests = [[arguments, value] for arguments, value in zip(calls, results, strict=True)]
            return {
                "name": name,
                "signature": signature,
                "statement": f"What {rng.choice(VERBS)} and {rng.choice(VERBS)} make of the {' and the '.join(arguments)}.",
                "difficulty": 1,
                "examples": tests[:EXAMPLES],
                "tests": tests[EXAMPLES:],
                "reference": reference,
            }


def word(rng: Random, length: int) -> str:
    """A letter for a name of one letter, else a word or two of one to three syllables."""
    if length == 1:
        return rng.choice(LETTERS)
    syllables = [rng.choice(BEGINNINGS) + rng.choice(VOWELS) for _ in range(rng.choice((1, 1, 2, 3)))]
    whole = "".join(syllables) + rng.choice(ENDS)
    return f"{whole}_{word(rng, 2)}" if length > 8 and rng.random() < 0.5 else whole


def _argument(rng: Random, kind: str) -> Any:
    if kind == "int":
        return rng.choice((0, 1, 2, 3, 5, 7, 10, 12, -1, -4, 24))
    if kind == "str":
        return rng.choice(WORDS)
    return [rng.randrange(-3, 13) for _ in range(rng.randrange(5))]


class _Writer:
    """Writes the lines of one function; it knows the names that exist by their kinds."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.known: dict[str, list[str]] = {"int": [], "list": [], "str": []}

    def name(self, kind: str) -> str:
        """A new name of this kind."""
        while True:
            name = self.rng.choice(NAMES[kind]) if self.rng.random() < 0.3 else word(self.rng, 6)
            if name not in self.taken():
                self.known[kind].append(name)
                return name

    def taken(self) -> set[str]:
        return {name for names in self.known.values() for name in names}

    def copy(self) -> dict[str, list[str]]:
        """The known names, for the end of a block, where those of the block are unknown again."""
        return {kind: list(names) for kind, names in self.known.items()}

    def body(self) -> list[str]:
        lines: list[str] = []
        for _ in range(self.rng.choice((0, 1, 1, 2, 2, 3, 4))):
            lines += self.statement(1)
        return [*lines, f"    return {self.any(2)}"]

    def block(self, depth: int) -> list[str]:
        return [line for _ in range(self.rng.choice((1, 1, 2))) for line in self.statement(depth)]

    def statement(self, depth: int) -> list[str]:
        rng, indent = self.rng, "    " * depth
        kind = rng.choice(("int", "int", "list", "str"))
        choice = rng.choice(("new", "new", "change", "change", "if", "for", "append", "swap", "return", "while"))
        numbers, lists = self.known["int"], self.known["list"]
        if choice == "change" and self.known[kind]:
            name = rng.choice(self.known[kind])
            operator = rng.choice(("+=", "-=", "*=")) if kind == "int" else "+="
            return [f"{indent}{name} {operator} {self.value(kind, 1)}"]
        if choice == "append" and lists:
            return [f"{indent}{rng.choice(lists)}.append({self.number(1)})"]
        if choice == "swap" and len(numbers) > 1:
            left, right = rng.sample(numbers, 2)
            return [f"{indent}{left}, {right} = {right}, {self.number(1)}"]
        if choice == "return" and depth > 1:
            return [f"{indent}return {self.any(1)}"]
        if choice == "if" and depth < 4:
            outer = self.copy()
            lines = [f"{indent}if {self.condition(2)}:", *self.block(depth + 1)]
            self.known = outer
            outer = self.copy()
            if rng.random() < 0.4:
                lines += [f"{indent}else:", *self.block(depth + 1)]
            self.known = outer
            return lines
        if choice == "for" and depth < 4:
            outer = self.copy()
            source = rng.choice(
                (
                    f"range({self.number(1)})",
                    f"range({rng.choice('0123')}, {self.number(1)})",
                    self.items(1),
                    self.items(1),
                )
            )
            if rng.random() < 0.2:
                head = f"{indent}for {self.name('int')}, {self.name('int')} in enumerate({self.items(1)}):"
            else:
                head = f"{indent}for {self.name('int')} in {source}:"
            lines = [head, *self.block(depth + 1)]
            self.known = outer
            return lines
        if choice == "while" and depth < 3:
            name = self.name("int")
            start = [f"{indent}{name} = {self.number(1)}", f"{indent}while {name} > {rng.choice('0123')}:"]
            outer = {key: [other for other in names if other != name] for key, names in self.known.items()}
            kept, self.known = self.known, outer
            lines = [*start, *self.block(depth + 1), f"{indent}    {name} {rng.choice(('-= 1', '-= 2', '//= 2'))}"]
            self.known = kept
            return lines
        value = self.value(kind, 2)
        return [f"{indent}{self.name(kind)} = {value}"]

    def any(self, depth: int) -> str:
        if self.rng.random() < 0.2:
            return self.condition(depth)
        kinds = [kind for kind, names in self.known.items() if names]
        return self.value(self.rng.choice(kinds), depth)

    def value(self, kind: str, depth: int) -> str:
        return {"int": self.number, "list": self.items, "str": self.text}[kind](depth)

    def number(self, depth: int) -> str:
        rng = self.rng
        names, lists, texts = self.known["int"], self.known["list"], self.known["str"]
        plain = [str(rng.choice((0, 1, 1, 2, 2, 3, 4, 5, 7, 9, 10, 12, 60, 100)))] + (
            [rng.choice(names)] * 3 if names else []
        )
        if depth == 0 or rng.random() < 0.35:
            return rng.choice(plain)
        left, right = self.number(depth - 1), self.number(depth - 1)
        forms = [
            f"{left} + {right}",
            f"{left} - {right}",
            f"{left} * {rng.choice(plain)}",
            f"{left} // {rng.choice('2345')}",
        ]
        forms += [f"{left} % {rng.choice('2345')}", f"min({left}, {right})", f"max({left}, {right})", f"abs({left})"]
        forms += [f"({left} - {right}) // 2", f"{left} if {self.condition(0)} else {right}"]
        if lists:
            items = rng.choice(lists)
            forms += [
                f"len({items})",
                f"sum({items})",
                f"max({items}, default={left})",
                f"{items}[{rng.choice(('0', '-1', left))}]",
            ]
            forms += [f"len({items}) - {left}", f"{items}.count({left})"]
        if texts:
            forms += [
                f"len({rng.choice(texts)})",
                f"{rng.choice(texts)}.count({rng.choice(TEXTS)!r})",
                f"len({rng.choice(texts)}) // 2",
            ]
        return rng.choice(forms)

    def condition(self, depth: int) -> str:
        rng = self.rng
        if depth and rng.random() < 0.3:
            joined = f"{self.condition(0)} {rng.choice(('and', 'or'))} {self.condition(0)}"
            return rng.choice(
                (joined, f"not {self.condition(0)}", f"{self.number(0)} <= {self.number(1)} < {self.number(0)}")
            )
        left = self.number(min(depth, 1))
        forms = [f"{left} {operator} {self.number(0)}" for operator in ("<", "<=", ">", ">=", "==", "!=")]
        forms += [f"{left} % {rng.choice('2345')} == {rng.choice('01')}"]
        if lists := self.known["list"]:
            forms += [
                f"{left} in {rng.choice(lists)}",
                f"{left} not in {rng.choice(lists)}",
                f"not {rng.choice(lists)}",
            ]
        if texts := self.known["str"]:
            text = rng.choice(texts)
            forms += [
                f"{text}[{rng.choice('01')}:] == {text}[::-1]",
                f"{rng.choice(TEXTS)!r} in {text}",
                f"{text}.isdigit()",
            ]
            forms += [f"{text} == {text}.lower()", f"{text}.startswith({rng.choice(TEXTS)!r})"]
        return rng.choice(forms)

    def items(self, depth: int) -> str:
        rng, lists, texts = self.rng, self.known["list"], self.known["str"]
        if not lists or rng.random() < 0.25:
            forms = [
                "[]",
                f"[{self.number(0)}]",
                f"[{self.number(0)}, {self.number(0)}]",
                f"list(range({self.number(0)}))",
            ]
            forms += [f"[0] * {rng.choice('2345')}"] + [f"[len(part) for part in {text}.split()]" for text in texts]
            return rng.choice(forms)
        items = rng.choice(lists)
        if depth == 0 or rng.random() < 0.3:
            return items
        own = rng.choice(NAMES["int"])
        while own in self.taken():
            own = word(rng, 4)
        forms = [
            f"sorted({items})",
            f"{items}[::-1]",
            f"{items}[{rng.choice('123')}:]",
            f"{items}[:-{rng.choice('12')}]",
        ]
        forms += [
            f"{items} + [{self.number(1)}]",
            f"[{own} * {self.number(0)} for {own} in {items}]",
            f"list(set({items}))",
        ]
        forms += [f"[{own} for {own} in {items} if {own} {rng.choice(('<', '>', '!=', '>='))} {self.number(0)}]"]
        forms += [f"[{own} + {self.number(0)} for {own} in {items} if {own} % 2 == {rng.choice('01')}]"]
        return rng.choice(forms)

    def text(self, depth: int) -> str:
        rng, texts = self.rng, self.known["str"]
        if not texts:
            return rng.choice((f"str({self.number(depth)})", repr(rng.choice(TEXTS))))
        text = rng.choice(texts)
        if depth == 0 or rng.random() < 0.2:
            return text
        forms = [f"{text}.{method}()" for method in ("lower", "upper", "strip", "title")]
        forms += [
            f"{text}[::-1]",
            f"{text}[{rng.choice('012')}:]",
            f"{text}[:{self.number(0)}]",
            f"{text} * {rng.choice('23')}",
        ]
        forms += [f"{text}.replace({rng.choice(TEXTS)!r}, {rng.choice(TEXTS)!r})", f"{text} + {rng.choice(TEXTS)!r}"]
        forms += [f"{rng.choice(TEXTS)!r}.join({text}.split())", f"{rng.choice(TEXTS)!r} + str({self.number(0)})"]
        return rng.choice(forms)
