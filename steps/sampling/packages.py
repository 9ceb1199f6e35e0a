"""Imports the packages of training and sampling, which takes 10 s of one core. A worker that is started before it has a
stage to run imports this module (`handover.start_ahead`)."""

from __future__ import annotations

from steps.core.imports import import_lean

import_lean("torch")

import torch  # noqa: E402

from steps.sampling.engine import set_variables  # noqa: E402

set_variables(torch.cuda.is_available())
import_lean("peft", "trl.trainer.grpo_trainer", "vllm.v1.engine.llm_engine")
