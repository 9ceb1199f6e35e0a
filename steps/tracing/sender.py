"""Tracing: sends the traces of a run's iterations, its test and itself to MLflow, and to Langfuse where its keys are set.

For steps/tracking/tracker.py. Whatever goes wrong here is said once and changes nothing else: a run is not worth less
for want of a trace. Rewards are read from the files that are there; what was sent before is sent again under the same ids.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.tracing import episodes, files, langfuse
from steps.tracing.deliveries import SECONDS
from steps.tracing.spans import hashed

if TYPE_CHECKING:
    from steps.core.params import Params
    from steps.tracing.spans import Recorder, Trace


class Tracing:
    """The traces of one run."""

    def __init__(
        self, root: Path, params: Params, client: Any, uri: str, experiment: str, tell: Callable[[str], None]
    ) -> None:
        from steps.tracing.to_mlflow import Mlflow

        self.root, self.params, self.tell = root, params, tell
        self.rate = files.rate()
        self.mlflow = Mlflow(client, uri, experiment, tell)
        self.langfuse = langfuse.connect(tell)
        # What is traced, and where to: what was sent under the same key need not be sent again.
        self.key = hashed(str(self.rate), uri, self.langfuse.host if self.langfuse else "")[:16]
        self.sent = 0  # iterations, each of which may cost SECONDS at the end
        self.traced = 0  # episodes
        self._recorder: Recorder | None = None
        self._warned = False

    def iteration(self, run_key: str, run_id: str, number: str, at: float) -> None:
        """The traced episodes of a batch and of its evaluation, linked to the iteration's MLflow run. `at`: Unix seconds."""
        with self._kept():
            folder = self.root / "run" / number
            found = list(self._episodes(run_key, folder, "trajectories", number, "train", at))
            found += self._episodes(run_key, folder / "evaluation", "evaluation", number, "val", at)
            self.sent += bool(found)
            self._send(found, run_id)

    def base(self, run_key: str, run_id: str, at: float) -> None:
        """The validation of the policy before any iteration, linked to the run itself. `at`: Unix seconds."""
        with self._kept():
            folder = self.root / "run/000/evaluation"
            self._send(list(self._episodes(run_key, folder, "evaluation", "000", "val", at)), run_id)

    def finish(
        self,
        run_key: str,
        run_id: str,
        tested: Mapping[str, str],
        settings: Mapping[str, Any],
        metrics: Mapping[str, float],
        times: tuple[float, float],
    ) -> bool:
        """The tests of these adapters ({"best": "004", "base": "000"}) and the run itself; True where all has arrived."""
        with self._kept():
            found = [
                one
                for number in dict.fromkeys(tested.values())
                for one in self._episodes(
                    run_key, self.root / "run" / number / "test", "test", number, "test", times[0]
                )
            ]
            if self._recorder is not None:
                about = self._about(run_key, "", "", times[0])
                told: dict[str, Any] = {"episodes_traced": self.traced, "seconds": round(times[1] - times[0], 3)}
                told |= {**hardware(), "metrics": dict(metrics)}
                found.append(episodes.training(self._recorder, self._mask, about, settings, times[1], told))
            self._send(found, run_id)
        until = time.monotonic() + SECONDS * max(1, self.sent)
        hosts = [self.mlflow.deliveries, self.langfuse.deliveries if self.langfuse else None]
        arrived = [one.settle(max(0.0, until - time.monotonic())) for one in hosts if one is not None]
        return all(arrived) and not self._warned

    def _episodes(
        self, run_key: str, folder: Path, timings: str, number: str, split: str, at: float
    ) -> Iterator[Trace]:
        """Traces of what lies in a folder; none where there is nothing, or nothing is to be traced."""
        if not self.rate or not (folder / "trajectories.parquet").exists():
            return
        if self._recorder is None:
            from steps.core.masking import Masker
            from steps.tracing.spans import Recorder

            self._recorder, self._mask = Recorder(), Masker()
        scenarios = self.root / "run" / "scenarios" / f"{split}.parquet"
        beside = self.root / "run" / number / "timings" / f"{timings}.turns.json"
        about = self._about(run_key, number, split, at)
        for one in files.read_batch(folder, scenarios, self.rate, beside):
            self.traced += 1
            yield episodes.episode(self._recorder, self._mask, about, *one)

    def _about(self, run_key: str, number: str, split: str, at: float) -> episodes.About:
        known = self.params
        settings = known.rollout if split == "train" else known.evaluate
        return episodes.About(
            run=run_key,
            task=known.task,
            model=known.policy.base_model,
            iteration=number,
            split=split,
            temperature=settings.temperature,
            max_tokens=settings.max_tokens,
            environment=langfuse.environment(),
            at=at,
        )

    def _send(self, found: list[Trace], run_id: str) -> None:
        if found:
            if self.langfuse is not None:
                self.langfuse.send(found)
            self.mlflow.send(found, run_id)

    @contextmanager
    def _kept(self) -> Iterator[None]:
        """What goes wrong is said, once."""
        try:
            yield
        except Exception as problem:
            if not self._warned:
                self._warned = True
                from steps.core.masking import masked

                self.tell(
                    masked(f"traces are left out: {type(problem).__name__}: {' '.join(str(problem).split())[:300]}")
                )


def hardware() -> dict[str, str]:
    """Of this machine: processor, memory, and graphics cards where the driver names them."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    found = {"machine": f"{platform.system()} {platform.machine()}", "cpus": str(os.cpu_count())}
    found["memory"] = f"{memory:.0f} GiB"
    cards = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith("Model:"):
                cards.append(line.partition(":")[2].strip())
    return found | ({"gpus": ", ".join(cards)} if cards else {})
