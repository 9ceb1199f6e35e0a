"""The table of common models and cards in docs/gpu.md: one configuration, planned for each pair."""

from __future__ import annotations

from addons.planning import plan, shapes
from addons.planning.cards import CARDS, Machine
from addons.planning.models import COMMON
from addons.planning.workload import Episodes
from steps.core.params import Params

EPISODES = Episodes(900, 4, 200, 100, "as the table's")
SHARES = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)  # policy.gpu_memory: the first that fits counts


def params_of(model: str, share: float) -> Params:
    """The table's configuration of a model."""
    return Params.model_validate(
        {
            "policy": {"base_model": model, "dtype": "bfloat16", "context": 8192, "gpu_memory": share},
            "rollout": {"max_tokens": 512},
            "evaluate": {"max_tokens": 512},
        }
    )


def cell(model: str, card: Machine) -> str:
    """Seconds and dollars of an iteration, and the engine's share of the card where the largest does not fit; – where none
    does."""
    shape = shapes.of(COMMON[model], model)
    for share in SHARES:
        made = plan.make(params_of(model, share), shape, card, EPISODES)
        if not plan.refusal(made):
            seconds = made.seconds
            smaller = "" if share == SHARES[0] else f" ({share})"
            return f"{seconds:.0f} s, ${seconds / 3600 * (card.price or 0):.2f}{smaller}"
    return "–"


def table() -> str:
    """The table in Markdown: a row of each model, a column of each card."""
    lines = [
        f"| model | {' | '.join(CARDS)} |",
        f"|---|{'---|' * len(CARDS)}",
    ]
    lines += [f"| {' | '.join([model, *(cell(model, card) for card in CARDS.values())])} |" for model in COMMON]
    return "\n".join(lines)
