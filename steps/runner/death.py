"""Why a process that ran a stage has ended: for want of memory, by a signal, or by itself; and whether one is stopped.

The kernel counts the processes that it ends when the memory runs out, for the whole machine and for each control group (of
cgroups v1 and v2). Only the standard library is imported, because each stage's command loads the modules of this room.
"""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import NamedTuple

GROUPS, MACHINE, MOUNT = Path("/proc/self/cgroup"), Path("/proc/vmstat"), Path("/sys/fs/cgroup")
SAMPLING = "a smaller policy.context, fewer rollout.scenarios or attempts, or less in VLLM_CPU_KVCACHE_SPACE (GiB)"
NEEDS_LESS = {  # stage -> settings with which it needs less memory
    "rollout": SAMPLING,
    "evaluate": SAMPLING,
    "update": "a smaller update.tokens_per_micro_batch, or update.gradient_checkpointing: true",
}
OTHERWISE = "a smaller policy.base_model"


class Kills(NamedTuple):
    """How many processes the kernel has ended for want of memory; None where that cannot be read."""

    group: int | None  # in this process's control group, which a container has
    machine: int | None


def oom_kills() -> Kills:
    """The kernel's counts up to now."""
    group = None
    with contextlib.suppress(OSError):
        for line in GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            place, name = (MOUNT, "memory.events") if not controllers else (MOUNT / "memory", "memory.oom_control")
            if controllers in ("", "memory"):
                counts = [_count(folder / name) for folder in (place / path.lstrip("/"), place)]
                group = next((count for count in (*counts, group) if count is not None), None)
    return Kills(group, _count(MACHINE))


def _count(path: Path) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return None


def stopped(session: int) -> int | None:
    """A process of this session that a signal has stopped (SIGSTOP, Ctrl-Z), if there is one."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, _, its_session, *_ = stat.read_text().rpartition(")")[2].split()
            if state == "T" and int(its_session) == session:
                return int(stat.parent.name)
    return None


def cause(code: int | None, before: Kills, stage: str) -> str:
    """Why a process has ended, and what to do where memory was short. `code` is its exit code, as subprocess gives it or as
    a shell does (137 for -9), or None where nobody knows it; `before` are the kernel's counts when its stage began."""
    if code is not None and 128 < code < 160:
        code = 128 - code
    if code is not None and code != -signal.SIGKILL:
        name = next((each.name for each in signal.Signals if each == -code), f"signal {-code}")
        return f"{name} ended it" if code < 0 else f"its exit code is {code}"
    pairs = [(then, now) for then, now in zip(before, oom_kills(), strict=True) if then is not None and now is not None]
    cure = f"it needs less with {NEEDS_LESS.get(stage, OTHERWISE)}"
    if any(now > then for then, now in pairs):
        return f"the kernel ended it because the memory ran out: {cure}"
    killed = "something ended it with SIGKILL" if code else "its exit code is not known"
    if pairs:
        return f"{killed}; by the kernel's count the memory did not run out"
    return f"{killed}, and the kernel's count of processes without memory cannot be read here; if it was that, {cure}"
