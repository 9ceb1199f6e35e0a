"""Code repair: write or mend a small Python function; hidden tests decide.

The problems are written by hand (tasks_data/code_repair/problems.jsonl); _mutants.py makes the broken programs from their
references. The policy's code runs in a separate process; _sandbox.py says what is defended there and what is not, and
sandbox.json whether code may run on a machine with fewer defences. No problem is in two splits. Code that reads a clock
or random numbers can give different results in each run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar, NamedTuple

from environments import base
from environments._mutants import mutants, passed
from environments._sandbox import NEEDED, Answer, RunResult, needed_walls, run
from environments.base import Component, Env, Message, Outcome, Scenario, Split, count_turns, tool

SHARES: dict[Split, float] = {"train": 0.6, "val": 0.2, "test": 0.2}  # of all problems
LONGEST_CODE = 10_000  # characters
LONGEST_LINE = 200  # characters of one example's result
LONGEST_OUTPUT = 600  # characters of printed output
SYSTEM = (
    "You write and mend small Python functions. Try code with run_code, which compares it with the examples; then hand it "
    "in with submit, once: hidden tests decide. Code may import the standard library. It has 2 seconds, and no files, "
    "processes or network."
)

REWARD = {  # value, and why
    "tests": (0.5, "the share of hidden tests passed, unless the broken code is handed in as it was"),
    "solved": (0.5, "all hidden tests passed: half a function is not worth half"),
    "no_submission": (-0.3, "the episode ended without a submission: less than one that passes nothing"),
    "refused": (-0.2, "the code tried what is not allowed: files, processes, network"),
    "error": (-0.1, "a malformed call, an unknown tool or wrong arguments"),
    "turn": (-0.02, "each turn beyond one trial and the submission takes time"),
}
MOST_REFUSED = 3  # at most so many refusals count, because a loop of attempts is a single idea
NEEDED_TURNS = 2


class Problems(NamedTuple):
    """The problems by split, the broken programs by problem, and the walls without which no code runs."""

    problems: dict[Split, list[dict[str, Any]]]
    broken: dict[str, list[dict[str, Any]]]
    needed: Sequence[str] = NEEDED


class CodeRepair(Env):
    """One function to write or to mend."""

    max_turns = 8
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
        }
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "\n".join(parts)}]
        return Scenario.make("code_repair", split, messages, data)

    @tool
    def run_code(self, code: str) -> str:
        """Run code and compare the function with the examples. Long output loses its middle.

        Args:
            code: Python code that defines the function
        """
        if len(code) > LONGEST_CODE:
            return base.error(f"code may have {LONGEST_CODE} characters at most, not {len(code)}; make it shorter")
        name, examples = self.scenario.data["name"], self.scenario.data["examples"]
        outcome = run(code, name, [arguments for arguments, _ in examples], needed=self.data.needed)
        lines = _faults(outcome)
        for answer, example in zip(outcome.answers, examples, strict=True):
            if answer.kind != "missing":
                lines.append(shorten(_compared(name, answer, example), LONGEST_LINE))
        if outcome.output.strip():
            lines.append("Printed:\n" + shorten(outcome.output.rstrip(), LONGEST_OUTPUT))
        return "\n".join(lines)

    @tool
    def submit(self, code: str) -> str:
        """Hand in the code. Hidden tests decide, and the task ends.

        Args:
            code: Python code that defines the function
        """
        if len(code) > LONGEST_CODE:
            return base.error(f"code may have {LONGEST_CODE} characters at most, not {len(code)}; make it shorter")
        self.done = True
        tests = self.scenario.data["tests"]
        outcome = run(code, self.scenario.data["name"], [arguments for arguments, _ in tests], needed=self.data.needed)
        # The result is the first line, so that no text from the code can come before it.
        return "\n".join([f"Passed {passed(outcome.answers, tests)} of {len(tests)}.", *_faults(outcome)])

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> list[Component]:
        result = submitted(messages)
        counts: dict[str, float] = dict.fromkeys(REWARD, 0)
        if result is None:
            counts["no_submission"] = 1
        else:
            counts["tests"] = 0 if is_unchanged(scenario, messages) else result[0] / result[1]
            counts["solved"] = int(cls.success(scenario, messages))
        counts["refused"] = min(MOST_REFUSED, sum(map(_times_refused, base.tool_calls(messages))))
        counts["error"] = base.count_errors(messages)
        counts["turn"] = max(0, count_turns(messages) - NEEDED_TURNS)
        return base.weighed(counts, REWARD)

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        result = submitted(messages)
        return result is not None and result[0] == result[1]

    @classmethod
    def outcome(cls, scenario: Scenario, messages: Sequence[Message]) -> Outcome:
        """No particular result is expected, because the hidden tests decide."""
        tests = submitted(messages)
        share = tests[0] / tests[1] if tests else 0.0
        return Outcome(optimal_turns=NEEDED_TURNS, required={"submit": tests is not None}, accuracy=share)

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        """Tries small changes one by one until the examples pass; without code, a few usual function bodies."""
        tried = [(arguments["code"], str(answer["content"])) for _, arguments, answer in base.tool_calls(messages)]
        for code, answer in tried:
            if _all_right(answer):
                return base.use("submit", code=code)
        candidates = _candidates(str(messages[1]["content"]))
        fresh = [code for code in candidates if code not in {code for code, _ in tried}]
        name = "run_code" if len(tried) < self.max_turns - 1 and fresh else "submit"
        return base.use(name, code=rng.choice(fresh or candidates))

    def random(self, messages: Sequence[Message], rng: Random) -> Message:
        return base.use(
            rng.choice(("run_code", "run_code", "submit")), code=rng.choice(_candidates(messages[1]["content"]))
        )

    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        """Tries the reference, then hands it in."""
        name = "run_code" if messages[-1]["role"] == "user" else "submit"
        return base.use(name, code=self.scenario.data["reference"])

    def bad(self, messages: Sequence[Message], rng: Random) -> Message:
        """Hands in the code as it was, or a function that does nothing."""
        stub = f"def {self.scenario.data['signature']}:\n    return None\n"
        return base.use("submit", code=self.scenario.data["broken"] or stub)


USUAL = (
    "sorted({})",
    "sum({})",
    "{}[::-1]",
    "len({})",
    "max({})",
    "list({})",
    "{} % 2 == 0",
    "{}",
)  # of the first argument


def _candidates(task: str) -> list[str]:
    """Programs that might be right, from the task as the policy sees it."""
    signature = task.partition(" function ")[2].partition(")")[0] + ")"
    code = re.search(r"```python\n(.*)```", task, re.DOTALL)
    if code:
        return mutants(code[1])
    first = re.split(r"[(,)]", signature)[1].strip()
    return [f"def {signature}:\n    return {body.format(first)}\n" for body in USUAL]


def _all_right(answer: str) -> bool:
    lines = answer.partition("Printed:")[0].splitlines()
    return bool(lines) and all(line.endswith(": right") for line in lines)


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


def is_unchanged(scenario: Scenario, messages: Sequence[Message]) -> bool:
    """Whether the broken code was handed in as it was; spaces and comments make no difference."""
    codes = (str(arguments.get("code")) for name, arguments, _ in base.tool_calls(messages) if name == "submit")
    return any(_bare(code) == _bare(scenario.data["broken"]) for code in codes)


def _bare(code: str) -> str:
    return "".join(re.sub(r"#.*", "", code).split())


def shorten(text: str, most: int) -> str:
    """A text of about `most` characters at most: its start and its end, and the number of characters left out between."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]} [{len(text) - most // 2 * 2} characters left out] {text[-(most // 2) :]}"
