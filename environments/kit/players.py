"""The players of a task: methods that return an episode's next turn, so that it can be played without a model.

All of them are optional. What needs one asks `has_player`; where there is none, `lacks` says which one is missing, what it
would bring and where to write it. `random` has a default, which fits any task with tools.

    env.has_player("scripted") or env.lacks("scripted")
    messages = env(scenario, data).play("scripted")
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, ClassVar

from environments.kit.scenarios import Scenario
from environments.kit.tools import any_call
from environments.kit.transcripts import Message, words

BRINGS = {  # what a player would bring, for the sentence of what needs it
    "scripted": "demonstrations that cost nothing, and a success to compare the trained policy with",
    "random": "the success of play without any skill",
    "gold": "the proof that every scenario can be solved, and that its success is seen",
    "bad": "the proof that a wrong answer earns less than a right one",
}


class NoPlayer(ValueError):
    """The task does not define the player that was asked for: a sentence, with which the command ends."""

    is_sentence = True


class Players:
    """What `Env` has of players. They are baselines, demonstrations, and what a task is checked with
    (tests/environments/test_environments.py)."""

    # As Env has them.
    max_turns: ClassVar[int]
    is_agent: ClassVar[bool]
    tools: ClassVar[Any]
    takes_words: ClassVar[Any]
    scenario: Scenario
    done: bool
    step: Any
    release: Any

    @classmethod
    def has_player(cls, player: str) -> bool:
        """Whether the task has this one of `BRINGS`."""
        return not cls.is_agent and (player == "random" or getattr(cls, player) is not getattr(Players, player))

    @classmethod
    def lacks(cls, player: str) -> str:
        """The sentence, without its full stop, that the task has no such player."""
        task = cls.__module__.removeprefix("environments.")
        if cls.is_agent:
            return f"{task} is an agent of your own, which has no players"
        return (
            f"{task} has no {player} player, which would bring {BRINGS[player]}: define the method `{player}` in its class, "
            "as environments/multiplication/ does"
        )

    def scripted(self, messages: Sequence[Message], rng: Random) -> Message:
        """A best effort by rules that uses only what the policy sees: the transcript and the tools."""
        raise NoPlayer(self.lacks("scripted"))

    def random(self, messages: Sequence[Message], rng: Random) -> Message:
        """Any well-formed turn. By default a call whose arguments fit their schema, with words of the transcript as texts;
        where the task takes plain words (`hear`), sometimes those."""
        if not self.tools() or (self.takes_words() and rng.random() < 0.2):
            return words("I do not know.")
        texts = [str(message["content"]) for message in messages if message["role"] != "system"]
        return any_call(self.tools(), rng, texts)

    def gold(self, messages: Sequence[Message], rng: Random) -> Message:
        """A turn of a player who knows the hidden data and succeeds."""
        raise NoPlayer(self.lacks("gold"))

    def bad(self, messages: Sequence[Message], rng: Random) -> Message:
        """A plausible but wrong turn; its episode must be rewarded less than that of `gold`."""
        raise NoPlayer(self.lacks("bad"))

    def play(self, player: str, seed: int = 0) -> list[Message]:
        """The transcript of a whole episode by a player. NoPlayer where the task has none of this name."""
        if not self.has_player(player):
            raise NoPlayer(self.lacks(player))
        rng = Random(f"{player} {seed} {self.scenario.id}")
        messages = list(self.scenario.messages)
        try:
            for _ in range(self.max_turns):
                messages.append(getattr(self, player)(messages, rng))
                messages += self.step(messages[-1])
                if self.done:
                    break
        finally:
            self.release()
        return messages
