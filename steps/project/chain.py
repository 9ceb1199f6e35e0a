"""chain.yaml: which iterations a run has, which policies are evaluated, and which iteration is tested as the best.

The flow writes it as the run goes on, and dvc.yaml reads it. `started` and `warmed` are there where a run begins with an
adapter from elsewhere (run/start) or with supervised training (run/sft), which stand between the base policy and iteration
001. Beside each iteration it names `prev`, whose checkpoint the update continues, and `policy`, whose adapter samples: an
older one than `prev` with train.overlap. `opponent` is the adapter on the other side of a game (rollout.opponent); where
none plays there it is the policy's own, so that nothing else is read. Beside each evaluation it says with what in run/000
it is compared where the task has no rule: with the base policy's evaluation, or for the base policy itself the file that
names it. `of` says by which key params.yaml names the task, and where its rubric is; of several tasks, `task` has their
names, with + between them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from steps.core.errors import UserError
from steps.core.files import write_text
from steps.core.yaml_text import read_mapping

CHAIN = Path("chain.yaml")
HEADER = (
    "# Written by flows.train as a run goes on, read by dvc.yaml: which iterations there are, and which one is best on "
    "validation.\n"
)
BASE = "000"  # the policy before any iteration
ITSELF = "base.json"  # in run/000: names the base policy's adapter
AGAINST = (ITSELF, "evaluation", "test")  # in run/000: what an evaluation may be compared with
START, SFT = "start", "sft"  # policies that iteration 001 may continue in place of the base: run/start, run/sft
OF_ONE = "{param: task, rubric: /rubric.md}"
OF_SEVERAL = '{param: tasks, rubric: ""}'  # which have a rubric in each folder
TASKS = re.compile(r"[\w.]+(\+[\w.]+)+", re.ASCII)
CHAMPION = "start/champion"  # the registry's champion, where it is the opponent: flows/training/start.py copies it
OPPONENT = re.compile(rf"run/(\d{{3}}|{START}|{SFT})/adapter|{CHAMPION}", re.ASCII)
NAME = re.compile(rf"\d{{3}}|{START}|{SFT}", re.ASCII)  # of an iteration


def iteration_name(iteration: int) -> str:
    """The name of an iteration's folder: 001, 002, …"""
    return f"{iteration:03d}"


def place(name: str) -> float:
    """Where a policy stands among the others of its run, by the name of its folder: the base, what the iterations began
    with, then the iterations by their numbers."""
    return {START: 0.1, SFT: 0.2}.get(name) or int(name)


def label(name: str) -> str:
    """A policy for a person, by the name of its folder: "iteration 4", or "run/sft"."""
    return f"iteration {int(name)}" if name.isdigit() else f"run/{name}"


def sampler_of(iteration: int, overlap: int) -> int:
    """The iteration whose adapter samples for this one: the one before it, or with train.overlap so many earlier."""
    return max(iteration - 1 - overlap, 0)


def write_chain(
    iterations: int,
    best: int | str,
    overlap: int = 0,
    origins: Sequence[str] = (),
    tasks: str = "",
    opponent: int | str | None = None,
) -> None:
    """Write a chain of iterations 1 … `iterations`.

    `best`, the number of one or the name of an origin, is tested and offered to the registry; the last origin is tested
    beside it, as `begun`. Each iteration samples with the adapter that is `overlap` iterations older than the one it
    continues, or with the first one. `origins`: which of START and SFT come before iteration 001, in this order; it
    continues the last of them, or the base policy. `tasks`: the names of several tasks, with + between them; empty for a
    single one. `opponent`: after how many iterations a newer adapter becomes the opponent, or the opponent's folder, such
    as CHAMPION; None: there is none.
    """
    before = [BASE, *origins]

    def name(iteration: int) -> str:
        return iteration_name(iteration) if iteration else before[-1]

    def against(iteration: int) -> str:
        if isinstance(opponent, str):
            return opponent
        sampler = sampler_of(iteration, overlap)  # the opponent: the newest multiple of `opponent` that is not newer
        return f"run/{name(sampler // opponent * opponent if opponent else sampler)}/adapter"

    links = "\n".join(
        f'  "{iteration_name(i)}": {{prev: "{name(i - 1)}", policy: "{name(sampler_of(i, overlap))}", '
        f"opponent: {against(i)}}}"
        for i in range(1, iterations + 1)
    )
    begun = [f'started: {{{START}: {{name: "{START}"}}}}\n'] if START in origins else []
    begun += [f'warmed: {{{SFT}: {{prev: "{before[-2]}"}}}}\n'] if SFT in origins else []
    names = [*before, *(iteration_name(i) for i in range(1, iterations + 1))]
    evaluated = "\n".join(compared(f'"{name}"', name, "evaluation") for name in names)
    chosen = best if isinstance(best, str) else iteration_name(best)
    tested = {"base": BASE, "best": chosen}
    if before[-1] not in tested.values():
        tested["begun"] = before[-1]
    tests = "\n".join(compared(key, name, "test") for key, name in tested.items())
    pair = ", ".join(f'{key}: "{name}"' for key, name in tested.items())
    begun = [f"task: {tasks}\nof: {OF_SEVERAL}\n" if tasks else f"of: {OF_ONE}\n", *begun]
    text = (
        f"{HEADER}{''.join(begun)}iterations:\n{links}\nevaluated:\n{evaluated}\ntested: {{{pair}}}\ntests:\n{tests}\n"
    )
    if not CHAIN.exists() or CHAIN.read_text() != text:
        write_text(CHAIN, text)


def compared(key: str, name: str, evaluation: str) -> str:
    """The line of an evaluation of run/<name>, and what in run/000 it is compared with where the task has no rule."""
    return f'  {key}: {{name: "{name}", against: {ITSELF if name == BASE else evaluation}}}'


def read_chain(root: Path) -> dict[str, Any]:
    """The content of chain.yaml: "iterations", "evaluated", "tested" and "tests". UserError where there is no file, or
    where it is damaged: dvc.yaml writes the names in it into the commands of the stages."""
    path = root / "chain.yaml"
    if not path.exists():
        raise UserError(f"{path} does not exist: run from the project's root, or name it with --root")
    cure = "`git checkout chain.yaml` brings the committed one back"
    content = read_mapping(path.read_bytes(), path, cure)
    if problem := misshapen(content):
        raise UserError(f"{path}: {problem}; {cure}")
    return content


def fits(root: Path, is_of_several: bool) -> bool:
    """Whether the chain.yaml in `root` is one with which DVC can read dvc.yaml for a single task, or for several."""
    if not (root / CHAIN).exists():
        return False
    return (read_chain(root).get("of") or {}).get("param") == ("tasks" if is_of_several else "task")


def origins(root: Path) -> list[str]:
    """Which of START and SFT come before iteration 001, by the chain.yaml in `root`."""
    content = read_chain(root)
    return [name for name, key in ((START, "started"), (SFT, "warmed")) if content.get(key)]


def tested_stages(root: Path) -> list[str]:
    """The stages that evaluate policies on the test split, by the chain.yaml in `root`."""
    return [f"test@{key}" for key in read_chain(root).get("tests") or {}]


def sampled_with(root: Path, number: str) -> str:
    """The iteration whose adapter sampled for this one, by the chain.yaml in `root`; the one before where that names none:
    in chains from before train.overlap, of iterations that it does not list, and where there is no such file."""
    before = iteration_name(int(number) - 1)
    if not (root / CHAIN).exists():
        return before
    link = (read_chain(root).get("iterations") or {}).get(number) or {}
    return str(link.get("policy", link.get("prev", before)))


def policy_lag(root: Path, number: str) -> int:
    """How many iterations older the adapter that sampled for an iteration is than the one that the update continued."""
    sampler = sampled_with(root, number)
    return max(int(number) - 1 - (int(sampler) if sampler.isdigit() else 0), 0)


def listed(run: Path) -> frozenset[str] | None:
    """The iterations that belong to the run in a folder, by the chain.yaml beside it: a longer run before it, or one of
    another task, leaves folders there that the run never had. None where no chain.yaml says so, or a damaged one."""
    path = run.absolute().parent / CHAIN
    try:
        state = path.stat()
    except OSError:
        return None
    return _listed(path, state.st_mtime_ns, state.st_size)


def iteration_folders(run: Path) -> list[Path]:
    """run/000, run/001, …: those that belong to the run, as far as `listed` tells."""
    names = listed(run)
    folders = sorted(path for path in run.glob("[0-9]*") if path.is_dir() and path.name.isdigit())
    return [path for path in folders if names is None or path.name in names]


@lru_cache(maxsize=16)
def _listed(path: Path, *_: int) -> frozenset[str] | None:
    """The names in a chain.yaml; further arguments change with the file."""
    with suppress(UserError, OSError):
        content = read_chain(path.parent)
        return frozenset([BASE, *(content.get("iterations") or ()), *(content.get("evaluated") or ())])
    return None


def misshapen(chain: dict[str, Any]) -> str:
    """What in a chain does not have the form that `write_chain` gives it; empty where all has."""
    tasks, of = chain.get("task"), chain.get("of")
    if tasks is not None and not (isinstance(tasks, str) and TASKS.fullmatch(tasks)):
        return f"{str(tasks)[:40]!r} are no names of several tasks, such as multiplication+tic_tac_toe"
    if of is not None and of not in ({"param": "task", "rubric": "/rubric.md"}, {"param": "tasks", "rubric": ""}):
        return f"of must be {OF_ONE} or {OF_SEVERAL}, not {str(of)[:60]}"
    for key in ("started", "warmed", "iterations", "evaluated", "tested", "tests"):
        if key == "evaluated" and isinstance(chain.get(key), list):  # of runs from before they could be compared
            continue
        if not isinstance(chain.get(key) or {}, dict):
            return f"{key} must be a mapping, not a {type(chain[key]).__name__}"
    iterations, evaluated, tested, tests = (
        chain.get(key) or {} for key in ("iterations", "evaluated", "tested", "tests")
    )
    begun = [*(chain.get("started") or {}).values(), *(chain.get("warmed") or {}).values()]
    links = [
        link.get(key, BASE) if isinstance(link, dict) else BASE
        for link in [*iterations.values(), *begun]
        for key in ("prev", "policy")
    ]
    for link in iterations.values():
        against = link.get("opponent", f"run/{BASE}/adapter") if isinstance(link, dict) else f"run/{BASE}/adapter"
        if not isinstance(against, str) or not OPPONENT.fullmatch(against):
            return f"{str(against)[:40]!r} is no adapter of an opponent, such as run/000/adapter"
    sides = [*(evaluated.values() if isinstance(evaluated, dict) else ()), *tests.values()]
    if not all(isinstance(side, dict) and side.get("against") in AGAINST for side in sides):
        return f"an evaluation must have a name, and be against one of {', '.join(AGAINST)}"
    names = [side.get("name") for side in sides]
    for name in [*iterations, *links, *evaluated, *filter(None, tested.values()), *names]:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            return f'{str(name)[:40]!r} is no name of an iteration, such as "001"'
    return ""
