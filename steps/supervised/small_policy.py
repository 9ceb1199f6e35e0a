"""Builds a small policy for one task from its own players: good demonstrations, sloppy ones, and a model that imitates both.

The environment's players move in the demonstrations, drawn by the given shares for each turn or for a whole episode, so
that the policy can do the task and does it unreliably: reinforcement learning has something to find. With --observations
yes it learns to foresee the environment's answers too, which teaches it to read a board sooner than moves alone do. Any task
with players gets one, a user's own too. A mail-sized vocabulary and copying are what
steps/supervised/embedded_policy.py adds.
Scenarios are those of the training split alone. Run once; the result is committed:

    python -m steps.supervised.small_policy --task tic_tac_toe --players "scripted=0.4 random=0.6" --task-data
    tasks_data/tic_tac_toe \
        --policy tasks_data/tic_tac_toe/policy

What every prompt repeats (the system message, the tools, the head of a call) is one token each, and numbers are read digit
by digit or whole.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.core.progress import progress, say
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from environments.base import Env, Message, Scenario, Tool
    from steps.supervised.embedded_policy import Row

SEED = 11
SCENARIOS = 2000  # that demonstrations play, again and again
CORPUS = 1000  # episodes that the tokenizer is made from
BATCH_TOKENS = 8192  # of a step, padding included
LEARNING_RATE = 2e-3
DRAWN = ("turn", "episode")  # how often another player may move
DIGITS = {"one": r"\p{N}", "all": r" ?\p{N}+"}
WORDS = r" ?[^\s\p{N}\p{P}\p{S}]+|%s| ?[\p{P}\p{S}]|\s"


def small_policy(
    task_data: Input,
    policy: Output,
    task: str,
    players: str,
    drawn: str = "turn",
    steps: str = "1000",
    digits: str = "all",
    observations: str = "no",
    threads: str = "2",
) -> None:
    """Write the policy's folder: weights (float32 safetensors), configuration, tokenizer and chat template.

    The bytes depend on the number of threads, by rounding; one leaves a small machine's other core to other work.
    """
    import torch

    import environments
    from steps.supervised import embedded_policy

    env = environments.load(task)
    data = env.load(task_data)
    shares = read_shares(players)
    if drawn not in DRAWN:
        raise UserError(f"--drawn: a player is drawn for each {' or '.join(DRAWN)}, not {drawn!r}")
    if observations not in ("yes", "no"):
        raise UserError(f"--observations: yes or no, not {observations!r}")
    told = list(itertools.islice(demonstrations(env, data, shares, SEED, drawn), CORPUS))
    first = told[0]
    fixed = [*embedded_policy.FIXED_TEXTS]
    for tool in env.tools().values():
        fixed += [f"\n{_json(tool.schema)}", _head_of_call(tool)]
    if first[0]["role"] == "system":
        fixed.append(str(first[0]["content"]))
    tokenizer = embedded_policy.make_tokenizer(_texts(told, env), WORDS % DIGITS[digits], fixed)
    torch.manual_seed(SEED)
    torch.set_num_threads(int(threads))
    model = embedded_policy.make_model(len(tokenizer))
    say(f"{model.num_parameters():,} parameters, {len(tokenizer):,} tokens")
    rows = tokenized(tokenizer, env, demonstrations(env, data, shares, SEED + 1, drawn))
    train(model, rows, int(steps), observations == "yes")
    policy.mkdir()
    model.save_pretrained(policy)
    tokenizer.save_pretrained(policy)


def read_shares(text: str) -> dict[str, float]:
    """scripted=0.4 random=0.6: which player moves, and how often."""
    try:
        shares = {name: float(share) for name, share in (one.split("=") for one in text.split())}
    except ValueError:
        shares = {}
    known = ("scripted", "random", "gold", "bad")
    if not shares or set(shares) - set(known) or min(shares.values()) < 0 or not abs(sum(shares.values()) - 1) < 1e-6:
        raise UserError(f"--players: give shares that sum to 1 of {', '.join(known)}, as in 'scripted=0.4 random=0.6'")
    return shares


def demonstrations(
    env: type[Env], data: Any, shares: dict[str, float], seed: int, drawn: str = "turn"
) -> Iterator[list[Message]]:
    """Transcripts without end; a player drawn by the shares plays a turn or an episode. Same seed, same transcripts."""
    rng = random.Random(f"demonstrations {seed}")
    pool = _scenarios(env, data, seed)
    while True:
        scenario = rng.choice(pool)
        episode, messages = env(scenario, data), list(scenario.messages)
        for turn in range(env.max_turns):
            if turn == 0 or drawn == "turn":
                [player] = rng.choices(list(shares), list(shares.values()))
            messages.append(getattr(episode, player)(messages, rng))
            messages += episode.step(messages[-1])
            if episode.done:
                break
        yield messages


def _scenarios(env: type[Env], data: Any, seed: int) -> list[Scenario]:
    """As many training scenarios as there are, at most SCENARIOS."""
    count = SCENARIOS
    while count:
        try:
            return env.scenarios(data, "train", count, seed)
        except ValueError:
            count //= 2
    raise UserError(f"{env.__name__} has no training scenario")


def _texts(told: list[list[Message]], env: type[Env]) -> Iterator[str]:
    yield "system\nuser\nassistant\n" * 3
    for messages in told:
        for message in messages:
            yield str(message["content"])
            for call in message.get("tool_calls", ()):
                yield _json(call["function"])


def _head_of_call(tool: Tool) -> str:
    """A call up to the value of its first argument, as the chat template writes it."""
    function = tool.schema["function"]
    head = _json({"name": function["name"], "arguments": {}}).removesuffix("}}")
    for name, kind in function["parameters"]["properties"].items():
        return f'<tool_call>\n{head}"{name}": ' + ('"' if kind.get("type") == "string" else "")
    return f"<tool_call>\n{head}"


def _json(value: Any) -> str:
    """As the chat template writes it."""
    import json

    return json.dumps(value, ensure_ascii=False)


def tokenized(tokenizer: Any, env: type[Env], told: Iterator[list[Message]]) -> Iterator[Row]:
    """Demonstrations as rollouts would have sampled them; the assistant's tokens are learnt."""
    from steps.policy.chat import Chat

    chat = Chat(tokenizer, [tool.schema for tool in env.tools().values()])
    for messages in told:
        start = next(place for place, message in enumerate(messages) if message["role"] == "assistant")
        ids = chat.prompt_ids(messages[:start])
        learnt = [0] * len(ids)
        rest = messages[start:]
        turns = [place for place, message in enumerate(rest) if message["role"] == "assistant"]
        for place, following in zip(turns, [*turns[1:], None], strict=True):
            sampled = chat.completion_ids(rest[place])
            shown = [] if following is None else chat.suffix_ids(rest[place + 1 : following])
            ids += sampled + shown
            learnt += [1] * len(sampled) + [0] * len(shown)
        yield ids, learnt


def train(model: Any, rows: Iterator[Row], steps: int, observations: bool = False) -> None:
    """AdamW, cosine schedule; the mean loss of the assistants' tokens, and of the environment's, of BATCH_TOKENS a step."""
    import torch

    from steps.supervised.embedded_policy import batch_loss, make_optimizer

    optimizer, schedule = make_optimizer(model, LEARNING_RATE, steps)
    model.train()
    for step in range(steps):
        batch: list[Row] = []
        while not batch or max(len(ids) for ids, _ in batch) * (len(batch) + 1) <= BATCH_TOKENS:
            batch.append(next(rows))
        # Of the environment's words less and less, or the policy would come to speak for it.
        loss = batch_loss(model, list(map(_with_answers, batch)) if observations else batch, 1 - step / steps)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        progress(step + 1, steps, f"loss {loss.item():.3f}")
        if (step + 1) % 100 == 0:
            say(f"step {step + 1}: loss {loss.item():.4f}")
    model.eval()


def _with_answers(row: Row) -> Row:
    """Learnt too, and averaged by itself: what the environment said after the first turn."""
    ids, learnt = row
    start = learnt.index(1)
    return ids, [0] * start + [1 if own else 2 for own in learnt[start:]]


if __name__ == "__main__":
    main(small_policy, warm=False)
