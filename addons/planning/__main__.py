"""Plan: what a configuration needs before it runs: memory by part, seconds and money an iteration, and whether it fits.

    python -m addons.planning                                     # params.yaml on this machine's CPU
    python -m addons.planning --set policy.base_model=Qwen/Qwen2.5-7B-Instruct --set policy.dtype=bfloat16 --gpu h100-80
    python -m addons.planning --gpu a100-80 --price 1.8 --episode 900,4,200,300
    python -m addons.planning --table                             # common models and cards, as in docs/gpu.md

Needs a model's config.json alone: no weights, no torch. Exit code 1 where the configuration cannot run. The formulas and
their sources are in addons/planning/.
"""

from __future__ import annotations

import sys
from pathlib import Path

import environments
from addons.planning import cards, models, plan, shapes, workload
from addons.planning.cards import CARDS, Machine
from addons.planning.models import COMMON
from addons.planning.shapes import Shape
from addons.planning.workload import Episodes
from flows.repro.parameters import set_params
from flows.terminal.command import run_command
from steps.core.errors import UserError
from steps.core.params import Params
from steps.core.terminal import command_parser

# Of the table in docs/gpu.md.
EPISODES = Episodes(900, 4, 200, 100, "as the table's")
SHARES = (0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2)  # policy.gpu_memory: the first that fits counts


def main() -> int:
    parser = command_parser("addons.planning", __doc__)
    parser.add_argument("--task", help="the task, with its preset where it is another than that of params.yaml")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as in flows.train; nothing is written"
    )
    parser.add_argument("--gpu", choices=list(CARDS), help="plan for this card; without it, for this machine's CPU")
    parser.add_argument(
        "--price", type=float, metavar="PER_HOUR", help="of the machine (default: a card's stated price)"
    )
    parser.add_argument(
        "--episode",
        metavar="PROMPT,TURNS,SAMPLED,OBSERVED",
        help="tokens of a prompt, turns, tokens sampled and observed in each (default: as in the last run here)",
    )
    parser.add_argument("--table", action="store_true", help="print the table of docs/gpu.md and stop")
    options = parser.parse_args()

    def work() -> int:
        if options.table:
            print(table())
            return 0
        if options.price is not None and not 0 <= options.price < float("inf"):
            raise UserError(f"--price {options.price}: give a price an hour, 0 or more")
        params = set_params(options.set, task=options.task, dry_run=True)
        if setting := plan.unplanned(params):
            raise UserError(
                f"{setting} cannot be planned yet: the formulas are of one process, one card and weights of 16 or 32 bits"
            )
        shape = models.shape_of(params.policy)
        machine = CARDS[options.gpu] if options.gpu else cards.this_machine(params.policy.threads)
        last = workload.last_run(Path.cwd())
        if last and last.params.task != params.task:
            last = None
        if options.episode:
            episodes = given(options.episode)
        else:  # as long as those of the last run of this task, or as assumed
            episodes = last.episodes if last else workload.assumed(params, environments.load(params.task).max_turns)
        price = machine.price if options.price is None else options.price
        made = planned(params, shape, machine, episodes, last)
        print(plan.report(made, price))
        if refused := plan.refusal(made):
            print(f"it cannot run: {refused}", file=sys.stderr)
            return 1
        return 0

    return run_command(work, writes=False)


def given(text: str) -> Episodes:
    """The episodes that --episode describes. UserError where it is not four numbers that can be."""
    try:
        prompt, turns, sampled, observed = (float(word) for word in text.split(","))
    except ValueError:
        raise UserError(f"--episode {text}: give four numbers, as in --episode 900,4,200,300") from None
    if not (0 < prompt < 1e7 and 1 <= turns < 1e4 and 0 < sampled < 1e7 and 0 <= observed < 1e7):
        raise UserError(f"--episode {text}: a prompt, turns and sampled tokens are above 0, and none is without end")
    return Episodes(prompt, turns, sampled, observed, "as given")


def planned(params: Params, shape: Shape, machine: Machine, episodes: Episodes, last: workload.Run | None) -> plan.Plan:
    """The plan; on this machine's CPU its seconds are corrected by those of the last run, where that had the same model."""
    same = last is not None and not machine.is_card and alike(last.params, params)
    if not same or last is None:
        return plan.make(params, shape, machine, episodes)
    before = plan.make(last.params, shape, machine, last.episodes)
    factors = {name: last.seconds[name] / stage.total for name, stage in before.stages.items()}
    shown = ", ".join(f"{name} × {factor:.2f}" for name, factor in factors.items())
    return plan.make(params, shape, machine, episodes, factors, f"corrected by the last run's seconds here: {shown}")


def alike(run: Params, other: Params) -> bool:
    """Whether two runs have the same model in the same type on as many threads."""
    keys = ("base_model", "revision", "dtype", "threads")
    return all(getattr(run.policy, key) == getattr(other.policy, key) for key in keys)


def params_of(model: str, share: float) -> Params:
    """The table's configuration of a model."""
    return Params.model_validate(
        {
            "policy": {"base_model": model, "dtype": "bfloat16", "context": 8192, "gpu_memory": share},
            "rollout": {"max_tokens": 512},
            "evaluate": {"max_tokens": 512},
        }
    )


def cell(model: str, card: Machine) -> str:
    """Seconds and dollars of an iteration, and the engine's share of the card where the largest does not fit; – where none
    does."""
    shape = shapes.of(COMMON[model], model)
    for share in SHARES:
        made = plan.make(params_of(model, share), shape, card, EPISODES)
        if not plan.refusal(made):
            seconds = made.seconds
            smaller = "" if share == SHARES[0] else f" ({share})"
            return f"{seconds:.0f} s, ${seconds / 3600 * (card.price or 0):.2f}{smaller}"
    return "–"


def table() -> str:
    """The table in Markdown: a row of each model, a column of each card."""
    lines = [
        f"| model | {' | '.join(CARDS)} |",
        f"|---|{'---|' * len(CARDS)}",
    ]
    lines += [f"| {' | '.join([model, *(cell(model, card) for card in CARDS.values())])} |" for model in COMMON]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
