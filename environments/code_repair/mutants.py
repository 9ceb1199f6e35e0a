"""Makes the broken programs of code_repair: changes an operator, a constant or a branch of a Python function.

    python -m environments.code_repair.mutants tasks_data/code_repair     # writes mutants.jsonl from problems.jsonl

Each broken program was run: it loads, ends in time and fails a hidden test. The same problems give the same bytes.
"""

from __future__ import annotations

import ast
import copy
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

from environments.base import read_lines, write_lines
from environments.kit.sandbox import Answer, run, same

SEED = 20240229
MOST = 12  # broken programs per problem

SWAPS: dict[type[ast.AST], tuple[type[ast.AST], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Add,),
    ast.Div: (ast.FloorDiv,),
    ast.FloorDiv: (ast.Mod,),
    ast.Mod: (ast.FloorDiv,),
}
NAMES = {"min": "max", "max": "min", "lower": "upper", "upper": "lower", "all": "any", "any": "all"}


def mutants(code: str) -> list[str]:
    """Every program that differs from `code` by a single small mistake, in the order of the code, without repetition."""
    tree = ast.parse(code)
    programs: dict[str, None] = {}
    for node in ast.walk(tree):
        own = dict(vars(node))
        for changed in list(_changed(node)):
            vars(node).update(vars(changed))
            programs[ast.unparse(tree) + "\n"] = None
            vars(node).update(own)
    programs.pop(ast.unparse(tree) + "\n", None)
    return list(programs)


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    """A changed copy of the node for each small mistake that fits it."""
    match node:
        case ast.BinOp(op=op) | ast.BoolOp(op=op) | ast.AugAssign(op=op):
            for other in SWAPS.get(type(op), ()):
                yield _with(node, op=other())
        case ast.Compare(ops=[op, *others]):
            for other in SWAPS.get(type(op), ()):
                yield _with(node, ops=[other(), *others])
        case ast.Constant(value=bool(value)):
            yield _with(node, value=not value)
        case ast.Constant(value=int(value)):
            yield _with(node, value=value + 1)
            if value > 0:  # -1 is parsed as an operation, not as a constant
                yield _with(node, value=value - 1)
        case ast.If(test=test, body=body, orelse=[_, *_] as orelse) if not isinstance(orelse[0], ast.If):
            yield _with(node, test=test, body=orelse, orelse=body)
        case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=negated)):
            yield _with(node, test=negated)
        case ast.If(test=test):
            yield _with(node, test=ast.UnaryOp(ast.Not(), test))
        case ast.IfExp(body=body, orelse=orelse):
            yield _with(node, body=orelse, orelse=body)
        case ast.Name(id=name) if name in NAMES:
            yield _with(node, id=NAMES[name])
        case ast.Attribute(attr=name) if name in NAMES:
            yield _with(node, attr=NAMES[name])
        case ast.Slice(lower=ast.expr() as lower, upper=None, step=None):
            yield _with(node, lower=None, upper=lower)
        case ast.Slice(lower=None, upper=ast.expr() as upper, step=None):
            yield _with(node, lower=upper, upper=None)


def _with(node: ast.AST, **fields: Any) -> ast.AST:
    other = copy.copy(node)
    vars(other).update(fields)
    return other


def passed(answers: list[Answer], tests: list[list[Any]]) -> int:
    """The number of tests, each [arguments, expected value], that the answers pass."""
    pairs = zip(answers, tests, strict=True)
    return sum(answer.kind == "value" and same(answer.value, expected) for answer, (_, expected) in pairs)


def broken(problem: dict[str, Any]) -> list[dict[str, Any]]:
    """Up to MOST mutants of a problem's reference that end in time and fail a hidden test."""
    kept: list[dict[str, Any]] = []
    candidates = mutants(problem["reference"])
    Random(f"{SEED} {problem['name']}").shuffle(candidates)
    tests, examples = problem["tests"], problem["examples"]
    for code in candidates:
        if len(kept) == MOST:
            break
        outcome = run(code, problem["name"], [arguments for arguments, _ in tests + examples])
        right = passed(outcome.answers[: len(tests)], tests)
        if not outcome.problem and right < len(tests):
            seen = passed(outcome.answers[len(tests) :], examples) < len(examples)  # an example shows the mistake
            kept.append({"name": problem["name"], "seen": seen, "passed": right, "code": code})
    return kept


def main(folder: str) -> None:
    rows = [row for problem in read_lines(Path(folder, "problems.jsonl")) for row in broken(problem)]
    write_lines(Path(folder, "mutants.jsonl"), rows)


if __name__ == "__main__":
    main(sys.argv[1])
