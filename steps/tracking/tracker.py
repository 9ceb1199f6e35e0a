"""Logs a run to MLflow: what it was and what it measured. Nothing is read back to decide anything.

MLflow gets an experiment per task, in it a parent run per run, and in that a nested run per iteration. Runs are identified
by hashes of entries of dvc.lock, so logging again, or continuing after an interruption, finds the runs that exist. The store
is .flywheel/mlflow.db and .flywheel/mlartifacts in the project, or what MLFLOW_TRACKING_URI names.

Left out: trajectories and checkpoints (DVC keeps them; their md5s are logged as the run's inputs), and the content of files
that git does not track. Other services, and traces of what the agent did, are add-ons' (`Begin`). Everything logged is
masked (steps/core/masking.py), except the adapter's own files. After a plain `dvc repro`:

    python -m steps.tracking        # logs what chain.yaml, dvc.lock and run/ hold; the flow calls the same functions
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from steps.core.masking import masked
from steps.core.params import Params, load
from steps.core.progress import say
from steps.core.records import ITERATION_STAGES
from steps.judging.judge import weighed
from steps.policy.loading import turn_limit
from steps.project import git, store
from steps.project.chain import origins, read_chain
from steps.project.lock import Lock, LockReader, digest, run_key, unfit
from steps.registry import publish
from steps.tracking.entries import batch, flat, inputs, public, slim
from steps.tracking.measured import MeasuredRun

# Parameters of the flow, not of an iteration: they may change while a run continues, so they are logged as tags.
FLOW_ONLY = ("train", "register")
KNOBS = 3  # changed parameters that a run's name lists
# Metrics that the parent run shows as curves over the iterations; the nested runs have all metrics.
MIRRORED = """reward_mean reward_std success turns tokens entropy kl update/clip_ratio_region_mean grad_norm loss sampler_kl
    zero_variance_groups val/success val/judged_better val/ci95_low val/ci95_high val/reward tokens_per_second
    overhead_seconds""".split()
# The column "Source" of MLflow's pages.
SOURCE = {"mlflow.source.name": "flows/train.py", "mlflow.source.type": "LOCAL"}
GIT = ("git_commit", "git_dirty", "mlflow.source.git.commit")  # the parent's tags that nested runs get, too


class Sample(NamedTuple):
    """The machine at one moment, or the mean of several moments."""

    time: int  # ms since 1970
    values: dict[str, float]  # by MLflow's names, system/…


class Tracker(Protocol):
    """A service that a run is logged to. The flow holds a list of them."""

    def iteration(self, number: str, overhead_seconds: float | None = None, system: Sequence[Sample] = ()) -> object:
        """Log run/<number>, once. `overhead_seconds` passed between its stages; `system` is what the machine did."""

    def finish(self, status: str = "FINISHED") -> None:
        """End the run. FINISHED logs the tests, too; FAILED and KILLED end it early, and suppress errors of their own."""


class Begin(Protocol):
    """What the port `tracker` brings. An add-on's tracker comes after MLflow's, which it may read."""

    def __call__(self, run: MlflowTracker, is_live: bool, /) -> Tracker | None:
        """The tracker of a run, or None where it is not switched on. `is_live`: the run goes on, and is not logged again
        later; an error is then said and ends the tracker alone (steps/tracking/lasting.py)."""


class MlflowTracker:
    """The parent run of what params.yaml and dvc.lock describe. It is looked up, or created, with the first iteration.

    `name` is the run's; without one, `title` says what is special about it. `origin` are tags that say where it was started.
    The store is connected to, and created where it is missing; UserError where that fails.
    """

    def __init__(
        self,
        root: Path,
        log_message: Callable[[str], None] = say,
        name: str = "",
        origin: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.origin = name, masked(dict(origin or {}))
        self.root, self.began = root.resolve(), int(1000 * time.time())
        self.log_message = lambda text: log_message(masked(text))
        self.params = load(self.root / "params.yaml", Params)
        values = flat(masked(self.params.model_dump(mode="json", by_alias=True)))
        for section in ("rollout", "evaluate"):  # what null came to
            given = getattr(self.params, section).max_tokens
            values[f"{section}.max_tokens"] = turn_limit(self.params.policy, given)
        strings = {name: str(value) for name, value in values.items()}
        self.settings = {name: text for name, text in strings.items() if name.partition(".")[0] not in FLOW_ONLY}
        self.flow_settings = {name: text for name, text in strings.items() if name not in self.settings}
        self.tags: dict[str, str] = masked(publish.about(self.params) | {"judge": weighed(self.params.score)})
        self.uri = store.address(self.root)
        self.uri_shown = store.hidden(self.uri)
        with store.explained(self.uri):
            self.client = store.connect(self.root)
            self.experiment = store.experiment(self.client, self.root, self.params.task)
        self.lock = LockReader()
        self.measured = MeasuredRun(self.root, self.log_message)
        self.parent: Any = None  # mlflow.entities.Run
        self.children: dict[str, list[Any]] = {}  # iteration -> its nested runs
        self.logged: list[str] = []  # iterations that this tracker added
        self.entered: list[str] = []  # iterations that are in MLflow now, as this tracker has seen
        self.logging, self.stopped = threading.Lock(), False  # a flow logs an iteration while the next one runs

    def iteration(
        self, number: str, overhead_seconds: float | None = None, system: Sequence[Sample] = ()
    ) -> str | None:
        """Log run/<number>, once; returns the nested run's id, or None where the iteration is not finished."""
        with self.logging, store.explained(self.uri):
            if self.stopped:
                return None
            lock = self.lock.read(self.root)
            names = [f"{stage}@{number}" for stage in ITERATION_STAGES]
            if reason := unfit(lock, names, self.params) or self._open(lock):
                self.log_message(f"iteration {number} is not logged: {reason}")
                return None
            return self._nested(number, {name: lock[name] for name in names}, overhead_seconds, system)

    def finish(self, status: str = "FINISHED") -> None:
        """End the parent run. FINISHED logs the test split, and the files that describe the run.

        FAILED and KILLED only set the status; a later flow continues the run. Errors are suppressed here, because the
        error that ended the flow matters more.
        """
        if status == "FINISHED":
            self._log_end()
            return
        with self.logging, contextlib.suppress(Exception):
            self.stopped = True
            if self.parent is not None and self.parent.info.status != "FINISHED":
                self._set_status(status)

    def _log_end(self) -> None:
        """Log the tests and the files, and end the parent run, where there is one."""
        with store.explained(self.uri):
            if reason := self._open():
                self.log_message(f"nothing is logged: {reason}")
                return
            run = self.parent
            names = ("dvc.lock", "params.yaml", "chain.yaml", "start.dvc")
            files = [path for name in names if (path := self.root / name).exists()]
            attached = digest([path.read_text() for path in files])
            if (run.info.status, run.data.tags.get("attached")) == ("FINISHED", attached):
                return
            tested = read_chain(self.root).get("tested") or {}
            tags = self.flow_settings | {"attached": attached, "best_iteration": str(tested.get("best"))}
            for prefix, number in (("test", tested.get("best")), ("test_base", tested.get("base"))):
                number = str(number or "")  # of an iteration, or the name of what the first one continued
                metrics = self.measured.evaluation(prefix, number, "test") if number else {}
                self.client.log_batch(
                    run.info.run_id, **batch(run, metrics, int(number) if number.isdigit() else 0, {}, tags)
                )
            for path in files:
                self.client.log_text(run.info.run_id, public(path.read_text()), path.name)
            self._link_model(tested.get("best"))
            self._set_status("FINISHED")

    def _link_model(self, best: str | None) -> None:
        """Show the best iteration's adapter as the model of the whole run, too."""
        from mlflow.entities import LoggedModelOutput

        run_id = self.parent.info.run_id
        if best not in self.children:  # the base policy, which is no model of this run
            return
        outputs = [self.client.get_run(number).outputs for number in (run_id, self.children[best][0].info.run_id)]
        linked, made = ({model.model_id for model in listed.model_outputs} if listed else set() for listed in outputs)
        if new := sorted(made - linked):  # MLflow refuses the same output twice
            self.client.log_outputs(run_id, [LoggedModelOutput(name, int(best)) for name in new])

    def _set_status(self, status: str) -> None:
        """Set the parent run's status; every status but RUNNING ends it."""
        run_id = self.parent.info.run_id
        if status == "RUNNING":
            self.client.update_run(run_id, status=status)
        else:
            self.client.set_terminated(run_id, status)
        self.parent = self.client.get_run(run_id)

    def log_artifact(self, path: Path) -> None:
        """Attach a file to the parent, such as the learning curve."""
        with store.explained(self.uri):
            if reason := self._open():
                self.log_message(f"{path.name} is not logged: {reason}")
            else:
                self.client.log_artifact(self.parent.info.run_id, str(path))

    def note(self, text: str) -> None:
        """Write the description that MLflow's page of the run shows: markdown."""
        with store.explained(self.uri):
            if self._open() is None:
                self.client.set_tag(self.parent.info.run_id, "mlflow.note.content", masked(text))

    @property
    def run_name(self) -> str:
        """The run's name in MLflow; empty before there is one."""
        return str(self.parent.info.run_name) if self.parent else ""

    def where(self) -> str:
        """For a person: the store, the experiment, the run."""
        name = self.run_name or "no run yet"
        if self.parent and self.uri.startswith("http"):
            page = f"#/experiments/{self.experiment}/runs/{self.parent.info.run_id}"
            name += f": {self.uri_shown.rstrip('/')}/{page}"
        return f"MLflow: {self.uri_shown}, experiment {self.params.task}, {name}"

    def metrics(self, number: str | None) -> dict[str, float]:
        """What MLflow holds of an iteration; of the base policy (000) only its validation. None: of the whole run.

        Nothing where it is not logged.
        """
        if number == "000":
            return self.measured.evaluation("val", number, "evaluation")
        runs = self.children.get(number, []) if number else [self.parent]
        return dict(runs[0].data.metrics) if runs and runs[0] else {}

    def _open(self, lock: Lock | None = None) -> str | None:
        """Find or create the parent run, once; returns why that cannot be done, if so."""
        if self.parent:
            return None
        lock, first = lock or self.lock.read(self.root), [f"{stage}@001" for stage in ITERATION_STAGES]
        if reason := unfit(lock, ["scenarios", "initialise", *first], self.params):
            return reason
        outputs = {out["path"]: out.get("md5") for out in lock["scenarios"].get("outs", [])}
        self.tags["data_hash"] = str(outputs.get("run/scenarios"))
        key = str(run_key(lock))
        runs = self.client.search_runs([self.experiment], f"tags.run_key = '{key}'", order_by=["start_time ASC"])
        if runs:
            run = runs[0]
            if self.name and run.info.run_name != self.name:
                self.client.update_run(run.info.run_id, name=self.name)
                run = self.client.get_run(run.info.run_id)
        else:
            state, difference = git.git_state(self.root)
            tags, name = self.tags | state | SOURCE | {"run_key": key}, self.name or f"{title(self.params)}, {key[:6]}"
            run = self.client.create_run(self.experiment, self.began, tags, name)
            if difference:
                self.client.log_text(run.info.run_id, masked(difference), "git.diff")
        unset = {name: value for name, value in self.settings.items() if name not in run.data.params}
        base = self.measured.evaluation("val", "000", "evaluation")
        for origin in origins(self.root):  # before iteration 001; without supervised training val_sft is not there
            base |= self.measured.evaluation(f"val_{origin}", origin, "evaluation")
        self.client.log_batch(run.info.run_id, **batch(run, base, 0, unset, self.flow_settings | self.origin))
        self.client.log_inputs(run.info.run_id, inputs("001", {"scenarios": lock["scenarios"]}))
        nested = f"tags.`mlflow.parentRunId` = '{run.info.run_id}'"
        for child in self.client.search_runs([self.experiment], nested, max_results=5000):
            self.children.setdefault(child.data.tags.get("iteration", ""), []).append(slim(child))
        self.parent = run
        return None

    def _nested(self, number: str, entries: Lock, overhead_seconds: float | None, system: Sequence[Sample]) -> str:
        """Create the nested run, or complete an interrupted one. Runs of other entries of dvc.lock are deleted."""
        key = digest(entries)
        run: Any = None
        for other in self.children.get(number, []):
            if other.data.tags.get("iteration_key") == key and run is None:
                run = other
            else:
                self.client.set_tag(other.info.run_id, "superseded_by", key)
                self.client.delete_run(other.info.run_id)
        if run is None or run.info.status != "FINISHED":
            if self.parent.info.status != "RUNNING":  # an earlier flow run ended it, and this one continues it
                self._set_status("RUNNING")
            metrics, seconds = self.measured.iteration(number, entries, overhead_seconds)
            if run is None:
                parent, began = self.parent, int(1000 * (time.time() - seconds))
                tags = self.tags | {name: value for name, value in parent.data.tags.items() if name in GIT}
                tags |= SOURCE | {"iteration": number, "iteration_key": key, "mlflow.parentRunId": parent.info.run_id}
                whose = f" of {self.name}" if self.name else f", {parent.data.tags['run_key'][:6]}"
                name = f"iteration {number}{whose}"  # short, because the pages cut off longer names
                run = self.client.create_run(self.experiment, began, tags, name)
            self._fill(run, number, entries, metrics, system)
            self.client.set_terminated(run.info.run_id)
            run = self.client.get_run(run.info.run_id)
            self.logged.append(number)
        self.children[number] = [slim(run)]
        self.entered.append(number)
        return run.info.run_id

    def _fill(self, run: Any, number: str, entries: Lock, metrics: dict[str, float], system: Sequence[Sample]) -> None:
        """Log all of a nested run. Metrics bear the run's start as their time, so logging them again adds nothing."""
        from mlflow.entities import LoggedModelOutput, Metric

        run_id, step, adapter = run.info.run_id, int(number), self.root / "run" / number / "adapter"
        model, tags = None, self.tags
        if adapter.exists():
            model, tags = publish.logged_adapter(self.client, self.experiment, adapter, tags, run_id)
            if not (run.outputs and run.outputs.model_outputs):  # MLflow refuses the same output twice
                self.client.log_outputs(run_id, [LoggedModelOutput(model, step)])
        else:
            self.log_message(f"run/{number}/adapter is missing, and is left out")
        everything = batch(run, metrics, step, self.settings, tags, model)
        for place, sample in enumerate(system):  # MLflow shows them in a tab of their own
            everything["metrics"] += [Metric(name, value, sample.time, place) for name, value in sample.values.items()]
        self.client.log_batch(run_id, **everything)
        self.client.log_inputs(run_id, inputs(number, entries))
        mirrored = {name: metrics[name] for name in MIRRORED if name in metrics}
        self.client.log_batch(self.parent.info.run_id, **batch(run, mirrored, step, {}, {}))


def title(params: Params) -> str:
    """A run's name: task and seed, then base model, judges and learning parameters where they are not the defaults."""
    usual = type(params)()
    changed = flat({key: getattr(params, key).model_dump(mode="json") for key in ("update", "rollout")})
    default = flat({key: getattr(usual, key).model_dump(mode="json") for key in ("update", "rollout")})
    parts = [f"{params.task} seed {params.seed}"]
    parts += [params.policy.base_model.rpartition("/")[2]] * (params.policy.base_model != usual.policy.base_model)
    parts += [weighed(params.score)] * (params.score.judges != usual.score.judges)
    knobs = [f"{name.rpartition('.')[2]} {value}" for name, value in changed.items() if value != default.get(name)]
    return ", ".join([*parts, *knobs[:KNOBS], *([f"{len(knobs) - KNOBS} more"] if len(knobs) > KNOBS else [])])
