"""Baselines: what chance, rules and a large model that is only asked do at a task, beside the policy trained for it.

    python -m steps.analytics.baselines --task tic_tac_toe
    python -m steps.analytics.baselines --task email_search --model gpt-5-mini --price-in 0.25 --price-out 2

Where run/ holds a run of the task, all of them get its scenarios, and base and trained policy stand in the table with the
same ones. Without it the scenarios are drawn anew: nothing but the repository is needed. A model's answers are kept in the
ledger, so that the command can be given again, with more scenarios too, and pays for nothing twice. Writes nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core.errors import UserError
from steps.core.progress import report_to, say
from steps.core.terminal import ProgressDisplay, exit_code

if TYPE_CHECKING:
    from environments.base import Env, Scenario
    from steps.core.params import Endpoint, Policy
    from steps.core.records import Reward
    from steps.sampling.players import Played

COUNT = 100
RUN, CHAIN = Path("run"), Path("chain.yaml")
FOLDERS = {"test": "test", "val": "evaluation"}  # of run/NNN, by split


@dataclass(frozen=True)
class Row:
    """A player of a task; None where it is not known."""

    task: str
    player: str
    split: str
    n: int
    success: float
    ci95: tuple[float, float]  # Wilson
    reward: float | None  # mean
    turns: float  # mean
    tokens: float | None = None  # mean of what the player wrote
    seconds: float | None = None  # mean of an episode: the player's share of it
    cost: float | None = None  # of all episodes, at the prices given
    failed: int = 0  # episodes; they count as no success


def row(task: str, player: str, split: str, rewards: Sequence[Reward], turns: Sequence[int], **more: Any) -> Row:
    from steps.core.stats import mean, wilson

    wins = sum(reward.success for reward in rewards)
    scores = [reward.score for reward in rewards if reward.score is not None]
    return Row(
        task=task,
        player=player,
        split=split,
        n=len(rewards),
        success=wins / len(rewards),
        ci95=wilson(wins, len(rewards)),
        reward=mean(scores) if scores else None,
        turns=mean(turns),
        failed=len(rewards) - len(scores),
        **more,
    )


def of_players(task: str, split: str, env: type[Env], data: Any, policy: Policy, chosen: list[Scenario]) -> Row:
    """Play the scenarios, and judge what came of it."""
    from steps.core.stats import mean
    from steps.judging.rule import by_rule
    from steps.sampling import players

    played: list[Played] = players.play(policy, env, data, [(scenario, 0) for scenario in chosen], prefix=split)
    rewards = [by_rule(env, scenario, one.trajectory) for scenario, one in zip(chosen, played, strict=True)]
    more: dict[str, Any] = {"seconds": mean([one.seconds for one in played])}
    if policy.endpoint is not None:
        more |= {"tokens": mean([one.output_tokens for one in played]), "cost": sum(one.cost for one in played)}
    turns = [len(one.trajectory.turns) for one in played]
    return row(task, players.name(policy), split, rewards, turns, **more)


def of_run(task: str, split: str, run: Path, chain: Path, chosen: list[Scenario]) -> list[Row]:
    """Base and trained policy on the same scenarios, as far as the run has tested them."""
    import yaml

    from steps.core.records import Reward, Trajectory, read_records
    from steps.core.stats import mean

    numbers = {"base": "000"}
    if chain.is_file():
        numbers["trained"] = str(((yaml.safe_load(chain.read_text()) or {}).get("tested") or {}).get("best", "000"))
    wanted = {scenario.id for scenario in chosen}
    rows = []
    for label, number in numbers.items():
        folder = run / number / FOLDERS[split]
        if not (folder / "rewards.parquet").is_file() or (label == "trained" and number == "000"):
            say(f"{label}: {folder} does not exist, so that it is not in the table; `dvc repro` makes it")
            continue
        rewards = [one for one in read_records(Reward, folder / "rewards.parquet") if one.scenario_id in wanted]
        if {one.scenario_id for one in rewards} != wanted:
            say(f"{label}: {folder} is of other scenarios, so that it is not in the table; `dvc repro` makes it again")
            continue
        tried = {one.id: one for one in read_records(Trajectory, folder / "trajectories.parquet")}
        turns = [tried[one.trajectory_id].turns for one in rewards]
        tokens = mean([sum(len(turn.completion_ids) for turn in one) for one in turns])
        rows.append(row(task, f"{label} ({number})", split, rewards, [len(one) for one in turns], tokens=tokens))
    return rows


def choose(task: str, env: type[Env], data: Any, words: argparse.Namespace) -> tuple[list[Scenario], bool]:
    """The scenarios, and whether they are those of the run."""
    from environments.base import Scenario
    from steps.core.records import read_records

    kept = words.run / "scenarios" / f"{words.split}.parquet"
    if kept.is_file():
        found = read_records(Scenario, kept)
        if found and found[0].task == task.rpartition(".")[2]:
            if (words.count or 0) > len(found):
                raise UserError(f"--count {words.count}: {kept} holds {len(found)} scenarios; ask for as many at most")
            return found[: words.count or COUNT], True
    try:
        return env.scenarios(data, words.split, words.count or COUNT, words.seed), False
    except ValueError as problem:
        raise UserError(f"--count: {problem}") from None


def compare(task: str, words: argparse.Namespace, endpoint: Endpoint | None) -> list[Row]:
    """The rows of one task."""
    import environments
    from steps.core.params import Policy

    folder = Path("tasks_data") / task.rpartition(".")[2]
    try:
        env = environments.load(task)
    except (ModuleNotFoundError, ValueError) as problem:
        known = sorted(path.stem for path in Path(environments.__file__).parent.glob("[!_]*.py") if path.stem != "base")
        raise UserError(f"--task {task}: {problem}; the tasks are {', '.join(known)}, or a dotted module") from None
    data = env.load(folder)
    chosen, of_the_run = choose(task, env, data, words)
    rows = []
    for player in words.players:
        policy = Policy(kind=player, endpoint=endpoint if player == "openai" else None)
        rows.append(of_players(task, words.split, env, data, policy, chosen))
    return rows + (of_run(task, words.split, words.run, words.chain, chosen) if of_the_run else [])


def show(rows: Sequence[Row]) -> None:
    """One task's table."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console = Console(highlight=False, markup=False, emoji=False, width=120)
    first = rows[0]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"{first.task}, {first.split}, {first.n} scenarios")
    table.title_justify = "left"
    table.add_column("player")
    for column in ("success", "95 %", "reward", "turns", "tokens", "time", "cost"):
        table.add_column(column, justify="right")
    for one in rows:
        low, high = one.ci95
        table.add_row(
            one.player,
            f"{one.success:.3f}",
            f"{low:.3f}–{high:.3f}",
            _number(one.reward, ".3f"),
            f"{one.turns:.1f}",
            _number(one.tokens, ".0f"),
            _time(one.seconds),
            _number(one.cost, ".4g"),
        )
    console.print(table)
    for one in rows:
        if one.failed:
            console.print(f"{one.player}: {one.failed} episodes failed, and count as no success")


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1000:.3f} ms"


def parse(words: Sequence[str] | None) -> argparse.Namespace:
    from steps.llm.endpoint import add_options

    parser = argparse.ArgumentParser(
        "python -m steps.analytics.baselines", description=(__doc__ or "").split("\n\n")[0], allow_abbrev=False
    )
    parser.add_argument("--task", nargs="+", required=True, metavar="NAME", help="one or more, a table each")
    parser.add_argument("--split", choices=sorted(FOLDERS), default="test", help="default: test")
    parser.add_argument("--count", type=int, help=f"scenarios (default: {COUNT}, or all of the run's)")
    parser.add_argument("--seed", type=int, default=1, help="of scenarios that are drawn anew (default: 1)")
    parser.add_argument("--players", nargs="+", choices=("random", "scripted", "openai"), help="default: all there are")
    parser.add_argument("--json", action="store_true", help="a JSON object a line in place of tables")
    parser.add_argument("--run", type=Path, default=RUN, metavar="PATH", help=f"default: {RUN}")
    parser.add_argument("--chain", type=Path, default=CHAIN, metavar="PATH", help=f"default: {CHAIN}")
    add_options(parser)
    return parser.parse_args(words)


def run(words: argparse.Namespace, display: ProgressDisplay) -> None:
    """Compare, and print a task's table as soon as it is there."""
    from steps.llm.endpoint import endpoint_of

    endpoint = endpoint_of(words)
    words.players = words.players or ["random", "scripted", *(["openai"] if endpoint else [])]
    if "openai" in words.players and endpoint is None:
        raise UserError("--players openai needs --model, the name of the model to ask")
    if endpoint is not None and "openai" not in words.players:
        raise UserError("--model would have no effect: add openai to --players, or leave them out")
    if words.count is not None and words.count < 1:
        raise UserError(f"--count: {words.count} is no number of scenarios")
    for task in words.task:
        rows = compare(task, words, endpoint)
        display.clear()
        if words.json:
            print("\n".join(json.dumps(asdict(one)) for one in rows), flush=True)
        else:
            show(rows)


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    display = ProgressDisplay("baselines")
    report_to(display)
    try:
        return exit_code(lambda: run(parse(words), display), display)
    finally:
        report_to(None)


if __name__ == "__main__":
    sys.exit(main())
