"""`--set` and `--task`: params.yaml is changed at once, with its comments, or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

import environments
from flows.repro.parameters import has_tools, set_params
from steps.core.errors import UserError, explain
from steps.core.params import Params, load
from tests.conftest import ROOT, python, run


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with params.yaml and the presets of the tasks, where the process works."""
    shutil.copy(ROOT / "params.yaml", tmp_path)
    (tmp_path / "tasks_data").mkdir()
    for preset in (ROOT / "tasks_data").glob("*.yaml"):
        shutil.copy(preset, tmp_path / "tasks_data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # as `python -m` does
    return tmp_path


def files(folder: Path) -> dict[str, tuple[bytes, int, int]]:
    """What each file holds, when it was written, and its inode: a file written again differs; without compiled ones."""
    paths = [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns, path.stat().st_ino) for path in paths}


def test_keys_are_set_and_the_other_lines_stay(folder: Path) -> None:
    before = (folder / "params.yaml").read_text().splitlines()
    parameters = set_params(["rollout.attempts=6", "seed=7", "update.num_iterations=2", "score.ruler=null"])
    assert (parameters.rollout.attempts, parameters.seed, parameters.update.num_iterations) == (6, 7, 2)
    after = (folder / "params.yaml").read_text().splitlines()
    assert "  attempts: 6 # at each scenario; they are compared with each other" in after
    kept = [line for line in before if not line.startswith(("seed", "  attempts", "score"))]
    assert [line for line in kept if line not in after] == []


def test_the_text_is_that_of_dvcs_writer(folder: Path) -> None:
    """Which wrote it before: a run that was kept has the same bytes."""
    from dvc.utils.serialize import modify_yaml

    with modify_yaml("tasks_data/email_search.yaml") as content:
        content["rollout"]["attempts"] = 6
        content["score"]["judges"]["ruler"] = 1
        content["score"]["ruler"] = {"endpoint": {"model": "m"}}
    set_params(["rollout.attempts=6", "score.judges.ruler=1", "score.ruler.endpoint.model=m"])
    assert (folder / "params.yaml").read_bytes() == (folder / "tasks_data/email_search.yaml").read_bytes()


@pytest.mark.parametrize(
    ("assignments", "reason"),
    [
        (["seed=2", "rollout.attempts=1"], "rollout.attempts"),
        (["rolout.attempts=4"], "rolout is not a known key"),
        (["seed.more=4"], "--set seed.more: seed is a value"),
        (["seed"], "--set seed: give key=value"),
        (["seed=[1"], r"--set seed=\[1: the value is not valid YAML"),
        (["seed=@"], "--set seed=@: the value is not valid YAML"),
        (["seed=2020-13-45"], "--set seed=2020-13-45: the value is not valid YAML"),
        (["seed=" + "1" * 5000], "the value is not valid YAML"),
        (["policy.chat_template_kwargs=&a [*a]"], "refers to what it stands in"),
        (["task='x; echo'"], "task: 'x; echo' is no name of a task"),
    ],
)
def test_what_is_not_valid_is_never_written(folder: Path, assignments: list[str], reason: str) -> None:
    before = files(folder)
    with pytest.raises(UserError, match=reason):
        set_params(assignments)
    assert files(folder) == before


def test_what_is_not_valid_makes_no_file(folder: Path) -> None:
    with pytest.raises(UserError, match=r"rollout\.attempts"):
        set_params(["rollout.attempts=1"], folder / "new.yaml")
    assert not (folder / "new.yaml").exists()
    set_params(["rollout.attempts=4"], folder / "new.yaml")
    assert yaml.safe_load((folder / "new.yaml").read_text()) == {"rollout": {"attempts": 4}}


def test_nothing_to_change_is_not_written_and_a_missing_file_is_said(folder: Path) -> None:
    before = files(folder)
    assert set_params([], task="email_search").task == "email_search"
    assert files(folder) == before
    (folder / "params.yaml").unlink()
    with pytest.raises(UserError, match=r"params\.yaml does not exist"):
        set_params([])


def test_an_empty_file_is_damage_and_not_the_defaults(folder: Path) -> None:
    for text in ("", "\n  \n"):
        (folder / "params.yaml").write_text(text)
        before = files(folder)
        for assignments, task in (([], None), (["seed=2"], None), ([], "tic_tac_toe")):
            with pytest.raises(
                UserError, match=r"params\.yaml is empty; bring it back \(`git checkout params\.yaml`\)"
            ):
                set_params(assignments, task=task)
        assert files(folder) == before
        with pytest.raises(UserError, match="is empty"):
            load("params.yaml", Params)


def test_a_binary_file_is_one_sentence(folder: Path) -> None:
    (folder / "params.yaml").write_bytes(b"seed: 1\n\x89PNG\xff\xfe")
    before = files(folder)
    for assignments, task in (([], None), (["seed=2"], None), ([], "tic_tac_toe")):
        with pytest.raises(UserError, match=r"params\.yaml is no text in UTF-8 \(.*at byte 8\); bring it back"):
            set_params(assignments, task=task)
    assert files(folder) == before


def test_a_full_disk_leaves_the_file_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is noticed only when the content goes to the disk, after all has been written to memory."""

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = files(folder)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        set_params(["seed=2"])
    assert files(folder) == before


def test_another_task_begins_with_its_preset(folder: Path) -> None:
    assert set_params(["seed=3"], task="tic_tac_toe").seed == 3
    preset = (folder / "tasks_data/tic_tac_toe.yaml").read_text()
    assert yaml.safe_load((folder / "params.yaml").read_text()) == yaml.safe_load(preset) | {"seed": 3}
    written = (folder / "params.yaml").read_text()
    (folder / "my_team").mkdir()
    (folder / "my_team/my_task.py").write_text("raise AssertionError('it is not imported')")
    assert set_params([], task="my_team.my_task").task == "my_team.my_task"
    assert (folder / "params.yaml").read_text() == written.replace("task: tic_tac_toe", "task: my_team.my_task")


def test_a_task_without_data_gets_the_file_on_which_stages_depend(folder: Path) -> None:
    """An agent elsewhere whose scenarios come from code has no folder in tasks_data/."""
    (folder / "my_team").mkdir()
    (folder / "my_team/my_task.py").write_text("")
    (folder / "dvc.yaml").touch()
    rubric = folder / "tasks_data/my_team.my_task/rubric.md"
    set_params([], task="my_team.my_task", dry_run=True)
    assert not rubric.exists()
    set_params([], task="my_team.my_task")
    assert "better" in rubric.read_text()
    rubric.write_text("Mine.\n")
    set_params(["seed=4"])
    assert rubric.read_text() == "Mine.\n"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "tic_tak_toe",
            "there is no task tic_tak_toe; did you mean tic_tac_toe[?] The tasks are code_repair, email_search",
        ),
        ("chess", "there is no task chess[.] The tasks are code_repair, .*knowledge_search.*make new-task"),
        ("no_such_team.task", "there is no module no_such_team.task"),
        ("environments.no_such_task", "there is no module environments.no_such_task"),
    ],
)
def test_a_task_that_is_none_is_refused_before_anything_is_written(folder: Path, name: str, reason: str) -> None:
    before = files(folder)
    for assignments, task in (([], name), ([f"task={name}"], None)):
        with pytest.raises(UserError, match=reason):
            set_params(assignments, task=task)
        assert files(folder) == before
    (folder / "params.yaml").write_text(f"task: {name}\n")
    with pytest.raises(UserError, match=reason):
        set_params([])


def test_settings_of_ones_own_are_kept_when_a_preset_replaces_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = folder / "params.yaml.before"
    set_params([], task="tic_tac_toe")
    assert not copy.exists(), "what was replaced is a preset's own"
    set_params(["seed=7"])
    own = (folder / "params.yaml").read_text()
    set_params([], task="multiplication", dry_run=True)
    assert not copy.exists()
    capsys.readouterr()
    set_params([], task="multiplication")
    assert copy.read_text() == own
    assert "params.yaml.before" in capsys.readouterr().out
    set_params([], task="game_2048")
    assert copy.read_text() == own, "a preset replaces no settings of one's own"


def test_a_models_preset_goes_on_top_of_the_tasks(folder: Path) -> None:
    shutil.copytree(ROOT / "tasks_data/_models", folder / "tasks_data/_models")
    for model in (folder / "tasks_data/_models").glob("*.yaml"):
        settings = yaml.safe_load(model.read_text())
        shutil.copy(ROOT / "tasks_data/email_search.yaml", folder / "params.yaml")
        for task, seed in ((None, 1), ("multiplication", 5)):
            before = yaml.safe_load((folder / "params.yaml").read_text())["task"]
            checked = set_params([f"seed={seed}"], task=task, preset=model.stem)
            assert checked.task == (task or before), "without a task, the one that params.yaml has"
            assert checked.seed == seed
            written = yaml.safe_load((folder / "params.yaml").read_text())
            of_task = yaml.safe_load((folder / f"tasks_data/{checked.task}.yaml").read_text())
            for section in ("policy", "update"):
                least = settings.get("with_tools", {}).get(section, {}) if has_tools(checked.task) else {}
                assert written[section] == of_task[section] | settings[section] | least
            assert written["scenarios"] == of_task["scenarios"]
            assert "with_tools" not in written


def test_a_models_preset_gives_a_task_with_tools_room_for_them(folder: Path) -> None:
    shutil.copytree(ROOT / "tasks_data/_models", folder / "tasks_data/_models")
    shown = {}
    for task in ("json_records", "tic_tac_toe", "code_repair", "email_search", "multiplication+tic_tac_toe"):
        made = set_params([], task=task, preset="smollm2")
        shown[task] = (made.policy.context, made.rollout.max_tokens, made.evaluate.max_tokens)
    assert shown == {
        "json_records": (256, 48, 48),  # without tools: as it was
        "tic_tac_toe": (3072, 96, 96),
        "code_repair": (3072, 128, 128),  # its own number is larger
        "email_search": (3072, 96, 96),  # in place of null
        "multiplication+tic_tac_toe": (3072, 96, 96),  # one of them has tools
    }
    assert set_params(["rollout.max_tokens=40"], task="tic_tac_toe", preset="smollm2").rollout.max_tokens == 40


def test_a_task_that_cannot_be_loaded_is_a_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(ROOT / "tasks_data/_models", folder / "tasks_data/_models")
    (folder / "my_team").mkdir()
    (folder / "my_team/empty.py").touch()
    monkeypatch.syspath_prepend(folder)
    before = files(folder)
    with pytest.raises(UserError, match=r"task: my_team.empty defines 0 environments"):
        set_params([], task="my_team.empty", preset="smollm2")
    assert files(folder) == before


def test_what_a_preset_changed_is_said_on_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(ROOT / "tasks_data/_models", folder / "tasks_data/_models")
    for words, said in (
        ({"preset": "smollm2"}, "your settings and the model settings of smollm2, for the task email_search"),
        ({"task": "tic_tac_toe"}, "the preset of tic_tac_toe; your settings are kept in params.yaml.before"),
        (
            {"preset": "smollm2", "task": "multiplication"},
            "the preset of multiplication and the model settings of smollm2, ",
        ),
        ({"preset": "smollm2", "task": "multiplication"}, ""),
    ):
        set_params([], task=words.get("task"), preset=words.get("preset"))
        output = capsys.readouterr().out
        assert output.startswith(f"params.yaml now begins with {said}") if said else not output, output
        assert output.count("\n") == bool(said)
    with pytest.raises(
        UserError, match=r"there is no preset SmolM2; did you mean smollm2\? The models with a preset are"
    ):
        set_params([], preset="SmolM2")
    with pytest.raises(
        UserError, match=r"update\.learing_rate is not a known key \(.*\); did you mean learning_rate\?"
    ):
        set_params(["update.learing_rate=1"])


def test_a_preset_that_is_none_is_refused_before_anything_is_written(folder: Path) -> None:
    before = files(folder)
    with pytest.raises(UserError, match=r"there is no preset qwen\. The models with a preset are \(none here\)"):
        set_params([], preset="qwen")
    assert files(folder) == before


def test_a_stages_own_command_asks_about_a_task_that_is_none_too() -> None:
    with pytest.raises(
        environments.NoTask, match=r"there is no task emial-search; did you mean email_search\?"
    ) as raised:
        environments.load("emial-search")
    text, code = explain(raised.value)
    assert (text.partition(";")[0], code) == ("there is no task emial-search", 2)


def test_a_bad_assignment_leaves_the_task_as_it_was(folder: Path) -> None:
    before = files(folder)
    with pytest.raises(UserError, match=r"rollout\.attempts"):
        set_params(["rollout.attempts=1"], task="tic_tac_toe")
    assert files(folder) == before


def dry_run(folder: Path, *words: str) -> Any:
    return run(python("flows.train", "--dry-run", *words), folder, PYTHONPATH=os.fspath(ROOT))


def test_a_dry_run_prints_what_would_be_and_writes_nothing(folder: Path) -> None:
    (folder / ".flywheel/prefect").mkdir(parents=True)
    before = files(folder)
    process = dry_run(folder, "--task", "tic_tac_toe", "--set", "seed=3")
    assert process.returncode == 0, process.stderr
    printed = json.loads(process.stdout)
    assert (printed["task"], printed["seed"]) == ("tic_tac_toe", 3)
    assert files(folder) == before
    process = dry_run(folder, "--set", "rollout.attempts=1")
    assert (process.returncode, process.stdout) == (2, "")
    assert "rollout.attempts" in process.stderr
    assert files(folder) == before


def test_a_folder_without_git_is_one_sentence_before_anything_starts(folder: Path) -> None:
    """It ended in DVC's traceback, after Prefect and MLflow had started."""
    process = run(python("flows.train"), folder, PYTHONPATH=os.fspath(ROOT))
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith(f"error: {folder} is no git repository (a ZIP download is none)")
    assert not (folder / ".flywheel/mlflow.db").exists()


def test_a_name_that_cannot_be_kept_changes_no_settings(folder: Path) -> None:
    """Before the first commit, and where another run has the name."""
    subprocess.run(["git", "init", "--quiet"], cwd=folder, check=True)
    words = python("flows.train", "--name", "first", "--set", "seed=3")
    before = (folder / "params.yaml").read_bytes()
    process = run(words, folder, PYTHONPATH=os.fspath(ROOT))
    assert (process.returncode, process.stdout) == (2, "")
    assert "has none yet: `git add --all && git commit" in process.stderr
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    subprocess.run(["git", *identity, "commit", "--quiet", "--allow-empty", "-m", "start"], cwd=folder, check=True)
    subprocess.run(["git", "add", "--force", "params.yaml"], cwd=folder, check=True)
    subprocess.run(["git", *identity, "commit", "--quiet", "-m", "params"], cwd=folder, check=True)
    subprocess.run(["git", "update-ref", "refs/runs/first", "HEAD"], cwd=folder, check=True)
    process = run(words, folder, PYTHONPATH=os.fspath(ROOT))
    assert (process.returncode, process.stdout) == (2, "")
    assert "a run first is kept that has other settings in seed" in process.stderr
    assert (folder / "params.yaml").read_bytes() == before


# --- Several tasks

BOTH = "multiplication+tic_tac_toe"


def test_several_tasks_begin_with_their_preset_whatever_their_order(folder: Path) -> None:
    parameters = set_params(["seed=3", "tasks.multiplication=2"], task="tic_tac_toe+multiplication")
    assert (parameters.task, parameters.tasks) == (BOTH, {"multiplication": 2, "tic_tac_toe": 1})
    preset = yaml.safe_load((folder / f"tasks_data/{BOTH}.yaml").read_text())
    written = yaml.safe_load((folder / "params.yaml").read_text())
    assert written == preset | {"seed": 3, "tasks": {"multiplication": 2, "tic_tac_toe": 1}}
    before = (folder / "params.yaml").read_bytes()
    set_params([], task=BOTH)
    assert (folder / "params.yaml").read_bytes() == before, "the same tasks keep their settings"


def test_several_tasks_without_a_preset_change_the_tasks_alone(folder: Path) -> None:
    before = yaml.safe_load((folder / "params.yaml").read_text())
    assert set_params([], task="email_search+tic_tac_toe").task == "email_search+tic_tac_toe"
    written = yaml.safe_load((folder / "params.yaml").read_text())
    assert written.pop("tasks") == {"email_search": 1, "tic_tac_toe": 1}
    assert before.pop("task") == "email_search"
    assert written == before
    assert (folder / "params.yaml").read_text().splitlines()[0].startswith("# Every knob"), "comments stay"
    (folder / "tasks_data/knowledge_search.yaml").unlink()  # a task without a preset
    assert set_params([], task="knowledge_search").tasks is None, "and back"
    assert yaml.safe_load((folder / "params.yaml").read_text()) == before | {"task": "knowledge_search"}


def test_an_unknown_one_of_several_tasks_is_refused(folder: Path) -> None:
    before = files(folder)
    with pytest.raises(UserError, match=r"task: there is no task tictactoe; did you mean tic_tac_toe\? The tasks are"):
        set_params([], task="email_search+tictactoe")
    with pytest.raises(
        UserError, match=r"task \(email_search\) and tasks \(email_search\+tic_tac_toe\) cannot both be set"
    ):
        set_params(["tasks={email_search: 1, tic_tac_toe: 1}"])
    assert files(folder) == before
