"""What generated scenarios are built on: the agent's failures in an iteration, and documents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from addons.models import players
from addons.supervised import generate, material
from environments.multiplication import Multiplication
from steps.core.errors import UserError
from steps.core.params import Policy
from steps.core.records import Reward, write_records
from steps.judging.rule import by_rule
from tests.conftest import ROOT
from tests.support.openai_server import Body, Server, last

DATA = Multiplication.load(ROOT / "tasks_data" / "multiplication")
SCENARIOS = Multiplication.scenarios(DATA, "train", 4, 7)
RIGHT = (4, 2, 0, 3)  # attempts of four that succeed, by scenario

pytestmark = pytest.mark.usefixtures("own_ledger")


@pytest.fixture
def iteration(tmp_path: Path) -> Path:
    """run/003 with four attempts at each scenario, some by the scripted player and the others by one that errs."""
    pairs = [(scenario, number) for scenario in SCENARIOS for number in range(4)]
    good, bad = (
        {(game.trajectory.scenario_id, game.trajectory.attempt): game.trajectory for game in played}
        for played in (
            players.play(Policy(kind=kind), Multiplication, DATA, pairs, prefix="train")
            for kind in ("scripted", "random")
        )
    )
    chosen = []
    for scenario, count in zip(SCENARIOS, RIGHT, strict=True):
        chosen += [(scenario, (good if number < count else bad)[scenario.id, number]) for number in range(4)]
    folder = tmp_path / "run" / "003"
    folder.mkdir(parents=True)
    (tmp_path / "run" / "scenarios").mkdir()
    write_records(SCENARIOS, tmp_path / "run" / "scenarios" / "train.parquet")
    write_records([trajectory for _, trajectory in chosen], folder / "trajectories.parquet")
    write_records([by_rule(Multiplication, *pair) for pair in chosen], folder / "rewards.parquet")
    return folder


def test_failures_come_with_the_fewest_successes_first_and_a_difficulty_as_measured(iteration: Path) -> None:
    failed = material.failures("multiplication", iteration)
    assert [each.source for each in failed] == [SCENARIOS[place].id for place in (2, 1, 3)]
    assert [each.difficulty for each in failed] == [5, 3, 2]
    question = SCENARIOS[2].messages[-1]["content"]
    assert question in failed[0].text
    assert "succeeded in 0 of 4 attempts" in failed[0].text
    assert '{"role": "assistant", "content": ' in failed[0].text  # what the agent said
    assert "How it was judged: a reward of -1 (" in failed[0].text


def test_without_a_rule_the_best_of_a_group_is_the_measure(iteration: Path) -> None:
    rows = material.read_records(Reward, iteration / "rewards.parquet")
    write_records([row.model_copy(update={"success": None}) for row in rows], iteration / "rewards.parquet")
    failed = material.failures("multiplication", iteration)
    assert [each.source for each in failed] == [SCENARIOS[1].id, SCENARIOS[3].id]  # the third's attempts are all alike


def test_variations_of_failures_are_training_scenarios_with_their_source(iteration: Path, tmp_path: Path) -> None:
    def writer(body: Body) -> str:
        """The scenario that failed, the first time; then others with one of its factors."""
        text = last(body)
        number = int(text.rpartition("This is number ")[2].partition(":")[0])
        asked = text.rpartition("The scenario:\n")[2].partition("\n")[0]
        a, b = (int(word.strip("?")) for word in json.loads(asked)[-1]["content"].split()[2::2])
        b = b if number < 3 else 2 + (b + number) % 90
        return json.dumps(
            {"messages": [{"role": "user", "content": f"What is {a} * {b}?"}], "data": {}, "difficulty": 3}
        )

    out = tmp_path / "more.jsonl"
    words = ["--task", "multiplication", "--out", str(out), "--count", "3", "--max-calls", "60", "--model", "writer"]
    with Server(writer) as server:
        assert generate.main([*words, "--url", server.url, "--from-failures", str(iteration)]) == 0
        grades = {text.partition("of difficulty ")[2][0] for text in map(last, server.bodies)}
    assert grades == {"5", "3", "2"}
    report = json.loads(out.with_name("more.jsonl.report.json").read_text())
    assert report["refused"]["a double of the scenario that it varies"] >= 3
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert {line["split"] for line in lines} == {"train"}
    assert {line["source"] for line in lines} <= {SCENARIOS[place].id for place in (1, 2, 3)}


@pytest.mark.parametrize(
    ("task", "folder", "sentence"),
    [
        (
            "multiplication",
            "run/009",
            "run/009/trajectories.parquet does not exist; name an iteration, such as run/010",
        ),
        ("tic_tac_toe", "run/003", "it holds no judged attempts at scenarios of tic_tac_toe"),
    ],
)
def test_a_folder_without_failures_is_a_sentence(iteration: Path, task: str, folder: str, sentence: str) -> None:
    with pytest.raises(UserError) as problem:
        material.failures(task, iteration.parent.parent / folder)
    assert sentence in str(problem.value)


def test_an_iteration_without_a_failure_is_a_sentence(iteration: Path) -> None:
    rows = material.read_records(Reward, iteration / "rewards.parquet")
    write_records([row.model_copy(update={"success": True}) for row in rows], iteration / "rewards.parquet")
    with pytest.raises(UserError, match="no attempt at a scenario of multiplication failed; take an earlier iteration"):
        material.failures("multiplication", iteration)


def test_documents_are_divided_between_paragraphs(tmp_path: Path) -> None:
    folder = tmp_path / "handbook"
    (folder / "more").mkdir(parents=True)
    (folder / "a.md").write_text("\n\n".join(f"Paragraph {number}. " + "word " * 300 for number in range(6)))
    (folder / "more" / "b.txt").write_text("x" * (material.EXCERPT + 5))
    (folder / "picture.png").write_bytes(b"\x89PNG")
    parts = material.documents([folder])
    assert [part.source for part in parts] == [
        "a.md, part 1",
        "a.md, part 2",
        "a.md, part 3",
        "b.txt, part 1",
        "b.txt, part 2",
    ]
    assert all(len(part.text) <= material.EXCERPT + 200 for part in parts)
    assert "Paragraph 2. " in parts[1].text
    assert parts[4].text.endswith("xxxxx")


def test_documents_stand_in_the_prompts_by_turns(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.txt").write_text(f"The tables of {name}.")
    pairs = iter(range(2, 90))

    def writer(body: Body) -> str:
        question = f"What is 97 * {next(pairs)}?"
        return json.dumps({"messages": [{"role": "user", "content": question}], "data": {}, "difficulty": 3})

    out = tmp_path / "more.jsonl"
    words = ["--task", "multiplication", "--out", str(out), "--count", "4", "--model", "writer", "--documents"]
    with Server(writer) as server:
        assert generate.main([*words, str(tmp_path / "a.txt"), str(tmp_path / "b.txt"), "--url", server.url]) == 0
        shown = [text.rpartition("this part of ")[2].partition(",")[0] for text in map(last, server.bodies)]
    assert {"a.txt", "b.txt"} == set(shown)
    assert {json.loads(line)["source"] for line in out.read_text().splitlines()} <= {"a.txt, part 1", "b.txt, part 1"}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(b"\xff\xfe\x00", "cannot be read as text in UTF-8"), (b" \n\n ", "holds no text; files in folders end in .md")],
)
def test_documents_that_hold_no_text_are_a_sentence(tmp_path: Path, content: bytes, sentence: str) -> None:
    (tmp_path / "a.txt").write_bytes(content)
    with pytest.raises(UserError) as problem:
        material.documents([tmp_path / "a.txt"])
    assert sentence in str(problem.value)


def test_failures_or_documents_not_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        generate.main(["--task", "multiplication", "--out", "x", "--from-failures", "a", "--documents", "b"])
    assert ended.value.code == 2
    assert "not allowed with argument" in capsys.readouterr().err
