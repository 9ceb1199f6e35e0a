"""The end of a run: a scenario before and after, and run/report.html, one page that can be sent on."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from addons.report import page
from flows.terminal import health
from flows.training import ending
from steps.core.params import Params
from tests.support import ended

HOSTILE = "<script>alert(1)</script> & it is 7; sk-proj-abcdefghijklmnop1234"


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(health, "at_end", lambda *_: [])  # which reads the iterations' files
    return Params(task="multiplication", seed=7)


def told(summary: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    ending.print_end(lines.append, summary)
    return lines


def test_the_end_shows_a_scenario_before_and_after(params: Params) -> None:
    lines = told(ended.run(Path()))
    place = lines.index("One of 2 test scenarios that the trained policy alone solves (1 the other way round):")
    [scenario, *_] = ended.SCENARIOS
    assert lines[place + 1] == f"question  {scenario.messages[-1]['content']}"
    assert lines[place + 2 : place + 6] == [
        "    base  it is 7",
        "          no success; answer: 7; expected: 132",
        " trained  it is 132",
        "          success; answer: 132",
    ]
    assert any(re.match(rf"  make ask SCENARIO={scenario.id} +play it again", line) for line in lines)
    assert any("run/report.html" in line for line in lines)
    assert any("run/001/test" in line for line in lines)
    assert len(lines) == len(set(lines) - {""}) + lines.count(""), "nothing is said twice"


def test_where_nothing_was_fixed_a_line_says_so(params: Params) -> None:
    summary = ended.run(Path())
    summary["trained"]["policy"] = "000"  # the base policy is the best
    lines = told(summary)
    assert "No test scenario is solved by the trained policy alone (0 the other way round)." in lines
    assert any(re.match(r"  make ask  +play", line) for line in lines)


def test_a_task_whose_code_fails_at_the_end_costs_only_the_transcripts(
    params: Params, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise KeyError("no such field")

    monkeypatch.setattr("environments.multiplication.Multiplication.outcome", broken)
    summary = ended.run(Path())
    lines = told(summary)
    assert "A scenario before and after is left out: KeyError: 'no such field'" in lines
    assert "\nNext:" in lines


class Page(HTMLParser):
    """What a page asks for from elsewhere, and whether it holds a script."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.asked: list[str] = []
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.asked += [str(value) for name, value in attrs if name in ("src", "href", "action", "data")]

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_the_report_holds_all_that_it_needs(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_API_KEY", "hunter2-hunter2-hunter2")
    summary = ended.run(Path(), said=f"{HOSTILE} hunter2-hunter2-hunter2")
    Path("run/learning_curve.png").write_bytes(b"\x89PNG")
    text = page.write(params, summary).read_text()
    shown = Page(text)
    assert shown.tags.isdisjoint({"script", "link", "iframe", "object", "form"})
    assert shown.asked == ["data:image/png;base64,iVBORw=="]
    assert "sk-proj-abc" not in text
    assert "hunter2-" not in text
    words = " ".join(" ".join(shown.words).split())
    for part in (
        "Test success 0.400 → 0.600 of 5 scenarios",
        "0.400, 95 % interval 0.118 to 0.769",
        "multiply 40 60 +20",
        "Solved by the trained policy alone: 2",
        "Solved by the base policy alone: 1",
        f"scenario {ended.SCENARIOS[2].id}",
        "<script>alert(1)</script> & it is 7",
        "Registered as models:/multiplication/3: test success 0.600 is above",
        "rollout 3.0 update 4.5 between stages 0.5 test 4.0 all 12.0",
        "sampled tokens in training 640",
        "cost of the judge 0.25",
        "(run/001) continued from",
        "update.learning_rate",
    ):
        assert part in words, part
    assert len(text) < 100_000
    assert page.write(params, summary).read_text() == text


def test_a_report_without_curve_and_registration(params: Params) -> None:
    summary = ended.run(Path()) | {"registered": None, "tripwires": {"001": ["no variance"]}}
    summary["trained"]["iteration"] = "001"
    text = page.write(params, summary).read_text()
    assert "Not registered: test success 0.600" in text
    assert "Tripwires in iteration 001: no variance" in text
    assert "<img" not in text


def test_a_report_that_cannot_be_written_is_said(params: Params) -> None:
    lines: list[str] = []
    ending.write_page(params, {"trained": {"iteration": 1}}, None, lines.append)  # pyrefly: ignore[bad-argument-type]
    assert [line.partition(":")[0] for line in lines] == ["run/report.html is left out"]
