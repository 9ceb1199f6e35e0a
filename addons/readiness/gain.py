"""What gain over the base policy the test scenarios can show at the gate, said before anything is trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from environments.base import Scenario
from flows.terminal import report
from steps.core import alike
from steps.core.records import read_records
from steps.registry import power

if TYPE_CHECKING:
    from steps.core.params import Params


def describe(params: Params, play: object, say: Callable[[str], None]) -> None:
    """Say the smallest one, from the base policy's validation."""
    base = report.point(0)
    tested = read_records(Scenario, report.RUN / "scenarios/test.parquet")
    clusters = alike.read(report.RUN / "scenarios").of(scenario.id for scenario in tested)
    say(power.before(clusters, base.success, params.promote, is_judged=base.measure != "success"))
