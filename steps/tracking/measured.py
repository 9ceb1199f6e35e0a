"""What an iteration measured: the metrics of its MLflow run, read from run/ and checked against dvc.lock.

A file that is missing, or that is not the one dvc.lock recorded, is left out, and a line says why. The rest is still logged.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path

from steps.analytics.waste import waste
from steps.core.errors import UserError
from steps.core.evaluations import Evaluation
from steps.core.ports import every
from steps.core.records import ITERATION_STAGES
from steps.policy.adapter import adapter_hash
from steps.project import chain
from steps.project.lock import Lock

REMEDY = "run `.venv/bin/dvc repro` or `.venv/bin/dvc checkout`"
NOT_IN_NAMES = re.compile(r"[^\w./ -]")  # characters that MLflow refuses in the name of a metric


class MeasuredRun:
    """The measurements in the run/ folder of a project."""

    def __init__(self, root: Path, log_message: Callable[[str], None]) -> None:
        self.root, self.log_message = root, log_message

    def iteration(self, number: str, entries: Lock, overhead_seconds: float | None) -> tuple[dict[str, float], float]:
        """(metrics, seconds of all stages) of run/<number>. `entries` are the iteration's stages in dvc.lock."""
        recorded = {out["path"]: out.get("md5") for entry in entries.values() for out in entry["outs"]}
        metrics, folder = {}, f"run/{number}"
        if text := self._read(f"{folder}/metrics.json", recorded.get(f"{folder}/metrics.json")):
            counted = json.loads(text)
            metrics = named({grouped(name): value for name, value in counted.items() if name != "quarantine"})
            if "quarantine" in counted:  # only the real update stage writes it, and `waste` needs it
                try:
                    metrics |= waste(self.root / folder).metrics()
                except UserError as problem:  # a file is not the one that the iteration's update read
                    self.log_message(f"waste/ is left out: {problem}")
                metrics |= self.tripped(number)
            if lag := chain.policy_lag(self.root, number):
                metrics["policy_lag"] = float(lag)
        judge = f"{folder}/judge.json"
        if judge in recorded and (text := self._read(judge, recorded[judge])):
            metrics |= named(json.loads(text))
        metrics |= self.evaluation("val", number, "evaluation")
        seconds = 0.0
        for stage, output in ITERATION_STAGES.items():
            if text := self._read(f"{folder}/timings/{output}.json"):
                measured = json.loads(text)  # what the stage measured itself, too: calls, retries, learning rate
                seconds += measured["seconds"]
                metrics[f"seconds/{stage}"] = measured["seconds"]
                own = sorted(measured.keys() - {"stage", "seconds"})
                metrics |= {f"{stage}/{name}": float(measured[name]) for name in own}
        if metrics.get("seconds/rollout") and "tokens" in metrics:
            metrics["tokens_per_second"] = metrics["tokens"] * metrics["collected"] / metrics["seconds/rollout"]
        if overhead_seconds is not None:
            metrics["overhead_seconds"] = overhead_seconds
        return metrics, seconds

    def tripped(self, number: str) -> dict[str, float]:
        """How many tripwires see something in the iteration; nothing where none does, or a file is missing."""
        try:
            seen = [each for findings in every("warning") for each in findings(self.root / "run", int(number))]
        except UserError:  # what is missing has a line of its own
            return {}
        return {"tripwires": float(len(seen))} if seen else {}

    def evaluation(self, prefix: str, number: str, name: str) -> dict[str, float]:
        """Metrics of run/<number>/<name>, unless it evaluated another adapter than the one beside it."""
        folder = self.root / "run" / number
        if not (text := self._read(f"run/{number}/{name}/summary.json")):
            return {}
        summary = Evaluation.model_validate_json(text)
        if (folder / "adapter").exists() and adapter_hash(folder / "adapter") != summary.adapter_hash:
            self.log_message(f"run/{number}/{name} is of another adapter, and is left out: {REMEDY}")
            return {}
        low, high = summary.interval
        measure = "success" if summary.judged is None else "judged_better"
        rewards = {} if summary.reward is None else {"reward": summary.reward}
        values = {measure: summary.share, **rewards, "turns": summary.turns, "tokens": summary.tokens}
        values |= {"scenarios": summary.n, "ci95_low": low, "ci95_high": high}
        clusters = summary.clusters if summary.judged is None else summary.judged.clusters
        values |= {} if clusters is None else {"clusters": clusters}
        values |= {f"{measure}_{kind}": share for kind, share in summary.slices.items()}
        values |= {f"success_of_{name}": success for name, success in summary.references.items()}
        values |= {f"right_{kind}": right / made for kind, (right, made) in summary.decisions.items()}
        for task, result in summary.by_task.items():
            values |= {f"reward_{task}": result.reward, f"turns_{task}": result.turns, f"scenarios_{task}": result.n}
        if judged := summary.judged:
            counts = ("wins", "ties", "losses", "disagreements", "unjudged")
            values |= {f"judge_{name}": getattr(judged, name) for name in counts}
            values |= {f"judge_{name}": value for name, value in judged.measured.items()}
        if other := summary.held_out:
            low, high = other.ci95
            values |= {"held_out_better": other.share, "held_out_ci95_low": low, "held_out_ci95_high": high}
        if summary.sampled_success is not None and summary.sampled_ci95 is not None:
            low, high = summary.sampled_ci95
            values |= {"sampled_success": summary.sampled_success, "sampled_ci95_low": low, "sampled_ci95_high": high}
        return named({f"{prefix}/{key}": value for key, value in values.items()})

    def _read(self, name: str, md5: str | None = None) -> str | None:
        """The text of a file; None, and a line with the reason, where it is missing or has another md5."""
        path = self.root / name
        if not path.exists():
            self.log_message(f"{name} is missing, and is left out")
            return None
        content = path.read_bytes()
        if md5 is not None and hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
            self.log_message(f"{name} is not what dvc.lock recorded, and is left out: {REMEDY}")
            return None
        return content.decode()


def grouped(name: str) -> str:
    """A metric's name in the group of its stage: MLflow shows groups by the alphabet, and clipping would come first."""
    return f"update/{name.replace('/', '_')}" if name.startswith("clip_ratio/") else name


def named(values: dict[str, float]) -> dict[str, float]:
    """The values under names that MLflow accepts."""
    return {NOT_IN_NAMES.sub("_", name): float(value) for name, value in values.items()}
