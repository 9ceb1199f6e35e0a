"""Evaluate: how an adapter does on a split it was not trained on: an attempt at each scenario, greedy by default.

Writes the summary, and every trajectory with its reward, so that two policies can be compared scenario by scenario.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steps.stage import Input, Output, main, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from steps.params import EvaluateParams


def evaluate(
    task_data: Input, scenarios: Input, adapter: Input, evaluation: Output, params: EvaluateParams, split: str = "val"
) -> None:
    """Write summary.json, trajectories.parquet and rewards.parquet."""
    import environments
    from environments.base import Scenario
    from steps import engine, episodes
    from steps.chat import Chat
    from steps.score import by_rule
    from steps.types import Evaluation, read_records, write_records

    env = environments.load(params.task)
    held_out = read_records(Scenario, scenarios / f"{split}.parquet")
    tools = [tool.schema for tool in env.tools().values()]
    chat = Chat(engine.load_tokenizer(params.policy), tools, params.policy.chat_template_kwargs)
    limits = params.evaluate
    sampler = engine.sampler(
        params.policy, adapter, limits.temperature, max_tokens=limits.max_tokens, stop=chat.end, seed=0
    )
    played = episodes.play(
        sampler,
        chat,
        env,
        env.load(task_data),
        [(scenario, 0) for scenario in held_out],
        prefix=split,
        adapter_hash=engine.adapter_hash(adapter),
        context=params.policy.context,
        max_tokens=limits.max_tokens,
        max_turns=limits.max_turns,
    )
    rewards = [by_rule(env, scenario, played_one) for scenario, played_one in zip(held_out, played, strict=True)]
    wins = [reward.success for reward in rewards]
    slices: dict[str, list[bool]] = {}
    for scenario, win in zip(held_out, wins, strict=True):
        slices.setdefault(str(scenario.data.get("kind", "all")), []).append(win)
    summary = Evaluation(
        split=split,
        adapter_hash=engine.adapter_hash(adapter),
        n=len(wins),
        success=sum(wins) / len(wins),
        ci95=wilson(sum(wins), len(wins)),
        reward=mean([reward.score for reward in rewards if reward.score is not None]),
        turns=mean([len(one.turns) for one in played]),
        tokens=mean([sum(len(turn.completion_ids) for turn in one.turns) for one in played]),
        slices={name: mean(of) for name, of in sorted(slices.items())},
    )
    evaluation.mkdir()
    (evaluation / "summary.json").write_text(summary.model_dump_json(indent=2) + "\n")
    write_records(played, evaluation / "trajectories.parquet")
    write_records(rewards, evaluation / "rewards.parquet")
    low, high = summary.ci95
    say(f"{split}: success {summary.success:.3f} [{low:.3f}, {high:.3f}] of {summary.n}")


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def wilson(successes: int, n: int, z: float = 1.959964) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927), which stays within 0 and 1 for small n."""
    share = successes / n
    centre = share + z * z / (2 * n)
    spread = z * ((share * (1 - share) + z * z / (4 * n)) / n) ** 0.5
    scale = 1 + z * z / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


if __name__ == "__main__":
    main(evaluate)
