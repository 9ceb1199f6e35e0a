"""The cards and machines that a plan is made for: memory, rates, and what this machine is.

Rates of cards are their makers' data sheets (dense, without sparsity), and were not measured here. Supported are those that
the locked vLLM and torch run on: CUDA, compute capability 8.0 or later, which bfloat16 needs. This machine's rates are
measured.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

GIB = 2**30


class Machine(NamedTuple):
    """What computes. Rates are peaks, in numbers per second."""

    name: str
    memory: float  # bytes
    bfloat16: float  # operations a second of dense matrix products
    float32: float  # the same in float32, without TF32
    bandwidth: float  # bytes a second, of memory
    is_card: bool
    price: float | None = None  # an hour, as a cloud commonly asks; a stated figure

    @property
    def source(self) -> str:
        """Where the rates are from."""
        return "its maker's figures; seconds are estimates, ±40 %" if self.is_card else "measured just now"


# name, GiB that CUDA reports, TFLOP/s bfloat16 and float32, GB/s, dollars an hour (on demand, 2025; ask with --price)
CARDS = {
    name: Machine(name, gib * GIB, bfloat16 * 1e12, float32 * 1e12, gigabytes * 1e9, True, price)
    for name, gib, bfloat16, float32, gigabytes, price in (
        ("a10g-24", 22.0, 70, 31, 600, 1.0),
        ("4090-24", 23.6, 165, 82.6, 1008, 0.5),
        ("l40s-48", 44.4, 362, 91.6, 864, 1.5),
        ("a100-40", 39.4, 312, 19.5, 1555, 1.5),
        ("a100-80", 79.1, 312, 19.5, 2039, 2.0),
        ("h100-80", 79.1, 989, 67, 3350, 3.0),
        ("h200-141", 139.8, 989, 67, 4800, 3.8),
        ("b200-192", 178.0, 2250, 80, 8000, 6.0),
    )
}


def this_machine(threads: int) -> Machine:
    """This machine's CPU with as many threads; its rates are measured now (addons/planning/rates.py)."""
    variables = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "addons.planning.rates", str(threads)]
    printed = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True).stdout
    product, copy = (float(word) for word in printed.split())
    return Machine("this machine", memory(), product * bfloat16_gain(), product, copy, False)


def card_here() -> Machine | None:
    """The first GPU of this machine, as its driver names it; None without one. Its rates are those of the
    card of that name with most nearly its memory."""
    if not Path("/proc/driver/nvidia").exists() and not shutil.which("nvidia-smi"):
        return None
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
        name, mebibytes = answer.splitlines()[0].rsplit(",", 1)
        total = float(mebibytes) * 2**20
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):  # a driver without a card, or none
        return None
    named = [card for card in CARDS.values() if card.name.partition("-")[0] in name.lower()]
    alike = min(named or CARDS.values(), key=lambda card: abs(card.memory - total))
    return alike._replace(name=name.strip(), memory=total)


def memory() -> float:
    """Bytes of memory that processes here may have in all: the machine's, or less where a container's limit is lower."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    total = float(fields["MemTotal"].split()[0]) * 1024
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, float(Path(path).read_text()))
        except (OSError, ValueError):  # there is no such file, or it says "max"
            continue
    return total


def bfloat16_gain() -> float:
    """How many times as fast a CPU multiplies matrices in bfloat16 as in float32, by its instructions: 8 with Intel's AMX,
    2 with AVX-512 BF16, else 1. numpy has no such type, so that it cannot be measured without torch."""
    flags = Path("/proc/cpuinfo").read_text().partition("\nflags")[2].partition("\n")[0].split()
    return 8.0 if "amx_bf16" in flags else 2.0 if "avx512_bf16" in flags else 1.0
