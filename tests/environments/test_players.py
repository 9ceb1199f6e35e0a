"""Players are optional: what a task without them can do, and what is said where one is missing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

import environments
from addons.models import baselines, players, token_bias
from addons.supervised import teach
from addons.supervised.small_policy import small_policy
from addons.supervised.solve import Solver
from benchmarks import environments as speed
from benchmarks import hacks
from environments.base import Component, Env, Message, is_error, use, words
from environments.kit.mixed import mixed
from environments.kit.players import BRINGS, NoPlayer
from environments.multiplication import Multiplication
from flows.promotion.judging import has_script
from steps.core.errors import UserError
from steps.core.params import Evaluate, Policy
from steps.sampling.job import Job
from tests.conftest import ROOT
from tests.environments import test_environments as contract
from tests.support.bare import Bare
from tests.support.capitals import CapitalsTask

NAME = "tests.support.bare"
SENTENCE = "tests.support.bare has no scripted player, which would bring demonstrations that cost nothing, and "
SCENARIOS = Bare.scenarios(range(300), "val", 6, 1)
CHECKS = [
    check
    for name, check in vars(contract).items()
    if name.startswith("test_") and list(inspect.signature(check).parameters) == ["task"]
]


def turns(*made: Message) -> list[Message]:
    """The transcript of an episode of the first scenario."""
    env, messages = Bare(SCENARIOS[0], range(300)), [*SCENARIOS[0].messages]
    for message in made:
        messages += [message, *env.step(message)]
    return messages


RIGHT = use("say", number=SCENARIOS[0].data["number"] + 1)


# --- Success from the reward, and the reward from success


def test_where_only_success_is_defined_the_reward_is_one_or_nothing() -> None:
    for messages, value in ((turns(RIGHT), 1.0), (turns(use("say", number=-1)), 0.0), (turns(words("?")), 0.0)):
        [part] = Bare.components(SCENARIOS[0], messages)
        assert (part.value, Bare.success(SCENARIOS[0], messages)) == (value, value == 1.0)


@pytest.mark.parametrize(
    ("reward", "success"),
    [
        (0.0, False),
        (-0.5, False),
        (0.2, True),
        ([], False),
        ([Component("a", 0.1, "a"), Component("b", 0.2, "b"), Component("c", -0.3, "c")], False),
        ([Component("a", 1.0, "a"), Component("b", -0.1, "b")], True),
    ],
)
def test_where_only_the_reward_is_defined_success_is_one_above_0(reward: Any, success: bool) -> None:
    class Rewarded(Env):
        """Its abstract methods are not needed here."""

    Rewarded.reward = classmethod(lambda cls, scenario, messages: reward)  # pyrefly: ignore[bad-assignment]
    assert Rewarded.success(SCENARIOS[0], turns()) is success


OWN = "from environments.base import Env\n\n\nclass Own(Env):\n    max_turns = 3\n"
RULE = "    @classmethod\n    def {}(cls, scenario, messages):\n        return True\n"


@pytest.mark.parametrize(
    ("rule", "lacking"),
    [("", "load, scenarios, reward or success"), ("reward", "load, scenarios"), ("success", "load, scenarios")],
)
def test_a_task_that_defines_too_little_is_refused(
    rule: str, lacking: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = f"little_{rule}"
    (tmp_path / package).mkdir()
    (tmp_path / package / "own.py").write_text(OWN + (RULE.format(rule) if rule else ""))
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match=rf"Own does not define {lacking}; see environments/_template\.py"):
        environments.load(f"{package}.own")


# --- Players


def test_a_task_says_which_players_it_has() -> None:
    assert environments.load(NAME) is Bare
    assert [player for player in BRINGS if Bare.has_player(player)] == ["random"]
    assert all(Multiplication.has_player(player) for player in BRINGS)
    agent = environments.load("_agent_template")
    assert not any(agent.has_player(player) for player in BRINGS)
    assert agent.lacks("gold") == "_agent_template is an agent of your own, which has no players"
    both = mixed({"bare": Bare, "multiplication": Multiplication}.__getitem__, ["bare", "multiplication"])
    assert [player for player in BRINGS if both.has_player(player)] == ["random"]
    assert both.lacks("scripted").startswith(SENTENCE)
    for player in ("scripted", "gold", "bad"):
        with pytest.raises(NoPlayer, match=f"^tests.support.bare has no {player} player, which would bring "):
            Bare(SCENARIOS[0], range(300)).play(player)


def test_the_random_player_needs_no_code() -> None:
    """It makes calls that fit their schemas, with words that it has read, and speaks only where the task listens."""
    numbers = {
        Bare(SCENARIOS[0], range(300)).random([], Random(seed))["tool_calls"][0]["function"]["arguments"]["number"]
        for seed in range(30)
    }
    assert len(numbers) > 5
    data = CapitalsTask.load(ROOT / "tasks_data" / "_template")
    [scenario] = CapitalsTask.scenarios(data, "val", 1, 1)

    class Quiet(CapitalsTask):
        look_up, answer, random = CapitalsTask.look_up, CapitalsTask.answer, Env.random

    class Listening(Quiet):
        look_up, answer = CapitalsTask.look_up, CapitalsTask.answer

        def hear(self, text: str) -> list[Message]:
            return []

    seen: list[Message] = [message for seed in range(20) for message in Quiet(scenario, data).play("random", seed)]
    errors = [message["content"] for message in seen if is_error(message)]
    assert set(errors) <= {"Error: there is no country of this name; look up another."}
    assert any(message["content"].startswith("The capital of") for message in seen if message["role"] == "tool")
    assert all(message["content"] == "" for message in seen if message["role"] == "assistant")
    assert Quiet(scenario, data).play("random", 3) == Quiet(scenario, data).play("random", 3)
    heard = [message for seed in range(20) for message in Listening(scenario, data).play("random", seed)]
    assert any(message["content"] for message in heard if message["role"] == "assistant")


@pytest.mark.parametrize("check", CHECKS)
def test_the_contract_holds_for_a_task_without_players(check: Callable[..., None], tmp_path: Path) -> None:
    """What needs a player says which, and what it would bring."""
    task = contract.Task(NAME, Bare, tmp_path)
    needs = {
        contract.test_gold_succeeds_and_beats_bad: "gold",
        contract.test_the_scripted_player_sees_what_the_policy_sees: "scripted",
    }
    if check in needs:
        with pytest.raises(pytest.skip.Exception, match=f"no {needs[check]} player, which would bring "):
            check(task)
    else:
        check(task)


def test_there_are_checks() -> None:
    assert len(CHECKS) > 15


def test_a_gold_player_alone_is_checked(tmp_path: Path) -> None:
    def wrong(self: Env, messages: Sequence[Message], rng: Random) -> Message:
        return use("say", number=-1)

    made = type("Wrong", (Bare,), {"say": Bare.say, "gold": wrong, "__module__": NAME})
    with pytest.raises(AssertionError):
        contract.test_gold_succeeds_and_beats_bad(contract.Task(NAME, made, tmp_path))


# --- What needs a player says so


def sentence(work: Callable[[], object]) -> str:
    with pytest.raises((UserError, SystemExit)) as raised:
        work()
    return str(raised.value)


def test_commands_that_need_a_player_name_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "taught.jsonl"
    taught = ["--task", NAME, "--out", str(out), "--scripted", "--count", "2"]
    assert sentence(lambda: teach.run(teach.parse(taught))).startswith(f"--scripted: {SENTENCE}")
    assert not out.exists()
    pairs = [(scenario, 0) for scenario in SCENARIOS]
    play = lambda kind: players.play(Policy(kind=kind), Bare, range(300), pairs, prefix="val")  # noqa: E731
    assert sentence(lambda: play("scripted")).startswith(SENTENCE)
    assert len(play("random")) == len(pairs)
    build = lambda shares: small_policy(tmp_path, tmp_path / "policy", NAME, shares)  # noqa: E731
    assert sentence(lambda: build("scripted=0.5 random=0.5")).startswith(f"--players: {SENTENCE}")
    assert sentence(lambda: hacks.measure(NAME, 2)).startswith(SENTENCE)
    assert speed.measure(NAME, 0.01)["steps_per_second"] > 0
    assert not has_script(NAME)
    assert has_script("multiplication")


def test_baselines_leave_a_missing_player_out_unless_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    given = ["--task", NAME, "--count", "4", "--run", str(tmp_path)]
    assert baselines.main(given) == 0
    shown = capsys.readouterr()
    assert "random" in shown.out
    assert SENTENCE in " ".join((shown.out + shown.err).split())
    assert baselines.main([*given, "--players", "scripted"]) == 2
    assert SENTENCE in " ".join(capsys.readouterr().err.split())


def test_references_are_without_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    class Biased:
        def __init__(self, *_: object) -> None: ...
        def choose(self, held_out: object) -> None: ...
        def success(self, held_out: object, bias: object) -> float:
            return 0.5

    monkeypatch.setattr(token_bias, "BiasedPolicy", Biased)
    told: list[str] = []
    monkeypatch.setattr(token_bias, "say", told.append)
    job = Job(Policy(), Evaluate(), None, Bare, [], "val", 0, range(300))
    made = token_bias.references(job, SCENARIOS)
    assert made == {"base with the best bias on a token": 0.5}
    assert told[0].startswith(f"evaluate.references: {SENTENCE}")


def test_scenarios_that_nobody_can_solve_are_not_refused() -> None:
    solver = Solver(Bare, range(300), None)
    assert solver(SCENARIOS) == {}
    assert solver.how.startswith(f"not checked: name a model with --solver; {SENTENCE}")
    assert Solver(Multiplication, None, None).how == "checked by the task's own `accept`"
