"""The ten tasks of benchmarks/own_tasks.py keep the contract, and the benchmark says what their runs came to."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import environments
from addons.supervised.chats import read_demonstrations
from benchmarks import _runs, own_tasks
from environments import _new
from environments.base import Message, Split
from steps.core.params import Scenarios
from steps.data.contamination import check as check_contamination
from tests.environments import test_environments as contract

COUNTS: dict[Split, int] = {"train": 60, "val": 30, "test": 40}
DEMONSTRATED = 4711  # the seed of the training scenarios that were demonstrated
NEED_PLAYERS = {contract.test_gold_succeeds_and_beats_bad, contract.test_the_scripted_player_sees_what_the_policy_sees}
# All that needs no tokenizer; `make check-task` has the rest.
CHECKS = [
    check
    for name, check in vars(contract).items()
    if name.startswith("test_") and list(inspect.signature(check).parameters) == ["task"] and check not in NEED_PLAYERS
]


@pytest.fixture(scope="module", params=own_tasks.TASKS)
def task(request: pytest.FixtureRequest) -> contract.Task:
    name: str = request.param
    env = environments.load(f"benchmarks._own_tasks.{name}.{name}")
    return contract.Task(name, env, own_tasks.FOLDER / name)


@pytest.mark.parametrize("check", CHECKS)
def test_it_keeps_the_contract(task: contract.Task, check: Callable[..., None]) -> None:
    check(task)


def test_its_scripted_player_sees_what_the_policy_sees(task: contract.Task) -> None:
    if not task.env.has_player("scripted"):
        pytest.skip(f"{task.name} is shown by its demonstrations")
    contract.test_the_scripted_player_sees_what_the_policy_sees(task)


def test_it_has_two_tools_enough_scenarios_and_no_source_twice(task: contract.Task) -> None:
    assert len(task.env.tools()) == 2
    made = {split: task.env.scenarios(task.data, split, count, 1) for split, count in COUNTS.items()}
    for scenarios in made.values():
        assert len({scenario.messages[-1]["content"] for scenario in scenarios}) > 0.9 * len(scenarios)
    assert task.env.sources
    assert check_contamination(task.env, task.name, made, Scenarios())["passed"]


def test_it_has_a_player_that_succeeds_or_thirty_demonstrations_of_training_scenarios(task: contract.Task) -> None:
    path = task.folder / own_tasks.DEMONSTRATIONS
    assert path.is_file() is not task.env.has_player("scripted")
    if not path.is_file():
        for one in task.scenarios:
            assert task.env.success(one, task.play("scripted", one)[0]), one
        return
    read, left_out = read_demonstrations(path)
    assert (len(read), left_out) == (30, {})
    scenarios = task.env.scenarios(task.data, "train", 30, DEMONSTRATED)
    for demonstration, one in zip(read, scenarios, strict=True):
        messages, episode = list[Message](one.messages), task.env(one, task.data)
        assert demonstration.messages[: len(messages)] == messages
        for message in demonstration.messages[len(messages) :]:
            if message["role"] == "assistant":
                messages += [message, *episode.step(message)]
        assert episode.done
        assert task.env.success(one, messages), demonstration


def test_there_are_ten() -> None:
    assert len(own_tasks.TASKS) == 10
    assert Counter(map(own_tasks.shown_by, own_tasks.TASKS)) == {"player": 5, "30 demonstrations": 5}


# --- The benchmark


SUMMARY: dict[str, Any] = {
    "base": {"success": 0.1, "n": 20},
    "begun": {"success": 0.4, "n": 20, "policy": "sft"},
    "trained": {"success": 0.45, "n": 20, "iteration": 4, "policy": "004"},
    "before": {"base": {"success": 0.0}, "sft": {"success": 0.3}},
    "iterations": [{"success": 0.5}, {"success": 0.6}],
    "way": "sft",
}


def test_a_row_says_what_a_run_came_to() -> None:
    made = own_tasks.row("parcels", 2, SUMMARY, 480.0, "")
    assert made == {
        "name": "parcels seed 2",
        "ratio": 1.17,
        "shown_by": "player",
        "base": 0.1,
        "taught": 0.4,
        "trained": 0.45,
        "n": 20,
        "way": "sft",
        "policy": "004",
        "last": "0.300 to 0.600",
        "minutes": 8.0,
        "reason": "",
    }
    assert own_tasks.row("parcels", 2, {key: SUMMARY[key] for key in ("base", "trained")}, 1.0, "")["way"] == "-"
    failed = own_tasks.row("buses", 1, {}, 60.0, "error: nothing to learn from")
    assert failed["ratio"] is None
    assert {failed[name] for name in ("base", "trained", "taught", "n", "way", "policy", "last")} == {"-"}
    kept = SUMMARY | {"begun": None, "trained": SUMMARY["trained"] | {"policy": "sft"}}
    assert own_tasks.row("parcels", 2, kept, 1.0, "")["taught"] == 0.45, "where nothing was better than what was taught"
    late, worse = made | {"minutes": 15.1}, made | {"ratio": -0.2}
    assert own_tasks.total([made, late, worse, failed]) == {
        "name": "all",
        "ratio": 0.25,
        "gained_0.3_in_15_minutes": 1,
        "below_their_start": 1,
        "without_a_trained_policy": 1,
        "runs": 4,
    }


def test_a_task_is_made_as_a_user_makes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that ends without a policy is a row with the last line of its output."""

    def show(root: Path, words: list[str]) -> tuple[float, str]:
        if words[1] == "environments._new":
            _new.write(words[2], root)
            return 1.0, ""
        assert words == ["-m", "flows.train", "--set", "seed=1", "--task", "parcels"]
        raise _runs.Failed("flows.train failed", ["it began\n", "error: no attempt succeeded\n", "\n"], 90.0)

    def clone(root: Path) -> Path:
        (root / "environments").mkdir(parents=True)
        (root / "tasks_data").mkdir()
        return root

    monkeypatch.setattr(_runs, "show", show)
    monkeypatch.setattr(_runs, "clone", clone)
    made = own_tasks.measure("parcels", 1, tmp_path, {})
    assert (made["ratio"], made["minutes"], made["reason"]) == (None, 1.5, "error: no attempt succeeded")
    data = tmp_path / "parcels-1" / "tasks_data"
    assert sorted(path.name for path in (data / "parcels").iterdir()) == ["parcels.csv", "rubric.md"]
    assert (data / "parcels.yaml").read_text().splitlines()[1] == "task: parcels"
    module = tmp_path / "parcels-1" / "environments" / "parcels.py"
    assert module.read_bytes() == (own_tasks.FOLDER / "parcels" / "parcels.py").read_bytes()


def test_a_command_that_fails_keeps_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(_runs.Failed, match="failed with exit code 3") as raised:
        _runs.show(tmp_path, ["-c", "print('the reason')\nprint()\nraise SystemExit(3)"])
    assert raised.value.last_line == "the reason"
    assert raised.value.seconds > 0
