"""Stage runner: turns a plain function into a command whose outputs appear whole or not at all.

A stage is a function of paths and parameters, `def rollout(scenarios: Input, trajectories: Output, params: RolloutParams)`,
and its module ends with `if __name__ == "__main__": main(rollout)`. `python -m steps.rollout --help` lists the options.

Not here: what stages do, seeds, staleness (DVC decides), Prefect. Importing this costs a few milliseconds and must stay so:
the standard library alone, and what only a running stage needs is imported when one runs. Set FLYWHEEL_WORKER=off to run
a stage in the process itself instead of the warm worker (steps/worker.py); `accelerate launch` does so too, and what its
other processes (RANK above 0) write is thrown away.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from steps.worker import Outputs

Input = Path  # exists before the stage runs
Output = Path  # a temporary name beside the final one; the stage makes a file or a directory of it

SCALARS = {"str": str, "int": int, "float": float, "bool": bool}
MAKERS = {"scenarios": "scenarios", "trajectories": "rollout", "rewards": "score", "evaluation": "evaluate"}
MAKERS |= dict.fromkeys(("adapter", "checkpoint", "previous"), "update (at first initialise)")
MAKERS |= {"successes": "score (at first initialise)"}


class UserError(Exception):
    """One clear sentence for the user: what was wrong, where, and what to do. Ends the command with exit code 2.

    Masked when it is made: it may quote a server's answer, and Prefect and logs keep it.
    """

    code = 2

    def __init__(self, text: str) -> None:
        super().__init__(masked(text))


def masked(text: str) -> str:
    """Without secrets (steps/masking.py, whose import takes longer than this module's)."""
    from steps import masking

    return str(masking.masked(text))


class FreshProcessNeeded(Exception):
    """What this process holds (an engine for another policy) rules out the stage: the worker ends, another runs it."""


def signature(function: Callable) -> dict[str, tuple[str, bool, object]]:
    """Name -> (annotation, required, default); `X | None` counts as X. Does without `inspect`, which costs 10 ms."""
    code = function.__code__
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    defaults = dict(zip(reversed(names[: code.co_argcount]), reversed(function.__defaults__ or ()), strict=False))
    defaults.update(function.__kwdefaults__ or {})
    result = {}
    for name in names:
        kind = str(function.__annotations__.get(name)).removesuffix(" | None")
        if kind not in ("Input", "Output") and kind not in SCALARS and not kind.endswith("Params"):
            raise TypeError(
                f"{function.__name__}({name}: {kind}): a stage takes Input, Output, <Name>Params, {', '.join(SCALARS)}"
            )
        result[name] = (kind, name not in defaults, defaults.get(name))
    return result


def parse(function: Callable, module: str, words: list[str]) -> dict[str, object]:
    """The command line as {parameter: value}; `--params` stands for every parameter that is a <Name>Params."""
    import argparse

    about = (sys.modules[function.__module__].__doc__ or function.__doc__ or "").strip().split("\n\n")[0]
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=about, allow_abbrev=False)
    kinds = signature(function)
    for name, (kind, required, default) in kinds.items():
        option = "--" + name.replace("_", "-")
        if kind == "bool":
            action = argparse.BooleanOptionalAction
            parser.add_argument(option, dest=name, action=action, required=required, default=default)
        elif kind in ("Input", "Output"):
            maker = MAKERS.get(name.rpartition("_")[2])
            role = "read" + (f"; made by {maker}" if maker else "") if kind == "Input" else "written; replaced whole"
            parser.add_argument(option, dest=name, metavar="PATH", required=required, default=default, help=role)
        elif kind in SCALARS:
            role = f"default: {default}" if default is not None else ""
            parser.add_argument(option, dest=name, type=SCALARS[kind], required=required, default=default, help=role)
    if any(kind.endswith("Params") for kind, _, _ in kinds.values()):
        parser.add_argument("--params", metavar="PATH", default="params.yaml", help="default: params.yaml")
    return vars(parser.parse_args(words))


def main(function: Callable, warm: bool = True) -> None:
    """Run the command line for a stage, in the warm worker or (`warm=False`, FLYWHEEL_WORKER=off) here; exits."""
    spec = sys.modules["__main__"].__spec__
    module = function.__module__ if function.__module__ != "__main__" or spec is None else spec.name
    arguments = parse(function, module, sys.argv[1:])
    import signal

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    warm = warm and is_warm()
    try:
        signal.signal(signal.SIGTERM, interrupt)
        code = command(module, function.__name__, arguments, warm)
    except KeyboardInterrupt:
        code = 130
    if warm:
        sys.stdout.flush()
        os._exit(code)  # taking the interpreter down costs 6 ms, and a client has nothing to clean up
    sys.exit(code)


def is_warm() -> bool:
    """Whether stages are handed over to the warm worker."""
    return os.environ.get("FLYWHEEL_WORKER") != "off" and "RANK" not in os.environ


def command(module: str, name: str, arguments: dict, warm: bool) -> int:
    """Run a stage for a person, or a flow: shows how far it is, explains an error; returns the exit code."""
    show = Display(module.rpartition(".")[2])

    def stage() -> None:
        if warm:
            from steps import handover

            handover.hand_over(module, name, arguments, show)
        else:
            report_to(show if os.environ.get("RANK", "0") == "0" else lambda _: None)
            run(find(module, name), arguments)

    return exit_code(stage, show)


def exit_code(function: Callable[[], None], show: Display | None = None) -> int:
    """Call it for a person: 0, or an error told on stderr and its code. The display is cleared, whatever happens."""
    try:
        function()
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if show is not None:
            show.clear()
        text, code = explain(error)
        print(text if text.startswith("Traceback") else f"error: {text}", file=sys.stderr)
        return code
    finally:
        if show is not None:
            show.clear()
    return 0


def find(module: str, name: str) -> Callable:
    """The stage function by its real name, never by `__main__`, so that the warm and the cold way run the same object."""
    if module.partition(".")[0] not in ("steps", "environments"):
        raise UserError(f"{module} is no stage: only modules of steps and environments are run")
    from importlib import import_module

    function = getattr(import_module(module), name, None)
    if function is None or getattr(function, "__module__", "") != module or not hasattr(function, "__code__"):
        raise UserError(f"{module} has no stage function named {name}")
    return function


def run(function: Callable, arguments: dict) -> float:
    """Run a stage; returns the seconds that its function took. Outputs are renamed into place only when it has returned."""
    global _running
    from steps import worker

    kinds = signature(function)
    values, inputs, finals = {}, [], {}
    _measured.clear()
    _turns.clear()
    for name, (kind, _, default) in kinds.items():
        value = arguments.get(name, default)
        if kind.endswith("Params"):
            from steps import params

            value = params.load(Path(arguments.get("params", "params.yaml")), getattr(params, kind))
        elif kind == "Output" and value is not None:
            value = finals[name] = Path(value)
        elif kind == "Input" and value is not None:
            value = Path(value)
            if not value.exists():
                maker = MAKERS.get(name.rpartition("_")[2])
                advice = (
                    f"it is made by the stage {maker}: run that first, or `dvc repro`" if maker else "check the path"
                )
                raise UserError(f"--{name.replace('_', '-')}: {value} does not exist; {advice}")
            inputs.append(value)
        values[name] = value
    spare = None
    if os.environ.get("RANK", "0") != "0":
        import tempfile

        spare = Path(tempfile.mkdtemp(prefix="flywheel-"))
        finals = {name: spare / name for name in finals}
    try:
        with worker.Outputs(finals, inputs) as written:
            _running = written
            started = time.perf_counter()
            function(**values | written.temporary)
            seconds = time.perf_counter() - started
    finally:
        _running = None
        if spare is not None:
            import shutil

            shutil.rmtree(spare)
    if spare is not None:
        return seconds
    stage = function.__module__.rpartition(".")[2]
    for final in list(written.finals.values())[:1]:
        timings = final.parent / "timings"
        timings.mkdir(exist_ok=True)
        write_json(timings / f"{final.stem}.json", {"stage": stage, "seconds": round(seconds, 4), **_measured})
        if _turns:
            write_json(timings / f"{final.stem}.turns.json", {"began": _turns_began, "turns": _turns})
    return seconds


def abandon() -> None:
    """For another thread, just before the process ends: remove what the running stage has written so far."""
    outputs = _running
    if outputs is not None:
        outputs.lock.acquire()  # never released: from here on nothing can be put in place
        outputs.discard()


def explain(error: BaseException) -> tuple[str, int]:
    """(masked text for the user, exit code): a sentence and 2 where the user can do something, else a traceback and 1."""
    text, code = _explain(error)
    return masked(text), code


def behind(error: BaseException | None) -> Iterator[BaseException]:
    """An error, then what it came of or came upon."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__


def _explain(error: BaseException) -> tuple[str, int]:
    if isinstance(error, UserError):
        return str(error), error.code
    import errno

    for link in behind(error):
        if getattr(link, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left on device" in str(link):
            where = getattr(link, "filename", None) or Path.cwd()
            return (
                f"the disk is full ({where}); free some space and run the same command again: nothing half-written is left",
                2,
            )
    if isinstance(error, FileNotFoundError) and error.filename is None and str(error):
        return str(error), 2  # raised by our own code, which says what to do
    if isinstance(error, FileNotFoundError) and error.filename is not None:
        return f"{error.filename} does not exist; check the command's paths and those in params.yaml", 2
    import traceback

    return "".join(traceback.format_exception(error)).rstrip(), 1


_running: Outputs | None = None  # those of the stage that runs in this process
_measured: dict[str, float] = {}  # by the running stage
_turns: dict[str, list[tuple[float, float, float]]] = {}
_turns_began = 0.0
_sink: Callable[[dict], None] | None = None
_next_progress = 0.0  # time.monotonic() before which progress is not passed on


def report_to(sink: Callable[[dict], None] | None) -> None:
    """Where progress() and say() go from now on: called with {"progress": [done, total, note]} or {"say": text}."""
    global _sink, _next_progress
    _sink, _next_progress = sink, 0.0


def progress(done: int, total: int, note: str = "") -> None:
    """Tell whoever watches how far the stage is; passed on at most 10 times a second, nearly free otherwise."""
    global _next_progress
    now = time.monotonic()
    if _sink is not None and (now >= _next_progress or done == total):
        _next_progress = now + 0.1
        _sink({"progress": [done, total, note]})


def measure(**numbers: float) -> None:
    """What differs from run to run, as times and retries do: it is kept beside the stage's seconds, not in its outputs."""
    _measured.update(numbers)


def measure_turns(began: float, turns: dict[str, list[tuple[float, float, float]]]) -> None:
    """When each turn was asked, answered, and done by the environment, in seconds after `began` (of the clock on the wall),
    by the trajectory's fingerprint (steps/types.py): kept beside the stage's seconds."""
    global _turns_began
    _turns_began = began
    _turns.update(turns)


def say(text: str) -> None:
    """One line for the person who runs the stage, masked."""
    text = masked(text)
    if _sink is None:
        print(text, flush=True)
    else:
        _sink({"say": text})


class Display:
    """What a person, or the flow, sees of a stage: FLYWHEEL_PROGRESS names a file for the latest progress as JSON,
    FLYWHEEL_LOG one for what is said. Without them: one moving line on a terminal, else a line every 10 s."""

    def __init__(self, stage: str) -> None:
        self.stage, self.drawn, self.next_line = stage, False, time.monotonic() + 10
        self.file, self.log = os.environ.get("FLYWHEEL_PROGRESS"), os.environ.get("FLYWHEEL_LOG")

    def __call__(self, message: dict) -> None:
        if "say" in message:
            self.clear()
            with Path(self.log).open("a") if self.log else contextlib.nullcontext(sys.stdout) as out:
                print(message["say"], file=out, flush=True)
            return
        done, total, note = message["progress"]
        text = f"{self.stage} {done}/{total} {note}".rstrip()
        if self.file:
            write_json(Path(self.file), {"stage": self.stage, "done": done, "total": total, "note": note})
        elif sys.stderr.isatty():
            print("\r\033[K" + text[: os.get_terminal_size(2).columns - 1], end="", file=sys.stderr, flush=True)
            self.drawn = True
        elif time.monotonic() >= self.next_line:
            self.next_line = time.monotonic() + 10
            print(text, file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Wipe the moving line."""
        if self.drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
            self.drawn = False


def write_json(path: Path, value: dict) -> None:
    """Write a small file whole."""
    import json

    write_text(path, json.dumps(value) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a file in UTF-8, whole or not at all."""
    temporary = path.with_name(f".tmp-{os.getpid()}.{path.name}")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
