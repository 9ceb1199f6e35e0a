"""Knowledge search: consistent documents, splits that share none that answers, strict answers, and the reward by hand."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from environments.base import Scenario, Split, read_lines, split_of, use
from environments.knowledge_search import KINDS, SHARES, KnowledgeSearch, Store, build_index, is_right, world
from environments.knowledge_search.players import extract
from tests.conftest import ROOT

DATA = ROOT / "tasks_data" / "knowledge_search"
SPLITS: tuple[Split, ...] = ("train", "val", "test")
DOCUMENTS = [
    {"id": "d001", "title": "Arbon (1999)", "date": "1999-05-01", "text": "Arbon is a town. Its mayor is Ida Holm."},
    {"id": "d002", "title": "Arbon (1971)", "date": "1971-02-03", "text": "Arbon is a town. Its mayor is Per Lund."},
    {"id": "d003", "title": "Eva Dahl (1995)", "date": "1995-01-01", "text": "Eva Dahl was born in the town of Arbon."},
]
MAYOR: dict[str, Any] = {
    "kind": "superseded",
    "difficulty": 3,
    "question": "Who is the mayor of Arbon?",
    "answer": "Ida Holm",
    "conflicting": ["Per Lund", "Nils Berg"],
    "sources": [["d001"]],
    "where": [],
}
BORN = MAYOR | {"kind": "two-hop", "question": "Who is the mayor of the town in which Eva Dahl was born?"}
BORN = BORN | {"sources": [["d003"], ["d001", "d009"]]}
RIVER = MAYOR | {"kind": "unanswerable", "question": "On which river does Arbon lie?", "answer": "", "sources": []}
RIVER = RIVER | {"where": [["d001"]]}
STORE = Store(build_index(DOCUMENTS), {})


@pytest.fixture(scope="module")
def data() -> Store:
    return KnowledgeSearch.load(DATA)


def questions(data: Store, split: Split) -> list[dict[str, Any]]:
    return [question for kind in KINDS for question in data.questions[split, kind]]


def scenario(question: dict[str, Any]) -> Scenario:
    return KnowledgeSearch.from_question("train", question)


def told(question: dict[str, Any], *calls: tuple[str, dict[str, Any]]) -> tuple[float, bool]:
    """Reward and success of a transcript of these calls."""
    env = KnowledgeSearch(scenario(question), STORE)
    messages = list(env.scenario.messages)
    for name, arguments in calls:
        messages.append(use(name, **arguments))
        messages += env.step(messages[-1])
    reward = sum(part.value for part in KnowledgeSearch.reward(env.scenario, messages))
    return round(reward, 6), KnowledgeSearch.success(env.scenario, messages)


def given(text: str, *citations: str) -> tuple[str, dict[str, Any]]:
    return "answer", {"text": text, "citations": list(citations)}


# --- The data


def test_the_generator_writes_the_committed_bytes(tmp_path: Path) -> None:
    world.main(str(tmp_path))
    for name in ("documents.jsonl", "questions.jsonl"):
        made, committed = ((folder / name).read_bytes() for folder in (tmp_path, DATA))
        assert hashlib.sha256(made).hexdigest() == hashlib.sha256(committed).hexdigest()


def test_what_a_question_rests_on_says_so(data: Store) -> None:
    """Each hop's documents hold their part; the last ones hold the answer, and are the newest of their entity."""
    documents = {one["id"]: one for one in read_lines(DATA / "documents.jsonl")}
    assert len(documents) >= 400
    newest: dict[str, str] = {}
    for one in documents.values():
        name = one["title"].rpartition(" (")[0]
        newest[name] = max(newest.get(name, ""), one["date"])
    for question in itertools.chain.from_iterable(questions(data, split) for split in SPLITS):
        hops = [[documents[source] for source in hop] for hop in question["sources"]]
        assert len(hops) == {"one-hop": 1, "superseded": 1, "two-hop": 2, "unanswerable": 0}[question["kind"]]
        assert question["answer"] not in question["conflicting"]
        if not hops:
            assert question["answer"] == ""
            assert len(question["where"]) == {2: 1, 4: 2}[question["difficulty"]]
            assert all(len(hop) >= 1 and set(hop) <= set(documents) for hop in question["where"])
            continue
        assert question["where"] == []
        assert question["answer"] not in question["question"]
        assert all(question["answer"] in one["text"] for one in hops[-1])
        assert any(one["date"] == newest[one["title"].rpartition(" (")[0]] for one in hops[-1])
        if question["kind"] == "two-hop":
            second = hops[1][0]["title"].rpartition(" (")[0]
            assert all(second in one["text"] for one in hops[0])
            assert second not in question["question"]
            assert not {one["id"] for one in hops[0]} & {one["id"] for one in hops[1]}
            assert all(question["answer"] not in one["text"] for one in hops[0])
        if question["kind"] == "superseded":
            name = hops[0][0]["title"].rpartition(" (")[0]
            older = [one for one in documents.values() if one["title"].startswith(f"{name} (") and one not in hops[0]]
            assert older
            assert all(one["date"] < hops[0][0]["date"] and question["answer"] not in one["text"] for one in older)
            assert any(question["conflicting"][0] in one["text"] for one in older)


def test_what_is_not_known_is_in_no_document(data: Store) -> None:
    texts = {one["id"]: one["text"] for one in read_lines(DATA / "documents.jsonl")}
    for split in SPLITS:
        for question in data.questions[split, "unanswerable"]:
            if question["difficulty"] == 2:
                own = [text for text in texts.values() if _name(question["question"]) in text.partition(". ")[0]]
                assert own == [texts[name] for name in question["where"][0]]
                assert all(extract(question["question"], text) == "" for text in own)
        for question in data.questions[split, "one-hop"]:  # so the check above can fail
            assert extract(question["question"], texts[question["sources"][0][0]]) == question["answer"]


def _name(question: str) -> str:
    """The one name of a question of one hop."""
    return re.findall(r"[A-Z]\w+(?: (?:[A-Z]\w+|[a-z]+(?= first shown)))?", question.partition(" ")[2])[0]


def test_no_document_answers_questions_of_two_splits(data: Store) -> None:
    used = [
        {source for question in questions(data, split) for hop in question["sources"] for source in hop}
        for split in SPLITS
    ]
    assert all(used)
    assert sum(map(len, used)) == len(set.union(*used))
    provinces = [{question["province"] for question in questions(data, split)} for split in SPLITS]
    assert [len(one) for one in provinces] == [10, 4, 4]
    assert all(
        split_of(province, SHARES) == split for split, one in zip(SPLITS, provinces, strict=True) for province in one
    )
    asked = [question["question"] for split in SPLITS for question in questions(data, split)]
    assert len(asked) == len(set(asked))


def test_the_store_is_the_same_for_all_splits(data: Store) -> None:
    documents = read_lines(DATA / "documents.jsonl")
    assert len({one["id"] for one in documents}) == len(documents)
    assert {re.fullmatch(r"d\d{3}", one["id"]) is not None for one in documents} == {True}
    # The place of an id says nothing of the province: the first hundred ids are of nearly all.
    assert len({re.findall(r"province of (\w+)", one["text"])[0] for one in documents[:100]}) >= 16


def test_former_values_differ() -> None:
    fresh, rng = world.names(Random(1)), Random(2)
    for entity in itertools.chain.from_iterable(world.make_province(fresh, rng) for _ in range(20)):
        for key, attribute in world.ATTRIBUTES[entity.kind].items():
            values = [facts[key] for facts in [entity.facts, *entity.former] if key in facts]
            assert len(set(values)) == (len(values) if attribute.changes else min(1, len(values)))


# --- Scenarios


def test_the_same_seed_gives_the_same_scenarios(data: Store) -> None:
    first, again, other = (KnowledgeSearch.scenarios(data, "val", 40, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert len({one.id for one in first}) == 40
    counts = {kind: sum(one.data["kind"] == kind for one in first) for kind in KINDS}
    assert counts == {"one-hop": 12, "two-hop": 12, "superseded": 11, "unanswerable": 5}
    assert all(1 <= one.data["difficulty"] <= 5 for one in first)
    with pytest.raises(
        ValueError, match=r"of the kind superseded, .* val of knowledge_search has 24: ask for 72 or fewer"
    ):
        KnowledgeSearch.scenarios(data, "val", 100, 1)


def test_the_policy_is_not_told_the_answer(data: Store) -> None:
    for split in SPLITS:
        for one in KnowledgeSearch.scenarios(data, split, 60, 4):
            shown = json.dumps(one.messages)
            assert not one.data["answer"] or one.data["answer"] not in shown
            assert not any(source in shown for hop in one.data["sources"] for source in hop)


# --- Tools


def test_search_shows_id_title_and_snippet() -> None:
    env = KnowledgeSearch(scenario(MAYOR), STORE)
    assert env.call("search", {"query": "Who was born, Dahl?"}) == (
        "d003 | Eva Dahl (1995) | Eva Dahl was born in the town of Arbon."
    )
    found = env.call("search", {"query": "mayor Arbon"})
    assert [line.partition(" | ")[0] for line in found.splitlines()] == ["d001", "d002", "d003"]
    assert len(env.call("search", {"query": "mayor Arbon", "limit": 1}).splitlines()) == 1
    assert env.call("search", {"query": "nothing"}) == "0 documents."


@pytest.mark.parametrize(
    "query", ['"', "AND OR NOT", "title:Arbon", "NEAR(a b)", "a*", "'; drop table found; --", "ü ß 漢", "-x ^y"]
)
def test_no_query_is_a_command(query: str) -> None:
    env = KnowledgeSearch(scenario(MAYOR), STORE)
    assert not re.search("sqlite|syntax|fts5", env.call("search", {"query": query}))
    assert env.call("search", {"query": "Ida"}).startswith("d001 | ")


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("search", {"query": "?!"}, "Error: query must hold at least one word."),
        ("search", {"query": ""}, "Error: query must hold at least one word."),
        ("search", {"query": "x" * 301}, "Error: query may have 300 characters at most."),
        ("search", {"query": "x", "limit": 0}, "Error: limit must be 1 to 10."),
        ("search", {"query": "x", "limit": 11}, "Error: limit must be 1 to 10."),
        ("search", {"query": "x", "limit": "5"}, "Error: wrong arguments for search: limit: "),
        ("open", {"id": "d999"}, "Error: there is no document with this id; search shows ids."),
        ("open", {"id": "d001' or '1'='1"}, "Error: there is no document with this id"),
        (
            "answer",
            {"text": " ?", "citations": []},
            "Error: text must not be empty; where no document tells, answer: not",
        ),
        ("answer", {"text": "Ida Holm"}, "Error: wrong arguments for answer: citations: "),
        ("answer", {"text": "x" * 301, "citations": []}, "Error: text may have 300 characters at most"),
        ("answer", {"text": "x", "citations": ["d001"] * 11}, "Error: text may have 300 characters at most"),
        ("answer", {"text": "x", "citations": "d001"}, "Error: wrong arguments for answer"),
    ],
)
def test_errors_are_observations(name: str, arguments: dict[str, Any], said: str) -> None:
    env = KnowledgeSearch(scenario(MAYOR), STORE)
    assert env.call(name, arguments).startswith(said)
    assert not env.done


def test_open_shows_the_date() -> None:
    env = KnowledgeSearch(scenario(MAYOR), STORE)
    assert (
        env.call("open", {"id": "d002"})
        == "Arbon (1971), written on 1971-02-03\nArbon is a town. Its mayor is Per Lund."
    )


def test_an_answer_ends_the_episode() -> None:
    env = KnowledgeSearch(scenario(MAYOR), STORE)
    assert env.call("answer", {"text": "Ida Holm", "citations": ["d001"]}) == "The answer was given."
    assert env.done


# --- Answers and reward


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Ida Holm", True),
        ("ida holm.", True),
        ("The mayor of Arbon is Ida Holm.", True),
        ("It is Ida Holm, since May", False),
        ("Ida Holm (1999)", True),
        ("Holm", False),
        ("Holm Ida", False),
        ("Per Lund", False),
        ("Ida Holm or Per Lund", False),
        ("Ida Holm, Lund", False),
        ("Ida Holm Nils", False),
        ("Ida Holm or someone else", False),
        ("not known", False),
        ("", False),
    ],
)
def test_an_answer_is_right_and_says_nothing_besides(text: str, right: bool) -> None:
    assert is_right(scenario(MAYOR), text) == right


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("12,400", True),
        ("12400 people", True),
        ("About 12,400.", True),
        ("12", False),
        ("412,400", False),
        ("12,400 or 9,000", False),
    ],
)
def test_numbers(text: str, right: bool) -> None:
    question = MAYOR | {"question": "How many people live in Arbon?", "answer": "12,400", "conflicting": ["8,100"]}
    assert is_right(scenario(question), text) == right


@pytest.mark.parametrize(
    ("text", "right"), [("not known", True), ("Not known.", True), ("I don't know", True), ("Traen", False)]
)
def test_not_known_is_right_where_no_document_tells(text: str, right: bool) -> None:
    assert is_right(scenario(RIVER), text) == right


SEARCH = ("search", {"query": "Arbon"})
OPEN = ("open", {"id": "d001"})


@pytest.mark.parametrize(
    ("question", "calls", "reward", "success"),
    [
        (MAYOR, [SEARCH, OPEN, given("Ida Holm", "d001")], 1.2, True),
        (MAYOR, [given("Ida Holm", "d001")], 1.2, True),
        (MAYOR, [given("Ida Holm")], 1.0, False),
        (MAYOR, [given("Ida Holm", "d002")], 0.9, False),  # the older document says otherwise
        (MAYOR, [given("Ida Holm", "d001", "d002")], 1.1, False),
        (MAYOR, [given("Ida Holm", "d001", "d001")], 1.2, True),
        (MAYOR, [given("Per Lund", "d002")], -0.9, False),
        (MAYOR, [given("Per Lund")], -0.8, False),
        (MAYOR, [given("not known")], -0.3, False),
        (MAYOR, [given("not known", "d002")], -0.4, False),
        (MAYOR, [SEARCH], -0.6, False),
        (MAYOR, [SEARCH] * 6 + [given("Ida Holm", "d001")], 1.14, True),
        (MAYOR, [("open", {"id": "d900"}), given("Ida Holm", "d001")], 1.1, True),
        (MAYOR, [("find", {}), ("open", {}), given("Ida Holm", "d001")], 1.0, True),
        (BORN, [given("Ida Holm", "d001", "d003")], 1.2, True),
        (BORN, [given("Ida Holm", "d009", "d003")], 1.2, True),  # either document of the second hop
        (BORN, [given("Ida Holm", "d001", "d009")], 1.1, True),
        (BORN, [given("Ida Holm", "d003", "d002")], 1.0, False),
        (MAYOR, [given("Ida Holm", *(f"d{number:03}" for number in range(1, 11)))], 0.3, False),
        (RIVER, [SEARCH, OPEN, given("not known")], 1.0, True),
        (RIVER, [SEARCH, OPEN, given("not known", "d001")], 0.9, False),
        (RIVER, [given("not known")], -0.3, False),
        (RIVER, [SEARCH, given("not known")], -0.3, False),
        (RIVER, [SEARCH, ("open", {"id": "d002"}), given("not known")], -0.3, False),
        (RIVER, [given("")], -0.7, False),
        (RIVER, [given("Traen", "d001")], -0.9, False),
        (RIVER, [SEARCH], -0.6, False),
    ],
)
def test_rewards_by_hand(question: dict[str, Any], calls: list[Any], reward: float, success: bool) -> None:
    assert told(question, *calls) == (reward, success)


# --- Players


def played(data: Store, player: str) -> Iterator[tuple[Scenario, float, bool]]:
    for one in KnowledgeSearch.scenarios(data, "test", 80, 7):
        messages = KnowledgeSearch(one, data).play(player)
        assert messages == KnowledgeSearch(one, data).play(player)
        reward = sum(part.value for part in KnowledgeSearch.reward(one, messages))
        yield one, reward, KnowledgeSearch.success(one, messages)


def test_players(data: Store) -> None:
    gold = list(played(data, "gold"))
    bad = list(played(data, "bad"))
    assert all(success and reward == pytest.approx(1.2 if one.data["answer"] else 1.0) for one, reward, success in gold)
    assert all(not success and reward < -0.5 for _, reward, success in bad)
    scripted = list(played(data, "scripted"))
    assert {one.data["kind"] for one, _, _ in scripted} == set(KINDS)
    assert all(success for _, _, success in scripted)
    assert sum(done for _, _, done in played(data, "random")) < 15


def test_scripted_sees_the_transcript_alone(data: Store) -> None:
    """With all that the policy does not see taken away, it plays the same."""
    for one in KnowledgeSearch.scenarios(data, "train", 8, 1):
        blind = one.model_copy(update={"data": {}})
        assert KnowledgeSearch(blind, data).play("scripted") == KnowledgeSearch(one, data).play("scripted")


@pytest.mark.parametrize("name", ["questions", "documents"])
def test_missing_files_are_named(tmp_path: Path, name: str) -> None:
    if name == "documents":
        (tmp_path / "questions.jsonl").touch()
    with pytest.raises(FileNotFoundError, match=rf"{name}\.jsonl is missing: restore it .* or write it anew"):
        KnowledgeSearch.load(tmp_path)
