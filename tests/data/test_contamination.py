"""Contamination: what each rule catches and lets pass, a planted leak that stops the stage, and every task's splits."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

import environments
from environments.base import Scenario, Split
from environments.multiplication import Multiplication
from steps.core.errors import UserError
from steps.core.params import Scenarios, ScenariosParams
from steps.data import contamination
from steps.data.contamination import by_overlap, check, sources
from steps.scenarios import scenarios
from tests.conftest import ROOT

# Below the pool of every task's every split.
SMALL = {"train": 120, "val": 60, "test": 60}
SMALLER = {"train": 40, "val": 16, "test": 16}  # of games, each of which takes a while to find
TASKS = environments.tasks(agents=False)
SPLITS: tuple[Split, ...] = ("train", "val", "test")


def told(text: str, split: Split = "train", **data: Any) -> Scenario:
    """A scenario with its text; the system message says the same everywhere and counts for nothing."""
    system = {
        "role": "system",
        "content": "You answer at length, in full sentences, and never without a source or two.",
    }
    return Scenario.make("toys", split, [system, {"role": "user", "content": text}], data)


class Toys(Multiplication):
    """A task whose answers come from a shelf's boxes."""

    sources = ("shelf", "boxes")


class Games(Multiplication):
    """A task that always begins alike."""

    sources = ("seed",)
    openings_repeat = True


def checked(
    train: Sequence[Scenario], held: Sequence[Scenario], env: Any = Multiplication, **knobs: Any
) -> dict[str, Any]:
    made: dict[Split, Sequence[Scenario]] = {"train": train, "val": [], "test": held}
    return check(env, "toys", made, Scenarios(**knobs))


def overlap(train: Sequence[str], text: str, n: int = 3) -> float | None:
    """The largest share of a text's n-grams that it has in common with one of the training texts; None for none."""
    pairs, _ = by_overlap([told(one, place=place) for place, one in enumerate(train)], [told(text, "test")], n)
    return pairs[0].share if pairs else None


# --- The measure


@pytest.mark.parametrize(
    ("train", "text", "share"),
    [
        # abc bcd cde def, of which the first two are known
        (["a b c d x"], "a b c d e f", 2 / 4),
        # case, punctuation and white space are no difference
        (['A, "b"\n c! d?'], "a b c d", 1.0),
        # numbers are words: 12 is not 13, and 3.5 is two
        (["add 12 and 7 now"], "add 13 and 7 now", 1 / 3),
        (["add 12 and 7 now"], "add 12 and 7 now", 1.0),
        (["pay 3.5 of it"], "pay 3.6 of it", None),
        # two training texts know a half each: it is the nearest one that counts
        (["a b c d x", "x c d e f"], "a b c d e f", 2 / 4),
        # a longer training text that holds all of it; the other way round it is a part alone
        (["x y a b c d z"], "a b c d", 1.0),
        (["a b c d"], "x y a b c d z", 2 / 5),
        # repeated n-grams count once: aba bab, of which both are known
        (["a b a b"], "a b a b a b a b", 1.0),
        # fewer than n words: all of the text or nothing
        (["What is 12?"], "What is 13?", None),
        (["a b"], "A B!", 1.0),
        (["a b c"], "a b", None),
        (["a b"], "a b c", None),
        # no letter, no word n-gram: the rows of boards
        (["0 0 2 0 0 4"], "0 0 2 0 0 4", None),
        ([". . X"], ". . .", None),
        (["", "a b c"], "", None),
    ],
)
def test_the_share_of_ngrams(train: list[str], text: str, share: float | None) -> None:
    found = overlap(train, text)
    assert found == (share if share is None else pytest.approx(share))


def test_the_tasks_own_wording_is_left_out() -> None:
    """Of ten training texts all have `one two three`; two of them (a fifth) `red blue green`, three `sun moon star`."""
    train = ["one two three " + " ".join(f"w{place}v{word}" for word in range(3)) for place in range(10)]
    train[:2] = [text + " red blue green" for text in train[:2]]
    train[2:5] = [text + " sun moon star" for text in train[2:5]]
    assert overlap(train, "one two three") is None
    assert overlap(train, "sun moon star") is None
    assert overlap(train, "red blue green") == 1.0
    # one two three | two three red | three red blue | red blue green: the first does not count, the last alone is known
    assert overlap(train, "one two three red blue green") == pytest.approx(1 / 3)


def test_with_few_training_scenarios_no_wording_is_taken_for_the_tasks_own() -> None:
    """A fifth of two scenarios is less than one: everything would be left out."""
    assert overlap(["a b c d", "e f g h"], "a b c d") == 1.0
    assert overlap(["a b c d", "a b c d"], "a b c d") is None


def test_only_the_users_words_count() -> None:
    pairs, measured = by_overlap([told("a b c d e")], [told("f g h i j", "test")], 3)
    assert (pairs, measured) == ([], 1)


# --- The rules


LONG = (
    "The clinic in Ashford keeps twelve thousand records on paper. Write a plan in four steps that moves them to the new "
    "system before March, names who is responsible for each step and says what happens to the paper afterwards."
)


def test_a_planted_near_copy_stops_the_run_and_is_named() -> None:
    """40 words, 33 n-grams: `Ashford`, the fourth word, is in 4 of them, `twelve`, the sixth, in 6, those 4 among them."""
    train = [told(f"Tell the story of farm {number} and its {number + 3} goats in a sentence.") for number in range(20)]
    near = told(LONG.replace("twelve", "eleven").replace("Ashford", "Ashton"))
    test, other = told(LONG, "test"), told("Something else altogether, of more than eight words, I think.", "test")
    assert checked(train, [other, test])["largest_overlap"] is None
    with pytest.raises(UserError) as problem:
        checked([*train, near], [other, test])
    assert f"{27 / 33:.2f}" == "0.82"
    expected = f"too much alike: 1 (test {test.id} and train {near.id} (overlap 0.82)); take one"
    assert expected in str(problem.value)
    assert "\n" not in str(problem.value)


def test_the_threshold_is_a_share_that_may_not_be_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contamination, "NGRAM", 3)
    train, test = [told("a b c d x")], [told("a b c d e f", "test")]
    assert checked(train, test, max_overlap=0.5)["largest_overlap"]["share"] == 0.5
    with pytest.raises(UserError, match=r"overlap 0\.50"):
        checked(train, test, max_overlap=0.49)
    assert checked([told("x a b c d e f", place=1)], test, max_overlap=1.0)["largest_overlap"]["share"] == 1.0


def test_the_same_content_in_two_splits_has_two_ids_and_is_found() -> None:
    train, test = told("What is 12 * 7?", answer=84), told("What is 12 * 7?", "test", answer=84)
    assert train.id != test.id
    with pytest.raises(UserError, match=rf"alike: 1 .* {test.id} and train {train.id} \(content\)\);"):
        checked([train], [test])
    same = test.model_copy(update={"messages": ({"role": "user", "content": "other words"},)})
    with pytest.raises(UserError, match=r"alike: 1 .*\(content\)\);"):
        checked([test.model_copy(update={"split": "train"})], [same])


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ({"shelf": 1, "boxes": ["a", "b"]}, {("1", "a"), ("1", "b")}),
        ({"shelf": "x", "boxes": [["a"], ["b", ["c"]]]}, {("x", "a"), ("x", "b"), ("x", "c")}),
        ({"shelf": 1, "boxes": []}, set()),
        ({"shelf": 1, "boxes": {"b": 1, "a": 2}}, {("1", '{"a": 2, "b": 1}')}),
    ],
)
def test_sources_are_the_keys_together_a_member_at_a_time(data: dict[str, Any], expected: set[Any]) -> None:
    assert set(sources(told("x", **data), "toys", ("shelf", "boxes"))) == expected


def test_a_shared_source_is_found_and_a_shared_part_of_one_is_not() -> None:
    train = [told("One question.", shelf=1, boxes=["a", "b"]), told("Two.", shelf=2, boxes=["c"])]
    passed = checked(
        train, [told("Three.", "test", shelf=2, boxes=["a"]), told("Four.", "test", shelf=1, boxes=["c"])], Toys
    )
    assert (passed["passed"], passed["sources"]) == (True, ["shelf", "boxes"])
    leak = told("Five.", "test", shelf=1, boxes=["z", "b"])
    with pytest.raises(UserError, match=rf"alike: 1 .test {leak.id} and train {train[0].id} \(source\)\);"):
        checked(train, [leak], Toys)
    assert checked(train, [leak])["passed"], "a task that names no sources is not held to them"


@pytest.mark.parametrize(("one", "other"), [(7, "7"), (7, 7.0), ("Caf\u00e9", "Cafe\u0301")])
def test_a_source_is_the_same_however_it_is_written(one: Any, other: Any) -> None:
    first, second = told("One.", shelf=one, boxes=["a"]), told("Two.", "test", shelf=other, boxes=["a"])
    with pytest.raises(UserError, match=r"\(source\)"):
        checked([first], [second], Toys)
    assert checked([told("One.", shelf="aB", boxes=["a"])], [told("Two.", "test", shelf="Ab", boxes=["a"])], Toys)[
        "passed"
    ]


@pytest.mark.parametrize("other", ["Where is the Cafe\u0301?", "where  is the CAF\u00c9?"])
def test_a_question_is_the_same_however_its_letters_are_written(other: str) -> None:
    with pytest.raises(UserError, match=r"\(shown\)"):
        checked([told("Where is the Caf\u00e9?", shelf=1)], [told(other, "test", shelf=2)])


def test_a_source_that_the_data_does_not_have_is_said() -> None:
    with pytest.raises(UserError, match="has no boxes, which `sources` of its class names"):
        checked([told("One.", shelf=1)], [], Toys)


BOARD = "2 0 0 4\n0 2 0 0"  # no letter, so that n-grams say nothing of it


@pytest.mark.parametrize("other", [BOARD, BOARD.replace("\n", "  \r\n ")])
def test_the_same_opening_under_another_seed_is_found(other: str) -> None:
    """The policy is shown the same board; only the hidden seed differs."""
    train, test = told(BOARD, seed=1, answer="left"), told(other, "test", seed=2, answer="up")
    with pytest.raises(
        UserError, match=rf"alike: 1 .test {test.id} and train {train.id} \(shown\)\);.*openings_repeat"
    ):
        checked([told("4 0 0 0", seed=3), train], [test])
    assert checked([train], [told(BOARD[::-1], "test", seed=2)])["found"]["shown"] == 0
    spoken = test.model_copy(update={"messages": (*test.messages, {"role": "user", "content": "Go on."})})
    assert checked([train], [spoken])["passed"], "another message follows: it is shown more"


def test_a_short_question_that_all_of_training_has_is_found_too() -> None:
    """Its only n-gram is that of more than a fifth of training, and so the task's own wording."""
    train = [told("Roll the dice.", seed=seed) for seed in range(9)]
    with pytest.raises(UserError, match=r"alike: 1 .*\(shown\)"):
        checked(train, [told("roll the dice.", "test", seed=11)])


def test_test_is_held_apart_from_val_too() -> None:
    val, test = told("Which lamp?", "val", seed=1), told("Which lamp?", "test", seed=2)
    made: dict[Split, Sequence[Scenario]] = {"train": [told("Other.", seed=3)], "val": [val], "test": [test]}
    with pytest.raises(UserError, match=rf"alike: 1 .test {test.id} and val {val.id} \(shown\)"):
        check(Multiplication, "toys", made, Scenarios())
    same = made | {"test": [told("Else.", "test", seed=1)]}
    with pytest.raises(UserError, match=r"and val .*\(source\)"):
        check(Games, "toys", same, Scenarios())
    assert check(Games, "toys", made, Scenarios())["openings_seen"] == {"val": 0, "test": 0}


def test_openings_that_repeat_are_said_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make(tmp_path, "pettingzoo:tictactoe_v3", ROOT / "tasks_data/multiplication", train=24, val=3, test=5)
    said = "".join(capsys.readouterr())
    assert "warning: 3 of 3 val, 5 of 5 test scenarios begin with the very messages of a training one" in said
    assert json.loads((folder / "contamination.json").read_text())["openings_seen"] == {"val": 3, "test": 5}


def test_where_openings_repeat_sources_alone_count() -> None:
    train, test = [told("You are X. Begin.", seed=1)], [told("You are X. Begin.", "test", seed=2)]
    with pytest.raises(UserError, match=r"\(shown\)"):
        checked(train, test)
    report = checked(train, test, Games)
    assert (report["overlap_applies"], report["overlap_measured"], report["largest_overlap"]) == (False, 0, None)
    assert report["openings_seen"] == {"val": 0, "test": 1}
    with pytest.raises(UserError, match=r"\(source\)"):
        checked(train, [told("You are O. Begin.", "test", seed=1)], Games)

    class Careless(Multiplication):
        openings_repeat = True

    with pytest.raises(UserError, match="openings_repeat without sources leaves nothing"):
        checked(train, test, Careless)


def test_the_first_ten_pairs_are_shown_and_all_are_counted() -> None:
    train = [told(f"Copied text number {number}.") for number in range(13)]
    held = [told(f"copied text number {number}", "test", held=True) for number in range(13)]
    with pytest.raises(UserError) as problem:
        checked(train, held)
    text = str(problem.value)
    assert "too much alike: 13 (" in text
    assert ", and 3 more);" in text
    shown = [(one.id in text, other.id in text) for one, other in zip(held, train, strict=True)]
    assert shown == [(True, True)] * 10 + [(False, False)] * 3


# --- The stage


def make(folder: Path, task: str = "multiplication", data: Path | None = None, **knobs: Any) -> Path:
    """The stage's output."""
    params = ScenariosParams(task=task, seed=1, scenarios=Scenarios(**SMALL | knobs))
    folder.mkdir(exist_ok=True)
    scenarios(data or ROOT / "tasks_data" / task, folder / "scenarios", params)
    return folder / "scenarios"


@pytest.mark.parametrize("task", TASKS)
def test_every_task_passes_and_its_report_says_so(task: str, tmp_path: Path) -> None:
    sizes = SMALLER if task.startswith("game_2048") else SMALL
    report = json.loads((make(tmp_path, task, None, **sizes) / "contamination.json").read_text())
    assert report["passed"] is True
    assert report["scenarios"] == sizes
    assert report["found"] == {"content": 0, "source": 0, "shown": 0, "overlap": 0}
    assert (report["ngram"], report["max_overlap"]) == (8, 0.8)
    assert report["sources"] == list(environments.load(task).sources)
    assert report["openings_seen"] == {"val": 0, "test": 0}
    # either texts were compared, or the splits are held apart by sources
    assert report["overlap_measured"] > 0 or (not report["overlap_applies"] and report["sources"])


def test_a_question_that_is_moved_to_training_stops_the_stage_before_it_writes(tmp_path: Path) -> None:
    """A leak as it happens: a test question of email_search is added to the training split, with a word more."""
    data = tmp_path / "data"
    data.mkdir()
    for name in ("mails.jsonl", "questions.jsonl"):
        (data / name).write_bytes((ROOT / "tasks_data/email_search" / name).read_bytes())
    questions = [json.loads(line) for line in (data / "questions.jsonl").read_text().splitlines()]
    sizes = {"train": 216, "val": 60, "test": 240}
    make(tmp_path / "clean", "email_search", data, **sizes)
    leaked = [
        one | {"split": "train", "question": "Please: " + one["question"]}
        for one in questions
        if one["split"] == "test"
    ]
    kept = [one for one in questions if one["split"] != "train"]
    with (data / "questions.jsonl").open("w") as file:
        file.writelines(json.dumps(one) + "\n" for one in [*kept, *leaked])
    with pytest.raises(UserError, match=r"task email_search: .* alike: \d+ .*\(source\).* more\);"):
        make(tmp_path / "leaked", "email_search", data, **sizes)
    assert list((tmp_path / "leaked").iterdir()) == []


def test_the_same_run_gives_the_same_report(tmp_path: Path) -> None:
    first, again = (make(tmp_path / name, "email_search") / "contamination.json" for name in ("a", "b"))
    assert first.read_bytes() == again.read_bytes()


@pytest.mark.skipif("coverage" in sys.modules, reason="coverage is imported, and takes time, too")
def test_two_thousand_against_two_thousand_take_less_than_comparing_every_pair() -> None:
    """Texts of 60 words, a third of which are phrases that many share. A seventh of the time is usual."""
    rng = Random(3)
    phrases = [" ".join(rng.choices("abcdefghij", k=20)) for _ in range(8)]

    def text() -> str:
        return rng.choice(phrases) + " " + " ".join(f"w{rng.randrange(5000)}" for _ in range(40))

    train = [told(text(), place=place) for place in range(2000)]
    held = [told(text(), "test", place=place) for place in range(2000)]
    lists = [text().split() for _ in range(2100)]
    texts = [{tuple(words[start : start + 8]) for start in range(53)} for words in lists]
    started = time.process_time()
    assert sum(bool(one & other) for one in texts[100:] for other in texts[:100])
    a_twentieth = time.process_time() - started
    started = time.process_time()
    pairs, measured = by_overlap(train, held, 8)
    assert time.process_time() - started < 20 * a_twentieth / 2
    assert measured == 2000
    # 53 n-grams of a text, 13 of a phrase alone, which an eighth of the training texts has; one more where the word that
    # follows is the same by chance
    assert {round(pair.share * 53) for pair in pairs} == {13, 14}


def test_the_same_question_about_another_picture_is_another_one() -> None:
    from tests.support.seeing import asked

    shown = [[Scenario.make("t", "train", [asked(number, "What is it?")], {})] for number in (1, 2)]
    assert by_overlap(shown[0], [shown[0][0].model_copy(update={"id": "other"})], 8)[0][0].share == 1
    assert by_overlap(shown[0], shown[1], 8)[0] == []
