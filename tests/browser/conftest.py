"""A headless Chromium for tests of pages: the one of the system, driven by Playwright, which downloads nothing here.

`make browser` runs this folder, or `pytest tests/browser`; a plain `pytest` leaves it out (norecursedirs in pyproject.toml).
A page reaches 127.0.0.1 alone: any other name does not resolve.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

from viewer.key import COOKIE

ROOT = Path(__file__).parent.parent.parent
SCREENSHOTS = ROOT / ".flywheel" / "screenshots"
SIZE = {"width": 1440, "height": 900}  # pixels
VIEWER_KEY = "the-key-of-these-tests"  # of the viewers that tests start


def shot(page: Page, name: str, whole: bool = False) -> Path:
    """Keep a picture of what the page shows (`whole`: beyond the window too) as .flywheel/screenshots/<name>.png."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    path = SCREENSHOTS / f"{name}.png"
    page.screenshot(path=path, full_page=whole)
    return path


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.fail("no Chromium on this machine: install Debian's package chromium (apt-get install chromium)")
    words = ["--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost"]
    if os.geteuid() == 0:
        words.append("--no-sandbox")  # Chromium refuses to start as root with it
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=words)
        try:
            yield started
        finally:
            started.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A new page with cookies and storage of its own; what its scripts fail with fails the test."""
    context = browser.new_context(viewport={"width": SIZE["width"], "height": SIZE["height"]}, color_scheme="light")
    context.add_cookies([{"name": COOKIE, "value": VIEWER_KEY, "domain": "127.0.0.1", "path": "/"}])
    opened, problems = context.new_page(), list[str]()
    opened.on("pageerror", lambda error: problems.append(str(error)))
    try:
        yield opened
    finally:
        context.close()
    assert not problems, f"errors in the page's scripts: {problems}"
