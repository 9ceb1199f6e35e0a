"""What Prefect's pages show of a run: words of an agent and of a judge are no markup."""

from __future__ import annotations

import pytest

from flows.deployment import pages
from steps.core.records import Reward
from tests.support.judged import group

MARKUP = "fine\n\n# A heading\n[free money](https://example.com) <img src=x onerror=alert(1)>\n| a | b |\u2028> quoted"


def test_a_judges_reason_is_shown_as_it_is() -> None:
    scenario, [trajectory] = group(1, 1)
    reward = Reward(
        trajectory_id=trajectory.id, scenario_id=scenario.id, name="ruler", score=0.5, success=True, explanation=MARKUP
    )
    shown = pages.transcript(reward, trajectory, scenario).splitlines()
    for line in MARKUP.splitlines():
        assert f"    {line}" in shown, "indented: a block of code"
    own = [line for line in shown if line and not line.startswith("    ")]
    assert own == [f"### {trajectory.id}: reward +0.50, success", "**user**", "**assistant**"]


def test_mlflow_is_given_the_way_to_prefects_page(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.runtime import flow_run

    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert pages.origin() == {}, "outside a flow"
    for name, value in {"id": "7", "ui_url": "http://127.0.0.1:4200/runs/flow-run/7"}.items():
        monkeypatch.setattr(flow_run, name, value, raising=False)
    assert pages.origin() == {"prefect_flow_run_id": "7"}, "the page of a temporary server leads nowhere"
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    assert pages.origin()["prefect_flow_run_url"] == "http://127.0.0.1:4200/runs/flow-run/7"
