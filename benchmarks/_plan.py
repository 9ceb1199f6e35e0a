"""What benchmarks.plan runs in processes of their own: making random models, and one iteration with each.

    python -m benchmarks._common _plan.prepare '{"folder": "F", "models": {"medium": {"hidden_size": 512}}}'
    python -m benchmarks._common _plan.run '{"folder": "F", "configuration": {"model": "medium"}}'

An iteration is what the warm worker does in one, in the same process: the engine samples a batch of episodes of one turn and
a fixed length, and the trainer makes an update on it. It is done twice, and the second one is timed. Prompts are random
tokens, which the attempts of a group share; rewards are random.
"""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path
from typing import Any

from benchmarks._common import ROOT
from benchmarks._update import memory
from steps.core.params import Params
from steps.core.records import Row

EMBEDDED = ROOT / "tasks_data" / "embedded_policy"


def prepare(folder: str, models: dict[str, dict[str, Any]]) -> None:
    """Write a random model of each shape: `dtype`, and fields of its configuration, `model_type` among them."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    for name, shape in models.items():
        out, fields = Path(folder, name), dict(shape)
        dtype = getattr(torch, fields.pop("dtype"))
        torch.manual_seed(0)
        config = AutoConfig.for_model(**fields, eos_token_id=2, pad_token_id=0, bos_token_id=None)
        AutoModelForCausalLM.from_config(config).to(dtype).save_pretrained(out)
        for path in EMBEDDED.iterdir():
            if path.name not in ("config.json", "generation_config.json") and path.suffix in (".json", ".jinja"):
                shutil.copy2(path, out)


def params_of(configuration: dict[str, Any], folder: Path) -> Params:
    """The parameters of a configuration: those that differ from the defaults, and its model's folder."""
    sections = {key: dict(value) for key, value in configuration["params"].items()}
    sections["policy"] = {"base_model": os.fspath(folder / configuration["model"])} | sections.get("policy", {})
    sections["update"] = {"max_sampler_kl": 1e9, "max_kl": None} | sections.get("update", {})
    return Params.model_validate(sections)


def run(folder: str, configuration: dict[str, Any]) -> dict[str, Any]:
    """Two iterations: MB after each phase of the first and at most, and of the second MB that are held after each phase, and
    the seconds that the main thread was at work, beside those of the clock. It is at work all the time that an iteration
    takes on an idle machine: it does its share of what is parallel, and sleeps while others have the core
    (OMP_WAIT_POLICY=passive, which the caller sets)."""
    import psutil

    from steps.policy.loading import turn_limit
    from steps.policy.machine import prepare_training
    from steps.sampling import engine
    from steps.training import batches, grpo

    params = params_of(configuration, Path(folder))
    policy, rng = params.policy, random.Random(0)
    vocabulary = configuration["vocabulary"]
    adapter, checkpoint = Path(folder, "adapter"), Path(folder, "checkpoint")
    for path in (adapter, checkpoint):
        shutil.rmtree(path, ignore_errors=True)
    measurements: dict[str, Any] = {"memory": {}, "resident": {}, "wall": {}, "seconds": {}}

    def note(phase: str, began: tuple[float, float]) -> tuple[float, float]:
        """Add what was measured since `began`, which is what this returns: seconds of the clock, and of this thread."""
        now = time.perf_counter(), time.thread_time()
        measurements["memory"].setdefault(phase, memory())
        measurements["resident"][phase] = round(psutil.Process().memory_info().rss / 2**20)  # MB at its end
        measurements["wall"][phase], measurements["seconds"][phase] = now[0] - began[0], now[1] - began[1]
        return now

    os.chdir(folder)
    engine.get(policy)
    note("engine", (0.0, 0.0))
    trainer = grpo.Trainer(policy, seed=1)
    trainer.save_checkpoint(checkpoint, trainer.save_adapter(adapter))
    for number in range(2):
        shape = (params.rollout.scenarios, params.rollout.attempts)
        prompts = [[rng.randrange(10, vocabulary) for _ in range(configuration["prompt"])] for _ in range(shape[0])]
        began = time.perf_counter(), time.thread_time()
        most = turn_limit(policy, params.rollout.max_tokens)
        sampler = engine.EngineSampler(policy, adapter, 1.0, most, vocabulary - 1)
        for key in range(shape[0] * shape[1]):
            sampler.submit(key, prompts[key // shape[1]], seed=1000 * number + key)
        turns = []
        while sampler.pending:
            turns += sampler.step()
        began = note("rollout", began)
        examples = []
        for turn in sorted(turns):
            prompt = prompts[turn.key // shape[1]]
            ids, mask = [*prompt, *turn.completion_ids], [0] * len(prompt) + [1] * len(turn.completion_ids)
            row = Row(ids, mask, [0.0] * len(prompt) + list(turn.logprobs))
            examples.append(batches.Example([row], rng.gauss(0, 1), f"{number} {turn.key // shape[1]}"))
        prepare_training(policy.threads)
        trainer = grpo.Trainer(policy, checkpoint=checkpoint)
        trainer.train(examples, params.update, 1.0, seed=number)
        shutil.rmtree(adapter)
        shutil.rmtree(checkpoint)
        trainer.save_checkpoint(checkpoint, trainer.save_adapter(adapter))
        note("update", began)
    return measurements | {"sampled": sum(len(turn.completion_ids) for turn in turns), "peak": memory()}
