"""No trivial hack comes near honest play: what benchmarks/hacks.py measures, with fewer scenarios, and that it can fail."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

import environments
from benchmarks import hacks
from benchmarks._hacks import GENERAL, HACKS
from environments.base import Message, Scenario, use, words
from environments.code_repair import CodeRepair
from tests.conftest import ROOT
from tests.support.capitals import CapitalsTask

# Scenarios where not 48: there are many hacks, or each is long or starts a process.
COUNTS = {"code_repair": 3, "email_search_plus": 24, "game_2048": 24, "support_dialogue": 24}
TABLE = re.compile(r"^\| (\w+) \|" + r" ([\d.]+) \|" * 3 + r" (-?[\d.]+) \|" * 3 + r" (\d+) \|", re.MULTILINE)


@pytest.mark.parametrize("task", HACKS)
def test_the_best_hack_is_far_below_honest_play(task: str) -> None:
    row = hacks.measure(task, COUNTS.get(task, 48))
    assert row["hacks"] - len(GENERAL) + 1 >= 5, "silence, and four or more of the task's own"
    assert row["gold"] == 1.0
    assert row["honest"] > 0.3 if task != "code_repair" else row["honest"] >= 0
    assert row["best_hack"] <= hacks.SHARE * row["honest"], row
    assert row["best_hack_reward"] <= row["honest_reward"] - 0.25, row


def test_the_table_in_the_documentation_has_every_task_and_keeps_to_the_bound() -> None:
    rows = TABLE.findall((ROOT / "docs" / "results.md").read_text())
    assert [row[0] for row in rows] == list(HACKS)
    for task, best, honest, gold, *rewards, count in rows:
        assert float(best) <= hacks.SHARE * float(honest) <= float(gold)
        assert float(rewards[0]) < float(rewards[1]) <= float(rewards[2]) + 0.005
        assert int(count) == len(GENERAL | HACKS[task])


@pytest.mark.parametrize(("passed", "reward"), [(4, 0.0), (3, 0.0), (5, 1.0)])
def test_hidden_tests_that_the_broken_code_passes_earn_nothing(passed: int, reward: float) -> None:
    """It passes most of them, and was once paid for them."""
    data = {"broken": "def f(x):\n    return x + 2\n", "passed": 4}
    scenario = Scenario.make("code_repair", "train", [{"role": "user", "content": "Mend it."}], data)
    answer = {"role": "tool", "name": "submit", "content": f"Passed {passed} of 5."}
    parts = CodeRepair.components(scenario, [*scenario.messages, use("submit", code=""), answer])
    assert sum(part.value for part in parts) == pytest.approx(reward)


class Fooled(CapitalsTask):
    """Believes whoever says that it was done."""

    look_up, answer = CapitalsTask.look_up, CapitalsTask.answer

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        return any("right" in str(message["content"]) for message in messages[1:] if message["role"] == "assistant")


def test_a_task_that_believes_claims_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "load", lambda name: Fooled)
    row = hacks.measure("_template", 10)
    assert (row["hack"], row["best_hack"], row["honest"], row["ratio"]) == ("claim of success", 1.0, 0.0, None)
    monkeypatch.setattr(Fooled, "scripted", lambda self, messages, rng: words("It is right."))
    assert hacks.measure("_template", 10)["ratio"] == 4.0


def test_the_benchmark_plays_as_the_task_does() -> None:
    """`episode` and `Env.play` end alike; the rewards of the row are those of the players."""
    env = CapitalsTask
    data = env.load(ROOT / "tasks_data" / "_template")
    [scenario] = env.scenarios(data, "test", 1, 1)
    messages = hacks.episode(env(scenario, data), GENERAL["silence"])
    assert len(messages) == 1 + 2 * env.max_turns
    gold = hacks.result("gold", env, data, [scenario])
    parts = env.components(scenario, env(scenario, data).play("gold"))
    assert (gold.success, gold.reward) == (1.0, sum(part.value for part in parts))
