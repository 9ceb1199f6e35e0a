"""What GPUs demand before anything is loaded, each with a sentence where it is missing: a CUDA build of torch, a driver that
is new enough, as many GPUs as the policy asks for, a number format that vLLM's adapters can have, a card with kernels of a
fixed order.

    python -m steps.policy.cuda     # says whether torch can use this machine's GPUs; `make install GPU=1` ends with it
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from steps.core.errors import FreshProcessNeeded, UserError

if TYPE_CHECKING:
    from steps.core.params import Policy

DRIVER = 580  # the oldest that runs programs built with CUDA 13, as those of requirements/gpu.txt are
EIGHT_BITS = 8, 9  # compute capability from which a card multiplies matrices in fp8
CAPABILITY = (9, 0)  # of the oldest cards (Hopper) for which vLLM 0.32 states batch invariance (vllm/envs.py)
INVARIANT = "VLLM_BATCH_INVARIANT"


def check_build() -> None:
    """UserError where the environment was made for GPUs (`make install GPU=1`) and torch can use none."""
    import torch

    if not (Path(sys.prefix) / ".gpu").exists() or torch.cuda.is_available():
        return
    back = "`make install GPU=0` goes back to an environment for CPUs"
    if torch.version.cuda is None:
        raise UserError(
            f"the environment {sys.prefix} was made for GPUs, but its torch {torch.__version__} is a build for CPUs: "
            f"`rm -rf .venv && make install GPU=1` installs the CUDA build; {back}"
        )
    driver, needed = driver_version(), f"CUDA {torch.version.cuda} needs the NVIDIA driver {DRIVER} or later"
    if not driver:
        raise UserError(
            f"the environment {sys.prefix} was made for GPUs, and no NVIDIA driver answers on this machine: {needed}. "
            f"Install it, and give a container the GPUs (docker run --gpus all); {back}"
        )
    if int(driver.partition(".")[0]) < DRIVER:
        raise UserError(f"the NVIDIA driver of this machine is {driver}, and {needed}: update the driver; {back}")
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    raise UserError(
        f"torch finds no GPU, although the NVIDIA driver {driver} answers: see whether nvidia-smi lists one, and "
        f"CUDA_VISIBLE_DEVICES (it is {visible!r}); {back}".replace("it is None", "it is not set")
    )


def driver_version() -> str:
    """The NVIDIA driver's version, such as 580.65.06; empty where none answers."""
    with contextlib.suppress(Exception):  # pynvml has error classes of its own
        pynvml = importlib.import_module("pynvml")
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    return ""


def check_gpus(policy: Policy) -> None:
    """UserError where the policy needs GPUs, or packages for GPUs, that there are not. Nothing is loaded to find out."""
    if policy.tensor_parallel == 1 and not policy.quantization and not policy.rollout_quantization:
        return
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if policy.tensor_parallel > 1 and gpus < policy.tensor_parallel:
        number = policy.tensor_parallel
        raise UserError(
            f"policy.tensor_parallel is {number}: the engine needs {number} GPUs, and this run sees {gpus or 'none'}; set "
            f"it to {max(gpus, 1)}"
        )
    settings = {"quantization": policy.quantization, "rollout_quantization": policy.rollout_quantization}
    for name, value in settings.items():
        if value and not gpus:
            raise UserError(
                f"policy.{name}: {value} needs a GPU, and this run sees none (vLLM has no kernels for it on CPUs); "
                "take it out"
            )
    if policy.rollout_quantization and (capability := torch.cuda.get_device_capability()) < EIGHT_BITS:
        card = torch.cuda.get_device_name()
        needed, here = (".".join(map(str, each)) for each in (EIGHT_BITS, capability))
        raise UserError(
            f"policy.rollout_quantization: {policy.rollout_quantization} needs compute capability {needed}, and {card} has "
            f"{here}; take it out, or use an L40S, an H100 or a later card"
        )
    if policy.quantization is None:
        return
    if missing := [name for name in ("bitsandbytes", "vllm_bnb_plugin") if find_spec(name) is None]:
        raise UserError(
            f"policy.quantization: {policy.quantization} needs packages that are not installed ({', '.join(missing)}): "
            "`make install GPU=1` installs them"
        )


def check_engine(policy: Policy) -> None:
    """UserError where vLLM cannot sample from this policy on the GPU that there is. On a CPU there is nothing to check."""
    import torch

    if not torch.cuda.is_available():
        return
    if policy.dtype == "float32":
        raise UserError(
            "policy.dtype: float32 cannot be sampled on a GPU: vLLM's kernels for LoRA adapters compute in 16 bits alone; "
            "set policy.dtype to bfloat16"
        )
    if policy.deterministic and (capability := torch.cuda.get_device_capability()) < CAPABILITY:
        card, needed = torch.cuda.get_device_name(), ".".join(map(str, CAPABILITY))
        raise UserError(
            f"policy.deterministic: vLLM has kernels of a fixed order for compute capability {needed} and later, and {card} "
            f"has {'.'.join(map(str, capability))}; take it out, or use an H100 or a later card"
        )


def use_invariant_batches() -> None:
    """Have vLLM use kernels whose sums do not depend on what else is in the batch, before it is imported.

    Every stage calls this, for vLLM reads some of it when it is imported and some at each step, and a warm process forgets
    its environment variables from stage to stage. FreshProcessNeeded where vLLM was imported without it. The two values are
    those with which vLLM keeps cuBLAS from splitting sums (its batch_invariant.py); cuBLAS reads them once in the life of a
    process.
    """
    modules = [module for name, module in sys.modules.items() if name.startswith("vllm.")]
    if any(getattr(module, "is_batch_invariant", True) is False for module in modules):
        raise FreshProcessNeeded("policy.deterministic: this process has imported vLLM without it")
    os.environ |= {INVARIANT: "1", "CUBLAS_WORKSPACE_CONFIG": ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}


def main() -> int:
    import torch

    try:
        check_build()
    except UserError as problem:
        print(problem, file=sys.stderr)
        return problem.code
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    print(f"GPU: {', '.join(names)} (driver {driver_version()}, CUDA {torch.version.cuda})" if names else "GPU: none")
    return 0


if __name__ == "__main__":
    sys.exit(main())
