"""vLLM's CUDA build makes its whole configuration from this project's arguments, on a machine without a GPU.

    make gpu-engine      # 9 GB of packages into .flywheel/gpu-engine, then this with their Python

No engine starts and no kernel runs: an empty library stands for the driver's, and a class for the answers of two H100s. Real
are the locked vLLM for CUDA, the class of this project that starts it, and all checks on the way to a VllmConfig.
So an argument that a version of vLLM no longer takes is found before a card is there.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

from addons.gpu.section import Cards
from steps.core.params import Policy

CAPABILITY, MEMORY = (9, 0), 80 * 2**30  # of an H100
POLICIES: dict[str, dict[str, Any]] = {
    "bfloat16": {},
    "8 bits": {"rollout_quantization": "fp8"},
    "4 bits": {"quantization": "bnb-4bit"},
    "two GPUs": {"tensor_parallel": 2},
    "shared weights": {"share_weights": True},
}


def put_driver(folder: Path) -> None:
    """Load a libcuda.so.1 without functions, and have libraries look up what they call when they call it."""
    source, library = folder / "empty.c", folder / "libcuda.so.1"
    source.touch()
    subprocess.run(["cc", "-shared", f"-Wl,-soname,{library.name}", "-o", library, source], check=True)
    ctypes.CDLL(os.fspath(library), mode=ctypes.RTLD_GLOBAL)
    sys.setdlopenflags(os.RTLD_LAZY)


def put_card() -> None:
    """Have torch and vLLM find two H100s."""
    import torch
    from vllm import platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    class Hopper(NonNvmlCudaPlatform):
        @classmethod
        def get_device_capability(cls, device_id: int = 0) -> DeviceCapability:
            return DeviceCapability(*CAPABILITY)

        @classmethod
        def get_device_name(cls, device_id: int = 0) -> str:
            return "NVIDIA H100"

        @classmethod
        def get_device_total_memory(cls, device_id: int = 0) -> int:
            return MEMORY

    platforms._current_platform = Hopper()
    answers = {"is_available": True, "device_count": 2, "get_device_capability": CAPABILITY}
    for name, answer in answers.items():
        setattr(torch.cuda, name, lambda *_, answer=answer: answer)


def configuration(policy: Policy) -> Any:
    """The VllmConfig of the engine that would sample from this policy."""
    from vllm import LLMEngine

    from addons.gpu.device import check_gpus
    from steps.sampling.engine import Engine

    def made(arguments: Any, usage_context: Any) -> Any:
        return arguments.create_engine_config(usage_context)

    check_gpus(policy)
    with patch.object(LLMEngine, "from_engine_args", made):
        return Engine(policy).llm


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        put_driver(Path(folder))
    import vllm

    put_card()
    for name, settings in POLICIES.items():
        policy = Policy(dtype="bfloat16", **settings)
        config = configuration(policy)
        model, scheduler, adapters = config.model_config, config.scheduler_config, config.lora_config
        row = {
            "quantization": model.quantization,
            "context": model.max_model_len,
            "sequences": scheduler.max_num_seqs,
            "tokens": scheduler.max_num_batched_tokens,
            "rank": adapters.max_lora_rank,
            "GPUs": config.parallel_config.tensor_parallel_size,
            "sleeps": model.enable_sleep_mode,
            "eager": model.enforce_eager,
        }
        cards = Cards.of(policy)
        expected = cards.engine_quantization, policy.context, cards.tensor_parallel, True, False
        assert tuple(row[key] for key in ("quantization", "context", "GPUs", "sleeps", "eager")) == expected, (
            name,
            row,
        )
        print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in row.items()))
    print(f"vLLM {vllm.__version__} takes the engine's arguments in {len(POLICIES)} forms")


if __name__ == "__main__":
    main()
