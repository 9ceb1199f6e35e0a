"""What is wrong with a task of your own, as a sentence: `make check-task` shows it in place of pytest's traceback.

tests/environments/conftest.py asks for it. A sentence names the class and the method, says what a task must do there, and
what was seen. Where all checks pass, `gains` says what the task could have besides. Left out: mistakes in several methods at
once, of which each check shows the first.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import NamedTuple

from environments.base import Env
from environments.kit.values import UnusableNumber
from steps.core import alike
from steps.core.errors import UserError

# What a task may have besides, and is asked for after the checks. BRINGS of environments/kit/players.py has the players.
GAINS = {
    "sources": "the proof that no held-out scenario has its answer from what training was shown: set it to the keys of a "
    "scenario's data that say where the answer comes from",
    "cluster": "intervals at the gate that allow for alike scenarios: define it to name the group that a scenario is of, "
    "such as its inbox; without it or `sources`, each scenario counts as independent, and the gate says so",
    "decisions": "a table of skills in each evaluation: define it to list the decisions in a transcript, right or wrong",
}
LONGEST = 300  # characters of what was seen
ROOT = Path(__file__).parent.parent.parent
TRACEBACK = 'ARGS="--tb=long" shows Python\'s traceback'

DRAWN = "take what they are about from base.draw(items, split, count, seed), and make each by Scenario.make"
NO_RAISE = (
    'a tool never raises: where a call cannot be answered, it returns base.error("what was wrong, and what to do")'
)
SCORED = (
    "it gets every transcript, also one that was cut off before the first turn or has malformed calls (base.accepted reads "
    "the last call of a tool that was accepted)"
)
NUMBERS = (
    "What `reward` gives must be finite numbers, and `success` True or False, for every transcript; an attempt with "
    "anything else is not scored"
)
PLAYED = (
    "a player returns its next turn for every transcript that the task can lead to, as base.use(tool, argument=value)"
)

# Check -> the method that it is about, and what that must do.
DEMANDS = {
    "test_the_same_seed_gives_the_same_scenarios": (
        "scenarios",
        f"must give as many different scenarios of the split as are asked for, the same for the same seed; {DRAWN}",
    ),
    "test_scenarios_are_named_by_their_content_and_can_be_stored": (
        "scenarios",
        "must give scenarios that JSON can hold (no tuples, sets or dates in `data`), named by Scenario.make, with the "
        "task's own name, and with one message of the user, or one of the system before it",
    ),
    "test_splits_share_nothing": (
        "scenarios",
        "must give no scenario to two splits: decide the split by what a scenario is about, as in "
        "base.draw(countries, split, count, seed)",
    ),
    "test_alike_scenarios_are_of_one_split": (
        "cluster",
        "(or `sources`, which it goes by) must not put scenarios of two splits into one cluster",
    ),
    "test_asking_for_too_many_scenarios_says_how_many_there_are": (
        "scenarios",
        "must raise a ValueError that says how many there are where more are asked for, and at once",
    ),
    "test_missing_data_is_named": (
        "load",
        "must read the data from the folder that it is given, and raise a FileNotFoundError with the file's name where that "
        "is missing",
    ),
    "test_data_made_for_practice_are_the_seeds_and_not_the_tasks": (
        "practice",
        "must make data of its own from the seed, at which gold succeeds; leave it out if you do not need it",
    ),
    "test_gold_succeeds_and_beats_bad": (
        "gold",
        "must succeed by `success` and get more from `reward` than `bad`, which must not succeed: one of these four methods "
        "does something else than you mean",
    ),
    "test_gold_is_paid_more_than_random_play": (
        "reward",
        "must pay the gold player more than random calls, on average over scenarios",
    ),
    "test_every_episode_ends": ("play", "must end within max_turns: the last tool sets self.done = True"),
    "test_players_make_well_formed_calls": (
        "random",
        "(or scripted, gold) must call the tools by their names, with the arguments that they declare",
    ),
    "test_the_scripted_player_sees_what_the_policy_sees": (
        "scripted",
        "must choose its turn by the transcript alone, not by self.scenario.data, which the policy never sees",
    ),
    "test_rewards_are_bounded_named_and_say_why": (
        "reward",
        "must be finite, between -5 and 5 in all, the same each time, with a name and a reason for each component, and no "
        f"success before the first turn; {SCORED}",
    ),
    "test_the_same_calls_give_the_same_observations": (
        "step",
        "must answer the same calls in the same way each time: a tool keeps what it changes in `self`, not in `self.data`, "
        "which all episodes share, and draws nothing at random without a seed",
    ),
    "test_two_episodes_share_nothing": (
        "step",
        "must answer as if no other episode ran: a tool keeps what it changes in `self`, not in `self.data` or the class",
    ),
    "test_errors_are_observations_and_change_nothing": (
        "call",
        f'must answer a wrong call with a text that begins with "Error: " and ends with a full stop; {NO_RAISE}',
    ),
    "test_problems_are_answered": ("step", "must answer a turn whose call could not be read with one error, and go on"),
    "test_the_question_does_not_hold_the_answer": (
        "scenarios",
        "must not tell the answer in a scenario's messages. `secret` names the fields of `data` that are hidden (default: "
        '("answer",)); a class whose messages may show them says `secret = ()`',
    ),
    "test_tools_do_not_leak": (
        "tools",
        'must not show what is hidden, which `secret` names (fields of a scenario\'s data; default: ("answer",)). The class '
        'attribute `shown` names the tools that are there to show it, as in shown = ("look_up",)',
    ),
    "test_every_transcript_is_rendered_and_read_back": (
        "step",
        "and the players must write plain texts, which the chat template gives back as they are: no tags such as <|im_end|>",
    ),
    "test_malformed_turns_are_answered": (
        "step",
        f"must answer any turn with a text, an error of {5_000} characters at most, within seconds; {NO_RAISE}",
    ),
    "test_a_reward_takes_any_transcript": ("reward", f"must be finite; {SCORED}"),
    "test_any_value_can_be_called_with": ("call", f"must answer whatever it is called with; {NO_RAISE}"),
}
# Method of the task -> what to do where it raises.
RAISES = {
    "load": "put what it reads into tasks_data/<task>/, and read it from the folder that it is given",
    "scenarios": "the checks draw 4 to 12 scenarios of each split (train, val, test): let each split have 4 at least",
    **dict.fromkeys(("reward", "success", "outcome", "components", "decisions"), SCORED),
    **dict.fromkeys(("scripted", "random", "gold", "bad"), PLAYED),
}


class Place(NamedTuple):
    """Where a task's own code raised."""

    name: str  # Class.method
    where: str  # file, line


def raised_in(error: BaseException) -> Place | None:
    """The innermost place in a task's own code; None where none of it was on the way."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        path, code = Path(frame.f_code.co_filename), frame.f_code
        if frame.f_globals.get("__name__") != "environments.base" and is_task(path, frame.f_globals):
            shown = path.relative_to(ROOT) if path.is_relative_to(ROOT) else path
            return Place(code.co_qualname, f"{shown}, line {line}")
    return None


def is_task(path: Path, module: dict[str, object]) -> bool:
    """Whether a file is a task's: a module that defines an Env. A test that breaks one is taken for its module, too."""
    if path.parent.name in ("support", "site-packages") or path.name == "test_environments.py":
        return False
    name = module.get("__name__")
    return any(
        isinstance(value, type) and issubclass(value, Env) and value is not Env and value.__module__ == name
        for value in module.values()
    )


def sentence(check: str, error: BaseException, owner: str) -> str:
    """What is wrong, by the check (a test's name, or `setup`) that failed with this error. `owner`: the task's class, or its
    name where there is no class yet."""
    method, demand = DEMANDS.get(check, ("", ""))
    seen = shortened(str(error))
    if isinstance(error, SyntaxError):
        return f"{error.filename}, line {error.lineno}, is no valid Python ({error.msg}): correct it there."
    if isinstance(error, UserError):
        return f"{seen}."
    if place := raised_in(error) if not isinstance(error, AssertionError) else None:
        raising = place.name.rpartition(".")[2]
        cure = RAISES.get(raising) or (NO_RAISE if raising not in ("<module>", method) else demand)
        cure = cure or "mend it there"
        return f"{place.name} raised {type(error).__name__}: {seen} ({place.where}): {cure}. {TRACEBACK}."
    if isinstance(error, UnusableNumber) and not seen.startswith(f"{owner}."):
        return f"{owner}: {seen}. {NUMBERS}. {TRACEBACK}."
    if seen.startswith(f"{owner}."):  # environments/ says already which method it is
        return f"{seen}. {TRACEBACK}."
    if not demand:
        kind = "" if isinstance(error, ValueError | TypeError | ImportError) else f"{type(error).__name__}: "
        return f"{owner}: {kind}{seen}. {TRACEBACK}."
    raised = (
        "" if isinstance(error, AssertionError) or not isinstance(error, Exception) else f"{type(error).__name__}: "
    )
    return f"{owner}.{method} {demand}. What was seen: {raised}{seen}. {TRACEBACK}."


def gains(task: str, env: type[Env]) -> list[str]:
    """What a task would gain by parts that it lacks, a sentence each. None for agents and environments of packages."""
    if env.is_agent or ":" in task:
        return []
    decides = env.decisions.__func__ is not Env.decisions.__func__
    has = {"sources": bool(env.sources), "cluster": alike.says(env), "decisions": decides}
    sentences = [f"{env.lacks(player)}." for player in ("gold", "bad", "scripted") if not env.has_player(player)]
    return sentences + [f"{task} has no `{part}`, which would bring {GAINS[part]}." for part in GAINS if not has[part]]


def shortened(text: str) -> str:
    """The first lines of an error's text, without pytest's explanation of how it compared."""
    text = " ".join(line.strip() for line in text.split("\n  +  where")[0].splitlines()[:3])
    return (text if len(text) <= LONGEST else f"{text[:LONGEST]} …").rstrip(".")
