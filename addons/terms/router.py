"""The load balance of a mixture of experts in an update's loss (Fedus et al. 2021, arXiv:2101.03961), as transformers
computes it and TRL adds it: experts · Σ of (share of the tokens that pass an expert) · (its mean probability). It is over
the tokens of all layers: those of prompts, too, and of each row of an optimiser step's trajectories that are not masked.

The first factor has no gradient. It is counted over the whole step before, so that the sum over micro-batches does not
depend on how the step is split. Shapes: U unique tokens of a micro-batch, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from addons.terms.section import Terms
from steps.core.errors import UserError
from steps.training.processes import gathered
from steps.training.terms import Seen, Term

if TYPE_CHECKING:
    from steps.core.params import Update
    from steps.training.batches import OptimizerStep
    from steps.training.loss import TrlLoss
    from steps.training.packing import Packed
    from steps.training.trained import Trained


class Balance(Term):
    """How an optimiser step's tokens are spread over the experts, in all processes."""

    learns_everywhere = surveys = is_routed = True

    def __init__(self, settings: Update) -> None:
        super().__init__(settings)
        self.weight = Terms.of(settings).router_aux_loss_coef
        self.chosen = 0  # experts of a token
        self.rows = 0.0  # tokens of all layers
        self.passed: Any = None  # [E] how many of them pass each expert

    def begin(self, trainer: Trained, before: Term | None) -> None:
        config = trainer.model.config
        if not hasattr(config.get_text_config(), "output_router_logits"):
            raise UserError(
                f"update.router_aux_loss_coef would have no effect: {config.model_type} is no mixture of experts that gives "
                "its router's logits; take it out"
            )
        self.chosen = int(config.get_text_config().num_experts_per_tok)

    def join(self, loss: TrlLoss) -> None:
        loss.router_aux_loss_coef, loss.aux_loss_enabled, loss.balance = self.weight, True, self.loss

    def survey(self, loss: TrlLoss, step: OptimizerStep, seen: Sequence[Seen]) -> None:
        import torch

        passed: Any = 0.0
        self.rows = 0.0
        for each in seen:
            for logits in each.routed:
                assert each.packed is not None
                places = torch.topk(torch.softmax(logits, -1), self.chosen, -1).indices
                copies = each.packed.copies.repeat_interleave(self.chosen)
                passed = passed + torch.zeros(logits.shape[-1], device=copies.device).scatter_add_(
                    0, places.view(-1), copies
                )
                self.rows += float(each.packed.copies.sum())
        parts = gathered((passed.cpu() if self.rows else None, self.rows))
        self.rows = sum(rows for _, rows in parts)
        self.passed = sum(part for part, rows in parts if rows)

    def loss(self, packed: Packed, layers: Sequence[Any]) -> Any:
        """A micro-batch's part of the step's loss: those of all micro-batches add up to it."""
        import torch

        total: Any = 0.0
        passed: Any = self.passed
        for logits in layers:
            probabilities = torch.softmax(logits, -1).float() * packed.copies[:, None]
            total = total + (passed.to(logits.device) * probabilities.sum(0)).sum()
        return total * len(passed) / self.rows**2
