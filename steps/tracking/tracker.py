"""Tracking: what a run was and what it measured, written to MLflow, of which nothing is read to decide anything.

An experiment per task, in it a parent run per run, in that a nested run per iteration. Their keys are hashes of entries of
dvc.lock: logging again, or going on after an interruption, finds the runs that are there. The store is .flywheel/mlflow.db
and .flywheel/mlartifacts in the project, or what MLFLOW_TRACKING_URI names.

Left out: trajectories and checkpoints (DVC keeps them; their md5s are the run's inputs), the content of files that
git does not know. What the agent did is in traces (steps/tracing/sender.py). What is missing in run/ is left out with
its reason. What is logged and told is masked (steps/core/masking.py), but for the adapter's own files.
After a plain `dvc repro`:

    python -m steps.tracking        # logs what chain.yaml, dvc.lock and run/ hold; the flow calls the same functions
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps.core import dotenv
from steps.core.errors import UserError
from steps.core.masking import masked
from steps.core.progress import say
from steps.core.records import OUTPUTS
from steps.project import git, store
from steps.project.lock import Lock, digest, read_lock, run_key
from steps.registry import card, publish
from steps.tracing.sender import Tracing

if TYPE_CHECKING:
    from steps.core.params import Params
    from steps.tracking.system_metrics import Sample
    from steps.tracking.wandb import Beside
from steps.project.chain import read_chain
from steps.project.lock import unfit

FLOW_ONLY = ("train", "register")  # parameters of no iteration: they may change while a run goes on, and are tags
# What the parent shows as curves over the iterations; the nested runs have everything.
MIRRORED = """reward_mean reward_std success turns tokens entropy kl clip_ratio/region_mean grad_norm loss sampler_kl
    zero_variance_groups val/success val/ci95_low val/ci95_high val/reward tokens_per_second overhead_seconds""".split()
# Tags of the parent that its nested runs have as well, to be compared by.
GIT = ("git_commit", "git_dirty", "mlflow.source.git.commit")
KNOBS = 3  # in a run's name
NOT_IN_NAMES = re.compile(r"[^\w./ -]")  # of metrics, as MLflow has it


def start(root: Path, tell: Callable[[str], None] = say) -> Tracker:
    """Connect to the store, and make it where there is none; UserError where that cannot be done."""
    return Tracker(root, tell)


class Tracker:
    """The parent run of what params.yaml and dvc.lock describe, found or made with the first finished iteration."""

    def __init__(self, root: Path, tell: Callable[[str], None] = say) -> None:
        from steps.core import params

        self.root, self.began = root.resolve(), int(1000 * time.time())
        self.tell = lambda text: tell(masked(text))
        self.params = params.load(self.root / "params.yaml", params.Params)
        every = flat(masked(self.params.model_dump(mode="json", by_alias=True)))
        self.settings = {name: value for name, value in every.items() if name.partition(".")[0] not in FLOW_ONLY}
        self.flow_settings = {name: value for name, value in every.items() if name not in self.settings}
        self.tags: dict[str, str] = masked(publish.about(self.params) | {"judge": card.judges(self.params)})
        self.uri = store.address(self.root)
        with store.explained(self.uri):
            self.client = store.connect(self.root)
            self.experiment = store.experiment(self.client, self.root, self.params.task)
        self.tracing = Tracing(self.root, self.params, self.client, self.uri, self.experiment, self.tell)
        self.parent: Any = None  # mlflow.entities.Run
        self.children: dict[str, list[Any]] = {}  # iteration -> its nested runs
        self.logged: list[str] = []  # iterations that were not there before
        self.logging, self.stopped = threading.Lock(), False
        self.beside: Beside | None = None  # Weights & Biases, where it is switched on

    def iteration(
        self, number: str, overhead_seconds: float | None = None, system: Sequence[Sample] = ()
    ) -> str | None:
        """Log run/<number>, once; returns the nested run's id, None (and says why) where it is not finished.

        `system` is what the machine did meanwhile.
        """
        with self.logging, store.explained(self.uri):
            if self.stopped:
                return None
            lock = read_lock(self.root)
            names = [f"{stage}@{number}" for stage in OUTPUTS]
            if reason := unfit(lock, names, self.params) or self._open(lock):
                self.tell(f"iteration {number} is not logged: {reason}")
                return None
            found = self._nested(number, {name: lock[name] for name in names}, overhead_seconds, system)
        self._trace(number)
        return found

    def finish(self, status: str = "FINISHED") -> None:
        """Log the test split and the files that describe the run, and end the parent (FINISHED, FAILED, KILLED)."""
        if self._end(status):
            self._trace_end()

    def stop(self, status: str) -> None:
        """End the parent before its time (FAILED, KILLED): its next iteration goes on with it. What hinders is left unsaid,
        for there is something worse to be said."""
        with self.logging, contextlib.suppress(Exception):  # a flow logs an iteration beside the next one
            self.stopped = True
            if self.parent is not None and self.parent.info.status != "FINISHED":
                self.client.set_terminated(self.parent.info.run_id, status)
                self.parent = self.client.get_run(self.parent.info.run_id)

    def _end(self, status: str) -> bool:
        """`finish`, but for the traces; False (and says why) where there is no run to end."""
        with store.explained(self.uri):
            if reason := self._open():
                self.tell(f"nothing is logged: {reason}")
                return False
            run, run_id = self.parent, self.parent.info.run_id
            files = [path for name in ("dvc.lock", "params.yaml", "chain.yaml") if (path := self.root / name).exists()]
            attached = digest([path.read_text() for path in files])
            if (run.info.status, run.data.tags.get("attached")) == (status, attached):
                return True
            tested = read_chain(self.root).get("tested") or {}
            tags = self.flow_settings | {"attached": attached, "best_iteration": str(tested.get("best"))}
            for prefix, number in (("test", tested.get("best")), ("test_base", tested.get("base"))):
                metrics = self._evaluation(prefix, number, "test") if number is not None else {}
                self.client.log_batch(run_id, **batch(run, metrics, int(number or 0), {}, tags))
            for path in files:
                self.client.log_text(run_id, public(path.read_text()), path.name)
            self.client.set_terminated(run_id, status)
            self.parent = self.client.get_run(run_id)
            return True

    def _trace(self, number: str) -> None:
        """What the agent did in an iteration, where that was not sent before."""
        run = self.children[number][0]
        if run.data.tags.get("traced") != self.tracing.key:
            key, parent = self.parent.data.tags["run_key"], self.parent.info
            if number == "001":
                self.tracing.base(key, parent.run_id, parent.start_time / 1000)
            self.tracing.iteration(key, run.info.run_id, number, run.info.start_time / 1000)

    def _trace_end(self) -> None:
        """The run's own trace and those of its tests. What has arrived is marked, and not sent again."""
        runs = [self.parent, *(run for of in self.children.values() for run in of)]
        unsent = [run for run in runs if run.data.tags.get("traced") != self.tracing.key]
        if not unsent or not self.tracing.rate:
            return
        info, nested = self.parent.info, [run.data.metrics for of in self.children.values() for run in of]
        tested = {name: number for name, number in (read_chain(self.root).get("tested") or {}).items() if number}
        stages = sum(value for metrics in nested for name, value in metrics.items() if name.startswith("seconds/"))
        found = self.parent.data.metrics | {
            "episodes": sum(metrics.get("collected", 0.0) for metrics in nested),
            "seconds_of_stages": round(stages, 3),
        }
        times = (info.start_time / 1000, (info.end_time or info.start_time) / 1000)
        key = self.parent.data.tags["run_key"]
        if self.tracing.finish(key, info.run_id, tested, self.settings | self.flow_settings, found, times):
            with store.explained(self.uri):
                for run in unsent:
                    self.client.set_tag(run.info.run_id, "traced", self.tracing.key)

    def log_artifact(self, path: Path) -> None:
        """Attach a file to the parent, such as the learning curve."""
        with store.explained(self.uri):
            if reason := self._open():
                self.tell(f"{path.name} is not logged: {reason}")
            else:
                self.client.log_artifact(self.parent.info.run_id, str(path))

    def where(self) -> str:
        """For a person: the store, the experiment, the run."""
        name = self.parent.info.run_name if self.parent else "no run yet"
        if self.parent and self.uri.startswith("http"):
            page = f"#/experiments/{self.experiment}/runs/{self.parent.info.run_id}"
            name += f": {store.hidden(self.uri).rstrip('/')}/{page}"
        return f"MLflow: {store.hidden(self.uri)}, experiment {self.params.task}, {name}"

    def _open(self, lock: Lock | None = None) -> str | None:
        """Find or make the parent run, once; returns why that cannot be."""
        if self.parent:
            return None
        lock, first = lock or read_lock(self.root), [f"{stage}@001" for stage in OUTPUTS]
        if reason := unfit(lock, ["scenarios", "initialise", *first], self.params):
            return reason
        made = {out["path"]: out.get("md5") for out in lock["scenarios"].get("outs", [])}
        self.tags["data_hash"] = str(made.get("run/scenarios"))
        key = str(run_key(lock))
        found = self.client.search_runs([self.experiment], f"tags.run_key = '{key}'", order_by=["start_time ASC"])
        run = found[0] if found else self._new_parent(key)
        unset = {name: value for name, value in self.settings.items() if name not in run.data.params}
        base = self._evaluation("val", "000", "evaluation")
        self.client.log_batch(run.info.run_id, **batch(run, base, 0, unset, self.flow_settings))
        nested = f"tags.`mlflow.parentRunId` = '{run.info.run_id}'"
        for child in self.client.search_runs([self.experiment], nested, max_results=5000):
            self.children.setdefault(child.data.tags.get("iteration", ""), []).append(child)
        self.parent = run
        return None

    def _new_parent(self, key: str) -> Any:
        state, difference = git.git_state(self.root)
        tags, name = self.tags | state | {"run_key": key}, f"{title(self.params)}, {key[:6]}"
        run = self.client.create_run(self.experiment, self.began, tags, name)
        if difference:
            self.client.log_text(run.info.run_id, masked(difference), "git.diff")
        return run

    def _nested(self, number: str, entries: Lock, overhead_seconds: float | None, system: Sequence[Sample]) -> str:
        """Make a nested run, or complete the one that was interrupted; one of other entries is marked and deleted."""
        key = digest(entries)
        run: Any = None
        for other in self.children.get(number, []):
            if other.data.tags.get("iteration_key") == key and run is None:
                run = other
            else:
                self.client.set_tag(other.info.run_id, "superseded_by", key)
                self.client.delete_run(other.info.run_id)
        if run is None or run.info.status != "FINISHED":
            if self.parent.info.status != "RUNNING":  # an earlier flow run ended it, and this one goes on
                self.client.update_run(self.parent.info.run_id, status="RUNNING")
                self.parent = self.client.get_run(self.parent.info.run_id)
            metrics, seconds = self._measured(number, entries, overhead_seconds)
            if run is None:
                tags = self.tags | {"iteration": number, "iteration_key": key}
                tags["mlflow.parentRunId"] = self.parent.info.run_id
                tags |= {name: value for name, value in self.parent.data.tags.items() if name in GIT}
                began = int(1000 * (time.time() - seconds))
                name = f"iteration {number} of {self.parent.info.run_name}"
                run = self.client.create_run(self.experiment, began, tags, name)
            self._fill(run, number, entries, metrics, system)
            self.client.set_terminated(run.info.run_id)
            run = self.client.get_run(run.info.run_id)
            self.logged.append(number)
        self.children[number] = [run]
        return run.info.run_id

    def _fill(self, run: Any, number: str, entries: Lock, metrics: dict[str, float], system: Sequence[Sample]) -> None:
        """Everything of a nested run. The same again adds nothing: its metrics bear its own start as their time."""
        from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, Metric

        step, adapter = int(number), self.root / "run" / number / "adapter"
        model, tags = None, self.tags
        if adapter.exists():
            model, tags = publish.logged_adapter(self.client, self.experiment, adapter, tags, run.info.run_id)
            if not (run.outputs and run.outputs.model_outputs):  # twice would be refused
                self.client.log_outputs(run.info.run_id, [LoggedModelOutput(model, step)])
        else:
            self.tell(f"run/{number}/adapter is missing, and is left out")
        whole = batch(run, metrics, step, self.settings, tags, model)
        for place, sample in enumerate(system):  # MLflow shows them in a tab of their own
            whole["metrics"] += [Metric(name, value, sample.time, place) for name, value in sample.values.items()]
        self.client.log_batch(run.info.run_id, **whole)
        md5s = {dep["path"]: dep.get("md5") for entry in entries.values() for dep in [*entry["deps"], *entry["outs"]]}
        inputs = []
        for path in ("run/scenarios", f"run/{number}/trajectories.parquet", f"run/{number}/rewards.parquet"):
            if md5 := md5s.get(path):
                data = Dataset(Path(path).stem, md5, "dvc", json.dumps({"path": path, "md5": md5}))
                inputs.append(DatasetInput(data, [InputTag("mlflow.data.context", "training")]))
        self.client.log_inputs(run.info.run_id, inputs)
        mirrored = {name: metrics[name] for name in MIRRORED if name in metrics}
        self.client.log_batch(self.parent.info.run_id, **batch(run, mirrored, step, {}, {}))

    def _measured(self, number: str, entries: Lock, overhead: float | None) -> tuple[dict[str, float], float]:
        """(metrics, seconds of all stages) of an iteration, from the files that are there."""
        folder, metrics, total = self.root / "run" / number, {}, 0.0
        recorded = {out["path"]: out.get("md5") for out in entries[f"update@{number}"]["outs"]}
        if text := self._read(folder / "metrics.json", recorded.get(f"run/{number}/metrics.json")):
            found = json.loads(text)
            metrics = {
                NOT_IN_NAMES.sub("_", name): float(value) for name, value in found.items() if name != "quarantine"
            }
            if "quarantine" in found:  # an update's own, which says whom it left out
                metrics |= self._wasted(folder)
        judged = {out["path"]: out.get("md5") for out in entries[f"score@{number}"]["outs"]}
        if (path := f"run/{number}/judge.json") in judged and (text := self._read(self.root / path, judged[path])):
            metrics |= {NOT_IN_NAMES.sub("_", name): float(value) for name, value in json.loads(text).items()}
        metrics |= self._evaluation("val", number, "evaluation")
        for stage, output in OUTPUTS.items():
            if text := self._read(folder / "timings" / f"{output}.json"):
                measured = json.loads(text)
                total += measured["seconds"]
                metrics[f"seconds/{stage}"] = measured["seconds"]
                more = measured.keys() - {"stage", "seconds"}  # what the stage measured itself: calls, retries, latency
                metrics |= {f"{stage}/{name}": float(measured[name]) for name in sorted(more)}
        if metrics.get("seconds/rollout") and "tokens" in metrics:
            metrics["tokens_per_second"] = metrics["tokens"] * metrics["collected"] / metrics["seconds/rollout"]
        if overhead is not None:
            metrics["overhead_seconds"] = overhead
        return metrics, total

    def _wasted(self, folder: Path) -> dict[str, float]:
        """What became of the sampled tokens, where the files of the iteration are those of its update."""
        from steps.analytics.waste import waste

        try:
            return waste(folder).metrics()
        except UserError as problem:
            self.tell(f"waste/ is left out: {problem}")
            return {}

    def metrics(self, number: str) -> dict[str, float]:
        """What an iteration's nested run holds, the validation alone of the base policy; nothing where it is not logged."""
        if number == "000":
            return self._evaluation("val", number, "evaluation")
        return dict(self.children[number][0].data.metrics) if self.children.get(number) else {}

    def _evaluation(self, prefix: str, number: str, name: str) -> dict[str, float]:
        """Metrics of run/<number>/<name>, if it is one of the adapter that lies beside it."""
        from steps.core.records import Evaluation
        from steps.policy.adapter import adapter_hash

        folder = self.root / "run" / number
        if not (text := self._read(folder / name / "summary.json")):
            return {}
        summary = Evaluation.model_validate_json(text)
        if (folder / "adapter").exists() and adapter_hash(folder / "adapter") != summary.adapter_hash:
            self.tell(f"run/{number}/{name} is of another adapter, and is left out: run `dvc repro` or `dvc checkout`")
            return {}
        low, high = summary.ci95
        plain = summary.model_dump(include={"n", "success", "reward", "turns", "tokens"})
        values = plain | {"ci95_low": low, "ci95_high": high}
        values |= {f"success_{kind}": share for kind, share in summary.slices.items()}
        return {NOT_IN_NAMES.sub("_", f"{prefix}/{key}"): float(value) for key, value in values.items()}

    def _read(self, path: Path, md5: str | None = None) -> str | None:
        """The text of a file; None, and a reason, where it is missing or not the one that dvc.lock recorded."""
        name = path.relative_to(self.root)
        if not path.exists():
            self.tell(f"{name} is missing, and is left out")
            return None
        content = path.read_bytes()
        if md5 is not None and hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
            self.tell(f"{name} is not what dvc.lock recorded, and is left out: run `dvc repro` or `dvc checkout`")
            return None
        return content.decode()


def batch(run: Any, metrics: dict, step: int, params: dict, tags: dict, model: str | None = None) -> dict[str, Any]:
    """What `log_batch` takes. A metric's time is its run's start; the validation's are the logged model's too."""
    from mlflow.entities import Metric, Param, RunTag

    of = {name: model if name.startswith("val/") else None for name in metrics}
    return {
        "metrics": [Metric(name, value, run.info.start_time, step, of[name]) for name, value in metrics.items()],
        "params": [Param(*item) for item in params.items()],
        "tags": [RunTag(*item) for item in tags.items()],
    }


def title(params: Params) -> str:
    """What tells a run from others: task, seed, base model, judges, then knobs of learning; defaults are left out."""
    usual = type(params)()
    given = flat({key: getattr(params, key).model_dump(mode="json") for key in ("update", "rollout")})
    default = flat({key: getattr(usual, key).model_dump(mode="json") for key in ("update", "rollout")})
    told = [f"{params.task} seed {params.seed}"]
    told += [params.policy.base_model.rpartition("/")[2]] * (params.policy.base_model != usual.policy.base_model)
    told += [card.judges(params)] * (params.score.judges != usual.score.judges)
    knobs = [f"{name.rpartition('.')[2]} {value}" for name, value in given.items() if value != default.get(name)]
    return ", ".join([*told, *knobs[:KNOBS], *([f"{len(knobs) - KNOBS} more"] if len(knobs) > KNOBS else [])])


def public(text: str) -> str:
    """A YAML file without secrets: as it is where it holds none, else written anew where its values had to be masked."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = yaml.load(text, loader)
    safe = masked(found)
    return masked(text if safe == found else yaml.safe_dump(safe, sort_keys=False, allow_unicode=True))


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested values as {"update.beta": "0.001"}."""
    result: dict[str, str] = {}
    for name, value in values.items():
        result |= flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {f"{prefix}{name}": str(value)}
    return result


def log(root: Path) -> None:
    """Log every iteration of chain.yaml, the test split, and the files that describe the run."""
    dotenv.load(root)
    tracker = start(root)
    there = [number for number in read_chain(tracker.root).get("iterations") or {} if tracker.iteration(number)]
    if there:
        tracker.finish()
        say(f"logged: {', '.join(tracker.logged) or 'nothing new'}; in MLflow now: {', '.join(there)}")
    say(tracker.where())
