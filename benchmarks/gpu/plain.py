"""The yardstick of gpu-check: a step in plain, well-tuned PyTorch, next to ours on the same rows.

It has what anyone would do for speed: PEFT's adapter in the base model's type with float32 masters, each layer compiled,
torch's fastest attention, logits block by block and computed again in the backward pass. Rows have one length, each is
computed in full, and the loss is the policy gradient alone. Leaves out what an update checks and reports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks import _update
from benchmarks.gpu import models
from benchmarks.gpu.models import Measured, Rows
from benchmarks.gpu.sizes import Size

BLOCK = 2048  # tokens whose logits are computed together
Row = dict[str, Any]


def plain(size: Size) -> Iterator[Row]:
    """The model of 7B on the rows of the step 7B: ours and the plain step; ratio of the fastest."""
    rows = size.long.make(models.WORDS)
    tokens = sum(len(row["ids"]) for row in rows)
    rate = models.matmul_rate(size.dtype, size.matrix)
    trainer = models.own_trainer(models.make_base(size.large, size.dtype), size.dtype)
    update = _update.recipe(max_sampler_kl=1e9, tokens_per_micro_batch=size.tokens[0], gradient_checkpointing=False)
    own = models.ours(trainer, rows, update, 1, 1)
    work = models.operations(trainer, rows, 1)
    yield {"name": "ours", **own.row(tokens, rate)}
    del trainer
    models.free()
    best = []
    for count, again in size.plain:
        with models.fits(or_fails=True) as row:
            measured = steps_of(plain_step(size, rows, count, again), work, 2)
            row |= measured.row(tokens, rate)
            best.append(measured.seconds)
        yield {"name": f"plain, {count} rows at once{', checkpointed' if again else ''}", **row}
        reset()
    if best:
        yield {"name": "ratio", "ratio": round(min(best) / own.seconds, 3)}


def long(size: Size) -> Iterator[Row]:
    """The model of 7B on one long row, checkpointed: ours and the plain step. Does it fit, and how fast is it?"""
    rate = models.matmul_rate(size.dtype, size.matrix)
    update = _update.recipe(max_sampler_kl=1e9, gradient_checkpointing=True)
    work: dict[int, float] = {}

    def row_of(measured: Measured, length: int) -> Row:
        attention = size.large.layers * models.attention_operations(size.large, length)
        share = (measured.operations + attention) / measured.seconds / rate
        return measured.row(length, rate) | {"mfu_with_attention": round(share, 3)}

    trainer = models.own_trainer(models.make_base(size.large, size.dtype), size.dtype)
    for length in size.single:
        rows = single(length)
        work[length] = models.operations(trainer, rows, 1)
        with models.fits(or_fails=True) as row:
            row |= row_of(models.ours(trainer, rows, update, 1, 1), length)
        yield {"name": f"ours, {length} tokens", **row}
        models.free()
    del trainer
    reset()
    for length in size.single:
        with models.fits(or_fails=True) as row:
            row |= row_of(steps_of(plain_step(size, single(length), 1, True), work[length], 1), length)
        yield {"name": f"plain, {length} tokens", **row}
        reset()


def single(length: int) -> list[dict[str, Any]]:
    """One row of so many tokens, a quarter of them its prompt."""
    return Rows(1, 1, (length // 4,) * 2, (length - length // 4,) * 2).make(models.WORDS)


def steps_of(step: Callable[[], None], work: float, count: int) -> Measured:
    """A first call, and `count` timed ones."""
    with models.Peak() as peak:
        first = models.timed(step)
        best = min(models.timed(step) for _ in range(count))
    return Measured(best, first, peak.gb, work)


def reset() -> None:
    """Let go of the model, and of what was compiled for it."""
    import torch

    torch._dynamo.reset()
    models.free()


def plain_step(size: Size, rows: list[dict[str, Any]], count: int, again: bool) -> Callable[[], None]:
    """A function that makes an optimiser step of the large model on rows of one length, `count` at once; `again`: layers are
    checkpointed."""
    import torch
    from peft import LoraConfig, get_peft_model
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.checkpoint import checkpoint

    # on a CPU without Inductor, whose C++ takes a minute to compile
    backend = "inductor" if models.device().type == "cuda" else "aot_eager"
    base = models.make_base(size.large, size.dtype)
    base.set_attn_implementation("sdpa")
    lora = LoraConfig(r=16, lora_alpha=32, lora_dropout=0.0, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, lora, autocast_adapter_dtype=False).train()
    weights = [value for value in model.parameters() if value.requires_grad]
    masters = [value.detach().float().requires_grad_() for value in weights]
    optimizer = torch.optim.AdamW(masters, lr=_update.LEARNING_RATE, fused=True)
    decoder, head = base.get_decoder(), base.get_output_embeddings().weight
    if again:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    for layer in decoder.layers:
        layer.compile(backend=backend, dynamic=False)
    logps = torch.compile(block_logps, backend=backend, dynamic=True)
    ids, mask = (torch.tensor([row[key] for row in rows], device=models.device()) for key in ("ids", "mask"))
    gains = torch.tensor([row["reward"] for row in rows], device=models.device())
    parts = []
    for start in range(0, len(rows), count):
        part = slice(start, start + count)
        chosen = mask[part, 1:].bool()
        before = torch.nn.functional.pad(chosen, (0, 1)).flatten().nonzero()[:, 0]  # its state predicts a sampled token
        parts.append((ids[part], before, ids[part, 1:][chosen], gains[part, None].expand(chosen.shape)[chosen]))
    sampled = int(mask.sum())
    order = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]

    def step() -> None:
        for tokens, before, targets, factors in parts:
            with sdpa_kernel(order, set_priority=True):
                hidden = decoder(input_ids=tokens, use_cache=False).last_hidden_state.flatten(0, 1)[before]
                loss = torch.zeros((), device=hidden.device)
                for begin in range(0, len(hidden), BLOCK):
                    cut = slice(begin, begin + BLOCK)
                    values = checkpoint(logps, hidden[cut], head, targets[cut], use_reentrant=False)
                    loss = loss - ((values - values.detach()).exp() * factors[cut]).sum()
                (loss / sampled).backward()
        for weight, master in zip(weights, masters, strict=True):
            assert weight.grad is not None
            master.grad, weight.grad = weight.grad.float(), None
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        with torch.no_grad():
            torch._foreach_copy_(weights, masters)

    return step


def block_logps(hidden: Any, head: Any, targets: Any) -> Any:
    """Logprobs [N] of targets [N] from hidden states [N, width] and the output layer's weights [V, width]."""
    logits = (hidden @ head.T).float()
    return logits.gather(-1, targets[:, None])[:, 0] - logits.logsumexp(-1)
