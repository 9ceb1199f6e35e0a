"""Weights & Biases, beside MLflow, where WANDB_API_KEY is set or WANDB_MODE=offline: one run there per run here.

Metrics under their names in MLflow and under the usual ones (policy_loss, success_rate, …), a step an iteration, parameters
as config, tables of episodes and of what they did, and the best adapter as an artifact that bears its hash. The run's id is
its key: going on after an interruption continues it. What is sent passes steps/core/masking.py, and neither output,
code, git nor the machine is among it.

wandb runs in a process of its own (steps/tracking/wandb_process.py), which is fed a line an iteration and never waited
for until the
end, and then for PATIENCE seconds: it cannot end a run, nor hold it up, nor is wandb imported there. What goes wrong is one
warning, the rest stands in .flywheel/wandb.log. Offline runs lie in .flywheel/wandb, for `wandb sync`.

Left out: correcting what was logged (W&B takes no step twice). `python -m steps.tracking` logs to MLflow alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from steps.tracking.tracker import Tracker

PATIENCE = 15.0  # seconds that the end of a run waits for the upload, which goes on by itself
UPLOAD = 600.0  # seconds after which the process gives up


def start(tracker: Tracker) -> Beside | None:
    """Where it is switched on and installed; nothing is started before the first iteration."""
    mode = os.environ.get("WANDB_MODE", "").lower()
    if mode == "disabled" or not (mode in ("offline", "dryrun") or os.environ.get("WANDB_API_KEY")):
        return None
    from importlib.util import find_spec

    if find_spec("wandb") is None:
        how = "WANDB_MODE=offline" if mode else "WANDB_API_KEY"
        tracker.tell(
            f"Weights & Biases is switched on ({how}), and the package wandb is not installed: install this project's extra "
            "`wandb`, or unset the variable; the run goes on without it"
        )
        return None
    return Beside(tracker)


class Beside:
    """The process that logs to Weights & Biases. Nothing here raises, and nothing waits but `finish`."""

    def __init__(
        self, tracker: Tracker, command: Sequence[str] = (sys.executable, "-m", "steps.tracking.wandb_process")
    ) -> None:
        self.tracker, self.command = tracker, command
        state = Path(os.environ.get("FLYWHEEL_ROOT") or tracker.root) / ".flywheel"  # a worktree of `make ui` goes away
        self.state, self.log = state, state / "wandb.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.off = False

    def iteration(self, number: str) -> None:
        """Send a tracked iteration's metrics; the process reads its episodes itself. One that is not tracked is left out."""
        if self.off or not (metrics := self.tracker.metrics(number)):
            return
        with self._warned():
            if self.process is None:
                self._start()
                self._send({"iteration": "000", "metrics": self.tracker.metrics("000")})
            self._send({"iteration": number, "metrics": metrics})

    def finish(self, best: str) -> None:
        """Send the test's metrics and the best adapter, end the run, and wait a little for the upload."""
        if self.off or self.process is None:
            return
        with self._warned():
            found = self.tracker.parent.data.metrics if self.tracker.parent else {}
            tested = {name: value for name, value in found.items() if name.startswith(("test/", "test_base/"))}
            self._send({"finish": best, "metrics": tested})
            assert self.process.stdin is not None
            self.process.stdin.close()
            try:
                code = self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.tracker.tell(
                    f"Weights & Biases: the upload goes on by itself, for {UPLOAD:.0f} s at most ({self.log})"
                )
                return
            if code:
                raise OSError(f"it ended with {code}")

    def _start(self) -> None:
        self.state.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, str(self.tracker.root), str(self.state)],
                cwd=Path(__file__).parent.parent.parent,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is not for it: it ends well when its input ends
            )
        assert self.process.stdin is not None
        os.set_blocking(self.process.stdin.fileno(), False)
        self._send({"start": about(self.tracker)})

    def _send(self, message: Mapping[str, Any]) -> None:
        """A line, or OSError where nobody takes it: not written in part, and not waited for."""
        assert self.process is not None
        assert self.process.stdin is not None
        line = json.dumps(message).encode() + b"\n"
        if os.write(self.process.stdin.fileno(), line) < len(line):
            raise BlockingIOError("it takes nothing any more")

    @contextlib.contextmanager
    def _warned(self) -> Any:
        """Whatever goes wrong is said once, and ends the logging alone."""
        try:
            yield
        except Exception as problem:
            self.off = True
            if self.process is not None and self.process.stdin is not None:
                with contextlib.suppress(OSError):
                    self.process.stdin.close()
            said = self._last_words() or " ".join(str(problem).split())
            self.tracker.tell(
                f"Weights & Biases does not log this run ({said}; {self.log}); the run goes on without it"
            )

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.startswith("error: ")]
            return lines[-1].removeprefix("error: ")[:300] if lines else ""
        return ""


def about(tracker: Tracker) -> dict[str, Any]:
    """Of a run: id, name, task and parameters, the same whenever it is logged."""
    from steps.project import lock

    key = str(lock.run_key(lock.read_lock(tracker.root)))
    settings = plain(tracker.params.model_dump(mode="json", by_alias=True))
    name = f"{tracker.params.task} seed {tracker.params.seed} {key[:6]}"
    return {"id": key, "name": name, "task": tracker.params.task, "config": settings}


def plain(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values as {"update.beta": 0.001}."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        result |= plain(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
    return result
