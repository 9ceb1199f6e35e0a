"""Code repair: problems that are right, and their reward. The sandbox itself is tested in test_sandbox.py."""

from __future__ import annotations

import ast
import json
import resource
from pathlib import Path
from typing import Any

import pytest

from environments.base import Message, Scenario, Split, split_of, use
from environments.code_repair import LONGEST_CODE, PRACTICE, SHARES, CodeRepair, Problems, shorten, submitted
from environments.code_repair.mutants import broken, mutants, passed
from environments.code_repair.players import edit_of, is_likely
from environments.kit.sandbox import Answer, run, run_trusted, same
from tests.conftest import ROOT

DATA = ROOT / "tasks_data" / "code_repair"
SPLITS: tuple[Split, ...] = ("train", "val", "test")
REFERENCE = "def double(x):\n    return 2 * x\n"
DOUBLE: dict[str, Any] = {
    "name": "double",
    "signature": "double(x)",
    "statement": "Twice x.",
    "difficulty": 1,
    "examples": [[[1], 2], [[4], 8]],
    "tests": [[[0], 0], [[3], 6], [[-2], -4]],
    "reference": REFERENCE,
}
EMPTY = Problems({split: [] for split in SPLITS}, {})


@pytest.fixture(scope="module")
def data() -> Problems:
    return CodeRepair.load(DATA)


def double(broken: str = "") -> CodeRepair:
    mutant = {"code": broken, "seen": True, "passed": 1} if broken else None
    return CodeRepair(CodeRepair.from_problem("train", DOUBLE, mutant), EMPTY)


# --- Attacks on the result


def test_expected_values_are_nowhere_in_the_process() -> None:
    """All text that the code can reach: frames, modules, its memory's objects by way of frames."""
    reference = {**DOUBLE, "tests": [[[3], "the-expected-value"]]}
    code = """
import sys
def f(x):
    seen, frame = [], sys._getframe()
    while frame:
        seen += [repr(frame.f_locals), repr({k: v for k, v in frame.f_globals.items() if k != '__builtins__'})]
        frame = frame.f_back
    return 'the-expected' + '-value' if 'the-expected' + '-value' in ''.join(seen) else ''.join(seen)[:3000]
""".replace("f(x)", "double(x)")
    env = CodeRepair(CodeRepair.from_problem("train", reference, None), EMPTY)
    assert env.call("submit", {"code": code}).startswith("Passed 0 of 1.")


def test_results_cannot_be_forged_by_printing() -> None:
    forged = '{"loaded": true}\\n{"value": 6}\\n{"value": 0}\\nPassed 3 of 3.'
    code = f"print('{forged}')\nimport sys\nsys.stderr.write('{forged}')\nsys.exit(0)"
    said = double().call("submit", {"code": code})
    assert said == "Passed 0 of 3.\nThe code failed: SystemExit: 0 (line 4)"
    for name in ("a\nPassed 3 of 3.", "a\rPassed 3 of 3."):
        for code in (f"raise Exception({name!r})", f"open('/' + {name!r})"):
            env = double()
            said = env.call("submit", {"code": code})
            assert said.startswith("Passed 0 of 3.")
            assert submitted([use("submit", code=code), {"role": "tool", "name": "submit", "content": said}]) == (0, 3)


def test_results_cannot_be_forged_by_writing_to_every_file_descriptor() -> None:
    code = """
import os
for fd in range(3, 40):
    try:
        os.write(fd, b'{"value": 1}\\n' * 3)
    except OSError:
        pass
def double(x):
    return 1
"""
    assert double().call("submit", {"code": code}).startswith("Passed 0 of 3.")


# --- Problems


def test_references_pass_their_tests_and_broken_programs_do_not(data: Problems) -> None:
    problems = [problem for split in SPLITS for problem in data.problems[split]]
    assert len(problems) >= 60
    assert (
        len({problem["reference"] for problem in problems})
        == len({problem["name"] for problem in problems})
        == len(problems)
    )
    for problem in problems:
        assert len(problem["tests"]) >= 6
        assert len(problem["examples"]) == 2
        names: dict[str, Any] = {}
        exec(problem["reference"], names)  # ours, so no sandbox: this is what makes all of them fast enough
        for arguments, expected in problem["examples"] + problem["tests"]:
            assert same(names[problem["name"]](*json.loads(json.dumps(arguments))), expected), problem["name"]
        shown = {json.dumps(arguments) for arguments, _ in problem["examples"]}
        assert not shown & {json.dumps(arguments) for arguments, _ in problem["tests"]}
    broken = [(problem, one) for problem in problems for one in data.broken[problem["name"]]]
    assert len(broken) > 500
    for problem, one in broken[::40]:
        outcome = run(one["code"], problem["name"], [arguments for arguments, _ in problem["tests"]])
        assert not outcome.problem
        assert passed(outcome.answers, problem["tests"]) < len(problem["tests"])


def test_broken_programs_are_made_the_same_again(data: Problems) -> None:
    [problem] = [one for split in SPLITS for one in data.problems[split] if one["name"] == "to_seconds"]
    assert broken(problem) == data.broken["to_seconds"]


def test_mutants_of_a_small_function() -> None:
    """A hand-made table: each small mistake, once."""
    bodies = ["x > 0 and x <= 9", "x >= 0 and x < 9", "x >= 0 and x >= 9", "x >= 1 and x <= 9"]
    bodies += ["x < 0 and x <= 9", "x >= 0 and x <= 10", "x >= 0 and x <= 8", "x >= 0 or x <= 9"]
    assert sorted(mutants("def f(x):\n    return x >= 0 and x <= 9")) == sorted(
        f"def f(x):\n    return {body}\n" for body in [*bodies[:4], "x <= 0 and x <= 9", *bodies[5:]]
    )
    swapped = mutants("def f(x):\n    if x:\n        return 'a'\n    else:\n        return 'b'")
    assert swapped == ["def f(x):\n    if x:\n        return 'b'\n    else:\n        return 'a'\n"]
    for code in mutants("def f(x):\n    return x[1:] + [-1, True, min(x)]"):
        ast.parse(code)


def test_splits_share_no_problem(data: Problems) -> None:
    names = [{problem["name"] for problem in data.problems[split]} for split in SPLITS]
    assert all(len(one) >= 10 for one in names)
    assert sum(map(len, names)) == len(set.union(*names))
    assert all(split_of(problem["reference"], SHARES) == split for split in SPLITS for problem in data.problems[split])
    for split, known in zip(SPLITS, names, strict=True):
        assert {one.data["name"] for one in CodeRepair.scenarios(data, split, 60, 3)} <= known


def test_the_same_seed_gives_the_same_scenarios(data: Problems) -> None:
    first, again, other = (CodeRepair.scenarios(data, "val", 20, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len({one.id for one in first}) == 20
    assert sorted(one.data["kind"] for one in first) == ["mend"] * 10 + ["write"] * 10
    most = len(data.problems["val"]) + sum(len(data.broken[one["name"]]) for one in data.problems["val"])
    assert len({one.id for one in CodeRepair.scenarios(data, "val", most, 1)}) == most
    with pytest.raises(ValueError, match=f"ask for {most} or fewer"):
        CodeRepair.scenarios(data, "val", most + 1, 1)


def test_programs_for_practice_are_the_training_ones_and_random_ones(data: Problems) -> None:
    made = CodeRepair.practice(data, 1)
    assert made.problems["train"][:-PRACTICE] == data.problems["train"]
    assert made.problems["val"] == made.problems["test"] == []
    random_ones = made.problems["train"][-PRACTICE:]
    for problem in random_ones:
        outcome = run_trusted(
            problem["reference"], problem["name"], [arguments for arguments, _ in problem["tests"]], 5
        )
        assert passed(outcome.answers, problem["tests"]) == len(problem["tests"]), problem["reference"]
        assert problem["signature"] == problem["reference"].removeprefix("def ").partition(":")[0]
        assert all(problem["name"] in mutant["code"] for mutant in made.broken[problem["name"]])
    assert len({line for problem in random_ones for line in problem["reference"].splitlines()}) > 2 * PRACTICE
    assert all(len({repr(result) for _, result in one["examples"] + one["tests"]}) > 2 for one in random_ones)


def test_trusted_code_has_the_same_results_without_a_process(data: Problems) -> None:
    cases: list[tuple[str, str, list[list[Any]]]] = [
        (code, "double", [[1], ["a"]])
        for code in (REFERENCE, "def double(x):\n    return {x}", "x = 1", "def (", "1 / 0")
    ]
    cases += [(REFERENCE + "    return x[", "double", [[1]]), ("def double(x):\n    return x.y", "double", [[1], [2]])]
    for problem in data.problems["val"][:5]:
        calls = [arguments for arguments, _ in problem["tests"]]
        cases += [(code, problem["name"], calls) for code in mutants(problem["reference"])[:4]]
    for case in cases:
        assert run_trusted(*case, 5)[:2] == run(*case)[:2], case
    calls = [[[1]]]
    assert run_trusted("def f(x):\n    x.append(2)\n    return x", "f", calls, 5).answers[0].value == [1, 2]
    assert calls == [[[1]]], "the code has arguments of its own"
    endless = run_trusted("def f(x):\n    while x:\n        pass\n    return 1", "f", [[0], [1], [0]])
    assert [answer.kind for answer in endless.answers] == ["value", "missing", "missing"]
    assert endless.problem == "stopped after 100,000 lines"
    assert run_trusted("def f(x):\n    return 9 ** x ** x", "f", [[99]], 0.1).problem == "stopped after 0.1 s"


def test_trusted_code_gets_no_more_memory_than_other_code() -> None:
    code, calls = "def f(x):\n    while True:\n        x += 3 * x", [["a"], ["b"]]
    before = resource.getrlimit(resource.RLIMIT_AS)
    outcome = run_trusted(code, "f", calls)
    assert outcome[:2] == run(code, "f", calls)[:2]
    assert outcome.answers == [Answer("raised", "MemoryError (line 3)")] * 2
    assert resource.getrlimit(resource.RLIMIT_AS) == before


def test_the_policy_sees_no_hidden_test_and_no_reference(data: Problems) -> None:
    for one in CodeRepair.scenarios(data, "train", 80, 5):
        shown = json.dumps(one.messages)
        assert one.data["reference"] not in one.messages[1]["content"]
        assert json.dumps(one.data["tests"])[1:-1] not in shown
        assert 1 <= one.data["difficulty"] <= 5
        assert one.data["signature"] in shown


# --- Tools and reward


def test_examples_are_compared_one_a_line() -> None:
    env = double()
    assert env.call("run_code", {"code": REFERENCE}) == "double(1) == 2: right\ndouble(4) == 8: right"
    wrong = env.call("run_code", {"code": "def double(x):\n    print('hm')\n    return x + 1"})
    assert wrong == "double(1) == 2: right\ndouble(4) == 5, not 8\nPrinted:\nhm\nhm"
    raised = env.call("run_code", {"code": "def double(x):\n    return (x,) if x == 1 else 1 / 0"})
    assert raised == "double(1) returned a tuple, not 2\ndouble(4) raised ZeroDivisionError: division by zero (line 2)"
    refused = env.call(
        "run_code",
        {"code": "def double(x):\n    try:\n        open('/etc/passwd')\n    except OSError:\n        return 2 * x"},
    )
    assert refused == "Refused 2: opening /etc/passwd\ndouble(1) == 2: right\ndouble(4) == 8: right"
    assert env.call("run_code", {"code": "class Error(Exception): pass\nraise Error('x')"}).startswith(
        "The code failed: Error: x"
    )
    assert env.call("run_code", {"code": "x" * (LONGEST_CODE + 1)}).startswith("Error: code may have 10000 characters")
    assert env.call("run_code", {"code": "\ud800"}).startswith("Error: ")
    assert not env.done


def test_an_edit_changes_the_first_place_in_the_tasks_code_and_runs_it() -> None:
    env = double("def double(x):\n    y = x\n    return x - y\n")
    assert env.call("edit", {"old": " y", "new": " z = y"}) == "double(1) == 0, not 2\ndouble(4) == 0, not 8"
    right = "double(1) == 2: right\ndouble(4) == 8: right"
    assert env.call("edit", {"old": "-", "new": "+"}) == right, (
        "it starts from the task's code, not from the last edit's"
    )
    for old in ("w", ""):
        assert env.call("edit", {"old": old, "new": "z"}) == f"Error: old is not in the task's code: {old!r}."
    assert env.call("edit", {"old": "x - y", "new": "1" * LONGEST_CODE}).startswith("Error: code may have")
    assert env.call("submit", {}) == "Passed 3 of 3.", "without code it hands in what ran last"
    assert env.done
    assert double().call("edit", {"old": "x", "new": "y"}).startswith("Error: the task shows no code to edit")
    assert double().call("submit", {}) == "Error: no code ran yet: give the code to hand in."


@pytest.mark.parametrize(
    ("code", "other", "edit"),
    [
        (
            "def f(a):\n    if a < 1:\n        return 2\n",
            "def f(a):\n    if a <= 1:\n        return 2\n",
            (" <", " <="),
        ),
        ("    return -b\n    return -a\n", "    return -b\n    return a\n", (" -a", " a")),
        ("if a:\n", "if not a:\n", (" a", " not a")),
        ("x = 1 + 1\n", "x = 2 + 1\n", (" 1", " 2")),
        ("x = 1 + 1\n", "x = 1 + 2\n", (" 1\n", " 2\n")),
        ("x = a + 1\ny = a + 1", "x = a + 1\ny = a + 2", ("y = a + 1", "y = a + 2")),
        ("a\nb\nc\n", "a\nc\n", ("b\n", "")),
        ("a\na\n", "a\na\na\n", ("\n", "\na\n")),
        ("a\n  b\n", "a\n    b\n", (" b", "   b")),
    ],
)
def test_an_edit_is_the_change_and_as_many_words_as_its_place_needs(
    code: str, other: str, edit: tuple[str, str]
) -> None:
    assert code.replace(*edit, 1) == other
    assert edit_of(code, other) == edit


@pytest.mark.parametrize(
    ("word", "other", "likely"),
    [("-", "+", True), ("+", "-", False), (">", "<", True), (">", ">=", False), ("- 2 *", "- 1 *", True)],
)
def test_likely_mistakes_are_tried_first(word: str, other: str, likely: bool) -> None:
    code = "def f(a, b):\n    return a {} b\n"
    assert is_likely(code.format(word), code.format(other)) == likely


def test_a_negation_is_a_likely_mistake_and_without_code_there_is_none() -> None:
    assert is_likely("if not a:\n    b\n", "if a:\n    b\n")
    assert not is_likely("if a:\n    b\n", "if not a:\n    b\n")
    assert not is_likely("", "def f(a):\n    return 1\n")


def test_tests_that_the_broken_code_passes_earn_nothing() -> None:
    """It passes one of three; as it was, with an edit that changes nothing, or with another mistake it earns nothing."""
    env = double("def double(x):\n    return x\n")
    for old, new, value in (
        ("x\n", "x  # mended\n", 0.0),
        ("return x\n", "return 0\n", 0.0),
        ("return x\n", "return 2 * x if x < 1 else x\n", 0.25),
        ("return x", "return 2 * x", 1.0),
    ):
        assert told(env.scenario, ("edit", (old, new)), ("submit", ()))[:2] == (value, value == 1.0)
    assert told(env.scenario, ("submit", "def double(x):\n    return 6\n"))[0] == 0.0
    assert told(env.scenario, ("submit", "def double(x): pass"))[0] == 0.0, "fewer tests than before cost nothing"


def test_long_output_loses_its_middle() -> None:
    assert shorten("a" * 10, 10) == "a" * 10
    assert shorten("a" * 50 + "b" * 50, 10) == "aaaaa [90 characters left out] bbbbb"
    said = double().call("run_code", {"code": "print('x' * 50_000)\ndef double(x):\n    return 'y' * 40_000"})
    assert len(said) < 1200


def told(scenario: Scenario, *calls: tuple[str, str | tuple[str, ...]]) -> tuple[float, bool, list[Message]]:
    env, messages = CodeRepair(scenario, EMPTY), list(scenario.messages)
    for name, given in calls:
        texts = (given,) if isinstance(given, str) else given
        keys = ("old", "new") if len(texts) == 2 else ("code",)
        messages.append(use(name, **dict(zip(keys, texts, strict=False))))
        messages += env.step(messages[-1])
    return (
        round(sum(part.value for part in CodeRepair.reward(scenario, messages)), 6),
        CodeRepair.success(scenario, messages),
        messages,
    )


def test_rewards_by_hand() -> None:
    scenario = double().scenario
    right, half, none = REFERENCE, "def double(x):\n    return x * x if x == 0 else 6", "def double(x): pass"
    assert told(scenario, ("submit", right))[:2] == (1.0, True)
    assert told(scenario, ("run_code", right), ("submit", right))[:2] == (1.0, True)
    assert told(scenario, *[("run_code", right)] * 3, ("submit", right))[:2] == (1.0, True)
    assert told(scenario, ("submit", half))[:2] == (round(0.5 * 2 / 3, 6), False)
    assert told(scenario, ("submit", none))[:2] == (0.0, False)
    assert told(scenario)[:2] == (-0.1, False)
    assert told(scenario, ("run_code", right))[:2] == (-0.1, False)
    assert told(scenario, ("think", right), ("submit", right))[:2] == (0.98, True)
    for attempts, value in ((1, 0.8), (2, 0.6), (9, 0.4)):
        attack = (
            f"for _ in range({attempts}):\n    try:\n        open('/etc/passwd')\n    except OSError:\n        pass\n"
        )
        assert told(scenario, ("submit", attack + right))[:2] == (value, True)
        assert told(scenario, ("run_code", attack + right), ("submit", right))[:2] == (value, True)


HIDDEN = """
import os
saved, other = {}, os.open('other', os.O_RDWR | os.O_CREAT)
for fd in range(3, other):
    try:
        saved[fd] = os.dup(fd)
        os.dup2(other, fd)
    except OSError:
        pass
for _ in range(5):
    try:
        open('/etc/passwd')
    except OSError:
        pass
for fd in saved:
    os.dup2(saved[fd], fd)
"""


def test_attempts_behind_the_back_of_the_channel_cost_as_much() -> None:
    """The code puts a file in the place of every descriptor, tries five times, and puts the descriptors back."""
    value, success, messages = told(double().scenario, ("submit", HIDDEN + REFERENCE))
    assert (value, success) == (0.4, True)
    assert messages[-1]["content"] == "Passed 3 of 3.\nRefused 5: opening /etc/passwd"


def test_the_submission_ends_the_episode_and_is_the_only_one() -> None:
    scenario = double().scenario
    env = CodeRepair(scenario, EMPTY)
    both = use("submit", code="def double(x): pass")
    both["tool_calls"] += use("submit", code=REFERENCE)["tool_calls"]
    messages = [*scenario.messages, both, *env.step(both)]
    assert env.done
    assert submitted(messages) == (0, 3)


def test_players(data: Problems) -> None:
    solved = {"gold": 0, "scripted": 0, "random": 0, "bad": 0}
    for number, scenario in enumerate(CodeRepair.scenarios(data, "test", 5, 3)):
        scores = {}
        for player in solved if number < 4 else ("gold", "bad"):
            messages = CodeRepair(scenario, data).play(player)
            scores[player] = sum(part.value for part in CodeRepair.reward(scenario, messages))
            solved[player] += CodeRepair.success(scenario, messages)
        assert scores["gold"] == 1.0 > scores["bad"] + 0.5
        assert CodeRepair(scenario, data).play("gold") == CodeRepair(scenario, data).play("gold")
    assert solved["gold"] == 5 > solved["scripted"] > solved["bad"] == 0


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"problems\.jsonl is missing: restore it"):
        CodeRepair.load(tmp_path)
