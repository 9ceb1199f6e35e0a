"""Data sets of conversations: what is held out stays out, doubles come once, feedback decides what is learnt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import environments
from addons.production.traces.build import DataSets, Task, build
from addons.production.traces.heldout import SHARED, NearTexts, grams_of, is_near, share
from addons.production.traces.openai_jsonl import conversation
from addons.production.traces.records import Conversation, joined
from environments.base import Env, Message, Scenario
from steps.core.params import Scenarios


@pytest.fixture(scope="module")
def task() -> Task:
    env = environments.load("email_search")
    data = env.load(Path("tasks_data/email_search"))
    held = [*env.scenarios(data, "val", 90, 1), *env.scenarios(data, "test", 90, 1)]
    return Task(env, "email_search", data, env.scenarios(data, "train", 12, 1), held, Scenarios())


def chat(name: str, question: str, answer: str = "It is in the mail.", **fields: Any) -> Conversation:
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return conversation({"id": name, "messages": messages, "consent": True, **fields})


def answered(scenario: Scenario, env: type[Env], data: Any, name: str, score: float, **fields: Any) -> Conversation:
    """An episode that the scripted player or one who gives up played, with feedback."""
    messages = env(scenario, data).play("gold" if score > 0.5 else "bad")
    row = {"id": name, "messages": messages[:-1] if messages[-1]["role"] == "tool" else messages, "consent": True}
    feedback: dict[str, Any] = {"score": score} | ({"correction": scenario.data["answer"]} if score < 0.5 else {})
    return conversation(row | {"feedback": feedback, "metadata": {"owner": scenario.data["owner"]}} | fields)


def variants(question: str) -> list[str]:
    """The same question in other words' clothes."""
    return [
        question,
        question.upper(),
        f"  {question.replace(' ', '   ')} ",
        question.replace("?", "").replace("What", "what"),
        f"Hello! {question} Thank you very much for your help with this.",
        f"I have a question about my mails. {question}",
        question.replace("What", "Whaat", 1),
        question.replace(" the ", " teh ", 1),
    ]


def learnt(made: DataSets) -> list[dict[str, Any]]:
    return [*made.scenarios, *made.demonstrations, *made.preferences, *made.regression]


def test_all_planted_duplicates_of_held_out_scenarios_are_blocked(task: Task) -> None:
    asked = [str(scenario.messages[-1]["content"]) for scenario in task.held]
    planted = [
        chat(f"{number} {place}", text, feedback={"score": 1} if place % 2 else {"correction": "Oslo"})
        for number, question in enumerate(asked)
        for place, text in enumerate(variants(question))
    ]
    planted += [  # in a later turn, and with a train inbox named as its owner
        conversation(
            {
                "id": f"later {number}",
                "consent": True,
                "metadata": {"owner": "Nancy Collins"},
                "feedback": {"score": 1},
                "messages": [
                    {"role": "user", "content": "Hello"},
                    {"role": "assistant", "content": "Hello, what would you like to know?"},
                    {"role": "user", "content": question},
                    {"role": "assistant", "content": "Oslo"},
                ],
            }
        )
        for number, question in enumerate(asked)
    ]
    made = build(joined(planted)[0], task, 0.3)
    assert learnt(made) == []
    assert len({row.source for row in made.quarantine}) == len(planted) == 9 * len(task.held)


def test_questions_to_held_out_inboxes_are_blocked_in_any_words(task: Task) -> None:
    owner = str(task.held[0].data["owner"])
    scenario = next(each for each in task.held if each.data["owner"] == owner)
    messages: list[Message] = [
        {"role": "user", "content": "Kindly look up something else entirely"},
        *task.env(scenario, task.data).play("gold")[2:-1],
    ]
    given = conversation({"id": "a", "messages": messages, "consent": True, "feedback": {"score": 1}})
    made = build([given], task, 0.0)
    assert learnt(made) == []
    assert made.quarantine[0].reason.startswith("held out")


def test_other_conversations_are_learnt_from(task: Task) -> None:
    own = task.env.scenarios(task.data, "train", 120, 9)
    new = [each for each in own if each.id not in {known.id for known in task.train}][:40]
    given = [answered(each, task.env, task.data, str(place), float(place % 2)) for place, each in enumerate(new)]
    made = build(joined(given)[0], task, 0.4)
    held = [row for row in made.quarantine if row.reason.startswith("held out")]
    assert len(held) <= 2, f"of {len(new)} questions to training inboxes: {held}"
    assert len(made.demonstrations) >= 15
    assert 15 <= len(made.preferences) + len(made.regression) <= 20
    assert made.regression
    by_question = {str(each.messages[-1]["content"]): each for each in new}
    for row in [*made.scenarios, *made.regression]:
        original = by_question[row["messages"][-1]["content"]]
        assert row["messages"] == list(original.messages)
        assert row["data"] == original.data


def test_feedback_decides(task: Task) -> None:
    good = chat("a", "One?", feedback={"score": 0.9})
    bad = chat("b", "Two?", feedback={"score": 0.1})
    middling = chat("c", "Three?", feedback={"score": 0.5})
    changed = chat(
        "d",
        "Four?",
        feedback=[{"score": 1, "time": "2026-01-01T00:00:00Z"}, {"score": 0, "time": "2026-01-02T00:00:00Z"}],
    )
    corrected = chat("e", "Five?", "Wrong.", feedback={"correction": "Right."})
    thumbs = chat("f", "Six?", feedback={"label": "thumbs-up"})
    without = chat("g", "Seven?", consent=False, feedback={"score": 1})
    made = build([good, bad, middling, changed, corrected, thumbs, without], task, 0.3)
    assert [row["source"] for row in made.demonstrations] == [good.key, thumbs.key]
    [pair] = made.preferences
    assert (pair["rejected"]["content"], pair["chosen"]["content"]) == ("Wrong.", "Right.")
    assert {row.source for row in made.quarantine} == {bad.key, middling.key, changed.key, without.key}
    assert next(row.reason for row in made.quarantine if row.source == without.key) == "no consent"


def test_a_correction_of_an_answer_before_the_end(task: Task) -> None:
    messages = [
        {"role": "user", "content": "First question of two"},
        {"role": "assistant", "content": "wrong"},
        {"role": "user", "content": "Second question of two"},
        {"role": "assistant", "content": "right"},
    ]
    first = conversation({"id": "x", "messages": messages[:2], "response_id": "r1", "consent": True})
    second = conversation({"id": "x", "messages": messages, "response_id": "r2", "consent": True})
    corrected = first.model_copy(
        update={"feedback": conversation_feedback({"response_id": "r1", "correction": "better"})}
    )
    [whole], lost = joined([second, corrected])
    assert lost == []
    made = build([whole], task, 0.3)
    [pair] = made.preferences
    assert pair["messages"] == messages[:1]
    assert (pair["rejected"]["content"], pair["chosen"]["content"]) == ("wrong", "better")


def conversation_feedback(fields: dict[str, Any]) -> tuple[Any, ...]:
    row = {"messages": [{"role": "assistant", "content": "a"}], "feedback": fields}
    return conversation(row).feedback


def test_branches_of_a_conversation(task: Task) -> None:
    user, one, two = (
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "1"},
        {"role": "assistant", "content": "2"},
    )
    parts = [
        conversation({"id": "x", "messages": messages, "created": created, "consent": True})
        for created, messages in enumerate(
            [[user, one], [user, one, user, two], [user, two], [user, one]], 1_790_000_000
        )
    ]
    for order in (parts, parts[::-1], [*parts[2:], *parts[:2]]):
        made, _ = joined(order)
        assert [[message["content"] for message in each.messages] for each in made] == [
            ["Hi", "1", "Hi", "2"],
            ["Hi", "2"],
        ]
        assert joined(made)[0] == made


def test_near_texts_are_found_as_by_comparing_all_pairs() -> None:
    from random import Random

    rng = Random(3)
    words = "budget room deadline supplier venue for of Falcon Orion Cedar Atlas 12 13 latest June".split()
    texts = [" ".join(rng.choices(words, k=rng.randrange(3, 12))) for _ in range(150)]
    texts += [text[:-1] + "x" for text in texts[:40]]

    def near(one: str, other: str) -> bool:
        return share(grams_of(one), grams_of(other)) >= SHARED and is_near(one, other)

    index, known = NearTexts(rarity=texts), list[str]()
    for place, text in enumerate(texts):
        expected = next((str(at) for at, other in enumerate(known) if near(text, other)), None)
        assert index.find(text) == expected
        index.add(text, str(place))
        known.append(text)
    assert sum(index.find(text[:-1] + "y") is not None for text in texts) > 10


@pytest.mark.parametrize(
    ("text", "other", "expected"),
    [
        ("what is the deadline for umbra", "what is teh deadline for umbra", True),
        ("what is the deadline for umbra", "whaat is the deadlne for umbra", True),
        ("what is the deadline for umbra", "please what is the deadline for umbra", True),
        ("what is the deadline for umbra", "what is the deadline for orion", False),
        ("what was the budget for falcon in march 2001", "what was the budget for falcon in march 2002", False),
        ("what was the budget for falcon in june 2001", "what was the budget for falcon in july 2001", False),
        ("what is the deadline for umbra", "what is the latest budget and deadline for umbra", False),
    ],
)
def test_near_is_what_typing_errors_make(text: str, other: str, expected: bool) -> None:
    assert is_near(text, other) is is_near(other, text) is expected


class Unhooked(Env):
    """A task that makes no scenarios of conversations, and whose scenarios start with the same words."""

    max_turns = 1
    openings_repeat = True
    sources = ("seed",)

    @classmethod
    def load(cls, folder: Path) -> Any:
        return None

    @classmethod
    def scenarios(cls, data: Any, split: Any, count: int, seed: int) -> list[Scenario]:
        return [Scenario.make("unhooked", split, [{"role": "user", "content": "Play."}], {"seed": 7})]

    @classmethod
    def reward(cls, scenario: Scenario, messages: Sequence[Message]) -> float:
        return 0.0

    @classmethod
    def success(cls, scenario: Scenario, messages: Sequence[Message]) -> bool:
        return False

    scripted = random = gold = bad = lambda self, messages, rng: messages[0]  # pyrefly: ignore[bad-override-param-name]


def test_without_a_hook_nothing_can_be_told_from_held_out_games() -> None:
    task = Task(Unhooked, "unhooked", None, [], Unhooked.scenarios(None, "test", 1, 1), Scenarios())
    made = build([chat("a", "Play.", feedback={"score": 1})], task, 0.3)
    assert learnt(made) == []
    assert "cannot be told from held-out ones" in made.quarantine[0].reason
    spoken = type("Spoken", (Unhooked,), {"openings_repeat": False, "sources": ()})
    made = build([chat("a", "Something else", feedback={"score": 1})], task._replace(env=spoken), 0.3)
    assert len(made.demonstrations) == 1
    assert list(made.no_scenario) == [
        "no scenario: the task does not say how a conversation becomes a scenario (from_conversation)"
    ]


def test_rows_that_are_no_conversation_are_named() -> None:
    from addons.production.traces.openai_jsonl import read
    from addons.production.traces.records import Unreadable

    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}
    answer = {"role": "assistant", "content": "x"}
    rows = [
        "{",
        "[]",
        json.dumps({"messages": [image, answer]}),
        json.dumps({"messages": []}),
        json.dumps({"messages": [{"role": "user", "content": "a"}]}),
    ]
    rows.append(json.dumps({"messages": [{"role": "user", "content": "a"}, answer], "feedback": "good"}))
    made = list(read(rows, "f"))
    assert all(isinstance(each, Unreadable) for each in made)
    reasons = {each.source: each.reason for each in made if isinstance(each, Unreadable)}
    assert list(reasons) == [f"f:{number}" for number in range(1, 7)]
    assert "image_url" in reasons["f:3"]
    assert "feedback must be an object" in reasons["f:6"]
