"""email_search: its committed data, its tools under good and bad calls, and its reward on good and bad transcripts."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from random import Random
from statistics import mean
from typing import Any

import pytest

import environments
from environments.base import Message, Scenario, Split, is_error, normalise, sample_kinds, unwritable
from environments.email_search import KINDS, LONGEST, NEEDED_CALLS, REWARD, EmailSearch, is_unknown, mailbox
from environments.email_search.inbox import Mailbox, build_index
from steps.core import params

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "tasks_data" / "email_search"
SPLITS: tuple[Split, ...] = ("train", "val", "test")

Call = tuple[str, Any]  # name, arguments

# A mailbox small enough to know by heart. Bo's m1 is another mail than Ann's.
MAILS = [
    {"id": name, "owner": owner, "date": day, "sender": sender, "to": owner, "subject": subject, "body": body}
    for name, owner, day, sender, subject, body in (
        ("m1", "Ann Bell", "2001-02-03", "Carl Cook", "Falcon budget", "The budget for Falcon is 4100 dollars."),
        ("m2", "Ann Bell", "2001-05-06", "Dora Diaz", "Falcon budget", "For Falcon the budget is now 5200 dollars."),
        ("m3", "Ann Bell", "2001-07-08", "Carl Cook", "Re: Falcon meeting", "Budgets were discussed."),
        ("m4", "Ann Bell", "2001-09-10", "100% Sure_Thing", "Café", "naïve 東京 plans"),
        ("m1", "Bo Reed", "2001-03-04", "Carl Cook", "Falcon budget", "The budget for Falcon is 9900 dollars."),
        ("m9", "Bo Reed", "2001-03-05", "Carl Cook", "Secret zebra", "Only Bo may know."),
    )
]
QUESTION = {
    "owner": "Ann Bell",
    "kind": "sender",
    "question": "What is the budget for Falcon according to Carl Cook?",
    "answer": "4100 dollars",
    "conflicting": ["5200 dollars"],
    "source_ids": ["m1"],
}


@pytest.fixture(scope="module")
def small() -> Mailbox:
    return Mailbox(MAILS, build_index)


@pytest.fixture(scope="module")
def committed() -> Mailbox:
    return EmailSearch.load(FOLDER)


def episode(data: Mailbox, question: dict[str, Any] = QUESTION) -> EmailSearch:
    return EmailSearch(EmailSearch.from_question("train", question), data)


def transcript(env: EmailSearch, calls: list[Call | str]) -> list[Message]:
    """The messages of an episode; a text stands for a turn without a readable call."""
    messages = list(env.scenario.messages)
    for turn in calls:
        if isinstance(turn, str):
            messages += [
                {"role": "assistant", "content": turn},
                {"role": "tool", "name": "", "content": "Error: no call."},
            ]
            continue
        name, arguments = turn
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages.append({"role": "tool", "name": name, "content": env.call(name, arguments)})
    return messages


def scored(data: Mailbox, calls: list[Call | str]) -> tuple[float, bool]:
    env = episode(data)
    messages = transcript(env, calls)
    total = sum(part.value for part in EmailSearch.reward(env.scenario, messages))
    return round(total, 6), EmailSearch.success(env.scenario, messages)


# --- The data


def test_the_committed_mailbox_is_what_the_generator_writes(tmp_path: Path) -> None:
    mailbox.main(str(tmp_path))
    for name in ("mails.jsonl", "questions.jsonl"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes(), (
            f"{name}: write it anew, or undo the change"
        )
    assert sorted(file.name for file in FOLDER.iterdir()) == ["mails.jsonl", "questions.jsonl", "rubric.md"]


def test_splits_share_no_inbox_and_no_question(committed: Mailbox) -> None:
    for split, other in (("train", "val"), ("train", "test"), ("val", "test")):
        mine, others = committed.questions[split], committed.questions[other]
        assert {one["owner"] for one in mine}.isdisjoint(one["owner"] for one in others)
        ids = {EmailSearch.from_question("train", one).id for one in mine}
        assert ids.isdisjoint(EmailSearch.from_question("train", one).id for one in others)


def test_splits_share_no_question_word_by_word(committed: Mailbox) -> None:
    asked = {split: {one["question"] for one in committed.questions[split]} for split in SPLITS}
    assert all(asked.values())
    assert not asked["train"] & (asked["val"] | asked["test"])
    assert not asked["val"] & asked["test"]


def test_a_source_of_an_added_inbox_is_in_no_inbox_of_training_word_by_word(committed: Mailbox) -> None:
    owners = {split: list(dict.fromkeys(one["owner"] for one in committed.questions[split])) for split in SPLITS}
    assert {split: len(names) for split, names in owners.items()} == {"train": 10, "val": 30, "test": 60}
    trained = {mail["body"] for owner in owners["train"] for mail in committed.mails[owner]}
    for split in ("val", "test"):
        bodies = {(owner, mail["id"]): mail["body"] for owner in owners[split] for mail in committed.mails[owner]}
        assert not trained & {bodies[one["owner"], one["source_ids"][0]] for one in committed.questions[split]}


def test_an_added_inbox_is_like_the_others_and_asked_about_by_all_kinds(committed: Mailbox) -> None:
    counts = {split: Counter((one["owner"], one["kind"]) for one in committed.questions[split]) for split in SPLITS}
    firsts: tuple[tuple[Split, int], ...] = (("val", 4), ("test", 5))
    for split, first in firsts:
        owners = list(dict.fromkeys(owner for owner, _ in counts[split]))
        sizes = [[len(committed.mails[owner]) for owner in part] for part in (owners[:first], owners[first:])]
        assert abs(mean(sizes[0]) - mean(sizes[1])) < 10
        for owner in owners[first:]:
            asked = [counts[split][owner, kind] for kind in KINDS]
            assert asked[:2] == [mailbox.MOST, mailbox.MOST]
            assert 2 <= asked[2] <= mailbox.MOST


def test_there_are_as_many_questions_as_the_recipe_takes(committed: Mailbox) -> None:
    wanted = params.load(ROOT / "params.yaml", params.Params).scenarios
    for split in SPLITS:
        count = getattr(wanted, split)
        assert len(EmailSearch.scenarios(committed, split, count, 1)) == count


def test_every_answer_is_in_its_source_and_no_other_statement_is(committed: Mailbox) -> None:
    bodies = {(owner, mail["id"]): mail["body"] for owner, mails in committed.mails.items() for mail in mails}
    assert len(bodies) == 27_995
    for split in SPLITS:
        for one in committed.questions[split]:
            [source] = one["source_ids"]
            body = bodies[one["owner"], source]
            assert f" {one['answer']}." in body
            assert not any(f" {other}." in body for other in one["conflicting"])


def full_query(question: dict[str, Any]) -> dict[str, Any]:
    """The search that a careful person would make."""
    words = re.match(r"What (?:is|was) the (?:latest )?(\w+) for (\w+)", question["question"])
    assert words is not None
    arguments: dict[str, Any] = {"keywords": [words[2], words[1]]}
    if question["kind"] == "sender":
        arguments["sender"] = question["question"].rpartition(" according to ")[2].removesuffix("?")
    elif question["kind"] == "latest":
        arguments["sort"] = "newest"
    else:
        month, year = question["question"].removesuffix("?").split()[-2:]
        day = f"{year}-{mailbox.MONTHS.index(month) + 1:02d}"
        arguments |= {"after": f"{day}-01", "before": f"{day}-31"}
    return arguments


def test_questions_can_be_answered(committed: Mailbox) -> None:
    """Full query, read, right answer and source: 1.4 for (nearly) every question, with the tools alone."""
    failed = []
    sample = [question for split in SPLITS for question in committed.questions[split][::20]]
    for question in sample:
        env = episode(committed, question)
        [source] = question["source_ids"]
        answer = {"answer": question["answer"], "source_ids": [source]}
        calls: list[Call | str] = [("search_emails", full_query(question)), ("read_email", {"id": source})]
        messages = transcript(env, [*calls, ("return_final_answer", answer)])
        assert EmailSearch.success(env.scenario, messages)
        if sum(part.value for part in EmailSearch.reward(env.scenario, messages)) != pytest.approx(1.4):
            failed.append(question)
    assert len(sample) > 200
    assert len(failed) <= 0.01 * len(sample), failed


# --- Scenarios


def test_the_same_seed_gives_the_same_scenarios_and_another_gives_others(committed: Mailbox) -> None:
    first, again, other = (EmailSearch.scenarios(committed, "train", 90, seed) for seed in (1, 1, 2))
    assert first == again
    assert len({one.id for one in first}) == 90
    assert len({one.id for one in first} & {one.id for one in other}) < 20
    kinds = [one.data["kind"] for one in first]
    assert [kinds.count(kind) for kind in ("sender", "month", "latest")] == [30, 30, 30]


def test_held_out_questions_are_spread_evenly_over_inboxes(committed: Mailbox) -> None:
    """What two seeds draw are other questions to the same inboxes."""
    draws: tuple[tuple[Split, int, int], ...] = (("val", 120, 30), ("test", 540, 60), ("test", 100, 60))
    for split, count, inboxes in draws:
        first, other = (EmailSearch.scenarios(committed, split, count, seed) for seed in (1, 2))
        for drawn in (first, other):
            by_owner = Counter(one.data["owner"] for one in drawn)
            assert len(by_owner) == inboxes
            assert max(by_owner.values()) - min(by_owner.values()) <= 1
            assert max(Counter(one.data["kind"] for one in drawn).values()) <= -(-count // 3)
        assert len({one.id for one in first} & {one.id for one in other}) < 0.25 * count


def test_an_inbox_that_lacks_a_kind_is_asked_more_of_the_others() -> None:
    items = {"a": [("x", 1)], "b": [(name, number) for name in ("x", "y", "z") for number in range(2, 5)]}
    drawn = sample_kinds(Random(1), items, 2, "toy", lambda item: item[0])
    assert [name for name, _ in sorted(drawn)].count("x") == 1  # it has given its one a, and another gives the b
    assert Counter(name for name, _ in sample_kinds(Random(1), {"b": items["b"]}, 6, "toy", lambda item: item[0])) == {
        "x": 2, "y": 2, "z": 2
    }  # fmt: skip


def test_counts_that_three_does_not_divide(committed: Mailbox) -> None:
    for count in (1, 2, 4, 5):
        assert len(EmailSearch.scenarios(committed, "val", count, 1)) == count


def test_too_many_scenarios_is_an_error_that_says_how_many_there_are(committed: Mailbox) -> None:
    kinds = [one["kind"] for one in committed.questions["val"]]
    there = min(kinds.count(kind) for kind in KINDS)
    assert kinds.count("latest") == there > 50
    sentence = (
        f"{3 * there + 3} scenarios need {there + 1} questions of the kind latest, and email_search has {there}: "
        f"ask for {3 * there} or fewer"
    )
    with pytest.raises(ValueError, match=f"^{sentence}$"):
        EmailSearch.scenarios(committed, "val", 3 * there + 3, 1)
    assert len(EmailSearch.scenarios(committed, "val", 3 * there, 1)) == 3 * there


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "questions.jsonl", tmp_path)
    with pytest.raises(
        FileNotFoundError, match=r"mails\.jsonl is missing: restore it with `git checkout -- .*mails\.jsonl`"
    ):
        EmailSearch.load(tmp_path)


def test_the_policy_is_not_told_what_only_the_environment_knows(committed: Mailbox) -> None:
    for scenario in EmailSearch.scenarios(committed, "test", 60, 1):
        text = " ".join(str(message["content"]) for message in scenario.messages)
        hidden = (scenario.data["owner"], scenario.data["answer"], *scenario.data["source_ids"])
        assert not any(word in text for word in hidden)


def test_a_scenario_is_named_by_its_content() -> None:
    made = EmailSearch.from_question("train", QUESTION)
    assert made.id == "ab91f88263577328"  # ids are written in trajectories, rewards and the ledger: they must not move
    assert EmailSearch.from_question("train", QUESTION) == made
    assert EmailSearch.from_question("val", QUESTION).id != made.id
    assert EmailSearch.from_question("train", QUESTION | {"answer": "4200 dollars"}).id != made.id


def test_tasks_are_found_by_name() -> None:
    assert environments.load("email_search") is EmailSearch
    with pytest.raises(ModuleNotFoundError, match="no_such_task"):
        environments.load("no_such_task")
    with pytest.raises(ValueError, match=r"environments\.base defines 1 environments|exactly one"):
        environments.load("environments.email_search.mailbox")


# --- Tools


def test_schemas_are_as_the_chat_templates_expect() -> None:
    schemas = {name: tool.schema for name, tool in EmailSearch.tools().items()}
    assert list(schemas) == ["search_emails", "read_email", "return_final_answer"]
    assert schemas["search_emails"] == {
        "type": "function",
        "function": {
            "name": "search_emails",
            "description": "Search the inbox. Shows the first 5 emails that hold all keywords: date, sender, subject, id.",
            "parameters": {
                "type": "object",
                "properties": {
                    "keywords": {
                        "type": "array",
                        "items": {"type": "string"},
                        "description": "words that the email must hold",
                    },
                    "sender": {"type": "string", "description": "only emails from this person"},
                    "after": {"type": "string", "description": "only emails on or after this day, as 2001-01-31"},
                    "before": {"type": "string", "description": "only emails on or before this day"},
                    "sort": {
                        "type": "string",
                        "enum": ["relevance", "newest", "oldest"],
                        "description": "order of the results",
                    },
                },
                "required": ["keywords"],
            },
        },
    }
    assert "owner" not in str(schemas)


def ids(observation: str) -> list[str]:
    return [line.rsplit(" | ", 1)[1] for line in observation.splitlines()[1:]]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"keywords": ["Falcon"], "sort": "oldest"}, ["m1", "m2", "m3"]),
        ({"keywords": ["Falcon"], "sort": "newest"}, ["m3", "m2", "m1"]),
        ({"keywords": ["falcon", "BUDGET"], "sort": "oldest"}, ["m1", "m2", "m3"]),  # any case, and stems
        ({"keywords": ["Falcon budget"], "sort": "oldest"}, ["m1", "m2"]),  # one keyword of two words is a phrase
        ({"keywords": ["Falcon", "5200"]}, ["m2"]),
        ({"keywords": ["Falcon"], "sender": "Carl", "sort": "oldest"}, ["m1", "m3"]),
        ({"keywords": ["Falcon"], "sender": " carl cook ", "sort": "oldest"}, ["m1", "m3"]),
        ({"keywords": ["Falcon"], "sender": "", "sort": "oldest"}, ["m1", "m2", "m3"]),
        ({"keywords": ["Falcon"], "sender": None, "after": None, "sort": "oldest"}, ["m1", "m2", "m3"]),
        ({"keywords": ["Falcon"], "after": "2001-05-06", "sort": "oldest"}, ["m2", "m3"]),
        ({"keywords": ["Falcon"], "before": "2001-05-06", "sort": "oldest"}, ["m1", "m2"]),
        ({"keywords": ["Falcon"], "after": "2001-05-06", "before": "2001-05-06"}, ["m2"]),
        ({"keywords": ["cafe"]}, ["m4"]),
        ({"keywords": ["東京"]}, ["m4"]),
        ({"keywords": ["naïve"], "sender": "%"}, ["m4"]),  # signs of LIKE stand for themselves
        ({"keywords": ["naïve"], "sender": "sure_"}, ["m4"]),
        ({"keywords": ["Falcon"], "sender": "%"}, []),
        ({"keywords": ["Falcon"], "sender": "C_rl"}, []),
        ({"keywords": ["Falcon"], "sender": "!"}, []),
        ({"keywords": ["Falcon"], "sender": "' or 1=1 --"}, []),
        ({"keywords": ["zebra"]}, []),  # in another inbox
    ],
)
def test_search(small: Mailbox, arguments: dict[str, Any], expected: list[str]) -> None:
    observation = episode(small).call("search_emails", arguments)
    assert ids(observation) == expected
    assert observation.startswith(f"{len(expected)} emails")


def test_search_shows_five_and_says_how_many_there_are(small: Mailbox) -> None:
    many = [MAILS[0] | {"id": f"m{number}", "date": f"2001-01-{number}"} for number in range(10, 18)]
    observation = episode(Mailbox(many, build_index)).call("search_emails", {"keywords": ["Falcon"], "sort": "newest"})
    assert observation.splitlines()[0] == "8 emails:"
    assert observation.splitlines()[1] == "2001-01-17 | Carl Cook | Falcon budget | m17"
    assert ids(observation) == ["m17", "m16", "m15", "m14", "m13"]


@pytest.mark.parametrize(
    "words",
    [
        ["Falcon OR zebra"],
        ["Falcon", "OR", "zebra"],
        ["zebra*"],
        ["NEAR(zebra may, 5)"],
        ["body:zebra"],
        ["owner : Bo"],
        ["^zebra"],
        ['zebra" OR "Falcon'],
        ['"'],
        ['""'],
        ["'"],
        ["'; drop table mail; --"],
        ["%"],
        ["_"],
        ["*"],
        ["()"],
        ["-Falcon"],
        ["NOT", "Falcon"],
        [""],
        [" "],
        [],
        ["😀"],
        ["\u0301"],
        ["\u202e"],
        ["a\nb"],
        ["word " * 2_000],
        ["Falcon"] * 2_000,
        ["x" * 1_000_000],
        ["Fal\0con"],  # NUL ends FTS5's query
        ["\ud800"],
    ],
    ids=lambda words: ascii(words)[:40],
)
def test_keywords_are_words_and_nothing_else(small: Mailbox, words: list[str]) -> None:
    """Whatever they hold, the answer is a result or an error, of this inbox alone, and the index lives on."""
    env = episode(small)
    observation = env.call("search_emails", {"keywords": words})
    assert re.match(r"Error: |\d+ emails", observation)
    assert "zebra" not in observation
    assert "m9" not in observation
    assert ids(env.call("search_emails", {"keywords": ["Falcon", "4100"]})) == ["m1"]


@pytest.mark.parametrize(
    "sender",
    [
        "\\",
        "\0",
        "東",
        "x" * 100_000,  # too much for LIKE
        "%" * LONGEST,
        "\ud800",  # JSON can hold one half of a pair
    ],
    ids=lambda sender: ascii(sender)[:20],
)
def test_senders_are_texts_and_nothing_else(small: Mailbox, sender: str) -> None:
    observation = episode(small).call("search_emails", {"keywords": ["Falcon"], "sender": sender})
    assert re.match(r"Error: |\d+ emails", observation)


TOO_LONG = f"Error: keywords and sender may have {LONGEST} characters at most."


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [
        ({"keywords": ["x" * LONGEST]}, False),
        ({"keywords": ["x" * LONGEST, "y"]}, True),
        ({"keywords": ["x"] * LONGEST}, False),
        ({"keywords": ["x"] * (LONGEST + 1)}, True),
        ({"keywords": ["x"], "sender": "y" * LONGEST}, False),
        ({"keywords": ["x"], "sender": "y" * (LONGEST + 1)}, True),
    ],
    ids=["longest", "longer", "most", "more", "longest sender", "longer sender"],
)
def test_how_long_a_query_may_be(small: Mailbox, arguments: dict[str, Any], refused: bool) -> None:
    assert episode(small).call("search_emails", arguments) == (TOO_LONG if refused else "0 emails.")


def test_reading_shows_the_mail_of_this_inbox(small: Mailbox) -> None:
    expected = "id: m1\ndate: 2001-02-03\nfrom: Carl Cook\nto: Ann Bell\nsubject: Falcon budget\n\n"
    assert episode(small).call("read_email", {"id": "m1"}) == expected + "The budget for Falcon is 4100 dollars."
    other = episode(small, QUESTION | {"owner": "Bo Reed"}).call("read_email", {"id": "m1"})
    assert "9900 dollars" in other


@pytest.mark.parametrize("name", ["m9", "m0", "", "M1", " m1", "m1 ", "%", "' or 1=1 --", "m" * 1_000_000])
def test_an_id_that_is_not_in_this_inbox_is_an_error(small: Mailbox, name: str) -> None:
    assert episode(small).call("read_email", {"id": name}) == "Error: there is no email with this id."


TOOLS = "the tools are search_emails, read_email, return_final_answer"
NO_TEXT = "hold characters that are no text, or are nested too deeply"


def nested(levels: int) -> Any:
    value: Any = "x"
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("find", {}, f'there is no tool named "find"; {TOOLS}'),
        ("", {}, f'there is no tool named ""; {TOOLS}'),
        ("call", {"name": "x", "arguments": {}}, f'there is no tool named "call"; {TOOLS}'),
        ("__init__", {}, f'there is no tool named "__init__"; {TOOLS}'),
        ("x" * 100, {}, f'there is no tool named "{"x" * 59}…; {TOOLS}'),
        ("read_email", None, "the arguments of read_email must be an object, not null"),
        ("read_email", ["m1"], 'the arguments of read_email must be an object, not ["m1"]'),
        ("read_email", '{"id": "m1"}', 'the arguments of read_email must be an object, not "{\\"id\\": \\"m1\\"}"'),
        ("read_email", {}, "wrong arguments for read_email: id: field required"),
        ("read_email", {"id": 1}, "wrong arguments for read_email: id: input should be a valid string"),
        ("read_email", {"id": ["m1"]}, "wrong arguments for read_email: id: input should be a valid string"),
        (
            "read_email",
            {"id": "m1", "owner": "Bo Reed"},
            "wrong arguments for read_email: owner: extra inputs are not permitted",
        ),
        (
            "search_emails",
            {"keywords": ["Falcon"], "owner": "Bo Reed"},
            "wrong arguments for search_emails: owner: extra inputs are not permitted",
        ),
        (
            "search_emails",
            {"keywords": "Falcon"},
            "wrong arguments for search_emails: keywords: input should be a valid list",
        ),
        (
            "search_emails",
            {"keywords": ["Falcon", 4100]},
            "wrong arguments for search_emails: keywords.1: input should be a valid string",
        ),
        (
            "search_emails",
            {"keywords": ["Falcon"], "sort": "best"},
            "wrong arguments for search_emails: sort: input should be 'relevance', 'newest' or 'oldest'",
        ),
        ("search_emails", {"keywords": ["Falcon"], "after": "May"}, "after must be a day as 2001-01-31"),
        ("search_emails", {"keywords": ["Falcon"], "before": "2001-5-6"}, "before must be a day as 2001-01-31"),
        ("search_emails", {"keywords": ["…"]}, "keywords must hold at least one word"),
        ("read_email", {"id": "\0"}, f"the arguments of read_email {NO_TEXT}"),
        ("read_email", {"id": "m1\udfff"}, f"the arguments of read_email {NO_TEXT}"),
        ("search_emails", {"keywords": ["Falcon", "\0"]}, f"the arguments of search_emails {NO_TEXT}"),
        ("search_emails", {"keywords": nested(300)}, f"the arguments of search_emails {NO_TEXT}"),
        ("return_final_answer", {"answer": "x"}, "wrong arguments for return_final_answer: source_ids: field required"),
        (
            "return_final_answer",
            {"answer": "x", "source_ids": "m1"},
            "wrong arguments for return_final_answer: source_ids: input should be a valid list",
        ),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_a_bad_call_is_an_observation(small: Mailbox, name: str, arguments: Any, expected: str) -> None:
    env = episode(small)
    assert env.call(name, arguments) == f"Error: {expected}."
    assert not env.done


def test_the_answer_ends_the_episode(small: Mailbox) -> None:
    env = episode(small)
    assert env.call("return_final_answer", {"answer": "4100 dollars", "source_ids": []}) == "The answer was given."
    assert env.done


def test_nothing_of_another_inbox_is_ever_shown(committed: Mailbox) -> None:
    """Every word of another inbox's mails, searched for: only this owner's mails come back."""
    question = committed.questions["train"][0]
    owner = question["owner"]
    env = episode(committed, question)
    mine = {mail["id"] for mail in committed.mails[owner]}
    others = [mail for other, mails in committed.mails.items() if other != owner for mail in mails[:2]]
    rows = dict.fromkeys((mail["sender"], mail["subject"]) for mail in others)
    for sender, subject in rows:
        assert set(ids(env.call("search_emails", {"keywords": subject.split()}))) <= mine
        assert set(ids(env.call("search_emails", {"keywords": ["the"], "sender": sender}))) <= mine


# --- Reward

SEARCH: Call = ("search_emails", {"keywords": ["Falcon", "budget"], "sender": "Carl Cook"})
VAGUE: Call = ("search_emails", {"keywords": ["nothing"]})
READ: Call = ("read_email", {"id": "m1"})
READ_OTHER: Call = ("read_email", {"id": "m2"})
MADE_UP: Call = ("read_email", {"id": "m777"})
MALFORMED: Call = ("read_email", {"email_id": "m1"})


def answer(text: str, *sources: str) -> Call:
    return "return_final_answer", {"answer": text, "source_ids": list(sources)}


RIGHT = answer("4100 dollars", "m1")
GOLD: list[Call | str] = [SEARCH, READ, RIGHT]
GRADED: dict[str, tuple[list[Call | str], float, bool]] = {  # transcript, reward, success
    "gold": (GOLD, 1.40, True),  # 1 + 0.1 found + 0.15 read + 0.15 source
    "one search more": ([VAGUE, *GOLD], 1.37, True),  # - 0.03
    "as many turns as there are": ([VAGUE, VAGUE, VAGUE, *GOLD], 1.31, True),  # - 3 × 0.03
    "a sentence as the answer": ([SEARCH, READ, answer("The budget is 4,100 dollars.", "m1")], 1.40, True),
    "a further source": ([SEARCH, READ, answer("4100 dollars", "m1", "m2")], 1.30, True),  # - 0.1 bad source
    "no source": ([SEARCH, READ, answer("4100 dollars")], 1.25, True),
    "wrong source alone": ([SEARCH, READ, answer("4100 dollars", "m2")], 1.15, True),
    "not read": ([SEARCH, RIGHT], 1.25, True),
    "guessed at once": ([RIGHT], 1.15, True),
    "a malformed call, mended": ([SEARCH, MALFORMED, READ, RIGHT], 1.27, True),  # - 0.1 error - 0.03
    "a made-up id first": ([SEARCH, MADE_UP, READ, RIGHT], 1.27, True),  # - 0.1 invalid id - 0.03
    "searched, found, gave up": ([SEARCH, answer("I don't know")], -0.40, False),  # 0.1 - 0.5
    "read, gave up": ([SEARCH, READ, answer("I don’t know.", "m1")], -0.25, False),  # 0.1 + 0.15 - 0.5
    "gave up at once": ([answer("unknown")], -0.50, False),
    "nothing said": ([answer("")], -0.50, False),
    "wrong answer": ([SEARCH, READ_OTHER, answer("5200 dollars", "m2")], -0.80, False),  # 0.1 - 0.8 - 0.1
    "wrong answer, right source": ([SEARCH, READ, answer("5200 dollars", "m1")], -0.55, False),
    "both values": ([SEARCH, READ, answer("4100 dollars or 5200 dollars", "m1")], -0.55, False),
    "an essay around it": ([SEARCH, READ, answer("well " * 19 + "4100 dollars", "m1")], -0.55, False),
    "a part of it": ([SEARCH, READ, answer("100 dollars", "m1")], -0.55, False),
    "more digits": ([SEARCH, READ, answer("54100 dollars", "m1")], -0.55, False),
    "made-up id, then wrong": ([MADE_UP, answer("7 dollars", "m777")], -1.00, False),  # - 0.1 - 0.8 - 0.1
    "never answers": ([SEARCH] * 6, -0.59, False),  # 0.1 - 0.6 - 3 × 0.03
    "reads and never answers": ([SEARCH, READ], -0.35, False),
    "does nothing": ([], -0.60, False),
    "talks": (["Let me see."] * 6, -1.29, False),  # 6 × -0.1 - 0.6 - 3 × 0.03
    "unknown tools": ([("find", {}), ("grep", {})], -0.80, False),
    "an answer that was refused": ([("return_final_answer", {"answer": "4100 dollars"})], -0.70, False),
}


@pytest.mark.parametrize("name", GRADED)
def test_reward(small: Mailbox, name: str) -> None:
    calls, reward, success = GRADED[name]
    assert scored(small, calls) == (reward, success)


def test_gold_beats_everything_else_and_the_order_is_right() -> None:
    reward = {name: value for name, (_, value, _) in GRADED.items()}
    assert all(
        value < reward["gold"] for name, value in reward.items() if name not in ("gold", "a sentence as the answer")
    )
    successes = [value for _, value, success in GRADED.values() if success]
    failures = [value for _, value, success in GRADED.values() if not success]
    assert min(successes) > max(failures)
    assert reward["gave up at once"] > reward["wrong answer"]
    assert reward["gave up at once"] > reward["never answers"]
    assert reward["read, gave up"] > reward["reads and never answers"]
    assert reward["read, gave up"] > reward["searched, found, gave up"] > reward["gave up at once"]


def test_the_table_of_constants_is_what_the_numbers_above_were_computed_from() -> None:
    assert {name: value for name, (value, _) in REWARD.items()} == {
        "correct": 1.0,
        "wrong": -0.8,
        "unknown": -0.5,
        "no_answer": -0.6,
        "found": 0.1,
        "read": 0.15,
        "source": 0.15,
        "bad_source": -0.1,
        "invalid_id": -0.1,
        "error": -0.1,
        "turn": -0.03,
    }
    assert NEEDED_CALLS == 3
    assert EmailSearch.max_turns == 6


def test_found_and_read_count_once(small: Mailbox) -> None:
    twice, _ = scored(small, [SEARCH, SEARCH, READ, READ, RIGHT])
    assert twice == pytest.approx(1.40 - 2 * 0.03)


@pytest.mark.parametrize(
    ("turns", "cost"),
    [
        ([[SEARCH], [READ], [RIGHT]], 0),
        ([[SEARCH, READ, RIGHT]], 0),  # three calls in one turn
        ([[VAGUE, VAGUE, SEARCH, READ_OTHER, READ, RIGHT]], 3),  # calls cost the same in one turn as in six
        ([[SEARCH, READ_OTHER], [READ], [RIGHT]], 1),
        ([[SEARCH], [READ], [RIGHT, VAGUE, VAGUE]], 0),  # calls behind the answer are not run
        ([[], [SEARCH], [READ], [RIGHT]], 1),  # a turn in plain words takes time, too
    ],
)
def test_calls_cost_the_same_however_they_are_spread_over_turns(
    small: Mailbox, turns: list[list[Call]], cost: int
) -> None:
    env = episode(small)
    messages = list(env.scenario.messages)
    for calls in turns:
        made = [{"type": "function", "function": {"name": name, "arguments": given}} for name, given in calls]
        turn: Message = {"role": "assistant", "content": ""} | ({"tool_calls": made} if made else {})
        messages += [turn, *env.step(turn)]
    parts = {part.name: part.value for part in EmailSearch.reward(env.scenario, messages)}
    assert parts.get("turn", 0) == pytest.approx(-0.03 * cost)


def test_components_add_up_and_say_why(small: Mailbox) -> None:
    env = episode(small)
    parts = EmailSearch.reward(env.scenario, transcript(env, [SEARCH, MADE_UP, MADE_UP, READ, RIGHT]))
    assert [part.name for part in parts] == ["correct", "found", "read", "source", "invalid_id", "turn"]
    assert [part.value for part in parts] == pytest.approx([1.0, 0.1, 0.15, 0.15, -0.2, -0.06])
    assert parts[4].why == "2 × -0.1: an id was read that does not exist: it was made up"


@pytest.mark.parametrize("name", [["m1"], {"id": "m1"}])
def test_reward_of_a_read_with_an_unhashable_id(small: Mailbox, name: object) -> None:
    assert scored(small, [("read_email", {"id": name})]) == (-0.70, False)


def test_only_the_accepted_answer_counts(small: Mailbox) -> None:
    """A call without an observation was never run: an answer cut off by max_tokens, or one behind the accepted one."""
    env = episode(small)
    messages = transcript(env, [SEARCH, READ])
    cut = {"type": "function", "function": {"name": "return_final_answer", "arguments": RIGHT[1]}}
    assert not EmailSearch.success(env.scenario, [*messages, {"role": "assistant", "content": "", "tool_calls": [cut]}])


@pytest.mark.parametrize(
    ("text", "success"),
    [
        ("4100 dollars", True),
        ("4,100 DOLLARS", True),
        ("It is 4100 dollars!", True),
        ("4100  dollars", True),
        ("4100", False),
        ("5200 dollars", False),
        ("4100 dollars, before that 5200 dollars", False),
        ("either 5200 dollars or 4100 dollars", False),
        ("I don't know", False),
        ("5200 or 4100 dollars", False),  # hedges without repeating the unit
        ("4100 dollars, or 5,200", False),
        ("4100 dollars, not 4,200", True),  # nobody has said 4200
    ],
)
def test_success_needs_the_one_right_value(small: Mailbox, text: str, success: bool) -> None:
    assert scored(small, [SEARCH, READ, answer(text, "m1")])[1] == success


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I don't know", True),
        ("i DON’T know.", True),
        ("I do not know", True),
        ("unknown", True),
        ("", True),
        ("?!", True),
        ("I don't know, maybe Oslo", False),
        ("Oslo", False),
    ],
)
def test_is_unknown(text: str, expected: bool) -> None:
    assert is_unknown(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("Room 101.", "room 101"), (" 1,234  dollars", "1234 dollars"), ("Zürich–Oslo", "zürich oslo"), ("—", "")],
)
def test_normalise(text: str, expected: str) -> None:
    assert normalise(text) == expected


# --- What is common to all tasks


@pytest.mark.parametrize("observation", [{"role": "tool", "content": "Error: x."}, {"role": "tool", "content": "ok"}])
def test_is_error(observation: Message) -> None:
    assert is_error(observation) == (observation["content"] != "ok")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("\0", True),
        ("a\ud800b", True),
        ("\udfff", True),
        ("\ud7ff\ue000\uffff😀\x01\x7f", False),
        ({"a": [1, {"b": "\0"}]}, True),
        ({"a": {"\0": 1}}, True),
        ({"a": [None, True, 1.5, 10**30, "", {}, []]}, False),
        (None, False),
        (nested(49), False),
        (nested(50), True),
        ({"a": nested(49)}, True),
        (nested(100_000), True),  # no recursion
    ],
    ids=lambda value: ascii(value)[:20] if not isinstance(value, list) else "nested",
)
def test_unwritable(value: Any, expected: bool) -> None:
    assert unwritable(value) == expected


def test_a_scenario_refuses_unknown_fields_and_changes() -> None:
    made = EmailSearch.from_question("train", QUESTION)
    with pytest.raises(ValueError, match="extra"):
        Scenario.model_validate(made.model_dump() | {"more": 1})
    with pytest.raises(ValueError, match="frozen"):
        made.task = "other"  # pyrefly: ignore[read-only]


# --- Decisions

QUERY = {"keywords": ["falcon", "Budget"], "sender": "Carl Cook"}
ANSWERED: dict[str, Any] = {"answer": "4100 dollars", "source_ids": ["m1"]}


@pytest.mark.parametrize(
    ("calls", "right", "wrong"),
    [
        (
            [("search_emails", QUERY), ("read_email", {"id": "m1"}), ("return_final_answer", ANSWERED)],
            ["query", "filter", "go on", "row", "answer", "cite"],
            [],
        ),
        (
            [
                ("search_emails", {"keywords": ["Falcon"]}),
                ("read_email", {"id": "m2"}),
                ("return_final_answer", {"answer": "5200 dollars", "source_ids": ["m2"]}),
            ],
            ["go on"],
            ["query", "filter", "row", "go on"],
        ),
        (
            [
                ("search_emails", QUERY),
                ("read_email", {"id": "m1"}),
                ("return_final_answer", {"answer": "I don't know", "source_ids": ["m1"]}),
            ],
            ["query", "filter", "go on", "row"],
            ["answer"],
        ),
        (
            [
                ("search_emails", QUERY),
                ("read_email", {"id": "m1"}),
                ("return_final_answer", ANSWERED | {"source_ids": []}),
            ],
            ["query", "filter", "go on", "row", "answer"],
            ["cite"],
        ),
        ([("read_email", {}), "nothing"], [], []),
        ([("return_final_answer", {"answer": "4100 dollars", "source_ids": []})], [], ["cite"]),
    ],
    ids=["careful", "another mail", "gives up after reading", "cites nothing", "errors only", "guesses"],
)
def test_decisions_by_hand(small: Mailbox, calls: list[Call | str], right: list[str], wrong: list[str]) -> None:
    env = episode(small)
    made = EmailSearch.decisions(env.scenario, transcript(env, calls))
    assert sorted(kind for kind, is_right in made if is_right) == sorted(right)
    assert sorted(kind for kind, is_right in made if not is_right) == sorted(wrong)


def test_the_scripted_players_decisions(committed: Mailbox) -> None:
    """It is right but for the rows: mails that state nothing look like those that do, at times so many that it gives up."""
    counts: dict[str, list[bool]] = {}
    for scenario in EmailSearch.scenarios(committed, "val", 150, 1):
        for kind, is_right in EmailSearch.decisions(scenario, EmailSearch(scenario, committed).play("scripted")):
            counts.setdefault(kind, []).append(is_right)
    shares = {kind: sum(made) / len(made) for kind, made in counts.items()}
    assert 0.65 < shares.pop("row") < 0.9
    assert 0.97 < shares.pop("go on") <= 1
    assert shares == dict.fromkeys(("query", "filter", "answer", "cite"), 1.0)
