"""`python -m steps.analytics.transcripts`: what a person sees of trajectories, word by word, and each way in which it
refuses.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from environments.base import Message, Scenario
from steps.analytics.transcripts import main, shorten
from steps.core.records import Reward, Trajectory, Turn, write_records

ROOT = Path(__file__).parent.parent.parent
SCENARIO = Scenario.make(
    "email_search",
    "train",
    [
        {"role": "system", "content": "Search."},
        {"role": "user", "content": "What is the [red]budget[/red] for Falcon?"},
    ],
    {"owner": "Ann Bell", "answer": "4100 dollars"},
)
OTHER = Scenario.make("email_search", "train", [{"role": "user", "content": "Who called?"}], {"owner": "Ann Bell"})


def call(name: str, arguments: object) -> Message:
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def turn(message: Message, *observations: str, logprobs: tuple[float, ...] = (-0.5, -0.25)) -> Turn:
    return Turn(
        prompt_ids=(1, 2, 3),
        completion_ids=(4, 5),
        logprobs=logprobs,
        message=message,
        observations=tuple({"role": "tool", "name": "", "content": text} for text in observations),
        finish_reason="stop",
    )


SEARCH = turn(
    call("search_emails", {"keywords": ["Falcon"], "sort": "newest"}), "1 emails:\n2001-02-03 | Bo | Falcon | m1"
)
ANSWER = turn(call("return_final_answer", {"answer": "4100 dollars", "source_ids": ["m1"]}), "The answer was given.")
WRONG = turn({"role": "assistant", "content": "I \x1b[31mguess"}, "Error: no tool was called.")


def attempt(number: int, *turns: Turn, scenario: Scenario = SCENARIO, **more: object) -> Trajectory:
    given: dict[str, Any] = {"stop_reason": "done"} | more
    name = f"001-{scenario.id}-{number}"
    return Trajectory(id=name, scenario_id=scenario.id, attempt=number, adapter_hash="abc", turns=turns, **given)


def reward(of: Trajectory, score: float | None, success: bool, explanation: str = "", **components: float) -> Reward:
    return Reward(
        trajectory_id=of.id,
        scenario_id=of.scenario_id,
        name="rule",
        score=score,
        success=success,
        components=components,
        explanation=explanation,
    )


GOOD = attempt(0, SEARCH, ANSWER)
BAD = attempt(1, WRONG, stop_reason="max_turns")
BROKEN = attempt(2, stop_reason="error", error="ValueError: a bug")
LONE = attempt(0, turn(call("read_email", {"id": "m1"}), "x" * 700, logprobs=()), scenario=OTHER)
REWARDS = [
    reward(
        GOOD, 1.15, True, "correct: 1 × 1.0: the answer is right; source: 1 × 0.15: cited", correct=1.0, source=0.15
    ),
    reward(BAD, -0.7, False, "no_answer: 1 × -0.6: no answer; error: 1 × -0.1: malformed", no_answer=-0.6, error=-0.1),
    reward(BROKEN, None, False, "the episode failed: ValueError: a bug"),
    reward(LONE, 0.0, False),
]
GOLDEN = f"""\
scenario {SCENARIO.id} {"─" * 94}
What is the [red]budget[/red] for Falcon?
known: answer "4100 dollars", owner "Ann Bell"

attempt   id                       reward   to the mean   success   turns   tokens   stopped by
───────────────────────────────────────────────────────────────────────────────────────────────
      0   001-{SCENARIO.id}-0    1.150        +0.925       yes       2        4   done
      1   001-{SCENARIO.id}-1   -0.700        -0.925        no       1        2   max_turns
      2   001-{SCENARIO.id}-2        –             –        no       0        0   error
mean 0.225 of 2 rewards

attempt 0 · 001-{SCENARIO.id}-0 · adapter abc
  turn 1 · 3 tokens before, 2 sampled · mean logprob -0.375 nats
    search_emails(keywords=["Falcon"], sort="newest")
    → 1 emails:
      2001-02-03 | Bo | Falcon | m1
  turn 2 · 3 tokens before, 2 sampled · mean logprob -0.375 nats
    return_final_answer(answer="4100 dollars", source_ids=["m1"])
    → The answer was given.
  stopped by done: the environment said that it is done · 2 turns, 4 sampled tokens, mean logprob -0.375 nats
  reward (rule) 1.150 · success
    +1.000 correct    1 × 1.0: the answer is right
    +0.150 source     1 × 0.15: cited

attempt 1 · 001-{SCENARIO.id}-1 · adapter abc
  turn 1 · 3 tokens before, 2 sampled · mean logprob -0.375 nats
    I \\x1b[31mguess
    → Error: no tool was called.
  stopped by max_turns: no turn was left · 1 turns, 2 sampled tokens, mean logprob -0.375 nats
  reward (rule) -0.700 · no success
    -0.600 no_answer  1 × -0.6: no answer
    -0.100 error      1 × -0.1: malformed

attempt 2 · 001-{SCENARIO.id}-2 · adapter abc
  stopped by error: ValueError: a bug · 0 turns, 0 sampled tokens, no logprobs (greedy)
  reward (rule) unscored · no success
    the episode failed: ValueError: a bug

3 of 4 trajectories; --limit shows more
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as a run leaves it, and the process in it."""
    folder = tmp_path / "run" / "001"
    folder.mkdir(parents=True)
    (tmp_path / "run" / "scenarios").mkdir()
    write_records([GOOD, BAD, LONE, BROKEN], folder / "trajectories.parquet")
    write_records(REWARDS, folder / "rewards.parquet")
    write_records([SCENARIO, OTHER], tmp_path / "run/scenarios/train.parquet")
    monkeypatch.chdir(tmp_path)
    return folder


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err.removeprefix("error: ").strip()


def test_a_group_is_shown_word_by_word(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = shown(capsys, "run/001/trajectories.parquet")
    assert [line.rstrip() for line in out.splitlines()] == GOLDEN.splitlines()


def test_piped_it_is_plain_text(run: Path) -> None:
    command = [sys.executable, "-m", "steps.analytics.transcripts", "run/001", "--limit", "0"]
    done = subprocess.run(command, cwd=run.parent.parent, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\x1b" not in done.stdout
    assert done.stdout.endswith("4 of 4 trajectories\n")


def test_options_choose(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def transcripts(*words: str) -> list[str]:
        return [line.split(" · ")[1] for line in shown(capsys, "run/001", *words).splitlines() if " · adapter " in line]

    assert transcripts("--limit", "0") == [GOOD.id, BAD.id, BROKEN.id, LONE.id]
    assert transcripts("--limit", "1") == [GOOD.id]
    assert transcripts("--id", BAD.id) == [BAD.id]
    assert transcripts("--scenario", OTHER.id) == [LONE.id]
    assert transcripts("--failed", "--limit", "0") == [BAD.id, BROKEN.id, LONE.id]
    assert transcripts("--failed", "--scenario", SCENARIO.id, "--limit", "1") == [BAD.id]


def test_long_observations_are_shortened_and_a_lone_attempt_has_no_table(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = shown(capsys, "run/001", "--id", LONE.id)
    assert out.count("x") < 620
    assert "(100 more characters)" in out.replace("\n", " ")
    assert "no logprobs (greedy)" in out
    assert "to the mean" not in out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("short", "short"),
        ("a\nb\n", "a\nb"),
        ("x" * 600, "x" * 600),
        ("x" * 602, "x" * 600 + " … (2 more characters)"),
        ("\n".join("123456789"), "\n".join("12345678") + " … (2 more characters)"),
    ],
)
def test_shorten(text: str, expected: str) -> None:
    assert shorten(text) == expected


def test_without_rewards_and_scenarios_the_transcript_is_still_shown(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "rewards.parquet").unlink()
    (run.parent / "scenarios" / "train.parquet").unlink()
    out = shown(capsys, "run/001", "--id", GOOD.id)
    assert "search_emails(" in out
    assert "its question is not known: name the folder that holds it with --scenarios" in out
    assert "reward (" not in out
    assert "--failed needs rewards" in refused(capsys, "run/001", "--failed")


def test_rewards_and_scenarios_from_elsewhere(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "rewards.parquet").rename(tmp_path / "judged.parquet")
    (run.parent / "scenarios").rename(tmp_path / "asked")
    out = shown(capsys, "run/001", "--rewards", "judged.parquet", "--scenarios", "asked", "--id", GOOD.id)
    assert "reward (rule) 1.150 · success" in out
    assert "What is the [red]budget[/red] for Falcon?" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run/002"], "run/002 does not exist"),
        (["run/scenarios"], "run/scenarios/trajectories.parquet does not exist"),
        (
            ["run/001/rewards.parquet"],
            "run/001/rewards.parquet cannot be read (a row is no Trajectory: 13 validation errors",
        ),
        (["junk.parquet"], "junk.parquet cannot be read (Parquet"),
        (["empty.parquet"], "empty.parquet holds no trajectories"),
        (["run/001", "--rewards", "none.parquet"], "none.parquet does not exist"),
        (
            ["run/001", "--rewards", "run/001/trajectories.parquet"],
            "trajectories.parquet cannot be read (a row is no Reward: ",
        ),
        (["run/001", "--rewards", "others.parquet"], "others.parquet holds rewards of other trajectories"),
        (["run/001", "--scenarios", "none"], "--scenarios: none is no folder"),
        (["run/001", "--id", "x"], f"--id: there is no x in run/001; the first of 4 is {GOOD.id}"),
        (["run/001", "--scenario", "x"], f"--scenario: there is no x in run/001; the first of 2 is {SCENARIO.id}"),
        (["run/001", "--limit", "-1"], "--limit: -1 is no number of trajectories"),
    ],
)
def test_bad_input_is_one_sentence(run: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str) -> None:
    Path("junk.parquet").write_text("junk")
    write_records([], Path("empty.parquet"))
    write_records([REWARDS[0].model_copy(update={"trajectory_id": "other"})], Path("others.parquet"))
    assert said in refused(capsys, *words)


def test_wrong_options_end_with_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run/001", "--lim", "3"])
    assert ended.value.code == 2
    assert "unrecognized arguments: --lim" in capsys.readouterr().err
