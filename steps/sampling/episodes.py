"""Plays episodes with continuous batching: an episode whose turn is done gets its next request at once.

Nobody waits for the slowest, and nothing is re-tokenised: a prompt is the tokens so far and the suffix of the observation.
An episode that fails is recorded with its error, not dropped.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from environments.base import Env, Scenario
from steps.core.progress import measure_turns, progress
from steps.core.records import StopReason, Trajectory, Turn

if TYPE_CHECKING:
    from steps.policy.chat import Chat
    from steps.sampling.engine import Sampled


class Sampler(Protocol):
    """Who samples turns: vLLM (steps/sampling/engine.py), or whatever takes requests and gives finished turns back."""

    @property
    def pending(self) -> int: ...

    def submit(self, key: int, prompt_ids: list[int]) -> None: ...

    def step(self) -> list[Sampled]: ...


@dataclass
class Episode:
    """One attempt at one scenario, while it is played."""

    name: str
    scenario: Scenario
    attempt: int
    env: Env
    ids: list[int]  # all tokens so far: the next prompt
    turns: list[Turn] = field(default_factory=list)
    asked: float = 0.0  # time.perf_counter() of the latest request
    times: list[tuple[float, float, float]] = field(default_factory=list)  # of each turn: asked, answered, done
    stop_reason: StopReason | None = None
    error: str | None = None


def play(
    sampler: Sampler,
    chat: Chat,
    env: type[Env],
    data: Any,
    attempts: Sequence[tuple[Scenario, int]],  # (scenario, number of the attempt)
    *,
    prefix: str,  # of the trajectories' ids
    adapter_hash: str,
    context: int,  # tokens of an episode at most
    max_tokens: int,  # of a turn
    max_turns: int | None = None,
) -> list[Trajectory]:
    """Play all attempts and return their trajectories in the order given."""
    episodes = [
        Episode(f"{prefix}-{scenario.id}-{attempt}", scenario, attempt, env(scenario, data), [])
        for scenario, attempt in attempts
    ]
    prompts: dict[str, list[int]] = {}
    began, now = time.time(), time.perf_counter()
    limit = max_turns or env.max_turns
    for key, episode in enumerate(episodes):
        scenario = episode.scenario
        if scenario.id not in prompts:
            prompts[scenario.id] = chat.prompt_ids(scenario.messages)
        episode.ids = list(prompts[scenario.id])
        _ask(sampler, key, episode, context, max_tokens)
    finished = 0
    while sampler.pending:
        finished_turns = sampler.step()
        answered = time.perf_counter()
        for sampled in finished_turns:
            episode = episodes[sampled.key]
            try:
                _take_turn(episode, sampled, chat, limit)
            except Exception as problem:  # a failed episode is a record, not the end of the batch
                episode.stop_reason = "error"
                episode.error = "".join(traceback.format_exception_only(problem)).strip()
            if len(episode.times) < len(episode.turns):
                done = time.perf_counter()
                episode.times.append((round(episode.asked - now, 5), round(answered - now, 5), round(done - now, 5)))
            if episode.stop_reason is None:
                _ask(sampler, sampled.key, episode, context, max_tokens)
            if episode.stop_reason is not None:
                finished += 1
                progress(finished, len(episodes), "episodes")
    played = [_trajectory(episode, adapter_hash) for episode in episodes]
    pairs = zip(played, episodes, strict=True)
    measure_turns(began, {one.fingerprint(): episode.times for one, episode in pairs})
    return played


def _ask(sampler: Sampler, key: int, episode: Episode, context: int, max_tokens: int) -> None:
    if len(episode.ids) + max_tokens > context:
        episode.stop_reason = "context"
    else:
        episode.asked = time.perf_counter()
        sampler.submit(key, episode.ids)


def _take_turn(episode: Episode, sampled: Sampled, chat: Chat, limit: int) -> None:
    """Append the sampled turn, let the environment answer, and extend the prompt or say why the episode ends."""
    parsed = chat.parse(sampled.completion_ids)
    turn = Turn(
        prompt_ids=tuple(episode.ids),
        completion_ids=sampled.completion_ids,
        logprobs=sampled.logprobs,
        message=parsed.message,
        observations=(),
        finish_reason="stop" if sampled.finish_reason == "stop" else "length",
    )
    episode.turns.append(turn)
    if turn.finish_reason == "length":
        episode.stop_reason = "length"
        return
    observations = episode.env.step(parsed.message, parsed.problems)
    episode.turns[-1] = turn.model_copy(update={"observations": tuple(observations)})
    if episode.env.done:
        episode.stop_reason = "done"
    elif len(episode.turns) >= limit:
        episode.stop_reason = "max_turns"
    else:
        episode.ids = [*turn.prompt_ids, *turn.completion_ids, *chat.suffix_ids(observations)]


def _trajectory(episode: Episode, adapter_hash: str) -> Trajectory:
    if episode.stop_reason is None:
        raise RuntimeError(f"episode {episode.name} was never finished")
    return Trajectory(
        id=episode.name,
        scenario_id=episode.scenario.id,
        attempt=episode.attempt,
        adapter_hash=adapter_hash,
        turns=tuple(episode.turns),
        stop_reason=episode.stop_reason,
        error=episode.error,
    )
