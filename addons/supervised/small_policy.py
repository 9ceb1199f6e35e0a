"""Builds a small policy for a task, or for several, from demonstrations by the tasks' own players, good and sloppy ones.

In the demonstrations a player is drawn by the given shares for each turn or for a whole episode. The policy learns to do the
task, but unreliably, so that reinforcement learning can improve it. With --spread the shares differ between situations (a
kind of scenario, the turn, the tool that has just answered): some skills are nearly there and others hardly, so that no
single habit explains the failures. With --observations yes it also learns to predict the environment's answers, which
teaches it to read a board sooner than moves alone do. This works for any task with players. With --body FOLDER it begins
with the layers of another small policy, the embeddings of the tokens that both have, and its way of cutting texts into
words, and goes on learning to copy: where answers are read out of long texts, that saves most of the training. Scenarios are
those of the training split only. Run once; the result is committed:

    python -m addons.supervised.small_policy --task tic_tac_toe --players "scripted=0.4 random=0.6" \
        --task-data tasks_data/tic_tac_toe --policy tasks_data/tic_tac_toe/policy

For several tasks, with shares of players for each, one tokenizer serves all, and each step learns from a batch of each:

    python -m addons.supervised.small_policy --task multiplication+tic_tac_toe --task-data tasks_data --digits one \
        --players "multiplication: scripted=0.45 bad=0.55; tic_tac_toe: scripted=0.3 random=0.68 bad=0.02" --policy FOLDER

What every prompt repeats (the system message, each tool, the head of a call) is one token, and numbers are split into
digits or kept whole. With --programs yes, texts are cut as suits Python: a line break with the indentation after it is one
token, which a program and a JSON string that holds it write differently.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from addons.supervised import embedded_policy
from steps.core.errors import UserError
from steps.core.progress import say
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from addons.supervised.chats import LabelledTokens
    from environments.base import Env, Message, Scenario, Tool

SEED = 11
SCENARIOS = 2000  # most scenarios of one set of data that demonstrations play, again and again
EPISODES = 200  # until demonstrations go on with other data, of tasks whose `practice` makes such
CORPUS = 1000  # episodes that the tokenizer is trained on
LEARNING_RATE = 2e-3
LARGEST = 50.0  # log-odds that no other player stands against; more would overflow
DRAWN = ("turn", "episode")  # how often another player may move
STORED = ("float32", "bfloat16")
DIGITS = {"one": r"\p{N}", "all": r" ?\p{N}+"}
WORDS = r" ?[^\s\p{N}\p{P}\p{S}]+|%s| ?[\p{P}\p{S}]|\s"
# An operator of Python is one token, and so are a line break (in JSON, too) and the spaces that indent a line.
PROGRAMS = r"\\n *|\n *| +(?= )| ?[a-z_]+|\p{Lu}?\p{L}+|\p{N}| ?[-+*/%<>=!]+| ?[^\s\p{L}\p{N}]|\s"


def small_policy(
    task_data: Input,
    policy: Output,
    task: str,
    players: str,
    drawn: str = "turn",
    steps: str = "1000",
    digits: str = "all",
    programs: str = "no",
    observations: str = "no",
    threads: str = "2",
    body: Input | None = None,
    copies: str = "16",
    stored: str = "float32",
    spread: str = "0",
    batch_tokens: str = "8192",
) -> None:
    """Write the policy's folder: weights (safetensors, `stored` as float32 or bfloat16), configuration, tokenizer and chat
    template.

    `spread` is the standard deviation of a situation's log-odds of the player named first. Each step learns from at most
    `batch_tokens` tokens, padding included, of which each task has an equal part, and with a body from `copies` random
    sequences that repeat. Because of rounding, the bytes depend on the number of threads; 1 leaves the other core of a
    small machine free.
    """
    import torch

    import environments

    env = environments.load(task)
    if env.is_agent:
        raise UserError(f"--task {task} is an agent of your own, which has no players whose episodes could be learnt")
    parts = env.task_classes or {"": env}
    loaded = env.load(task_data)
    data = loaded if env.task_classes else {"": loaded}
    shares = shares_by_task(players, list(parts))
    if lacking := [
        part.lacks(name) for task, part in parts.items() for name in shares[task] if not part.has_player(name)
    ]:
        raise UserError(f"--players: {lacking[0]}")
    if drawn not in DRAWN:
        raise UserError(f"--drawn: a player is drawn for each {' or '.join(DRAWN)}, not {drawn!r}")
    for option, value in (("observations", observations), ("programs", programs)):
        if value not in ("yes", "no"):
            raise UserError(f"--{option}: yes or no, not {value!r}")
    if stored not in STORED:
        raise UserError(f"--stored: {' or '.join(STORED)}, not {stored!r}")
    if (deviation := float(spread)) and drawn != "turn":
        raise UserError("--spread needs --drawn turn: a player drawn for an episode cannot differ between its turns")
    corpus: list[list[Message]] = []
    fixed = [*embedded_policy.FIXED_TEXTS]
    for name, part in parts.items():
        played = list(itertools.islice(demonstrations(part, data[name], shares[name], SEED, drawn, deviation), CORPUS))
        for tool in part.tools().values():
            fixed += [f"\n{_json(tool.schema)}", _head_of_call(tool)]
        if played[0][0]["role"] == "system":
            fixed.append(str(played[0][0]["content"]))
        corpus += played
    words = embedded_policy.WORDS if body else WORDS % DIGITS[digits]
    words = PROGRAMS if programs == "yes" else words
    tokenizer = embedded_policy.make_tokenizer(_texts(corpus), words, fixed)
    torch.manual_seed(SEED)
    torch.set_num_threads(int(threads))
    model = embedded_policy.make_model(len(tokenizer))
    say(f"{model.num_parameters():,} parameters, {len(tokenizer):,} tokens")
    if body:
        say(f"{embedded_policy.take_body(model, tokenizer, body):,} of its tokens are those of {body}")
    rows = {
        name: embedded_policy.tokenized(
            tokenizer, part, demonstrations(part, data[name], shares[name], SEED + 1, drawn, deviation)
        )
        for name, part in parts.items()
    }
    train(model, rows, int(steps), int(batch_tokens), observations == "yes", copies=int(copies) if body else 0)
    policy.mkdir()
    model.to(getattr(torch, stored)).save_pretrained(policy)
    tokenizer.save_pretrained(policy)


def read_shares(text: str) -> dict[str, float]:
    """How often each player moves: "scripted=0.4 random=0.6" as numbers. UserError where they are no shares."""
    try:
        shares = {name: float(share) for name, share in (part.split("=") for part in text.split())}
    except ValueError:
        shares = {}
    names = ("scripted", "random", "gold", "bad")
    if not shares or set(shares) - set(names) or min(shares.values()) < 0 or not abs(sum(shares.values()) - 1) < 1e-6:
        raise UserError(f"--players: give shares that sum to 1 of {', '.join(names)}, as in 'scripted=0.4 random=0.6'")
    return shares


def shares_by_task(text: str, tasks: Sequence[str]) -> dict[str, dict[str, float]]:
    """The shares of each task: "a: scripted=1; b: random=1", or without names for a single one. UserError where a task has
    none, or what has shares is no task."""
    if len(tasks) == 1:
        return {tasks[0]: read_shares(text)}
    given = [part.partition(":") for part in text.split(";") if part.strip()]
    names = [name.strip() for name, _, _ in given]
    if sorted(names) != sorted(tasks):
        raise UserError(
            f"--players: give the shares of each task once, as in '{'; '.join(f'{task}: scripted=1' for task in tasks)}', "
            f"not those of {', '.join(name[:40] for name in names) or 'none'}"
        )
    return {name: read_shares(shares) for name, (_, _, shares) in zip(names, given, strict=True)}


def demonstrations(
    env: type[Env], data: Any, shares: dict[str, float], seed: int, drawn: str = "turn", spread: float = 0.0
) -> Iterator[list[Message]]:
    """Endless transcripts; a player drawn by the shares plays a turn or an episode. With a spread, the log-odds of the first
    player differ by as much (standard deviation) between situations. Same seed, same transcripts."""
    rng = random.Random(f"demonstrations {seed}")
    pool: list[Scenario] = []
    world = data
    players, weights = list(shares), list(shares.values())
    for number in itertools.count():
        made = env.practice(data, seed * 100_000 + number) if number % EPISODES == 0 else None
        if not pool or made is not None:
            world = data if made is None else made
            pool = _scenarios(env, world, seed)
        scenario = rng.choice(pool)
        episode, messages, player = env(scenario, world), list(scenario.messages), ""
        for turn in range(env.max_turns):
            if turn == 0 or drawn == "turn":
                first = weights[0] * math.exp(min(spread * leaning(scenario, messages, turn), LARGEST))
                [player] = rng.choices(players, [first, *weights[1:]])
            messages.append(getattr(episode, player)(messages, rng))
            messages += episode.step(messages[-1])
            if episode.done:
                break
        yield messages


def leaning(scenario: Scenario, messages: Sequence[Message], turn: int) -> float:
    """How far a situation is from the others, in standard deviations: always the same for the scenario's kind, the number of
    the turn, and who spoke last."""
    last = messages[-1]
    return random.Random(f"{scenario.data.get('kind')} {turn} {last.get('name', last['role'])}").gauss(0, 1)


def _scenarios(env: type[Env], data: Any, seed: int) -> list[Scenario]:
    """SCENARIOS training scenarios, or half as many until the task has enough. UserError where it has none."""
    count = SCENARIOS
    while count:
        try:
            return env.scenarios(data, "train", count, seed)
        except ValueError:
            count //= 2
    raise UserError(f"{env.__name__} has no training scenario")


def _texts(transcripts: list[list[Message]]) -> Iterator[str]:
    yield "system\nuser\nassistant\n" * 3
    for messages in transcripts:
        for message in messages:
            yield str(message["content"])
            for call in message.get("tool_calls", ()):
                yield _json(call["function"])


def _head_of_call(tool: Tool) -> str:
    """A call up to the value of its first argument, in the format of the chat template."""
    function = tool.schema["function"]
    head = _json({"name": function["name"], "arguments": {}}).removesuffix("}}")
    for name, kind in function["parameters"]["properties"].items():
        return f'<tool_call>\n{head}"{name}": ' + ('"' if kind.get("type") == "string" else "")
    return f"<tool_call>\n{head}"


def _json(value: Any) -> str:
    """JSON in the format of the chat template."""
    return json.dumps(value, ensure_ascii=False)


def train(
    model: Any,
    rows: Mapping[str, Iterator[LabelledTokens]],
    steps: int,
    batch_tokens: int,
    observations: bool = False,
    copies: int = 0,
) -> None:
    """Learn the assistants' tokens of each task's rows, and if asked for, those of the observations, and to copy."""
    rng = random.Random(SEED)

    def losses(step: int) -> dict[str, Any]:
        parts = {f"loss of {name}" if name else "loss": loss(step, own) for name, own in rows.items()}
        if copies:
            repeats = [embedded_policy.repeated_sequence(rng, model.vocab_size) for _ in range(copies)]
            parts["of repeats"] = embedded_policy.batch_loss(model, repeats)
        return parts

    def loss(step: int, own: Iterator[LabelledTokens]) -> Any:
        batch: list[LabelledTokens] = []
        while not batch or max(len(ids) for ids, _ in batch) * (len(batch) + 1) <= batch_tokens // len(rows):
            batch.append(next(own))
        if observations:
            batch = list(map(_with_answers, batch))
        # The weight of the environment's tokens falls to 0; otherwise the policy would write them itself.
        return embedded_policy.batch_loss(model, batch, 1 - step / steps)

    embedded_policy.fit(model, steps, LEARNING_RATE, losses)


def _with_answers(row: LabelledTokens) -> LabelledTokens:
    """The row with 2 at the environment's tokens after the first turn: they are learnt with a separate weight."""
    ids, learnt = row
    start = learnt.index(1)
    return ids, [0] * start + [1 if own else 2 for own in learnt[start:]]


if __name__ == "__main__":
    main(small_policy, warm=False)
