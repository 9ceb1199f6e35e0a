"""Train: the main job. Rollout, score, update, evaluate, again and again; then test the best iteration and register it.

    python -m flows.train                                   # what params.yaml says
    python -m flows.train --set seed=2 --set train.iterations=6
    python -m flows.train --preset smollm2 --task multiplication   # a pretrained model's settings with any task's
    python -m flows.train --task multiplication+tic_tac_toe   # several tasks at once
    python -m flows.train --name second                     # in Prefect, in MLflow, and as refs/runs/second
    python -m flows.train --from nightly-7/003 --set update.learning_rate=2e-4   # a fork of a kept run, from that iteration
    python -m flows.train --dry-run                         # the resolved parameters, and nothing else

The same command goes on where a stopped run was. Without PREFECT_API_URL the flow runs by itself, on a server of its own
that ends with it. The run itself is in flows/training/run.py, which imports Prefect: the command refuses what it can first.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

from flows.repro.parameters import set_params
from flows.terminal.command import LOG, prepare, run_command
from flows.training import ended, start
from steps.core import dotenv
from steps.core.errors import UserError
from steps.core.imports import uncollected
from steps.core.params import Params
from steps.core.ports import bring, every, names
from steps.core.progress import say
from steps.core.section import at
from steps.core.terminal import command_parser
from steps.project import kept_runs, store
from steps.project.lock import read_lock
from steps.runner import handover
from steps.runner.stage import is_warm


def start_worker(params: Params) -> None:
    """Start the worker now, where this run will need it: it imports torch and vLLM while Prefect and MLflow start.

    Where rollouts run ahead, its variables are not known yet, and with policy.deterministic a stage has to import vLLM."""
    store.set_variables()
    chosen = at(params, "policy.deterministic"), at(params, "train.overlap")
    is_plain = params.policy.kind == "vllm" and not any(chosen)
    if is_warm() and is_plain:
        handover.start_ahead("steps.sampling.packages")


def main() -> int:
    parser = command_parser("flows.train", __doc__)
    parser.add_argument(
        "--task",
        help="the task to train on, or several with + between them; another than before begins with its preset",
    )
    parser.add_argument("--preset", help="a model's settings, on top of the task's: tasks_data/_models/<preset>.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change params.yaml first")
    parser.add_argument(
        "--from",
        dest="source",
        metavar="RUN/NNN",
        help="fork: that run's settings, from that iteration (or its best one)",
    )
    parser.add_argument("--name", default="", help="of the run, in Prefect, in MLflow and under refs/runs/")
    parser.add_argument("--force", action="store_true", help="reinforce even a policy that shows nothing to learn from")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved parameters and stop")
    options = parser.parse_args()

    def work() -> int:
        if options.name:
            kept_runs.ref(options.name)  # which refuses what cannot be a name
        begin, fork = None, list[str]()
        if options.source:
            if options.task or options.preset:
                raise UserError("--from brings the settings of its run: change them with --set, not --task or --preset")
            begin, fork = bring("source", "adapter", "--from").fork(options.source)
        changes = [*fork, *options.set, *["train.way=grpo"] * (options.force and bool(names("way")))]
        resolved = partial(set_params, changes, task=options.task, preset=options.preset, begin=begin)
        if options.dry_run:
            print(resolved(dry_run=True).model_dump_json(indent=2, by_alias=True))
            return 0
        if not Path(".git").exists():
            raise UserError(
                f"{Path.cwd()} is no git repository (a ZIP download is none), and DVC needs one: `git init && git add --all "
                "&& git commit --message start`, then the same command again"
            )
        if options.name:  # before params.yaml changes
            kept_runs.refuse_other(Path.cwd(), options.name, resolved(dry_run=True))
        params = resolved()
        for check in every("preflight"):
            check(params)
        read_lock(Path.cwd())  # a damaged one is refused before a server is started
        print(f"train: {params.task}, {params.policy.base_model}; log: {LOG}", flush=True)
        dotenv.load(Path.cwd())  # a worker is for a process with its own variables, and the run will have these
        if summary := ended.unchanged(options.name):
            from flows.training.ending import print_end

            print("train: nothing has changed since this run ended, and nothing was run again.", flush=True)
            print_end(say, summary)
            return 0
        start_worker(params)
        with uncollected():
            prepare()
            for line in start.prepare(params):
                print(f"train: {line}", flush=True)
            from flows.terminal.display import RunDisplay
            from flows.terminal.recorded import result_of
            from flows.training.ending import print_end
            from flows.training.run import title, train_here

        display = RunDisplay()
        with display.shown(LOG):
            display.begin("starting Prefect")
            training = partial(train_here, display, options.name)
            summary = result_of("train", training, display.say, title(params, options.name))
        if options.name:
            kept_runs.keep_described(Path.cwd(), options.name)
        print_end(display.say, summary)
        return 0

    code = run_command(work, writes=not options.dry_run)
    recorded = sys.modules.get("flows.terminal.recorded")  # only a run has imported it, and Prefect with it
    return recorded.leave(code) if recorded else code


if __name__ == "__main__":
    sys.exit(main())
