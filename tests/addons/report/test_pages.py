"""What Prefect's pages show of a run: words of an agent and of a judge are no markup."""

from __future__ import annotations

from addons.report import pages
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
