"""Every name that a package registers, in a process of its own: is it played, refused in a sentence, or broken?

Played means: three scenarios, in each an episode of the random, the gold and the idle player, finite returns. A name that
takes longer than `SECONDS` is slow. A row counts the names of each kind; broken ones, and those whose idle or random player
is paid more than gold, are listed on the standard error.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import environments
from benchmarks._common import tell

SECONDS = 40
PACKAGES = ("gymnasium", "pettingzoo", "reasoning_gym", "textarena")
PLAYERS = ("gold", "random", "bad")


def names_of(package: str) -> list[str]:
    """What the package registers; of textarena's variants with other wrappers, the plain one."""
    if package == "gymnasium":
        import gymnasium
        import minigrid  # noqa: F401  (registers its environments)

        return list(gymnasium.registry)
    if package == "pettingzoo":
        import pettingzoo.classic

        return sorted(path.stem for path in Path(str(pettingzoo.classic.__file__)).parent.glob("*_v*.py"))
    if package == "reasoning_gym":
        from reasoning_gym.factory import DATASETS

        return sorted(DATASETS)
    from textarena.envs.registration import ENV_REGISTRY

    return sorted(name for name in ENV_REGISTRY if not name.endswith(("-raw", "-train")))


def status_of(task: str) -> dict[str, Any]:
    """{"kind": played, refused or broken; "why"; the mean return of each player}."""
    try:
        env = environments.load(task)
        scenarios = env.scenarios(None, "train", 3, 1)
    except (ValueError, ModuleNotFoundError) as problem:
        return {"kind": "refused", "why": str(problem)}
    except Exception as problem:
        return {"kind": "broken", "why": f"{type(problem).__name__}: {problem}"}
    means: dict[str, Any] = {}
    try:
        for player in PLAYERS:
            plays = [(scenario, env(scenario, None).play(player)) for scenario in scenarios]
            sums = [sum(part.value for part in env.components(scenario, messages)) for scenario, messages in plays]
            wins = [env.success(scenario, messages) for scenario, messages in plays]
            means |= {player: sum(sums) / len(sums), f"{player}_wins": sum(wins)}
    except Exception as problem:
        return {"kind": "broken", "why": f"{type(problem).__name__}: {problem}"}
    if not all(map(math.isfinite, means.values())):
        return {"kind": "broken", "why": f"returns are no finite numbers: {means}"}
    return {"kind": "played", "why": "", **means}


def apart(task: str) -> dict[str, Any]:
    """`status_of` in a process of its own, which is ended after `SECONDS`. What the package prints is dropped."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, 1)
        os.dup2(nothing, 2)
        signal.alarm(SECONDS)
        try:
            os.write(writing, json.dumps(status_of(task)).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return dict(json.loads(text)) if text else {"kind": "slow", "why": f"more than {SECONDS} seconds"}


def rows(package: str) -> Iterator[dict[str, Any]]:
    """The row of a package."""
    names = names_of(package)
    kinds = Counter[str]()
    for name in names:
        status = apart(f"{package}:{name}")
        kinds[status["kind"]] += 1
        if status["kind"] == "played":
            kinds["won"] += status["gold_wins"] > 0
            if max(status["random"], status["bad"]) > status["gold"] and status["gold_wins"]:
                kinds["disordered"] += 1
                tell(f"{package}:{name}: gold {status['gold']:.3f}, random {status['random']:.3f}")
        elif status["kind"] != "refused":
            tell(f"{package}:{name}: {status['kind']}: {status['why'][:200]}")
    yield {
        "name": package,
        "ratio": round((kinds["played"] + kinds["refused"]) / len(names), 3),
        "names": len(names),
        **{kind: kinds[kind] for kind in ("played", "won", "disordered", "refused", "slow", "broken")},
    }
