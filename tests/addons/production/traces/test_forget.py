"""Deletion finds everything: whatever was captured, ingested, versioned and trained on, in any order."""

from __future__ import annotations

import functools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import environments
from addons.lineage.index import add_ingested
from addons.lineage.questions import data_sets, forward
from addons.lineage.tables import Rows, write
from addons.production.forget import forget, keys_of
from addons.production.traces import files
from addons.production.traces.build import Task
from addons.production.traces.records import key_of
from addons.production.traces.sources import Source, ingest
from addons.production.traces.store import Store
from steps.core.params import Scenarios
from steps.data.ingested import INGESTED
from steps.project.ledger import Ledger
from steps.project.lock import file_md5

NAMES = ("alpha", "beta", "gamma", "delta")


@functools.cache
def task() -> Task:
    env = environments.load("email_search")
    data = env.load(Path("tasks_data/email_search"))
    return Task(env, "email_search", data, [], env.scenarios(data, "test", 6, 1), Scenarios())


@functools.cache
def episode(number: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(an episode at a training scenario, the scenario's hidden data)."""
    scenario = task().env.scenarios(task().data, "train", 90, 4)[number]
    return task().env(scenario, task().data).play("gold")[:-1], scenario.data


def captured(store: Store, name: str, number: int, kind: str) -> None:
    """Put a conversation into the store, with feedback."""
    messages, hidden = episode(number)
    key, response = key_of("capture", name), f"{number:016x}"
    marked = [messages[0], messages[1] | {"content": f"{messages[1]['content']} word{name}"}, *messages[2:]]
    record: dict[str, Any] = {
        "kind": "call",
        "response": response,
        "key": key,
        "time": f"2026-11-23T00:00:{number % 60:02d}.000000Z",
    }
    record |= {"consent": True, "messages": marked[:-1], "answer": marked[-1], "tools": [], "metadata": {}}
    record |= {"metadata": {"owner": hidden["owner"]}}
    assert store.append(record)
    feedback: dict[str, Any] = {"response": response, "score": 1.0 if kind == "good" else 0.0}
    if kind == "corrected":
        feedback["correction"] = {"role": "assistant", "content": hidden["answer"]}
    if kind != "silent":
        assert store.append({"kind": "feedback", "key": key, **feedback})


STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(NAMES), st.integers(0, 89), st.sampled_from(["good", "bad", "corrected", "silent"])),
        st.just("ingest"),
        st.just("train"),
    ),
    min_size=1,
    max_size=10,
)


@settings(max_examples=12, deadline=None)
@given(STEPS, st.sampled_from(NAMES))
def test_deletion_finds_everything(steps: list[Any], name: str) -> None:
    root = Path(tempfile.mkdtemp())
    store, folder = Store(root / "capture"), root / INGESTED / "email_search"
    holding: dict[str, str] = {}  # md5 of each version of a file that held the conversation -> its path
    adapters: set[str] = set()
    key = key_of("capture", name)
    store.add({})  # makes the folder
    try:
        with Ledger("sqlite://") as ledger:
            for number, step in enumerate([*steps, "ingest"]):
                if step == "ingest":
                    ingest(root, folder, [Source("capture", str(store.folder))], task(), {}, False, 0.4)
                    add_ingested(root, ledger)
                elif step == "train":
                    adapters |= trained(root, folder, ledger, key, f"{number:016x}")
                else:
                    captured(store, *step)  # pyrefly: ignore[bad-argument-type]
                for path in folder.glob("*.jsonl"):
                    if path.stem != "quarantine" and any(holds_key(row, key) for row in files.read_rows(path)):
                        holding[file_md5(path)] = path.relative_to(root).as_posix()
            there = any(isinstance(step, tuple) and step[0] == name for step in steps)
            versions = data_sets({key}, ledger)
            assert {md5: path for md5, path in versions.items() if not md5.endswith(".dir")} == holding
            if holding:
                assert {each.adapter for each in forward("conversation", key, ledger, root).trained} == adapters
            erased, counts = store.erase(keys_of([name])), forget(keys_of([name]), folder, task())
            assert (erased > 0) == there
            assert bool(counts) == there
            for path in (path for path in root.rglob("*") if path.is_file()):
                assert key not in path.read_text(), path
                assert f"word{name}" not in path.read_text(), path
            again = ingest(root, folder, [Source("capture", str(store.folder))], task(), {}, False, None)
            assert again.read == 0
            assert forget(keys_of([name]), folder, task()) == {}
    finally:
        shutil.rmtree(root)


def holds_key(row: dict[str, Any], key: str) -> bool:
    return row.get("source", row.get("key")) == key


def trained(root: Path, folder: Path, ledger: Ledger, key: str, adapter: str) -> set[str]:
    """An adapter trained on the scenarios that are there now, by the edges that a run leaves; it is returned if one of them
    was made of the conversation."""
    listed = files.read_rows(folder / "scenarios.jsonl")
    rows = Rows()
    for row in listed:
        rows.edge(("scenario", row["id"]), "attempted", ("trajectory", f"{adapter}/{row['id']}"))
        rows.edge(rows.node(("trajectory", f"{adapter}/{row['id']}")), "collected", rows.node(("batch", adapter)))
    rows.edge(rows.node(("batch", adapter)), "trained", rows.node(("adapter", adapter)))
    ledger.change(lambda connection: write(connection, rows))
    return {adapter} if any(holds_key(row, key) for row in listed) else set()


def test_an_adapter_that_a_stage_made_of_a_data_set_is_listed(tmp_path: Path) -> None:
    """As the stage sft makes one: dvc.lock says what it read."""
    import safetensors.torch
    import torch
    import yaml

    store, folder = Store(tmp_path / "capture"), tmp_path / INGESTED / "email_search"
    captured(store, "alpha", 1, "good")
    captured(store, "beta", 2, "good")
    ingest(tmp_path, folder, [Source("capture", str(store.folder))], task(), {}, False, 0.4)
    adapter = tmp_path / "run/sft/adapter"
    adapter.mkdir(parents=True)
    (adapter / "adapter_config.json").write_text("{}")
    safetensors.torch.save_file({"a": torch.zeros(1)}, adapter / "adapter_model.safetensors")
    path = "ingested/email_search/demonstrations.jsonl"
    deps = [{"path": path, "md5": file_md5(tmp_path / path)}]
    entry = {"cmd": "x", "deps": deps, "outs": [{"path": "run/sft/adapter", "md5": "0.dir"}]}
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": {"sft": entry}}))
    with Ledger("sqlite://") as ledger:
        add_ingested(tmp_path, ledger)
        for name in ("alpha", "beta"):
            [touched] = forward("conversation", key_of("capture", name), ledger, tmp_path).trained
            assert len(touched.adapter) == 16
        assert data_sets({key_of("capture", "gamma")}, ledger) == {}


def test_a_conversation_is_named_by_its_id_or_its_key() -> None:
    keys = keys_of(["chat 1"])
    assert key_of("capture", "chat 1") in keys
    assert key_of("langfuse", "chat 1") in keys
    assert keys_of([key_of("otel", "x")]) == {key_of("otel", "x")}


@pytest.mark.parametrize("text", ["{", '{"a": 1}\n[', '["a"]'])
def test_damaged_files_are_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "conversations.jsonl").write_text(text)
    with pytest.raises(Exception, match=r"conversations.jsonl, line . is damaged: `.venv/bin/dvc checkout"):
        files.read_conversations(tmp_path)
    (tmp_path / "state.json").write_text("[")
    with pytest.raises(Exception, match=r"state.json is damaged"):
        files.read_state(tmp_path)
    (tmp_path / "ingested.dvc").write_text(json.dumps({}))
    with pytest.raises(Exception, match="dvc pull"):
        files.read_conversations(tmp_path / "ingested")
