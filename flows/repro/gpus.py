"""The GPUs of this machine that a process may use, and how many of them the stages of a run need."""

from __future__ import annotations

import os
import subprocess

from steps.core.params import Params

VISIBLE = "CUDA_VISIBLE_DEVICES"


def visible() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes; none where nvidia-smi finds none."""
    if (chosen := os.environ.get(VISIBLE)) is not None:
        return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return listed.stdout.split() if listed.returncode == 0 else []


def shares(params: Params) -> tuple[int, int]:
    """GPUs of this machine for all stages but rollouts that run ahead (train.overlap), and for those. An update on a Ray
    cluster takes the cluster's."""
    others = max(params.policy.tensor_parallel, 1 if params.update.launcher == "ray" else params.update.processes)
    return others, params.policy.tensor_parallel
