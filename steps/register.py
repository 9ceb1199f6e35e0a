"""Register: the best adapter becomes a version of a registered model in MLflow, if it beats the base policy on the test
split.

The receipt says what was decided and why, and depends on the inputs alone: it is what DVC versions. The version itself is
MLflow's; an adapter that has one already is never given a second. Here too, for steps/tracking.py: where MLflow's store is,
how it is reached, what an error of it means, and what dvc.lock and git say about a run.

Left out: the full gate (the champion, slices), moving `champion` once there is one, deleting anything.

    python -m steps.register --adapter run/004/adapter --evaluation run/004/test --base-evaluation run/000/test \\
        --receipt run/receipt.json
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from steps import card
from steps.stage import Input, Output, UserError, main, say
from steps.types import OUTPUTS

if TYPE_CHECKING:
    from mlflow import MlflowClient

    from steps.params import Params, RegisterParams
    from steps.types import Evaluation

Lock = dict[str, dict[str, Any]]  # dvc.lock: stage -> {"cmd", "deps", "params", "outs"}

# A server that is away must not hold a run up for minutes, as MLflow's own 7 retries and 120 s would.
SETTINGS = {"HTTP_REQUEST_MAX_RETRIES": "2", "HTTP_REQUEST_BACKOFF_FACTOR": "1", "HTTP_REQUEST_TIMEOUT": "15"}
# It reports nothing home, and prints nothing into a live display.
SETTINGS |= {"DISABLE_TELEMETRY": "true", "SUPPRESS_PRINTING_URL_TO_STDOUT": "true"}
SETTINGS |= {"ENABLE_ARTIFACTS_PROGRESS_BAR": "false"}


def register(
    adapter: Input, evaluation: Input, base_evaluation: Input, receipt: Output, params: RegisterParams
) -> None:
    """Write the receipt; register the adapter, past the gate. Both evaluations must be of the test split."""
    from steps.engine import adapter_hash

    trained, base = read_test(evaluation), read_test(base_evaluation)
    name = adapter_hash(adapter)
    if trained.adapter_hash != name:
        raise UserError(
            f"{evaluation} is of adapter {trained.adapter_hash}, and {adapter} is {name}: evaluate it again (`dvc repro`)"
        )
    if trained.n != base.n:
        raise UserError(
            f"{evaluation} has {trained.n} scenarios and {base_evaluation} has {base.n}: only the same can be compared, "
            "evaluate both again (`dvc repro`)"
        )
    better = trained.success > base.success
    how = "above" if better else "not above"
    reason = f"test success {trained.success:.3f} is {how} the base policy's {base.success:.3f} ({trained.n} scenarios)"
    if better:
        version = publish(Path.cwd(), adapter, evaluation, base_evaluation, params)
        say(f"registered: {params.model} version {version}, because {reason}")
    else:
        say(f"not registered: {reason}")
    written = {"name": params.model, "adapter_hash": name, "registered": better, "reason": reason}
    for key, summary in (("base", base), ("trained", trained)):
        written[key] = summary.model_dump(mode="json", include={"success", "ci95", "n", "reward"})
    receipt.write_text(json.dumps(written, indent=2) + "\n")


def read_test(folder: Path) -> Evaluation:
    """An evaluation's summary; UserError where it is not of the test split."""
    from steps.types import Evaluation

    summary = Evaluation.model_validate_json((folder / "summary.json").read_text())
    if summary.split != "test":
        raise UserError(f"{folder} is of the split {summary.split}: what is registered is judged on the test split")
    return summary


def publish(root: Path, adapter: Path, evaluation: Path, base_evaluation: Path, params: RegisterParams) -> str:
    """The version of this adapter in the registry: the one that is there, else a new one. Sets the aliases.

    Whether it ought to be there is not asked. The same call serves after the store was lost: DVC knows nothing of it.
    """
    from steps.engine import adapter_hash

    name, trained, base = params.model, read_test(evaluation), read_test(base_evaluation)
    with explained(address(root)):
        client = connect(root)
        from mlflow.exceptions import MlflowException  # after connect, which sets MLflow's environment

        version = registered_version(name, adapter_hash(adapter), root)
        if version is None:
            model, tags = logged_adapter(client, experiment(client, root, params.task), adapter, about(params))
            for prefix, summary in (("test", trained), ("base", base)):
                tags |= {f"{prefix}_{key}": str(getattr(summary, key)) for key in ("success", "ci95", "n", "reward")}
            tags |= lineage(root, adapter, evaluation, base_evaluation) | git_state(root)[0]
            text = described(root, adapter, tags, {"test": trained, "base": base}, client.get_logged_model(model))
            try:
                client.create_registered_model(name, tags={"task": params.task})
            except MlflowException as problem:
                if problem.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            with tempfile.TemporaryDirectory() as folder:  # the adapter's hash is of its own two files
                readme = Path(folder) / "README.md"
                readme.write_text(card.readme(f"{name}, adapter {tags['adapter_hash']}", tags, text))
                client.log_model_artifact(model, str(readme))
            source = f"models:/{model}"
            with default(address(root)):
                made = client.create_model_version(name, source, tags=tags, description=text, model_id=model)
            version = str(made.version)
            links = json.loads(client.get_logged_model(model).tags.get("mlflow.modelVersions", "[]"))
            links.append({"name": name, "version": made.version})
            client.set_logged_model_tags(model, {"mlflow.modelVersions": json.dumps(links)})
        client.set_registered_model_alias(name, "challenger", version)
        if "champion" not in client.get_registered_model(name).aliases:
            client.set_registered_model_alias(name, "champion", version)
    return version


def described(root: Path, adapter: Path, tags: dict[str, str], evaluations: dict[str, Evaluation], model: Any) -> str:
    """The model card of an adapter that is registered."""
    report = root / "run/scenarios/contamination.json"
    checked = json.loads(report.read_text()) if report.is_file() else None
    return card.card(tags, recorded(root, adapter), evaluations, checked, model.source_run_id)


def about(params: RegisterParams | Params) -> dict[str, str]:
    """Tags: the task and the base policy."""
    policy = params.policy
    return {"task": params.task, "base_model": policy.base_model, "base_revision": str(policy.revision)}


def registered_version(name: str, adapter_hash: str, root: Path | None = None) -> str | None:
    """The version of model `name` that holds this adapter."""
    root = root or Path.cwd()
    with explained(address(root)):
        holding = connect(root).search_model_versions(f"tags.adapter_hash = '{adapter_hash}'")
    return min((str(one.version) for one in holding if one.name == name), key=int, default=None)


def logged_adapter(
    client: MlflowClient, experiment_id: str, folder: Path, tags: dict[str, str], run_id: str | None = None
) -> tuple[str, dict[str, str]]:
    """(id, tags) of the logged model that holds this adapter: copied once into an experiment, whoever logs it first."""
    from steps.engine import adapter_hash

    name = adapter_hash(folder)
    tags = tags | {"adapter_hash": name}
    for model in client.search_logged_models([experiment_id], f"tags.adapter_hash = '{name}'"):
        if str(model.status) == "READY":  # one that was interrupted stays PENDING
            return model.model_id, tags
    made = client.create_logged_model(experiment_id, f"adapter-{name}", run_id, tags, model_type="lora")
    client.log_model_artifacts(made.model_id, str(folder))
    client.finalize_logged_model(made.model_id, "READY")
    return made.model_id, tags


# --- MLflow's store


def address(root: Path) -> str:
    """MLFLOW_TRACKING_URI, else the project's own store."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{root.resolve() / '.flywheel' / 'mlflow.db'}"


def hidden(uri: str) -> str:
    """An address without its password."""
    return re.sub(r"//[^/@]*@", "//…@", uri)


def connect(root: Path) -> MlflowClient:
    """A client of the store, which is made where it is the project's own and not there yet."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(f"MLFLOW_{name}", value)
    import logging

    from mlflow import MlflowClient

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.CRITICAL)  # what it says is raised as well
    uri = address(root)
    database = root.resolve() / ".flywheel" / "mlflow.db"
    if not os.environ.get("MLFLOW_TRACKING_URI") and not database.exists():
        make_store(database)
    return MlflowClient(uri, os.environ.get("MLFLOW_REGISTRY_URI") or uri)


def make_store(database: Path) -> None:
    """MLflow's tables, under another name until they are whole: an interrupted creation could not be gone on with.

    Without waiting for the disk it takes 1 s instead of 5. The write-ahead log halves the time of each later write.
    """
    import sqlalchemy
    from mlflow.store.db import utils

    database.parent.mkdir(parents=True, exist_ok=True)
    temporary = database.with_name(f".tmp-{os.getpid()}.{database.name}")
    try:
        engine = sqlalchemy.create_engine(f"sqlite:///{temporary}")
        sqlalchemy.event.listen(engine, "connect", lambda link, _: link.execute("PRAGMA synchronous=OFF"))
        utils._initialize_tables(engine)
        with engine.connect() as link:
            link.exec_driver_sql("PRAGMA journal_mode=WAL")
        engine.dispose()
        with contextlib.suppress(FileExistsError):  # another process was quicker, and may have written to it
            os.link(temporary, database)
    finally:
        for left in database.parent.glob(f"{temporary.name}*"):
            left.unlink()


def experiment(client: MlflowClient, root: Path, task: str) -> str:
    """The id of the task's experiment. A server decides itself where artifacts lie; a database has them in .flywheel."""
    with explained(address(root)):
        if found := client.get_experiment_by_name(task):
            if found.lifecycle_stage == "active":
                return found.experiment_id
            restore = f"mlflow experiments restore --experiment-id {found.experiment_id}"
            where = f"MLFLOW_TRACKING_URI={hidden(address(root))}"
            raise UserError(f"MLflow's experiment {task} was deleted; bring it back with `{where} {restore}`")
        folder = None
        if re.match(r"(sqlite|postgresql|mysql|mssql)\b", address(root)):
            folder = (root.resolve() / ".flywheel" / "mlartifacts" / task).as_uri()
        return client.create_experiment(task, folder)


@contextlib.contextmanager
def explained(uri: str) -> Iterator[None]:
    """What MLflow and the connection to it complain of, as a sentence that says what to do."""
    try:
        yield
    except Exception as problem:
        if type(problem).__module__.partition(".")[0] not in ("mlflow", "requests", "urllib3", "sqlalchemy"):
            raise
        said = " ".join(str(problem).split())
        said = hidden(said if len(said) < 400 else said[:400] + " …")
        advice = "see to that"
        if os.environ.get("MLFLOW_TRACKING_URI"):
            advice = "start or mend it, correct MLFLOW_TRACKING_URI, or unset it to log to .flywheel/mlflow.db"
        text = f"MLflow at {hidden(uri)} cannot be reached or does not accept this: {said}"
        raise UserError(f"{text}; {advice}, then run the same again") from problem


@contextlib.contextmanager
def default(uri: str) -> Iterator[None]:
    """For a moment, MLflow logs here by default: there it looks up a models:/… address, not where its client does."""
    own = not os.environ.get("MLFLOW_TRACKING_URI")
    os.environ["MLFLOW_TRACKING_URI"] = uri
    try:
        yield
    finally:
        if own:
            del os.environ["MLFLOW_TRACKING_URI"]


# --- What dvc.lock and git say


def read_lock(root: Path) -> Lock:
    """The stages of dvc.lock; none where there is no file."""
    import yaml

    path = root / "dvc.lock"
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the C one: 30 ms instead of 500 at twelve iterations
    return (yaml.load(path.read_bytes(), loader).get("stages") or {}) if path.exists() else {}


def run_key(lock: Lock) -> str | None:
    """What identifies a run: a hash of its code, data and parameters, which its first iteration reads and the run itself did
    not make. None before that iteration is whole."""
    first = [f"{stage}@001" for stage in OUTPUTS]
    if any(name not in lock for name in ("scenarios", "initialise", *first)):
        return None
    given: list[Any] = [[lock[name]["cmd"], lock[name].get("params")] for name in first]
    given += [dep for name in first for dep in lock[name].get("deps", []) if not dep["path"].startswith("run/")]
    return digest([lock["scenarios"], lock["initialise"], given])


def digest(value: Any) -> str:
    """A hash of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def lineage(root: Path, *paths: Path) -> dict[str, str]:
    """Tag with a hash of every entry of dvc.lock that these outputs come from, directly or not; none where unrecorded."""
    found = ancestry(root, *paths)
    return {"dvc_lock": digest(found)} if found else {}


def recorded(root: Path, adapter: Path) -> card.Recorded:
    """What dvc.lock has of an adapter's making; nothing where it has none, or parameters of another version of the code."""
    from pydantic import ValidationError

    from steps.params import Params

    found = ancestry(root, adapter)
    updates = sorted(name for name in found if name.startswith("update@"))
    if not updates:
        return card.Recorded()
    given: dict[str, Any] = {}
    for name in [*sorted(found.keys() - updates), *updates]:  # of what changed on the way, the last iteration's
        given |= (found[name].get("params") or {}).get("params.yaml") or {}
    try:
        params = Params.model_validate(given)
    except ValidationError:
        params = None
    read = {dep["path"]: dep.get("md5") for dep in found[updates[-1]].get("deps", []) if dep["path"].startswith("run/")}
    made = {out["path"]: out.get("md5") for entry in found.values() for out in entry.get("outs", [])}
    hashes = {
        path: md5 for path, md5 in read.items() if path.endswith(("/checkpoint", "/trajectories.parquet")) and md5
    }
    if md5 := made.get("run/scenarios"):
        hashes = {"run/scenarios": md5} | hashes
    return card.Recorded(params, len(updates), hashes)


def ancestry(root: Path, *paths: Path) -> Lock:
    """The entries of dvc.lock that these outputs come from, directly or not."""
    lock = read_lock(root)
    makers = {out["path"]: name for name, entry in lock.items() for out in entry.get("outs", [])}
    queue: list[str] = [os.path.relpath(path, root) for path in paths]
    found: Lock = {}
    while queue:
        name = makers.get(queue.pop())
        if name and name not in found:
            found[name] = lock[name]
            queue += [dep["path"] for dep in lock[name].get("deps", [])]
    return found


def git_state(root: Path) -> tuple[dict[str, str], str]:
    """(tags with the commit and whether the tree differs from it, the difference), but for what a run itself writes."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        done = subprocess.run(command, check=True, capture_output=True, env=os.environ | {"GIT_OPTIONAL_LOCKS": "0"})
        return done.stdout.decode(errors="replace")

    rest = ("--", ".", ":!dvc.lock", ":!chain.yaml")
    try:
        commit = git("rev-parse", "HEAD").strip()
        changed = git("status", "--porcelain", *rest)
        difference = changed + git("diff", "HEAD", *rest) if changed else ""
    except (subprocess.CalledProcessError, FileNotFoundError):
        return {}, ""  # no git, or no commit
    tags = {"git_commit": commit, "mlflow.source.git.commit": commit, "git_dirty": "true" if changed else "false"}
    return tags, difference


if __name__ == "__main__":
    main(register, warm=False)
