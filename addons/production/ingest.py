"""Ingest: brings conversations from production into ingested/<task>/, as scenarios, demonstrations, preferences and a
regression set.

    python -m addons.production.ingest capture                       # what `make serve CAPTURE=1` stored since the last time
    python -m addons.production.ingest langfuse mlflow                       # by their APIs: LANGFUSE_*, MLFLOW_TRACKING_URI
    python -m addons.production.ingest otel:spans.json openai:chats.jsonl  # files; also langfuse:export/, mlflow:x.json
    python -m addons.production.ingest openai:chats.jsonl --consented  # all of them agreed, and the rows do not say it

Each source is read from where the last ingestion ended. What is taken is masked, and all data sets are made anew of all
conversations (addons/production/traces/build.py), so that the same ones give the same bytes. The folder's version is
given to DVC (`dvc add`): commit ingested/<task>.dvc. docs/traces.md has the rest. Exit code 1: nothing in a source
could be read, or nothing was kept.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from addons.production.traces import unchanged
from steps.core.errors import UserError
from steps.core.progress import say
from steps.core.terminal import command_parser, exit_code
from steps.data.ingested import INGESTED

if TYPE_CHECKING:
    from addons.production.traces.sources import Ingested

SHOWN = 8  # reasons
NO_CONSENT = "no consent"  # as addons/production/traces/sources.py says it


def run(
    root: Path, words: list[str], task: str | None, scales: list[str], consented: bool, regression: float | None
) -> Ingested:
    """Ingest the sources, give the folder to DVC, and index it, while no other command is at work here: the caller holds
    the folder's lock. UserError before anything is read where an option is wrong."""
    from addons.models.replies import Replies
    from addons.production.forget import finish
    from addons.production.traces.files import versioned
    from addons.production.traces.opinions import scales_of
    from addons.production.traces.sources import Source, ingest, load_task
    from steps.core import params
    from steps.core.ports import every

    settings = params.load(root / "params.yaml", params.Params)
    settings = settings.model_copy(update={"task": task}) if task else settings
    if regression is not None and not 0 <= regression <= 1:
        raise UserError(f"--regression {regression:g}: give a share from 0 to 1")
    sources = [Source.parse(word, settings.task) for word in words]
    scales_by_name, folder = scales_of(scales), root / INGESTED / settings.task
    with Replies() as ledger:
        finish(root, settings, ledger)
        done = ingest(root, folder, sources, load_task(root, settings), scales_by_name, consented, regression)
        versioned(root, folder)
        for index in every("index"):
            index.add_ingested(root, ledger)
    return done


def described(done: Ingested) -> list[str]:
    """What was read and made, and why the rest was not used."""
    from addons.production.traces import files

    sets = done.sets
    lines = [
        f"{done.read} calls and pieces of feedback read",
        f"{done.added} conversations new or longer, {done.conversations} in all; people said of them: "
        + ", ".join(f"{word} {done.opinions.get(word, 0)}" for word in ("good", "bad", "corrected", "nothing")),
        "made: " + ", ".join(f"{name} {len(getattr(sets, name))}" for name in files.SETS),
    ]
    if sets.no_scenario:
        lines.append(f"used without a scenario: {sum(sets.no_scenario.values())} ({_most(sets.no_scenario)})")
    if done.passed_over:
        lines.append(f"passed over: {_most(done.passed_over)}")
    reasons = Counter(row.reason.partition(", by ")[0].partition(" of ")[0] for row in sets.quarantine)
    reasons.update({f"not read: {why}": count for why, count in done.unread.items()})
    unread = f"in quarantine: {len(sets.quarantine) + done.unreadable}, of which {done.unreadable} could not be read"
    return [*lines, unread + (f" ({_most(reasons)})" if reasons else ""), *done.nothing]


def next_steps(done: Ingested, task: str) -> list[str]:
    """What to do about what could not be used, and with what was made."""
    from addons.production.traces import files

    steps, folder, counts = [], f"{INGESTED}/{task}", {name: len(getattr(done.sets, name)) for name in files.SETS}
    if refused := done.unread.get(NO_CONSENT, 0):
        steps.append(
            f"{refused} were not kept, because nothing says that their people agreed: ingest them again with --consented if "
            'all did, or write "consent": true into their rows'
        )
    if silent := done.opinions.get("nothing", 0):
        steps.append(
            f"{silent} teach nothing by themselves, because nobody said how good their answers were: a row of OpenAI's form "
            'may have "feedback": {"score": 1}, {"score": 0} or {"correction": "the right answer"}'
        )
    if done.conversations and not counts["scenarios"] and not counts["regression"]:
        steps.append(
            f"for scenarios the task must know the right answer (above: why it does not): the method from_conversation of "
            f"{task} makes them (docs/traces.md)"
        )
    if counts["demonstrations"]:
        setting = f"sft.demonstrations=[{folder}/demonstrations.jsonl]"
        steps.append(
            f"train on the {counts['demonstrations']} good ones: .venv/bin/python -m flows.train --set '{setting}'"
        )
    if counts["scenarios"]:
        steps.append(
            f"train on the {counts['scenarios']} scenarios, beside the task's own: "
            ".venv/bin/python -m addons.production.flywheel"
        )
    if done.conversations:
        steps.append(f"keep this version: git add {folder}.dvc {INGESTED}/.gitignore && git commit")
    return steps


def report(done: Ingested, task: str) -> list[str]:
    """Both, as they are said."""
    steps = next_steps(done, task) or [f"nothing: there is nothing new, and ingested/{task} is empty"]
    return [*described(done), "next:", *(f"  {step}" for step in steps)]


def _most(reasons: Mapping[str, int]) -> str:
    ordered = sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
    return ", ".join(f"{count} {reason}" for reason, count in ordered[:SHOWN]) + (", …" if ordered[SHOWN:] else "")


def main(words: list[str] | None = None) -> int:
    parser = command_parser("addons.production.ingest", __doc__)
    parser.add_argument("sources", nargs="+", metavar="SOURCE", help="capture, or another with :PATH for files")
    parser.add_argument("--task", metavar="NAME", help="default: that of params.yaml")
    parser.add_argument(
        "--consented", action="store_true", help="everybody in these sources agreed, where rows do not say so"
    )
    parser.add_argument(
        "--scale", action="append", default=[], metavar="NAME=LOW..HIGH", help="of a score that is not from 0 to 1"
    )
    parser.add_argument(
        "--regression",
        type=float,
        metavar="SHARE",
        help="of bad ones' scenarios that are only checked (default: as the last time; at first 0.3)",
    )
    options = parser.parse_args(words)
    root = Path.cwd()
    how = options.task, options.scale, options.consented, options.regression
    if lines := unchanged.last_report(root, unchanged.state(root, options.sources, repr(how))):
        for line in ("nothing new since the last time, when it said:", *lines):
            say(line)
        return 0
    from flows.repro import folder_lock
    from steps.core import dotenv, params

    dotenv.load(root)
    results: list[Ingested] = []

    def work() -> None:
        with folder_lock.held(root, folder_lock.command_line()):
            results.append(run(root, options.sources, *how))
        lines = report(results[0], options.task or params.load("params.yaml", params.Params).task)
        if results[0].conversations and not results[0].nothing:
            unchanged.keep(root, unchanged.state(root, options.sources, repr(how)), lines)
        for line in lines:
            say(line)

    return exit_code(work) or int(bool(results[0].nothing or (results[0].unreadable and not results[0].conversations)))


if __name__ == "__main__":
    sys.exit(main())
