"""Stage runner: turns a plain function into a command whose outputs appear complete or not at all.

A stage is a function of paths and parameters, `def rollout(scenarios: Input, trajectories: Output, params: RolloutParams)`,
and its module ends with `if __name__ == "__main__": main(rollout)`. `python -m steps.rollout --help` lists the options.

FLYWHEEL_WORKER=off runs a stage in this process and not in the warm worker (steps/runner/worker.py). A stage that several
processes share starts them itself (addons/accelerate/ranks.py).

Not here: what stages do, seeds, staleness (DVC decides), Prefect. Importing this module must stay a matter of milliseconds:
it imports only the standard library, and what a running stage needs is imported when one runs.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.core.files import write_json
from steps.core.progress import take_measurements
from steps.core.terminal import ProgressDisplay, command_parser, outcome

if TYPE_CHECKING:
    from steps.runner.outputs import Outputs

Input = Path  # exists before the stage runs
Output = Path  # a temporary name next to the final one, where the stage makes a file or a directory

SCALARS = {"str": str, "int": int, "float": float, "bool": bool}
MAKERS = {"scenarios": "scenarios", "trajectories": "rollout", "rewards": "score", "evaluation": "evaluate"}
MAKERS |= dict.fromkeys(("adapter", "behaviour", "checkpoint", "previous"), "update (at first initialise)")
MAKERS |= {
    "successes": "score (at first initialise)",
    "against": "evaluate, of the base policy (at first initialise)",
}


def signature(function: Callable) -> dict[str, tuple[str, bool, object]]:
    """Name -> (annotation, required, default); `X | None` counts as X. TypeError for other annotations than a stage takes.

    `inspect` is not used, because importing it takes 10 ms."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    defaults = dict(zip(reversed(names[: code.co_argcount]), reversed(function.__defaults__ or ()), strict=False))
    defaults.update(function.__kwdefaults__ or {})
    result = {}
    for name in names:
        kind = str(function.__annotations__.get(name)).removesuffix(" | None")
        if kind not in ("Input", "Output") and kind not in SCALARS and not kind.endswith("Params"):
            takes = f"a stage takes Input, Output, <Name>Params, {', '.join(SCALARS)}"
            raise TypeError(f"{function.__name__}({name}: {kind}): {takes}")
        result[name] = (kind, name not in defaults, defaults.get(name))
    return result


def parse(function: Callable, module: str, words: list[str]) -> dict[str, object]:
    """The command line as {parameter: value}. `--params` stands for the parameter that is a <Name>Params."""
    from argparse import BooleanOptionalAction

    parser = command_parser(module, sys.modules[function.__module__].__doc__ or function.__doc__, allow_abbrev=False)
    kinds = signature(function)
    for name, (kind, required, default) in kinds.items():
        settings: dict[str, Any] = {"dest": name, "required": required, "default": default}
        if kind == "bool":
            settings["action"] = BooleanOptionalAction
        elif kind in ("Input", "Output"):
            maker = MAKERS.get(name.rpartition("_")[2])
            role = "read" + (f"; made by {maker}" if maker else "") if kind == "Input" else "written; replaced whole"
            settings |= {"metavar": "PATH", "help": role}
        elif kind in SCALARS:
            settings |= {"type": SCALARS[kind], "help": f"default: {default}" if default is not None else ""}
        if not kind.endswith("Params"):
            parser.add_argument("--" + name.replace("_", "-"), **settings)
    if any(kind.endswith("Params") for kind, _, _ in kinds.values()):
        parser.add_argument("--params", metavar="PATH", default="params.yaml", help="default: params.yaml")
    return vars(parser.parse_args(words))


def main(function: Callable, warm: bool = True) -> None:
    """Run a stage's command line in the warm worker or (`warm=False`, FLYWHEEL_WORKER=off) in this process, and exit."""
    spec = sys.modules["__main__"].__spec__
    module = function.__module__ if function.__module__ != "__main__" or spec is None else spec.name
    arguments = parse(function, module, sys.argv[1:])
    import signal

    warm = warm and is_warm()
    try:
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
        code, _ = run_shown(module, function.__name__, arguments, warm)
    except KeyboardInterrupt:
        code = 130
    if warm:
        sys.stdout.flush()
        os._exit(code)  # an ordinary exit takes 6 ms, and a client has nothing to clean up
    sys.exit(code)


def is_warm() -> bool:
    """Whether stages are handed over to the warm worker."""
    return os.environ.get("FLYWHEEL_WORKER") != "off"


def run_shown(
    module: str, name: str, arguments: dict, warm: bool, more: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run a stage for a person or a flow: show its progress, and explain an error. The exit code and the explanation.
    `more`: variables of the worker beside the usual one that is to run it."""
    display = ProgressDisplay(module.rpartition(".")[2])

    def stage() -> None:
        if warm:
            from steps.runner import handover

            handover.hand_over(module, name, arguments, display, more or {})
        else:
            run(find(module, name), arguments)

    return outcome(stage, display)


def find(module: str, name: str) -> Callable:
    """The stage function of a module by its real name, so that worker and command run the same object. UserError where
    there is none."""
    if module.partition(".")[0] not in ("steps", "environments", "addons"):
        raise UserError(f"{module} is no stage: only modules of steps, environments and addons are run")
    from importlib import import_module

    function = getattr(import_module(module), name, None)
    if function is None or getattr(function, "__module__", "") != module or not hasattr(function, "__code__"):
        raise UserError(f"{module} has no stage function named {name}")
    return function


def run(function: Callable, arguments: dict) -> float:
    """Run a stage; returns the seconds that its function took."""
    return StageRun(function, arguments).execute()


class StageRun:
    """One run of a stage in this process. Its outputs get their final names only when the stage has returned."""

    def __init__(self, function: Callable, arguments: dict) -> None:
        self.function, self.arguments = function, arguments
        self.outputs: Outputs | None = None  # while the stage's function runs

    def execute(self) -> float:
        """Call the stage's function, and return the seconds it took. UserError where an input does not exist."""
        from steps.runner.outputs import Outputs

        values, inputs, finals = self._values()
        take_measurements()  # drops those of a stage that failed before
        try:
            with Outputs(finals, inputs) as outputs:
                self.outputs = outputs
                started = time.perf_counter()
                self.function(**values | outputs.temporary)
                seconds = time.perf_counter() - started
            with outputs.lock:  # else `abandon` would end the process while a file is half written
                self._keep_timings(seconds, outputs)
        finally:
            self.outputs = None
        return seconds

    def _values(self) -> tuple[dict[str, object], list[Path], dict[str, Path]]:
        """(arguments of the function, paths of its inputs, final paths of its outputs)."""
        values: dict[str, object] = {}
        inputs: list[Path] = []
        finals: dict[str, Path] = {}
        for name, (kind, _, default) in signature(self.function).items():
            value = self.arguments.get(name, default)
            if kind.endswith("Params"):
                from steps.core import params

                value = params.load(
                    Path(self.arguments.get("params", "params.yaml")), params.declared(kind, self.function.__module__)
                )
            elif kind == "Output" and value is not None:
                value = finals[name] = Path(value)
            elif kind == "Input" and value is not None:
                value = existing(name, Path(value))
                inputs.append(value)
            values[name] = value
        return values, inputs, finals

    def _keep_timings(self, seconds: float, outputs: Outputs) -> None:
        stage, measured = self.function.__module__.rpartition(".")[2], take_measurements()
        for final in list(outputs.finals.values())[:1]:
            timings = final.parent / "timings"
            timings.mkdir(exist_ok=True)
            numbers = {"stage": stage, "seconds": round(seconds, 4), **measured.numbers}
            write_json(timings / f"{final.stem}.json", numbers)
            if turns := measured.turns:
                write_json(timings / f"{final.stem}.turns.json", {"began": measured.began, "turns": turns})

    def abandon(self) -> None:
        """Remove what the stage has written so far. Another thread calls this just before the process ends."""
        if (outputs := self.outputs) is not None:
            outputs.lock.acquire()  # never released: from here on nothing can be put in place
            outputs.discard()


def existing(name: str, path: Path) -> Path:
    """The path of an input. UserError, which names the stage that makes it, where it does not exist."""
    if not path.exists():
        maker = MAKERS.get(name.rpartition("_")[2])
        advice = (
            f"it is made by the stage {maker}: run that first, or `.venv/bin/dvc repro`" if maker else "check the path"
        )
        raise UserError(f"--{name.replace('_', '-')}: {path} does not exist; {advice}")
    return path
