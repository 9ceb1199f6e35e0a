"""Writes the programs of code_repair with other names, for demonstrations: then they cannot be known by heart.

renamed(problem, Random(1))     # the same function, tests and examples; another name for it and all of its variables
"""

from __future__ import annotations

import ast
import builtins
import keyword
from random import Random
from typing import Any

BEGINNINGS = "b br c ch d dr f fl g gr h j k l m n p pl qu r s sh st t tr v w z".split()
VOWELS = "a e i o u ea oo".split()
ENDS = "b ck d g l m n p r s t x".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def renamed(problem: dict[str, Any], rng: Random) -> dict[str, Any]:
    """The problem with made-up names in its signature and its reference. Texts keep the statement's words."""
    tree = ast.parse(problem["reference"])
    function = tree.body[0]
    assert isinstance(function, ast.FunctionDef)
    names = dict.fromkeys([function.name, *_bound(function)])
    taken: set[str] = set()
    for name in names:
        while (chosen := word(rng, len(name))) in taken or keyword.iskeyword(chosen) or hasattr(builtins, chosen):
            pass
        taken.add(chosen)
        names[name] = chosen
    _Renamer(names).visit(tree)
    arguments = ast.unparse(function.args)
    new = {"name": function.name, "signature": f"{function.name}({arguments})", "reference": ast.unparse(tree) + "\n"}
    return problem | new


def _bound(function: ast.FunctionDef) -> list[str]:
    """The names that the function's own code gives to arguments, variables and inner functions, in the order of the code."""
    names: list[str] = []
    for node in ast.walk(function):
        match node:
            case ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                names.append(str(name))
    return names


class _Renamer(ast.NodeTransformer):
    def __init__(self, names: dict[str, Any]) -> None:
        self.names = names

    def visit(self, node: ast.AST) -> ast.AST:
        for field in ("id", "arg", "name"):
            if (name := getattr(node, field, None)) in self.names:
                setattr(node, field, self.names[name])
        return self.generic_visit(node)


def word(rng: Random, length: int) -> str:
    """A letter for a name of one letter, else a word or two of one to three syllables."""
    if length == 1:
        return rng.choice(LETTERS)
    syllables = [rng.choice(BEGINNINGS) + rng.choice(VOWELS) for _ in range(rng.choice((1, 1, 2, 3)))]
    whole = "".join(syllables) + rng.choice(ENDS)
    return f"{whole}_{word(rng, 2)}" if length > 8 and rng.random() < 0.5 else whole
