"""The players of code_repair: which programs they try, and how a change of one is written as an edit."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Sequence
from functools import lru_cache
from random import Random

from environments import base
from environments.base import Env, Message
from environments.code_repair.mutants import mutants

RANDOM_END = 1 / 3  # of the random player's turns after the first hand in what ran


def trial(task: str, code: str) -> Message:
    """The call that runs this code: an edit where the task shows code."""
    if broken := shown_code(task):
        old, new = edit_of(broken, code)
        return base.use("edit", old=old, new=new)
    return base.use("run_code", code=code)


def shown_code(task: str) -> str:
    """The code that a task shows; an empty text if it shows none."""
    code = re.search(r"```python\n(.*)```", task, re.DOTALL)
    return code[1] if code else ""


# Words that are more often a mistake than what stands in their place in programs that work, of those of the training split.
LIKELY = {
    "not": "",
    "-": "+",
    "-=": "+=",
    "//": "%",
    "!=": "==",
    ">": "<",
    ">=": "<=",
    "or": "and",
    "min": "max",
    "any": "all",
    "upper": "lower",
    "True": "False",
    "2": "1",
    "0": "1",
}


def is_likely(code: str, other: str) -> bool:
    """Whether the first word in which a program differs from the broken `code` is a likely mistake."""
    if not code:
        return False
    words, others = _words(code), _words(other)
    start = _equal(words, others)
    old, new = ("".join(part[start : start + 1]).strip() for part in (words, others))
    return LIKELY.get(old) in ("", new)


def edit_of(code: str, other: str) -> tuple[str, str]:
    """A replacement (old, new) that makes `other` of `code`: the words that change, and as many after (or before) them as it
    takes until the first place of `old` is the right one."""
    words, others = _words(code), _words(other)
    start = _equal(words, others)
    kept = min(_equal(words[::-1], others[::-1]), len(words) - start, len(others) - start)  # words at the end that stay
    while True:
        old, new = ("".join(part[start : len(part) - kept]) for part in (words, others))
        if old and code.replace(old, new, 1) == other:
            return old, new
        start, kept = start if kept else start - 1, max(kept - 1, 0)


def _words(code: str) -> list[str]:
    return re.findall(r" ?(?:\w+|[^\w\s]+)|\s", code)


def _equal(words: Sequence[str], others: Sequence[str]) -> int:
    """How many words are equal before the first that differ."""
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(words, others, strict=False)))


# Bodies of functions, of the first argument.
USUAL = ("sorted({})", "sum({})", "{}[::-1]", "len({})", "max({})", "list({})", "{} % 2 == 0", "{}")


@lru_cache(maxsize=64)
def _candidates(task: str) -> tuple[str, ...]:
    """Programs that might be right, from the task as the policy sees it."""
    signature = task.partition(" function ")[2].partition(")")[0] + ")"
    if code := shown_code(task):
        return tuple(mutants(code))
    first = re.split(r"[(,)]", signature)[1].strip()
    return tuple(f"def {signature}:\n    return {body.format(first)}\n" for body in USUAL)


def _printed(code: str) -> str:
    """Code in the form in which broken programs stand."""
    return ast.unparse(ast.parse(code)) + "\n"


def all_right(answer: str) -> bool:
    lines = answer.partition("Printed:")[0].splitlines()
    return bool(lines) and all(line.endswith(": right") for line in lines)


def _codes(broken: str, messages: Sequence[Message]) -> list[tuple[str, Message]]:
    """(the whole program, the answer) of each call that ran one, with edits of `broken`; of a submission without code, the
    program before it."""
    codes = [("", Message())]
    for name, arguments, answer in base.tool_calls(messages):
        if base.is_error(answer):
            continue
        code = arguments.get("code") or codes[-1][0]
        codes.append((broken.replace(arguments["old"], arguments["new"], 1) if name == "edit" else code, answer))
    return codes[1:]


class Players(Env):
    """The players, who read the transcript; the task is in __init__.py."""

    latest: str = ""  # the code that ran last

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        """Tries small changes one by one, likely mistakes first, until the examples pass; without code, a few usual function
        bodies."""
        task = str(messages[1]["content"])
        tried = [(code, str(answer["content"])) for code, answer in _codes(shown_code(task), messages)]
        if tried and all_right(tried[-1][1]):
            return base.use("submit")
        fresh = sorted(set(_candidates(task)) - {code for code, _ in tried})
        if len(tried) == self.max_turns - 1 or not fresh:
            return base.use("submit")
        likely = [code for code in fresh if is_likely(shown_code(task), code)]
        return trial(task, rng.choice(likely or fresh))

    def random(self, messages: Sequence[Message], rng: Random) -> Message:
        if self.latest and rng.random() < RANDOM_END:
            return base.use("submit")
        task = str(messages[1]["content"])
        return trial(task, rng.choice(_candidates(task)))

    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        """Tries the reference, then hands it in."""
        if self.latest:
            return base.use("submit")
        return trial(str(messages[1]["content"]), _printed(self.scenario.data["reference"]))

    def bad(self, messages: Sequence[Message], rng: Random) -> Message:
        """Hands in the code as it was, or a function that does nothing."""
        stub = f"def {self.scenario.data['signature']}:\n    return None\n"
        return base.use("submit", code=self.scenario.data["broken"] or stub)
