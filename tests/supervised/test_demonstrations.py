"""Scripted demonstrations: the same each time, whole, and as sloppy as they are meant to be."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from environments.base import Message, accepted, is_error, tool_calls
from environments.email_search import EmailSearch
from steps.supervised.demonstrations import MIXED, SLOPPY, Demonstrator, Habits, demonstrations

FOLDER = Path(__file__).parent.parent.parent / "tasks_data" / "email_search"
CAREFUL = Habits(
    query=dict.fromkeys(("sender", "month", "latest"), (1.0, 0.0, 0.0)),
    one_is_project=0.0,
    take_match=1.0,
    search_again=1.0,
    give_up=0.0,
    answer=1.0,
    look_further=1.0,
    malformed=0.0,
)


def take(seed: int, habits: Habits, count: int) -> list[list[Message]]:
    return list(itertools.islice(demonstrations(seed, habits), count))


class Played:
    """Transcripts with what the demonstrator knew of each."""

    def __init__(self, habits: Habits, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.players: list[Demonstrator] = []
        play = Demonstrator.play

        def remember(player: Demonstrator) -> list[Message]:
            self.players.append(player)
            return play(player)

        with monkeypatch.context() as patch:
            patch.setattr(Demonstrator, "play", remember)
            self.transcripts = take(3, habits, count)

    def success(self) -> float:
        done = [EmailSearch.success(one.env.scenario, one.messages) for one in self.players]
        return sum(done) / len(done)

    def first_keywords(self, kind: str) -> list[list[str]]:
        """The keywords of each episode's first well-formed search."""
        return [
            next(arguments["keywords"] for name, arguments, _ in tool_calls(one.messages) if "keywords" in arguments)
            for one in self.players
            if one.question["kind"] == kind
        ]


def test_the_same_seed_gives_the_same_transcripts() -> None:
    for habits in (MIXED, SLOPPY):
        assert take(1, habits, 100) == take(1, habits, 100)
        assert take(1, habits, 100) != take(2, habits, 100)
    assert take(1, MIXED, 100) != take(1, SLOPPY, 100)


def test_a_seed_gives_them_one_after_the_other() -> None:
    assert take(1, MIXED, 100)[:30] == take(1, MIXED, 30)


@pytest.mark.parametrize("habits", [MIXED, SLOPPY, CAREFUL], ids=["mixed", "sloppy", "careful"])
def test_every_transcript_ends_with_an_answer_in_time(habits: Habits) -> None:
    turns = set()
    for messages in take(1, habits, 1500):
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


def test_a_careful_demonstrator_is_nearly_always_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing in the others is their habits, not the script's way to the answer."""
    assert Played(CAREFUL, 600, monkeypatch).success() > 0.97


def test_sloppy_is_sloppier_than_mixed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Vaguer first searches, and right less often than a careful one by far. Between the two, success hardly differs."""
    mixed, sloppy = (Played(habits, 2000, monkeypatch) for habits in (MIXED, SLOPPY))
    for kind in ("sender", "month", "latest"):
        vague = []
        for played in (mixed, sloppy):
            words = played.first_keywords(kind)
            vague.append(sum(len(one) == 1 for one in words) / len(words))
        assert vague[0] + 0.05 < vague[1]
    assert 0.4 < sloppy.success() < 0.6
    assert 0.4 < mixed.success() < 0.6


@pytest.mark.parametrize("habits", [MIXED, SLOPPY], ids=["mixed", "sloppy"])
def test_every_way_is_demonstrated(habits: Habits, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full and vague searches, giving up, wrong answers, and malformed calls that are mended."""
    played = Played(habits, 1000, monkeypatch)
    assert {len(words) for kind in habits.query for words in played.first_keywords(kind)} == {1, 2}
    seen = {
        part.name for one in played.players for part in EmailSearch.reward(one.env.scenario, one.messages) if part.value
    }
    assert seen == {"correct", "wrong", "unknown", "found", "read", "source", "bad_source", "error", "turn"}
    malformed = sum(any(map(is_error, messages)) for messages in played.transcripts) / 1000
    assert 0.02 < malformed < 0.12


def test_no_demonstration_is_over_an_inbox_of_the_task() -> None:
    """They may share an owner's name; they share no mailbox."""
    rows = {
        (mail["date"], mail["sender"], mail["subject"], mail["id"])
        for mail in map(json.loads, (FOLDER / "mails.jsonl").read_text().splitlines())
    }
    shown = [
        tuple(line.split(" | "))
        for messages in take(7, MIXED, 400)
        for name, _, observation in tool_calls(messages)
        if name == "search_emails" and not is_error(observation)
        for line in str(observation["content"]).splitlines()[1:]
    ]
    assert len(shown) > 1000
    assert len(rows & set(shown)) < 0.002 * len(shown)  # by chance
