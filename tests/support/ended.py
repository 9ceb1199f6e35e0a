"""The folder run/ of a small run that has ended, as its stages leave it: two policies on five test scenarios."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from environments.base import words
from environments.multiplication import scenario as product
from steps.core.evaluations import Evaluation
from steps.core.records import Reward, Trajectory, write_records
from steps.core.stats import wilson
from steps.policy.adapter import FILES
from tests.support.judged import attempt

SCENARIOS = [product("test", 12, second) for second in range(11, 16)]
BEFORE, AFTER = (False, False, True, True, False), (True, True, False, True, False)


def evaluated(folder: Path, played: Sequence[Trajectory], success: Sequence[bool | None]) -> None:
    """The files of an evaluation on the test split."""
    (folder / "test").mkdir(parents=True)
    write_records(played, folder / "test/trajectories.parquet")
    rewards = [
        Reward(trajectory_id=each.id, scenario_id=each.scenario_id, name="rule", score=float(bool(won)), success=won)
        for each, won in zip(played, success, strict=True)
    ]
    write_records(rewards, folder / "test/rewards.parquet")


def run(root: Path, said: str = "it is 7") -> dict[str, Any]:
    """Write root/run, whose best policy is iteration 001; both say `said` where they fail. The content of summary.json."""
    folder = root / "run"
    (folder / "scenarios").mkdir(parents=True)
    write_records(SCENARIOS, folder / "scenarios/test.parquet")
    sides = {}
    for name, success in (("000", BEFORE), ("001", AFTER)):
        texts = [f"it is {each.data['answer']}" if won else said for each, won in zip(SCENARIOS, success, strict=True)]
        played = [attempt(each, 0, words(text)) for each, text in zip(SCENARIOS, texts, strict=True)]
        evaluated(folder / name, played, success)
        share, kinds = sum(success) / 5, {"multiply": (sum(success), 5)}
        fields: dict[str, Any] = {"success": share, "ci95": wilson(sum(success), 5), "reward": share, "n": 5}
        summary = Evaluation(split="test", adapter_hash="a", turns=1, tokens=3, decisions=kinds, **fields)
        (folder / name / "test/summary.json").write_text(summary.text())
        (folder / name / "adapter").mkdir()
        for file in FILES:
            (folder / name / "adapter" / file).write_bytes(name.encode())
        (folder / name / "timings").mkdir()
        (folder / name / "timings/test.json").write_text('{"seconds": 2.0}')
        sides[name] = json.loads(summary.text())
    (folder / "001/metrics.json").write_text('{"tokens": 10.0, "collected": 64}')
    (folder / "001/judge.json").write_text('{"cost_so_far": 0.25}')
    reason = "test success 0.600 is above the base policy's 0.400 (5 scenarios)"
    (folder / "receipt.json").write_text(json.dumps({"name": "multiplication", "registered": True, "reason": reason}))
    link = '{prev: "000", policy: "000", opponent: run/000/adapter}'
    (root / "chain.yaml").write_text(f'iterations:\n  "001": {link}\n')
    return {
        "task": "multiplication",
        "base": sides["000"],
        "trained": sides["001"] | {"iteration": 1, "policy": "001"},
        "iterations": [{"iteration": 1, "seconds": {"rollout": 3.0, "update": 4.5}, "overhead_seconds": 0.5}],
        "registered": {"name": "multiplication", "version": "3"},
        "wall_seconds": 60.0,
    }
