"""Sends the traces of a run's iterations, its tests and itself to MLflow, and to Langfuse where its keys are set.

Used by addons/trackers/tracing/tracker.py. An error here is logged once and changes nothing else, because a run is worth
as much without traces. Rewards are read from the files as they are. Whatever is sent again has the same ids.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from addons.trackers.tracing import episodes, files, langfuse
from addons.trackers.tracing.deliveries import LEAST, SECONDS
from addons.trackers.tracing.spans import Trace, hashed
from addons.trackers.tracing.to_mlflow import Mlflow
from steps.core.masking import Masker, masked
from steps.core.params import Params
from steps.policy.loading import turn_limit
from steps.project.chain import BASE

FOLDERS = {"train": "", "val": "evaluation", "test": "test"}  # of run/NNN, with the trajectories of a split


class Tracing:
    """The traces of one run."""

    def __init__(
        self, root: Path, params: Params, client: Any, uri: str, experiment: str, log_message: Callable[[str], None]
    ) -> None:
        self.root, self.params, self.log_message = root, params, log_message
        self.rate = files.rate()
        self.mlflow = Mlflow(client, uri, experiment, log_message)
        self.langfuse = langfuse.connect(log_message)
        # Names the share and the receivers: traces that were sent under the same key are not sent again.
        self.key = hashed(str(self.rate), uri, self.langfuse.host if self.langfuse else "")[:16]
        self.sent = 0  # iterations; for each the end waits up to SECONDS, and for all at least up to LEAST
        self.traced = 0  # episodes
        self._mask: Masker | None = None  # made with the first episodes
        self._warned = False

    def iteration(self, run_key: str, run_id: str, number: str, at: float) -> None:
        """Send the episodes of a batch and its evaluation, linked to the iteration's MLflow run; of the base policy (000),
        which has no batch, its validation, linked to the run itself. `at`: Unix seconds."""
        with self.one_warning():
            traces = [trace for split in ("train", "val") for trace in self._episodes(run_key, number, split, at)]
            self.sent += bool(traces) and number != BASE
            self._send(traces, run_id)

    def finish(
        self,
        run_key: str,
        run_id: str,
        tested: Mapping[str, str],
        settings: Mapping[str, Any],
        metrics: Mapping[str, float],
        times: tuple[float, float],
    ) -> bool:
        """Send the tests ({"best": "004", "base": "000"}) and the run itself, and wait; True where everything arrived."""
        with self.one_warning():
            traces: list[Trace] = []
            for number in dict.fromkeys(tested.values()):
                traces += self._episodes(run_key, number, "test", times[0])
            if self._mask is not None:
                about = self._about(run_key, "", "", times[0])
                results: dict[str, Any] = {"episodes_traced": self.traced, "seconds": round(times[1] - times[0], 3)}
                results |= {**hardware(), "metrics": dict(metrics)}
                traces.append(episodes.training(self._mask, about, settings, times[1], results))
            self._send(traces, run_id)
        until = time.monotonic() + max(LEAST, SECONDS * self.sent)
        hosts = [self.mlflow.deliveries, self.langfuse.deliveries if self.langfuse else None]
        arrived = [host.settle(max(0.0, until - time.monotonic())) for host in hosts if host is not None]
        return all(arrived) and not self._warned

    def _episodes(self, run_key: str, number: str, split: str, at: float) -> Iterator[Trace]:
        """Traces of a split's episodes in run/<number>; none where it has none, or the rate is 0."""
        run = self.root / "run" / number
        folder = run / FOLDERS[split]
        if not self.rate or not (folder / "trajectories.parquet").exists():
            return
        self._mask = self._mask or Masker()
        scenarios = self.root / "run" / "scenarios" / f"{split}.parquet"
        beside = run / "timings" / f"{FOLDERS[split] or 'trajectories'}.turns.json"
        about = self._about(run_key, number, split, at)
        for parts in files.read_batch(folder, scenarios, self.rate, beside):
            self.traced += 1
            yield episodes.episode(self._mask, about, *parts)

    def _about(self, run_key: str, number: str, split: str, at: float) -> episodes.About:
        settings = self.params.rollout if split == "train" else self.params.evaluate
        return episodes.About(
            run=run_key,
            task=self.params.task,
            model=self.params.policy.base_model,
            iteration=number,
            split=split,
            temperature=settings.temperature,
            max_tokens=turn_limit(self.params.policy, settings.max_tokens),
            environment=langfuse.environment(),
            at=at,
        )

    def _send(self, traces: list[Trace], run_id: str) -> None:
        if traces:
            if self.langfuse is not None:
                self.langfuse.send(traces)
            self.mlflow.send(traces, run_id)

    @contextmanager
    def one_warning(self) -> Iterator[None]:
        """Log the first error, and suppress all."""
        try:
            yield
        except Exception as problem:
            if not self._warned:
                self._warned = True
                reason = " ".join(str(problem).split())[:300]
                self.log_message(masked(f"traces are left out: {type(problem).__name__}: {reason}"))


def hardware() -> dict[str, str]:
    """This machine's processor and memory, and its GPUs where NVIDIA's driver names them."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    names = {"machine": f"{platform.system()} {platform.machine()}", "cpus": str(os.cpu_count())}
    names["memory"] = f"{memory:.0f} GiB"
    reports = sorted(Path("/proc/driver/nvidia/gpus").glob("*/information"))
    lines = [line for path in reports for line in path.read_text(errors="replace").splitlines()]
    cards = [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return names | ({"gpus": ", ".join(cards)} if cards else {})
