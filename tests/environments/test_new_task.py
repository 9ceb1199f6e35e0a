"""A new task is whole, works at once, and is refused under a name that will not do; nothing is ever written half."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path
from typing import NamedTuple, cast

import pytest

import environments
from environments import _new
from environments.base import Split, use
from steps.core import params
from tests.conftest import ROOT, copy_project, python


def do(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=280)


def new_task(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    return do(python("environments._new", name), folder)


def listing(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if "__pycache__" not in path.parts and ".git" not in path.parts}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """As much of a project as a new task needs to find."""
    for place in ("environments/taken.py", "tasks_data/data/facts.json", "tasks_data/preset.yaml"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text("here before")
    return tmp_path


class Written(NamedTuple):
    """A copy of the project in which a new task and then a new agent was written."""

    folder: Path
    said: tuple[str, str]
    added: tuple[set[Path], set[Path]]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    folder = copy_project(tmp_path_factory.mktemp("new"))
    listings, said = [listing(folder)], []
    for words in (["river_names"], ["river_agent", "--agent"]):
        done = do(python("environments._new", *words), folder)
        assert done.returncode == 0, done.stderr
        said.append(done.stdout)
        listings.append(listing(folder))
    before, between, after = listings
    return Written(folder, (said[0], said[1]), (between - before, after - between))


@pytest.mark.slow
def test_a_new_task_is_whole(written: Written) -> None:
    folder, data = written.folder, written.folder / "tasks_data" / "river_names"
    files = [folder / "environments" / "river_names.py", data / "capitals.json", data / "rubric.md"]
    files.append(folder / "tasks_data" / "river_names.yaml")
    assert written.added[0] == {data, *files}
    assert written.said[0].startswith("wrote " + ", ".join(str(path.relative_to(folder)) for path in files) + "\n")
    preset = params.load(files[-1], params.Params)
    assert preset.task == "river_names"
    assert preset.policy.base_model == "tasks_data/general_policy"
    env = environments.load("_template")
    facts = env.load(_new.TEMPLATE)
    for split, count in (
        ("train", preset.scenarios.train),
        ("val", preset.scenarios.val),
        ("test", preset.scenarios.test),
    ):
        assert len(env.scenarios(facts, cast(Split, split), count, preset.seed)) == count
    again = new_task(folder, "river_names")
    assert again.returncode == 2
    assert again.stderr == "the name river_names is taken: environments/river_names.py exists; choose another.\n"


@pytest.mark.slow
def test_a_new_agent_is_whole(written: Written) -> None:
    folder, data = written.folder, written.folder / "tasks_data" / "river_agent"
    files = {data / name for name in ("capitals.json", "rubric.md", "scenarios.jsonl")}
    preset = data.with_suffix(".yaml")
    test = folder / "tests" / "environments" / "test_river_agent.py"
    assert written.added[1] == {data, *files, folder / "environments" / "river_agent.py", preset, test}
    settings = params.load(preset, params.Params)
    assert settings.task == "river_agent"
    env = environments.load("_agent_template")
    scenarios = env.load(data)
    for split in cast(tuple[Split, ...], ("train", "val", "test")):
        count = getattr(settings.scenarios, split)
        assert len(env.scenarios(scenarios, split, count, settings.seed)) == count
    assert "check: make check-task NAME=river_agent" in written.said[1]
    made = do(["make", "--dry-run", "check-task", "NAME=river_agent"], folder).stdout
    assert f"pytest -q tests/environments/test_environments.py {test.relative_to(folder)} --task" in made
    again = do(python("environments._new", "river_agent", "--agent"), folder)
    assert again.stderr == "the name river_agent is taken: environments/river_agent.py exists; choose another.\n"


def test_a_new_task_has_fifty_lines_at_most_and_defines_what_it_must() -> None:
    """Data, scenarios, a success, and two tools."""
    text = _new.source("rivers")
    [env] = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    methods = [node.name for node in env.body if isinstance(node, ast.FunctionDef)]
    assert methods == ["load", "scenarios", "look_up", "answer", "success"]
    assert len(text.splitlines()) <= 50


@pytest.mark.slow
def test_both_pass_what_every_task_must_pass_and_the_agent_its_own_test(written: Written) -> None:
    code = ("environments/river_names.py", "environments/river_agent.py", "tests/environments/test_river_agent.py")
    files = "tests/stages/test_code.py::test_a_task_has_no_file_of_another_but_of_one_that_it_imports"
    names = ("river_names", "river_agent")
    tests = ("tests/environments/test_environments.py", code[-1], *(f"{files}[{name}]" for name in names))
    options = ("-k", "not test_the_checks_can_fail", "--task", names[0], "--task", names[1])
    for words in (
        ("pytest", "-q", "-p", "no:cacheprovider", "-n", "0", *tests, *options),
        ("ruff", "check", "--no-cache", *code),
        ("ruff", "format", "--check", "--no-cache", *code),
    ):
        checked = do(python(*words), written.folder)
        assert checked.returncode == 0, checked.stdout
        assert ("river_names has no gold player, which would bring" in checked.stdout) is (words[0] == "pytest")


@pytest.mark.parametrize(
    "name", ["", "Rivers", "2048", "my-task", "my task", "a.b", "../up", "_mine", "class", "é", "x" * 41]
)
def test_names_that_will_not_do(name: str, root: Path) -> None:
    before = listing(root)
    with pytest.raises(
        ValueError, match="cannot be a task's name: choose up to 40 small letters, digits and underscores"
    ):
        _new.write(name, root)
    assert listing(root) == before


@pytest.mark.parametrize(
    ("name", "place"),
    [("taken", "environments/taken.py"), ("data", "tasks_data/data"), ("preset", "tasks_data/preset.yaml")],
)
def test_names_that_are_taken(name: str, place: str, root: Path) -> None:
    before = listing(root)
    with pytest.raises(ValueError, match=f"the name {name} is taken: {place} exists; choose another"):
        _new.write(name, root)
    assert listing(root) == before
    assert (root / "environments" / "taken.py").read_text() == "here before"


@pytest.mark.parametrize("name", ["base", "email_search", "embedded_policy", "general_policy"])
def test_names_of_the_project_are_refused_in_one_sentence(name: str) -> None:
    done = new_task(ROOT, name)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"the name {name} is taken: ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("suffix", [".py", ".md", ".yaml"])
def test_a_failure_on_the_way_leaves_nothing(suffix: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = listing(root)
    write_text = Path.write_text

    def fail(self: Path, text: str, **options: str) -> int:
        write_text(self, text[:1], **options)
        if self.suffix == suffix:
            raise OSError("no space left")
        return 1

    monkeypatch.setattr(Path, "write_text", fail)
    with pytest.raises(OSError, match="no space left"):
        _new.write("rivers", root)
    assert listing(root) == before


@pytest.mark.parametrize("name", ["path", "random", "env", "scenario", "none", "false", "template", "a__1"])
def test_any_name_gives_a_module_with_one_environment(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also one that is the name of something in the module."""
    package = f"new_{name}"
    for folder in (package, f"{package}/environments", f"{package}/tasks_data"):
        (tmp_path / folder).mkdir()
    module, data, *_ = _new.write(name, tmp_path / package)
    monkeypatch.syspath_prepend(tmp_path)
    env = environments.load(f"{package}.environments.{name}")
    known = env.load(data.parent)
    [one] = env.scenarios(known, "train", 1, 1)
    assert one.task == name
    episode, right = env(one, known), use("answer", capital=one.data["answer"])
    assert env.success(one, [*one.messages, right, *episode.step(right)])
    assert episode.done
    assert module.parent.name == "environments"


def test_the_facts_are_many_and_each_has_its_own_answer() -> None:
    facts = environments.load("_template").load(_new.TEMPLATE)
    assert len(facts) >= 60
    assert len(set(facts.values())) == len(facts)
    assert (facts["New Zealand"], facts["Peru"], facts["Chad"]) == ("Wellington", "Lima", "N'Djamena")


def test_make_new_task_asks_for_a_name() -> None:
    assert 'python -m environments._new "rivers"' in do(["make", "--dry-run", "new-task", "NAME=rivers"], ROOT).stdout
    planned = do(["make", "--dry-run", "new-task", "NAME="], ROOT).stdout
    assert '[ -n "" ] || { echo "Name the new task' in planned
    agent = do(["make", "--dry-run", "new-agent", "NAME=rivers"], ROOT).stdout
    assert 'python -m environments._new "rivers" --agent' in agent
