"""The viewer's script and styles without a browser: Escape, and that nothing is wider than a phone.

tests/browser checks the same in Chromium, where there is one.
"""

from __future__ import annotations

import json
import re
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import playwright
import pytest

from tests.viewer.test_pages import browse, make_run, scenario
from viewer.pages import TEMPLATES

STATIC = TEMPLATES / "static"
PHONE = 390  # pixels
NODE = Path(playwright.__file__).parent / "driver" / "node"  # which runs the script here

# The parts of a page that the script uses: a form with a search box, whose value the address then holds.
FAKE_PAGE = """
const box = { type: TYPE, value: "falcon", left: false, closest: () => box, blur: () => { box.left = true; } };
const fakeForm = { addEventListener: () => {}, getAttribute: () => "/" };
box.form = fakeForm;
const fakeRows = { classList: { add: () => {}, remove: () => {} } };
const asked = [], heard = {};
let shown = "/?q=falcon";
globalThis.document = {
  querySelector: (name) => ({ "#filters": fakeForm, "#rows": fakeRows })[name] ?? null,
  querySelectorAll: () => [],
  addEventListener: (name, react) => { heard[name] = react; },
  createElement: () => ({}),
  body: { append: () => {} },
};
globalThis.FormData = class { *[Symbol.iterator]() { yield ["q", box.value]; yield ["kind", "rollout"]; } };
globalThis.fetch = async (address) => { asked.push(address); return { text: async () => "the rows" }; };
globalThis.history = { replaceState: (state, title, address) => { shown = address; } };
"""
PRESS = """
heard.keydown({ key: "Escape", target: box, preventDefault: () => {} });
const answer = () => ({ value: box.value, left: box.left, asked, shown, rows: fakeRows.innerHTML });
setTimeout(() => console.log(JSON.stringify(answer())), 0);
"""


def pressed(kind: str) -> dict[str, object]:
    """What a page holds after Escape in a field of this type."""
    script = FAKE_PAGE.replace("TYPE", json.dumps(kind)) + (STATIC / "view.js").read_text().replace('"use strict";', "")
    process = subprocess.run([NODE, "-e", script + PRESS], capture_output=True, text=True, timeout=60)
    assert process.returncode == 0, process.stderr
    content: dict[str, object] = json.loads(process.stdout)
    return content


def test_escape_empties_the_search_box_and_drops_its_filter() -> None:
    assert pressed("search") == {
        "value": "",
        "left": True,
        "asked": ["/?kind=rollout&part=rows"],
        "shown": "/?kind=rollout",
        "rows": "the rows",
    }


def test_escape_leaves_other_fields_as_they_are() -> None:
    assert pressed("number") == {"value": "falcon", "left": True, "asked": [], "shown": "/?q=falcon"}


class Boxes(HTMLParser):
    """The classes around each table of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.around: list[str] = []
        self.tables: list[list[str]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append(list(self.around))
        if tag in ("div", "footer"):
            self.around.append(dict(attrs).get("class") or tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("div", "footer"):
            self.around.pop()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("edges") / "run", iterations=1, groups=1, attempts=8)


@pytest.mark.parametrize(
    ("address", "tables"),
    [
        ("/", 1),
        ("/?by=attempt", 1),
        ("/compare", 1),
        ("/analytics", 2),
        (f"/group?at=001/rollout&scenario={scenario(0).id}", 8),
    ],
)
def test_wide_tables_scroll_in_a_box_of_their_own(run: Path, address: str, tables: int) -> None:
    with browse(run) as client:
        boxes = Boxes(client.get(address).text).tables
    assert len(boxes) >= tables
    assert all(around[-1] in ("wide", "footer") for around in boxes)


def widths(style: str) -> list[float]:
    """The widths in a style sheet, in pixels, that an element has at least, unless its box may be narrower."""
    plain = re.sub(r"min\([^()]*100%\)|@media[^{]*", "", style)
    found = re.findall(r"(?:min-width|(?<!-)width|minmax\()\s*:?\s*([\d.]+)(rem|px)", plain)
    return [float(size) * (16 if unit == "rem" else 1) for size, unit in found]


def test_nothing_has_a_fixed_width_beyond_a_phones() -> None:
    style = (STATIC / "view.css").read_text()
    assert max(widths(style)) < PHONE
    assert "grid-auto-flow: column" not in style, "attempts beyond the window's edge would not be seen"
    assert re.search(r"\.wide, \.attempt footer \{ overflow-x: auto; \}", style)
    assert re.search(r"\.top \{ display: flex; flex-wrap: wrap;", style)


def test_the_rule_of_widths_can_fail() -> None:
    assert widths(".columns { grid-template-columns: repeat(auto-fill, minmax(25rem, 1fr)); }") == [400]
    assert widths(".a { min-width: 500px; max-width: 900px; } .b { width: 24.5rem; }") == [500, 392]


def test_all_attempts_of_a_group_are_in_one_grid(run: Path) -> None:
    with browse(run) as client:
        page = client.get("/group", params={"at": "001/rollout", "scenario": scenario(0).id}).text
    grid = page.partition('<div class="columns">')[2]
    assert re.findall(r'<article class="attempt" id="a(\d)"', grid) == [str(number) for number in range(8)]
    assert "natural logarithm of the probability" in grid
    assert " nats" not in page
