"""The processes that `make ui`, `make mlflow`, `make prefect` and `make serve` start.

They end together, also where the process that started them is killed (flows/deployment/guardian.py). Their APIs ask for
keys. Only the owner can read what they write, and a server gets none of the secrets that it does not need (`plain`).
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from environments.kit import http_client
from steps.core.errors import UserError, masked
from steps.core.files import private_folder
from steps.core.progress import say
from steps.kit.process import start

PATIENCE = 3600.0  # seconds for a server to answer: vLLM loads a large model for minutes, on a busy machine for many
SHOWN = 30.0  # seconds between two lines that say what it does meanwhile
MASK = 0o077  # nobody but the owner
# The variables that every server may have. Keys, tokens and addresses with passwords in them are not among these.
PLAIN = "PATH HOME USER LOGNAME LANG LANGUAGE TZ TMPDIR VIRTUAL_ENV DO_NOT_TRACK NO_PROXY no_proxy".split()
PLAIN_PREFIXES = ("LC_", "PYTHON", "XDG_", "OMP_", "SSL_CERT_")


class Services:
    """Processes that run until `with` ends, each in a process group of its own. Logs are written to `folder`."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.folder, self.environment = private_folder(folder), environment
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        self.guardian: subprocess.Popen[bytes]

    def __enter__(self) -> Services:
        command, root = [sys.executable, "-m", "flows.deployment.guardian"], Path(__file__).parent.parent.parent
        self.guardian = start(command, cwd=root, env={}, stdin=subprocess.PIPE, bufsize=0, start_new_session=True)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.guardian.stdin is not None
        self.guardian.stdin.close()
        while self.guardian.poll() is None:  # it waits until every process has ended and was collected here
            for process in self.running.values():
                process.poll()
            time.sleep(0.05)

    def start(self, name: str, *words: str, environment: Mapping[str, str] | None = None) -> None:
        """Start `python -m <words>` as the service `name`, whose output goes to <name>.log."""
        assert self.guardian.stdin is not None
        command, variables = [sys.executable, "-m", *words], self.environment if environment is None else environment
        log = self.folder / f"{name}.log"
        log.touch(0o600)
        self.running[name] = start(command, log=log, env=variables, start_new_session=True, umask=MASK)
        self.guardian.stdin.write(f"{self.running[name].pid}\n".encode())

    def call(self, *words: str) -> None:
        """Run `python -m <words>` to its end. UserError with its output where it fails."""
        command = [sys.executable, "-m", *words]
        process = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, umask=MASK
        )
        if process.returncode:
            output = " ".join((process.stderr or process.stdout).split())
            raise UserError(f"`{' '.join(words)}` failed: {output[-600:]}")

    def wait(self, name: str, address: str) -> None:
        """Wait as long as the service's process lives until it answers at the address, which needs no key. Every half a
        minute the last line of its log is shown. UserError if it ends first, or takes an hour."""
        began = shown = time.monotonic()
        while True:
            try:
                answer = http_client.asked("GET", address, seconds=5)
                if answer.status < 400:
                    return
                raise http_client.NoAnswer(f"status {answer.status}")
            except http_client.NoAnswer as problem:
                now, log = time.monotonic(), self.folder / f"{name}.log"
                if (code := self.running[name].poll()) is not None:
                    raise UserError(f"{name} ended (exit code {code}) before it answered: see {log}") from None
                if now - began > PATIENCE:
                    raise UserError(f"{name} does not answer after {PATIENCE:.0f} s ({problem}): see {log}") from None
                if now - shown > SHOWN:
                    say(f"{name} is starting, {now - began:.0f} s: {last_line(log)}")
                    shown = now
                time.sleep(0.3)

    def watch(self) -> None:
        """Wait until one of them ends by itself, which is a UserError."""
        while True:
            for name, process in self.running.items():
                if (code := process.poll()) is not None:
                    raise UserError(f"{name} ended (exit code {code}): see {self.folder / name}.log")
            time.sleep(0.5)


def last_line(log: Path) -> str:
    """The last line of a log, at most 120 characters of it."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 2000))
        lines = file.read().decode(errors="replace").split("\n")
    return masked(next((line.strip() for line in reversed(lines) if line.strip()), "nothing is logged yet"))[:120]


def plain(environment: Mapping[str, str], *prefixes: str) -> dict[str, str]:
    """The variables that every server may have, and those with these prefixes."""
    return {
        name: value
        for name, value in environment.items()
        if name in PLAIN or name.startswith((*PLAIN_PREFIXES, *prefixes))
    }
