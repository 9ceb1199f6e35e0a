"""Imports the packages of training and sampling, which takes 18 s of one core. A worker that is started before it has a
stage to run imports this module (`handover.start_ahead`)."""

from __future__ import annotations

import importlib

from steps.core.imports import hidden, uncollected

UNUSED = ("mlflow", "scipy", "sklearn", "wandb")  # TRL and transformers import them where they are installed

with uncollected(), hidden(*UNUSED):
    import torch

    from steps.sampling.engine import set_variables

    set_variables(torch.cuda.is_available())
    for package in ("peft", "trl.trainer.grpo_trainer", "vllm.v1.engine.llm_engine"):
        importlib.import_module(package)
