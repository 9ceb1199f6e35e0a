"""The other side of every game of a batch, played by a frozen adapter with the same engine (`rollout.opponent`).

    rival = Rival(context, max_tokens, counts)
    rival.ask(sampler, key, episode, draws)  # the sampler has both adapters (EngineSampler, `opponent`)

Where an environment waits for the other side (environments/kit/two_sided.py), its view is put to the engine as a chat of its
own, with the opponent's adapter. What the opponent samples is not kept: the policy reads the move as an observation, which
is not trained on. What is drawn depends on the run's seed, the scenario and the number of the move, and not on the attempt:
attempts that make the same moves meet the same opponent. A turn without a legal move is replaced by a random legal one, and
counted; the opponent's chat then begins anew from the board.

vLLM has one adapter at work at a time (`max_loras`), so that the two take turns: the policy's requests are sampled together,
then those of the opponent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from addons.selfplay import section
from environments.base import Env, Message
from environments.kit.two_sided import TwoSided
from steps.core.errors import UserError
from steps.core.progress import say
from steps.policy.adapter import adapter_hash

if TYPE_CHECKING:
    from steps.sampling.episodes import Episode
    from steps.sampling.job import Job
    from steps.sampling.turns import Sampled


def seat(env: type[Env], opponent: str | None) -> type[TwoSided]:
    """The environment's class, if its other side can be played. UserError where it has none, and for a name that is none of
    its scripted opponents."""
    if not issubclass(env, TwoSided):
        raise UserError(
            f"rollout.opponent: {env.__name__} has no other side that another policy can play; take it out, or train on a "
            "game such as tic_tac_toe"
        )
    if env.lag():
        raise UserError(
            f"rollout.opponent: {env.__name__} answers beside the engine (`overlap`, or a tool that is `async def`), which "
            "does not go with an opponent; take one of the two out"
        )
    if opponent is not None and opponent not in env.opponents:
        raise UserError(
            f"rollout.opponent.player: {opponent} is neither iteration nor champion, nor one of the opponents of "
            f"{env.__name__}: {', '.join(env.opponents)}"
        )
    return env


class Opponent(NamedTuple):
    """Who plays the other side of a batch in place of the scenarios' opponents: a scripted one, or an adapter."""

    name: str | None  # of a scripted one
    adapter: Path | None
    counts: Counter[str]  # of the adapter's moves, and of those that were `replaced` by random ones

    def check(self, env: type[Env]) -> None:
        """UserError where the opponent cannot take a seat in this environment."""
        seat(env, self.name)

    def sit_down(self, job: Job, episodes: Sequence[Episode]) -> Rival | None:
        """Take the other side of each episode. What samples an adapter's moves; None: a scripted opponent makes its own."""
        for episode in episodes:
            two_sided(episode).against(self.name)
        return None if self.adapter is None else Rival(job.policy.context, job.max_tokens, self.counts)

    def described(self) -> dict[str, Any]:
        """For drawn.json: the name, or the adapter's hash and how many of its moves random ones replaced."""
        if self.adapter is None:
            return {"name": self.name}
        name, moves, replaced = adapter_hash(self.adapter), self.counts["moves"], self.counts["replaced"]
        say(f"opponent: adapter {name}, {moves} moves, {replaced} of them illegal and replaced by random ones")
        return {"adapter": name, "moves": moves, "replaced": replaced}


def seated(asked: section.Opponent, adapter: Path | None) -> Opponent:
    """The opponent of rollout.opponent; `adapter` is the one that chain.yaml names. UserError where it names none."""
    if not asked.is_adapter:
        return Opponent(asked.player, None, Counter())
    if adapter is None:
        raise UserError(
            f"rollout.opponent.player: {asked.player} needs --opponent: the folder of the opponent's adapter"
        )
    return Opponent(None, adapter, Counter())


class Rival:
    """The opponent of a batch, and its chats by episode."""

    def __init__(self, context: int, max_tokens: int, counts: Counter[str]) -> None:
        self.context, self.max_tokens, self.counts = context, max_tokens, counts
        self.chats: dict[int, list[int]] = {}  # [P] the tokens of the opponent's chat so far
        self.turns: dict[int, Message] = {}  # its latest turn, where that stays in the chat

    def ask(self, sampler: Any, key: int, episode: Episode, draws: int) -> None:
        """Queue the opponent's move in the game of an episode; `draws` is its seed."""
        env, chat = two_sided(episode), episode.chat
        ids = self.chats.get(key)
        if ids is not None:
            ids = [*ids, *chat.suffix_ids(env.view(is_first=False), self.turns.get(key))]
        if ids is None or len(ids) + self.max_tokens > self.context:
            ids = chat.prompt_ids(env.view(is_first=True))
        self.chats[key] = ids
        sampler.submit(~key, ids, draws, against=True)

    def hear(self, key: int, episode: Episode, sampled: Sampled) -> list[Message]:
        """Make the opponent's move in the game; the observations of the policy's turn."""
        is_whole = sampled.finish_reason == "stop"  # and not cut off
        turn = episode.chat.parse(sampled.completion_ids).message if is_whole else None
        answers, is_legal = two_sided(episode).close(turn)
        self.counts["moves"] += 1
        if is_legal and turn is not None:
            self.turns[key] = turn
            self.chats[key] += sampled.completion_ids
        else:
            self.counts["replaced"] += 1
            self.chats.pop(key, None)
        return answers


def two_sided(episode: Episode) -> TwoSided:
    assert isinstance(episode.env, TwoSided)
    return episode.env
