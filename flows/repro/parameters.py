"""Changes to params.yaml: a task's preset, a model's, and `--set key=value`. They are checked first, and written at once.

The name of a task is checked without running the task's module, unless it is a package's.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import environments
from environments import did_you_mean
from steps.core import params
from steps.core.errors import UserError
from steps.core.files import write_text
from steps.core.params import Params
from steps.core.progress import say
from steps.core.yaml_text import read_mapping

MODELS = Path("tasks_data/_models")  # presets of models: the settings of any task that go with one
WITH_TOOLS = "with_tools."  # the section of such a preset with the least numbers that a task with tools gets
RUBRIC = "An attempt is better the more of the task's goal it reaches, and among equals the shorter it is.\n"


def set_params(
    assignments: list[str],
    path: Path = Path("params.yaml"),
    task: str | None = None,
    dry_run: bool = False,
    preset: str | None = None,
    begin: str | None = None,
) -> Params:
    """Change the file by `key=value` pairs, after a change of task and a model's preset where they are named; the parameters
    that it then holds. A preset without a task is for the task that the file has. `begin`: the text that takes the place of
    the file's first, such as another run's.

    Nothing is written where the result is not valid, which is a UserError, and nothing with `dry_run`. Settings that
    another task's preset replaces are kept in params.yaml.before, unless they are a preset's own.
    """
    text = before = params.read_text(path) if path.exists() else ""
    if path.exists() and not text.strip():
        return params.parse(text, path, Params)  # which says that it is empty: it is damaged, and not to be filled up
    text = begin or text
    settings = model_settings(preset) if preset is not None else {}
    if task:
        check_task(task)
        text = with_task(text, path, task)
    if preset is not None:
        text = with_model(text, path, settings)
    is_replaced = text != before
    if assignments:
        text = changed(text, path, assignments)
    if not text and not path.exists():
        return params.load(path, Params)  # which says that there is no such file
    checked = params.parse(text, path, Params)
    check_task(checked.task)
    if text != before and not dry_run:
        if is_replaced:
            kept, copy = "", path.with_name(f"{path.name}.before")
            if before and not is_preset(before, path):
                write_text(copy, before)
                kept = f"; your settings are kept in {copy}"
            whose = "another run's settings" if begin else f"the preset of {checked.task}" if task else "your settings"
            model = f" and the model settings of {preset}, for the task {checked.task}" if preset else ""
            say(f"{path} now begins with {whose}{model}{kept}")
        write_text(path, text)
    for name in checked.task.split("+"):
        folder = path.parent / "tasks_data" / name
        if ":" in name and not folder.exists() and not dry_run:
            try:
                environments.made_by(environments.PACKAGES).write(name, folder)
            except FileNotFoundError as problem:  # an agent's scenarios, which are the user's to write
                raise UserError(str(problem)) from None
        is_project = path.with_name("dvc.yaml").exists()  # whose stages depend on it, whatever scores
        if is_project and not (folder / "rubric.md").exists() and not dry_run:
            folder.mkdir(parents=True, exist_ok=True)
            write_text(folder / "rubric.md", RUBRIC)
            say(f"{folder / 'rubric.md'} is new: what makes one attempt better than another, for a judge model")
    return checked


def is_preset(text: str, path: Path) -> bool:
    """Whether the text of a params file says what its task's preset says."""
    content = params.parse(text, path, Params)
    preset = preset_of(content.task)
    return preset.is_file() and params.parse(preset.read_text(encoding="utf-8"), preset, Params) == content


def preset_of(task: str) -> Path:
    """The file with the settings of a task, or of several, where there is one."""
    return Path("tasks_data") / f"{task}.yaml"


def model_settings(preset: str) -> dict[str, Any]:
    """The settings of a model's preset, tasks_data/_models/<preset>.yaml, by dotted key. UserError where there is none."""
    from steps.tracking.entries import flat

    file = MODELS / f"{preset}.yaml"
    if not file.is_file():
        names = sorted(each.stem for each in MODELS.glob("*.yaml"))
        question = did_you_mean(preset, names) or "."
        raise UserError(
            f"there is no preset {preset}{question} The models with a preset are {', '.join(names) or '(none here)'}"
        )
    return flat(read_mapping(params.read_text(file), file))


def with_model(text: str, path: Path, settings: dict[str, Any]) -> str:
    """params.yaml's text with a model's settings (`model_settings`). The numbers of the section `with_tools` count where the
    task has tools, and its own numbers are smaller or null."""
    own = params.parse(text, path, Params)
    chosen = {key: value for key, value in settings.items() if not key.startswith(WITH_TOOLS)}
    least = {key.removeprefix(WITH_TOOLS): value for key, value in settings.items() if key.startswith(WITH_TOOLS)}
    if least and has_tools(own.task):
        for key, value in least.items():
            section, _, name = key.partition(".")
            chosen[key] = max(value, getattr(getattr(own, section), name) or 0)
    return changed(text, path, [f"{key}={json.dumps(value)}" for key, value in chosen.items()])


def with_task(text: str, path: Path, task: str) -> str:
    """params.yaml's text for a task: the same where it is of that task, else its preset, tasks_data/<task>.yaml.

    Where the task has no preset, only the key `task` changes. Several tasks, with + between their names, are the key `tasks`
    in its place; without a preset each has the weight 1.
    """
    task = "+".join(sorted(task.split("+")))
    if text and params.parse(text, path, Params).task == task:
        return text
    preset = preset_of(task)
    if preset.is_file():
        text = params.read_text(preset)
        params.parse(text, preset, Params)
    if "+" not in task:
        return changed(text, path, [f"task={task}"], "tasks")
    if preset.is_file():
        return text
    return changed(text, path, [f"tasks={json.dumps(dict.fromkeys(task.split('+'), 1))}"], "task")


def changed(text: str, path: Path, assignments: list[str], removed: str = "") -> str:
    """The text of a params file with `key=value` pairs set, the key `removed` taken out, and all comments kept; the values
    are not checked."""
    from ruamel.yaml import YAML, YAMLError

    read_mapping(text, path)  # says what is wrong with a damaged file
    yaml = YAML()
    yaml.default_flow_style = False
    try:
        content = yaml.load(text) or {}
    except YAMLError as problem:  # it refuses more than the other reader, such as a key that comes twice
        raise UserError(f"{path} is not valid YAML: {' '.join(str(problem).split())}") from None
    content.pop(removed, None)
    for key, value in values(assignments).items():
        *sections, last = key.split(".")
        section = content
        for name in sections:
            section[name] = section.get(name) or {}  # an empty section, written as null, is filled
            section = section[name]
            if not isinstance(section, dict):
                raise UserError(f"--set {key}: {name} is a value, and holds no keys")
        section[last] = value
    stream = io.StringIO()
    yaml.dump(content, stream)
    return stream.getvalue()


def values(assignments: list[str]) -> dict[str, Any]:
    """`key=value` pairs as keys and values, which are read as YAML. UserError for what is not such a pair."""
    from ruamel.yaml import YAML, YAMLError

    pairs = {}
    for assignment in assignments:
        key, separator, value = assignment.partition("=")
        if not separator:
            raise UserError(f"--set {assignment}: give key=value, as in --set rollout.scenarios=8")
        try:
            pairs[key] = YAML(typ="safe").load(value)
        except (YAMLError, ValueError):  # ValueError: a date or a number that is none
            raise UserError(f"--set {assignment}: the value is not valid YAML") from None
    return pairs


def check_task(name: str) -> None:
    """UserError with the nearest name and all others where there is no such task. Several have a + between their names."""
    if "+" in name:
        for each in name.split("+"):
            check_task(each)
        return
    if ":" in name:
        try:
            environments.load(name)
        except (ValueError, ModuleNotFoundError) as problem:
            raise UserError(f"task: {problem}") from None
        return
    if "." in name:
        spec = None
        with contextlib.suppress(ModuleNotFoundError):  # of the packages that it is in, which are imported
            spec = importlib.util.find_spec(name)
        if spec is None:
            raise UserError(
                f"task: there is no module {name}: start the command in a folder, or set PYTHONPATH to one, from which it "
                "can be imported"
            )
        return
    if name not in environments.tasks() and name != "mcp":
        raise UserError(f"task: {environments.no_task(name)}")


def has_tools(name: str) -> bool:
    """Whether a task, or one of several, shows its policy tools. Environments of packages and agents of the user's own are
    taken to do so. UserError where the task's module cannot be loaded."""
    if ":" in name:
        return True
    try:
        env = environments.load(name)
        return any(part.is_agent or part.tools() for part in env.task_classes.values() or [env])
    except (ValueError, ModuleNotFoundError, FileNotFoundError) as problem:
        raise UserError(f"task: {problem}") from None
