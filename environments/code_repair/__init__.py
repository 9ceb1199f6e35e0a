"""Code repair: write or mend a small Python function; hidden tests decide.

The problems are written by hand (tasks_data/code_repair/problems.jsonl); mutants.py makes the broken programs from their
references. The policy's code runs in a separate process; environments/kit/sandbox/ says what is defended there and what is
not, and sandbox.json whether code may run on a machine with fewer defences. No problem is in two splits. Code that reads a
clock or random numbers can give different results in each run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple

from environments import base
from environments.base import Component, Message, Outcome, Scenario, Split, tool
from environments.code_repair.mutants import mutants, passed
from environments.code_repair.players import Players, all_right
from environments.code_repair.programs import make_problem
from environments.kit.sandbox import NEEDED, Answer, RunResult, needed_walls, run, run_trusted

SHARES: dict[Split, float] = {"train": 0.6, "val": 0.2, "test": 0.2}  # of all problems
PRACTICE, PRACTICE_MUTANTS = 160, 8  # random programs for demonstrations, and mistakes in each program
LONGEST_CODE = 10_000  # characters
LONGEST_LINE = 200  # characters of one example's result
LONGEST_OUTPUT = 600  # characters of printed output
SYSTEM = (
    "You write and mend small Python functions. Try code with run_code, or a change of the task's code with edit; both "
    "compare the function with the examples. Then hand it in with submit, once: hidden tests decide. Code may import the "
    "standard library. It may run 100,000 lines in 2 seconds, and has no files, processes or network."
)

REWARD = {  # value, and why
    "tests": (0.5, "the share of hidden tests passed, beyond those that the broken code passes"),
    "solved": (0.5, "all hidden tests passed: half a function is not worth half"),
    "no_submission": (-0.1, "the episode ended without a submission: less than one that passes nothing"),
    "refused": (-0.2, "the code tried what is not allowed: files, processes, network"),
    "error": (-0.02, "a malformed call, an unknown tool or wrong arguments"),
}
MOST_REFUSED = 3  # at most so many refusals count, because a loop of attempts is a single idea
NEEDED_TURNS = 2


class Problems(NamedTuple):
    """The problems by split, the broken programs by problem, and the walls without which no code runs. Programs for practice
    are ours alone, and run without any."""

    problems: dict[Split, list[dict[str, Any]]]
    broken: dict[str, list[dict[str, Any]]]
    needed: Sequence[str] = NEEDED
    is_practice: bool = False


class CodeRepair(Players):
    """One function to write or to mend."""

    max_turns = 12
    overlap: ClassVar[int] = 8  # a process for each answer: 20 ms of a core, twice as much where the code has no end
    sources = ("name",)
    secret: ClassVar[tuple[str, ...]] = ("reference",)

    @classmethod
    def load(cls, folder: Path) -> Problems:
        problems, mutants = (base.read_lines(folder / f"{name}.jsonl") for name in ("problems", "mutants"))
        needed = needed_walls(folder / "sandbox.json")
        data = Problems({split: [] for split in SHARES}, {problem["name"]: [] for problem in problems}, needed)
        for problem in problems:
            data.problems[base.split_of(problem["reference"], SHARES)].append(problem)
        for mutant in mutants:
            data.broken[mutant["name"]].append(mutant)
        return data

    @classmethod
    def practice(cls, data: Problems, seed: int) -> Problems:
        """The training problems and random programs, all with mistakes drawn anew."""
        rng = Random(f"practice {seed}")
        problems = [*data.problems["train"], *(make_problem(rng) for _ in range(PRACTICE))]
        unlike = {problem["name"]: problem for problem in problems}
        broken: dict[str, list[dict[str, Any]]] = {}
        for name, problem in unlike.items():
            programs = mutants(problem["reference"])
            chosen = rng.sample(programs, min(PRACTICE_MUTANTS, len(programs)))
            broken[name] = [{"name": name, "seen": False, "passed": 0, "code": code} for code in chosen]
        return Problems({"train": list(unlike.values()), "val": [], "test": []}, broken, data.needed, True)

    @classmethod
    def scenarios(cls, data: Problems, split: Split, count: int, seed: int) -> list[Scenario]:
        """Half of the scenarios are functions to write, as long as there are problems; the others are to be mended."""
        rng = Random(f"{split} {seed}")
        to_write = [(problem, None) for problem in data.problems[split]]
        to_mend = [(problem, mutant) for problem in data.problems[split] for mutant in data.broken[problem["name"]]]
        if count > len(to_write) + len(to_mend):
            raise ValueError(
                f"{count} scenarios are too many: the split {split} of code_repair has {len(to_write)} functions to "
                f"write and {len(to_mend)} to mend; ask for {len(to_write) + len(to_mend)} or fewer"
            )
        written = min(len(to_write), max(count // 2, count - len(to_mend)))
        chosen = [*rng.sample(to_write, written), *rng.sample(to_mend, count - written)]
        rng.shuffle(chosen)
        return [cls.from_problem(split, problem, mutant) for problem, mutant in chosen]

    @classmethod
    def from_problem(cls, split: Split, problem: dict[str, Any], mutant: dict[str, Any] | None) -> Scenario:
        shown = [f"{written_call(problem['name'], inputs)} == {expected!r}" for inputs, expected in problem["examples"]]
        task = f"Write the function {problem['signature']}."
        if mutant is not None:
            task = f"Mend the function {problem['signature']}: its code has one mistake."
        parts = [task, problem["statement"], "Examples:", *shown]
        parts += ["Code:", f"```python\n{mutant['code']}```"] if mutant is not None else []
        # A mistake that an example shows is easier to find than one that no example shows.
        easier = int(mutant is not None and mutant["seen"])
        data = {key: problem[key] for key in ("name", "signature", "examples", "tests", "reference")} | {
            "kind": "write" if mutant is None else "mend",
            "difficulty": max(1, problem["difficulty"] - easier),
            "broken": "" if mutant is None else mutant["code"],
            "passed": 0 if mutant is None else mutant["passed"],  # hidden tests, by the broken code
        }
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "\n".join(parts)}]
        return Scenario.make("code_repair", split, messages, data)

    @tool
    def run_code(self, code: str) -> str:
        """Run code and compare the function with the examples. Long output loses its middle.

        Args:
            code: Python code that defines the function
        """
        return self._try(code)

    @tool
    def edit(self, old: str, new: str) -> str:
        """Change one place of the task's code and run it like run_code. Each edit starts from the code as the task shows it.

        Args:
            old: the text to replace, of whose places in the task's code the first is meant
            new: the text in its place
        """
        broken = self.scenario.data["broken"]
        if not broken:
            return base.error("the task shows no code to edit: write the function with run_code")
        if not old or old not in broken:
            return base.error(f"old is not in the task's code: {shorten(old, 80)!r}")
        return self._try(broken.replace(old, new, 1))

    def _try(self, code: str) -> str:
        """Run code, and compare the function with the examples."""
        if len(code) > LONGEST_CODE:
            return too_long(code)
        self.latest = code
        name, examples = self.scenario.data["name"], self.scenario.data["examples"]
        outcome = self._run(code, examples)
        lines = _faults(outcome)
        for answer, example in zip(outcome.answers, examples, strict=True):
            if answer.kind != "missing":
                lines.append(shorten(_compared(name, answer, example), LONGEST_LINE))
        if outcome.output.strip():
            lines.append("Printed:\n" + shorten(outcome.output.rstrip(), LONGEST_OUTPUT))
        return "\n".join(lines)

    @tool
    def submit(self, code: str = "") -> str:
        """Hand in code, by default the code that ran last. Hidden tests decide, and the task ends.

        Args:
            code: Python code that defines the function
        """
        code = code or self.latest
        if len(code) > LONGEST_CODE:
            return too_long(code)
        if not code:
            return base.error("no code ran yet: give the code to hand in")
        self.done = True
        tests = self.scenario.data["tests"]
        outcome = self._run(code, tests)
        # The result is the first line, so that no text from the code can come before it.
        return "\n".join([f"Passed {passed(outcome.answers, tests)} of {len(tests)}.", *_faults(outcome)])

    def _run(self, code: str, tests: Sequence[Any]) -> RunResult:
        name, calls = self.scenario.data["name"], [arguments for arguments, _ in tests]
        if self.data.is_practice:
            return run_trusted(code, name, calls)
        return run(code, name, calls, needed=self.data.needed)

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        result = submitted(messages)
        counts: dict[str, float] = dict.fromkeys(REWARD, 0)
        if result is None:
            counts["no_submission"] = 1
        else:
            before = scenario.data["passed"]
            counts["tests"] = max(0, result[0] - before) / (result[1] - before)
            counts["solved"] = int(cls.success(scenario, messages))
        counts["refused"] = min(MOST_REFUSED, sum(map(_times_refused, base.tool_calls(messages))))
        counts["error"] = base.count_errors(messages)
        return base.weighed(counts, REWARD)

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        result = submitted(messages)
        return result is not None and result[0] == result[1]

    @classmethod
    def anchor_state(cls, scenario: Scenario, messages: Sequence[Message]) -> str:
        """Whether the code that ran last gives the examples' results: each trial starts anew, so nothing else matters."""
        answers = [
            str(message["content"]) for message in messages if message["role"] == "tool" and not base.is_error(message)
        ]
        return "nothing ran" if not answers else "right" if all_right(answers[-1]) else "wrong"

    @classmethod
    def outcome(cls, scenario: Scenario, messages: Sequence[Message]) -> Outcome:
        """No particular result is expected, because the hidden tests decide."""
        tests = submitted(messages)
        share = tests[0] / tests[1] if tests else 0.0
        return Outcome(optimal_turns=NEEDED_TURNS, required={"submit": tests is not None}, accuracy=share)


def written_call(name: str, arguments: Sequence[Any]) -> str:
    return f"{name}({', '.join(map(repr, arguments))})"


def _compared(name: str, answer: Answer, example: list[Any]) -> str:
    """The result of an example in one line."""
    call, expected = written_call(name, example[0]), example[1]
    if answer.kind == "raised":
        return f"{call} raised {' '.join(answer.value.split())}"
    if answer.kind == "odd":
        return f"{call} returned {answer.value}, not {expected!r}"
    right = passed([answer], [example])
    return f"{call} == {answer.value!r}: right" if right else f"{call} == {answer.value!r}, not {expected!r}"


def _faults(outcome: RunResult) -> list[str]:
    """One line on what was refused, and one on why the code failed, where there is such a thing."""
    named = "; ".join(dict.fromkeys(shorten(" ".join(refusal.split()), 80) for refusal in outcome.refused[:3]))
    lines = [f"Refused {len(outcome.refused)}: {named}"] if outcome.refused else []
    problem = shorten(f"The code failed: {' '.join(outcome.problem.split())}", LONGEST_LINE)
    return [*lines, problem] if outcome.problem else lines


def _times_refused(call: tuple[str, dict[str, Any], Message]) -> int:
    match = re.match(r"(?:Passed \d+ of \d+\.\n)?Refused (\d+): ", str(call[2]["content"]))
    return int(match[1]) if match else 0


def submitted(messages: Sequence[Message]) -> tuple[int, int] | None:
    """(hidden tests passed, all hidden tests); None if nothing was handed in."""
    for name, _, answer in base.tool_calls(messages):
        match = re.match(r"Passed (\d+) of (\d+)\.", str(answer["content"])) if name == "submit" else None
        if match:
            return int(match[1]), int(match[2])
    return None


def too_long(code: str) -> str:
    return base.error(f"code may have {LONGEST_CODE} characters at most, not {len(code)}; make it shorter")


def shorten(text: str, most: int) -> str:
    """A text of about `most` characters at most: its start and its end, and the number of characters left out between."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} [{len(text) - most // 2 * 2} characters left out] {text[-(most // 2) :]}"
