"""FlexAttention on a trie, on the CPU: is it what plain rows give, and how much is kept for a token of a long trie?

    python -m benchmarks.attention                         # tries of 2k to 32k tokens: minutes
    python -m benchmarks.attention --quick                 # 2k and 4k
    python -m benchmarks.attention --plot kept.png         # and draw what is kept

A trie has half of its tokens in a prompt that four attempts share. The others are the attempts', as many for each, where two
of them share their first third. The model is a random Qwen3 of two layers with four heads, two of keys, in float32.

`logprobs` is the relative difference (2-norm) of the packed rows' logprobs from those of stock transformers in float64, one
row at a time; torch's compiled C++ kernel computes the attention. torch has no backward pass of FlexAttention for CPUs, so
`gradients` (of the adapter, the same way) is by torch's unfused implementation, whose memory allows it up to 8k tokens. The
mask is the one that a GPU gets. `ratio` is the larger of the two over the 1e-4 that are allowed.

The other numbers are KiB that autograd keeps for a token in a layer of Qwen2.5 7B's shape, in float32 (half of it in
bfloat16): with FlexAttention, with gathered keys, and with gradient checkpointing. They are counted by the shapes of fake
tensors, not measured; no GPU is used.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks import _common
from benchmarks.gpu.counted import Kept, put_fakes
from steps.core.params import Lora, Policy
from steps.core.records import Row
from tests.support.tiny import relative

TOKENS, QUICK = (2048, 4096, 8192, 16384, 32768), (2048, 4096)
MOST_COMPARED, MOST_UNFUSED = 16384, 8192  # tokens
ALLOWED = 1e-4
RANK = 16
WORDS = 512
SMALL = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
}
LAYER_7B = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
}  # of Qwen2.5 7B


def trie_rows(tokens: int) -> list[Row]:
    """Four attempts with `tokens` unique tokens together; the prompt is not sampled."""
    import random

    draw = random.Random(tokens)

    def drawn(count: int) -> list[int]:
        return [draw.randrange(WORDS) for _ in range(count)]

    prompt, own = drawn(tokens // 2), tokens * 3 // 22
    begun = drawn(own // 3)
    attempts = [begun + drawn(own - len(begun)) for _ in range(2)] + [drawn(own) for _ in range(2)]
    return [Row(prompt + ids, [0] * len(prompt) + [1] * len(ids), [0.0] * (len(prompt) + len(ids))) for ids in attempts]


def differences(tokens: int) -> dict[str, float]:
    """Relative differences of logprobs, and up to MOST_UNFUSED tokens of gradients, from those of plain rows in float64."""
    import torch
    from peft import PeftModel
    from torch.nn.attention import flex_attention as kernel
    from transformers import AutoModelForCausalLM, Qwen3Config

    from addons.gpu import flex
    from steps.training import packing
    from steps.training.grpo import Trainer

    rows = trie_rows(tokens)
    factors = [torch.randn(sum(row.mask), generator=torch.Generator().manual_seed(n)) for n, row in enumerate(rows)]
    with tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(1)
        config = Qwen3Config(vocab_size=WORDS, num_hidden_layers=2, initializer_range=0.1, **SMALL)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        trainer = Trainer(Policy(base_model=folder, lora=Lora(rank=4)), seed=1)
        with torch.no_grad():
            for weight in trainer.weights.values():
                weight.add_(torch.randn(weight.shape) * 0.05)
        trainer.save_adapter(Path(folder, "adapter"))
        stock = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="sdpa")
        plain = PeftModel.from_pretrained(stock, Path(folder, "adapter"), is_trainable=True).double()
    has_gradient = tokens <= MOST_UNFUSED
    expected = []
    for row, factor in zip(rows, factors, strict=True):
        with torch.set_grad_enabled(has_gradient):
            logits = plain(input_ids=torch.tensor([row.ids]), use_cache=False).logits[0, :-1].log_softmax(-1)
            logps = logits.gather(1, torch.tensor(row.ids[1:])[:, None])[:, 0][torch.tensor(row.mask[1:]).bool()]
            if has_gradient:
                (logps * factor).sum().backward()
            expected.append(logps.detach())
    with patch.object(packing, "flex_on", lambda _: flex):
        packed = packing.pack(rows, torch.float32)
    compiled = torch.compile(kernel.flex_attention, dynamic=True)
    with patch.object(flex, "_compiled", lambda _: compiled), torch.no_grad():
        logps, _ = packing.token_logps(trainer.model, packed, 1.0)
    off = {"logprobs": relative([logps[packed.mask > 0]], [torch.cat(expected)])}
    if has_gradient:
        with unfused():
            logps, _ = packing.token_logps(trainer.model, packed, 1.0)
            (logps[packed.mask > 0] * torch.cat(factors)).sum().backward()
        mine, theirs = (
            [weight.grad for weight in model.parameters() if weight.requires_grad] for model in (trainer.model, plain)
        )
        off["gradients"] = relative(mine, theirs)
    return off


def unfused() -> Any:
    """Within it, torch computes FlexAttention and its gradient on a CPU without a kernel, which it refuses otherwise."""
    return patch("torch.nn.attention.flex_attention._validate_device", lambda *_: None)


def kept(config: Any, rows: list[Row], with_flex: bool = True, checkpointing: bool = False) -> int:
    """Bytes that autograd keeps for the backward pass of an adapted model on packed rows, parameters and their copies aside,
    in float32. Nothing is computed: torch's fake tensors have a shape and no data."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.autograd.graph import saved_tensors_hooks
    from torch.utils._pytree import tree_leaves
    from transformers import AutoModelForCausalLM

    from addons.gpu import flex
    from addons.kernels import fused
    from steps.training import packing
    from steps.training.model import wrap

    saved = Kept()
    with patch.object(packing, "flex_on", lambda _: flex if with_flex else None):
        packed = packing.pack(rows, torch.float32)
    with torch.device("meta"):
        model = wrap(AutoModelForCausalLM.from_config(config, dtype=torch.float32), Policy(lora=Lora(rank=RANK)))
    model.train()
    caches = []

    def contexts() -> Any:
        first, again = flex.kept_contexts()
        caches.append(first.storage)
        return first, again

    if checkpointing:
        options = {"use_reentrant": False, "context_fn": contexts}
        model.get_base_model().gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    is_fused = patch.object(fused, "is_used", lambda _: with_flex)
    with (
        unfused(),
        is_fused,
        FakeTensorMode(allow_non_fake_inputs=True),
        saved_tensors_hooks(saved.keep, lambda value: value),
    ):
        own = put_fakes(model)
        packing.token_logps(model, packed, 1.0)
        for leaf in tree_leaves([list(cache.values()) for cache in caches]):
            if isinstance(value := getattr(leaf, "val", None), torch.Tensor):  # others were computed again
                saved.keep(value)
    return saved.besides(own)


def kept_in_a_layer(tokens: int, **how: bool) -> float:
    """KiB for a token: what two layers keep more than one."""
    from transformers import Qwen2Config

    rows = trie_rows(tokens)
    single, double = (
        kept(Qwen2Config(vocab_size=WORDS, num_hidden_layers=layers, **LAYER_7B), rows, **how) for layers in (1, 2)
    )
    return (double - single) / tokens / 1024


def measure(tokens: int) -> dict[str, Any]:
    """The row of a trie."""
    off = differences(tokens) if tokens <= MOST_COMPARED else {}
    return {
        "name": f"{tokens} tokens",
        "ratio": max(off.values()) / ALLOWED if off else None,
        "logprobs": off.get("logprobs"),
        "gradients": off.get("gradients"),
        "flex": kept_in_a_layer(tokens),
        "gathered": kept_in_a_layer(tokens, with_flex=False),
        "checkpointed": kept_in_a_layer(tokens, checkpointing=True),
    }


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """What is kept for a token, by the tokens of the trie."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
    tokens = [int(row["name"].split()[0]) for row in rows]
    labels = {"gathered": "gathered keys", "flex": "FlexAttention", "checkpointed": "with gradient checkpointing"}
    for name, label in labels.items():
        axis.plot(tokens, [row[name] for row in rows], marker="o", markersize=3, label=label)
    axis.set_xscale("log", base=2)
    axis.set_xticks(tokens, [f"{count // 1024}k" for count in tokens])
    axis.set(xlabel="unique tokens of the trie", ylabel="KiB a token and layer (7 B, float32)", ylim=(0, None))
    axis.grid(alpha=0.3)
    axis.legend()
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = _common.parser("attention", __doc__, "tries of 2k and 4k tokens")
    parser.add_argument("--plot", type=Path, help="draw what is kept to this file")
    options = parser.parse_args()
    rows = _common.begin("attention", options)
    measured = []
    for tokens in QUICK if options.quick else TOKENS:
        measured.append(measure(tokens))
        rows.add(measured[-1])
    if options.plot:
        draw(measured, options.plot)


if __name__ == "__main__":
    _common.command(main)
