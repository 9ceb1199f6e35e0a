"""Do MCP servers work as they come from PyPI and npm? Each becomes a task by `make new-mcp`, and 10 episodes are played.

    python -m benchmarks.mcp_servers                        # all of `SERVERS`; they are installed into a scratch folder
    python -m benchmarks.mcp_servers --quick                # the first three, 2 episodes each
    python -m benchmarks.mcp_servers --folder ~/servers     # keeps the installation, for the next time
    python -m benchmarks.mcp_servers --servers mcp-server-git @playwright/mcp

None of these needs a key or a network. An episode begins with a call that works, of the servers that have one here (`works`:
in how many episodes it did). Then the random player goes on: calls whose arguments fit their schemas, of which a server
refuses many, and words, which end an episode. A call counts as answered where the server gave a result or an error of its
own; not where it hung, ended, or was never reached. `ratio` is answered calls / all. `tokens` are those of the tools'
descriptions by tasks_data/general_policy, and `fits` is by the default of policy.context.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from addons.planning import servers
from benchmarks import _common
from benchmarks._common import ROOT
from environments import _new
from environments.base import Message, tool_calls, use
from environments.mcp import Mcp
from steps.core.params import Policy

EPISODES, QUICK = 10, 2
FEW = 3  # servers of --quick
SECONDS = 600  # that an installation may take
ASKED = "Try your tools: list what there is, note 'blue', and read README.md."
POLICY = Policy(base_model="tasks_data/general_policy")
# How an observation begins that no server gave.
LOST = ("Error: the tool server", "Error: the MCP server", "Error: there is no tool", "Error: the arguments of")


class Server(NamedTuple):
    """A package with the command that starts it; {work} is the folder in which an episode's server runs."""

    package: str  # with its version, as its registry takes it
    command: str  # its program, and arguments
    call: tuple[str, str] | None = None  # a tool, and arguments as JSON, that work without a network or a browser
    also: tuple[str, ...] = ()  # packages beside it
    env: str = ""  # variables, as in A=b

    @property
    def name(self) -> str:
        return self.package.replace("==", "@").rpartition("@")[0]

    @property
    def is_python(self) -> bool:
        return "==" in self.package


OLD = ("mcp<2",)  # beside packages that do not work with the SDK's second version
NPM = "@modelcontextprotocol/server"
THOUGHT = '{"thought": "blue", "nextThoughtNeeded": false, "thoughtNumber": 1, "totalThoughts": 1}'
SERVERS = [
    Server("mcp-server-time==2026.10.19", "mcp-server-time", ("get_current_time", '{"timezone": "UTC"}')),
    Server(f"{NPM}-everything@2026.8.31", "mcp-server-everything", ("get-sum", '{"a": 2, "b": 3}')),
    Server("mcp-server-calculator==0.2.1", "mcp-server-calculator", ("calculate", '{"expression": "6 * 7"}')),
    Server("mcp-server-git==2026.10.19", "mcp-server-git", ("git_status", '{"repo_path": "."}')),
    Server("mcp-server-sqlite==2025.4.25", "mcp-server-sqlite --db-path {work}/a.db", ("list_tables", "{}"), OLD),
    Server("markitdown-mcp==0.0.1a8", "markitdown-mcp", ("convert_to_markdown", '{"uri": "data:text/plain,blue"}')),
    Server(
        "mcp-server-motherduck==1.1.0",
        "mcp-server-motherduck --db-path :memory: --read-write",
        ("execute_query", '{"sql": "SELECT 42"}'),
    ),
    Server("mcp-server-tree-sitter==0.7.0", "mcp-server-tree-sitter", ("list_languages", "{}"), OLD),
    Server("office-word-mcp-server==1.1.11", "word_mcp_server", ("create_document", '{"filename": "a.docx"}'), OLD),
    Server("office-powerpoint-mcp-server==2.0.7", "ppt_mcp_server", ("create_presentation", "{}"), OLD),
    Server(
        "mcp-server-duckdb==1.1.0",
        "mcp-server-duckdb --db-path {work}/a.duckdb",
        ("query", '{"query": "SELECT 42"}'),
        OLD,
    ),
    Server("mcp-dice==0.1.2", "mcp-dice", ("roll_dice", '{"notation": "2d6"}'), OLD),
    Server("mcp-simple-timeserver==3.3.2", "mcp-simple-timeserver", ("get_local_time", "{}")),
    Server("code-index-mcp==2.17.1", "code-index-mcp", ("get_settings_info", "{}")),
    Server("docx-mcp-server==0.7.4", "docx-mcp-server", None, OLD),
    Server("excel-mcp-server==2.2.2", "excel-mcp-server stdio"),
    Server(f"{NPM}-filesystem@2026.8.31", "mcp-server-filesystem {work}", ("list_directory", '{"path": "."}')),
    Server(f"{NPM}-memory@2026.8.31", "mcp-server-memory", ("read_graph", "{}"), env="MEMORY_FILE_PATH={work}/a.jsonl"),
    Server(f"{NPM}-sequential-thinking@2026.8.31", "mcp-server-sequential-thinking", ("sequentialthinking", THOUGHT)),
    Server("@negokaz/excel-mcp-server@0.12.0", "excel-mcp-server"),
    Server("@playwright/mcp@0.0.83", "playwright-mcp"),
    Server("chrome-devtools-mcp@1.11.0", "chrome-devtools-mcp"),
    Server("mcp-hello-world@1.1.2", "mcp-hello-world", ("echo", '{"message": "blue"}')),
    Server("@cyanheads/git-mcp-server@2.15.3", "git-mcp-server", env="MCP_TRANSPORT_TYPE=stdio"),
    Server(
        "@kazuph/mcp-taskmanager@1.1.1",
        "mcp-taskmanager",
        ("list_requests", "{}"),
        env="TASK_MANAGER_FILE_PATH={work}/tasks.json",
    ),
    Server("@eslint/mcp@0.3.13", "mcp"),
    Server(
        "@agent-infra/mcp-server-filesystem@1.2.29",
        "mcp-server-filesystem --allowed-directories {work}",
        ("list_allowed_directories", "{}"),
    ),
]


def install(server: Server, folder: Path) -> Path:
    """The folder with a server's programs; nothing is done where it is there already. ValueError with the client's words."""
    place = folder / server.name.replace("/", "+")
    programs = place / "bin" if server.is_python else place / "node_modules" / ".bin"
    if (place / "installed").is_file():
        return programs
    if server.is_python:
        uv = str(Path(sys.executable).with_name("uv"))
        steps = [
            [uv, "--quiet", "venv", "--clear", str(place)],
            [uv, "--quiet", "pip", "install", "--python", str(place / "bin/python"), server.package, *server.also],
        ]
    else:
        if shutil.which("npm") is None:
            raise ValueError(f"{server.package} needs npm: install Node 20")
        options = ["--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        steps = [["npm", "install", "--prefix", str(place), *options, server.package, *server.also]]
    for words in steps:
        done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False)
        if done.returncode:
            raise ValueError(f"{server.package} is not installed: {' '.join(done.stderr.split())[-300:]}")
    (place / "installed").touch()
    return programs


def make_task(server: Server, programs: Path, root: Path) -> Path:
    """The data folder of the task that `make new-mcp` makes of the server's command. ValueError where it does not."""
    (root / "environments").mkdir(parents=True)
    work = root / "tasks_data" / "mcp" / "work"
    work.mkdir(parents=True)
    (work / "README.md").write_text("# A folder\n\nblue\n", encoding="utf-8")
    git = ["git", "-c", "user.name=someone", "-c", "user.email=someone@localhost"]
    for words in (["init", "--quiet"], ["add", "--all"], ["commit", "--quiet", "--message", "first"]):
        subprocess.run([*git, *words], cwd=work, check=True)
    program, _, arguments = server.command.partition(" ")
    path = f"PATH={programs}:{os.environ['PATH']}"
    settings, *_ = _new.write_mcp(
        "mcp", f"env HOME={{work}} {path} {server.env} {programs / program} {arguments}", root
    )
    return settings.parent


def fate(observation: str) -> str:
    """What became of a call: answered, refused by the server in its own words, or lost."""
    if observation.startswith(LOST) and not observation.startswith("Error: the tool server refused the call"):
        return "lost"
    if "and its answer was not waited for" in observation:
        return "hung"
    return "refused" if observation.startswith("Error: ") else "answered"


def play(env: Mcp, server: Server, number: int) -> list[tuple[str, str]]:
    """(tool, observation) of each call of an episode: the server's `call` first, then those of the random player."""
    rng, messages = Random(number), list[Message](env.scenario.messages)
    try:
        for turn in range(env.max_turns):
            is_first = turn == 0 and server.call
            own = use(server.call[0], **json.loads(server.call[1])) if is_first and server.call else None
            messages.append(own or env.random(messages, rng))
            messages += env.step(messages[-1])
            if env.done:
                break
    finally:
        env.release()
    return [(name, str(observation["content"])) for name, _, observation in tool_calls(messages)]


def measure(server: Server, folder: Path, episodes: int) -> dict[str, Any]:
    """The row of a server; `problem` where it is none."""
    row: dict[str, Any] = {"name": server.name, "registry": "PyPI" if server.is_python else "npm"}
    began = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="mcp-task-") as root:
        try:
            data_folder = make_task(server, install(server, folder), Path(root))
        except (ValueError, subprocess.TimeoutExpired) as problem:
            return row | {"ratio": 0.0, "problem": str(problem)[-300:]}
        data = Mcp.load(data_folder)
        length = servers.length_of(POLICY, data.tools, data.settings.description)
        fates, lost, works = Counter[str](), Counter[str](), 0
        for number in range(episodes):
            scenario = Mcp._scenario(data, "train", f"{ASKED} ({number})", {})
            calls = play(Mcp(scenario, data), server, number)
            works += server.call is not None and fate(calls[0][1]) == "answered"
            for tool, observation in calls:
                fates[fate(observation)] += 1
                if fate(observation) in ("lost", "hung"):
                    lost[f"{tool}: {observation[:160]}"] += 1
    count = sum(fates.values())
    return row | {
        "ratio": round((fates["answered"] + fates["refused"]) / count, 3) if count else 0.0,
        "tools": len(data.tools),
        "tokens": length.tools,
        "fits": length.prompt < POLICY.context,
        "episodes": episodes,
        "calls": count,
        "results": fates["answered"],
        "refusals": fates["refused"],
        "lost": fates["lost"] + fates["hung"],
        "works": None if server.call is None else round(works / episodes, 2),
        "seconds": round(time.perf_counter() - began, 1),
        "causes": [f"{times} × {cause}" for cause, times in lost.most_common(3)],
    }


def main() -> None:
    parser = _common.parser("mcp_servers", __doc__, f"the first {FEW} servers, {QUICK} episodes each")
    parser.add_argument("--servers", nargs="+", metavar="NAME", help="these only (default: all; quick: the first)")
    parser.add_argument("--folder", type=Path, help="where they are installed, and stay (default: a scratch folder)")
    options = parser.parse_args()
    chosen = [server for server in SERVERS if server.name in (options.servers or [server.name])]
    if unknown := sorted({*(options.servers or ())} - {server.name for server in chosen}):
        parser.error(f"there is no server {unknown[0]}: choose from {', '.join(server.name for server in SERVERS)}")
    if options.quick and not options.servers:
        chosen = chosen[:FEW]
    usual = FEW if options.quick else len(SERVERS)
    rows = _common.begin("mcp_servers", options, len(chosen) / usual)
    with tempfile.TemporaryDirectory(prefix="mcp-servers-") as scratch:
        for server in chosen:
            row = measure(server, options.folder or Path(scratch), QUICK if options.quick else EPISODES)
            rows.add(row)
            for cause in row.get("causes", ()):
                _common.tell(f"{server.name}: {cause}")


if __name__ == "__main__":
    os.chdir(ROOT)
    _common.command(main)
