"""How TRL plays and rewards this project's tasks: by Hugging Face generate, with our environments and their rules.

A task without tools has one turn, which TRL's loop samples as it comes. One with tools goes through `rollout_func`, all
episodes in step: every turn is one call of generate for those that are not done.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from steps.sampling.turns import Sampled

if TYPE_CHECKING:
    from environments.base import Scenario
    from steps.core.records import Trajectory


class Lockstep:
    """Hugging Face generate in the place of `engine.EngineSampler`: one call for all turns that are asked for."""

    def __init__(self, model: Any, end: int, pad: int, max_tokens: int, temperature: float) -> None:
        self.model, self.end = model, end
        self.asked: dict[int, list[int]] = {}
        self.settings: dict[str, Any] = {"max_new_tokens": max_tokens, "eos_token_id": end, "pad_token_id": pad}
        if temperature > 0:
            self.settings |= {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        else:
            self.settings |= {"do_sample": False}

    @property
    def pending(self) -> int:
        return len(self.asked)

    def submit(self, key: int, prompt_ids: list[int], seed: int) -> None:  # generate draws from torch's own
        self.asked[key] = prompt_ids

    def step(self) -> list[Sampled]:
        import torch

        asked, self.asked = self.asked, {}
        longest = max(map(len, asked.values()))
        rows = torch.tensor([[0] * (longest - len(ids)) + ids for ids in asked.values()])
        there = torch.tensor([[0] * (longest - len(ids)) + [1] * len(ids) for ids in asked.values()])
        self.model.eval()
        with torch.no_grad():
            out = self.model.generate(input_ids=rows, attention_mask=there, **self.settings)[:, longest:].tolist()
        self.model.train()
        done = []
        for key, tokens in zip(asked, out, strict=True):
            ended = self.end in tokens
            ids = tuple(tokens[: tokens.index(self.end) + 1] if ended else tokens)
            done.append(Sampled(key, ids, (0.0,) * len(ids), "stop" if ended else "length"))
        return done


class TrlTask:
    """The task of a run of ours, with that run's settings and scenarios, as GRPOTrainer takes it."""

    def __init__(self, task: str, own: Path) -> None:
        import environments
        from steps.core.params import Params, load
        from steps.policy.loading import turn_limit

        self.own = own
        self.params = load(own / "params.yaml", Params)
        update = self.params.update
        self.steps = update.steps_per_generation * update.num_iterations  # of an iteration
        self.env = environments.load(task)
        self.data = self.env.load(own / "tasks_data" / task)
        self.by_prompt = {json.dumps(list(scenario.messages)): scenario for scenario in self.scenarios("train")}
        self.turn = turn_limit(self.params.policy, self.params.rollout.max_tokens)  # tokens
        self.is_single_turn = not self.env.tools()

    def scenarios(self, split: str) -> list[Scenario]:
        from environments.base import Scenario
        from steps.core.records import read_records

        return read_records(Scenario, self.own / f"run/scenarios/{split}.parquet")

    def of_prompts(self, prompts: Sequence[Any]) -> list[Scenario]:
        return [self.by_prompt[json.dumps(prompt)] for prompt in prompts]

    def settings(self) -> dict[str, Any]:
        """GRPOConfig's own names for the run's settings of sampling and precision."""
        return {
            "temperature": self.params.rollout.temperature,
            "max_completion_length": self.turn if self.is_single_turn else self.params.policy.context,
            "bf16": self.params.policy.dtype == "bfloat16",
        }

    def reward(self, prompts: list[Any], completions: list[Any], **columns: Any) -> list[float | None]:
        """TRL's reward function: the rule's score, which `rollout` has found already where it played."""
        if "score" in columns:
            return list(columns["score"])
        pairs = zip(self.of_prompts(prompts), completions, strict=True)
        return [
            sum(part.value for part in self.env.components(scenario, [*scenario.messages, *answers]))
            for scenario, answers in pairs
        ]

    def rollout_func(self) -> Callable[[list[Any], Any], dict[str, Any]] | None:
        return None if self.is_single_turn else self.rollout

    def rollout(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """TRL's `rollout_func`: prompts, sampled and observed tokens of one episode for each prompt."""
        from steps.judging.rule import by_rule

        scenarios = self.of_prompts(prompts)
        attempts = list(zip(scenarios, range(len(scenarios)), strict=True))
        sampling = self.turn, self.params.rollout.temperature
        played = self.play(trainer.model, trainer.processing_class, attempts, *sampling)
        cut = [(row, len(trajectory.turns[0].prompt_ids)) for trajectory in played for [row] in [trajectory.flatten()]]
        pairs = zip(scenarios, played, strict=True)
        return {
            "prompt_ids": [row.ids[:start] for row, start in cut],
            "completion_ids": [row.ids[start:] for row, start in cut],
            "env_mask": [row.mask[start:] for row, start in cut],
            "logprobs": [row.logprobs[start:] for row, start in cut],
            "score": [by_rule(self.env, scenario, trajectory).score for scenario, trajectory in pairs],
        }

    def success(self, model: Any, tokenizer: Any, split: str) -> float:
        """Success on a split as the stage evaluate has it: one attempt at each scenario, at its temperature."""
        from steps.judging.rule import is_success
        from steps.policy.loading import turn_limit

        limits, scenarios = self.params.evaluate, self.scenarios(split)
        longest = turn_limit(self.params.policy, limits.max_tokens)
        attempts = [(scenario, 0) for scenario in scenarios]
        played = self.play(model, tokenizer, attempts, longest, limits.temperature)
        return fmean(is_success(self.env, *pair) for pair in zip(scenarios, played, strict=True))

    def play(
        self, model: Any, tokenizer: Any, attempts: Sequence[tuple[Scenario, int]], longest: int, temperature: float
    ) -> list[Trajectory]:
        """The episodes of these attempts, by the pipeline's own loop with generate as its sampler; `longest`: tokens of a
        turn."""
        from steps.policy.chat import Chat
        from steps.sampling import episodes
        from steps.sampling.job import Job

        chat = Chat(tokenizer, [tool.schema for tool in self.env.tools().values()])
        sampler = Lockstep(model, chat.end, tokenizer.pad_token_id, longest, temperature)
        limits = self.params.rollout.model_copy(update={"max_tokens": longest, "max_turns": None, "order": "lockstep"})
        job = Job(self.params.policy, limits, None, self.env, attempts, "trl", 0, self.data)
        return episodes.play(job, sampler, {"": chat})
