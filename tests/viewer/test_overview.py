"""The first page's overview: the headline, the learning curve, what training fixed and broke; and words that pages share."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from steps.core.evaluations import Judged
from steps.core.records import write_records
from tests.viewer.test_pages import Text, browse, make_run, read, reward, scenario, trajectory, write, write_summary
from viewer import formats
from viewer.index import Index
from viewer.overview import overview


def test_the_first_page_begins_with_what_training_brought(tmp_path: Path) -> None:
    """Of 5 validation scenarios the base policy solves 1, iteration 2 solves 3."""
    with browse(make_run(tmp_path / "run")) as client:
        answer = client.get("/")
        page = str(Text(answer.text))
        headline = (
            "Validation: success 0.200 [0.036, 0.624] → 0.600 [0.231, 0.882] of 5 scenarios, taken as independent "
            "(base policy → iteration 2)"
        )
        assert headline in page
        assert page.index(headline) < page.index("2 fixed by training") < page.index("44 of 44 trajectories")
        assert "None broken by training" in page
        assert answer.text.count("<figure>") == 1
        assert "reward -0.70 → 0.80" in page
        fixed = [link for link in Text(answer.text).links if "change=fixed" in link]
        assert len(fixed) == 3, "all of them, and each of the two"
        assert "2 of 5 scenarios that both hold" in str(Text(client.get(fixed[0]).text))
        assert client.get(fixed[1]).text.count('<article class="attempt"') == 2


@pytest.mark.parametrize("query", [{"kind": "rollout"}, {"page": "2"}, {"part": "rows"}, {"sort": "reward"}])
def test_a_filtered_list_is_the_list_alone(tmp_path: Path, query: dict[str, str]) -> None:
    with browse(make_run(tmp_path / "run", iterations=1)) as client:
        assert "by training" not in read(client, "/", **query)


def test_three_of_those_that_were_fixed_and_broken(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=1, held_out=12)
    told = [trajectory(scenario(number, "val"), 0, "val", 2) for number in range(12)]
    for name, solved in (("000", range(5)), ("001", range(5, 12))):
        write(run / name / "evaluation", told, [reward(one, place in solved) for place, one in enumerate(told)])
        write_summary(run / name / "evaluation", len(solved), 12)
    with browse(run) as client:
        page = client.get("/").text
        assert "7 fixed by training" in page
        assert "5 broken by training" in page
        assert page.count("<li>") == 6


def test_a_finished_run_speaks_of_its_test_split(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    told = [trajectory(scenario(number, "test"), 0, "test", 2) for number in range(5)]
    write(run / "000" / "test", told, [reward(one, False) for one in told])
    write_summary(run / "000" / "test", 0, 5)

    def shown() -> tuple[str, str]:
        found = overview(run, Index(run).batches)
        assert found is not None
        return found.split, found.headline.partition(" [")[0]

    assert shown() == ("test", "success 0.000")
    path = run / "002" / "test" / "summary.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"adapter_hash": "of the run before"}))
    assert shown() == ("validation", "success 0.200")


def test_what_the_iterations_began_with_may_be_the_best(tmp_path: Path) -> None:
    """Of 5 validation scenarios what was taught solves 4, iteration 2 solves 3."""
    run = make_run(tmp_path / "run")
    told = [trajectory(scenario(number, "val"), 0, "val", 2) for number in range(5)]
    write(run / "sft" / "evaluation", told, [reward(one, place < 4) for place, one in enumerate(told)])
    write_summary(run / "sft" / "evaluation", 4, 5)
    with browse(run) as client:
        page = str(Text(client.get("/").text))
        gain = "success 0.200 [0.036, 0.624] → 0.800 [0.376, 0.964] of 5 scenarios, taken as independent"
        assert f"{gain} (base policy → run/sft)" in page
        assert "49 of 49 trajectories" in page
        assert client.get("/compare").status_code == 200
        assert client.get("/analytics").status_code == 200


def test_a_run_that_has_trained_nothing_has_no_overview(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=0)
    assert overview(run, Index(run).batches) is None
    with browse(run) as client:
        assert "by training" not in read(client, "/")


def test_a_judged_run_says_what_it_is_compared_with(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=1)
    judged = Judged(
        rival="base policy",
        rival_hash="a",
        judge="j",
        share=0.75,
        ci95=(0.4, 0.9),
        wins=3,
        ties=0,
        losses=1,
        disagreements=0,
        unjudged=0,
    )
    for name in ("000", "001"):
        write_summary(run / name / "evaluation", 0, 4, judged=judged)
    found = overview(run, Index(run).batches)
    assert found is not None
    assert found.headline.startswith("judged better than the base policy on 0.750 [0.400, 0.900]")
    assert found.curve is not None
    assert "judged better than the base policy" in found.curve.title


def test_pages_say_training_and_validation_and_show_no_markdown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", iterations=1)
    (run / "001" / "trajectories.parquet").write_bytes(b"PAR1 no more")
    one = scenario(0, "val")
    write_records([one], run / "scenarios" / "val.parquet")
    group = f"/group?at=000/evaluation&scenario={one.id}"
    with browse(run) as client:
        for address in ("/", "/?by=attempt", group, "/compare", "/analytics", "/?min=a", "/group?at=9/x"):
            page = str(Text(client.get(address).text))
            assert "`" not in page, address
            assert not re.search(r"\b(rollouts?|evaluation)\b", page), address


def test_code_in_a_message_is_escaped_first() -> None:
    assert formats.code("run `make <b>` or `x\ny`") == "run <code>make &lt;b&gt;</code> or `x\ny`"
