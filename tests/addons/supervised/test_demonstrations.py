"""Scripted demonstrations: the same each time, whole, and as sloppy as they are meant to be."""

from __future__ import annotations

import functools
import itertools
import json
import random
from math import inf
from pathlib import Path

import pytest

from addons.supervised.demonstrations import CAREFUL, SLOPPY, Demonstrator, Habits, demonstrations
from environments.base import Message, accepted, is_error, tool_calls
from environments.email_search import EmailSearch
from environments.email_search.mailbox import PROJECTS

FOLDER = Path(__file__).parent.parent.parent.parent / "tasks_data" / "email_search"
SKILLS = ("query", "filter", "row", "go_on", "answer", "cite")


def take(seed: int, habits: Habits, count: int) -> list[list[Message]]:
    return list(itertools.islice(demonstrations(seed, habits), count))


class Played:
    """Transcripts with what the demonstrator knew of each."""

    def __init__(self, habits: Habits, count: int) -> None:
        self.players: list[Demonstrator] = []
        play = Demonstrator.play

        def remember(player: Demonstrator) -> list[Message]:
            self.players.append(player)
            return play(player)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Demonstrator, "play", remember)
            self.transcripts = take(3, habits, count)

    def success(self) -> float:
        done = [EmailSearch.success(one.env.scenario, one.messages) for one in self.players]
        return sum(done) / len(done)

    def decisions(self) -> dict[str, float]:
        """How often each decision was right."""
        made: dict[str, list[bool]] = {}
        for one in self.players:
            for name, is_right in EmailSearch.decisions(one.env.scenario, one.messages):
                made.setdefault(name, []).append(is_right)
        return {name: sum(rights) / len(rights) for name, rights in made.items()}


@functools.cache
def sloppy(count: int) -> Played:
    return Played(SLOPPY, count)


def test_the_same_seed_gives_the_same_transcripts() -> None:
    for habits in (CAREFUL, SLOPPY):
        assert take(1, habits, 40) == take(1, habits, 40)
        assert take(1, habits, 40) != take(2, habits, 40)
    assert take(1, CAREFUL, 40) != take(1, SLOPPY, 40)


def test_a_seed_gives_them_one_after_the_other() -> None:
    assert take(1, SLOPPY, 60)[:30] == take(1, SLOPPY, 30)


@pytest.mark.parametrize("habits", [SLOPPY, CAREFUL], ids=["sloppy", "careful"])
def test_every_transcript_ends_with_an_answer_in_time(habits: Habits) -> None:
    turns = set()
    for messages in take(1, habits, 300):
        assert [message["role"] for message in messages[:2]] == ["system", "user"]
        assert [message["role"] for message in messages[2:]] == ["assistant", "tool"] * ((len(messages) - 2) // 2)
        name, _, observation = tool_calls(messages)[-1]
        assert (name, observation["content"]) == ("return_final_answer", "The answer was given.")
        answers = [call for call in tool_calls(messages) if call[2]["content"] == "The answer was given."]
        assert len(answers) == 1
        assert accepted(messages, "return_final_answer") == answers[0][1]
        turns.add(len(messages) // 2 - 1)
    assert max(turns) <= EmailSearch.max_turns
    assert habits is CAREFUL or turns == {2, 3, 4, 5, 6}


def test_a_careful_demonstrator_is_nearly_always_right() -> None:
    """What is missing in the others is their habits, not the script's way to the answer."""
    assert Played(CAREFUL, 300).success() > 0.97


@pytest.mark.parametrize(
    ("count", "fewer", "most"), [(800, 300, 0.5), pytest.param(2000, 1000, 0.4, marks=pytest.mark.nightly)]
)
def test_a_sloppy_one_lacks_every_skill_a_little(count: int, fewer: int, most: float) -> None:
    """No decision explains the failures by itself, and together they leave little."""
    played = sloppy(count)
    decisions = played.decisions()
    assert set(decisions) == {skill.replace("_", " ") for skill in SKILLS}
    assert all(0.35 < share < 0.75 for share in decisions.values()), decisions
    assert 0.15 < played.success() < 0.3
    for skill in SKILLS:
        cured = Played(SLOPPY._replace(**{skill: inf}), fewer)
        assert cured.success() - played.success() < most * (1 - played.success()), skill


def test_projects_differ_and_a_project_stays_the_same() -> None:
    """Each project leans its own way in each skill, so no single habit is to be flipped."""

    def share(skill: str, project: str, seed: int) -> float:
        rng = random.Random(seed)
        return sum(SLOPPY.is_careful(skill, project, rng) for _ in range(200)) / 200

    for skill in SKILLS:
        shares = [share(skill, project, 1) for project in PROJECTS]
        assert min(shares) < 0.3
        assert max(shares) > 0.6
        assert all(
            abs(first - share(skill, project, 2)) < 0.15 for project, first in zip(PROJECTS, shares, strict=True)
        )
    assert len({round(share(skill, "Falcon", 1), 1) for skill in SKILLS}) > 2


def test_every_way_is_demonstrated() -> None:
    """Right and wrong answers, giving up, and malformed calls that are mended."""
    played = sloppy(800)
    seen = {
        part.name for one in played.players for part in EmailSearch.reward(one.env.scenario, one.messages) if part.value
    }
    assert seen == {"correct", "wrong", "unknown", "found", "read", "source", "bad_source", "error", "turn"}
    malformed = sum(any(map(is_error, messages)) for messages in played.transcripts) / 800
    assert 0.02 < malformed < 0.12


def test_no_demonstration_is_over_an_inbox_of_the_task() -> None:
    """They may share an owner's name; they share no mailbox."""
    rows = {
        (mail["date"], mail["sender"], mail["subject"], mail["id"])
        for mail in map(json.loads, (FOLDER / "mails.jsonl").read_text().splitlines())
    }
    shown = [
        tuple(line.split(" | "))
        for messages in take(7, SLOPPY, 400)
        for name, _, observation in tool_calls(messages)
        if name == "search_emails" and not is_error(observation)
        for line in str(observation["content"]).splitlines()[1:]
    ]
    assert len(shown) > 1000
    assert len(rows & set(shown)) < 0.002 * len(shown)  # by chance
