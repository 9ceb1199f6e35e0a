"""Compares random and scripted players, and large models that are only prompted, with the policy trained for a task.

    python -m addons.models.baselines --task tic_tac_toe
    python -m addons.models.baselines --task email_search --bias
    python -m addons.models.baselines --task email_search --model gpt-5-mini --price-in 0.25 --price-out 2

Where run/ holds a run of the task, all players get its test scenarios, and the base and the trained policy are in the table.
Otherwise scenarios are drawn anew, which needs nothing but the repository. A model's answers are kept in the ledger, so the
command can be repeated, also with more scenarios, without paying for an answer twice. Nothing else is written.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import environments
from addons.models import players
from addons.models.prices import add_options, endpoint_of
from addons.models.section import Endpoint, OnServer
from environments.base import Env, Scenario
from steps.core import alike
from steps.core.alike import Groups
from steps.core.errors import UserError
from steps.core.params import Policy
from steps.core.progress import say
from steps.core.records import Reward, Trajectory, read_records
from steps.core.stats import added, counted, mean
from steps.core.terminal import ProgressDisplay, command_parser, console, exit_code, table
from steps.core.yaml_text import read_mapping
from steps.judging.rule import by_rule
from steps.registry import paired

COUNT = 100
RUN, CHAIN = Path("run"), Path("chain.yaml")
FOLDERS = {"test": "test", "val": "evaluation"}  # of run/NNN, by split


@dataclass(frozen=True)
class PlayerResult:
    """A player's results at a task; None where a value was not measured."""

    task: str
    player: str
    split: str
    n: int
    success: float
    ci95: tuple[float, float]  # by steps/registry/paired.py
    clusters: int | None  # groups of alike scenarios; None where the task does not say which are
    reward: float | None  # mean
    turns: float  # mean
    tokens: float | None = None  # mean of what the player wrote
    seconds: float | None = None  # mean of an episode, without the environment's share
    cost: float | None = None  # of all episodes, at the prices of the command line
    failed: int = 0  # episodes without a reward: they failed, which counts as no success, or it is no number


def result(
    task: str, player: str, split: str, rewards: Sequence[Reward], turns: Sequence[int], groups: Groups, **more: Any
) -> PlayerResult:
    """A player's result, from a reward and a number of turns per episode; `groups`: which scenarios are alike."""
    wins = [(reward.scenario_id, bool(reward.success)) for reward in rewards]
    scores = [reward.score for reward in rewards if reward.score is not None]
    return PlayerResult(
        task=task,
        player=player,
        split=split,
        n=len(rewards),
        success=sum(won for _, won in wins) / len(rewards),
        ci95=paired.attempts_interval(wins, groups),
        clusters=groups.count(name for name, _ in wins),
        reward=mean(scores) if scores else None,
        turns=mean(turns),
        failed=len(rewards) - len(scores),
        **more,
    )


def play(task: str, split: str, env: type[Env], data: Any, policy: Policy, chosen: list[Scenario]) -> PlayerResult:
    """Let a player play the scenarios, and score its episodes by the environment's rule."""
    played = players.play(policy, env, data, [(scenario, 0) for scenario in chosen], prefix=split)
    rewards = [by_rule(env, scenario, game.trajectory) for scenario, game in zip(chosen, played, strict=True)]
    more: dict[str, Any] = {"seconds": mean([game.seconds for game in played])}
    if OnServer.of(policy).endpoint is not None:
        more |= {"tokens": mean([game.output_tokens for game in played]), "cost": added(game.cost for game in played)}
    turns = [len(game.trajectory.turns) for game in played]
    return result(task, players.name(policy), split, rewards, turns, alike.groups_of(env, chosen, data), **more)


def of_run(task: str, split: str, run: Path, chain: Path, chosen: list[Scenario], groups: Groups) -> list[PlayerResult]:
    """The results of the base and the trained policy on these scenarios, where the run has evaluated them."""
    numbers = {"base": "000"}
    if chain.is_file():
        tested = read_mapping(chain.read_bytes(), chain).get("tested") or {}
        numbers["trained"] = str(tested.get("best", "000"))
    ids = {scenario.id for scenario in chosen}
    results = []
    for label, number in numbers.items():
        folder = run / number / FOLDERS[split]
        if not (folder / "rewards.parquet").is_file() or (label == "trained" and number == "000"):
            say(f"{label}: {folder} does not exist, so it is not in the table; `.venv/bin/dvc repro` makes it")
            continue
        rewards = [reward for reward in read_records(Reward, folder / "rewards.parquet") if reward.scenario_id in ids]
        if {reward.scenario_id for reward in rewards} != ids:
            say(
                f"{label}: {folder} is of other scenarios, so it is not in the table; `.venv/bin/dvc repro` makes it again"
            )
            continue
        played = {trajectory.id: trajectory for trajectory in read_records(Trajectory, folder / "trajectories.parquet")}
        episodes = [played[reward.trajectory_id].turns for reward in rewards]
        tokens = mean([sum(len(turn.completion_ids) for turn in episode) for episode in episodes])
        counts = [len(episode) for episode in episodes]
        results.append(result(task, f"{label} ({number})", split, rewards, counts, groups, tokens=tokens))
    return results


def biased(
    task: str, split: str, run: Path, env: type[Env], task_data: Path, data: Any, chosen: list[Scenario]
) -> PlayerResult:
    """The base policy with the one-token bias that is best on the run's validation scenarios."""
    from addons.models.token_bias import BiasedPolicy
    from steps.core.params import Params, load
    from steps.policy.loading import load_tokenizer
    from steps.sampling.job import Job

    params, adapter = load("params.yaml", Params), run / "000" / "adapter"
    if not params.policy.has_adapter or not adapter.is_dir():
        raise UserError(
            f"--bias needs policy.kind: vllm (or ray, server) and {adapter}, the run's first adapter; `make train` makes it"
        )
    job = Job(params.policy, params.evaluate, adapter, env, [], "bias", 0, data, task_data)
    player = BiasedPolicy(job)
    bias = player.choose(read_records(Scenario, run / "scenarios" / "val.parquet"))
    played, rewards = player.play(chosen, bias)
    text = load_tokenizer(params.policy).decode([bias.token])
    tokens = mean([sum(len(turn.completion_ids) for turn in trajectory.turns) for trajectory in played])
    turns = [len(trajectory.turns) for trajectory in played]
    groups = alike.groups_of(env, chosen, data)
    return result(task, f"base, {text!r} {bias.size:+g}", split, rewards, turns, groups, tokens=tokens)


def choose(task: str, env: type[Env], data: Any, words: argparse.Namespace) -> tuple[list[Scenario], bool]:
    """(the scenarios to play, whether they are those of the run)."""
    kept = words.run / "scenarios" / f"{words.split}.parquet"
    if kept.is_file():
        scenarios = read_records(Scenario, kept)
        if scenarios and scenarios[0].task in (task, task.rpartition(".")[2]):
            if (words.count or 0) > len(scenarios):
                raise UserError(f"--count {words.count}: {kept} holds {len(scenarios)} scenarios; ask for no more")
            return scenarios[: words.count or COUNT], True
    try:
        return env.scenarios(data, words.split, words.count or COUNT, words.seed), False
    except ValueError as problem:
        raise UserError(f"--count: {problem}") from None


def compare(task: str, words: argparse.Namespace, endpoint: Endpoint | None) -> list[PlayerResult]:
    """The results of all players at one task."""
    folder = environments.data_of(task)
    try:
        env = environments.load(task)
    except (ModuleNotFoundError, ValueError) as problem:
        raise UserError(f"--task {task}: {problem}") from None
    if not env.has_rule:
        raise UserError(
            f"--task {task}: it has no rule, by which alone players are compared here; a judge compares policies in the "
            "stage evaluate (docs/judging.md)"
        )
    data = env.load(folder)
    chosen, of_the_run = choose(task, env, data, words)
    results = []
    for player in words.players or players_of(env, endpoint):
        policy = players.on_server(endpoint) if endpoint and player == "openai" else Policy(kind=player)  # pyrefly: ignore[bad-argument-type]
        results.append(play(task, words.split, env, data, policy, chosen))
    if of_the_run:
        groups = alike.groups_of(env, chosen, data)
        results += of_run(task, words.split, words.run, words.chain, chosen, groups)
    if words.bias:
        if not of_the_run:
            raise UserError(f"--bias needs a run of {task} in {words.run}: its base policy is what gets the bias")
        results.append(biased(task, words.split, words.run, env, folder, data, chosen))
    return results


def players_of(env: type[Env], endpoint: Endpoint | None) -> list[str]:
    """All players that can play a task here. It is said which the task lacks."""
    own = [player for player in ("random", "scripted") if env.is_agent or env.has_player(player)]
    if "scripted" not in own:
        say(env.lacks("scripted"))
    return [*own, *(["openai"] if endpoint else [])]


def show(results: Sequence[PlayerResult]) -> None:
    """Print the table of one task."""
    output, first = console(120), results[0]
    numbers = ("success", "95 %", "reward", "turns", "tokens", "time", "cost")
    shown = table(("player", *numbers), numbers, f"{first.task}, {first.split}, {counted(first.n, first.clusters)}")
    for player in results:
        low, high = player.ci95
        shown.add_row(
            player.player,
            f"{player.success:.3f}",
            f"{low:.3f}–{high:.3f}",
            _number(player.reward, ".3f"),
            f"{player.turns:.1f}",
            _number(player.tokens, ".0f"),
            _time(player.seconds),
            _number(player.cost, ".4g"),
        )
    output.print(shown)
    for player in results:
        if player.failed:
            output.print(
                f"{player.player}: {player.failed} episodes failed, which counts as no success, or have no usable reward"
            )


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{seconds * 1000:.3f} ms"


def run(words: argparse.Namespace, display: ProgressDisplay) -> None:
    """Compare the players at each task, and print its table at once."""
    endpoint = endpoint_of(words)
    if "openai" in (words.players or ()) and endpoint is None:
        raise UserError("--players openai needs --model, the name of the model to ask")
    if endpoint is not None and words.players and "openai" not in words.players:
        raise UserError("--model would have no effect: add openai to --players, or leave them out")
    if words.count is not None and words.count < 1:
        raise UserError(f"--count: {words.count} is no number of scenarios")
    for task in words.task:
        results = compare(task, words, endpoint)
        display.clear()
        if words.json:
            print("\n".join(json.dumps(asdict(player)) for player in results), flush=True)
        else:
            show(results)


def main(words: Sequence[str] | None = None) -> int:
    """The command; returns its exit code."""
    parser = command_parser("addons.models.baselines", __doc__, allow_abbrev=False)
    parser.add_argument("--task", nargs="+", required=True, metavar="NAME", help="one or more; each gets a table")
    parser.add_argument("--split", choices=sorted(FOLDERS), default="test", help="default: test")
    parser.add_argument("--count", type=int, help=f"scenarios (default: {COUNT}, or all of the run's)")
    parser.add_argument("--seed", type=int, default=1, help="for scenarios that are drawn anew (default: 1)")
    kinds = ("random", "scripted", "openai")
    parser.add_argument("--players", nargs="+", choices=kinds, help="default: all possible ones")
    bias = "also play the run's base policy with a bias on one token's logit, the best on validation (two minutes)"
    parser.add_argument("--bias", action="store_true", help=bias)
    parser.add_argument("--json", action="store_true", help="print one JSON object per line, not tables")
    parser.add_argument("--run", type=Path, default=RUN, metavar="PATH", help=f"default: {RUN}")
    parser.add_argument("--chain", type=Path, default=CHAIN, metavar="PATH", help=f"default: {CHAIN}")
    add_options(parser)
    display = ProgressDisplay("baselines")
    return exit_code(lambda: run(parser.parse_args(words), display), display)


if __name__ == "__main__":
    sys.exit(main())
