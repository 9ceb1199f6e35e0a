"""What benchmarks.sft runs in processes of their own: the demonstrations, our training and stock TRL's on the same tokens.

python -m benchmarks._common _sft.prepare '{"folder": "F", "count": 2000}'
python -m benchmarks._common _sft.run_ours '{"folder": "F"}'
python -m benchmarks._common _sft.run_trl '{"folder": "F", "batch": 16}'
"""

from __future__ import annotations

import itertools
import json
import os
import time
from pathlib import Path
from typing import Any

from addons.supervised.section import Sft
from benchmarks._common import ROOT
from benchmarks._trl import with_first_adapter
from benchmarks._update import memory
from steps.core.params import Params, load

SETTINGS = Sft(demonstrations=("x",))  # the defaults: one pass, 16 demonstrations a step
SEED = 1


def params() -> Params:
    os.chdir(ROOT)
    return load(ROOT / "params.yaml", Params)


def prepare(folder: str, count: int) -> dict[str, Any]:
    """Write `count` careful demonstrations of email_search, over inboxes that no split has, and the adapter that both sides
    start from."""
    from addons.supervised.demonstrations import CAREFUL, demonstrations
    from steps.training import grpo

    made = itertools.islice(demonstrations(SEED, CAREFUL), count)
    lines = [json.dumps({"messages": messages, "source": f"careful {place}"}) for place, messages in enumerate(made)]
    out = Path(folder)
    (out / "demonstrations.jsonl").write_text("".join(f"{line}\n" for line in lines))
    trainer = grpo.Trainer(params().policy, seed=SEED)
    trainer.save_checkpoint(out / "start", trainer.save_adapter(out / "first"))
    return {"demonstrations": len(lines)}


def rows(folder: Path) -> tuple[list[Any], Any]:
    """The demonstrations as rows, and the tokenizer."""
    import environments
    from addons.supervised import chats
    from steps.core.records import Row
    from steps.policy.loading import load_chat

    settings = params()
    chat = load_chat(settings.policy, environments.load(settings.task))
    read, _ = chats.read_demonstrations(folder / "demonstrations.jsonl")
    tokens, left_out = chats.tokens_of(read, {chats.key(None): chat}, settings.policy.context)
    if left_out:
        raise SystemExit(f"demonstrations that cannot be learnt from: {left_out}")
    return [Row(ids, mask, [0.0] * len(ids)) for ids, mask in tokens], chat.tokenizer


def run_ours(folder: str) -> dict[str, Any]:
    """Our training, from the loaded model to its last step; the adapter in ours/."""
    from addons.supervised.fine_tuning import fine_tune
    from steps.policy.machine import prepare_training
    from steps.training import grpo

    out, settings = Path(folder), params()
    began = time.perf_counter()
    made, tokenizer = rows(out)
    preparing = time.perf_counter() - began
    prepare_training(settings.policy.threads)
    trainer = grpo.Trainer(settings.policy, checkpoint=out / "start")
    began = time.perf_counter()
    losses = fine_tune(trainer, made, SETTINGS, tokenizer, SEED)
    seconds = time.perf_counter() - began
    trainer.save_adapter(out / "ours")
    tokens = sum(len(row.ids) for row in made)
    return {"seconds": seconds, "preparing": preparing, "tokens": tokens, "losses": losses, "memory": memory()}


def run_trl(folder: str, batch: int) -> dict[str, Any]:
    """Stock SFTTrainer on the same tokens in the same order, in micro-batches of `batch`; the adapter in trl/."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM
    from trl import SFTConfig, SFTTrainer

    from addons.supervised.fine_tuning import configuration, passes

    out, settings = Path(folder), params()
    made, tokenizer = rows(out)
    torch.set_num_threads(settings.policy.threads)
    base = AutoModelForCausalLM.from_pretrained(settings.policy.base_model, dtype=torch.float32)
    model = with_first_adapter(base, out / "start")
    order = list(passes(len(made), SETTINGS.epochs or 1, SEED))
    data = [
        {
            "input_ids": made[place].ids,
            "labels": [
                token if learnt else -100 for token, learnt in zip(made[place].ids, made[place].mask, strict=True)
            ],
        }
        for place in order
    ]
    arguments = SFTConfig(
        **configuration(SETTINGS, len(data), SEED),
        output_dir=os.fspath(out / "out"),
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=SETTINGS.batch // batch,
    )
    trainer = SFTTrainer(model=model, args=arguments, train_dataset=Dataset.from_list(data), processing_class=tokenizer)
    began = time.perf_counter()
    trainer.train()
    seconds = time.perf_counter() - began
    model.save_pretrained(out / "trl")
    return {"seconds": seconds, "memory": memory()}


def success(folder: str, adapter: str) -> dict[str, Any]:
    """Held-out success of an adapter: email_search's test split, as a run evaluates it."""
    from steps.evaluate import evaluate
    from steps.scenarios import scenarios

    out, settings = Path(folder), params()
    data = ROOT / "tasks_data" / settings.task
    if not (out / "scenarios").exists():
        scenarios(data, out / "scenarios", settings)  # pyrefly: ignore[bad-argument-type]
    evaluate(data, out / "scenarios", out / f"test-{adapter}", settings, "test", out / adapter)  # pyrefly: ignore[bad-argument-type]
    summary = json.loads((out / f"test-{adapter}" / "summary.json").read_text())
    return {key: summary.get(key) for key in ("success", "ci95", "clusters", "n", "sampled_success")}
