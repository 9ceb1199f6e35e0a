"""Groups of attempts that state their own quality, and the files of a score stage made of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import yaml

from addons.judges.prompts import Group
from environments.base import Message, Scenario
from environments.multiplication import scenario as product
from steps.core.records import Trajectory, Turn, write_records


def attempt(
    scenario: Scenario, number: int, *said: Message, stop: str = "done", error: str | None = None
) -> Trajectory:
    """A trajectory of turns in words; a message of another role is what the turn before was answered with."""
    turns: list[Turn] = []
    for message in said:
        if message["role"] == "assistant":
            tokens = {"prompt_ids": (1,), "completion_ids": (2,), "logprobs": (0.0,)}
            turns.append(Turn(**tokens, message=message, observations=(), finish_reason="stop"))
        else:
            turns[-1] = turns[-1].model_copy(update={"observations": (*turns[-1].observations, message)})
    kept: dict[str, Any] = {"stop_reason": stop, "error": error, "turns": tuple(turns)}
    name = f"001-{scenario.id}-{number}"
    return Trajectory(id=name, scenario_id=scenario.id, attempt=number, adapter_hash="a", **kept)


def words(text: str) -> Message:
    return {"role": "assistant", "content": text}


def group(number: int, size: int = 8, qualities: Sequence[float] | None = None) -> Group:
    """Attempts at one product; those of the same quality read alike."""
    rng = Random(f"group {number}")
    found = qualities if qualities is not None else [round(rng.random(), 3) for _ in range(size)]
    scenario = product("train", 10 + number // 900, 10 + number % 900)
    told = [words(f"quality {quality:.3f}: it is {scenario.data['answer']}") for quality in found]
    return Group(scenario, [attempt(scenario, place, message) for place, message in enumerate(told)])


def quality(trajectory: Trajectory) -> float:
    """What an oracle gives it."""
    return float(str(trajectory.turns[0].message["content"]).split()[1].rstrip(":"))


class Stage:
    """A folder with the inputs of the score stage for some groups, and its parameters."""

    def __init__(
        self, folder: Path, groups: Sequence[Group], score: dict[str, Any], task: str = "multiplication"
    ) -> None:
        self.folder = folder
        (folder / "scenarios").mkdir(parents=True)
        (folder / "rubric.md").write_text("")
        write_records([one.scenario for one in groups], folder / "scenarios" / "train.parquet")
        write_records([played for one in groups for played in one.trajectories], folder / "trajectories.parquet")
        (folder / "params.yaml").write_text(yaml.safe_dump({"task": task, "score": score}))

    @property
    def inputs(self) -> dict[str, Path]:
        names = {"scenarios": "scenarios", "trajectories": "trajectories.parquet", "rubric": "rubric.md"}
        return {name: self.folder / path for name, path in names.items()}

    @property
    def outputs(self) -> dict[str, Path]:
        names = {"rewards": "rewards.parquet", "judgements": "judgements.jsonl", "judge": "judge.json"}
        return {name: self.folder / path for name, path in names.items()}

    @property
    def command(self) -> list[str]:
        options = self.inputs | self.outputs | {"params": self.folder / "params.yaml"}
        return [word for name, path in options.items() for word in (f"--{name.replace('_', '-')}", str(path))]

    def run(self) -> None:
        from steps import score
        from steps.runner import stage

        arguments = self.inputs | self.outputs | {"params": self.folder / "params.yaml"}
        stage.run(score.score, {name: str(path) for name, path in arguments.items()})
