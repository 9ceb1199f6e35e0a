"""Start: makes an adapter from elsewhere what the first iteration continues (policy.start_from, docs/start.md).

The flow has put it into start/policy, which DVC versions: a PEFT adapter, and with policy.start_optimizer the checkpoint
that belongs to it. The adapter keeps its bytes, and so the hash by which lineage knows it. Without the optimiser's state,
training begins at step 0. Nothing has been attempted yet: successes.json is an empty list.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steps.core.errors import UserError
from steps.core.progress import say
from steps.core.section import at
from steps.runner.stage import Input, Output, main

if TYPE_CHECKING:
    from steps.core.params import StartParams


def start(
    policy: Input, adapter: Output, checkpoint: Output, successes: Output, judge: Output, params: StartParams
) -> None:
    """Write the adapter and a checkpoint of it, and a history without iterations. UserError where the adapter is of another
    base model or rank."""
    import shutil

    from steps.policy.adapter import FILES, adapter_hash
    from steps.policy.machine import prepare_training
    from steps.training import grpo
    from steps.training.model import take_adapter

    prepare_training(params.policy.threads, at(params, "policy.deterministic"))
    if at(params, "policy.start_optimizer"):
        trainer = grpo.Trainer(params.policy, checkpoint=policy)
        if trainer.adapter_hash != adapter_hash(policy):
            raise UserError(
                f"{policy} holds adapter {adapter_hash(policy)} and the checkpoint of {trainer.adapter_hash}: bring in both "
                "from one iteration (.venv/bin/python -m flows.train does), or set policy.start_optimizer: false"
            )
    else:
        trainer = grpo.Trainer(params.policy)
        take_adapter(trainer.model, policy)
    trainer.save_adapter(adapter)
    for name in FILES:
        shutil.copyfile(policy / name, adapter / name)
    trainer.start = policy
    trainer.save_checkpoint(checkpoint, adapter_hash(adapter))
    successes.write_text("[]\n")
    judge.write_text('{"cost_so_far": 0.0}\n')
    say(f"adapter {adapter_hash(adapter)}, {trainer.steps} optimiser steps so far")


if __name__ == "__main__":
    main(start)
