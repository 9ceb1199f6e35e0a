"""Which scenarios each task calls alike: those of one inbox, province, function or pair; and by default, of one source."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

import pytest
import yaml

import environments
from environments._template import Template
from environments.base import Scenario, Split
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


MOST = {"game_2048": 120, "game_2048_whole": 40}  # scenarios, where each game takes a while to find
FEW = {"code_repair": 15, "knowledge_search": 4}  # docs/tasks.md says why
PRESETS = sorted(path.stem for path in (ROOT / "tasks_data").glob("*.yaml") if "+" not in path.stem)


@pytest.mark.parametrize("task", PRESETS)
def test_evaluations_of_a_preset_have_thirty_groups_at_least(task: str) -> None:
    counts = yaml.safe_load((ROOT / "tasks_data" / f"{task}.yaml").read_text())["scenarios"]
    env = environments.load(task)
    data = env.load(ROOT / "tasks_data" / task)
    splits: tuple[Split, ...] = ("val", "test")
    for split in splits:
        count = min(counts[split], MOST.get(task, counts[split]))
        groups = Counter(env.cluster(one, data) for one in env.scenarios(data, split, count, 1))
        assert len(groups) >= FEW.get(task, 30)
        assert max(groups.values()) <= 0.3 * count


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
