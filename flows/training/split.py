"""A run's test scenarios and the gate: what gain they can show, said before training, and the look that a run takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flows.terminal import report
from flows.terminal.report import RUN, Point
from steps.core import alike
from steps.core.errors import UserError
from steps.core.records import read_records

if TYPE_CHECKING:
    from environments.base import Scenario
    from flows.terminal.display import RunDisplay
    from steps.core.params import Params


def scenarios() -> list[Scenario]:
    """The run's test scenarios."""
    from environments.base import Scenario

    return read_records(Scenario, RUN / "scenarios/test.parquet")


def power_line(params: Params, base: Point) -> str:
    """The smallest gain that the gate will show; `base` is the base policy on the validation split."""
    from steps.registry import power

    clusters = alike.read(RUN / "scenarios").of(scenario.id for scenario in scenarios())
    return power.before(clusters, base.success, params.promote, is_judged=base.measure != "success")


def count_look(display: RunDisplay) -> None:
    """Record that the run has looked at its test scenarios, whether or not it has registered what it tested there."""
    from steps.project.ledger import Ledger
    from steps.registry import looks

    receipt = report.read(RUN / "receipt.json")
    ids = [scenario.id for scenario in scenarios()]
    try:
        with Ledger(patience=5) as ledger:
            looks.tested(ledger, receipt["name"], ids, receipt["adapter_hash"])
    except UserError as problem:
        display.lack(f"The look at the test scenarios was not counted: {problem}; the same command again counts it.")
