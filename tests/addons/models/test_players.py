"""Episodes in messages: the environments' own players, and models behind a real server on this machine."""

from __future__ import annotations

import functools
import itertools
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

import environments
from addons.models import client, players
from addons.models.section import Endpoint
from environments.base import Env, Message, Scenario, is_error
from steps import evaluate
from steps.core import params
from steps.core.errors import UserError
from steps.core.evaluations import Evaluation
from steps.core.params import EvaluateParams, InitialiseParams, Policy, RolloutParams, ScoreParams, UpdateParams
from steps.core.progress import take_measurements
from steps.core.records import Reward, Trajectory, read_records, write_records
from steps.runner import stage
from tests.conftest import ROOT
from tests.support.openai_server import Answer, Body, Server, calling, last, tool_call


@pytest.fixture(autouse=True)
def own_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLYWHEEL_LEDGER_URL", f"sqlite:///{tmp_path}/ledger.db")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(client, "SHORTEST", 0.01)


@functools.cache
def data_of(name: str) -> Any:
    return environments.load(name).load(ROOT / "tasks_data" / name)


def task(name: str, count: int = 6) -> tuple[type[Env], Any, list[tuple[Scenario, int]]]:
    env, data = environments.load(name), data_of(name)
    return env, data, [(scenario, 0) for scenario in env.scenarios(data, "test", count, 3)]


def asking(server: Server, **changes: Any) -> Policy:
    return players.on_server(Endpoint(**dict[str, Any](model="big", base_url=server.url) | changes))


def transcript(trajectory: Trajectory, scenario: Scenario) -> list[Message]:
    return trajectory.messages(scenario)


def as_told(sent: list[Message]) -> list[Message]:
    """The transcript that a server was sent, as the project writes it."""
    names: dict[str, str] = {}
    told: list[Message] = []
    for message in sent:
        if message.get("tool_calls"):
            calls = []
            for call in message["tool_calls"]:
                names[call["id"]] = call["function"]["name"]
                function = {
                    "name": call["function"]["name"],
                    "arguments": json.loads(call["function"]["arguments"]),
                }
                calls.append({"type": "function", "function": function})
            told.append({"role": "assistant", "content": message["content"], "tool_calls": calls})
        elif message["role"] == "tool":
            name = names.pop(message["tool_call_id"])  # each call is answered, once
            told.append({"role": "tool", "name": name, "content": message["content"]})
        else:
            told.append(message)
    assert not names
    return told


@pytest.mark.parametrize("name", ["multiplication", "tic_tac_toe", "email_search", "support_dialogue"])
@pytest.mark.parametrize("player", ["scripted", "random"])
def test_players_of_the_environment_play_as_env_play_does(name: str, player: Any) -> None:
    env, data, attempts = task(name)
    attempts += [(attempts[0][0], 1)]
    played = players.play(Policy(kind=player), env, data, attempts, prefix="test")
    for (scenario, attempt), one in zip(attempts, played, strict=True):
        made = one.trajectory
        assert transcript(made, scenario) == env(scenario, data).play(player, attempt)
        assert made.id == f"test-{scenario.id}-{attempt}"
        assert (made.adapter_hash, made.error) == (player, None)
        assert made.stop_reason in ("done", "max_turns")
        assert all(turn.prompt_ids == turn.completion_ids == turn.logprobs == () for turn in made.turns)


@pytest.mark.parametrize("name", ["multiplication", "email_search"])
def test_a_model_that_plays_by_the_rules_plays_as_the_scripted_player(name: str) -> None:
    """There and back: what the server is told is enough to play by, and its answers arrive as meant."""
    env, data, attempts = task(name)

    def scripted(body: Body) -> Answer:
        told = as_told(body["messages"])
        message = env(attempts[0][0], data).scripted(told, Random(0))
        number = itertools.count()
        calls = [
            tool_call(call["function"]["name"], call["function"]["arguments"], f"id{next(number)}")
            for call in message.get("tool_calls", ())
        ]
        return calling(*calls) if calls else {"role": "assistant", "content": message["content"]}

    with Server(scripted, seconds=0.02, usage=(50, 7)) as server:
        played = players.play(asking(server, price_in=1, price_out=10), env, data, attempts, prefix="test")
        assert server.most_at_once > 1
        calls = server.calls
        tools = [tool.schema for tool in env.tools().values()]
        assert all(body.get("tools", []) == tools for body in server.bodies)
        again = players.play(asking(server, price_in=1, price_out=10), env, data, attempts, prefix="test")
        assert (again, server.calls) == (played, calls)
    for (scenario, _), one in zip(attempts, played, strict=True):
        turns = len(one.trajectory.turns)
        assert transcript(one.trajectory, scenario) == env(scenario, data).play("scripted")
        assert env.success(scenario, transcript(one.trajectory, scenario))
        assert (one.input_tokens, one.output_tokens) == (50 * turns, 7 * turns)
        assert one.cost == pytest.approx(turns * (50 + 70) / 1e6)
        assert one.trajectory.adapter_hash == "big"


@pytest.mark.parametrize(
    "bad",
    [
        tool_call("search_emails", '{"keywords": ['),
        tool_call("search_emails", "[1]"),
        tool_call("search_emails", '{"keywords": ["\\ud800"]}'),
        tool_call("search_emails", "[" * 5000),
        tool_call("no name like this", "{}"),
        tool_call("", "{}"),
        {"id": "x", "type": "function"},
        {"id": "x", "type": "function", "function": {"name": "search_emails", "arguments": 3}},
        {"id": "x", "type": "function", "function": None},
        "search_emails",
    ],
)
def test_malformed_calls_are_observations_and_the_next_request_is_one_that_servers_take(bad: Any) -> None:
    env, data, attempts = task("email_search", 1)
    name = next(iter(env.tools()))

    def answer(body: Body) -> Answer:
        return calling(bad, tool_call(name, {})) if len(body["messages"]) == 2 else "I give up"

    with Server(answer) as server:
        [one] = players.play(asking(server), env, data, attempts, prefix="test", max_turns=2)
        second = server.bodies[1]["messages"]
    first = one.trajectory.turns[0]
    assert [call["function"]["name"] for call in first.message["tool_calls"]] == [name]
    assert [is_error(said) for said in first.observations] == [True, True]  # the good call lacks its arguments
    assert one.trajectory.stop_reason in ("done", "max_turns")
    assert [message["role"] for message in second[2:]] == ["assistant", "tool", "user"]
    assert second[2]["tool_calls"][0]["id"] == second[3]["tool_call_id"]
    assert "must have the name of a tool" in second[4]["content"] or "no text" in second[4]["content"]


def test_an_unknown_tool_and_wrong_arguments_are_the_environments_affair() -> None:
    env, data, attempts = task("email_search", 1)
    with Server(lambda body: calling(tool_call("no_such", {"a": 1}))) as server:
        [one] = players.play(asking(server), env, data, attempts, prefix="test", max_turns=1)
    [said] = one.trajectory.turns[0].observations
    assert "there is no tool named" in said["content"]


def test_reasoning_and_kimis_ids_go_back_to_the_server_that_sent_them() -> None:
    """Their templates show both. Other ids are ours: nine letters and digits, as Mistral's servers demand."""
    env, data, attempts = task("email_search", 1)
    name = next(iter(env.tools()))

    def answer(body: Body) -> Answer:
        ids = (f"functions.{name}:0", "chatcmpl-tool-5d1f")
        return calling(*(tool_call(name, {}, made) for made in ids)) | {"reasoning": " Hm. "}

    with Server(answer) as server:
        [one] = players.play(asking(server), env, data, attempts, prefix="test", max_turns=2)
        _, _, said, *answers = server.bodies[1]["messages"]
    assert one.trajectory.turns[0].message["reasoning"] == said["reasoning"] == "Hm."
    assert [call["id"] for call in said["tool_calls"]] == [f"functions.{name}:0", "call00201"]
    assert [message["tool_call_id"] for message in answers] == [f"functions.{name}:0", "call00201"]


def test_text_that_no_file_takes_is_cleaned(tmp_path: Path) -> None:
    env, data, attempts = task("multiplication", 1)
    with Server(lambda body: "a\0b\ud800c") as server:
        played = players.play(asking(server), env, data, attempts, prefix="test")
    assert played[0].trajectory.turns[0].message["content"] == "ab?c"
    write_records([played[0].trajectory], tmp_path / "t.parquet")
    assert read_records(Trajectory, tmp_path / "t.parquet") == [played[0].trajectory]


def test_a_turn_that_was_cut_off_ends_the_episode() -> None:
    env, data, attempts = task("multiplication", 1)
    with Server(lambda body: "It is 1", finish_reason="length") as server:
        [one] = players.play(asking(server), env, data, attempts, prefix="test")
    assert one.trajectory.stop_reason == one.trajectory.turns[0].finish_reason == "length"
    assert one.trajectory.turns[0].observations == ()


def test_a_failed_episode_is_a_record_and_not_the_end() -> None:
    env, data, attempts = task("multiplication")
    unlucky = attempts[2][0].messages[-1]["content"]
    with Server(lambda body: "5", lambda number, body: 500 if last(body) == unlucky else None) as server:
        played = players.play(asking(server, max_retries=1), env, data, attempts, prefix="test")
        stops = [one.trajectory.stop_reason for one in played]
        assert stops == ["done", "done", "error", "done", "done", "done"]
        assert "CallFailed: big at http" in str(played[2].trajectory.error)
        server.fail = lambda number, body: None
        before = server.calls
        again = players.play(asking(server, max_retries=1), env, data, attempts, prefix="test")
        assert server.calls == before + 1  # the failed one alone
        assert [one.trajectory.stop_reason for one in again] == ["done"] * 6


def test_where_all_fail_it_is_the_end() -> None:
    env, data, attempts = task("multiplication")
    with (
        Server(lambda body: "5", lambda number, body: 500) as server,
        pytest.raises(UserError, match=r"all 6 episodes of big failed; the first: .*500"),
    ):
        players.play(asking(server, max_retries=0), env, data, attempts, prefix="test")


def test_the_budget_ends_it_and_the_next_run_goes_on() -> None:
    env, data, attempts = task("multiplication")
    prices = {"price_in": 1e3, "price_out": 1e3, "max_tokens": 20, "max_connections": 1}  # 0.11 each, 0.2 at most
    with Server(lambda body: "5") as server:
        with pytest.raises(UserError, match="the budget is spent"):
            players.play(asking(server, max_cost=0.4, **prices), env, data, attempts, prefix="test")
        kept = server.calls
        assert 0 < kept < 6
        players.play(asking(server, max_cost=4.0, **prices), env, data, attempts, prefix="test")
        assert server.calls == 6


def test_an_environment_that_breaks_is_an_episode_that_failed() -> None:
    env, data, attempts = task("multiplication")
    broken_scenario = attempts[1][0]

    class Broken(env):
        def hear(self, text: str) -> list[Message]:
            if self.scenario is broken_scenario:
                raise RuntimeError("broken")
            return list(super().hear(text))

    played = players.play(Policy(kind="scripted"), Broken, data, attempts, prefix="test")
    errors = [one.trajectory.error for one in played]
    assert errors == [None, "RuntimeError: broken", None, None, None, None]
    broken = played[1].trajectory
    assert broken.stop_reason == "error"
    [turn] = broken.turns  # what the policy did stays in the record; the environment gave no answer to it
    assert turn.message == env(broken_scenario, data).scripted(broken_scenario.messages, Random(0))
    assert turn.observations == ()
    assert len(take_measurements().turns[broken.fingerprint()]) == 1


def test_a_task_without_the_player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bare_tasks").mkdir()
    (tmp_path / "bare_tasks" / "bare.py").write_text(
        "from environments.base import Env\n"
        "from environments.multiplication import Multiplication\n"
        "class Bare(Multiplication):\n    scripted = Env.scripted\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    env = environments.load("bare_tasks.bare")
    _, data, attempts = task("multiplication")
    with pytest.raises(UserError, match=r"bare_tasks\.bare has no scripted player, which would bring"):
        players.play(Policy(kind="scripted"), env, data, attempts, prefix="test")


# --- policy.kind


def written(folder: Path, policy: dict[str, Any]) -> Path:
    path = folder / "params.yaml"
    path.write_text(yaml.safe_dump({"task": "multiplication", "policy": policy, "scenarios": {"test": 8}}))
    return path


ENDPOINT = {"model": "big", "base_url": "http://127.0.0.1:9/v1"}


@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ({"kind": "openai"}, "policy.endpoint is needed with policy.kind: openai"),
        ({"kind": "scripted", "endpoint": ENDPOINT}, "policy.endpoint would have no effect with policy.kind: scripted"),
        ({"endpoint": ENDPOINT}, "policy.endpoint would have no effect with policy.kind: vllm"),
        ({"kind": "vlm"}, "policy.kind: Input should be 'vllm', 'ray', 'server', 'openai', 'scripted' or 'random'"),
        (
            {"kind": "openai", "endpoint": {"url": "x", "model": "m"}},
            "policy.endpoint.url is not a known key (known: api",
        ),
        ({"kind": "openai", "endpoint": {}}, "policy.endpoint.model: Field required"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path: Path, policy: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as problem:
        params.load(written(tmp_path, policy), EvaluateParams)
    assert sentence in str(problem.value)


@pytest.mark.parametrize("policy", [{"kind": "scripted"}, {"kind": "random"}, {"kind": "openai", "endpoint": ENDPOINT}])
def test_what_learns_needs_vllm(tmp_path: Path, policy: dict[str, Any]) -> None:
    path = written(tmp_path, policy)
    for kind in (InitialiseParams, RolloutParams, UpdateParams, params.RegisterParams):
        with pytest.raises(UserError, match=f"policy.kind: {policy['kind']} can be evaluated only"):
            params.load(path, kind)
    for other in (EvaluateParams, ScoreParams, params.ScenariosParams):
        params.load(path, other)


def evaluated(folder: Path, policy: dict[str, Any], **more: Any) -> Evaluation:
    _, _, attempts = task("multiplication", 8)
    (folder / "scenarios").mkdir(exist_ok=True)
    write_records([scenario for scenario, _ in attempts], folder / "scenarios" / "test.parquet")
    stage.run(
        evaluate.evaluate,
        {
            "task_data": ROOT / "tasks_data" / "multiplication",
            "scenarios": folder / "scenarios",
            "evaluation": folder / "out",
            "params": written(folder, policy),
            "split": "test",
            **more,
        },
    )
    return Evaluation.model_validate_json((folder / "out" / "summary.json").read_text())


@pytest.mark.parametrize(("kind", "success"), [("scripted", 1.0), ("random", 0.0)])
def test_evaluate_without_an_adapter(tmp_path: Path, kind: str, success: float) -> None:
    summary = evaluated(tmp_path, {"kind": kind})
    assert (summary.success, summary.n, summary.adapter_hash, summary.turns, summary.tokens) == (success, 8, kind, 1, 0)
    first = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    evaluated(tmp_path, {"kind": kind})
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == first


def test_evaluate_a_model_behind_a_server(tmp_path: Path) -> None:
    """Right at six of eight, and twelve tokens each by the server's count."""
    _, _, attempts = task("multiplication", 8)
    answers = {scenario.messages[-1]["content"]: scenario.data["answer"] for scenario, _ in attempts}
    wrong = list(answers)[:2]

    def answer(body: Body) -> str:
        return "It is 1" if last(body) in wrong else f"It is {answers[last(body)]}"

    with Server(answer, usage=(40, 12)) as server:
        summary = evaluated(tmp_path, {"kind": "openai", "endpoint": {"model": "big", "base_url": server.url}})
        assert (summary.success, summary.tokens, summary.reward) == (0.75, 12.0, 0.5)
        assert summary.adapter_hash == "big"
        first = {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}
    evaluated(tmp_path, {"kind": "openai", "endpoint": {"model": "big", "base_url": server.url}})  # it is gone
    assert {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()} == first
    rewards = read_records(Reward, tmp_path / "out" / "rewards.parquet")
    assert [reward.success for reward in rewards].count(False) == 2


def test_vllm_needs_its_adapter(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"--adapter is needed with policy.kind: vllm"):
        evaluated(tmp_path, {})


def test_a_model_on_a_server_is_shown_a_scenarios_pictures() -> None:
    from tests.support.seeing import Colours

    def answer(body: Body) -> Answer:
        return ",".join(part["type"] for part in body["messages"][0]["content"])

    with Server(answer) as server:
        policy = players.on_server(Endpoint(base_url=server.url, model="m"))
        [scenario] = Colours.scenarios(None, "val", 1, 0)
        [played] = players.play(policy, Colours, None, [(scenario, 0)], prefix="p")
    assert played.trajectory.turns[0].message["content"] == "text,image_url,text"
    assert not played.trajectory.pictures
