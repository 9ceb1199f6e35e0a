"""Games whose other side another policy can play: what `rollout.opponent` needs of an environment.

In training an adapter may sit on the other side of the board, where the task's scripted opponents sit otherwise. The
environment then leaves a turn open: it makes the policy's move, says that it `waits`, and shows the other side its `view`.
`close` makes the move that the other side answers, and gives the observations of the open turn. So the opponent's moves
reach the policy as observations, which are not trained on. Nothing here knows who plays: addons/selfplay/rivals.py asks an
engine.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import ValidationError

from environments import base
from environments.base import Env, Message

WAITING = "waiting for the other side"  # stands for an observation until the other side has moved; nobody reads it


class TwoSided(Env):
    """A game of two sides, one of which is the policy's. One move per turn, where another policy plays the other side."""

    opponents: ClassVar[tuple[str, ...]] = ()  # the names of the scripted opponents
    opponent: str | None  # who plays the other side: one of `opponents`; None: another policy
    waits = False  # for the other side's move
    _open: Sequence[Message] = ()  # the answers of the open turn

    def against(self, opponent: str | None) -> None:
        """Seat another opponent than the scenario's: a scripted one by its name, or None for another policy. ValueError for
        a name that is unknown."""
        if opponent is not None and opponent not in self.opponents:
            raise ValueError(f"there is no opponent {opponent}: the task has {', '.join(self.opponents)}")
        self.opponent = opponent

    @abstractmethod
    def view(self, is_first: bool) -> list[Message]:
        """What the other side is shown before its move: at first the messages that begin a game on its side, from the board
        as it is, and later the observation that follows its own turn."""

    @abstractmethod
    def counter(self, turn: Message | None) -> tuple[str, bool]:
        """Make the other side's move: the first that its turn calls for, or a random legal one, by the scenario's seed,
        where that is none. Returns what the policy then observes, and whether the move was the turn's own."""

    @property
    def awaits_rival(self) -> bool:
        return self.waits

    def step(self, message: Message, problems: Sequence[str] = ()) -> list[Message]:
        """As in every task. Where the other side is to move first, these are not the answers yet: `close` gives them."""
        self._open = super().step(message, problems)
        return list(self._open)

    def close(self, turn: Message | None) -> tuple[list[Message], bool]:
        """The answers of the open turn after this turn of the other side, and whether its move was legal."""
        text, is_legal = self.counter(turn)
        self.waits = False
        answers = [answer | {"content": text} if answer["content"] == WAITING else answer for answer in self._open]
        return answers, is_legal

    def called(self, turn: Message | None, name: str) -> Any:
        """The arguments of a turn's first call as the tool gets them; None where it is no valid call of this tool."""
        calls = (turn or {}).get("tool_calls")
        if not calls or calls[0]["function"]["name"] != name:
            return None
        try:
            return self.tools()[name].arguments.model_validate(calls[0]["function"]["arguments"])
        except ValidationError:
            return None


def early() -> str:
    """The observation of a further move in a turn, where the other side has not answered the first."""
    return base.error("it is the other side's turn: make one move per turn")
