"""This machine: its cores and GPUs, how malloc keeps memory, and who leaves the GPU to whom."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from steps.core.errors import FreshProcessNeeded, UserError
from steps.core.ports import bring, need
from steps.core.section import at

if TYPE_CHECKING:
    from steps.core.params import Params

# Called before training. Global, because one process has one device: an engine that sampled in this process holds memory
# that the trainer needs, and the two rooms do not know each other.
_making_room: list[Callable[[], None]] = []
_leaving: list[Callable[[], None]] = []  # called before sampling, the other way round
VISIBLE = "CUDA_VISIBLE_DEVICES"
GPU = "a run on a GPU"  # which asks the port `gpu` for what it needs beside the core
KERNELS = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"  # how many compiled kernels oneDNN keeps
_thread_counts: list[int] = []  # numbers of threads that torch was told here, the last one last


def cores() -> list[int]:
    """The processor cores that this process may use."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))


def gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes; none where nvidia-smi finds none."""
    if (chosen := os.environ.get(VISIBLE)) is not None:
        return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        listed = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return listed.stdout.split() if listed.returncode == 0 else []


def gpu_shares(params: Params) -> tuple[int, int]:
    """GPUs of this machine for all stages but rollouts that run ahead (train.overlap), and for those. An update on a Ray
    cluster takes the cluster's."""
    updating = 1 if at(params, "update.launcher") == "ray" else at(params, "update.processes") or 1
    sampling = at(params, "policy.tensor_parallel") or 1
    return max(sampling, updating), sampling


def is_for_gpus() -> bool:
    """Whether this process sees a GPU, or its environment was made for GPUs. UserError where what they need is not there."""
    import torch

    if not torch.cuda.is_available() and not (Path(sys.prefix) / ".gpu").exists():
        return False
    need("gpu", GPU)
    return True


def own_cores(threads: int) -> list[int]:
    """The cores that this process computes on, one per thread: the first of those that it may use.

    UserError where there are fewer, because another number of threads rounds sums otherwise and gives other bytes.
    """
    if len(cores()) < threads:
        few = len(cores())
        raise UserError(
            f"policy.threads is {threads}, and this process may use {few} of the machine's cores. Let it use {threads} "
            f"(taskset, or the limits of a container), or set policy.threads to {few}: the run then gives other bytes, "
            "because rounding depends on the number of threads"
        )
    return cores()[:threads]


def use_threads(threads: int) -> None:
    """Have torch compute with this many threads, which the processes that share a stage divide. On a GPU, torch decides.

    UserError where there are fewer cores. FreshProcessNeeded where this process is bound to another number by its engine.
    """
    import torch

    if torch.cuda.is_available():
        return
    share = max(1, threads // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    # Setting a number is more than having it: until then MKL may use fewer threads for small matrices (MKL_DYNAMIC), and
    # rounds sums otherwise than in a process where an engine was started. Once is enough: the engine may since have bound
    # this thread to a single core.
    if _thread_counts and torch.get_num_threads() == share:
        return
    own_cores(threads)
    torch.set_num_threads(share)
    _thread_counts.append(share)
    if torch.get_num_threads() != share:  # vLLM's binding makes the call above do nothing
        raise FreshProcessNeeded(f"this process computes with {torch.get_num_threads()} threads, not with {share}")


def keep_memory() -> None:
    """Let this process keep the memory of freed large tensors, where malloc is glibc's.

    glibc returns blocks above 32 MB to the kernel at once, and the kernel fills their pages with zeros for the next
    allocation: up to 30 % of an update at 26 M parameters. The values are those of mallopt(3) and its header.
    """
    trim_threshold, top_pad, mmap_max = -1, -2, -4
    for name, value in ((mmap_max, 0), (trim_threshold, -1), (top_pad, 2**26)):
        _glibc("mallopt", name, value)


def return_memory() -> None:
    """Give the kernel back what malloc holds and nobody uses, before training and before sampling.

    With `keep_memory` it never returns by itself, and what lies scattered between long-lived objects adds up: 4 MB an
    iteration with the embedded policy, which the next training would not find again either.
    """
    _glibc("malloc_trim", 0)


def use_one_arena() -> None:
    """Have the threads that begin from now on share malloc's arena, where malloc is glibc's: in an arena for each thread
    what was freed cannot be given back, and a flow's threads come and go with every stage."""
    arena_max = -8
    _glibc("mallopt", arena_max, 1)


def _glibc(function: str, *numbers: int) -> None:
    """Call a function of glibc's malloc; nothing where this process has another malloc."""
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        getattr(ctypes.CDLL(None), function)(*numbers)


def keep_few_kernels() -> None:
    """Let oneDNN keep 64 compiled kernels on the CPU, and not 1,024, unless the variable says otherwise; call it before it
    computes.

    Each shape of a matrix has a kernel, and batches have all shapes: with the embedded policy 300 MB came together in ten
    iterations. Stages took the same time with 16 as with 1,024.
    """
    os.environ.setdefault(KERNELS, "64")


def preloaded(site: Path | None = None) -> dict[str, str]:
    """The variables with which processes of vLLM's on a CPU load torch's OpenMP first, where the path of the installed
    packages (`site`) has a space. vLLM writes that path into LD_PRELOAD, which the loader splits at spaces: it then says so
    in each process, and vLLM's threads share a core. The loader takes the bare name from a folder of LD_LIBRARY_PATH."""
    folder = (site or Path(sysconfig.get_path("purelib"))) / "torch" / "lib"
    library = next(folder.glob("libgomp*.so*"), None)
    is_set = "libgomp" in os.environ.get("LD_PRELOAD", "")
    if is_set or library is None or " " not in str(folder) or (Path(sys.prefix) / ".gpu").exists():
        return {}
    names = {"LD_PRELOAD": library.name, "LD_LIBRARY_PATH": str(folder)}
    return {name: ":".join(filter(None, (value, os.environ.get(name)))) for name, value in names.items()}


def before_training(free: Callable[[], None]) -> None:
    """Call `free` whenever training is about to start, for example to leave a GPU's memory to the trainer."""
    _making_room.append(free)


def prepare_training(threads: int, is_deterministic: bool = False) -> None:
    """Prepare this process for training: its threads, memory that is kept, and room on the device."""
    import torch

    if is_deterministic and torch.cuda.is_available():
        bring("gpu", "device", GPU).prepare_fixed()
    use_threads(threads)
    if not torch.cuda.is_available():  # on a GPU malloc has none of the tensors, and would keep what loading left
        keep_few_kernels()
        keep_memory()
        return_memory()
    make_room()


def make_room() -> None:
    """Free the memory of the device that this process holds and that the trainer needs."""
    for free in _making_room:
        free()


def before_sampling(leave: Callable[[], None]) -> None:
    """Call `leave` whenever an engine is about to take the device's memory, for example to take the trainer's model away."""
    if leave not in _leaving:
        _leaving.append(leave)


def prepare_sampling() -> None:
    """Prepare this process for sampling: the trainer leaves the device to the engine."""
    for leave in _leaving:
        leave()


def deterministic(on: bool) -> contextlib.AbstractContextManager[None]:
    """Within it, a GPU computes with kernels whose sums have a fixed order. On a CPU the same inputs give the same bytes
    anyway."""
    import torch

    return bring("gpu", "device", GPU).fixed() if on and torch.cuda.is_available() else contextlib.nullcontext()
