"""Logs a run to Weights & Biases as well, where WANDB_API_KEY is set or WANDB_MODE=offline: one run there per run here.

It gets the metrics that MLflow has, also under the usual names (policy_loss, success_rate, …), one step per iteration;
the parameters as config; tables of episodes and of their actions; and the best adapter as an artifact named by its hash. The
run's id is its key in dvc.lock, so continuing after an interruption continues the same run. Everything sent is masked
(steps/core/masking.py); console output, code, git and the machine are never sent.

wandb runs in a process of its own (addons/trackers/wandb_process.py) that gets one line per iteration. The flow waits for
it only at the end, for PATIENCE seconds, so W&B can neither end a run nor hold it up. A failure is one warning, with details
in .flywheel/wandb.log. Offline runs lie in .flywheel/wandb, for `wandb sync`.

Left out: correcting what was logged (W&B accepts no step twice). `python -m steps.tracking` logs to MLflow alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.kit import process
from steps.project.chain import read_chain
from steps.project.lock import read_lock, run_key
from steps.tracking.tracker import Sample

if TYPE_CHECKING:
    from steps.tracking.tracker import MlflowTracker

PATIENCE = 15.0  # seconds that the end of a run waits for the upload, which then continues by itself
UPLOAD = 600.0  # seconds after which the process gives up


def begin(run: MlflowTracker, is_live: bool) -> WandbTracker | None:
    """The tracker of a run that goes on (W&B accepts no step twice), where W&B is switched on and installed. Its process
    starts with the first iteration."""
    mode = os.environ.get("WANDB_MODE", "").lower()
    if not is_live or mode == "disabled" or not (mode in ("offline", "dryrun") or os.environ.get("WANDB_API_KEY")):
        return None
    from importlib.util import find_spec

    if find_spec("wandb") is None:
        variable = "WANDB_MODE=offline" if mode else "WANDB_API_KEY"
        run.log_message(
            f"Weights & Biases is switched on ({variable}), and the package wandb is not installed: install this project's "
            "extra `wandb`, or unset the variable; the run goes on without it"
        )
        return None
    return WandbTracker(run)


class WandbTracker:
    """The process that logs to Weights & Biases. Nothing here raises, and only `finish` waits."""

    def __init__(
        self, run: MlflowTracker, command: Sequence[str] = (sys.executable, "-m", "addons.trackers.wandb_process")
    ) -> None:
        self.root, self.params = run.root.resolve(), run.params
        self.metrics, self.log_message = run.metrics, run.log_message
        # The worktree of a run that `make ui` started is removed at its end, so the state lies in the project.
        self.state = Path(os.environ.get("FLYWHEEL_ROOT") or self.root) / ".flywheel"
        self.command, self.log = command, self.state / "wandb.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.off = False
        self.sending = threading.Lock()  # a flow sends an iteration while the next one runs

    def iteration(self, number: str, overhead_seconds: float | None = None, system: Sequence[Sample] = ()) -> None:
        """Send an iteration's metrics, once MLflow has them. The process reads the iteration's episodes itself."""
        with self._one_warning():
            if self.off or not (metrics := self.metrics(number)):
                return
            if self.process is None:
                self._start()
                self._send({"iteration": "000", "metrics": self.metrics("000")})
            self._send({"iteration": number, "metrics": metrics})

    def finish(self, status: str = "FINISHED") -> None:
        """End the run. FINISHED sends the tests' metrics and the best adapter, and waits a little for the upload."""
        with self._one_warning():
            if self.off or self.process is None:
                return
            if status == "FINISHED":
                tests = {name: value for name, value in self.metrics(None).items() if name.startswith("test")}
                self._send({"finish": read_chain(self.root)["tested"]["best"], "metrics": tests})
            self._close()
            if status == "FINISHED":
                try:
                    if code := self.process.wait(PATIENCE):
                        raise OSError(f"it ended with {code}")
                except subprocess.TimeoutExpired:
                    later = f"the upload goes on by itself, for {UPLOAD:.0f} s at most ({self.log})"
                    self.log_message(f"Weights & Biases: {later}")

    def _start(self) -> None:
        from steps.tracking.entries import flat

        self.state.mkdir(parents=True, exist_ok=True)
        self.process = process.start(
            [*self.command, str(self.root), str(self.state)],
            log=self.log,
            cwd=Path(__file__).parent.parent.parent,
            stdin=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C does not reach it: it ends properly when its input ends
        )
        assert self.process.stdin is not None
        self.input = self.process.stdin.fileno()
        os.set_blocking(self.input, False)
        key, task = str(run_key(read_lock(self.root))), self.params.task  # the same whenever the run is logged
        config = flat(self.params.model_dump(mode="json", by_alias=True))
        name = f"{task} seed {self.params.seed} {key[:6]}"
        self._send({"start": {"id": key, "name": name, "task": task, "config": config}})

    def _send(self, message: Mapping[str, Any]) -> None:
        """Write one line without waiting; OSError where the process does not take all of it."""
        line = json.dumps(message).encode() + b"\n"
        if os.write(self.input, line) < len(line):
            raise BlockingIOError("it takes nothing any more")

    def _close(self) -> None:
        """Send nothing more; the process ends when it has logged what it got."""
        self.off = True
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    @contextlib.contextmanager
    def _one_warning(self) -> Iterator[None]:
        """Any failure is logged once, in the last words of the process if it has any. It ends the logging, not the run."""
        with self.sending:
            try:
                yield
            except Exception as problem:
                errors = [" ".join(str(problem).split())]
                with contextlib.suppress(OSError):
                    self._close()
                with contextlib.suppress(OSError):
                    lines = self.log.read_text(errors="replace").splitlines()
                    errors += [line.removeprefix("error: ")[:300] for line in lines if line.startswith("error: ")]
                failure = f"does not log this run ({errors[-1]}; {self.log})"
                self.log_message(f"Weights & Biases {failure}; the run goes on without it")
