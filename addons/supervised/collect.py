"""Collects the demonstrations of the stage sft: the user's files, and the good trajectories of earlier runs.

The second is rejection sampling (as in RAFT: Dong et al. 2023, arXiv:2304.06767): attempts whose reward is high enough are
learnt from. A conversation that is there already is left out, and counted. `player:scripted` in place of a file has the
task's own player show how its training scenarios are done.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import environments
from addons.supervised.chats import READ, read_demonstrations
from addons.supervised.section import Sft
from addons.supervised.teach import taught
from environments.base import Env, Scenario
from flows.training.start import DEMONSTRATIONS
from steps.core.errors import UserError
from steps.core.files import json_lines
from steps.core.params import Params
from steps.core.records import Reward, Trajectory, read_records
from steps.data.ingested import INGESTED
from steps.project.chain import read_chain
from steps.project.lock import SHORT

PLAYER = "player:scripted"  # in sft.demonstrations
TRIED = 16  # scenarios at which the scripted player is tried before a run is taught by it
SHOWN, DRAWS = 240, 8  # training scenarios at which it shows how the task is done, and from how many draws at most


def asked(params: Params) -> dict[str, Any]:
    """What decides which demonstrations are brought, as JSON data."""
    settings = Sft.of(params)
    kept = {"demonstrations", "from_runs", "min_reward"}
    return {} if settings is None else {"sft": settings.model_dump(mode="json", include=kept)}


def take(root: Path, params: Params, folder: Path) -> dict[str, Any]:
    """Write all demonstrations into start/, in `folder`: what they are, as {"rows", "from": {source: rows}, "repeated"}.
    UserError where a source has none."""
    settings = Sft.of(params)
    assert settings is not None
    sources = [
        (name, of_player(params) if name == PLAYER else of_file(root, name, params.task))
        for name in settings.demonstrations
    ]
    sources += [(f"run:{name}", of_run(root, name, params, settings)) for name in settings.from_runs]
    texts: dict[str, str] = {}  # by what is learnt: the line
    for line in (line for _, lines in sources for line in lines):
        texts.setdefault(identity(line), line)
    text = "".join(f"{line}\n" for line in texts.values())
    (folder / "demonstrations.jsonl").write_text(text, encoding="utf-8")
    counts = [(name, len(lines)) for name, lines in sources]
    return {"rows": len(texts), "from": dict(counts), "repeated": sum(count for _, count in counts) - len(texts)}


def resolved(params: Params, entry: dict[str, Any]) -> list[str]:
    """Assignments to params.yaml: none, since a file is named and not a version of it."""
    return []


def described(entry: dict[str, Any]) -> str:
    counts = ", ".join(f"{count} of {name}" for name, count in entry["from"].items())
    return f"learns from {entry['rows']} demonstrations first: {counts}"


def of_player(params: Params) -> list[str]:
    """What the task's scripted player does at training scenarios, where it succeeds: at the run's own, and at as many more
    that other seeds draw as make SHOWN. UserError where it never does."""
    env = environments.load(params.task)
    if not env.has_player("scripted"):
        raise UserError(f"sft.demonstrations: {env.lacks('scripted')}; name a file in its place")
    lines, report = taught(env, *training(env, params, params.scenarios.train, SHOWN), 1, None, None)
    if not lines:
        raise UserError(
            f"sft.demonstrations: the player `scripted` of {params.task} succeeds at none of {report['played']} training "
            "scenarios; mend it, or name a file in its place"
        )
    return [json.dumps(line, ensure_ascii=False) for line in lines]


def material(params: Params) -> list[str]:
    """What could be learnt from, as sft.demonstrations takes it: the task's demonstrations, good conversations that were
    ingested, or else the scripted player. Several tasks at once have none."""
    if params.tasks:
        return []
    ingested = INGESTED / params.task / DEMONSTRATIONS
    has_own = (environments.data_of(params.task) / DEMONSTRATIONS).is_file()
    files = [DEMONSTRATIONS] * has_own + [str(ingested)] * ingested.is_file()
    return files or [PLAYER] * has_examples(params)


def has_examples(params: Params) -> bool:
    """Whether the task has a scripted player that succeeds at times, tried on a few training scenarios."""
    env = environments.load(params.task)
    if not env.has_rule or not env.has_player("scripted"):
        return False
    return bool(taught(env, *training(env, params, min(TRIED, params.scenarios.train)), 1, None, None)[0])


def training(env: type[Env], params: Params, count: int, least: int = 0) -> tuple[Any, list[Scenario]]:
    """The task's data, and training scenarios: `count` that the run's seed draws, then others until there are `least`, as
    far as a few more draws have any."""
    data, drawn = env.load(environments.data_of(params.task)), dict[str, Scenario]()
    for draw in range(DRAWS):
        for scenario in env.scenarios(data, "train", count, params.seed + draw):
            drawn.setdefault(scenario.id, scenario)
        if len(drawn) >= least:
            break
    return data, list(drawn.values())[: max(count, least)]


def identity(line: str) -> str:
    """What of a line is learnt, and not where it comes from. The line itself where it is no JSON object."""
    try:
        value = json.loads(line)
        return json.dumps([value["messages"], *(value.get(name) for name in READ)], sort_keys=True)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return line


def of_file(root: Path, name: str, task: str) -> list[str]:
    """The lines of a file, in tasks_data/<task>/ or at a path, each with a source. UserError where none is usable."""
    # The last one in a worktree of the project in `root`.
    paths = [Path("tasks_data") / task / name, Path(name), root / name]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise UserError(f"sft.demonstrations: there is no file {paths[0]}, and none at {name}; see docs/start.md")
    usable, left_out = read_demonstrations(path)
    if not usable:
        reason, lines = next(iter(left_out.items()), ("it is empty", [0]))
        raise UserError(f"sft.demonstrations: no line of {path} can be learnt from; line {lines[0]}: {reason}")
    return [with_source(line, f"{name}:{number}") for number, line in enumerate(json_lines(path), 1) if line.strip()]


def with_source(line: str, source: str) -> str:
    """The line with a source, where it has none. A line that is no JSON object stays, and the stage counts it."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return line
    if isinstance(value, dict) and not value.get("source"):
        return json.dumps(value | {"source": source}, ensure_ascii=False)
    return line


def of_run(root: Path, name: str, params: Params, settings: Sft) -> list[str]:
    """The finished training trajectories of a kept run whose reward is `min_reward` at least, as lines. Their source is
    the id by which lineage knows the trajectory. UserError where the run is of another task, or has none."""
    if environments.load(params.task).is_agent:
        raise UserError(
            f"sft.from_runs: {params.task} is an agent of your own, whose trajectories do not hold its tools; export what "
            "it did as demonstrations, and name the file in sft.demonstrations"
        )
    from addons.starts.sources import checked_out, named

    run_name, only = named(name)
    lines = []
    with checked_out(root, run_name) as run:
        if (task := run.params.get("task")) != params.task:
            raise UserError(f"sft.from_runs: the run {run_name} is of the task {task}, and this one of {params.task}")
        listed = list(read_chain(run.folder).get("iterations") or {})
        if only is not None and only not in listed:
            raise UserError(f"sft.from_runs: the run {run_name} has no iteration {only}; it has {', '.join(listed)}")
        numbers = listed if only is None else [only]
        files = [f"run/{number}/{name}.parquet" for number in numbers for name in ("trajectories", "rewards")]
        run.have(["run/scenarios", *files])
        scenarios = {item.id: item for item in read_records(Scenario, run.folder / "run/scenarios/train.parquet")}
        for number in numbers:
            batch = run.md5(f"run/{number}/trajectories.parquet")[:SHORT]
            rewards = {
                reward.trajectory_id: reward.score
                for reward in read_records(Reward, run.folder / f"run/{number}/rewards.parquet")
            }
            for trajectory in read_records(Trajectory, run.folder / f"run/{number}/trajectories.parquet"):
                score = rewards.get(trajectory.id)
                if trajectory.stop_reason == "done" and score is not None and score >= (settings.min_reward or 0):
                    messages = trajectory.messages(scenarios[trajectory.scenario_id])
                    while messages and messages[-1]["role"] != "assistant":
                        messages.pop()
                    value = {"messages": messages, "source": f"{batch}/{trajectory.id}"}
                    lines.append(json.dumps(value, ensure_ascii=False))
    if not lines:
        raise UserError(
            f"sft.from_runs: no finished trajectory of {name} has a reward of {settings.min_reward:g}; lower sft.min_reward"
        )
    return lines
