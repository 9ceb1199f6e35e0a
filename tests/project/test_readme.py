"""What the README and docs/ tell people to type can be typed: commands, options, settings, paths and links all exist.

Each check is a function that returns its faults, and a second test gives it something bad. The commands that the README
promises to a new user are really run in tests/browser/test_walks.py.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from addons.tripwires.tripwires import TRIPWIRES
from steps.core.params import Params

ROOT = next(folder for folder in Path(__file__).parents if (folder / "Makefile").exists())
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "mlflow" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
MOST_WORDS = {"README.md": 1000, "CHANGELOG.md": 2500, "docs/*.md": 24_000}  # as `wc -w` counts them
PACKAGES = ("steps", "addons", "flows", "viewer", "environments", "benchmarks")
FOLDERS = (*PACKAGES, "tasks_data", "tests", "docs", "mlflow", "requirements")
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PLACEHOLDER = re.compile(
    r"[<…*]|NNN|my_task|my_agent|more\.jsonl"
)  # in a path that stands for others, or that a command writes
HELP = """
import contextlib, io, json, runpy, sys
answers = []
for module, *words in json.load(sys.stdin):
    shown, code = io.StringIO(), 0
    sys.argv = [module, *words, "--help"]
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown):
        try:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        except SystemExit as end:
            code = end.code or 0
    if str(code).startswith("usage: "):  # of a command that needs no parser for its one option
        shown, code = io.StringIO(code), 0
    answers.append([code, shown.getvalue()])
json.dump(answers, sys.stdout)
"""


def blocks(text: str, *languages: str) -> list[str]:
    """The contents of the fenced code blocks in these languages."""
    return [body for language, body in FENCE.findall(text) if language in languages]


def inline(text: str) -> list[str]:
    """The code within sentences, each on one line."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", FENCE.sub("", text))]


def commands(text: str) -> list[list[str]]:
    """The commands of a page as words: the lines of its shell blocks, and code within sentences. Variables set in front of a
    command and comments are left out."""
    lines = [line for body in blocks(text, "sh") for line in body.replace("\\\n", " ").splitlines()] + inline(text)
    listed = []
    for line in lines:
        for part in re.split(r" && ", re.split(r"(?:^|\s)#\s", line)[0]):
            try:
                words = shlex.split(part)
            except ValueError:  # code within a sentence that is no command
                continue
            while words and re.match(r"[A-Z_]+=", words[0]):
                words.pop(0)
            if words:
                listed.append(words)
    return listed


def make_commands(text: str) -> list[list[str]]:
    return [words for words in commands(text) if words[0] == "make" and len(words) > 1]


def module_commands(text: str) -> list[list[str]]:
    """[module, its words ...] for each `python -m` of this project's own modules."""
    of_python = [words for words in commands(text) if Path(words[0]).name == "python" and words[1:2] == ["-m"]]
    return [words[2:] for words in of_python if words[2].partition(".")[0] in PACKAGES]


@functools.cache
def planned(*words: str) -> tuple[int, str]:
    """What make would do: exit code and output."""
    of_make = ("MAKE", "MFLAGS", "ARGS", "TASK", "NAME", "GPU", "DEV")  # of the make that runs this test
    environment = {name: value for name, value in os.environ.items() if not name.startswith(of_make)}
    plan = ["make", "--dry-run", "--old-file=install", *words[1:]]
    done = subprocess.run(plan, cwd=ROOT, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr


def refused_by_make(text: str) -> list[str]:
    """Targets that the Makefile does not have, and variables that it does not read."""
    makefile = "".join(path.read_text() for path in (ROOT / "Makefile", *ROOT.glob("addons/*/targets.mk")))
    faults = []
    for words in make_commands(text):
        code, output = planned(*words)
        if code:
            faults.append(f"{' '.join(words)}: {output.strip()}")
        names = [word.partition("=")[0] for word in words[1:] if "=" in word]
        faults += [f"{' '.join(words)}: {name} is not read" for name in names if f"$({name})" not in makefile]
    return faults


def missing_modules(text: str) -> list[str]:
    modules = [words[0] for words in module_commands(text)]
    return [module for module in modules if "<" not in module and not can_run(module)]


def can_run(module: str) -> bool:
    """Whether `python -m` finds it: a module, or a package with a `__main__`."""
    try:
        spec = importlib.util.find_spec(module)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{module}.__main__")
    except ModuleNotFoundError:  # of a package that it would be in
        return False
    return spec is not None


def rejected_options(text: str) -> list[str]:
    """Words that a command's own parser refuses, and options that its help does not name. make's commands are asked, too."""
    asked = [words for words in module_commands(text) if "…" not in words]
    for words in make_commands(text):
        asked += module_commands(f"```sh\n{planned(*words)[1]}\n```")
    asked = [words for words in asked if can_run(words[0])]
    with tempfile.TemporaryDirectory() as empty:  # a command that starts to work in spite of --help finds no project
        done = subprocess.run(
            [sys.executable, "-c", HELP],
            cwd=empty,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            input=json.dumps(asked),
            capture_output=True,
            text=True,
            check=True,
        )
    faults = []
    for words, (code, shown) in zip(asked, json.loads(done.stdout), strict=True):
        command = " ".join(words)
        if code:
            faults.append(f"{command}: {shown.strip().splitlines()[-1]}")
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        missing = [option for option in options if not re.search(rf"(?<![\w-]){option}(?![\w-])", shown)]
        faults += [f"{command}: there is no {option}" for option in missing if not code]
    return faults


def refused_settings(text: str) -> list[str]:
    """Blocks of YAML that params.yaml could not hold."""
    faults = []
    for block in blocks(text, "yaml"):
        try:
            Params.model_validate(yaml.safe_load(block))
        except (ValidationError, yaml.YAMLError) as problem:
            faults.append(f"{block}: {problem}")
    return faults


def missing_paths(text: str) -> list[str]:
    """Paths of the project's own folders that are named and do not exist."""
    words = [word for words in commands(text) for word in words]
    paths = [word for word in words if re.fullmatch(rf"(?:{'|'.join(FOLDERS)})/\S*", word) and not word.endswith("/…")]
    return [path for path in paths if not PLACEHOLDER.search(path) and not (ROOT / path).exists()]


def anchors(text: str) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def links(text: str) -> list[str]:
    """The targets of a page's links and images, those on other hosts left out."""
    prose = re.sub(r"`[^`]*`", "", FENCE.sub("", text))
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def broken_links(text: str, page: Path) -> list[str]:
    """Relative links to files or headings that do not exist."""
    faults = []
    for target in links(text):
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        if not other.is_relative_to(ROOT) or not other.exists():
            faults.append(f"{target}: there is no such file")
        elif anchor and anchor not in anchors(text if other == page else other.read_text()):
            faults.append(f"{target}: there is no such heading")
    return faults


def wrong_tree(text: str, folders: set[str]) -> list[str]:
    """Names in the README's tree that do not exist, and folders of the repository that it leaves out."""
    tree = text.partition("## Tree\n\n```\n")[2].partition("```")[0]
    names = re.findall(r"^(\S+)", tree, re.MULTILINE)
    made = {"run/", ".flywheel/"}  # by a run
    faults = [f"{name} does not exist" for name in names if name not in made and not (ROOT / name).exists()]
    return faults + [f"{folder}/ is left out" for folder in sorted(folders) if f"{folder}/" not in names]


def wrong_rooms(text: str, rooms: set[str]) -> list[str]:
    """Rooms in docs/architecture.md's table that do not exist, and rooms of steps/ that it leaves out."""
    named = set(re.findall(r"^\| \d \| (\w+) \|", text, re.MULTILINE))
    return [f"{room} does not exist" for room in sorted(named - rooms)] + [
        f"{room} is left out" for room in sorted(rooms - named)
    ]


def wrong_tripwires(text: str, names: set[str]) -> list[str]:
    """Tripwires in docs/operate.md's table that there are not, and tripwires that it leaves out."""
    rows = re.findall(r"^\| (.+?) \|", text.partition("\n| tripwire |")[2].partition("\n\n")[0], re.MULTILINE)
    named = {name for row in rows for name in row.split(", ")}
    return [f"{name} does not exist" for name in sorted(named - names)] + [
        f"{name} is left out" for name in sorted(names - named)
    ]


def unlinked_pages(entrances: list[Path], pages: list[Path]) -> list[str]:
    """Pages to which none of the entrances has a link."""
    linked = {
        (page.parent / target.partition("#")[0]).resolve() for page in entrances for target in links(page.read_text())
    }
    return [page.name for page in pages if page not in linked and page not in entrances]


def too_long(text: str, most: int) -> list[str]:
    count = len(text.split())
    return [f"{count} words, and {most} are the most"] if count > most else []


@pytest.fixture(params=PAGES, ids=NAMES)
def page(request: pytest.FixtureRequest) -> Path:
    return request.param


def test_make_takes_the_commands(page: Path) -> None:
    assert refused_by_make(page.read_text()) == []


def test_modules_exist(page: Path) -> None:
    assert missing_modules(page.read_text()) == []


def test_options_are_accepted() -> None:
    """All pages at once: what the commands import is then loaded once."""
    assert rejected_options("\n".join(page.read_text() for page in PAGES)) == []


def test_settings_are_accepted(page: Path) -> None:
    assert refused_settings(page.read_text()) == []


def test_paths_exist(page: Path) -> None:
    assert missing_paths(page.read_text()) == []


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=[*NAMES, "CHANGELOG.md"])
def test_links_lead_somewhere(page: Path) -> None:
    assert broken_links(page.read_text(), page) == []


def test_the_tree_is_the_tree() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    folders = {
        name.partition("/")[0] for name in listed.stdout.splitlines() if "/" in name and not name.startswith(".")
    }
    assert wrong_tree(README.read_text(), folders) == []


def test_the_rooms_are_the_rooms() -> None:
    rooms = {path.parent.name for path in (ROOT / "steps").glob("*/__init__.py")}
    assert wrong_rooms((ROOT / "docs" / "architecture.md").read_text(), rooms) == []


def test_the_tripwires_are_the_tripwires() -> None:
    assert wrong_tripwires((ROOT / "docs" / "operate.md").read_text(), set(TRIPWIRES)) == []


def test_every_page_is_linked() -> None:
    entrances = [README, ROOT / "docs" / "architecture.md"]
    assert unlinked_pages(entrances, sorted((ROOT / "docs").glob("*.md"))) == []


@pytest.mark.parametrize(("pages", "most"), MOST_WORDS.items(), ids=MOST_WORDS)
def test_what_is_to_be_read_stays_short(pages: str, most: int) -> None:
    texts = [page.read_text() for page in ROOT.glob(pages)]
    assert texts
    assert too_long(" ".join(texts), most) == []


def test_the_pages_hold_what_is_checked() -> None:
    """None of the checks above passes because it finds nothing to look at."""
    text = "\n".join(page.read_text() for page in PAGES)
    assert {"train", "ui", "serve", "new-task", "reproduce"} <= {words[1] for words in make_commands(text)}
    assert {"steps.rollout", "flows.promote"} <= {words[0] for words in module_commands(text)}
    assert len(blocks(text, "yaml")) >= 2
    assert len(links(text)) >= 30
    assert len(blocks(README.read_text(), "mermaid")) == 1


# Each check given something bad.

SHELL = "```sh\n{}\n```\n"


@pytest.mark.parametrize("line", ["make trian", "make train TASKS=email_search", "FLYWHEEL_WORKER=off make trian"])
def test_a_command_that_make_refuses_is_a_fault(line: str) -> None:
    assert len(refused_by_make(SHELL.format(line))) == len(refused_by_make(f"Run `{line}`.")) == 1


@pytest.mark.parametrize("module", ["steps.rollouts", "flows.nowhere.promote", "environments"])
def test_a_module_that_cannot_be_run_is_a_fault(module: str) -> None:
    assert missing_modules(SHELL.format(f".venv/bin/python -m {module} --help")) == [module]


def test_an_option_that_does_not_exist_is_a_fault() -> None:
    faults = {
        "python -m steps.evaluate --spilt val": "steps.evaluate --spilt val: there is no --spilt",
        "python -m benchmarks.gate --trials many": "invalid int value",
        "python -m addons.lineage backwards x": "invalid choice",
        "make train ARGS=--dry-runs": "flows.train --dry-runs: there is no --dry-runs",
    }
    answers = rejected_options(SHELL.format("\n".join(f"{line}   # and a comment" for line in faults)))
    assert len(answers) == len(faults)
    assert all(fault in answer for fault, answer in zip(faults.values(), answers, strict=True))


@pytest.mark.parametrize("block", ["update: {learning_rat: 1}", "seed: -1", "seed: [", "score: {judges: {ruler: 1}}"])
def test_a_setting_that_is_refused_is_a_fault(block: str) -> None:
    assert len(refused_settings(f"```yaml\n{block}\n```\n```yaml\nseed: 1\n```\n")) == 1


def test_a_path_that_does_not_exist_is_a_fault() -> None:
    text = "`steps/rolout.py`, `steps/rollout.py`, `tasks_data/<task>/rubric.md`\n" + SHELL.format(
        "pytest tests/none.py"
    )
    assert sorted(missing_paths(text)) == ["steps/rolout.py", "tests/none.py"]


@pytest.mark.parametrize(
    "target", ["docs/none.md", "#no-heading", "CONTRIBUTING.md#no-heading", "../outside.md", "none.png"]
)
def test_a_link_that_leads_nowhere_is_a_fault(target: str) -> None:
    text = f"# A title\n[here](#a-title) [there](CONTRIBUTING.md#rules) ![picture](benchmarks/learning.png) [bad]({target})"
    [fault] = broken_links(text, README)
    assert fault.startswith(f"{target}: ")


def test_a_tree_that_is_wrong_is_a_fault() -> None:
    tree = "## Tree\n\n```\nsteps/  the stages\nstages/  gone\nrun/  made\n```\n"
    assert wrong_tree(tree, {"steps", "flows"}) == ["stages/ does not exist", "flows/ is left out"]


def test_a_table_of_rooms_that_is_wrong_is_a_fault() -> None:
    table = "| 1 | core | all |\n| 2 | cellar | gone |\n"
    assert wrong_rooms(table, {"core", "runner"}) == ["cellar does not exist", "runner is left out"]


def test_a_table_of_tripwires_that_is_wrong_is_a_fault() -> None:
    table = "# A\n\n| tripwire | sees |\n|---|---|\n| length, width | too much |\n\n| other | table |\n"
    assert wrong_tripwires(table, {"length", "turns"}) == ["width does not exist", "turns is left out"]


def test_a_page_that_is_not_linked_is_a_fault(tmp_path: Path) -> None:
    pages = [tmp_path / name for name in ("README.md", "linked.md", "lost.md")]
    for page, text in zip(pages, ("[a page](linked.md#title)", "", ""), strict=True):
        page.write_text(text)
    assert unlinked_pages(pages[:1], pages) == ["lost.md"]


def test_a_page_that_is_too_long_is_a_fault() -> None:
    assert too_long("word " * 1000, 1000) == []
    assert too_long("word " * 1001, 1000) == ["1001 words, and 1000 are the most"]
