"""What the steps of gpu-check share: models with random weights, rows, both sides' updates, measuring.

Weights are drawn on the device from a seed, so nothing is read from a disk or a network, and two models of one shape are the
same. Nothing here is imported before a function needs it: torch, and with it the GPU, is used in the worker alone.
"""

from __future__ import annotations

import contextlib
import gc
import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from unittest.mock import patch

from benchmarks import _trl, _update
from benchmarks._common import ROOT
from steps.core.params import Policy, Update

if TYPE_CHECKING:
    import torch

TOKENIZER = ROOT / "tasks_data" / "embedded_policy"  # TRL wants one; all tokens of the rows are in it
WORDS = 2000  # token ids of random rows are below it


class Shape(NamedTuple):
    """A model's configuration."""

    family: str  # as transformers names its classes
    width: int
    inner: int  # width of the MLP
    layers: int
    heads: int
    groups: int  # heads of keys and values
    head: int  # size of a head
    vocabulary: int
    tied: bool  # whether the output layer is the embedding

    @property
    def name(self) -> str:
        return f"{self.family}, {self.layers} layers of {self.width}"


class Rows(NamedTuple):
    """How random rows are made: groups of attempts with a common prompt, then turns that are sampled and their answers."""

    groups: int
    attempts: int
    prompt: tuple[int, int]  # tokens, at least and at most
    own: tuple[int, int]  # tokens of each attempt after it

    def make(self, vocabulary: int, seed: int = 0) -> list[dict[str, Any]]:
        """As benchmarks/_update.py has them, with rewards. Of own tokens two of three are sampled."""
        rng = random.Random(seed)
        rows = []
        for group in range(self.groups):
            prompt = [rng.randrange(10, vocabulary) for _ in range(rng.randint(*self.prompt))]
            for _ in range(self.attempts):
                own = rng.randint(*self.own)
                ids = prompt + [rng.randrange(10, vocabulary) for _ in range(own)]
                mask = [0] * len(prompt) + [int(place % 96 < 64) for place in range(own)]
                reward = rng.gauss(0, 1)
                rows.append({"ids": ids, "mask": mask, "group": f"g{group}", "prompt": len(prompt), "reward": reward})
        return rows


class Measured(NamedTuple):
    """Optimiser steps of one side."""

    seconds: float  # of the fastest timed step
    first_seconds: float | None  # of the first one, with all that is compiled or planned once; None for TRL's
    peak_gb: float | None  # 10⁹ bytes; None on a CPU
    operations: float  # floating-point operations of a step

    def row(self, tokens: int, rate: float) -> dict[str, Any]:
        """What is printed; `tokens` of all rows, shared ones counted for each; `rate` in operations per second."""
        first = {} if self.first_seconds is None else {"first_seconds": round(self.first_seconds, 2)}
        return {
            "seconds": round(self.seconds, 4),
            **first,
            "tokens_per_second": round(tokens / self.seconds),
            "mfu": round(self.operations / self.seconds / rate, 3),
            "peak_gb": self.peak_gb,
        }


def device() -> torch.device:
    """The GPU, or the CPU where torch finds none."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def config_of(shape: Shape, spread: float = 0.02) -> Any:
    """The shape as transformers has it; `spread` is the weights' standard deviation."""
    import transformers

    return getattr(transformers, f"{shape.family}Config")(
        vocab_size=shape.vocabulary,
        hidden_size=shape.width,
        intermediate_size=shape.inner,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.groups,
        head_dim=shape.head,
        max_position_embeddings=32_768,
        initializer_range=spread,
        tie_word_embeddings=shape.tied,
    )


def make_base(shape: Shape, dtype: str, spread: float = 0.02) -> Any:
    """A base model with random weights of this standard deviation, drawn on the device."""
    import torch
    import transformers

    with device():
        torch.manual_seed(0)
        return transformers.AutoModelForCausalLM.from_config(config_of(shape, spread), dtype=getattr(torch, dtype))


def own_trainer(base: Any, dtype: Any, deterministic: bool = False) -> Any:
    """The update stage's trainer around this base model, with a fresh adapter."""
    from steps.training import grpo, trained
    from steps.training.model import wrap

    settings = {"base_model": "random weights", "dtype": dtype, "context": 32_768, "deterministic": deterministic}
    policy = Policy.model_validate(settings)
    with patch.object(trained, "load_model", lambda *_, **__: wrap(base, policy)):
        return grpo.Trainer(policy, seed=1)


def moved(trainer: Any, size: float) -> Any:
    """The trainer with noise on its adapter, of whose matrices half are zero at first."""
    import torch

    torch.manual_seed(2)
    with torch.no_grad():
        for value in trainer.weights.values():
            value.add_(torch.randn_like(value) * size)
    return trainer


def free() -> None:
    """Let go of the trainer's model, and of memory that torch keeps for reuse."""
    import torch

    from steps.training import trained

    trained._bases.clear()
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def attentions() -> dict[str, Callable[[], contextlib.AbstractContextManager[Any]]]:
    """The trainer's ways to compute attention on this device, each as a context in which packing takes it.

    On a CPU torch refuses FlexAttention's gradients. That refusal is taken away, so that torch's unfused function computes
    them with the mask that a GPU gets: the toy form runs the code around the kernel, and not the kernel.
    """
    from addons.gpu import flex
    from steps.training import packing

    ways: dict[str, Callable[[], Any]] = {"gathers": lambda: patch.object(packing, "flex_on", lambda _: None)}
    if device().type == "cpu" or flex.runs_on(device()):
        ways["flex"] = with_flex
    return ways


@contextlib.contextmanager
def with_flex() -> Iterator[None]:
    from torch.nn.attention import flex_attention

    from addons.gpu import flex
    from steps.training import packing

    with contextlib.ExitStack() as patches:
        patches.enter_context(patch.object(packing, "flex_on", lambda _: flex))
        if device().type == "cpu":
            patches.enter_context(patch.object(flex_attention, "_validate_device", lambda *_: None))
        yield


def ours(
    trainer: Any, rows: list[dict[str, Any]], update: Update, steps: int, timed: int, folder: Path | None = None
) -> Measured:
    """Optimiser steps of our trainer: `steps`, after which folder/ours has the adapter, and `timed` more."""
    from steps.training.batches import TOKENS

    seconds = []
    with Peak() as peak:
        for spent in own_steps(trainer, rows, update):
            seconds.append(spent)
            if len(seconds) == steps and folder:
                trainer.save_adapter(folder / "ours")
            if len(seconds) == steps + timed:
                break
    work = operations(trainer, rows, update.tokens_per_micro_batch or TOKENS)
    return Measured(min(seconds[steps:]), seconds[0], peak.gb, work)


def own_steps(trainer: Any, rows: list[dict[str, Any]], update: Update) -> Iterator[float]:
    """Seconds of our optimiser steps on all rows, without end. A row alone, which has no advantage, has one of 1."""
    from steps.training import batches

    gains, _ = batches.advantages([row["reward"] for row in rows], [row["group"] for row in rows])
    return _update.own_steps(trainer, rows, [gain or float(len(rows) == 1) for gain in gains], update)


def watched(trainer: Any) -> list[dict[str, float]]:
    """The metrics of the trainer's updates from now on, as they are made."""
    metrics: list[dict[str, float]] = []
    train = trainer.train

    def call(*arguments: Any, **more: Any) -> dict[str, float]:
        metrics.append(train(*arguments, **more))
        return metrics[-1]

    trainer.train = call
    return metrics


def operations(trainer: Any, rows: list[dict[str, Any]], budget: int) -> float:
    """Floating-point operations of a step in micro-batches of `budget` tokens; of 1: where rows share nothing."""
    from addons.gpu import flex
    from steps.training import packing

    with patch.object(
        packing, "flex_on", lambda _: flex
    ):  # packs without the masks of gathers, which take long to make
        return _update.operations(trainer, _update.training_rows(rows), budget)


def attention_operations(shape: Shape, tokens: int) -> float:
    """Floating-point operations of causal attention on one row in one layer: two products forward, five backward."""
    return 7.0 * tokens**2 * shape.heads * shape.head


def trls(
    base: Any,
    rows: list[dict[str, Any]],
    steps: int,
    timed: int,
    batch: int,
    folder: Path,
    work: float,
    **settings: Any,
) -> Measured:
    """The same by TRL's GRPOTrainer from the checkpoint folder/start, in batches of so many rows. The adapter after `steps`
    is in folder/trl. `work`: floating-point operations of a step."""
    longest = max(len(row["ids"]) - row["prompt"] for row in rows)
    more = {"max_completion_length": longest, "base": base, **settings}
    with Peak() as peak:
        seconds = _trl.train_rows_with_trl(rows, str(TOKENIZER), folder, steps, timed, batch, **more)
    return Measured(min(seconds), None, peak.gb, work)


class Peak:
    """The most memory that torch held on the GPU within the context: `gb`, in 10⁹ bytes; None on a CPU."""

    gb: float | None = None

    def __enter__(self) -> Peak:
        if device().type == "cuda":
            import torch

            torch.cuda.reset_peak_memory_stats()
        return self

    def __exit__(self, *_: object) -> None:
        if device().type == "cuda":
            import torch

            self.gb = round(torch.cuda.max_memory_allocated() / 1e9, 2)


def timed(function: Callable[[], object]) -> float:
    """Seconds of a call, with what it leaves the GPU to do."""
    _update.finish_gpu()
    began = time.perf_counter()
    function()
    _update.finish_gpu()
    return time.perf_counter() - began


def matmul_rate(dtype: str, size: int) -> float:
    """The best rate of a product of two square matrices of random numbers, in operations per second."""
    import torch

    left, right = (torch.randn(size, size, device=device()).to(getattr(torch, dtype)) for _ in range(2))
    torch.mm(left, right)
    return float(2 * size**3 / min(timed(lambda: torch.mm(left, right)) for _ in range(10)))


def distance(values: list[Any], expected: list[Any]) -> float:
    """‖values - expected‖ / ‖expected‖ over all tensors together."""
    pairs = [(a.detach().double(), b.detach().double()) for a, b in zip(values, expected, strict=True)]
    gap = sum(float((a - b).square().sum()) for a, b in pairs)
    return float((gap / sum(float(b.square().sum()) for _, b in pairs)) ** 0.5)


def plain_logps(model: Any, row: dict[str, Any]) -> Any:
    """Logprobs of a row's sampled tokens by the model's own forward pass, float32: [S]."""
    import torch

    ids = torch.tensor(row["ids"], device=device())
    chosen = torch.tensor(row["mask"][1:], device=device()).bool()
    logits = model(input_ids=ids[None]).logits[0, :-1][chosen].float()
    return torch.log_softmax(logits, -1).gather(-1, ids[1:][chosen][:, None])[:, 0]


def packed_logps(trainer: Any, rows: list[dict[str, Any]]) -> Iterator[Any]:
    """The same of each row by the trainer's forward pass, in which rows share tokens."""
    from steps.training import packing

    logps, _ = packing.token_logps(trainer.model, packing.pack(_update.training_rows(rows), *trainer.place), 1.0)
    for row, values in zip(rows, logps, strict=True):
        yield values[: sum(row["mask"])]


@contextlib.contextmanager
def fits(or_fails: bool = False) -> Iterator[dict[str, Any]]:
    """A row to fill. Where the GPU's memory does not suffice, the row says that; `or_fails`: another error, too."""
    row: dict[str, Any] = {}
    try:
        yield row
    except Exception as problem:
        if not or_fails and not is_out_of_memory(problem):
            raise
        row["out_of_memory" if is_out_of_memory(problem) else "error"] = first_line(problem)


def is_out_of_memory(problem: BaseException) -> bool:
    """Whether this is torch's error for a GPU that has no more memory."""
    import torch

    return isinstance(problem, torch.cuda.OutOfMemoryError)


def first_line(problem: BaseException) -> str:
    """The first line of an error, at most 200 characters."""
    return (str(problem).strip().splitlines() or [type(problem).__name__])[0][:200]
