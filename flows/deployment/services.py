"""The processes that `make ui` and `make serve` start. They end together, and their APIs ask for keys."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.request
from base64 import b64encode
from pathlib import Path

from steps.core.errors import UserError

PATIENCE = 180.0  # seconds for a server to answer


class Services:
    """Processes that run until `with` ends, each in a process group of its own. Logs are written to `folder`."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder, self.environment = folder, environment
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Services:
        return self

    def __exit__(self, *_: object) -> None:
        for wait, number in ((15, signal.SIGINT), (5, signal.SIGKILL)):
            for process in reversed(self.running.values()):
                if process.poll() is None:
                    os.killpg(process.pid, number)
            until = time.monotonic() + wait
            while time.monotonic() < until and any(process.poll() is None for process in self.running.values()):
                time.sleep(0.1)

    def start(self, name: str, *words: str) -> None:
        """Start `python -m <words>` as the service `name`, whose output goes to <name>.log."""
        log = (self.folder / f"{name}.log").open("ab")
        command = [sys.executable, "-m", *words]
        self.running[name] = subprocess.Popen(
            command, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def call(self, *words: str) -> None:
        """Run `python -m <words>` to its end. UserError with its output where it fails."""
        command = [sys.executable, "-m", *words]
        process = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, stdin=subprocess.DEVNULL
        )
        if process.returncode:
            output = " ".join((process.stderr or process.stdout).split())
            raise UserError(f"`{' '.join(words)}` failed: {output[-600:]}")

    def wait(self, name: str, address: str) -> None:
        """Wait until the service answers at the address. UserError where it ends first, or takes too long."""
        until = time.monotonic() + PATIENCE
        request = urllib.request.Request(address, headers=headers(self.environment))
        while True:
            try:
                urllib.request.urlopen(request, timeout=5).close()
                return
            except OSError as problem:
                if self.running[name].poll() is not None or time.monotonic() > until:
                    raise UserError(f"{name} did not start ({problem}): see {self.folder / name}.log") from None
                time.sleep(0.3)

    def watch(self) -> None:
        """Wait until one of them ends by itself, which is a UserError."""
        while True:
            for name, process in self.running.items():
                if (code := process.poll()) is not None:
                    raise UserError(f"{name} ended (exit code {code}): see {self.folder / name}.log")
            time.sleep(0.5)


def headers(environment: dict[str, str]) -> dict[str, str]:
    """The headers of a request to Prefect's API, where the environment holds its key."""
    key = environment.get("PREFECT_API_AUTH_STRING", "")
    return {"Authorization": f"Basic {b64encode(key.encode()).decode()}"} if key else {}
