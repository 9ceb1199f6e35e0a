"""Each parser takes any input, or refuses it with an error that its callers turn into a sentence.

`make fuzz` gives each 10,000 inputs (FUZZ_INPUTS), drawn anew each time; `make test` gives the same few every time.
"""

from __future__ import annotations

import copy
import io
import json
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import environments
from addons.judges import prompts
from addons.models import answers
from addons.production.serving import capture
from addons.production.traces import langfuse_traces, mlflow_traces, openai_jsonl, otel
from addons.production.traces.records import Conversation, joined
from addons.production.traces.store import Store
from addons.production.traces.store import read as read_store
from addons.report.card import parsed
from addons.starts.sources import Brought, check
from environments.base import Scenario, TaskProblem
from environments.mcp.settings import read_settings
from steps.core import dotenv, params
from steps.core.errors import UserError
from steps.core.params import Params, Policy
from steps.core.records import Reward, Trajectory, read_records, write_records
from steps.policy.loading import load_chat
from steps.project.chain import read_chain
from steps.project.lock import read_lock, run_key
from tests.conftest import ROOT
from tests.core.test_records import FULL, REWARD, SCENARIO
from tests.fuzz.mutations import VALUES, bytes_of, damaged, documents, lines_of, mutated, text_of

GOLDEN = ROOT / "tests/addons/production/traces/golden"
INPUTS = int(os.environ.get("FUZZ_INPUTS", "24"))
IS_SHORT = "FUZZ_INPUTS" not in os.environ
LORA = Policy().lora
ADAPTER = {
    "peft_type": "LORA",
    "r": LORA.rank,
    "lora_alpha": LORA.alpha,
    "base_model_name_or_path": "x",
    "target_modules": ["q_proj"],
}
FEEDBACK = {"response_id": "chatcmpl-1", "score": 0.5, "label": "good", "comment": "no", "correction": "Lima."}
REQUEST = {
    "model": "policy",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        {"role": "assistant", "content": "?"},
    ],
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}],
    "metadata": {"conversation_id": "c"},
}
SERVER = {"description": "Keep notes.", "command": "uvx", "args": ["mcp-server-notes"], "env": {"A": "b"}}
CALLS = '<think>so</think>Both:\n<tool_call>\n{"name": "read_email", "arguments": {"id": "m1"}}\n</tool_call><|im_end|>'
SCORES = {"A": {"score": 0.5, "reason": "good"}, "B": {"score": 1, "reason": "better"}}
TASKS = (
    *("email_search", "email_search_plus", "knowledge_search", "support_dialogue", "tic_tac_toe", "game_2048"),
    "multiplication",
)
NAMES = (
    *("params.yaml", "a preset", "chain.yaml", "dvc.lock", "server.yaml of MCP", ".env"),
    *("trajectories.parquet", "rewards.parquet", "scenarios.parquet", "an adapter"),
    *("a sampled turn", "a judge's reply", "an answer's fields", "a tag of the registry"),
    *("traces: openai_jsonl", "traces: otel", "traces: langfuse", "traces: mlflow", "traces: an export's bytes"),
    *("traces: captured", "a request that is captured", "POST /feedback"),
    *(f"a turn of {name}" for name in TASKS),
)
TURN = {"role": "assistant", "content": "x", "tool_calls": []}


class Parser(NamedTuple):
    """What is given to it, the reading, and the errors by which it may refuse."""

    inputs: st.SearchStrategy[Any]
    read: Callable[[Any, Path], object]
    refusals: tuple[type[Exception], ...] = (UserError,)


def at(path: str, read: Callable[[Path], object]) -> Callable[[bytes, Path], object]:
    """Reads bytes as a file of this name."""

    def reading(content: bytes, folder: Path) -> object:
        (folder / path).write_bytes(content)
        return read(folder)

    return reading


def yaml_of(path: Path) -> st.SearchStrategy[bytes]:
    """A YAML file with faults in its values, or with damage to its bytes."""
    content = path.read_bytes()
    by_value = mutated(yaml.safe_load(content)).map(lambda made: yaml.safe_dump(made).encode("utf-8", "replace"))
    return by_value | damaged(content)


def table_of(*records: Any) -> st.SearchStrategy[bytes]:
    """A parquet file with damage to its bytes, or of rows of another form."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        write_records(records, path)
        content, rows = path.read_bytes(), pq.read_table(path).to_pylist()

    def written(made: Any) -> bytes:
        buffer = io.BytesIO()
        try:
            pq.write_table(pa.Table.from_pylist(made), buffer)
        except Exception:  # what Arrow itself cannot write is no file
            return content
        return buffer.getvalue()

    return mutated(rows).map(written) | damaged(content)


def lock_of(folder: Path) -> object:
    lock = read_lock(folder)
    return run_key(lock)


def adapter(content: tuple[bytes, bytes], folder: Path) -> None:
    for name, part in zip(("adapter_config.json", "adapter_model.safetensors"), content, strict=True):
        (folder / name).write_bytes(part)
    check(folder, Policy(), Brought("theirs", None, None, ""))


def header() -> bytes:
    import numpy as np
    from safetensors.numpy import save

    return save(
        {f"base_model.model.layers.0.q_proj.lora_{side}.weight": np.zeros((16, 4), np.float32) for side in "AB"}
    )


@cache
def chat() -> Any:
    os.chdir(ROOT)
    return load_chat(Policy(), environments.load("email_search"))


def turn(text: str, _: Path) -> None:
    ids = chat().tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False)
    chat().parse(ids)


@cache
def task(name: str) -> tuple[Any, Any, Scenario]:
    env = environments.load(name)
    data = env.load(ROOT / "tasks_data" / name)
    return env, data, env.scenarios(data, "train", 1, 1)[0]


def episode(name: str, message: Any, _: Path) -> None:
    """An environment hears an assistant's message, whatever is in it, and scores the transcript."""
    env, data, scenario = task(name)
    calls = message.get("tool_calls") if isinstance(message, dict) else None
    heard: dict[str, Any] = {"role": "assistant", "content": str(message)[:2000]}
    if isinstance(calls, list):
        heard["tool_calls"] = [called(call) for call in calls]
    played = env(scenario, data)
    transcript = [*scenario.messages, heard]
    transcript += played.step(heard)
    env.reward(scenario, transcript)
    env.success(scenario, transcript)
    env.outcome(scenario, transcript)


def called(call: Any) -> dict[str, Any]:
    """A call as the chat hands it on: a name, and arguments that are any JSON object."""
    function = call.get("function") if isinstance(call, dict) else None
    name, arguments = (function.get("name"), function.get("arguments")) if isinstance(function, dict) else ("", {})
    return {
        "type": "function",
        "function": {
            "name": str(name),
            "arguments": arguments if isinstance(arguments, dict) else {"value": arguments},
        },
    }


def turns_of(name: str) -> st.SearchStrategy[Any]:
    env = environments.load(name)
    calls = [
        {"type": "function", "function": {"name": tool.schema["function"]["name"], "arguments": example(tool)}}
        for tool in env.tools().values()
    ]
    return mutated(TURN | {"tool_calls": calls})


def example(tool: Any) -> dict[str, Any]:
    kinds = {"string": "m1", "integer": 1, "number": 0.5, "array": ["m1"], "boolean": True}
    properties = tool.schema["function"]["parameters"].get("properties", {})
    return {name: kinds.get(str(kind.get("type")), "x") for name, kind in properties.items()}


def store(content: bytes, folder: Path) -> None:
    shutil.rmtree(folder / "capture", ignore_errors=True)
    shutil.copytree(GOLDEN / "capture", folder / "capture")
    [path, *_] = sorted((folder / "capture").glob("*.jsonl"))
    path.write_bytes(content)
    parts, _ = read_store(Store(folder / "capture"), {})
    joined([part for part in parts if isinstance(part, Conversation)])


def conversations(read: Callable[..., Iterator[Any]], rows: Any, _: Path) -> None:
    parts = list(read(rows if isinstance(rows, list) else [rows], "a file"))
    joined([part for part in parts if isinstance(part, Conversation)])


def rows_of(name: str) -> list[Any]:
    return [json.loads(line) for line in (GOLDEN / name).read_text().splitlines()[:4]]


def exported(content: bytes, folder: Path) -> None:
    path = folder / "export.jsonl"
    path.write_bytes(content)
    for read in (langfuse_traces.read, mlflow_traces.read):
        list(read(langfuse_traces.export(path), "a file"))


class Middle:
    """The served model's store of what people said, without a server around it."""

    def __init__(self) -> None:
        folder = tempfile.mkdtemp(prefix="fuzz-")
        for name, value in (
            ("FOLDER", folder),
            ("RATE", "1"),
            ("DAYS", "1"),
            ("BYTES", "100000000"),
            ("CONSENT", "assumed"),
        ):
            os.environ[f"FLYWHEEL_CAPTURE_{name}"] = value
        self.keeper = capture.Keeper()


@cache
def middle() -> capture.Keeper:
    return Middle().keeper


def feedback(content: bytes, _: Path) -> None:
    status, answer = middle().take(content)
    assert status in (201, 400, 404), (status, answer)
    assert status == 201 or answer["error"]["message"]


def asked(content: bytes, _: Path) -> None:
    try:
        request = capture.asked(content)
    except ValueError:
        return
    if request:
        given = {"id": "chatcmpl-1", "message": {"role": "assistant", "content": "x"}}
        middle().keep("capture:" + "0" * 16, request, [given])


@cache
def parsers() -> dict[str, Parser]:
    lines = {"openai_jsonl": openai_jsonl.read, "otel": otel.read}
    jsonl = {"openai_jsonl": "openai.jsonl", "otel": "otel.jsonl"}
    return {
        "params.yaml": Parser(
            yaml_of(ROOT / "params.yaml"), at("params.yaml", lambda folder: params.load(folder / "params.yaml", Params))
        ),
        "a preset": Parser(
            yaml_of(ROOT / "tasks_data/email_search.yaml"),
            at("p.yaml", lambda folder: params.load(folder / "p.yaml", Params)),
        ),
        "chain.yaml": Parser(yaml_of(ROOT / "chain.yaml"), at("chain.yaml", read_chain)),
        "dvc.lock": Parser(yaml_of(ROOT / "dvc.lock"), at("dvc.lock", lock_of)),
        "server.yaml of MCP": Parser(
            mutated(SERVER).map(lambda made: yaml.safe_dump(made).encode("utf-8", "replace")) | st.binary(max_size=200),
            at("server.yaml", read_settings),
            (TaskProblem,),
        ),
        ".env": Parser(damaged((ROOT / ".env.example").read_bytes()[:1500]), at(".env", dotenv.values)),
        "trajectories.parquet": Parser(
            table_of(FULL), at("t.parquet", lambda folder: read_records(Trajectory, folder / "t.parquet"))
        ),
        "rewards.parquet": Parser(
            table_of(REWARD), at("r.parquet", lambda folder: read_records(Reward, folder / "r.parquet"))
        ),
        "scenarios.parquet": Parser(
            table_of(SCENARIO), at("s.parquet", lambda folder: read_records(Scenario, folder / "s.parquet"))
        ),
        "an adapter": Parser(
            st.tuples(documents(ADAPTER), st.just(header()))
            | st.tuples(st.just(json.dumps(ADAPTER).encode()), damaged(header())),
            adapter,
        ),
        "a sampled turn": Parser(damaged(CALLS.encode()).map(text_of), turn),
        "a judge's reply": Parser(
            (documents(SCORES) | documents({"A": 1, "B": 0})).map(text_of),
            lambda text, _: prompts.read(text, ["A", "B"], True),
        ),
        "an answer's fields": Parser(VALUES, lambda value, _: answers.cleaned(value, "secret")),
        "a tag of the registry": Parser(st.text(max_size=60) | VALUES.map(repr), lambda text, _: parsed(text)),
        **{
            f"traces: {name}": Parser(
                lines_of(rows_of(jsonl[name])).map(lambda text: text.split("\n")), partial(conversations, read)
            )
            for name, read in lines.items()
        },
        "traces: langfuse": Parser(mutated(langfuse()), partial(conversations, langfuse_traces.read)),
        "traces: mlflow": Parser(mutated(rows_of("mlflow.jsonl")), partial(conversations, mlflow_traces.read)),
        "traces: an export's bytes": Parser(damaged((GOLDEN / "mlflow.jsonl").read_bytes()[:20_000]), exported),
        "traces: captured": Parser(damaged(first_capture()) | lines_of(capture_rows()).map(bytes_of), store),
        "a request that is captured": Parser(documents(REQUEST), asked),
        "POST /feedback": Parser(documents(FEEDBACK) | st.just(b"[" * 100_000) | st.just(b'{"a":' * 50_000), feedback),
        **{f"a turn of {name}": Parser(turns_of(name), partial(episode, name)) for name in TASKS},
    }


def first_capture() -> bytes:
    [path, *_] = sorted((GOLDEN / "capture").glob("*.jsonl"))
    return path.read_bytes()


def capture_rows() -> list[Any]:
    return [json.loads(line) for line in first_capture().splitlines()[:4]]


def langfuse() -> list[Any]:
    return list(langfuse_traces.export(GOLDEN / "langfuse"))[:6]


@pytest.fixture(autouse=True)
def quiet_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())


@pytest.mark.timeout(3600 if not IS_SHORT else 300)
@pytest.mark.parametrize("name", NAMES)
def test_any_input_is_read_or_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert set(parsers()) == set(NAMES)
    parser, counts = parsers()[name], Counter[str]()

    @settings(
        max_examples=INPUTS,
        derandomize=IS_SHORT,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(parser.inputs)
    def read(value: Any) -> None:
        counts["inputs"] += 1
        try:
            parser.read(copy.deepcopy(value), tmp_path)
        except parser.refusals as problem:
            counts["refused" if str(problem).strip() else "without a word"] += 1

    read()
    assert not counts["without a word"]
    if not IS_SHORT:
        with capsys.disabled():
            print(f"\n{name}: {counts['inputs']:,} inputs, {counts['refused']:,} refused", file=sys.stderr)
