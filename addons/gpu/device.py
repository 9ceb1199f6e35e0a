"""What GPUs demand before anything is loaded, each with a sentence where it is missing: a CUDA build of torch, a driver that
is new enough, as many GPUs as the policy asks for, a number format that vLLM's adapters can have, a card with kernels of a
fixed order. And what is told to vLLM, transformers and torch for several GPUs, for fewer bits and for sums in a fixed order.

    python -m addons.gpu.device     # says whether torch can use this machine's GPUs; `make install GPU=1` ends with it
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from addons.gpu.section import Cards
from steps.core.errors import FreshProcessNeeded, UserError

if TYPE_CHECKING:
    from steps.core.params import Policy

DRIVER = 580  # the oldest that runs programs built with CUDA 13, as those of requirements/gpu.txt are
EIGHT_BITS = 8, 9  # compute capability from which a card multiplies matrices in fp8
CAPABILITY = (9, 0)  # of the oldest cards (Hopper) for which vLLM 0.32 states batch invariance (vllm/envs.py)
INVARIANT = "VLLM_BATCH_INVARIANT"
CUBLAS = "CUBLAS_WORKSPACE_CONFIG"  # cuBLAS adds in a fixed order with the workspaces that this variable names
_workspaces: list[str] = []  # which it names; global, because a warm process forgets its variables from stage to stage


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
    import torch

    cards = Cards.of(policy)
    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if cards.tensor_parallel > 1 and gpus < cards.tensor_parallel:
        number = cards.tensor_parallel
        raise UserError(
            f"policy.tensor_parallel is {number}: the engine needs {number} GPUs, and this run sees {gpus or 'none'}; set "
            f"it to {max(gpus, 1)}"
        )
    settings = {"quantization": cards.quantization, "rollout_quantization": cards.rollout_quantization}
    for name, value in settings.items():
        if value and not gpus:
            raise UserError(
                f"policy.{name}: {value} needs a GPU, and this run sees none (vLLM has no kernels for it on CPUs); "
                "take it out"
            )
    if cards.rollout_quantization and (capability := torch.cuda.get_device_capability()) < EIGHT_BITS:
        card = torch.cuda.get_device_name()
        needed, here = (".".join(map(str, each)) for each in (EIGHT_BITS, capability))
        raise UserError(
            f"policy.rollout_quantization: {cards.rollout_quantization} needs compute capability {needed}, and {card} has "
            f"{here}; take it out, or use an L40S, an H100 or a later card"
        )
    if cards.quantization is None:
        return
    if missing := [name for name in ("bitsandbytes", "vllm_bnb_plugin") if find_spec(name) is None]:
        raise UserError(
            f"policy.quantization: {cards.quantization} needs packages that are not installed ({', '.join(missing)}): "
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
    if Cards.of(policy).deterministic and (capability := torch.cuda.get_device_capability()) < CAPABILITY:
        card, needed = torch.cuda.get_device_name(), ".".join(map(str, CAPABILITY))
        raise UserError(
            f"policy.deterministic: vLLM has kernels of a fixed order for compute capability {needed} and later, and {card} "
            f"has {'.'.join(map(str, capability))}; take it out, or use an H100 or a later card"
        )


def of_engine(policy: Policy) -> dict[str, Any]:
    """vLLM's arguments for a model on several GPUs, and in 4 or 8 bits.

    The engine stays in this process, and has a process for each GPU beside it: adapters reach those by their path, sleep and
    wake by vLLM's own calls. They are spawned, not forked, because this process may hold a GPU and a lock already.
    """
    cards, arguments = Cards.of(policy), dict[str, Any]()
    if cards.tensor_parallel > 1:
        os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        arguments |= {"tensor_parallel_size": cards.tensor_parallel, "distributed_executor_backend": "mp"}
    if cards.engine_quantization:
        arguments["quantization"] = cards.engine_quantization
    return arguments


def of_server(policy: Policy) -> list[str]:
    """The same as options of vLLM's server."""
    cards = Cards.of(policy)
    words = ["--tensor-parallel-size", str(cards.tensor_parallel)] if cards.tensor_parallel > 1 else []
    return words + (["--quantization", cards.engine_quantization] if cards.engine_quantization else [])


def four_bits(dtype: Any) -> Any:
    """transformers' setting for a base model in 4 bits: that of vLLM's plugin, so that both have the same weights.

    The embedding, the head and the norms keep their type, without PEFT's cast of them to float32."""
    from transformers import BitsAndBytesConfig

    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=dtype,
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
    os.environ |= {INVARIANT: "1", CUBLAS: ":16:8", "CUBLASLT_WORKSPACE_SIZE": "1"}


def prepare_fixed() -> None:
    """Set cuBLAS's variable before this process uses a GPU. FreshProcessNeeded where it does so already: it is read once."""
    import torch

    if not _workspaces:
        if CUBLAS not in os.environ and torch.cuda.is_initialized():
            raise FreshProcessNeeded(f"policy.deterministic: this process uses the GPU already, without {CUBLAS}")
        _workspaces.append(os.environ.get(CUBLAS, ":16:8"))  # as vLLM has it for batch invariance
    os.environ[CUBLAS] = _workspaces[0]


@contextlib.contextmanager
def fixed() -> Iterator[None]:
    """Within it, torch computes with kernels whose sums have a fixed order, and refuses operations that have none. Call
    `prepare_fixed` before the GPU is used."""
    import torch

    fills = torch.utils.deterministic.fill_uninitialized_memory
    torch.utils.deterministic.fill_uninitialized_memory = False  # nothing here reads what it did not write
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.utils.deterministic.fill_uninitialized_memory = fills


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
