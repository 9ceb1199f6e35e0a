"""The load balance of a mixture of experts in an update's loss (Fedus et al. 2021, arXiv:2101.03961), as transformers
computes it and TRL adds it: experts · Σ of (share of the tokens that pass an expert) · (its mean probability). It is over
the tokens of all layers: those of prompts, too, and of each row of an optimiser step's trajectories that are not masked.

The first factor has no gradient. It is counted over the whole step before, so that the sum over micro-batches does not
depend on how the step is split. Shapes: U unique tokens of a micro-batch, E experts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.training.processes import gathered

if TYPE_CHECKING:
    from steps.core.params import Update
    from steps.training.packing import Packed


def check(settings: Update, config: Any) -> None:
    """UserError where the loss has this term and the model, of this transformers configuration, has no experts."""
    if settings.router_aux_loss_coef and not hasattr(config.get_text_config(), "output_router_logits"):
        raise UserError(
            f"update.router_aux_loss_coef would have no effect: {config.model_type} is no mixture of experts that gives its "
            "router's logits; take it out"
        )


class Balance:
    """How an optimiser step's tokens are spread over the experts, in all processes."""

    def __init__(self, config: Any, seen: Iterable[tuple[Packed, Sequence[Any]]]) -> None:
        """`seen`: micro-batches of this process, each with the router's logits [U, E] in every layer."""
        import torch

        self.chosen = int(config.get_text_config().num_experts_per_tok)
        passed: Any = 0.0
        self.rows = 0.0
        for packed, layers in seen:
            for logits in layers:
                places = torch.topk(torch.softmax(logits, -1), self.chosen, -1).indices
                copies = packed.copies.repeat_interleave(self.chosen)
                passed = passed + torch.zeros(logits.shape[-1], device=copies.device).scatter_add_(
                    0, places.view(-1), copies
                )
                self.rows += float(packed.copies.sum())
        parts = gathered((passed.cpu() if self.rows else None, self.rows))
        self.rows = sum(rows for _, rows in parts)
        self.passed: Any = sum(part for part, rows in parts if rows)

    def loss(self, packed: Packed, layers: Sequence[Any]) -> Any:
        """A micro-batch's part of the step's loss: those of all micro-batches add up to it."""
        import torch

        total: Any = 0.0
        for logits in layers:
            probabilities = torch.softmax(logits, -1).float() * packed.copies[:, None]
            total = total + (self.passed.to(logits.device) * probabilities.sum(0)).sum()
        return total * len(self.passed) / self.rows**2
