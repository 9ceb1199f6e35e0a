"""The other side of environments/bridges/apart.py: serves one environment, in a process with the interpreter of its package.

It imports nothing of this project, and of the package only what `_package_<package>.py` does. A request is a line of JSON,
{"id", "do": the name of a method, "with": its arguments, "dropped": episodes that are over}, and so is the answer, {"id"}
with "value" or "problem". What the environment prints goes to the standard error, so that no print can pass for an answer.

Each episode has a state of Python's and numpy's global generators, which is put in place before the episode is asked and
kept afterwards: an episode goes the same way whichever others go on beside it. Draws from elsewhere, such as the system's
source of randomness, cannot be repeated.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import random
import sys
from pathlib import Path
from typing import Any, Protocol


class Served(Protocol):
    """An environment with its episodes, as `_package_<package>.py` makes one."""

    module: str  # the environment's

    def facts(self) -> dict[str, Any]: ...
    def open(self, start: dict[str, Any]) -> Any: ...
    def step(self, episode: Any, turn: dict[str, Any]) -> dict[str, Any]: ...
    def drop(self, episode: Any) -> None: ...


class Loop:
    """Answers requests, one after another."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.episodes: dict[int, tuple[Any, Any]] = {}  # with the state of their generators

    def answer(self, request: dict[str, Any]) -> Any:
        for number in request.get("dropped", ()):
            if number in self.episodes:
                self.served.drop(self.episodes.pop(number)[0])
        given = request.get("with", {})
        if request["do"] == "open":
            seed_generators(given["start"]["seed"])
            self.keep(given["number"], self.served.open(given["start"]))
            return None
        if request["do"] == "step":
            episode, state = self.episodes[given["number"]]
            put_generators(state)
            value = self.served.step(episode, given["turn"])
            self.keep(given["number"], episode)
            return value
        seed_generators(given.get("start", {}).get("seed", 0))
        return getattr(self.served, request["do"])(**given)

    def keep(self, number: int, episode: Any) -> None:
        self.episodes[number] = episode, generators()


def seed_generators(seed: int) -> None:
    random.seed(seed)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(seed % 2**32)


def generators() -> tuple[Any, Any]:
    """The state of the global generators: Python's, and numpy's if it is imported."""
    numpy = sys.modules.get("numpy")
    return random.getstate(), numpy.random.get_state() if numpy else None


def put_generators(state: tuple[Any, Any]) -> None:
    random.setstate(state[0])
    if state[1] is not None:
        sys.modules["numpy"].random.set_state(state[1])


def module_of(package: str) -> Any:
    """The module beside this file that serves a package's environments."""
    path = Path(__file__).with_name(f"_package_{package}.py")
    spec = importlib.util.spec_from_file_location(f"_package_{package}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def source_hash(module: str) -> str:
    """A hash of a module's code, or of the Python files of a package: edited, it is another task."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    files = [Path(spec.origin)] if spec.origin and not spec.submodule_search_locations else []
    for folder in spec.submodule_search_locations or ():
        files += Path(folder).rglob("*.py")
    digest = hashlib.sha256()
    for file in sorted(files):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def described(problem: BaseException) -> str:
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text}" if text else type(problem).__name__


def main() -> None:
    package, name, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
    # Modules beside this file have names of packages (gymnasium). The folder of the run comes last: it may have some too.
    here = Path(__file__).resolve().parent
    sys.path[:] = [path for path in sys.path if Path(path).resolve() != here] + [str(Path.cwd())]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    served: Loop | None = None
    for line in requests:
        request = json.loads(line)
        try:
            if served is None:
                seed_generators(0)
                if importlib.util.find_spec(package) is None:
                    raise LookupError(f"{sys.executable} has no package {package}")
                served = Loop(module_of(package).Served(name, options))
                value = served.served.facts()
                value["versions"][served.served.module] = source_hash(served.served.module)
            else:
                value = served.answer(request)
            answer = json.dumps({"id": request["id"], "value": value})
        except BaseException as problem:  # SystemExit, too: what an environment raises is an answer
            is_sentence = served is None and isinstance(problem, LookupError)
            reason = str(problem) if is_sentence else described(problem)
            answer = json.dumps({"id": request["id"], "problem": reason})
        answers.write(answer + "\n")
        answers.flush()
        if served is None:
            return


if __name__ == "__main__":
    main()
