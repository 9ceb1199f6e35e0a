"""Creates a new task to edit: a copy of environments/_template.py that works, its data, a rubric for judges and a preset.

    python -m environments._new my_task               # or: make new-task NAME=my_task
    python -m environments._new my_agent --agent      # or: make new-agent NAME=my_agent

It writes environments/my_task.py, capitals.json and rubric.md in tasks_data/my_task/, and tasks_data/my_task.yaml. They pass
`make check-task NAME=my_task` unchanged, and `make train TASK=my_task` trains on them. With --agent it copies
environments/_agent_template.py instead, and adds scenarios.jsonl and tests/environments/test_my_agent.py. An unusable name
is refused with a sentence and exit code 2. A failure on the way leaves nothing behind.
"""

from __future__ import annotations

import argparse
import keyword
import re
import sys
from pathlib import Path

from environments.base import read_text

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 40  # characters of a name
TEMPLATE = ROOT / "tasks_data" / "_template"
AGENT = ROOT / "environments" / "_agent_template.py"
AGENT_TEST = ROOT / "tests" / "environments" / "test_agent_template.py"


def check(name: str, root: Path) -> None:
    """ValueError with the reason where a task cannot have this name."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or len(name) > LONGEST:
        raise ValueError(
            f"{name!r} cannot be a task's name: choose up to {LONGEST} small letters, digits and underscores, beginning "
            "with a letter, and no word of Python's own, as in my_task"
        )
    places = (f"environments/{name}.py", f"environments/{name}", f"tasks_data/{name}", f"tasks_data/{name}.yaml")
    for place in (*places, f"tests/environments/test_{name}.py"):
        if (root / place).exists():
            raise ValueError(f"the name {name} is taken: {place} exists; choose another")


def source(name: str) -> str:
    """The source code of the new module."""
    text = read_text(Path(__file__).parent / "_template.py")
    title = "".join(part.capitalize() for part in name.split("_"))
    if keyword.iskeyword(title) or re.search(rf"\b{title}\b", text):
        title += "Task"  # `class Path(Env)` would hide the Path that the module uses
    return text.replace("_template", name).replace("class Template(Env)", f"class {title}(Env)")


def named(path: Path, name: str) -> str:
    """The text of the agent's template, or of its test, under another name."""
    text = read_text(path).replace("test_agent_template", f"test_{name}")
    return text.replace("_agent_template", name).replace("_template", name)


def write(name: str, root: Path, is_agent: bool = False) -> list[Path]:
    """Write a new task and return its files. ValueError for an unusable name. On any failure no file is left behind."""
    check(name, root)
    folder = root / "tasks_data" / name
    preset = read_text(TEMPLATE / ("agent.yaml" if is_agent else "preset.yaml")).replace("_template", name)
    files = {
        root / "environments" / f"{name}.py": named(AGENT, name) if is_agent else source(name),
        folder / "capitals.json": read_text(TEMPLATE / "capitals.json"),
        folder / "rubric.md": read_text(TEMPLATE / "rubric.md"),
        root / "tasks_data" / f"{name}.yaml": preset,
    }
    if is_agent:
        files[folder / "scenarios.jsonl"] = read_text(TEMPLATE / "scenarios.jsonl")
        files[root / "tests" / "environments" / f"test_{name}.py"] = named(AGENT_TEST, name)
    folder.mkdir()
    try:
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except BaseException:
        for path in files:
            path.unlink(missing_ok=True)
        folder.rmdir()
        raise
    return list(files)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m environments._new", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", metavar="NAME", help="the task's name, as in my_task")
    parser.add_argument(
        "--agent", action="store_true", help="an agent of your own: a function `rollout`, and no environment"
    )
    options = parser.parse_args()
    name = options.name
    try:
        written = write(name, ROOT, options.agent)
    except ValueError as problem:
        print(f"{problem}.", file=sys.stderr)
        return 2
    except OSError as problem:
        print(f"The task {name} could not be written, and nothing was: {problem}.", file=sys.stderr)
        return 1
    print("wrote " + ", ".join(str(path.relative_to(ROOT)) for path in written))
    test = (
        f".venv/bin/python -m pytest tests/environments/test_{name}.py"
        if options.agent
        else f"make check-task NAME={name}"
    )
    print(f"edit them where it says EDIT; check: {test}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
