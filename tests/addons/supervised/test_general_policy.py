"""The general policy: what is committed is whole, small and what the code makes; its training rows are what they say."""

from __future__ import annotations

import hashlib
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from addons.supervised import words
from addons.supervised.chats import labelled
from addons.supervised.embedded_policy import CONTEXT, FIXED_TEXTS, batch_loss, make_model, make_tokenizer
from addons.supervised.general_policy import (
    MORE_FIXED_TEXTS,
    PATTERN,
    ROW_TOKENS,
    SEED,
    corpus,
    episode_tokens,
    row,
    shared_loss,
)
from addons.supervised.toolsets import toolsets
from addons.templates.chat_templates import CHATML
from steps.policy.chat import Chat

ROOT = Path(__file__).parent.parent.parent.parent
FOLDER = ROOT / "tasks_data" / "general_policy"
SETS = list(itertools.islice(toolsets(SEED + 2), 40))


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The committed one."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Any:
    """The committed one; loading it leaves nothing out and nothing over."""
    import torch
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, output_loading_info=True)
    assert not any(report.values()), report
    return model


def test_the_folder_is_whole_and_small() -> None:
    embedded = ROOT / "tasks_data" / "embedded_policy"
    assert {file.name for file in FOLDER.iterdir()} == {file.name for file in embedded.iterdir()}
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) < 8e6


@pytest.mark.nightly
def test_its_tokenizer_is_the_one_that_the_code_makes(tokenizer: Any) -> None:
    made = make_tokenizer(corpus(), PATTERN, (*FIXED_TEXTS, *MORE_FIXED_TEXTS))
    assert tokenizer.backend_tokenizer.to_str() == made.backend_tokenizer.to_str()
    assert (FOLDER / "chat_template.jinja").read_text() == CHATML
    assert tokenizer.model_max_length == CONTEXT


def test_its_model_is_of_the_shape_that_the_code_makes(model: Any, tokenizer: Any) -> None:
    made = make_model(len(tokenizer))
    shapes, expected = ({name: value.shape for name, value in each.state_dict().items()} for each in (model, made))
    assert shapes == expected
    assert json.loads((FOLDER / "config.json").read_text())["dtype"] == "bfloat16"


def test_it_is_trained_for_tool_sets_that_it_did_not_see(model: Any, tokenizer: Any) -> None:
    import torch

    torch.set_num_threads(1)
    with torch.no_grad():
        assert float(shared_loss(model, [row(tokenizer, made) for made in SETS[:4]])) < 0.6


def test_a_value_is_the_same_tokens_wherever_it_stands(tokenizer: Any) -> None:
    """In a request, in an observation, and between the quotes of a call."""
    for value in (
        "rye bread",
        "Nia Okonjo-Iweala",
        "2026-04-02 10:30",
        "AB-1234",
        "The Book of the Dunes",
        "żółw",
        "7.25",
    ):
        ids = tokenizer.encode(value, add_special_tokens=False)
        for text in (
            f"Please look for {value} now",
            f'{{"name": "{value}"}}',
            f"It is {value}.",
            f"key: {value}\nmore",
        ):
            inside = tokenizer.encode(text, add_special_tokens=False)
            assert any(inside[place : place + len(ids)] == ids for place in range(len(inside))), (value, text)


def test_known_words_are_one_token_each(tokenizer: Any) -> None:
    known = [*words.THINGS, *words.FIRST, *words.PLACES]
    assert sum(len(tokenizer.encode(word, add_special_tokens=False)) == 1 for word in known) > 0.9 * len(known)


def test_rows_hold_the_tokens_that_rollouts_would_have(tokenizer: Any) -> None:
    """Of each episode by itself, and the same are learnt, flawed calls excepted."""
    for made in SETS:
        whole = row(tokenizer, made)
        assert len(whole.ids) == len(whole.learnt) == len(whole.episode) == len(whole.place) <= ROW_TOKENS
        chat = Chat(tokenizer, made.tools)
        told = [{"role": "system", "content": made.system}] if made.system else []
        for number, episode in enumerate(made.episodes[: max(whole.episode)], 1):
            places = [place for place, of in enumerate(whole.episode) if of in (0, number)]
            ids, learnt = labelled(chat, [*told, *episode])
            assert [whole.ids[place] for place in places] == ids
            assert [whole.place[place] for place in places] == [*range(len(ids))]
            if not any(message.get("flawed") for message in episode):
                assert [whole.learnt[place] for place in places] == learnt


def test_a_flawed_call_is_not_learnt(tokenizer: Any) -> None:
    [episode] = itertools.islice((e for made in SETS for e in made.episodes if e[1].get("flawed")), 1)
    ids, learnt = episode_tokens(tokenizer, episode)
    text = tokenizer.decode([token for token, is_learnt in zip(ids, learnt, strict=True) if is_learnt])
    assert text.count("<tool_call>") == 1 + sum("tool_calls" in message for message in episode[4:])
    assert json.dumps(episode[3]["tool_calls"][0]["function"], ensure_ascii=False) in text


def test_episodes_beside_each_other_do_not_see_each_other(model: Any, tokenizer: Any) -> None:
    """The loss of a row is that of its episodes one by one."""
    import torch

    made = next(each for each in SETS if len(each.tools) > 1)
    apart = [row(tokenizer, made._replace(episodes=[episode])) for episode in made.episodes]
    tokens = [sum(each.learnt) for each in apart]
    with torch.no_grad():
        together = float(shared_loss(model, [row(tokenizer, made)]))
        losses = [float(batch_loss(model, [(each.ids, each.learnt)])) for each in apart]
    mean = sum(loss * count for loss, count in zip(losses, tokens, strict=True)) / sum(tokens)
    assert together == pytest.approx(mean, rel=1e-4)


@pytest.mark.slow
@pytest.mark.nightly  # half a minute; the embedded policy's test shows the same of the code that both share
def test_building_it_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    """The whole build, with few steps: two processes, the same hashes."""
    made = []
    for place in (tmp_path / "one", tmp_path / "two"):
        options = ["--body", "tasks_data/embedded_policy", "--policy", str(place), "--steps", "3"]
        subprocess.run(
            [sys.executable, "-m", "addons.supervised.general_policy", *options],
            check=True,
            capture_output=True,
            cwd=ROOT,
        )
        made.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in place.iterdir()})
    assert made[0] == made[1]
    assert "model.safetensors" in made[0]
