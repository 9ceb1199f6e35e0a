"""A small policy for a task: how players share its demonstrations, which tokens are learnt, a training run that repeats."""

from __future__ import annotations

import functools
import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import environments
from addons.supervised import embedded_policy, small_policy
from addons.supervised.embedded_policy import tokenized
from addons.supervised.small_policy import DIGITS, PROGRAMS, WORDS, demonstrations, read_shares, shares_by_task
from environments.base import Env, Message
from environments.email_search import EmailSearch
from environments.multiplication import Multiplication
from environments.support_dialogue import SupportDialogue
from environments.tic_tac_toe import TicTacToe
from steps.core.errors import UserError
from tests.conftest import ROOT
from tests.support import tiny

TASKS: dict[str, type[Env]] = {
    "multiplication": Multiplication,  # plain words, one turn
    "tic_tac_toe": TicTacToe,  # a tool, several turns
    "email_search": EmailSearch,  # long observations
    "support_dialogue": SupportDialogue,  # words and tools, and a user who answers
}


@functools.cache
def data_of(task: str) -> Any:
    return TASKS[task].load(ROOT / "tasks_data" / task)


@pytest.fixture(autouse=True)
def few_scenarios(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_policy, "SCENARIOS", 64)


# --- Shares


@pytest.mark.parametrize(
    ("text", "shares"),
    [
        ("scripted=0.4 random=0.6", {"scripted": 0.4, "random": 0.6}),
        ("  gold=1  ", {"gold": 1.0}),
        (
            "scripted=0.5 random=0.25 gold=0.125 bad=0.125",
            {"scripted": 0.5, "random": 0.25, "gold": 0.125, "bad": 0.125},
        ),
        ("scripted=1 random=0", {"scripted": 1.0, "random": 0.0}),
        ("scripted=0.1 random=0.2 gold=0.7", {"scripted": 0.1, "random": 0.2, "gold": 0.7}),
    ],
)
def test_shares_are_read(text: str, shares: dict[str, float]) -> None:
    assert read_shares(text) == shares


@pytest.mark.parametrize(
    "text",
    [
        "",
        "scripted",
        "scripted=much",
        "scripted=0.5=0.5",
        "scripted=0.5",
        "scripted=0.7 random=0.7",
        "scripted=1.5 random=-0.5",
        "clever=1",
        "scripted=nan",
        "scripted=inf random=-inf",
        "scripted=0.5,random=0.5",
    ],
)
def test_shares_that_are_none_end_in_a_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"^--players: give shares that sum to 1 of scripted, random, gold, bad, as in"):
        read_shares(text)


# --- Demonstrations


def some(task: str, count: int, seed: int = 1, **shares: float) -> list[list[Message]]:
    return list(itertools.islice(demonstrations(TASKS[task], data_of(task), shares, seed), count))


@pytest.mark.parametrize("task", TASKS)
def test_the_same_seed_gives_the_same_demonstrations(task: str) -> None:
    first, again, other = (some(task, 8, seed, scripted=0.5, random=0.5) for seed in (1, 1, 2))
    assert first == again != other


@pytest.mark.parametrize("task", TASKS)
def test_a_demonstration_is_an_episode_of_a_training_scenario(task: str) -> None:
    """Each begins with a scenario's messages, of which games have several, and is answered as a policy is, to its end."""
    env, data = TASKS[task], data_of(task)
    known = env.scenarios(data, "train", 64, 1)
    for messages in some(task, 20, gold=0.5, random=0.5):
        start = next(place for place, one in enumerate(messages) if one["role"] == "assistant")
        alike = [scenario for scenario in known if list(scenario.messages) == messages[:start]]
        assert any(_is_episode(env(scenario, data), messages, start) for scenario in alike)


def _is_episode(episode: Env, messages: list[Message], start: int) -> bool:
    told, turns = messages[:start], [one for one in messages if one["role"] == "assistant"]
    for number, message in enumerate(turns):
        if episode.done:
            return False
        told += [message, *episode.step(message)]
        if told != messages[: len(told)]:
            return False
        assert episode.done or number + 1 < len(turns) or len(turns) == episode.max_turns
    return told == messages


def test_turns_are_shared_among_players_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of n turns a player with share p makes n p, give or take 4 standard deviations; one with share 0 makes none."""
    moved = Counter[str]()

    def counted(name: str) -> Any:
        play = getattr(TicTacToe, name)

        def move(self: Any, messages: list[Message], rng: random.Random) -> Message:
            moved[name] += 1
            made: Message = play(self, messages, rng)
            return made

        return move

    for name in ("scripted", "random", "gold", "bad"):
        monkeypatch.setattr(TicTacToe, name, counted(name))
    told = some("tic_tac_toe", 400, scripted=0.7, random=0.3, gold=0.0)
    turns = sum(one["role"] == "assistant" for messages in told for one in messages)
    assert moved["gold"] == moved["bad"] == 0
    assert sum(moved.values()) == turns > 900
    assert abs(moved["random"] - 0.3 * turns) < 4 * (turns * 0.3 * 0.7) ** 0.5


def test_players_change_within_an_episode() -> None:
    """A pure player's episodes are all right or all wrong; a mixture of turns is in between."""
    env = Multiplication

    def right(**shares: float) -> int:
        told = some("multiplication", 100, seed=1, **shares)
        return sum(str(_product(messages)) in str(messages[-1]["content"]).split() for messages in told)

    assert env.max_turns == 1
    assert (right(gold=1.0), right(bad=1.0)) == (100, 0)
    assert 30 < right(gold=0.5, bad=0.5) < 70


def _product(messages: list[Message]) -> int:
    a, b = (int(word.strip("?")) for word in str(messages[0]["content"]).split() if word.strip("?").isdigit())
    return a * b


class Few(Multiplication):
    """Seven scenarios, or none."""

    count = 7

    @classmethod
    def scenarios(cls, data: Any, split: Any, count: int, seed: int) -> Any:
        if count > cls.count:
            raise ValueError("not so many")
        return super().scenarios(data, split, count, seed)


def test_a_task_with_few_scenarios_has_demonstrations_and_one_without_says_so() -> None:
    data = data_of("multiplication")
    told = list(itertools.islice(demonstrations(Few, data, {"gold": 1.0}, 1), 60))
    assert len({str(messages[0]) for messages in told}) == 4, "the largest of 64, 32, 16, … that there are"

    class Empty(Few):
        count = 0

    with pytest.raises(UserError, match="Empty has no training scenario"):
        next(demonstrations(Empty, data, {"gold": 1.0}, 1))


# --- Tokens


@pytest.fixture(scope="module", params=TASKS)
def rows(request: pytest.FixtureRequest) -> tuple[Any, type[Env], list[list[Message]], list[Any]]:
    """A task's tokenizer, environment, demonstrations, and the rows that are made of them."""
    from addons.supervised.embedded_policy import FIXED_TEXTS, make_tokenizer

    env = TASKS[request.param]
    told = some(request.param, 12, scripted=0.5, random=0.5)
    tokenizer = make_tokenizer(small_policy._texts(told), WORDS % DIGITS["all"], FIXED_TEXTS)
    return tokenizer, env, told, list(tokenized(tokenizer, env, iter(told)))


def spans(ids: list[int], learnt: list[int]) -> Iterator[tuple[list[int], bool]]:
    """Runs of tokens that are all learnt, or all not."""
    for is_learnt, run in itertools.groupby(zip(ids, learnt, strict=True), key=lambda pair: pair[1]):
        yield [token for token, _ in run], bool(is_learnt)


def test_the_assistants_tokens_are_learnt_and_no_others(rows: Any) -> None:
    """Each run of learnt tokens reads as one turn, its end included; what stands between them holds no word of it."""
    tokenizer, _, told, made = rows
    for messages, (ids, learnt) in zip(told, made, strict=True):
        turns = [one for one in messages if one["role"] == "assistant"]
        runs = [tokenizer.decode(run) for run, is_learnt in spans(ids, learnt) if is_learnt]
        assert len(runs) == len(turns)
        for turn, text in zip(turns, runs, strict=True):
            assert text.endswith("<|im_end|>")
            assert text.count("<|im_end|>") == 1
            assert "<|im_start|>" not in text
            assert text.startswith(str(turn["content"]))
            assert text.count("<tool_call>") == len(turn.get("tool_calls", ()))
        others = "".join(tokenizer.decode(run) for run, is_learnt in spans(ids, learnt) if not is_learnt)
        assert others.count("<|im_start|>assistant\n") == len(turns)
        assert learnt[0] == 0
        assert learnt[-1] == 1, "what follows the last turn is never read"


def test_a_row_is_what_the_template_makes_of_the_whole_chat(rows: Any) -> None:
    """Turn by turn as a rollout does, and at once as the template does: the same text, up to the last turn's end."""
    tokenizer, env, told, made = rows
    tools = [tool.schema for tool in env.tools().values()]
    for messages, (ids, _) in zip(told, made, strict=True):
        last = max(place for place, one in enumerate(messages) if one["role"] == "assistant")
        whole = tokenizer.apply_chat_template(messages[: last + 1], tools=tools or None, tokenize=False)
        assert tokenizer.decode(ids) == whole.removesuffix("\n")


def test_learnt_turns_are_read_back_as_what_the_players_did(rows: Any) -> None:
    from steps.policy.chat import Chat

    tokenizer, env, told, made = rows
    chat = Chat(tokenizer, [tool.schema for tool in env.tools().values()])
    for messages, (ids, learnt) in zip(told, made, strict=True):
        turns = [one for one in messages if one["role"] == "assistant"]
        sampled = [run for run, is_learnt in spans(ids, learnt) if is_learnt]
        for turn, run in zip(turns, sampled, strict=True):
            parsed = chat.parse(run)
            assert parsed.problems == []
            assert parsed.message.get("tool_calls", []) == turn.get("tool_calls", [])
            assert parsed.message["content"] == str(turn["content"])


@pytest.mark.parametrize(("digits", "pieces"), [("one", ["1", "2", "3"]), ("all", [" 123"])])
def test_numbers_are_read_digit_by_digit_or_whole(digits: str, pieces: list[str]) -> None:
    from addons.supervised.embedded_policy import make_tokenizer

    tokenizer = make_tokenizer(["a 123 b 123"] * 9, WORDS % DIGITS[digits], [])
    found = [tokenizer.decode([token]) for token in tokenizer.encode("a 123", add_special_tokens=False)]
    assert found[-len(pieces) :] == pieces


def test_a_line_break_of_a_program_is_one_token_with_what_indents_the_next_line() -> None:
    """In a program and in JSON, where everything else of it is cut alike, so that it can be copied token by token."""
    from addons.supervised.embedded_policy import make_tokenizer

    code = "def f(x):\n    if x > 10:\n        return x\n"
    tokenizer = make_tokenizer([code, json.dumps(code)] * 9, PROGRAMS, [])
    program, text = (
        [tokenizer.decode([token]) for token in tokenizer.encode(text, add_special_tokens=False)]
        for text in (code, json.dumps(code)[1:-1])
    )
    assert "".join(program) == code
    assert [piece.replace("\n", "\\n") for piece in program] == text
    assert program.count("\n        ") == 1


def test_with_a_spread_each_situation_leans_to_a_player_of_its_own() -> None:
    """So large a spread leaves one player to each: in a situation either all moves are legal or none is."""
    env, data = TASKS["tic_tac_toe"], data_of("tic_tac_toe")
    played = itertools.islice(demonstrations(env, data, {"scripted": 0.5, "bad": 0.5}, 1, spread=1e3), 200)
    outcomes: dict[tuple[str, int], set[bool]] = {}
    for messages in played:
        for number, place in enumerate(place for place, one in enumerate(messages) if one["role"] == "assistant"):
            is_illegal = "illegal" in str(messages[place + 1]["content"])
            outcomes.setdefault((str(messages[1]["content"])[:9], number), set()).add(is_illegal)
    assert all(len(kinds) == 1 for kinds in outcomes.values()), outcomes
    assert set.union(*outcomes.values()) == {False, True}, "situations differ"


def test_demonstrations_of_what_can_be_made_anew_leave_the_tasks_own_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(small_policy, "EPISODES", 10)
    env = environments.load("knowledge_search")
    data = env.load(ROOT / "tasks_data/knowledge_search")
    own = {str(question["question"]) for questions in data.questions.values() for question in questions}
    played = list(itertools.islice(demonstrations(env, data, {"gold": 1.0}, 3), 30))
    asked = [str(messages[1]["content"]) for messages in played]
    assert not own & set(asked)
    assert all("Error" not in str(message["content"]) for messages in played for message in messages), "of its own data"


# --- A run


def test_a_short_run_writes_a_folder_that_loads_and_two_give_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    monkeypatch.setattr(small_policy, "CORPUS", 40)
    data = ROOT / "tasks_data/tic_tac_toe"
    with monkeypatch.context() as here:
        here.setattr(
            torch, "set_num_threads", lambda _: None
        )  # one_thread's: on a busy machine two wait for each other
        for name in ("one", "two"):
            shares = "scripted=0.5 random=0.5"
            small_policy.small_policy(data, tmp_path / name, "tic_tac_toe", shares, steps="3", batch_tokens="1024")
    files = {name: {file.name: file.read_bytes() for file in (tmp_path / name).iterdir()} for name in ("one", "two")}
    assert files["one"] == files["two"]
    assert {"chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"} <= files["one"].keys()

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one")
    model, report = AutoModelForCausalLM.from_pretrained(tmp_path / "one", output_loading_info=True)
    assert not any(report.values()), report
    assert model.config.vocab_size >= len(tokenizer)
    assert {one.dtype for one in model.parameters()} == {torch.float32}
    ids = torch.tensor([tokenizer.encode("You are X.", add_special_tokens=False)])
    assert bool(torch.isfinite(model(ids).logits).all())


def test_a_body_gives_its_layers_and_the_tokens_that_both_have(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    body = ROOT / "tasks_data/embedded_policy"
    tokenizer = embedded_policy.make_tokenizer(["Falcon budget zyzzyva"] * 9, embedded_policy.WORDS, [])
    model = embedded_policy.make_model(len(tokenizer))
    shared = embedded_policy.take_body(model, tokenizer, body)
    assert 0 < shared < len(tokenizer)
    other = AutoModelForCausalLM.from_pretrained(body, dtype=torch.float32)
    assert torch.equal(model.model.layers[3].mlp.up_proj.weight, other.model.layers[3].mlp.up_proj.weight)
    theirs = AutoTokenizer.from_pretrained(body)
    own, others = model.get_input_embeddings().weight, other.get_input_embeddings().weight
    for token in ("F", "<|im_end|>"):
        assert torch.equal(own[tokenizer.convert_tokens_to_ids(token)], others[theirs.convert_tokens_to_ids(token)]), (
            token
        )
    with pytest.raises(UserError, match=r"--body: .* has layers of another shape"):
        embedded_policy.take_body(model, tokenizer, Path(tiny.make_policy(tmp_path).base_model))


def test_weights_stored_in_bfloat16_are_half_as_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from safetensors.torch import load_file

    monkeypatch.setattr(small_policy, "CORPUS", 40)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    data, body = ROOT / "tasks_data/tic_tac_toe", ROOT / "tasks_data/embedded_policy"
    words = ("tic_tac_toe", "scripted=1")
    small_policy.small_policy(
        data, tmp_path / "half", *words, body=body, stored="bfloat16", steps="1", batch_tokens="1024"
    )
    weights = load_file(tmp_path / "half/model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    with pytest.raises(UserError, match="--stored: float32 or bfloat16, not 'int4'"):
        small_policy.small_policy(data, tmp_path / "no", *words, stored="int4")
    with pytest.raises(UserError, match="--spread needs --drawn turn"):
        small_policy.small_policy(data, tmp_path / "no", *words, drawn="episode", spread="1")


# --- Several tasks


def test_each_of_several_tasks_has_shares_of_its_own() -> None:
    text = "tic_tac_toe: scripted=0.4 random=0.6;  multiplication: gold=1"
    shares = {"tic_tac_toe": {"scripted": 0.4, "random": 0.6}, "multiplication": {"gold": 1.0}}
    assert shares_by_task(text, ["multiplication", "tic_tac_toe"]) == shares
    assert shares_by_task("gold=1", ["multiplication"]) == {"multiplication": {"gold": 1.0}}


@pytest.mark.parametrize(
    "text",
    ["", "gold=1", "multiplication: gold=1", "multiplication: gold=1; multiplication: gold=1", "a: gold=1; b: gold=1"],
)
def test_shares_of_other_tasks_end_in_a_sentence(text: str) -> None:
    with pytest.raises(
        UserError, match=r"^--players: give the shares of each task once, as in 'multiplication: scripted=1"
    ):
        shares_by_task(text, ["multiplication", "tic_tac_toe"])


def test_a_policy_for_several_tasks_reads_all_of_their_prompts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    import torch
    from transformers import AutoTokenizer

    from steps.policy.chat import Chat

    monkeypatch.setattr(small_policy, "CORPUS", 40)
    names = "multiplication+tic_tac_toe"
    players = "multiplication: scripted=1; tic_tac_toe: random=1"
    with monkeypatch.context() as here:
        here.setattr(torch, "set_num_threads", lambda _: None)
        data, made = ROOT / "tasks_data", tmp_path / "made"
        small_policy.small_policy(data, made, names, players, steps="3", digits="one", batch_tokens="2048")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "made")
    for task in names.split("+"):
        env = TASKS[task]
        scenario = env.scenarios(data_of(task), "val", 1, 1)[0]
        chat = Chat(tokenizer, [tool.schema for tool in env.tools().values()])
        prompt = chat.prompt_ids(scenario.messages)
        assert str(scenario.messages[-1]["content"]) in tokenizer.decode(prompt)
        assert len(prompt) < 60, "what each prompt repeats is one token"
