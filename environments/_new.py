"""Creates a new task to edit: a copy of environments/_template.py that works, its data, a rubric for judges and a preset.

    python -m environments._new my_task               # or: make new-task NAME=my_task
    python -m environments._new my_agent --agent      # or: make new-agent NAME=my_agent
    python -m environments._new notes --mcp "uvx mcp-server-notes"      # or: make new-mcp NAME=notes COMMAND="…"
    python -m environments._new --harness codex       # or: make new-harness HARNESS=codex

It writes environments/my_task.py, capitals.json and rubric.md in tasks_data/my_task/, and tasks_data/my_task.yaml. They pass
`make check-task NAME=my_task` unchanged, and `make train TASK=my_task` trains on them. With --agent it copies
environments/_agent_template.py instead, and adds scenarios.jsonl and tests/environments/test_my_agent.py. An unusable name
is refused with a sentence and exit code 2. A failure on the way leaves nothing behind.

With --mcp, the tools are those of an MCP server (environments/mcp/), given by its command or address. The server is asked
for them once. The name mcp needs no module of its own.

With --harness, the agent is a coding agent that people run (environments/bridges/harness.py). The task is harness:codex, or
with a name harness:codex.my_task, and has no module: scenarios.jsonl, rubric.md and the preset are written.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import keyword
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import yaml

from environments.base import read_text
from environments.bridges.harness import make
from environments.mcp.server import record
from environments.mcp.settings import TOOLS

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 40  # characters of a name
TEMPLATE = ROOT / "tasks_data" / "_template"
AGENT = ROOT / "environments" / "_agent_template.py"
AGENT_TEST = ROOT / "tests" / "environments" / "test_agent_template.py"
WORK = "work"  # the folder that each episode's server gets a copy of
COUNTS = "train: 40, val: 10, test: 10"  # of scenarios; 100 written ones are 70, 15 and 15 on average


MODULE = '''\
"""{title}: a task with the tools of an MCP server. What it is, and what its agent does: tasks_data/{name}/server.yaml."""

from environments.mcp import Mcp


class {title}(Mcp):
    """An episode with the server's tools."""
'''
SCORE = """score: # no rule: a model compares the attempts. EDIT: which model, and where
  judges: {ruler: 1}
  ruler: {endpoint: {model: gpt-5-mini}}
"""
CHANGES = {"plus": "+", "minus": "-", "times": "*"}  # of the example scenarios, which are to be replaced


def check(name: str, root: Path, begun: str | None = None) -> None:
    """ValueError with the reason where a task cannot have this name. Its data may hold a folder `begun` already."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or len(name) > LONGEST:
        raise ValueError(
            f"{name!r} cannot be a task's name: choose up to {LONGEST} small letters, digits and underscores, beginning "
            "with a letter, and no word of Python's own, as in my_task"
        )
    places = (f"environments/{name}.py", f"environments/{name}", f"tasks_data/{name}", f"tasks_data/{name}.yaml")
    for place in (*places, f"tests/environments/test_{name}.py"):
        if (root / place).exists() and not (begun and holds_only(root / place, begun)):
            raise ValueError(f"the name {name} is taken: {place} exists; choose another")


def holds_only(folder: Path, name: str) -> bool:
    """Whether a folder has a folder of this name, and nothing beside it."""
    return folder.is_dir() and [path.name for path in folder.iterdir()] == [name] and (folder / name).is_dir()


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


@contextlib.contextmanager
def written(files: Mapping[Path, str], folder: Path, *further: Path) -> Iterator[None]:
    """Write the files of a task. Where that or the body fails, none of them and of the `further` ones is left, and neither
    is the folder, unless it was there before."""
    is_begun = folder.exists()
    folder.mkdir(exist_ok=True)
    try:
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
        yield
    except BaseException:
        for path in (*files, *further):
            path.unlink(missing_ok=True)
        if not is_begun:
            folder.rmdir()
        raise


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
    with written(files, folder):
        return list(files)


def write_mcp(name: str, server: str, root: Path) -> list[Path]:
    """Write a task with the tools of the server that a command or an address names, and return its files. A folder work/ in
    its data may be there before, for a server that needs files to start. ValueError for an unusable name, or where the
    server does not start. On any failure no file is left behind."""
    if name != "mcp":
        check(name, root, WORK)
    folder, title = root / "tasks_data" / name, "".join(part.capitalize() for part in name.split("_"))
    if folder.exists() and not holds_only(folder, WORK):
        raise ValueError(f"the name {name} is taken: tasks_data/{name} exists; choose another")
    if not server.strip():
        raise ValueError("say how the server is started or reached: --mcp COMMAND, or --mcp https://…")
    program, *arguments = shlex.split(server)
    is_address = re.match(r"https?://", program)
    reached = {"url": program} if is_address else {"command": program, "args": arguments}
    lines = "\n".join(
        yaml.safe_dump({key: value}, default_flow_style=None if isinstance(value, list) else False, width=1000).strip()
        for key, value in reached.items()
    )
    preset = read_text(TEMPLATE / "preset.yaml").replace("_template", name)
    preset = preset.replace(", resample: 1", "")  # which a rule's reward decides
    preset = preset.replace("score: {judges: {rule: 1}}\n", SCORE).replace("train: 60, val: 20, test: 20", COUNTS)
    files = {
        folder / "server.yaml": read_text(TEMPLATE / "server.yaml").replace("command: _template", lines),
        folder / "rubric.md": read_text(TEMPLATE / "server_rubric.md"),
        root / "tasks_data" / f"{name}.yaml": preset,
    }
    if name != "mcp":
        title += "Task" if title == "Mcp" or keyword.iskeyword(title) else ""
        files[root / "environments" / f"{name}.py"] = MODULE.format(title=title, name=name)
    with written(files, folder, folder / TOOLS):
        record(folder)
    return [*files, folder / TOOLS]


def example_scenarios() -> str:
    """Lines of a scenarios.jsonl for a harness: a function to change, and a check that the harness does not see."""
    rows = []
    for number in range(2, 42):
        for word, sign in CHANGES.items():
            tests = "".join(f"assert change({x}) == {x} {sign} {number}\n" for x in (0, 7, -3))
            question = f"In work.py, make change return x {word} {number}."
            row = {"question": question, "files": {"work.py": "def change(x):\n    return x\n"}}
            row |= {"check": "python3 check.py", "check_files": {"check.py": "from work import change\n\n" + tests}}
            rows.append(json.dumps(row | {"kind": word}) + "\n")
    return "".join(rows)


def write_harness(name: str, harness: str, root: Path) -> list[Path]:
    """Write the scenarios and settings of a task with a coding agent that people run, and return their files. ValueError for
    an unknown harness, or an unusable or taken name. On any failure no file is left behind."""
    task = f"harness:{harness}" + (f".{name}" if name else "")
    make(task.partition(":")[2])
    folder, preset = root / "tasks_data" / task, root / "tasks_data" / f"{task}.yaml"
    for place in (folder, preset):
        if place.exists():
            taken = place.relative_to(root)
            raise ValueError(f"{taken} exists: choose a name for other scenarios, as in NAME=reviews")
    files = {
        folder / "scenarios.jsonl": example_scenarios(),
        folder / "rubric.md": read_text(TEMPLATE / "harness_rubric.md"),
        preset: read_text(TEMPLATE / "harness.yaml").replace("_template", task),
    }
    with written(files, folder):
        return list(files)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m environments._new", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="the task's name, as in my_task")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--agent", action="store_true", help="an agent of your own: a function `rollout`, no environment")
    kind.add_argument("--mcp", metavar="SERVER", help="the command or address of an MCP server, whose tools it gets")
    kind.add_argument("--harness", help="a coding agent that people run, such as claude-code")
    words = parser.parse_args()
    name = words.name
    try:
        if words.harness is not None:
            written = write_harness(name, words.harness, ROOT)
        elif words.mcp is not None:
            written = write_mcp(name, words.mcp, ROOT)
        else:
            written = write(name, ROOT, words.agent)
    except ValueError as problem:
        print(f"{problem}.", file=sys.stderr)
        return 2
    except OSError as problem:
        print(f"The task {name} could not be written, and nothing was: {problem}.", file=sys.stderr)
        return 1
    print("wrote " + ", ".join(str(path.relative_to(ROOT)) for path in written))
    after = f"check: make check-task NAME={name}"
    if words.mcp is not None:
        out = f"tasks_data/{name}/scenarios.jsonl"
        after = f"then: .venv/bin/python -m addons.supervised.generate --task {name} --out {out} --model NAME"
    if words.harness is not None:
        after = f"then: make train TASK={written[-1].stem}"
    print(f"edit them where it says EDIT; {after}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
