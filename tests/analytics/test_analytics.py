"""Analytics of a run made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from environments.base import Message, Scenario, error, use, words
from steps.analytics import analysis, episodes
from steps.analytics.__main__ import main, picture
from steps.core.errors import UserError
from steps.core.evaluations import Evaluation
from steps.core.records import Reward, Trajectory, Turn, read_records, write_records
from steps.registry import paired

NO_CALL = error("no tool was called; call one between <tool_call> and </tool_call>")
BAD_CALL = error('a tool call must be {"name": …, "arguments": {…}} in valid JSON between <tool_call> and </tool_call>')
KINDS = ({"kind": "easy", "difficulty": 1}, {"kind": "hard", "difficulty": 2})
SCENARIOS = [
    Scenario.make("toy", "train", [{"role": "user", "content": f"question {n}"}], dict(KINDS[n])) for n in (0, 1)
]
HELD_OUT = Scenario.make("toy", "val", [{"role": "user", "content": "another"}], {"kind": "easy"})


def heard(text: str, name: str = "") -> Message:
    return {"role": "tool", "name": name, "content": text}


def episode(
    name: str,
    scenario: Scenario,
    exchanges: Sequence[tuple[Message, Sequence[Message]]],
    stop: str = "done",
    problem: str | None = None,
) -> Trajectory:
    """Turns of ten sampled tokens each, from messages and what they were answered with."""
    turns: list[Turn] = []
    ids: tuple[int, ...] = (1, 2)
    for place, (message, answers) in enumerate(exchanges):
        cut = stop == "length" and place == len(exchanges) - 1
        turns.append(
            Turn(
                prompt_ids=ids,
                completion_ids=(7,) * 10,
                logprobs=(-0.1,) * 10,
                message=message,
                observations=tuple(answers),
                finish_reason="length" if cut else "stop",
            )
        )
        ids = (*ids, *(7,) * 10, 3)
    fields: dict[str, Any] = {"stop_reason": stop, "error": problem}
    return Trajectory(
        id=name, scenario_id=scenario.id, attempt=int(name[-1]), adapter_hash="a", turns=tuple(turns), **fields
    )


def played(iteration: str) -> list[tuple[Trajectory, float | None, bool]]:
    """(episode, score, success). The second iteration succeeds once more, and is without errors."""
    search, done = use("search", query="Summit"), (use("answer", text="262"), [heard("thanks", "answer")])
    good = [(search, [heard("m1, m2", "search")]), done]
    lost = [
        (search, [heard(error('there is no mail with id "m41"'), "search")]),
        (use("search", query="x"), [heard(error('there is no mail with id "m977"'), "search")]),
        (words("well"), [heard(NO_CALL)]),
        (words("<tool_call>{"), [heard(BAD_CALL)]),
        (use("fly", to="home"), [heard(error('there is no tool named "fly"; the tools are search, answer'), "fly")]),
        done,
    ]
    cut: list[tuple[Message, list[Message]]] = [(words("and on and"), [])]
    easy, hard = SCENARIOS
    if iteration == "001":
        return [
            (episode("001-e-0", easy, good), 1.0, True),
            (episode("001-e-1", easy, lost), -0.5, False),
            (episode("001-h-0", hard, cut, "length"), 0.0, False),
            (episode("001-h-1", hard, good[:1], "error", "KeyError: 'm41'"), None, False),
        ]
    return [(episode(f"002-e-{n}", easy, good), 1.0, True) for n in (0, 1)]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """run/ of two iterations, with times for the very first episode; the base policy was evaluated on one scenario."""
    root = tmp_path / "run"
    (root / "scenarios").mkdir(parents=True)
    write_records(SCENARIOS, root / "scenarios/train.parquet")
    write_records([HELD_OUT], root / "scenarios/val.parquet")
    for iteration in ("001", "002"):
        results = played(iteration)
        (root / iteration / "timings").mkdir(parents=True)
        write(root / iteration, results)
    first = played("001")[0][0]
    clock = {
        "began": 1000.0,
        "turns": {first.fingerprint(): [[0.0, 0.5, 0.6], [0.6, 2.6, 2.7]], "another": [[0, 9, 9]]},
    }
    (root / "001/timings/trajectories.turns.json").write_text(json.dumps(clock))
    (root / "000/evaluation").mkdir(parents=True)
    write(
        root / "000/evaluation",
        [(episode("val-0", HELD_OUT, [(words("?"), [heard(NO_CALL)])], "max_turns"), 0.0, False)],
    )
    return root


def write(folder: Path, results: Sequence[tuple[Trajectory, float | None, bool]]) -> None:
    write_records([trajectory for trajectory, _, _ in results], folder / "trajectories.parquet")
    rewards = [
        Reward(
            trajectory_id=trajectory.id, scenario_id=trajectory.scenario_id, name="rule", score=score, success=success
        )
        for trajectory, score, success in results
    ]
    write_records(rewards, folder / "rewards.parquet")


def test_what_a_longer_run_left_is_not_part_of_this_one(run: Path) -> None:
    chain = run.parent / "chain.yaml"
    chain.write_text('iterations:\n  "001": {prev: "000"}\nevaluated: ["000", "001"]\n')
    assert [line.group for line in analysis.analyse(run).lines] == [("001",)]
    chain.write_text("iterations: 3\n")  # damaged: it says nothing
    assert [line.group for line in analysis.analyse(run).lines] == [("001",), ("002",)]


def test_by_iteration_by_hand(run: Path) -> None:
    result = analysis.analyse(run)
    first, second = result.lines
    pairs = [(one.scenario_id, bool(one.success)) for one in read_records(Reward, run / "001/rewards.parquet")]
    groups = paired.numbered([name for name, _ in pairs])
    expected = paired.share_interval(np.array([won for _, won in pairs], dtype=float), groups)
    assert (first.group, first.n, first.success, first.ci95) == (("001",), 4, 0.25, expected)
    assert len(set(groups)) < 4, "attempts at one scenario are alike"
    assert (first.clusters, result.notes) == (None, (analysis.INDEPENDENT,))
    (run / "scenarios/clusters.json").write_text(json.dumps({name: "one inbox" for name, _ in pairs}))
    alike = analysis.analyse(run)
    assert (alike.lines[0].clusters, alike.lines[0].ci95, alike.notes) == (1, (0.0, 1.0), ())
    (run / "scenarios/clusters.json").unlink()
    assert first.reward == pytest.approx(0.5 / 3)
    assert (first.unscored, first.failed) == (1, 1)
    assert first.turns == (2 + 6 + 1 + 1) / 4
    assert list(first.actions.items()) == [
        ("search", 4),
        ("answer", 2),
        ("(cut off)", 1),
        ("(malformed call)", 1),
        ("(unknown tool)", 1),
        ("(words)", 1),
    ]
    assert tuple(first.tokens.model_dump().values()) == (10, 60, 60)
    assert first.latency is not None
    assert tuple(first.latency.model_dump().values()) == (0.5, 2.0, 2.0)
    assert (second.group, second.n, second.success, second.latency) == (("002",), 2, 1.0, None)
    assert second.actions == {"answer": 2, "search": 2}
    assert (result.total.n, result.total.success) == (6, 0.5)
    assert [(pattern.where, pattern.text, pattern.count, pattern.episodes) for pattern in result.patterns] == [
        ("tool", "there is no mail with id ….", 2, 1),
        ("episode", "KeyError: …", 1, 1),
        ("tool", "a tool call must be {…: …, …: {…}} in valid JSON between <tool_call> and </tool_call>.", 1, 1),
        ("tool", "no tool was called; call one between <tool_call> and </tool_call>.", 1, 1),
        ("tool", "there is no tool named …; the tools are search, answer.", 1, 1),
    ]
    assert (result.source, result.splits, result.waste) == ("run", ("train",), {})
    assert analysis.analyse(run.parent) == result, "the project's root will do"


@pytest.mark.parametrize(
    ("by", "groups"),
    [
        ("kind", {("kind=easy",): 4, ("kind=hard",): 2}),
        ("difficulty", {("difficulty=1",): 4, ("difficulty=2",): 2}),
        ("slice", {("difficulty=1",): 4, ("difficulty=2",): 2, ("kind=easy",): 4, ("kind=hard",): 2}),
        ("iteration,kind", {("001", "kind=easy"): 2, ("001", "kind=hard"): 2, ("002", "kind=easy"): 2}),
        ("split", {("train",): 6, ("val",): 1}),
        ("split,iteration", {("train", "001"): 4, ("train", "002"): 2, ("val", "000"): 1}),
    ],
)
def test_groups(run: Path, by: str, groups: dict[tuple[str, ...], int]) -> None:
    result = analysis.analyse(run, by)
    assert {line.group: line.n for line in result.lines} == groups


def test_what_is_of_no_slice_is_other(run: Path) -> None:
    result = analysis.analyse(run, "difficulty", ["train", "val"])
    assert {line.group: line.n for line in result.lines} == {("difficulty=1",): 4, ("difficulty=2",): 2, ("other",): 1}


def test_slices_are_the_gates(run: Path) -> None:
    from steps.core.stats import slices_of

    slices = episodes.slices_by_scenario(run / "scenarios")
    assert {name for own in slices.values() for name in own} == set(slices_of([*SCENARIOS, HELD_OUT]))


@pytest.mark.parametrize(
    ("by", "splits", "said"),
    [
        ("language", [], "--by language: group by iteration, split, slice, difficulty, kind"),
        ("iteration", ["dev"], "there is no split dev: name train, val, test"),
        ("iteration", ["test"], "holds no episodes of test"),
    ],
)
def test_what_is_not_there_is_one_sentence(run: Path, by: str, splits: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        analysis.analyse(run, by, splits)


def test_a_file_that_is_broken_is_one_sentence(run: Path) -> None:
    (run / "001/rewards.parquet").write_text("no parquet")
    with pytest.raises(UserError, match=r"001/rewards\.parquet cannot be read .*: make it again"):
        analysis.analyse(run)


def test_calls_that_were_never_answered_are_no_tools_use(run: Path) -> None:
    """Whatever the policy names after the episode is over: the environment never looks at it."""
    both = use("answer", text="262") | {
        "tool_calls": [*use("answer", text="262")["tool_calls"], *use("anything")["tool_calls"]]
    }
    write(run / "002", [(episode("002-e-0", SCENARIOS[0], [(both, [heard("thanks", "answer")])]), 1.0, True)])
    assert analysis.analyse(run).lines[1].actions == {"answer": 1, "(unanswered call)": 1}


def test_without_rewards_there_is_no_success(run: Path) -> None:
    (run / "002/rewards.parquet").unlink()
    second = analysis.analyse(run).lines[1]
    assert (second.success, second.ci95, second.reward, second.unscored) == (None, None, None, 2)


def test_times_of_other_samples_are_not_taken(run: Path) -> None:
    path = run / "001/timings/trajectories.turns.json"
    path.write_text(path.read_text().replace(played("001")[0][0].fingerprint(), "f" * 16))
    assert analysis.analyse(run).lines[0].latency is None


def test_a_waste_that_does_not_fit_is_a_note(run: Path) -> None:
    (run / "001/metrics.json").write_text(json.dumps({"collected": 3, "quarantine": {}}))
    result = analysis.analyse(run)
    assert result.waste == {}
    assert result.notes[0].startswith("waste of 001 is left out: ")


@pytest.mark.parametrize(
    ("values", "expected"),
    [([3.0], (3, 3, 3)), (range(1, 11), (5, 9, 10)), (range(1, 101), (50, 90, 99)), ([2.0, 1.0], (1, 2, 2))],
)
def test_percentiles_by_hand(values: Sequence[float], expected: tuple[float, ...]) -> None:
    assert tuple(analysis.percentiles(list(values)).model_dump().values()) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Error: after must be a day as 2024-01-31.", "Error: after must be a day as 1999-12-01."),
        ("KeyError: 'm12'", "KeyError: 'm977'"),
        ("no mail m12 in inbox 0a1b2c3d4e", "no mail m9 in inbox ffffffff11"),
        ('unknown "it\'s \\" so" here', 'unknown "b" here'),
        ("took 1.5 s", "took 20 s"),
    ],
)
def test_errors_that_differ_in_names_and_numbers_are_one_pattern(one: str, other: str) -> None:
    assert analysis.normalised(one) == analysis.normalised(other)


@pytest.mark.parametrize(
    "text", ["don't know the tool", "wrong arguments for read_email: id: field required", "a deadbeefed word"]
)
def test_words_stay(text: str) -> None:
    assert analysis.normalised(text) == text


def test_at_most_ten_patterns_the_most_frequent_first(run: Path) -> None:
    words_of = [f"{chr(97 + n)} is wrong" for n in range(14) for _ in range(n + 1)]
    exchanges = [(use("search", query="x"), [heard(error(text), "search")]) for text in words_of]
    write(run / "002", [(episode("002-e-0", SCENARIOS[0], exchanges), 0.0, False)])
    patterns = analysis.analyse(run).patterns
    assert [pattern.count for pattern in patterns] == list(range(14, 4, -1))


def command(capsys: pytest.CaptureFixture[str], *words_of: str) -> tuple[int, str, str]:
    code = main(words_of)
    output = capsys.readouterr()
    return code, output.out, output.err


def test_the_tables(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = command(capsys, str(run))
    assert (code, err) == (0, "")
    [first] = [line for line in out.splitlines() if line.startswith("001 ")][:1]
    ends = "[{:.3f}, {:.3f}]".format(*analysis.analyse(run).lines[0].ci95 or ())
    assert first.split() == f"001 4 0.250 {ends} 0.167 2.50 10 / 60 / 60 0.50 / 2.00 / 2.00 1 1".split()
    assert "not recorded" in out
    assert "there is no mail with id …." in out
    assert "\x1b" not in out


def test_what_a_policy_samples_cannot_drive_the_terminal(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exchanges = [(use("\x1b[2Jclear", query="x"), [heard("\x1b]0;title\x07", "search")])]
    write(run / "002", [(episode("002-e-0", SCENARIOS[0], exchanges), 0.0, False)])
    _, out, _ = command(capsys, str(run))
    assert "\x1b" not in out
    assert "\\x1b" in out


def test_json_is_the_analysis(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = command(capsys, str(run), "--by", "kind", "--split", "train,val", "--json")
    assert analysis.Analysis.model_validate_json(out) == analysis.analyse(run, "kind", ["train", "val"])


def test_the_command_says_what_is_wrong(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(capsys, str(run), "--by", "colour")[::2] == (
        2,
        "error: --by colour: group by iteration, split, slice, difficulty, kind\n",
    )


def test_the_picture_is_the_same_each_time(run: Path, tmp_path: Path) -> None:
    (run / "002/rewards.parquet").unlink()  # a group without a success
    result = analysis.analyse(run)
    for name in ("one.png", "two.png"):
        picture(result, tmp_path / name)
    first = (tmp_path / "one.png").read_bytes()
    assert first[:4] == b"\x89PNG"
    assert first == (tmp_path / "two.png").read_bytes()
    assert {path.name for path in tmp_path.iterdir()} == {"run", "one.png", "two.png"}


def test_evaluations_of_the_project_are_read(run: Path) -> None:
    """What steps/evaluate.py writes beside the episodes is not in the way."""
    summary = Evaluation(split="val", adapter_hash="a", n=1, success=0, ci95=(0, 1), reward=0, turns=1, tokens=1)
    (run / "000/evaluation/summary.json").write_text(summary.model_dump_json())
    [line] = analysis.analyse(run, splits=["val"]).lines
    assert (line.group, line.n, line.success, line.actions) == (("000",), 1, 0.0, {"(words)": 1})
