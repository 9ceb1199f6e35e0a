"""Coding agents that people run, as tasks: `harness:claude-code`, `harness:codex` and the others of HARNESSES.

An episode is the unmodified program from its registry, with its default settings, in a folder of its own. A scenario is a
line of tasks_data/<task>/scenarios.jsonl:

    {"question": "Mend add.", "files": {"sums.py": "…"}, "check": "python3 test.py", "check_files": {"test.py": "…"}}

`question` is what the program is asked, `files` are in its folder when it begins, and `check` is a command of a shell that
succeeds (status 0) where the work is right. `check_files` are put beside the work after the program has ended, so that it
cannot have read or changed them. Without a check, judges score the attempts. Scenarios with the same `source`, such as a
repository, are in the same split. All other fields are the scenario's own. `harness:claude-code.reviews` are other
scenarios, in a folder of that name, for the same program.

What programs and checks may reach: confined.py. Programs may connect to the gateway's port, checks to none. Everything
that a program keeps, its settings among them, is in a home folder of its own beside the work. The user's is not read.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from string import Template
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from environments import did_you_mean
from environments.base import Env, Message, Scenario
from environments.kit.agents import AgentEnv, Result
from environments.kit.sandbox import confined

LONGEST_QUESTION = 100_000  # bytes: Linux takes 128 KiB as one argument of a program
CHECK_SECONDS = 60.0  # at most, and a fifth of the episode's
READABLE = "FLYWHEEL_HARNESS_READABLE"  # further folders, with colons between them, that programs and checks may read
OWNER = "owner"  # a file of an episode's folder: the process that made it


class Harness(NamedTuple):
    """How a program is started. In all texts $question, $base_url (…/v1), $root (without /v1), $key and $model are the
    episode's."""

    install: str  # the command that installs it
    command: tuple[str, ...]
    variables: Mapping[str, str] = {}
    files: Mapping[str, str] = {}  # of its home folder, by their paths there


HARNESSES = {
    "claude-code": Harness(
        "npm install --global @anthropic-ai/claude-code",
        ("claude", "--print", "--dangerously-skip-permissions", "$question"),
        {
            "ANTHROPIC_BASE_URL": "$root",
            "ANTHROPIC_API_KEY": "$key",
            "ANTHROPIC_MODEL": "$model",
            "API_TIMEOUT_MS": "3600000",
            "DISABLE_AUTOUPDATER": "1",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",  # telemetry and reports of errors among it
            "IS_SANDBOX": "1",  # it may run as root
        },
    ),
    "codex": Harness(
        "npm install --global @openai/codex",
        ("codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "$question"),
        {"FLYWHEEL_KEY": "$key"},
        {
            ".codex/config.toml": """model = "$model"
model_provider = "flywheel"
check_for_update_on_startup = false
analytics.enabled = false
feedback.enabled = false

[model_providers.flywheel]
name = "flywheel"
base_url = "$base_url"
env_key = "FLYWHEEL_KEY"
wire_api = "responses"
stream_idle_timeout_ms = 3600000
"""
        },
    ),
    "qwen-code": Harness(
        "npm install --global @qwen-code/qwen-code",
        ("qwen", "--yolo", "--prompt", "$question"),
        {"OPENAI_BASE_URL": "$base_url", "OPENAI_API_KEY": "$key", "OPENAI_MODEL": "$model"},
        {
            ".qwen/settings.json": """{
  "security": {"auth": {"selectedType": "openai"}},
  "model": {"generationConfig": {"timeout": 3600000}},
  "general": {"enableAutoUpdate": false, "disableAutoUpdate": true},
  "privacy": {"usageStatisticsEnabled": false},
  "telemetry": {"enabled": false}
}
"""
        },
    ),
    "opencode": Harness(
        "npm install --global opencode-ai",
        ("opencode", "run", "$question"),
        {
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        },
        {
            ".config/opencode/opencode.json": """{
  "model": "flywheel/$model",
  "small_model": "flywheel/$model",
  "provider": {
    "flywheel": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "$base_url", "apiKey": "$key", "timeout": false},
      "models": {"$model": {}}
    }
  },
  "permission": "allow",
  "autoupdate": false,
  "share": "disabled"
}
"""
        },
    ),
    "mini-swe-agent": Harness(
        "uv tool install --compile-bytecode mini-swe-agent",
        ("mini", "--yolo", "--exit-immediately", "--model", "openai/$model", "--task", "$question"),
        {
            "OPENAI_BASE_URL": "$base_url",
            "OPENAI_API_KEY": "$key",
            "MSWEA_CONFIGURED": "true",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
    ),
}


class HarnessEnv(AgentEnv):
    """A program of HARNESSES. Its scenarios are checked for what an episode's folder is made of."""

    harness: Harness

    @classmethod
    def load(cls, folder: Path) -> list[Scenario]:
        if not (folder / "scenarios.jsonl").is_file():
            name, _, own = cls.task.partition(":")[2].partition(".")
            how = f"make new-harness HARNESS={name}" + (f" NAME={own}" if own else "")
            raise FileNotFoundError(f"{folder / 'scenarios.jsonl'} is missing: `{how}` writes examples to edit")
        return super().load(folder)

    @classmethod
    def read_row(cls, row: Any, folder: Path | None = None) -> tuple[list[Message], dict[str, Any]]:
        messages, data = super().read_row(row, folder)
        check_scenario(messages, data)
        own = json.dumps([messages, data.get("files", {})], sort_keys=True)  # the question may be the same
        return messages, {"source": hashlib.sha256(own.encode()).hexdigest()[:16]} | data

    @classmethod
    def ready(cls) -> None:
        program(cls.harness)
        confined.is_confined()


@functools.cache  # each name has a single class
def make(name: str) -> type[Env]:
    """The class of a harness by its name, with or without that of its scenarios. ValueError for another name."""
    own, dot, scenarios = name.partition(".")
    if own not in HARNESSES:
        question = did_you_mean(own, HARNESSES) or "."
        raise ValueError(f"there is no harness {own}{question} There are {', '.join(HARNESSES)}")
    if dot and not re.fullmatch(r"[a-z][a-z0-9_]{0,39}", scenarios):
        raise ValueError(
            f"harness:{name}: behind the dot stands a name for its scenarios, of small letters, digits and underscores"
        )
    fields = {
        "__module__": __name__,
        "task": f"harness:{name}",
        "harness": HARNESSES[own],
        "rollout": staticmethod(functools.partial(rollout, HARNESSES[own])),
        "maker": None,
        "sources": ("source",),
        "openings_repeat": True,  # as of many tasks for one repository
    }
    return type("Harness", (HarnessEnv,), fields)


def check_scenario(messages: Sequence[Message], data: Mapping[str, Any]) -> None:
    """ValueError for a scenario of which no episode's folder can be made."""
    if len(messages) != 1 or messages[0]["role"] != "user":
        raise ValueError("it must have a question, and no other messages: the harness writes its own system prompt")
    question = messages[0]["content"]
    if len(question.encode()) > LONGEST_QUESTION or question.startswith("-"):
        raise ValueError(f"the question must have at most {LONGEST_QUESTION} bytes, and not begin with a hyphen")
    for name in ("files", "check_files"):
        files = data.get(name, {})
        if not isinstance(files, dict) or not all(isinstance(text, str) for text in files.values()):
            raise ValueError(f"{name} must be an object of texts by their paths")
        for path in files:
            parts = path.split("/")
            if not path or "" in parts or "." in parts or ".." in parts or "\0" in path:
                raise ValueError(f"{name}: {path!r} must be a path in the episode's folder, as in src/sums.py")
    if "check" in data and not (isinstance(data["check"], str) and data["check"].strip()):
        raise ValueError("check must be a command of a shell, as in `python3 test_sums.py`")
    if data.get("check_files") and "check" not in data:
        raise ValueError("check_files are for a check, and there is none")


async def rollout(harness: Harness, episode: Any) -> Result:
    """One episode: the program works in its folder, and the check says whether it did what was asked."""
    start, data = time.monotonic(), episode.data
    path, installed = program(harness)
    spare = min(CHECK_SECONDS, episode.seconds / 5)
    with episode_folder(str(episode.id)) as folder:
        work, home = folder / "work", folder / "home"
        texts = {"base_url": episode.base_url, "root": episode.base_url.removesuffix("/v1"), "key": episode.api_key}
        texts |= {"model": episode.model, "question": episode.question}
        for name, text in harness.files.items():
            write(home, name, filled(text, texts))
        for name, text in data.get("files", {}).items():
            write(work, name, text)
        readable = [*installed, *filter(None, os.environ.get(READABLE, "").split(":"))]
        variables = own_variables(folder, readable)
        address = urlsplit(episode.base_url)
        outcome = await confined.run(
            confined.Job(
                command=[path, *(filled(part, texts) for part in harness.command[1:])],
                folder=folder,
                seconds=max(1.0, episode.seconds - spare - (time.monotonic() - start) - 1.0),
                cwd=work,
                variables=variables | {name: filled(text, texts) for name, text in harness.variables.items()},
                readable=readable,
                ports=[address.port or (443 if address.scheme == "https" else 80)],
            )
        )
        if outcome.status != 0:
            how = "was ended at its time limit" if outcome.status is None else f"ended with status {outcome.status}"
            episode.log(f"{harness.command[0]} {how}: {(outcome.errors or outcome.output)[-1000:]}")
        if "check" not in data:
            return Result()
        for name, text in data.get("check_files", {}).items():
            write(work, name, text)
        job = confined.Job(["/bin/sh", "-c", data["check"]], folder, spare, work, variables, readable)
        checked = await confined.run(job)
        if checked.status != 0:
            episode.log(f"check, status {checked.status}: {(checked.errors or checked.output)[-1000:]}")
        return Result(reward=float(checked.status == 0), success=checked.status == 0)


def filled(text: str, texts: Mapping[str, str]) -> str:
    return Template(text).safe_substitute(texts)


def write(folder: Path, name: str, text: str) -> None:
    """Write a file of a folder whose other content is not trusted: where links stand in the way, they are taken away."""
    place = folder
    *parents, last = PurePosixPath(name).parts
    for part in parents:
        place /= part
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            place.unlink()
        place.mkdir(exist_ok=True)
    place /= last
    if place.is_dir() and not place.is_symlink():
        shutil.rmtree(place)
    place.unlink(missing_ok=True)
    place.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def episode_folder(name: str) -> Iterator[Path]:
    """A folder with an empty work/, home/ and tmp/, which is gone afterwards.

    Its path is the same in each run, because harnesses show it to the model; and it is in no repository, whose instructions
    they would read. PermissionError where the place for such folders is another user's.
    """
    base = Path(tempfile.gettempdir()).resolve() / f"harness-{os.getuid()}"
    base.mkdir(mode=0o700, exist_ok=True)
    if base.is_symlink() or base.stat().st_uid != os.getuid():
        raise PermissionError(
            f"{base}, the place for the folders of episodes, is not yours: set TMPDIR to another folder"
        )
    name, number = re.sub(r"[^\w-]", "_", name), 0
    while True:
        folder = base / (f"{name}-{number}" if number else name)
        try:
            folder.mkdir(mode=0o700)
            break
        except FileExistsError:
            if is_abandoned(folder):
                shutil.rmtree(folder)
            else:  # of another run at the same time
                number += 1
    try:
        (folder / OWNER).write_text(str(os.getpid()))
        for part in ("work", "home", "tmp"):
            (folder / part).mkdir()
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def is_abandoned(folder: Path) -> bool:
    """Whether the process that made an episode's folder has died. One that has not said who it is may be about to."""
    with contextlib.suppress(OSError, ValueError):
        return not Path("/proc", str(int((folder / OWNER).read_text()))).exists()
    return False


def own_variables(folder: Path, readable: Sequence[str]) -> dict[str, str]:
    """The environment of a program: nothing of the user's but those folders of PATH that it may read."""
    folders = (*confined.SYSTEM, *readable)
    places = [place for place in os.environ.get("PATH", os.defpath).split(":") if place]
    path = [place for place in places if any(Path(os.path.realpath(place)).is_relative_to(each) for each in folders)]
    return {
        "PATH": ":".join(path),
        "HOME": str(folder / "home"),
        "TMPDIR": str(folder / "tmp"),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "NO_COLOR": "1",
    }


def program(harness: Harness) -> tuple[str, list[str]]:
    """The path of a harness's program, and the folders that it runs from. FileNotFoundError says how it is installed."""
    name = harness.command[0]
    path = shutil.which(name)
    if path is None:
        raise FileNotFoundError(f"the program {name} is not on PATH: `{harness.install}` installs it")
    return path, confined.installed(path)
