"""Builds the embedded policy from nothing: tokenizer, chat template and a small Qwen3-architecture model.

It is trained on scripted demonstrations of email_search (addons/supervised/demonstrations.py), each of whose skills is
unreliable, and on random token sequences that repeat, from which a small transformer learns to copy from its context
(induction; without them it picks rows by chance). It can then do every part of the task, but unreliably, so that
reinforcement learning can improve it. Run once; the result is committed:

    dvc unfreeze embedded_policy && dvc repro --single-item --force embedded_policy

Left out: data or weights from elsewhere, and any language beyond the demonstrations.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from addons.templates.chat_templates import CALLS_INTRODUCTION, CHATML, TOOLS_INTRODUCTION
from steps.core.errors import UserError
from steps.core.progress import progress, say
from steps.runner.stage import Output, main

if TYPE_CHECKING:
    from pathlib import Path

    from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

    from addons.supervised.chats import LabelledTokens
    from environments.base import Env, Message

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# Texts that every prompt or call repeats are one token each: there is nothing to choose in them, and a small model would
# spend its time on them.
FIXED_TEXTS = (
    TOOLS_INTRODUCTION,
    CALLS_INTRODUCTION,
    '\n{"type": "function", "function": {"name": "',
    '", "description": "',
    '", "parameters": {"type": "object", "properties": {"',
    '": {"type": "string", "description": "',
    '": {"type": "array", "items": {"type": "string"}, "description": "',
    '": {"type": "string", "enum": ["',
    '"}}, "required": ["',
    '"]}}}',
    '<tool_call>\n{"name": "',
    '", "arguments": {"',
    '"}}\n</tool_call>',
    '"]}}\n</tool_call>',
    "<tool_response>\n",
    "\n</tool_response>",
)
# Lower-case words include the space before them. Names and numbers do not, so that they are the same token in a question,
# in a mail and inside the quotes of a call, and can be copied. Digits are split into groups of three.
WORDS = r" ?[a-z_]+|\p{Lu}?\p{L}+|\p{L}|\p{N}{1,3}|[^\p{L}\p{N}]+"

WIDTH, LAYERS, HEADS, KV_HEADS, HEAD_SIZE, INNER = 128, 4, 4, 2, 32, 384
CONTEXT = 2048
SEED = 7
STEPS = 2400
DEMONSTRATIONS = 16  # per step
REPEATS = 64  # per step: random sequences that repeat
LEARNING_RATE, WARM_UP, WEIGHT_DECAY = 1.5e-3, 100, 0.05
CORPUS = 2000  # demonstrations that the tokenizer is trained on


def embedded_policy(policy: Output, steps: int = STEPS) -> None:
    """Write the policy's folder: weights (float32 safetensors), configuration, tokenizer and chat template."""
    import torch

    torch.manual_seed(SEED)
    torch.set_num_threads(2)
    tokenizer = make_tokenizer(corpus())
    model = make_model(len(tokenizer))
    say(f"{model.num_parameters():,} parameters, {len(tokenizer):,} tokens")
    train(model, tokenizer, steps)
    policy.mkdir()
    model.save_pretrained(policy)
    tokenizer.save_pretrained(policy)


def make_tokenizer(
    texts: Iterable[str], pattern: str = WORDS, fixed: Sequence[str] = FIXED_TEXTS
) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer of the texts, split into words by a pattern; each fixed text is one token."""
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    words.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=4096,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    words.train_from_iterator(texts, trainer)
    words.add_tokens([AddedToken(text, normalized=False) for text in fixed])
    return PreTrainedTokenizerFast(
        tokenizer_object=words,
        pad_token=SPECIAL[0],
        eos_token=SPECIAL[2],
        chat_template=CHATML,
        model_max_length=CONTEXT,
    )


def corpus() -> Iterator[str]:
    from addons.supervised.demonstrations import SLOPPY, demonstrations
    from environments.email_search import SYSTEM, EmailSearch, mailbox

    numbers = [f"{number:0{width}d}" for width in (1, 2, 3) for number in range(10**width)]
    names = [*mailbox.FIRST_NAMES, *mailbox.LAST_NAMES, *mailbox.PROJECTS, *mailbox.CITIES, *mailbox.COMPANIES]
    yield " ".join((numbers + names + mailbox.MONTHS) * 3)
    yield "system user assistant " * 3
    yield SYSTEM + json.dumps([tool.schema for tool in EmailSearch.tools().values()])
    for messages in itertools.islice(demonstrations(SEED + 1, SLOPPY), CORPUS):
        for message in messages:
            yield message["content"]
            yield json.dumps(message.get("tool_calls") or "")


def make_model(tokens: int) -> Qwen3ForCausalLM:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    config = Qwen3Config(
        vocab_size=tokens,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=HEAD_SIZE,
        max_position_embeddings=CONTEXT,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    return Qwen3ForCausalLM(config)


def take_body(model: Any, tokenizer: Any, body: Path, draws: bool = False) -> int:
    """Copy another policy's layers, and its embeddings of the tokens that both have; their number. UserError where the other
    has another shape.

    `draws`: the embeddings of the other tokens are drawn with the mean and the covariance of the body's own. Its layers can
    copy such tokens at once: the loss of repeats begins at 0.2 nats in place of 10.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    other = AutoModelForCausalLM.from_pretrained(body, dtype=torch.float32)
    layers = {
        name: value
        for name, value in other.state_dict().items()
        if "embed_tokens" not in name and "lm_head" not in name
    }
    try:
        model.load_state_dict(layers, strict=False)
    except RuntimeError as problem:
        raise UserError(
            f"--body: {body} has layers of another shape than a small policy; give one of this project's"
        ) from problem
    places = AutoTokenizer.from_pretrained(body).get_vocab()
    shared = {place: places[token] for token, place in tokenizer.get_vocab().items() if token in places}
    with torch.no_grad():
        own, given = model.get_input_embeddings().weight, other.get_input_embeddings().weight
        own[list(shared)] = given[list(shared.values())]
        if draws:
            new = sorted(set(tokenizer.get_vocab().values()) - shared.keys())
            covariance = torch.cov(given.T) + 1e-6 * torch.eye(given.shape[1])
            own[new] = torch.distributions.MultivariateNormal(given.mean(0), covariance).sample((len(new),))
    return len(shared)


def train(model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, steps: int) -> None:
    """Learn the assistants' turns of demonstrations, and to repeat."""
    from addons.supervised.demonstrations import SLOPPY, demonstrations
    from environments.email_search import EmailSearch

    demonstrated = tokenized(tokenizer, EmailSearch, demonstrations(SEED, SLOPPY))
    rng = random.Random(SEED)

    def losses(step: int) -> dict[str, Any]:
        """The loss of assistants' turns and that of repeats, each a mean over its tokens."""
        rows = sorted(itertools.islice(demonstrated, DEMONSTRATIONS), key=lambda row: len(row[0]))
        half = DEMONSTRATIONS // 2
        first, second = (batch_loss(model, part) * len(part) / DEMONSTRATIONS for part in (rows[:half], rows[half:]))
        repeats = batch_loss(model, [repeated_sequence(rng, len(tokenizer)) for _ in range(REPEATS)])
        return {"loss": first + second, "of repeats": repeats}

    fit(model, steps, LEARNING_RATE, losses)


def fit(model: Qwen3ForCausalLM, steps: int, learning_rate: float, losses: Callable[[int], Mapping[str, Any]]) -> None:
    """Minimise the sum of each step's `losses` (by name): AdamW, without weight decay of norms, whose rate warms up and then
    falls as a cosine to 0."""
    import torch

    decay = [value for value in model.parameters() if value.dim() > 1]
    others = [value for value in model.parameters() if value.dim() <= 1]
    groups = [{"params": decay, "weight_decay": WEIGHT_DECAY}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.98))
    whole = 3 if steps == 2 else steps  # of two steps it would divide by 0
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, learning_rate, total_steps=whole, pct_start=min(0.5, WARM_UP / steps), cycle_momentum=False
    )
    model.train()
    for step in range(steps):
        parts = losses(step)
        sum(parts.values()).backward()  # pyrefly: ignore[missing-attribute]  # there are some
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        progress(step + 1, steps, ", ".join(f"{name} {loss.item():.3f}" for name, loss in parts.items()))
        if (step + 1) % 100 == 0:
            say(f"step {step + 1}: " + ", ".join(f"{name} {loss.item():.4f}" for name, loss in parts.items()))
    model.eval()


def tokenized(
    tokenizer: PreTrainedTokenizerFast, env: type[Env], transcripts: Iterable[list[Message]]
) -> Iterator[LabelledTokens]:
    """Demonstrations, tokenised as rollouts would have sampled them; the assistant's tokens are learnt."""
    from addons.supervised.chats import labelled
    from steps.policy.chat import Chat

    chat = Chat(tokenizer, [tool.schema for tool in env.tools().values()])
    for messages in transcripts:
        yield labelled(chat, messages)


def repeated_sequence(rng: random.Random, tokens: int) -> LabelledTokens:
    """Random tokens, a part of which is repeated after a gap: the repetition is learnt, except for its first token."""
    part = [rng.randrange(3, tokens) for _ in range(rng.randrange(8, 40))]
    before = [rng.randrange(3, tokens) for _ in range(rng.randrange(0, 16))]
    gap = [rng.randrange(3, tokens) for _ in range(rng.randrange(0, 40))]
    ids = before + part + gap + part
    return ids, [0] * (len(ids) - len(part) + 1) + [1] * (len(part) - 1)


def batch_loss(model: Qwen3ForCausalLM, rows: list[LabelledTokens], weight: float = 0.0) -> Any:
    """Mean cross-entropy (nats) of the tokens marked 1, plus `weight` times that of the tokens marked 2.

    Rows are padded on the right, where a causal model does not look.
    """
    import torch

    length = max(len(ids) for ids, _ in rows)
    ids = torch.tensor([ids + [0] * (length - len(ids)) for ids, _ in rows])  # (B, T)
    learnt = torch.tensor([mask + [0] * (length - len(mask)) for _, mask in rows])[:, 1:]
    return mean_loss(model, model.model(input_ids=ids).last_hidden_state[:, :-1], ids[:, 1:], learnt, weight)


def mean_loss(model: Qwen3ForCausalLM, hidden: Any, ids: Any, learnt: Any, weight: float = 0.0) -> Any:
    """The loss of `batch_loss` from the hidden states (B, T, width) that foretell the tokens `ids` (B, T)."""
    from torch.nn.functional import cross_entropy

    own, others = (
        cross_entropy(model.lm_head(hidden[part]), ids[part]) if part.any() else None
        for part in (learnt == 1, learnt == 2)
    )
    return own if others is None else own + weight * others


if __name__ == "__main__":
    main(embedded_policy, warm=False)
