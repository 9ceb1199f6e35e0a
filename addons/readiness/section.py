"""What the section `train` of params.yaml holds for the way that training takes."""

from __future__ import annotations

from typing import Literal

from steps.core.section import MoreFields


class Chosen(MoreFields):
    """Of the section `train`."""

    way: Literal["auto", "grpo", "sft"] = "auto"
    """How training begins. grpo: by reinforcement. sft: by supervised training on what the task has: its
    demonstrations.jsonl, good conversations that were ingested, or its scripted player. auto: by what the first attempts
    show; a run that could learn nothing stops (docs/tasks.md#how-a-run-finds-its-way). Not read with a section sft."""
