"""What the benchmarks share: options, how long each takes, rows printed as they are measured, and the processes they start.

A row is a dictionary of what was measured: `name`, `ratio`, and numbers of the benchmark's own. Every row also gets
`load_before`, the load average of the last minute when the benchmark began, and `load`, the same when the row was measured
(the benchmark's own work is in it); both in processes. `others` is how many cores other programs kept at work since the row
before. Above `SHARED` cores the row has `measured: false` and the `reason`, and its ratio is printed as not measured: it
says nothing of the project, because the machine was not the benchmark's own. A benchmark that is not `timed` compares what
other programs cannot change, such as success, and its rows always count. Rows of --quick carry `quick: true`: README
quotes the full forms.

Rows go to standard output, one JSON object per line with --json and a Markdown table without, whose headings are the names
of the numbers. Everything else, such as the expected duration, goes to standard error.

Runs of the pipeline itself are made by benchmarks/_runs.py.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

ROOT = Path(__file__).parent.parent
TRL = {
    "TORCHDYNAMO_DISABLE": "1",  # compilation takes longer than the steps
    "FLYWHEEL_WORKER": "off",
    "HF_HUB_OFFLINE": "1",
    "TRL_EXPERIMENTAL_SILENCE": "1",
}


class Benchmark(NamedTuple):
    """What is known of a benchmark before it runs: roughly its seconds on 2 idle cores, and what its ratio compares."""

    full: float
    quick: float
    ratio: str
    timed: bool = True  # other programs would change the ratio


# Full forms: as earlier runs were recorded. Quick forms: the seconds of one `make bench` on 2 idle cores (9:34 in all),
# divided by `slowness` there and then (0.65).
BENCHMARKS = {
    "environments": Benchmark(60, 15, "steps per second / those of multiplication"),
    "catalogue": Benchmark(
        300, 30, "mean return of a good policy less a bad one's / the 0.1 that is asked", timed=False
    ),
    "mcp_servers": Benchmark(900, 90, "calls that a server answered / all", timed=False),
    "hacks": Benchmark(25, 10, "best hack's success / a quarter of honest play's", timed=False),
    "exploits": Benchmark(
        240,
        90,
        "the hack in what is promoted / a quarter; faults that go through / a tenth; false alarms / 0.05",
        timed=False,
    ),
    "gate": Benchmark(180, 20, "errors / the 0.05 that are allowed", timed=False),
    "scale": Benchmark(5, 5, "episodes per second / those of engines that never wait, on paper", timed=False),
    "judge": Benchmark(30, 10, "seconds / ideal seconds"),
    "judge_bias": Benchmark(
        120, 15, "spread or rank error / the 0.01 allowed; noise: error / that of the plain mean", timed=False
    ),
    "rollout": Benchmark(70, 60, "tokens per second / those of raw vLLM"),
    "batches": Benchmark(210, 90, "episodes with the same tokens in other batches / all", timed=False),
    "gateway": Benchmark(400, 90, "tokens per second through the gateway / of the engine alone"),
    "fleet": Benchmark(1100, 200, "speed of two / of one (two_nodes, overlap); seconds of a swap / the 1 s allowed"),
    "tracking": Benchmark(90, 90, "seconds / the goal of 0.5 s"),
    "learning": Benchmark(380, 85, "test success trained / base policy", timed=False),
    "recipes": Benchmark(50000, 220, "test success with the recipe / with the defaults", timed=False),
    "tracing": Benchmark(600, 120, "seconds of a run / those without a Langfuse host"),
    "attention": Benchmark(600, 60, "difference from plain rows / the 1e-4 that are allowed", timed=False),
    "plan": Benchmark(300, 60, "planned peak memory / measured"),
    "update": Benchmark(1200, 260, "TRL's seconds per step / ours"),
    "iteration": Benchmark(480, 175, "TRL's seconds per iteration / ours"),
    "end_to_end": Benchmark(1800, 130, "TRL's seconds to the same success / ours"),
    "sft": Benchmark(600, 90, "TRL's seconds / ours"),
    "start": Benchmark(
        1800, 240, "iterations of a fresh run / those from the champion to the same success", timed=False
    ),
    "demonstrations": Benchmark(700, 60, "test success after demonstrations / before", timed=False),
    "own_tasks": Benchmark(
        6000, 60, "gain in test success / the 0.3 that is asked; of all: the share that gains it", timed=False
    ),
    "general_policy": Benchmark(40, 10, "calls with the right tool and arguments / requests", timed=False),
    "masking": Benchmark(
        450,
        110,
        "secrets found / planted; false alarms / the 0.02 allowed; calls per second with capture / without",
        timed=False,
    ),
    "mixed": Benchmark(2400, 90, "test success of one policy for two tasks / for each alone", timed=False),
    "packages": Benchmark(
        5400, 120, "test success trained / base policy, in environments of other packages", timed=False
    ),
    "harnesses": Benchmark(
        2400, 300, "test success trained / base policy, in coding agents that people run", timed=False
    ),
    "structured": Benchmark(
        640, 80, "test success trained / base policy, of an agent whose answers have a schema", timed=False
    ),
    "selfplay": Benchmark(
        6000, 45, "games drawn or won against minimax, after self-play / after random opponents", timed=False
    ),
    "pretrained": Benchmark(2400, 300, "ours / theirs, as benchmarks.update, iteration and rollout have it"),
}
REFERENCE = 6000.0  # rounds of `slowness` per second of a core there (6,181 were measured)
CORES = 2
SIDE_BY_SIDE = 1.45  # runs per hour with --jobs 2 / those with --jobs 1, of tic_tac_toe
SHARED = 0.25  # cores at work for other programs, above which nothing counts as measured


def tell(text: str) -> None:
    """Progress, beside the results on standard output."""
    print(text, file=sys.stderr, flush=True)


def slowness(seconds: float = 0.5) -> float:
    """How many times as long work takes here and now as where `BENCHMARKS` was measured, from plain Python on one core.

    Other work on the machine counts. Fewer than two cores count, more do not.
    """
    rounds, spent, began = 0, 0.0, time.perf_counter()
    while spent < seconds:
        sum(range(10_000))
        rounds += 1
        spent = time.perf_counter() - began
    return REFERENCE * spent / rounds * max(1.0, CORES / len(os.sched_getaffinity(0)))


def duration(seconds: float) -> str:
    return f"{max(1, round(seconds))} seconds" if seconds < 100 else f"{round(seconds / 60)} minutes"


def announcement(name: str, seconds: float, factor: float) -> str:
    """The line that is printed before a measurement; `seconds` at `REFERENCE`, `factor` as `slowness` gives it."""
    nominal = f"{duration(seconds)} on {CORES} idle cores, times {factor:.1f} for this machine as busy as it is"
    return f"{name}: about {duration(seconds * factor)} (an estimate: {nominal})"


def parser(name: str, doc: str | None, quick: str) -> argparse.ArgumentParser:
    """The benchmark's parser with the options that all have; `quick` says what --quick leaves out."""
    description = (doc or "").split("\n\n")[0].replace("\n", " ")
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--json", action="store_true", help="one JSON object per row in place of the table")
    parser.add_argument("--quick", action="store_true", help=f"every row in a short form, marked `quick`: {quick}")
    return parser


def command(main: Callable[[], None]) -> NoReturn:
    """Run a benchmark as a command: Ctrl-C ends it with one line and exit code 130."""
    try:
        main()
    except KeyboardInterrupt:
        tell("Stopped.")
        raise SystemExit(130) from None
    raise SystemExit(0)


class Work(NamedTuple):
    """How much the cores that this process may use have worked, by Linux's own count, and the time of the count; seconds."""

    clock: float
    all: float  # by every program, and by neighbours on the same hardware ("steal")
    own: float  # by this process's group and descendants, and what has ended among them

    @classmethod
    def now(cls) -> Work:
        allowed = {f"cpu{core}" for core in os.sched_getaffinity(0)}
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
        # user, nice, system, -, -, irq, softirq, steal
        ticks = sum(int(words[place]) for words in lines if words[0] in allowed for place in (1, 2, 3, 6, 7, 8))
        processes = {}  # by id: its parent, its group, its ticks
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # it has ended meanwhile
                fields = path.read_text().rpartition(")")[2].split()
                processes[int(path.parent.name)] = int(fields[1]), int(fields[2]), sum(map(int, fields[11:15]))
        ours = {number for number, (_, group, _) in processes.items() if group == os.getpgrp()}
        while more := {number for number, (parent, _, _) in processes.items() if parent in ours} - ours:
            ours |= more  # such as a warm worker, which has a group of its own
        own = sum(processes[number][2] for number in ours)
        second = os.sysconf("SC_CLK_TCK")
        return cls(time.monotonic(), ticks / second, own / second)

    def others(self, since: Work) -> float:
        """How many cores were at work for other programs since then, on average."""
        return max(0.0, (self.all - since.all) - (self.own - since.own)) / max(self.clock - since.clock, 1.0)


def verdict(others: float, timed: bool = True) -> dict[str, Any]:
    """Whether a row counts as measured where other programs kept this many cores at work, and why not."""
    shown: dict[str, Any] = {"others": round(others, 2), "measured": not timed or others <= SHARED}
    if not shown["measured"]:
        shown["reason"] = (
            f"other programs kept {others:.2f} cores at work ({SHARED} are allowed): repeat it on an idle machine"
        )
    return shown


class Rows:
    """Prints rows as they are measured: in a table with a heading before each row whose names differ from the last one's."""

    def __init__(self, as_json: bool = False, quick: bool = False, timed: bool = True) -> None:
        self.as_json, self.quick, self.timed = as_json, quick, timed
        self.load_before = round(os.getloadavg()[0], 2)
        self.headings: list[str] = []
        self.since = Work.now()

    def add(self, row: Mapping[str, Any], **texts: str) -> None:
        """Print a row; `texts` replace values in the table, which leaves other mappings and lists out."""
        load = {"load_before": self.load_before, "load": round(os.getloadavg()[0], 2)}
        until = Work.now()
        row = {
            **row,
            **({"quick": True} if self.quick else {}),
            **load,
            **verdict(until.others(self.since), self.timed),
        }
        self.since = until
        if not row["measured"] and "ratio" in row:
            texts = {"ratio": f"{text(row['ratio'])} (not measured)"} | texts
        if self.as_json:
            print(json.dumps(row), flush=True)
            return
        cells = {name: text(value) for name, value in row.items() if not isinstance(value, dict | list)} | texts
        if list(cells) != self.headings:
            if self.headings:
                print()  # ends the table before
            print(line(cells), line(["---"] * len(cells)), sep="\n")
            self.headings = list(cells)
        print(line(cells.values()), flush=True)


def line(cells: Iterable[str]) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def begin(name: str, options: argparse.Namespace, share: float | None = 1.0, form: str = "") -> Rows:
    """Announce how long it takes and start the rows; `share` is the part of the default work that was asked for, None
    where nobody has timed it."""
    called = f"benchmarks.{name}{form}{' --quick' if options.quick else ''}"
    if share is None:
        tell(f"{called}: how long it takes has not been measured")
    else:
        benchmark = BENCHMARKS[name]
        share /= SIDE_BY_SIDE if getattr(options, "jobs", 1) > 1 else 1
        tell(announcement(called, share * (benchmark.quick if options.quick else benchmark.full), slowness()))
        tell(f"ratio: {benchmark.ratio}")
    return Rows(options.json, options.quick, BENCHMARKS[name].timed)


def text(value: object) -> str:
    """A value as a cell of a table."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def child(words: list[str], folder: Path = ROOT) -> str:
    """This Python on the words, without compilation and warm worker; its standard output. SystemExit where it fails."""
    done = subprocess.run([sys.executable, *words], cwd=folder, env=os.environ | TRL, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    return done.stdout


def call(function: str, **arguments: object) -> Any:
    """What a function of benchmarks/, named as `_update.run_ours`, returns in a process of its own. Arguments and result
    pass as JSON, paths as text. SystemExit where it fails."""
    words = ["-m", "benchmarks._common", function, json.dumps(arguments, default=os.fspath)]
    return json.loads(child(words).splitlines()[-1])


if __name__ == "__main__":
    module, _, name = sys.argv[1].rpartition(".")
    print(json.dumps(getattr(import_module(f"benchmarks.{module}"), name)(**json.loads(sys.argv[2]))))
