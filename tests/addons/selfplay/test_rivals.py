"""The other side of a game, played by another adapter: whose turn it is, what is trained on, and the same bytes again."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from addons.selfplay import rivals
from addons.selfplay.section import Opponent
from environments.base import Message, Scenario, count_errors, use, words
from environments.email_search import EmailSearch
from environments.tic_tac_toe import TicTacToe, opening
from environments.tic_tac_toe.rules import show
from steps.core import ports
from steps.core.errors import UserError
from steps.core.params import Params, Policy, Rollout, RolloutParams, Scenarios, ScenariosParams
from steps.core.records import Trajectory, read_records
from steps.policy.adapter import adapter_hash
from steps.rollout import rollout
from steps.sampling import episodes
from steps.sampling.job import Job
from steps.sampling.turns import Sampled
from steps.scenarios import scenarios
from tests.conftest import ROOT

DATA = ROOT / "tasks_data/tic_tac_toe"
POLICY = Policy(base_model="tasks_data/tic_tac_toe/policy", context=512)


def scenario(board: str = "." * 9, side: str = "X", opponent: str = "minimax") -> Scenario:
    hidden = {"kind": side, "opponent": opponent, "seed": 1, "board": board}
    return Scenario.make("tic_tac_toe", "train", opening(side, board), hidden)


def seated(board: str = "." * 9, side: str = "X") -> TicTacToe:
    env = TicTacToe(scenario(board, side), None)
    env.against(None)
    return env


# --- The environment


def test_a_turn_stays_open_until_the_other_side_has_moved() -> None:
    env = seated()
    env.step(use("move", cell=1))
    assert (env.waits, env.board) == (True, "X........")
    assert env.view(is_first=True) == opening("O", "X........")
    assert env.view(is_first=False)[0]["content"] == show("X........")
    answers, is_legal = env.close(use("move", cell=5))
    assert is_legal
    assert answers == [{"role": "tool", "name": "move", "content": show("X...O....")}]
    assert not env.waits
    assert not env.done


@pytest.mark.parametrize(
    "turn",
    [None, words("I resign."), use("move", cell=1), use("move", cell=0), use("move", cell="x"), use("look", cell=5)],
)
def test_a_turn_without_a_legal_move_becomes_a_random_one_that_is_the_same_each_time(turn: Message | None) -> None:
    boards = set()
    for _ in range(2):
        env = seated()
        env.step(use("move", cell=1))
        _, is_legal = env.close(turn)
        assert not is_legal
        assert (env.board.count("X"), env.board.count("O")) == (1, 1)
        boards.add(env.board)
    assert len(boards) == 1


def test_a_second_move_in_a_turn_waits_for_the_next() -> None:
    env = seated()
    both = use("move", cell=1) | {
        "tool_calls": [*use("move", cell=1)["tool_calls"], *use("move", cell=2)["tool_calls"]]
    }
    env.step(both)
    answers, _ = env.close(use("move", cell=5))
    assert answers[0]["content"] == show("X...O....")
    assert count_errors(answers) == 1
    assert "other side's turn" in answers[1]["content"]


def test_the_other_side_can_win_and_is_not_asked_once_the_game_is_over() -> None:
    env = seated("XX.OO....", "X")
    env.step(use("move", cell=9))
    answers, _ = env.close(use("move", cell=6))
    assert answers[0]["content"].endswith("You lose.")
    assert env.done
    env = seated("XX.OO....", "X")
    assert env.step(use("move", cell=3))[0]["content"].endswith("You win.")
    assert not env.waits


def test_a_scripted_opponent_takes_the_seat_by_its_name() -> None:
    """Minimax holds the centre against a corner; the rules of `self` do, too, and random moves do not always."""
    env = TicTacToe(scenario(opponent="random"), None)
    env.against("minimax")
    env.step(use("move", cell=1))
    assert env.board == "X...O...."
    with pytest.raises(ValueError, match="there is no opponent alphazero: the task has random, minimax, self"):
        env.against("alphazero")


def test_who_cannot_be_seated_is_told_why() -> None:
    with pytest.raises(UserError, match="EmailSearch has no other side"):
        rivals.seat(EmailSearch, None)
    with pytest.raises(UserError, match="alphazero is neither iteration nor champion, nor one of the opponents of"):
        rivals.seat(TicTacToe, "alphazero")
    with pytest.raises(UserError, match="does not go with"):
        rivals.seat(type("Slow", (TicTacToe,), {"overlap": 2}), None)
    several = {"tasks": {"tic_tac_toe": 1, "multiplication": 1}}
    refused: dict[str, Any] = {"a single task": several}
    if "ray" in ports.names("sampler"):
        refused["does not go with policy.kind: ray"] = {"policy": {"kind": "ray"}}
    for expected, changes in refused.items():
        with pytest.raises(ValueError, match=rf"rollout\.opponent .*{expected}"):
            Params.model_validate({"rollout": {"opponent": {}}} | changes)


# --- A batch, with players in place of the engine


class Players:
    """Stands for vLLM with two adapters: the policy plays the first empty cell of the latest board, the opponent the last
    one, and in every fourth episode a taken cell. Keeps the prompts of both."""

    def __init__(self, chat: Any) -> None:
        self.chat, self.waiting = chat, dict[int, list[int]]()
        self.prompts: dict[bool, list[str]] = {False: [], True: []}

    @property
    def pending(self) -> int:
        return len(self.waiting)

    def submit(self, key: int, prompt_ids: list[int], seed: int, against: bool = False) -> None:
        assert (key < 0) is against
        self.waiting[key] = prompt_ids
        self.prompts[against].append(self.chat.tokenizer.decode(prompt_ids))

    def step(self) -> list[Sampled]:
        finished = []
        for key, ids in sorted(self.waiting.items()):
            board = marks(self.chat.tokenizer.decode(ids))[-1]
            cells = [cell for cell in range(9) if board[cell] == "."]
            cell = cells[0] if key >= 0 else cells[-1]
            if key < 0 and ~key % 4 == 3:
                cell = next(cell for cell in range(9) if board[cell] != ".")
            made = tuple(self.chat.completion_ids(use("move", cell=cell + 1)))
            finished.append(Sampled(key, made, (-0.5,) * len(made), "stop"))
        self.waiting.clear()
        return finished


@pytest.fixture
def _in_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.fixture
def played(_in_root: None) -> tuple[Players, Counter[str], list[Scenario], list[Trajectory]]:
    from steps.policy.loading import load_chat

    chat = load_chat(POLICY, TicTacToe)
    sampler, counts = Players(chat), Counter[str]()
    data = TicTacToe.load(DATA)
    drawn = TicTacToe.scenarios(data, "train", 12, 3)
    attempts = [(scenario, attempt) for scenario in drawn for attempt in range(2)]
    other = rivals.Opponent(None, Path("other"), counts)
    job = Job(POLICY, Rollout(max_tokens=32), None, TicTacToe, attempts, "001", 1, data, opponent=other)
    batch = episodes.play(job, sampler, {"": chat})
    return sampler, counts, drawn, batch


def marks(text: str) -> list[str]:
    """The boards in a text."""
    lines = re.findall(r"[XO.] [XO.] [XO.]", text)
    return ["".join(lines[start : start + 3]).replace(" ", "") for start in range(0, len(lines), 3)]


def test_both_sides_move_in_turn_and_games_come_to_an_end(played: Any) -> None:
    _, counts, drawn, batch = played
    by_id = {scenario.id: scenario for scenario in drawn}
    assert {trajectory.stop_reason for trajectory in batch} == {"done"}
    for trajectory in batch:
        before = by_id[trajectory.scenario_id].data["board"]
        for turn in trajectory.turns:
            [board] = marks(str(turn.observations[0]["content"]))
            added = [(board.count(side) - before.count(side)) for side in "XO"]
            assert added == [1, 1] or turn is trajectory.turns[-1], (before, board)
            before = board
    assert counts["moves"] == len(played[0].prompts[True]) > 40
    assert 0 < counts["replaced"] < counts["moves"]


def test_the_opponent_sees_its_own_side_and_nothing_else(played: Any) -> None:
    sampler, _, _, _ = played
    for prompt in sampler.prompts[True]:
        boards = marks(prompt)
        side = prompt.rpartition("You are ")[2][0]
        ahead = {"X": 0, "O": 1}[side]  # X moved first, so O is one mark behind when it is to move
        assert all(board.count("X") - board.count("O") == ahead for board in boards), prompt
    assert any(len(marks(prompt)) > 1 for prompt in sampler.prompts[True])


def test_only_what_the_policy_sampled_is_trained_on(played: Any) -> None:
    """The opponent's moves are in observations: mask 0, and no logprob."""
    _, _, _, batch = played
    for trajectory in batch:
        [row] = trajectory.flatten()
        own = [token for turn in trajectory.turns for token in turn.completion_ids]
        assert [token for token, kept in zip(row.ids, row.mask, strict=True) if kept] == own
        assert sum(row.mask) < len(row.mask)


# --- The real engine


def touched(adapter: Path, to: Path, size: float) -> Path:
    """A copy of a fresh adapter whose second matrices are noise in place of zeros: it plays otherwise."""
    import numpy as np
    from safetensors.numpy import load_file, save_file

    to.mkdir()
    tensors = load_file(adapter / "adapter_model.safetensors")
    rng = np.random.default_rng(1)
    for name, tensor in sorted(tensors.items()):
        if ".lora_B." in name:
            tensors[name] = rng.normal(0, size, tensor.shape).astype(tensor.dtype)
    save_file(tensors, to / "adapter_model.safetensors", metadata={"format": "pt"})
    (to / "adapter_config.json").write_bytes((adapter / "adapter_config.json").read_bytes())
    return to


def check(folder: str) -> None:
    """The stage with both adapters on one engine: the same bytes again; another opponent plays otherwise."""
    os.chdir(ROOT)
    to = Path(folder)
    words = [
        "--params",
        "tasks_data/tic_tac_toe.yaml",
        "--adapter",
        f"{to}/adapter",
        "--checkpoint",
        f"{to}/checkpoint",
    ]
    subprocess.run(
        [sys.executable, "-m", "steps.initialise", *words], check=True, env=os.environ | {"FLYWHEEL_WORKER": "off"}
    )
    counts = Scenarios(train=4, val=2, test=2)
    scenarios(DATA, to / "scenarios", ScenariosParams(task="tic_tac_toe", seed=1, scenarios=counts))
    other = touched(to / "adapter", to / "other", 0.05)

    def stage(name: str, opponent: Path | None, asked: Opponent | None) -> tuple[bytes, Any]:
        limits = Rollout.model_validate({"scenarios": 4, "attempts": 2, "max_tokens": 32, "opponent": asked})
        params = RolloutParams(task="tic_tac_toe", seed=1, policy=POLICY, rollout=limits)
        rollout(
            DATA,
            to / "scenarios",
            to / "adapter",
            to / name,
            "001",
            params,
            opponent=opponent,
            drawn=to / f"{name}.json",
        )
        return (to / name).read_bytes(), json.loads((to / f"{name}.json").read_text()).get("opponent")

    alone, none = stage("alone", to / "adapter", None)
    first, named = stage("first", other, Opponent())
    again, _ = stage("again", other, Opponent())
    random, scripted = stage("random", None, Opponent(player="random"))
    assert none is None
    assert first == again
    assert len({alone, first, random}) == 3
    assert named["adapter"] == adapter_hash(other) != adapter_hash(to / "adapter")
    assert named["moves"] > 8
    assert 0 <= named["replaced"] <= named["moves"]
    assert scripted == {"name": "random"}
    for trajectory in read_records(Trajectory, to / "first"):
        assert trajectory.error is None
        assert trajectory.adapter_hash == adapter_hash(to / "adapter")
        [row] = trajectory.flatten()
        assert sum(row.mask) == sum(len(turn.completion_ids) for turn in trajectory.turns)
        assert sum(len(turn.logprobs) for turn in trajectory.turns) == sum(row.mask)


@pytest.mark.slow
@pytest.mark.nightly  # seats and turns are tested above; this is that the engine takes two adapters
def test_self_play_on_the_real_engine(tmp_path: Path) -> None:
    """In a process of its own: it would keep this one's only engine."""
    text = f"from tests.addons.selfplay import test_rivals as t; t.check({os.fspath(tmp_path)!r})"
    done = subprocess.run([sys.executable, "-c", text], cwd=ROOT, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-4000:]
