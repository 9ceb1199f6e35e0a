"""The pages that a team works in, by hand: a run by Prefect's form, a schedule, runs compared in MLflow, a trace."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.conftest import shot
from tests.conftest import copy_project
from tests.ui_server import SMALL, Ui

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
RUN_SECONDS = 420


@pytest.fixture(scope="module")
def ui(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    """The services, and one run that was trained by the API: MLflow's pages compare two."""
    folder = copy_project(tmp_path_factory.mktemp("pages"))
    made = Ui(folder, environment={"FLYWHEEL_TRACE_RATE": "1"})
    try:
        found = made.finished(made.train("first", iterations=2), RUN_SECONDS)
        assert found["state_type"] == "COMPLETED", found["state"]
        yield made
    finally:
        made.end()


@pytest.fixture
def prefect(ui: Ui, page: Page) -> Page:
    """Prefect's pages, with the key given."""
    page.goto(f"http://127.0.0.1:{ui.prefect}/login")
    page.locator("input").fill(ui.key)
    page.get_by_role("button", name="Login").click()
    page.wait_for_url("**/dashboard*")
    page.goto(f"http://127.0.0.1:{ui.prefect}/deployments/deployment/{ui.deployment('train')['id']}")
    return page


def field(page: Page, label: str) -> Locator:
    """The box of a form under its label."""
    named = page.get_by_text(f"{label} (Optional)", exact=True)
    return named.locator("xpath=ancestor::*[.//input or .//textarea][1]").locator("input, textarea").first


def test_a_run_is_started_by_the_form_and_watched_to_its_end(ui: Ui, prefect: Page) -> None:
    page = prefect
    page.get_by_role("button", name="Run", exact=True).click()
    page.get_by_text("Custom run").click()
    expect(page.get_by_text("at most; training stops early without progress")).to_be_visible()
    expect(page.get_by_role("button", name="email_search")).to_be_visible()  # the choice of tasks
    page.get_by_role("textbox").first.fill("by-hand")
    values = {"Iterations": "1", "Seed": "2", "Scenarios": "4", "Attempts": "4", "More": json.dumps(SMALL)}
    for label, value in values.items():
        field(page, label).fill(value)
    shot(page, "prefect-form")
    page.get_by_role("button", name="Submit").click()
    page.get_by_role("link", name="by-hand").first.click()
    page.wait_for_url("**/runs/flow-run/**")
    expect(page.locator("[class*=state-badge]").first).to_have_text("Completed", timeout=1000 * RUN_SECONDS)
    page.get_by_role("tab", name="Artifacts").or_(page.get_by_text("Artifacts", exact=True)).first.click()
    for key in ("iterations", "trajectories", "learning-curve", "mlflow"):
        expect(page.get_by_text(key, exact=True).first).to_be_visible()
    page.goto(f"http://127.0.0.1:{ui.prefect}/artifacts/key/learning-curve")
    expect(page.locator("img").last).to_be_visible()
    shot(page, "prefect-learning-curve")
    [run] = [one for one in ui.runs("train") if one["name"] == "by-hand"]
    assert run["parameters"]["settings"]["seed"] == 2
    [*_, point] = json.loads(ui.artifacts()["iterations"]["data"])
    assert point["iteration"] == 1


def test_a_schedule_is_switched_on_and_another_is_set(ui: Ui, prefect: Page) -> None:
    page = prefect
    expect(page.get_by_text("nightly")).to_be_visible()
    page.locator(".p-toggle, [class*=toggle]").last.click()
    page.get_by_role("button", name="Schedule", exact=True).click()
    page.get_by_placeholder("Enter a unique identifier for this schedule").fill("weekly")
    page.get_by_role("button", name="Cron").click()
    page.locator(".p-modal, [role=dialog]").locator("input[type=text]").nth(1).fill("0 6 * * 1")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("weekly")).to_be_visible()
    page.get_by_text("Upcoming", exact=True).click()
    expect(page.get_by_text("Scheduled").first).to_be_visible(timeout=90_000)
    shot(page, "prefect-schedule")
    schedules = {one["slug"]: one for one in ui.deployment("train")["schedules"]}
    assert schedules["nightly"]["active"]
    assert schedules["weekly"]["schedule"]["cron"] == "0 6 * * 1"
