"""Initialise: the adapter and checkpoint that the first iteration starts from.

The adapter changes nothing yet (LoRA's B is zero), so that an evaluation of it is one of the base policy. Nothing has been
attempted yet either: successes.json, which addons/drawing/curriculum.py reads, is an empty list. base.json names the
base policy's adapter: where a judge compares each policy with that one, evaluations of the base itself have only this file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from steps.core.progress import say
from steps.core.section import at
from steps.runner.stage import Output, main

if TYPE_CHECKING:
    from steps.core.params import InitialiseParams


def initialise(
    adapter: Output,
    checkpoint: Output,
    params: InitialiseParams,
    successes: Output | None = None,
    judge: Output | None = None,
    base: Output | None = None,
) -> None:
    """Write a fresh adapter, a checkpoint without optimiser steps, and a history without iterations."""
    import json

    from steps.policy.adapter import adapter_hash
    from steps.policy.machine import prepare_training
    from steps.training import grpo

    prepare_training(params.policy.threads, at(params, "policy.deterministic"))
    trainer = grpo.Trainer(params.policy, seed=params.seed)
    trainer.save_checkpoint(checkpoint, trainer.save_adapter(adapter))
    if successes is not None:
        successes.write_text("[]\n")
    if judge is not None:
        judge.write_text('{"cost_so_far": 0.0}\n')
    if base is not None:
        base.write_text(json.dumps({"adapter_hash": adapter_hash(adapter)}) + "\n")
    say(f"{trainer.trained_parameters:,} trained parameters in the adapter")


if __name__ == "__main__":
    main(initialise)
