"""The pages that a team works in, by hand: a run by Prefect's form, a schedule, runs compared in MLflow, a trace."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, HttpCredentials, Locator, Page, ViewportSize, expect

from tests.browser.conftest import SIZE, shot
from tests.conftest import copy_project
from tests.support.ui_server import SMALL, Ui

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
    [started] = ui.until(
        lambda: [one for one in ui.runs("train") if one["name"] == "by-hand"], 30, lambda: "not started"
    )
    page.goto(f"http://127.0.0.1:{ui.prefect}/runs/flow-run/{started['id']}")
    expect(page.locator("[class*=state-badge]").first).to_have_text("Completed", timeout=1000 * RUN_SECONDS)
    page.get_by_text("Artifacts", exact=True).first.click()
    for key in ("iterations", "trajectories", "learning-curve", "mlflow"):
        expect(page.get_by_text(key, exact=True).first).to_be_visible()
    shot(page, "prefect-run")
    page.get_by_text("learning-curve", exact=True).first.click()
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
    ui.until(lambda: [one for one in ui.runs("train") if one["state_type"] == "SCHEDULED"], 120, lambda: "none planned")
    page.reload()
    page.get_by_text("Upcoming", exact=True).click()
    expect(page.get_by_text(re.compile(r"^[1-9]\d* Flow runs$"))).to_be_visible()
    shot(page, "prefect-schedule")
    schedules = {one["slug"]: one for one in ui.deployment("train")["schedules"]}
    assert schedules["nightly"]["active"]
    assert schedules["weekly"]["schedule"]["cron"] == "0 6 * * 1"


@pytest.fixture
def signed_in(ui: Ui, browser: Browser) -> Iterator[Page]:
    """A page whose browser answers MLflow's question for user name and password, as a person would."""
    credentials: HttpCredentials = {"username": "flywheel", "password": ui.mlflow_key}
    size: ViewportSize = {"width": SIZE["width"], "height": SIZE["height"]}
    context = browser.new_context(http_credentials=credentials, viewport=size, color_scheme="light")
    yield context.new_page()
    context.close()


def test_two_runs_are_compared_in_mlflow_and_the_curve_and_a_trace_are_opened(ui: Ui, signed_in: Page) -> None:
    """Of the two runs that the tests before made."""
    page = signed_in
    pages = f"http://127.0.0.1:{ui.mlflow}/#/experiments/1"
    page.goto(f"{pages}/runs")
    names = page.locator(".ag-row").get_by_role("link", name=re.compile("^(first|by-hand)$"))
    expect(names).to_have_count(2)
    for place in (0, 1):
        page.locator(".ag-row .ag-checkbox-input").nth(place).click()
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_text("Comparing 2 Runs from 1 Experiment")).to_be_visible()
    for shown in ("update.learning_rate", "test/success", "test/ci95_low", "judge", "data_hash", "git_commit"):
        expect(page.get_by_text(shown, exact=True).first).to_be_attached()
    shot(page, "mlflow-compare")
    page.goto(f"{pages}/runs")
    names.first.click()
    page.get_by_role("tab", name="Artifacts").or_(page.get_by_text("Artifacts", exact=True)).first.click()
    page.get_by_text("learning_curve.png").first.click()
    expect(page.locator("img[src*=learning_curve], img[src^=blob]").first).to_be_visible()
    shot(page, "mlflow-learning-curve")
    page.goto(f"{pages}/traces")
    page.get_by_role("button", name="Got it").click()
    page.get_by_text(re.compile(r"^What (is|was) ")).first.click()
    for span in ("episode", "turn 1", "generation"):
        expect(page.get_by_text(span, exact=True).first).to_be_visible()
    expect(page.get_by_text("stop_reason", exact=True).first).to_be_visible()
    shot(page, "mlflow-trace")


def test_a_run_is_cancelled_and_goes_on_from_there(ui: Ui, prefect: Page) -> None:
    page, settings = prefect, {"scenarios": 4, "attempts": 4, "more": SMALL, "seed": 3}
    first = ui.start("train", task="email_search", name="stopped", iterations=2, **settings)
    done = ui.folder / ".flywheel/worktrees/stopped/run/001/metrics.json"
    ui.until(done.exists, RUN_SECONDS, lambda: ui.ask(f"flow_runs/{first}")["state"])
    page.goto(f"http://127.0.0.1:{ui.prefect}/runs/flow-run/{first}")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Confirm").click()
    assert ui.finished(first, 120)["state_type"] == "CANCELLED"
    second = ui.start("train", task="email_search", name="stopped", iterations=2, **settings)
    assert ui.finished(second, RUN_SECONDS)["state_type"] == "COMPLETED", ui.ask(f"flow_runs/{second}")["state"]
    tasks = ui.ask("task_runs/filter", {"flow_runs": {"id": {"any_": [second]}}})
    seconds = {one["name"]: one["total_run_time"] for one in tasks}
    assert seconds["rollout@001"] < seconds["rollout@002"] / 2, "iteration 1 was played again"
    assert not done.exists()
    page.goto(f"http://127.0.0.1:{ui.prefect}/runs/flow-run/{first}")
    expect(page.locator("[class*=state-badge]").first).to_have_text("Cancelled")
