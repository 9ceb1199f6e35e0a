"""The players of both email tasks, and that the prompt which the embedded policy was trained on stays as it is."""

from __future__ import annotations

import hashlib
import json
from random import Random
from typing import Any

import pytest

from environments.base import Env, Message, is_error, tool_calls
from environments.email_search import SYSTEM, EmailSearch
from environments.email_search.inbox import seen_ids, shown
from environments.email_search.players import days_of
from environments.email_search_plus import EmailSearchPlus
from tests.conftest import ROOT

TASKS: list[type[EmailSearch]] = [EmailSearch, EmailSearchPlus]


@pytest.fixture(scope="module")
def loaded() -> dict[type[Env], Any]:
    return {task: task.load(ROOT / "tasks_data" / task.task) for task in TASKS}


def played(task: type[EmailSearch], data: Any, player: str, count: int = 60) -> list[tuple[float, bool, list[Message]]]:
    """(reward, success, transcript) of episodes of the test split."""
    results = []
    for scenario in task.scenarios(data, "test", count, 5):
        messages = task(scenario, data).play(player, 3)
        total = sum(part.value for part in task.reward(scenario, messages))
        results.append((total, task.success(scenario, messages), messages))
    return results


def test_the_prompt_that_the_embedded_policy_knows_has_not_moved() -> None:
    """A golden hash: another prompt means that the policy's weights have to be made anew."""
    prompt = SYSTEM + json.dumps([tool.schema for tool in EmailSearch.tools().values()])
    assert (
        hashlib.sha256(prompt.encode()).hexdigest()
        == "43c476de11fc078c72555109ecd48d4058f02a54b92f1c8044faf7186ae4cd3f"
    )


@pytest.mark.parametrize("task", TASKS)
def test_gold_earns_all_there_is(task: type[EmailSearch], loaded: dict[type[Env], Any]) -> None:
    for total, success, messages in played(task, loaded[task], "gold"):
        assert success
        assert total == pytest.approx(1.4), messages


@pytest.mark.parametrize("task", TASKS)
def test_bad_and_random_earn_clearly_less(task: type[EmailSearch], loaded: dict[type[Env], Any]) -> None:
    for player in ("bad", "random"):
        results = played(task, loaded[task], player)
        assert max(total for total, _, _ in results) < 1.0
        assert sum(success for _, success, _ in results) <= 1
    answers = {
        str(messages[2]["tool_calls"][0]["function"]["arguments"]["answer"])
        for _, _, messages in played(task, loaded[task], "bad")
    }
    assert "I don't know" in answers
    assert len(answers) > 20, "it also answers what other mails state"


@pytest.mark.parametrize("task", TASKS)
def test_scripted_needs_nothing_hidden(task: type[EmailSearch], loaded: dict[type[Env], Any]) -> None:
    """Its turns are the same where the answer and the sources were taken away; the inbox is the environment's."""
    data = loaded[task]
    successes = 0
    for scenario in task.scenarios(data, "test", 60, 5):
        blind = {
            key: value for key, value in scenario.data.items() if key not in ("answer", "conflicting", "source_ids")
        }
        messages = task(scenario.model_copy(update={"data": blind}), data).play("scripted", 3)
        assert messages == task(scenario, data).play("scripted", 3)
        successes += task.success(scenario, messages)
    assert successes >= 57


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("player", ["scripted", "random", "gold", "bad"])
def test_calls_are_well_formed(task: type[EmailSearch], player: str, loaded: dict[type[Env], Any]) -> None:
    for _, _, messages in played(task, loaded[task], player, 20):
        for name, _, observation in tool_calls(messages):
            assert name in task.tools()
            assert (
                not is_error(observation)
                or "there is no email" in observation["content"]
                or "no results" in str(observation["content"])
            )


def test_the_same_seed_plays_the_same_episode(loaded: dict[type[Env], Any]) -> None:
    [scenario, *_] = EmailSearch.scenarios(loaded[EmailSearch], "train", 3, 1)
    first, again, other = (EmailSearch(scenario, loaded[EmailSearch]).play("random", seed) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize(
    ("question", "query"),
    [
        (
            "What is the budget for Falcon according to Carl Cook?",
            {"keywords": ["Falcon", "budget"], "sender": "Carl Cook"},
        ),
        (
            "What was the room for Cedar in March 2001?",
            {"keywords": ["Cedar", "room"], "after": "2001-03-01", "before": "2001-03-31"},
        ),
        ("What is the latest venue for Opal?", {"keywords": ["Opal", "venue"], "sort": "newest"}),
        ("Who wrote about lunch?", {"keywords": ["wrote", "about", "lunch"], "sort": "newest"}),
    ],
)
def test_what_the_script_searches_for(question: str, query: dict[str, Any]) -> None:
    asked = {"owner": "A", "kind": "sender", "answer": "x", "conflicting": [], "source_ids": ["m1"]}
    env = EmailSearch(EmailSearch.from_question("train", asked | {"question": question}), None)
    [call] = env.scripted(env.scenario.messages, Random(1))["tool_calls"]
    assert call["function"] == {"name": "search_emails", "arguments": query}


@pytest.mark.parametrize(
    ("mail", "value"),
    [
        ("The budget for Falcon is 4100 dollars. Best regards.", "4100 dollars"),
        ("For Falcon the venue is now Oslo.", "Oslo"),
        ("We agreed that the Falcon room is Room 101. More soon.", "Room 101"),
        ("Could you send me the budget for Falcon?", None),
        ("Lunch was good. The budget is still open.", None),
    ],
)
def test_what_a_mail_states(mail: str, value: str | None) -> None:
    asked = {"owner": "A", "kind": "sender", "answer": "x", "conflicting": [], "source_ids": ["m1"], "question": "?"}
    assert EmailSearch(EmailSearch.from_question("train", asked), None)._value(mail, {}) == value


def test_helpers() -> None:
    assert days_of(2001, 2) == {"after": "2001-02-01", "before": "2001-02-31"}
    rows = [("2001-01-02", "Bo", "Hi", f"m{number}") for number in range(1, 8)]
    assert shown([], 0) == "0 emails."
    assert shown(rows, 7).splitlines()[:2] == ["7 emails:", "2001-01-02 | Bo | Hi | m1"]
    assert seen_ids([{"role": "tool", "content": shown(rows, 7)}]) == ["m1", "m2", "m3", "m4", "m5"]
    assert seen_ids([{"role": "user", "content": shown(rows, 7)}]) == []
