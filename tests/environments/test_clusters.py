"""Which scenarios each task calls alike: those of one inbox, province, function or pair; and by default, of one source."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest

import environments
from environments._template import Template
from environments.base import Scenario
from environments.multiplication import Multiplication, scenario
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("task", "count", "groups"),
    [("email_search", 240, 60), ("email_search_plus", 60, 30), ("knowledge_search", 60, 4), ("code_repair", 60, 16)],
)
def test_alike_are_those_of_an_inbox_a_province_a_function(task: str, count: int, groups: int) -> None:
    env = environments.load(task)
    data = env.load(ROOT / "tasks_data" / task)
    names = Counter(env.cluster(one, data) for one in env.scenarios(data, "test", count, 1))
    assert len(names) == groups
    assert min(names.values()) >= 2 or task == "code_repair"


def test_the_order_of_factors_does_not_matter() -> None:
    names = [Multiplication.cluster(scenario("test", a, b), None) for a, b in ((3, 40), (40, 3), (4, 30))]
    assert names[0] == names[1] != names[2]


def test_by_default_scenarios_of_the_same_source_are_alike() -> None:
    class Sourced(Template):
        sources: ClassVar[tuple[str, ...]] = ("shelf", "boxes")

    class Free(Sourced):
        sources = ()

    def made(number: int, **data: Any) -> Scenario:
        return Scenario.make("toy", "test", [], data | {"number": number})

    same, again = made(1, shelf="a", boxes=[1, 2]), made(2, shelf="a", boxes=[1, 2])
    other = made(3, shelf="a", boxes=[1])
    assert Sourced.cluster(same, None) == Sourced.cluster(again, None) != Sourced.cluster(other, None)
    assert Free.cluster(same, None) == same.id
    with pytest.raises(KeyError):
        Sourced.cluster(made(4, shelf="a"), None)
