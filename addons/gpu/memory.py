"""The memory of an update on a GPU: what a token needs, how many are computed together, and weights that leave for a while.

What a token needs is counted, not measured: the tensors that autograd keeps for the backward pass of
addons/kernels/layers.py and of transformers' experts, with FlexAttention (tests/addons/gpu/test_memory.py compares the count
with what is kept).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from addons.gpu.section import Cards
from steps.core.ports import every
from steps.core.progress import say
from steps.core.section import at
from steps.training import model as models
from steps.training.batches import TOKENS, Example
from steps.training.processes import gathered
from steps.training.terms import terms_of

if TYPE_CHECKING:
    import torch

    from steps.core.params import Update
    from steps.training.trained import Trained

MOST = 32768  # tokens of a micro-batch; a GPU computes no faster with more
SAFETY = 0.85  # of the free memory: the rest is for fragments, and for what the count leaves out
LOGITS = 7  # bytes for each number of a block of logits: itself and its slope in the model's type, and temporaries


class MicroBatches(NamedTuple):
    """How an update's tokens are computed."""

    tokens: int  # in one forward pass
    checkpointing: bool
    keeps_attention: bool = False  # of checkpointed layers: FlexAttention's results are not computed again


class Costs(NamedTuple):
    """Bytes that one token needs in an update."""

    layer: int  # kept in one layer for its backward pass
    whole: int  # kept in all layers
    checkpointed: int  # kept where a layer keeps its input alone, without the one layer that is computed again
    attended: int  # kept beside it, where layers keep what FlexAttention gave, too


def costs(config: Any, rank: int, size: int) -> Costs:
    """What a token of a model with this transformers configuration needs, with an adapter of this rank on all linear layers.

    `size`: bytes of a number, 2 for bfloat16. Of a mixture of experts, the experts that a token passes count.
    """
    config = config.get_text_config()
    width, heads = config.hidden_size, config.num_attention_heads
    head = getattr(config, "head_dim", None) or width // heads
    query, key = heads * head, (getattr(config, "num_key_value_heads", None) or heads) * head
    inner = 2 * config.intermediate_size  # what gate and up give; their product is computed again
    if experts := getattr(config, "num_experts_per_tok", None):
        shared = getattr(config, "shared_expert_intermediate_size", None) or 0
        inner = 4 * (experts * (getattr(config, "moe_intermediate_size", None) or config.intermediate_size) + shared)
    numbers = 4 * width  # inputs of both norms and what they give
    numbers += 2 * query + 2 * key  # queries, keys, values and results of the attention
    numbers += query + key if "qwen3" in str(config.model_type) else 0  # inputs of the heads' norms
    numbers += inner
    numbers += 7 * rank  # between the adapter's two matrices
    layer = size * numbers + 4 * (heads + 2)  # and in float32 the attention's and the norms' scales
    ends = 4 * width * size  # input and result of the last norm, hidden states of sampled tokens and their gradient
    layers = config.num_hidden_layers
    return Costs(layer, layers * layer + ends, layers * width * size + ends, layers * (query * size + 4 * heads))


def choose(settings: Update, cost: Costs, longest: int, free: float) -> MicroBatches:
    """Micro-batches for `free` bytes, where the settings leave them open. `longest`: tokens of the longest trajectory.

    Without checkpointing where the longest trajectory and TOKENS fit, because a second forward pass costs a third more. The
    number of tokens is a power of two, so that a little more or less of free memory changes nothing. What that leaves free
    may hold the results of attention.
    """
    room = SAFETY * free
    wanted = max(settings.tokens_per_micro_batch or TOKENS, longest)
    checkpointing = settings.gradient_checkpointing
    if checkpointing is None:
        checkpointing = wanted * cost.whole > room
    again = 2 * cost.layer  # the layer that is computed again, and its gradients
    a_token = (cost.checkpointed if checkpointing else cost.whole) + again
    if wanted * a_token > room:
        say(
            f"{wanted} tokens may need {wanted * a_token / 2**30:.1f} GiB, and {free / 2**30:.1f} GiB are free: "
            "a trajectory is never divided, so lower policy.context if the update runs out of memory"
        )
    fitting = int(room // a_token)
    tokens = settings.tokens_per_micro_batch or min(MOST, max(TOKENS // 4, 2 ** (max(fitting, 1).bit_length() - 1)))
    keeps_attention = checkpointing and max(tokens, longest) * (a_token + cost.attended) <= room
    return MicroBatches(tokens, checkpointing, keeps_attention)


def with_micro_batches(trainer: Trained, examples: Sequence[Example], settings: Update) -> Update:
    """The settings with the tokens of a micro-batch, and whether layers are checkpointed, where they leave that open. The
    trainer keeps whether those keep FlexAttention's results."""
    longest = max(sum(map(len, example.ids)) for example in examples)
    rank, is_deterministic = trainer.policy.lora.rank, Cards.of(trainer.policy).deterministic
    chosen = micro_batches_on(trainer.place[1], trainer.model, settings, rank, longest, is_deterministic)
    everywhere = gathered(chosen)  # processes that divide a model pass through it together
    tokens, checkpointing = min(each.tokens for each in everywhere), any(each.checkpointing for each in everywhere)
    trainer.keeps_attention = all(each.keeps_attention for each in everywhere)
    return settings.model_copy(update={"tokens_per_micro_batch": tokens, "gradient_checkpointing": checkpointing})


def micro_batches_on(
    device: torch.device, model: Any, settings: Update, rank: int, longest: int, deterministic: bool
) -> MicroBatches:
    """The micro-batches of an update on this GPU. In a deterministic run they do not depend on memory; there checkpointing
    is on where the settings leave it open."""
    if deterministic:
        return MicroBatches(settings.tokens_per_micro_batch or TOKENS, settings.gradient_checkpointing is not False)
    from steps.training import logprobs

    head = model.get_output_embeddings().weight
    trained = sum(value.numel() for value in model.parameters() if value.requires_grad)
    numbers = max((kernels.LOGITS for kernels in every("kernels")), default=logprobs.LOGITS)
    learns_entropies = any(term.learns_entropies for term in terms_of(settings))
    is_wide = at(settings, "cast_lm_head_to_fp32")
    logits = 2 * LOGITS if learns_entropies or is_wide else LOGITS
    free = free_bytes(device) - logits * numbers - 12 * trained  # float32: the gradient and Adam's two moments
    free -= 4 * head.numel() if is_wide else 0
    return choose(settings, costs(model.config, rank, head.element_size()), longest, free)


def free_bytes(device: torch.device) -> int:
    """Bytes that this process can still take on a GPU, those included that torch keeps for reuse."""
    import torch

    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + kept


class Base(models.Base):
    """A model whose frozen weights can leave the GPU for host memory while the engine samples.

    They never change, so they are copied to the host once; later they are only let go. The adapter stays on the GPU.
    """

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        frozen = self.frozen
        self.frozen = [value for value in frozen if not hasattr(value, "to_local")]
        # This process's parts of a sharded model (DTensor). FSDP2 keeps more than one tensor of the same memory.
        self.parts = [value.to_local().untyped_storage() for value in frozen if hasattr(value, "to_local")]
        self.copies: list[torch.Tensor] = []
        self.part_copies: list[torch.Tensor] = []
        self.is_away = False

    def leave(self) -> None:
        """Let go of the weights' memory on the GPU."""
        import torch

        if self.is_away:
            return
        on_gpu = self.device.type == "cuda"
        if not self.copies:  # pinned memory is copied several times as fast
            self.copies = [
                torch.empty_like(value, device="cpu", pin_memory=on_gpu).copy_(value.detach()) for value in self.frozen
            ]
            self.part_copies = [
                torch.empty(part.size(), dtype=torch.uint8, pin_memory=on_gpu).copy_(_bytes(part))
                for part in self.parts
            ]
        for value, copy in zip(self.frozen, self.copies, strict=True):
            value.data = copy
        for part in self.parts:
            part.resize_(0)
        self.is_away = True
        if on_gpu:
            torch.cuda.empty_cache()

    def share(self, tensors: list[torch.Tensor]) -> None:
        super().share(tensors)
        self.copies, self.is_away = [], False

    def come_back(self) -> None:
        """Copy the weights to the GPU again."""
        if self.is_away:
            for value, copy in zip(self.frozen, self.copies, strict=True):
                value.data = copy.to(self.device, non_blocking=True, copy=True)  # in order with what computes with it
            for part, copy in zip(self.parts, self.part_copies, strict=True):
                part.resize_(len(copy))
                _bytes(part).copy_(copy, non_blocking=True)
        self.is_away = False


def _bytes(storage: torch.UntypedStorage) -> torch.Tensor:
    import torch

    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
