"""Scenarios that a model writes: what is taken, what is refused and why, and that a second run costs nothing."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import environments
from addons.supervised import generate
from addons.supervised.generated import essence, read_generated
from environments import _new
from environments.base import Scenario, normalise, split_of
from environments.multiplication import Multiplication, split_of_pair
from steps.core.errors import UserError
from tests.conftest import ROOT
from tests.support.capitals import CapitalsTask
from tests.support.openai_server import Body, Server, last

DATA = Multiplication.load(ROOT / "tasks_data" / "multiplication")
OTHER = [(a, b) for a in range(2, 100) for b in range(2, 100)]


pytestmark = pytest.mark.usefixtures("own_ledger")


def candidate(a: int, b: int, difficulty: int = 3, **data: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "user", "content": f"What is {a} * {b}?"}],
        "data": data,
        "difficulty": difficulty,
    }


def number(body: Body) -> int:
    """Of the prompt, as it says itself."""
    return int(last(body).rpartition("This is number ")[2].partition(":")[0])


def writer(*said: Any) -> Callable[[Body], str]:
    """The answer to each prompt by its number; after them, a pair of its own for each."""

    def answer(body: Body) -> str:
        at = number(body)
        written = said[at] if at < len(said) else candidate(*unseen(at))
        return written if isinstance(written, str) else json.dumps(written)

    return answer


EXAMPLES = {essence(one) for one in Multiplication.scenarios(DATA, "train", generate.POOL, 0)}
UNSEEN = [(a, b) for a, b in OTHER if f"what is {a} * {b} ?" not in EXAMPLES]


def unseen(at: int) -> tuple[int, int]:
    return UNSEEN[at * 37 % len(UNSEEN)]


def run(server: Server, out: Path, *more: str, count: int = 6) -> int:
    words = ["--task", "multiplication", "--out", str(out), "--count", str(count), "--model", "writer"]
    return generate.main([*words, "--url", server.url, *more])


def lines(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text().splitlines()]


def report(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(out.with_name(out.name + ".report.json").read_text())
    return found


def test_what_is_taken_and_what_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "new" / "generated.jsonl"
    a, b = unseen(90)
    said = [
        candidate(a, b, answer=a * b),  # 0: good
        candidate(a, b, difficulty=1),  # 1: a double
        candidate(a, b) | {"messages": [{"role": "user", "content": f"what is  {a} * {b} ?"}]},  # 2: of another form
        candidate(*unseen(91), answer=1),  # 3
        candidate(123, 4),  # 4
        "I would rather not",  # 5
        {"question": "What is 2 * 3?"},  # 6
        candidate(2, 3) | {"difficulty": 9},  # 7
        candidate(2, 3) | {"messages": [{"role": "system", "content": "What is 2 * 3?"}]},  # 8
        candidate(2, 3) | {"messages": [{"role": "user", "content": "a \0"}]},  # 9
    ]
    with Server(writer(*said)) as server:
        assert run(server, out) == 0
    written = report(out)
    assert written["asked"] == 15  # six, five in place of those refused, four of these again, ...
    assert written["refused"] == {
        'the messages must be one of the user, "What is a * b?"': 2,
        "a double of one before it": 1,
        "a factor is out of range": 1,
        "characters that are no text, or nested too deeply": 1,
        "not of the form asked: difficulty: Input should be less than or equal to 5": 1,
        "not of the form asked: messages: Field required": 1,
        "the answer is no JSON": 1,
        "the answer is wrong": 1,
    }
    assert (written["task"], written["model"], written["taken"]) == ("multiplication", "writer", 6)
    assert written["asked"] == written["taken"] + sum(written["refused"].values())
    taken = lines(out)
    assert [line["messages"][0]["content"] for line in taken[:1]] == [f"What is {a} * {b}?"]
    assert written["taken_prompts"] == [line["prompt"] for line in taken]
    assert sum(written["splits"].values()) == 6
    for line in taken:
        factors = [int(word.strip("?")) for word in line["messages"][0]["content"].split()[2::2]]
        assert line["split"] == split_of_pair(*factors)


def test_characters_that_paint_a_terminal_or_break_a_line_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = unseen(90)
    said = [
        candidate(a, b) | {"messages": [{"role": "user", "content": f"What is \x1b[2J{a} * {b}?"}]},
        candidate(a, b, note="a\u2028b"),  # to some readers of the file, the end of a line
        json.dumps(candidate(a, b))[:-1] + r', "\u001b[31m\ud800": 1}',
        json.dumps(candidate(a, b))[:-1] + ', "difficulty": 1}',
        {"role": "assistant", "content": None, "refusal": "I will \x1b[31m not"},
    ]
    writes = writer(*said[:4])
    with Server(lambda body: said[4] if number(body) == 4 else writes(body)) as server:
        assert run(server, tmp_path / "a.jsonl") == 0
    assert report(tmp_path / "a.jsonl")["refused"] == {
        "characters that are no text, or nested too deeply": 3,
        "the answer has a key twice": 1,
        "the answer is empty, the model refused: 'I will [31m not'": 1,
    }
    assert all(line.isprintable() for line in capsys.readouterr().out.splitlines())


def test_a_line_of_the_file_ends_where_a_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    kept = [candidate(*unseen(at), note="a\u2028b\x85c") for at in (90, 91)]
    split = [split_of_pair(*unseen(at)) for at in (90, 91)]
    written = [json.dumps(one | {"split": where}, ensure_ascii=False) for one, where in zip(kept, split, strict=True)]
    path.write_text("\n".join(written) + "\n", encoding="utf-8")
    assert sum(map(len, read_generated(Multiplication, DATA, path).values())) == 2


def test_a_second_run_asks_nothing_and_writes_the_same_bytes(tmp_path: Path) -> None:
    with Server(writer("no", candidate(1, 1))) as server:
        assert run(server, tmp_path / "a.jsonl") == 0
        calls = server.calls
        assert run(server, tmp_path / "b.jsonl") == 0
        assert server.calls == calls
    for name in ("{}.jsonl", "{}.jsonl.report.json"):
        assert (tmp_path / name.format("a")).read_bytes() == (tmp_path / name.format("b")).read_bytes()


def test_more_are_asked_for_where_the_first_ended(tmp_path: Path) -> None:
    with Server(writer()) as server:
        assert run(server, tmp_path / "a.jsonl", count=4) == 0
        assert run(server, tmp_path / "b.jsonl", count=6) == 0
        assert server.calls == 6
    assert lines(tmp_path / "b.jsonl")[:4] == lines(tmp_path / "a.jsonl")


def test_a_double_of_an_example_is_refused(tmp_path: Path) -> None:
    shown = Multiplication.scenarios(DATA, "train", generate.POOL, 0)[0].messages[0]["content"]
    with Server(writer(candidate(2, 2) | {"messages": [{"role": "user", "content": shown}]})) as server:
        assert run(server, tmp_path / "a.jsonl") == 0
    assert report(tmp_path / "a.jsonl")["refused"] == {"a double of an example": 1}


def test_one_split_alone(tmp_path: Path) -> None:
    with Server(writer()) as server:
        assert run(server, tmp_path / "a.jsonl", "--split", "val", "--max-calls", "100") == 0
    assert {line["split"] for line in lines(tmp_path / "a.jsonl")} == {"val"}
    assert set(report(tmp_path / "a.jsonl")["refused"]) == {
        "the pair belongs to the split train",
        "the pair belongs to the split test",
    }


def test_the_prompt_tells_the_task_and_shows_training_scenarios_alone(tmp_path: Path) -> None:
    with Server(writer()) as server:
        run(server, tmp_path / "a.jsonl", "--difficulty", "2-3", count=12)
        bodies = sorted(server.bodies, key=number)
    held_out = {f"What is {a} * {b}?" for split in ("val", "test") for a, b in DATA[split]}
    for body in bodies:
        text = last(body)
        assert "The smallest task: one turn and no tools." in text
        assert f"of difficulty {2 + number(body) % 2} on a scale" in text
        shown = [question for question in held_out if question in text]
        assert shown == []
        assert text.count("What is ") >= 3
        assert body["response_format"]["json_schema"]["schema"]["required"] == ["messages", "data", "difficulty"]
    assert len({last(body) for body in bodies}) == 12


def test_a_limit_of_calls(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Server(writer(*["no"] * 5)) as server:
        assert run(server, tmp_path / "a.jsonl", "--max-calls", "7") == 0
        assert server.calls == 7
    assert "2 of 6 scenarios from 7 calls" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--task", "mcp"], "tasks_data/mcp/server.yaml is missing: it says how the MCP server is started"),
        (["--solver-url", "http://127.0.0.1:9/v1"], "--solver-url is the server of --solver, which is not given"),
        (["--task", "nope"], "--task nope: "),
        (["--difficulty", "0-3"], "--difficulty 0-3: give a grade or a range from 1 to 5"),
        (["--difficulty", "4-2"], "--difficulty 4-2: give a grade or a range from 1 to 5"),
        (["--count", "0"], "--count and --max-calls must be 1 or more"),
        (["--max-cost", "1"], "max_cost needs price_in and price_out"),
        (["--key-env", "sk-1-2"], "must be the name of an environment variable"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], sentence: str
) -> None:
    with Server(writer()) as server:
        assert run(server, tmp_path / "a.jsonl", *more) == 2
        assert server.calls == 0
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "a.jsonl").exists()


def test_a_model_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--task", "multiplication", "--out", str(tmp_path / "a.jsonl")]
    assert generate.main(words) == 2
    assert generate.main([*words, "--url", "http://127.0.0.1:9/v1"]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("error: --model is needed")
    assert second == "error: the options of a model need --model, its name"


def test_nothing_usable_is_an_error_with_a_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Server(lambda body: "no") as server:
        assert run(server, tmp_path / "a.jsonl") == 2
    assert "none of 18 answers was a scenario" in capsys.readouterr().err
    assert not (tmp_path / "a.jsonl").exists()
    assert report(tmp_path / "a.jsonl")["refused"] == {"the answer is no JSON": 18}


def test_a_server_that_is_down_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Server(writer(), lambda number, body: 400) as server:
        assert run(server, tmp_path / "a.jsonl") == 2
    assert "no call was answered; the first: writer at" in capsys.readouterr().err


def test_a_call_that_fails_among_others_is_counted(tmp_path: Path) -> None:
    with Server(writer(), lambda at, body: 400 if number(body) == 1 else None) as server:
        assert run(server, tmp_path / "a.jsonl") == 0
    assert report(tmp_path / "a.jsonl")["refused"] == {"the call was not answered": 1}


# --- Read back


def test_read_back_they_are_scenarios_as_the_task_draws_them(tmp_path: Path) -> None:
    with Server(writer()) as server:
        run(server, tmp_path / "a.jsonl", count=20)
    found = read_generated(Multiplication, DATA, tmp_path / "a.jsonl")
    everyone = [one for split in found.values() for one in split]
    assert {one.id for one in everyone} == {line["id"] for line in lines(tmp_path / "a.jsonl")}
    assert len(everyone) == 20
    for split, scenarios in found.items():
        drawn = {one.id for one in Multiplication.scenarios(DATA, split, len(DATA[split]), 1)}
        assert {one.id for one in scenarios} <= drawn
        assert all(isinstance(one, Scenario) and one.split == split for one in scenarios)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "Expecting property name"),
        ("[]", "no attribute"),
        ("{}", "Input should be a valid list"),
        (json.dumps(candidate(4, 5)), "'split'"),
        (
            json.dumps(candidate(4, 5) | {"split": next(s for s in ("train", "val") if s != split_of_pair(4, 5))}),
            "belongs to",
        ),
        (json.dumps(candidate(400, 5) | {"split": "train"}), "out of range"),
    ],
)
def test_a_line_that_was_changed_is_named(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "a.jsonl"
    good = json.dumps(candidate(6, 7) | {"split": split_of_pair(6, 7)})
    path.write_text(f"{good}\n{good}\n{line}\n")
    with pytest.raises(UserError, match=f"line 3: .*{reason}"):
        read_generated(Multiplication, DATA, path)
    path.write_text(f"{good}\n{good}\n")
    assert [len(one) for one in read_generated(Multiplication, DATA, path).values()].count(1) == 1


def test_a_file_that_is_missing_is_said(tmp_path: Path) -> None:
    with pytest.raises(
        UserError,
        match=r"scenarios\.generated: .* does not exist; .venv/bin/python -m addons\.supervised\.generate makes it",
    ):
        read_generated(Multiplication, DATA, tmp_path / "a.jsonl")


def test_the_scenarios_stage_takes_generated_ones_in(tmp_path: Path) -> None:
    from steps.core.params import ScenariosParams
    from steps.core.records import read_records
    from steps.scenarios import SPLITS, scenarios

    folder = tmp_path / "multiplication"
    folder.mkdir()
    (folder / "ranges.json").write_text((ROOT / "tasks_data/multiplication/ranges.json").read_text())
    drawn = {one.data["answer"] for split in SPLITS for one in Multiplication.scenarios(DATA, split, 5, 1)}
    a, b = next((a, b) for a, b in OTHER if a * b not in drawn)
    line = candidate(a, b) | {"split": split_of_pair(a, b)}
    (folder / "more.jsonl").write_text(json.dumps(line) + "\n")
    counts = {"train": 5, "val": 5, "test": 5, "generated": "more.jsonl"}
    params = ScenariosParams.model_validate({"task": "multiplication", "seed": 1, "scenarios": counts})
    scenarios(folder, tmp_path / "out", params)
    made = {split: read_records(Scenario, tmp_path / "out" / f"{split}.parquet") for split in SPLITS}
    assert {split: len(found) for split, found in made.items()} == {
        split: 5 + (split == split_of_pair(a, b)) for split in SPLITS
    }
    assert made[split_of_pair(a, b)][-1].data["answer"] == a * b
    (folder / "more.jsonl").unlink()
    with pytest.raises(UserError, match=r"more\.jsonl does not exist"):
        scenarios(folder, tmp_path / "again", params)


# --- Any task


def test_a_task_without_a_check_of_its_own_has_its_scripted_player_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = "tests.support.capitals"
    shutil.copytree(ROOT / "tasks_data/_template", tmp_path / "tasks_data" / task)
    monkeypatch.chdir(tmp_path)
    facts = CapitalsTask.load(tmp_path / "tasks_data" / task)
    foreign = next(  # its words would be for training, and the task draws it for another split
        scenario
        for scenario in generate.drawn(CapitalsTask, facts, [])["val"]
        if split_of(normalise(scenario.messages[-1]["content"])) == "train"
    )

    def about(country: str, text: str = "What is the capital of {}?", **more: Any) -> dict[str, Any]:
        hidden = {"country": country, "answer": facts.get(country, "nowhere")} | more
        return {"messages": [{"role": "user", "content": text.format(country)}], "data": hidden, "difficulty": 2}

    said = [
        about(foreign.data["country"], foreign.messages[-1]["content"]),
        about("Atlantis"),
        about("Peru", "Which city is Peru's capital?") | {"data": {}},
        about("Peru", " ... "),
        about("Peru") | {"messages": [{"role": "user", "content": text} for text in "ab"]},
        about("Peru", "A friend of mine wants to know how one gets from Chile to its capital by train"),  # hidden: Lima
    ]
    with Server(lambda body: json.dumps(said[number(body) % len(said)])) as server:
        words = ["--task", task, "--out", str(tmp_path / "a.jsonl"), "--count", "6", "--max-calls", "6"]
        assert generate.main([*words, "--model", "writer", "--url", server.url]) == 2
    refused = report(tmp_path / "a.jsonl")["refused"]
    assert report(tmp_path / "a.jsonl")["solvable"] == "checked by the scripted player"
    assert refused == {
        "the scripted player does not solve it": 2,
        "too much like one of another split (content)": 1,
        "the task cannot be played with it: KeyError": 1,
        "a message holds no words": 1,
        "the messages must be one of the user, with or without one of the system before it": 1,
    }


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A task with the tools of an MCP server, in a project of its own."""
    for name in ("environments", "tasks_data"):
        (tmp_path / "notebook" / name).mkdir(parents=True)
    server = ROOT / "tests" / "support" / "mcp_server.py"
    settings, *_ = _new.write_mcp("notes", f"python {server}", tmp_path / "notebook")
    settings.write_text(settings.read_text().replace("examples: []", "examples: [Note that milk is sold out.]"))
    settings.parent.rename(settings.parent.with_name("notebook.environments.notes"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path / "notebook")
    return "notebook.environments.notes"


def writer_and_player(body: Body) -> Any:
    """Stands for two models: one writes scenarios, the other plays them, but for odd numbers it calls no tool."""
    if body["model"] == "writer":
        text = f"Keep a note about the number {number(body)}."
        return json.dumps({"messages": [{"role": "user", "content": text}], "data": {}, "difficulty": 1})
    asked = next(message["content"] for message in body["messages"] if message["role"] == "user")
    if int(asked.split()[-1].strip(".")) % 2 or body["messages"][-1]["role"] == "tool":
        return "It is noted."
    call = {"name": "write_note", "arguments": json.dumps({"text": asked})}
    return {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "type": "function", "function": call}]}


def test_a_task_of_an_mcp_server_is_written_and_played(notes: str, capsys: pytest.CaptureFixture[str]) -> None:
    out = Path("tasks_data") / notes / "scenarios.jsonl"
    words = ["--task", notes, "--out", str(out), "--count", "4", "--model", "writer"]
    with Server(writer_and_player) as server:
        assert generate.main([*words, "--url", server.url, "--solver", "player"]) == 0
        calls, first = server.calls, out.read_bytes()
        told = last(next(body for body in server.bodies if body["model"] == "writer"))
        assert generate.main([*words, "--url", server.url, "--solver", "player"]) == 0  # now there is a file
        assert (server.calls, out.read_bytes()) == (calls, first)
    assert "You help your user with the tools that you have." in told
    assert '"name": "write_note"' in told
    assert "milk is sold out" in told
    written = report(out)
    assert written["solvable"].startswith(
        "by player, which played with the task's tools, and came to an answer; no rule"
    )
    assert set(written["refused"]) == {"player answers without a call that succeeds"}
    asked = [line["messages"][0]["content"] for line in lines(out)]
    assert len(asked) == 4
    assert all(int(text.split()[-1].strip(".")) % 2 == 0 for text in asked)
    env = environments.load(notes)
    data = env.load(out.parent)
    assert sum(map(len, data.scenarios.values())) == 4
    with Server(writer_and_player) as server:
        assert generate.main([*words, "--url", server.url]) == 0
    assert report(out)["solvable"] == "not checked: name a model with --solver"
    assert "solvable: not checked: name a model with --solver" in capsys.readouterr().out


def test_scenarios_for_an_agent_of_ones_own_are_lines_as_people_write_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "helper.py").write_text('"""Adds numbers."""\n\ndef rollout(episode):\n    return 1.0\n')
    (tmp_path / "package").mkdir()
    (tmp_path / "helper.py").rename(tmp_path / "package" / "helper.py")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    out = Path("tasks_data/helper/scenarios.jsonl")
    with Server(writer(*[candidate(number, 7, hint=number) for number in range(5)])) as server:
        words = [
            "--task",
            "package.helper",
            "--out",
            str(out),
            "--count",
            "5",
            "--model",
            "writer",
            "--url",
            server.url,
        ]
        assert generate.main([*words, "--solver", "player"]) == 2
        assert "which no model but the run's own can play" in capsys.readouterr().err
        assert generate.main(words) == 0
        assert "Adds numbers." in last(server.bodies[0])
        assert generate.main(words) == 0
        assert server.calls == 5
    assert lines(out)[1] == {"messages": [{"role": "user", "content": "What is 1 * 7?"}], "hint": 1}
    written = report(out)
    assert written["solvable"] == "not checked"
    counts = dict.fromkeys(("train", "val", "test"), 0)
    for scenario in environments.load("package.helper").load(out.parent):
        counts[scenario.split] += 1
    assert {split: count for split, count in counts.items() if count} == written["splits"]
