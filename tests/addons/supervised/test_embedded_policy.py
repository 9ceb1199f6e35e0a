"""The embedded policy: what is committed is whole, small, and what the code makes; its training rows are what they say."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from addons.supervised.demonstrations import SLOPPY, demonstrations
from addons.supervised.embedded_policy import (
    CONTEXT,
    FIXED_TEXTS,
    SEED,
    SPECIAL,
    batch_loss,
    corpus,
    fit,
    make_model,
    make_tokenizer,
    repeated_sequence,
    tokenized,
)
from addons.templates.chat_templates import CHATML
from environments.base import Message
from environments.email_search import EmailSearch

ROOT = Path(__file__).parent.parent.parent.parent
FOLDER = ROOT / "tasks_data" / "embedded_policy"
TOOLS = [tool.schema for tool in EmailSearch.tools().values()]
TOLD: list[Message] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is the budget?"}]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """The committed one."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Any:
    """The committed one; loading it leaves nothing out and nothing over."""
    from transformers import AutoModelForCausalLM

    model, report = AutoModelForCausalLM.from_pretrained(FOLDER, output_loading_info=True)
    assert not any(report.values()), report
    return model


# --- What is committed


def test_the_folder_is_whole_and_small() -> None:
    assert sorted(file.name for file in FOLDER.iterdir()) == [
        "chat_template.jinja",
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert (FOLDER / "model.safetensors").stat().st_size < 10e6
    assert 1e6 < sum(path.stat().st_size for path in FOLDER.iterdir()) < 10e6


def test_its_tokenizer_is_the_one_that_the_code_makes(tokenizer: Any, tmp_path: Path) -> None:
    made = make_tokenizer(corpus())
    made.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert json.loads((tmp_path / name).read_text()) == json.loads((FOLDER / name).read_text()), name
    assert (FOLDER / "chat_template.jinja").read_text() == CHATML
    assert tokenizer.backend_tokenizer.to_str() == made.backend_tokenizer.to_str()
    assert tokenizer.chat_template == made.chat_template
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL)) == [0, 1, 2]
    assert (tokenizer.pad_token, tokenizer.eos_token) == (SPECIAL[0], SPECIAL[2])
    assert tokenizer.model_max_length == CONTEXT


def test_its_model_is_of_the_shape_that_the_code_makes(model: Any, tokenizer: Any) -> None:
    import torch

    made = make_model(len(tokenizer))
    shapes, expected = ({name: value.shape for name, value in one.state_dict().items()} for one in (model, made))
    assert shapes == expected
    assert {value.dtype for value in model.state_dict().values()} == {torch.float32}
    assert all(bool(value.isfinite().all()) for value in model.state_dict().values())
    mine, theirs = (one.config.to_diff_dict() for one in (model, made))
    for other in (mine, theirs):  # what saving writes down besides
        for name in ("architectures", "dtype", "_name_or_path", "transformers_version"):
            other.pop(name, None)
    assert mine == theirs


def test_its_weights_are_trained_for_its_tokens(model: Any, tokenizer: Any) -> None:
    """Demonstrations, and sequences to copy that it has not seen; a model that knows nothing has ln(vocabulary)."""
    import torch

    torch.set_num_threads(1)
    rows = list(itertools.islice(tokenized(tokenizer, EmailSearch, demonstrations(SEED, SLOPPY)), 4))
    rng = random.Random(SEED + 1)
    with torch.no_grad():
        told = float(batch_loss(model, rows))
        copied = float(batch_loss(model, [repeated_sequence(rng, len(tokenizer)) for _ in range(16)]))
        fresh = float(batch_loss(make_model(len(tokenizer)), rows))
    assert told < 0.5
    assert copied < 0.5
    assert fresh > 0.9 * math.log(len(tokenizer))


# --- Its chat template


def test_tools_are_rendered_as_one_line_of_json_each(tokenizer: Any) -> None:
    text = tokenizer.apply_chat_template(TOLD, tools=TOOLS, tokenize=False, add_generation_prompt=True)
    head, lines, tail = re.split("\n</?tools>\n", text)
    assert [json.loads(line) for line in lines.splitlines()] == TOOLS
    assert head.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n\n")
    assert tail.endswith(
        "</tool_call><|im_end|>\n<|im_start|>user\nWhat is the budget?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert text.count("<|im_start|>") == 3


def test_without_tools_nothing_is_said_of_them(tokenizer: Any) -> None:
    without: list[dict[str, Any]] = [{}, {"tools": None}, {"tools": []}]
    for more in without:
        text = tokenizer.apply_chat_template(TOLD, tokenize=False, **more)
        assert text == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is the budget?<|im_end|>\n"
    alone = tokenizer.apply_chat_template(TOLD[1:], tools=TOOLS[1:2], tokenize=False)
    assert alone.startswith("<|im_start|>system\n# Tools\n\n"), "no system message: no empty lines for it"


def test_fixed_texts_are_one_token_each(tokenizer: Any) -> None:
    for text in FIXED_TEXTS:
        [token] = tokenizer.encode(text, add_special_tokens=False)
        assert tokenizer.decode([token]) == text
    ids = tokenizer.apply_chat_template(TOLD, tools=TOOLS, tokenize=True, return_dict=False)
    for text in FIXED_TEXTS[:10]:
        assert tokenizer.convert_tokens_to_ids(text) in ids, text
    assert len(ids) < 300


# --- Its training rows


def test_the_assistants_tokens_are_learnt_and_no_others(tokenizer: Any) -> None:
    transcripts = list(itertools.islice(demonstrations(SEED, SLOPPY), 50))
    for messages, (ids, learnt) in zip(transcripts, tokenized(tokenizer, EmailSearch, transcripts), strict=True):
        assert len(ids) == len(learnt) <= CONTEXT
        runs = [list(run) for value, run in itertools.groupby(zip(ids, learnt, strict=True), lambda p: p[1]) if value]
        turns = [message for message in messages if message["role"] == "assistant"]
        assert len(runs) == len(turns)
        for run, turn in zip(runs, turns, strict=True):
            text = tokenizer.decode([token for token, _ in run])
            function = turn["tool_calls"][0]["function"]
            body = json.dumps({"name": function["name"], "arguments": function["arguments"]}, ensure_ascii=False)
            assert text == f"<tool_call>\n{body}\n</tool_call><|im_end|>"
        assert learnt[-1] == 1, "nothing follows the last answer"


def test_what_is_learnt_of_a_repeat_stood_there_before(tokenizer: Any) -> None:
    rng = random.Random(1)
    for _ in range(200):
        ids, learnt = repeated_sequence(rng, len(tokenizer))
        assert len(ids) == len(learnt)
        count = sum(learnt)
        assert learnt == [0] * (len(ids) - count) + [1] * count
        part = ids[-count - 1 :]  # its first token is not learnt: nothing foretells it
        assert any(ids[place : place + count + 1] == part for place in range(len(ids) - 2 * count - 1))
        assert not {0, 1, 2} & set(ids)


def test_the_loss_is_the_mean_over_learnt_tokens_whatever_the_padding(model: Any, tokenizer: Any) -> None:
    import torch

    rng = random.Random(2)
    short, long = sorted((repeated_sequence(rng, len(tokenizer)) for _ in range(2)), key=lambda row: len(row[0]))
    assert len(short[0]) < len(long[0])
    with torch.no_grad():
        apart = [float(batch_loss(model, [row])) * sum(row[1]) for row in (short, long)]
        together = float(batch_loss(model, [short, long]))
    assert together == pytest.approx(sum(apart) / (sum(short[1]) + sum(long[1])), rel=1e-4)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_training_may_be_as_short_as_one_step(steps: int) -> None:
    import torch

    layer: Any = torch.nn.Linear(1, 1, bias=False)
    before = layer.weight.item()
    fit(layer, steps, 0.01, lambda step: {"loss": layer(torch.ones(1, 1)).sum()})
    assert layer.weight.item() < before


@pytest.mark.nightly
def test_building_it_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    """The whole build, with few steps: two processes, the same hashes."""
    made = []
    for place in (tmp_path / "one", tmp_path / "two"):
        words = ["--policy", str(place), "--steps", "3"]  # the fewest that the schedule takes
        subprocess.run(
            [sys.executable, "-m", "addons.supervised.embedded_policy", *words],
            check=True,
            capture_output=True,
            cwd=ROOT,
        )
        made.append({path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in place.iterdir()})
    assert made[0] == made[1]
    assert "model.safetensors" in made[0]
