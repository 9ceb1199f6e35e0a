"""What all tasks share: seeds, splits, players, rewards, errors, secrets, rendering, and answers to malformed turns.

    pytest tests/environments/test_environments.py                 # every task of environments/, its template, and OWN
    pytest tests/environments/test_environments.py --task my_task  # one task; a dotted module works, too

Each check is held to a broken task at the end of this file. What is a task's own (is this the right reward?) stands in
tests/test_<task>.py.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import math
import re
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

import pytest

import environments
from benchmarks.environments import random_plays
from benchmarks.environments import replay as replay_plays
from environments import _new, tasks
from environments.base import Component, Env, Message, Scenario, Split, error, is_error, tool, tool_calls, use
from environments.kit.values import truth
from flows.repro.parameters import check_task
from steps.policy.chat import Chat
from tests.conftest import ROOT
from tests.support.capitals import CapitalsTask

SPLITS: tuple[Split, ...] = ("train", "val", "test")
PLAYERS = ("scripted", "random", "gold", "bad")
EACH = 4  # scenarios of a split that are played
OUTPUTS = 60  # malformed turns of each of our tasks; by night 500
OUTPUTS_OF_ONE = 200  # of a task that is checked by itself
HANGS = 5.0  # seconds: a thousand times what a turn should take
LONGEST_ERROR = 5_000  # characters
LOW, HIGH = -5, 5  # rewards: groups of any task are comparable in size
PACKAGED = (  # one task of each package; more of them: docs/environments.md
    "gymnasium:FrozenLake-v1",
    "pettingzoo:tictactoe_v3",
    "reasoning_gym:chain_sum",
    "textarena:TowerOfHanoi-v0",
)
# A task of a user's, as an earlier `make new-task` wrote it: with players, a reward of parts, and an outcome.
OWN = {"tests.support.capitals": _new.TEMPLATE}
SLOW = {"code_repair"}  # a call starts a process: most malformed turns are made such that it is refused before
# Scenarios of a split, where gold thinks for seconds, a call takes long, or a game is played to its end to be found.
FEWER = {"code_repair": 2, "game_2048_whole": 1, "pettingzoo:tictactoe_v3": 2}
LONG = {"game_2048_whole"}  # by night


class Task:
    """A task, its data, a few scenarios of each split, and what its players made of them."""

    def __init__(self, name: str, env: type[Env], folder: Path) -> None:
        self.name, self.env, self.folder = name, env, folder
        self.data = env.load(folder)
        self.each = FEWER.get(name, EACH)
        self.scenarios = [one for split in SPLITS for one in env.scenarios(self.data, split, self.each, 7)]
        self.players = [player for player in PLAYERS if env.has_player(player)]
        self._plays: dict[tuple[str, str, int], tuple[list[Message], Env]] = {}
        self._drawn: dict[tuple[Split, int], list[Scenario]] = {}

    def start(self, scenario: Scenario) -> Env:
        if self.env.is_agent:
            pytest.skip(
                f"{self.name} is an agent of your own, which has no tools and players here; it has a test of its own"
            )
        return self.env(scenario, self.data)

    def drawn(self, split: Split, seed: int) -> list[Scenario]:
        """Three times as many scenarios as are played, or fewer where a small task has no more."""
        if (split, seed) not in self._drawn:
            self._drawn[split, seed] = self._draw(split, seed)
        return self._drawn[split, seed]

    def _draw(self, split: Split, seed: int) -> list[Scenario]:
        for count in (3 * self.each, 2 * self.each):
            with contextlib.suppress(ValueError):
                return self.env.scenarios(self.data, split, count, seed)
        return self.env.scenarios(self.data, split, self.each, seed)

    def play(self, player: str, scenario: Scenario, seed: int = 0) -> tuple[list[Message], Env]:
        """The transcript, and the environment as it was left. The test is skipped where the task has no such player."""
        key = (player, scenario.id, seed)
        if key not in self._plays:
            env = self.start(scenario)
            if not env.has_player(player):
                pytest.skip(env.lacks(player))
            self._plays[key] = env.play(player, seed), env
        return self._plays[key]

    def all_plays(self) -> Iterator[tuple[str, Scenario, list[Message], Env]]:
        for scenario in self.scenarios:
            for player in self.players or PLAYERS:
                yield player, scenario, *self.play(player, scenario)

    def best(self, scenario: Scenario) -> list[Message]:
        """The transcript of the best player that the task has."""
        return self.play(next(player for player in ("gold", "scripted", "random") if player in self.players), scenario)[
            0
        ]

    def chat(self, tokenizer: Any) -> Chat:
        return Chat(tokenizer, [tool.schema for tool in self.env.tools().values()])


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "task" in metafunc.fixturenames:
        by_night = [pytest.param(name, marks=pytest.mark.nightly) for name in sorted(LONG)]
        shorter = [name for name in tasks(agents=False) if name not in LONG]
        own = metafunc.config.getoption("--task")
        chosen = own or ["_template", *OWN, *shorter, *PACKAGED, *by_night]
        metafunc.parametrize("task", chosen, indirect=True, scope="module")
        if "count" in metafunc.fixturenames:
            more = pytest.param(500, marks=pytest.mark.nightly)
            metafunc.parametrize("count", [OUTPUTS_OF_ONE if own else OUTPUTS, more], indirect=True)


@pytest.fixture(scope="module")
def task(request: pytest.FixtureRequest) -> Task:
    name: str = request.param
    if not name.startswith("_"):
        check_task(name)
    places = [ROOT / environments.data_of(name), ROOT / "tasks_data" / name.rpartition(".")[2]]
    folder = next((place for place in places if place.is_dir()), places[0])
    return Task(name, environments.load(name), OWN.get(name, folder))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Of the embedded policy: its chat template is Qwen's. Its class is named, because finding it takes five seconds."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(ROOT / "tasks_data" / "embedded_policy")


# --- Scenarios


def test_the_same_seed_gives_the_same_scenarios(task: Task) -> None:
    for split in SPLITS:
        first, again, other = (task.env.scenarios(task.data, split, task.each, seed) for seed in (1, 1, 2))
        assert first == again
        assert [one.id for one in first] != [one.id for one in other]
        assert len({one.id for one in first}) == task.each
        assert all(one.split == split for one in first)


def test_scenarios_are_named_by_their_content_and_can_be_stored(task: Task) -> None:
    for one in task.scenarios:
        assert one.task in (task.name, task.name.rpartition(".")[2])
        assert one == Scenario.make(one.task, one.split, one.messages, one.data)
        assert one == Scenario.model_validate_json(one.model_dump_json())
        assert [message["role"] for message in one.messages] in (["user"], ["system", "user"])
        assert all(isinstance(message["content"], str) and message["content"] for message in one.messages)
        assert isinstance(one.data.get("kind", ""), str)
        assert one.data.get("difficulty", 1) in range(1, 6)


def test_splits_share_nothing(task: Task) -> None:
    made_by_split = [task.drawn(split, seed) for split in SPLITS for seed in (1, 2)]
    for what in (lambda one: one.id, lambda one: json.dumps([one.messages, one.data], sort_keys=True)):
        train, val, test = (
            {what(one) for one in made_by_split[at] + made_by_split[at + 1]} for at in range(0, len(made_by_split), 2)
        )
        assert not train & val
        assert not train & test
        assert not val & test


def test_alike_scenarios_are_of_one_split(task: Task) -> None:
    """Clusters are whole: what the split is made by makes scenarios alike, or something coarser."""
    names = [
        {task.env.cluster(one, task.data) for seed in (1, 2) for one in task.drawn(split, seed)} for split in SPLITS
    ]
    assert all(isinstance(name, str) for of_split in names for name in of_split)
    assert sum(map(len, names)) == len(set().union(*names))


def test_asking_for_too_many_scenarios_says_how_many_there_are(task: Task) -> None:
    with within(60, "scenarios"), pytest.raises(ValueError, match=r"\d"):
        task.env.scenarios(task.data, "test", 10**9, 1)


def test_missing_data_is_named(task: Task, tmp_path: Path) -> None:
    if task.folder.is_dir() and any(path.is_file() for path in task.folder.iterdir()):
        with pytest.raises(FileNotFoundError) as raised:
            task.env.load(tmp_path)
        assert any(path.name in str(raised.value) for path in task.folder.iterdir())


def test_data_made_for_practice_are_the_seeds_and_not_the_tasks(task: Task) -> None:
    made = [task.env.practice(task.data, seed) for seed in (1, 1, 2)]
    if made[0] is None:
        return
    first, again, other, own = (task.env.scenarios(data, "train", task.each, 7) for data in (*made, task.data))
    assert first == again
    ids = [{one.id for one in scenarios} for scenarios in (first, other, own)]
    assert len(set.union(*ids)) > 2 * task.each, "they may have some of the task's own among them"
    for one in first:
        episode = task.env(one, made[0])
        if episode.has_player("gold"):
            assert task.env.success(one, episode.play("gold"))


# --- Players and rewards


def test_gold_succeeds_and_beats_bad(task: Task) -> None:
    plays = [(one, task.play("gold", one)[0]) for one in task.scenarios]
    for one, gold in plays:
        assert task.env.success(one, gold), gold
    for one, gold in plays:
        bad, _ = task.play("bad", one)
        assert not task.env.success(one, bad), bad
        assert total(task, one, gold) > total(task, one, bad), (gold, bad)


def test_gold_is_paid_more_than_random_play(task: Task) -> None:
    """On average: a reward that is the wrong way round pays play without skill more, or as much."""
    means = {}
    for player in ("gold", "random"):
        sums = [total(task, one, task.play(player, one)[0]) for one in task.scenarios]
        means[player] = sum(sums) / len(sums)
    assert means["gold"] > means["random"], means


def test_every_episode_ends(task: Task) -> None:
    for player, _, messages, env in task.all_plays():
        turns = sum(message["role"] == "assistant" for message in messages)
        assert env.done or turns == env.max_turns, player
        assert 1 <= turns <= env.max_turns, player


def test_players_make_well_formed_calls(task: Task) -> None:
    malformed = re.compile(r"Error: (wrong arguments for|there is no tool named|the arguments of|no tool was called)")
    for player, _, messages, _ in task.all_plays():
        if player != "bad":
            assert not [one for one in messages if one["role"] == "tool" and malformed.match(one["content"])], player


def test_the_scripted_player_sees_what_the_policy_sees(task: Task) -> None:
    """With another scenario's hidden data, it makes the same turns of the same transcript."""
    for one, other in zip(task.scenarios, task.scenarios[1:], strict=False):
        messages, _ = task.play("scripted", one)
        here, there = Random(1), Random(1)
        env, misled = task.start(one), task.start(one.model_copy(update={"data": other.data}))
        for at, message in enumerate(messages):
            if message["role"] == "assistant" and at < 12:  # some think for long
                assert env.scripted(messages[:at], here) == misled.scripted(messages[:at], there)


def total(task: Task, scenario: Scenario, messages: Sequence[Message]) -> float:
    return sum(part.value for part in task.env.components(scenario, messages))


def test_rewards_are_bounded_named_and_say_why(task: Task) -> None:
    for player, one, messages, _ in task.all_plays():
        before = json.dumps(messages)
        ends = range(len(one.messages), len(messages) + 1)  # also where the context or a turn's tokens ran out
        for end in {*ends[-4:], *ends[:: max(1, len(ends) // 8)]}:
            parts = task.env.components(one, messages[:end])
            truth(task.env.success(one, messages[:end]), "success")
            assert all(part.name and part.why for part in parts), parts
            assert len({part.name for part in parts}) == len(parts), "of two parts of one name, one would be lost"
            assert LOW <= sum(part.value for part in parts) <= HIGH, (player, parts)
        assert not task.env.success(one, one.messages)
        stored = Scenario.model_validate_json(one.model_dump_json())
        assert task.env.components(stored, json.loads(before)) == task.env.components(one, messages)
        assert json.dumps(messages) == before


# --- Episodes


def replay(env: Env, messages: Sequence[Message]) -> Iterator[list[Message]]:
    """What the turns of a transcript are answered with here, a turn at a time."""
    for message in messages:
        if message["role"] == "assistant":
            yield env.step(message)


def answers(scenario: Scenario, messages: Sequence[Message]) -> list[Message]:
    return [message for message in messages[len(scenario.messages) :] if message["role"] != "assistant"]


def test_the_same_calls_give_the_same_observations(task: Task) -> None:
    for _, one, messages, env in task.all_plays():
        fresh = task.start(one)
        assert [message for turn in replay(fresh, messages) for message in turn] == answers(one, messages)
        assert fresh.done == env.done


def test_two_episodes_share_nothing(task: Task) -> None:
    """Two attempts at a scenario and one at another, a turn each in turn, go as they went alone."""
    for one, other in zip(task.scenarios, task.scenarios[1:], strict=False):
        alone = [
            (one, task.play("random", one)[0]),
            (one, task.best(one)),
            (other, task.play(task.players[-1], other)[0]),
        ]
        running: list[tuple[Iterator[list[Message]], list[Message]]] = [
            (replay(task.start(scenario), messages), []) for scenario, messages in alone
        ]
        going = list(running)
        while going:
            going = [(turns, seen) for turns, seen in going if not _take(turns, seen)]
        for (scenario, messages), (_, seen) in zip(alone, running, strict=True):
            assert seen == answers(scenario, messages)


def _take(turns: Iterator[list[Message]], seen: list[Message]) -> bool:
    """Whether there was no further turn."""
    turn = next(turns, None)
    seen += turn or []
    return turn is None


def test_the_benchmark_counts_the_turns_that_random_took(task: Task) -> None:
    task.start(task.scenarios[0])  # an agent of your own is left out
    plays = random_plays(task.env, task.data, task.scenarios)
    assert [turns for _, turns in plays] == [
        [message for message in task.play("random", one)[0] if message["role"] == "assistant"] for one in task.scenarios
    ]
    assert replay_plays(task.env, task.data, plays[:2]) == len(plays[0][1]) + len(plays[1][1])


def wrong_calls(task: Task) -> list[tuple[str, Any]]:
    """An unknown tool, and for each tool arguments that are no object, of wrong types, missing and unknown."""
    calls: list[tuple[str, Any]] = [("no_such_tool", {}), ("", {}), ("step", {"message": {}}), ("__init__", {})]
    for name, known in task.env.tools().items():
        parameters = known.schema["function"]["parameters"]
        right = example(task, name)
        calls += [(name, value) for value in ("text", 5, None, True, [], [right])]
        calls += [(name, right | {"no_such_argument": 1})]
        calls += [(name, right | {argument: {"of": "wrong type"}}) for argument in parameters["properties"]]
        calls += [
            (name, {key: value for key, value in right.items() if key != missing}) for missing in parameters["required"]
        ]
    return calls


def example(task: Task, name: str) -> dict[str, Any]:
    """Arguments of a tool that are of the right types."""
    parameters = task.env.tools()[name].schema["function"]["parameters"]
    return {key: example_value(parameters["properties"][key]) for key in parameters["required"]}


def example_value(schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    if schema["type"] == "array":
        return [example_value(schema["items"])]
    return {"string": "word", "integer": 1, "number": 1.5, "boolean": True}[schema["type"]]


def test_errors_are_observations_and_change_nothing(task: Task) -> None:
    for one in task.scenarios[:3]:
        env = task.start(one)
        for name, arguments in wrong_calls(task):
            text = env.call(name, arguments)
            assert text.startswith("Error: "), (name, arguments, text)
            assert text.endswith("."), text
            assert not env.done, (name, arguments)
        messages = task.best(one)
        assert [message for turn in replay(env, messages) for message in turn] == answers(one, messages)


def test_problems_are_answered(task: Task) -> None:
    """A turn whose only call could not be read goes on, with one error."""
    env = task.start(task.scenarios[0])
    [answer] = env.step({"role": "assistant", "content": "<tool_call>{"}, ["the call was cut"])
    assert is_error(answer)
    assert not env.done


# --- Secrets: what a task's `secret` names of a scenario's data (by default its answer). Its `shown` names the tools whose
# job it is to show what holds it, as a search shows mails.


def texts(value: Any) -> set[str]:
    """All texts in a value that are long enough not to occur by chance."""
    if isinstance(value, str):
        return {value} if len(value) > 3 else set()
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return {text for part in parts for text in texts(part)}


def holds(content: Any, secret: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(secret)}(?!\w)", str(content), re.IGNORECASE) is not None


def secrets(task: Task, scenario: Scenario) -> set[str]:
    return texts([scenario.data.get(field) for field in task.env.secret])


def test_the_question_does_not_hold_the_answer(task: Task) -> None:
    for split in SPLITS:
        for one in task.drawn(split, 2):
            for secret in texts(one.data.get("answer")) | secrets(task, one):
                assert not [message for message in one.messages if holds(message["content"], secret)], secret


def test_tools_do_not_leak(task: Task) -> None:
    """Nor do the schemas. What the policy said itself is no leak, nor what it is told when all is over."""
    schemas = json.dumps([known.schema for known in task.env.tools().values()], ensure_ascii=False)
    for one in task.scenarios:
        secret_texts = secrets(task, one)
        assert not [text for text in secret_texts if holds(schemas, text)]
        for seed in range(3):
            messages, env = task.play("random", one, seed)
            last = max(at for at, message in enumerate(messages) if message["role"] == "assistant")
            said = json.dumps([message for message in messages if message["role"] == "assistant"], ensure_ascii=False)
            for at, message in enumerate(messages[len(one.messages) :], len(one.messages)):
                if message["role"] == "assistant" or message.get("name") in task.env.shown or (env.done and at > last):
                    continue
                leaked = [text for text in secret_texts if holds(message["content"], text) and not holds(said, text)]
                assert not leaked, message


# --- Through the chat template


def test_every_transcript_is_rendered_and_read_back(task: Task, tokenizer: Any) -> None:
    chat = task.chat(tokenizer)
    for one in task.scenarios:
        asked = tokenizer.decode(chat.prompt_ids(one.messages))
        assert all(message["content"] in asked for message in one.messages)
        for player in task.players:
            messages, _ = task.play(player, one)
            heard: list[Message] = []
            for message in [*messages[len(one.messages) :], {"role": "assistant", "content": "end"}]:
                if message["role"] != "assistant":
                    assert message["role"] in ("tool", "user")
                    assert isinstance(message["content"], str)
                    heard.append(message)
                    continue
                if heard:
                    suffix = tokenizer.decode(chat.suffix_ids(heard))
                    assert all(part["content"] in suffix for part in heard if "<" not in part["content"])
                    heard = []
                ids = chat.completion_ids(message)
                assert ids.index(chat.end) == len(ids) - 1
                read, problems = chat.parse(ids)
                assert problems == []
                assert read.get("tool_calls") == message.get("tool_calls"), message
                if not message.get("tool_calls"):
                    assert read["content"] == message["content"]


# --- Malformed turns

CONTROL = "\0 \a \x1b[31m a\rb \u2028 \ufeff \u202e \ud800 \udfff\ud800"
SCRIPTS = "日本語 עברית العربية ٣ ² ½ Ⅷ \U0001d518\U0001d52b e\u0301 \u0130\u0131\u017f \N{WOMAN}\u200d\N{GIRL}"
TAGS = "<tool_call> </tool_call> <|im_end|> <|im_start|>system <tool_response> </tool_response> </tools> <|endoftext|>"
WORDS = (
    "- -- None nan 1e999 Error: '; \" \\ * NEAR( % {0} %s ../../../secret ~ 2001-02-31 0000-00-00 -0 0x10 1_000 a,b|c;d"
)
TEXTS = (
    "",
    " ",
    "\n\n",
    " 7 ",
    "9" * 400,
    "\N{WOMAN}\u200d\N{WOMAN}\u200d\N{GIRL}",
    *f"{CONTROL} {SCRIPTS} {TAGS} {WORDS}".split(" "),
)
NUMBERS = (0, -1, 10**6, -(10**30), 10**400, 2**63, 0.5, -0.0, 1e308, True, False, None)


def junk(rng: Random, depth: int = 3) -> Any:
    """Any JSON value."""
    kind = rng.random()
    if kind < 0.5 or depth == 0:
        return rng.choice(TEXTS) * rng.choice((1, 1, 1, 30))
    if kind < 0.75:
        return rng.choice(NUMBERS)
    if kind < 0.9:
        return [junk(rng, depth - 1) for _ in range(rng.randrange(5))]
    return {rng.choice(TEXTS): junk(rng, depth - 1) for _ in range(rng.randrange(4))}


Call = tuple[str, dict[str, Any]]


def written(call: object, rng: Random) -> str:
    """JSON; letters beyond ASCII escaped or not, but lone surrogates always: no text holds them otherwise."""
    text = json.dumps(call, ensure_ascii=rng.random() < 0.5)
    return text if not re.search("[\ud800-\udfff]", text) else json.dumps(call)


def spoiled(call: Call, rng: Random, value: Any = None, *, refused: bool = False) -> dict[str, Any]:
    """A call with junk, or the value given, for one argument; `refused`: such that the tool itself does not run."""
    name, arguments = call
    put = junk(rng) if value is None else value
    key = rng.choice([*arguments, "argument"]) if not arguments or rng.random() < 0.05 else rng.choice([*arguments])
    was = arguments.get(key)
    changed = arguments | {key: [put] if isinstance(was, list) and rng.random() < 0.7 else put}
    return {"name": name, "arguments": changed | ({"no_such_argument": 1} if refused else {})}


def malformed(kind: str, call: Call, rng: Random, refused: bool) -> str:
    """A turn's text. Most are one call between its tags with something wrong in it."""
    name, arguments = call
    right = json.dumps({"name": name, "arguments": arguments | ({"no_such_argument": 1} if refused else {})})
    level = rng.choice((40, 60, 1000))
    match kind:
        case "truncated":
            return f"<tool_call>\n{right[: rng.randrange(len(right))]}" + rng.choice(("", "\n</tool_call>"))
        case "value":
            body = written(spoiled(call, rng, refused=refused), rng)
        case "arguments":
            body = written(
                {"name": name, "arguments": rng.choice((junk(rng), json.dumps(arguments), [arguments]))}, rng
            )
        case "name":
            odd = rng.choice((junk(rng), name.upper(), f" {name}", f"{name}\0", "__init__", "step", "hear", "done"))
            body = written({"name": odd, "arguments": arguments}, rng)
        case "shape":
            body = written(
                rng.choice((junk(rng), [right], {"name": name}, {"arguments": {}}, {**arguments}, right)), rng
            )
        case "huge":
            text = (rng.choice(("a", "a ", "é", "日", "9", "-", "\n", "(", '"', "<tool_call>", "=")) * 100_000)[
                :100_000
            ]
            spoilt = spoiled(call, rng, rng.choice((text, [text[:5]] * 20_000)), refused=refused)
            body = written(rng.choice((spoilt, spoilt, {"name": name, "arguments": {**arguments, text: 1}})), rng)
        case "nested":
            opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
            deep = opening * level + "1" + closing * level
            body = rng.choice((deep, f'{{"name": "{name}", "arguments": {deep}}}', right.replace("{}", deep)))
            if arguments:
                key = json.dumps(rng.choice([*arguments]))
                body = rng.choice((body, f'{{"name": "{name}", "arguments": {{{key}: {deep}}}}}'))
        case "number":
            number = rng.choice(
                ("NaN", "Infinity", "-Infinity", "1e999", "-1e999", "9" * 4000, "9" * 5000, "1.", "01", "-")
            )
            keys = [*arguments] or ["argument"]
            body = f'{{"name": "{name}", "arguments": {{{json.dumps(rng.choice(keys))}: {number}}}}}'
        case "twice":
            body = right[:-1] + rng.choice(
                (', "name": ""}', ', "name": 5}', ', "arguments": {}}', ', "arguments": null}')
            )
        case "many":
            fine = f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>" * rng.randrange(3)
            bad = rng.choice(
                ('{"name": "x", "arguments": {}}', '{"name": "", "arguments": 0}', "{", right[:-1] + ', "name": 0}')
            )
            return fine + f"<tool_call>{bad}</tool_call>" * 2000
        case "tags":
            parts = (
                "<tool_call>",
                "</tool_call>",
                "<tool_response>",
                "<|im_end|>",
                "<|im_start|>",
                right,
                "\n",
                "words",
                "{",
            )
            return "".join(rng.choices(parts, k=rng.randrange(1, 12)))
        case "words":
            return rng.choice((str(junk(rng, 0)), " ".join(rng.choices(TEXTS, k=20)))).encode(errors="ignore").decode()
        case _:
            raise ValueError(kind)
    if rng.random() < 0.1:
        body = body.replace('"', rng.choice(("'", "“", "")))
    return f"{rng.choice(('', '', 'I think. '))}<tool_call>\n{body}\n</tool_call>"


KINDS = ("truncated", "value", "arguments", "name", "shape", "nested", "number", "twice", "tags", "words", "value")
HEAVY = ("huge", "many")  # long to read whatever the task


def outputs(task: Task, seed: int, count: int) -> Iterator[tuple[str, str]]:
    """(kind, text) of so many malformed turns."""
    rng = Random(f"{task.name} {seed}")
    known: list[Call] = [
        (name, arguments)
        for _, _, messages, _ in task.all_plays()
        for name, arguments, _ in tool_calls(messages)
        if name in task.env.tools()
    ]
    known += [(name, example(task, name)) for name in task.env.tools() for _ in range(1 + len(known) // 4)]
    known = known or [("answer", {"text": "word"})]
    kinds = [kind for kind in HEAVY for _ in range(3 if count > OUTPUTS else 1)]
    kinds += [KINDS[at % len(KINDS)] for at in range(count - len(kinds))]
    rng.shuffle(kinds)
    for kind in kinds:
        refused = task.name in SLOW and (kind in HEAVY or rng.random() < 0.9)
        yield kind, malformed(kind, rng.choice(known), rng, refused)


@contextlib.contextmanager
def within(seconds: float, what: str) -> Iterator[None]:
    """Fail where the block takes longer. The timer that pytest-timeout has running goes on behind it."""

    def ring(signum: int, frame: FrameType | None) -> None:
        pytest.fail(f"no end after {seconds} s: {what[:300]!r}")  # no Exception, which the block might catch

    began = time.monotonic()
    handler = signal.signal(signal.SIGALRM, ring)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(0.01, left - (time.monotonic() - began)))


def check_observations(observations: list[Message], env: Env, what: str) -> None:
    assert observations or env.done, f"no answer, and no end: {what[:300]!r}"
    for message in observations:
        assert message["role"] in ("tool", "user")
        assert isinstance(message["content"], str)
        message["content"].encode()  # no lone surrogates
        assert not is_error(message) or len(message["content"]) <= LONGEST_ERROR, (
            f"{message['content'][:300]}: {what[:300]!r}"
        )


@pytest.fixture
def count(request: pytest.FixtureRequest) -> int:
    return int(getattr(request, "param", OUTPUTS))


def test_malformed_turns_are_answered(task: Task, tokenizer: Any, count: int) -> None:
    chat = task.chat(tokenizer)
    env, turns, started = task.start(task.scenarios[0]), 0, 1
    number = 0
    for number, (kind, text) in enumerate(outputs(task, 1, count), 1):
        ids = tokenizer.encode(text, add_special_tokens=False, verbose=False)
        with within(HANGS, f"{kind}: {text}"):
            read, problems = chat.parse(ids)
            observations = env.step(read, problems)
        check_observations(observations, env, f"{kind}: {text}")
        if observations and len(observations) < 20 and number % 10 == 0:
            ids = chat.suffix_ids(observations)
            assert ids.count(chat.end) == len({message["role"] for message in observations}), "an answer ends a turn"
        turns += 1
        if env.done or turns == env.max_turns:
            env, turns, started = task.start(task.scenarios[started % len(task.scenarios)]), 0, started + 1
    assert number == count


def test_a_reward_takes_any_transcript(task: Task, tokenizer: Any) -> None:
    """Malformed turns and what they were answered with are scored as well."""
    chat = task.chat(tokenizer)
    one = task.scenarios[0]
    messages, env = [*one.messages], task.start(one)
    texts = [text for kind, text in outputs(task, 2, 500) if kind not in HEAVY]
    for at, text in enumerate(texts[:: 10 if task.name in SLOW else 2]):
        read, problems = chat.parse(tokenizer.encode(text, add_special_tokens=False, verbose=False))
        messages += [read, *env.step(read, problems)]
        if env.done or (at + 1) % min(env.max_turns, 20) == 0:
            parts = task.env.components(one, messages)
            assert all(math.isfinite(part.value) for part in parts), parts
            assert isinstance(task.env.success(one, messages), bool)
            messages, env = [*one.messages], task.start(one)


def odd_value(rng: Random, depth: int = 3) -> Any:
    """Any value of Python's, JSON or not."""
    if depth and rng.random() < 0.5:
        parts = [odd_value(rng, depth - 1) for _ in range(rng.randrange(4))]
        return rng.choice((parts, tuple(parts), dict(zip(TEXTS, parts, strict=False)), dict(enumerate(parts))))
    deep: Any = "deep"
    for _ in range(rng.choice((0, 10, 60, 1000))):
        deep = [deep] if rng.random() < 0.5 else {"a": deep}
    odd = (b"bytes", object(), {1, 2}, float("nan"), float("inf"), 10**4000, 1j, print, str, Path("x"), range(3), deep)
    return rng.choice((*odd, junk(rng)))


def test_any_value_can_be_called_with(task: Task) -> None:
    rng = Random(f"{task.name} values")
    known = list(task.env.tools())
    env = task.start(task.scenarios[0])
    for _ in range(60 if task.name in SLOW else 300):
        name = rng.choice([*known, *known, rng.choice(TEXTS)])
        arguments: Any = odd_value(rng)
        if name in known and rng.random() < 0.8:
            right = example(task, name)
            arguments = right | {key: odd_value(rng) for key in right if rng.random() < 0.5}
        with within(HANGS, f"{name} {type(arguments)}"):
            text = env.call(name, arguments)
        check_observations([{"role": "tool", "name": name, "content": text}], env, name)
        if env.done:
            env = task.start(rng.choice(task.scenarios))


# --- The checks can fail: each is given a task with one thing broken.


def make_scenarios(made: Callable[[Any, Split, int, int], list[Scenario]]) -> Any:
    return classmethod(lambda cls, data, split, count, seed: made(data, split, count, seed))


def changed_scenarios(**changes: Callable[[Scenario], Any]) -> Any:
    """The task's, with fields made anew."""

    def made(data: Any, split: Split, count: int, seed: int) -> list[Scenario]:
        found = CapitalsTask.scenarios(data, split, count, seed)
        fields = [one.model_dump(exclude={"id"}) | {key: do(one) for key, do in changes.items()} for one in found]
        return [Scenario.make(**one) for one in fields]

    return make_scenarios(made)


def one_split(data: Any, split: Split, count: int, seed: int) -> list[Scenario]:
    found = CapitalsTask.scenarios(data, "train", min(count, 70), seed)
    return [Scenario.make(one.task, split, one.messages, one.data) for one in found]


def rewards(part: Callable[[Sequence[Message]], Component]) -> Any:
    return classmethod(lambda cls, scenario, messages: [part(messages)])


def looks(answer: Callable[[Env, str], str]) -> Any:
    def look_up(self: Env, country: str) -> str:
        """Look up.

        Args:
            country: its name
        """
        return answer(self, country)

    return tool(look_up)


def count_up(env: Env, country: str) -> str:
    env.data["asked"] = str(int(env.data.get("asked", 0)) + 1)
    return f"Asked {env.data['asked']} times."


def hang(env: Env, country: str) -> str:
    while country not in env.data:
        pass
    return "found"


def end_at_errors(env: Env, name: str, arguments: Any) -> str:
    text = Env.call(env, name, arguments)
    env.done = env.done or text.startswith("Error: ")
    return text


def call_unchecked(env: Env, name: str, arguments: Any) -> str:
    return str(getattr(env, name)(**arguments))


FAILED = pytest.fail.Exception  # what did not raise, or did not end
BROKEN: list[tuple[Callable[..., None], dict[str, Any], type[BaseException]]] = [
    (
        test_the_same_seed_gives_the_same_scenarios,
        {"scenarios": make_scenarios(lambda data, split, count, seed: CapitalsTask.scenarios(data, split, count, 0))},
        AssertionError,
    ),
    (test_splits_share_nothing, {"scenarios": make_scenarios(one_split)}, AssertionError),
    (
        test_alike_scenarios_are_of_one_split,
        {"cluster": classmethod(lambda cls, scenario, data: scenario.messages[0]["role"])},
        AssertionError,
    ),
    (
        test_asking_for_too_many_scenarios_says_how_many_there_are,
        {"scenarios": make_scenarios(one_split)},
        FAILED,
    ),
    (
        test_scenarios_are_named_by_their_content_and_can_be_stored,
        {"scenarios": changed_scenarios(data=lambda one: {**one.data, "places": (1, 2)})},
        AssertionError,
    ),
    (
        test_the_question_does_not_hold_the_answer,
        {
            "scenarios": changed_scenarios(
                messages=lambda one: [{"role": "user", "content": one.data["answer"].lower()}]
            )
        },
        AssertionError,
    ),
    (
        test_data_made_for_practice_are_the_seeds_and_not_the_tasks,
        {"practice": classmethod(lambda cls, data, seed: CapitalsTask.load(_new.TEMPLATE))},
        AssertionError,
    ),
    (test_missing_data_is_named, {"load": classmethod(lambda cls, folder: CapitalsTask.load(_new.TEMPLATE))}, FAILED),
    (
        test_gold_succeeds_and_beats_bad,
        {"reward": rewards(lambda messages: Component("alike", 1.0, "any answer"))},
        AssertionError,
    ),
    (
        test_gold_succeeds_and_beats_bad,
        {"success": classmethod(lambda cls, scenario, messages: True)},
        AssertionError,
    ),
    (test_gold_succeeds_and_beats_bad, {"gold": CapitalsTask.bad}, AssertionError),
    (
        test_gold_is_paid_more_than_random_play,
        {"reward": rewards(lambda messages: Component("calls", float(len(messages)), "the longer the better"))},
        AssertionError,
    ),
    (
        test_players_make_well_formed_calls,
        {"random": lambda self, messages, rng: use("look_up", state="Peru")},
        AssertionError,
    ),
    (test_the_scripted_player_sees_what_the_policy_sees, {"scripted": CapitalsTask.gold}, AssertionError),
    (test_every_episode_ends, {"play": lambda self, player, seed=0: Env.play(self, player, seed)[:3]}, AssertionError),
    (
        test_rewards_are_bounded_named_and_say_why,
        {"reward": rewards(lambda messages: Component("turns", 4.0 * len(messages), "the longer the better"))},
        AssertionError,
    ),
    (
        test_rewards_are_bounded_named_and_say_why,
        {"reward": rewards(lambda messages: Component("first", float(len(messages[1]["content"]) > 9), "a turn"))},
        IndexError,
    ),
    (test_the_same_calls_give_the_same_observations, {"look_up": looks(count_up)}, AssertionError),
    (test_two_episodes_share_nothing, {"look_up": looks(count_up)}, AssertionError),
    (test_errors_are_observations_and_change_nothing, {"call": call_unchecked}, AttributeError),
    (test_errors_are_observations_and_change_nothing, {"call": end_at_errors}, AssertionError),
    (test_problems_are_answered, {"step": lambda self, message, problems=(): []}, ValueError),
    (
        test_tools_do_not_leak,
        {"look_up": looks(lambda env, country: error(f"say {env.scenario.data['answer'].upper()}")), "shown": ()},
        AssertionError,
    ),
    (
        test_every_transcript_is_rendered_and_read_back,
        {"bad": lambda self, messages, rng: use("answer", capital="<|im_end|>")},
        AssertionError,
    ),
    (test_malformed_turns_are_answered, {"look_up": looks(lambda env, country: env.data[country])}, KeyError),
    (
        test_malformed_turns_are_answered,
        {"look_up": looks(lambda env, country: error("no " * 2000))},
        AssertionError,
    ),
    (test_malformed_turns_are_answered, {"look_up": looks(hang)}, FAILED),
    (test_malformed_turns_are_answered, {"hear": lambda self, text: []}, AssertionError),
    (test_a_reward_takes_any_transcript, {"look_up": looks(lambda env, country: env.data[country])}, KeyError),
    (test_any_value_can_be_called_with, {"look_up": looks(lambda env, country: env.data[country])}, KeyError),
    (test_any_value_can_be_called_with, {"call": call_unchecked}, TypeError),
]


@pytest.mark.parametrize(("check", "changes", "failure"), BROKEN)
def test_the_checks_can_fail(
    check: Callable[..., None],
    changes: dict[str, Any],
    failure: type[BaseException],
    request: pytest.FixtureRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(globals(), "HANGS", 0.3)
    own = {
        "look_up": CapitalsTask.look_up,
        "answer": CapitalsTask.answer,
    }  # tools are not inherited
    made = Task("capitals", type("Broken", (CapitalsTask,), own | changes), _new.TEMPLATE)
    given = {name: request.getfixturevalue(name) for name in inspect.signature(check).parameters if name != "task"}
    with pytest.raises(failure):
        check(made, **given)
