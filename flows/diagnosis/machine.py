"""The machine and the environment: versions, ports, disk space, memory, GPU.

torch is imported by a process of its own, and only where a GPU is visible.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from flows.diagnosis.findings import BAD, OK, WARN, Finding, Place, Service, parts
from flows.diagnosis.processes import is_within, listeners, read
from steps.core import ports as ports_of_addons
from steps.core.errors import UserError
from steps.kit.sockets import listen

GIB = 2**30
MEMORY_GB, SHARED_GB = 2.0, 1.0  # with less, the small policies' engine or vLLM's processes run short
GPU_SECONDS = 60.0
SERVICES = {
    "MLflow": Service(("flows.deployment.mlflow_server",), 5000, "MLFLOW_PORT", "ui"),
    "Prefect": Service(("prefect",), 4200, "PREFECT_PORT", "ui"),
    "viewer": Service(("viewer",), 8600, "VIEW_PORT", "ui"),
}
TORCH = """
import json, torch
is_usable = torch.cuda.is_available()
devices = range(torch.cuda.device_count() if is_usable else 0)
names = [torch.cuda.get_device_name(device) for device in devices]
free = [torch.cuda.mem_get_info(device)[0] for device in devices]
print(json.dumps({"version": torch.__version__, "cuda": torch.version.cuda, "names": names, "free": free}))
"""


# --- Add-ons


def addons(where: Place) -> list[Finding]:
    """A finding for each add-on that needs one which is not there."""
    return [
        Finding(
            "addons", WARN, f"{addon.name} needs {', '.join(lacking)}, and refuses without it what it is needed for"
        )
        for addon in ports_of_addons.addons()
        if (lacking := ports_of_addons.missing(addon))
    ] or [Finding("addons", OK, ", ".join(addon.name for addon in ports_of_addons.addons()) or "none")]


# --- Versions


def locked(paths: list[Path]) -> dict[str, str]:
    """Package -> version, as the lock files name them for this Python. UserError where one is missing."""
    versions = dict[str, str]()
    for path in paths:
        if not path.is_file():
            raise UserError(f"{path} is missing, which lists the packages: `git checkout -- {path}` brings it back")
        for line in path.read_text(errors="replace").splitlines():
            if "==" not in line or line.lstrip().startswith("#"):
                continue
            try:
                pin = Requirement(line)
            except InvalidRequirement:
                raise UserError(f"{path} holds a damaged line ({line[:80]}): `git checkout -- {path}`") from None
            if pin.marker is None or pin.marker.evaluate():
                versions[canonicalize_name(pin.name)] = str(pin.specifier).removeprefix("==")
    return versions


def installed() -> dict[str, set[str]]:
    """Package -> versions that the folders of this Python's packages hold; two versions of one are a fault."""
    versions: dict[str, set[str]] = {}
    for folder in dict.fromkeys(sys.path):
        if folder.endswith(("site-packages", "dist-packages")) and Path(folder).is_dir():
            for entry in Path(folder).glob("*-*.dist-info"):
                name, _, version = entry.name.removesuffix(".dist-info").partition("-")
                versions.setdefault(canonicalize_name(name), set()).add(version)
    return versions


def versions(where: Place) -> list[Finding]:
    """Python, and the packages of the lock files against those that are installed."""
    name, python = "versions", ".".join(map(str, sys.version_info[:3]))
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return [Finding(name, BAD, f"this is Python {python}, and the lock files are for 3.11 to 3.13", "make install")]
    environment = where.root / ".venv"
    locks = ["gpu.txt" if (environment / ".gpu").exists() else "cpu.txt"]
    locks += ["dev.txt"] if (environment / ".dev").exists() else []
    wanted, have = locked([where.root / "requirements" / lock for lock in locks]), installed()
    findings = []
    if not Path(sys.prefix).resolve().samefile(environment) if environment.exists() else True:
        text = f"this Python is of {sys.prefix}, not of the project's .venv"
        findings.append(Finding(name, WARN, text, "make install && .venv/bin/python -m flows.doctor"))
    missing = sorted(package for package in wanted if package not in have)
    others = [
        f"{package} {' and '.join(sorted(have[package]))} instead of {version}"
        for package, version in sorted(wanted.items())
        if package in have and have[package] != {version}
    ]
    if missing:
        text = f"{len(missing)} of {len(wanted)} locked packages are not installed: {', '.join(missing[:5])}"
        findings.append(Finding(name, BAD, text, "make install"))
    if others:
        text = f"{len(others)} packages have other versions than locked: {'; '.join(others[:5])}"
        findings.append(Finding(name, BAD, text, "rm -f .venv/.installed-* && make install"))
    lists = f"{' and '.join(locks)} {'has' if len(locks) == 1 else 'have'} them"
    return findings or [Finding(name, OK, f"Python {python} and {len(wanted)} packages are as {lists}")]


# --- Ports


def is_free(port: int) -> bool:
    try:
        listen("127.0.0.1", port).close()
        return True
    except OSError:
        return False


def services() -> dict[str, Service]:
    """The core's and the add-ons', by their names."""
    return SERVICES | {name: service for part in parts() for name, service in part.services.items()}


def ports(where: Place) -> list[Finding]:
    """Whether each service's port is free, this project's, or taken by somebody else."""
    owners, findings, listed = listeners(set(where.ports.values())), list[Finding](), services()
    for service, port in where.ports.items():
        asked = listed[service]
        if is_free(port):
            findings.append(Finding("ports", OK, f"port {port} ({service}) is free"))
            continue
        pid = owners.get(port)
        process = read(pid) if pid else None
        is_service = process is not None and any(word.startswith(asked.marks) for word in process.words)
        if process and is_service and is_within(process.folder, where.root):
            text = f"port {port} ({service}) is this project's: process {process.pid}"
            findings.append(Finding("ports", OK, text))
            continue
        free = next((port + step for step in range(1, 100) if is_free(port + step)), port + 1)
        cure = f"make {asked.target} {asked.variable}={free}"
        if process and is_service:
            text = f"port {port} ({service}) is taken by the {service} of {process.folder}, process {process.pid}"
            findings.append(Finding("ports", WARN, text, cure))
            continue
        owner = process.named if process else "a process of another user"
        findings.append(Finding("ports", BAD, f"port {port} ({service}) is taken by a stranger, {owner}", cure))
    return findings


# --- Disk, memory, GPU


def disk(where: Place) -> list[Finding]:
    """Space and inodes for the project and for temporary files."""
    findings = []
    for folder in (where.root, Path(os.environ.get("TMPDIR", "/tmp"))):
        usage, inodes = shutil.disk_usage(folder), os.statvfs(folder)
        free = usage.free / 1e9
        text = f"{free:.1f} GB of {usage.total / 1e9:.0f} GB are free in {folder}"
        state = BAD if free < where.free_gb else WARN if free < 2.5 * where.free_gb else OK
        if inodes.f_files and inodes.f_favail < 1000:
            state, text = BAD, f"{text}, and only {inodes.f_favail} more files can be made there"
        if state != OK:
            text = f"{text}; a run needs {where.free_gb:g} GB at least"
        cure = ".venv/bin/python -m flows.prune --delete" if folder == where.root else f"du -xsh {folder}/* | sort -h"
        findings.append(Finding("disk", state, text, "" if state == OK else cure))
    return findings


def available_memory() -> tuple[int, int]:
    """(bytes that are available, bytes in all), within this process's control group."""
    memory = psutil.virtual_memory()
    available, total = memory.available, memory.total
    group = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        if (group / limit).is_file() and (text := (group / limit).read_text().strip()).isdigit() and int(text) < total:
            total = int(text)
            available = min(available, total - int((group / used).read_text()))
    return max(available, 0), total


def memory(where: Place) -> list[Finding]:
    """Memory, and the shared memory through which vLLM's processes pass tensors."""
    available, total = available_memory()
    text = f"{available / GIB:.1f} of {total / GIB:.1f} GiB of memory are available"
    state = OK if available >= MEMORY_GB * GIB else BAD if available < MEMORY_GB * GIB / 4 else WARN
    needs = f"; training the small policies needs {MEMORY_GB:g} GiB" if state != OK else ""
    findings = [Finding("memory", state, text + needs, "" if state == OK else "ps aux --sort -rss | head")]
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return [*findings, Finding("memory", WARN, "there is no /dev/shm, through which vLLM's processes pass tensors")]
    free = shutil.disk_usage(shared).free
    text = f"{free / GIB:.1f} GiB of shared memory are free in /dev/shm"
    if free < SHARED_GB * GIB:
        text += f"; vLLM with several GPUs needs {SHARED_GB:g} GiB (in a container: `docker run --shm-size=8g`)"
        return [*findings, Finding("memory", WARN, text, "mount -o remount,size=8g /dev/shm")]
    return [*findings, Finding("memory", OK, text)]


def gpu(where: Place) -> list[Finding]:
    """GPUs and their driver, by torch in a process of its own; no more than a look into /dev where there is none."""
    devices = sorted(Path("/dev").glob("nvidia[0-9]*"))
    if not devices:
        return [Finding("gpu", OK, "no GPU is visible: everything runs on the CPU")]
    driver = Path("/proc/driver/nvidia/version")
    version = re.search(r"\s(\d+\.\d+(\.\d+)?)\s", driver.read_text()) if driver.exists() else None
    driven = f"driver {version[1]}" if version else "driver of an unknown version"
    process = subprocess.run(
        [sys.executable, "-c", TORCH], capture_output=True, text=True, timeout=GPU_SECONDS - 5, stdin=subprocess.DEVNULL
    )
    if process.returncode:
        lines = process.stderr.strip().splitlines() or ["no message"]
        return [Finding("gpu", BAD, f"torch cannot be imported: {lines[-1][:300]}", "make install GPU=1")]
    seen = json.loads(process.stdout.splitlines()[-1])
    if seen["cuda"] is None:
        text = f"{len(devices)} GPU(s) with {driven}, and torch {seen['version']} is a build for the CPU"
        return [Finding("gpu", WARN, text, "make install GPU=1")]
    if not seen["names"]:
        text = f"torch {seen['version']} for CUDA {seen['cuda']} can use none of {len(devices)} GPU(s) with {driven}"
        return [Finding("gpu", BAD, text, "nvidia-smi")]
    shown = ", ".join(
        f"{name} ({free / GIB:.0f} GiB free)" for name, free in zip(seen["names"], seen["free"], strict=True)
    )
    return [Finding("gpu", OK, f"{shown}; {driven}, torch {seen['version']}, CUDA {seen['cuda']}")]
