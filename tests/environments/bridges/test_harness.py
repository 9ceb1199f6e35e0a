"""Harnesses as tasks, with a fake one (tests/support/fake_harness.py): its folder, what it may reach, its end, the check."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import environments
from addons.agents.episode import Episode
from environments import Result, _new
from environments.base import Scenario
from environments.bridges import harness
from environments.bridges.harness import HARNESSES, Harness
from environments.kit.sandbox import confined
from flows.repro.parameters import set_params
from steps.core import params
from steps.core.errors import UserError
from steps.kit.process import alive
from tests.conftest import ROOT
from tests.project.test_readme import blocks

PAGE = (ROOT / "docs" / "harnesses.md").read_text()
KEY = "the key of this episode"
FAKE = Harness(
    "npm install --global fake-harness",
    ("fake-harness", "--print", "$question"),
    {"FAKE_URL": "$root", "FAKE_KEY": "$key"},
    {".fake/settings.json": '{"url": "$base_url", "model": "$model"}'},
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The fake harness on PATH, and a place for the folders of episodes."""
    programs = tmp_path / "programs"
    programs.mkdir()
    shutil.copy(ROOT / "tests" / "support" / "fake_harness.py", programs / "fake-harness")
    (programs / "fake-harness").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.defpath}:/usr/local/bin")
    monkeypatch.setenv("OPENAI_API_KEY", "the user's own")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


class Logged(Episode):
    """An episode that keeps what is logged."""

    def __init__(self, orders: dict[str, Any], seconds: float = 60.0, port: int = 9, **data: Any) -> None:
        row = {"question": json.dumps(orders), "kind": "fake"} | data
        messages, fields = harness.HarnessEnv.read_row(row)
        scenario = Scenario.make("harness:fake", "train", messages, fields)
        super().__init__("001-0", scenario, 0, 1, f"http://127.0.0.1:{port}/episodes/001-0/v1", KEY, seconds)
        self.lines: list[str] = []

    def log(self, text: object) -> None:
        self.lines.append(str(text))


def play(episode: Logged) -> Result:
    return asyncio.run(harness.rollout(FAKE, episode))


def report(orders: dict[str, Any], port: int = 9, **data: Any) -> dict[str, Any]:
    """What the fake harness reports of an episode, which a check carries to where it can be read."""
    episode = Logged(orders, port=port, check="cat report.json", **data)
    shown: list[str] = []
    whole = confined.run

    async def run(job: confined.Job) -> confined.Outcome:
        outcome = await whole(job)
        shown.append(outcome.output)
        return outcome

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(confined, "run", run)
        assert play(episode).success, episode.lines
    return dict(json.loads(shown[-1]))


def test_a_harness_works_in_a_folder_of_its_own_with_its_own_settings(place: Path) -> None:
    made = report({"write": {"answer.txt": "42"}}, files={"src/sums.py": "x = 1\n", "notes.txt": "é"})
    folder = Path(made["folder"])
    assert folder == place / f"harness-{os.getuid()}" / "001-0" / "work"
    assert made["files"] == ["notes.txt", "src/sums.py"]
    assert made["arguments"][0] == "--print"
    [(path, settings)] = made["home"].items()
    assert path == str(folder.parent / "home/.fake/settings.json")
    assert json.loads(settings) == {"url": "http://127.0.0.1:9/episodes/001-0/v1", "model": "policy"}
    assert made["variables"]["FAKE_URL"] == "http://127.0.0.1:9/episodes/001-0"
    assert made["variables"]["FAKE_KEY"] == KEY
    assert made["variables"]["HOME"] == str(folder.parent / "home")
    assert "OPENAI_API_KEY" not in made["variables"]
    assert not folder.parent.exists()


def test_nothing_else_can_be_read_written_or_reached(place: Path, server: socket.socket) -> None:
    secret = place / "secret.txt"
    secret.write_text("a secret")
    other = socket.create_server(("127.0.0.1", 0))
    with other:
        own, port = server.getsockname()[1], other.getsockname()[1]
        orders = {
            "read": [str(secret), str(ROOT / "README.md"), f"/proc/{os.getpid()}/environ"],
            "write": {str(place / "planted.txt"): "x", "inside.txt": "x", "/dev/null": "x"},
            "connect": [own, port],
            "make": ["AF_INET SOCK_DGRAM", "AF_INET6 SOCK_RAW", "AF_UNIX SOCK_STREAM", "AF_INET SOCK_STREAM 262"],
        }
        made = report(orders, port=own)
    assert set(made["read"].values()) == {"PermissionError"}
    assert made["wrote"] == {str(place / "planted.txt"): "PermissionError", "inside.txt": "1", "/dev/null": "1"}
    assert made["connected"] == {str(own): "connected", str(port): "PermissionError"}
    assert set(made["made"].values()) == {"PermissionError"}
    assert not (place / "planted.txt").exists()


def test_the_check_decides_and_the_harness_can_neither_see_nor_plant_its_files(place: Path) -> None:
    outside = place / "outside.py"
    outside.write_text("untouched")
    hidden = {"check/test.py": "import pathlib, sys\nsys.exit(pathlib.Path('answer.txt').read_text() != '42')\n"}
    data: dict[str, Any] = {"check": "python3 check/test.py", "check_files": hidden}
    right = Logged({"write": {"answer.txt": "42"}, "link": {"check": str(place)}}, **data)
    assert play(right) == Result(reward=1.0, success=True)
    linked = Logged({"write": {"answer.txt": "41"}, "link": {"check.py": str(outside)}}, **data)
    assert play(linked) == Result(reward=0.0, success=False)
    assert "check, status 1" in linked.lines[-1]
    planted = Logged({"link": {"check.py": str(outside)}}, check="true", check_files={"check.py": "pass"})
    assert play(planted).success
    assert outside.read_text() == "untouched"
    assert not (place / "test.py").exists()


def test_the_check_reaches_no_network_and_a_scenario_without_one_is_judged(place: Path, server: socket.socket) -> None:
    port = server.getsockname()[1]
    code = f"import socket; socket.create_connection(('127.0.0.1', {port}), timeout=5)"
    episode = Logged({}, port=port, check=f'python3 -c "{code}"')
    assert play(episode).reward == 0.0
    assert "PermissionError" in episode.lines[-1]
    assert play(Logged({})) == Result()


def test_a_harness_that_fails_is_logged_and_its_work_is_checked(place: Path) -> None:
    episode = Logged({"write": {"answer.txt": "42"}, "status": 3}, check="grep -q 42 answer.txt")
    assert play(episode).reward == 1.0
    assert episode.lines[0].startswith("fake-harness ended with status 3")


def test_at_its_time_limit_a_harness_is_ended_with_all_that_it_started(place: Path) -> None:
    """The check then sees what is there. The process that was left behind, in a session of its own, is gone."""
    gone = "! kill -0 $(cat left) 2>/dev/null"
    episode = Logged({"sleep": 60, "leave": 60}, seconds=4.0, check=f"test -f report.json && test -f left && {gone}")
    start = time.monotonic()
    assert play(episode).success, episode.lines
    assert time.monotonic() - start < 10
    assert episode.lines[0].startswith("fake-harness was ended at its time limit")


def test_processes_that_a_harness_leaves_behind_end_with_it(place: Path) -> None:
    episode = Logged({"leave": 60}, check="kill -0 $(cat left)")
    assert play(episode).reward == 0.0


def left_behind(place: Path) -> int:
    """The process that a fake harness has left behind, once it has."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        for path in place.rglob("left"):
            if text := path.read_text():
                return int(text)
        time.sleep(0.02)
    raise AssertionError("the fake harness left nothing behind")


def ends(pid: int) -> bool:
    until = time.monotonic() + 10
    while alive(pid) and time.monotonic() < until:
        time.sleep(0.02)
    return not alive(pid)


def test_an_episode_that_is_cancelled_leaves_nothing(place: Path) -> None:
    async def cancel() -> int:
        task = asyncio.create_task(harness.rollout(FAKE, Logged({"sleep": 60, "leave": 60})))
        pid = await asyncio.to_thread(left_behind, place)
        assert alive(pid)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return pid

    assert ends(asyncio.run(cancel()))
    assert list((place / f"harness-{os.getuid()}").iterdir()) == []


def test_a_harness_ends_when_the_process_that_runs_it_is_killed(place: Path) -> None:
    orders = json.dumps({"sleep": 60, "leave": 60})
    code = (
        "import asyncio, pathlib, sys\nfrom environments.kit.sandbox import confined\n"
        "place, program, orders = sys.argv[1:]\n"
        "job = confined.Job([program, orders], pathlib.Path(place), 60.0, None,\n"
        "    {'PATH': '/usr/local/bin:/usr/bin:/bin'}, confined.installed(program))\n"
        "asyncio.run(confined.run(job))"
    )
    folder = place / "episode"
    folder.mkdir()
    words = [sys.executable, "-c", code, str(folder), str(place / "programs" / "fake-harness"), orders]
    runner = subprocess.Popen(words, cwd=ROOT)
    try:
        pid = left_behind(folder)
        assert alive(pid)
    finally:
        runner.send_signal(signal.SIGKILL)
        runner.wait()
    assert ends(pid)


def test_a_machine_without_walls_runs_nothing_unless_it_is_told_to(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("environments.kit.sandbox._runner.landlock_version", lambda libc: 0)
    with pytest.raises(confined.NotConfinedError, match=r"this machine has none.*set FLYWHEEL_UNCONFINED=1"):
        play(Logged({}))
    monkeypatch.setenv(confined.UNCONFINED, "1")
    secret = place / "secret.txt"
    secret.write_text("a secret")
    assert report({"read": [str(secret)]})["read"] == {str(secret): "a secret"}


@pytest.mark.parametrize("name", HARNESSES)
def test_a_program_that_is_not_here_is_a_sentence_with_its_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    env: Any = environments.load(f"harness:{name}")
    harness = HARNESSES[name]
    sentence = f"the program {harness.command[0]} is not on PATH: `{harness.install}` installs it"
    with pytest.raises(FileNotFoundError, match=re.escape(sentence)):
        env.ready()


def test_a_worker_whose_machine_lacks_the_program_says_so_and_takes_no_episode() -> None:
    words = [sys.executable, "-m", "addons.agents.worker", "harness:codex"]
    variables = {**os.environ, "PATH": "/nowhere"}
    done = subprocess.run(words, cwd=ROOT, env=variables, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert json.loads(done.stdout) == {
        "broken": "harness:codex cannot be loaded: FileNotFoundError: the program codex is not on PATH: "
        "`npm install --global @openai/codex` installs it"
    }


def test_harnesses_are_tasks_by_their_names() -> None:
    env: Any = environments.load("harness:claude-code")
    assert env.is_agent
    assert env.task == "harness:claude-code"
    assert environments.load("harness:claude-code.reviews") is not env
    assert params.Params(task="harness:claude-code.reviews").task == "harness:claude-code.reviews"
    with pytest.raises(
        ValueError, match=r"there is no harness claude_code; did you mean claude-code\? There are claude-code, codex"
    ):
        environments.load("harness:claude_code")
    with pytest.raises(ValueError, match="behind the dot stands a name for its scenarios"):
        environments.load("harness:codex.Two words")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        (
            {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]},
            "no other messages",
        ),
        ({"question": "-v"}, "not begin with a hyphen"),
        ({"question": "x" * 100_001}, "at most 100000 bytes"),
        ({"question": "Go.", "files": ["a"]}, "files must be an object of texts by their paths"),
        (
            {"question": "Go.", "files": {"/etc/passwd": ""}},
            "files: '/etc/passwd' must be a path in the episode's folder",
        ),
        ({"question": "Go.", "files": {"a/../../b": ""}}, "must be a path in the episode's folder"),
        ({"question": "Go.", "check": "true", "check_files": {"a//b": ""}}, "check_files: 'a//b' must be a path"),
        ({"question": "Go.", "check": " "}, "check must be a command of a shell"),
        ({"question": "Go.", "check_files": {"a": ""}}, "check_files are for a check"),
    ],
)
def test_scenarios_of_which_no_folder_can_be_made(row: dict[str, Any], reason: str, tmp_path: Path) -> None:
    (tmp_path / "scenarios.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=rf"scenarios.jsonl, line 1: .*{re.escape(reason)}"):
        environments.load("harness:codex").load(tmp_path)


def test_the_same_question_about_other_files_is_another_scenario(tmp_path: Path) -> None:
    rows = [{"question": "Mend it.", "files": {"a.py": str(number)}, "check": "true"} for number in range(60)]
    (tmp_path / "scenarios.jsonl").write_text("\n".join(map(json.dumps, rows)))
    scenarios = environments.load("harness:codex").load(tmp_path)
    assert len({scenario.id for scenario in scenarios}) == 60
    assert {scenario.split for scenario in scenarios} == {"train", "val", "test"}
    of_one = [row | {"source": "one repository"} for row in rows]
    (tmp_path / "scenarios.jsonl").write_text("\n".join(map(json.dumps, of_one)))
    assert len({scenario.split for scenario in environments.load("harness:codex").load(tmp_path)}) == 1


def test_without_scenarios_a_sentence_says_what_writes_them(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="make new-harness HARNESS=codex NAME=reviews` writes examples"):
        environments.load("harness:codex.reviews").load(tmp_path)


def test_folders_that_the_client_names_can_be_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools, other = place / "tools", place / "other"
    for folder in (tools, other):
        folder.mkdir()
        (folder / "notes.txt").write_text("a note")
    monkeypatch.setenv(harness.READABLE, f"/nowhere:{tools}")
    made = report({"read": [str(tools / "notes.txt"), str(other / "notes.txt")]})
    assert list(made["read"].values()) == ["a note", "PermissionError"]


def test_two_episodes_of_one_name_have_folders_of_their_own(place: Path) -> None:
    with harness.episode_folder("001-0") as first, harness.episode_folder("001-0") as second:
        assert (first.name, second.name) == ("001-0", "001-0-1")
        assert first.is_dir()
    assert not first.exists()
    assert not second.exists()


def test_the_folder_of_a_client_that_was_killed_is_taken_over(place: Path) -> None:
    with harness.episode_folder("001-0") as folder:
        pass
    folder.mkdir()
    (folder / harness.OWNER).write_text("999999999")
    (folder / "old.txt").write_text("left behind")
    with harness.episode_folder("001-0") as again:
        assert again == folder
        assert sorted(path.name for path in again.iterdir()) == ["home", "owner", "tmp", "work"]


def test_a_run_without_scenarios_is_refused_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="make new-harness HARNESS=codex` writes examples to edit"):
        set_params([], tmp_path / "params.yaml", task="harness:codex")


def test_the_scenario_of_the_page_is_played(place: Path) -> None:
    row = json.loads(blocks(PAGE, "json")[0])
    question = row.pop("question")
    assert question
    mended = row["files"]["sums.py"].replace("a - b", "a + b")
    assert play(Logged({}, **row)).reward == 0.0
    assert play(Logged({"write": {"sums.py": mended}}, **row)).reward == 1.0


def test_the_page_lists_the_harnesses_and_their_commands() -> None:
    for name, each in HARNESSES.items():
        assert f"| `harness:{name}` | `{' '.join(each.command)}` | `{each.install}` |" in PAGE


def test_new_scenarios_are_whole_and_their_check_tells_right_from_wrong(place: Path, tmp_path: Path) -> None:
    root = tmp_path / "project"
    (root / "tasks_data").mkdir(parents=True)
    written = _new.write_harness("reviews", "codex", root)
    data, preset = written[0].parent, written[-1]
    assert data == root / "tasks_data" / "harness:codex.reviews"
    settings = params.load(preset, params.Params)
    env: Any = environments.load(settings.task)
    scenarios = env.load(data)
    for split in ("train", "val", "test"):
        count = getattr(settings.scenarios, split)
        assert len(env.scenarios(scenarios, split, count, settings.seed)) == count
    row = json.loads((data / "scenarios.jsonl").read_text().splitlines()[1])
    assert row.pop("question") == "In work.py, make change return x minus 2."
    wrong, right = (f"def change(x):\n    return x {sign} 2\n" for sign in "+-")
    assert play(Logged({"write": {"work.py": wrong}}, **row)).reward == 0.0
    assert play(Logged({"write": {"work.py": right}}, **row)).reward == 1.0
    with pytest.raises(ValueError, match=r"tasks_data/harness:codex.reviews exists: choose a name for other scenarios"):
        _new.write_harness("reviews", "codex", root)
    with pytest.raises(ValueError, match="there is no harness codx; did you mean codex"):
        _new.write_harness("", "codx", root)
