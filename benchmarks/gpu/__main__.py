"""Is the trainer right, lean and fast on this machine's GPU? Without vLLM, without a download, in under half an hour.

    make gpu-check                                    # with .venv
    make gpu-check GPU_PYTHON=python3                 # with another Python's torch, transformers, accelerate and peft
    python -m benchmarks.gpu --steps exactness 7B     # only these
    python -m benchmarks.gpu --toy                    # every step at toy size, on the CPU
    python -m benchmarks.gpu --table FILE...          # a Markdown table of stored lines

Where a command may take ten minutes, three have every step; the limits of each one's steps are within its minutes:

    python3 -m benchmarks.gpu --steps environment exactness determinism attention drift decode peaks --minutes 9.5 --out OUT
    python3 -m benchmarks.gpu --steps 'to host' 0.5B 7B plain --minutes 9.5 --out OUT
    python3 -m benchmarks.gpu --steps recipe long profile memory --minutes 9.5 --out OUT

Prints a JSON object for each thing that was measured as soon as it is, and a Markdown table of them at the end; with --out
also to gpu-check.jsonl and gpu-check.md in that folder. The functions of the steps say what they mean (right.py, speed.py,
plain.py and parts.py beside this file). Steps run one after another in a process of their own. One that fails, ends that
process or takes longer than it may is a line with `error`, and the next ones run. One for which too little time is left is
not begun, and a line says so. The exit code is 1 where the update is not exact, FlexAttention does not run at the longest
rows, or the update of the model of 7B is slower than TRL's; at toy size, where a step has an error, was not begun or is not
exact.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import _common
from benchmarks.gpu import models, parts, plain, right, speed
from benchmarks.gpu.models import first_line
from benchmarks.gpu.sizes import FULL, TOY, Size
from benchmarks.gpu.table import markdown

MINUTES = 28.0
NEEDED = 2 / 3  # of a step's limit: with less time left for all steps it is not begun
SLOWER = 10  # times as long as its limit a step may take at toy size, on a CPU that does other work, too


class Step(NamedTuple):
    """A step and the seconds that it may take."""

    run: Callable[[Size], Iterator[dict[str, Any]]]
    seconds: float


STEPS = {  # what may be wrong first, what is fast last
    "environment": Step(speed.environment, 40),
    "exactness": Step(right.exactness, 140),
    "determinism": Step(right.determinism, 120),
    "attention": Step(speed.attention, 80),
    "drift": Step(right.drift, 60),
    "decode": Step(right.decode, 75),
    "peaks": Step(parts.peaks, 30),
    "to host": Step(speed.host, 45),
    "0.5B": Step(speed.middle, 100),
    "7B": Step(speed.large, 180),
    "plain": Step(plain.plain, 235),
    "recipe": Step(speed.recipe, 160),
    "long": Step(plain.long, 230),
    "profile": Step(parts.profile, 80),
    "memory": Step(parts.memory, 80),
}
VARIABLES = {  # of the worker's process
    "CUBLAS_WORKSPACE_CONFIG": os.environ.get("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
    "FLYWHEEL_WORKER": "off",
    "HF_HUB_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}


def work(names: Sequence[str], toy: bool, write: Callable[[dict[str, Any]], None]) -> None:
    """Run steps here. Writes an object when a step begins, for each of its rows, and when it ends."""
    import torch

    torch._dynamo.config.recompile_limit = 64  # FlexAttention is compiled for each of the models; a run has one
    for name in names:
        write({"begin": name})
        began = time.perf_counter()
        try:
            for row in STEPS[name].run(TOY if toy else FULL):
                write({"step": name, **row})
        except (Exception, SystemExit) as problem:
            traceback.print_exc()
            write({"step": name, "error": f"{type(problem).__name__}: {first_line(problem)}"})
        models.free()  # fails after an error that the GPU does not recover from, and so ends this process
        write({"end": name, "seconds": round(time.perf_counter() - began, 1)})


def supervise(budgets: dict[str, float], command: Sequence[str], minutes: float) -> Iterator[dict[str, Any]]:
    """Run `command` on the names of the steps: their rows. A process that ends early or is too slow is replaced by another
    one for the steps that are left, and so is one whose next step would not come to its end. `budgets`: seconds of each."""
    left, deadline = list(budgets), time.monotonic() + 60 * minutes
    while left:
        if is_too_late(budgets[left[0]], deadline):
            rest, name = max(0.0, deadline - time.monotonic()), left.pop(0)
            yield {"step": name, "not_begun": f"{rest:.0f} s left, and it may take {budgets[name]:.0f} s"}
            continue
        with subprocess.Popen([*command, *left], stdout=subprocess.PIPE, text=True, cwd=_common.ROOT) as process:
            try:
                yield from rows_of(process, left, budgets, deadline)
            finally:
                process.kill()


def is_too_late(seconds: float, deadline: float) -> bool:
    """Whether a step that may take so many seconds would be cut."""
    return deadline - time.monotonic() < NEEDED * seconds


def rows_of(
    process: subprocess.Popen[str], left: list[str], budgets: dict[str, float], deadline: float
) -> Iterator[dict[str, Any]]:
    """The rows of one process, until it has done all that is `left`, fails, or begins what would be cut. Takes from `left`
    what is done."""
    lines: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert process.stdout is not None
        for line in process.stdout:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    limit = min(deadline, time.monotonic() + budgets[left[0]])
    while left:
        error, line = "", None
        try:
            line = lines.get(timeout=max(0.0, limit - time.monotonic()))
        except queue.Empty:
            late = time.monotonic() >= deadline
            error = "the time for all steps is over" if late else f"it took longer than {budgets[left[0]]:.0f} s"
        if line is None:
            yield {"step": left.pop(0), "error": error or f"the process ended with exit code {process.wait()}"}
            return
        row = json.loads(line)
        if "begin" in row:
            if is_too_late(budgets[row["begin"]], deadline):
                return
            limit = min(deadline, time.monotonic() + budgets[row["begin"]])
        elif "end" in row:
            yield {"step": left.pop(0), "seconds_in_all": row["seconds"]}
        else:
            yield row


def faults(rows: Sequence[dict[str, Any]], steps: Sequence[str], toy: bool) -> list[str]:
    """Why the exit code is 1: sentences. Only the steps that were asked for count."""
    reasons = []
    if "exactness" in steps:
        checked = [row for row in rows if row["step"] == "exactness" and "exact" in row]
        reasons += [f"{row['name']}: the update is not exact" for row in checked if not row["exact"]]
        if not any(row["name"] == right.LAST for row in checked):
            reasons.append("exactness was not measured to its end")
    if "attention" in steps:
        longest = (TOY if toy else FULL).lengths[-1]
        wanted = {"step": "attention", "name": "packed, flex", "tokens": longest}
        if not any(wanted.items() <= row.items() and "ms" in row for row in rows):
            reasons.append(f"FlexAttention did not run on two rows of {longest} tokens")
    if "7B" in steps and not toy:
        ratios = [row["ratio"] for row in rows if row["step"] == "7B" and "ratio" in row]
        if not ratios:
            reasons.append("the update of the model of 7B was not compared with TRL's")
        reasons += [f"the update of the model of 7B has {ratio} of TRL's speed" for ratio in ratios if not ratio >= 1]
    if toy:
        reasons += [f"{row['step']}: {row[key]}" for row in rows for key in ("error", "not_begun") if key in row]
    return reasons


def main() -> None:
    doc = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=doc)
    parser.add_argument("--steps", nargs="+", choices=list(STEPS), default=list(STEPS), metavar="STEP")
    parser.add_argument(
        "--toy", action="store_true", help="toy sizes on the CPU: shows that the steps run, measures nothing"
    )
    parser.add_argument(
        "--minutes",
        type=float,
        default=MINUTES,
        help=f"for all steps together (default: {MINUTES:g}; at toy size {SLOWER} times as many)",
    )
    parser.add_argument("--out", type=Path, help="a folder that also gets the lines and the table, as gpu-check.*")
    parser.add_argument(
        "--table", nargs="+", type=Path, metavar="FILE", help="measure nothing: a table of stored lines"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.table:
        print(markdown([json.loads(line) for path in options.table for line in path.read_text().splitlines()]), end="")
        return
    chosen = [name for name in STEPS if name in options.steps]
    if options.worker:
        answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # what libraries print is not among the rows
        work(chosen, options.toy, lambda row: print(json.dumps(row), file=answers, flush=True))
        return
    if not options.toy:
        refuse_without_gpu()
    os.environ |= VARIABLES | ({"CUDA_VISIBLE_DEVICES": ""} if options.toy else {})
    began, rows = time.monotonic(), []
    command = [sys.executable, "-m", "benchmarks.gpu", "--worker", *(["--toy"] if options.toy else []), "--steps"]
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "gpu-check.jsonl").write_text("")

    def show(row: dict[str, Any]) -> None:
        print(json.dumps(row), flush=True)
        if options.out:
            with (options.out / "gpu-check.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")

    factor = SLOWER if options.toy else 1
    budgets = {name: factor * STEPS[name].seconds for name in chosen}
    for row in supervise(budgets, command, factor * options.minutes):
        rows.append(row)
        show(row)
    reasons = faults(rows, chosen, options.toy)
    spent = round(time.monotonic() - began, 1)
    show({"step": "verdict", "passed": not reasons, "reasons": reasons, "seconds": spent, "toy": options.toy})
    table = markdown(rows)
    print("\n" + table, end="", flush=True)
    if options.out:
        (options.out / "gpu-check.md").write_text(table)
    raise SystemExit(1 if reasons else 0)


def refuse_without_gpu() -> None:
    """SystemExit with a sentence where this Python's torch finds no GPU."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit(
            f"torch finds no GPU with {sys.executable}, and gpu-check measures one: name another Python (GPU_PYTHON), or "
            "run the steps at toy size on the CPU ('make gpu-check TOY=1')"
        )


if __name__ == "__main__":
    _common.command(main)
