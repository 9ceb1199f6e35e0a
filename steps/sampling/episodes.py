"""Plays episodes with continuous batching: as soon as a turn is finished, its episode gets its next request.

No episode waits for the slowest one, and nothing is tokenised twice: a prompt is the tokens so far, then those that the
observations add. An episode that fails is recorded with its error; it is never dropped.

Slow environments (`Env.lag`) answer in threads while the engine goes on. The next request is made a fixed number of
engine steps after the turn was finished, and waits for the answer where it is later: what runs together in a batch, and
with it how sums are rounded, does not depend on how long a tool took. With `free`, answers are taken as they come instead,
and the engine waits only where it has nothing to sample; what is drawn has the same seeds, so both differ by that rounding
alone. An answer that is later than its limit becomes an error that the policy reads, which does depend on the clock.
"""

from __future__ import annotations

import contextlib
import hashlib
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, NamedTuple

from environments.base import Env, Message, Scenario
from environments.kit.waiting import Limited
from steps.core.cores import use_allowed_cores
from steps.core.errors import UserError
from steps.core.pictures import Shown, filled
from steps.core.progress import measure_turns, progress
from steps.core.records import StopReason, Trajectory, Turn

if TYPE_CHECKING:
    from steps.policy.chat import Chat, Prompt
    from steps.sampling.job import Job
    from steps.sampling.turns import Sampled, TurnSampler

TOOL_WORKERS = 64  # episodes whose tools answer at the same time, at most


class Action(NamedTuple):
    """What a policy did in one turn. Policies that are asked in messages have neither token ids nor logprobs."""

    message: Message
    problems: Sequence[str] = ()  # one for each call that could not be read
    is_cut_off: bool = False  # by the limit of tokens per turn
    completion_ids: tuple[int, ...] = ()  # [C]
    logprobs: tuple[float, ...] = ()  # [C] nats


class Episode:
    """One attempt at one scenario, while it is played."""

    chat: Chat  # with the tools of the scenario's task; not where the policy is asked in messages

    def __init__(
        self,
        env: type[Env],
        data: Any,
        scenario: Scenario,
        attempt: int,
        prefix: str,
        max_turns: int | None,
        tool_timeout: float,
    ) -> None:
        self.name = f"{prefix}-{scenario.id}-{attempt}"
        self.scenario, self.attempt, self.env = scenario, attempt, env(scenario, data)
        if self.env.lag():
            self.env.limit = Limited(tool_timeout)
        self.max_turns = max_turns or self.env.max_turns
        self.messages = list(scenario.messages)  # the transcript so far
        self.ids: list[int] = []  # [P] all tokens so far: the next prompt; empty where the policy is asked in messages
        self.pictures: tuple[Shown, ...] = ()  # among the tokens: those of the scenario
        self.turns: list[Turn] = []
        self.asked = self.answered = 0.0  # time.perf_counter() of the latest request, and of its answer
        self.times: list[tuple[float, float, float]] = []  # of each turn: asked, answered, done by the environment
        self.stop_reason: StopReason | None = None
        self.error: str | None = None

    def advance(self, action: Action) -> None:
        """Append a turn, let the environment answer it, and decide whether the episode ends. Where the other side of a game
        is to move first, `observe` is called once it has.

        Where the environment raises, the turn is kept without observations.
        """
        turn = Turn(
            prompt_ids=tuple(self.ids),
            completion_ids=action.completion_ids,
            logprobs=action.logprobs,
            message=action.message,
            observations=(),
            finish_reason="length" if action.is_cut_off else "stop",
            pictures=self.pictures,
        )
        self.turns.append(turn)
        try:
            observations = [] if action.is_cut_off else self.env.step(action.message, action.problems)
        finally:
            self.times.append((self.asked, self.answered, time.perf_counter()))
        self.messages.append(action.message)
        if not self.env.awaits_rival:
            self.observe(observations, action.is_cut_off)

    def observe(self, observations: Sequence[Message], is_cut_off: bool = False) -> None:
        """Complete the latest turn by its observations, and decide whether the episode ends."""
        self.turns[-1] = self.turns[-1].model_copy(update={"observations": tuple(observations)})
        self.messages += observations
        if is_cut_off:
            self.stop_reason = "length"
        elif self.env.done:
            self.stop_reason = "done"
        elif len(self.turns) >= self.max_turns:
            self.stop_reason = "max_turns"

    @contextlib.contextmanager
    def recording_errors(self) -> Iterator[None]:
        """End this episode, and not the batch, at an error. A UserError is passed on: it concerns every episode."""
        try:
            yield
        except UserError:
            raise
        except (Exception, SystemExit) as problem:  # argparse in a tool raises the second
            self.stop_reason = "error"
            self.error = "".join(traceback.format_exception_only(problem)).strip()

    def trajectory(self, policy: str) -> Trajectory:
        """The record of a finished episode; `policy` is the adapter's hash, or the name of a policy without one."""
        if self.stop_reason is None:
            raise RuntimeError(f"episode {self.name} was never finished")
        return Trajectory(
            id=self.name,
            scenario_id=self.scenario.id,
            attempt=self.attempt,
            adapter_hash=policy,
            turns=tuple(self.turns),
            stop_reason=self.stop_reason,
            error=self.error,
            pictures=self.scenario.pictures if self.pictures else {},
        )


def play(job: Job, sampler: TurnSampler, chats: Mapping[str, Chat]) -> list[Trajectory]:
    """Play all attempts of a job as one batch and return their trajectories in the same order. `chats` are those of several
    tasks, by the name that their scenarios carry, each with its tools; or a single one, by the name ""."""
    env, limits, policy = job.env, job.limits, job.adapter_hash
    episodes = [
        Episode(env, job.data, scenario, attempt, job.prefix, limits.max_turns, limits.tool_timeout)
        for scenario, attempt in job.attempts
    ]
    rival = job.opponent.sit_down(job, episodes) if job.opponent is not None else None
    is_free = limits.order == "free"  # slow answers are taken as they come
    prompts: dict[str, Prompt] = {}
    began, start = time.time(), time.perf_counter()
    for key, episode in enumerate(episodes):
        scenario = episode.scenario
        episode.chat = chats.get(scenario.task) or chats[""]
        episode.env.call_hint = episode.chat.call_hint or episode.env.call_hint
        if scenario.id not in prompts:
            prompts[scenario.id] = episode.chat.prompt(scenario.messages, scenario.pictures)
        episode.ids, episode.pictures = list(prompts[scenario.id].ids), prompts[scenario.id].pictures
        _ask(sampler, key, episode, job)
    finished = sum(episode.stop_reason is not None for episode in episodes)
    lag, step = env.lag(), 0
    # Turns that are answered now, the oldest first: by key, the engine step that finished it, and the answer.
    answering: dict[int, tuple[int, Future[None] | None]] = {}
    with ThreadPoolExecutor(TOOL_WORKERS, initializer=use_allowed_cores) as threads, closing(episodes):
        while sampler.pending or answering:
            if sampler.pending:
                step += 1
                finished_turns = sampler.step()
                answered = time.perf_counter()
                for sampled in finished_turns:
                    if rival is not None and sampled.key < 0:  # the opponent's turn
                        key = ~sampled.key
                        _hear(rival, key, episodes[key], sampled)
                        answering[key] = step, None
                        continue
                    episodes[sampled.key].answered = answered
                    answering[sampled.key] = step, _answer(episodes[sampled.key], sampled, threads)
            elif not is_free:  # nothing to sample before the oldest answer
                step = next(iter(answering.values()))[0] + lag
            while (taken := _next(answering, None if is_free else step - lag, not sampler.pending)) is not None:
                _, answer = answering.pop(taken)
                if answer is not None:
                    answer.result()
                episode = episodes[taken]
                with episode.recording_errors():
                    if rival is not None and episode.stop_reason is None and episode.env.awaits_rival:
                        number = f"opponent {len(episode.turns)}"
                        rival.ask(sampler, taken, episode, turn_seed(job.seed, episode.scenario.id, 0, number))
                        continue
                    _extend(episode)
                if episode.stop_reason is None:
                    _ask(sampler, taken, episode, job)
                if episode.stop_reason is not None:
                    episode.env.release()
                    finished += 1
                    progress(finished, len(episodes), "episodes")
    return records(episodes, policy, began, start)


@contextlib.contextmanager
def closing(episodes: Sequence[Episode]) -> Iterator[None]:
    """Free what environments hold, however a batch ends."""
    try:
        yield
    finally:
        for episode in episodes:
            episode.env.release()


def turn_seed(seed: int, scenario_id: str, attempt: int, turn: int | str) -> int:
    """The seed of one turn's draws, 63 bits. `attempt` and `turn` count from 0; a turn of an agent of one's own may have a
    name in place of a number (addons/agents/gateway/calls.py)."""
    digest = hashlib.sha256(f"{seed} {scenario_id} {attempt} {turn}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def _ask(sampler: TurnSampler, key: int, episode: Episode, job: Job) -> None:
    if len(episode.ids) + job.max_tokens > job.policy.context:
        episode.stop_reason = "context"
    else:
        episode.asked = time.perf_counter()
        draws = turn_seed(job.seed, episode.scenario.id, episode.attempt, len(episode.turns))
        if episode.pictures:
            seeing: Any = sampler  # vLLM in this process: others are shown none (`check_sight`)
            shown = filled(episode.pictures, episode.scenario.pictures)
            seeing.submit(key, episode.ids, draws, pictures=shown)
        else:
            sampler.submit(key, episode.ids, draws)


def _next(answering: Mapping[int, tuple[int, Future[None] | None]], due: int | None, must_wait: bool) -> int | None:
    """The episode whose answer is taken now: the oldest, where its turn ended at the step `due` or before. Without `due`,
    the oldest that is answered, if need be after waiting for one. None: the engine goes on."""
    if due is not None:
        return next((key for key, (step, _) in answering.items() if step <= due), None)
    answers = [answer for _, answer in answering.values() if answer is not None]
    if must_wait and len(answers) == len(answering):
        wait(answers, return_when=FIRST_COMPLETED)
    return next((key for key, (_, answer) in answering.items() if answer is None or answer.done()), None)


def _answer(episode: Episode, sampled: Sampled, threads: ThreadPoolExecutor) -> Future[None] | None:
    """Have the environment answer a sampled turn: here, or in a thread where the environment is slow."""
    with episode.recording_errors():
        parsed = episode.chat.parse(sampled.completion_ids)
        is_cut_off = sampled.finish_reason != "stop"
        action = Action(parsed.message, parsed.problems, is_cut_off, sampled.completion_ids, sampled.logprobs)
        if episode.env.limit and not is_cut_off:
            return threads.submit(_advance, episode, action)
        episode.advance(action)
    return None


def _hear(rival: Any, key: int, episode: Episode, sampled: Sampled) -> None:
    """Complete the policy's turn by the opponent's move."""
    with episode.recording_errors():
        episode.observe(rival.hear(key, episode, sampled))
        asked, answered, _ = episode.times[-1]
        episode.times[-1] = asked, answered, time.perf_counter()


def _advance(episode: Episode, action: Action) -> None:
    with episode.recording_errors():
        episode.advance(action)


def _extend(episode: Episode) -> None:
    """Extend the prompt by the latest turn, where the episode goes on."""
    if episode.stop_reason is None:
        turn = episode.turns[-1]
        suffix = episode.chat.suffix_ids(turn.observations, turn.message)
        episode.ids = [*episode.ids, *turn.completion_ids, *suffix]


def records(episodes: Sequence[Episode], policy: str, began: float, start: float) -> list[Trajectory]:
    """The trajectories of finished episodes. Keeps the times of their turns, in seconds after the batch began, which was
    at `began` (Unix seconds) and at `start` (time.perf_counter()).
    """
    trajectories = [episode.trajectory(policy) for episode in episodes]
    times = {
        trajectory.fingerprint(): [
            (round(asked - start, 5), round(answered - start, 5), round(observed - start, 5))
            for asked, answered, observed in episode.times
        ]
        for trajectory, episode in zip(trajectories, episodes, strict=True)
    }
    measure_turns(began, times)
    return trajectories
