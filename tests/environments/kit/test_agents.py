"""Your own agents as tasks: their scenarios, what is wrong with a file of them, and what they have no use for."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import environments
from addons.judges.criteria import criteria
from addons.models import players
from environments.base import Env, Scenario, Split
from environments.kit import agents
from steps.core.errors import UserError
from steps.core.params import Policy, Scenarios
from steps.core.records import Trajectory
from steps.data import contamination
from steps.judging.rule import by_rule

SPLITS: tuple[Split, ...] = ("train", "val", "test")
LINES = [{"question": f"What is {number} + 1?", "answer": number + 1} for number in range(40)]


def module(name: str = "an_agent", **fields: Any) -> type[Env]:
    made = ModuleType(name)
    vars(made).update({"rollout": lambda episode: None} | fields)
    return agents.agent_env(made)


def written(folder: Path, *lines: Any) -> Path:
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "scenarios.jsonl").write_text("\n".join(texts) + "\n")
    return folder


def test_a_module_with_a_function_rollout_is_a_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_package").mkdir()
    for name, text in (
        ("agent", "async def rollout(episode): ..."),
        ("number", "rollout = 5"),
        ("both", "from environments._template import Template\nclass Mine(Template): ...\ndef rollout(): ..."),
        ("nothing", ""),
    ):
        (tmp_path / "my_package" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    env = environments.load("my_package.agent")
    assert env.is_agent
    assert env is environments.load("my_package.agent")
    assert env.tools() == {}
    assert env.__module__ == "my_package.agent"
    assert not environments.load("my_package.both").is_agent, "a class comes first"
    with pytest.raises(ValueError, match=r"my_package\.number: rollout must be a function of an episode, not 5"):
        environments.load("my_package.number")
    with pytest.raises(ValueError, match="exactly one Env class, or else a function rollout"):
        environments.load("my_package.nothing")


def test_tasks_can_leave_agents_out() -> None:
    folder = Path(environments.__file__).parent
    assert environments.NO_TOOLS.search((folder / "_agent_template.py").read_text())
    assert environments.tasks(agents=False) == [
        name for name in environments.tasks() if not environments.load(name).is_agent
    ]


def test_result_is_imported_only_where_it_is_used() -> None:
    import subprocess

    words = "import sys, environments; assert 'pydantic' not in sys.modules; print(environments.Result.__name__)"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout == "Result\n"
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        environments.Nothing  # noqa: B018


def test_scenarios_come_from_a_file_each_in_its_split(tmp_path: Path) -> None:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
    env = module()
    data = env.load(written(tmp_path, *LINES, "", {"messages": chat, "kind": "greeting"}, {"prompt": "Go."}))
    made = {split: [one for one in data if one.split == split] for split in SPLITS}
    assert sum(map(len, made.values())) == len(data) == 42
    assert all(made.values())
    by_text = {one.messages[-1]["content"]: one for one in data}
    assert by_text["What is 3 + 1?"].data == {"answer": 4}
    assert (by_text["Hello?"].messages, by_text["Hello?"].data) == (tuple(chat), {"kind": "greeting"})
    assert by_text["Go."].data == {}
    assert all(one == Scenario.make("an_agent", one.split, one.messages, one.data) for one in data)
    first, again, other = (env.scenarios(data, "train", 20, seed) for seed in (1, 1, 2))
    assert first == again != other
    assert all(one in made["train"] for one in first)
    splits = {split: env.scenarios(data, split, len(made[split]), 1) for split in SPLITS}
    assert contamination.check(env, "an_agent", splits, Scenarios())["passed"]
    reason = f"99 scenarios were asked for, and val has {len(made['val'])} of the 42 in scenarios.jsonl"
    with pytest.raises(ValueError, match=reason):
        env.scenarios(data, "val", 99, 1)


def test_the_same_question_with_other_data_stays_in_its_split(tmp_path: Path) -> None:
    data = module().load(written(tmp_path, *({"question": "Play.", "board": number} for number in range(20))))
    assert len({one.split for one in data}) == 1
    env = module(sources=("board",), openings_repeat=True)
    assert {one.split for one in env.load(tmp_path)} == set(SPLITS)
    with pytest.raises(ValueError, match="line 1: it has no owner, which `sources` of an_agent names"):
        module(sources=("owner",)).load(tmp_path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{", "it is not valid JSON"),
        ("[1]", "it must be an object"),
        ({"answer": 1}, "it must have one of messages, question and prompt, and has none"),
        ({"question": "a", "prompt": "b"}, "and has question and prompt"),
        ({"question": " "}, "question must be a text that is not empty"),
        ({"prompt": 5}, "prompt must be a text that is not empty"),
        ({"messages": []}, r"messages must be a list of objects with a role \(system, user, assistant, tool\)"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages must be a list"),
        ({"messages": [{"role": "user", "content": None}]}, "messages must be a list"),
        ({"question": "a\0"}, "it holds characters that are no text"),
        ('{"question": "a", "b": Infinity}', "numbers that are infinite"),
        (LINES[1], r"the same scenario as in .*scenarios\.jsonl, line 2; take one of the two out"),
    ],
)
def test_a_bad_line_is_named(line: Any, reason: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"scenarios\.jsonl, line 4: .*{reason}"):
        module().load(written(tmp_path, *LINES[:2], "", line))


def test_a_missing_file_says_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(
        FileNotFoundError, match=r"scenarios\.jsonl is missing: write one JSON object per line.*an_agent"
    ):
        module().load(tmp_path)


def test_a_module_can_make_its_scenarios(tmp_path: Path) -> None:
    def scenarios(split: str, count: int, seed: int) -> list[dict[str, Any]]:
        return [{"question": f"{split} {seed} {number}"} for number in range(count)]

    env = module(scenarios=scenarios)
    made = env.scenarios(env.load(tmp_path), "val", 3, 7)
    assert [(one.split, one.messages[0]["content"]) for one in made] == [
        ("val", f"val 7 {number}") for number in range(3)
    ]
    for returned, reason in (
        (
            [{"question": "a"}],
            r"scenarios\('val', 2, 7\) of an_agent must return a list of 2 objects, and returned 1 sc",
        ),
        (None, "and returned NoneType"),
        ([{"question": "a"}, {"question": "a"}], "scenario 2: the same scenario as in"),
        ([{"question": "a"}, {"question": "b", "day": Path()}], "scenario 2: it cannot be written as JSON"),
    ):
        with pytest.raises(ValueError, match=reason):
            module(scenarios=lambda split, count, seed, returned=returned: returned).scenarios([], "val", 2, 7)


def trajectory(result: agents.Result | None, **fields: Any) -> Trajectory:
    values = dict[str, Any](id="t", scenario_id="s", attempt=0, adapter_hash="h", turns=(), stop_reason="done")
    return Trajectory(**values | {"result": result} | fields)


@pytest.mark.parametrize(
    ("result", "score", "success"),
    [
        (agents.Result(reward=0.75, components={"a": 0.75}), 0.75, True),
        (agents.Result(reward=0.5), 0.5, False),
        (agents.Result(reward=0.1, success=True), 0.1, True),
        (agents.Result(reward=1.0, success=False), 1.0, False),
        (agents.Result(success=True), None, True),
        (agents.Result(), None, False),
        (None, None, False),
    ],
)
def test_the_rule_is_what_the_agent_returned(result: Any, score: float | None, success: bool) -> None:
    scenario = Scenario.make("an_agent", "train", [{"role": "user", "content": "Hello?"}], {})
    reward = by_rule(module(), scenario, trajectory(result))
    assert (reward.score, reward.rule, reward.success) == (score, score, success)
    assert reward.explanation == ("the agent gave no reward" if score is None else "the agent gave it")
    assert reward.components == (result.components if result else {})
    failed = by_rule(module(), scenario, trajectory(None, stop_reason="error", error="ValueError: no"))
    assert (failed.score, failed.success, failed.explanation) == (None, False, "the episode failed: ValueError: no")


def test_criteria_compare_what_the_agent_came_to() -> None:
    from addons.judges.section import Criteria

    scenario = Scenario.make("an_agent", "train", [{"role": "user", "content": "Hello?"}], {"answer": "Lima"})
    right, wrong = (
        criteria(module(), scenario, trajectory(agents.Result(reward=1.0, output=text)), Criteria())
        for text in ("Lima", "Rome")
    )
    assert right.components["accuracy"] == 0.4 > wrong.components["accuracy"]


def test_players_say_that_an_agent_has_none() -> None:
    scenario = Scenario.make("an_agent", "train", [{"role": "user", "content": "Hello?"}], {})
    with pytest.raises(UserError, match="an_agent is an agent of your own, which only the run's own policy can play"):
        players.play(Policy(kind="scripted"), module(), [], [(scenario, 0)], prefix="val")
    for player in ("scripted", "random", "gold", "bad"):
        with pytest.raises(ValueError, match="an_agent is an agent of your own, which has no players"):
            module()(scenario, []).play(player)
    for judged in (module().reward, module().success):
        with pytest.raises(ValueError, match="and not in a transcript"):
            judged(scenario, [])
