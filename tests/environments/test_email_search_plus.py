"""email_search_plus: its committed data, words found in three languages, and tools over the last results."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import environments
from environments.base import Message, Split, is_error
from environments.email_search.inbox import Mailbox
from environments.email_search_plus import CUT, EmailSearchPlus, build_index, mailbox
from environments.email_search_plus.languages import LANGUAGES, fill, josa, stems
from environments.email_search_plus.players import STATED, stated, take_apart
from steps.core import params
from tests.conftest import ROOT

FOLDER = ROOT / "tasks_data" / "email_search_plus"
SPLITS: tuple[Split, ...] = ("train", "val", "test")


def mail(
    name: str, thread: str, day: str, sender: str, subject: str, body: str, *files: str, owner: str = "Ann Bell"
) -> dict[str, Any]:
    found = {"id": name, "thread": thread, "owner": owner, "date": day, "sender": sender, "to": owner}
    return found | {"subject": subject, "body": body, "attachments": list(files)}


MAILS = [
    mail("m1", "t1", "2001-02-01", "Carl Cook", "Falcon budget", "I propose 4100 dollars."),
    mail("m2", "t1", "2001-02-03", "Dora Diaz", "Re: Falcon budget", "I propose 5200 dollars."),
    mail("m3", "t1", "2001-02-05", "Carl Cook", "Re: Falcon budget", "We agree to the proposal of Dora Diaz."),
    mail("m4", "t2", "2001-03-01", "Abe Zorn", "Falcon files", "See the attachment.", "falcon_budget_v2.xlsx"),
    mail("m5", "t3", "2001-03-02", "김민수", "팔콘 예산", "팔콘 프로젝트의 예산은 1388달러입니다."),
    mail("m6", "t4", "2001-03-03", "أحمد علي", "ميزانية مشروع الشهاب", "نود إبلاغكم بأن الميزانية هي 4100 دولار."),
    mail("m7", "t5", "2001-03-04", "Bo Reed", "Long", "x" * (CUT + 1)),
    mail("m9", "t9", "2001-03-05", "Carl Cook", "Falcon zebra", "Only Bo may know.", owner="Bo Reed"),
    *(mail(f"m1{n}", "t7", f"2001-04-{n:02d}", "Eve Fox", "Chain", f"Part {n}.") for n in range(10, 20)),
]
QUESTION = {
    "owner": "Ann Bell",
    "language": "en",
    "kind": "thread",
    "difficulty": 3,
    "question": "Which budget for Falcon was agreed in the thread that Carl Cook started?",
    "answer": "5200 dollars",
    "conflicting": ["4100 dollars"],
    "source_ids": ["m2", "m3"],
}


@pytest.fixture(scope="module")
def small() -> Mailbox:
    return Mailbox(MAILS, build_index)


@pytest.fixture(scope="module")
def committed() -> Mailbox:
    return EmailSearchPlus.load(FOLDER)


def episode(data: Mailbox, **changes: Any) -> EmailSearchPlus:
    return EmailSearchPlus(EmailSearchPlus.from_question("train", QUESTION | changes), data)


def ids(observation: str) -> list[str]:
    return [line.rsplit(" | ", 1)[1] for line in observation.splitlines()[1:]]


def transcript(env: EmailSearchPlus, *calls: tuple[str, dict[str, Any]]) -> list[Message]:
    messages = list(env.scenario.messages)
    for name, arguments in calls:
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        messages += env.step(messages[-1])
    return messages


# --- The data


def test_the_committed_mailbox_is_what_the_generator_writes(tmp_path: Path) -> None:
    mailbox.main(str(tmp_path))
    for name in ("mails.jsonl", "questions.jsonl"):
        assert (tmp_path / name).read_bytes() == (FOLDER / name).read_bytes(), (
            f"{name}: write it anew, or undo the change"
        )
        assert (FOLDER / name).stat().st_size < 5_000_000
    assert sorted(file.name for file in FOLDER.iterdir()) == ["mails.jsonl", "policy", "questions.jsonl", "rubric.md"]


def test_splits_share_no_inbox_and_no_question(committed: Mailbox) -> None:
    for split, other in (("train", "val"), ("train", "test"), ("val", "test")):
        for key in ("owner", "question"):
            mine, others = ({one[key] for one in committed.questions[part]} for part in (split, other))
            assert mine
            assert mine.isdisjoint(others)


def test_no_source_of_a_held_out_answer_is_in_an_inbox_of_training_word_by_word(committed: Mailbox) -> None:
    trained = {mail["body"] for one in committed.questions["train"] for mail in committed.mails[one["owner"]]}
    for split in ("val", "test"):
        for one in committed.questions[split]:
            bodies = {mail["body"] for mail in committed.mails[one["owner"]] if mail["id"] in one["source_ids"]}
            assert bodies.isdisjoint(trained)


def test_a_third_of_the_inboxes_for_each_language(committed: Mailbox) -> None:
    for split in SPLITS:
        owners = {(one["owner"], one["language"]) for one in committed.questions[split]}
        assert Counter(language for _, language in owners) == dict.fromkeys(LANGUAGES, 3 if split == "train" else 10)


def test_there_are_as_many_questions_as_the_recipe_takes(committed: Mailbox) -> None:
    wanted = params.load(ROOT / "params.yaml", params.Params).scenarios
    for split in SPLITS:
        scenarios = EmailSearchPlus.scenarios(committed, split, getattr(wanted, split), 1)
        assert len({one.id for one in scenarios}) == getattr(wanted, split)
        assert max(Counter(one.data["kind"] for one in scenarios).values()) <= getattr(wanted, split) // 5 + 1
    assert scenarios == EmailSearchPlus.scenarios(committed, "test", wanted.test, 1)  # pyrefly: ignore[unbound-name]
    there = sum(one["kind"] == "latest" for one in committed.questions["val"])
    with pytest.raises(ValueError, match=f"email_search_plus has {there}: ask for {5 * there} or fewer"):
        EmailSearchPlus.scenarios(committed, "val", 5 * there + 5, 1)


def test_answers_are_in_their_sources(committed: Mailbox) -> None:
    query = "select body, attachments from mail_by_id where id = ?"
    for split in SPLITS:
        for one in committed.questions[split]:
            body, files = committed[one["owner"]].execute(query, (one["source_ids"][0],)).fetchone()
            assert one["answer"] in (files if one["kind"] == "attachment" else body)
            assert not any(other in (files, stated(body, STATED)) for other in one["conflicting"])


def test_questions_hold_neither_answer_nor_ids(committed: Mailbox) -> None:
    for split in SPLITS:
        for one in committed.questions[split]:
            assert not re.search(rf"(?<!\w){re.escape(one['answer'])}(?!\w)", one["question"])
            assert not any(re.search(rf"\b{source}\b", one["question"]) for source in one["source_ids"])
            assert take_apart(one["question"])[0] == one["kind"]


def test_threads_are_decided_where_no_value_is(committed: Mailbox) -> None:
    """The last mail names whose proposal was taken; the thread as it is shown holds both."""
    for one in committed.questions["test"]:
        if one["kind"] == "thread":
            env = episode(committed, **one)
            proposal, decision = one["source_ids"]
            assert one["answer"] not in env.call("read_email", {"id": decision})
            text = env.call("read_thread", {"id": decision})
            assert one["answer"] in text
            assert f"id: {proposal}\n" in text


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    shutil.copy(FOLDER / "questions.jsonl", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"mails\.jsonl is missing.*environments\.email_search_plus\.mailbox"):
        EmailSearchPlus.load(tmp_path)


# --- Languages


@pytest.mark.parametrize(
    ("word", "particles", "expected"),
    [
        ("예산", "은/는", "은"),
        ("공급업체", "은/는", "는"),
        ("서울", "으로/로", "로"),  # after ㄹ
        ("부산", "으로/로", "으로"),
        ("제주", "으로/로", "로"),
        ("C310", "으로/로", "으로"),  # 영
        ("C311", "으로/로", "로"),  # 일
        ("C312", "으로/로", "로"),  # 이
        ("C316", "을/를", "을"),  # 육
    ],
)
def test_josa(word: str, particles: str, expected: str) -> None:
    first, second = particles.split("/")
    assert josa(word, first, second) == expected
    assert fill("{word}(" + particles + ")", word=word) == word + expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("예산은 예산이 예산을 예산", "예산 예산 예산 예산"),
        ("1388달러입니다.", "1388달러."),
        ("회의 회의는 회의실에서", "회의 회의 회의실"),  # 의 of 회의 is no particle
        ("28명입니다", "28명"),
        ("v2.xlsx입니다", "v2.xlsx"),
        ("الميزانية ميزانية", "ميزانيه ميزانيه"),
        ("أحمد احمد", "احمد احمد"),
        ("مِيزَانِيَّة", "ميزانيه"),
        ("٤١٠٠ دولار", "4100 دولار"),
        ("Falcon's budget", "Falcon's budget"),
    ],
)
def test_stems(text: str, expected: str) -> None:
    assert stems(text) == expected


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        (["예산"], ["m5"]),  # the mail has 예산은
        (["예산이"], ["m5"]),
        (["팔콘", "프로젝트"], ["m5"]),  # 프로젝트의
        (["1388달러"], ["m5"]),
        (["프로"], ["m5"]),  # a prefix
        (["프로젝", "예산"], ["m5"]),
        (["ميزانية"], ["m6"]),  # the mail has الميزانية too
        (["الميزانية"], ["m6"]),
        (["شهاب"], ["m6"]),
        (["budgets", "FALCON"], ["m1", "m2", "m3", "m4"]),  # m4's file is called so
        (["falcon_budget_v2.xlsx"], ["m4"]),
        (["zebra"], []),
        (["산"], []),  # no word begins so
    ],
)
def test_words_are_found(small: Mailbox, keywords: list[str], expected: list[str]) -> None:
    found = ids(episode(small).call("search_emails", {"keywords": keywords, "sort": "oldest"}))
    assert found == expected


@pytest.mark.parametrize(
    "words",
    [
        ['"'],
        ["zebra*"],
        ["words : zebra"],
        ["inbox : x"],
        [") OR (zebra"],
        ["ـ"],
        ["_"],
        ["😀"],
        ["예*산"],
        ["ال"],
        ["'"],
    ],
    ids=ascii,
)
def test_keywords_are_words_and_nothing_else(small: Mailbox, words: list[str]) -> None:
    observation = episode(small).call("search_emails", {"keywords": words})
    assert re.match(r"Error: |\d+ emails", observation)
    assert "m9" not in observation


@pytest.mark.parametrize(
    ("answer", "given", "right"),
    [
        ("1388달러", "1388달러입니다.", True),
        ("28명", "28명입니다", True),
        ("강릉", "강릉으로 결정되었습니다", True),
        ("강릉", "부산", False),
        ("4100 دولار", "الميزانية هي ٤١٠٠ دولار", True),
        ("القاعة 161", "قاعة 161", True),
        ("14 مارس", "15 مارس", False),
        ("예산_v2.pdf", "예산_v2.pdf", True),
        ("예산_v2.pdf", "예산_v3.pdf", False),
        ("강릉", "모르겠습니다", False),
    ],
)
def test_answers_in_other_languages(small: Mailbox, answer: str, given: str, right: bool) -> None:
    env = episode(small, answer=answer, conflicting=["부산"])
    messages = transcript(env, ("return_final_answer", {"answer": given, "source_ids": []}))
    assert EmailSearchPlus.success(env.scenario, messages) == right


@pytest.mark.parametrize("text", ["모르겠습니다.", "لا أعرف", "I don't know"])
def test_not_knowing_in_each_language(small: Mailbox, text: str) -> None:
    env = episode(small)
    messages = transcript(env, ("return_final_answer", {"answer": text, "source_ids": []}))
    assert [part.name for part in EmailSearchPlus.reward(env.scenario, messages)] == ["unknown"]


# --- Tools


def test_the_task_is_found_by_name_and_has_its_tools() -> None:
    assert environments.load("email_search_plus") is EmailSearchPlus
    names = "search_emails filter_results sort_results read_email read_thread return_final_answer"
    assert list(EmailSearchPlus.tools()) == names.split()


def test_filter_and_sort_work_on_all_of_the_last_results(small: Mailbox) -> None:
    env = episode(small)
    chain = env.call("search_emails", {"keywords": ["chain"], "sort": "oldest"})
    assert chain.startswith("10 emails:")
    assert ids(chain) == ["m110", "m111", "m112", "m113", "m114"]
    assert ids(env.call("sort_results", {"by": "newest"})) == ["m119", "m118", "m117", "m116", "m115"]
    assert ids(env.call("filter_results", {"field": "body", "text": "part 12"})) == ["m112"]
    assert ids(env.call("sort_results", {"by": "oldest"})) == ["m112"], "the filter stays"


@pytest.mark.parametrize(
    ("field", "text", "expected"),
    [
        ("sender", "dora", ["m2"]),
        ("sender", "COOK", ["m1", "m3"]),
        ("subject", "re:", ["m2", "m3"]),
        ("body", "5200", ["m2"]),
        ("attachment", "xlsx", ["m4"]),
        ("attachment", "v9", []),
        ("body", "%", []),
    ],
)
def test_filter(small: Mailbox, field: str, text: str, expected: list[str]) -> None:
    env = episode(small)
    env.call("search_emails", {"keywords": ["Falcon"], "sort": "oldest"})
    found = env.call("filter_results", {"field": field, "text": text})
    if expected:
        assert ids(found) == expected
    else:
        assert found == "0 emails. The last results stay: 4 emails."
        assert len(ids(env.call("sort_results", {"by": "oldest"}))) == 4


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("oldest", ["m1", "m2", "m3", "m4"]),
        ("newest", ["m4", "m3", "m2", "m1"]),
        ("sender", ["m4", "m1", "m3", "m2"]),  # Abe, Carl, Carl, Dora: equals stay in order
        ("subject", ["m1", "m4", "m2", "m3"]),  # Falcon budget, Falcon files, Re: …
    ],
)
def test_sort(small: Mailbox, by: str, expected: list[str]) -> None:
    env = episode(small)
    env.call("search_emails", {"keywords": ["Falcon"], "sort": "oldest"})
    assert ids(env.call("sort_results", {"by": by})) == expected


@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("filter_results", {"field": "body", "text": "x"}, "there are no results to filter; call search_emails first"),
        ("sort_results", {"by": "newest"}, "there are no results to sort; call search_emails first"),
        ("read_email", {"id": "m9"}, "there is no email with this id"),
        ("read_thread", {"id": "t9"}, "there is no email with this id, nor a thread"),
        ("read_thread", {"id": "m9"}, "there is no email with this id, nor a thread"),
    ],
)
def test_errors(small: Mailbox, name: str, arguments: dict[str, Any], expected: str) -> None:
    assert episode(small).call(name, arguments) == f"Error: {expected}."


def test_an_empty_filter_is_an_error(small: Mailbox) -> None:
    env = episode(small)
    env.call("search_emails", {"keywords": ["Falcon"]})
    assert env.call("filter_results", {"field": "body", "text": " "}).startswith("Error: text must hold")


def test_read_email_shows_thread_and_attachments(small: Mailbox) -> None:
    assert episode(small).call("read_email", {"id": "m4"}) == (
        "id: m4\nthread: t2\ndate: 2001-03-01\nfrom: Abe Zorn\nto: Ann Bell\nsubject: Falcon files\n"
        "attachments: falcon_budget_v2.xlsx\n\nSee the attachment."
    )
    assert "attachments" not in episode(small).call("read_email", {"id": "m1"})


def test_read_thread_shows_it_in_order(small: Mailbox) -> None:
    by_thread, by_mail = (episode(small).call("read_thread", {"id": name}) for name in ("t1", "m3"))
    assert by_thread == by_mail
    assert by_thread == (
        "thread: t1\nsubject: Falcon budget\nemails: 3\n\n"
        "id: m1\ndate: 2001-02-01\nfrom: Carl Cook\nI propose 4100 dollars.\n\n"
        "id: m2\ndate: 2001-02-03\nfrom: Dora Diaz\nI propose 5200 dollars.\n\n"
        "id: m3\ndate: 2001-02-05\nfrom: Carl Cook\nWe agree to the proposal of Dora Diaz."
    )


def test_threads_are_shortened_by_the_stated_rule(small: Mailbox) -> None:
    chain = episode(small).call("read_thread", {"id": "t7"})
    assert "emails: 10\n" in chain
    assert re.findall(r"Part (\d+)", chain) == ["10", "13", "14", "15", "16", "17", "18", "19"]
    assert "(2 emails are left out)" in chain.split("\n\n")[2]
    assert episode(small).call("read_thread", {"id": "t5"}).endswith("\n" + "x" * CUT + "…")


# --- Reward


SEARCH = ("search_emails", {"keywords": ["Falcon", "budget"]})
RIGHT = ("return_final_answer", {"answer": "5200 dollars", "source_ids": ["m2", "m3"]})


@pytest.mark.parametrize(
    ("calls", "reward"),
    [
        ([SEARCH, ("read_thread", {"id": "t1"}), RIGHT], 1.4),
        ([SEARCH, ("read_email", {"id": "m2"}), RIGHT], 1.4),
        ([SEARCH, ("read_thread", {"id": "t2"}), RIGHT], 1.25),  # the wrong thread
        ([SEARCH, ("read_thread", {"id": "t99"}), RIGHT], 1.15),  # made up: - 0.1
        ([SEARCH, ("sort_results", {"by": "newest"}), ("read_thread", {"id": "m1"}), RIGHT], 1.37),
        ([("search_emails", {"keywords": ["chain"]}), ("filter_results", {"field": "body", "text": "1"}), RIGHT], 1.15),
        ([SEARCH], -0.5),  # found, and no answer
    ],
)
def test_the_reward_is_that_of_email_search(
    small: Mailbox, calls: list[tuple[str, dict[str, Any]]], reward: float
) -> None:
    env = episode(small)
    messages = transcript(env, *calls)
    assert sum(part.value for part in EmailSearchPlus.reward(env.scenario, messages)) == pytest.approx(reward)
    assert EmailSearchPlus.success(env.scenario, messages) == (reward > 0)


def test_nothing_of_another_inbox_is_ever_shown(committed: Mailbox) -> None:
    one = committed.questions["test"][0]
    env = episode(committed, **one)
    mine = {mail["subject"] for mail in committed.mails[one["owner"]]}
    others = dict.fromkeys(mail["subject"] for mails in committed.mails.values() for mail in mails)
    strange = [subject for subject in others if subject not in mine][:200]
    assert strange
    for subject in strange:
        observation = env.call("search_emails", {"keywords": subject.split()})
        assert not is_error({"content": observation})
        assert all(line.split(" | ")[2] in mine for line in observation.splitlines()[1:])
