"""Tasks with the tools of an MCP server: each episode's server, what fails and how that reads, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

import environments
from environments import _new
from environments.base import Scenario, TaskProblem, split_of
from environments.kit.waiting import Limited, TookTooLong, run
from environments.mcp import SCENARIOS, Data, Mcp, server, settings
from environments.mcp.settings import read_settings
from steps.core.errors import explain
from steps.core.records import Trajectory
from steps.core.section import at
from steps.judging.rule import by_rule
from steps.kit.process import alive
from tests.conftest import ROOT

SERVER = str(ROOT / "tests" / "support" / "mcp_server.py")
ASKED = Scenario.make("mcp", "train", [{"role": "user", "content": "Keep a note."}], {})
LOST = "Error: the tool server stopped, and what it had stored is lost; the next call starts it again."


def write(folder: Path, **settings: Any) -> Path:
    folder.mkdir(exist_ok=True)
    usual = {"description": "You keep notes.", "command": "python", "args": [SERVER]}
    (folder / "server.yaml").write_text(yaml.safe_dump(usual | settings))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A task's data, with the server's tools."""
    os.environ["NOTES_KEY"] = ""
    made = write(tmp_path_factory.mktemp("notes"), pass_env=["NOTES_KEY"], env={"WHERE": "{data}"})
    (made / "work").mkdir()
    (made / "work" / "first.txt").write_text("buy milk")
    server.record(made)
    yield made
    del os.environ["NOTES_KEY"]


@pytest.fixture
def begin() -> Iterator[Callable[[Data], Mcp]]:
    """Begins an episode, which ends with the test."""
    begun: list[Mcp] = []

    def start(data: Data) -> Mcp:
        begun.append(Mcp(ASKED, data))
        return begun[-1]

    yield start
    for env in begun:
        env.release()


def with_settings(folder: Path, **settings: Any) -> Data:
    data = Mcp.load(folder)
    changed = data.settings.model_copy(update=settings)
    return data._replace(settings=changed, servers=server.Servers(changed, folder, data.tools))


def gone(pid: str) -> bool:
    for _ in range(300):
        if not alive(int(pid)):
            return True
        time.sleep(0.02)
    return False


def test_each_episode_has_a_server_of_its_own_which_ends_with_it(
    folder: Path, begin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTES_KEY", "k1")
    data = Mcp.load(folder)
    first, second = begin(data), begin(data)
    assert first.call("write_note", {"text": "a\0b"}).startswith("Error: the arguments of write_note must be an object")
    assert first.call("write_note", {"text": "a"}) == "There are 2 notes."
    assert first.call("read_notes", {}) == "buy milk / a"  # a copy of work/ is where the server runs
    assert second.call("read_notes", {}) == "buy milk"
    assert (first.call("tell", {"name": "NOTES_KEY"}), first.call("tell", {"name": "WHERE"})) == (
        "k1",
        str(folder),
    )
    pids = [env.call("tell", {"name": "pid"}) for env in (first, second)]
    work = Path(first.call("tell", {"name": "cwd"}))
    assert len(set(pids)) == 2
    assert work.is_dir()
    assert [os.getpgid(int(pid)) for pid in pids] == [int(pid) for pid in pids]
    first.release()
    assert gone(pids[0])
    second.release()
    assert gone(pids[1])
    for _ in range(100):
        if not work.exists():
            break
        time.sleep(0.02)
    assert not work.exists()
    assert (folder / "work" / "first.txt").read_text() == "buy milk"


def test_tools_have_names_that_models_can_call_and_can_be_left_out(tmp_path: Path) -> None:
    folder = write(tmp_path, args=[SERVER, "--odd"], exclude=["notes_read"])
    assert server.record(folder) == ["notes_write", "notes_read"]
    settings = read_settings(folder)
    tools = json.loads((folder / "tools.json").read_text())
    servers = server.Servers(settings, folder, tools)
    servers.join()
    for _ in range(2):  # the first server has listed its tools, a second one has not
        taken = servers.take()
        assert run(taken.call("notes_write", {"text": "a"}, 30)) == "There are 1 notes."
        assert run(taken.call("notes_read", {}, 30)) == "a"
    servers.leave(taken)
    servers.end()
    folder = write(tmp_path / "two", args=[SERVER, "--odd"], include=["notes.write", "notes_read"])
    assert server.record(folder) == ["notes_write", "notes_read"]
    folder = write(tmp_path / "three", args=[SERVER, "--odd"], include=["notes.erase"])
    with pytest.raises(
        TaskProblem, match=r"name the tool 'notes.erase', and the MCP server .* has notes.write, notes/read"
    ):
        server.record(folder)


def test_names_that_collide_get_numbers() -> None:
    names = ["a.b", "a/b", "a_b", "é" * 70]
    assert settings.shown_names(names) == {"a_b": "a_b", "a.b": "a_b_2", "a/b": "a_b_3", "é" * 70: "_" * 60}


def test_what_fails_is_an_error_that_the_policy_reads(
    folder: Path, begin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = begin(Mcp.load(folder))
    assert env.call("drop", {}).startswith('Error: there is no tool named "drop"; the tools are die, draw, fail, hang')
    assert env.call("read_notes", "all").startswith("Error: the arguments of read_notes must be an object")
    assert env.call("read_notes", {"limit": "many"}).startswith("Error: ")
    assert env.call("fail", {}).startswith("Error: ")
    assert "no luck" in env.call("fail", {})
    assert env.call("draw", {}) == "[image (image/png), which cannot be shown]\na pixel"
    env.call("write_note", {"text": "b"})
    assert env.call("die", {}) == LOST
    assert env.call("read_notes", {}) == "buy milk"  # a new server
    env.limit = Limited(0.3)
    asked: Any = {"function": {"name": "hang", "arguments": {"seconds": 1.0}}}
    said = env.step({"role": "assistant", "content": "", "tool_calls": [asked]})
    assert said[0]["content"] == (
        'Error: the tool "hang" took longer than 0.3 seconds, and its answer was not waited for.'
    )
    env.limit.seconds = 20  # the next call waits until the one before it has ended
    asked = {"function": {"name": "read_notes", "arguments": {}}}
    said = env.step({"role": "assistant", "content": "", "tool_calls": [asked]})
    assert said[0]["content"] == "buy milk"
    pid = env.call("tell", {"name": "pid"})
    monkeypatch.setattr(server, "ALIVE_SECONDS", 0.1)
    with pytest.raises(TookTooLong):
        run(env.server.call("hang", {}, 0.1))
    assert env.call("read_notes", {}) == "buy milk"  # a server that answers nothing any more makes room for another
    assert gone(pid)
    assert env.step({"role": "assistant", "content": "Done."}) == []
    assert env.done


def test_servers_that_are_reset_are_handed_on_and_a_shared_one_is_one(folder: Path, begin: Any) -> None:
    tools = [tool for tool in json.loads((folder / "tools.json").read_text()) if "anew" not in tool["function"]["name"]]
    settings = read_settings(folder).model_copy(update={"fresh": False, "reset": "start_anew"})
    data = Mcp.load(folder)._replace(settings=settings, tools=tools, servers=server.Servers(settings, folder, tools))
    watch, first = begin(data), begin(data)
    assert first.call("write_note", {"text": "mine"}) == "There are 1 notes."
    pid = first.call("tell", {"name": "pid"})
    first.release()
    second = begin(data)
    assert second.call("tell", {"name": "pid"}) == pid
    assert second.call("read_notes", {}) == "There are no notes."
    assert "start_anew" in second.call("start_anew", {})  # is no tool for the agent
    second.release()
    assert not gone_at_once(pid)
    watch.release()
    assert gone(pid)
    shared = with_settings(folder, fresh=False)
    one, other = begin(shared), begin(shared)
    assert one.call("tell", {"name": "pid"}) == other.call("tell", {"name": "pid"})


def gone_at_once(pid: str) -> bool:
    return not Path(f"/proc/{pid}").exists()


def test_a_server_is_reached_by_its_address_and_again_when_it_is_back(tmp_path: Path, folder: Path, begin: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen([sys.executable, SERVER, "--sdk", "--http", str(port)], stderr=subprocess.DEVNULL)
        for _ in range(400):
            with socket.socket() as tried:
                if tried.connect_ex(("127.0.0.1", port)) == 0:
                    return process
            time.sleep(0.05)
        raise AssertionError("the server did not start")

    away = write(tmp_path / "away", command=None, args=[], url=f"http://127.0.0.1:{port}/mcp", fresh=False)
    with pytest.raises(TaskProblem, match=r"MCP server http://127.0.0.1:\d+/mcp does not start \("):
        server.record(away)
    process = start()
    try:
        server.record(away)
        assert (
            len(json.loads((away / "tools.json").read_text()))
            == len(json.loads((folder / "tools.json").read_text())) - 1
        )
        for name in ("environments", "tasks_data"):
            (tmp_path / "made" / name).mkdir(parents=True)
        written = _new.write_mcp("notes", f"http://127.0.0.1:{port}/mcp", tmp_path / "made")
        assert written[-1].read_text() == (away / "tools.json").read_text()
        env = begin(Mcp.load(away))
        assert env.call("write_note", {"text": "a"}) == "There are 1 notes."
        process.kill()
        process.wait()
        assert env.call("read_notes", {}).startswith("Error: ")
        process = start()
        said = [env.call("read_notes", {}) for _ in range(2)]
        assert said[1] == "There are no notes."
    finally:
        process.kill()


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_server_ends_with_the_process_that_started_it(folder: Path, is_killed: bool) -> None:
    code = (
        "import sys; from environments.mcp import Mcp; from environments.base import Scenario; "
        "from pathlib import Path; data = Mcp.load(Path(sys.argv[1])); "
        "env = Mcp(Scenario.make('mcp', 'train', [], {}), data); "
        "print(*[env.call('tell', {'name': name}) for name in ('pid', 'cwd')], flush=True); sys.stdin.readline()"
    )
    pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    owner = subprocess.Popen([sys.executable, "-c", code, folder], cwd=ROOT, **pipes)
    assert owner.stdin is not None
    assert owner.stdout is not None
    pid, work = owner.stdout.readline().split()
    assert not gone_at_once(pid)
    if is_killed:
        owner.send_signal(signal.SIGKILL)
    owner.stdin.close()
    owner.stdout.close()
    owner.wait()
    assert gone(pid)
    assert Path(work).exists() == is_killed
    shutil.rmtree(work, ignore_errors=True)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"args": [SERVER, "--broken"]}, "does not start .*; its last words: there is no database"),
        ({"args": [SERVER, "--none"]}, "has no tools that an agent could call"),
        ({"command": "no-such-program", "args": []}, "does not start .there is no program no-such-program"),
        ({"command": None}, "args, env and pass_env belong to a command|give either command or url"),
        ({"url": "http://127.0.0.1:9/mcp"}, "give either command or url"),
        ({"reset": "start_anew"}, "reset belongs to fresh: false"),
        ({"key_env": "KEY"}, "key_env belongs to a url"),
        ({"pass_env": ["NOTES_KYE"]}, "does not start .server.yaml names the variable NOTES_KYE, which is not set"),
        ({"description": ""}, "description: String should have at least 1 character"),
        ({"turns": 3}, "turns: Extra inputs are not permitted"),
    ],
)
def test_what_cannot_be_played_is_a_sentence(tmp_path: Path, settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TaskProblem, match=sentence) as raised:
        server.record(write(tmp_path, **settings))
    assert explain(raised.value) == (str(raised.value), 2)
    assert not (tmp_path / "tools.json").exists()


def test_what_is_missing_or_has_changed_is_said(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(TaskProblem, match=r"server\.yaml is missing"):
        Mcp.load(tmp_path)
    write(tmp_path)
    with pytest.raises(
        TaskProblem, match=r"tools.json is missing: `.venv/bin/python -m environments\.mcp\.server .*` asks the server"
    ):
        Mcp.load(tmp_path)
    (tmp_path / "tools.json").write_text("[{}]")
    with pytest.raises(TaskProblem, match=r"tools\.json is damaged"):
        Mcp.load(tmp_path)
    tools = json.loads((folder / "tools.json").read_text())
    tools[0]["function"]["description"] = "End it."
    (tmp_path / "tools.json").write_text(json.dumps(tools[:-1]))
    data = Mcp.load(tmp_path)
    with pytest.raises(
        TaskProblem, match=r"other tools than .*tools.json \(differing: die, write_note\); write it again"
    ):
        Mcp(ASKED, data)
    (tmp_path / "server.yaml").write_text("a: [")
    with pytest.raises(TaskProblem, match="is no YAML"):
        Mcp.load(tmp_path)


def test_scenarios_come_from_the_file_alone(folder: Path) -> None:
    texts = [f"Keep the note number {number}." for number in range(30)]
    lines: list[dict[str, Any]] = [
        {
            "messages": [{"role": "user", "content": text}],
            "data": {},
            "difficulty": 1,
            "split": split_of(text.lower().rstrip(".")),
        }
        for text in texts
    ]
    data = Mcp.load(folder)
    with pytest.raises(
        ValueError, match=r"scenarios.jsonl is missing: `.venv/bin/python -m addons\.supervised\.generate --task mcp"
    ):
        Mcp.scenarios(data, "train", 1, 1)
    path = folder / SCENARIOS
    try:
        path.write_text("".join(json.dumps(line) + "\n" for line in [*lines, lines[0]]))
        data = Mcp.load(folder)
        assert data.scenarios is not None
        counts = {split: len(known) for split, known in data.scenarios.items()}
        assert sum(counts.values()) == 30
        assert Mcp.scenarios(data, "train", 5, 1) == Mcp.scenarios(Mcp.load(folder), "train", 5, 1)
        assert Mcp.scenarios(data, "train", 5, 1) != Mcp.scenarios(data, "train", 5, 2)
        scenario = Mcp.scenarios(data, "val", 1, 1)[0]
        assert [message["role"] for message in scenario.messages] == ["system", "user"]
        assert scenario.messages[0]["content"] == "You keep notes."
        with pytest.raises(ValueError, match=f"has {counts['test']} of test: ask for fewer"):
            Mcp.scenarios(data, "test", 31, 1)
        path.write_text(json.dumps(lines[0] | {"split": "nowhere"}))
        with pytest.raises(TaskProblem, match="line 1: its words belong to the split"):
            Mcp.load(folder)
    finally:
        path.unlink()


def test_there_is_no_rule_and_no_player_but_a_random_one(folder: Path, begin: Any) -> None:
    done: Any = {"turns": (), "stop_reason": "done", "adapter_hash": "a", "attempt": 0}
    reward = by_rule(Mcp, ASKED, Trajectory(id="x", scenario_id=ASKED.id, **done))
    assert (reward.score, reward.success, reward.explanation) == (None, False, "this task has no rule")
    env = begin(Mcp.load(folder))
    with pytest.raises(ValueError, match="mcp has no scripted player"):
        env.play("scripted")
    data = Mcp.load(folder)
    Mcp(ASKED, data).play("random")
    assert data.servers._users == 0  # its server is not left behind
    turns = [env.random([], Random(seed)) for seed in range(40)]
    called = {call["function"]["name"] for turn in turns for call in turn.get("tool_calls", ())}
    assert called == set(Mcp.tools())
    assert any("tool_calls" not in turn for turn in turns)
    assert environments.load("mcp") is Mcp
    assert "mcp" not in environments.tasks()


def test_a_new_task_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from steps.core import params

    package = tmp_path / "made"
    for name in ("environments", "tasks_data"):
        (package / name).mkdir(parents=True)
    with pytest.raises(ValueError, match="there is no database"):
        _new.write_mcp("notes", f"python {SERVER} --broken", package)
    assert [path for path in package.rglob("*") if path.is_file()] == []
    written = _new.write_mcp("notes", f"python {SERVER}", package)
    assert [str(path.relative_to(package)) for path in written] == [
        "tasks_data/notes/server.yaml",
        "tasks_data/notes/rubric.md",
        "tasks_data/notes.yaml",
        "environments/notes.py",
        "tasks_data/notes/tools.json",
    ]
    assert at(params.load(package / "tasks_data" / "notes.yaml", params.Params), "score.judges.ruler") == 1
    monkeypatch.syspath_prepend(tmp_path)
    env: Any = environments.load("made.environments.notes")
    data = env.load(package / "tasks_data" / "notes")
    assert env.describe(data).startswith("You help your user")
    assert set(env.tools()) == set(Mcp.tools())
    with pytest.raises(ValueError, match="the name notes is taken"):
        _new.write_mcp("notes", f"python {SERVER}", package)
