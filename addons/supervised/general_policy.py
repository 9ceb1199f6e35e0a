"""Builds the general policy: a small model that calls tools which it never saw, to be taught any task.

It begins with the layers of the embedded policy, which can copy already, and is trained on made-up tool sets
(addons/supervised/toolsets.py), of which no two are alike, and on random token sequences that repeat. It knows nothing
of the world. A task of one's own begins with it above zero, and supervised training or reinforcement learning goes on
from there. Run once; the result is committed:

    dvc unfreeze general_policy && dvc repro --single-item --force general_policy

A training row is a set of tools with several episodes beside each other, which see the tools and themselves and not one
another: the tools, most of the tokens, are computed once for all of them. Left out: data or weights from elsewhere.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from addons.supervised import words
from addons.supervised.embedded_policy import (
    FIXED_TEXTS,
    SPECIAL,
    fit,
    make_model,
    make_tokenizer,
    mean_loss,
    repeated_sequence,
    take_body,
)
from addons.supervised.toolsets import ToolSet, toolsets
from environments.base import Message
from steps.core.progress import say
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

# A space is a token of its own, or belongs to a short word that begins no value, and digits are split in pairs. So a value
# is the same tokens in a request, in an observation and between the quotes of a call, and can be copied token by token.
PATTERN = (
    r" (?:a|an|the|of|to|is|in|on|at|for|and|or|with|by|from|it|that|this|be|are|which|you|I|has|have|what|me)"
    r"(?![\p{L}\p{N}_])"
    r"|\p{Lu}?\p{Ll}+|\p{L}|\p{N}{1,2}|\s|[^\s\p{L}\p{N}]+ ?"
)
MORE_FIXED_TEXTS = (
    '": {"type": "integer", "description": "',
    '": {"type": "number", "description": "',
    '": {"type": "boolean", "description": "',
    '"], "description": "',
    '", "parameters": {"type": "object", "properties": {}, "required": []}}}',
    '"}}, "required": []}}}',
    '"}, "',
    '": "',
    '", "',
    '": ',
    '", "arguments": {}}\n</tool_call>',
    "}}\n</tool_call>",
    "<|im_start|>user\n",
    "<|im_start|>assistant\n",
)
SEED = 13
BATCH_TOKENS = 2304  # of rows with tools, padding included, per step
ROW_TOKENS = 1400  # episodes that would make a row longer are left out
LEARNING_RATE = 1.5e-3
TEXTS = 0.3  # what the loss of all other tokens counts in the second round
CORPUS = 1500  # sets of tools that the tokenizer is trained on


class Round(NamedTuple):
    """A part of the training, whose learning rate falls to 0."""

    steps: int
    seed: int  # of the sets
    tools: int  # the fewest of a set
    repeats: int  # per step: random sequences that repeat
    chooses: bool  # whether choices count twice, and all texts a little


# First to copy, then to choose: of 1,500 steps of the first kind alone, a choice among four tools is right in 30 %.
ROUNDS = (Round(3500, SEED, 0, 6, False), Round(3000, SEED + 2, 3, 2, True))


def general_policy(body: Input, policy: Output, steps: int = 0) -> None:
    """Write the policy's folder: weights (bfloat16 safetensors), configuration, tokenizer and chat template. `steps` are
    those of each round; 0: as many as ROUNDS has."""
    import torch

    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    tokenizer = make_tokenizer(corpus(), PATTERN, (*FIXED_TEXTS, *MORE_FIXED_TEXTS))
    model = make_model(len(tokenizer))
    say(f"{model.num_parameters():,} parameters, {len(tokenizer):,} tokens")
    say(f"{take_body(model, tokenizer, body, draws=True):,} of its tokens are those of {body}")
    for each in ROUNDS:
        train(model, tokenizer, each._replace(steps=steps or each.steps))
        for weight in model.parameters():
            weight.data = weight.data.bfloat16().float()
    policy.mkdir()
    model.to(torch.bfloat16).save_pretrained(policy)
    tokenizer.save_pretrained(policy)


def corpus() -> Iterator[str]:
    """Texts of made-up tool sets, and the words themselves, so that each known word is one token."""
    yield "system user assistant " * 3
    vocabulary = [
        *words.THINGS,
        *words.STUFF,
        *words.TOPICS,
        *words.WORDS,
        *words.ADJECTIVES,
        *words.FIRST,
        *words.LAST,
    ]
    vocabulary += [*words.PLACES, *words.ROADS, *words.PLACED, *words.DAYS, *words.MONTHS, *words.NUMBERS, *words.UNITS]
    yield " ".join(form for word in vocabulary for form in (word, word.capitalize(), words.plural(word))) * 4
    yield " ".join(f"{number:02d}" for number in range(100)) * 30
    for made in itertools.islice(toolsets(SEED + 1), CORPUS):
        yield made.system + json.dumps(made.tools, ensure_ascii=False)
        for episode in made.episodes:
            for message in episode:
                yield str(message["content"])
                yield json.dumps([call["function"] for call in message.get("tool_calls") or ()], ensure_ascii=False)


class Row(NamedTuple):
    """A set of tools and its episodes: the tokens of what all share, then those of each episode, one after another."""

    ids: list[int]  # [T]
    learnt: list[int]  # [T] 1 for each token that is learnt, otherwise 0
    episode: list[int]  # [T] 0 in what is shared, then the number of the episode
    place: list[int]  # [T] the position of each token in the conversation that it belongs to


def row(tokenizer: PreTrainedTokenizerFast, made: ToolSet) -> Row:
    """A row of at most ROW_TOKENS tokens, as rollouts would have its episodes one by one."""
    ids = tokenizer.encode(opening(tokenizer, made), add_special_tokens=False)
    result = Row(ids, [0] * len(ids), [0] * len(ids), [*range(len(ids))])
    shared = len(ids)
    for number, messages in enumerate(made.episodes, 1):
        own, learnt = episode_tokens(tokenizer, messages)
        if len(result.ids) + len(own) > ROW_TOKENS:
            break
        result.ids.extend(own)
        result.learnt.extend(learnt)
        result.episode.extend([number] * len(own))
        result.place.extend(range(shared, shared + len(own)))
    return result


def opening(tokenizer: PreTrainedTokenizerFast, made: ToolSet) -> str:
    """What the chat template writes before the first message of the user."""
    messages: list[Message] = [{"role": "system", "content": made.system}] if made.system else []
    user = {"role": "user", "content": "?"}
    text = str(tokenizer.apply_chat_template([*messages, user], tools=made.tools or None, tokenize=False))
    return text.rpartition("<|im_start|>user\n")[0]


def episode_tokens(tokenizer: PreTrainedTokenizerFast, messages: list[Message]) -> tuple[list[int], list[int]]:
    """The tokens of an episode from the user's message on, and 1 for each that is learnt; what follows its last turn is left
    out. The same as `addons.supervised.chats.labelled` has them after the tools, and much faster."""
    ids: list[int] = []
    learnt: list[int] = []
    for message in messages:
        is_own = message["role"] == "assistant"
        text = _own_text(message) if is_own else _others_text(message)
        part = tokenizer.encode(text, add_special_tokens=False)
        ids += part
        learnt += [int(is_own and not message.get("flawed"))] * len(part)
    return ids, learnt


def _own_text(message: Message) -> str:
    calls = [json.dumps(call["function"], ensure_ascii=False) for call in message.get("tool_calls") or ()]
    return str(message["content"]) + "\n".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls) + "<|im_end|>"


def _others_text(message: Message) -> str:
    if message["role"] == "user":
        return f"<|im_start|>user\n{message['content']}<|im_end|>\n<|im_start|>assistant\n"
    answer = f"<tool_response>\n{message['content']}\n</tool_response>"
    return f"\n<|im_start|>user\n{answer}<|im_end|>\n<|im_start|>assistant\n"


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, part: Round) -> None:
    """Learn the assistant's turns of made-up episodes, and to repeat."""
    made = (row(tokenizer, each) for each in toolsets(part.seed) if len(each.tools) >= part.tools)
    fixed = {place for token, place in tokenizer.get_added_vocab().items() if token not in SPECIAL}
    rng = random.Random(part.seed)
    waiting = [next(made)]  # the row for which the last batch had no space

    def losses(step: int) -> dict[str, Any]:
        batch = [waiting.pop()]
        while not waiting:
            more = next(made)
            fits = max(len(each.ids) for each in (more, *batch)) * (len(batch) + 1) <= BATCH_TOKENS
            (batch if fits else waiting).append(more)
        repeats = [repeated_sequence(rng, len(tokenizer)) for _ in range(part.repeats)]
        copies = [Row(ids, learnt, [0] * len(ids), [*range(len(ids))]) for ids, learnt in repeats]
        parts = shared_losses(model, batch, fixed) if part.chooses else {"loss": shared_loss(model, batch)}
        return parts | {"of repeats": shared_loss(model, copies)}

    fit(model, part.steps, LEARNING_RATE, losses)


def shared_loss(model: Qwen3ForCausalLM, rows: list[Row]) -> Any:
    """Mean cross-entropy (nats) of the learnt tokens. Each token sees what all episodes share and its own episode."""
    hidden, ids, learnt = foretold(model, rows)
    return mean_loss(model, hidden, ids[:, 1:], learnt)


def shared_losses(model: Qwen3ForCausalLM, rows: list[Row], fixed: set[int]) -> dict[str, Any]:
    """As `shared_loss` of the learnt tokens, of those among them that follow a fixed text, and of all others (TEXTS times).
    The second are choices: which tool, which argument, and where its value begins."""
    import torch

    hidden, ids, learnt = foretold(model, rows)
    own, follows = learnt == 1, torch.isin(ids[:, :-1], torch.tensor(sorted(fixed)))
    loss, choices, others = (
        mean_loss(model, hidden, ids[:, 1:], mask.long()) for mask in (own, own & follows, learnt == 0)
    )
    return {"loss": loss, "of choices": choices, "of texts": TEXTS * others}


def foretold(model: Qwen3ForCausalLM, rows: list[Row]) -> tuple[Any, Any, Any]:
    """The hidden states (B, T - 1, width) that foretell the tokens after the first, the ids (B, T), and what is learnt of
    those after the first (B, T - 1), -1 where a row is padded."""
    import torch

    length = max(len(each.ids) for each in rows)

    def padded(part: list[list[int]], filling: int) -> Any:
        return torch.tensor([values + [filling] * (length - len(values)) for values in part])  # (B, T)

    episode = padded([each.episode for each in rows], -1)
    earlier = torch.ones(length, length, dtype=torch.bool).tril()
    seen = earlier & ((episode[:, None, :] == 0) | (episode[:, None, :] == episode[:, :, None]))  # (B, T, T)
    ids, learnt = padded([each.ids for each in rows], 0), padded([each.learnt for each in rows], -1)
    places = padded([each.place for each in rows], 0)
    hidden = model.model(input_ids=ids, position_ids=places, attention_mask=seen[:, None]).last_hidden_state
    return hidden[:, :-1], ids, learnt[:, 1:]


if __name__ == "__main__":
    main(general_policy, warm=False)
