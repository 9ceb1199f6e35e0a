"""viewer.app in a real browser: a run of 10,000 trajectories, its keys, what hovering shows, what cannot get out."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from environments.base import Scenario
from steps.core.keys import write_private
from steps.core.records import Trajectory, write_records
from tests.browser.conftest import SIZE, VIEWER_KEY, shot
from tests.conftest import end, free_port, python, start
from tests.viewer import test_pages as test_view
from tests.viewer import test_runs as test_view_runs
from viewer.key import FILE as KEY_FILE

OPENS, FILTERS, GROUP = 2.0, 0.3, 1.0  # seconds, at most
TRIES = 3  # the least time counts: what is more than that is other work of the machine
# what lies to the right of the window; a table of numbers alone scrolls in its own box
RIGHT_OF = """(all, width) => all.filter(it => it.getBoundingClientRect().right > width + 1)
  .map(it => `${it.tagName} ${it.className}`)"""
TIMED = """([name, value]) => new Promise(done => {
  const field = document.querySelector(`#filters [name=${name}]`), begun = performance.now();
  new MutationObserver((_, observer) => {
    observer.disconnect();
    document.body.offsetHeight;  // laid out
    requestAnimationFrame(() => done((performance.now() - begun) / 1000));
  }).observe(document.querySelector("#rows"), { childList: true });
  if (field.type === "checkbox") field.checked = value; else field.value = value;
  field.dispatchEvent(new Event("input", { bubbles: true }));
})"""


class Site:
    """A server of its own, and the seconds from its start to its first page in the browser."""

    def __init__(self, run: Path, page: Page | None = None) -> None:
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        begun = time.monotonic()
        log = run.parent / "view.log"
        write_private(run.parent / KEY_FILE, VIEWER_KEY)
        self.process = start(python("viewer", "--port", str(port), "--run", str(run)), test_view.ROOT, log)
        try:
            wait_until_it_listens(port, self.process)
            if page is not None:
                page.goto(self.address)
                page.wait_for_selector("table.list tbody tr")
            self.seconds = time.monotonic() - begun
        except BaseException:
            end(self.process)
            raise


def wait_until_it_listens(port: int, process: subprocess.Popen[str]) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.01)
    raise AssertionError(f"the server does not listen (exit code {process.poll()})")


@pytest.fixture(scope="module")
def run_of_10000(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """10 iterations: 110 groups of 8 attempts each, 11 evaluations of 100 scenarios, and a test of 100."""
    run = tmp_path_factory.mktemp("large") / "run"
    return test_view.make_run(run, iterations=10, groups=110, attempts=8, held_out=100)


@pytest.fixture(scope="module")
def large(run_of_10000: Path) -> Iterator[Site]:
    site = Site(run_of_10000)
    yield site
    end(site.process)


def count(page: Page) -> str:
    return page.inner_text(".count")


def test_10000_trajectories_open_in_two_seconds(run_of_10000: Path, page: Page) -> None:
    """From the start of the command to the list in the browser."""
    took: list[float] = []
    while len(took) < TRIES and (not took or min(took) >= OPENS):
        page.goto("about:blank")
        site = Site(run_of_10000, page)
        try:
            assert count(page) == "10,000 of 10,000 trajectories in 2,300 of 2,300 groups"
        finally:
            end(site.process)
        took.append(site.seconds)
    print("\nview: start to page " + ", ".join(f"{seconds:.2f} s" for seconds in took))
    assert min(took) < OPENS


def test_filters_in_300_ms(large: Site, page: Page) -> None:
    page.goto(large.address)
    steps: list[tuple[str, object, str]] = [
        ("kind", "rollout", "8,800 of 10,000 trajectories in 1,100 of 2,300 groups"),
        ("outcome", "success", "1,100 of 10,000 trajectories in 1,100"),
        ("outcome", "", "8,800 of 10,000"),
        ("iteration", "007", "880 of 10,000 trajectories in 110"),
        ("min", "-0.75", "220 of 10,000"),
        ("min", "", "880 of 10,000"),
        ("iteration", "", "8,800 of 10,000"),
        ("by", "attempt", "8,800 of 10,000"),
        ("kind", "", "10,000 of 10,000"),
        ("q", "room 77 train", "160 of 10,000"),  # 77, 177, …, 1077 and 770 to 779: 20 groups of 8
        ("q", "", "10,000 of 10,000"),
        ("said", "box 5", "1,100 of 10,000"),  # reads all messages
        ("said", "no room 'r9'", "1,100 of 10,000"),
        ("said", "", "10,000 of 10,000"),
        ("error", True, "0 of 10,000"),
        ("error", False, "10,000 of 10,000"),
    ]
    took = {}
    for name, value, expected in steps:
        seconds: list[float] = []
        while len(seconds) < TRIES and (not seconds or min(seconds) >= FILTERS):
            seconds.append(page.evaluate(TIMED, [name, value]))
            assert expected in count(page), (name, value, count(page))
        took[f"{name}={value}"] = min(seconds)
    print("\nview: filters: " + ", ".join(f"{name} {1000 * seconds:.0f} ms" for name, seconds in took.items()))
    assert max(took.values()) < FILTERS, took


def test_a_group_of_10000_opens_in_a_second(large: Site, page: Page) -> None:
    took: list[float] = []
    while len(took) < TRIES and (not took or min(took) >= GROUP):
        page.goto(f"{large.address}/?kind=rollout")
        begun = time.monotonic()
        page.click("table.list tbody tr:nth-child(3) a.open")
        page.wait_for_selector(".attempt .tokens .t")
        took.append(time.monotonic() - begun)
    print("\nview: a group " + ", ".join(f"{seconds:.2f} s" for seconds in took))
    assert page.locator(".attempt").count() == 8
    assert min(took) < GROUP


def test_an_address_shows_the_same_again(large: Site, page: Page) -> None:
    page.goto(large.address)
    page.select_option("[name=kind]", "rollout")
    expect(page.locator(".count")).to_contain_text("8,800 of")
    page.fill("[name=q]", "room 77 train")
    expect(page.locator(".count")).to_contain_text("160 of 10,000")
    shown, address = page.inner_text("#rows"), page.url
    assert "kind=rollout" in address
    other = page.context.new_page()
    other.goto(address)
    assert other.inner_text("#rows") == shown
    assert other.input_value("[name=kind]") == "rollout"
    other.click("th a:has-text('Tokens')")  # a sort keeps the filters, and the filters the sort
    assert {"kind=rollout", "sort=tokens", "order=down"} <= set(urlsplit(other.url).query.split("&"))
    other.fill("[name=q]", "")
    expect(other.locator(".count")).to_contain_text("8,800 of")
    assert "sort=tokens" in other.url
    other.go_back()
    assert other.inner_text("#rows") == shown


def test_keys(large: Site, page: Page) -> None:
    page.goto(f"{large.address}/?kind=rollout&iteration=003")

    def press(key: str) -> None:
        page.wait_for_load_state()  # a page listens when its script has run
        page.keyboard.press(key)

    for key in "jjkj":
        press(key)
    assert page.locator("tr.here").count() == 1
    second = page.inner_text("table.list tbody tr:nth-child(2) a.open")
    press("Enter")
    page.wait_for_selector(".attempt")
    assert second in page.inner_text(".asked")
    assert "2 of 110" in page.inner_text(".crumbs")
    for key, place in (("j", "3 of 110"), ("k", "2 of 110"), ("k", "1 of 110")):
        press(key)
        expect(page.locator(".crumbs")).to_contain_text(place)
    press("u")
    page.wait_for_selector("table.list")
    assert "iteration=003" in page.url
    press("/")
    page.keyboard.type("jk")  # letters of a search are no keys
    assert page.input_value("[name=q]") == "jk"
    assert page.locator("tr.here").count() == 0


def test_escape_clears_box_and_filter(large: Site, page: Page) -> None:
    page.goto(large.address)
    everything = count(page)
    page.fill("[name=q]", "no such words")
    page.wait_for_selector("text=Nothing fits these filters")
    page.press("[name=q]", "Escape")
    page.wait_for_selector("table.list tbody tr")
    assert (page.input_value("[name=q]"), count(page), page.url.rstrip("/")) == ("", everything, large.address)


@pytest.mark.parametrize("width", [390, 820, SIZE["width"]])
def test_no_page_is_wider_than_its_window(large: Site, page: Page, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 844})
    group = f"/group?at=001/rollout&scenario={test_view.scenario(0).id}"
    compare = f"/compare?scenario={test_view.scenario(0, 'val').id}"
    for address in ("/", "/?by=attempt", group, "/compare", compare, "/analytics", "/agents", "/?min=a"):
        page.goto(large.address + address)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, address
        cut = page.locator("header *, main *:not(.numbers, .numbers *)").evaluate_all(RIGHT_OF, width)
        assert not cut, f"{address}: outside of a window of {width} pixels: {cut[:5]}"
        shot(page, f"view{re.sub('[^a-z]+', '_', address.partition('&')[0])}_{width}")
        if address == group:
            right = "it => it.getBoundingClientRect().right"
            attempts = page.locator(".attempt")
            assert attempts.count() == 8
            assert max(attempts.nth(number).evaluate(right) for number in range(8)) <= width


def test_tokens_show_their_probability(large: Site, page: Page) -> None:
    page.goto(f"{large.address}/?kind=rollout")
    page.click("table.list tbody tr a.open")
    tokens = page.locator(".attempt").first.locator(".tokens .t")
    assert tokens.count() == 5
    colours = [tokens.nth(number).evaluate("it => getComputedStyle(it).backgroundColor") for number in range(5)]
    assert len(set(colours)) == 5  # 99 %, 82 %, 50 %, 22 %, 0.2 %
    legend = page.locator(".legend .t").evaluate_all("all => all.map(it => getComputedStyle(it).backgroundColor)")
    assert set(colours) <= set(legend)
    tokens.nth(3).hover()
    assert page.inner_text("#about") == "log probability -1.5000 = 22.31% · token 303"
    page.mouse.move(5, 5)
    assert page.is_hidden("#about")
    shot(page, "view_group")
    assert page.locator(".context").count() == 0
    page.click(".legend a:has-text('all')")
    assert "not sampled (masked in training)" in page.inner_text(".legend")
    assert page.locator(".attempt .context").count() == 36  # a prompt before each of 1 + 2 + … + 8 turns
    folded = page.locator(".attempt:nth-child(3) .answer details").first
    assert folded.locator("pre").is_hidden()
    folded.locator("summary").click()
    assert folded.locator("pre").is_visible()


def test_before_and_after(large: Site, page: Page) -> None:
    page.goto(f"{large.address}/compare")
    assert count(page).startswith("100 of 100 scenarios that both hold · 10 fixed · 1 solved · 89 unsolved")
    page.select_option("[name=change]", "fixed")
    expect(page.locator(".count")).to_contain_text("10 of 100")
    page.click("table.list tbody tr a.open")
    assert page.locator(".attempt h2").all_inner_texts()[0].startswith("000 validation")
    assert page.locator(".attempt").count() == 2
    page.wait_for_load_state()
    page.keyboard.press("j")
    page.wait_for_selector("a[rel=prev]")
    shot(page, "view_compare")


def test_analytics_in_the_browser(large: Site, page: Page) -> None:
    begun = time.monotonic()
    page.goto(f"{large.address}/analytics")
    print(f"\nview: analytics of 10,000 {time.monotonic() - begun:.2f} s")
    assert page.locator("figure svg[role=img]").count() == 8
    assert page.locator("circle.s0").first.evaluate("it => getComputedStyle(it).fill") == "rgb(47, 127, 209)"
    assert page.locator("figure svg").first.evaluate("it => it.getBoundingClientRect().height") > 100
    shot(page, "view_analytics", whole=True)


def test_another_run_is_chosen_in_the_head(tmp_path: Path, page: Page) -> None:
    """No run here yet: a kept one is read, compared with another, and the run that then begins shows by itself."""
    team = test_view_runs.make_team(tmp_path)
    site = Site(team / "run")
    try:
        page.goto(site.address)
        assert page.url.endswith("?run=late"), "the newest run, as there is none here"
        page.goto(f"{site.address}/?run=.")
        assert "holds no trajectories yet" in page.inner_text("main")
        shot(page, "view_waiting")
        begun = time.monotonic()
        page.select_option("[name=run]", "nightly")
        expect(page.locator(".count")).to_contain_text("44 of 44")
        print(f"\nview: a kept run for the first time {time.monotonic() - begun:.2f} s")
        assert page.url.endswith("/?run=nightly")
        page.select_option("[name=kind]", "rollout")  # a filter, without a reload
        expect(page.locator(".count")).to_contain_text("24 of 44")
        assert {"run=nightly", "kind=rollout"} == set(urlsplit(page.url).query.split("&"))
        page.click("table.list tbody tr a.open")
        assert page.input_value("[name=run]") == "nightly"
        assert "judge 0.50" in page.inner_text(".columns")
        page.click("nav a:has-text('Compare')")
        page.select_option("[name=other]", "short")
        expect(page.locator(".count")).to_contain_text("1 broken")
        assert "short 001 validation" in page.inner_text("thead")
        page.select_option("[name=after]", "000/evaluation")
        expect(page.locator(".count")).to_contain_text("2 broken")
        shot(page, "view_compare_runs")
        page.go_back()  # to where no other run was chosen
        assert "other=" not in page.url
        page.click("nav a:has-text('Analytics')")
        assert "not recorded" in page.inner_text("main")
        page.select_option("[name=run]", "short")  # stays on the page
        page.wait_for_url("**/analytics?run=short")
        page.goto(site.address)
        test_view.make_run(team / "run", iterations=1)
        expect(page.locator(".count")).to_contain_text("27 of 27", timeout=8000)
    finally:
        end(site.process)


def test_dark_and_light(large: Site, page: Page) -> None:
    seen = set()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        page.goto(large.address)
        back, text = (page.evaluate(f"getComputedStyle(document.body).{name}") for name in ("backgroundColor", "color"))
        seen.add(back)
        assert contrast(back, text) > 7
        for kind in (".chip.good", ".chip.bad", ".dim", "a.open"):
            one = page.locator(kind).first
            own, colour = (one.evaluate(f"it => getComputedStyle(it).{name}") for name in ("backgroundColor", "color"))
            assert contrast(back if own == "rgba(0, 0, 0, 0)" else own, colour) > 4.5, (scheme, kind)
        shot(page, f"view_list_{scheme}")
    assert len(seen) == 2


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of two colours as a browser computes them, rgb(r, g, b)."""

    def light(colour: str) -> float:
        parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_hostile_words_stay_words(tmp_path: Path, page: Page) -> None:
    """An agent that says HTML, in a real browser; and were it taken for HTML, the policy would still stop it."""
    asked = test_view.scenario(0, question=test_view.HOSTILE)
    run = tmp_path / "run"
    (run / "scenarios").mkdir(parents=True)
    write_records([asked], run / "scenarios" / "train.parquet")
    told = hostile(asked)
    test_view.write(run / "001", [told], [test_view.reward(told, False)])
    site = Site(run)
    hosts: set[str] = set()
    refused: list[str] = []
    page.on("request", lambda request: hosts.add(urlsplit(request.url).netloc))
    page.on("console", lambda message: refused.append(message.text))
    try:
        for address in ("/", "/?by=attempt", f"/group?at=001/rollout&scenario={asked.id}&tokens=all", "/analytics"):
            page.goto(site.address + address)
            assert page.title() != "taken"
            assert page.locator("img").count() == 0
        page.goto(f"{site.address}/?by=attempt")
        page.fill("[name=q]", "taken")  # what a filter brings is put into the page by its script
        page.wait_for_timeout(300)
        assert page.locator("img").count() == 0
        assert hosts == {site.address.removeprefix("http://")}
        assert not refused
        page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"document.title=1\">')")
        page.evaluate(
            "() => { const it = document.createElement('script'); it.text = 'document.title=1'; document.body.append(it) }"
        )
        page.evaluate("() => { const it = new Image(); it.src = 'http://127.0.0.1:9/leak'; }")
        page.wait_for_timeout(300)
        assert page.title() != "1"
        assert sum("Content Security Policy" in text for text in refused) == 3
    finally:
        end(site.process)


def hostile(asked: Scenario) -> Trajectory:
    base = test_view.trajectory(asked, 0, "001", 1, error=test_view.HOSTILE)
    turn = base.turns[0].model_copy(
        update={
            "message": {"role": "assistant", "content": test_view.HOSTILE},
            "observations": ({"role": "tool", "name": "x", "content": test_view.HOSTILE},),
        }
    )
    return base.model_copy(update={"turns": (turn,)})


def test_without_scripts_the_pages_work(large: Site, page: Page) -> None:
    browser = page.context.browser
    assert browser is not None
    context = browser.new_context(java_script_enabled=False)
    try:
        plain = context.new_page()
        plain.goto(large.address)
        plain.select_option("[name=kind]", "test")
        plain.locator("form:has([name=kind]) button").first.click()
        assert "100 of 10,000" in plain.inner_text(".count")
    finally:
        context.close()


def test_ctrl_c_ends_it(tmp_path: Path) -> None:
    site = Site(test_view.make_run(tmp_path / "run", iterations=1))
    site.process.send_signal(signal.SIGINT)
    try:
        assert site.process.wait(5) in (0, 130)
    except subprocess.TimeoutExpired:
        end(site.process, signal.SIGKILL)
        raise
    assert "Traceback" not in (tmp_path / "view.log").read_text()
