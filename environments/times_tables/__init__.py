"""Times tables: multiplication of small numbers, which a small pretrained model half knows.

The same question, reward and players as multiplication (environments/multiplication/); tasks_data/times_tables/ranges.json
sets the factors, up to 50 * 12. A product that the policy answers at once comes beside one that it must work out.
"""

from __future__ import annotations

from typing import Any

from environments.base import Scenario, Split
from environments.multiplication import Multiplication


class TimesTables(Multiplication):
    """One small product."""

    @classmethod
    def scenarios(cls, data: dict[Split, list[tuple[int, int]]], split: Split, count: int, seed: int) -> list[Scenario]:
        return [_own(product) for product in super().scenarios(data, split, count, seed)]

    @classmethod
    def accept(
        cls, data: dict[Split, list[tuple[int, int]]], split: Split | None, candidate: dict[str, Any]
    ) -> Scenario:
        return _own(super().accept(data, split, candidate))


def _own(product: Scenario) -> Scenario:
    """A scenario of multiplication as one of this task; products above 100 are a slice of their own."""
    kind = "up to 100" if product.data["answer"] <= 100 else "above 100"
    return Scenario.make("times_tables", product.split, product.messages, {**product.data, "kind": kind})
